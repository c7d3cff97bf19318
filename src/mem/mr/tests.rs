// SPDX-License-Identifier: GPL-2.0

//! KUnit suites of regions.

mod fast_reg;
mod window;

use super::*;

impl Region {
    /// Makes a region of the domain `pd` that had this STag and has ended.
    pub(in crate::mem) fn ended(pd: PdId, stag: Stag) -> Result<Arc<Self>> {
        let body = Body {
            stag,
            ..Body::new(0, u64::MAX, Access::ALL, Memory::nothing())
        };
        let region = Self::new(Kind::User, pd, body)?;
        drop(region.body.revoke());
        Ok(region)
    }
}

#[kernel::prelude::kunit_tests(riwarp_mr)]
mod regions {
    use super::super::*;

    const KEY: Stag = Stag::new(0x0001_0042);
    const PD: PdId = PdId::new(3);
    const BASE: u64 = 0x1000;

    fn region(kind: Kind, access: Access, valid: bool) -> Result<Arc<Region>> {
        let body = Body {
            stag: KEY,
            valid,
            ..Body::new(BASE, 0x100, access, Memory::nothing())
        };
        Region::new(kind, PD, body)
    }

    /// Makes a stream of a domain.
    fn of(pd: PdId) -> StreamId {
        StreamId {
            pd,
            qp: QpSerial::new(5),
            rights: Access::ALL,
        }
    }

    fn source(region: &Region, addr: u64, len: u32) -> Result<u64, WcStatus> {
        region.check_local(KEY, PD, addr, len, LocalUse::Source)
    }

    const REFUSED: Result<u64, WcStatus> = Err(WcStatus::LocalProtection);

    #[test]
    fn local_access_beyond_region_is_refused() -> Result {
        let region = region(Kind::User, Access::NONE, true)?;
        assert_eq!(source(&region, 0x1000, 0x100), Ok(0));
        assert_eq!(source(&region, 0x10ff, 1), Ok(0xff));
        assert_eq!(source(&region, 0x1100, 0), Ok(0));
        assert_eq!(source(&region, 0x1100, 1), REFUSED);
        assert_eq!(source(&region, 0x1001, 0x100), REFUSED);
        assert_eq!(source(&region, 0xfff, 1), REFUSED);
        assert_eq!(source(&region, u64::MAX, u32::MAX), REFUSED);
        Ok(())
    }

    #[test]
    fn local_access_needs_key_domain_and_rights() -> Result {
        let region = region(Kind::User, Access::NONE, true)?;
        let check = |key, pd, usage| region.check_local(key, pd, 0x1000, 1, usage);
        assert_eq!(check(KEY, PD, LocalUse::Source), Ok(0));
        assert_eq!(check(KEY, PD, LocalUse::Sink), REFUSED);
        assert_eq!(check(KEY, PdId::new(4), LocalUse::Source), REFUSED);
        assert_eq!(check(Stag::new(0x0001_0043), PD, LocalUse::Source), REFUSED);
        Ok(())
    }

    #[test]
    fn locally_writable_region_may_be_a_sink() -> Result {
        let region = region(Kind::User, Access::LOCAL_WRITE, true)?;
        let sink = region.check_local(KEY, PD, 0x1000, 1, LocalUse::Sink);
        assert_eq!(sink, Ok(0));
        Ok(())
    }

    #[test]
    fn deregistered_region_refuses_access() -> Result {
        let region = region(Kind::User, Access::LOCAL_WRITE, true)?;
        assert!(region.is_open() && region.view(of(PD)).valid);
        drop(region.body.revoke());
        assert!(!region.is_open() && region.try_access().is_none());
        assert!(!region.view(of(PD)).valid);
        assert_eq!(source(&region, 0x1000, 1), REFUSED);
        // An element without octets is not checked.
        assert_eq!(source(&region, 0x1000, 0), Ok(0));
        Ok(())
    }

    #[test]
    fn region_is_foreign_to_streams_of_other_domain() -> Result {
        let region = region(Kind::User, Access::REMOTE_READ, true)?;
        assert_eq!(region.view(of(PD)).association, Association::Ours);
        assert_eq!(
            region.view(of(PdId::new(9))).association,
            Association::Foreign
        );
        assert_eq!(region.view(of(PD)).access, Access::REMOTE_READ);
        Ok(())
    }

    #[test]
    fn peer_rights_are_limited_by_those_of_the_stream() -> Result {
        let both = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
        let region = region(Kind::User, both, true)?;
        let stream = StreamId {
            rights: Access::REMOTE_READ.union(Access::REMOTE_ATOMIC),
            ..of(PD)
        };
        assert_eq!(region.view(stream).access, Access::REMOTE_READ);
        Ok(())
    }

