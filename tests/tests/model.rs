// SPDX-License-Identifier: GPL-2.0

//! Parts with state or arithmetic, each compared with a simple oracle.

use std::collections::VecDeque;

use bolero::{
    check,
    TypeGenerator, //
};
use iwarp::{
    atomic::AtomicOperation,
    ddp::{
        MessagePart,
        Msn, //
    },
    fault::Fault,
    order::{
        check_offset,
        SendProgress, //
    },
    rdmap::{
        ReadRequest,
        SendEvent,
        SendExtra,
        SendKind, //
    },
    readq::{
        Depth,
        ReadState, //
    },
    receiver::{
        PayloadSpan,
        QueueRoom,
        SendSegment,
        TaggedSegment, //
    },
    segment::{
        Message,
        Segmenter, //
    },
    stag::{
        check_source,
        check_tagged,
        Access,
        Association,
        RegionView,
        Stag,
        TaggedOffset, //
    }, //
};

#[test]
fn depth_ring_behaves_as_queue_of_slots() {
    check!()
        .with_type()
        .for_each(|(limit, takes): &(u8, Vec<bool>)| {
            let limit = u16::from(*limit);
            let mut depth = Depth::new(limit);
            assert_eq!(depth.limit(), limit);
            let mut taken = VecDeque::new();
            let mut next = 0;
            for take in takes {
                if *take {
                    let expected = (taken.len() < limit.into()).then_some(next);
                    assert_eq!(depth.try_take(), expected);
                    if let Some(slot) = expected {
                        taken.push_back(slot);
                        next = (next + 1) % limit;
                    }
                } else {
                    assert_eq!(depth.release(), taken.pop_front());
                }
                assert_eq!(depth.oldest(), taken.front().copied());
                assert_eq!(usize::from(depth.used()), taken.len());
                assert!(depth.taken().eq(taken.iter().copied()));
                assert_eq!(depth.room() == QueueRoom::Free, taken.len() < limit.into());
            }
        });
}

#[test]
fn deepest_ring_wraps() {
    let mut depth = Depth::new(u16::MAX);
    for _ in 0..3 {
        for slot in 0..u16::MAX {
            assert_eq!(depth.try_take(), Some(slot));
        }
        assert_eq!(depth.try_take(), None);
        for slot in 0..u16::MAX {
            assert_eq!(depth.release(), Some(slot));
        }
        assert_eq!(depth.release(), None);
    }
}

/// Returns the offset of an access, computed in numbers that cannot overflow.
fn access_oracle(region: &RegionView, to: u64, len: u32) -> Result<u64, ()> {
    let first = u128::from(to);
    let end = first + u128::from(len);
    let base = u128::from(region.base);
    if first >= base && end <= base + u128::from(region.len) {
        Ok(to - region.base)
    } else {
        Err(())
    }
}

#[test]
fn access_checks_agree_with_wide_arithmetic() {
    #[derive(Debug, TypeGenerator)]
    struct Input {
        base: u64,
        region_len: u64,
        near: i16,
        from_end: bool,
        len: u32,
        short: bool,
    }

    check!().with_type().for_each(|input: &Input| {
        let region = RegionView {
            stag: Stag::new(7),
            base: input.base,
            len: input.region_len.min(u64::MAX - input.base),
            access: Access::REMOTE_WRITE.union(Access::REMOTE_READ),
            association: Association::Ours,
            valid: true,
        };
        let around = if input.from_end {
            region.base.wrapping_add(region.len)
        } else {
            region.base
        };
        let to = around.wrapping_add_signed(input.near.into());
        let len = if input.short {
            input.len & 0xff
        } else {
            input.len
        };
        let at = TaggedOffset::new(to);
        let stag = region.stag;
        let tagged = check_tagged(Some(&region), stag, at, len, Access::REMOTE_WRITE);
        let source = check_source(Some(&region), stag, at, len, Access::REMOTE_READ);
        if len == 0 {
            assert_eq!((tagged, source), (Ok(0), Ok(0)));
        } else if u128::from(to) + u128::from(len) > u128::from(u64::MAX) {
            assert_eq!(tagged, Err(Fault::TaggedWrap));
            assert_eq!(source, Err(Fault::SourceWrap));
        } else {
            let expected = access_oracle(&region, to, len);
            assert_eq!(tagged, expected.map_err(|()| Fault::TaggedBounds));
            assert_eq!(source, expected.map_err(|()| Fault::SourceBounds));
        }
    });
}

