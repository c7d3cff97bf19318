// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of scatter/gather lists in the region of all kernel memory.

#[kernel::prelude::kunit_tests(riwarp_sge)]
mod sge {
    use super::super::*;
    use crate::{
        bench::Bench,
        mem::{
            mr::registration::Mr,
            payload::Sge, //
        }, //
    };
    use kernel_ext::{
        crc32c,
        mm::shared_ring::SharedMem,
        net::TxBatch,
        rdma::{
            bench::kernel_owned,
            types::AccessFlags, //
        }, //
    };

    /// A region and octets in it, whose values depend on their offsets.
    struct SgeRig {
        mr: Arc<Mr>,
        key: u32,
        memory: SharedMem,
        bench: Bench,
    }

    const REFUSED: Result<(), WcStatus> = Err(WcStatus::LocalProtection);

    fn octet(at: usize) -> u8 {
        (at % 251) as u8
    }

    impl SgeRig {
        fn new(access: AccessFlags) -> Result<Self> {
            let bench = Bench::new()?;
            let made = Mr::dma(bench.pd.as_arc_borrow(), kernel_owned(), access)?;
            let memory = SharedMem::try_new(4096)?;
            for at in (0..4096).step_by(8) {
                let octets: [u8; 8] = core::array::from_fn(|n| octet(at + n));
                memory.copy_in(at, &octets)?;
            }
            Ok(Self {
                mr: made.mr,
                key: made.lkey,
                memory,
                bench,
            })
        }

        fn pd(&self) -> PdId {
            self.bench.pd.id()
        }

        /// Makes a list of pieces of the octets, each given by offset and length.
        fn list(&self, pieces: &[(usize, u32)]) -> Payload {
            let mut list = Payload::default();
            for (at, len) in pieces {
                let start = self.memory.start().wrapping_add(*at);
                list.push(Sge {
                    addr: start.expose_provenance() as u64,
                    len: *len,
                    lkey: self.key,
                });
            }
            list
        }

        fn resolve(&self, slices: &mut Slices, list: &Payload) -> Result<(), WcStatus> {
            let cache = &mut RegionCache::default();
            let usage = LocalUse::Source;
            slices.resolve(list, &self.bench.rdma.regions, self.pd(), usage, cache)
        }

        /// Returns whether the `len` octets at `offset` of the list are these of the memory, in
        /// this order.
        fn copies(
            &self,
            slices: &Slices,
            (offset, len): (u32, usize),
            expected: &[(usize, usize)],
        ) -> bool {
            let mut batch = TxBatch::new();
            let mark = batch.mark();
            let copied = to_batch(slices, self.pd(), offset, len, &mut batch);
            let mut crc = crc32c::INIT;
            for (at, count) in expected {
                for n in 0..*count {
                    crc = crc32c::update(crc, &[octet(at + n)]);
                }
            }
            copied == Ok(()) && batch.len() == len && batch.crc32c_since(mark, crc32c::INIT) == crc
        }
    }

    fn to_batch(
        slices: &Slices,
        pd: PdId,
        offset: u32,
        len: usize,
        batch: &mut TxBatch,
    ) -> Result<(), NotCopied> {
        let access = SgeAccess::source(pd);
        slices.copy(access, offset, len, |memory, at, piece, _| {
            memory.copy_to_batch(at, piece, batch)
        })
    }

    /// Places octets at the front.
    fn put(slice: &Slice, pd: PdId, octets: &[u8]) -> Result<(), NotCopied> {
        BhOff::run(|off| {
            let access = SgeAccess::sink(pd, off);
            slice.copy(access, 0, octets.len(), |inside, at| {
                Ok(inside.memory().write(at, octets)?)
            })
        })
    }

    #[test]
    fn sge_list_is_read_in_order() -> Result {
        let rig = SgeRig::new(AccessFlags::empty())?;
        let mut slices = Slices::default();
        let list = rig.list(&[(1000, 10), (0, 0), (5, 1), (2000, 100)]);
        assert_eq!(rig.resolve(&mut slices, &list), Ok(()));
        // The list omits the empty piece.
        assert_eq!(slices.iter().count(), 3);
        let all = [(1000, 10), (5, 1), (2000, 100)];
        assert!(rig.copies(&slices, (0, 111), &all));
        assert!(rig.copies(&slices, (0, 10), &[(1000, 10)]));
        assert!(rig.copies(&slices, (9, 2), &[(1009, 1), (5, 1)]));
        assert!(rig.copies(&slices, (10, 1), &[(5, 1)]));
        assert!(rig.copies(&slices, (10, 5), &[(5, 1), (2000, 4)]));
        assert!(rig.copies(&slices, (11, 100), &[(2000, 100)]));
        assert!(rig.copies(&slices, (110, 1), &[(2099, 1)]));
        assert!(rig.copies(&slices, (111, 0), &[]));
        Ok(())
    }

