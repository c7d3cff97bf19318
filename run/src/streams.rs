// SPDX-License-Identifier: GPL-2.0

//! The command's streams over the line.
//!
//! A [`Source`] reads a file and sends what it reads, a [`Sink`] writes what arrives to a file. A
//! source never sends more than the sink has room for, so that no stream that nobody reads holds
//! up the others, or the signals. Each has a thread of its own; all calls may be made from any.

use crate::frame::{Frame, Stream, MAX_PAYLOAD};
use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::mpsc::{channel, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// The octets of a stream that may be sent to the guest before the sink has written any. The serial
/// line of the guest's kernel loses its input for good when 4 KiB wait to be read from it.
pub const TO_GUEST: u32 = 2 << 10;

/// The same for what the guest sends.
pub const FROM_GUEST: u32 = 128 << 10;

/// What a lock protects is whole between any two statements here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The end of the line that frames are written to.
#[derive(Clone)]
pub struct Line(Arc<Mutex<File>>);

impl Line {
    /// A line whose frames go to this file.
    pub fn new(file: File) -> Self {
        Self(Arc::new(Mutex::new(file)))
    }

    /// Sends a frame; waits while the line is full.
    ///
    /// # Errors
    ///
    /// Those of the line: the other end is gone.
    pub fn send(&self, frame: &Frame) -> io::Result<()> {
        frame.write(&mut *lock(&self.0))
    }
}

#[derive(Default)]
struct Credit {
    octets: u32,
    closed: bool,
}

/// Sends what a file has.
struct Source(Arc<(Mutex<Credit>, Condvar)>);

impl Source {
    fn new(stream: Stream, window: u32, mut file: File, line: Line) -> (Self, JoinHandle<()>) {
        let credit = Arc::new((
            Mutex::new(Credit {
                octets: window,
                closed: false,
            }),
            Condvar::new(),
        ));
        let shared = credit.clone();
        let thread = thread::spawn(move || {
            let mut buffer = vec![0; MAX_PAYLOAD];
            while let Some(room) = Self::wait(&shared) {
                let length = match file.read(&mut buffer[..room]) {
                    Ok(length) => length,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    // The slave of a pseudoterminal is closed.
                    Err(_) => 0,
                };
                if length == 0 {
                    break;
                }
                // The length is at most the credit.
                lock(&shared.0).octets -= length as u32;
                if line
                    .send(&Frame::Data(stream, buffer[..length].to_vec()))
                    .is_err()
                {
                    return;
                }
            }
            drop(file);
            let _ = line.send(&Frame::End(stream));
        });
        (Self(credit), thread)
    }

    /// Waits until something may be sent: how much, at most [`MAX_PAYLOAD`]; `None` when nobody
    /// wants it any more.
    fn wait((credit, changed): &(Mutex<Credit>, Condvar)) -> Option<usize> {
        let credit = changed
            .wait_while(lock(credit), |credit| credit.octets == 0 && !credit.closed)
            .unwrap_or_else(PoisonError::into_inner);
        (!credit.closed).then_some(MAX_PAYLOAD.min(credit.octets as usize))
    }

    fn change(&self, change: impl FnOnce(&mut Credit)) {
        change(&mut lock(&self.0 .0));
        self.0 .1.notify_all();
    }
}

/// Writes what arrives to a file.
struct Sink {
    /// `None` once the stream has ended.
    queue: Option<Sender<Vec<u8>>>,
    /// The octets that have been granted and have not arrived.
    granted: Arc<Mutex<u32>>,
    thread: JoinHandle<io::Result<()>>,
}

impl Sink {
    fn new(stream: Stream, window: u32, mut file: File, line: Line) -> Self {
        let (queue, arrived) = channel::<Vec<u8>>();
        let granted = Arc::new(Mutex::new(window));
        let shared = granted.clone();
        let thread = thread::spawn(move || {
            let mut result = Ok(());
            let mut written = 0;
            for octets in arrived {
                if result.is_ok() {
                    result = file.write_all(&octets);
                    if result.is_err() {
                        let _ = line.send(&Frame::Closed(stream));
                    }
                } // At most the window. A frame for each octet would be more than a window itself.
                written += octets.len() as u32;
                if written >= window / 4 {
                    *lock(&shared) += written;
                    let _ = line.send(&Frame::Credit(stream, written));
                    written = 0;
                }
            }
            result
        });
        Self {
            queue: Some(queue),
            granted,
            thread,
        }
    }

    fn take(&self, octets: Vec<u8>) -> io::Result<()> {
        let mut granted = lock(&self.granted);
        let left = granted.checked_sub(octets.len() as u32);
        let (Some(queue), Some(left)) = (&self.queue, left) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "octets that were not granted",
            ));
        };
        *granted = left;
        drop(granted);
        // The thread takes all until the stream ends.
        let _ = queue.send(octets);
        Ok(())
    }
}

