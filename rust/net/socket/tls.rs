// SPDX-License-Identifier: GPL-2.0

//! The kernel's TLS 1.3 above TCP: records out and in.
//!
//! All of it runs in process context: `tls_sw_sendmsg()` takes a mutex, and a record is decrypted
//! with the socket locked. What was decrypted waits in memory of this module, where [`Inbound`]
//! reads it in place as it reads TCP's queue; while that memory is full nothing is read from TCP,
//! whose window closes.
//!
//! The end of a stream is the peer's closure alert. A FIN without one may be an attacker's
//! (RFC 8446, section 6.1): the stream is cut off. This end sends its alert behind the last octet
//! and before the FIN; a connection that is closed without is reset.
//!
//! | what arrives | what happens |
//! |---|---|
//! | a record of data | its octets are read |
//! | `close_notify` | the end; what follows is not read (RFC 8446, section 6.1) |
//! | `NewSessionTicket` | nothing: no session is resumed |
//! | another alert, another record, `KeyUpdate`, a record that does not authenticate | a reset |
//!
//! C headers: `include/net/tls.h`, `include/net/tls_prot.h`.

use super::secure::Session;
use super::to_len;
use super::Socket;
use super::DONTWAIT;
use crate::bindings;
use crate::compat::EKEYEXPIRED;
use crate::compat::EPROTO;
use crate::mm::noio::without_io;
use crate::net::handshake::TlsPeer;
use crate::net::hooks::notify;
use crate::net::hooks::Callbacks;
use crate::net::hooks::SocketNotice;
use crate::net::skb::End;
use crate::net::skb::Inbound;
use crate::net::SendHint;
use crate::net::TxBatch;
use kernel::ffi::c_int;
use kernel::ffi::c_void;
use kernel::new_mutex;
use kernel::prelude::*;
use kernel::sync::atomic::Atomic;
use kernel::sync::atomic::Relaxed;
use kernel::sync::Mutex;

extern "C" {
    fn riwarp_helper_sk_set_linger(sk: *mut bindings::sock, reset: bool);
    fn riwarp_helper_sk_set_nospace(sk: *mut bindings::sock);
    fn riwarp_helper_tls_is_flushed(sk: *const bindings::sock) -> bool;
    fn riwarp_helper_tls_records_sent(sk: *const bindings::sock) -> u64;
    fn riwarp_helper_tls_recv(
        sock: *mut bindings::socket,
        buf: *mut c_void,
        len: usize,
        kind: *mut u8,
    ) -> c_int;
    fn riwarp_helper_tls_send(
        sock: *mut bindings::socket,
        buf: *const c_void,
        len: usize,
        kind: u8,
    ) -> c_int;
    fn riwarp_helper_tls_setup(sk: *mut bindings::sock);
}

/// How many octets a record has at most (RFC 8446, section 5.1).
pub(super) const RECORD_MAX: u32 = 1 << 14;

/// How many records may be sent under one key of AES-GCM: 2^24.5 (RFC 8446, section 5.5).
const GCM_RECORDS: u64 = 23_726_566;

/// Room for the longest FPDU (64 KiB and its framing), and for a record that follows it.
const ROOM: usize = (1 << 16) + (1 << 14);

/// The types of records (RFC 8446, section 5.1).
mod kind {
    pub(super) const ALERT: u8 = 21;
    pub(super) const HANDSHAKE: u8 = 22;
    pub(super) const DATA: u8 = 23;
}

/// `close_notify`, with the level that senders give it (RFC 8446, section 6).
const CLOSE_NOTIFY: [u8; 2] = [1, 0];
/// The type of a handshake message that is ignored (RFC 8446, section 4).
const NEW_SESSION_TICKET: u8 = 4;

/// TLS of a socket.
#[pin_data]
pub(super) struct Tls {
    cipher: c_int,
    peer: TlsPeer,
    /// Those below this module's.
    callbacks: Callbacks,
    /// The error that ended the stream, as a positive number; 0 if none.
    // ORDERING: Relaxed: a number that stands for no other memory.
    error: Atomic<i32>,
    /// Held by who sends, so that a step finds out whether somebody does.
    #[pin]
    tx: Mutex<Closure>,
    #[pin]
    rx: Mutex<Records>,
}

