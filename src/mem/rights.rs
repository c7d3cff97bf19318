// SPDX-License-Identifier: GPL-2.0

//! The verbs' access flags as the rights of a region or a peer.
//!
//! Context: any.

use iwarp::stag::Access;
use kernel::prelude::*;
use kernel_ext::{
    compat::EOPNOTSUPP,
    rdma::{
        mem::mem_map::Memory,
        types::AccessFlags, //
    }, //
};

/// Flags that a device may ignore (`IB_ACCESS_OPTIONAL`): relaxed ordering and its future kin.
const OPTIONAL: AccessFlags = AccessFlags::from_bits(0x3ff0_0000);

/// The rights that each flag names.
const RIGHTS: [(AccessFlags, Access); 6] = [
    (AccessFlags::LOCAL_WRITE, Access::LOCAL_WRITE),
    (AccessFlags::REMOTE_WRITE, Access::REMOTE_WRITE),
    (AccessFlags::REMOTE_READ, Access::REMOTE_READ),
    (AccessFlags::REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
    (AccessFlags::FLUSH_GLOBAL, Access::FLUSH_GLOBAL),
    (AccessFlags::FLUSH_PERSISTENT, Access::FLUSH_PERSISTENT),
];

/// Converts the verbs' flags to the rights of a region.
///
/// # Errors
///
/// * As [`named_rights`].
/// * `EINVAL` for a peer's right to write without the local one.
pub(super) fn to_rights(flags: AccessFlags) -> Result<Access> {
    let rest = flags
        .without(OPTIONAL)
        .without(AccessFlags::HUGETLB)
        .without(AccessFlags::MW_BIND)
        .without(AccessFlags::ON_DEMAND);
    let rights = named_rights(rest)?;
    let remote_write = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    if flags.intersects(remote_write) && !flags.contains(AccessFlags::LOCAL_WRITE) {
        return Err(EINVAL);
    }
    Ok(rights)
}

/// Converts the verbs' flags to the rights they name.
///
/// # Errors
///
/// `EOPNOTSUPP` for features the device does not offer, as zero-based addresses.
pub(super) fn named_rights(flags: AccessFlags) -> Result<Access> {
    let rest = RIGHTS
        .iter()
        .fold(flags, |rest, (flag, _)| rest.without(*flag));
    if rest.is_empty() {
        Ok(rights_among(flags))
    } else {
        Err(EOPNOTSUPP)
    }
}

/// Checks that the memory of a region allows what these rights grant.
///
/// # Errors
///
/// * `EACCES` for the right to write memory that is read-only.
/// * `EOPNOTSUPP` for a peer's atomic operations if the memory takes none, and for its flushes to
///   persistent memory if not all of it is pinned persistent memory.
pub(super) fn check_memory(rights: Access, memory: &Memory) -> Result {
    if rights.contains(Access::LOCAL_WRITE) && !memory.is_writable() {
        return Err(EACCES);
    }
    if rights.contains(Access::REMOTE_ATOMIC) && !memory.takes_atomics() {
        return Err(EOPNOTSUPP);
    }
    if rights.contains(Access::FLUSH_PERSISTENT) && !memory.is_persistent() {
        return Err(EOPNOTSUPP);
    }
    Ok(())
}

/// Returns the rights among the verbs' flags and ignores other flags.
pub(crate) fn rights_among(flags: AccessFlags) -> Access {
    RIGHTS
        .iter()
        .filter(|(flag, _)| flags.contains(*flag))
        .fold(Access::NONE, |rights, (_, right)| rights.union(*right))
}

/// Returns the verbs' flags of these rights.
pub(super) fn flags_of(rights: Access) -> AccessFlags {
    RIGHTS
        .iter()
        .filter(|(_, right)| rights.contains(*right))
        .fold(AccessFlags::empty(), |all, (flag, _)| all | *flag)
}

#[kernel::prelude::kunit_tests(riwarp_rights)]
mod tests {
    use super::*;

    #[test]
    fn access_rights_match_the_verbs_flags() {
        let both = AccessFlags::REMOTE_READ | AccessFlags::LOCAL_WRITE;
        let expected = Access::REMOTE_READ.union(Access::LOCAL_WRITE);
        assert_eq!(to_rights(both), Ok(expected));
        assert_eq!(to_rights(AccessFlags::from_bits(0)), Ok(Access::NONE));
        assert_eq!(to_rights(AccessFlags::RELAXED_ORDERING), Ok(Access::NONE));
        assert_eq!(
            to_rights(AccessFlags::FLUSH_GLOBAL),
            Ok(Access::FLUSH_GLOBAL)
        );
        assert_eq!(
            to_rights(AccessFlags::FLUSH_PERSISTENT),
            Ok(Access::FLUSH_PERSISTENT)
        );
        // A peer may not write where the consumer may not.
        assert_eq!(to_rights(AccessFlags::REMOTE_WRITE), Err(EINVAL));
        assert_eq!(to_rights(AccessFlags::REMOTE_ATOMIC), Err(EINVAL));
        assert_eq!(to_rights(AccessFlags::MW_BIND), Ok(Access::NONE));
        assert_eq!(to_rights(AccessFlags::ON_DEMAND), Ok(Access::NONE));
        assert_eq!(to_rights(AccessFlags::ZERO_BASED), Err(EOPNOTSUPP));
    }
}
