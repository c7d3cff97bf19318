// SPDX-License-Identifier: GPL-2.0

//! Ends of streams without a fault (RFC 5040, section 6.2; RFC 5041, section 8.2), and random
//! octets.

use std::{
    fs,
    time::{
        Duration,
        Instant, //
    }, //
};

use super::{
    atomics::fetch_add,
    case,
    scripts,
    Case, //
};
use crate::{
    bench::Bench,
    frame::{
        fpdus,
        hex,
        op,
        pattern,
        read,
        read_response,
        send,
        write,
        Code,
        Segment, //
    },
    wire::{
        fail,
        require,
        End,
        Failure,
        Outcome, //
    }, //
};

pub(super) fn cases() -> Vec<Case> {
    let mut list = scripts![
        graceful_end: "DDP-56 RDMAP-131 DDP-9 DDP-61",
        close_right_after_start_up: "RDMAP-131 DDP-9",
        disconnect_is_graceful: "DDP-57 RDMAP-131",
        sends_arrive_behind_the_devices_end: "DDP-62 DDP-57",
        requests_behind_the_devices_end: "DDP-62 RDMAP-67 EXT-43",
        sends_arrive_long_after_the_devices_end: "DDP-62",
        requests_without_end: "DDP-57",
        half_close_behind_a_read_request: "DDP-60",
        half_close_behind_many_read_requests: "DDP-60 RDMAP-67",
        half_close_of_a_slow_reader: "DDP-60",
        half_close_while_the_device_sends: "DDP-60",
        half_close_while_a_read_waits_behind_a_send: "DDP-60",
        posts_behind_a_half_close_are_flushed: "DDP-60 DDP-61",
        program_has_no_socket_of_its_connection: "DDP-102",
        reset_of_an_idle_connection: "DDP-63 RDMAP-131",
        reset_while_the_device_sends: "DDP-3 DDP-64",
        reset_while_reads_are_answered: "DDP-3 DDP-63",
        both_ends_close_at_once: "DDP-61",
        peer_ends_while_the_program_disconnects: "DDP-61 DDP-58",
        disconnect_before_the_first_fpdu: "DDP-57 MPA-9",
        fault_behind_the_devices_end: "DDP-62 RDMAP-136",
        octets_at_random: "MPA-31 DDP-87",
        octets_at_random_behind_a_good_length: "MPA-20 MPA-31",
        frames_with_octets_changed_at_random: "DDP-87 DDP-81 RDMAP-146",
    ];
    list.push(
        case(
            "abortive_and_graceful_ends_are_counted_apart",
            "DDP-9",
            abortive_and_graceful_ends_are_counted_apart,
        )
        .alone(),
    );
    list
}

fn graceful_end(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    wire.send(&[send(1, b"last words")])?;
    wire.half_close()?;
    b.received(&wire, b"last words")?;
    wire.ends(End::Graceful)?;
    b.down(&wire)?;
    b.flushed(&wire, 3)?;
    b.agent.none_yet(&format!("event {}", wire.conn))
}

fn close_right_after_start_up(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    wire.half_close()?;
    wire.ends(End::Graceful)?;
    b.down(&wire)?;
    b.flushed(&wire, 4)
}

/// The device counts the abortive ends, and only these.
fn abortive_and_graceful_ends_are_counted_apart(b: &mut Bench<'_>) -> Outcome {
    let before = b.settled_counter("aborts")?;
    graceful_end(b)?;
    close_right_after_start_up(b)?;
    disconnect_is_graceful(b)?;
    let graceful = b.settled_counter("aborts")?;
    require!(
        graceful == before,
        "{} graceful ends were none",
        graceful - before
    );
    reset_of_an_idle_connection(b)?;
    let mut wire = b.connect()?;
    wire.put(&send(1, b"cut").fpdu()[..20])?;
    wire.half_close()?;
    wire.ends(End::Any)?;
    b.down(&wire)?;
    let lost = b.settled_counter("aborts")? - graceful;
    require!(lost == 2, "{lost} lost connections instead of 2");
    Ok(())
}

fn disconnect_is_graceful(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    for _ in 0..3 {
        b.agent.ask(&format!("send {} 30000 -", wire.conn))?;
    }
    b.agent.ask(&format!("disconnect {}", wire.conn))?;
    for _ in 0..3 {
        let (_, data) = wire.message()?;
        require!(data.len() == 30_000, "{} octets", data.len());
    }
    wire.ends(End::Graceful)
}

