// SPDX-License-Identifier: GPL-2.0

//! The first process of a guest of riwarp-run. It takes the job from the line (`riwarp_run`),
//! creates interfaces, addresses and RDMA devices, makes the root of the machine the guest's, under
//! a layer in memory, and runs the command. It uses nothing of that root.

mod command;
mod netlink;
mod root;

use netlink::Netlink;
use riwarp_run::streams::{Line, Streams, FROM_GUEST, TO_GUEST};
use riwarp_run::{link_address, status, Failure, Frame, Job, Stream};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{self, Gid, Pid, Signal, Uid, WaitOptions, WaitStatus};
use rustix::pty::OpenptFlags;
use rustix::system::RebootCommand;
use rustix::termios::{OptionalActions, OutputModes, Winsize};
use std::fs::File;
use std::io::{self, BufReader};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// What was tried, for an error.
trait During<T> {
    fn during(self, what: &str) -> Result<T, Failure>;
}

impl<T, E: Into<io::Error>> During<T> for Result<T, E> {
    fn during(self, what: &str) -> Result<T, Failure> {
        self.map_err(|error| Failure(format!("{what}: {}", error.into())))
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    if arguments
        .next()
        .is_some_and(|argument| argument == command::ARGUMENT)
    {
        return command::execute(arguments);
    }
    // The first process may not end. Without a line nobody waits for anything.
    if let Err(Failure(why)) = guest() {
        eprintln!("riwarp-run-init: {why}");
    }
    power_off()
}

fn power_off() -> ! {
    let _ = rustix::system::reboot(RebootCommand::PowerOff);
    loop {
        thread::park();
    }
}

fn guest() -> Result<(), Failure> {
    root::mount("dev", "/dev", "devtmpfs", "").during("mount /dev")?;
    let terminal = rustix::fs::open(
        "/dev/ttyS0",
        OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .during("open the line")?;
    let mut mode = rustix::termios::tcgetattr(&terminal).during("the line")?;
    mode.make_raw();
    rustix::termios::tcsetattr(&terminal, OptionalActions::Now, &mode).during("the line")?;
    let from = File::from(terminal);
    let line = Line::new(from.try_clone().during("the line")?);
    let mut from = BufReader::new(from);
    let mut octets = Vec::new();
    loop {
        line.send(&Frame::Ready).during("the line")?;
        match Frame::read(&mut from).during("the line")? {
            Some(Frame::Job(part)) if part.is_empty() => break,
            Some(Frame::Job(part)) => octets.extend(part),
            other => return Err(format!("{other:?} in place of a job").into()),
        }
    }
    let done = match Job::from_octets(&octets) {
        Some(job) => prepare(&job).and_then(|()| {
            // The answer comes when all hosts are prepared.
            line.send(&Frame::Ready).during("the line")?;
            match Frame::read(&mut from).during("the line")? {
                Some(Frame::Job(part)) if part.is_empty() => run(&job, &line, from),
                other => Err(format!("{other:?} in place of the start").into()),
            }
        }),
        None => Err("a job of another version".into()),
    };
    let last = match done {
        Ok((status, taint, findings)) => Frame::Ended(status, taint, findings),
        Err(Failure(why)) => Frame::Refused(why),
    };
    line.send(&last).during("the line")?;
    // riwarp-run ends the guest.
    loop {
        thread::park();
    }
}

fn prepare(job: &Job) -> Result<(), Failure> {
    load_modules()?;
    bring_up_network(job)?;
    root::enter(job)?;
    add_rules(&job.rules)?;
    if job.strict {
        for device in devices()? {
            std::fs::write(device.join("strict"), "1").during("switch the strict mode on")?;
        }
    }
    Ok(())
}

/// The devices' directories.
fn devices() -> Result<Vec<PathBuf>, Failure> {
    let all = std::fs::read_dir("/sys/class/infiniband").during("devices")?;
    all.map(|device| Ok(device.during("devices")?.path()))
        .collect()
}

/// How much all devices have found in their strict mode: the sum of its counters.
fn findings() -> Result<u64, Failure> {
    // ib_core gives what was read within the last 10 ms once more.
    thread::sleep(Duration::from_millis(20));
    let mut findings = 0;
    for device in devices()? {
        let counters = device.join("ports/1/hw_counters");
        for counter in std::fs::read_dir(counters).during("counters")? {
            let counter = counter.during("counters")?;
            if counter.file_name().as_bytes().starts_with(b"strict_") {
                let text = std::fs::read_to_string(counter.path()).during("counters")?;
                findings += text.trim().parse::<u64>().map_err(|_| "a counter")?;
            }
        }
    }
    Ok(findings)
}

/// Loads the modules of the directory that the guest was started from, in the order that the file
/// `order` gives: names and parameters.
fn load_modules() -> Result<(), Failure> {
    let order = std::fs::read_to_string("/modules/order").during("/modules/order")?;
    for line in order.lines() {
        let (name, parameters) = line.split_once(' ').unwrap_or((line, ""));
        let file = File::open(format!("/modules/{name}")).during(name)?;
        let parameters =
            std::ffi::CString::new(parameters).map_err(|_| "a parameter with a NUL")?;
        rustix::system::finit_module(&file, &parameters, 0).during(name)?;
    }
    Ok(())
}

/// Interfaces eth0, eth1 and so on, each with an IPv4 and an IPv6 address, a device riw0, riw1 on
/// each, and a device riw_lo on the loopback interface.
fn bring_up_network(job: &Job) -> Result<(), Failure> {
    // The loopback interface is the first.
    const LOOPBACK: u32 = 1;
    const FIRST: u32 = 10;
    rustix::system::sethostname(format!("host{}", job.host).as_bytes())
        .during("set the host name")?;
    let route = Netlink::route().during("open netlink")?;
    let rdma = Netlink::rdma().during("open RDMA netlink")?;
    let link_type = job.link_type.name();
    route.up(LOOPBACK).during("set lo up")?;
    // At most 16 devices and hosts: riwarp-run checks it.
    let host = job.host as u8;
    for (index, number) in (FIRST..).zip(0..job.devices as u8) {
        let interface = format!("eth{number}");
        let index = if job.hosts > 1 {
            route
                .rename(&format!("vec{number}"), &interface)
                .during(&interface)?
        } else {
            let octets = link_address(number, host);
            route
                .dummy(index, &interface, octets, job.mtu)
                .during(&interface)?;
            index
        };
        route
            .address(index, address(number, host).into(), 24)
            .during(&interface)?;
        route
            .address(index, address6(number, host).into(), 64)
            .during(&interface)?;
        for other in (1..=job.hosts as u8).filter(|other| *other != host) {
            let link = link_address(number, other);
            for address in [
                address(number, other).into(),
                address6(number, other).into(),
            ] {
                route.neighbour(index, address, link).during(&interface)?;
            }
        }
        rdma.device(&format!("riw{number}"), link_type, &interface)
            .during(&format!("create riw{number} of type {link_type}"))?;
    }
    rdma.device("riw_lo", link_type, "lo")
        .during(&format!("create riw_lo of type {link_type}"))?;
    Ok(())
}

/// Gives each device the rules by which requests fail.
fn add_rules(rules: &[u8]) -> Result<(), Failure> {
    if rules.is_empty() {
        return Ok(());
    }
    for device in devices()? {
        let file = device.join("inject");
        std::fs::write(&file, rules).during(&format!(
            "{}: a rule that the devices do not take",
            file.display()
        ))?;
    }
    Ok(())
}

/// The address of interface eth`number` of a host.
pub(crate) fn address(number: u8, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, number, host)
}

/// See [`address`].
pub(crate) fn address6(number: u8, host: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd77, 0, 0, number.into(), 0, 0, 0, host.into())
}

