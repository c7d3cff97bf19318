// SPDX-License-Identifier: GPL-2.0

//! KUnit suites of sockets, their callbacks, devices and namespaces, over loopback connections with
//! both ends here.

pub mod bench;

#[kernel::prelude::kunit_tests(riwarp_socket)]
mod socket {
    use crate::crc32c;
    use crate::net::bench::*;
    use crate::net::Family;
    use crate::net::Grow;
    use crate::net::NetId;
    use crate::net::NetRef;
    use crate::net::SendHint;
    use crate::net::SockAddr;
    use crate::net::Socket;
    use crate::net::TcpState;
    use crate::net::TxBatch;
    use kernel::prelude::*;

    #[test]
    fn connected_sockets_report_each_others_address() -> Result {
        for family in [Family::V4, Family::V6] {
            let (active, passive) = pair(family)?;
            assert_eq!(active.family(), family);
            assert_eq!(passive.family(), family);
            assert_eq!(active.peer_addr()?, passive.local_addr()?);
            assert_eq!(
                active.addr_pair(),
                (active.local_addr()?, active.peer_addr()?)
            );
            assert_eq!(passive.peer_addr()?, active.local_addr()?);
            assert_eq!(passive.state(), TcpState::Established);
            assert_eq!((active.error(), passive.error()), (0, 0));
            assert_eq!(active.net_id(), NetRef::init_net().id());
            assert!(active.emss() > 1000);
        }
        Ok(())
    }

    #[test]
    fn kernel_thread_is_in_initial_namespace() {
        assert_eq!(NetId::current(), NetRef::init_net().id());
    }

    #[test]
    fn octets_are_received_in_both_directions() -> Result {
        let (active, passive) = pair(Family::V4)?;
        let mut octets = [0; 8];
        assert_eq!(passive.recv(&mut octets), Err(EAGAIN));
        assert_eq!(active.send(b"there")?, 5);
        eventually(|| passive.peek(&mut octets) == Ok(5))?;
        assert_eq!(passive.recv(&mut octets), Ok(5));
        assert_eq!(&octets[..5], b"there");
        assert_eq!(passive.recv(&mut octets), Err(EAGAIN));
        assert_eq!(passive.recv(&mut []), Err(EINVAL));
        assert_eq!(passive.send(b"back")?, 4);
        eventually(|| active.recv(&mut octets) == Ok(4))?;
        assert_eq!(&octets[..4], b"back");
        Ok(())
    }

    #[test]
    fn a_copy_leaves_no_memory_in_the_socket() -> Result {
        let (active, passive) = pair(Family::V4)?;
        assert_eq!(active.send(b"first")?, 5);
        // SAFETY: A field of a valid socket; only `send` writes it.
        let page = unsafe { (*active.sk()).sk_frag.page };
        assert!(page.is_null());
        // What was sent is not affected.
        assert_eq!(active.send(b"next")?, 4);
        let mut octets = [0; 9];
        eventually(|| passive.peek(&mut octets) == Ok(9))?;
        assert_eq!(&octets, b"firstnext");
        Ok(())
    }

    #[test]
    fn shutdown_ends_one_direction_only() -> Result {
        let (active, passive) = pair(Family::V4)?;
        assert!(active.shutdown_write());
        let mut octet = [0];
        eventually(|| passive.recv(&mut octet) == Ok(0))?;
        assert_eq!(passive.state(), TcpState::CloseWait);
        assert!(matches!(
            active.state(),
            TcpState::FinWait1 | TcpState::FinWait2
        ));
        assert_eq!(active.send(b"more"), Err(EPIPE));
        assert_eq!(passive.send(b"!")?, 1);
        eventually(|| active.recv(&mut octet) == Ok(1))?;
        // The second time there is nothing to send.
        assert!(active.shutdown_write());
        assert!(passive.shutdown_write());
        eventually(|| passive.state() == TcpState::Closed)?;
        assert!(active.is_acked() && passive.is_acked());
        Ok(())
    }