/// One end's streams.
pub struct Streams {
    line: Line,
    /// The windows of what this end sends and of what it receives.
    windows: (u32, u32),
    sources: [Option<Source>; Stream::COUNT],
    sinks: [Option<Sink>; Stream::COUNT],
}

impl Streams {
    /// No streams yet, over this line. `windows` are of what this end sends and of what it
    /// receives.
    pub fn new(line: Line, windows: (u32, u32)) -> Self {
        Self {
            line,
            windows,
            sources: [const { None }; Stream::COUNT],
            sinks: [const { None }; Stream::COUNT],
        }
    }

    /// Begins to send what the file has. The thread ends when the file does, or when nobody wants
    /// the stream any more.
    pub fn read_from(&mut self, stream: Stream, file: File) -> JoinHandle<()> {
        let (source, thread) = Source::new(stream, self.windows.0, file, self.line.clone());
        self.sources[stream as usize] = Some(source);
        thread
    }

    /// Begins to write to the file what arrives, and closes it when the stream has ended.
    pub fn write_to(&mut self, stream: Stream, file: File) {
        self.sinks[stream as usize] =
            Some(Sink::new(stream, self.windows.1, file, self.line.clone()));
    }

    /// Does what a frame says about a stream; gives back a frame that is about something else.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::InvalidData`] for octets of a stream that does not exist here, or more of
    /// them than were granted.
    pub fn handle(&mut self, frame: Frame) -> io::Result<Option<Frame>> {
        match frame {
            Frame::Data(stream, octets) => match &self.sinks[stream as usize] {
                Some(sink) => sink.take(octets)?,
                None => {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "octets of no stream",
                    ))
                }
            },
            Frame::End(stream) => {
                if let Some(sink) = &mut self.sinks[stream as usize] {
                    sink.queue = None;
                }
            }
            Frame::Credit(stream, octets) => {
                if let Some(source) = &self.sources[stream as usize] {
                    source.change(|credit| credit.octets = credit.octets.saturating_add(octets));
                }
            }
            Frame::Closed(stream) => {
                if let Some(source) = &self.sources[stream as usize] {
                    source.change(|credit| credit.closed = true);
                }
            }
            other => return Ok(Some(other)),
        }
        Ok(None)
    }
    /// Waits until everything that has arrived is written. Gives back the stream that could not be
    /// written to its end, unless nobody wanted that, and why.
    pub fn finish_writing(&mut self) -> Option<(Stream, io::Error)> {
        let mut failed = None;
        let streams = [
            Stream::Input,
            Stream::Output,
            Stream::Error,
            Stream::Terminal,
        ];
        for (stream, sink) in streams.into_iter().zip(&mut self.sinks) {
            let Some(sink) = sink.take() else { continue };
            drop(sink.queue);
            match sink.thread.join() {
                Ok(Err(error)) if error.kind() != io::ErrorKind::BrokenPipe => {
                    failed = Some((stream, error))
                }
                // A thread that has panicked has said so.
                _ => {}
            }
        }
        failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::pipe;
    use std::io::BufReader;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::{Receiver, RecvTimeoutError};
    use std::time::Duration;

    fn file(fd: impl Into<OwnedFd>) -> File {
        File::from(fd.into())
    }

    /// Small, so that it closes often.
    const WINDOW: u32 = 5000;

    /// An end whose frames are handled by a thread, which passes the others on.
    fn end(
        socket: UnixStream,
        build: impl FnOnce(&mut Streams),
    ) -> (Line, Receiver<io::Result<Frame>>) {
        let line = Line::new(file(socket.try_clone().unwrap()));
        let mut streams = Streams::new(line.clone(), (WINDOW, WINDOW));
        build(&mut streams);
        let (pass, others) = channel();
        thread::spawn(move || {
            let mut socket = BufReader::new(socket);
            while let Ok(Some(frame)) = Frame::read(&mut socket) {
                match streams.handle(frame).transpose() {
                    Some(other) => pass.send(other).unwrap(),
                    None => continue,
                }
            }
            streams.finish_writing();
        });
        (line, others)
    }

    /// Two ends with one stream from a pipe to another.
    fn joined(stream: Stream) -> (File, File, Line, Receiver<io::Result<Frame>>) {
        let (a, b) = UnixStream::pair().unwrap();
        let (from, written) = pipe().unwrap();
        let (read, to) = pipe().unwrap();
        let (line, _) = end(a, |streams| drop(streams.read_from(stream, file(from))));
        let (_, others) = end(b, |streams| streams.write_to(stream, file(to)));
        (file(written), file(read), line, others)
    }

    fn pattern(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 7 / 3) as u8).collect()
    }

    #[test]
    fn a_stream_arrives_octet_for_octet() {
        let (mut written, mut read, ..) = joined(Stream::Output);
        let sent = pattern(3_000_001);
        let expected = sent.clone();
        let writer = thread::spawn(move || written.write_all(&sent).unwrap());
        let mut arrived = Vec::new();
        read.read_to_end(&mut arrived).unwrap();
        writer.join().unwrap();
        assert!(arrived == expected);
    }

    #[test]
    fn full_stream_does_not_block_other_frames() {
        let (written, mut read, line, others) = joined(Stream::Input);
        // Fills the window and the pipes; ends when the reader is gone.
        let writer = thread::spawn(move || {
            let mut written = written;
            while written.write_all(&[1; 4096]).is_ok() {}
        });
        let mut some = [0; 1];
        read.read_exact(&mut some).unwrap();
        for number in 1..100 {
            line.send(&Frame::Signal(number)).unwrap();
            assert_eq!(others.recv().unwrap().unwrap(), Frame::Signal(number));
        }
        drop(read);
        writer.join().unwrap();
    }

    #[test]
    fn octets_that_were_not_granted_are_an_error() {
        let (a, b) = UnixStream::pair().unwrap();
        // Nobody reads this pipe, so little of the window is given back.
        let (_read, to) = pipe().unwrap();
        let (_line, others) = end(b, |streams| streams.write_to(Stream::Output, file(to)));
        let mut line = file(a);
        // Somewhat more than the window and what a pipe holds.
        for _ in 0..100 {
            Frame::Data(Stream::Output, vec![0; 1000])
                .write(&mut line)
                .unwrap();
        }
        assert_eq!(
            others.recv().unwrap().unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
        // So are octets of a stream that does not exist, or has ended.
        let (mut a, b) = UnixStream::pair().unwrap();
        let (_read, to) = pipe().unwrap();
        let (_line, others) = end(b, |streams| streams.write_to(Stream::Output, file(to)));
        Frame::Data(Stream::Error, vec![0]).write(&mut a).unwrap();
        assert!(others.recv().unwrap().is_err());
        Frame::End(Stream::Output).write(&mut a).unwrap();
        Frame::Data(Stream::Output, vec![0]).write(&mut a).unwrap();
        assert!(others.recv().unwrap().is_err());
        assert_eq!(
            others.recv_timeout(Duration::ZERO).err(),
            Some(RecvTimeoutError::Timeout)
        );
    }
}
