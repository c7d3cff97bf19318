// SPDX-License-Identifier: GPL-2.0

//! A peer on a plain TCP socket that speaks iWARP, valid and invalid, to a verbs program on the
//! device under test.
//!
//! usage: hostile --list
//!        hostile DEVICE_ADDRESS OWN_ADDRESS PORT [CASE|GROUP...]
//!
//! AGENT, SETTING, SOCKET and THERE in the environment are commands; see [`bench::Place`]. WORKERS
//! is the number of verbs programs that run at a time. STARVABLE says that the device has a setting
//! `starved`: 1 makes the next allocation of its driver fail. SEGMENTS_ARE_CUT says that a segment
//! of TCP's may arrive as several.
//!
//! Prints `ok NAME` or `not ok NAME: why` for each case. `--list` prints each case's group, name
//! and requirements: RDMAP-n (RFC 5040), DDP-n (RFC 5041), MPA-n (RFC 5044 and RFC 6581), EXT-n
//! (RFC 7306).

mod agent;
mod bench;
mod cases;
mod frame;
mod rping;
mod wire;

use std::{
    collections::HashSet,
    env,
    panic::{
        catch_unwind,
        AssertUnwindSafe, //
    },
    process::ExitCode,
    sync::{
        atomic::{
            AtomicBool,
            AtomicUsize,
            Ordering, //
        },
        RwLock, //
    },
    thread,
    time::Instant, //
};

use bench::{
    Bench,
    Place, //
};
use cases::{
    Case,
    Schedule, //
};
use rping::Rping;
use wire::{
    fail,
    Failure,
    Outcome, //
};

/// The number of ports that one worker uses.
const PORTS: u16 = 10;

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    match &args[..] {
        [option] if option == "--list" => {
            list();
            ExitCode::SUCCESS
        }
        [device, own, port, wanted @ ..] => match place(device, own, port) {
            Ok(place) => run(&place, wanted),
            Err(why) => {
                println!("not ok hostile: {why}");
                ExitCode::FAILURE
            }
        },
        _ => {
            eprintln!(
                "usage: hostile --list | hostile DEVICE_ADDRESS OWN_ADDRESS PORT [CASE|GROUP...]"
            );
            ExitCode::FAILURE
        }
    }
}

fn list() {
    for group in cases::all() {
        for case in &group.cases {
            println!("{} {} {}", group.name, case.name, case.rows);
        }
    }
}

fn place(device: &str, own: &str, port: &str) -> Outcome<Place> {
    let program = |name| env::var(name).map_err(|_| Failure(format!("{name} is not set")));
    Ok(Place {
        device: device.into(),
        own: own.into(),
        port: port
            .parse()
            .map_err(|_| Failure(format!("{port} is no port")))?,
        agent: program("AGENT")?,
        setting: program("SETTING")?,
        socket: program("SOCKET")?,
        there: program("THERE")?,
    })
}

/// The cases to run, and their results.
struct Session<'a> {
    place: &'a Place,
    cases: Vec<Case>,
    next: AtomicUsize,
    /// A case that changes a setting of the device holds this for writing.
    device: RwLock<()>,
    failed: AtomicBool,
    /// Connects after each case.
    rping: Rping,
}

fn run(place: &Place, wanted: &[String]) -> ExitCode {
    let mut groups = cases::all();
    let names: Vec<&str> = groups
        .iter()
        .flat_map(|group| group.cases.iter().map(|case| &*case.name))
        .collect();
    let distinct: HashSet<&str> = names.iter().copied().collect();
    if distinct.len() != names.len() {
        println!("not ok hostile: two cases have the same name");
        return ExitCode::FAILURE;
    }
    for name in wanted {
        if !names.contains(&name.as_str()) && !groups.iter().any(|group| group.name == name) {
            println!("not ok hostile: there is no case or group {name}");
            return ExitCode::FAILURE;
        }
    }
    if env::var_os("STARVABLE").is_none() {
        if wanted.is_empty() {
            println!("skip memory: no fault injection");
        }
        groups.retain(|group| group.name != "memory");
    }
    if wanted.is_empty() {
        groups.retain(|group| group.name != cases::UNKNOWN);
    } else {
        for group in &mut groups {
            if !wanted.contains(&group.name.to_string()) {
                group.cases.retain(|case| wanted.contains(&case.name));
            }
        }
    }
    let workers = env::var("WORKERS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(4);
    let rping = match Rping::begin(&place.there, &place.device, place.port + PORTS * workers) {
        Ok(rping) => rping,
        Err(why) => {
            println!("not ok hostile: before the first case: {why}");
            return ExitCode::FAILURE;
        }
    };
    let session = Session {
        place,
        cases: groups.into_iter().flat_map(|group| group.cases).collect(),
        next: AtomicUsize::new(0),
        device: RwLock::new(()),
        failed: AtomicBool::new(false),
        rping,
    };
    thread::scope(|scope| {
        for worker in 0..workers {
            let session = &session;
            scope.spawn(move || session.work(place.port + PORTS * worker));
        }
    });
    if session.failed.into_inner() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

impl Session<'_> {
    fn next(&self) -> Option<&Case> {
        self.cases.get(self.next.fetch_add(1, Ordering::Relaxed))
    }

    fn work(&self, port: u16) {
        let mut bench = None;
        while let Some(case) = self.next() {
            let result = self.run_case(&mut bench, port, case);
            self.report(&case.name, result);
        }
    }

    /// Runs a case; replaces a bench that does not work afterwards.
    fn run_case<'b>(&'b self, bench: &mut Option<Bench<'b>>, port: u16, case: &Case) -> Outcome {
        let (_shared, _own) = match case.alone {
            Schedule::Parallel => (self.device.read().ok(), None),
            Schedule::Exclusive => (None, self.device.write().ok()),
        };
        if bench.is_none() {
            *bench = Some(Bench::begin(self.place, port)?);
        }
        let Some(at_work) = bench else {
            fail!("no bench");
        };
        at_work.is_alone = case.alone == Schedule::Exclusive;
        let begun = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| (case.run)(at_work)))
            .unwrap_or_else(|_| Err(Failure("panicked".into())));
        let after = at_work
            .end_case()
            .map_err(|why| Failure(format!("after the case: {why}")));
        if after.is_err() {
            *bench = None;
        }
        let pinged = self
            .rping
            .connects()
            .map_err(|why| Failure(format!("after the case: {why}")));
        let took = begun.elapsed();
        if took.as_secs() >= 5 {
            println!("# {} took {:.1} s", case.name, took.as_secs_f32());
        }
        result.and(after).and(pinged)
    }

    fn report(&self, name: &str, result: Outcome) {
        match result {
            Ok(()) => println!("ok {name}"),
            Err(why) => {
                self.failed.store(true, Ordering::Relaxed);
                println!("not ok {name}: {why}");
            }
        }
    }
}