#[test]
fn access_faults_come_in_order() {
    // DDP-86: STag, association, rights, wrap, bounds.
    let mut region = RegionView {
        stag: Stag::new(8),
        base: 100,
        len: 100,
        access: Access::NONE,
        association: Association::Foreign,
        valid: false,
    };
    let (stag, to) = (Stag::new(7), TaggedOffset::new(u64::MAX));
    let check = |region: Option<&RegionView>, to| {
        (
            check_tagged(region, stag, to, 10, Access::REMOTE_WRITE).unwrap_err(),
            check_source(region, stag, to, 10, Access::REMOTE_WRITE).unwrap_err(),
        )
    };
    let unknown = (Fault::TaggedInvalidStag, Fault::SourceInvalidStag);
    assert_eq!(check(None, to), unknown);
    assert_eq!(check(Some(&region), to), unknown);
    region.stag = stag;
    assert_eq!(check(Some(&region), to), unknown);
    region.valid = true;
    let foreign = (Fault::TaggedNotAssociated, Fault::SourceNotAssociated);
    assert_eq!(check(Some(&region), to), foreign);
    region.association = Association::Ours;
    let no_right = (Fault::TaggedNoRight, Fault::SourceNoRight);
    assert_eq!(check(Some(&region), to), no_right);
    region.access = Access::REMOTE_WRITE;
    assert_eq!(
        check(Some(&region), to),
        (Fault::TaggedWrap, Fault::SourceWrap)
    );
    let to = TaggedOffset::new(99);
    assert_eq!(
        check(Some(&region), to),
        (Fault::TaggedBounds, Fault::SourceBounds)
    );
}

#[test]
fn access_sets() {
    let all = [
        Access::LOCAL_WRITE,
        Access::REMOTE_WRITE,
        Access::REMOTE_READ,
        Access::REMOTE_ATOMIC,
    ];
    for (i, one) in all.into_iter().enumerate() {
        assert!(one.contains(one) && one.contains(Access::NONE) && !one.is_empty());
        for (j, other) in all.into_iter().enumerate() {
            assert_eq!(one.contains(other), i == j);
            assert!(one.union(other).contains(other));
        }
    }
    assert!(Access::NONE.is_empty() && !Access::NONE.contains(Access::REMOTE_READ));
}

#[test]
fn offsets_agree_with_wide_arithmetic() {
    check!()
        .with_type()
        .for_each(|(offset, len, buffer, small): &(u32, u16, u32, bool)| {
            let (offset, buffer) = if *small {
                (offset & 0xff, buffer & 0xff)
            } else {
                (*offset, *buffer)
            };
            let fits = *len == 0 || u64::from(offset) + u64::from(*len) <= buffer.into();
            let result = check_offset(offset, *len, buffer);
            assert_eq!(result.is_ok(), fits);
            if let Err(fault) = result {
                let misplaced = offset >= buffer && offset != 0;
                assert_eq!(fault == Fault::MessageOffset, misplaced);
                assert_eq!(fault == Fault::MessageTooLong, !misplaced);
            }
        });
}

/// Reorders the parts of a message, and keeps the last one last.
fn shuffled(parts: &mut [(u32, u16)], order: &[u8]) {
    let movable = parts.len().saturating_sub(1);
    for (place, pick) in order.iter().enumerate() {
        if place < movable {
            parts.swap(place, usize::from(*pick) % movable);
        }
    }
}

/// Cuts `len` octets into parts of the given sizes.
fn parts(len: u16, sizes: &[u8]) -> Vec<(u32, u16)> {
    let mut parts = Vec::new();
    let mut at = 0;
    for size in sizes {
        let size = u16::from(*size).min(len - at);
        parts.push((u32::from(at), size));
        at += size;
    }
    parts.push((at.into(), len - at));
    parts
}

fn last(place: usize, count: usize) -> MessagePart {
    if place + 1 == count {
        MessagePart::Final
    } else {
        MessagePart::Continued
    }
}

