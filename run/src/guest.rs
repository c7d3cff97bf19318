// SPDX-License-Identifier: GPL-2.0

//! The guest's kernel: a process that ends with this one.

use crate::options::Options;
use crate::{memory, wires};
use riwarp_run::Failure;
use rustix::process::{self, Resource, Rlimit, Signal};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// The first argument of the process that becomes the kernel.
pub(crate) const ARGUMENT: &str = "--kernel";

/// Lines of the kernel's messages that are kept to be shown.
const KEPT: usize = 400;

type Messages = Arc<Mutex<VecDeque<String>>>;

/// A guest that has been started.
pub(crate) struct Guest {
    kernel: Kernel,
    messages: Messages,
    reader: JoinHandle<()>,
}

/// The guest's kernel, to be killed by any thread.
#[derive(Clone)]
pub(crate) struct Kernel(Arc<Mutex<Child>>);

impl Kernel {
    fn child(&self) -> MutexGuard<'_, Child> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the guest, unless it has ended.
    pub(crate) fn kill(&self) {
        let _ = self.child().kill();
    }
}

/// The directory with the kernel and the guest's first process: beside the directory of this
/// program, wherever that is.
fn directory() -> Result<PathBuf, Failure> {
    let program = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let directory = program
        .parent()
        .and_then(Path::parent)
        .ok_or("this program has no directory")?;
    let directory = directory.join("lib/riwarp-run");
    for file in ["linux", "guest/init", "guest/modules/order"] {
        let file = directory.join(file);
        if let Err(error) = file.metadata() {
            return Err(format!("{}: {error}; riwarp-run is not complete", file.display()).into());
        }
    }
    Ok(directory)
}

impl Guest {
    /// Starts guest `host`, whose line is a socket, as are the networks of its interfaces.
    pub(crate) fn start(
        options: &Options,
        processors: u32,
        host: u32,
        line: UnixStream,
        networks: &[OwnedFd],
    ) -> Result<Self, Failure> {
        let directory = directory()?;
        let guest = directory.join("guest");
        if guest.as_os_str().as_bytes().contains(&b'"') {
            return Err(format!("{}: its path has a quotation mark", guest.display()).into());
        }
        let log = options.log.as_ref().map(|path| {
            // Each host has its own.
            let mut path = path.clone().into_os_string();
            if options.hosts > 1 {
                path.push(format!(".{host}"));
            }
            let path = PathBuf::from(path);
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .open(&path);
            file.map_err(|error| format!("{}: {error}", path.display()))
        });
        let log = log.transpose()?;
        let mut flags = OsString::from("rootflags=\"");
        flags.push(&guest);
        flags.push("\"");
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(|error| format!("pipe: {error}"))?;
        let both = write
            .try_clone()
            .map_err(|error| format!("pipe: {error}"))?;
        let octets = options
            .memory
            .unwrap_or_else(|| memory::by_default(options.hosts));
        // It leaves files in no directory: a kernel that cannot create its own goes on without.
        let kernel = Command::new("/proc/self/exe")
            .arg(ARGUMENT)
            .arg(std::process::id().to_string())
            .arg(directory.join("linux"))
            .arg(format!("mem={}M", octets >> 20))
            .arg(format!("ncpus={processors}"))
            .args(["root=/dev/root", "rootfstype=hostfs", "ro", "init=/init"])
            .arg(flags)
            .args([
                "con=null",
                "con0=null,fd:1",
                "ssl=null",
                "ssl0=fd:0",
                "uml_dir=/proc/",
            ])
            .args(["seccomp=auto", "loglevel=7", "panic=-1", "panic_on_oops=1"])
            .args(
                networks
                    .iter()
                    .enumerate()
                    .map(|(number, end)| wires::argument(number, host, options.mtu, end)),
            )
            .env_clear()
            .env("HOME", "/")
            .stdin(OwnedFd::from(line))
            .stdout(write)
            .stderr(both)
            .spawn()
            .map_err(|error| format!("start a process: {error}"))?;
        let messages = Messages::default();
        let kept = messages.clone();
        let reader = thread::spawn(move || keep(File::from(read), log, &kept));
        Ok(Self {
            kernel: Kernel(Arc::new(Mutex::new(kernel))),
            messages,
            reader,
        })
    }

