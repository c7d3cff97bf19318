// SPDX-License-Identifier: GPL-2.0

//! One TCP connection to the device, from either end: it sends any octets, and checks strictly what
//! the device sends.

use std::{
    fmt,
    fs::OpenOptions,
    io::{
        ErrorKind,
        Read as _,
        Write as _, //
    },
    net::{
        Shutdown,
        TcpStream, //
    },
    os::fd::OwnedFd,
    process::{
        Command,
        Stdio, //
    },
    sync::OnceLock,
    thread::sleep,
    time::{
        Duration,
        Instant, //
    }, //
};

use crate::frame::{
    crc32c,
    flag,
    fpdus,
    hex,
    op,
    read,
    response,
    Code,
    Got,
    Segment,
    Start,
    REPLY_KEY, //
};

/// Why a case fails.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) String);

pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `fail!("format", ...)`: ends the case.
macro_rules! fail {
    ($($why:tt)*) => {
        return Err($crate::wire::Failure(format!($($why)*)))
    };
}

/// `require!(condition, "format", ...)`: ends the case unless the condition holds.
macro_rules! require {
    ($condition:expr, $($why:tt)*) => {
        if !$condition {
            $crate::wire::fail!($($why)*);
        }
    };
}
pub(crate) use {fail, require};

/// Returns how long to wait for an expected event.
pub(crate) fn soon() -> Duration {
    Duration::from_secs(15) * slow()
}

/// Returns how long to wait before concluding that nothing comes, where no answer can show it.
pub(crate) fn quiet() -> Duration {
    Duration::from_millis(80) * slow()
}

/// Returns SLOW of the environment, the factor by which the device is slower than in the stock
/// kernel.
fn slow() -> u32 {
    static SLOW: OnceLock<u32> = OnceLock::new();
    *SLOW.get_or_init(|| {
        let slow = std::env::var("SLOW").ok();
        slow.and_then(|text| text.parse().ok()).unwrap_or(1)
    })
}

/// Whether a stream may end with a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// FIN.
    Graceful,
    /// FIN or RST.
    Any,
}

/// The next input.
enum Next {
    Octets,
    Fin,
    Reset,
    Nothing,
}

pub(crate) struct Wire {
    socket: TcpStream,
    /// Octets received but not yet parsed.
    pending: Vec<u8>,
    /// The connection's number in the verbs program.
    pub(crate) conn: u32,
    /// The start-up frame of the device.
    pub(crate) peer: Option<Start>,
    /// Whether CRCs are in use.
    pub(crate) crc: bool,
    /// Whether the device has to insert Markers.
    pub(crate) markers: bool,
    /// A pause before each read, for a slow reader.
    pub(crate) pace: Duration,
    /// The numbers of the Sends and Read Requests that [`Self::next_send`] and
    /// [`Self::next_read`] have given out.
    sends: u32,
    reads: u32,
    /// Octets of the device's stream of FPDUs.
    received: usize,
    /// The program for socket operations that the standard library lacks.
    helper: String,
}

impl Wire {
    pub(crate) fn new(socket: TcpStream, helper: &str) -> Outcome<Self> {
        socket.set_nodelay(true)?;
        Ok(Self {
            socket,
            pending: Vec::new(),
            conn: u32::MAX,
            peer: None,
            crc: true,
            markers: false,
            pace: Duration::ZERO,
            sends: 0,
            reads: 0,
            received: 0,
            helper: helper.into(),
        })
    }

    pub(crate) fn next_send(&mut self) -> u32 {
        self.sends += 1;
        self.sends
    }

    pub(crate) fn next_read(&mut self) -> u32 {
        self.reads += 1;
        self.reads
    }

    // Output.

    pub(crate) fn put(&mut self, octets: &[u8]) -> Outcome {
        self.socket.set_write_timeout(Some(soon()))?;
        Ok(self.socket.write_all(octets)?)
    }

    /// Sends each octet by itself.
    pub(crate) fn trickle(&mut self, octets: &[u8]) -> Outcome {
        octets.iter().try_for_each(|octet| self.put(&[*octet]))
    }

    /// Sends FPDUs in one piece.
    pub(crate) fn send(&mut self, segments: &[Segment]) -> Outcome {
        self.put(&fpdus(segments))
    }

    /// Returns another handle of the same connection, to send octets from another thread.
    pub(crate) fn another(&self) -> Outcome<Self> {
        Self::new(self.socket.try_clone()?, &self.helper)
    }

    /// Sends octets until `stop` or until the other end takes no more.
    pub(crate) fn flood(&self, octets: &[u8], stop: &std::sync::atomic::AtomicBool) {
        while !stop.load(std::sync::atomic::Ordering::Relaxed)
            && (&self.socket).write_all(octets).is_ok()
        {}
    }

