// SPDX-License-Identifier: GPL-2.0

//! The completion queue.
//!
//! What enters: completions, one by one, from the transmitter and the receiver of any number of
//! queue pairs. What leaves: entries in the ring that a process has mapped, or `ib_wc` for a kernel
//! consumer that polls; and the call of the completion handler.
//!
//! [`Cq::post`] cannot fail for its caller: a queue that is full raises its own error event and
//! drops what comes after. Posting and telling are two steps, so that a batch of completions pays
//! for one barrier and one call: after the last [`Cq::post`] of a batch, and after all locks are
//! given back, somebody calls [`Cq::announce`]. Without news that costs two loads.
//!
//! Context: any. The queue's lock is the innermost of the driver.

use iwarp::stag::Stag;
use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        },
        Arc,
        ArcBorrow,
        SpinLockIrq, //
    }, //
};
use kernel_ext::{
    mm::shared_ring::SharedMem,
    rdma::{
        object::CqLink,
        ops::{
            CqCreated,
            CqInit,
            Missed, //
        },
        types::{
            NotifyOn,
            NotifyRequest, //
        },
        udata::Udata,
        wr::{
            Wc,
            WcExtra,
            WcSink, //
        }, //
    },
    sync::Once, //
};

use crate::{
    abi::siw,
    device::{
        Device,
        Reservation,
        Resource,
        MAX_CQE, //
    },
    sq::empty_ring,
    wr::Completion,
    Riwarp, //
};

/// What completions since the last announcement would raise.
#[derive(Clone, Copy, PartialEq, Eq)]
enum News {
    /// Something, but nothing solicited.
    Plain,
    /// A solicited completion or an error.
    Solicited,
}

struct Inner {
    /// The ring of a kernel consumer; without places if a process has mapped one.
    kernel: KVVec<Option<Completion>>,
    /// Completions taken from it so far, modulo 2^32.
    taken: u32,
    /// What a kernel consumer asked for last, if it was not told yet.
    armed: Option<NotifyOn>,
    /// Completions posted so far, modulo 2^32.
    posted: u32,
    overflown: bool,
}

/// A completion queue.
#[pin_data]
pub(crate) struct Cq {
    link: CqLink,
    /// Entries; a power of two.
    entries: u32,
    /// The ring that a process has mapped, and polls and arms without a call.
    user: Option<Arc<SharedMem>>,
    /// Something was posted since the last announcement.
    news: Atomic<bool>,
    /// Something solicited was.
    solicited: Atomic<bool>,
    #[pin]
    inner: SpinLockIrq<Inner>,
    _reservation: Reservation,
}

impl Cq {
    /// Makes a completion queue.
    ///
    /// Context: process.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for creation flags, `EINVAL` for a size beyond the device's, `ENOMEM`.
    pub(crate) fn create(
        device: ArcBorrow<'_, Device>,
        init: CqInit,
        udata: &mut Udata<'_, Riwarp>,
    ) -> Result<CqCreated<Riwarp>> {
        if init.flags != 0 {
            return Err(EOPNOTSUPP);
        }
        if init.entries == 0 || init.entries > MAX_CQE {
            return Err(EINVAL);
        }
        let entries = init.entries.next_power_of_two();
        let (user, kernel) = if init.owner.is_user() {
            let memory = Arc::new(SharedMem::try_new(Self::ring_len(entries))?, GFP_KERNEL)?;
            let cq_key = udata.share(memory.clone())?;
            udata.respond(&siw::CreateCqResponse {
                cq_id: 0,
                num_cqe: entries,
                cq_key,
            })?;
            (Some(memory), KVVec::new())
        } else {
            (None, empty_ring(entries as usize)?)
        };
        let device: Arc<Device> = device.into();
        let reservation = device.reserve(Resource::Cq)?;
        let cq = Arc::pin_init(
            pin_init!(Self {
                link: init.link,
                entries,
                user,
                news: Atomic::new(false),
                solicited: Atomic::new(false),
                inner <- new_spinlock_irq!(Inner {
                    kernel,
                    taken: 0,
                    armed: None,
                    posted: 0,
                    overflown: false,
                }),
                _reservation: reservation,
            }),
            GFP_KERNEL,
        )?;
        Ok(CqCreated { cq, entries })
    }

    /// Takes the queue out of service; no queue pair refers to it any more.
    pub(crate) fn destroy(_cq: Arc<Self>) {}