    #[test]
    fn fast_registration_sets_key_and_rights_once() -> Result {
        let region = region(Kind::FastReg, Access::NONE, false)?;
        let key = Stag::from_parts(KEY.index(), 0x77);
        assert_eq!(source(&region, 0x1000, 1), REFUSED);
        assert_eq!(
            region.register(of(PD), key, BASE, AccessFlags::REMOTE_READ),
            Ok(())
        );
        assert_eq!(region.stag(), key);
        assert_eq!(region.view(of(PD)).access, Access::REMOTE_READ);
        // It is registered.
        let again = region.register(of(PD), key, BASE, AccessFlags::REMOTE_READ);
        assert_eq!(again, Err(WcStatus::LocalProtection));
        assert_eq!(source(&region, 0x1000, 1), REFUSED);
        let new = region.check_local(key, PD, 0x1000, 1, LocalUse::Source);
        assert_eq!(new, Ok(0));
        Ok(())
    }

    #[test]
    fn only_the_key_octet_may_change() -> Result {
        let region = region(Kind::FastReg, Access::NONE, false)?;
        let other = Stag::from_parts(KEY.index() + 1, KEY.key());
        let refused = Err(WcStatus::LocalQpOperation);
        assert_eq!(
            region.register(of(PD), other, BASE, AccessFlags::REMOTE_READ),
            refused
        );
        let foreign = region.register(of(PdId::new(4)), KEY, BASE, AccessFlags::REMOTE_READ);
        assert_eq!(foreign, refused);
        let process = self::region(Kind::User, Access::NONE, true)?;
        assert_eq!(
            process.register(of(PD), KEY, BASE, AccessFlags::REMOTE_READ),
            refused
        );
        Ok(())
    }

    #[test]
    fn remote_invalidate_needs_fast_registered_region() -> Result {
        let process = region(Kind::User, Access::REMOTE_READ, true)?;
        let refused = process.invalidate_remote(of(PD), KEY);
        assert_eq!(refused, Err(Fault::InvalidateForbidden));
        assert!(process.view(of(PD)).valid);
        let fast = region(Kind::FastReg, Access::REMOTE_READ, true)?;
        let foreign = fast.invalidate_remote(of(PdId::new(4)), KEY);
        assert_eq!(foreign, Err(Fault::InvalidateForbidden));
        let unknown = fast.invalidate_remote(of(PD), Stag::new(1));
        assert_eq!(unknown, Err(Fault::InvalidateUnknown));
        assert!(fast.view(of(PD)).valid);
        assert_eq!(fast.invalidate_remote(of(PD), KEY), Ok(()));
        assert!(!fast.view(of(PD)).valid);
        let again = fast.invalidate_remote(of(PD), KEY);
        assert_eq!(again, Err(Fault::InvalidateUnknown));
        Ok(())
    }

    #[test]
    fn remote_invalidate_needs_the_registering_stream() -> Result {
        let fast = region(Kind::FastReg, Access::NONE, false)?;
        let neighbour = StreamId {
            qp: QpSerial::new(6),
            ..of(PD)
        };
        let register = |stream| fast.register(stream, KEY, BASE, AccessFlags::REMOTE_READ);
        assert_eq!(register(of(PD)), Ok(()));
        // All streams of the domain may use it; their peers may not invalidate it.
        let refused = fast.invalidate_remote(neighbour, KEY);
        assert_eq!(refused, Err(Fault::InvalidateForbidden));
        let view = fast.view(neighbour);
        assert!(view.valid && view.association == Association::Ours);
        assert_eq!(fast.invalidate_remote(of(PD), KEY), Ok(()));
        // The peer of the stream that it is registered on next may invalidate it, and the consumer
        // may use any stream.
        assert_eq!(register(neighbour), Ok(()));
        let refused = fast.invalidate_remote(of(PD), KEY);
        assert_eq!(refused, Err(Fault::InvalidateForbidden));
        assert_eq!(fast.invalidate_local(of(PD), KEY), Ok(()));
        assert!(!fast.view(neighbour).valid);
        Ok(())
    }

    #[test]
    fn local_invalidate_of_unregistered_region_succeeds() -> Result {
        let fast = region(Kind::FastReg, Access::REMOTE_READ, true)?;
        assert_eq!(fast.invalidate_local(of(PD), KEY), Ok(()));
        assert_eq!(fast.invalidate_local(of(PD), KEY), Ok(()));
        let wrong = fast.invalidate_local(of(PD), Stag::new(1));
        assert_eq!(wrong, Err(WcStatus::LocalQpOperation));
        Ok(())
    }
}