fn sends_arrive_behind_the_devices_end(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    b.agent.ask(&format!("disconnect {}", wire.conn))?;
    wire.ends(End::Graceful)?;
    // The device's half is closed, this one is not.
    wire.send(&[write(b.ram.key, b.ram.at, b"late"), send(1, b"late, too")])?;
    b.received(&wire, b"late, too")?;
    let ram = b.ram;
    let memory = b.agent.peek(&ram, 0, 4)?;
    require!(memory == b"late", "{}", hex(&memory));
    wire.half_close()?;
    b.down(&wire)?;
    b.flushed(&wire, 3)
}

/// They are not answered, and what follows them still arrives.
fn requests_behind_the_devices_end(b: &mut Bench<'_>) -> Outcome {
    let (key, at) = (b.ram.key, b.ram.at);
    let requests = [
        read(1, 0, key, at),
        read(1, 8, key, at),
        fetch_add(key, at, 1, 0).segment(1),
    ];
    for request in requests {
        let mut wire = b.begun()?;
        b.agent.ask(&format!("disconnect {}", wire.conn))?;
        wire.ends(End::Graceful)?;
        wire.send(&[request])?;
        for msn in 1..3 {
            wire.send(&[send(msn, b"late")])?;
            b.received(&wire, b"late")?;
        }
        wire.half_close()?;
        b.down(&wire)?;
        b.flushed(&wire, 2)?;
    }
    Ok(())
}

/// The device gives up a silent peer after two seconds, but not one that sends.
fn sends_arrive_long_after_the_devices_end(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    b.agent.ask(&format!("disconnect {}", wire.conn))?;
    wire.ends(End::Graceful)?;
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(100));
        wire.send(&[write(b.ram.key, b.ram.at, b"late")])?;
    }
    wire.send(&[send(1, b"late")])?;
    b.received(&wire, b"late")?;
    wire.half_close()?;
    b.down(&wire)?;
    b.flushed(&wire, 3)
}

/// A peer that has requests outstanding all the time does not put off the device's end: once the
/// program has disconnected, only requests that have arrived are answered. The answers are more
/// than the two ends of TCP hold.
fn requests_without_end(b: &mut Bench<'_>) -> Outcome {
    const LEN: u32 = 1 << 21;
    let mut wire = b.begun()?;
    wire.window(1 << 14)?;
    let request = |msn| read(msn, LEN, b.large.key, b.large.at);
    wire.send(&[request(1), request(2), request(3), request(4)])?;
    b.agent.ask(&format!("disconnect {}", wire.conn))?;
    for msn in 5..21 {
        let mut len = 0;
        while len < LEN as usize {
            match wire.get() {
                Ok(got) => len += got.data().len(),
                // Not a reset.
                Err(Failure(why)) if len == 0 => {
                    require!(why.starts_with("end of stream with 0 of"), "{why}");
                    return Ok(());
                }
                Err(e) => return Err(e),
            }
        }
        wire.send(&[request(msn)])?;
    }
    fail!("the device answers without end")
}

fn half_close_behind_a_read_request(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    wire.send(&[read(1, 1 << 20, b.large.key, b.large.at)])?;
    wire.half_close()?;
    let (first, data) = wire.message()?;
    require!(
        first.op() == op::READ_RESPONSE && data.len() == 1 << 20,
        "{}",
        first.describe()
    );
    wire.ends(End::Graceful)?;
    b.down(&wire)
}

fn half_close_behind_many_read_requests(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    let reads: Vec<Segment> = (1..5)
        .map(|msn| read(msn, 100_000, b.large.key, b.large.at))
        .collect();
    wire.send(&reads)?;
    wire.half_close()?;
    for _ in reads {
        let (_, data) = wire.message()?;
        require!(data.len() == 100_000, "{} octets", data.len());
    }
    wire.ends(End::Graceful)
}