    #[test]
    fn sge_list_may_span_several_regions() -> Result {
        let rig = SgeRig::new(AccessFlags::empty())?;
        let none = AccessFlags::empty();
        let other = Mr::dma(rig.bench.pd.as_arc_borrow(), kernel_owned(), none)?;
        let start = rig.memory.start().expose_provenance() as u64;
        let mut list = Payload::default();
        for (at, lkey) in [(100, rig.key), (200, other.lkey), (300, rig.key)] {
            list.push(Sge {
                addr: start + at,
                len: 10,
                lkey,
            });
        }
        let mut slices = Slices::default();
        assert_eq!(rig.resolve(&mut slices, &list), Ok(()));
        assert!(slices.only_region().is_none());
        assert!(rig.copies(&slices, (5, 20), &[(105, 5), (200, 10), (300, 5)]));
        // Each region is accessed for itself.
        assert_eq!(other.mr.deregister(), Ok(()));
        assert!(rig.copies(&slices, (0, 10), &[(100, 10)]));
        assert!(!rig.copies(&slices, (5, 20), &[(105, 5), (200, 10), (300, 5)]));
        Ok(())
    }

    #[test]
    fn copy_beyond_end_of_sge_list_is_refused() -> Result {
        let rig = SgeRig::new(AccessFlags::empty())?;
        for pieces in [&[(0, 100)][..], &[(0, 50), (200, 50)][..]] {
            let mut slices = Slices::default();
            let list = rig.list(pieces);
            assert_eq!(rig.resolve(&mut slices, &list), Ok(()));
            for (offset, len) in [(0, 101), (99, 2), (100, 1), (u32::MAX, 1), (1, usize::MAX)] {
                let mut batch = TxBatch::new();
                let copied = to_batch(&slices, rig.pd(), offset, len, &mut batch);
                assert_eq!(copied, Err(NotCopied::Refused(WcStatus::LocalProtection)));
            }
        }
        Ok(())
    }

    #[test]
    fn shorter_sge_list_replaces_longer_one() -> Result {
        let rig = SgeRig::new(AccessFlags::empty())?;
        let mut slices = Slices::default();
        for pieces in [
            &[(0, 10), (100, 10), (200, 10)][..],
            &[(300, 10)][..],
            // The same region as the last time, which takes the fast path.
            &[(400, 7)][..],
            &[(500, 5), (600, 5)][..],
            &[][..],
        ] {
            let list = rig.list(pieces);
            assert_eq!(rig.resolve(&mut slices, &list), Ok(()));
            assert_eq!(slices.iter().count(), pieces.len());
            let expected = |(at, len): &(usize, u32)| (*at, *len as usize);
            let mut all = [(0, 0); 3];
            for (to, from) in all.iter_mut().zip(pieces) {
                *to = expected(from);
            }
            let len = all.iter().map(|(_, len)| len).sum();
            assert!(rig.copies(&slices, (0, len), &all));
            let mut batch = TxBatch::new();
            let more = to_batch(&slices, rig.pd(), 0, len + 1, &mut batch);
            assert!(more.is_err());
        }
        assert!(slices.take_first().is_none());
        Ok(())
    }

