// SPDX-License-Identifier: GPL-2.0

//! The queues of a process, in the layout of the library that serves the device.
//!
//! Makes rings of the sizes that a process asks for, and the answers by which the library maps
//! them. The driver's queues take requests from the rings and store completions in them. The number
//! of places of a ring is a power of two; how many of them can be in use depends on the library.
//!
//! A position is the number of requests or completions before it, modulo 2^32.

use iwarp::stag::Stag;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kernel_ext::{
    compat::EOPNOTSUPP,
    mm::shared_ring::SharedMem,
    rdma::{
        types::QpCaps,
        udata::Udata, //
    }, //
};

use super::{
    rxe::{
        self,
        MmapInfo, //
    },
    siw, //
};
use crate::{
    abi::wr::{
        BadWr,
        Completion,
        RecvWr,
        SendWr, //
    },
    device::Abi, //
};

/// The sizes of a ring.
#[derive(Clone, Copy)]
pub(crate) struct Places {
    /// The number of places; a power of two.
    pub(crate) all: u32,
    /// How many of them can be in use at once.
    pub(crate) usable: u32,
}

impl Abi {
    /// Returns the sizes of the ring for `wanted` requests or completions, fewer than 2^31.
    pub(crate) fn places(self, wanted: u32) -> Places {
        match self {
            Self::Rxe => {
                let all = (wanted + 1).next_power_of_two();
                Places {
                    all,
                    usable: all - 1,
                }
            }
            Self::Siw => Places::plain(wanted),
        }
    }
}

impl Places {
    /// Returns the sizes of a ring whose places can all be in use.
    pub(crate) fn plain(wanted: u32) -> Self {
        let all = if wanted == 0 {
            0
        } else {
            wanted.next_power_of_two()
        };
        Self { all, usable: all }
    }
}

/// A send queue.
pub(crate) enum SendRing {
    Rxe(rxe::RxeSendRing),
    Siw(siw::SiwSendRing),
}

impl SendRing {
    /// Returns whether the request at `position` is posted.
    #[inline]
    pub(crate) fn is_posted(&self, position: u32) -> bool {
        match self {
            Self::Rxe(ring) => ring.posted(position) != 0,
            Self::Siw(ring) => ring.is_posted(position),
        }
    }

    /// Returns how many requests are posted from `position` on.
    pub(crate) fn posted(&self, position: u32) -> u32 {
        match self {
            Self::Rxe(ring) => ring.posted(position),
            Self::Siw(ring) => ring.posted(position),
        }
    }

    /// Returns a position behind each request that is posted from `position` on, as seen beside
    /// the transmit task, which may return requests meanwhile.
    pub(crate) fn end(&self, position: u32) -> u32 {
        match self {
            Self::Rxe(ring) => position.wrapping_add(ring.posted(position)),
            Self::Siw(ring) => ring.end(position),
        }
    }

    /// Reads the request at `position`, which the caller knows to be posted, into `wr`.
    pub(crate) fn read(&self, position: u32, wr: &mut SendWr) -> Option<Result<(), BadWr>> {
        match self {
            Self::Rxe(ring) => ring.read(position, wr),
            Self::Siw(ring) => Some(ring.read(position, wr)),
        }
    }

    /// Returns the request at `position`, which was read, to the process.
    pub(crate) fn release(&self, position: u32) {
        match self {
            Self::Rxe(ring) => ring.release(position),
            Self::Siw(ring) => ring.release(position),
        }
    }
}

/// A receive queue or shared receive queue.
#[derive(Clone)]
pub(crate) enum RecvRing {
    Rxe(rxe::RxeRecvRing),
    Siw(siw::SiwRecvRing),
}

impl RecvRing {
    /// Returns whether at least `count` requests, not 0, are posted from `position` on.
    pub(crate) fn holds(&self, position: u32, count: u32) -> bool {
        match self {
            Self::Rxe(ring) => ring.holds(position, count),
            Self::Siw(ring) => ring.holds(position, count),
        }
    }

    /// Returns how many requests are posted from `position` on; [`None`] if the ring has no
    /// producer index.
    pub(crate) fn posted(&self, position: u32) -> Option<u32> {
        match self {
            Self::Rxe(ring) => Some(ring.posted(position)),
            Self::Siw(_) => None,
        }
    }

    /// Takes the request at `position` into `wr`; [`None`] if none is posted.
    pub(crate) fn take(&self, position: u32, wr: &mut RecvWr) -> Option<Result<(), BadWr>> {
        match self {
            Self::Rxe(ring) => ring.take(position, wr),
            Self::Siw(ring) => ring.take(position, wr),
        }
    }
}

/// A completion queue.
#[derive(Clone)]
pub(crate) enum CqRing {
    Rxe(rxe::RxeCqRing),
    Siw(siw::SiwCqRing),
}

