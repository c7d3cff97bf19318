// SPDX-License-Identifier: GPL-2.0

//! rping over the device under test, which must serve other peers whatever a peer sends.
//!
//! One server runs all the time; each check runs a client.

use std::{
    io::Read as _,
    process::{
        Child,
        Command,
        Stdio, //
    },
    thread,
    time::{
        Duration,
        Instant, //
    }, //
};

use crate::wire::{
    fail,
    Outcome, //
};

/// The time limit for a server to start, and for a client to be served, in a slow environment.
const LIMIT: Duration = Duration::from_secs(60);

/// A server.
pub(crate) struct Rping {
    /// The command that runs a program on the device.
    there: String,
    address: String,
    port: String,
    server: Child,
}

impl Rping {
    /// Starts the server on its own port, and waits until it has served a client. `there` runs the
    /// program that it is called with on the device, as the same process.
    pub(crate) fn begin(there: &str, address: &str, port: u16) -> Outcome<Self> {
        let port = port.to_string();
        let server = rping(there, address, &port)
            .args(["-s", "-P"])
            .stderr(Stdio::null())
            .spawn()?;
        let this = Self {
            there: there.into(),
            address: address.into(),
            port,
            server,
        };
        let begun = Instant::now();
        while let Err(why) = this.connects() {
            if begun.elapsed() > LIMIT {
                return Err(why);
            }
            thread::sleep(Duration::from_millis(100));
        }
        Ok(this)
    }

    /// Connects over the device and compares the octets that return.
    pub(crate) fn connects(&self) -> Outcome {
        let mut client = rping(&self.there, &self.address, &self.port)
            .args(["-c", "-C", "3"])
            .stderr(Stdio::piped())
            .spawn()?;
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = client.try_wait()? {
                break status;
            }
            if begun.elapsed() > LIMIT {
                client.kill()?;
                client.wait()?;
                fail!("rping: not done after {LIMIT:?}");
            }
            thread::sleep(Duration::from_millis(5));
        };
        if !status.success() {
            let mut words = String::new();
            if let Some(mut pipe) = client.stderr {
                pipe.read_to_string(&mut words)?;
            }
            fail!("rping: {status}: {}", words.trim().replace('\n', "; "));
        }
        Ok(())
    }
}

impl Drop for Rping {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Returns the arguments common to server and client: 1000 octets go each way and are compared.
fn rping(there: &str, address: &str, port: &str) -> Command {
    let mut words = there.split_whitespace().chain(["rping"]);
    let mut command = Command::new(words.next().unwrap_or_default());
    command
        .args(words)
        .args(["-a", address, "-p", port, "-S", "1000", "-V"])
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}
