// SPDX-License-Identifier: GPL-2.0

//! Plays mutated conversations against a device.
//!
//! usage: mutants AGENT DEVICE_ADDRESS OWN_ADDRESS PORT SECONDS SEED
//!
//! Plays batches for the given time. The verbs program `agent` listens; several threads connect to
//! it on plain TCP sockets, each with a start-up and a conversation from [`iwarp_fuzz::mutator`],
//! and check what the device sends. Every other time the device connects and posts requests, which
//! are answered correctly or not. After each batch the device must serve a good connection, and
//! memory that no peer knows must be unchanged. Batch `n` derives from SEED plus `n`, so a batch
//! can be replayed alone.
//!
//! Prints `ok NAME` or `not ok NAME: why`.

use std::{
    env,
    io::{
        ErrorKind,
        Read as _,
        Write as _, //
    },
    net::{
        Shutdown,
        TcpListener,
        TcpStream, //
    },
    process::ExitCode,
    sync::{
        atomic::{
            AtomicU64,
            Ordering, //
        },
        Mutex,
        PoisonError, //
    },
    thread,
    time::{
        Duration,
        Instant, //
    }, //
};

use iwarp::{
    fault::Fault,
    mpa::negotiate::{
        Config,
        Depths,
        Initiator,
        Progress,
        Responder,
        Verdict, //
    },
    rdmap::Extensions,
    receiver::{
        Receiver,
        Segment, //
    }, //
};
use iwarp_fuzz::{
    mutator::{
        answering,
        request,
        spoilt,
        Asked,
        Facts,
        Played, //
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

mod agent;

use agent::{
    Agent, //
    Established,
};

/// Why a batch failed.
type Failure = String;

/// Threads that talk to the device at once, and conversations of each in a batch.
const THREADS: u64 = 4;
const ROUNDS: u64 = 16;
/// Length and number of the receive buffers that the agent posts by default.
const RECEIVES: (u32, usize) = (4096, 4);
const MEMORY_LEN: u32 = 8192;
/// The device's default inbound depth. Revision 1 does not transmit it.
const IRD: u16 = 4;
/// The device's outbound depth.
const ORD: usize = 4;
/// Returns the time within which the device completes all outstanding work: longer where `SLOW` of
/// the environment says how much slower the machine is than usual.
fn soon() -> Duration {
    let slow = std::env::var("SLOW").ok();
    Duration::from_secs(20) * slow.and_then(|text| text.parse().ok()).unwrap_or(1)
}
/// The octet that fills memory which must stay unchanged.
const UNTOUCHED: u8 = 0x5a;

/// Counts of what was done, for the last line.
#[derive(Default)]
struct Tally {
    conversations: AtomicU64,
    called: AtomicU64,
    answers: AtomicU64,
    right: AtomicU64,
    refused: AtomicU64,
    octets: AtomicU64,
    terminates: AtomicU64,
}

fn main() -> ExitCode {
    let args: Vec<String> = env::args().collect();
    let [_, agent, address, own, port, seconds, seed] = &args[..] else {
        eprintln!("usage: mutants AGENT DEVICE_ADDRESS OWN_ADDRESS PORT SECONDS SEED");
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
        if let Err(why) = play_batch(agent, [address, own], port, seed, &tally) {
            println!("not ok conversations: seed {seed}: {why}");
            return ExitCode::FAILURE;
        }
        batch += 1;
    }
    println!(
        "# {batch} batches, {} conversations ({} by the device, with {} requests; {} right ones), {} \
         start-ups refused, {} octets, {} Terminates",
        tally.conversations.load(Ordering::Relaxed),
        tally.called.load(Ordering::Relaxed),
        tally.answers.load(Ordering::Relaxed),
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
    [address, own]: [&str; 2],
    port: u16,
    seed: u64,
    tally: &Tally,
) -> Result<(), Failure> {
    let mut agent = Agent::start(program, address)?;
    agent.ask(&format!("listen {port}"))?;
    let (number, memory) = agent.region()?;
    let (guard, _) = agent.region()?;
    agent.ask(&format!("fill {guard} {UNTOUCHED}"))?;

    let established = agent.established();
    let shared = Mutex::new(agent);
    let peer = Peer {
        address,
        own,
        port,
        memory,
        number: &number,
        agent: &shared,
        established: &established,
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
    let mut agent = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    let odd = agent.ask(&format!("odd {guard} {UNTOUCHED}"))?;
    if odd != "-1" {
        return Err(format!("memory of nobody was written to at {odd}"));
    }
    agent.quit()
}

/// A peer of the device, with what it knows.
#[derive(Clone, Copy)]
struct Peer<'a> {
    address: &'a str,
    own: &'a str,
    port: u16,
    /// STag, base and length.
    memory: (u32, u64, u32),
    /// The program's number for this memory.
    number: &'a str,
    agent: &'a Mutex<Agent>,
    established: &'a Established,
    tally: &'a Tally,
}

impl Peer<'_> {
    fn connect(&self) -> Result<TcpStream, Failure> {
        let socket = TcpStream::connect((self.address, self.port)).map_err(text)?;
        set_up(&socket)?;
        Ok(socket)
    }

    /// Runs one thread's part of a batch.
    fn converse(&self, seed: u64, thread: u64) -> Result<(), Failure> {
        let mut random = Random::new(seed.wrapping_mul(THREADS).wrapping_add(thread));
        for round in 0..ROUNDS {
            let octets = random.octets(1024);
            let result = if round % 2 == 0 {
                self.hold(&octets)
            } else {
                self.be_called(&octets)
            };
            result.map_err(|why| format!("thread {thread}, conversation {round}: {why}"))?;
        }
        Ok(())
    }

    /// Plays the conversation that the octets encode.
    fn hold(&self, octets: &[u8]) -> Result<(), Failure> {
        let mut source = Source::new(octets);
        let request = request(&mut source);
        let mut socket = self.connect()?;
        self.tally.conversations.fetch_add(1, Ordering::Relaxed);
        send(&mut socket, &request.octets, source.u32())?;
        let Some(initiator) = request.asks else {
            // End the stream in any case, so that the device does not wait for more octets.
            self.tally.refused.fetch_add(1, Ordering::Relaxed);
            return end(&mut socket).map(drop);
        };
        let depths = take_reply(&mut socket, &initiator)?;
        let facts = self.facts(depths);
        let abrupt = source.below(8) == 0;
        let cuts = source.u32();
        let played = spoilt(&mut source, &facts);
        self.play(&mut socket, &played, cuts, abrupt, &[])
    }

    fn facts(&self, depths: Depths) -> Facts {
        let (stag, base, _) = self.memory;
        Facts {
            memory: self.memory,
            atomic: Some((stag, base)),
            receives: RECEIVES,
            ird: depths.ord.min(IRD).into(),
            first: 1,
        }
    }

    /// Sends the octets to play, ends, and checks what the device sent before and meanwhile.
    fn play(
        &self,
        socket: &mut TcpStream,
        played: &Played,
        cuts: u32,
        abrupt: bool,
        before: &[u8],
    ) -> Result<(), Failure> {
        let right = played.mutations.is_empty();
        self.tally.right.fetch_add(right.into(), Ordering::Relaxed);
        self.tally
            .octets
            .fetch_add(played.stream.len() as u64, Ordering::Relaxed);
        send(socket, &played.stream, cuts)?;
        if abrupt {
            return Ok(());
        }
        let (octets, in_order) = end(socket)?;
        let said = judge(&[before, &octets].concat(), in_order)?;
        self.tally
            .terminates
            .fetch_add(said.is_some().into(), Ordering::Relaxed);
        match said {
            Some(code) if right => Err(format!("a Terminate {code} for nothing")),
            Some(_) | None => Ok(()),
        }
    }

    fn ask(&self, command: &str) -> Result<String, Failure> {
        self.agent
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .ask(command)
    }

    /// Has the device connect and post requests; answers them as the octets say.
    fn be_called(&self, octets: &[u8]) -> Result<(), Failure> {
        let mut source = Source::new(octets);
        let listener = TcpListener::bind((self.own, 0)).map_err(text)?;
        let port = listener.local_addr().map_err(text)?.port();
        let connection = self.ask(&format!("connect {} {port}", self.own))?;
        let mut socket = accept(&listener)?;
        self.tally.conversations.fetch_add(1, Ordering::Relaxed);
        self.tally.called.fetch_add(1, Ordering::Relaxed);
        let Some(depths) = give_reply(&mut socket, &mut source)? else {
            self.tally.refused.fetch_add(1, Ordering::Relaxed);
            return end(&mut socket).map(drop);
        };
        self.established.wait(&connection)?;
        let expected = self.post(&mut source, &connection)?;
        let (asked, said) = take_requests(&mut socket, expected)?;
        self.tally
            .answers
            .fetch_add(asked.len() as u64, Ordering::Relaxed);
        let abrupt = source.below(8) == 0;
        let cuts = source.u32();
        let played = answering(&mut source, &self.facts(depths), &asked);
        self.play(&mut socket, &played, cuts, abrupt, &said)
    }

    /// Has the program post up to six requests; returns how many of them wait for an answer.
    fn post(&self, source: &mut Source<'_>, connection: &str) -> Result<usize, Failure> {
        let mut expected = 0;
        for _ in 0..=source.below(6) {
            let (sink, len) = (source.below(1024) * 4, 1 + source.below(4000));
            let at = format!("{connection} {} {sink}", self.number);
            let kind = source.choose(&["read", "add", "swap", "read", "send", "write", "imm"]);
            let waits = matches!(kind, "read" | "add" | "swap");
            if waits && expected == ORD {
                continue;
            }
            expected += usize::from(waits);
            self.ask(&match kind {
                "send" => format!("send {connection} {len} -"),
                "add" => format!("add {at} 8 4096 77 - {}", source.u32()),
                "swap" => format!("swap {at} 8 4096 77 - {} {}", source.u32(), source.u32()),
                "imm" => format!("imm {at} {len} 64 77 - {}", source.u32()),
                _ => format!("{kind} {at} {len} 64 77 -"),
            })?;
        }
        Ok(expected)
    }

    /// Checks on a good connection that written octets can be read.
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

fn accept(listener: &TcpListener) -> Result<TcpStream, Failure> {
    listener.set_nonblocking(true).map_err(text)?;
    let begun = Instant::now();
    loop {
        match listener.accept() {
            Ok((socket, _)) => {
                socket.set_nonblocking(false).map_err(text)?;
                set_up(&socket)?;
                return Ok(socket);
            }
            Err(_) if begun.elapsed() < soon() => thread::sleep(Duration::from_millis(1)),
            Err(error) => return Err(format!("the device does not call: {error}")),
        }
    }
}

fn set_up(socket: &TcpStream) -> Result<(), Failure> {
    socket.set_nodelay(true).map_err(text)?;
    socket.set_read_timeout(Some(soon())).map_err(text)?;
    socket.set_write_timeout(Some(soon())).map_err(text)
}

/// Reads a Request, which must be valid, and answers it; returns the depths, or nothing if the
/// Reply was corrupted.
fn give_reply(socket: &mut TcpStream, source: &mut Source<'_>) -> Result<Option<Depths>, Failure> {
    let responder = Responder::new(Config::default());
    let mut octets = Vec::new();
    let request = loop {
        match responder.handle_request(&octets) {
            Err(error) => return Err(format!("a wrong Request: {error:?}")),
            Ok(Progress::NeedMore(len)) => {
                let have = octets.len();
                octets.resize(len, 0);
                socket
                    .read_exact(&mut octets[have..])
                    .map_err(|error| format!("no Request: {error}"))?;
            }
            Ok(Progress::Done(request)) => break request,
        }
    };
    let private = vec![0x71; source.below(64)];
    let wanted = Depths {
        ird: ORD as u16,
        ord: 4,
    };
    let accepted = responder
        .accept(&request, wanted, &private)
        .map_err(|error| format!("a Request that nobody can accept: {error:?}"))?;
    let mut reply = accepted.reply.as_octets().to_vec();
    let spoilt = source.below(8) == 0;
    if spoilt {
        let at = source.below(reply.len());
        if source.flag() {
            // In the key, length or flags, or in a field where it does no harm.
            reply[at] ^= 1 << (source.u8() & 7);
        } else {
            reply.truncate(at);
        }
    }
    send(socket, &reply, source.u32())?;
    Ok((!spoilt).then_some(accepted.rules.depths))
}

/// Reads what the device sends until so many of its requests have arrived; returns these, the first
/// message if one came, and all octets.
fn take_requests(
    socket: &mut TcpStream,
    expected: usize,
) -> Result<(Vec<Asked>, Vec<u8>), Failure> {
    let (mut wire, mut said, mut asked) = (Wire::new(), Vec::new(), Vec::new());
    let mut waiting = 0;
    while waiting < expected {
        let mut octets = [0; 4096];
        let len = socket
            .read(&mut octets)
            .map_err(|error| format!("{waiting} of {expected} requests: {error}"))?;
        if len == 0 {
            return Err(format!("the end with {waiting} of {expected} requests"));
        }
        said.extend(&octets[..len]);
        wire.push(&octets[..len]);
        while let Some(fpdu) = wire.pop() {
            let Some(request) = Asked::of(&fpdu.ulpdu) else {
                continue;
            };
            // A Read of no octets starts the stream.
            waiting += usize::from(!matches!(request, Asked::Read { len: 0, .. }));
            asked.push(request);
        }
    }
    Ok((asked, said))
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

/// Sends octets in up to three pieces. The device may close before it has taken all.
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

/// Closes this end's half; returns what comes until the device has closed its own, and whether it
/// did that in order.
fn end(socket: &mut TcpStream) -> Result<(Vec<u8>, bool), Failure> {
    // An error means that the device has closed.
    let _ = socket.shutdown(Shutdown::Write);
    let mut octets = Vec::new();
    match socket.read_to_end(&mut octets) {
        Err(error) if !is_end(error.kind()) => {
            Err(format!("the device does not end the stream: {error}"))
        }
        Err(_) => Ok((octets, false)),
        Ok(_) => Ok((octets, true)),
    }
}

fn is_end(error: ErrorKind) -> bool {
    matches!(
        error,
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::NotConnected
    )
}

/// Checks what the device sent: whole FPDUs with good CRCs, in order, and nothing behind a
/// Terminate. An end in order is not inside an FPDU. Returns the Terminate in words, if there is
/// one.
fn judge(octets: &[u8], in_order: bool) -> Result<Option<String>, Failure> {
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
                terminate = Some(format!("{:?} in {:02x?}", said.code, fpdu.ulpdu));
            }
            Ok(
                Segment::ReadResponse(_)
                | Segment::AtomicResponse(_)
                | Segment::ReadRequest(_)
                | Segment::AtomicRequest(_)
                | Segment::Flush(_)
                | Segment::Write(_)
                | Segment::AtomicWrite(_)
                | Segment::Send(_)
                | Segment::Immediate(_)
                | Segment::Empty,
            ) => {}
        }
    }
    if in_order && !wire.is_empty() {
        return Err("the device ends the stream inside an FPDU".into());
    }
    Ok(terminate)
}

fn text(error: std::io::Error) -> Failure {
    error.to_string()
}
