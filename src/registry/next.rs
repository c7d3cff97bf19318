// SPDX-License-Identifier: GPL-2.0

//! Settings of devices that do not exist yet, for each interface those of its next device.
//!
//! `ib_core` announces a device before `rdma link add` returns: `rdma_cm` opens the listeners that
//! exist already, and consumers in the kernel read the limits. So what is to hold from the
//! beginning precedes the device. Who makes the device writes it to the module's parameter
//! `next_device`, which holds for one interface and one attempt: others who make devices meanwhile,
//! or later, get what they would have got.
//!
//! Lock: `list`, innermost. Context: process, unless a function says otherwise.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use kernel_ext::{
    compat::{
        new_spinlock_irq,
        SpinLockIrq, //
    },
    net::{
        NetDevice,
        NetId, //
    }, //
};

use crate::device::{
    settings::{
        Defaults,
        OLD_OOB_PORT, //
    },
    tls::TlsSettings, //
};

use super::REGISTRY;

/// The settings of the next device on each interface for which there are some.
#[pin_data]
pub(super) struct NextDevices {
    #[pin]
    list: SpinLockIrq<KVec<NextDevice>>,
}

/// The settings of the next device on an interface.
pub(super) struct NextDevice {
    place: Place,
    pub(super) settings: Defaults,
    pub(super) tls: Arc<TlsSettings>,
    /// Whether they name the port of out-of-band connections: then there shall be no device
    /// without it.
    pub(super) names_port: bool,
}

/// An interface: its namespace, and its index there.
type Place = (NetId, u32);

fn place_of(netdev: &NetDevice) -> Place {
    (netdev.net_id(), netdev.ifindex())
}

impl NextDevices {
    /// Makes an empty list.
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            list <- new_spinlock_irq!(KVec::new()),
        })
    }

    /// Stores the settings of the next device on an interface, in place of others.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if there are too many, `ENOMEM`.
    fn put(&self, next: NextDevice) -> Result {
        let mut list = self.list.lock();
        list.retain(|other| other.place != next.place);
        if list.len() >= NEXT_MAX {
            return Err(ENOSPC);
        }
        Ok(list.push(next, GFP_ATOMIC)?)
    }

    /// Takes the settings of the next device on an interface, if it has some. Context: any.
    pub(super) fn take(&self, netdev: &NetDevice) -> Option<NextDevice> {
        let place = place_of(netdev);
        let mut list = self.list.lock();
        let index = list.iter().position(|next| next.place == place)?;
        list.remove(index).ok()
    }
}

/// Reads `INTERFACE SETTING=VALUE...`, in the namespace of the current task, and stores it. Without
/// a setting, it removes what is stored for the interface.
///
/// # Errors
///
/// * `EINVAL`: no interface, an unknown setting, or a wrong value; then nothing is stored.
/// * Those of [`TlsSettings::set`]; the same. Settings of TLS are made in the order of the words.
/// * `ENODEV`: there is no such interface, or the module is about to go.
/// * `ENOSPC`, `ENOMEM`: those of [`NextDevices::put`].
pub(crate) fn next_device(text: &str) -> Result {
    let registry = REGISTRY.get().ok_or(ENODEV)?;
    let mut words = text.split_ascii_whitespace().peekable();
    let interface = words.next().ok_or(EINVAL)?;
    let netdev = NetDevice::by_name(interface)?;
    if words.peek().is_none() {
        let _ = registry.next.take(&netdev);
        return Ok(());
    }
    let mut next = NextDevice {
        place: place_of(&netdev),
        settings: registry.defaults,
        tls: TlsSettings::new()?,
        names_port: false,
    };
    for word in words {
        let (name, value) = word.split_once('=').ok_or(EINVAL)?;
        if TlsSettings::has(name) {
            next.tls.set(name, value)?;
        } else {
            next.settings.replace(name, value)?;
        }
        next.names_port |= name == "oob_port" || name == OLD_OOB_PORT;
    }
    registry.next.put(next)
}

/// For how many interfaces there may be settings at once. Only root stores any; one that forgets to
/// make the devices shall not take the kernel's memory.
const NEXT_MAX: usize = 1024;

#[kernel::prelude::kunit_tests(riwarp_next_device)]
mod tests {
    use super::*;
    use crate::device::settings::DEFAULTS;

    fn list() -> Result<Pin<KBox<NextDevices>>> {
        KBox::pin_init(NextDevices::new(), GFP_KERNEL)
    }

    fn next(place: Place, port_offset: u16) -> Result<NextDevice> {
        Ok(NextDevice {
            place,
            settings: Defaults {
                port_offset,
                ..DEFAULTS
            },
            tls: TlsSettings::new()?,
            names_port: false,
        })
    }

    #[test]
    fn next_device_settings_apply_once_and_last_ones_win() -> Result {
        let (list, netdev) = (list()?, NetDevice::loopback()?);
        let here = place_of(&netdev);
        assert!(list.take(&netdev).is_none());
        list.put(next((here.0, here.1 + 1), 7)?)?;
        list.put(next((NetId::NONE, here.1), 8)?)?;
        // None of these is for this interface.
        assert!(list.take(&netdev).is_none());
        list.put(next(here, 9)?)?;
        list.put(next(here, 10)?)?;
        let taken = list.take(&netdev).map(|next| next.settings.port_offset);
        assert_eq!(taken, Some(10));
        assert!(list.take(&netdev).is_none());
        assert_eq!(list.list.lock().len(), 2);
        Ok(())
    }

    #[test]
    fn next_device_settings_are_limited() -> Result {
        let list = list()?;
        for index in 0..NEXT_MAX {
            list.put(next((NetId::NONE, u32::try_from(index)?), 0)?)?;
        }
        assert_eq!(list.put(next((NetId::NONE, u32::MAX), 0)?), Err(ENOSPC));
        // They replace each other at the limit.
        list.put(next((NetId::NONE, 0), 1)?)?;
        assert_eq!(list.list.lock().len(), NEXT_MAX);
        Ok(())
    }
}
