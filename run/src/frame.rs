// SPDX-License-Identifier: GPL-2.0

//! Frames: a kind, the number of octets that follow (32 bits, little-endian), and these.

use std::io::{self, Read, Write};

/// The longest payload of a frame, in octets. Longer jobs take several frames.
pub const MAX_PAYLOAD: usize = 32 << 10;

/// A stream of octets of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Its standard input, from riwarp-run.
    Input,
    /// Its standard output, to riwarp-run.
    Output,
    /// Its standard error, to riwarp-run.
    Error,
    /// Its terminal, which takes the place of those of the three that are one. Both directions.
    Terminal,
}

impl Stream {
    /// The number of streams.
    pub const COUNT: usize = 4;

    fn from_number(number: u8) -> io::Result<Self> {
        match number {
            0 => Ok(Self::Input),
            1 => Ok(Self::Output),
            2 => Ok(Self::Error),
            3 => Ok(Self::Terminal),
            _ => Err(malformed("stream")),
        }
    }
}

/// What one end sends to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// To the guest: a part of the encoded job. The last part is empty.
    Job(Vec<u8>),
    /// Octets of a stream, no more than the other end has granted.
    Data(Stream, Vec<u8>),
    /// The stream has no more octets in this direction.
    End(Stream),
    /// So many more octets of the stream may be sent: the end that writes them has written as many.
    Credit(Stream, u32),
    /// Nobody reads the stream any more: what is sent is dropped.
    Closed(Stream),
    /// To the guest: a signal for the command's process group.
    Signal(u8),
    /// To the guest: rows and columns of the terminal.
    Window(u16, u16),
    /// From the guest: it may be sent a part of the job, the first or the next, or, once it is
    /// prepared, an empty one as the sign to start. What is sent before may be lost.
    Ready,
    /// From the guest: the command is about to be executed.
    Started,
    /// From the guest: the job cannot be run, and why. The last frame.
    Refused(String),
    /// From the guest: the command has ended, and everything that it wrote is where it belongs. The
    /// exit status as a shell would say it, the kernel's taint flags, and what the devices have
    /// found in the strict mode. The last frame.
    Ended(u8, u64, u64),
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("malformed frame: {what}"),
    )
}

impl Frame {
    fn parts(&self) -> (u8, Vec<u8>) {
        let stream = |stream: &Stream, rest: &[u8]| [&[*stream as u8], rest].concat();
        match self {
            Self::Job(part) => (0, part.clone()),
            Self::Data(to, octets) => (1, stream(to, octets)),
            Self::End(of) => (2, stream(of, &[])),
            Self::Credit(of, octets) => (3, stream(of, &octets.to_le_bytes())),
            Self::Closed(of) => (4, stream(of, &[])),
            Self::Signal(number) => (5, vec![*number]),
            Self::Window(rows, columns) => {
                (6, [rows.to_le_bytes(), columns.to_le_bytes()].concat())
            }
            Self::Started => (7, Vec::new()),
            Self::Refused(why) => (8, why.clone().into_bytes()),
            Self::Ready => (10, Vec::new()),
            Self::Ended(status, taint, findings) => {
                let numbers = [taint.to_le_bytes(), findings.to_le_bytes()].concat();
                (9, [&[*status][..], &numbers].concat())
            }
        }
    }

    /// Writes the frame in one piece.
    ///
    /// # Errors
    ///
    /// Those of the line; [`io::ErrorKind::InvalidData`] if the payload is longer than
    /// [`MAX_PAYLOAD`] and a stream's number.
    pub fn write(&self, line: &mut impl Write) -> io::Result<()> {
        let (kind, payload) = self.parts();
        if payload.len() > MAX_PAYLOAD + 1 {
            return Err(malformed("length"));
        }
        let length = u32::try_from(payload.len()).map_err(|_| malformed("length"))?;
        line.write_all(&[&[kind][..], &length.to_le_bytes(), &payload].concat())
    }

