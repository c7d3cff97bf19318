// SPDX-License-Identifier: GPL-2.0

//! Trace events, of the system `riwarp`. docs/debugging.md says what they mean, and
//! `rust/trace/riwarp_events.h` defines them.
//!
//! An event is a type, whose fields are those of the event. `is_enabled` is a static branch, in a
//! kernel without tracepoints nothing. Behind it, `record` takes a closure that makes an event and
//! runs out of line. It should be `move`: a variable that it borrows would be in memory all the
//! time.
//!
//! Context: any.

use crate::rdma::device::IbDeviceName;
use core::fmt::Write;
use kernel::ffi::c_char;
use kernel::fmt;
use kernel::prelude::*;
use kernel::str::Formatter;

/// A text of an event, with a NUL at its end; what does not fit is cut off.
pub struct Text([u8; Text::SIZE]);

impl Text {
    const SIZE: usize = 160;

    /// Makes a text, to be called as `Text::new(fmt!(...))`.
    pub fn new(args: fmt::Arguments<'_>) -> Self {
        let mut octets = [0; Self::SIZE];
        let [places @ .., _nul] = &mut octets;
        // What does not fit is the only error.
        let _ = Formatter::new(places).write_fmt(args);
        Self(octets)
    }
}

/// A type of the fields of events.
///
/// # Safety
///
/// If `Raw` is a pointer, `as_raw` must return one to a string, which ends with a NUL and stays
/// valid as long as `self`.
unsafe trait Field {
    /// How C takes it.
    type Raw;

    fn as_raw(&self) -> Self::Raw;
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        // SAFETY: This type is no pointer.
        unsafe impl Field for $number {
            type Raw = Self;

            fn as_raw(&self) -> Self {
                *self
            }
        }
    )*};
}

numbers!(bool, u8, u16, u32, u64, i64);

// SAFETY: `as_c_str` returns a string that is borrowed from `self`.
unsafe impl Field for IbDeviceName {
    type Raw = *const c_char;

    fn as_raw(&self) -> *const c_char {
        self.as_c_str().as_char_ptr()
    }
}

// SAFETY: The string is borrowed from `self`.
unsafe impl Field for Text {
    type Raw = *const c_char;

    fn as_raw(&self) -> *const c_char {
        CStr::from_bytes_until_nul(&self.0)
            .unwrap_or_default()
            .as_char_ptr()
    }
}

