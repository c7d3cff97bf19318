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

/// Returns how many octets lie between two sequence numbers; 0 if `end` is an older value than
/// `begin` and therefore before it.
fn octets_between(begin: u32, end: u32) -> u32 {
    let octets = end.wrapping_sub(begin);
    // A window has fewer octets than half of the numbers.
    if octets >> 31 == 0 {
        octets
    } else {
        0
    }
}

impl Socket {
    /// Returns the state of the connection. Context: any.
    pub fn info(&self) -> TcpInfo {
        // ORDERING: none: TCP changes each value meanwhile.
        let written_to = read!(self, write_seq);
        TcpInfo {
            unacked: octets_between(read!(self, snd_una), written_to),
            unsent: octets_between(read!(self, snd_nxt), written_to),
            peer_window: read!(self, snd_wnd),
            congestion_window: read!(self, snd_cwnd),
            window: read!(self, rcv_wnd),
            queued: octets_between(read!(self, copied_seq), read!(self, rcv_nxt)),
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

#[kernel::prelude::kunit_tests(riwarp_socket_info)]
mod tests {
    use super::octets_between;

    #[test]
    fn no_count_of_octets_is_negative() {
        assert_eq!(octets_between(7, 7), 0);
        assert_eq!(octets_between(7, 1000), 993);
        assert_eq!(octets_between(u32::MAX, 3), 4);
        assert_eq!(octets_between(1000, 7), 0);
        assert_eq!(octets_between(3, u32::MAX), 0);
    }
}
