// SPDX-License-Identifier: GPL-2.0

//! Requests of the iWARP connection manager: connect, accept, reject, abort.
//!
//! `connect` starts a connection; `accept` and `reject` leave an answer in the [`PendingReply`] of
//! a connection that awaits one. An invalid request fails at once. The event of a successful
//! request follows in bounded time, whatever the peer does.
//!
//! Context: process. No request waits for the peer, because the connection manager has one thread
//! for all of them.

use core::num::NonZeroUsize;

use iwarp::{
    actions::Later,
    mpa::{
        negotiate::{
            Depths,
            Initiator,
            StreamRules, //
        },
        start::{
            Frame,
            RtrKinds, //
        }, //
    },
    rdmap::Extensions, //
};
use kernel::{
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    }, //
};
use kernel_ext::{
    compat::{
        EADDRINUSE,
        EADDRNOTAVAIL,
        ECONNRESET,
        ENETUNREACH, //
    },
    mm::noio::without_io,
    net::{
        Connecting,
        NetId,
        Reuse,
        SockAddr,
        Socket, //
    },
    rdma::iw_cm::{
        CmId,
        ConnParam, //
    },
    sync::BhRevocable, //
};

use crate::{
    device::{
        Device,
        MAX_IRD,
        MAX_ORD, //
    },
    qp::Qp, //
};

use super::{
    frames::{
        initiator_config,
        initiator_socket, //
    },
    phase::{
        Actor,
        Answer,
        Asked,
        ConnPhase,
        PendingReply, //
    },
    Cm,
    Conn, //
};

/// Starts a connection.
///
/// # Errors
///
/// * `EINVAL`: unknown queue pair, one that cannot connect now, a depth above the device's limits,
///   more private data than the MPA Request can carry, or addresses of two families.
/// * `EISCONN`: the queue pair has a connection.
/// * `ENODEV`: the device is being removed.
/// * Those of [`bind_source`].
/// * `EADDRNOTAVAIL`: there is a connection from this port to this peer.
/// * `ENETUNREACH` and others of TCP. `ENETUNREACH` also if the peer is a loopback address, and the
///   current task is in another network namespace than the device: `rdma_cm` takes any device for
///   such an address.
pub(crate) fn connect(cm: ArcBorrow<'_, Cm>, id: CmId, param: &ConnParam<'_>) -> Result {
    let local = id.local_addr()?;
    let remote = cm.device.settings.tcp_addr(id.remote_addr()?);
    if local.family() != remote.family() {
        return Err(EINVAL);
    }
    // TCP takes the wildcard address for a loopback address.
    let stays_on_host = remote.is_loopback() || remote.is_unspecified();
    if stays_on_host && cm.device.namespace != NetId::current() {
        return Err(ENETUNREACH);
    }
    let qp = cm.qps.get(param.qpn).ok_or(EINVAL)?;
    let (mut config, tls) = initiator_config(&cm.device);
    if !qp.shared.tells_immediate_data() {
        config.extensions = Extensions::Rfc7306;
    }
    let initiator = Initiator::new(config, depths(&cm.device, param)?);
    let request = initiator.request(param.private_data).map_err(|_| EINVAL)?;
    let request = KBox::new(request, GFP_KERNEL)?;

    let socket = initiator_socket(&cm.device, &remote, tls.as_ref())?;
    if let Some(tos) = id.tos() {
        socket.set_tos(tos);
    }
    let source = bind_source(&socket, local)?;

    let conn = Conn::new(cm.into(), socket, Actor::new(ConnPhase::Released))?;
    // Holds off steps until this call either fails or has events to report.
    conn.with_actor(|actor| {
        let bound = qp.bind(conn.bound());
        let connect = |socket: &Socket| match (socket.connect_nonblock(&remote), source) {
            (Err(error), SourcePort::Preferred) if error == EADDRNOTAVAIL => {
                socket.prefer_port(0);
                socket.connect_nonblock(&remote)
            }
            (result, _) => result,
        };
        conn.begin(actor, qp, bound, connect, |actor| {
            actor.begin_connecting(Some(id), initiator, request, tls)
        })
    })
}

/// How a connection got the port that its consumer named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SourcePort {
    /// The socket is bound to it.
    Bound,
    /// TCP takes it when the socket connects, if it can. Otherwise any other does.
    Preferred,
}

