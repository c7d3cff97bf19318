// SPDX-License-Identifier: GPL-2.0

//! riwarp-run: runs a command over the caller's root in a guest of User-Mode Linux that has RDMA
//! devices.

mod guest;
mod memory;
mod options;
mod terminal;
mod wires;

use guest::{Guest, Kernel};
use iwarp::inject::{Rule, MAX_RULES};
use options::{Options, Request};
use riwarp_run::streams::{Line, Streams, FROM_GUEST, TO_GUEST};
use riwarp_run::{status, Failure, Frame, Job, Stream, RESOURCES};
use rustix::fs::Mode;
use rustix::process;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH};
use signal_hook::iterator::Signals;
use std::fs::File;
use std::io::{self, BufReader, Write};
use std::iter;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{ExitCode, ExitStatus};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
use terminal::Terminal;
use wires::Wires;

/// For a guest to start.
const START: Duration = Duration::from_secs(60);
/// For a command to end once its time is up.
const GRACE: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let done = match std::env::args_os().nth(1) {
        Some(first) if first == guest::ARGUMENT => {
            arguments.next();
            Err(guest::execute(arguments))
        }
        _ => match options::parse(arguments) {
            Ok(Request::Run(options)) => run(&options),
            Ok(Request::Help) => print(options::USAGE),
            Ok(Request::Version) => print(concat!("riwarp-run ", env!("CARGO_PKG_VERSION"), "\n")),
            Err(error) => Err(Failure(error.to_string())),
        },
    };
    ExitCode::from(done.unwrap_or_else(|Failure(why)| {
        say(&why);
        status::FAILED
    }))
}

fn print(text: &str) -> Result<u8, Failure> {
    io::stdout()
        .write_all(text.as_bytes())
        .map_err(|error| format!("standard output: {error}"))?;
    Ok(0)
}

/// Says something on standard error, or nothing if that is closed.
fn say(what: &str) {
    let _ = writeln!(io::stderr(), "riwarp-run: {what}");
}

/// The job of the first host; that of another one differs by its number alone.
fn job(options: &Options, processors: u32, terminal: &Terminal) -> Result<Job, Failure> {
    let absolute = |path: &Path| match path.canonicalize() {
        Ok(path) if path.is_dir() => Ok(path.into_os_string().into_vec()),
        Ok(path) => Err(format!("{}: not a directory", path.display())),
        Err(error) => Err(format!("{}: {error}", path.display())),
    };
    let directory =
        std::env::current_dir().map_err(|error| format!("the current directory: {error}"))?;
    let shares = options
        .shares
        .iter()
        .map(|path| absolute(path))
        .collect::<Result<_, _>>()?;
    let groups = process::getgroups().map_err(|error| format!("groups: {error}"))?;
    // Reading it is changing it; no other thread creates files yet.
    let umask = process::umask(Mode::empty());
    process::umask(umask);
    let number = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
    let of_root = |number: u32| if options.root { 0 } else { number };
    Ok(Job {
        argv: options
            .command
            .iter()
            .map(|word| word.as_bytes().to_vec())
            .collect(),
        env: std::env::vars_os()
            .map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat())
            .collect(),
        directory: directory.into_os_string().into_vec(),
        shares,
        user: of_root(process::getuid().as_raw()),
        group: of_root(process::getgid().as_raw()),
        groups: groups.into_iter().map(|group| group.as_raw()).collect(),
        umask: umask.bits(),
        limits: RESOURCES
            .map(process::getrlimit)
            .map(|limit| (number(limit.current), number(limit.maximum)))
            .into(),
        terminal: terminal.standard(),
        window: terminal.window(),
        host: 1,
        hosts: options.hosts,
        processors: cpuinfo(processors),
        rules: options
            .inject
            .as_deref()
            .map(rules)
            .transpose()?
            .unwrap_or_default(),
        strict: options.strict,
        devices: options.devices,
        link_type: options.link_type,
        mtu: options.mtu,
    })
}

/// The text of a file of rules.
fn rules(path: &Path) -> Result<Vec<u8>, Failure> {
    let show = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| format!("{show}: {error}"))?;
    let mut number = 0;
    let mut kept = String::new();
    for (at, line) in (1..).zip(text.lines().map(str::trim)) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Err(mistake) = Rule::parse(line) {
            let (what, word) = mistake.describe();
            return Err(format!("{show}: line {at}: {what}: '{word}'").into());
        }
        number += 1;
        if number > MAX_RULES {
            return Err(format!("{show}: line {at}: more than {MAX_RULES} rules").into());
        }
        kept.push_str(line);
        kept.push('\n');
    }
    Ok(kept.into_bytes())
}