/// The command's ends of its standard streams.
struct Ends {
    /// Its standard input, output and error.
    standard: [Stdio; 3],
    /// The other end of its terminal.
    terminal: Option<File>,
    /// The threads that send what it writes.
    sources: Vec<JoinHandle<()>>,
}

impl Ends {
    fn new(job: &Job, streams: &mut Streams) -> io::Result<Self> {
        let mut sources = Vec::new();
        let mut terminal = None;
        if job.terminal.contains(&true) {
            let (master, slave) = open_terminal(job)?;
            sources.push(streams.read_from(Stream::Terminal, master.try_clone()?));
            streams.write_to(Stream::Terminal, master.try_clone()?);
            terminal = Some((master, slave));
        }
        let mut of = |stream: Stream| -> io::Result<Stdio> {
            if let (true, Some((_, slave))) = (job.terminal[stream as usize], &terminal) {
                return Ok(slave.try_clone()?.into());
            }
            let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
            if stream == Stream::Input {
                streams.write_to(stream, write.into());
                return Ok(read.into());
            }
            sources.push(streams.read_from(stream, read.into()));
            Ok(write.into())
        };
        let standard = [of(Stream::Input)?, of(Stream::Output)?, of(Stream::Error)?];
        Ok(Self {
            standard,
            terminal: terminal.map(|(master, _)| master),
            sources,
        })
    }
}