/// How far this end has closed its half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closure {
    /// The alert has not been sent.
    Open,
    /// TLS has the alert.
    Alerted,
}

/// What was decrypted, and not read yet.
struct Records {
    /// [`ROOM`] octets.
    memory: KVVec<u8>,
    /// The octets that wait.
    start: usize,
    end: usize,
    /// No octets follow.
    ended: Option<End>,
    /// TLS may have more.
    more: bool,
}

impl Tls {
    /// Makes the TLS of a socket on which it is on, with this peer. `callbacks` are those of the
    /// kernel's TLS.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(
        socket: &Socket,
        cipher: c_int,
        peer: TlsPeer,
        callbacks: Callbacks,
    ) -> impl PinInit<Self, Error> + '_ {
        socket.locked(|sk| {
            // SAFETY: The helper requires a valid socket that is locked: `locked` gives one.
            unsafe { riwarp_helper_tls_setup(sk) };
            // Until the closure alert is out.
            // SAFETY: The helper requires a valid socket that is locked: `locked` gives one.
            unsafe { riwarp_helper_sk_set_linger(sk, true) };
        });
        try_pin_init!(Self {
            cipher,
            peer,
            callbacks,
            error: Atomic::new(0),
            tx <- new_mutex!(Closure::Open, "riwarp::Tls::tx"),
            rx <- new_mutex!(Records::new()?, "riwarp::Tls::rx"),
        }? Error)
    }

    pub(super) fn callbacks(&self) -> Callbacks {
        self.callbacks
    }

    pub(super) fn error(&self) -> i32 {
        self.error.load(Relaxed)
    }

    /// Returns the name of the cipher (RFC 8446, appendix B.4).
    pub(super) fn cipher(&self) -> &'static str {
        match self.cipher.unsigned_abs() {
            bindings::TLS_CIPHER_AES_GCM_128 => "aes-128-gcm",
            bindings::TLS_CIPHER_AES_GCM_256 => "aes-256-gcm",
            bindings::TLS_CIPHER_AES_CCM_128 => "aes-128-ccm",
            bindings::TLS_CIPHER_CHACHA20_POLY1305 => "chacha20-poly1305",
            _ => "other",
        }
    }

    /// Returns who the peer is.
    pub(super) fn peer(&self) -> &TlsPeer {
        &self.peer
    }

    /// Returns how many records may be sent under one key.
    fn records_max(&self) -> u64 {
        match self.cipher.unsigned_abs() {
            bindings::TLS_CIPHER_CHACHA20_POLY1305 => u64::MAX,
            _ => GCM_RECORDS,
        }
    }
}

