// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of the conversions of enumerations and flags from and to C.

#[kernel::prelude::kunit_tests(riwarp_types)]
mod types {
    use super::super::*;

    #[test]
    fn unknown_c_enum_values_convert_to_none() {
        for raw in 0..64 {
            let state = QpState::from_raw(raw);
            assert_eq!(state.is_some(), raw <= bindings::ib_qp_state_IB_QPS_ERR);
            assert_eq!(state.map_or(raw, QpState::to_raw), raw);
        }
        assert_eq!(Mtu::from_raw(0), None);
        assert_eq!(QpType::from_raw(u32::MAX), None);
    }

    #[test]
    fn mtu_is_largest_that_fits_interface() {
        let steps = [(0, 256), (511, 256), (512, 512), (1500, 1024), (4095, 2048)];
        for (octets, mtu) in steps {
            assert_eq!(128 << Mtu::from_octets(octets).to_raw(), mtu);
        }
        assert_eq!(Mtu::from_octets(u32::MAX), Mtu::Mtu4096);
    }

    #[test]
    fn flag_types_behave_as_sets() {
        let both = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
        assert!(
            both.contains(AccessFlags::REMOTE_READ) && !both.contains(AccessFlags::REMOTE_WRITE)
        );
        assert!(both.without(both).is_empty());
        let mut set = both;
        set |= AccessFlags::REMOTE_WRITE;
        assert_eq!(set & AccessFlags::REMOTE_WRITE, AccessFlags::REMOTE_WRITE);
    }
}