    #[test]
    fn abort_sends_reset() -> Result {
        let (active, passive) = pair(Family::V4)?;
        active.try_abort()?;
        assert_eq!(active.error(), ECONNABORTED.to_errno().wrapping_neg());
        assert_eq!(active.state(), TcpState::Closed);
        eventually(|| passive.error() == ECONNRESET.to_errno().wrapping_neg())?;
        assert_eq!(passive.recv(&mut [0]), Err(ECONNRESET));
        Ok(())
    }

    #[test]
    fn addresses_remain_after_close() -> Result {
        for family in [Family::V4, Family::V6] {
            let (active, passive) = pair(family)?;
            let addrs = (active.addr_pair(), passive.addr_pair());
            assert!(active.shutdown_write() && passive.shutdown_write());
            let closed = |end: &Socket| end.state() == TcpState::Closed;
            eventually(|| closed(&active) && closed(&passive))?;
            assert_eq!((active.addr_pair(), passive.addr_pair()), addrs);
        }
        Ok(())
    }

    #[test]
    fn connect_without_listener_is_refused() -> Result {
        let gone = {
            let listener = listener(Family::V4)?;
            assert_eq!(listener.accept().err(), Some(EAGAIN));
            listener.local_addr()?
        };
        let active = socket(Family::V4)?;
        assert_eq!(active.accept().err(), Some(EINVAL));
        if active.connect_nonblock(&gone).is_ok() {
            eventually(|| active.error() == ECONNREFUSED.to_errno().wrapping_neg())?;
        }
        assert_eq!(active.peer_addr().err(), Some(ENOTCONN));
        Ok(())
    }

    #[test]
    fn bind_to_used_or_foreign_address_is_refused() -> Result {
        let first = listener(Family::V4)?;
        let second = socket(Family::V4)?;
        assert_eq!(second.bind(&first.local_addr()?), Err(EADDRINUSE));
        drop(first);
        let foreign = crate::net::SockAddr::new(core::net::Ipv4Addr::new(192, 0, 2, 1).into(), 0);
        assert_eq!(second.bind(&foreign), Err(EADDRNOTAVAIL));
        Ok(())
    }

    #[test]
    fn invalid_socket_options_are_refused() -> Result {
        let four = socket(Family::V4)?;
        assert_eq!(four.set_v6only(true), Err(EINVAL));
        assert_eq!(four.set_bound_dev(u32::MAX), Err(ENODEV));
        assert_eq!(four.set_bound_dev(0), Ok(()));
        let six = socket(Family::V6)?;
        assert_eq!(six.set_v6only(true), Ok(()));
        assert_eq!(six.set_v6only(false), Ok(()));
        six.bind(&SockAddr::unspecified(Family::V6))?;
        assert_eq!(six.set_v6only(false), Err(EINVAL));
        Ok(())
    }

    #[test]
    fn batch_pages_arrive_and_are_freed() -> Result {
        let (active, passive) = pair(Family::V6)?;
        let acked = active.acked();
        let mut batch = TxBatch::new();
        let start = batch.mark();
        let octets: [u8; 256] = crate::random::octets();
        for _ in 0..200 {
            batch.put(&octets)?;
        }
        let sent = batch.crc32c_since(start, crc32c::INIT);
        let total = batch.len();
        let mut taken = 0;
        let mut received = crc32c::INIT;
        let mut piece = KVec::from_elem(0u8, 4096, GFP_KERNEL)?;
        let mut count = 0;
        eventually(|| {
            taken += active.send_batch(&mut batch, SendHint::Push).unwrap_or(0);
            while let Ok(n) = passive.recv(&mut piece) {
                received = crc32c::update(received, piece.get(..n).unwrap_or_default());
                count += n;
            }
            count == total
        })?;
        assert_eq!((taken, batch.len()), (total, 0));
        assert_eq!(received, sent);
        eventually(|| active.acked().wrapping_sub(acked) == total as u64)?;
        // TCP has dropped all pages, so the full capacity is available again.
        batch.reserve(total, Grow::Sleep)?;
        Ok(())
    }
}