// Sending.
impl Session<'_> {
    /// Encrypts and sends the octets of a batch, and returns how many. No record stays open.
    pub(super) fn send_batch(self, batch: &mut TxBatch) -> Result<usize> {
        let raw = self.socket.raw.as_ptr();
        without_io(|| {
            let _sends = self.tls.tx.lock();
            self.check_records()?;
            let sent = batch.send_with(usize::MAX, SendHint::Push, |msg, _| {
                // By copy: what encrypts reads the pages before it returns, and keeps none.
                // SAFETY: `send_with` gives a valid message.
                unsafe { (*msg).msg_flags = DONTWAIT };
                // SAFETY: `sock_sendmsg()` requires a valid socket, which `self` has, and a message
                // that describes readable memory, which `send_with` gives.
                unsafe { bindings::sock_sendmsg(raw, msg) }
            });
            self.sent(sent)
        })
    }

    pub(super) fn send(self, buf: &[u8]) -> Result<usize> {
        let _sends = self.tls.tx.lock();
        self.sent(self.send_record(buf, kind::DATA))
    }

    pub(super) fn try_send(self, buf: &[u8]) -> Result<usize> {
        let _sends = self.tls.tx.try_lock().ok_or(EBUSY)?;
        self.sent(self.send_record(buf, kind::DATA))
    }

    /// Sends the closure alert, and then a FIN.
    pub(super) fn try_shutdown_write(self) -> Result<bool> {
        let mut closure = self.tls.tx.try_lock().ok_or(EBUSY)?;
        if *closure == Closure::Open {
            match self.send_record(&CLOSE_NOTIFY, kind::ALERT) {
                Ok(_) => *closure = Closure::Alerted,
                Err(error) if is_temporary(error) => return Err(EBUSY),
                // Nothing can be sent any more: a reset has to end the connection.
                Err(_) => return Ok(false),
            }
        }
        self.socket.try_locked(|sk| {
            // SAFETY: The helper requires a socket with TLS that is locked, which this is.
            if !unsafe { riwarp_helper_tls_is_flushed(sk) } {
                return Err(EBUSY);
            }
            // SAFETY: The helper requires a valid socket that is locked: `try_locked` gives one.
            unsafe { riwarp_helper_sk_set_linger(sk, false) };
            // SAFETY: `send_fin` requires this socket, owned: `try_locked` gives it.
            Ok(unsafe { self.socket.send_fin(sk) })
        })?
    }

    fn send_record(self, buf: &[u8], kind: u8) -> Result<usize> {
        let (raw, from) = (self.socket.raw.as_ptr(), buf.as_ptr().cast());
        // SAFETY: The helper requires a valid socket, which `self` has, and readable memory: it is
        // that of `buf`.
        to_len(unsafe { riwarp_helper_tls_send(raw, from, buf.len(), kind) })
    }

    /// Turns what may go on into the errors that senders know.
    fn sent(self, result: Result<usize>) -> Result<usize> {
        result.map_err(|error| match error {
            // A signal has interrupted the wait for TLS's own lock; nothing was sent.
            error if error == EINTR => EBUSY,
            error if error == ENOMEM => {
                // SAFETY: The helper requires a valid socket with a `struct socket`, which `self`
                // has.
                unsafe { riwarp_helper_sk_set_nospace(self.socket.sk()) };
                EAGAIN
            }
            error => error,
        })
    }

    /// Ends a stream that has sent as much as one key is good for.
    fn check_records(self) -> Result {
        // SAFETY: The helper requires a socket with TLS, which this is; only senders change the
        // number, and this is the one.
        let records = unsafe { riwarp_helper_tls_records_sent(self.socket.sk()) };
        if records < self.tls.records_max() {
            return Ok(());
        }
        self.fail(EKEYEXPIRED);
        Err(EKEYEXPIRED)
    }
}

