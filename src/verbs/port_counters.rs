// SPDX-License-Identifier: GPL-2.0

//! Counters of a device ([`Stats`](crate::device::stats::Stats)) by the names that InfiniBand
//! adapters have for them, as files under `/sys/class/infiniband/<device>/ports/1/counters/`.
//!
//! Only what riwarp counts has a file. docs/counters.md lists them.
//!
//! Context: process.

use kernel_ext::rdma::port_counters::PortCounter;

use crate::verbs::device::RdmaDevice;

/// A counter by another name, in the unit of that name.
macro_rules! port_counter {
    ($name:literal, $field:ident $(/ $unit:literal)?) => {
        PortCounter {
            name: $name,
            read: |device| device.stats.$field.get() $(/ $unit)?,
        }
    };
}

/// The files in sysfs.
pub(super) const FILES: &[PortCounter<RdmaDevice>] = &[
    port_counter!(c"port_xmit_data", tx_bytes / 4),
    port_counter!(c"port_rcv_data", rx_bytes / 4),
    port_counter!(c"port_xmit_packets", tx_fpdus),
    port_counter!(c"port_rcv_packets", rx_fpdus),
    port_counter!(c"unicast_xmit_packets", tx_fpdus),
    port_counter!(c"unicast_rcv_packets", rx_fpdus),
    port_counter!(c"port_xmit_wait", tx_stalls),
    port_counter!(c"port_rcv_errors", rx_faults),
];