/// What /proc/cpuinfo says about the first processors; nothing if it cannot be read.
fn cpuinfo(number: u32) -> Vec<u8> {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.split_inclusive("\n\n")
        .take(number as usize)
        .collect::<String>()
        .into_bytes()
}

/// Where hosts wait until all are prepared.
struct Gate {
    /// How many are missing; `None` if one will never come.
    missing: Mutex<Option<u32>>,
    changed: Condvar,
}

impl Gate {
    fn new(hosts: u32) -> Arc<Self> {
        Arc::new(Self {
            missing: Mutex::new(Some(hosts)),
            changed: Condvar::new(),
        })
    }

    fn change(&self, change: impl FnOnce(&mut Option<u32>)) -> MutexGuard<'_, Option<u32>> {
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut missing);
        self.changed.notify_all();
        missing
    }

    /// Waits for the others: whether all are there.
    fn pass(&self) -> bool {
        let missing =
            self.change(|missing| *missing = missing.map(|number| number.saturating_sub(1)));
        let missing = self
            .changed
            .wait_while(missing, |missing| missing.is_some_and(|number| number > 0));
        *missing.unwrap_or_else(PoisonError::into_inner) == Some(0)
    }

    /// Lets nobody wait for a host that has ended. Without effect once all have passed.
    fn give_up(&self) {
        drop(self.change(|missing| {
            if *missing != Some(0) {
                *missing = None;
            }
        }));
    }
}

/// A run of one host: what its threads share.
#[derive(Clone)]
struct Run {
    gate: Arc<Gate>,
    line: Line,
    kernel: Kernel,
    phase: Arc<Mutex<Phase>>,
}

/// How far a run has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Starting,
    Running,
    /// Killed before the command was started: by a signal, or because it took too long.
    Interrupted(u8),
    NotStarted,
    /// Killed likewise, since another host has ended.
    Abandoned,
    /// The command's time was up.
    TimeUp,
}

impl Run {
    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills the guest if the command has not been started: whether that was so.
    fn give_up(&self, phase: Phase) -> bool {
        let mut now = self.phase();
        let starting = *now == Phase::Starting;
        if starting {
            *now = phase;
            self.kernel.kill();
        }
        starting
    }

    /// Passes signals on to the command, until this process ends.
    fn forward(self, mut signals: Signals, window: impl Fn() -> (u16, u16) + Send + 'static) {
        thread::spawn(move || {
            for signal in signals.forever() {
                // At most 64.
                let number = signal as u8;
                // A line that is broken ends the run elsewhere.
                if signal == SIGWINCH {
                    let (rows, columns) = window();
                    let _ = self.line.send(&Frame::Window(rows, columns));
                } else if !self.give_up(Phase::Interrupted(number)) {
                    let _ = self.line.send(&Frame::Signal(number));
                }
            }
        });
    }

    fn watch_start(self) {
        thread::spawn(move || {
            thread::sleep(START);
            self.give_up(Phase::NotStarted)
        });
    }

    fn end_after(self, timeout: Duration) {
        thread::spawn(move || {
            thread::sleep(timeout);
            *self.phase() = Phase::TimeUp;
            let _ = self.line.send(&Frame::Signal(SIGTERM as u8));
            thread::sleep(GRACE);
            self.kernel.kill();
        });
    }

    /// Sends the job once the guest is ready, and does what its frames say: its last one, or `None`
    /// if it ended without.
    fn serve(
        &self,
        job: &Job,
        from: UnixStream,
        streams: &mut Streams,
        mut started: impl FnMut(&mut Streams) -> Result<(), Failure>,
    ) -> Result<Option<Frame>, Failure> {
        let broken = |error: io::Error| match error.kind() {
            io::ErrorKind::InvalidData => {
                Failure(format!("the guest sent what cannot be: {error}"))
            }
            _ => Failure(format!("the line to the guest: {error}")),
        };
        let mut from = BufReader::new(from);
        let octets = job.to_octets();
        let mut parts = octets.chunks(TO_GUEST as usize).chain([&[][..]]);
        let mut sent = false;
        while let Some(frame) = Frame::read(&mut from).or_else(gone).map_err(broken)? {
            match streams.handle(frame).map_err(broken)? {
                None => {}
                Some(Frame::Ready) => {
                    let part = parts.next();
                    if part.is_none() && (sent || !self.gate.pass()) {
                        self.give_up(Phase::Abandoned);
                        return Ok(None);
                    }
                    sent = part.is_none();
                    let part = part.unwrap_or_default().to_vec();
                    self.line.send(&Frame::Job(part)).map_err(broken)?;
                }
                Some(Frame::Started) => {
                    let mut phase = self.phase();
                    if *phase == Phase::Starting {
                        *phase = Phase::Running;
                    }
                    drop(phase);
                    started(streams)?;
                }
                Some(last) => return Ok(Some(last)),
            }
        }
        Ok(None)
    }
}