#[test]
fn send_segments_in_any_order_are_delivered_once() {
    check!()
        .with_type()
        .for_each(|(len, sizes, order): &(u16, Vec<u8>, Vec<u8>)| {
            let mut parts = parts(*len, sizes);
            shuffled(&mut parts, order);
            let mut progress = SendProgress::new();
            for (place, (offset, size)) in parts.iter().enumerate() {
                let segment = SendSegment {
                    first: place == 0,
                    msn: Msn::FIRST,
                    offset: *offset,
                    payload: PayloadSpan {
                        offset: 18,
                        len: *size,
                    },
                    kind: SendKind::default(),
                    last: last(place, parts.len()),
                };
                let placement = progress.accept(&segment, (*len).into()).unwrap();
                assert_eq!(placement.offset, *offset);
                let delivered = segment.last.is_last().then_some(u32::from(*len));
                assert_eq!(placement.delivered, delivered);
            }
        });
}

#[test]
fn read_response_in_any_order_completes_at_its_end() {
    check!()
        .with_type()
        .for_each(|(len, sizes, order, to): &(u16, Vec<u8>, Vec<u8>, u64)| {
            let to = (*to).min(u64::MAX - u64::from(*len));
            let request = ReadRequest {
                sink_stag: Stag::new(3),
                sink_to: TaggedOffset::new(to),
                len: (*len).into(),
                source_stag: Stag::ZERO,
                source_to: TaggedOffset::new(0),
            };
            let mut parts = parts(*len, sizes);
            shuffled(&mut parts, order);
            let mut read = ReadState::new(&request);
            assert_eq!(read.len(), u32::from(*len));
            assert_eq!(read.is_empty(), *len == 0);
            for (place, (offset, size)) in parts.iter().enumerate() {
                let segment = TaggedSegment {
                    stag: Stag::new(3),
                    to: TaggedOffset::new(to + u64::from(*offset)),
                    payload: PayloadSpan {
                        offset: 14,
                        len: *size,
                    },
                    last: last(place, parts.len()),
                };
                let placement = read.accept(&segment).unwrap();
                if *size != 0 {
                    assert_eq!(placement.offset, *offset);
                }
                assert_eq!(placement.complete, place + 1 == parts.len());
            }
        });
}

#[test]
fn the_longest_send_and_read() {
    // DDP-33, RDMAP-33: lengths up to 2^32 - 1.
    let request = ReadRequest {
        sink_stag: Stag::new(3),
        sink_to: TaggedOffset::new(0),
        len: u32::MAX,
        source_stag: Stag::ZERO,
        source_to: TaggedOffset::new(0),
    };
    let mut read = ReadState::new(&request);
    let mut progress = SendProgress::new();
    let message = Message::ReadResponse {
        stag: Stag::new(3),
        to: TaggedOffset::new(0),
    };
    let mut segmenter = Segmenter::new(message, u32::MAX);
    while let Some(plan) = segmenter.next(u16::MAX) {
        let (offset, len) = (plan.payload_offset(), plan.payload_len());
        let last = if plan.is_last() {
            MessagePart::Final
        } else {
            MessagePart::Continued
        };
        let response = TaggedSegment {
            stag: Stag::new(3),
            to: TaggedOffset::new(offset.into()),
            payload: PayloadSpan { offset: 14, len },
            last,
        };
        let placement = read.accept(&response).unwrap();
        assert_eq!(placement.offset, offset);
        assert_eq!(placement.complete, plan.is_last());
        let send = SendSegment {
            first: offset == 0,
            msn: Msn::FIRST,
            offset,
            payload: PayloadSpan { offset: 18, len },
            kind: SendKind::default(),
            last,
        };
        let placement = progress.accept(&send, u32::MAX).unwrap();
        assert_eq!(placement.delivered, plan.is_last().then_some(u32::MAX));
    }
}

/// The FetchAdd of the RFC's pseudo code: bit by bit, the carry dropped at each marked bit.
fn fetch_add_oracle(original: u64, add: u64, mask: u64) -> u64 {
    let mut carry = 0;
    let mut sum = 0;
    for bit in 0..64 {
        let total = ((original >> bit) & 1) + ((add >> bit) & 1) + carry;
        sum |= (total & 1) << bit;
        carry = if (mask >> bit) & 1 == 1 {
            0
        } else {
            total >> 1
        };
    }
    sum
}