fn half_close_of_a_slow_reader(b: &mut Bench<'_>) -> Outcome {
    // What was packed but not yet accepted by the socket is part of the Response too.
    let mut wire = b.connect()?;
    wire.window(1 << 14)?;
    wire.pace = Duration::from_millis(10);
    wire.send(&[read(1, 1 << 20, b.large.key, b.large.at)])?;
    wire.half_close()?;
    let (first, data) = wire.message()?;
    require!(data.len() == 1 << 20, "{}", first.describe());
    wire.ends(End::Graceful)
}

fn half_close_while_the_device_sends(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    wire.window(1 << 14)?;
    b.agent.ask(&format!("send {} 500000 -", wire.conn))?;
    wire.half_close()?;
    let (first, data) = wire.message()?;
    require!(
        first.op() == op::SEND && data.len() == 500_000,
        "{}",
        first.describe()
    );
    wire.ends(End::Graceful)?;
    b.down(&wire)
}

/// The last octets of the Send wait for room in TCP when the device has begun the Read. The device
/// looks at least about once a second whether it owes something. On a slow machine that may fall
/// outside of the pause; `fpdus_packed_before_peer_fin_are_sent` of KUnit always meets it.
fn half_close_while_a_read_waits_behind_a_send(b: &mut Bench<'_>) -> Outcome {
    for before in [350_000, 400_000] {
        let mut wire = b.begun()?;
        wire.window(1 << 14)?;
        let (conn, ram) = (wire.conn, b.ram.number());
        b.agent.ask(&format!("send {conn} 500000 -"))?;
        b.agent.ask(&format!("read {conn} {ram} 0 8 0 77 -"))?;
        wire.half_close()?;
        let mut len = 0;
        let mut paused = false;
        loop {
            let got = wire.get()?;
            require!(got.op() == op::SEND, "{}", got.describe());
            len += got.data().len();
            if got.is_last() {
                break;
            }
            if len > before && !paused {
                std::thread::sleep(Duration::from_millis(1500));
                paused = true;
            }
        }
        require!(len == 500_000, "{len} octets");
        let got = wire.get()?;
        require!(got.op() == op::READ_REQUEST, "{}", got.describe());
        wire.ends(End::Graceful)?;
        b.down(&wire)?;
    }
    Ok(())
}

/// The consumer hears of the peer's end when iw_cm has its CLOSE, and the queue pair is in error by
/// then: what the program posts in answer to the peer's last message does not go out.
fn posts_behind_a_half_close_are_flushed(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    wire.send(&[send(1, b"ask")])?;
    wire.half_close()?;
    b.received(&wire, b"ask")?;
    b.agent.wait(&format!("disconnected {}", wire.conn))?;
    b.in_error(&wire)?;
    b.agent.ask(&format!("send {} 10 -", wire.conn))?;
    b.completed(&wire, "flushed")?;
    wire.ends(End::Graceful)?;
    b.flushed(&wire, 3)
}

/// Nobody but the device can put octets into a stream from this side: its socket has no descriptor.
fn program_has_no_socket_of_its_connection(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    let mut devices = 0;
    for entry in fs::read_dir(format!("/proc/{}/fd", b.agent.pid()))? {
        let file = fs::read_link(entry?.path())?;
        let file = file.to_string_lossy();
        require!(!file.starts_with("socket:"), "the program has {file}");
        devices += u32::from(file.starts_with("/dev/infiniband/"));
    }
    // It is the program, and not a shell in front of it.
    require!(devices > 0, "the program has no device");
    wire.send(&[send(1, b"x")])?;
    b.received(&wire, b"x")
}

fn reset_of_an_idle_connection(b: &mut Bench<'_>) -> Outcome {
    let wire = b.begun()?;
    b.loses(wire)
}

fn reset_while_the_device_sends(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    wire.window(8192)?;
    for _ in 0..3 {
        b.agent.ask(&format!("send {} 4000000 -", wire.conn))?;
    }
    wire.get()?;
    let conn = wire.conn;
    wire.reset()?;
    b.agent.wait(&format!("disconnected {conn}"))?;
    for _ in 0..3 {
        let event = b.agent.wait(&format!("wc {conn} send"))?;
        require!(["success", "flushed"].contains(&&*event[4]), "{event:?}");
    }
    b.agent.none_yet(&format!("wc {conn} send")).map(drop)
}

fn reset_while_reads_are_answered(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    wire.window(8192)?;
    wire.send(&[
        read(1, 1 << 21, b.large.key, b.large.at),
        read(2, 1 << 21, b.large.key, b.large.at),
    ])?;
    wire.get()?;
    let conn = wire.conn;
    wire.reset()?;
    b.agent.wait(&format!("disconnected {conn}")).map(drop)
}