// Receiving.
impl Session<'_> {
    pub(super) fn recv(self, buf: &mut [u8]) -> Result<usize> {
        self.read(buf, true)
    }

    pub(super) fn peek(self, buf: &mut [u8]) -> Result<usize> {
        self.read(buf, false)
    }

    /// Copies what has arrived to `buf`, and consumes it or not.
    fn read(self, buf: &mut [u8], consume: bool) -> Result<usize> {
        if buf.is_empty() {
            return Err(EINVAL);
        }
        let mut records = self.tls.rx.lock();
        if records.waiting().is_empty() {
            self.fill(&mut records);
        }
        let waiting = records.waiting();
        let n = waiting.len().min(buf.len());
        match (waiting.get(..n), buf.get_mut(..n)) {
            (Some(from), Some(to)) if n > 0 => to.copy_from_slice(from),
            _ => {
                return match (self.tls.error(), records.ended) {
                    (0, None) => Err(EAGAIN),
                    (0, Some(_)) => Ok(0),
                    (error, _) => Err(Error::from_errno(error.wrapping_neg())),
                }
            }
        }
        if consume {
            records.start = records.start.saturating_add(n);
        }
        Ok(n)
    }

    pub(super) fn with_inbound<R>(self, f: impl FnOnce(&mut Inbound<'_>) -> R) -> R {
        self.with_records(&mut self.tls.rx.lock(), f)
    }

    pub(super) fn try_with_inbound<R>(self, f: impl FnOnce(&mut Inbound<'_>) -> R) -> Result<R> {
        let mut records = self.tls.rx.try_lock().ok_or(EBUSY)?;
        Ok(self.with_records(&mut records, f))
    }

    fn with_records<R>(self, records: &mut Records, f: impl FnOnce(&mut Inbound<'_>) -> R) -> R {
        let open = records.ended.is_none();
        self.fill(records);
        let (result, consumed) = {
            let waiting = records.waiting();
            // SAFETY: `of_memory` requires memory that stays while the view lives: `waiting` is
            // borrowed until the view ends, and the lock keeps others away.
            let mut inbound =
                unsafe { Inbound::of_memory(self.socket.sk(), waiting, records.ended) };
            let result = f(&mut inbound);
            (result, waiting.len().saturating_sub(inbound.available()))
        };
        records.start = records.start.saturating_add(consumed);
        if records.more && consumed > 0 {
            notify(self.socket, SocketNotice::Readable);
        }
        if open && records.ended.is_some() {
            // The connection may wait for the end.
            notify(self.socket, SocketNotice::StateChange);
        }
        result
    }

    /// Reads records until none are left, or there is no room.
    fn fill(self, records: &mut Records) {
        records.more = false;
        while records.ended.is_none() {
            let raw = self.socket.raw.as_ptr();
            let room = records.room();
            if room.is_empty() {
                records.more = true;
                return;
            }
            let (to, len) = (room.as_mut_ptr().cast(), room.len());
            let mut kind = 0;
            // SAFETY: The helper requires a valid socket, which `self` has, and writable memory: it
            // is that of `room`, borrowed exclusively.
            let got = to_len(unsafe { riwarp_helper_tls_recv(raw, to, len, &raw mut kind) });
            match got {
                Ok(n) if kind == kind::DATA => records.end = records.end.saturating_add(n),
                // A FIN without an alert.
                Ok(0) => records.ended = Some(End::Cut),
                Ok(n) => match (kind, room.get(..n)) {
                    (kind::ALERT, Some([_, 0])) => records.ended = Some(End::Whole),
                    (kind::HANDSHAKE, Some([NEW_SESSION_TICKET, ..])) => {}
                    // The next read would say the same of a KeyUpdate.
                    (kind::HANDSHAKE, _) => records.ended = Some(self.fail(EKEYEXPIRED)),
                    _ => records.ended = Some(self.fail(EPROTO)),
                },
                Err(error) if error == EAGAIN => return,
                Err(error) if error == EINTR => {
                    records.more = true;
                    return;
                }
                Err(error) => records.ended = Some(self.fail(error)),
            }
        }
    }

    /// Ends the stream because of an error: resets the connection, whose `state_change` follows.
    #[cold]
    fn fail(self, error: Error) -> End {
        let number = error.to_errno().wrapping_neg();
        // The first error is the reason.
        let _ = self.tls.error.cmpxchg(0, number, Relaxed);
        // It waits, so it does not fail.
        let _ = self.socket.abort_above_tcp(error, true);
        End::Cut
    }
}

impl Records {
    /// # Errors
    ///
    /// `ENOMEM`.
    fn new() -> Result<Self> {
        let mut memory = KVVec::new();
        memory.resize(ROOM, 0, GFP_KERNEL)?;
        Ok(Self {
            memory,
            start: 0,
            end: 0,
            ended: None,
            more: false,
        })
    }

    /// Returns what waits.
    fn waiting(&self) -> &[u8] {
        self.memory.get(self.start..self.end).unwrap_or_default()
    }

    /// Returns the room behind it. Moves what waits to the front if a record would not fit there.
    fn room(&mut self) -> &mut [u8] {
        if self.start > 0 && self.end.saturating_add(RECORD_MAX as usize) > self.memory.len() {
            self.memory.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end.saturating_sub(self.start));
        }
        self.memory.get_mut(self.end..).unwrap_or_default()
    }
}

/// Returns whether what failed may succeed later.
fn is_temporary(error: Error) -> bool {
    [EAGAIN, EINTR, ENOMEM].contains(&error)
}
