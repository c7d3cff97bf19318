// SPDX-License-Identifier: GPL-2.0

//! The rest of a message of several FPDUs, placed under one access to its memory.
//!
//! The first FPDU of a message goes the general way ([`Receiving::receive`]), and so does the last
//! one of a Send and of a Read Response, which completes something. Those between differ only in
//! their offsets; here they share one access to the region and one search for the Read that they
//! answer.
//!
//! What is unusual about an FPDU is not judged here: it is left, unchanged, to the general way.
//!
//! Context: softirq, or process with the socket locked.

use core::cell::Cell;

use iwarp::{
    mpa::{
        self,
        Crc, //
    },
    stream::{
        NextResponse,
        NextSend,
        NextWrite,
        Round,
        StreamReceiver,
        UnderWay, //
    }, //
};
use kernel_ext::{
    net::Inbound,
    sync::BhOff, //
};

use super::{
    delivery::{
        payload_of,
        place,
        place_write,
        RxDelivery, //
    },
    fpdu::{
        Fpdu,
        FRONT_MAX, //
    },
    recv::Incoming,
    Receiving, //
};
use crate::{
    mem::{
        peer::PeerAccess,
        sge::{
            RegionCache,
            SgeAccess,
            Slice, //
        }, //
    },
    stream::owner::QpShared, //
};

/// How many octets are received under one access to a region at most: whoever revokes it waits
/// that long.
const REST_MAX: usize = 64 * 1024;

/// The same in FPDUs. At an MTU of 1500 fewer have [`REST_MAX`] octets.
const REST_FPDUS: u64 = 64;

impl<'b> Receiving<'_, 'b> {
    /// Processes FPDUs of the message that is under way, from `pos` on; returns their length. Stops
    /// before one that it leaves to the general path.
    #[inline]
    pub(super) fn receive_rest(&mut self, message: UnderWay, pos: usize) -> usize {
        let Self {
            receiver,
            done,
            crc,
            to:
                RxDelivery {
                    qp,
                    inbound,
                    off,
                    incoming,
                    cache,
                    ..
                },
            ..
        } = self;
        let mut rest = RestOfMessage {
            receiver,
            done,
            crc: *crc,
            qp,
            inbound,
            off: *off,
            pos,
        };
        match message {
            UnderWay::Write => rest.write(cache),
            UnderWay::Send => rest.send(incoming),
            UnderWay::Response => rest.response(),
        }
        rest.pos - pos
    }
}

/// The FPDUs of a message from `pos` on.
struct RestOfMessage<'a, 'b> {
    receiver: &'a mut StreamReceiver<Slice>,
    done: &'a mut Round,
    crc: Crc,
    qp: &'a QpShared,
    inbound: &'a mut Inbound<'b>,
    off: BhOff<'a>,
    /// Offset of the next one in TCP's receive queue.
    pos: usize,
}

impl RestOfMessage<'_, '_> {
    /// Places one FPDU after the other. Ends at the first one that is incomplete, damaged or
    /// faulty, which is no part of this message, or which `place` cannot place: nothing of that one
    /// is remembered.
    #[inline(always)]
    fn each<N>(
        &mut self,
        peek: impl Fn(&StreamReceiver<Slice>, &[u8], u16) -> Option<N>,
        mut place: impl FnMut(&mut Inbound<'_>, usize, &N) -> bool,
        accept: impl Fn(&mut StreamReceiver<Slice>, &mut Round, &N),
    ) {
        let mut front = [0; FRONT_MAX];
        let end = self.pos + REST_MAX;
        let most = self.done.accepted + REST_FPDUS;
        while self.pos < end && self.done.accepted < most {
            let Some(fpdu) = Fpdu::at(self.inbound, self.pos, &mut front) else {
                return;
            };
            let header = front.get(mpa::LENGTH_LEN..).unwrap_or(&[]);
            let Some(next) = peek(self.receiver, header, fpdu.ulpdu_len) else {
                return;
            };
            if fpdu.check(self.inbound, self.crc).is_err() || !place(self.inbound, fpdu.pos, &next)
            {
                return;
            }
            self.qp.trace_fpdu_in(header, fpdu.ulpdu_len);
            accept(self.receiver, self.done, &next);
            self.pos += fpdu.len;
        }
    }

    /// Of an RDMA Write. It may end here.
    fn write(&mut self, cache: &RegionCache) {
        let Some(region) = cache.last() else {
            return;
        };
        let Some(access) = PeerAccess::open(region, self.qp.stream_id(), Some(self.off)) else {
            return;
        };
        let place = |inbound: &mut Inbound<'_>, pos, next: &NextWrite| {
            let payload = payload_of(pos, next.segment.payload);
            place_write(inbound, payload, &access, &next.segment).is_ok()
        };
        self.each(
            StreamReceiver::peek_write,
            place,
            StreamReceiver::accept_write,
        );
    }

    /// Of a Send, without its last FPDU, into a buffer of one element.
    fn send(&mut self, incoming: &Incoming) {
        let Some(sink) = incoming.only() else {
            return;
        };
        let Some(inside) = sink.region.try_access_bh_off(self.off) else {
            return;
        };
        let access = SgeAccess::sink(self.qp.receive_pd(), self.off).under(&inside);
        let place = |inbound: &mut Inbound<'_>, pos, next: &NextSend| {
            let payload = payload_of(pos, next.payload);
            place(inbound, payload, sink, access, next.offset).is_ok()
        };
        self.each(
            StreamReceiver::peek_send,
            place,
            StreamReceiver::accept_send,
        );
    }

    /// Of a Read Response, without its last FPDU.
    fn response(&mut self) {
        let sq = &self.qp.sq;
        let Some((read, Some(sink))) = sq.oldest_read_state() else {
            return;
        };
        let Some(inside) = sink.region.try_access_bh_off(self.off) else {
            return;
        };
        let access = SgeAccess::sink(self.qp.pd(), self.off).under(&inside);
        let place = |inbound: &mut Inbound<'_>, pos, next: &NextResponse| {
            let payload = payload_of(pos, next.payload);
            place(inbound, payload, &sink, access, next.offset).is_ok()
        };
        let read = Cell::new(read);
        self.each(
            |receiver, header, len| receiver.peek_response(read.get(), header, len),
            place,
            |receiver, done, next| {
                read.set(next.read);
                receiver.accept_response(done);
            },
        );
        sq.set_read_state(read.get());
    }
}
