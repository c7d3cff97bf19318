// SPDX-License-Identifier: GPL-2.0

//! The bench of a case: a verbs program on the device, its listener, its memory regions, and the
//! connections to it.

use std::{
    net::{
        TcpListener,
        TcpStream, //
    },
    process::Command,
    thread::sleep,
    time::Instant, //
};

use crate::{
    agent::{
        access,
        Agent,
        Region, //
    },
    frame::{
        flag,
        hex,
        op,
        pattern,
        read,
        read_response,
        response,
        send,
        write,
        Code,
        Depths,
        Read,
        Segment,
        Start,
        REQUEST_KEY, //
    },
    wire::{
        fail,
        quiet,
        require,
        soon, //
        Failure,
        Outcome,
        Wire,
    }, //
};

/// Addresses, ports and programs that a bench uses.
pub(crate) struct Place {
    /// The device's address.
    pub(crate) device: String,
    /// The address of this end.
    pub(crate) own: String,
    /// The first port that the device's programs listen on.
    pub(crate) port: u16,
    /// The command that starts the verbs program on the device.
    pub(crate) agent: String,
    /// A program that sets a setting of the device (its first argument) to a value or, given
    /// `counter` and a name, prints that counter of the device.
    pub(crate) setting: String,
    /// A program for socket operations that the standard library lacks.
    pub(crate) socket: String,
    /// A program that runs a command on the device.
    pub(crate) there: String,
}

/// The octet that [`Bench::clean`] fills memory with.
const CLEAN: u8 = 0x55;
/// The number of receives that are posted for a new connection.
pub(crate) const RECEIVES: usize = 4;
/// The length of a receive buffer, in octets.
pub(crate) const RECEIVE_LEN: u32 = 4096;
/// The error state of a queue pair.
const STATE_ERROR: u64 = 6;

pub(crate) struct Bench<'a> {
    place: &'a Place,
    port: u16,
    pub(crate) agent: Agent,
    /// 8192 octets with all rights.
    pub(crate) ram: Region,
    /// The same without the right to write.
    pub(crate) no_write: Region,
    /// The same without the right to read.
    pub(crate) no_read: Region,
    /// The same in a protection domain that the connections do not belong to.
    pub(crate) foreign: Region,
    /// 2 MiB with all rights.
    pub(crate) large: Region,
    /// A connection that no case uses and that no case may disturb.
    neighbour: Wire,
    /// Settings that differ from their initial values.
    changed: Vec<&'static str>,
    /// No other case runs on the device.
    pub(crate) is_alone: bool,
    rounds: u8,
}

impl<'a> Bench<'a> {
    /// Starts a verbs program that listens on this port.
    pub(crate) fn begin(place: &'a Place, port: u16) -> Outcome<Self> {
        let mut agent = Agent::start(&place.agent, &place.device)?;
        agent.ask(&format!("listen {port}"))?;
        let mut region = |len, rights, pd| agent.region(len, rights, pd);
        let ram = region(8192, access::ALL, 0)?;
        let no_write = region(8192, access::LOCAL_WRITE | access::REMOTE_READ, 0)?;
        let no_read = region(8192, access::LOCAL_WRITE | access::REMOTE_WRITE, 0)?;
        let foreign = region(8192, access::ALL, 1)?;
        let large = region(1 << 21, access::ALL, 0)?;
        let neighbour = connect(place, port, &agent, &Start::request(1, &[]))?;
        Ok(Self {
            place,
            port,
            agent,
            ram,
            no_write,
            no_read,
            foreign,
            large,
            neighbour,
            changed: Vec::new(),
            is_alone: false,
            rounds: 0,
        })
    }

