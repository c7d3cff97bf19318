// SPDX-License-Identifier: GPL-2.0

//! Segment and pack: puts a message into a batch as FPDUs.
//!
//! Context: the running transmit task.

use core::{
    cmp::min,
    iter::Peekable, //
};

use iwarp::{
    fault::Fault,
    inject::Corruption,
    mpa::{
        self,
        marker::{
            Marker,
            MarkerClock,
            MARKER_LEN, //
        },
        Crc, //
    },
    rdmap::ReadRequest,
    segment::{
        Plan,
        Segmenter, //
    },
    stream::{
        MessageEnd,
        Outgoing,
        StreamSender, //
    }, //
};
use kernel::{
    prelude::*,
    sync::atomic::Relaxed, //
};
use kernel_ext::{
    crc32c,
    net::{
        Grow,
        Mark,
        TxBatch, //
    },
    static_key,
    warn_on_once, //
};

use crate::{
    abi::wr::SendWr,
    mem::{
        peer::PeerAccess,
        sge::{
            NotCopied,
            SgeAccess,
            Slices, //
        }, //
    },
    queue::readq::InboundRead,
    stream::{
        inject::InsideRule,
        owner::QpShared, //
    }, //
};

use super::{
    paging::{
        take_or_request,
        NotPacked,
        PayloadKey,
        PayloadSource, //
    },
    Source,
    TxContext,
    TxStream,
    BATCH_LEN, //
};

impl TxStream {
    /// Segments and packs the next FPDU of the current message.
    #[inline]
    pub(super) fn cut(&mut self, qp: &QpShared, grow: Grow) -> Result<(), NotPacked> {
        let Self {
            plan,
            batch,
            source,
            inside,
            context:
                TxContext {
                    sender:
                        StreamSender {
                            current: Some(current),
                            ..
                        },
                    mulpdu,
                    slices,
                    ..
                },
            ..
        } = self
        else {
            return Ok(());
        };
        let stop = if static_key::is_on() {
            inside.as_ref().map(InsideRule::after)
        } else {
            None
        };
        let planned = match stop {
            Some(stop) => current.segmenter.next_until(*mulpdu, stop, plan),
            None => current.segmenter.next_into(*mulpdu, plan),
        };
        // A message is dropped with its last FPDU.
        if warn_on_once!(!planned) {
            return Err(NotPacked::Inconsistent);
        }
        let mut fpdu_len = plan.fpdu_len();
        if let Some(clock) = &self.markers {
            fpdu_len = clock.marked_len(fpdu_len);
        }
        if batch.reserve(fpdu_len as usize, grow).is_err() {
            current.segmenter.undo(plan);
            return Err(NotPacked::Memory);
        }
        let mark = batch.mark();
        let packer = Packer {
            qp,
            plan,
            source,
            slices,
            wr: &self.wr,
            crc: self.crc,
            markers: &self.markers,
        };
        if let Err(why) = packer.pack(batch) {
            batch.rewind(mark);
            let found = match why {
                NotPacked::Absent => packer.pack_found(
                    batch,
                    PayloadKey {
                        conn: self.conn.clone(),
                        position: self.appended,
                        offset: plan.payload_offset(),
                        len: usize::from(plan.payload_len()),
                        binding: packer.binding(),
                    },
                ),
                why => Err(why),
            };
            if let Err(why) = found {
                batch.rewind(mark);
                current.segmenter.undo(plan);
                return Err(why);
            }
        }
        if static_key::is_on() {
            if let Some(corruption) = self.corruption.take() {
                corrupt(corruption, batch, mark, plan, &self.markers, self.crc)?;
            }
        }
        qp.packed.store(true, Relaxed);
        // NO-OVERFLOW: a stream never sends 2^64 octets.
        self.appended += u64::from(fpdu_len);
        if let Some(clock) = &mut self.markers {
            clock.advance(plan.fpdu_len());
        }
        self.fpdus += 1;
        qp.trace_fpdu_out(plan, || {
            (current.job.slot(), current.segmenter.payload_len())
        });
        if !plan.is_last() {
            return Ok(());
        }
        match self.context.sender.end_message() {
            MessageEnd::Complete(slot) => qp.sq.sent(&mut self.marks, slot, self.appended),
            MessageEnd::AwaitConfirmation(slot) => qp.await_confirmation(Some(slot)),
            MessageEnd::Answered => {
                // Drops the region that the peer has read.
                self.source = Source::Nothing;
                qp.inbound_reads.answered();
            }
            MessageEnd::Nothing => {}
        }
        Ok(())
    }

