// SPDX-License-Identifier: GPL-2.0

//! The guest's root: that of the machine, under a layer in memory.

use crate::{address, address6, During};
use riwarp_run::{Failure, Job};
use rustix::fs::Mode;
use rustix::mount::{mount_bind, mount_move, MountFlags};
use std::ffi::{CString, OsStr};
use std::fmt::Write;
use std::fs::{self, create_dir_all};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Mounts a file system, on a directory that is created if it does not exist.
pub(crate) fn mount(source: &str, on: &str, kind: &str, options: &str) -> io::Result<()> {
    mount_path(
        source,
        Path::new(on),
        kind,
        MountFlags::empty(),
        options.as_bytes(),
    )
}

fn mount_path(
    source: &str,
    on: &Path,
    kind: &str,
    flags: MountFlags,
    options: &[u8],
) -> io::Result<()> {
    create_dir_all(on)?;
    let options = CString::new(options)?;
    rustix::mount::mount(source, on, kind, flags, &*options)?;
    Ok(())
}

/// Where the machine's directory is in the root that is being put together.
fn below(root: &Path, path: &[u8]) -> PathBuf {
    let path = Path::new(OsStr::from_bytes(path));
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Puts the root together and enters it.
pub(crate) fn enter(job: &Job) -> Result<(), Failure> {
    mount("layer", "/root", "tmpfs", "mode=755").during("mount the layer")?;
    mount_path(
        "machine",
        Path::new("/root/lower"),
        "hostfs",
        MountFlags::RDONLY,
        b"/",
    )
    .during("mount the root")?;
    for directory in ["/root/upper", "/root/work"] {
        create_dir_all(directory).during(directory)?;
    }
    let layers = "lowerdir=/root/lower,upperdir=/root/upper,workdir=/root/work";
    mount("root", "/root/all", "overlay", layers).during("mount the layer over the root")?;
    let root = Path::new("/root/all");

    for (source, on, kind, options) in [
        ("proc", "proc", "proc", ""),
        ("sys", "sys", "sysfs", ""),
        ("debugfs", "sys/kernel/debug", "debugfs", ""),
        ("cgroup", "sys/fs/cgroup", "cgroup2", ""),
        ("dev", "dev", "devtmpfs", ""),
        ("devpts", "dev/pts", "devpts", "mode=620,ptmxmode=666"),
        ("shm", "dev/shm", "tmpfs", "mode=1777"),
        ("mqueue", "dev/mqueue", "mqueue", ""),
    ] {
        mount(source, &format!("/root/all/{on}"), kind, options).during(&format!("mount /{on}"))?;
    }
    if !job.processors.is_empty() {
        fs::write("/root/cpuinfo", &job.processors).during("/proc/cpuinfo")?;
        mount_bind("/root/cpuinfo", root.join("proc/cpuinfo")).during("/proc/cpuinfo")?;
    }
    for (link, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "fd/0"),
        ("stdout", "fd/1"),
        ("stderr", "fd/2"),
    ] {
        symlink(target, root.join("dev").join(link)).during(link)?;
    }
    let temporary = root.join("tmp");
    if !temporary.exists() {
        create_dir_all(&temporary).during("/tmp")?;
        rustix::fs::chmod(&temporary, Mode::from_bits_truncate(0o1777)).during("/tmp")?;
    }
    create_dir_all(root.join("etc")).during("/etc")?;
    fs::write(root.join("etc/hosts"), hosts(job)).during("/etc/hosts")?;

    // An outer directory first, so that it does not hide an inner one. All of the root at once
    // would leave nothing that is not shared.
    let mut shares: Vec<_> = job
        .shares
        .iter()
        .chain([&job.directory])
        .filter(|path| *path != b"/")
        .collect();
    shares.sort();
    shares.dedup();
    for path in shares {
        let shown = String::from_utf8_lossy(path);
        mount_path(
            "machine",
            &below(root, path),
            "hostfs",
            MountFlags::empty(),
            path,
        )
        .during(&shown)?;
    }

    std::env::set_current_dir(root).during("enter the root")?;
    mount_move(".", "/").during("enter the root")?;
    rustix::process::chroot(".").during("enter the root")?;
    std::env::set_current_dir("/").during("enter the root")
}

/// The names of the hosts. Those of the machine's file are of hosts that cannot be reached from
/// here.
fn hosts(job: &Job) -> String {
    let mut text = String::from("127.0.0.1 localhost\n::1 localhost ip6-localhost\n");
    for host in 1..=job.hosts as u8 {
        for address in [address(0, host).to_string(), address6(0, host).to_string()] {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{address} host{host}");
        }
    }
    text
}
