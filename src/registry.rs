// SPDX-License-Identifier: GPL-2.0

//! All devices of the module, one per interface: how they are made and removed.
//!
//! `rdma link add` makes a device. It is removed when its interface leaves its namespace or is
//! unregistered, when its namespace ends, by `rdma link delete`, when the module is unloaded, or
//! when `ib_core` unregisters all devices of its driver id. The first of these marks the
//! [`DeviceEntry`] as being removed. Work that has to wait runs on the reaper, because interface
//! events arrive under rtnl, under which no device may be unregistered. Dropping the registration
//! waits until concurrent removals are done, so no code of this module runs for the device after
//! its entry has been removed.
//!
//! Lock order: an entry's `state` (mutex) before `entries` (spin lock, innermost).

use kernel::{
    impl_has_work,
    new_mutex,
    new_work,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Completion,
        Mutex, //
    },
    workqueue::{
        Work,
        WorkItem, //
    }, //
};
use kernel_ext::{
    compat::{
        new_spinlock_irq,
        SpinLockIrq, //
    },
    net::{
        AddrEvents,
        NetDevice,
        NetId,
        NetdevEvent,
        NetdevEvents,
        NetnsExit,
        SockAddr, //
    },
    ratelimit::RateLimit,
    rdma::{
        device::{
            Identity,
            Registration, //
        },
        link::LinkType, //
    },
    sync::ModuleCell, //
};

use crate::{
    cm::oob::ports::HeldPorts,
    device::{
        self,
        gid::Guid,
        log::log_limit,
        queues::Queues,
        refs::{
            Ref,
            Refs, //
        },
        settings::{
            Defaults,
            Settings, //
        },
        tls::TlsSettings,
        Device,
        DeviceKind,
        Parts, //
    },
    verbs::device::{
        RdmaDevice,
        DEVICE_GONE, //
    },
    Riwarp, //
};

mod next;
mod report;

pub(crate) use next::next_device;
pub(crate) use report::state_files;

use next::NextDevices;

/// The registry, for callbacks without a context pointer. Filled while the module is in service.
pub(crate) static REGISTRY: ModuleCell<Registry> = ModuleCell::empty();

/// All devices.
#[pin_data]
pub(crate) struct Registry {
    #[pin]
    entries: SpinLockIrq<KVec<Arc<DeviceEntry>>>,
    /// From the module parameters.
    defaults: Defaults,
    #[pin]
    next: NextDevices,
    queues: Arc<Queues>,
    ports: Arc<HeldPorts>,
    refs: Arc<Refs>,
    /// How many entries were made so far.
    // ORDERING: Relaxed: only makes the numbers differ.
    made: Atomic<u64>,
    log_limit: Arc<RateLimit>,
    #[pin]
    gone: Work<Registry, DEVICE_GONE>,
}

impl_has_work! {
    impl HasWork<Self, DEVICE_GONE> for Registry { self.gone }
}

impl WorkItem<DEVICE_GONE> for Registry {
    type Pointer = Arc<Self>;

    /// Handles the end of the unregistration of devices, whatever caused it.
    fn run(this: Arc<Self>) {
        let entries = this.entries.lock();
        let gone = entries.iter().filter(|entry| entry.device.is_gone());
        gone.for_each(DeviceEntry::end_later);
    }
}

/// A device in the registry.
#[pin_data]
struct DeviceEntry {
    device: Arc<RdmaDevice>,
    /// Rises from one device to the next.
    serial: u64,
    /// The device is going or gone; its interface may get another one.
    removing: Atomic<bool>,
    #[pin]
    state: Mutex<State>,
    #[pin]
    work: Work<DeviceEntry>,
    /// Completed when the entry has left the registry.
    #[pin]
    over: Completion,
    registry: Arc<Registry>,
}

enum State {
    /// `newlink` has not stored the registration yet.
    Making,
    Registered(Registration<Riwarp>),
    /// The registration was taken out to be dropped, or was never made.
    Over,
}

impl_has_work! {
    impl HasWork<Self> for DeviceEntry { self.work }
}

impl WorkItem for DeviceEntry {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.end();
    }
}

