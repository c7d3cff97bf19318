// SPDX-License-Identifier: GPL-2.0

//! Lines about a device in the kernel's log.
//!
//! A peer or a process can cause any number of these, so all devices share one limit
//! ([`log_limit`]). What is beyond it is only counted ([`super::stats`]).
//!
//! | level | what |
//! |---|---|
//! | warning | a stream ended for a fault, or was lost although both ends wanted it |
//! | notice | what peers and programs do without harm: a start-up that failed, a reset |
//!
//! Context: any; no lock that printing needs.

use kernel::{
    fmt::Arguments,
    prelude::*,
    sync::Arc, //
};
use kernel_ext::{
    ratelimit::RateLimit,
    rdma::device::IbDeviceName, //
};

use super::Device;

/// Makes the limit that all devices share.
///
/// # Errors
///
/// `ENOMEM`.
pub(crate) fn log_limit() -> Result<Arc<RateLimit>> {
    Arc::pin_init(RateLimit::new(INTERVAL, BURST), GFP_KERNEL)
}

impl Device {
    /// Logs that the device was made.
    pub(crate) fn log_added(&self) {
        pr_info!(
            "{}: device added on {}, link type {}\n",
            self.name(),
            self.netdev.name().as_c_str(),
            self.kind.link_type()
        );
    }

    /// Returns the current name.
    pub(crate) fn name(&self) -> IbDeviceName {
        self.link.name()
    }

    /// Logs a warning.
    #[cold]
    pub(crate) fn warn(&self, line: Arguments<'_>) {
        if self.log_limit.allows(c"riwarp") {
            pr_warn!("{}: {}\n", self.name(), line);
        }
    }

    /// Logs a notice.
    #[cold]
    pub(crate) fn notice(&self, line: Arguments<'_>) {
        if self.log_limit.allows(c"riwarp") {
            pr_notice!("{}: {}\n", self.name(), line);
        }
    }
}

/// An interval of the limit, in milliseconds.
const INTERVAL: u32 = 60_000;
/// Most lines in an interval, besides the kernel's own about those that were suppressed.
const BURST: u16 = 15;
