// SPDX-License-Identifier: GPL-2.0

//! All connections of a device, by number.
//!
//! What enters: connections as they are made and released, and the end of the device. What leaves:
//! a connection by its number, and, at the end, the certainty that none is left.
//!
//! Numbers begin at 1 and are never used twice, so that one that is kept too long finds nothing.
//!
//! Context: process.

use core::num::NonZeroUsize;

use kernel::{
    new_condvar,
    new_mutex,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        Arc,
        CondVar,
        Mutex, //
    }, //
};

use crate::device::Device;

use super::{
    want,
    Conn, //
};

/// The connections of a device.
#[pin_data]
pub(crate) struct Conns {
    #[pin]
    inner: Mutex<ConnsInner>,
    /// The last connection is gone.
    #[pin]
    empty: CondVar,
}

struct ConnsInner {
    /// Those that are not released yet.
    table: RBTree<u64, Arc<Conn>>,
    /// The number of the next one.
    next: u64,
    /// How many there are, released or not.
    alive: usize,
    /// No more are admitted.
    closed: bool,
}

impl Conns {
    /// Makes an empty table.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            inner <- new_mutex!(
                ConnsInner {
                    table: RBTree::new(),
                    next: 1,
                    alive: 0,
                    closed: false,
                },
                "riwarp::Conns::inner"
            ),
            empty <- new_condvar!("riwarp::Conns::empty"),
        })
    }

    /// Finds the connection of an answer to a request, unless it is released.
    pub(in crate::cm) fn asked(&self, name: NonZeroUsize) -> Option<Arc<Conn>> {
        self.find(u64::try_from(name.get()).ok()?)
    }

    /// Finds a connection that is not released yet.
    pub(crate) fn find(&self, number: u64) -> Option<Arc<Conn>> {
        self.inner.lock().table.get(&number).cloned()
    }

    /// Ends all connections at once, and returns when the last one is gone: its socket is closed
    /// and nothing of it is queued.
    ///
    /// For the end of a device, after its queue pairs; whatever still holds a connection must let
    /// go by itself.
    ///
    /// Context: process, without the rtnl, and not from an item of the connections' queue.
    pub(crate) fn shut_down(&self) {
        self.inner.lock().closed = true;
        self.for_each(|conn| {
            want(&conn.wants.kill);
            conn.kick();
        });
        let mut inner = self.inner.lock();
        while inner.alive > 0 {
            self.empty.wait(&mut inner);
        }
    }

    /// Calls `f` for each connection, in the order of their numbers and without the lock.
    fn for_each(&self, mut f: impl FnMut(&Arc<Conn>)) {
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
                return;
            };
            f(&conn);
            from = number.saturating_add(1);
        }
    }
}

/// A connection's entry in the table. Dropping it frees it.
pub(in crate::cm) struct ConnEntry {
    device: Arc<Device>,
    number: u64,
}

impl ConnEntry {
    /// Reserves an entry; the connection is not found by it yet.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the device is going.
    pub(in crate::cm) fn take(device: Arc<Device>) -> Result<Self> {
        let number = {
            let mut inner = device.conns.inner.lock();
            if inner.closed {
                return Err(ENODEV);
            }
            let number = inner.next;
            // NO-OVERFLOW: nobody makes 2^64 connections.
            inner.next = number.wrapping_add(1);
            inner.alive = inner.alive.saturating_add(1);
            number
        };
        Ok(Self { device, number })
    }

    /// The device.
    pub(in crate::cm) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The number of the entry.
    pub(in crate::cm) fn number(&self) -> u64 {
        self.number
    }

    /// The number as the connection manager keeps it.
    ///
    /// # Errors
    ///
    /// `EINVAL` if that cannot hold it, on a machine of 32 bits.
    pub(in crate::cm) fn name(&self) -> Result<NonZeroUsize> {
        let number = usize::try_from(self.number)?;
        NonZeroUsize::new(number).ok_or(EINVAL)
    }

    /// Lets the connection be found, until [`ConnEntry::remove`].
    ///
    /// # Errors
    ///
    /// * `ENODEV` if the device is going.
    /// * `ENOMEM`.
    pub(in crate::cm) fn publish(&self, conn: &Arc<Conn>) -> Result {
        let node = RBTreeNode::new(self.number, conn.clone(), GFP_KERNEL)?;
        let mut inner = self.device.conns.inner.lock();
        if inner.closed {
            drop(inner);
            return Err(ENODEV);
        }
        inner.table.insert(node);
        Ok(())
    }

    /// Takes the connection out of the table; nothing happens if it is not there.
    pub(in crate::cm) fn remove(&self) {
        let conn = self.device.conns.inner.lock().table.remove(&self.number);
        // The caller has a reference of its own.
        drop(conn);
    }
}

impl Drop for ConnEntry {
    fn drop(&mut self) {
        let mut inner = self.device.conns.inner.lock();
        inner.alive = inner.alive.saturating_sub(1);
        if inner.alive == 0 {
            self.device.conns.empty.notify_all();
        }
    }
}

#[kernel::prelude::kunit_tests(riwarp_conns)]
mod tests {
    use super::*;
    use crate::bench::Bench;
    use kernel::{
        impl_has_work,
        new_work,
        sync::atomic::{
            Atomic,
            Relaxed, //
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
        let first = ConnEntry::take(bench.device.clone())?;
        let second = ConnEntry::take(bench.device.clone())?;
        assert_eq!((first.number(), second.number()), (1, 2));
        assert_eq!(second.name().map(NonZeroUsize::get), Ok(2));
        drop(first);
        drop(second);
        assert_eq!(ConnEntry::take(bench.device.clone())?.number(), 3);
        Ok(())
    }

    #[test]
    fn an_unpublished_connection_is_not_found() -> Result {
        let bench = Bench::new()?;
        let entry = ConnEntry::take(bench.device.clone())?;
        let conns = &bench.device.conns;
        assert!(conns.find(entry.number()).is_none() && conns.asked(entry.name()?).is_none());
        entry.remove();
        assert!(conns.find(0).is_none() && conns.find(u64::MAX).is_none());
        Ok(())
    }

    /// Drops an entry when it is run.
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
            // Whoever does not wait for it is through by then.
            fsleep(Delta::from_millis(50));
            let entry = this.entry.lock().take();
            this.left.store(true, Relaxed);
            drop(entry);
        }
    }

    #[test]
    fn the_end_of_a_device_waits_for_the_last_one_and_admits_no_more() -> Result {
        let bench = Bench::new()?;
        let entry = ConnEntry::take(bench.device.clone())?;
        let leaver = Arc::pin_init(
            pin_init!(LateRemoval {
                entry <- new_mutex!(Some(entry)),
                left: Atomic::new(false),
                work <- new_work!("LateRemoval::work"),
            }),
            GFP_KERNEL,
        )?;
        assert!(bench.device.queues.reaper.enqueue(leaver.clone()).is_ok());
        bench.device.conns.shut_down();
        assert!(leaver.left.load(Relaxed));
        assert_eq!(ConnEntry::take(bench.device.clone()).err(), Some(ENODEV));
        // Of none it is over at once.
        bench.device.conns.shut_down();
        bench.device.queues.reaper.flush();
        Ok(())
    }
}