#[kernel::prelude::kunit_tests(riwarp_inbound)]
mod inbound {
    use crate::crc32c;
    use crate::net::bench::*;
    use crate::net::Family;
    use crate::net::Grow;
    use crate::net::SendHint;
    use crate::net::Socket;
    use crate::net::TxBatch;
    use kernel::prelude::*;

    /// Sends each slice in a packet of its own, and waits until all have arrived.
    fn deliver(from: &Socket, to: &Socket, packets: &[&[u8]]) -> Result {
        let mut total = to.with_inbound(|inbound| inbound.available());
        for packet in packets {
            from.send(packet)?;
            total += packet.len();
        }
        eventually(|| to.with_inbound(|inbound| inbound.available() == total))
    }

    #[test]
    fn adjacent_pages_are_sent_as_one_fragment() -> Result {
        let (active, passive) = pair(Family::V4)?;
        let mut batch = TxBatch::new();
        let octets: [u8; 250] = crate::random::octets();
        // In one chunk.
        batch.reserve(50 * octets.len(), Grow::Sleep)?;
        for _ in 0..50 {
            batch.put(&octets)?;
        }
        let total = batch.len();
        assert_eq!(active.send_batch(&mut batch, SendHint::Push), Ok(total));
        eventually(|| passive.with_inbound(|inbound| inbound.available() == total))?;
        passive.with_inbound(|inbound| {
            let mut pieces = 0;
            assert!(inbound.for_each_chunk(0, total, |_, _| pieces += 1));
            assert_eq!(pieces, 1);
            let mut seen = [0; 250];
            for pos in (0..total).step_by(octets.len()) {
                assert!(inbound.peek(pos, &mut seen));
                assert_eq!(seen, octets);
            }
        });
        Ok(())
    }

    #[test]
    fn peek_reads_octets_across_packets() -> Result {
        let (active, passive) = pair(Family::V4)?;
        deliver(&active, &passive, &[b"ab", b"cde", b"f"])?;
        passive.with_inbound(|inbound| {
            // Octets in several pieces are read too.
            let mut front = [0; 4];
            inbound.mark(0);
            assert_eq!((inbound.front(0, &mut front), &front), (4, b"abcd"));
            inbound.mark(3);
            assert_eq!((inbound.front(3, &mut front), &front), (3, b"defd"));
            assert_eq!((inbound.front(2, &mut front), &front), (4, b"cdef"));
            let mut two = [0; 2];
            inbound.mark(2);
            assert_eq!((inbound.front(2, &mut two), &two), (2, b"cd"));
            inbound.mark(6);
            assert_eq!(inbound.front(6, &mut two), 0);
            let mut octets = [0; 4];
            // Forwards, back, and again.
            assert!(inbound.peek(1, &mut octets));
            assert_eq!(&octets, b"bcde");
            assert!(inbound.peek(0, &mut octets));
            assert_eq!(&octets, b"abcd");
            assert!(inbound.peek(2, &mut octets));
            assert_eq!(&octets, b"cdef");
        });
        Ok(())
    }

    #[test]
    fn mark_does_not_change_peeked_octets() -> Result {
        let (active, passive) = pair(Family::V4)?;
        deliver(&active, &passive, &[b"ab", b"cde", b"f"])?;
        let all = b"abcdef";
        for mark in [0, 1, 2, 4, 5, 6, 7, usize::MAX] {
            for reached in 0..=6 {
                for at in 0..6 {
                    passive.with_inbound(|inbound| {
                        let mut octets = [0; 6];
                        assert!(inbound.peek(0, &mut octets[..reached]));
                        inbound.mark(mark);
                        let rest = &mut octets[at..];
                        assert!(inbound.peek(at, rest));
                        assert_eq!(rest, &all[at..]);
                        assert!(inbound.peek(0, &mut octets));
                        assert_eq!(&octets, all);
                    });
                }
            }
        }
        // Consuming octets discards the marks.
        passive.with_inbound(|inbound| {
            inbound.mark(1);
            inbound.consume(3);
            inbound.mark(1);
            let mut octets = [0; 3];
            assert!(inbound.peek(0, &mut octets));
            assert_eq!(&octets, b"def");
        });
        Ok(())
    }

