// SPDX-License-Identifier: GPL-2.0

//! The verbs that rules can let fail, and the errors with which they do.

/// A verb, by its name in `struct ib_device_ops` (include/rdma/ib_verbs.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// A process opens the device.
    AllocUcontext,
    /// Makes a protection domain.
    AllocPd,
    /// Makes a completion queue.
    CreateCq,
    /// Changes the size of a completion queue of a process.
    ResizeUserCq,
    /// Makes a queue pair.
    CreateQp,
    /// Changes a queue pair, but for a change to the states RESET and ERR.
    ModifyQp,
    /// Makes a shared receive queue.
    CreateSrq,
    /// Changes the size or the limit of a shared receive queue.
    ModifySrq,
    /// Registers memory of a process.
    RegUserMr,
    /// Registers memory of another driver for a process.
    RegUserMrDmabuf,
    /// Changes the registration of memory of a process.
    ReregUserMr,
    /// Takes advice on the memory of a process.
    AdviseMr,
    /// Makes the region of all memory of the kernel.
    GetDmaMr,
    /// Makes a region for fast registration.
    AllocMr,
    /// Makes a memory window.
    AllocMw,
    /// Begins a connection.
    IwConnect,
    /// Accepts a connection.
    IwAccept,
    /// Makes a listener.
    IwCreateListen,
    /// A kernel consumer posts requests.
    PostSend,
    /// A kernel consumer posts receives.
    PostRecv,
    /// A kernel consumer posts receives to a shared receive queue.
    PostSrqRecv,
}

/// Each verb with its name.
const VERBS: [(&str, Verb); 21] = [
    ("alloc_ucontext", Verb::AllocUcontext),
    ("alloc_pd", Verb::AllocPd),
    ("create_cq", Verb::CreateCq),
    ("resize_user_cq", Verb::ResizeUserCq),
    ("create_qp", Verb::CreateQp),
    ("modify_qp", Verb::ModifyQp),
    ("create_srq", Verb::CreateSrq),
    ("modify_srq", Verb::ModifySrq),
    ("reg_user_mr", Verb::RegUserMr),
    ("reg_user_mr_dmabuf", Verb::RegUserMrDmabuf),
    ("rereg_user_mr", Verb::ReregUserMr),
    ("advise_mr", Verb::AdviseMr),
    ("get_dma_mr", Verb::GetDmaMr),
    ("alloc_mr", Verb::AllocMr),
    ("alloc_mw", Verb::AllocMw),
    ("iw_connect", Verb::IwConnect),
    ("iw_accept", Verb::IwAccept),
    ("iw_create_listen", Verb::IwCreateListen),
    ("post_send", Verb::PostSend),
    ("post_recv", Verb::PostRecv),
    ("post_srq_recv", Verb::PostSrqRecv),
];

/// The errors with which a verb can fail: their names, and their numbers, which all architectures
/// of the driver share (include/uapi/asm-generic/errno-base.h, errno.h).
const ERRNOS: [(&str, u8); 27] = [
    ("EPERM", 1),
    ("ENOENT", 2),
    ("EINTR", 4),
    ("EIO", 5),
    ("ENXIO", 6),
    ("EAGAIN", 11),
    ("ENOMEM", 12),
    ("EACCES", 13),
    ("EFAULT", 14),
    ("EBUSY", 16),
    ("EEXIST", 17),
    ("ENODEV", 19),
    ("EINVAL", 22),
    ("ENFILE", 23),
    ("EMFILE", 24),
    ("ENOSPC", 28),
    ("EOPNOTSUPP", 95),
    ("EADDRINUSE", 98),
    ("EADDRNOTAVAIL", 99),
    ("ENETDOWN", 100),
    ("ENETUNREACH", 101),
    ("ECONNABORTED", 103),
    ("ECONNRESET", 104),
    ("ENOBUFS", 105),
    ("ETIMEDOUT", 110),
    ("ECONNREFUSED", 111),
    ("EHOSTUNREACH", 113),
];

impl Verb {
    pub(super) fn from_name(name: &str) -> Option<Self> {
        let (_, verb) = VERBS.into_iter().find(|(known, _)| *known == name)?;
        Some(verb)
    }

    /// Returns whether a call names a queue pair.
    pub(super) fn has_qp(self) -> bool {
        matches!(
            self,
            Self::ModifyQp | Self::IwConnect | Self::IwAccept | Self::PostSend | Self::PostRecv
        )
    }

    /// Returns whether it posts work requests. Only kernel consumers do so by a call: a process
    /// writes them into a queue, where the driver finds them.
    pub(super) fn posts(self) -> bool {
        matches!(self, Self::PostSend | Self::PostRecv | Self::PostSrqRecv)
    }
}

/// Returns the number of an error.
pub(super) fn errno(name: &str) -> Option<u8> {
    let (_, number) = ERRNOS.into_iter().find(|(known, _)| *known == name)?;
    Some(number)
}