macro_rules! events {
    ($(
        $(#[$doc:meta])*
        $event:ident, $enabled:ident, $record:ident {
            $($(#[$field_doc:meta])* $field:ident: $type:ty,)*
        }
    )*) => {$(
        $(#[$doc])*
        pub struct $event {
            /// The device.
            pub dev: IbDeviceName,
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $event {
            /// Returns whether somebody traces it.
            #[inline(always)]
            pub fn is_enabled() -> bool {
                // SAFETY: The helper has no requirements.
                unsafe { $enabled() }
            }

            /// Records the event that `event` makes.
            #[cold]
            #[inline(never)]
            pub fn record(event: impl FnOnce() -> Self) {
                let event = event();
                // SAFETY: The helper requires strings, which it copies: `as_raw` returns strings
                // that `event` keeps valid, as `Field` requires of it.
                unsafe { $record(event.dev.as_raw(), $(event.$field.as_raw(),)*) }
            }
        }

        extern "C" {
            fn $enabled() -> bool;
            fn $record(dev: *const c_char, $($field: <$type as Field>::Raw,)*);
        }
    )*};
}

events! {
    /// A connection is in another phase than before.
    ConnPhaseEvent, riwarp_helper_trace_conn_phase_enabled, riwarp_helper_trace_conn_phase {
        /// The connection's number.
        conn: u64,
        /// The queue pair, or 0 if it has none.
        qpn: u32,
        /// The phase.
        phase: Text,
    }

    /// A start-up failed because of the peer.
    ConnRefused, riwarp_helper_trace_conn_refused_enabled, riwarp_helper_trace_conn_refused {
        /// The connection's number.
        conn: u64,
        /// This end's address.
        local: Text,
        /// The peer's address.
        peer: Text,
        /// Why.
        reason: Text,
    }

    /// A queue pair has got its stream.
    ConnEstablished,
    riwarp_helper_trace_conn_established_enabled,
    riwarp_helper_trace_conn_established {
        /// The connection's number.
        conn: u64,
        /// The queue pair.
        qpn: u32,
        /// This end's address.
        local: Text,
        /// The peer's address.
        peer: Text,
        /// The revision of MPA.
        mpa_rev: u8,
        /// Whether there are CRCs.
        crc: bool,
        /// Whether this end sends Markers.
        markers: bool,
        /// How many Reads the peer may have outstanding.
        ird: u32,
        /// How many Reads this end may have outstanding.
        ord: u32,
    }

    /// A stream has ended.
    ConnClosed, riwarp_helper_trace_conn_closed_enabled, riwarp_helper_trace_conn_closed {
        /// The connection's number.
        conn: u64,
        /// The queue pair, or 0 if it has gone before.
        qpn: u32,
        /// Why.
        reason: Text,
    }

    /// A consumer has posted to the send queue.
    PostSend, riwarp_helper_trace_post_send_enabled, riwarp_helper_trace_post_send {
        /// The queue pair.
        qpn: u32,
        /// Requests in the send queue that are not taken.
        posted: u32,
    }

    /// The transmit task begins to carry out a request.
    WrStart, riwarp_helper_trace_wr_start_enabled, riwarp_helper_trace_wr_start {
        /// The queue pair.
        qpn: u32,
        /// The position in the order of submission.
        seq: i64,
        /// The consumer's cookie.
        wr_id: u64,
        /// The opcode of its completion.
        opcode: u32,
        /// Octets to be transferred.
        len: u32,
    }

    /// The first FPDU of a message is packed.
    MessageOut, riwarp_helper_trace_message_out_enabled, riwarp_helper_trace_message_out {
        /// The queue pair.
        qpn: u32,
        /// The position of the request that it belongs to, or -1.
        seq: i64,
        /// The opcode of the message.
        opcode: u8,
        /// Octets of payload of the whole message.
        len: u32,
    }

    /// A request is complete.
    WrComplete, riwarp_helper_trace_wr_complete_enabled, riwarp_helper_trace_wr_complete {
        /// The queue pair.
        qpn: u32,
        /// The position in the order of submission; -1 for a receive.
        seq: i64,
        /// The consumer's cookie.
        wr_id: u64,
        /// The opcode of the completion.
        opcode: u32,
        /// The status of the completion.
        status: u32,
        /// Octets transferred.
        len: u32,
    }

    /// A complete FPDU has arrived.
    FpduIn, riwarp_helper_trace_fpdu_in_enabled, riwarp_helper_trace_fpdu_in {
        /// The queue pair.
        qpn: u32,
        /// The opcode of its message.
        opcode: u8,
        /// Octets of the ULPDU.
        len: u16,
        /// Whether it is the last one of its message.
        last: bool,
    }

    /// A message begins to wait for its receive, or waits no longer.
    ReceiveWait, riwarp_helper_trace_receive_wait_enabled, riwarp_helper_trace_receive_wait {
        /// The queue pair.
        qpn: u32,
        /// Whether it begins.
        begins: bool,
    }

    /// A rule lets a request fail.
    RequestInjected, riwarp_helper_trace_injected_enabled, riwarp_helper_trace_injected {
        /// The queue pair.
        qpn: u32,
        /// The request's.
        wr_id: u64,
        /// The place of the rule, from 0.
        rule: u32,
    }

    /// The strict mode has found that a program breaks a rule.
    StrictFinding, riwarp_helper_trace_strict_enabled, riwarp_helper_trace_strict {
        /// The queue pair.
        qpn: u32,
        /// The request's, or 0.
        wr_id: u64,
        /// The number of the rule (docs/strict.md).
        rule: u32,
    }

    /// This end has found a fault.
    FaultFound, riwarp_helper_trace_fault_enabled, riwarp_helper_trace_fault {
        /// The queue pair.
        qpn: u32,
        /// The code of the Terminate.
        code: u32,
        /// Which fault.
        reason: Text,
    }

    /// A Terminate was sent or has arrived.
    TerminateSeen, riwarp_helper_trace_terminate_enabled, riwarp_helper_trace_terminate {
        /// The queue pair.
        qpn: u32,
        /// Whether this end has sent it.
        sent: bool,
        /// Its code.
        code: u32,
    }
}

#[kernel::prelude::kunit_tests(riwarp_trace)]
mod tests {
    use super::*;

    fn octets(text: &Text) -> &[u8] {
        let end = text.0.iter().position(|octet| *octet == 0);
        &text.0[..end.unwrap_or(0)]
    }

    #[test]
    fn trace_text_is_truncated_at_capacity() {
        assert_eq!(octets(&Text::new(fmt!(""))), b"");
        assert_eq!(octets(&Text::new(fmt!("{}-{}", 1, "a"))), b"1-a");
        let long = Text::new(fmt!("{:0500}", 7));
        assert_eq!(octets(&long), [b'0'; Text::SIZE - 1]);
    }
}
