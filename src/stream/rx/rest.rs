// SPDX-License-Identifier: GPL-2.0

//! The rest of a message of several FPDUs, placed under one access to its memory.
//!
//! The first FPDU of a message goes the general way ([`RxStream::accept`]), and so does the last
//! one of a Send and of a Read Response, which completes something. Those between differ only in
//! their offsets; here they share one access to the region and one search for the Read that they
//! answer.
//!
//! What is unusual about an FPDU is not judged here: it is left, unchanged, to the general way.
//!
//! Context: softirq, or process with the socket locked.

use iwarp::{
    mpa::{
        self,
        Crc, //
    },
    receiver::{
        Receiver,
        Segment, //
    }, //
};

use super::{
    fpdu::{
        Fpdu,
        FRONT_MAX, //
    },
    recv::Incoming,
    RxRound,
    RxStream,
    Stop,
    Written, //
};
use crate::mem::{
    peer::PeerAccess,
    sge::{
        RegionCache,
        SgeAccess, //
    }, //
};

/// How many octets are received under one access to a region at most: whoever revokes it waits
/// that long.
const REST_MAX: usize = 64 * 1024;

/// The same in FPDUs. At an MTU of 1500 fewer have [`REST_MAX`] octets.
const REST_FPDUS: u64 = 64;

impl RxStream {
    /// Processes FPDUs of the message that is under way, from `pos` on; returns their length. Stops
    /// before one that it leaves to the general path.
    #[inline]
    pub(super) fn receive_rest(&mut self, round: &mut RxRound<'_, '_>, pos: usize) -> usize {
        let Self {
            receiver,
            crc,
            incoming,
            written,
            cache,
            ..
        } = self;
        let mut fpdus = Fpdus {
            receiver,
            crc: *crc,
            pos,
        };
        if written.is_open() {
            fpdus.write(round, cache, written);
        } else if incoming.begun().is_some() {
            fpdus.send(round, incoming);
        } else {
            fpdus.response(round);
        }
        fpdus.pos - pos
    }
}

/// The FPDUs from `pos` on.
struct Fpdus<'a> {
    receiver: &'a mut Receiver,
    crc: Crc,
    /// Offset of the next one in TCP's receive queue.
    pos: usize,
}

impl Fpdus<'_> {
    /// Places one FPDU after the other. Ends at the first one that is incomplete, damaged or
    /// faulty, of which `part` says that it is no part of this message, or that `place` cannot
    /// place: nothing of that one is remembered.
    #[inline(always)]
    fn each<S>(
        &mut self,
        round: &mut RxRound<'_, '_>,
        part: impl Fn(&Segment) -> Option<S>,
        mut place: impl FnMut(&mut RxRound<'_, '_>, &Fpdu, &S) -> Option<()>,
    ) {
        let mut front = [0; FRONT_MAX];
        let end = self.pos + REST_MAX;
        let most = round.fpdus.accepted + REST_FPDUS;
        while self.pos < end && round.fpdus.accepted < most {
            let Some(fpdu) = Fpdu::at(round.inbound, self.pos, &mut front) else {
                return;
            };
            let header = front.get(mpa::LENGTH_LEN..).unwrap_or(&[]);
            let mut next = *self.receiver;
            let Ok(segment) = &next.handle_fpdu(header, fpdu.ulpdu_len) else {
                return;
            };
            let Some(segment) = part(segment) else {
                return;
            };
            if self.crc == Crc::On && !fpdu.crc_is_right(round.inbound) {
                return;
            }
            if place(round, &fpdu, &segment).is_none() {
                return;
            }
            round.qp.trace_fpdu_in(header, fpdu.ulpdu_len);
            *self.receiver = next;
            self.pos += fpdu.len;
            round.fpdus.accepted += 1;
        }
    }

    /// Of an RDMA Write. It may end here.
    fn write(&mut self, round: &mut RxRound<'_, '_>, cache: &RegionCache, written: &mut Written) {
        let Some(region) = cache.last() else {
            return;
        };
        let stream = round.qp.stream_id();
        let Some(access) = PeerAccess::open(region, stream, Some(round.off)) else {
            return;
        };
        let part = |segment: &Segment| match segment {
            Segment::Write(segment) if segment.payload.len != 0 => Some(*segment),
            _ => None,
        };
        self.each(round, part, |round, fpdu, segment| {
            let payload = segment.payload;
            let (pos, len) = (fpdu.payload_pos(payload), usize::from(payload.len));
            let placed = access.write(segment, |inside, at| {
                let memory = inside.memory();
                Ok::<_, Stop>(memory.copy_from_inbound(at, round.inbound, pos, len)?)
            });
            placed.ok()?;
            written.add(segment);
            Some(())
        });
    }

    /// Of a Send, without its last FPDU, into a buffer of one element.
    fn send(&mut self, round: &mut RxRound<'_, '_>, incoming: &mut Incoming) {
        let Some((sink, len, progress)) = incoming.under_way() else {
            return;
        };
        let Some(inside) = sink.region.try_access_bh_off(round.off) else {
            return;
        };
        let access = SgeAccess::sink(round.qp.receive_pd(), round.off).under(&inside);
        let part = |segment: &Segment| match segment {
            Segment::Send(segment) if !segment.last.is_last() && segment.payload.len != 0 => {
                Some(*segment)
            }
            _ => None,
        };
        self.each(round, part, |round, fpdu, segment| {
            let mut next = *progress;
            let placement = next.accept(segment, len).ok()?;
            let placed = round.place(fpdu, segment.payload, sink, access, placement.offset);
            placed.ok()?;
            *progress = next;
            Some(())
        });
    }

    /// Of a Read Response, without its last FPDU.
    fn response(&mut self, round: &mut RxRound<'_, '_>) {
        let sq = &round.qp.sq;
        let Some((mut read, Some(sink))) = sq.oldest_read_state() else {
            return;
        };
        let Some(inside) = sink.region.try_access_bh_off(round.off) else {
            return;
        };
        let access = SgeAccess::sink(round.qp.pd(), round.off).under(&inside);
        let part = |segment: &Segment| match segment {
            Segment::ReadResponse(segment)
                if !segment.last.is_last() && segment.payload.len != 0 =>
            {
                Some(*segment)
            }
            _ => None,
        };
        self.each(round, part, |round, fpdu, segment| {
            let mut next = read;
            let placement = next.accept(segment).ok()?;
            let placed = round.place(fpdu, segment.payload, &sink, access, placement.offset);
            placed.ok()?;
            read = next;
            round.fpdus.answers += 1;
            Some(())
        });
        round.qp.sq.set_read_state(read);
    }
}
