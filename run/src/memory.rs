// SPDX-License-Identifier: GPL-2.0

//! How much memory a guest gets by itself.

use crate::options::LEAST_MEMORY;
use std::fs;
use std::path::Path;

/// A guest's kernel keeps 64 octets for each of its pages, so more costs without being used.
const MOST_BY_DEFAULT: u64 = 4 << 30;

/// What each of so many guests gets of half of what this process's control groups and the machine
/// have, in octets.
pub(crate) fn by_default(guests: u32) -> u64 {
    share(Path::new("/"), guests)
}

fn share(root: &Path, guests: u32) -> u64 {
    let text = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    let number = |path: &Path| text(path).trim().parse::<u64>().ok();
    let groups = root.join("sys/fs/cgroup");
    let mut most = machine(&text(&root.join("proc/meminfo"))).unwrap_or(MOST_BY_DEFAULT);
    for line in text(&root.join("proc/self/cgroup")).lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else {
            continue;
        };
        let (top, name) = match controllers {
            "" => (groups.clone(), "memory.max"),
            _ if controllers
                .split(',')
                .any(|controller| controller == "memory") =>
            {
                (groups.join("memory"), "memory.limit_in_bytes")
            }
            _ => continue,
        };
        // A limit of an outer group is one of the inner groups, too.
        let group = top.join(group.trim_start_matches('/'));
        for directory in group
            .ancestors()
            .take_while(|directory| directory.starts_with(&top))
        {
            most = most.min(number(&directory.join(name)).unwrap_or(u64::MAX));
        }
    }
    (most / 2 / u64::from(guests)).clamp(LEAST_MEMORY, MOST_BY_DEFAULT)
}

/// What the file meminfo says that the machine has.
fn machine(text: &str) -> Option<u64> {
    let rest = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    rest.trim()
        .strip_suffix(" kB")?
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half of what a root with these files has, in MiB.
    fn half(name: &str, files: &[(&str, &str)]) -> u64 {
        share_of(name, files, 1)
    }

    fn share_of(name: &str, files: &[(&str, &str)], guests: u32) -> u64 {
        let root = std::env::temp_dir().join(format!("riwarp-run-{}-{name}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let half = share(&root, guests);
        let _ = fs::remove_dir_all(&root);
        half >> 20
    }

    const MACHINE: (&str, &str) = (
        "proc/meminfo",
        "MemTotal:        4194304 kB\nMemFree: 1 kB\n",
    );
    const UNIFIED: (&str, &str) = ("proc/self/cgroup", "0::/a/b\n");

    #[test]
    fn guests_share_half_of_total_memory() {
        assert_eq!(share_of("shared", &[MACHINE], 4), 512);
    }

    #[test]
    fn the_tightest_limit_counts() {
        assert_eq!(half("nothing", &[]), 2048);
        assert_eq!(half("machine", &[MACHINE]), 2048);
        let inner = ("sys/fs/cgroup/a/b/memory.max", "max\n");
        let outer = ("sys/fs/cgroup/a/memory.max", "1073741824\n");
        assert_eq!(half("outer", &[MACHINE, UNIFIED, inner, outer]), 512);
        let top = ("sys/fs/cgroup/memory.max", "536870912\n");
        assert_eq!(half("top", &[MACHINE, UNIFIED, inner, outer, top]), 256);
        let first = ("proc/self/cgroup", "9:cpu:/x\n4:hugetlb,memory:/a\n");
        let limit = (
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes",
            "1048576000\n",
        );
        assert_eq!(half("first version", &[MACHINE, first, limit]), 500);
        assert_eq!(
            half("little", &[("proc/meminfo", "MemTotal: 1024 kB\n")]),
            64
        );
        assert_eq!(
            half("much", &[("proc/meminfo", "MemTotal: 1073741824 kB\n")]),
            4096
        );
    }
}
