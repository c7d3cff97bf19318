// SPDX-License-Identifier: GPL-2.0

//! Tests of memory windows.

#[kernel::prelude::kunit_tests(riwarp_window)]
mod windows {
    use crate::mem::mr::{
        window::Bind,
        Access,
        AccessFlags,
        Association,
        Body,
        Kind,
        LocalUse,
        PdId,
        QpSerial,
        Region,
        Stag,
        StreamId, //
    };
    use kernel::{
        impl_has_work,
        new_work,
        prelude::*,
        sync::{
            atomic::{
                Atomic,
                Relaxed, //
            },
            Arc, //
        },
        time::{
            Delta,
            Instant,
            Monotonic, //
        },
        workqueue::{
            Work,
            WorkItem, //
        }, //
    };
    use kernel_ext::{
        net::bench::eventually,
        rdma::{
            bench::kernel_owned,
            mem::mem_map::{
                Divisible,
                Memory, //
            },
            types::MwType,
            wr::WcStatus, //
        },
        workqueue::OwnedQueue, //
    };

    const PD: PdId = PdId::new(3);
    const REGION: Stag = Stag::new(0x0001_0042);
    const WINDOW: Stag = Stag::new(0x0002_0017);
    const BASE: u64 = 0x10_0000;

    const STREAM: StreamId = StreamId {
        pd: PD,
        qp: QpSerial::new(5),
        rights: Access::ALL,
    };

    /// Another stream of the same domain.
    const NEIGHBOUR: StreamId = StreamId {
        qp: QpSerial::new(6),
        ..STREAM
    };

    /// The octets 0 to 255, used as the memory of a process.
    static OCTETS: [u8; 256] = {
        let mut octets = [0; 256];
        let mut n = 0;
        while n < 256 {
            octets[n] = n as u8;
            n += 1;
        }
        octets
    };

    fn memory() -> Result<Memory> {
        let start = OCTETS.as_ptr().expose_provenance() as u64;
        Memory::kernel_virtual(kernel_owned(), start, 256)
    }

    fn region_of(kind: Kind, pd: PdId, access: Access, memory: Memory) -> Result<Arc<Region>> {
        let body = Body {
            stag: REGION,
            ..Body::new(BASE, 256, access, memory)
        };
        Region::new(kind, pd, body)
    }

    /// Makes a region that windows can be bound to.
    fn region(access: Access) -> Result<Arc<Region>> {
        let memory = Divisible::try_new()?.fill(memory()?);
        region_of(Kind::User, PD, access, memory)
    }

    fn window(kind: MwType) -> Result<Arc<Region>> {
        let body = Body {
            stag: WINDOW,
            valid: false,
            ..Body::new(0, 0, Access::NONE, Memory::nothing())
        };
        Region::new(Kind::Window(kind), PD, body)
    }

    /// Binds 16 octets at offset 32, for reading.
    const BIND: Bind = Bind {
        window: WINDOW,
        key: Stag::new(0x0002_0099),
        region: REGION,
        addr: BASE + 32,
        len: 16,
        access: AccessFlags::REMOTE_READ,
    };

    /// Binds the same window once more, with the next key.
    const AGAIN: Bind = Bind {
        window: BIND.key,
        key: Stag::new(0x0002_009a),
        ..BIND
    };

    const REFUSED: Result<(), WcStatus> = Err(WcStatus::MwBind);
    const BOTH: [MwType; 2] = [MwType::One, MwType::Two];

    /// Returns whether the window is unbound and the region has no window.
    fn is_unbound(window: &Region, region: &Region) -> bool {
        window.stag() == WINDOW && !window.view(STREAM).valid && region.windows() == 0
    }