    /// Sends these octets again and again until the other end takes no more for a while; returns
    /// how many TCP has taken, or an error beyond `limit`.
    pub(crate) fn stuff(&self, octets: &[u8], limit: usize) -> Outcome<usize> {
        self.socket.set_write_timeout(Some(quiet()))?;
        let mut taken = 0;
        loop {
            match (&self.socket).write(&octets[taken % octets.len()..]) {
                Ok(len) => taken += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(taken),
                Err(error) => return Err(error.into()),
            }
            require!(taken <= limit, "{taken} octets are taken");
        }
    }

    /// Closes this side's half.
    pub(crate) fn half_close(&self) -> Outcome {
        Ok(self.socket.shutdown(Shutdown::Write)?)
    }

    /// Resets the connection.
    pub(crate) fn reset(self) -> Outcome {
        self.help(&["reset"])
    }

    /// Limits the receive window to this many octets.
    pub(crate) fn window(&self, octets: usize) -> Outcome {
        self.help(&["window", &octets.to_string()])
    }

    /// Gives the connection up if the device's TCP does not answer for so long, two seconds at
    /// least, while nothing is sent.
    pub(crate) fn keepalive(&self, limit: Duration) -> Outcome {
        self.help(&["keepalive", &limit.as_millis().to_string()])
    }

    /// Gives the connection up if the device's TCP takes nothing for so long (TCP_USER_TIMEOUT).
    pub(crate) fn patience(&self, limit: Duration) -> Outcome {
        self.help(&["patience", &limit.as_millis().to_string()])
    }

    /// Waits until this side's TCP has given the connection up.
    pub(crate) fn gives_up(&self) -> Outcome {
        let end = Instant::now() + soon();
        loop {
            if let Some(error) = self.socket.take_error()? {
                require!(error.kind() == ErrorKind::TimedOut, "{error}");
                return Ok(());
            }
            require!(Instant::now() < end, "the connection is there");
            sleep(Duration::from_millis(20));
        }
    }

    /// Sends octets of which the last one is urgent.
    pub(crate) fn urgent(&self, octets: &[u8]) -> Outcome {
        self.help(&["urgent", &hex(octets)])
    }

    /// Sends octets that this side's TCP does not count: its next octets repeat as many of them.
    pub(crate) fn extra(&self, octets: &[u8]) -> Outcome {
        self.help(&["extra", &hex(octets)])
    }

