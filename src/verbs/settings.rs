// SPDX-License-Identifier: GPL-2.0

//! The settings of a device ([`Settings`](crate::device::settings::Settings)) as files under
//! `/sys/class/infiniband/<device>/`.
//!
//! Context: process.

use kernel::{
    fmt,
    prelude::*,
    sync::{
        atomic::Relaxed,
        ArcBorrow, //
    }, //
};
use kernel_ext::rdma::settings::Setting;

use crate::{
    device::{
        settings::{
            parse_switch,
            warn_of_old_name,
            DepthLimit,
            MpaRevision,
            ReceiveWait, //
        },
        tls::TlsKey, //
    },
    verbs::device::RdmaDevice, //
};

/// Writes the value of `oob_port`.
fn show_oob_port(device: ArcBorrow<'_, RdmaDevice>, out: &mut dyn fmt::Write) -> fmt::Result {
    write!(out, "{}", device.settings.oob_port().unwrap_or(0))
}

/// Sets it.
///
/// # Errors
///
/// `EINVAL` if it is no port; those of the port that cannot be held.
fn store_oob_port(device: ArcBorrow<'_, RdmaDevice>, text: &str) -> Result {
    let port = text.parse().map_err(|_| EINVAL)?;
    device.cm.oob_waiters.set_port(&device, port)
}

/// A setting that is on or off.
macro_rules! switch {
    ($name:literal, $field:ident) => {
        Setting {
            name: $name,
            show: |device, out| write!(out, "{}", u8::from(device.settings.$field())),
            store: Some(|device, text| {
                device.settings.$field.store(parse_switch(text)?, Relaxed);
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
                device.settings.$set(DepthLimit::parse(text)?);
                Ok(())
            }),
        }
    };
}

/// A key of TLS, by its serial number.
macro_rules! tls_key {
    ($name:literal, $which:ident) => {
        Setting {
            name: $name,
            show: |device, out| write!(out, "{}", device.tls.key(TlsKey::$which)),
            store: Some(|device, text| device.tls.set_key(TlsKey::$which, text)),
        }
    };
}

/// The files in sysfs.
pub(super) const FILES: &[Setting<RdmaDevice>] = &[
    Setting {
        name: c"inject",
        show: |device, out| device.injector.show(out),
        store: Some(|device, text| device.injector.write(&device, text)),
    },
    Setting {
        name: c"strict",
        show: |device, out| write!(out, "{}", u8::from(device.strict.is_switched_on())),
        store: Some(|device, text| device.strict.switch(parse_switch(text)?)),
    },
    switch!(c"crc", crc),
    Setting {
        name: c"mpa_rev",
        show: |device, out| write!(out, "{}", device.settings.mpa_rev().number()),
        store: Some(|device, text| {
            device.settings.set_mpa_rev(MpaRevision::parse(text)?);
            Ok(())
        }),
    },
    switch!(c"peer_to_peer", peer_to_peer),
    switch!(c"eager_responder", eager_responder),
    switch!(c"extensions", extensions),
    switch!(c"confirm_sends", confirm_sends),
    switch!(c"draft_swap", draft_swap),
    Setting {
        name: c"ulpdu_limit",
        show: |device, out| write!(out, "{}", device.settings.ulpdu_limit().unwrap_or(0)),
        store: Some(|device, text| {
            let limit = text.parse().map_err(|_| EINVAL)?;
            device.settings.set_ulpdu_limit(limit);
            Ok(())
        }),
    },
    Setting {
        name: c"receive_wait",
        show: |device, out| write!(out, "{}", device.settings.receive_wait()),
        store: Some(|device, text| {
            device.settings.set_receive_wait(ReceiveWait::parse(text)?);
            Ok(())
        }),
    },
    depth_limit!(c"ird_limit", ird_limit, set_ird_limit),
    depth_limit!(c"ord_limit", ord_limit, set_ord_limit),
    Setting {
        name: c"oob_port",
        show: show_oob_port,
        store: Some(store_oob_port),
    },
    // Its name until 0.9, which 0.10 takes too.
    Setting {
        name: c"pairing_port",
        show: show_oob_port,
        store: Some(|device, text| {
            warn_of_old_name();
            store_oob_port(device, text)
        }),
    },
    Setting {
        name: c"tls",
        show: |device, out| out.write_str(device.tls.mode()),
        store: Some(|device, text| device.tls.set_mode(text)),
    },
    Setting {
        name: c"tls_accept",
        show: |device, out| out.write_str(device.tls.accept()),
        store: Some(|device, text| device.tls.set_accept(text)),
    },
    tls_key!(c"tls_keyring", Keyring),
    tls_key!(c"tls_key", Psk),
    tls_key!(c"tls_cert", Cert),
    tls_key!(c"tls_privkey", Privkey),
    Setting {
        name: c"tls_peername",
        show: |device, out| match device.tls.peername() {
            Some(name) => out.write_str(name.to_str().unwrap_or_default()),
            None => Ok(()),
        },
        store: Some(|device, text| device.tls.set_peername(text)),
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
