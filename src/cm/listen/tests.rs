// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of listening sockets.

#[kernel::prelude::kunit_tests(riwarp_listen_socket)]
mod sockets {
    use super::super::*;
    use crate::{
        bench::Bench,
        cm::conn::bench::without_steps, //
    };
    use kernel_ext::{
        mm::noio::bench::with_io_waiting,
        net::{
            bench::{
                address,
                eventually,
                socket, //
            },
            AcceptQueue,
            Connecting,
            TcpState, //
        }, //
    };

    /// A socket whose only listener turns all connections away. Ended on drop.
    struct ListenSocketRig {
        listener: Arc<Listener>,
        listen_socket: Arc<ListenSocket>,
        bench: Bench,
    }

    impl ListenSocketRig {
        fn new() -> Result<Self> {
            Self::at(address(Family::V4, 0))
        }

        fn at(addr: SockAddr) -> Result<Self> {
            let bench = Bench::new()?;
            let listener = await_peers(&bench.rdma.cm, addr)?;
            let listen_socket = listener.socket.lock().clone().ok_or(EINVAL)?;
            bench.device.queues.conn.flush();
            Ok(Self {
                listener,
                listen_socket,
                bench,
            })
        }

        /// Opens connections that all wait in TCP.
        fn callers(&self, count: u32) -> Result<KVec<Socket>> {
            let to = {
                let inner = self.listen_socket.inner.lock();
                inner.socket.as_ref().ok_or(EINVAL)?.local_addr()?
            };
            let mut callers = KVec::new();
            for _ in 0..count {
                let caller = socket(Family::V4)?;
                if caller.connect_nonblock(&to)? == Connecting::Pending {
                    eventually(|| caller.state() == TcpState::Established)?;
                }
                // An acknowledged octet shows that the connection is established.
                let before = caller.acked();
                caller.send(b"x")?;
                eventually(|| caller.acked() > before)?;
                callers.push(caller, GFP_KERNEL)?;
            }
            Ok(callers)
        }

        /// Accepts all connections that wait in TCP; returns how many these were.
        fn take_all(&self) -> u32 {
            let inner = self.listen_socket.inner.lock();
            let accept = || inner.socket.as_ref()?.accept().ok();
            // CAST: a small count.
            without_io(|| core::iter::from_fn(accept).count() as u32)
        }
    }

    impl Drop for ListenSocketRig {
        fn drop(&mut self) {
            destroy_listen(self.listener.clone());
        }
    }

    #[test]
    fn accept_stops_at_its_budget() -> Result {
        let rig = ListenSocketRig::new()?;
        let left = without_steps(&rig.bench.device.queues, || {
            let _callers = rig.callers(BUDGET + 6)?;
            rig.listen_socket.accept_all();
            Ok(rig.take_all())
        })?;
        assert_eq!(left, 6);
        Ok(())
    }

    #[test]
    fn accept_continues_beyond_its_budget() -> Result {
        let rig = ListenSocketRig::new()?;
        let callers = without_steps(&rig.bench.device.queues, || rig.callers(BUDGET + 6))?;
        for caller in &callers {
            eventually(|| caller.recv(&mut [0]) != Err(EAGAIN))?;
        }
        rig.bench.device.queues.conn.flush();
        assert_eq!(rig.take_all(), 0);
        Ok(())
    }

    #[test]
    fn removal_of_full_listener_admits_waiting_connections() -> Result {
        let any = SockAddr::unspecified(Family::V4);
        let rig = ListenSocketRig::at(any)?;
        let other = await_peers(&rig.bench.rdma.cm, any)?;
        let shared = other.socket.lock().clone().ok_or(EINVAL)?;
        let mut entries = KVec::new();
        let peer = address(Family::V4, 0).ip();
        while let Ok(entry) = rig.listener.admission.enter(peer, KVec::new()) {
            entries.push(entry, GFP_KERNEL)?;
        }
        let callers = rig.callers(1)?;
        let waits = || {
            rig.bench.device.queues.conn.flush();
            callers
                .iter()
                .all(|caller| caller.recv(&mut [0]) == Err(EAGAIN))
        };
        let waits_for_full = waits();
        destroy_listen(rig.listener.clone());
        let waits_for_nobody = waits();
        destroy_listen(other);
        assert!(Arc::ptr_eq(&shared, &rig.listen_socket));
        assert!(waits_for_full && !waits_for_nobody);
        Ok(())
    }