    #[test]
    fn bound_window_has_requested_range_and_rights() -> Result {
        for kind in BOTH {
            let (window, region) = (window(kind)?, region(Access::NONE)?);
            assert_eq!(window.bind(STREAM, &BIND, Some(&region)), Ok(()));
            let view = window.view(STREAM);
            assert!(view.valid && view.association == Association::Ours);
            assert_eq!((view.stag, window.stag()), (BIND.key, BIND.key));
            assert_eq!((view.base, view.len), (BASE + 32, 16));
            assert_eq!(view.access, Access::REMOTE_READ);
            assert_eq!(region.windows(), 1);
            let inside = window.try_access().ok_or(EINVAL)?;
            let mut octets = [0; 16];
            inside.memory().read(0, &mut octets)?;
            assert_eq!(octets, OCTETS[32..48]);
            // Octets after the window are not accessible.
            assert_eq!(inside.memory().read(1, &mut octets), Err(EFAULT));
        }
        Ok(())
    }

    #[test]
    fn window_bind_needs_right_to_persistent_flush() -> Result {
        let flushed = Bind {
            access: AccessFlags::FLUSH_GLOBAL | AccessFlags::FLUSH_PERSISTENT,
            ..BIND
        };
        for kind in BOTH {
            let (window, plain) = (window(kind)?, region(Access::FLUSH_GLOBAL)?);
            assert_eq!(window.bind(STREAM, &flushed, Some(&plain)), REFUSED);
            // The right to flush to all of the host needs none.
            let global = Bind {
                access: AccessFlags::FLUSH_GLOBAL,
                ..BIND
            };
            assert_eq!(window.bind(STREAM, &global, Some(&plain)), Ok(()));
            let persistent = region(Access::FLUSH_PERSISTENT)?;
            let window = self::window(kind)?;
            assert_eq!(window.bind(STREAM, &flushed, Some(&persistent)), Ok(()));
        }
        Ok(())
    }

    #[test]
    fn window_bind_does_not_change_stag_index() -> Result {
        let (window, region) = (window(MwType::Two)?, region(Access::NONE)?);
        let elsewhere = Bind {
            key: Stag::new(0x0007_0099),
            ..BIND
        };
        assert_eq!(window.bind(STREAM, &elsewhere, Some(&region)), Ok(()));
        assert_eq!(window.stag(), BIND.key);
        Ok(())
    }

    #[test]
    fn window_bind_needs_range_inside_region_and_right_key() -> Result {
        let (addr, len) = (BASE, 256);
        for bad in [
            Bind {
                len: 257,
                addr,
                ..BIND
            },
            Bind {
                len: 1,
                addr: BASE + 256,
                ..BIND
            },
            Bind {
                len: 1,
                addr: BASE - 1,
                ..BIND
            },
            Bind {
                addr: u64::MAX,
                ..BIND
            },
            Bind {
                len: u64::MAX,
                ..BIND
            },
            Bind {
                region: Stag::new(REGION.raw() + 1),
                ..BIND
            },
            Bind {
                window: Stag::new(WINDOW.raw() + 1),
                ..BIND
            },
        ] {
            for kind in BOTH {
                let (window, region) = (window(kind)?, region(Access::NONE)?);
                assert_eq!(window.bind(STREAM, &bad, Some(&region)), REFUSED);
                assert!(is_unbound(&window, &region));
                // The window can still be bound.
                let whole = Bind { addr, len, ..BIND };
                assert_eq!(window.bind(STREAM, &whole, Some(&region)), Ok(()));
            }
        }
        let window = window(MwType::One)?;
        assert_eq!(window.bind(STREAM, &BIND, None), REFUSED);
        Ok(())
    }

    #[test]
    fn window_rights_are_limited_by_region() -> Result {
        let write = Access::LOCAL_WRITE;
        for (asked, needs, granted) in [
            (AccessFlags::REMOTE_READ, Access::NONE, Access::REMOTE_READ),
            (AccessFlags::REMOTE_WRITE, write, Access::REMOTE_WRITE),
            (AccessFlags::REMOTE_ATOMIC, write, Access::REMOTE_ATOMIC),
        ] {
            for has in [Access::NONE, write] {
                let (window, region) = (window(MwType::Two)?, region(has)?);
                let bind = Bind {
                    access: asked,
                    ..BIND
                };
                let bound = window.bind(STREAM, &bind, Some(&region));
                if has.contains(needs) {
                    assert_eq!((bound, window.view(STREAM).access), (Ok(()), granted));
                } else {
                    assert_eq!(bound, REFUSED);
                    assert!(is_unbound(&window, &region));
                }
            }
        }
        // Rights that the device does not support.
        let (window, region) = (window(MwType::Two)?, region(write)?);
        for access in [AccessFlags::ZERO_BASED, AccessFlags::from_bits(1 << 31)] {
            let bind = Bind { access, ..BIND };
            assert_eq!(window.bind(STREAM, &bind, Some(&region)), REFUSED);
        }
        assert!(is_unbound(&window, &region));
        Ok(())
    }

