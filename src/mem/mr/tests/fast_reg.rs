// SPDX-License-Identifier: GPL-2.0

//! Tests of fast registration: from a kernel consumer's scatter list to octets of the region.

#[kernel::prelude::kunit_tests(riwarp_fast_reg)]
mod lists {
    use crate::{
        bench::Bench,
        mem::mr::{
            registration::{
                Mr,
                MAX_FAST_REG_PAGES, //
            },
            AccessFlags,
            LocalUse,
            QpSerial,
            StreamId, //
        }, //
    };
    use iwarp::stag::{
        Access,
        Stag, //
    };
    use kernel::{
        page::PAGE_SIZE,
        prelude::*,
        sync::Arc, //
    };
    use kernel_ext::{
        mm::shared_ring::SharedMem,
        rdma::{
            bench::{
                kernel_owned,
                SgList, //
            },
            mem::mem_map::{
                KernelPages,
                Shape, //
            },
            ops::MrOps,
            wr::WcStatus, //
        }, //
    };

    /// A region, and three pages whose octets depend on their offsets.
    struct FastRegRig {
        mr: Arc<Mr>,
        pages: Arc<KernelPages>,
        memory: SharedMem,
        bench: Bench,
    }

    const PAGE: u32 = PAGE_SIZE as u32;

    /// Returns the octet at `at` of the memory.
    fn octet(at: usize) -> u8 {
        (at % 251) as u8
    }

    impl FastRegRig {
        fn new(max_pages: u32) -> Result<Self> {
            let bench = Bench::new()?;
            let created = Mr::fast_reg(
                bench.pd.as_arc_borrow(),
                kernel_owned(),
                Shape::Pages,
                max_pages,
            )?;
            let memory = SharedMem::try_new(3 * PAGE_SIZE)?;
            for at in (0..3 * PAGE_SIZE).step_by(8) {
                let octets: [u8; 8] = core::array::from_fn(|n| octet(at + n));
                memory.copy_in(at, &octets)?;
            }
            Ok(Self {
                mr: created.mr,
                pages: created.pages.ok_or(EINVAL)?,
                memory,
                bench,
            })
        }

        /// Makes a list of pieces of the memory, each given by offset and length.
        fn list(&self, pieces: &[(usize, u32)], offset: u32) -> Result<SgList> {
            let start = self.memory.start();
            let pieces = pieces
                .iter()
                .map(|(at, len)| (start.wrapping_add(*at), *len));
            SgList::try_new(&self.pages, PAGE, pieces, offset)
        }

        /// Registers the mapped pages for reading. Returns the first address and the length.
        fn register(&self) -> Result<(u64, u64)> {
            self.register_at(self.mr.region.view(self.stream()).base)
        }

        /// As [`Self::register`], at an address that the consumer chooses.
        fn register_at(&self, base: u64) -> Result<(u64, u64)> {
            let region = &self.mr.region;
            let key = region.stag();
            region
                .register(self.stream(), key, base, AccessFlags::REMOTE_READ)
                .map_err(|_| EINVAL)?;
            let view = region.view(self.stream());
            assert!(view.valid && view.access == Access::REMOTE_READ);
            Ok((view.base, view.len))
        }

        fn stream(&self) -> StreamId {
            StreamId {
                pd: self.bench.pd.id(),
                qp: QpSerial::new(5),
                rights: Access::ALL,
            }
        }

        fn check(&self, addr: u64, len: u32) -> Result<u64, WcStatus> {
            let (region, pd) = (&self.mr.region, self.bench.pd.id());
            region.check_local(region.stag(), pd, addr, len, LocalUse::Source)
        }

        /// Returns whether the `len` octets at `offset` of the region are those at `at` of the
        /// memory.
        fn holds(&self, offset: u64, at: usize, len: usize) -> Result<bool> {
            let inside = self.mr.region.try_access().ok_or(EINVAL)?;
            let mut all = true;
            for n in 0..len {
                let mut found = [0];
                inside.memory().read(offset + n as u64, &mut found)?;
                all &= found == [octet(at + n)];
            }
            Ok(all)
        }

        fn is_inside(&self, offset: u64, len: usize) -> bool {
            let mut octets = [0; 2];
            let inside = self.mr.region.try_access();
            inside.is_some_and(|inside| inside.memory().read(offset, &mut octets[..len]).is_ok())
        }
    }