    #[test]
    fn sge_key_and_domain_are_checked_per_element() -> Result {
        let rig = SgeRig::new(AccessFlags::empty())?;
        let (regions, usage) = (&rig.bench.rdma.regions, LocalUse::Source);
        let mut cache = RegionCache::default();
        let mut slices = Slices::default();
        let good = rig.list(&[(0, 1), (1, 1)]);
        let other = PdId::new(u64::MAX);
        let foreign = slices.resolve(&good, regions, other, usage, &mut cache);
        assert_eq!(foreign, REFUSED);
        for bad in [rig.key ^ 1, rig.key ^ 0x100, 0, u32::MAX] {
            let mut list = rig.list(&[(0, 1)]);
            list.push(Sge {
                addr: 0,
                len: 1,
                lkey: bad,
            });
            assert_eq!(
                slices.resolve(&list, regions, rig.pd(), usage, &mut cache),
                REFUSED
            );
            // An element without octets is not checked.
            let mut list = rig.list(&[(0, 1)]);
            list.push(Sge {
                addr: 0,
                len: 0,
                lkey: bad,
            });
            assert_eq!(
                slices.resolve(&list, regions, rig.pd(), usage, &mut cache),
                Ok(())
            );
        }
        Ok(())
    }

    #[test]
    fn sge_without_local_write_is_no_sink() -> Result {
        for (access, expected) in [
            (AccessFlags::empty(), REFUSED),
            (AccessFlags::LOCAL_WRITE, Ok(())),
        ] {
            let rig = SgeRig::new(access)?;
            let mut slices = Slices::default();
            let list = rig.list(&[(8, 8)]);
            let cache = &mut RegionCache::default();
            let regions = &rig.bench.rdma.regions;
            let sink = slices.resolve(&list, regions, rig.pd(), LocalUse::Sink, cache);
            assert_eq!(sink, expected);
            // Each copy reports the error.
            assert_eq!(rig.resolve(&mut slices, &list), Ok(()));
            let slice = slices.take_first().ok_or(EINVAL)?;
            let put = put(&slice, rig.pd(), &[0xff; 8]);
            assert_eq!(put, expected.map_err(NotCopied::Refused));
            let found: u64 = rig.memory.copy_out(8).ok_or(EINVAL)?;
            assert!((found == u64::MAX) == expected.is_ok());
            assert!(slices.take_first().is_none());
        }
        Ok(())
    }

    #[test]
    fn sge_of_deregistered_region_is_not_accessed() -> Result {
        let rig = SgeRig::new(AccessFlags::LOCAL_WRITE)?;
        let (regions, usage) = (&rig.bench.rdma.regions, LocalUse::Source);
        let mut cache = RegionCache::default();
        let mut slices = Slices::default();
        let list = rig.list(&[(0, 8)]);
        let found = slices.resolve(&list, regions, rig.pd(), usage, &mut cache);
        assert_eq!(found, Ok(()));
        assert_eq!(rig.mr.deregister(), Ok(()));
        // A list that was resolved before cannot use it ...
        let refused = Err(NotCopied::Refused(WcStatus::LocalProtection));
        let mut batch = TxBatch::new();
        let copied = to_batch(&slices, rig.pd(), 0, 8, &mut batch);
        assert_eq!(copied, refused);
        assert!(batch.is_empty());
        let slice = slices.clone().take_first().ok_or(EINVAL)?;
        let put = put(&slice, rig.pd(), &[0xff; 8]);
        assert_eq!(put, refused);
        assert!(rig.memory.copy_out(0) != Some(u64::MAX));
        // ... and the cache does not return it.
        assert!(cache.get(regions, Stag::new(rig.key)).is_none());
        assert_eq!(
            slices.resolve(&list, regions, rig.pd(), usage, &mut cache),
            REFUSED
        );
        Ok(())
    }

    /// The device may give a new region the STag of a region that has ended and that a stream has
    /// cached.
    #[test]
    fn reused_stag_refers_to_new_region() -> Result {
        let rig = SgeRig::new(AccessFlags::LOCAL_WRITE)?;
        let (regions, usage) = (&rig.bench.rdma.regions, LocalUse::Source);
        let key = Stag::new(rig.key);
        let old = Region::ended(rig.pd(), key)?;
        let mut cache = RegionCache(Some(old.clone()));
        let found = cache.get(regions, key);
        assert!(found.is_some_and(|region| region.is_open()));
        let mut slices = Slices::default();
        let list = rig.list(&[(8, 8)]);
        assert_eq!(rig.resolve(&mut slices, &list), Ok(()));
        let slice = slices.list.iter_mut().flatten().next().ok_or(EINVAL)?;
        slice.region = old;
        let found = slices.resolve(&list, regions, rig.pd(), usage, &mut cache);
        assert_eq!(found, Ok(()));
        assert!(rig.copies(&slices, (0, 8), &[(8, 8)]));
        Ok(())
    }
}