/// Binds the socket of a connection to the address and the port that its consumer has, which are no
/// peer's: `port_offset` does not apply.
///
/// The port is the program's choice, or that of `rdma_cm` if the program has none; nothing says
/// which. `rdma_cm` chooses among the ports that TCP also gives to programs, and knows nothing of
/// theirs, so one of these may be in use, or waits for the last octets of an earlier connection. No
/// connection may fail for that, so TCP takes another one. That it takes the port as if it had
/// chosen it leaves the port to programs that connect to other peers. Any other port is the
/// program's choice, and an error if TCP refuses it.
///
/// # Errors
///
/// * `EADDRINUSE` if the port is in use, and is none of those that TCP chooses.
/// * `EACCES` if the current task has no right to it.
/// * `EADDRNOTAVAIL` and others of TCP.
fn bind_source(socket: &Socket, local: SockAddr) -> Result<SourcePort> {
    let port = local.port();
    let chosen = port == 0 || socket.is_local_port(port);
    if !chosen || socket.is_reserved_port(port) {
        // Earlier connections from the port may linger.
        socket.set_reuse(Reuse::Lingering);
        match socket.bind(&local) {
            Err(error) if chosen && error == EADDRINUSE => socket.set_reuse(Reuse::Never),
            result => return result.map(|()| SourcePort::Bound),
        }
    }
    let mut any_port = local;
    any_port.set_port(0);
    socket.bind_without_port(&any_port)?;
    socket.prefer_port(port);
    Ok(SourcePort::Preferred)
}

/// Accepts a connection that a peer requested. On failure the peer is rejected.
///
/// # Errors
///
/// * `ECONNRESET`: the peer has disconnected, or waited too long.
/// * `EINVAL`, `EISCONN`: as for [`connect`].
pub(crate) fn accept(
    cm: ArcBorrow<'_, Cm>,
    id: CmId,
    name: NonZeroUsize,
    param: &ConnParam<'_>,
) -> Result {
    let conn = cm.asked(name).ok_or(ECONNRESET)?;
    let asked = conn
        .pending_reply
        .lock()
        .take_question()
        .ok_or(ECONNRESET)?;
    let result = match conn.prepare(&asked, param) {
        Ok((reply, rules, rtr)) => {
            *conn.pending_reply.lock() = PendingReply::Answered(Answer::Accept {
                id,
                reply,
                rules,
                rtr,
            });
            Ok(())
        }
        Err(error) => {
            // Return the first error to the caller.
            let _ = conn.refuse(&asked, &[]);
            Err(error)
        }
    };
    conn.kick();
    result
}

/// Rejects a connection that a peer requested.
///
/// # Errors
///
/// * `ECONNRESET`: the peer has disconnected, or waited too long.
/// * `EINVAL`: more private data than the MPA Reply can carry; the peer is rejected without it.
pub(crate) fn reject(cm: ArcBorrow<'_, Cm>, name: NonZeroUsize, private_data: &[u8]) -> Result {
    let conn = cm.asked(name).ok_or(ECONNRESET)?;
    let asked = conn
        .pending_reply
        .lock()
        .take_question()
        .ok_or(ECONNRESET)?;
    let result = conn.refuse(&asked, private_data);
    conn.kick();
    result
}

/// Aborts a connection that was accepted, if it is not released yet.
pub(crate) fn abort(cm: ArcBorrow<'_, Cm>, name: NonZeroUsize) {
    if let Some(conn) = cm.asked(name) {
        conn.ask(Later::Abort);
    }
}

impl Conn {
    /// Starts TCP's connect for a bound queue pair.
    pub(in crate::cm) fn begin(
        self: &Arc<Self>,
        actor: &mut Actor,
        qp: Arc<Qp>,
        bound: Result,
        connect: impl FnOnce(&Socket) -> Result<Connecting>,
        enter: impl FnOnce(&mut Actor),
    ) -> Result {
        let begun = bound.and_then(|()| {
            self.qp.populate(BhRevocable::new(qp));
            // A step may wait for the lock.
            without_io(|| connect(&self.socket))
        });
        match begun {
            Ok(_) => {
                self.device().stats.connects.inc();
                enter(actor);
                // TCP's callback makes the next step, also one that has found the actor taken.
                self.set_timer(actor);
                Ok(())
            }
            Err(error) => {
                self.abandon(actor);
                Err(error)
            }
        }
    }

    /// Does everything in an accept that can fail.
    fn prepare(
        self: &Arc<Self>,
        asked: &Asked,
        param: &ConnParam<'_>,
    ) -> Result<(KBox<Frame>, StreamRules, RtrKinds)> {
        let qp = self.cm().qps.get(param.qpn).ok_or(EINVAL)?;
        let mut responder = asked.responder;
        if !qp.shared.tells_immediate_data() {
            responder = responder.without_send_immediate();
        }
        let accepted = responder
            .accept(
                &asked.request,
                depths(self.device(), param)?,
                param.private_data,
            )
            .map_err(|_| EINVAL)?;
        let reply = KBox::new(accepted.reply, GFP_KERNEL)?;
        qp.bind(self.bound())?;
        self.qp.populate(BhRevocable::new(qp));
        Ok((reply, accepted.rules, accepted.rtr))
    }