impl CqRing {
    /// Makes a queue of `places` places and answers the process.
    pub(crate) fn create(abi: Abi, places: u32, udata: &mut Udata<'_>) -> Result<Self> {
        match abi {
            Abi::Rxe => {
                let ring = rxe::RxeCqRing::new(places)?;
                let info = share(udata, ring.memory())?;
                udata.respond(&info)?;
                Ok(Self::Rxe(ring))
            }
            Abi::Siw => {
                let ring = siw::SiwCqRing::new(places)?;
                let cq_key = siw::share(udata, ring.memory().clone())?;
                udata.respond(&siw::CreateCqResponse {
                    cq_id: 0,
                    num_cqe: places,
                    cq_key,
                })?;
                Ok(Self::Siw(ring))
            }
        }
    }

    /// Stores a completion at `position`. Returns false if the queue is full.
    pub(crate) fn post(&self, position: u32, completion: &Completion) -> bool {
        match self {
            Self::Rxe(ring) => ring.post(position, completion),
            Self::Siw(ring) => ring.post(position, completion),
        }
    }

    /// Returns how many completions before `position` the process has not polled; [`None`] if the
    /// ring has no consumer index.
    pub(crate) fn waiting(&self, position: u32) -> Option<u32> {
        match self {
            Self::Rxe(ring) => ring.waiting(position),
            Self::Siw(_) => None,
        }
    }

    /// Returns how many completions before `position` the process has not polled, also if the ring
    /// has no consumer index.
    #[cold]
    pub(crate) fn unpolled(&self, position: u32) -> u32 {
        match self {
            Self::Rxe(ring) => ring.waiting(position).unwrap_or(0),
            Self::Siw(ring) => ring.unpolled(position),
        }
    }

    /// Returns how many completions the ring holds.
    pub(crate) fn room(&self) -> u32 {
        match self {
            Self::Rxe(ring) => ring.room(),
            Self::Siw(ring) => ring.room(),
        }
    }

    /// Makes the ring of `places` places that is to replace this one, and answers the process.
    /// Returns both, in this order: old, new.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the library cannot resize the queue.
    pub(crate) fn begin_resize(
        &self,
        places: u32,
        udata: &mut Udata<'_>,
    ) -> Result<(rxe::RxeCqRing, rxe::RxeCqRing)> {
        match self {
            Self::Rxe(old) => {
                let new = rxe::RxeCqRing::new(places)?;
                let info = share(udata, new.memory())?;
                udata.respond(&info)?;
                Ok((old.clone(), new))
            }
            Self::Siw(_) => Err(EOPNOTSUPP),
        }
    }

    /// Returns the ring if the process arms the queue in it.
    pub(crate) fn siw_notify(&self) -> Option<siw::SiwCqRing> {
        match self {
            Self::Rxe(_) => None,
            Self::Siw(ring) => Some(ring.clone()),
        }
    }
}

/// The rings of a new queue pair.
pub(crate) struct QpRings {
    /// [`None`] for a queue of size 0 of libsiw.
    pub(crate) send: Option<SendRing>,
    /// [`None`] if receives come from a shared queue, and for a queue of size 0 of libsiw.
    pub(crate) recv: Option<RecvRing>,
    pub(crate) answer: QpAnswer,
}

impl QpRings {
    /// Makes rings of `send` and `recv` places for queues of the sizes in `caps`, and stores what
    /// the rings can hold in `caps`. `recv` is [`None`] if receives come from a shared queue.
    pub(crate) fn create(
        abi: Abi,
        (send, recv): (u32, Option<u32>),
        caps: &mut QpCaps,
        udata: &mut Udata<'_>,
    ) -> Result<Self> {
        match abi {
            Abi::Rxe => Self::create_rxe((send, recv), caps, udata),
            Abi::Siw => Self::create_siw((send, recv), caps, udata),
        }
    }

    fn create_rxe(
        (send, recv): (u32, Option<u32>),
        caps: &mut QpCaps,
        udata: &mut Udata<'_>,
    ) -> Result<Self> {
        let send = rxe::RxeSendRing::new(send, caps.max_send_sge, caps.max_inline_data)?;
        caps.max_send_sge = send.max_sge();
        caps.max_inline_data = send.max_inline();
        let mut response = rxe::RxeCreateQpResponse {
            recv: MmapInfo::NONE,
            send: share(udata, send.memory())?,
        };
        // The library maps a queue even if its size is 0: make one place, which stays empty.
        let recv = match recv {
            Some(places) => {
                let recv = rxe::RxeRecvRing::new(places, caps.max_recv_sge)?;
                caps.max_recv_sge = recv.max_sge();
                response.recv = share(udata, recv.memory())?;
                Some(RecvRing::Rxe(recv))
            }
            None => None,
        };
        Ok(Self {
            send: Some(SendRing::Rxe(send)),
            recv,
            answer: QpAnswer::Rxe(response),
        })
    }