/// A guest that is killed resets its socket, which ends what it sent.
fn gone(error: io::Error) -> io::Result<Option<Frame>> {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof => Ok(None),
        _ => Err(error),
    }
}

fn run(options: &Options) -> Result<u8, Failure> {
    // A program that polls a completion queue waits for one that does not run, for a tick at a
    // time, if both have one processor.
    let most = thread::available_parallelism().map_or(1, |number| number.get().min(2) as u32);
    let mut ends = run_hosts(options, options.processors.unwrap_or(most))?;
    if options.processors.is_none()
        && ends
            .iter()
            .any(|end| guest::wants_one_processor(&end.messages))
    {
        ends = run_hosts(options, 1)?;
    }
    // The first that is not 0 counts, in the order of the hosts.
    let mut first = 0;
    for end in ends {
        let status = end.status()?;
        first = if first == 0 { status } else { first };
    }
    Ok(first)
}

/// Runs all hosts to their ends.
fn run_hosts(options: &Options, processors: u32) -> Result<Vec<End>, Failure> {
    let mut wires = Wires::new(options.hosts, options.devices)?;
    let gate = Gate::new(options.hosts);
    // Several hosts cannot share a terminal.
    let terminal = if options.hosts == 1 {
        Terminal::new()
    } else {
        Terminal::none()
    };
    let job = job(options, processors, &terminal)?;
    let terminals = iter::once(terminal).chain(iter::repeat_with(Terminal::none));
    let hosts = (1..=options.hosts)
        .zip(terminals)
        .map(|(host, terminal)| {
            let job = Job {
                host,
                ..job.clone()
            };
            Host::start(options, processors, job, terminal, &mut wires, &gate)
        })
        .collect::<Result<Vec<_>, _>>()?;
    thread::scope(|scope| {
        let running: Vec<_> = hosts
            .into_iter()
            .map(|host| scope.spawn(|| host.run(options)))
            .collect();
        let ended = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread
                .join()
                .unwrap_or_else(|_| Err("a thread has panicked".into()))
        };
        running.into_iter().map(ended).collect()
    })
}

/// A host whose guest has been started.
struct Host {
    run: Run,
    guest: Guest,
    job: Job,
    terminal: Terminal,
    from: UnixStream,
}

impl Host {
    /// Starts the guest of a host.
    fn start(
        options: &Options,
        processors: u32,
        job: Job,
        terminal: Terminal,
        wires: &mut Wires,
        gate: &Arc<Gate>,
    ) -> Result<Self, Failure> {
        let socket = |error: io::Error| Failure(format!("socket: {error}"));
        let (from, theirs) = UnixStream::pair().map_err(socket)?;
        // Before the guest starts: none of them may end this process and leave the terminal raw.
        let signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH]).map_err(socket)?;
        let guest = Guest::start(
            options,
            processors,
            job.host,
            theirs,
            &wires.take(job.host)?,
        )?;
        let run = Run {
            gate: gate.clone(),
            line: Line::new(File::from(OwnedFd::from(from.try_clone().map_err(socket)?))),
            kernel: guest.kernel().clone(),
            phase: Arc::new(Mutex::new(Phase::Starting)),
        };
        run.clone().forward(signals, terminal.window_reader());
        run.clone().watch_start();
        Ok(Self {
            run,
            guest,
            job,
            terminal,
            from,
        })
    }

    /// Runs the guest to its end.
    fn run(self, options: &Options) -> Result<End, Failure> {
        let Self {
            run,
            guest,
            job,
            mut terminal,
            from,
        } = self;
        let mut streams = Streams::new(run.line.clone(), (TO_GUEST, FROM_GUEST));
        let last = run.serve(&job, from, &mut streams, |streams| {
            if let Some(timeout) = options.timeout {
                run.clone().end_after(timeout);
            }
            connect(streams, &mut terminal, job.host)
        });
        run.gate.give_up();
        // What the guest has sent comes before what is said about it.
        let unwritten = streams.finish_writing();
        drop(terminal);
        // A guest that sent its last frame waits for its end; one that sent none is at its end.
        if !matches!(last, Ok(None)) {
            run.kernel.kill();
        }
        let (kernel, messages) = guest.wait()?;
        let phase = *run.phase();
        Ok(End {
            last: last?,
            phase,
            kernel,
            messages,
            unwritten,
        })
    }
}

