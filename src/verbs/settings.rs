// SPDX-License-Identifier: GPL-2.0

//! The settings of a device ([`Settings`](crate::device::settings::Settings)) as files under
//! `/sys/class/infiniband/<device>/`.
//!
//! Context: process.

use kernel::{
    prelude::*,
    sync::atomic::Relaxed, //
};
use kernel_ext::rdma::settings::Setting;

use crate::{
    device::settings::{
        DepthLimit,
        MpaRevision, //
    },
    verbs::device::RdmaDevice, //
};

/// A setting that is on or off.
macro_rules! switch {
    ($name:literal, $field:ident) => {
        Setting {
            name: $name,
            show: |device, out| write!(out, "{}", u8::from(device.settings.$field())),
            store: Some(|device, text| {
                device.settings.$field.store(parse_bool(text)?, Relaxed);
                Ok(())
            }),
        }
    };
}

/// A limit of outstanding Reads.
macro_rules! depth_limit {
    ($name:literal, $get:ident, $set:ident) => {
        Setting {
            name: $name,
            show: |device, out| write!(out, "{}", device.settings.$get()),
            store: Some(|device, text| {
                let number = text.parse().map_err(|_| EINVAL)?;
                let limit = DepthLimit::from_number(number).ok_or(EINVAL)?;
                device.settings.$set(limit);
                Ok(())
            }),
        }
    };
}

/// The files in sysfs.
pub(super) const FILES: &[Setting<RdmaDevice>] = &[
    switch!(c"crc", crc),
    Setting {
        name: c"mpa_rev",
        show: |device, out| write!(out, "{}", device.settings.mpa_rev().number()),
        store: Some(|device, text| {
            let number = text.parse().map_err(|_| EINVAL)?;
            let revision = MpaRevision::from_number(number).ok_or(EINVAL)?;
            device.settings.set_mpa_rev(revision);
            Ok(())
        }),
    },
    switch!(c"peer_to_peer", peer_to_peer),
    switch!(c"eager_responder", eager_responder),
    switch!(c"extensions", extensions),
    depth_limit!(c"ird_limit", ird_limit, set_ird_limit),
    depth_limit!(c"ord_limit", ord_limit, set_ord_limit),
    Setting {
        name: c"pairing_port",
        show: |device, out| write!(out, "{}", device.settings.pairing_port().unwrap_or(0)),
        store: Some(|device, text| {
            let port = text.parse().map_err(|_| EINVAL)?;
            device.cm.oob_waiters.set_port(&device, port)
        }),
    },
    Setting {
        name: c"port_offset",
        show: |device, out| write!(out, "{}", device.settings.port_offset()),
        store: Some(|device, text| {
            let offset = text.parse().map_err(|_| EINVAL)?;
            device.settings.set_port_offset(offset);
            Ok(())
        }),
    },
];

fn parse_bool(text: &str) -> Result<bool> {
    match text {
        "1" | "y" | "Y" | "on" => Ok(true),
        "0" | "n" | "N" | "off" => Ok(false),
        _ => Err(EINVAL),
    }
}

#[kernel::prelude::kunit_tests(riwarp_setting_files)]
mod tests {
    use super::*;

    #[test]
    fn switches_take_their_words_and_no_others() {
        for text in ["1", "y", "Y", "on"] {
            assert_eq!(parse_bool(text), Ok(true));
        }
        for text in ["0", "n", "N", "off"] {
            assert_eq!(parse_bool(text), Ok(false));
        }
        for text in ["", "2", "01", "-1", "yes", "On", "1 ", "1\n", "1x"] {
            assert_eq!(parse_bool(text), Err(EINVAL));
        }
    }
}