    /// Stores a rejection as the reply. Without memory for one, closes the reply, and the next step
    /// gives up.
    fn refuse(&self, asked: &Asked, private_data: &[u8]) -> Result {
        let reject = |data| {
            let frame = asked.responder.reject(&asked.request, data);
            Ok(KBox::new(frame.map_err(|_| EINVAL)?, GFP_KERNEL)?)
        };
        let (frame, result) = match reject(private_data) {
            Ok(frame) => (Ok(frame), Ok(())),
            Err(error) => (reject(&[]), Err(error)),
        };
        *self.pending_reply.lock() = match frame {
            Ok(frame) => PendingReply::Answered(Answer::Refuse(frame)),
            Err(_) => PendingReply::Closed,
        };
        result
    }
}

/// Returns the depths that a consumer asks for, if the device supports them; lowered to the limits
/// that are set, of which the consumer may not know.
fn depths(device: &Device, param: &ConnParam<'_>) -> Result<Depths> {
    if param.ird > MAX_IRD || param.ord > MAX_ORD {
        return Err(EINVAL);
    }
    let settings = &device.settings;
    Ok(Depths {
        ird: u16::try_from(param.ird.min(settings.ird_limit()))?,
        ord: u16::try_from(param.ord.min(settings.ord_limit()))?,
    })
}

#[kernel::prelude::kunit_tests(riwarp_conn_requests)]
mod tests {
    use super::*;
    use crate::{
        bench::Bench,
        device::settings::DepthLimit, //
    };
    use kernel_ext::net::{
        bench::{
            address,
            eventually,
            listener,
            socket, //
        },
        Family,
        TcpState, //
    };

    fn asked(bench: &Bench, ird: u32, ord: u32) -> Result<(u16, u16)> {
        let param = ConnParam {
            private_data: &[],
            ord,
            ird,
            qpn: 2,
        };
        depths(&bench.device, &param).map(|depths| (depths.ird, depths.ord))
    }

    /// Connects from a port that was named, to a listener; returns the port that the socket has.
    fn connected_from(port: u16, to: &SockAddr) -> Result<(SourcePort, u16)> {
        let socket = socket(Family::V4)?;
        let source = bind_source(&socket, address(Family::V4, port))?;
        let mut result = socket.connect_nonblock(to);
        if result.err() == Some(EADDRNOTAVAIL) {
            socket.prefer_port(0);
            result = socket.connect_nonblock(to);
        }
        result?;
        eventually(|| socket.state() == TcpState::Established)?;
        Ok((source, socket.local_addr()?.port()))
    }

    #[test]
    fn connection_uses_the_named_source_port() -> Result {
        let listener = listener(Family::V4)?;
        let to = listener.local_addr()?;
        // Those that TCP chooses are from 32768 to 60999, unless that is changed.
        assert_eq!(connected_from(7654, &to), Ok((SourcePort::Bound, 7654)));
        assert_eq!(
            connected_from(45_678, &to),
            Ok((SourcePort::Preferred, 45_678))
        );
        Ok(())
    }

    #[test]
    fn source_port_in_use_is_refused_outside_ephemeral_range() -> Result {
        let listener = listener(Family::V4)?;
        let to = listener.local_addr()?;
        // TCP chooses such ports only, so that of the listener is one.
        let (source, port) = connected_from(to.port(), &to)?;
        assert!(source == SourcePort::Preferred && port != to.port());
        let other = socket(Family::V4)?;
        other.bind(&address(Family::V4, 7655))?;
        assert_eq!(connected_from(7655, &to), Err(EADDRINUSE));
        Ok(())
    }

    /// No consumer gets more outstanding Reads than the device supports (RFC 5040, section 8.1.1;
    /// RDMAP-170).
    #[test]
    fn depths_beyond_device_limit_are_refused() -> Result {
        let bench = Bench::new()?;
        assert_eq!(asked(&bench, 0, 0), Ok((0, 0)));
        assert_eq!(asked(&bench, 128, 128), Ok((128, 128)));
        for beyond in [129, 255, 65535, 65536 + 1, u32::MAX] {
            assert_eq!(asked(&bench, beyond, 1), Err(EINVAL));
            assert_eq!(asked(&bench, 1, beyond), Err(EINVAL));
        }
        Ok(())
    }

    #[test]
    fn depths_are_lowered_to_configured_limits() -> Result {
        let bench = Bench::new()?;
        let limit = |number| DepthLimit::from_number(number).ok_or(EINVAL);
        bench.device.settings.set_ird_limit(limit(64)?);
        bench.device.settings.set_ord_limit(limit(32)?);
        assert_eq!(asked(&bench, 128, 128), Ok((64, 32)));
        assert_eq!(asked(&bench, 3, 4), Ok((3, 4)));
        assert_eq!(asked(&bench, 129, 1), Err(EINVAL));
        Ok(())
    }
}