    fn help(&self, args: &[&str]) -> Outcome {
        let socket = OwnedFd::from(self.socket.try_clone()?);
        let output = Command::new(&self.helper)
            .args(args)
            .stdin(Stdio::from(socket))
            .output()?;
        require!(
            output.status.success(),
            "socket {args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    // Input.

    fn fill(&mut self, wait: Duration) -> Outcome<Next> {
        sleep(self.pace);
        self.socket
            .set_read_timeout(Some(wait.max(Duration::from_millis(1))))?;
        let mut octets = vec![0; 1 << 16];
        match self.socket.read(&mut octets) {
            Ok(0) => Ok(Next::Fin),
            Ok(len) => {
                self.pending.extend(&octets[..len]);
                Ok(Next::Octets)
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {
                    Ok(Next::Nothing)
                }
                ErrorKind::ConnectionReset => Ok(Next::Reset),
                _ => Err(error.into()),
            },
        }
    }

    /// Returns the number of octets of FPDUs parsed so far.
    pub(crate) fn received(&self) -> u64 {
        self.received as u64
    }

    /// Returns the ports of the device and of this end.
    pub(crate) fn ports(&self) -> Outcome<(u16, u16)> {
        let (theirs, ours) = (self.socket.peer_addr()?, self.socket.local_addr()?);
        Ok((theirs.port(), ours.port()))
    }

    /// Takes exactly that many octets.
    pub(crate) fn take(&mut self, count: usize) -> Outcome<Vec<u8>> {
        let begun = Instant::now();
        while self.pending.len() < count {
            let what = match self.fill(soon().saturating_sub(begun.elapsed()))? {
                Next::Octets => continue,
                Next::Nothing if begun.elapsed() < soon() => continue,
                Next::Nothing => "nothing more comes",
                Next::Fin => "end of stream",
                Next::Reset => "reset",
            };
            fail!(
                "{what} with {} of {count} octets: {}",
                self.pending.len(),
                hex(&self.pending[..self.pending.len().min(60)])
            );
        }
        let rest = self.pending.split_off(count);
        Ok(std::mem::replace(&mut self.pending, rest))
    }

    /// Checks that the device has nothing to send by itself: two Reads of no octets are answered,
    /// and nothing comes before the answers. One Read could be answered before a waiting message,
    /// since requests and answers take turns. For streams whose peer may begin a message now.
    pub(crate) fn nothing_waits(&mut self) -> Outcome {
        for _ in 0..2 {
            let msn = self.next_read();
            self.send(&[read(msn, 0, 0, 0)])?;
            self.expect(&response(&[]))?;
        }
        Ok(())
    }

    /// Checks that nothing comes for a while. Where the stream allows, [`Self::nothing_waits`]
    /// checks the same without a wait.
    pub(crate) fn silent(&mut self) -> Outcome {
        let next = if self.pending.is_empty() {
            self.fill(quiet())?
        } else {
            Next::Octets
        };
        match next {
            Next::Nothing => Ok(()),
            Next::Octets => fail!(
                "unexpected octets: {}",
                hex(&self.pending[..self.pending.len().min(80)])
            ),
            Next::Fin => fail!("unexpected end of stream"),
            Next::Reset => fail!("unexpected reset"),
        }
    }

    /// Checks that the stream ends here, within some time.
    pub(crate) fn ends_within(&mut self, end: End, limit: Duration) -> Outcome {
        let begun = Instant::now();
        loop {
            require!(
                self.pending.is_empty(),
                "octets before the end: {}",
                hex(&self.pending[..self.pending.len().min(80)])
            );
            let left = limit.saturating_sub(begun.elapsed());
            match self.fill(left)? {
                Next::Fin => return Ok(()),
                Next::Reset if end == End::Any => return Ok(()),
                Next::Reset => fail!("reset instead of a graceful end"),
                Next::Nothing if begun.elapsed() >= limit => fail!("the connection stays open"),
                Next::Nothing | Next::Octets => {}
            }
        }
    }

    pub(crate) fn ends(&mut self, end: End) -> Outcome {
        self.ends_within(end, soon())
    }

    /// Discards input until the stream ends in any way.
    pub(crate) fn drain(&mut self) -> Outcome {
        let begun = Instant::now();
        while begun.elapsed() < soon() {
            self.pending.clear();
            match self.fill(soon().saturating_sub(begun.elapsed())) {
                Ok(Next::Fin | Next::Reset) | Err(_) => return Ok(()),
                Ok(Next::Octets | Next::Nothing) => {}
            }
        }
        fail!("the connection stays open")
    }

    // Start-up.

    /// Takes a start-up frame of the device.
    pub(crate) fn start_frame(&mut self) -> Outcome<Start> {
        let head = self.take(20)?;
        let length = u16::from_be_bytes([head[18], head[19]]);
        require!(length <= 512, "{length} octets of private data announced");
        let mut key = [0; 16];
        key.copy_from_slice(&head[..16]);
        Ok(Start {
            key,
            flags: head[16],
            rev: head[17],
            length,
            data: self.take(length.into())?,
        })
    }

    /// Does a whole start-up as the Initiator; returns the Reply.
    pub(crate) fn start(&mut self, request: &Start) -> Outcome<Start> {
        self.put(&request.octets())?;
        let reply = self.start_frame()?;
        require!(&reply.key == REPLY_KEY, "Reply with key {:?}", reply.key);
        require!(reply.flags & flag::REJECT == 0, "rejected");
        self.agreed(request, &reply);
        self.peer = Some(reply.clone());
        Ok(reply)
    }

    /// Applies what two start-up frames agree on.
    pub(crate) fn agreed(&mut self, ours: &Start, theirs: &Start) {
        self.crc = (ours.flags | theirs.flags) & flag::CRC != 0;
        self.markers = ours.flags & flag::MARKERS != 0;
    }

    // FPDUs.

    /// Takes that many octets of an FPDU that began at `begin`; checks and removes Markers, and
    /// adds all octets to `covered`.
    fn part(&mut self, count: usize, begin: usize, covered: &mut Vec<u8>) -> Outcome<Vec<u8>> {
        let mut octets = Vec::new();
        while octets.len() < count {
            let mut step = count - octets.len();
            if self.markers {
                if self.received % 512 == 0 {
                    let marker = self.take(4)?;
                    // RFC 5044, section 4.3: 0 where the Marker comes right before the FPDU.
                    let back = self.received - begin;
                    let want = [0, 0, (back >> 8) as u8, back as u8];
                    require!(
                        marker == want,
                        "Marker {} instead of {}",
                        hex(&marker),
                        hex(&want)
                    );
                    self.received += 4;
                    covered.extend(marker);
                    continue;
                }
                step = step.min(512 - self.received % 512);
            }
            let piece = self.take(step)?;
            self.received += step;
            covered.extend(&piece);
            octets.extend(piece);
        }
        Ok(octets)
    }

    /// Takes the next FPDU's segment; checks length, pad, Markers, CRC and control octets.
    pub(crate) fn get(&mut self) -> Outcome<Got> {
        let mut covered = Vec::new();
        // A Marker right before the FPDU does not count as part of it.
        let begin = self.received
            + if self.markers && self.received % 512 == 0 {
                4
            } else {
                0
            };
        let first_marker = begin - self.received;
        let length = if first_marker == 0 {
            self.part(2, begin, &mut covered)?
        } else {
            let marker = self.take(4)?;
            require!(marker == [0; 4], "first Marker {}", hex(&marker));
            self.received += 4;
            covered.extend(marker);
            self.part(2, begin, &mut covered)?
        };
        let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
        let ulpdu = self.part(length, begin, &mut covered)?;
        let pad = self.part(
            (2 + length).next_multiple_of(4) - 2 - length,
            begin,
            &mut covered,
        )?;
        require!(pad.iter().all(|octet| *octet == 0), "pad {}", hex(&pad));
        if self.markers && self.received % 512 == 0 {
            // A Marker between pad and CRC is covered too.
            let back = self.received - begin;
            let marker = self.take(4)?;
            require!(
                marker == [0, 0, (back >> 8) as u8, back as u8],
                "Marker {} before a CRC",
                hex(&marker)
            );
            self.received += 4;
            covered.extend(marker);
        }
        let want = crc32c(&covered).to_le_bytes();
        let crc = self.part(4, begin, &mut covered)?;
        require!(
            !self.crc || crc == want,
            "CRC {} instead of {}",
            hex(&crc),
            hex(&want)
        );
        let got = Got(Segment::raw(ulpdu));
        require!(
            got.len() >= 2 && got.is_sound(),
            "control octets or header of {}",
            hex(&got)
        );
        Ok(got)
    }

    /// Takes the segments of one message; returns the first one, and all octets.
    pub(crate) fn message(&mut self) -> Outcome<(Got, Vec<u8>)> {
        let first = self.get()?;
        let mut data = first.data().to_vec();
        let mut last = first.is_last();
        while !last {
            let got = self.get()?;
            let follows = if first.is_tagged() {
                got[..6] == [&[first[0] | got[0] & 0x40], &first[1..6]].concat()[..]
                    && got.to() == first.to().wrapping_add(data.len() as u64)
            } else {
                got[..14] == [&[first[0] | got[0] & 0x40], &first[1..14]].concat()[..]
                    && got.offset() as usize == data.len()
            };
            require!(
                follows,
                "{} does not continue {}",
                got.describe(),
                first.describe()
            );
            data.extend(got.data());
            last = got.is_last();
        }
        Ok((first, data))
    }

    /// Checks that this segment comes, octet by octet.
    pub(crate) fn expect(&mut self, want: &Segment) -> Outcome {
        let got = self.get()?;
        require!(
            got.0 == *want,
            "{} instead of {}",
            got.describe(),
            Got(want.clone()).describe()
        );
        Ok(())
    }

    /// Records the expected Terminate for the check of a capture: a line in the file that
    /// TERMINATES in the environment names, behind this end's port.
    fn note(&self, want: &Segment) -> Outcome {
        let Some(file) = std::env::var_os("TERMINATES") else {
            return Ok(());
        };
        let port = self.socket.local_addr()?.port();
        let line = format!("{port} {}\n", Got(want.clone()).as_terminate());
        let mut file = OpenOptions::new().append(true).create(true).open(file)?;
        Ok(file.write_all(line.as_bytes())?)
    }

    /// Checks that this Terminate comes, octet by octet, and then the graceful end of the stream.
    pub(crate) fn expect_terminate(&mut self, want: &Segment) -> Outcome {
        self.note(want)?;
        self.expect(want)?;
        self.ends(End::Graceful)
    }

    /// Checks the same behind segments that were sent before; returns their octets.
    pub(crate) fn expect_terminate_behind(&mut self, opcode: u8, want: &Segment) -> Outcome<usize> {
        self.note(want)?;
        let mut octets = 0;
        loop {
            let got = self.get()?;
            if got.op() == opcode {
                octets += got.data().len();
                continue;
            }
            require!(
                got.0 == *want,
                "{} instead of {}",
                got.describe(),
                Got(want.clone()).describe()
            );
            self.ends(End::Graceful)?;
            return Ok(octets);
        }
    }

    /// Checks that the Terminate that answers this segment comes, and the end.
    pub(crate) fn expect_refusal(&mut self, code: Code, bad: &Segment) -> Outcome {
        self.expect_terminate(&code.answer(bad))
    }

    /// Takes a Send of the device.
    pub(crate) fn expect_send(&mut self, len: usize) -> Outcome<Got> {
        let got = self.get()?;
        require!(
            got.op() == op::SEND && got.data().len() == len,
            "{} instead of a Send of {len}",
            got.describe()
        );
        Ok(got)
    }
}
