// SPDX-License-Identifier: GPL-2.0

//! Spoilt conversations against a device.
//!
//! usage: mutants PUPPET DEVICE_ADDRESS PORT SECONDS SEED
//!
//! For the given time, batch after batch: the verbs program `puppet` listens; several threads
//! connect to it on plain TCP sockets, each with a start-up and a conversation out of
//! [`iwarp_fuzz::mutator`], and look at what the device says; then the device has to serve a good
//! connection, and memory that no peer was told of has to be as it was. Batch `n` is made of SEED
//! plus `n`, so a batch can be played again by itself.
//!
//! Prints `ok NAME` or `not ok NAME: why`.

use std::{
    env,
    io::{
        BufRead as _,
        BufReader,
        ErrorKind,
        Read as _,
        Write as _, //
    },
    net::{
        Shutdown,
        TcpStream, //
    },
    process::{
        Child,
        ChildStdin,
        Command,
        ExitCode,
        Stdio, //
    },
    sync::{
        atomic::{
            AtomicU64,
            Ordering, //
        },
        mpsc, //
    },
    thread,
    time::{
        Duration,
        Instant, //
    },
};

use iwarp::{
    fault::Fault,
    mpa::negotiate::{
        Config,
        Depths,
        Initiator,
        Progress,
        Verdict, //
    },
    rdmap::Extensions,
    receiver::{
        Receiver,
        Segment, //
    },
};
use iwarp_fuzz::{
    mutator::{
        request,
        spoilt,
        Facts, //
    },
    source::Source, //
};
use iwarp_support::{
    frame::{
        fpdu,
        read_request,
        tagged, //
    },
    random::Random,
    wire::Wire, //
};

/// Why a batch has failed.
type Failure = String;

/// Threads that talk to the device at once, and conversations of each in a batch.
const THREADS: u64 = 4;
const ROUNDS: u64 = 16;
/// What the puppet posts and takes, by default.
const RECEIVES: (u32, usize) = (4096, 4);
const MEMORY_LEN: u32 = 8192;
/// Within this time, whatever the device has to do is done.
const SOON: Duration = Duration::from_secs(20);
/// What memory holds that is not to be written to.
const UNTOUCHED: u8 = 0x5a;

/// What was done, for the last line.
#[derive(Default)]
struct Tally {
    conversations: AtomicU64,
    right: AtomicU64,
    refused: AtomicU64,
    octets: AtomicU64,
    terminates: AtomicU64,
}

fn main() -> ExitCode {
    let args: Vec<String> = env::args().collect();
    let [_, puppet, address, port, seconds, seed] = &args[..] else {
        eprintln!("usage: mutants PUPPET DEVICE_ADDRESS PORT SECONDS SEED");
        return ExitCode::from(2);
    };
    let (Ok(port), Ok(seconds), Ok(seed)) = (port.parse(), seconds.parse(), seed.parse()) else {
        eprintln!("PORT, SECONDS and SEED are numbers");
        return ExitCode::from(2);
    };
    println!("# seed {seed}");
    let end = Instant::now() + Duration::from_secs(seconds);
    let tally = Tally::default();
    let mut batch = 0;
    while batch == 0 || Instant::now() < end {
        let seed: u64 = seed;
        let seed = seed.wrapping_add(batch);
        if let Err(why) = play_batch(puppet, address, port, seed, &tally) {
            println!("not ok conversations: seed {seed}: {why}");
            return ExitCode::FAILURE;
        }
        batch += 1;
    }
    println!(
        "# {batch} batches, {} conversations ({} right ones), {} start-ups refused, {} octets, {} \
         Terminates",
        tally.conversations.load(Ordering::Relaxed),
        tally.right.load(Ordering::Relaxed),
        tally.refused.load(Ordering::Relaxed),
        tally.octets.load(Ordering::Relaxed),
        tally.terminates.load(Ordering::Relaxed),
    );
    println!("ok conversations");
    ExitCode::SUCCESS
}

fn play_batch(
    program: &str,
    address: &str,
    port: u16,
    seed: u64,
    tally: &Tally,
) -> Result<(), Failure> {
    let mut puppet = Puppet::start(program, address)?;
    puppet.ask(&format!("listen {port}"))?;
    let (_, memory) = puppet.region()?;
    let (guard, _) = puppet.region()?;
    puppet.ask(&format!("fill {guard} {UNTOUCHED}"))?;

    let peer = Peer {
        address,
        port,
        memory,
        tally,
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || peer.converse(seed, thread)))
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err("a thread has panicked".into()))
        })
    })?;

    peer.check_service()?;
    let odd = puppet.ask(&format!("odd {guard} {UNTOUCHED}"))?;
    if odd != "-1" {
        return Err(format!("memory of nobody was written to at {odd}"));
    }
    puppet.quit()
}