    #[test]
    fn wildcard_listen_succeeds_without_interface() -> Result {
        let bench = Bench::left()?;
        let cm = &bench.rdma.cm;
        // An error would end the listening on the other devices, too.
        let listener = await_peers(cm, SockAddr::unspecified(Family::V4))?;
        assert!(listener.socket.lock().is_none());
        destroy_listen(listener);
        let refused = await_peers(cm, address(Family::V4, 0));
        assert_eq!(refused.err(), Some(ENODEV));
        Ok(())
    }

    #[test]
    fn listen_does_no_io_under_its_locks() -> Result {
        let bench = Bench::new()?;
        let listen = || await_peers(&bench.rdma.cm, SockAddr::unspecified(Family::V4));
        let (one, other) = (listen()?, listen()?);
        let listen_socket = one.socket.lock().clone().ok_or(EINVAL)?;
        // Steps of connections, which disk I/O may wait for, take these locks, too.
        with_io_waiting(|| {
            let _ = LISTEN_SOCKETS.get().map(|all| all.sockets.lock().len());
            drop(listen_socket.inner.lock());
        });
        destroy_listen(one);
        destroy_listen(other);
        Ok(())
    }

    #[test]
    fn loopback_listener_scope_is_shared_by_all_devices() -> Result {
        let bench = Bench::new()?;
        let scope = |addr, ifindex, is_held| {
            let params = ListenParams {
                ifindex,
                is_held,
                ..ListenParams::for_peers(&bench.device, addr)
            };
            params.scope()
        };
        let loopback = address(Family::V4, 7000);
        assert!(scope(loopback, 1, false) == scope(loopback, 2, false));
        assert!(scope(loopback, 1, false).is_shared());
        assert!(scope(loopback, 1, false) != scope(address(Family::V4, 7001), 1, false));
        assert!(scope(loopback, 1, false) != scope(address(Family::V6, 7000), 1, false));
        // In an out-of-band connect it is an address of its device.
        assert!(!scope(loopback, 1, true).is_shared());
        let any = SockAddr::unspecified(Family::V4);
        assert!(scope(any, 1, false) != scope(any, 2, false));
        Ok(())
    }

    #[test]
    fn connection_is_offered_to_listeners_of_one_device() -> Result {
        let (one, other) = (Bench::new()?, Bench::new()?);
        let any = SockAddr::unspecified(Family::V4);
        let listen = |bench: &Bench, origin| {
            let params = ListenParams::for_peers(&bench.device, any);
            Listener::open(bench.rdma.cm.clone(), Consumer::Oob, origin, &params, 0)
        };
        let listeners = [
            listen(&other, ListenerOrigin::Native)?,
            listen(&one, ListenerOrigin::Unknown)?,
            listen(&other, ListenerOrigin::Unknown)?,
        ];
        let InTurn { first, others } = InTurn::new(&listeners)?;
        let [native, _, unknown] = &listeners;
        let in_order = Arc::ptr_eq(&first, native)
            && matches!(&*others, [other] if Arc::ptr_eq(other, &unknown.admission));
        for listener in listeners {
            destroy_listen(listener);
        }
        assert!(in_order);
        Ok(())
    }

    #[test]
    fn accept_queue_is_long_from_half_full() -> Result {
        let rig = ListenSocketRig::new()?;
        without_steps(&rig.bench.device.queues, || {
            let queue = || {
                Some(
                    rig.listen_socket
                        .inner
                        .lock()
                        .socket
                        .as_ref()?
                        .accept_queue(),
                )
            };
            let _callers = rig.callers(u32::from(BACKLOG_MIN) / 2)?;
            assert_eq!(queue(), Some(AcceptQueue::Short));
            let _one_more = rig.callers(1)?;
            assert_eq!(queue(), Some(AcceptQueue::Long));
            Ok(())
        })
    }
}