    /// Octets of the shared ring for that many entries, which is a power of two.
    pub(crate) fn ring_len(entries: u32) -> usize {
        entries as usize * siw::CQE_LEN + siw::CQ_CTRL_LEN
    }

    /// Appends a completion. Call [`Cq::announce`] when the batch is complete.
    ///
    /// Context: any; the locks of queue pairs may be held.
    pub(crate) fn post(&self, completion: &Completion) {
        let mut overflow = false;
        {
            let mut inner = self.inner.lock();
            let inner = &mut *inner;
            if inner.overflown {
                return;
            }
            let index = inner.posted & self.entries.wrapping_sub(1);
            let stored = match &self.user {
                Some(memory) => post_user(memory, index, completion),
                None => match inner.kernel.get_mut(index as usize) {
                    Some(slot @ None) => {
                        *slot = Some(*completion);
                        true
                    }
                    _ => false,
                },
            };
            if stored {
                inner.posted = inner.posted.wrapping_add(1);
                if completion.solicited {
                    self.solicited.write_once(true);
                }
                self.news.write_once(true);
            } else {
                inner.overflown = true;
                overflow = true;
            }
        }
        if overflow {
            self.link.error();
        }
    }

    /// Calls the consumer if it is armed for what was posted since the last call.
    ///
    /// Context: softirq or process, no lock of the driver held.
    pub(crate) fn announce(&self) {
        // Whoever posts announces after it, so news that this load misses are somebody else's.
        // ORDERING: the consumer arms and then polls once more; we publish and then look whether it
        // has armed. Each side needs its store before its load, hence `Full`.
        if !self.news.read_once() || !self.news.xchg(false, Full) {
            return;
        }
        let news = if self.solicited.read_once() && self.solicited.xchg(false, Relaxed) {
            News::Solicited
        } else {
            News::Plain
        };
        let due = match &self.user {
            Some(memory) => disarm_user(memory, self.entries, news),
            None => self.inner.lock().disarm_for(news),
        };
        if due {
            self.link.notify();
        }
    }

    /// Hands completions to a kernel consumer, as many as the sink takes. A queue that a process
    /// polls by itself has none to hand out.
    pub(crate) fn poll(&self, sink: &mut WcSink<'_>) {
        let mut inner = self.inner.lock();
        while sink.room() > 0 {
            let index = inner.taken & self.entries.wrapping_sub(1);
            let slot = inner.kernel.get_mut(index as usize);
            let Some(completion) = slot.and_then(Option::take) else {
                return;
            };
            inner.taken = inner.taken.wrapping_add(1);
            sink.push(&to_wc(&completion));
        }
    }

    /// Arms the queue of a kernel consumer; says whether completions are there already, if that was
    /// asked. A process arms its queue without a call.
    pub(crate) fn req_notify(&self, request: NotifyRequest) -> Missed {
        let mut inner = self.inner.lock();
        // A request for any completion is not weakened by a later one for solicited ones.
        if inner.armed != Some(NotifyOn::Next) {
            inner.armed = Some(request.on);
        }
        let index = inner.taken & self.entries.wrapping_sub(1);
        let waiting = matches!(inner.kernel.get(index as usize), Some(Some(_)));
        if request.report_missed && waiting {
            Missed::Yes
        } else {
            Missed::No
        }
    }
}

impl Inner {
    /// Takes back a kernel consumer's request if `news` answers it; whether it did.
    fn disarm_for(&mut self, news: News) -> bool {
        let due = match self.armed {
            Some(NotifyOn::Next) => true,
            Some(NotifyOn::Solicited) => news == News::Solicited,
            None => false,
        };
        if due {
            self.armed = None;
        }
        due
    }
}

/// Takes back the process's request if `news` answers it; whether it did, and nobody else has.
fn disarm_user(memory: &SharedMem, entries: u32, news: News) -> bool {
    let at = entries as usize * siw::CQE_LEN;
    let answers = |armed: u32| {
        armed & siw::NOTIFY_NEXT != 0
            || (news == News::Solicited && armed & siw::NOTIFY_SOLICITED != 0)
    };
    memory.load_u32_acquire(at).is_some_and(answers) && memory.swap_u32(at, 0).is_some_and(answers)
}

/// Writes an entry into the mapped ring; false if the process has not polled the old one yet.
fn post_user(memory: &SharedMem, index: u32, completion: &Completion) -> bool {
    let at = index as usize * siw::CQE_LEN;
    let flags_at = at + siw::FLAGS_AT;
    if memory.load_u8_acquire(flags_at) != Some(0) {
        return false;
    }
    let (entry, flags) = siw::encode_cqe(completion);
    memory.copy_in(at, &entry).is_ok() && memory.store_u8_release(flags_at, flags).is_ok()
}