    /// The kernel.
    pub(crate) fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Waits for the guest's end: how it ended, and the last messages of its kernel.
    pub(crate) fn wait(self) -> Result<(ExitStatus, Vec<String>), Failure> {
        // All that have the other end of the pipe end with the kernel, which may be killed until
        // then.
        let _ = self.reader.join();
        let status = self
            .kernel
            .child()
            .wait()
            .map_err(|error| format!("wait for the guest: {error}"))?;
        let messages =
            std::mem::take(&mut *self.messages.lock().unwrap_or_else(PoisonError::into_inner));
        Ok((status, messages.into()))
    }
}

/// Keeps the last messages, and writes all to the log.
fn keep(from: File, mut log: Option<File>, kept: &Mutex<VecDeque<String>>) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from
        .read_until(b'\n', &mut line)
        .is_ok_and(|length| length > 0)
    {
        line.retain(|octet| *octet != b'\r');
        if let Some(file) = &mut log {
            if let Err(error) = file.write_all(&line) {
                eprintln!("riwarp-run: the log: {error}");
                log = None;
            }
        }
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(String::from_utf8_lossy(&line).trim_end().to_owned());
        line.clear();
    }
}

/// Becomes the kernel. Returns only if that is not possible: why.
pub(crate) fn execute(mut arguments: impl Iterator<Item = OsString>) -> Failure {
    let (parent, kernel) = (
        arguments.next().unwrap_or_default(),
        arguments.next().unwrap_or_default(),
    );
    if let Err(error) = process::set_parent_process_death_signal(Some(Signal::KILL)) {
        return format!("prctl: {error}").into();
    }
    // It may have ended before the call.
    let now = process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    if OsStr::new(&now.to_string()) != parent {
        return "riwarp-run is gone".into();
    }
    // A kernel that panics is no reason to leave a file.
    let _ = process::setrlimit(
        Resource::Core,
        Rlimit {
            current: Some(0),
            maximum: Some(0),
        },
    );
    // Each open file of the guest is one of the kernel's.
    let limit = process::getrlimit(Resource::Nofile);
    let _ = process::setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    );
    if let Err(error) = std::env::set_current_dir("/") {
        return format!("/: {error}").into();
    }
    // The modes of files that the guest creates are the guest's matter.
    process::umask(rustix::fs::Mode::empty());
    let error = Command::new(&kernel).args(arguments).exec();
    format!("{}: {error}", Path::new(&kernel).display()).into()
}

/// Whether the kernel ended because this machine permits no seccomp filters, and ptrace, which it
/// can do without them, only serves one processor.
pub(crate) fn wants_one_processor(messages: &[String]) -> bool {
    has(messages, "SMP is not supported with PTRACE")
}

/// What this machine lacks, by the messages of a kernel that did not start.
pub(crate) fn lacks(messages: &[String]) -> Option<&'static str> {
    // A check that succeeds ends in "OK".
    let failed = |check| {
        messages
            .iter()
            .any(|line| line.contains(check) && !line.ends_with("OK"))
    };
    if wants_one_processor(messages) {
        Some("this machine permits no seccomp filters, without which a guest has one processor: --cpus 1")
    } else if failed("Checking that ptrace") || has(messages, "check_ptrace") {
        Some("this machine permits neither seccomp filters nor ptrace, one of which riwarp-run needs")
    } else if failed("Checking PROT_EXEC") {
        Some("this machine permits neither a memfd nor a file in /dev/shm to be executed")
    } else {
        None
    }
}

fn has(messages: &[String], text: &str) -> bool {
    messages.iter().any(|line| line.contains(text))
}

/// How the guest's kernel ended, for a message.
pub(crate) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (_, Some(9)) => "was killed, as when memory is short".into(),
        (_, Some(signal)) => format!("ended by signal {signal}"),
        (code, _) => format!("ended with status {}", code.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_lacks_only_features_of_failed_checks() {
        let lacks = |lines: &[&str]| {
            lacks(
                &lines
                    .iter()
                    .map(|line| line.to_string())
                    .collect::<Vec<_>>(),
            )
        };
        let memory = "Checking PROT_EXEC mmap in /dev/shm...";
        let ptrace = "Checking that ptrace can change system call numbers...";
        let ok = |check: &str| format!("{check}OK");
        assert_eq!(lacks(&[]), None);
        assert_eq!(lacks(&[&ok(memory), &ok(ptrace), "Out of memory"]), None);
        assert!(lacks(&[&format!("{memory}Operation not permitted")])
            .unwrap()
            .contains("memfd"));
        assert!(lacks(&[
            &ok(memory),
            &format!("{ptrace}ptrace: Operation not permitted")
        ])
        .unwrap()
        .contains("neither seccomp"));
        assert!(lacks(&["SMP is not supported with PTRACE userspace."])
            .unwrap()
            .contains("--cpus 1"));
    }
}
