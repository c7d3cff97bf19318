// SPDX-License-Identifier: GPL-2.0

//! What a program can do with the crate ibverbs: reliable connections without rdma_cm, Sends and
//! receives. Both ends are in this process. All data is compared.
//!
//! `DEVICE` names the device. Prints a line for each case, in the format of the guest's scripts.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ibverbs::ibv_qp_type::{IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};
use ibverbs::{CompletionQueue, Context, MemoryRegion, ProtectionDomain, QueuePair};

type Outcome = Result<(), String>;

/// Work requests that may be under way at once in each direction.
const DEPTH: usize = 32;
const PATIENCE: Duration = Duration::from_secs(30);
/// Linux's number for "Operation not supported".
const EOPNOTSUPP: i32 = 95;

/// The octets of message `n`, which differ from those of its neighbours.
fn fill(buffer: &mut [u8], n: usize) {
    for (i, octet) in buffer.iter_mut().enumerate() {
        *octet = (n * 31 + i * 7 + i / 251) as u8;
    }
}

fn check(buffer: &[u8], n: usize) -> Outcome {
    let mut wanted = vec![0; buffer.len()];
    fill(&mut wanted, n);
    match buffer.iter().zip(&wanted).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => Err(format!(
            "message {n}: octet {at} of {} is wrong",
            buffer.len()
        )),
    }
}

fn text(error: std::io::Error) -> String {
    error.to_string()
}

fn open() -> Result<Context, String> {
    let wanted = std::env::var("DEVICE").map_err(|_| "DEVICE is not set")?;
    let devices = ibverbs::devices().map_err(text)?;
    let device = devices
        .iter()
        .find(|device| {
            device
                .name()
                .is_some_and(|name| name.to_bytes() == wanted.as_bytes())
        })
        .ok_or_else(|| format!("no device {wanted}"))?;
    device.open().map_err(text)
}

/// The index of the device's GID that is an IPv4 address.
fn gid_index(context: &Context) -> Result<u32, String> {
    let found = context
        .gid_table()
        .iter()
        .find(|entry| entry.gid.subnet_prefix() == 0 && entry.gid.interface_id() >> 32 == 0xffff);
    found
        .map(|entry| entry.gid_index)
        .ok_or_else(|| "no GID of an IPv4 address".into())
}

/// Waits for `count` completions and returns their ids.
fn wait(queue: &CompletionQueue<'_>, count: usize) -> Result<Vec<u64>, String> {
    let end = Instant::now() + PATIENCE;
    let mut ids = Vec::new();
    let mut space = [ibverbs::ibv_wc::default(); DEPTH];
    while ids.len() < count {
        if Instant::now() > end {
            return Err(format!("{} of {count} completions in time", ids.len()));
        }
        for completion in queue.poll(&mut space).map_err(text)?.iter() {
            if let Some((status, vendor)) = completion.error() {
                return Err(format!(
                    "request {}: status {status}, {vendor}",
                    completion.wr_id()
                ));
            }
            ids.push(completion.wr_id());
        }
    }
    Ok(ids)
}

/// One end: a connected queue pair and its memory.
struct End<'a> {
    pair: QueuePair<'a>,
    memory: MemoryRegion<u8>,
}

/// Makes two queue pairs that are connected with each other.
fn connected<'a>(
    context: &Context,
    domain: &'a ProtectionDomain<'a>,
    queue: &'a CompletionQueue<'a>,
    octets: usize,
) -> Result<[End<'a>; 2], String> {
    let index = gid_index(context)?;
    let prepare = || {
        domain
            .create_qp(queue, queue, IBV_QPT_RC)
            .set_gid_index(index)
            .set_max_send_wr(DEPTH as u32)
            .set_max_recv_wr(DEPTH as u32)
            .build()
            .map_err(text)
    };
    let (one, other) = (prepare()?, prepare()?);
    let (here, there) = (one.endpoint(), other.endpoint());
    let end = |pair| {
        Ok::<_, String>(End {
            pair,
            memory: domain.allocate(octets).map_err(text)?,
        })
    };
    Ok([
        end(one.handshake(there).map_err(text)?)?,
        end(other.handshake(here).map_err(text)?)?,
    ])
}

/// A queue pair that is connected with itself, as in the crate's example.
fn itself(context: &Context) -> Outcome {
    let domain = context.alloc_pd().map_err(text)?;
    let queue = context.create_cq(DEPTH as i32, 0).map_err(text)?;
    let index = gid_index(context)?;
    let prepared = domain
        .create_qp(&queue, &queue, IBV_QPT_RC)
        .set_gid_index(index)
        .build();
    let prepared = prepared.map_err(text)?;
    let itself = prepared.endpoint();
    let mut pair = prepared.handshake(itself).map_err(text)?;
    let mut memory = domain.allocate::<u8>(2 * 64).map_err(text)?;
    fill(&mut memory[64..], 1);
    // SAFETY: the region lives longer than the requests, which are waited for.
    unsafe {
        pair.post_receive(&mut memory, ..64, 2).map_err(text)?;
        pair.post_send(&mut memory, 64.., 1).map_err(text)?;
    }
    wait(&queue, 2)?;
    check(&memory[..64], 1)
}

