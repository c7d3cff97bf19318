// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of the receive queue, with socket buffers of shapes that loopback does not make.

#[kernel::prelude::kunit_tests(riwarp_skb)]
mod skb {
    use super::super::*;
    use crate::net::bench::eventually;
    use crate::net::bench::pair;
    use crate::net::Family;
    use crate::net::Socket;

    extern "C" {
        fn riwarp_helper_skb_with(octets: *const u8, n: u32) -> *mut Skb;
        fn riwarp_helper_skb_shinfo(skb: *const Skb) -> *mut bindings::skb_shared_info;
        fn riwarp_helper_tcp_queue_skb(sk: *mut Sk, skb: *mut Skb, repeated: u32);
        fn riwarp_helper_tcp_unqueue_skbs(sk: *mut Sk, n: u32);
    }

    /// Makes a socket buffer with these octets and a fragment list of others.
    fn skb<const N: usize>(octets: &[u8], list: [Result<*mut Skb>; N]) -> Result<*mut Skb> {
        // CAST: A few octets.
        // SAFETY: The helper requires so many readable octets: it gets those of `octets`.
        let skb = unsafe { riwarp_helper_skb_with(octets.as_ptr(), octets.len() as u32) };
        if skb.is_null() {
            return Err(ENOMEM);
        }
        // SAFETY: A new socket buffer has its shared information.
        let mut place = unsafe { &raw mut (*riwarp_helper_skb_shinfo(skb)).frag_list };
        for member in list {
            let member = member?;
            // SAFETY: The place is in the shared information or in the previous member; all are
            // valid and not shared.
            unsafe {
                (*skb).len += (*member).len;
                (*skb).data_len += (*member).len;
                *place = member;
                place = &raw mut (*member).__bindgen_anon_1.__bindgen_anon_1.next;
            }
        }
        Ok(skb)
    }