    /// Runs behind each case: removes the case's objects, then checks that no octet around any
    /// memory has changed and that the device serves both the old connection and a new one.
    pub(crate) fn end_case(&mut self) -> Outcome {
        let mut result = self.agent.ask("guards").map(drop);
        for name in std::mem::take(&mut self.changed) {
            result = result.and(self.put_setting(name, default_of(name)));
        }
        let neighbour = self.neighbour.conn;
        result?;
        self.agent.none_yet(&format!("wc {neighbour}"))?;
        self.agent.none_yet(&format!("event {neighbour}"))?;
        self.agent.none_yet(&format!("disconnected {neighbour}"))?;
        self.agent.set(&[
            ("recvs", RECEIVES as u32),
            ("recv_len", RECEIVE_LEN),
            ("ird", 4),
            ("ord", 4),
            ("pd", 0),
            ("auto", 1),
        ])?;
        self.agent.data(&[])?;
        self.agent.ask(&format!(
            "clear {} {}",
            neighbour + 1,
            self.large.number() + 1
        ))?;
        self.agent.forget();
        self.serves()?;
        self.agent.ask(&format!("recv {neighbour} 1"))?;
        // `exchange` borrows the neighbour.
        let rounds = self.next_round();
        exchange(&self.agent, &self.ram, &mut self.neighbour, rounds)?;
        self.agent.ask(&format!(
            "clear {} {}",
            neighbour + 1,
            self.large.number() + 1
        ))?;
        self.agent.forget();
        Ok(())
    }

    fn next_round(&mut self) -> u8 {
        self.rounds = self.rounds.wrapping_add(1);
        self.rounds
    }

    // Connections.

    /// Returns a TCP connection to the listener, with nothing sent on it.
    pub(crate) fn open(&self) -> Outcome<Wire> {
        open(self.place, self.port)
    }

    /// Returns an established connection.
    pub(crate) fn connect(&self) -> Outcome<Wire> {
        self.connect_by(&Start::request(1, &[]))
    }

    /// Returns a connection that this Request established.
    pub(crate) fn connect_by(&self, request: &Start) -> Outcome<Wire> {
        connect(self.place, self.port, &self.agent, request)
    }

    /// Returns a connection on which the device may send.
    pub(crate) fn begun(&self) -> Outcome<Wire> {
        let mut wire = self.connect()?;
        wire.send(&[write(0, 0, &[])])?;
        Ok(wire)
    }

    /// Returns a port that no program listens on.
    pub(crate) fn dead_port(&self) -> Outcome<u16> {
        Ok(TcpListener::bind((&*self.place.own, 0))?
            .local_addr()?
            .port())
    }

    /// Has the device connect to a port of this end.
    pub(crate) fn call_at(&mut self, port: u16) -> Outcome<u32> {
        self.agent.connect(&self.place.own, port)
    }

    /// Has the device connect to this end, and takes its Request.
    pub(crate) fn called(&mut self) -> Outcome<(Wire, Start)> {
        let mut wire = self.called_in_silence()?;
        let request = wire.start_frame()?;
        require!(
            &request.key == REQUEST_KEY,
            "Request with key {:?}",
            request.key
        );
        Ok((wire, request))
    }

    /// Has the device connect to this end.
    pub(crate) fn called_in_silence(&mut self) -> Outcome<Wire> {
        let listener = self.listener()?;
        self.called_at(&listener)
    }

    /// Listens on a port of this end for the device.
    pub(crate) fn listener(&self) -> Outcome<TcpListener> {
        let listener = TcpListener::bind((&*self.place.own, 0))?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }

    /// Has the device connect to this port.
    pub(crate) fn called_at(&mut self, listener: &TcpListener) -> Outcome<Wire> {
        let conn = self.call_at(listener.local_addr()?.port())?;
        let begun = Instant::now();
        let socket = loop {
            match listener.accept() {
                Ok((socket, _)) => break socket,
                Err(_) if begun.elapsed() < soon() => std::thread::yield_now(),
                Err(error) => fail!("the device does not call: {error}"),
            }
        };
        socket.set_nonblocking(false)?;
        let mut wire = Wire::new(socket, &self.place.socket)?;
        wire.conn = conn;
        Ok(wire)
    }

    /// Has the device connect to this end, accepts, and takes its ready-to-receive message.
    pub(crate) fn answered(&mut self) -> Outcome<Wire> {
        let (mut wire, request) = self.called()?;
        let reply = reply_to(&request, &[]);
        self.answer(&mut wire, &request, &reply)?;
        Ok(wire)
    }

    /// Answers a Request of the device with this Reply, which the device accepts.
    pub(crate) fn answer(&mut self, wire: &mut Wire, request: &Start, reply: &Start) -> Outcome {
        wire.agreed(reply, request);
        wire.put(&reply.octets())?;
        self.agent.wait(&format!("established {}", wire.conn))?;
        if reply.depths().is_some_and(|depths| depths.peer_to_peer) {
            take_rtr(wire)?;
        }
        Ok(())
    }

