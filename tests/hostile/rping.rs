// SPDX-License-Identifier: GPL-2.0

//! rping over the device under test, which has to serve others whatever it is sent.
//!
//! One server stays all the time; each look at the device is a client of it.

use std::{
    process::{
        Child,
        Command,
        Stdio, //
    },
    sync::atomic::{
        AtomicUsize,
        Ordering, //
    },
    thread,
    time::{
        Duration,
        Instant, //
    },
};

use crate::wire::{
    fail,
    Outcome, //
};

/// How long a server may take before it answers.
const START: Duration = Duration::from_secs(60);

/// What is the same for server and client: so many octets go each way, and are compared.
const COMMON: [&str; 3] = ["-S", "1000", "-V"];

/// A server, and how many connections it was seen to have.
pub(crate) struct Rping {
    program: String,
    address: String,
    port: String,
    server: Child,
    made: AtomicUsize,
}

impl Rping {
    /// Starts the server on a port of its own, and waits until a client has been served. `program` is rping where
    /// the device is.
    pub(crate) fn begin(program: &str, address: &str, port: u16) -> Outcome<Self> {
        let port = port.to_string();
        let server = Command::new(program)
            .args(["-s", "-P", "-a", address, "-p", &port])
            .args(COMMON)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let this = Self {
            program: program.into(),
            address: address.into(),
            port,
            server,
            made: AtomicUsize::new(0),
        };
        let begun = Instant::now();
        while let Err(why) = this.connects() {
            if begun.elapsed() > START {
                return Err(why);
            }
            thread::sleep(Duration::from_millis(100));
        }
        Ok(this)
    }

    /// Makes a connection over the device, and compares what comes back.
    pub(crate) fn connects(&self) -> Outcome {
        let output = Command::new(&self.program)
            .args(["-c", "-C", "3", "-a", &self.address, "-p", &self.port])
            .args(COMMON)
            .output()?;
        if !output.status.success() {
            fail!(
                "rping: {}: {}",
                output.status,
                String::from_utf8_lossy(&[output.stdout, output.stderr].concat())
                    .trim()
                    .replace('\n', "; ")
            );
        }
        self.made.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// How many connections there were.
    pub(crate) fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }
}

impl Drop for Rping {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