/// The peer of a device, knowing what it may.
#[derive(Clone, Copy)]
struct Peer<'a> {
    address: &'a str,
    port: u16,
    /// STag, base and length.
    memory: (u32, u64, u32),
    tally: &'a Tally,
}

impl Peer<'_> {
    fn connect(&self) -> Result<TcpStream, Failure> {
        let socket = TcpStream::connect((self.address, self.port)).map_err(text)?;
        socket.set_nodelay(true).map_err(text)?;
        socket.set_read_timeout(Some(SOON)).map_err(text)?;
        socket.set_write_timeout(Some(SOON)).map_err(text)?;
        Ok(socket)
    }

    /// One thread's part of a batch.
    fn converse(&self, seed: u64, thread: u64) -> Result<(), Failure> {
        let mut random = Random::new(seed.wrapping_mul(THREADS).wrapping_add(thread));
        for round in 0..ROUNDS {
            let octets = random.octets(512);
            self.hold(&octets)
                .map_err(|why| format!("thread {thread}, conversation {round}: {why}"))?;
        }
        Ok(())
    }

    /// Holds the conversation that the octets say.
    fn hold(&self, octets: &[u8]) -> Result<(), Failure> {
        let mut source = Source::new(octets);
        let request = request(&mut source);
        let mut socket = self.connect()?;
        self.tally.conversations.fetch_add(1, Ordering::Relaxed);
        send(&mut socket, &request.octets, source.u32())?;
        let Some(initiator) = request.asks else {
            // Whatever it has become, the device is not to wait for more than there is.
            self.tally.refused.fetch_add(1, Ordering::Relaxed);
            return end(&mut socket).map(drop);
        };
        let depths = take_reply(&mut socket, &initiator)?;
        let facts = Facts {
            memory: self.memory,
            atomic: None,
            receives: RECEIVES,
            ird: depths.ord.into(),
            first: 1,
        };
        let abrupt = source.below(8) == 0;
        let cuts = source.u32();
        let played = spoilt(&mut source, &facts);
        let right = played.mutations.is_empty();
        self.tally.right.fetch_add(right.into(), Ordering::Relaxed);
        self.tally
            .octets
            .fetch_add(played.stream.len() as u64, Ordering::Relaxed);
        send(&mut socket, &played.stream, cuts)?;
        if abrupt {
            return Ok(());
        }
        let said = judge(&end(&mut socket)?)?;
        self.tally
            .terminates
            .fetch_add(said.is_some().into(), Ordering::Relaxed);
        match said {
            Some(code) if right => Err(format!("a Terminate {code} for nothing")),
            Some(_) | None => Ok(()),
        }
    }

    /// A right connection: what is written can be read.
    fn check_service(&self) -> Result<(), Failure> {
        let config = Config::default();
        let initiator = Initiator::new(config, Depths { ird: 4, ord: 4 });
        let mut socket = self.connect()?;
        let Ok(frame) = initiator.request(b"good") else {
            return Err("no Request".into());
        };
        socket.write_all(frame.as_octets()).map_err(text)?;
        take_reply(&mut socket, &initiator)?;
        let (stag, base, _) = self.memory;
        let payload = Random::new(self.tally.octets.load(Ordering::Relaxed)).octets(100);
        let mut octets = fpdu(&tagged(0, true, stag, base + 7, &payload));
        octets.extend(fpdu(&read_request(1, (9, 11), 100, (stag, base + 7))));
        socket.write_all(&octets).map_err(text)?;
        let expected = fpdu(&tagged(2, true, 9, 11, &payload));
        let mut answer = vec![0; expected.len()];
        socket
            .read_exact(&mut answer)
            .map_err(|error| format!("a good connection is not served: {error}"))?;
        if answer != expected {
            return Err("a good connection is served badly".into());
        }
        Ok(())
    }
}

/// Reads a Reply, which must be one that accepts, and returns the depths.
fn take_reply(socket: &mut TcpStream, initiator: &Initiator) -> Result<Depths, Failure> {
    let mut octets = Vec::new();
    loop {
        match initiator.handle_reply(&octets) {
            Err(error) => return Err(format!("a wrong Reply: {error:?}")),
            Ok(Progress::NeedMore(len)) => {
                let have = octets.len();
                octets.resize(len, 0);
                socket
                    .read_exact(&mut octets[have..])
                    .map_err(|error| format!("no Reply to a right Request: {error}"))?;
            }
            Ok(Progress::Done(reply)) => match reply.verdict {
                Verdict::Accepted { rules, .. } => return Ok(rules.depths),
                Verdict::Rejected | Verdict::Failed { .. } => {
                    return Err(format!(
                        "a right Request is answered by {:?}",
                        reply.verdict
                    ))
                }
            },
        }
    }
}