    /// Packs more FPDUs of the current message until the batch is full, under one access to the
    /// region that they come from. Leaves to [`TxStream::cut`] the last FPDU of the message, what
    /// comes from several regions, and what cannot be packed.
    #[inline(never)]
    pub(super) fn cut_more(&mut self, qp: &QpShared, grow: Grow) {
        let Self {
            markers: None,
            batch,
            plan,
            source,
            context:
                TxContext {
                    sender:
                        StreamSender {
                            current: Some(Outgoing { segmenter, .. }),
                            ..
                        },
                    mulpdu,
                    slices,
                    ..
                },
            ..
        } = self
        else {
            return;
        };
        let mulpdu = *mulpdu;
        // Headers, padding and CRCs are shorter than a quarter of the payload. CAST: widens.
        let left = segmenter.remaining() as usize;
        let left = left.saturating_add(left / 4);
        // Allocated here, since bottom halves are off while the region is accessed.
        let room = min(BATCH_LEN.saturating_sub(batch.len()), left);
        let room = room + mpa::fpdu_len(mulpdu) as usize;
        if segmenter.remaining() <= u32::from(mulpdu) || batch.reserve(room, grow).is_err() {
            return;
        }
        let mut middle = MiddleFpdus {
            segmenter,
            plan,
            mulpdu,
            crc: self.crc,
            octets: 0,
            count: 0,
        };
        match source {
            Source::Slices => {
                let Some(inside) = slices.only_region().and_then(|region| region.try_access())
                else {
                    return;
                };
                let access = SgeAccess::source(qp.pd()).under(&inside);
                middle.pack(batch, |offset, len, batch| {
                    slices
                        .copy(access, offset, len, |memory, at, piece, _| {
                            memory.copy_to_batch(at, piece, batch)
                        })
                        .map_err(|_| NotPacked::Absent)
                });
            }
            Source::Remote(InboundRead {
                request,
                source: Some(region),
                ..
            }) => {
                let Some(access) = PeerAccess::open(region, qp.stream_id(), None) else {
                    return;
                };
                middle.pack(batch, |offset, len, batch| {
                    copy_source(&access, &request.after(offset), len, batch)
                });
            }
            Source::Nothing | Source::Inline | Source::Remote(_) | Source::Found(..) => return,
        }
        // NO-OVERFLOW: a stream never sends 2^64 octets.
        self.appended += middle.octets;
        self.fpdus += middle.count;
    }
}

/// Changes an octet of the FPDU packed last, which begins at `start`.
#[cold]
fn corrupt(
    corruption: Corruption,
    batch: &mut TxBatch,
    start: Mark,
    plan: &Plan,
    markers: &Option<MarkerClock>,
    crc: Crc,
) -> Result<(), NotPacked> {
    let end = batch.mark();
    let back = |octets: usize| end.moved(-(octets as isize));
    match corruption {
        Corruption::Crc => batch.flip(back(1)),
        Corruption::Payload => {
            // The last one, behind which there may be Markers. NO-OVERFLOW: an FPDU is shorter than
            // 2^17 octets. CAST: likewise.
            let at = plan.header().len() + usize::from(plan.payload_len()) - 1;
            let before = markers
                .iter()
                .flat_map(|clock| clock.markers(plan.fpdu_len()));
            let before = before.filter(|marker| marker.at as usize <= at).count();
            batch.flip(start.moved((at + before * MARKER_LEN) as isize));
            batch.rewind(back(mpa::CRC_LEN));
            // There is room for it.
            put(batch, &trailer(batch, start, crc))?;
        }
    }
    Ok(())
}

/// The FPDUs of a message before its last.
struct MiddleFpdus<'a> {
    segmenter: &'a mut Segmenter,
    plan: &'a mut Plan,
    mulpdu: u16,
    crc: Crc,
    /// Length of those packed, in octets.
    octets: u64,
    /// Number of those packed.
    count: u64,
}