    #[test]
    fn fast_reg_list_starts_at_its_offset() -> Result {
        let rig = FastRegRig::new(4)?;
        let start = rig.memory.start().expose_provenance() as u64;
        // In the first page, at its end, and in the second page.
        for offset in [1, 100, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE - 1] {
            let mut list = rig.list(&[(0, 2 * PAGE)], offset)?;
            assert_eq!(rig.mr.map_sg(&mut list.view()), Ok(1));
            assert_eq!(list.offset(), 0);
            let (base, len) = rig.register()?;
            let skip = u64::from(offset);
            assert_eq!((base, len), (start + skip, 2 * u64::from(PAGE) - skip));
            // The peer cannot access the octets before and after it.
            assert_eq!(rig.check(base, 2 * PAGE - offset), Ok(0));
            assert_eq!(rig.check(base - 1, 1), Err(WcStatus::LocalProtection));
            assert_eq!(rig.check(base + len, 1), Err(WcStatus::LocalProtection));
            assert!(rig.is_inside(len - 1, 1) && !rig.is_inside(len - 1, 2));
            assert!(rig.holds(0, offset as usize, 1)?);
            assert!(rig.holds(len - 1, 2 * PAGE_SIZE - 1, 1)?);
            let some = len.min(300);
            assert!(rig.holds(len - some, 2 * PAGE_SIZE - some as usize, some as usize)?);
        }
        Ok(())
    }

    #[test]
    fn fast_reg_piece_and_offset_may_be_unaligned() -> Result {
        let rig = FastRegRig::new(4)?;
        // Pages in the wrong order.
        let pieces = [(PAGE_SIZE + 200, PAGE - 200), (0, 300)];
        let mut list = rig.list(&pieces, 50)?;
        assert_eq!(rig.mr.map_sg(&mut list.view()), Ok(2));
        let (_, len) = rig.register()?;
        let first = PAGE_SIZE - 250;
        assert_eq!(len, first as u64 + 300);
        assert!(rig.holds(0, PAGE_SIZE + 250, first)?);
        assert!(rig.holds(first as u64, 0, 300)?);
        assert!(!rig.is_inside(len, 1));
        Ok(())
    }

    #[test]
    fn fast_reg_offset_beyond_first_piece_maps_nothing() -> Result {
        let rig = FastRegRig::new(4)?;
        let mut good = rig.list(&[(0, PAGE)], 0)?;
        assert_eq!(rig.mr.map_sg(&mut good.view()), Ok(1));
        rig.register()?;
        let mut bad = rig.list(&[(0, PAGE), (PAGE_SIZE, PAGE)], PAGE + 1)?;
        assert_eq!(rig.mr.map_sg(&mut bad.view()), Err(EINVAL));
        // The previous registration is invalid.
        assert!(!rig.mr.region.view(rig.stream()).valid);
        assert!(!rig.is_inside(0, 1));
        assert_eq!(rig.mr.map_sg(&mut rig.list(&[], 0)?.view()), Err(EINVAL));
        Ok(())
    }

    #[test]
    fn longest_fast_reg_list_is_mapped_whole() -> Result {
        let rig = FastRegRig::new(MAX_FAST_REG_PAGES)?;
        let most = MAX_FAST_REG_PAGES as usize;
        // Alternates between two pages, so that no two pieces adjoin; one page more than the list
        // can hold.
        let mut pieces = KVVec::with_capacity(most + 1, GFP_KERNEL)?;
        for n in 0..=most {
            pieces.push(((n + 1) % 2 * PAGE_SIZE, PAGE), GFP_KERNEL)?;
        }
        for count in [most, most + 1] {
            let mut list = rig.list(&pieces[..count], 0)?;
            assert_eq!(
                rig.mr.map_sg(&mut list.view()),
                Ok(MAX_FAST_REG_PAGES as i32)
            );
            let (_, len) = rig.register()?;
            assert_eq!(len, u64::from(MAX_FAST_REG_PAGES) * u64::from(PAGE));
            for page in [0, 1, 2, most / 2, most - 2, most - 1] {
                let (begin, at) = ((page * PAGE_SIZE) as u64, pieces[page].0);
                assert!(rig.holds(begin, at, 2)?);
                assert!(rig.holds(begin + u64::from(PAGE) - 2, at + PAGE_SIZE - 2, 2)?);
            }
            assert!(rig.is_inside(len - 2, 2) && !rig.is_inside(len - 1, 2));
        }
        Ok(())
    }

