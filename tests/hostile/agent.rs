// SPDX-License-Identifier: GPL-2.0

//! Drives the verbs program `agent` (guest/verbs/agent.c): sends commands and waits for events.

use std::{
    io::{
        BufRead,
        BufReader,
        Write as _, //
    },
    process::{
        Child,
        ChildStdin,
        Command,
        Stdio, //
    },
    sync::{
        mpsc::{
            channel,
            Receiver,
            Sender, //
        },
        Arc,
        Condvar,
        Mutex,
        PoisonError, //
    },
    thread,
    time::{
        Duration,
        Instant, //
    }, //
};

use crate::{
    frame::hex,
    wire::{
        fail,
        quiet,
        require,
        soon, //
        Failure,
        Outcome,
    }, //
};

/// Access rights.
pub(crate) mod access {
    pub(crate) const LOCAL_WRITE: u32 = 1;
    pub(crate) const REMOTE_WRITE: u32 = 2;
    pub(crate) const REMOTE_READ: u32 = 4;
    pub(crate) const REMOTE_ATOMIC: u32 = 8;
    pub(crate) const ALL: u32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;
}

/// An event, in words.
pub(crate) type Event = Vec<String>;

#[derive(Default)]
struct Events {
    list: Mutex<Vec<Event>>,
    news: Condvar,
}

/// Memory of the program that peers can access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    number: u32,
    /// The address of its first octet, which is also its first tagged offset.
    pub(crate) at: u64,
    pub(crate) key: u32,
    pub(crate) len: u64,
}

impl Region {
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Returns the first tagged offset behind it.
    pub(crate) fn end(&self) -> u64 {
        self.at + self.len
    }
}

pub(crate) struct Agent {
    process: Child,
    input: ChildStdin,
    answers: Receiver<String>,
    events: Arc<Events>,
}