    /// Checks that a Write and a Read on this connection work.
    pub(crate) fn works(&mut self, wire: &mut Wire) -> Outcome {
        let data = pattern_of(self.next_round());
        let msn = wire.next_read();
        wire.send(&[
            write(self.ram.key, self.ram.at, &data),
            read(msn, data.len() as u32, self.ram.key, self.ram.at),
        ])?;
        wire.expect(&response(&data))
    }

    /// Checks that a new connection carries data correctly.
    pub(crate) fn serves(&mut self) -> Outcome {
        let mut wire = self.connect()?;
        let round = self.next_round();
        exchange(&self.agent, &self.ram, &mut wire, round)
    }

    // Memory.

    /// Fills all small regions with the same octet.
    pub(crate) fn clean(&mut self) -> Outcome {
        self.small()
            .iter()
            .try_for_each(|region| self.agent.fill(region, CLEAN))
    }

    /// Checks that no octet of them has changed since.
    pub(crate) fn untouched(&mut self) -> Outcome {
        self.small()
            .iter()
            .try_for_each(|region| self.agent.holds(region, CLEAN))
    }

    fn small(&self) -> [Region; 4] {
        [self.ram, self.no_write, self.no_read, self.foreign]
    }

    /// Checks that no octet of this region has changed since [`Self::clean`].
    pub(crate) fn is_clean(&mut self, region: &Region) -> Outcome {
        self.agent.holds(region, CLEAN)
    }

    /// Checks that `len` octets of [`Self::ram`] from `offset` have not changed since
    /// [`Self::clean`].
    pub(crate) fn ram_is_clean(&mut self, offset: usize, len: usize) -> Outcome {
        let ram = self.ram;
        let octets = self.agent.peek(&ram, offset, len)?;
        match octets.iter().position(|octet| *octet != CLEAN) {
            Some(at) => fail!("memory was written to at {}", offset + at),
            None => Ok(()),
        }
    }

    /// Registers a region with these rights if they are a valid combination: the remote write right
    /// requires the local one.
    pub(crate) fn region_with(&mut self, rights: u32) -> Outcome<Option<Region>> {
        if rights & access::REMOTE_WRITE != 0 && rights & access::LOCAL_WRITE == 0 {
            let answer = self.agent.try_ask(&format!("mr 64 {rights} 0"))?;
            require!(answer.starts_with("- "), "registered: {answer}");
            return Ok(None);
        }
        self.agent.region(64, rights, 0).map(Some)
    }

    // How connections end.

    /// Checks that this segment is answered by exactly this Terminate, and that the program sees
    /// the connection fail.
    pub(crate) fn refuses(&mut self, wire: &mut Wire, code: Code, bad: &Segment) -> Outcome {
        wire.send(std::slice::from_ref(bad))?;
        wire.expect_refusal(code, bad)?;
        self.failed(wire, code)
    }

    /// Resets the connection; checks that the program sees it and that all receives are flushed.
    pub(crate) fn loses(&self, wire: Wire) -> Outcome {
        let conn = wire.conn;
        wire.reset()?;
        self.agent.wait(&format!("disconnected {conn}"))?;
        for _ in 0..RECEIVES {
            self.agent.wait(&format!("wc {conn} recv * flushed"))?;
        }
        Ok(())
    }

    // Events of the verbs program.

    /// Checks that the next Send of the peer arrives with these octets.
    pub(crate) fn received(&self, wire: &Wire, data: &[u8]) -> Outcome {
        self.agent
            .wait(&format!(
                "wc {} recv * success {} {}",
                wire.conn,
                data.len(),
                hex(data)
            ))
            .map(drop)
    }

    /// Checks that the next completion of a request of this connection has this status.
    pub(crate) fn completed(&self, wire: &Wire, status: &str) -> Outcome {
        let event = self.agent.wait(&format!("wc {} send", wire.conn))?;
        require!(
            event[4] == status,
            "{} instead of {status}",
            event.join(" ")
        );
        Ok(())
    }