impl Registry {
    /// Makes an empty registry.
    pub(crate) fn new(defaults: Defaults) -> Result<Arc<Self>> {
        Arc::try_pin_init(
            try_pin_init!(Self {
                entries <- new_spinlock_irq!(KVec::new()),
                defaults,
                next <- NextDevices::new(),
                queues: Arc::new(Queues::new()?, GFP_KERNEL)?,
                ports: HeldPorts::new()?,
                refs: Refs::new()?,
                log_limit: log_limit()?,
                made: Atomic::new(0),
                gone <- new_work!("Registry::gone"),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Makes a device on an interface.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if the interface type is unsuitable, or the name cannot be a file name.
    /// * `EEXIST` if the interface has a device.
    /// * `ENODEV` if the interface has left the namespace meanwhile.
    /// * `ENFILE` if the name is taken.
    /// * `EADDRINUSE` if the port is taken that [`next_device`] has named for out-of-band
    ///   connections.
    fn add(self: &Arc<Self>, name: &CStr, netdev: &NetDevice, kind: DeviceKind) -> Result {
        let next = self.next.take(netdev);
        let names_port = next.as_ref().is_some_and(|next| next.names_port);
        let (defaults, tls) = match next {
            Some(next) => (next.settings, next.tls),
            None => (self.defaults, TlsSettings::new()?),
        };
        if !device::is_suitable(netdev) {
            refuse(
                name,
                netdev,
                "it is no Ethernet, tunnel or loopback interface",
            );
            return Err(EINVAL);
        }
        if !is_file_name(name) {
            refuse(name, netdev, "the name of the device cannot be a file name");
            return Err(EINVAL);
        }
        let guid = self.new_guid(netdev);
        let identity = Identity {
            provider: kind.abi().provider(),
            node_guid: guid.octets(),
            node_desc: c"riwarp software iWARP",
            comp_vectors: kernel::cpu::nr_cpu_ids(),
            node_type: kind.node_type(),
        };
        let mut made = None;
        let result = Registration::try_new(name, netdev, &identity, |link, namespace| {
            let parts = Parts {
                kind,
                namespace,
                netdev: netdev.clone(),
                guid,
                link,
                settings: Settings::new(&defaults),
                tls,
                queues: self.queues.clone(),
                log_limit: self.log_limit.clone(),
                device_ref: Ref::new(&self.refs),
            };
            let device = RdmaDevice::new(parts, self.ports.clone(), Some(self.clone()))?;
            let entry = DeviceEntry::new(self.clone(), device.clone())?;
            self.enter(entry.clone())?;
            made = Some(entry);
            // After `enter`: from here on the end of the namespace waits for the device, and so for
            // the held port.
            match device.cm.oob_waiters.hold_port(&device.device) {
                Ok(()) => {}
                Err(error) if names_port => return Err(error),
                Err(error) => pr_warn!(
                    "{}: TCP port {} cannot be held ({:?}): no out-of-band connections\n",
                    name,
                    device.settings.oob_port().unwrap_or(0),
                    error
                ),
            }
            Ok(device)
        });
        match (result, made) {
            (Ok(registration), Some(entry)) => {
                let device = entry.device.clone();
                entry.settle(registration);
                device.log_added();
                Ok(())
            }
            (Ok(_), None) => Err(EINVAL),
            (Err(error), made) => {
                if let Some(entry) = made {
                    entry.cancel();
                }
                match error {
                    e if e == EEXIST => refuse(name, netdev, "it has a device of riwarp already"),
                    e if e == ENFILE => refuse(name, netdev, "another device has this name"),
                    _ => pr_err!(
                        "{}: no device on {}: {:?}\n",
                        name,
                        netdev.name().as_c_str(),
                        error
                    ),
                }
                Err(error)
            }
        }
    }

    /// Returns the identifier of a new device on an interface. Consumers in the kernel know devices
    /// by it alone (`nvme_rdma`, `ib_isert`), so it is another one than that of each device on an
    /// interface with the same hardware address, like a VLAN's. Two that are made at the same time
    /// may still get the same.
    fn new_guid(&self, netdev: &NetDevice) -> Guid {
        let guid = Guid::of(netdev);
        let taken = self.find(|other| other.device.guid() == guid && !other.is_removing());
        match taken {
            Some(_) => Guid::random(),
            None => guid,
        }
    }

    /// Adds an entry, unless its interface has one already, or has left the namespace of the
    /// device. From here on the events of the interface find the entry.
    fn enter(&self, entry: Arc<DeviceEntry>) -> Result {
        let mut entries = self.entries.lock();
        if entry.has_left() {
            return Err(ENODEV);
        }
        if entries
            .iter()
            .any(|other| other.is_on(&entry.device.netdev) && !other.is_removing())
        {
            return Err(EEXIST);
        }
        // Events of the interface take the lock: one about a later change finds the entry.
        entry.device.note_state();
        entries.push(entry, GFP_ATOMIC)?;
        Ok(())
    }

    /// Removes an entry.
    fn leave(&self, entry: &DeviceEntry) {
        let _drop_outside_lock = {
            let mut entries = self.entries.lock();
            let found = entries
                .iter()
                .position(|other| core::ptr::eq(&**other, entry));
            found.and_then(|index| entries.remove(index).ok())
        };
    }

    /// Finds an entry. Context: process, since the caller may drop the last reference.
    fn find(&self, mut wanted: impl FnMut(&DeviceEntry) -> bool) -> Option<Arc<DeviceEntry>> {
        let entries = self.entries.lock();
        entries.iter().find(|entry| wanted(entry)).cloned()
    }

    /// Calls `f` with the entry of an interface, if it has one that is not being removed.
    ///
    /// Holds the lock meanwhile, so that a caller in softirq never drops the last reference to a
    /// device. Context: any.
    fn with_netdev(&self, netdev: &NetDevice, f: impl FnOnce(&Arc<DeviceEntry>)) {
        let entries = self.entries.lock();
        let entry = entries
            .iter()
            .find(|entry| entry.is_on(netdev) && !entry.is_removing());
        if let Some(entry) = entry {
            f(entry);
        }
    }

    /// Handles an event of an interface.
    ///
    /// Context: any.
    fn netdev_event(&self, event: NetdevEvent, netdev: &NetDevice) {
        if event == NetdevEvent::Unregister {
            let _ = self.next.take(netdev);
        }
        self.with_netdev(netdev, |entry| {
            // NETDEV_UNREGISTER also comes before an interface moves to another namespace; the
            // device does not move with it. If the entry was made too late for that, events in the
            // new namespace follow.
            if event == NetdevEvent::Unregister || entry.has_left() {
                entry.set_removing();
                entry.end_later();
            } else {
                entry.device.netdev_event(event);
            }
        });
    }

    /// Calls `f` with each device, without the lock held, in the order in which they were made.
    /// Ends at its first error. Context: process, since the last reference may be dropped.
    fn each<E>(&self, mut f: impl FnMut(&RdmaDevice) -> Result<(), E>) -> Result<(), E> {
        let mut last = 0;
        while let Some(entry) = self.after(last) {
            last = entry.serial;
            f(&entry.device)?;
        }
        Ok(())
    }

    /// Returns the entry that was made next after that with the number `serial`.
    fn after(&self, serial: u64) -> Option<Arc<DeviceEntry>> {
        // Two links may be added at the same time, so entries may be in another order.
        let entries = self.entries.lock();
        let later = entries.iter().filter(|entry| entry.serial > serial);
        later.min_by_key(|entry| entry.serial).cloned()
    }

    /// Removes the devices that `which` selects, and returns when they are gone.
    ///
    /// Context: process, without rtnl.
    fn end_all(&self, mut which: impl FnMut(&Device) -> bool) {
        while let Some(entry) = self.find(|entry| which(&entry.device)) {
            entry.set_removing();
            entry.end();
            // Another removal may have taken the registration first.
            entry.over.wait_for_completion();
        }
    }

    /// Removes all devices. Context: process, without rtnl.
    pub(crate) fn end_devices(&self) {
        self.end_all(|_| true);
    }

    /// Waits for what is left of devices that were removed. Afterwards no work runs for any of
    /// them.
    pub(crate) fn shut_down(&self) {
        self.refs.wait_empty();
        self.queues.flush();
    }
}

impl DeviceEntry {
    fn new(registry: Arc<Registry>, device: Arc<RdmaDevice>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                device,
                serial: registry.made.fetch_add(1, Relaxed) + 1,
                removing: Atomic::new(false),
                state <- new_mutex!(State::Making),
                work <- new_work!("DeviceEntry::work"),
                over <- Completion::new(),
                registry,
            }),
            GFP_KERNEL,
        )
    }

    fn is_on(&self, netdev: &NetDevice) -> bool {
        self.device.netdev.is_same(netdev)
    }

    /// Returns whether the interface is in another namespace than the device.
    fn has_left(&self) -> bool {
        self.device.netdev.net_id() != self.device.namespace
    }

    fn is_removing(&self) -> bool {
        // ORDERING: for `settle`, the lock of `state` orders this: `end` takes it after the mark is
        // set, so if it found `State::Making`, `settle`, which takes it next, sees the mark. For
        // others the old value is right, too.
        self.removing.load(Relaxed) || self.device.is_gone()
    }

    /// Marks the device as being removed. Context: any.
    fn set_removing(&self) {
        // ORDERING: as in `is_removing`.
        self.removing.store(true, Relaxed);
    }

    /// Queues the removal of the device to the reaper. Context: any.
    fn end_later(self: &Arc<Self>) {
        // An item that is already pending suffices.
        let _ = self.registry.queues.reaper.enqueue(self.clone());
    }

    /// Stores the registration of the new device.
    fn settle(self: &Arc<Self>, registration: Registration<Riwarp>) {
        self.device.set_registered();
        // Events that came before are lost. With this one `ib_core` reads all addresses and the
        // state of the port again.
        self.device.addr_event();
        *self.state.lock() = State::Registered(registration);
        // A removal that found `State::Making` under the lock has left the rest to this call.
        if self.is_removing() {
            self.end_later();
        }
    }

    /// Drops the entry of a device that could not be registered.
    fn cancel(&self) {
        *self.state.lock() = State::Over;
        self.set_removing();
        self.registry.leave(self);
        self.over.complete_all();
    }

    /// Unregisters the device, waits for concurrent removals, and removes the entry.
    ///
    /// Context: process, without rtnl, not inside `ib_core`'s unregistration.
    fn end(&self) {
        let registration = {
            let mut state = self.state.lock();
            match core::mem::replace(&mut *state, State::Over) {
                State::Making => {
                    // `settle` sees the mark and queues the removal.
                    *state = State::Making;
                    return;
                }
                State::Registered(registration) => registration,
                State::Over => return,
            }
        };
        drop(registration);
        self.registry.leave(self);
        self.over.complete_all();
    }
}

/// Says why no device is made: the interface of `rdma link add` has no way to.
fn refuse(name: &CStr, netdev: &NetDevice, why: &str) {
    pr_err!(
        "{}: no device on {}: {}\n",
        name,
        netdev.name().as_c_str(),
        why
    );
}

/// Returns whether sysfs would show a device under exactly this name.
fn is_file_name(name: &CStr) -> bool {
    let name = name.to_bytes();
    !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/')
}

/// The link type of devices for librxe.
pub(crate) struct RxeLink;

/// The link type of devices for libsiw.
pub(crate) struct SiwLink;

/// [`SiwLink`] by the name of the kernel's siw, for programs that make their devices by that.
pub(crate) struct SiwNameLink;

/// The link type of devices for programs that take InfiniBand only.
pub(crate) struct IbLink;

impl LinkType for RxeLink {
    const NAME: &'static CStr = DeviceKind::Rxe.link_type();

