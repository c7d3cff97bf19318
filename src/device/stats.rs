// SPDX-License-Identifier: GPL-2.0

//! The counters of a device, by name.
//!
//! Their sources call in once per event or per batch. Users read them in
//! `/sys/class/infiniband/<device>/ports/1/hw_counters` and by `rdma statistic show`.
//! docs/counters.md says what each means to an administrator.
//!
//! Context: any.

use kernel::prelude::*;
use kernel_ext::percpu::PerCpuCount;

/// A count of events since the device was made.
pub(crate) struct Counter(PerCpuCount);

impl Counter {
    fn new() -> Result<Self> {
        PerCpuCount::try_new().map(Self)
    }

    /// Adds one.
    #[inline]
    pub(crate) fn inc(&self) {
        self.add(1);
    }

    /// Adds `n`.
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.add(n);
    }

    /// Returns the count.
    pub(crate) fn get(&self) -> u64 {
        self.0.sum()
    }
}

/// Defines [`Stats`] with a public field and a public name per counter, and maybe the name that it
/// had until 0.9, which 0.10 shows too.
macro_rules! counters {
    ($( $(#[$doc:meta])* $field:ident = $name:literal $( | $old:literal )?, )*) => {
        /// The counters of a device.
        pub(crate) struct Stats {
            $( $(#[$doc])* pub(crate) $field: Counter, )*
        }

        impl Stats {
            /// Makes counters that are all zero.
            ///
            /// Context: process.
            ///
            /// # Errors
            ///
            /// `ENOMEM`.
            pub(crate) fn new() -> Result<Self> {
                Ok(Self { $( $field: Counter::new()?, )* })
            }

            /// Names of the counters, in the order of [`Stats::read`]. A counter with an old name
            /// is there twice.
            pub(crate) const NAMES: &'static [&'static CStr] = &[ $( $name, $( $old, )? )* ];

            /// Writes the counts into `values`, as many as fit.
            pub(crate) fn read(&self, values: &mut [u64]) {
                let counts = [ $( self.$field.get(), $( (self.$field.get(), $old).0, )? )* ];
                for (value, count) in values.iter_mut().zip(counts) {
                    *value = count;
                }
            }
        }
    };
}

counters! {
    /// FPDUs that TCP accepted.
    tx_fpdus = c"tx_fpdus",
    /// Octets of these FPDUs, framing included.
    tx_bytes = c"tx_bytes",
    /// Calls into TCP that sent these FPDUs.
    tx_batches = c"tx_batches",
    /// Times that TCP had no room.
    tx_stalls = c"tx_stalls",
    /// FPDUs that were received and accepted.
    rx_fpdus = c"rx_fpdus",
    /// Octets of these FPDUs, framing included.
    rx_bytes = c"rx_bytes",
    /// Rounds of the receiver that ended at their budget.
    rx_budget_ends = c"rx_budget_ends",
    /// Times that received data waited for memory to be paged in.
    rx_page_waits = c"rx_page_waits",
    /// Messages that waited for a receive.
    rx_receive_waits = c"rx_receive_waits",
    /// Those of them that waited too long, which ended their streams.
    rx_receive_timeouts = c"rx_receive_timeouts",
    /// Times that transmission waited for memory to be paged in.
    tx_page_waits = c"tx_page_waits",
    /// FPDUs with a wrong CRC.
    crc_errors = c"crc_errors",
    /// Faults found in received data, wrong CRCs included.
    rx_faults = c"rx_faults",
    /// RDMA Read Requests that were accepted.
    rx_read_requests = c"rx_read_requests",
    /// Atomic Requests that were accepted.
    rx_atomic_requests = c"rx_atomic_requests",
    /// Immediate Data cut to four octets for its consumer although the other four were not zero.
    rx_immediate_truncated = c"rx_immediate_truncated",
    /// Requests, messages and calls of verbs that a rule has hit.
    injected = c"injected",
    /// Completion queues that were promised more than they hold, found in the strict mode.
    strict_cq_size = c"strict_cq_size",
    /// Messages that waited for their receive, found likewise.
    strict_late_receives = c"strict_late_receives",
    /// Uses of a key after its end, found likewise.
    strict_ended_keys = c"strict_ended_keys",
    /// Requests that did not wait for a Read or atomic operation whose memory they use, found
    /// likewise.
    strict_unfenced = c"strict_unfenced",
    /// Requests whose octets changed before their completion, a hint of the strict mode.
    hint_changed_sources = c"hint_changed_sources",
    /// Queue pairs and memory regions that a process still had when it ended, likewise.
    hint_left_objects = c"hint_left_objects",
    /// Memory regions of a process that gave peers rights which none used, likewise.
    hint_unused_rights = c"hint_unused_rights",
    /// Completions of a send queue that the strict mode chose to hold, and those behind them.
    chosen_late_completions = c"chosen_late_completions",
    /// FPDUs that the strict mode chose to place late.
    chosen_late_placements = c"chosen_late_placements",
    /// Completion events for which nothing was posted, chosen likewise.
    chosen_events = c"chosen_events",
    /// Terminate messages sent on streams that were up.
    terminates_sent = c"terminates_sent",
    /// Terminate messages received.
    terminates_received = c"terminates_received",
    /// Connections begun by this side.
    connects = c"connects",
    /// Connections of peers that were reported to a consumer or a waiting queue pair.
    connect_requests = c"connect_requests",
    /// Connections that reached RDMA mode.
    established = c"established",
    /// MPA Requests and Replies that were malformed or unacceptable.
    mpa_errors = c"mpa_errors",
    /// Requests that a peer rejected.
    mpa_rejects = c"mpa_rejects",
    /// Start-ups in which the peer's frame or first message was late.
    mpa_timeouts = c"mpa_timeouts",
    /// Start-ups that failed because of TLS.
    tls_refusals = c"tls_refusals",
    /// Incoming connections that were closed because a listener had too many half open.
    backlog_drops = c"backlog_drops",
    /// Incoming connections to the out-of-band port that were closed because no queue pair waited
    /// for them, or its own connection attempt had priority.
    oob_refusals = c"oob_refusals" | c"pairing_refusals",
    /// Those of them whose PSN was not compared, after too many wrong ones from the same address.
    oob_limited = c"oob_limited" | c"pairing_limited",
    /// Queue pairs that gave up waiting for their peer.
    oob_timeouts = c"oob_timeouts" | c"pairing_timeouts",
    /// Streams that ended without an orderly close.
    aborts = c"aborts",
}

#[kernel::prelude::kunit_tests(riwarp_stats)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_in_order_of_names() -> Result {
        let stats = Stats::new()?;
        stats.tx_fpdus.inc();
        stats.tx_bytes.add(1000);
        stats.tx_bytes.add(24);
        stats.aborts.add(7);
        let mut values = [99; 64];
        stats.read(&mut values);
        let count = Stats::NAMES.len();
        assert_eq!(values[..3], [1, 1024, 0]);
        assert_eq!(values[count - 1], 7);
        assert_eq!(values[count], 99);
        assert_eq!(Stats::NAMES[1], c"tx_bytes");
        assert_eq!(Stats::NAMES[count - 1], c"aborts");
        Ok(())
    }

    #[test]
    fn short_counter_list_gets_first_counters() -> Result {
        let stats = Stats::new()?;
        stats.tx_fpdus.add(3);
        let mut values = [0; 1];
        stats.read(&mut values);
        assert_eq!(values, [3]);
        stats.read(&mut []);
        Ok(())
    }
}