    fn create_siw(
        (send, recv): (u32, Option<u32>),
        caps: &mut QpCaps,
        udata: &mut Udata<'_>,
    ) -> Result<Self> {
        caps.max_inline_data = Abi::Siw.limits().inline;
        let (send, (num_sqe, sq_key)) = match send {
            0 => (None, Self::share_full(udata)?),
            places => {
                let send = siw::SiwSendRing::new(places)?;
                let key = siw::share(udata, send.memory().clone())?;
                (Some(SendRing::Siw(send)), (places, key))
            }
        };
        let (recv, (num_rqe, rq_key)) = match recv {
            // The library expects a key even if receives come from a shared queue.
            None => (None, (0, 0)),
            Some(0) => (None, Self::share_full(udata)?),
            Some(places) => {
                let recv = siw::SiwRecvRing::new(places)?;
                let key = siw::share(udata, recv.memory().clone())?;
                (Some(RecvRing::Siw(recv)), (places, key))
            }
        };
        Ok(Self {
            send,
            recv,
            answer: QpAnswer::Siw(siw::SiwCreateQpResponse {
                qp_id: 0,
                num_sqe,
                num_rqe,
                pad: 0,
                sq_key,
                rq_key,
            }),
        })
    }

    /// Shares the ring that the library maps for a queue of size 0. Returns its places and its key.
    fn share_full(udata: &mut Udata<'_>) -> Result<(u32, u64)> {
        Ok((1, siw::share(udata, siw::full_ring()?)?))
    }
}

/// The answer to the creation of a queue pair.
pub(crate) enum QpAnswer {
    Rxe(rxe::RxeCreateQpResponse),
    Siw(siw::SiwCreateQpResponse),
}

impl QpAnswer {
    /// Answers the process, whose queue pair has the number `number`.
    pub(crate) fn send(self, number: u32, udata: &mut Udata<'_>) -> Result {
        match self {
            Self::Rxe(response) => udata.respond(&response),
            Self::Siw(response) => udata.respond(&siw::SiwCreateQpResponse {
                qp_id: number,
                ..response
            }),
        }
    }
}

impl RecvRing {
    /// Makes the ring of a shared receive queue and answers the process. Returns how many elements
    /// a list may have.
    pub(crate) fn create_shared(
        abi: Abi,
        places: u32,
        max_sge: u32,
        udata: &mut Udata<'_>,
    ) -> Result<(Self, u32)> {
        match abi {
            Abi::Rxe => {
                let ring = rxe::RxeRecvRing::new(places, max_sge)?;
                let queue = share(udata, ring.memory())?;
                udata.respond(&rxe::RxeCreateSrqResponse {
                    queue,
                    number: 0,
                    reserved: 0,
                })?;
                let max_sge = ring.max_sge();
                Ok((Self::Rxe(ring), max_sge))
            }
            Abi::Siw => {
                let ring = siw::SiwRecvRing::new(places)?;
                let srq_key = siw::share(udata, ring.memory().clone())?;
                udata.respond(&siw::SiwCreateSrqResponse {
                    num_rqe: places,
                    pad: 0,
                    srq_key,
                })?;
                Ok((Self::Siw(ring), max_sge))
            }
        }
    }

    /// Makes the ring of `places` places that is to replace this one, and answers the process.
    /// Returns both, in this order: old, new.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the library cannot resize the queue.
    pub(crate) fn begin_resize(
        &self,
        places: u32,
        udata: &mut Udata<'_>,
    ) -> Result<(rxe::RxeRecvRing, rxe::RxeRecvRing)> {
        match self {
            Self::Rxe(old) => {
                // The address for the answer (`rxe_modify_srq_cmd`).
                let answer = u64::from_ne_bytes(udata.copy_in(size_of::<u64>())?);
                let new = rxe::RxeRecvRing::new(places, old.max_sge())?;
                let info = share(udata, new.memory())?;
                udata.answer_at(answer, &info)?;
                Ok((old.clone(), new))
            }
            Self::Siw(_) => Err(EOPNOTSUPP),
        }
    }
}

/// Answers a process that opens a device.
pub(crate) fn answer_open(abi: Abi, udata: &mut Udata<'_>) -> Result {
    match abi {
        Abi::Rxe => Ok(()),
        // `siw_uresp_alloc_ctx`: a device number, which the library does not use, and padding.
        Abi::Siw => udata.respond(&[0u32; 2]),
    }
}

/// Returns the key octet that a process asks for with a memory region; [`None`] if the driver
/// chooses it.
pub(crate) fn asked_key(abi: Abi, udata: &mut Udata<'_>) -> Result<Option<u8>> {
    match abi {
        Abi::Rxe => Ok(None),
        Abi::Siw => {
            // One octet, and padding. A library that passes 0 takes the key from the answer.
            let [asked, ..]: [u8; 8] = udata.copy_in(1)?;
            Ok((asked != 0).then_some(asked))
        }
    }
}

/// Answers a process with the STag of its memory region, if the library expects it in the driver's
/// part of the answer too.
pub(crate) fn answer_region(abi: Abi, stag: Stag, udata: &mut Udata<'_>) -> Result {
    match abi {
        Abi::Rxe => Ok(()),
        // The STag, and padding.
        Abi::Siw => udata.respond(&[stag.raw(), 0]),
    }
}

/// Makes the memory of a queue available for the process to map.
fn share(udata: &mut Udata<'_>, memory: &Arc<SharedMem>) -> Result<MmapInfo> {
    MmapInfo::new(udata.share(memory.clone())?, memory)
}