impl MiddleFpdus<'_> {
    /// Packs them until the batch is full or one cannot be packed.
    #[inline(always)]
    fn pack(
        &mut self,
        batch: &mut TxBatch,
        mut copy: impl FnMut(u32, usize, &mut TxBatch) -> Result<(), NotPacked>,
    ) {
        while batch.len() < BATCH_LEN
            && self.segmenter.remaining() > u32::from(self.mulpdu)
            && self.segmenter.next_into(self.mulpdu, self.plan)
        {
            let mark = batch.mark();
            if pack_plain(self.plan, self.crc, batch, &mut copy).is_err() {
                batch.rewind(mark);
                self.segmenter.undo(self.plan);
                return;
            }
            self.octets += u64::from(self.plan.fpdu_len());
            self.count += 1;
        }
    }
}

/// Packs one FPDU into a batch.
struct Packer<'a> {
    qp: &'a QpShared,
    plan: &'a Plan,
    source: &'a Source,
    slices: &'a Slices,
    wr: &'a SendWr,
    crc: Crc,
    markers: &'a Option<MarkerClock>,
}

impl Packer<'_> {
    /// Packs an FPDU whose payload was absent: uses the fetched copy, or requests the fetch. The
    /// caller has just tried without the copy, which checked that the peer may read the source
    /// (RDMAP-165), under the key used for the fetch. The binding in `place` was looked up after
    /// that: so the source has not been revoked since the fetch began if the copy is of the same.
    #[cold]
    fn pack_found(&self, batch: &mut TxBatch, place: PayloadKey) -> Result<(), NotPacked> {
        let offset = place.offset;
        let remote = match self.source {
            Source::Slices => None,
            Source::Remote(InboundRead {
                request,
                source: Some(region),
                ..
            }) => Some((region, request)),
            // Only regions have absent pages.
            Source::Remote(_) | Source::Nothing | Source::Inline | Source::Found(..) => {
                warn_on_once!(true);
                return Err(NotPacked::Inconsistent);
            }
        };
        let octets = take_or_request(&self.qp.paging_out, place, || match remote {
            Some((region, request)) => PayloadSource::Remote(region.clone(), *request),
            None => PayloadSource::Slices(self.slices.clone()),
        })?;
        let found = Packer {
            source: &Source::Found(offset, octets),
            ..*self
        };
        found.pack(batch)
    }

    /// Returns which binding of a window the peer reads; 0 for other sources.
    #[cold]
    fn binding(&self) -> u64 {
        match self.source {
            Source::Remote(InboundRead {
                source: Some(region),
                ..
            }) => region.try_access().map_or(0, |inside| inside.binding()),
            Source::Remote(_)
            | Source::Nothing
            | Source::Slices
            | Source::Inline
            | Source::Found(..) => 0,
        }
    }

    #[inline(always)]
    fn pack(&self, batch: &mut TxBatch) -> Result<(), NotPacked> {
        match self.markers {
            None => self.pack_plain(batch),
            Some(clock) => self.pack_marked(batch, clock),
        }
    }

    /// Without Markers.
    #[inline(always)]
    fn pack_plain(&self, batch: &mut TxBatch) -> Result<(), NotPacked> {
        pack_plain(self.plan, self.crc, batch, |offset, len, batch| {
            self.copy_payload(offset, len, batch)
        })
    }

    /// With Markers.
    #[inline(never)]
    fn pack_marked(&self, batch: &mut TxBatch, clock: &MarkerClock) -> Result<(), NotPacked> {
        let plan = self.plan;
        let start = batch.mark();
        let mut writer = MarkerWriter {
            batch,
            markers: clock.markers(plan.fpdu_len()).peekable(),
            at: 0,
        };
        let header = plan.header();
        writer.write(header.len(), |batch, at, len| {
            put_piece(batch, header, at, len)
        })?;
        let offset = plan.payload_offset();
        writer.write(usize::from(plan.payload_len()), |batch, at, len| {
            // CAST: less than the payload of one FPDU. NO-OVERFLOW: inside the message.
            self.copy_payload(offset + at as u32, len, batch)
        })?;
        writer.write(usize::from(plan.pad_len()), |batch, _, len| pad(batch, len))?;
        writer.write(mpa::CRC_LEN, |batch, at, len| {
            let trailer = trailer(batch, start, self.crc);
            put_piece(batch, &trailer, at, len)
        })
    }

    /// Copies a part of a message's payload.
    #[inline(always)]
    fn copy_payload(&self, offset: u32, len: usize, batch: &mut TxBatch) -> Result<(), NotPacked> {
        match self.source {
            Source::Nothing => Ok(()),
            Source::Slices => self
                .slices
                .copy(
                    SgeAccess::source(self.qp.pd()),
                    offset,
                    len,
                    |memory, at, piece, _| memory.copy_to_batch(at, piece, batch),
                )
                .map_err(|why| match why {
                    NotCopied::Absent(_) => NotPacked::Absent,
                    NotCopied::Refused(status) => NotPacked::Local(status),
                }),
            Source::Inline => {
                let octets = self.wr.payload.inline().unwrap_or_default();
                put_piece(batch, octets, offset as usize, len)
            }
            Source::Remote(read) => self.copy_remote(read, offset, len, batch),
            Source::Found(from, octets) => {
                put_found(batch, octets, offset.wrapping_sub(*from), len)
            }
        }
    }

    /// Copies a part of a region that the peer reads. Checks the source again for each FPDU, since
    /// its owner may revoke it at any time (RDMAP-165).
    #[inline(never)]
    fn copy_remote(
        &self,
        read: &InboundRead,
        offset: u32,
        len: usize,
        batch: &mut TxBatch,
    ) -> Result<(), NotPacked> {
        let invalid = Fault::SourceInvalidStag;
        let region = read.source.as_ref().ok_or(invalid)?;
        let access = PeerAccess::open(region, self.qp.stream_id(), None).ok_or(invalid)?;
        copy_source(&access, &read.request.after(offset), len, batch)
    }
}

