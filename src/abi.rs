// SPDX-License-Identifier: GPL-2.0

//! Work requests as they come in, and their translation into the driver's own form.
//!
//! The forms of all who post are below this module: a kernel consumer ([`kernel`]), or a process
//! through one of two libraries ([`user`]). Which library serves a device is its [`Abi`], chosen by
//! the link type. What else depends on who posts stands elsewhere: arming (`cq`), resizing (`cq`,
//! `srq`, `rq`), what a device offers (`verbs::device`), Immediate Data (`stream`), and receives
//! posted without a call (`qp`).

use crate::{
    device::Abi,
    mem::payload, //
};

pub(crate) mod kernel;
pub(crate) mod rxe;
pub(crate) mod siw;
pub(crate) mod user;
pub(crate) mod wr;

/// What a device tells of the sizes of its queues.
pub(crate) struct Limits {
    /// Elements of a scatter/gather list.
    pub(crate) sge: u32,
    /// Octets of inline data.
    pub(crate) inline: u32,
}

impl Abi {
    /// What the library can do, which holds for kernel consumers too.
    pub(crate) fn limits(self) -> Limits {
        // CAST: small constants.
        match self {
            Self::Rxe => Limits {
                sge: payload::MAX_SGE as u32,
                inline: payload::MAX_INLINE as u32,
            },
            Self::Siw => Limits {
                sge: siw::MAX_SGE as u32,
                inline: siw::MAX_INLINE as u32,
            },
        }
    }
}

// The offsets below are constants inside arrays of known length; `unwrap_or` keeps the panic path
// out without an unchecked access.

fn u16_at(entry: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes(octets(entry, at))
}

fn u32_at(entry: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(octets(entry, at))
}

fn u64_at(entry: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(octets(entry, at))
}

fn octets<const N: usize>(entry: &[u8], at: usize) -> [u8; N] {
    entry
        .get(at..)
        .and_then(|rest| rest.first_chunk::<N>())
        .copied()
        .unwrap_or([0; N])
}