#[test]
fn fetch_add_is_the_sum_of_fields() {
    check!()
        .with_type()
        .for_each(|(original, add, mask): &(u64, u64, u64)| {
            let operation = |mask| AtomicOperation::FetchAdd { add: *add, mask };
            assert_eq!(
                operation(*mask).apply(*original),
                fetch_add_oracle(*original, *add, *mask)
            );
            assert_eq!(operation(0).apply(*original), original.wrapping_add(*add));
            assert_eq!(operation(u64::MAX).apply(*original), original ^ add);
            let halves = operation(0x8000_0000_8000_0000).apply(*original);
            let half = |word: u64, shift: u32| (word >> shift) as u32;
            for shift in [0, 32] {
                let sum = half(*original, shift).wrapping_add(half(*add, shift));
                assert_eq!(half(halves, shift), sum);
            }
        });
    let operation = AtomicOperation::FetchAdd { add: 1, mask: 0 };
    assert_eq!(operation.apply(u64::MAX), 0);
}

#[test]
fn compare_swap_stores_only_on_a_match() {
    check!().with_type().for_each(|words: &([u64; 5], bool)| {
        let ([original, swap, swap_mask, mut compare, compare_mask], matching) = *words;
        if matching {
            compare = compare & !compare_mask | original & compare_mask;
        }
        let operation = AtomicOperation::CompareSwap {
            swap,
            swap_mask,
            compare,
            compare_mask,
        };
        let mut expected = original;
        let equal = (0..64).all(|bit| {
            (compare_mask >> bit) & 1 == 0 || (original >> bit) & 1 == (compare >> bit) & 1
        });
        if equal {
            for bit in 0..64 {
                if (swap_mask >> bit) & 1 == 1 {
                    expected = (expected & !(1 << bit)) | (swap & (1 << bit));
                }
            }
        }
        assert_eq!(operation.apply(original), expected);
        // EXT-81: the Swap of the first draft.
        let swap_always = AtomicOperation::CompareSwap {
            swap,
            swap_mask: u64::MAX,
            compare: 0,
            compare_mask: 0,
        };
        assert_eq!(swap_always.apply(original), swap);
    });
}

#[test]
fn every_segment_of_a_send_names_the_stag_to_invalidate() {
    // RDMAP-22, DDP-26.
    for solicited in [SendEvent::Silent, SendEvent::Solicit] {
        let kind = SendKind {
            solicited,
            extra: SendExtra::Invalidate(Stag::new(0x1122_3344)),
        };
        let msn = Msn::new(9);
        let mut segmenter = Segmenter::new(Message::Send { kind, msn }, 1000);
        let mut headers = Vec::new();
        while let Some(plan) = segmenter.next(128) {
            headers.push(plan.header().to_vec());
        }
        assert_eq!(headers.len(), 10);
        let (last, others) = headers.split_last().unwrap();
        let opcode = if solicited == SendEvent::Silent { 4 } else { 6 };
        assert_eq!(last[2..8], [0x41, 0x40 | opcode, 0x11, 0x22, 0x33, 0x44]);
        for header in others {
            assert_eq!(header[2..8], [0x01, 0x40 | opcode, 0x11, 0x22, 0x33, 0x44]);
        }
    }
}

#[test]
fn the_segmenter_agrees_with_a_naive_one() {
    check!()
        .with_type()
        .for_each(|(len, sizes): &(u32, Vec<u16>)| {
            let len = len & 0xf_ffff;
            let message = Message::Write {
                stag: Stag::new(1),
                to: TaggedOffset::new(0),
            };
            let mut segmenter = Segmenter::new(message, len);
            assert_eq!(*segmenter.message(), message);
            let mut at = 0;
            let mut sizes = sizes.iter().copied().chain(std::iter::repeat(1454));
            loop {
                let mulpdu = sizes.next().unwrap();
                let room = u32::from(mulpdu.max(128)) - 14;
                let take = room.min(len - at);
                assert_eq!(segmenter.remaining(), len - at);
                let plan = segmenter.next(mulpdu).unwrap();
                assert_eq!(plan.payload_offset(), at);
                assert_eq!(u32::from(plan.payload_len()), take);
                at += take;
                assert_eq!(plan.is_last(), at == len);
                assert_eq!(plan.fpdu_len() % 4, 0);
                if at == len {
                    break;
                }
            }
            assert!(segmenter.is_done() && segmenter.next(1454).is_none());
        });
}