    /// Calls `f` with a view of a queue of these socket buffers, which have `new` octets in all.
    /// Each repeats so many octets of those before.
    fn with_queue(new: u32, queue: &[(*mut Skb, u32)], f: impl Fn(&mut Inbound<'_>)) -> Result {
        let (near, _far) = pair(Family::V4)?;
        let sk = near.sk();
        near.with_inbound(|_| {
            for (skb, repeated) in queue {
                // SAFETY: The helper requires a TCP socket that is locked, which this thread owns,
                // and a socket buffer that is in no queue.
                unsafe { riwarp_helper_tcp_queue_skb(sk, *skb, *repeated) };
            }
            // SAFETY: `of_owner` requires a valid TCP socket that the caller owns: as above.
            let mut inbound = unsafe { Inbound::of_owner(sk) };
            f(&mut inbound);
            // SAFETY: The helper requires a locked TCP socket whose queue has only the socket
            // buffers from above: the peer has sent nothing.
            unsafe { riwarp_helper_tcp_unqueue_skbs(sk, new) };
        });
        Ok(())
    }

    const OCTETS: &[u8; 26] = b"abcdefghijklmnopqrstuvwxyz";

    /// Returns a tree with the octets from "a" to "r", as from datagrams that were fragmented two
    /// or three times.
    fn tree() -> Result<*mut Skb> {
        let clone = skb(b"", [skb(b"de", []), skb(b"fgh", [])]);
        let twice = skb(b"i", [skb(b"jk", [])]);
        let thrice = skb(
            b"m",
            [skb(b"n", [skb(b"o", []), skb(b"p", [])]), skb(b"q", [])],
        );
        skb(b"abc", [clone, twice, skb(b"l", []), thrice, skb(b"r", [])])
    }

    /// Returns whether the view has these octets, wherever reading begins and ends.
    fn reads(inbound: &mut Inbound<'_>, octets: &[u8]) -> bool {
        let mut buf = [0; 26];
        let mut all = inbound.available() == octets.len();
        for from in 0..octets.len() {
            for to in from + 1..=octets.len() {
                let part = &octets[from..to];
                let buf = &mut buf[..part.len()];
                all &= inbound.peek(from, buf) && *buf == *part;
                let crc = crc32c::update(crc32c::INIT, part);
                all &= inbound.crc32c(from, part.len(), crc32c::INIT) == crc;
            }
            inbound.mark(from);
        }
        all
    }

    #[test]
    fn fragment_lists_in_fragment_lists_are_read_in_order() -> Result {
        with_queue(18, &[(tree()?, 0)], |inbound| {
            assert!(reads(inbound, &OCTETS[..18]));
        })
    }

    #[test]
    fn octets_repeated_in_fragment_lists_count_once() -> Result {
        for repeated in 0..8 {
            let list = [skb(b"st", [skb(b"uvw", [])]), skb(b"xy", []), skb(b"z", [])];
            let (begin, _) = OCTETS.split_at(18);
            let second = skb(&begin[18 - repeated..], list)?;
            // CAST: A small number.
            let queue = [(tree()?, 0), (second, repeated as u32)];
            with_queue(26, &queue, |inbound| assert!(reads(inbound, OCTETS)))?;
        }
        // All that is new lies deep in the tree.
        let list = [
            skb(b"mn", [skb(b"o", []), skb(b"pq", [skb(b"rst", [])])]),
            skb(b"u", []),
        ];
        let queue = [(tree()?, 0), (skb(b"l", list)?, 7)];
        with_queue(21, &queue, |inbound| assert!(reads(inbound, &OCTETS[..21])))
    }

    /// Sends octets and waits until so many are there.
    fn arrive(near: &Socket, far: &Socket, octets: &[u8], there: usize) -> Result {
        far.send(octets)?;
        eventually(|| near.with_inbound(|inbound| inbound.available()) == there)
    }

    /// Returns how many octets are in TCP's own queue.
    fn in_tcp(near: &Socket) -> usize {
        near.with_inbound(|inbound| inbound.available() - inbound.aside as usize)
    }

    #[test]
    fn octets_set_aside_are_read_before_later_ones() -> Result {
        let (near, far) = pair(Family::V4)?;
        arrive(&near, &far, &OCTETS[..5], 5)?;
        arrive(&near, &far, &OCTETS[5..9], 9)?;
        near.with_inbound(|inbound| {
            inbound.consume(2);
            inbound.set_aside();
            assert!(reads(inbound, &OCTETS[2..9]));
        });
        assert_eq!(in_tcp(&near), 0);
        arrive(&near, &far, &OCTETS[9..14], 12)?;
        near.with_inbound(|inbound| assert!(reads(inbound, &OCTETS[2..14])));
        assert_eq!(in_tcp(&near), 5);
        // What has come since joins it.
        near.with_inbound(|inbound| {
            inbound.set_aside();
            assert!(reads(inbound, &OCTETS[2..14]));
        });
        assert_eq!(in_tcp(&near), 0);
        arrive(&near, &far, &OCTETS[14..20], 18)?;
        // Taken off in pieces: before its end, at its end, and beyond.
        for (pieces, left) in [(&[1, 3, 7][..], 13), (&[1][..], 14), (&[3, 2][..], 19)] {
            let mut at = OCTETS.len() - 6 - near.with_inbound(|inbound| inbound.available());
            near.with_inbound(|inbound| {
                for piece in pieces {
                    inbound.consume(*piece);
                    at += piece;
                    assert!(reads(inbound, &OCTETS[at..20]));
                }
            });
            assert_eq!(at, left);
        }
        near.with_inbound(|inbound| {
            assert_eq!((inbound.aside, inbound.available()), (0, 1));
            inbound.consume(1);
        });
        arrive(&near, &far, OCTETS, 26)?;
        near.with_inbound(|inbound| assert!(reads(inbound, OCTETS)));
        Ok(())
    }

    #[test]
    fn octets_set_aside_precede_eof_and_are_freed_with_socket() -> Result {
        let (near, far) = pair(Family::V4)?;
        arrive(&near, &far, OCTETS, 26)?;
        near.with_inbound(|inbound| inbound.set_aside());
        far.shutdown_write();
        eventually(|| near.with_inbound(|inbound| inbound.eof()))?;
        near.with_inbound(|inbound| {
            assert!(reads(inbound, OCTETS));
            // Behind the end nothing follows.
            inbound.set_aside();
            assert!(reads(inbound, OCTETS));
        });
        // TCP warns if memory is left.
        drop(near);
        Ok(())
    }

    #[test]
    fn set_aside_if_refused_does_nothing_while_tcp_has_memory() -> Result {
        let (near, far) = pair(Family::V4)?;
        arrive(&near, &far, OCTETS, 26)?;
        near.with_inbound(|inbound| inbound.set_aside_if_refused());
        assert_eq!(in_tcp(&near), 26);
        Ok(())
    }
}