    #[test]
    fn peek_beyond_available_octets_fails() -> Result {
        let (active, passive) = pair(Family::V4)?;
        deliver(&active, &passive, &[b"abc", b"def"])?;
        passive.with_inbound(|inbound| {
            let mut octets = [0; 4];
            assert!(!inbound.peek(3, &mut octets));
            assert!(!inbound.peek(usize::MAX, &mut octets));
            assert!(inbound.peek(6, &mut []));
            assert!(!inbound.peek(7, &mut []));
            // A sum over octets that are not all available matches nothing.
            let crc = crc32c::update(crc32c::INIT, b"def");
            assert_eq!(inbound.crc32c(3, 3, crc32c::INIT), crc);
            assert!(inbound.crc32c(3, 4, crc32c::INIT) != crc);
        });
        Ok(())
    }

    #[test]
    fn consume_removes_octets_from_the_front() -> Result {
        let (active, passive) = pair(Family::V4)?;
        deliver(&active, &passive, &[b"abc", b"def"])?;
        passive.with_inbound(|inbound| {
            let mut octets = [0; 2];
            inbound.consume(2);
            assert_eq!(inbound.available(), 4);
            assert!(inbound.peek(0, &mut octets));
            assert_eq!(&octets, b"cd");
            inbound.consume(0);
            inbound.consume(100);
            assert_eq!(inbound.available(), 0);
            assert!(!inbound.eof());
        });
        deliver(&active, &passive, &[b"gh"])?;
        let mut octets = [0; 2];
        assert!(passive.with_inbound(|inbound| inbound.peek(0, &mut octets)));
        assert_eq!(&octets, b"gh");
        Ok(())
    }

    #[test]
    fn eof_is_reported_behind_unread_octets() -> Result {
        let (active, passive) = pair(Family::V4)?;
        deliver(&active, &passive, &[b"last"])?;
        active.shutdown_write();
        eventually(|| passive.with_inbound(|inbound| inbound.eof()))?;
        assert_eq!(passive.with_inbound(|inbound| inbound.available()), 4);
        Ok(())
    }

    #[test]
    fn crc_of_page_fragments_starts_at_any_offset() -> Result {
        let (active, passive) = pair(Family::V4)?;
        let octets: [u8; 251] = crate::random::octets();
        let mut batch = TxBatch::new();
        for _ in 0..40 {
            batch.put(&octets)?;
        }
        let total = batch.len();
        active.send_batch(&mut batch, SendHint::Push)?;
        eventually(|| passive.with_inbound(|inbound| inbound.available() == total))?;
        passive.with_inbound(|inbound| {
            for start in [0, 1, 250, 251, 4095, 4096, 9000] {
                let len = 700;
                let mut expected = crc32c::INIT;
                for octet in octets.iter().cycle().skip(start % 251).take(len) {
                    expected = crc32c::update(expected, core::slice::from_ref(octet));
                }
                assert_eq!(inbound.crc32c(start, len, crc32c::INIT), expected);
            }
        });
        Ok(())
    }

    #[test]
    fn a_listener_has_nothing_inbound() -> Result {
        let listener = listener(Family::V4)?;
        listener.with_inbound(|inbound| {
            assert!(inbound.available() == 0 && !inbound.eof());
            assert!(!inbound.peek(0, &mut [0]));
        });
        Ok(())
    }
}

#[kernel::prelude::kunit_tests(riwarp_hooks)]
mod hooks {
    use crate::bindings;
    use crate::net::bench::*;
    use crate::net::Family;
    use crate::net::Hooked;
    use crate::net::Inbound;
    use crate::net::SendHint;
    use crate::net::SockAddr;
    use crate::net::Socket;
    use crate::net::SocketEvents;
    use crate::net::TcpState;
    use crate::net::TxBatch;
    use crate::new_spinlock_bh;
    use crate::sync::BhOff;
    use crate::sync::SpinLockBh;
    use kernel::prelude::*;
    use kernel::sync::atomic::Atomic;
    use kernel::sync::atomic::Relaxed;
    use kernel::sync::Arc;
    use kernel::sync::ArcBorrow;