/// Messages of many lengths, in either direction in turn.
fn sizes(context: &Context) -> Outcome {
    const LENGTHS: [usize; 9] = [0, 1, 3, 64, 1447, 1448, 65_536, 65_537, 1 << 20];
    let domain = context.alloc_pd().map_err(text)?;
    let queue = context.create_cq(2 * DEPTH as i32, 0).map_err(text)?;
    let [mut from, mut to] = connected(context, &domain, &queue, 1 << 20)?;
    for (n, length) in LENGTHS.into_iter().enumerate() {
        fill(&mut from.memory[..length], n);
        to.memory.fill(0xee);
        // SAFETY: both regions live longer than the requests, which are waited for.
        unsafe {
            to.pair
                .post_receive(&mut to.memory, ..length, 1)
                .map_err(text)?;
            from.pair
                .post_send(&mut from.memory, ..length, 2)
                .map_err(text)?;
        }
        let mut ids = wait(&queue, 2)?;
        ids.sort();
        if ids != [1, 2] {
            return Err(format!("completions {ids:?}"));
        }
        check(&to.memory[..length], n)?;
        if to.memory[length..].iter().any(|octet| *octet != 0xee) {
            return Err(format!("more than {length} octets have been written"));
        }
        (from, to) = (to, from);
    }
    Ok(())
}

/// Many messages, with as many under way as fit; they arrive in order.
fn stream(context: &Context) -> Outcome {
    const COUNT: usize = 5000;
    const LENGTH: usize = 700;
    let domain = context.alloc_pd().map_err(text)?;
    let queue = context.create_cq(4 * DEPTH as i32, 0).map_err(text)?;
    let [mut from, mut to] = connected(context, &domain, &queue, DEPTH * LENGTH)?;
    let place = |n: usize| n % DEPTH * LENGTH..(n % DEPTH + 1) * LENGTH;
    let mut receives = VecDeque::new();
    let (mut posted, mut sent, mut received) = (0, 0, 0);
    while received < COUNT || sent < COUNT {
        // A place is free again when its message has been sent and has been received.
        while posted < COUNT && posted < DEPTH + sent.min(received) {
            fill(&mut from.memory[place(posted)], posted);
            // SAFETY: both regions live longer than the requests, which are waited for.
            unsafe {
                to.pair
                    .post_receive(&mut to.memory, place(posted), posted as u64)
                    .map_err(text)?;
                let id = (COUNT + posted) as u64;
                from.pair
                    .post_send(&mut from.memory, place(posted), id)
                    .map_err(text)?;
            }
            receives.push_back(posted as u64);
            posted += 1;
        }
        for id in wait(&queue, 1)? {
            if id >= COUNT as u64 {
                sent += 1;
                continue;
            }
            if receives.pop_front() != Some(id) {
                return Err(format!("receive {id} is out of order"));
            }
            check(&to.memory[place(received)], received)?;
            received += 1;
        }
    }
    Ok(())
}

/// Several threads, each with queue pairs of its own on a context that they share.
fn threads(context: &Context) -> Outcome {
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..4).map(|_| scope.spawn(|| stream(context))).collect();
        all.into_iter()
            .try_for_each(|one| one.join().unwrap_or_else(|_| Err("panic".into())))
    })
}

/// iWARP has neither datagrams nor unreliable connections: a program has to be told at once.
fn other_types(context: &Context) -> Outcome {
    let domain = context.alloc_pd().map_err(text)?;
    let queue = context.create_cq(DEPTH as i32, 0).map_err(text)?;
    for kind in [IBV_QPT_UC, IBV_QPT_UD] {
        match domain.create_qp(&queue, &queue, kind).build() {
            Ok(_) => return Err(format!("there is a queue pair of type {kind}")),
            Err(error) if error.raw_os_error() == Some(EOPNOTSUPP) => {}
            Err(error) => return Err(format!("type {kind}: {error}")),
        }
    }
    Ok(())
}

type Case = (&'static str, fn(&Context) -> Outcome);
const CASES: [Case; 5] = [
    ("itself", itself),
    ("sizes", sizes),
    ("stream", stream),
    ("threads", threads),
    ("other_types", other_types),
];

fn main() {
    let context = open();
    let mut failed = false;
    for (name, case) in CASES {
        match context.as_ref().map_err(String::clone).and_then(case) {
            Ok(()) => println!("ok {name}"),
            Err(why) => {
                println!("not ok {name}: {why}");
                failed = true;
            }
        }
    }
    std::process::exit(failed.into());
}
