// SPDX-License-Identifier: GPL-2.0

//! All connections of a device, by number.
//!
//! The table finds a connection by its number, and at the end of the device waits until none is
//! left. Numbers begin at 1 and are never reused, so a stale number finds no connection.
//!
//! Context: process.

use core::{
    convert::Infallible,
    num::NonZeroUsize, //
};

use kernel::{
    new_spinlock,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        Arc,
        SpinLock, //
    }, //
};

use kernel_ext::warn_on_once;

use crate::{
    cm::Cm,
    device::{
        refs::{
            Ref,
            Refs, //
        },
        Device, //
    }, //
};

use super::{
    want,
    Conn, //
};

/// The connections of a device.
#[pin_data]
pub(in crate::cm) struct Conns {
    #[pin]
    inner: SpinLock<ConnsInner>,
    /// Counts the connections, released or not.
    alive: Arc<Refs>,
}

struct ConnsInner {
    /// Connections that are not released yet.
    table: RBTree<u64, Arc<Conn>>,
    /// The next number to assign.
    next: u64,
    /// Whether new connections are refused.
    closed: bool,
}

impl Conns {
    /// Makes an empty table.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(in crate::cm) fn new() -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            inner <- new_spinlock!(
                ConnsInner {
                    table: RBTree::new(),
                    next: 1,
                    closed: false,
                },
                "riwarp::Conns::inner"
            ),
            alive: Refs::new()?,
        }? Error)
    }

    /// Finds the connection whose request is being answered, unless it is released.
    pub(in crate::cm) fn asked(&self, name: NonZeroUsize) -> Option<Arc<Conn>> {
        self.find(u64::try_from(name.get()).ok()?)
    }

    /// Finds a connection that is not released yet.
    pub(in crate::cm) fn find(&self, number: u64) -> Option<Arc<Conn>> {
        self.inner.lock().table.get(&number).cloned()
    }

    /// Ends all connections at once and waits until the last one is gone: its socket closed and
    /// none of its work queued.
    ///
    /// Called at the end of a device, after its queue pairs are gone; any other holder of a
    /// connection must drop its reference by itself.
    ///
    /// Context: process, without the rtnl, and not from an item of the connections' queue.
    pub(in crate::cm) fn shut_down(&self) {
        if core::mem::replace(&mut self.inner.lock().closed, true) {
            return;
        }
        let killed = self.for_each(|conn| {
            want(&conn.wants.kill);
            conn.kick();
            Ok::<(), Infallible>(())
        });
        let Ok(()) = killed;
        self.alive.wait_empty();
    }

    /// Calls `f` for each connection, in the order of their numbers, without the lock held. Ends at
    /// its first error.
    pub(in crate::cm) fn for_each<E>(
        &self,
        mut f: impl FnMut(&Arc<Conn>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut from = 0;
        loop {
            let found = {
                let inner = self.inner.lock();
                let found = inner
                    .table
                    .cursor_lower_bound(&from)
                    .map(|cursor| (*cursor.current().0, cursor.current().1.clone()));
                found
            };
            let Some((number, conn)) = found else {
                return Ok(());
            };
            f(&conn)?;
            from = number.saturating_add(1);
        }
    }
}

/// A connection's entry in the table, freed on drop.
pub(in crate::cm) struct ConnEntry {
    cm: Arc<Cm>,
    number: u64,
    /// Dropped last.
    _counted: Ref,
}

impl ConnEntry {
    /// Reserves an entry; lookups do not find the connection yet.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the device is being removed.
    pub(in crate::cm) fn take(cm: Arc<Cm>) -> Result<Self> {
        let (number, counted) = {
            let mut inner = cm.conns.inner.lock();
            if inner.closed {
                return Err(ENODEV);
            }
            let number = inner.next;
            // NO-OVERFLOW: 2^64 connections are out of reach.
            inner.next = number.wrapping_add(1);
            // With the lock held, so that `shut_down` waits for it.
            (number, Ref::new(&cm.conns.alive))
        };
        Ok(Self {
            cm,
            number,
            _counted: counted,
        })
    }

    /// Counts what belongs to the connection and may outlive the entry.
    pub(in crate::cm) fn count(&self) -> Ref {
        Ref::new(&self.cm.conns.alive)
    }

    /// Returns the connections of the device.
    pub(in crate::cm) fn cm(&self) -> &Arc<Cm> {
        &self.cm
    }