    /// Checks that no request and no receive of this connection has completed: the device has
    /// answered later messages by then.
    pub(crate) fn nothing_completes(&mut self, wire: &mut Wire) -> Outcome {
        wire.nothing_waits()?;
        self.agent.ask(&format!("poll {}", wire.conn))?;
        self.agent.none_yet(&format!("wc {}", wire.conn))
    }

    /// Checks that exactly this number of receives end, all flushed.
    pub(crate) fn flushed(&self, wire: &Wire, count: usize) -> Outcome {
        self.receives_end(wire, &vec!["flushed"; count])
    }

    /// Checks that the receives of this connection end with these statuses, in this order, and that
    /// no other does.
    pub(crate) fn receives_end(&self, wire: &Wire, statuses: &[&str]) -> Outcome {
        let pattern = format!("wc {} recv", wire.conn);
        for status in statuses {
            let event = self.agent.wait(&pattern)?;
            require!(
                event[4] == *status,
                "{} instead of {status}",
                event.join(" ")
            );
        }
        self.agent.none_yet(&pattern)
    }

    /// Checks that the program sees this connection fail by a fault of the peer.
    pub(crate) fn failed(&mut self, wire: &Wire, code: Code) -> Outcome {
        let event = match code {
            Code(0 | 1, 1, _) => "QP_ACCESS_ERR",
            Code(0 | 1, 2, _) => "QP_REQ_ERR",
            _ => "QP_FATAL",
        };
        self.agent.wait(&format!("event {} {event}", wire.conn))?;
        self.agent.none_yet(&format!("event {}", wire.conn))?;
        self.down(wire)
    }

    /// Checks that the connection has ended and that its queue pair is in error. The device has
    /// closed its half; this end closes its own, since the device would wait for that for some
    /// time.
    pub(crate) fn down(&mut self, wire: &Wire) -> Outcome {
        let _ = wire.half_close();
        self.agent.wait(&format!("disconnected {}", wire.conn))?;
        self.in_error(wire)
    }

    /// Checks that a connection that the program accepted has failed. It counts as one that was up
    /// and has ended, since iw_cm has no other way to end an accepted connection.
    pub(crate) fn never_up(&mut self, wire: &Wire) -> Outcome {
        self.agent
            .none_yet(&format!("wc {} recv * success", wire.conn))?;
        self.down(wire)
    }

    /// Checks that the connection's queue pair is in error.
    pub(crate) fn in_error(&mut self, wire: &Wire) -> Outcome {
        let state = self.agent.state(wire.conn)?;
        require!(state == STATE_ERROR, "the queue pair is in state {state}");
        Ok(())
    }

    /// Checks that the device reports its own connection attempt as failed, and not as rejected by
    /// the peer's program.
    pub(crate) fn start_up_failed(&self, conn: u32) -> Outcome {
        let event = self.agent.wait(&format!("* {conn}"))?;
        let status = event.get(2).map_or("", String::as_str);
        require!(
            ["rejected", "unreachable", "error"].contains(&&*event[0])
                && !["0", "-111"].contains(&status),
            "unexpected event: {}",
            event.join(" ")
        );
        Ok(())
    }

    /// Changes a setting of the device until the end of the case.
    pub(crate) fn setting(&mut self, name: &'static str, value: u32) -> Outcome {
        require!(self.is_alone, "the case is not marked as alone");
        self.changed.push(name);
        self.put_setting(name, value)
    }

    /// Returns a counter of the device once it has stopped changing.
    pub(crate) fn settled_counter(&self, name: &str) -> Outcome<u64> {
        let mut last = self.counter(name)?;
        loop {
            sleep(quiet());
            let now = self.counter(name)?;
            if now == last {
                return Ok(now);
            }
            last = now;
        }
    }