fn both_ends_close_at_once(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    wire.half_close()?;
    b.agent.try_ask(&format!("disconnect {}", wire.conn))?;
    wire.ends(End::Graceful)?;
    b.down(&wire)
}

fn peer_ends_while_the_program_disconnects(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    b.agent.ask(&format!("send {} 30000 -", wire.conn))?;
    b.agent.ask(&format!("disconnect {}", wire.conn))?;
    wire.half_close()?;
    let (_, data) = wire.message()?;
    require!(data.len() == 30_000, "{} octets", data.len());
    wire.ends(End::Graceful)?;
    b.down(&wire)
}

/// What the program has sent before waits for the first FPDU, and goes out before the end.
fn disconnect_before_the_first_fpdu(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    b.agent.ask(&format!("send {} 30000 -", wire.conn))?;
    b.agent.ask(&format!("disconnect {}", wire.conn))?;
    wire.send(&[write(0, 0, &[])])?;
    let (_, data) = wire.message()?;
    require!(data.len() == 30_000, "{} octets", data.len());
    wire.ends(End::Graceful)?;
    wire.half_close()?;
    b.down(&wire)
}

fn fault_behind_the_devices_end(b: &mut Bench<'_>) -> Outcome {
    // It is too late for a Terminate, but the data is still not written.
    let mut wire = b.begun()?;
    b.clean()?;
    b.agent.ask(&format!("disconnect {}", wire.conn))?;
    wire.ends(End::Graceful)?;
    wire.send(&[write(b.no_write.key, b.no_write.at, b"x")])?;
    wire.half_close()?;
    b.down(&wire)?;
    b.untouched()
}

/// Pseudo-random numbers, the same on each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn octets(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

fn octets_at_random(b: &mut Bench<'_>) -> Outcome {
    let mut random = Random(1);
    b.clean()?;
    for _ in 0..20 {
        let mut wire = b.connect()?;
        let len = 1 + random.below(3000);
        // The device may close before all of it is sent.
        let _ = wire.put(&random.octets(len));
        let _ = wire.half_close();
        wire.drain()?;
    }
    b.untouched()
}

fn octets_at_random_behind_a_good_length(b: &mut Bench<'_>) -> Outcome {
    // Each is a whole FPDU with a good CRC.
    let mut random = Random(7);
    b.clean()?;
    for _ in 0..60 {
        let mut wire = b.connect()?;
        let len = 1 + random.below(100);
        let octets = Segment::raw(random.octets(len)).fpdu();
        wire.put(&octets)?;
        let got = wire.get()?;
        require!(
            got.op() == op::TERMINATE,
            "{} for {}",
            got.describe(),
            hex(&octets)
        );
    }
    b.untouched()
}

fn frames_with_octets_changed_at_random(b: &mut Bench<'_>) -> Outcome {
    let mut random = Random(2);
    b.clean()?;
    for _ in 0..100 {
        let mut wire = b.connect()?;
        let data = pattern(random.below(64));
        let kinds = [
            write(b.ram.key, b.ram.at, &data),
            write(b.ram.key, b.ram.at, &data).more(),
            send(1, &data),
            send(1, &data).more(),
            read(1, data.len() as u32, b.ram.key, b.ram.at),
            read_response(1, 1, &[7; 8]),
            Code(1, 1, 1).answer(&write(1, 1, &[])),
            send(1, &[]).opcode(op::SEND_INV).inv(b.ram.key),
        ];
        let mut frames = Vec::new();
        for _ in 0..1 + random.below(3) {
            let mut octets = kinds[random.below(kinds.len())].to_vec();
            for _ in 0..1 + random.below(4) {
                let at = random.below(octets.len());
                octets[at] = random.next() as u8;
            }
            if random.below(5) == 0 {
                octets.truncate(random.below(octets.len()));
            }
            frames.push(Segment::raw(octets));
        }
        wire.put(&fpdus(&frames))?;
        let _ = wire.half_close();
        wire.drain()?;
    }
    for region in [b.no_write, b.no_read, b.foreign] {
        b.is_clean(&region)?;
    }
    Ok(())
}
