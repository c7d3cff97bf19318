// SPDX-License-Identifier: GPL-2.0

//! Drives the verbs program guest/verbs/agent.c, which takes commands in lines.

use std::{
    collections::HashSet,
    io::{
        BufRead as _,
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
        mpsc,
        Arc,
        Condvar,
        Mutex,
        PoisonError, //
    },
    thread, //
};

use super::{
    soon,
    text,
    Failure,
    MEMORY_LEN, //
};

/// The connections that the program reported as established.
#[derive(Default)]
pub(super) struct Established {
    list: Mutex<HashSet<String>>,
    news: Condvar,
}

impl Established {
    /// Waits until this connection is established.
    pub(super) fn wait(&self, connection: &str) -> Result<(), Failure> {
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let (_list, waited) = self
            .news
            .wait_timeout_while(list, soon(), |list| !list.remove(connection))
            .unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return Err("the device does not take a right Reply".into());
        }
        Ok(())
    }

    fn add(&self, connection: &str) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.insert(connection.into());
        self.news.notify_all();
    }
}

/// The program.
pub(super) struct Agent {
    process: Child,
    input: ChildStdin,
    /// Its answers, without its events.
    answers: mpsc::Receiver<String>,
    established: Arc<Established>,
}

impl Agent {
    pub(super) fn start(program: &str, address: &str) -> Result<Self, Failure> {
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
        let established = Arc::new(Established::default());
        let told = established.clone();
        // Reads all the time, since the program blocks when the pipe is full.
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                match line.strip_prefix("! established ") {
                    Some(words) => told.add(words.split(' ').next().unwrap_or_default()),
                    None if line.starts_with("! ") && line != "! full" => {}
                    None => {
                        if sender.send(line).is_err() {
                            return;
                        }
                    }
                }
            }
        });
        let this = Self {
            process,
            input,
            answers,
            established,
        };
        this.answer()?;
        Ok(this)
    }

    pub(super) fn ask(&mut self, command: &str) -> Result<String, Failure> {
        writeln!(self.input, "{command}").map_err(text)?;
        self.answer()
            .map_err(|why| format!("verbs program, '{command}': {why}"))
    }

    fn answer(&self) -> Result<String, Failure> {
        match self.answers.recv_timeout(soon()) {
            Err(error) => Err(error.to_string()),
            Ok(line) => match line.strip_prefix("= ") {
                Some(answer) => Ok(answer.into()),
                None => Err(line),
            },
        }
    }

    /// Returns the connections that it reported.
    pub(super) fn established(&self) -> Arc<Established> {
        self.established.clone()
    }

    /// Registers memory with every right; returns its number, and STag, base and length.
    pub(super) fn region(&mut self) -> Result<(String, (u32, u64, u32)), Failure> {
        let answer = self.ask(&format!("mr {MEMORY_LEN} 15 0"))?;
        let words: Vec<_> = answer.split(' ').collect();
        let [number, base, key] = words[..] else {
            return Err(format!("mr: {answer}"));
        };
        let (Ok(base), Ok(key)) = (base.parse(), key.parse()) else {
            return Err(format!("mr: {answer}"));
        };
        Ok((number.into(), (key, base, MEMORY_LEN)))
    }

    /// Ends the program and its objects.
    pub(super) fn quit(mut self) -> Result<(), Failure> {
        writeln!(self.input, "quit").map_err(text)?;
        let status = self.process.wait().map_err(text)?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("the verbs program has ended with {status}"))
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // After `quit` the process has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