    /// Returns how many octets of this connection the device's TCP has accepted: those that the
    /// peer has acknowledged plus those in its send queue.
    pub(crate) fn taken_by_tcp(&self, wire: &Wire) -> Outcome<u64> {
        let (theirs, ours) = wire.ports()?;
        let (theirs, ours) = (format!(":{theirs}"), format!(":{ours}"));
        let mut words = self.place.there.split_whitespace().chain([
            "ss", "-HtinO", "sport", "=", &theirs, "and", "dport", "=", &ours,
        ]);
        let output = Command::new(words.next().unwrap_or_default())
            .args(words)
            .output()?;
        let line = String::from_utf8_lossy(&output.stdout);
        let words: Vec<&str> = line.split_whitespace().collect();
        let queued = words.get(2).and_then(|word| word.parse::<u64>().ok());
        let acknowledged = words
            .iter()
            .find_map(|word| word.strip_prefix("bytes_acked:")?.parse::<u64>().ok());
        match (queued, acknowledged) {
            (Some(queued), Some(acknowledged)) => Ok(queued + acknowledged),
            _ => fail!("ss: {line}"),
        }
    }

    fn counter(&self, name: &str) -> Outcome<u64> {
        let output = Command::new(&self.place.setting)
            .args(["counter", name])
            .output()?;
        String::from_utf8_lossy(&output.stdout)
            .trim()
            .parse()
            .map_err(|_| Failure(format!("counter {name}: {}", output.status)))
    }

    fn put_setting(&self, name: &str, value: u32) -> Outcome {
        let status = Command::new(&self.place.setting)
            .args([name, &value.to_string()])
            .status()?;
        require!(status.success(), "setting {name} to {value}: {status}");
        Ok(())
    }
}

/// Returns the initial value of a setting.
fn default_of(name: &str) -> u32 {
    match name {
        "mpa_rev" => 2,
        "confirm_sends" | "draft_swap" | "eager_responder" | "extensions" | "starved"
        | "tcp_mem" => 0,
        "net_mtu" => 1500,
        "ulpdu_limit" => 32_782,
        "receive_wait" => 10_000,
        _ => 1,
    }
}

fn open(place: &Place, port: u16) -> Outcome<Wire> {
    Wire::new(TcpStream::connect((&*place.device, port))?, &place.socket)
}

fn connect(place: &Place, port: u16, agent: &Agent, request: &Start) -> Outcome<Wire> {
    let mut wire = open(place, port)?;
    wire.start(request)?;
    let event = agent.wait("request")?;
    wire.conn = event[1].parse().map_err(|_| Failure("no number".into()))?;
    agent.wait(&format!("established {}", wire.conn))?;
    Ok(wire)
}

fn pattern_of(round: u8) -> Vec<u8> {
    pattern(100).iter().map(|octet| octet ^ round).collect()
}

/// Does a Write, a Read of the written octets, and a Send.
fn exchange(agent: &Agent, ram: &Region, wire: &mut Wire, round: u8) -> Outcome {
    let data = pattern_of(round);
    let (read_msn, send_msn) = (wire.next_read(), wire.next_send());
    wire.send(&[
        write(ram.key, ram.at, &data),
        read(read_msn, data.len() as u32, ram.key, ram.at),
        send(send_msn, &data),
    ])?;
    wire.expect(&response(&data))?;
    let pattern = format!(
        "wc {} recv * success {} {}",
        wire.conn,
        data.len(),
        hex(&data)
    );
    agent.wait(&pattern).map(drop)
}

/// Returns the Reply that agrees to everything in a Request.
pub(crate) fn reply_to(request: &Start, private_data: &[u8]) -> Start {
    match request.depths() {
        Some(asked) => Start::enhanced_reply(
            Depths {
                ird: asked.ord,
                ord: asked.ird,
                ..asked
            },
            private_data,
        ),
        None => Start::reply(request.rev, private_data),
    }
}

/// Takes the ready-to-receive message of a peer-to-peer start; answers it if it is a Read.
pub(crate) fn take_rtr(wire: &mut Wire) -> Outcome {
    let first = wire.get()?;
    match first.op() {
        op::WRITE if first.data().is_empty() => Ok(()),
        op::READ_REQUEST if first.read().size == 0 => {
            let Read { sink, sink_to, .. } = first.read();
            wire.send(&[read_response(sink, sink_to, &[])])
        }
        _ => fail!("not ready to receive: {}", first.describe()),
    }
}

/// Returns whether a start-up frame has the enhanced data of RFC 6581.
pub(crate) fn is_enhanced(start: &Start) -> bool {
    start.flags & flag::ENHANCED != 0 && start.rev == 2
}

/// Segments in the order in which they are sent.
pub(crate) type Segments = Vec<Segment>;