/// Copies the first `len` octets that the peer reads.
#[inline(always)]
fn copy_source(
    access: &PeerAccess<'_>,
    request: &ReadRequest,
    len: usize,
    batch: &mut TxBatch,
) -> Result<(), NotPacked> {
    // CAST: less than the payload of one FPDU.
    access.read(request, len as u32, |inside, at| {
        let copied = inside.memory().copy_to_batch(at, len, batch);
        copied.map_err(|error| match error {
            EAGAIN => NotPacked::Absent,
            ENOMEM => NotPacked::Memory,
            _ => NotPacked::Remote(Fault::Local),
        })
    })
}

/// Packs one FPDU without Markers; `copy(offset, len, batch)` copies that part of the message's
/// payload.
#[inline(always)]
fn pack_plain(
    plan: &Plan,
    crc: Crc,
    batch: &mut TxBatch,
    copy: impl FnOnce(u32, usize, &mut TxBatch) -> Result<(), NotPacked>,
) -> Result<(), NotPacked> {
    let start = batch.mark();
    put(batch, plan.header())?;
    let len = usize::from(plan.payload_len());
    // Skipped without payload: such a message has no source.
    if len != 0 {
        copy(plan.payload_offset(), len, batch)?;
    }
    pad(batch, usize::from(plan.pad_len()))?;
    let trailer = trailer(batch, start, crc);
    put(batch, &trailer)
}

/// Writes the parts of one FPDU into the batch, with the Markers between them.
struct MarkerWriter<'a, I: Iterator<Item = Marker>> {
    batch: &'a mut TxBatch,
    /// The Markers still to be written.
    markers: Peekable<I>,
    /// Octets of the FPDU written so far, without Markers.
    at: u32,
}

