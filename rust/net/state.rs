// SPDX-License-Identifier: GPL-2.0

//! The states of a TCP connection.
//!
//! C header: `include/net/tcp_states.h`.

use crate::bindings;

/// The state of a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the names are those of RFC 9293, section 3.3.2"
)]
pub enum TcpState {
    Listen,
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
    Closed,
}

impl TcpState {
    fn from_raw(state: u8) -> Self {
        // CAST: The constants are small.
        const ESTABLISHED: u8 = bindings::TCP_ESTABLISHED as u8;
        const SYN_SENT: u8 = bindings::TCP_SYN_SENT as u8;
        const SYN_RECV: u8 = bindings::TCP_SYN_RECV as u8;
        const FIN_WAIT1: u8 = bindings::TCP_FIN_WAIT1 as u8;
        const FIN_WAIT2: u8 = bindings::TCP_FIN_WAIT2 as u8;
        const TIME_WAIT: u8 = bindings::TCP_TIME_WAIT as u8;
        const CLOSE_WAIT: u8 = bindings::TCP_CLOSE_WAIT as u8;
        const LAST_ACK: u8 = bindings::TCP_LAST_ACK as u8;
        const LISTEN: u8 = bindings::TCP_LISTEN as u8;
        const CLOSING: u8 = bindings::TCP_CLOSING as u8;
        const NEW_SYN_RECV: u8 = bindings::TCP_NEW_SYN_RECV as u8;
        match state {
            ESTABLISHED => Self::Established,
            SYN_SENT => Self::SynSent,
            SYN_RECV | NEW_SYN_RECV => Self::SynReceived,
            FIN_WAIT1 => Self::FinWait1,
            FIN_WAIT2 => Self::FinWait2,
            TIME_WAIT => Self::TimeWait,
            CLOSE_WAIT => Self::CloseWait,
            LAST_ACK => Self::LastAck,
            LISTEN => Self::Listen,
            CLOSING => Self::Closing,
            // `TCP_CLOSE`, `TCP_BOUND_INACTIVE` and values that do not exist.
            _ => Self::Closed,
        }
    }
}

/// # Safety
///
/// `sk` must be a valid socket for the call. It need not be locked.
pub(super) unsafe fn state_of(sk: *mut bindings::sock) -> TcpState {
    // SAFETY: The caller guarantees that `sk` is valid for the call; the octet may change at any
    // time and is read once, as `inet_sk_state_load()` does.
    TcpState::from_raw(unsafe { (&raw const (*sk).__sk_common.skc_state).read_volatile() })
}