    extern "C" {
        fn riwarp_helper_sk_callback_write_lock(sk: *mut bindings::sock);
        fn riwarp_helper_sk_callback_write_unlock(sk: *mut bindings::sock);
    }

    /// Counts the octets that arrive, and consumes them.
    struct CountedEvents {
        octets: Atomic<u32>,
        calls: Atomic<u32>,
        rooms: Atomic<u32>,
        ended: Atomic<bool>,
    }

    impl CountedEvents {
        fn new() -> Result<Arc<Self>> {
            let events = CountedEvents {
                octets: Atomic::new(0),
                calls: Atomic::new(0),
                rooms: Atomic::new(0),
                ended: Atomic::new(false),
            };
            Ok(Arc::new(events, GFP_KERNEL)?)
        }
    }

    impl SocketEvents for CountedEvents {
        fn data_ready(self: ArcBorrow<'_, Self>, inbound: &mut Inbound<'_>, _off: BhOff<'_>) {
            self.calls.add(1, Relaxed);
            let octets = inbound.available();
            inbound.consume(octets);
            self.octets.add(octets as u32, Relaxed);
        }

        fn readable(self: ArcBorrow<'_, Self>) {}

        fn write_space(self: ArcBorrow<'_, Self>) {
            self.rooms.add(1, Relaxed);
        }

        fn state_change(self: ArcBorrow<'_, Self>) {
            self.ended.store(true, Relaxed);
        }
    }

    #[test]
    fn hook_is_called_for_octets_and_eof() -> Result {
        let (active, passive) = pair(Family::V4)?;
        let events = CountedEvents::new()?;
        let hooked = Hooked::new(passive, events.clone())?;
        active.send(b"octets")?;
        eventually(|| events.octets.load(Relaxed) == 6)?;
        assert!(!events.ended.load(Relaxed));
        active.shutdown_write();
        eventually(|| events.ended.load(Relaxed))?;
        assert_eq!(hooked.state(), TcpState::CloseWait);
        Ok(())
    }

    #[test]
    fn write_space_does_not_wait_for_callback_lock() -> Result {
        let (_active, passive) = pair(Family::V4)?;
        let events = CountedEvents::new()?;
        let hooked = Hooked::new(passive, events.clone())?;
        let sk = hooked.sk();
        // SAFETY: A field of a valid socket; hooking wrote it, and nothing else does.
        let write_space = unsafe { (*sk).sk_write_space }.ok_or(EINVAL)?;
        // SAFETY: The lock is part of a valid socket, and not held.
        unsafe { riwarp_helper_sk_callback_write_lock(sk) };
        // SAFETY: The callback requires a valid socket.
        unsafe { write_space(sk) };
        // SAFETY: The lock was taken above.
        unsafe { riwarp_helper_sk_callback_write_unlock(sk) };
        assert_eq!(events.rooms.load(Relaxed), 0);
        // SAFETY: The callback requires a valid socket.
        unsafe { write_space(sk) };
        assert_eq!(events.rooms.load(Relaxed), 1);
        Ok(())
    }

    #[test]
    fn listener_hook_is_called_and_not_inherited() -> Result {
        let events = CountedEvents::new()?;
        let hooked = Hooked::new(listener(Family::V4)?, events.clone())?;
        let active = socket(Family::V4)?;
        active.connect_nonblock(&hooked.local_addr()?)?;
        eventually(|| events.calls.load(Relaxed) == 1)?;
        let child = hooked.accept()?;
        active.send(b"x")?;
        eventually(|| child.peek(&mut [0]) == Ok(1))?;
        assert_eq!(events.calls.load(Relaxed), 1);
        Ok(())
    }