    fn newlink(name: &CStr, netdev: &NetDevice) -> Result {
        newlink(name, netdev, DeviceKind::Rxe)
    }
}

impl LinkType for SiwLink {
    const NAME: &'static CStr = DeviceKind::Siw.link_type();

    fn newlink(name: &CStr, netdev: &NetDevice) -> Result {
        newlink(name, netdev, DeviceKind::Siw)
    }
}

impl LinkType for SiwNameLink {
    const NAME: &'static CStr = c"siw";

    fn newlink(name: &CStr, netdev: &NetDevice) -> Result {
        newlink(name, netdev, DeviceKind::Siw)
    }
}

impl LinkType for IbLink {
    const NAME: &'static CStr = DeviceKind::Ib.link_type();

    fn newlink(name: &CStr, netdev: &NetDevice) -> Result {
        newlink(name, netdev, DeviceKind::Ib)
    }
}

fn newlink(name: &CStr, netdev: &NetDevice, kind: DeviceKind) -> Result {
    REGISTRY.get().ok_or(ENODEV)?.add(name, netdev, kind)
}

impl NetdevEvents for Riwarp {
    fn netdev_event(event: NetdevEvent, netdev: &NetDevice) {
        if let Some(registry) = REGISTRY.get() {
            registry.netdev_event(event, netdev);
        }
    }
}

impl AddrEvents for Riwarp {
    fn addr_event(_added: bool, netdev: &NetDevice, _addr: &SockAddr) {
        if let Some(registry) = REGISTRY.get() {
            registry.with_netdev(netdev, |entry| entry.device.addr_event());
        }
    }
}

impl NetnsExit for Riwarp {
    fn netns_exit(net: NetId) {
        if let Some(registry) = REGISTRY.get() {
            // Includes devices whose interface has left, until they are gone. Removing a device
            // closes all its sockets: listeners before `dealloc_driver`, since `ib_core` waits for
            // all objects; connections in `RdmaDevice::shut_down`, which waits for them and for
            // the items that have just accepted one.
            registry.end_all(|device| device.namespace == net);
        }
    }
}

#[kernel::prelude::kunit_tests(riwarp_registry)]
mod tests {
    use super::*;
    use crate::{
        bench::Bench,
        device::settings::DEFAULTS, //
    };
    use kernel_ext::rdma::types::PortEvent;