fn to_wc(completion: &Completion) -> Wc {
    Wc {
        wr_id: completion.id,
        status: completion.status,
        opcode: completion.opcode,
        byte_len: completion.bytes,
        extra: completion
            .invalidated
            .map_or(WcExtra::None, |stag: Stag| WcExtra::Invalidated(stag.raw())),
        qp: completion.qp,
        vendor_err: 0,
    }
}

#[kernel::prelude::kunit_tests(riwarp_cq)]
mod tests {
    use super::*;
    use kernel_ext::rdma::{
        object::QpId,
        wr::{
            WcOpcode,
            WcStatus, //
        }, //
    };

    const COMPLETION: Completion = Completion {
        id: 0x1122_3344_5566_7788,
        status: WcStatus::Flushed,
        opcode: WcOpcode::Write,
        bytes: 99,
        invalidated: None,
        qpn: 5,
        qp: QpId::NONE,
        solicited: false,
    };

    fn ring(entries: u32) -> Result<SharedMem> {
        SharedMem::try_new(Cq::ring_len(entries))
    }

    fn arm(memory: &SharedMem, entries: u32, how: u32) -> Result {
        memory.store_u32_release(entries as usize * siw::CQE_LEN, how)
    }

    #[test]
    fn an_entry_that_was_not_polled_is_not_written_over() -> Result {
        let memory = ring(4)?;
        assert!(post_user(&memory, 2, &COMPLETION));
        let other = Completion {
            id: 1,
            ..COMPLETION
        };
        assert!(!post_user(&memory, 2, &other));
        let at = 2 * siw::CQE_LEN;
        assert_eq!(memory.copy_out(at), Some(COMPLETION.id));
        // The process has polled it.
        memory.store_u8_release(at + siw::FLAGS_AT, 0)?;
        assert!(post_user(&memory, 2, &other));
        assert_eq!(memory.copy_out(at), Some(1u64));
        Ok(())
    }

    #[test]
    fn an_entry_leaves_its_neighbours_alone() -> Result {
        let memory = ring(4)?;
        assert!(post_user(&memory, 1, &COMPLETION));
        for at in (0..siw::CQE_LEN).step_by(8) {
            assert_eq!(memory.copy_out(at), Some(0u64));
            assert_eq!(memory.copy_out(2 * siw::CQE_LEN + at), Some(0u64));
        }
        assert!(!post_user(&memory, u32::MAX, &COMPLETION));
        Ok(())
    }

    #[test]
    fn a_process_is_told_once_for_what_it_asked() -> Result {
        let memory = ring(4)?;
        assert!(!disarm_user(&memory, 4, News::Solicited));
        arm(&memory, 4, siw::NOTIFY_NEXT)?;
        assert!(disarm_user(&memory, 4, News::Plain));
        assert!(!disarm_user(&memory, 4, News::Plain));
        arm(&memory, 4, siw::NOTIFY_SOLICITED)?;
        assert!(!disarm_user(&memory, 4, News::Plain));
        assert!(disarm_user(&memory, 4, News::Solicited));
        assert!(!disarm_user(&memory, 4, News::Solicited));
        Ok(())
    }

    #[test]
    fn a_kernel_consumer_is_told_once_for_what_it_asked() {
        let mut inner = Inner {
            kernel: KVVec::new(),
            taken: 0,
            armed: None,
            posted: 0,
            overflown: false,
        };
        assert!(!inner.disarm_for(News::Solicited));
        inner.armed = Some(NotifyOn::Solicited);
        assert!(!inner.disarm_for(News::Plain));
        assert!(inner.disarm_for(News::Solicited));
        assert!(!inner.disarm_for(News::Solicited));
        inner.armed = Some(NotifyOn::Next);
        assert!(inner.disarm_for(News::Plain));
    }

    #[test]
    fn a_kernel_consumer_learns_of_the_invalidated_key() {
        let plain = to_wc(&COMPLETION);
        assert_eq!((plain.wr_id, plain.byte_len), (COMPLETION.id, 99));
        assert!(matches!(plain.extra, WcExtra::None));
        let told = to_wc(&Completion {
            invalidated: Some(Stag::new(7)),
            ..COMPLETION
        });
        assert!(matches!(told.extra, WcExtra::Invalidated(7)));
    }
}