    #[test]
    fn window_and_region_must_share_a_domain() -> Result {
        let foreign = PdId::new(4);
        let other = StreamId {
            pd: foreign,
            ..STREAM
        };
        for kind in BOTH {
            // A region of another domain.
            let divisible = Divisible::try_new()?.fill(memory()?);
            let region = region_of(Kind::User, foreign, Access::NONE, divisible)?;
            let window = window(kind)?;
            assert_eq!(window.bind(STREAM, &BIND, Some(&region)), REFUSED);
            assert!(is_unbound(&window, &region));
            // A window of another domain.
            assert_eq!(window.bind(other, &BIND, Some(&region)), REFUSED);
            assert!(is_unbound(&window, &region));
        }
        Ok(())
    }

    #[test]
    fn window_bind_needs_region_with_bind_right() -> Result {
        let window = window(MwType::Two)?;
        // A region that was registered without the right to bind.
        let region = region_of(Kind::User, PD, Access::NONE, memory()?)?;
        assert_eq!(window.bind(STREAM, &BIND, Some(&region)), REFUSED);
        assert!(is_unbound(&window, &region));
        for kind in [Kind::Dma, Kind::FastReg, Kind::Window(MwType::One)] {
            let divisible = Divisible::try_new()?.fill(memory()?);
            let region = region_of(kind, PD, Access::NONE, divisible)?;
            assert_eq!(window.bind(STREAM, &BIND, Some(&region)), REFUSED);
            assert!(is_unbound(&window, &region));
        }
        // A region is not a window.
        let region = self::region(Access::NONE)?;
        assert_eq!(region.bind(STREAM, &BIND, Some(&region)), REFUSED);
        assert_eq!(region.windows(), 0);
        Ok(())
    }

    #[test]
    fn window_bind_to_deregistered_region_is_refused() -> Result {
        let (window, region) = (window(MwType::Two)?, region(Access::NONE)?);
        drop(region.body.revoke());
        assert_eq!(window.bind(STREAM, &BIND, Some(&region)), REFUSED);
        assert!(is_unbound(&window, &region));
        Ok(())
    }

    /// Another CPU's view of a region.
    #[pin_data]
    struct Watcher {
        region: Arc<Region>,
        /// Has access to the region meanwhile.
        inside: bool,
        /// How far it has come; at the end [`LEFT`] and the most windows that it has seen.
        state: Atomic<u32>,
        #[pin]
        work: Work<Self>,
    }

    impl_has_work! {
        impl HasWork<Self> for Watcher { self.work }
    }

    const WATCHES: u32 = 1;
    const TOLD: u32 = 2;
    const LEFT: u32 = 3;

    impl WorkItem for Watcher {
        type Pointer = Arc<Self>;

        fn run(this: Arc<Self>) {
            let inside = this.inside.then(|| this.region.try_access());
            this.state.store(WATCHES, Relaxed);
            let begin = Instant::<Monotonic>::now();
            let mut windows = 0;
            while this.state.load(Relaxed) == WATCHES && begin.elapsed() < Delta::from_secs(5) {
                windows = this.region.windows().max(windows);
            }
            this.state.store(LEFT + windows, Relaxed);
            drop(inside);
        }
    }