    #[test]
    fn unhooked_socket_calls_no_hook_and_frees_target() -> Result {
        let (active, passive) = pair(Family::V4)?;
        let events = CountedEvents::new()?;
        let hooked = Hooked::new(passive, events.clone())?;
        hooked.unhook();
        hooked.unhook();
        active.send(b"octets")?;
        eventually(|| hooked.peek(&mut [0; 8]) == Ok(6))?;
        assert_eq!(events.calls.load(Relaxed), 0);
        assert!(Arc::into_unique_or_drop(events).is_some());
        Ok(())
    }

    #[test]
    fn dropped_hooked_socket_frees_target() -> Result {
        let (active, passive) = pair(Family::V4)?;
        let events = CountedEvents::new()?;
        drop(Hooked::new(passive, events.clone())?);
        assert!(Arc::into_unique_or_drop(events).is_some());
        eventually(|| active.recv(&mut [0]) == Ok(0))?;
        Ok(())
    }

    /// Sends its batch as soon as octets arrive, if the view permits.
    #[pin_data]
    struct Echo {
        #[pin]
        batch: SpinLockBh<TxBatch>,
        sent: Atomic<u32>,
        refused: Atomic<u32>,
    }

    impl SocketEvents for Echo {
        fn data_ready(self: ArcBorrow<'_, Self>, inbound: &mut Inbound<'_>, off: BhOff<'_>) {
            let mut batch = off.lock(&self.batch);
            match inbound.try_send_batch(&mut batch, SendHint::Push) {
                Ok(n) => self.sent.add(n as u32, Relaxed),
                Err(error) => self.refused.add(u32::from(error == EBUSY), Relaxed),
            }
        }