    /// Two links are added at the same time: the device that was made first is entered last.
    #[test]
    fn devices_entered_in_any_order_are_all_reported() -> Result {
        let benches = [Bench::new()?, Bench::new()?];
        let registry = Registry::new(DEFAULTS)?;
        let first = DeviceEntry::new(registry.clone(), benches[0].rdma.clone())?;
        let second = DeviceEntry::new(registry.clone(), benches[1].rdma.clone())?;
        registry.enter(second.clone())?;
        // Both are on one interface, which may get another device then.
        second.set_removing();
        registry.enter(first.clone())?;
        let mut seen = KVec::new();
        registry.each(|device| seen.push(core::ptr::from_ref(device), GFP_KERNEL))?;
        registry.leave(&first);
        registry.leave(&second);
        let made = benches.each_ref().map(|bench| &raw const *bench.rdma);
        assert_eq!(&seen[..], &made[..]);
        Ok(())
    }

    #[test]
    fn device_of_removed_interface_is_not_entered() -> Result {
        let bench = Bench::left()?;
        let registry = Registry::new(DEFAULTS)?;
        let entry = DeviceEntry::new(registry.clone(), bench.rdma.clone())?;
        assert_eq!(registry.enter(entry), Err(ENODEV));
        assert!(registry.find(|_| true).is_none());
        Ok(())
    }

