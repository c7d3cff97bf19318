// SPDX-License-Identifier: GPL-2.0

//! The steps of a connection that begins with a TLS handshake (docs/tls.md).
//!
//! The connecting side begins it once TCP is connected, before its Request. The accepting side
//! looks at the first octet: a ClientHello begins with 0x16, a Request with 'M'. The kernel leaves
//! the handshake to a daemon, `tlshd`, which may not be there, or never answer: so it has a time
//! limit, is cancelled with the phase, and each device has a share of those that the kernel lets
//! wait. An accepting side takes only keys of the device's own keyring, whatever others the daemon
//! knows, or only peers with a certificate that the daemon has verified.
//!
//! RFC 8446. Context: process, the actor's mutex held.

use iwarp::{
    actions::Later,
    mpa::{
        negotiate::{
            Initiator,
            Responder, //
        },
        start::Frame, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kernel_ext::{
    compat::{
        ECONNRESET,
        EOPNOTSUPP, //
    },
    net::{
        Credentials,
        Handshake,
        TlsRole, //
    }, //
};

use crate::{
    cm::listen::admission::HalfOpen,
    device::tls::TlsAccept, //
};

use super::{
    frames::Inbox,
    handshakes::{
        AfterHandshake,
        Begun,
        Securing,
        Turn, //
    },
    phase::{
        Actor,
        ConnPhase,
        NextStep,
        REQUEST_MS, //
    },
    Conn, //
};

/// For a handshake, in milliseconds.
const HANDSHAKE_MS: u32 = 10_000;
/// Between attempts to begin one while too many wait, in milliseconds.
const RETRY_MS: u32 = 20;
/// The first octet of a ClientHello's record.
const CLIENT_HELLO: u8 = 0x16;

/// What the first octet of a peer says, on a device with TLS.
pub(super) enum FirstOctet {
    /// It begins as a Request, which is taken in the clear; or TLS is on already.
    Go,
    /// It begins TLS.
    Hello(Credentials),
    /// Nothing has arrived, or the connection has ended.
    Nothing,
    /// It begins in the clear, and must not.
    Refused,
}

impl Conn {
    /// Begins a handshake of the side that has connected.
    pub(super) fn begin_tls(
        self: &Arc<Self>,
        actor: &mut Actor,
        credentials: Credentials,
        initiator: Initiator,
        request: KBox<Frame>,
    ) -> NextStep {
        let then = AfterHandshake::Request { initiator, request };
        self.begin_securing(actor, credentials, then)
    }

    /// Begins a handshake of the side that has accepted.
    pub(super) fn accept_tls(
        self: &Arc<Self>,
        actor: &mut Actor,
        credentials: Credentials,
        responder: Responder,
        (inbox, entry): (Inbox, HalfOpen),
    ) -> NextStep {
        let then = AfterHandshake::Await {
            responder: responder.without_crc(),
            inbox,
            entry,
        };
        self.begin_securing(actor, credentials, then)
    }

    fn begin_securing(
        &self,
        actor: &mut Actor,
        credentials: Credentials,
        then: AfterHandshake,
    ) -> NextStep {
        let securing = Securing {
            credentials,
            begun: Begun::No,
            then,
        };
        actor.limit(HANDSHAKE_MS);
        if let AfterHandshake::Await { entry, .. } = &securing.then {
            actor.recheck_after(entry.admission.grace_millis());
        }
        NextStep::Again(ConnPhase::Securing(securing))
    }

    /// Looks at the first octet of a peer.
    pub(super) fn first_octet(&self) -> FirstOctet {
        // Without a file it was accepted while TLS was off.
        let policy = self
            .device()
            .tls
            .policy()
            .filter(|_| self.socket.has_file());
        let Some(policy) = policy.filter(|_| !self.socket.is_secure()) else {
            return FirstOctet::Go;
        };
        let mut first = [0];
        match (self.socket.peek(&mut first), first, policy.accept) {
            (Ok(1), [CLIENT_HELLO], _) => FirstOctet::Hello(policy.credentials),
            (Ok(1), _, TlsAccept::Require) => FirstOctet::Refused,
            (Ok(1), _, TlsAccept::Permit) => FirstOctet::Go,
            (Ok(_), _, _) => FirstOctet::Go,
            (Err(error), _, _) if error == EAGAIN => FirstOctet::Nothing,
            // The reader finds the same error.
            (Err(_), _, _) => FirstOctet::Go,
        }
    }

    pub(in crate::cm) fn securing(
        self: &Arc<Self>,
        actor: &mut Actor,
        mut securing: Securing,
    ) -> NextStep {
        let open = match &securing.then {
            AfterHandshake::Request { .. } => true,
            AfterHandshake::Await { entry, .. } => entry.admission.is_open(),
        };
        if self.is_stopped() || !open {
            return self.fail_tls(actor, securing, ECONNRESET);
        }
        if let Begun::Asked(handshake, _) = &securing.begun {
            return match handshake.result() {
                Some(Ok(peer)) => self.handshaken(actor, securing, peer),
                Some(Err(error)) => {
                    self.refuse_tls("the TLS handshake has failed: tlshd's log says why");
                    self.fail_tls(actor, securing, error)
                }
                None if actor.is_overdue() => {
                    self.refuse_tls("no TLS handshake in time");
                    self.fail_tls(actor, securing, ETIMEDOUT)
                }
                None => self.wait_securing(actor, securing),
            };
        }
        if actor.is_overdue() {
            self.refuse_tls("too many TLS handshakes");
            return self.fail_tls(actor, securing, ETIMEDOUT);
        }
        match self.ask_daemon(&mut securing) {
            Ok(()) => self.wait_securing(actor, securing),
            Err(error) if error == EAGAIN => {
                let next = self.wait_securing(actor, securing);
                actor.recheck_after(RETRY_MS);
                next
            }
            Err(error) => {
                self.refuse_tls(match error {
                    error if error == ESRCH => "no tlshd listens in the network namespace",
                    _ => "the TLS handshake cannot begin",
                });
                self.fail_tls(actor, securing, error)
            }
        }
    }

    fn wait_securing(&self, actor: &mut Actor, securing: Securing) -> NextStep {
        if actor.is_recheck_due() {
            if let AfterHandshake::Await { entry, .. } = &securing.then {
                entry.admission.call_next();
            }
        }
        NextStep::Wait(ConnPhase::Securing(securing))
    }

    /// Asks the daemon for the handshake.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if too many are under way, and those of [`Handshake::begin`].
    fn ask_daemon(&self, securing: &mut Securing) -> Result {
        let role = securing.then.role();
        // Counts the namespace.
        let _net = self.device().net()?;
        let credentials = &securing.credentials;
        let (turn, asked) = match core::mem::replace(&mut securing.begun, Begun::No) {
            Begun::No => {
                let turn = match role {
                    TlsRole::Client => Turn::connecting(&self.cm().handshakes).ok_or(EAGAIN)?,
                    TlsRole::Server => self.accepted_turn()?,
                };
                (
                    turn,
                    Handshake::begin(&self.socket, role, credentials, HANDSHAKE_MS),
                )
            }
            Begun::Lent(turn) | Begun::Asked(_, turn) => (
                turn,
                Handshake::retry(&self.socket, role, credentials, HANDSHAKE_MS),
            ),
        };
        match asked {
            Ok(handshake) => {
                securing.begun = Begun::Asked(handshake, turn);
                Ok(())
            }
            Err(error) => {
                securing.begun = Begun::Lent(turn);
                Err(error)
            }
        }
    }

    /// Takes a place for a peer's handshake, or asks the connection to end that has to give way.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if there is none yet.
    fn accepted_turn(&self) -> Result<Turn> {
        let from = self.socket.addr_pair().1.ip();
        Turn::accepted(&self.cm().handshakes, self.entry.number(), from).map_err(|none| {
            let conn = none.gives_way.and_then(|number| self.cm().find(number));
            if let Some(conn) = conn {
                self.device().stats.backlog_drops.inc();
                conn.ask(Later::Abort);
            }
            EAGAIN
        })
    }

    /// Goes on after a handshake.
    fn handshaken(self: &Arc<Self>, actor: &mut Actor, securing: Securing, peer: i32) -> NextStep {
        let role = securing.then.role();
        let peer = securing.credentials.authenticated(role, peer);
        let secured = peer.map_err(|why| (EACCES, why)).and_then(|peer| {
            self.socket.secure(peer).map_err(|error| {
                let why = match error {
                    error if error == EOPNOTSUPP => {
                        "an adapter would do TLS, which is not supported"
                    }
                    _ => "the kernel's TLS 1.3 is not on after the handshake",
                };
                (error, why)
            })
        });
        if let Err((error, why)) = secured {
            self.refuse_tls(why);
            return self.fail_tls(actor, securing, error);
        }
        match securing.then {
            AfterHandshake::Request { initiator, request } => {
                self.begin_requesting(actor, initiator, request)
            }
            AfterHandshake::Await {
                responder,
                inbox,
                entry,
            } => {
                actor.limit(REQUEST_MS);
                NextStep::Again(ConnPhase::Waiting {
                    responder,
                    inbox,
                    entry,
                })
            }
        }
    }

    /// Counts and logs a connection that fails because of TLS.
    pub(super) fn refuse_tls(&self, why: &str) {
        self.device().stats.tls_refusals.inc();
        self.log_start_up(why);
    }

    /// Ends a connection whose handshake has failed, or is cancelled.
    fn fail_tls(self: &Arc<Self>, actor: &mut Actor, securing: Securing, error: Error) -> NextStep {
        let connects = matches!(securing.then, AfterHandshake::Request { .. });
        // Cancels it.
        drop(securing);
        if connects {
            self.fail(actor, error)
        } else {
            self.reset(actor)
        }
    }
}