/// A terminal that belongs to the command's user.
fn open_terminal(job: &Job) -> io::Result<(File, OwnedFd)> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let master =
        rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::pty::unlockpt(&master)?;
    let name = rustix::pty::ptsname(&master, Vec::new())?;
    let slave = rustix::fs::open(name, flags, Mode::empty())?;
    rustix::fs::fchown(
        &slave,
        Some(Uid::from_raw(job.user)),
        Some(Gid::from_raw(job.group)),
    )?;
    rustix::fs::fchmod(&slave, Mode::RUSR | Mode::WUSR | Mode::WGRP)?;
    set_window(&slave, job.window)?;
    if !job.terminal[0] {
        // The caller's terminal is as it was, and does this.
        let mut mode = rustix::termios::tcgetattr(&slave)?;
        mode.output_modes.remove(OutputModes::OPOST);
        rustix::termios::tcsetattr(&slave, OptionalActions::Now, &mode)?;
    }
    Ok((master.into(), slave))
}

fn set_window(terminal: &OwnedFd, (rows, columns): (u16, u16)) -> Result<(), Errno> {
    let size = Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    rustix::termios::tcsetwinsize(terminal, size)
}

/// Runs the command: its exit status as a shell would say it, the kernel's taint flags, and what
/// the devices have found in the strict mode. All of
/// its processes have ended then, with which the last of what they wrote has reached the machine:
/// hostfs writes a file's pages when it is closed.
fn run(job: &Job, line: &Line, from: BufReader<File>) -> Result<(u8, u64, u64), Failure> {
    let mut streams = Streams::new(line.clone(), (FROM_GUEST, TO_GUEST));
    let ends = Ends::new(job, &mut streams).during("the command's streams")?;
    let [input, output, error] = ends.standard;
    let mut command = command::of(job);
    command.stdin(input).stdout(output).stderr(error);
    line.send(&Frame::Started).during("the line")?;
    let child = command.spawn().during("start a process")?;
    // With it the command's ends of the pipes.
    drop(command);
    let child = Pid::from_child(&child);
    let terminal = ends.terminal.map(OwnedFd::from);
    thread::spawn(move || {
        // Without riwarp-run nobody wants the guest.
        let Err(error) = serve(from, streams, child, terminal);
        eprintln!("riwarp-run-init: the line: {error}");
        power_off()
    });

    let status = loop {
        match process::wait(WaitOptions::empty()).during("wait")? {
            Some((pid, status)) if pid == child => break as_shell(status),
            _ => continue,
        }
    };
    // Its processes that are left are killed, as the kernel does when the first process of a
    // container ends.
    std::fs::write("/proc/sysrq-trigger", "i").during("end the processes")?;
    while process::wait(WaitOptions::empty()).is_ok() {}
    for source in ends.sources {
        let _ = source.join();
    }
    let taint = std::fs::read_to_string("/proc/sys/kernel/tainted").during("taint")?;
    let taint = taint
        .trim()
        .parse()
        .map_err(|_| "taint flags that are no number")?;
    let findings = if job.strict { findings()? } else { 0 };
    Ok((status, taint, findings))
}

fn as_shell(ended: WaitStatus) -> u8 {
    match (ended.exit_status(), ended.terminating_signal()) {
        // Neither is larger than its name says: 0 to 255, 1 to 64.
        (Some(status), _) => status as u8,
        (_, Some(signal)) => status::SIGNAL + signal as u8,
        _ => status::FAILED,
    }
}

/// Does what the frames say, until the line ends.
fn serve(
    mut from: BufReader<File>,
    mut streams: Streams,
    child: Pid,
    terminal: Option<OwnedFd>,
) -> io::Result<std::convert::Infallible> {
    while let Some(frame) = Frame::read(&mut from)? {
        match streams.handle(frame)? {
            None => {}
            Some(Frame::Signal(number)) => {
                // The command may have ended.
                if let Some(signal) = Signal::from_named_raw(number.into()) {
                    let _ = process::kill_process_group(child, signal);
                }
            }
            Some(Frame::Window(rows, columns)) => {
                if let Some(terminal) = &terminal {
                    set_window(terminal, (rows, columns))?;
                }
            }
            Some(other) => return Err(io::Error::other(format!("{other:?} for the guest"))),
        }
    }
    Err(io::Error::other("riwarp-run is gone"))
}