    /// Returns the device.
    pub(in crate::cm) fn device(&self) -> &Arc<Device> {
        &self.cm.device
    }

    /// Returns the number of the entry.
    pub(in crate::cm) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the number in the connection manager's type.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it does not fit, on a 32-bit machine.
    pub(in crate::cm) fn name(&self) -> Result<NonZeroUsize> {
        let number = usize::try_from(self.number)?;
        NonZeroUsize::new(number).ok_or(EINVAL)
    }

    /// Makes lookups find the connection, until [`ConnEntry::remove`].
    ///
    /// # Errors
    ///
    /// * `ENODEV` if the device is being removed.
    /// * `ENOMEM`.
    pub(in crate::cm) fn publish(&self, conn: &Arc<Conn>) -> Result {
        let node = RBTreeNode::new(self.number, conn.clone(), GFP_KERNEL)?;
        let mut inner = self.cm.conns.inner.lock();
        if inner.closed {
            drop(inner);
            return Err(ENODEV);
        }
        let before = inner.table.insert(node);
        drop(inner);
        // No number is assigned twice. The other connection is not found any more.
        warn_on_once!(before.is_some());
        Ok(())
    }

    /// Removes the connection from the table, if present.
    pub(in crate::cm) fn remove(&self) {
        let conn = self.cm.conns.inner.lock().table.remove(&self.number);
        // The caller has a reference of its own.
        drop(conn);
    }
}

#[kernel::prelude::kunit_tests(riwarp_conns)]
mod tests {
    use super::*;
    use crate::bench::Bench;
    use kernel::{
        impl_has_work,
        new_mutex,
        new_work,
        sync::{
            atomic::{
                Atomic,
                Relaxed, //
            },
            Mutex, //
        },
        time::{
            delay::fsleep,
            Delta, //
        },
        workqueue::{
            Work,
            WorkItem, //
        }, //
    };

    #[test]
    fn no_number_is_given_twice() -> Result {
        let bench = Bench::new()?;
        let first = ConnEntry::take(bench.rdma.cm.clone())?;
        let second = ConnEntry::take(bench.rdma.cm.clone())?;
        assert_eq!((first.number(), second.number()), (1, 2));
        assert_eq!(second.name().map(NonZeroUsize::get), Ok(2));
        drop(first);
        drop(second);
        assert_eq!(ConnEntry::take(bench.rdma.cm.clone())?.number(), 3);
        Ok(())
    }

    #[test]
    fn an_unpublished_connection_is_not_found() -> Result {
        let bench = Bench::new()?;
        let entry = ConnEntry::take(bench.rdma.cm.clone())?;
        let conns = &bench.rdma.cm.conns;
        assert!(conns.find(entry.number()).is_none() && conns.asked(entry.name()?).is_none());
        entry.remove();
        assert!(conns.find(0).is_none() && conns.find(u64::MAX).is_none());
        Ok(())
    }

    /// A work item that drops an entry.
    #[pin_data]
    struct LateRemoval {
        #[pin]
        entry: Mutex<Option<ConnEntry>>,
        left: Atomic<bool>,
        #[pin]
        work: Work<Self>,
    }

    impl_has_work! {
        impl HasWork<Self> for LateRemoval { self.work }
    }

    impl WorkItem for LateRemoval {
        type Pointer = Arc<Self>;

        fn run(this: Arc<Self>) {
            // A caller that does not wait has returned by then.
            fsleep(Delta::from_millis(50));
            let entry = this.entry.lock().take();
            this.left.store(true, Relaxed);
            drop(entry);
        }
    }

    #[test]
    fn the_end_of_a_device_waits_for_the_last_one_and_admits_no_more() -> Result {
        let bench = Bench::new()?;
        let entry = ConnEntry::take(bench.rdma.cm.clone())?;
        let leaver = Arc::pin_init(
            pin_init!(LateRemoval {
                entry <- new_mutex!(Some(entry)),
                left: Atomic::new(false),
                work <- new_work!("LateRemoval::work"),
            }),
            GFP_KERNEL,
        )?;
        assert!(bench.device.queues.reaper.enqueue(leaver.clone()).is_ok());
        bench.rdma.cm.conns.shut_down();
        assert!(leaver.left.load(Relaxed));
        assert_eq!(ConnEntry::take(bench.rdma.cm.clone()).err(), Some(ENODEV));
        // Without connections it returns at once.
        bench.rdma.cm.conns.shut_down();
        bench.device.queues.reaper.flush();
        Ok(())
    }
}