    /// The carrier changed while the device was made, and the event found no entry.
    #[test]
    fn entered_device_has_state_of_its_interface() -> Result {
        let bench = Bench::new()?;
        let registry = Registry::new(DEFAULTS)?;
        let entry = DeviceEntry::new(registry.clone(), bench.rdma.clone())?;
        let device = &bench.device;
        let running = device.netdev.is_running();
        device.replace_reported_state(!running);
        registry.enter(entry.clone())?;
        assert_eq!(device.replace_reported_state(running), running);
        registry.leave(&entry);
        Ok(())
    }

    /// The interface was about to leave when the device was entered.
    #[test]
    fn interface_event_in_other_namespace_removes_device() -> Result {
        let benches = [Bench::new()?, Bench::left()?];
        let registry = Registry::new(DEFAULTS)?;
        for (bench, ends) in benches.iter().zip([false, true]) {
            let entry = DeviceEntry::new(registry.clone(), bench.rdma.clone())?;
            registry.entries.lock().push(entry.clone(), GFP_ATOMIC)?;
            registry.netdev_event(NetdevEvent::Register, &bench.device.netdev);
            assert_eq!(entry.is_removing(), ends);
            registry.queues.flush();
            registry.leave(&entry);
        }
        Ok(())
    }

    #[test]
    fn device_name_must_be_a_file_name() {
        for name in [c"", c".", c"..", c"/", c"a/b", c"/a", c"a/"] {
            assert!(!is_file_name(name));
        }
        for name in [c"a", c"riw0", c"...", c".a", c"a.b", c"a b"] {
            assert!(is_file_name(name));
        }
    }

    #[test]
    fn failed_device_creation_leaves_no_reference() -> Result {
        let netdev = NetDevice::loopback()?;
        let identity = Identity {
            provider: DeviceKind::Rxe.abi().provider(),
            node_guid: Guid::of(&netdev).octets(),
            node_desc: c"riwarp KUnit",
            comp_vectors: 1,
            node_type: DeviceKind::Rxe.node_type(),
        };
        let mut kept = None;
        let made =
            Registration::<Riwarp>::try_new(c"riwarp_kunit", &netdev, &identity, |link, _| {
                assert!(link.is_open());
                kept = Some(link);
                Err(ENOSPC)
            });
        assert_eq!(made.err(), Some(ENOSPC));
        let link = kept.ok_or(EINVAL)?;
        // The device is freed: an open link would read it.
        link.event(PortEvent::PortActive, 1);
        assert!(!link.is_open());
        Ok(())
    }
}