impl Agent {
    pub(crate) fn start(program: &str, address: &str) -> Outcome<Self> {
        let mut process = Command::new(program)
            .arg(address)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            fail!("no pipes to {program}");
        };
        let events = Arc::new(Events::default());
        let (sender, answers) = channel();
        let told = events.clone();
        thread::spawn(move || listen(BufReader::new(output), &sender, &told));
        let this = Self {
            process,
            input,
            answers,
            events,
        };
        this.answer()?;
        Ok(this)
    }

    /// Returns the number of its process.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    fn answer(&self) -> Outcome<String> {
        self.answers
            .recv_timeout(soon())
            .map_err(|_| Failure("the verbs program does not answer".into()))
    }

    /// Runs a command; returns the answer.
    pub(crate) fn ask(&mut self, command: &str) -> Outcome<String> {
        let answer = self.try_ask(command)?;
        match answer.strip_prefix("= ") {
            Some(answer) => Ok(answer.into()),
            None => fail!("'{command}': {answer}"),
        }
    }

    /// Runs a command; returns the answer with its mark.
    pub(crate) fn try_ask(&mut self, command: &str) -> Outcome<String> {
        writeln!(self.input, "{command}")?;
        self.answer()
    }

    /// Runs a command; returns the answer as numbers.
    pub(crate) fn numbers<const N: usize>(&mut self, command: &str) -> Outcome<[u64; N]> {
        let answer = self.ask(command)?;
        let numbers: Option<Vec<u64>> = answer.split(' ').map(|word| word.parse().ok()).collect();
        match numbers.and_then(|numbers| numbers.try_into().ok()) {
            Some(numbers) => Ok(numbers),
            None => fail!("'{command}': {answer}"),
        }
    }

    /// Sets what applies to new connections.
    pub(crate) fn set(&mut self, settings: &[(&str, u32)]) -> Outcome {
        for (name, value) in settings {
            self.ask(&format!("set {name} {value}"))?;
        }
        Ok(())
    }

    /// Sets the private data of start-up frames.
    pub(crate) fn data(&mut self, octets: &[u8]) -> Outcome {
        self.ask(&format!("data {}", hex(octets))).map(drop)
    }

    /// Connects; returns the connection.
    pub(crate) fn connect(&mut self, address: &str, port: u16) -> Outcome<u32> {
        let [conn] = self.numbers(&format!("connect {address} {port}"))?;
        Ok(conn as u32)
    }

    /// Returns the number of a queue pair's state.
    pub(crate) fn state(&mut self, conn: u32) -> Outcome<u64> {
        let [state] = self.numbers(&format!("state {conn}"))?;
        Ok(state)
    }

    // Memory.

    /// Registers memory in one of two protection domains.
    pub(crate) fn region(&mut self, len: u64, rights: u32, pd: u32) -> Outcome<Region> {
        let [number, at, key] = self.numbers(&format!("mr {len} {rights} {pd}"))?;
        Ok(Region {
            number: number as u32,
            at,
            key: key as u32,
            len,
        })
    }

    pub(crate) fn fill(&mut self, region: &Region, octet: u8) -> Outcome {
        self.ask(&format!("fill {} {octet}", region.number))
            .map(drop)
    }

    pub(crate) fn poke(&mut self, region: &Region, offset: usize, octets: &[u8]) -> Outcome {
        for (i, piece) in octets.chunks(500).enumerate() {
            let at = offset + 500 * i;
            self.ask(&format!("poke {} {at} {}", region.number, hex(piece)))?;
        }
        Ok(())
    }

    pub(crate) fn peek(&mut self, region: &Region, offset: usize, len: usize) -> Outcome<Vec<u8>> {
        let mut octets = Vec::new();
        while octets.len() < len {
            let at = offset + octets.len();
            let step = (len - octets.len()).min(4096);
            let text = self.ask(&format!("peek {} {at} {step}", region.number))?;
            octets.extend(unhex(&text));
        }
        Ok(octets)
    }

    /// Checks that all of the region still holds this octet.
    pub(crate) fn holds(&mut self, region: &Region, octet: u8) -> Outcome {
        let at = self.ask(&format!("odd {} {octet}", region.number))?;
        require!(at == "-1", "memory was written to at {at}");
        Ok(())
    }

    // Events. A wait removes its event.

    fn take_event(&self, pattern: &str, limit: Duration) -> Option<Event> {
        let begun = Instant::now();
        let mut list = lock(&self.events.list);
        loop {
            if let Some(i) = list.iter().position(|event| matches(event, pattern)) {
                return Some(list.remove(i));
            }
            let left = limit.checked_sub(begun.elapsed())?;
            list = self
                .events
                .news
                .wait_timeout(list, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Waits for the first event that begins with these words; `*` matches any word.
    pub(crate) fn wait(&self, pattern: &str) -> Outcome<Event> {
        if let Some(event) = self.take_event(pattern, soon()) {
            return Ok(event);
        }
        let list = lock(&self.events.list);
        let told: Vec<String> = list.iter().rev().take(8).map(|e| e.join(" ")).collect();
        fail!(
            "no event '{pattern}'; there were, latest first: {}",
            told.join("; ")
        )
    }

    /// Returns the first such event, which has already arrived.
    pub(crate) fn now(&self, pattern: &str) -> Outcome<Event> {
        self.take_event(pattern, Duration::ZERO)
            .ok_or_else(|| Failure(format!("no event '{pattern}' yet")))
    }

    /// Checks that no such event comes for a while.
    pub(crate) fn none(&self, pattern: &str) -> Outcome {
        match self.take_event(pattern, quiet()) {
            Some(event) => fail!("unexpected event: {}", event.join(" ")),
            None => Ok(()),
        }
    }

    /// Checks that no such event has come.
    pub(crate) fn none_yet(&self, pattern: &str) -> Outcome {
        match self.take_event(pattern, Duration::ZERO) {
            Some(event) => fail!("unexpected event: {}", event.join(" ")),
            None => Ok(()),
        }
    }

    pub(crate) fn forget(&self) {
        lock(&self.events.list).clear();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = writeln!(self.input, "quit");
        let begun = Instant::now();
        while begun.elapsed() < soon() {
            if matches!(self.process.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn listen(output: impl BufRead, answers: &Sender<String>, events: &Events) {
    for line in output.lines().map_while(Result::ok) {
        match line.strip_prefix("! ") {
            Some(event) => {
                lock(&events.list).push(event.split(' ').map(Into::into).collect());
                events.news.notify_all();
            }
            None => {
                if answers.send(line).is_err() {
                    return;
                }
            }
        }
    }
    let _ = answers.send("- the verbs program has ended".into());
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn matches(event: &Event, pattern: &str) -> bool {
    let mut words = event.iter();
    pattern
        .split(' ')
        .all(|want| words.next().is_some_and(|word| want == "*" || want == word))
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2)
        .filter_map(|i| u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok())
        .collect()
}