    /// Calls `f` while another CPU watches the region, from `inside` or outside. Returns whether it
    /// still did when `f` returned, and the most windows that it has seen.
    fn watched(region: &Arc<Region>, inside: bool, f: impl FnOnce()) -> Result<(bool, u32)> {
        let queue = OwnedQueue::for_tests()?;
        let watcher = Arc::pin_init(
            pin_init!(Watcher {
                region: region.clone(),
                inside,
                state: Atomic::new(0),
                work <- new_work!("Watcher::work"),
            }),
            GFP_KERNEL,
        )?;
        assert!(queue.enqueue(watcher.clone()).is_ok());
        eventually(|| watcher.state.load(Relaxed) != 0)?;
        f();
        let watches = watcher.state.cmpxchg(WATCHES, TOLD, Relaxed).is_ok();
        queue.flush();
        Ok((watches, watcher.state.load(Relaxed) - LEFT))
    }

    #[test]
    fn refused_window_change_does_not_wait_for_accesses() -> Result {
        let foreign = StreamId {
            pd: PdId::new(4),
            ..STREAM
        };
        for kind in BOTH {
            let (window, region) = (window(kind)?, region(Access::NONE)?);
            assert_eq!(window.bind(STREAM, &BIND, Some(&region)), Ok(()));
            let (stays, _) = watched(&window, true, || {
                let nothing = Bind { len: 0, ..AGAIN };
                assert_eq!(window.bind(foreign, &nothing, None), REFUSED);
                assert_eq!(window.bind(STREAM, &BIND, Some(&region)), REFUSED);
                assert!(window.invalidate_local(NEIGHBOUR, BIND.key).is_err());
                assert!(window.invalidate_remote(NEIGHBOUR, BIND.key).is_err());
            })?;
            assert!(stays);
            assert!(window.view(STREAM).valid && window.stag() == BIND.key);
        }
        Ok(())
    }

    #[test]
    fn refused_window_bind_is_not_counted() -> Result {
        let window = window(MwType::One)?;
        let divisible = Divisible::try_new()?.fill(memory()?);
        let region = region_of(Kind::User, PdId::new(4), Access::NONE, divisible)?;
        let (_, windows) = watched(&region, false, || {
            for _ in 0..10_000 {
                assert_eq!(window.bind(STREAM, &BIND, Some(&region)), REFUSED);
            }
        })?;
        assert_eq!(windows, 0);
        Ok(())
    }

    #[test]
    fn type_1_window_can_be_rebound() -> Result {
        let (window, region) = (window(MwType::One)?, region(Access::NONE)?);
        let other = self::region(Access::NONE)?;
        assert_eq!(window.bind(STREAM, &BIND, Some(&region)), Ok(()));
        // Only the current key works.
        assert_eq!(window.bind(STREAM, &BIND, Some(&other)), REFUSED);
        assert_eq!((region.windows(), other.windows()), (1, 0));
        assert_eq!(window.bind(STREAM, &AGAIN, Some(&other)), Ok(()));
        assert_eq!((region.windows(), other.windows()), (0, 1));
        assert_eq!(window.stag(), AGAIN.key);
        // A bind of 0 octets unbinds the window.
        let end = Bind {
            window: AGAIN.key,
            key: BIND.key,
            len: 0,
            ..BIND
        };
        assert_eq!(window.bind(STREAM, &end, None), Ok(()));
        assert_eq!((region.windows(), other.windows()), (0, 0));
        assert!(!window.view(STREAM).valid && window.stag() == BIND.key);
        // Any stream of the domain may bind it.
        let bound = window.bind(STREAM, &AGAIN, Some(&region));
        assert_eq!(bound, Ok(()));
        assert_eq!(window.view(NEIGHBOUR).association, Association::Ours);
        Ok(())
    }

    #[test]
    fn type_2_window_is_bound_once_to_its_stream() -> Result {
        let (window, region) = (window(MwType::Two)?, region(Access::NONE)?);
        let nothing = Bind { len: 0, ..BIND };
        assert_eq!(window.bind(STREAM, &nothing, Some(&region)), REFUSED);
        assert_eq!(window.bind(STREAM, &BIND, Some(&region)), Ok(()));
        assert_eq!(window.bind(STREAM, &AGAIN, Some(&region)), REFUSED);
        assert_eq!(window.stag(), BIND.key);
        assert_eq!(region.windows(), 1);
        assert_eq!(window.view(NEIGHBOUR).association, Association::Foreign);
        // Another stream cannot invalidate it either.
        let refused = window.invalidate_local(NEIGHBOUR, BIND.key);
        assert_eq!(refused, Err(WcStatus::LocalQpOperation));
        assert!(window.invalidate_remote(NEIGHBOUR, BIND.key).is_err());
        assert!(window.view(STREAM).valid);
        Ok(())
    }