/// How a guest has ended.
struct End {
    /// Its last frame.
    last: Option<Frame>,
    phase: Phase,
    kernel: ExitStatus,
    messages: Vec<String>,
    /// The stream that could not be written to its end.
    unwritten: Option<(Stream, io::Error)>,
}

impl End {
    /// The exit status that this makes.
    fn status(self) -> Result<u8, Failure> {
        let show = || {
            let mut error = io::stderr().lock();
            self.messages
                .iter()
                .for_each(|line| drop(writeln!(error, "{line}")));
        };
        let show_of = |kind: &str| {
            let mut error = io::stderr().lock();
            let lines = self.messages.iter().filter(|line| line.contains(kind));
            lines.for_each(|line| drop(writeln!(error, "{line}")));
        };
        let kernel = guest::describe(self.kernel);
        let status = match (self.last, self.phase) {
            (Some(Frame::Ended(code, taint, _)), _) if is_report(taint) => {
                show();
                say(&format!("the guest's kernel reported a fault, see above; the command's status was {code}"));
                status::REPORT
            }
            (_, Phase::TimeUp) => {
                say("the time is up");
                status::TIMEOUT
            }
            (Some(Frame::Ended(code, _, findings @ 1..)), _) => {
                show_of("strict rule");
                show_of("strict hint");
                say(&format!(
                    "{findings} findings of the strict mode; the command's status was {code}"
                ));
                status::FINDING
            }
            (Some(Frame::Ended(code, _, 0)), _) => {
                show_of("strict hint");
                code
            }
            (Some(Frame::Refused(why)), _) => return Err(why.into()),
            (Some(other), _) => return Err(format!("the guest sent {other:?}").into()),
            (None, Phase::Interrupted(signal)) => status::SIGNAL + signal,
            // The other one says why.
            (None, Phase::Abandoned) => status::FAILED,
            (None, Phase::NotStarted) => {
                show();
                return Err(format!(
                    "the guest did not start in {} s, see above",
                    START.as_secs()
                )
                .into());
            }
            (None, Phase::Starting) => {
                if let Some(why) = guest::lacks(&self.messages) {
                    return Err(why.into());
                }
                show();
                return Err(format!(
                    "the guest's kernel {kernel} before the command was started, see above"
                )
                .into());
            }
            (None, Phase::Running) => {
                show();
                say(&format!("the guest's kernel {kernel}, see above"));
                status::REPORT
            }
        };
        match self.unwritten {
            Some((stream, error)) => {
                Err(format!("standard {}: {error}", format!("{stream:?}").to_lowercase()).into())
            }
            None => Ok(status),
        }
    }
}

/// Whether the flags (Documentation/admin-guide/tainted-kernels.rst) name a fault that the kernel
/// found: a machine check, a bad page, an oops, a warning, a lockup.
fn is_report(taint: u64) -> bool {
    [4, 5, 7, 9, 14]
        .into_iter()
        .any(|bit| taint & (1 << bit) != 0)
}

/// Joins the command's streams to this process's.
fn connect(streams: &mut Streams, terminal: &mut Terminal, host: u32) -> Result<(), Failure> {
    let copy = |file: &dyn AsFd| {
        let copy = file.as_fd().try_clone_to_owned();
        copy.map(File::from)
            .map_err(|error| Failure(format!("a standard stream: {error}")))
    };
    let [input, output, error] = terminal.standard();
    terminal.make_raw();
    if let Some(file) = terminal.file() {
        streams.write_to(Stream::Terminal, copy(&file)?);
        if input {
            drop(streams.read_from(Stream::Terminal, copy(&file)?));
        }
    }
    if host > 1 {
        let nothing = File::open("/dev/null").map_err(|error| format!("/dev/null: {error}"))?;
        drop(streams.read_from(Stream::Input, nothing));
    } else if !input {
        drop(streams.read_from(Stream::Input, copy(&io::stdin())?));
    }
    if !output {
        streams.write_to(Stream::Output, copy(&io::stdout())?);
    }
    if !error {
        streams.write_to(Stream::Error, copy(&io::stderr())?);
    }
    Ok(())
}