/// Sends octets in up to three pieces. A device that has had enough of them may say so.
fn send(socket: &mut TcpStream, octets: &[u8], cuts: u32) -> Result<(), Failure> {
    let [a, b, c, d] = cuts.to_le_bytes();
    let at = |high: u8, low: u8| usize::from(u16::from_le_bytes([low, high])) % (octets.len() + 1);
    let (first, second) = (at(a, b).min(at(c, d)), at(a, b).max(at(c, d)));
    for piece in [&octets[..first], &octets[first..second], &octets[second..]] {
        match socket.write_all(piece) {
            Err(error) if is_end(error.kind()) => return Ok(()),
            result => result.map_err(text)?,
        }
    }
    Ok(())
}

/// Ends our half, and returns what comes until the device has ended its own.
fn end(socket: &mut TcpStream) -> Result<Vec<u8>, Failure> {
    // An error is the device's end.
    let _ = socket.shutdown(Shutdown::Write);
    let mut octets = Vec::new();
    match socket.read_to_end(&mut octets) {
        Err(error) if !is_end(error.kind()) => {
            Err(format!("the device does not end the stream: {error}"))
        }
        Err(_) | Ok(_) => Ok(octets),
    }
}

fn is_end(error: ErrorKind) -> bool {
    matches!(
        error,
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::NotConnected
    )
}

/// Checks what the device has said: whole FPDUs with right CRCs, in order, and nothing behind a
/// Terminate, whose code is returned.
fn judge(octets: &[u8]) -> Result<Option<String>, Failure> {
    let mut wire = Wire::new();
    wire.push(octets);
    let mut receiver = Receiver::new(Extensions::Rfc7306);
    let mut terminate = None;
    while let Some(fpdu) = wire.pop() {
        if terminate.is_some() {
            return Err("the device goes on after its Terminate".into());
        }
        if !fpdu.intact {
            return Err("the device sends a wrong CRC".into());
        }
        let len = fpdu.ulpdu.len() as u16;
        match receiver.handle_fpdu(&fpdu.ulpdu, len) {
            Err(fault) => return Err(format!("the device sends what is {fault:?}")),
            Ok(Segment::Terminate(said)) => {
                if !Fault::ALL.iter().any(|fault| fault.code() == said.code) {
                    return Err(format!("the device sends {:?}", said.code));
                }
                terminate = Some(format!("{:?}", said.code));
            }
            Ok(Segment::ReadResponse(_) | Segment::Empty) => {}
            Ok(other) => return Err(format!("the device sends {other:?}")),
        }
    }
    Ok(terminate)
}

/// The verbs program guest/verbs/puppet.c, which does what it is told in lines.
struct Puppet {
    process: Child,
    input: ChildStdin,
    /// What it says, but for what happens by itself.
    answers: mpsc::Receiver<String>,
}

impl Puppet {
    fn start(program: &str, address: &str) -> Result<Self, Failure> {
        let mut process = Command::new(program)
            .arg(address)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(text)?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err("no pipes to the verbs program".into());
        };
        let (sender, answers) = mpsc::channel();
        // Read all the time, for it would not go on when the pipe is full.
        thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines
                .filter(|line| !line.starts_with("! ") || line == "! full")
                .try_for_each(|line| sender.send(line))
        });
        let this = Self {
            process,
            input,
            answers,
        };
        this.answer()?;
        Ok(this)
    }

    fn ask(&mut self, command: &str) -> Result<String, Failure> {
        writeln!(self.input, "{command}").map_err(text)?;
        self.answer()
            .map_err(|why| format!("verbs program, '{command}': {why}"))
    }

    fn answer(&self) -> Result<String, Failure> {
        match self.answers.recv_timeout(SOON) {
            Err(error) => Err(error.to_string()),
            Ok(line) => match line.strip_prefix("= ") {
                Some(answer) => Ok(answer.into()),
                None => Err(line),
            },
        }
    }

    /// Registers memory with every right: its number, and STag, base and length.
    fn region(&mut self) -> Result<(String, (u32, u64, u32)), Failure> {
        let answer = self.ask(&format!("mr {MEMORY_LEN} 7 0"))?;
        let words: Vec<_> = answer.split(' ').collect();
        let [number, base, key] = words[..] else {
            return Err(format!("mr: {answer}"));
        };
        let (Ok(base), Ok(key)) = (base.parse(), key.parse()) else {
            return Err(format!("mr: {answer}"));
        };
        Ok((number.into(), (key, base, MEMORY_LEN)))
    }

    /// Ends the program with all that it has.
    fn quit(mut self) -> Result<(), Failure> {
        writeln!(self.input, "quit").map_err(text)?;
        let status = self.process.wait().map_err(text)?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("the verbs program has ended with {status}"))
        }
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        // After `quit` there is nothing left to do.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn text(error: std::io::Error) -> Failure {
    error.to_string()
}