    #[test]
    fn invalidated_window_releases_its_region() -> Result {
        let (window, region) = (window(MwType::Two)?, region(Access::NONE)?);
        assert_eq!(window.bind(STREAM, &BIND, Some(&region)), Ok(()));
        assert_eq!(window.invalidate_remote(STREAM, BIND.key), Ok(()));
        assert!(!window.view(STREAM).valid && region.windows() == 0);
        let inside = window.try_access().ok_or(EINVAL)?;
        assert!(inside.memory().is_empty());
        drop(inside);
        // It can be bound again by its current key, and either side can invalidate it.
        assert_eq!(window.bind(STREAM, &AGAIN, Some(&region)), Ok(()));
        assert_eq!(window.invalidate_local(STREAM, AGAIN.key), Ok(()));
        assert_eq!(region.windows(), 0);
        // Neither side can invalidate a window of type 1.
        let window = self::window(MwType::One)?;
        assert_eq!(window.bind(STREAM, &BIND, Some(&region)), Ok(()));
        assert!(window.invalidate_remote(STREAM, BIND.key).is_err());
        assert!(window.invalidate_local(STREAM, BIND.key).is_err());
        assert!(window.view(STREAM).valid && region.windows() == 1);
        Ok(())
    }

    #[test]
    fn rebinding_with_same_key_is_a_new_binding() -> Result {
        for kind in BOTH {
            let (window, region) = (window(kind)?, region(Access::NONE)?);
            let binding = || window.try_access().map(|inside| inside.binding());
            assert_eq!(window.bind(STREAM, &BIND, Some(&region)), Ok(()));
            let first = binding();
            assert_eq!(binding(), first);
            if kind == MwType::Two {
                assert_eq!(window.invalidate_local(STREAM, BIND.key), Ok(()));
            }
            let same = Bind {
                window: BIND.key,
                ..BIND
            };
            assert_eq!(window.bind(STREAM, &same, Some(&region)), Ok(()));
            assert_eq!(window.stag(), BIND.key);
            assert!(binding() > first);
        }
        Ok(())
    }

    #[test]
    fn region_with_windows_cannot_be_deregistered() -> Result {
        let (first, second) = (window(MwType::One)?, window(MwType::Two)?);
        let region = region(Access::NONE)?;
        for window in [&first, &second] {
            assert_eq!(window.bind(STREAM, &BIND, Some(&region)), Ok(()));
        }
        assert_eq!(region.windows(), 2);
        assert_eq!(region.refuse_windows(), Err(EBUSY));
        drop(first.body.revoke());
        assert_eq!(region.refuse_windows(), Err(EBUSY));
        assert_eq!(second.invalidate_local(STREAM, BIND.key), Ok(()));
        assert_eq!(region.refuse_windows(), Ok(()));
        // From now on no window can be bound; a second call succeeds too.
        assert_eq!(second.bind(STREAM, &AGAIN, Some(&region)), REFUSED);
        assert_eq!((region.refuse_windows(), region.windows()), (Ok(()), 0));
        Ok(())
    }

    #[test]
    fn window_key_is_refused_for_local_access() -> Result {
        let (window, region) = (window(MwType::Two)?, region(Access::LOCAL_WRITE)?);
        assert_eq!(window.bind(STREAM, &BIND, Some(&region)), Ok(()));
        let used = window.check_local(BIND.key, PD, BIND.addr, 1, LocalUse::Source);
        assert_eq!(used, Err(WcStatus::LocalProtection));
        let used = region.check_local(REGION, PD, BIND.addr, 1, LocalUse::Source);
        assert_eq!(used, Ok(32));
        Ok(())
    }
}