impl<I: Iterator<Item = Marker>> MarkerWriter<'_, I> {
    /// Writes a part of `len` octets; `f(batch, at, n)` writes the `n` octets at `at` of it.
    ///
    /// A Marker is written right before the octet that follows it, not right after the octet that
    /// precedes it. So the CRC covers a Marker in front of the CRC field.
    fn write(
        &mut self,
        len: usize,
        mut f: impl FnMut(&mut TxBatch, usize, usize) -> Result<(), NotPacked>,
    ) -> Result<(), NotPacked> {
        let mut done = 0;
        while done < len {
            let mut run = len - done;
            if let Some(marker) = self.markers.peek() {
                let before = marker.at.saturating_sub(self.at) as usize;
                if before == 0 {
                    put(self.batch, &marker.encode())?;
                    self.markers.next();
                    continue;
                }
                run = min(run, before);
            }
            f(self.batch, done, run)?;
            done += run;
            // CAST: the FPDU is shorter than 2^17 octets.
            self.at += run as u32;
        }
        Ok(())
    }
}

/// Appends the `len` octets at `at` of a header, a trailer, an inline payload or a copy.
#[inline]
fn put_piece(batch: &mut TxBatch, octets: &[u8], at: usize, len: usize) -> Result<(), NotPacked> {
    let piece = at.checked_add(len).and_then(|end| octets.get(at..end));
    // The plan cuts within the message, and a copy covers its FPDU.
    if warn_on_once!(piece.is_none()) {
        return Err(NotPacked::Inconsistent);
    }
    put(batch, piece.unwrap_or_default())
}

/// Returns the CRC field for all octets put into the batch since `start`.
#[inline]
fn trailer(batch: &TxBatch, start: Mark, crc: Crc) -> [u8; mpa::CRC_LEN] {
    match crc {
        Crc::On => mpa::crc_trailer(crc32c::finish(batch.crc32c_since(start, crc32c::INIT))),
        Crc::Off => [0; mpa::CRC_LEN],
    }
}

#[inline]
fn put(batch: &mut TxBatch, octets: &[u8]) -> Result<(), NotPacked> {
    batch.put(octets).map_err(|_| NotPacked::Memory)
}

#[cold]
fn put_found(batch: &mut TxBatch, octets: &[u8], at: u32, len: usize) -> Result<(), NotPacked> {
    put_piece(batch, octets, at as usize, len)
}

#[inline]
fn pad(batch: &mut TxBatch, len: usize) -> Result<(), NotPacked> {
    if len == 0 {
        return Ok(());
    }
    batch.put_zeroes(len).map_err(|_| NotPacked::Memory)
}

#[kernel::prelude::kunit_tests(riwarp_pack)]
mod tests {
    use super::*;

    #[test]
    fn kernel_crc32c_equals_core_crc32c() -> Result {
        let octets: [u8; 300] = kernel_ext::random::octets();
        for from in 0..8 {
            for len in 0..=64 {
                let piece = &octets[from..from + len];
                let kernel = crc32c::finish(crc32c::update(crc32c::INIT, piece));
                assert_eq!(kernel, iwarp::crc::crc32c(piece));
            }
        }
        let mut batch = TxBatch::new();
        let start = batch.mark();
        batch.put(&octets)?;
        let expected = mpa::crc_trailer(iwarp::crc::crc32c(&octets));
        assert_eq!(trailer(&batch, start, Crc::On), expected);
        assert_eq!(trailer(&batch, start, Crc::Off), [0; 4]);
        Ok(())
    }

    #[test]
    fn copied_piece_has_requested_offset_and_length() -> Result {
        let octets = [1, 2, 3, 4];
        let mut batch = TxBatch::new();
        let start = batch.mark();
        for (at, len) in [(1, 2), (0, 1), (4, 0), (3, 1)] {
            assert!(put_piece(&mut batch, &octets, at, len).is_ok());
        }
        assert_eq!(batch.len(), 4);
        let expected = crc32c::update(crc32c::INIT, &[2, 3, 1, 4]);
        assert_eq!(batch.crc32c_since(start, crc32c::INIT), expected);
        Ok(())
    }

    #[test]
    fn fpdu_pads_are_zero() -> Result {
        let mut batch = TxBatch::new();
        for len in 0..4 {
            let start = batch.mark();
            assert!(pad(&mut batch, len).is_ok());
            let zeroes = crc32c::update(crc32c::INIT, &[0; 4][..len]);
            assert_eq!(batch.crc32c_since(start, crc32c::INIT), zeroes);
        }
        assert_eq!(batch.len(), 6);
        Ok(())
    }
}