        fn readable(self: ArcBorrow<'_, Self>) {}

        fn write_space(self: ArcBorrow<'_, Self>) {}

        fn state_change(self: ArcBorrow<'_, Self>) {}
    }

    impl Echo {
        fn new() -> Result<Arc<Self>> {
            let echo = Arc::pin_init(
                pin_init!(Echo {
                    batch <- new_spinlock_bh!(TxBatch::new(), "riwarp_hooks::batch"),
                    sent: Atomic::new(0),
                    refused: Atomic::new(0),
                }),
                GFP_KERNEL,
            )?;
            echo.batch.lock().put(b"octets")?;
            Ok(echo)
        }
    }

    /// Calls the `sk_data_ready` of a socket, as TCP does.
    fn call_data_ready(socket: &Socket) {
        // SAFETY: A field of a valid socket, which `socket` has; it does not change meanwhile.
        let callback = unsafe { (*socket.sk()).sk_data_ready };
        if let Some(callback) = callback {
            // SAFETY: The socket is valid. Only for listeners, whose callback TCP calls without the
            // lock.
            unsafe { callback(socket.sk()) };
        }
    }

    #[test]
    fn listener_gives_no_inbound_even_if_aborted() -> Result {
        let echo = Echo::new()?;
        let hooked = Hooked::new(listener(Family::V4)?, echo.clone())?;
        call_data_ready(&hooked);
        assert_eq!(echo.refused.load(Relaxed), 1);
        // An administrator can abort a listener too. TCP may then still be calling for a last
        // connection, without a lock.
        hooked.try_abort()?;
        assert_eq!(hooked.state(), TcpState::Closed);
        call_data_ready(&hooked);
        assert_eq!(echo.refused.load(Relaxed), 2);
        assert_eq!(echo.sent.load(Relaxed), 0);
        Ok(())
    }

    #[test]
    fn only_listener_sockets_listen() -> Result {
        let other = socket(Family::V4)?;
        other.bind(&address(Family::V4, 0))?;
        assert_eq!(other.listen(1), Err(EINVAL));
        assert_eq!(other.into_listener().listen(1), Ok(()));
        Ok(())
    }

    #[test]
    fn foreign_sk_user_data_is_not_taken_for_hook() -> Result {
        let events = CountedEvents::new()?;
        let hooked = Hooked::new(listener(Family::V4)?, events.clone())?;
        // Contains no function to call.
        let mut other = KBox::new([0u64; 16], GFP_KERNEL)?;
        let other = (&raw mut *other).cast::<u8>();
        // SAFETY: A field of a valid socket lies inside the allocation.
        let place = unsafe { &raw mut (*hooked.sk()).sk_user_data };
        // SAFETY: Nothing else changes the data of this socket.
        let ours = unsafe { place.read() };
        // `SK_USER_DATA_BPF`; `SK_USER_DATA_PSOCK` with `SK_USER_DATA_NOCOPY`; none.
        for flags in [2, 5, 0] {
            // SAFETY: A field of a valid socket; the memory written to it outlives the call.
            unsafe { place.write(other.map_addr(|addr| addr | flags).cast()) };
            call_data_ready(&hooked);
        }
        assert_eq!(events.calls.load(Relaxed), 0);
        // SAFETY: A field of a valid socket; this restores its old value.
        unsafe { place.write(ours) };
        call_data_ready(&hooked);
        assert_eq!(events.calls.load(Relaxed), 1);
        Ok(())
    }

    #[test]
    fn foreign_sk_user_data_is_kept() -> Result {
        let (_active, passive) = pair(Family::V4)?;
        let mut other = KBox::new([0u64; 16], GFP_KERNEL)?;
        let other = (&raw mut *other).cast::<u8>();
        let sk = passive.sk();
        // SAFETY: A field of a valid socket lies inside the allocation.
        let place = unsafe { &raw mut (*sk).sk_user_data };
        // As of a BPF socket map: `SK_USER_DATA_PSOCK` with `SK_USER_DATA_NOCOPY`.
        let theirs = other.map_addr(|addr| addr | 5).cast();
        // SAFETY: Nothing else changes the data of this socket; the memory outlives it.
        unsafe { place.write(theirs) };
        // SAFETY: `restore` requires a valid socket and TCP's callbacks, which the socket has.
        let restored = unsafe { passive.callbacks().restore(sk) };
        assert_eq!(restored, Err(EBUSY));
        // SAFETY: As for the write.
        assert!(unsafe { place.read() } == theirs);
        let events = CountedEvents::new()?;
        let hooked = Hooked::new(passive, events.clone());
        assert_eq!(hooked.err(), Some(EBUSY));
        assert!(Arc::into_unique_or_drop(events).is_some());
        Ok(())
    }

    #[test]
    fn softirq_may_send_on_the_receiving_socket() -> Result {
        let (active, passive) = pair(Family::V4)?;
        let echo = Echo::new()?;
        let _hooked = Hooked::new(passive, echo.clone())?;
        active.send(b"x")?;
        let mut octets = [0; 8];
        eventually(|| active.recv(&mut octets) == Ok(6))?;
        assert_eq!(&octets[..6], b"octets");
        assert_eq!(echo.sent.load(Relaxed), 6);
        assert_eq!(echo.refused.load(Relaxed), 0);
        assert!(echo.batch.lock().is_empty());
        Ok(())
    }

    #[test]
    fn locked_socket_keeps_its_receive_queue() -> Result {
        // Two address families, so that lockdep does not object to locking one socket inside the
        // other.
        let listener = socket(Family::V6)?.into_listener();
        listener.bind(&SockAddr::unspecified(Family::V6))?;
        listener.listen(1)?;
        let active = socket(Family::V4)?;
        active.connect_nonblock(&address(Family::V4, listener.local_addr()?.port()))?;
        let mut passive = Err(EAGAIN);
        eventually(|| {
            passive = listener.accept();
            passive.is_ok()
        })?;
        let passive = passive?;
        active.send(b"first")?;
        eventually(|| passive.peek(&mut [0; 8]) == Ok(5))?;
        // More than TCP accepts without processing the backlog.
        let mut batch = TxBatch::new();
        let octets = KVec::from_elem(0u8, 4096, GFP_KERNEL)?;
        while batch.len() < TxBatch::CAPACITY - octets.len() {
            batch.put(&octets)?;
        }
        let waits = batch.len();
        // Consumes everything that arrives, which frees it.
        let events = CountedEvents::new()?;
        let hooked = Hooked::new(passive, events.clone())?;
        hooked.with_inbound(|inbound| {
            let mut seen = [0; 5];
            inbound.mark(0);
            assert!(inbound.peek(0, &mut seen));
            // This waits in the backlog, since the socket is owned.
            assert_eq!(active.send(b"second"), Ok(6));
            assert_eq!(
                inbound.try_send_batch(&mut batch, SendHint::Push),
                Err(EBUSY)
            );
            assert_eq!(inbound.available(), 5);
            assert_eq!(inbound.front(0, &mut seen), 5);
            assert_eq!(&seen, b"first");
            assert_eq!(
                inbound.crc32c(0, 5, crate::crc32c::INIT),
                crate::crc32c::update(crate::crc32c::INIT, b"first")
            );
        });
        assert_eq!(batch.len(), waits);
        eventually(|| events.octets.load(Relaxed) == 11)?;
        Ok(())
    }
}

#[kernel::prelude::kunit_tests(riwarp_notifier)]
mod notifier {
    use crate::net::NetDevice;
    use crate::net::NetId;
    use crate::net::NetRef;
    use crate::net::NetdevEvent;
    use crate::net::NetdevEvents;
    use crate::net::NetdevNotifier;
    use crate::net::NetdevType;
    use crate::net::NetnsExit;
    use crate::net::NetnsNotifier;
    use kernel::prelude::*;
    use kernel::sync::atomic::Atomic;
    use kernel::sync::atomic::Relaxed;

    static APPEARED: Atomic<u32> = Atomic::new(0);
    static AS_EXPECTED: Atomic<u32> = Atomic::new(0);
    static DISAPPEARED: Atomic<u32> = Atomic::new(0);
    static ENDED: Atomic<u32> = Atomic::new(0);

    /// Checks the loopback interface of the initial namespace.
    struct Loopback;

    fn is_as_expected(dev: &NetDevice) -> bool {
        let mut addresses = 0;
        dev.for_each_addr(|addr| {
            if addr.is_loopback() {
                addresses += 1;
            }
        });
        let net = dev.net().map(|net| net.id());
        dev.name().as_bytes() == b"lo"
            && dev.name().as_c_str() == c"lo"
            && dev.ifindex() == 1
            && dev.mtu() >= 16384
            && dev.is_running()
            && dev.hw_addr().as_bytes() == [0; 6]
            && net == Some(dev.net_id())
            && dev.is_same(&dev.clone())
            // 127.0.0.1 and ::1.
            && addresses == 2
    }

    impl NetdevEvents for Loopback {
        fn netdev_event(event: NetdevEvent, dev: &NetDevice) {
            if dev.netdev_type() != NetdevType::Loopback || dev.net_id() != NetRef::init_net().id()
            {
                return;
            }
            match event {
                NetdevEvent::Register => {
                    APPEARED.add(1, Relaxed);
                    AS_EXPECTED.add(u32::from(is_as_expected(dev)), Relaxed);
                }
                NetdevEvent::Unregister => DISAPPEARED.add(1, Relaxed),
                _ => {}
            }
        }
    }

    impl NetnsExit for Loopback {
        fn netns_exit(net: NetId) {
            if net == NetRef::init_net().id() {
                ENDED.add(1, Relaxed);
            }
        }
    }

    #[test]
    fn netdev_notifier_reports_present_devices() -> Result {
        let notifier = NetdevNotifier::<Loopback>::new()?;
        assert_eq!(APPEARED.load(Relaxed), 1);
        assert_eq!(AS_EXPECTED.load(Relaxed), 1);
        assert_eq!(DISAPPEARED.load(Relaxed), 0);
        drop(notifier);
        assert_eq!(DISAPPEARED.load(Relaxed), 1);
        Ok(())
    }

    #[test]
    fn netns_notifier_drop_reports_each_namespace() -> Result {
        let notifier = NetnsNotifier::<Loopback>::new()?;
        assert_eq!(ENDED.load(Relaxed), 0);
        drop(notifier);
        assert_eq!(ENDED.load(Relaxed), 1);
        Ok(())
    }
}