    /// Reads the next frame; `None` when the line has ended between two.
    ///
    /// # Errors
    ///
    /// Those of the line; [`io::ErrorKind::InvalidData`] if it carries something else than frames.
    pub fn read(line: &mut impl Read) -> io::Result<Option<Self>> {
        let mut head = [0; 5];
        if line.read(&mut head[..1])? == 0 {
            return Ok(None);
        }
        line.read_exact(&mut head[1..])?;
        let [kind, length @ ..] = head;
        let length = u32::from_le_bytes(length) as usize;
        if length > MAX_PAYLOAD + 1 {
            return Err(malformed("length"));
        }
        let mut payload = vec![0; length];
        line.read_exact(&mut payload)?;
        Self::from_parts(kind, &payload).map(Some)
    }

    fn from_parts(kind: u8, payload: &[u8]) -> io::Result<Self> {
        Ok(match (kind, payload) {
            (0, part) => Self::Job(part.to_vec()),
            (1, [to, octets @ ..]) => Self::Data(Stream::from_number(*to)?, octets.to_vec()),
            (2, [of]) => Self::End(Stream::from_number(*of)?),
            (3, &[of, a, b, c, d]) => {
                Self::Credit(Stream::from_number(of)?, u32::from_le_bytes([a, b, c, d]))
            }
            (4, [of]) => Self::Closed(Stream::from_number(*of)?),
            (5, [number]) => Self::Signal(*number),
            (6, &[a, b, c, d]) => {
                Self::Window(u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]))
            }
            (7, []) => Self::Started,
            (8, why) => Self::Refused(String::from_utf8_lossy(why).into_owned()),
            (9, [status, numbers @ ..]) => {
                let numbers = numbers.split_first_chunk();
                let (taint, findings) = numbers.ok_or_else(|| malformed("taint flags"))?;
                let findings = findings.try_into().map_err(|_| malformed("findings"))?;
                Self::Ended(
                    *status,
                    u64::from_le_bytes(*taint),
                    u64::from_le_bytes(findings),
                )
            }
            (10, []) => Self::Ready,
            _ => return Err(malformed("kind or length")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> Vec<Frame> {
        vec![
            Frame::Job(vec![1, 2, 3]),
            Frame::Job(vec![]),
            Frame::Data(Stream::Input, vec![7; MAX_PAYLOAD]),
            Frame::Data(Stream::Terminal, vec![]),
            Frame::End(Stream::Output),
            Frame::Credit(Stream::Error, u32::MAX),
            Frame::Closed(Stream::Output),
            Frame::Signal(15),
            Frame::Window(24, 80),
            Frame::Ready,
            Frame::Started,
            Frame::Refused("no device".into()),
            Frame::Ended(255, (1 << 40) | 2, 3),
        ]
    }

    #[test]
    fn frames_are_read_as_they_were_written() {
        let mut line = Vec::new();
        for frame in frames() {
            frame.write(&mut line).unwrap();
        }
        let mut rest = &line[..];
        for frame in frames() {
            assert_eq!(Frame::read(&mut rest).unwrap(), Some(frame));
        }
        assert_eq!(Frame::read(&mut rest).unwrap(), None);
    }

    #[test]
    fn a_cut_frame_is_an_error() {
        for frame in frames() {
            let mut line = Vec::new();
            frame.write(&mut line).unwrap();
            for length in 1..line.len().min(40) {
                assert!(
                    Frame::read(&mut &line[..length]).is_err(),
                    "{frame:?} {length}"
                );
            }
        }
    }

    #[test]
    fn other_octets_are_refused() {
        // An unknown kind, an unknown stream, wrong lengths, and one that nobody may send.
        for line in [
            &[11, 0, 0, 0, 0][..],
            &[2, 1, 0, 0, 0, 4],
            &[5, 2, 0, 0, 0, 1, 1],
            &[9, 3, 0, 0, 0, 1, 1, 1],
            &[1, 0, 0, 0, 0],
            &[1, 2, 0x80, 0, 0],
        ] {
            let error = Frame::read(&mut &line[..]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{line:?}");
        }
        assert!(Frame::Job(vec![0; MAX_PAYLOAD + 2])
            .write(&mut Vec::new())
            .is_err());
    }
}
