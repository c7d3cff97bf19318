// SPDX-License-Identifier: GPL-2.0

//! The process that becomes the command: it takes over what the caller of riwarp-run has, and
//! executes the command.

use riwarp_run::{status, Failure, Job, RESOURCES};
use rustix::fs::Mode;
use rustix::process::{self, Gid, Resource, Rlimit, Uid};
use rustix::thread;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

/// The first argument of this process.
pub(crate) const ARGUMENT: &str = "--command";

fn numbers(text: &OsStr) -> Result<Vec<u64>, Failure> {
    let text = text.to_str().ok_or("an argument that is no text")?;
    let number = |word: &str| {
        word.parse()
            .map_err(|_| Failure::from(format!("{word:?} is no number")))
    };
    text.split(',')
        .filter(|word| !word.is_empty())
        .map(number)
        .collect()
}

fn join(numbers: impl IntoIterator<Item = u64>) -> String {
    let words: Vec<String> = numbers
        .into_iter()
        .map(|number| number.to_string())
        .collect();
    words.join(",")
}

/// The command line of the process that becomes the command of a job.
pub(crate) fn of(job: &Job) -> Command {
    let mut command = Command::new("/proc/self/exe");
    let terminal = job.terminal.iter().any(|flag| *flag);
    command
        .arg(ARGUMENT)
        .arg(join(
            [job.user, job.group, job.umask, terminal.into()].map(u64::from),
        ))
        .arg(join(job.groups.iter().map(|group| u64::from(*group))))
        .arg(join(
            job.limits.iter().flat_map(|(soft, hard)| [*soft, *hard]),
        ))
        .arg(OsStr::from_bytes(&job.directory))
        .args(job.argv.iter().map(|text| OsStr::from_bytes(text)))
        .env_clear();
    for text in &job.env {
        if let Some(at) = text
            .iter()
            .position(|octet| *octet == b'=')
            .filter(|at| *at > 0)
        {
            command.env(
                OsStr::from_bytes(&text[..at]),
                OsStr::from_bytes(&text[at + 1..]),
            );
        }
    }
    if job.hosts > 1 {
        command.env("HOST", job.host.to_string());
    }
    command
}

/// Becomes the command. Returns only if that is not possible, which the command's standard error
/// says.
pub(crate) fn execute(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    match prepare(arguments) {
        Ok(mut command) => {
            let error = command.exec();
            let name = Path::new(command.get_program());
            // Only the shell that looks for a command says that there is none.
            let missing = error.kind() == std::io::ErrorKind::NotFound;
            if missing && name.parent() != Some(Path::new("")) && name.exists() {
                eprintln!(
                    "riwarp-run: {}: its interpreter does not exist",
                    name.display()
                );
                return ExitCode::from(status::NOT_EXECUTABLE);
            }
            eprintln!("riwarp-run: {}: {error}", name.display());
            ExitCode::from(if missing {
                status::NOT_FOUND
            } else {
                status::NOT_EXECUTABLE
            })
        }
        Err(Failure(why)) => {
            eprintln!("riwarp-run: {why}");
            ExitCode::from(status::FAILED)
        }
    }
}

fn prepare(mut arguments: impl Iterator<Item = OsString>) -> Result<Command, Failure> {
    let mut next = || arguments.next().ok_or("an argument is missing");
    let [user, group, umask, terminal] = numbers(&next()?)?[..] else {
        return Err("the wrong number of arguments".into());
    };
    let (groups, limits, directory, program) =
        (numbers(&next()?)?, numbers(&next()?)?, next()?, next()?);
    let directory = Path::new(&directory);
    let mut command = Command::new(program);
    command.args(arguments);

    // For signals to all of the command's processes, and for a terminal of its own.
    process::setsid()?;
    if terminal != 0 {
        let standard = [
            rustix::stdio::stdin(),
            rustix::stdio::stdout(),
            rustix::stdio::stderr(),
        ];
        let terminal = standard
            .into_iter()
            .find(|file| rustix::termios::isatty(file));
        process::ioctl_tiocsctty(terminal.ok_or("no terminal")?)?;
    }
    let limit = |number: u64| (number != u64::MAX).then_some(number);
    for (resource, pair) in RESOURCES.into_iter().zip(limits.chunks_exact(2)) {
        // Some may be larger than what this kernel permits; then its own limit stays.
        let _ = process::setrlimit(
            resource,
            Rlimit {
                current: limit(pair[0]),
                maximum: limit(pair[1]),
            },
        );
    }
    process::setrlimit(
        Resource::Memlock,
        Rlimit {
            current: None,
            maximum: None,
        },
    )?;
    process::umask(Mode::from_bits_truncate(umask as u32));
    let groups: Vec<Gid> = groups
        .iter()
        .map(|group| Gid::from_raw(*group as u32))
        .collect();
    let (user, group) = (Uid::from_raw(user as u32), Gid::from_raw(group as u32));
    // There are no other threads.
    thread::set_thread_groups(&groups)?;
    thread::set_thread_res_gid(group, group, group)?;
    thread::set_thread_res_uid(user, user, user)?;
    std::env::set_current_dir(directory)
        .map_err(|error| Failure(format!("{}: {error}", directory.display())))?;
    Ok(command)
}
