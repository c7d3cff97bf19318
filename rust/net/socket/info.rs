// SPDX-License-Identifier: GPL-2.0

//! What TCP says about a connection, for administrators. Each value is read by itself, without the
//! socket lock, so that looking does not hold up the connection; two values may not fit together.

use super::Socket;
use crate::bindings;

extern "C" {
    fn riwarp_helper_sk_stream_is_writeable(sk: *const bindings::sock) -> bool;
}

/// The state of a TCP connection. Lengths are in octets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Sent or to be sent, and not acknowledged.
    pub unacked: u32,
    /// To be sent.
    pub unsent: u32,
    /// The window that the peer offers.
    pub peer_window: u32,
    /// The congestion window, in segments.
    pub congestion_window: u32,
    /// The window that this end offers.
    pub window: u32,
    /// Received in order and not taken.
    pub queued: u32,
    /// Segments that were sent again.
    pub retransmits: u32,
    /// The smoothed round-trip time, in microseconds.
    pub rtt_micros: u32,
    /// Acknowledged by the peer so far.
    pub acked: u64,
    /// Received in order so far.
    pub received: u64,
}

impl Socket {
    /// Returns the state of the connection. Context: any.
    pub fn info(&self) -> TcpInfo {
        // The order makes the differences not negative: what is read later can only have grown.
        let acked_to = read!(self, snd_una);
        let sent_to = read!(self, snd_nxt);
        let written_to = read!(self, write_seq);
        let taken_to = read!(self, copied_seq);
        let received_to = read!(self, rcv_nxt);
        TcpInfo {
            unacked: written_to.wrapping_sub(acked_to),
            unsent: written_to.wrapping_sub(sent_to),
            peer_window: read!(self, snd_wnd),
            congestion_window: read!(self, snd_cwnd),
            window: read!(self, rcv_wnd),
            queued: received_to.wrapping_sub(taken_to),
            retransmits: read!(self, total_retrans),
            // TCP keeps eight times the value.
            rtt_micros: read!(self, srtt_us) >> 3,
            acked: self.acked(),
            received: self.received(),
        }
    }

    /// Returns whether TCP would accept octets now. Context: any.
    pub fn is_writeable(&self) -> bool {
        // SAFETY: `__sk_stream_is_writeable()` requires a valid socket, which `self` has.
        unsafe { riwarp_helper_sk_stream_is_writeable(self.sk()) }
    }
}