    #[test]
    fn longest_fast_reg_list_may_have_an_offset() -> Result {
        let rig = FastRegRig::new(3)?;
        let mut list = rig.list(
            &[(0, PAGE), (PAGE_SIZE, PAGE), (0, PAGE), (PAGE_SIZE, PAGE)],
            7,
        )?;
        assert_eq!(rig.mr.map_sg(&mut list.view()), Ok(3));
        assert_eq!(rig.register()?.1, 3 * u64::from(PAGE) - 7);
        Ok(())
    }

    #[test]
    fn fast_reg_piece_beyond_capacity_is_mapped_in_part() -> Result {
        // The core omits the last page that would fit.
        let rig = FastRegRig::new(2)?;
        let mut list = rig.list(&[(0, 3 * PAGE)], 7)?;
        assert_eq!(rig.mr.map_sg(&mut list.view()), Ok(0));
        assert_eq!(list.offset(), PAGE);
        let (_, len) = rig.register()?;
        assert_eq!(len, u64::from(PAGE) - 7);
        assert!(rig.holds(0, 7, 100)? && !rig.is_inside(len, 1));
        // With a list of one page, the core maps nothing, at any start of the piece.
        let rig = FastRegRig::new(1)?;
        for (piece, offset) in [((0, 2 * PAGE), 0), ((0, 2 * PAGE), 7), ((200, 2 * PAGE), 0)] {
            let mut list = rig.list(&[piece], offset)?;
            assert_eq!(rig.mr.map_sg(&mut list.view()), Err(ENOMEM));
            assert!(!rig.is_inside(0, 1));
        }
        Ok(())
    }

    #[test]
    fn fast_reg_region_size_is_limited() -> Result {
        let bench = Bench::new()?;
        for bad in [0, MAX_FAST_REG_PAGES + 1, u32::MAX] {
            let made = Mr::fast_reg(bench.pd.as_arc_borrow(), kernel_owned(), Shape::Pages, bad);
            assert_eq!(made.err(), Some(EINVAL));
        }
        Ok(())
    }

    #[test]
    fn fast_reg_address_is_chosen_by_consumer() -> Result {
        let rig = FastRegRig::new(2)?;
        let start = rig.memory.start().expose_provenance() as u64;
        let mut list = rig.list(&[(0, PAGE)], 100)?;
        assert_eq!(rig.mr.map_sg(&mut list.view()), Ok(1));
        // As NFS does (net/sunrpc/xprtrdma/frwr_ops.c).
        let base = 7 << 32 | ((start + 100) & 0xffff_ffff);
        let len = PAGE - 100;
        assert_eq!(rig.register_at(base)?, (base, len.into()));
        assert_eq!(rig.check(base, len), Ok(0));
        assert_eq!(rig.check(base, len + 1), Err(WcStatus::LocalProtection));
        assert_eq!(rig.check(start + 100, 1), Err(WcStatus::LocalProtection));
        assert!(rig.holds(0, 100, len as usize)?);
        Ok(())
    }

    #[test]
    fn fast_reg_refuses_right_to_persistent_flush() -> Result {
        let rig = FastRegRig::new(2)?;
        let mut list = rig.list(&[(0, PAGE)], 0)?;
        assert_eq!(rig.mr.map_sg(&mut list.view()), Ok(1));
        let region = &rig.mr.region;
        let rights = AccessFlags::FLUSH_GLOBAL | AccessFlags::FLUSH_PERSISTENT;
        let registered = region.register(rig.stream(), region.stag(), 0, rights);
        assert_eq!(registered, Err(WcStatus::LocalProtection));
        assert!(!region.view(rig.stream()).valid);
        Ok(())
    }

    #[test]
    fn fast_reg_pages_are_inaccessible_before_registration() -> Result {
        let rig = FastRegRig::new(2)?;
        let key = rig.mr.region.stag();
        for _ in 0..2 {
            let mut list = rig.list(&[(0, PAGE)], 0)?;
            assert_eq!(rig.mr.map_sg(&mut list.view()), Ok(1));
            let start = rig.memory.start().expose_provenance() as u64;
            assert!(!rig.mr.region.view(rig.stream()).valid);
            assert_eq!(rig.check(start, 1), Err(WcStatus::LocalProtection));
            let (base, _) = rig.register()?;
            assert_eq!(rig.check(base, 1), Ok(0));
        }
        // The device finds it by its STag until it is deregistered.
        let found = |stag| rig.bench.rdma.regions.region(stag).is_some();
        assert!(found(key) && !found(Stag::new(key.raw() ^ 1)));
        assert_eq!(rig.mr.deregister(), Ok(()));
        assert!(!found(key));
        Ok(())
    }
}
