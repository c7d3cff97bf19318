// SPDX-License-Identifier: GPL-2.0

//! TCP sockets of the kernel's own: made, connected, written to, read from, closed; nothing here
//! waits for the peer.
//!
//! A socket does not hold its network namespace, so that deleting a namespace is not held up by
//! connections; its owner closes it in time (see [`Socket`], "Namespaces"). What TCP still has to
//! do for a socket that was closed in an orderly way (deliver the rest, see it acknowledged) does
//! hold the namespace, as it does for user space.
//!
//! C headers: `include/linux/net.h`, `include/net/sock.h`, `include/net/tcp.h`.

use super::addr::Family;
use super::addr::SockAddr;
use super::device::NetId;
use super::device::NetRef;
use super::hooks::Callbacks;
use super::skb::Inbound;
use super::state::state_of;
use super::state::TcpState;
use crate::bindings;
use crate::mm::memcg::Memcg;
use crate::sync::BhOff;
use core::mem::size_of;
use core::ptr;
use core::ptr::NonNull;
use kernel::error::to_result;
use kernel::ffi::c_int;
use kernel::ffi::c_uint;
use kernel::ffi::c_void;
use kernel::prelude::*;

mod send;

pub(super) use send::send_locked;
pub use send::SendHint;

extern "C" {
    fn riwarp_helper_bind_privileged(
        sock: *mut bindings::socket,
        addr: *mut c_void,
        len: c_int,
    ) -> c_int;
    fn riwarp_helper_ip6_sock_set_tclass(sk: *mut bindings::sock, val: c_int);
    fn riwarp_helper_ip6_sock_set_v6only(sk: *mut bindings::sock) -> c_int;
    fn riwarp_helper_lock_sock(sk: *mut bindings::sock);
    fn riwarp_helper_maybe_get_net(net: *mut bindings::net) -> *mut bindings::net;
    fn riwarp_helper_put_net(net: *mut bindings::net);
    fn riwarp_helper_sk_held(sk: *const bindings::sock) -> c_int;
    fn riwarp_helper_sk_memcg(sk: *const bindings::sock) -> *mut bindings::mem_cgroup;
    fn riwarp_helper_sk_set_memcg(sk: *mut bindings::sock, memcg: *mut bindings::mem_cgroup);
    fn riwarp_helper_sk_net(sk: *const bindings::sock) -> *mut bindings::net;
    fn riwarp_helper_sk_net_refcnt(sk: *const bindings::sock) -> c_int;
    fn riwarp_helper_sk_make_room(sk: *mut bindings::sock, n: usize);
    fn riwarp_helper_tcp_open_window(sk: *mut bindings::sock);
    fn riwarp_helper_sk_set_reuse(sk: *mut bindings::sock, reuse: c_int);
    fn riwarp_helper_sk_setup(sk: *mut bindings::sock, rcvbuf: c_int);
}

const PAGE_SIZE: usize = kernel::page::PAGE_SIZE;

// CAST: The constants are small.
const NONBLOCK: c_int = bindings::O_NONBLOCK as c_int;
const DONTWAIT: c_uint = bindings::MSG_DONTWAIT | bindings::MSG_NOSIGNAL;

/// The room that TCP has for what was received, in the kernel's terms (which count each packet's
/// overhead): the largest FPDU, 64 KiB and its framing, fits several times, whatever packets it
/// comes in.
const RCVBUF: c_int = 1 << 20;

/// How far a connection attempt got at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connecting {
    /// The connection is there.
    Done,
    /// Under way: `state_change` will tell, and [`Socket::error`] why not.
    Pending,
}

/// Beside which other sockets a socket may be bound to the same port and address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// Beside any: TCP does not look who has the port (`SK_FORCE_REUSE`). Only for a port that is
    /// known to be the caller's.
    Always,
    /// Beside those that are not `Never` and do not listen: connections that linger, for example
    /// (`SO_REUSEADDR`).
    Lingering,
    /// Beside none. The default.
    Never,
}

/// A TCP socket. Dropping it closes it, in an orderly way unless octets were received that nobody
/// took.
///
/// Methods whose context is "process" take the socket lock and may sleep. While they release it,
/// callbacks of [`super::Hooked`] may run inside them.
///
/// # Namespaces
///
/// A socket keeps the memory of its `struct net` (`net_passive_inc()` in `sk_alloc()`), but not the
/// namespace: what TCP uses of that, as its counters, is freed by the `exit` operations. So it has
/// to be dropped before the `pre_exit` operations are over. No type ensures this. What does:
///
/// * None is made later. [`Socket::new_tcp`] wants a [`NetRef`], and nobody gets one when the count
///   of the namespace is zero, which it is before the first `pre_exit`; [`Socket::accept`] wants a
///   socket that is still there.
/// * Those that are there are dropped by [`super::NetnsExit::netns_exit`], which the driver
///   implements; whoever has a socket has to be known to it.
///
/// # Invariants
///
/// `raw` is a valid TCP socket of the kernel's own with a `struct sock`; this value owns it. Its
/// namespace has not left its `pre_exit` operations, for the reasons above.
/// `callbacks` are those that TCP gives to a new socket. It has never listened unless `listener` is
/// set.
pub struct Socket {
    raw: NonNull<bindings::socket>,
    callbacks: Callbacks,
    listener: bool,
}

// SAFETY: A `struct socket` belongs to no thread; `sock_release()`, which the drop calls, may be
// called by any.
unsafe impl Send for Socket {}
// SAFETY: The functions of C that are called with a shared reference lock the socket; what is read
// without are single values.
unsafe impl Sync for Socket {}

impl Socket {
    /// Makes a socket in a namespace. Context: process, sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `EAFNOSUPPORT` and what else making a socket gives.
    pub fn new_tcp(net: &NetRef, family: Family) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // CAST: The constants are small.
        let (kind, proto) = (
            bindings::sock_type_SOCK_STREAM as c_int,
            bindings::IPPROTO_TCP as c_int,
        );
        // SAFETY: `sock_create_kern()` wants a valid namespace, which `net` is by the invariants of
        // `NetRef`, and a place for the socket, which `raw` is.
        to_result(unsafe {
            bindings::sock_create_kern(net.as_raw(), family.as_raw(), kind, proto, &mut raw)
        })?;
        let raw = NonNull::new(raw).ok_or(EINVAL)?;
        // SAFETY: `sk_of` wants a valid socket with a `struct sock`: `sock_create_kern()` has made
        // one.
        let sk = unsafe { sk_of(raw) };
        // SAFETY: `read` wants a valid socket whose callbacks nobody changes: it is new; nobody
        // else knows it.
        let callbacks = unsafe { Callbacks::read(sk) };
        // INVARIANT: As made above; it does not listen.
        let socket = Self {
            raw,
            callbacks,
            listener: false,
        };
        socket.setup();
        Ok(socket)
    }

    /// Makes it one that is only there to listen ([`Socket::listen`]).
    pub fn into_listener(mut self) -> Self {
        self.listener = true;
        self
    }

    /// What each socket gets, made or accepted.
    fn setup(&self) {
        // Nagle's algorithm would hold back the last packet of a batch.
        // SAFETY: `tcp_sock_set_nodelay()` wants a valid TCP socket that the caller has not locked:
        // `self` has one, and nobody else has it yet.
        unsafe { bindings::tcp_sock_set_nodelay(self.sk()) };
        self.locked(|sk| {
            // Memory must come without waiting, since softirqs send too and memory may be freed by
            // what is sent here.
            // SAFETY: The helper wants a valid socket that is locked: `locked` gives one.
            unsafe { riwarp_helper_sk_setup(sk, RCVBUF) };
        });
    }

    /// Has a memory cgroup pay for the socket and for what TCP keeps in it, now and later, unless
    /// one does already. Nobody pays for a socket that a work item has made or accepted, since the
    /// current task is then a thread of the kernel.
    ///
    /// What TCP keeps already is charged as at the end of `accept()` of a process (`__sk_charge()`,
    /// which modules cannot call): it is taken once more with the cgroup, and let go once without.
    /// That does not wait for the cgroup, which may get over its limit by this.
    ///
    /// Context: process.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if TCP is at the limit of all of its memory.
    pub fn charge_to(&self, memcg: &Memcg) -> Result {
        let Some(owner) = memcg.for_sockets() else {
            return Ok(());
        };
        self.locked(|sk| {
            // SAFETY: The function wants a valid socket that is locked: `locked` gives one.
            if !unsafe { riwarp_helper_sk_memcg(sk) }.is_null() {
                return Ok(());
            }
            // SAFETY: The function wants a valid socket that is locked: `locked` gives one.
            let held = unsafe { riwarp_helper_sk_held(sk) };
            // CAST: A page's size is small.
            let held =
                held.max(0).saturating_add(PAGE_SIZE as c_int - 1) & !(PAGE_SIZE as c_int - 1);
            // SAFETY: The helper wants a valid socket that is locked: `locked` gives one. The
            // reference that the field stands for is put there below, or the field is null again.
            unsafe { riwarp_helper_sk_set_memcg(sk, owner.as_raw()) };
            // Where bottom halves are off, a charge does not wait and cannot fail for the cgroup's
            // limit.
            let schedule = |_: BhOff<'_>| {
                // SAFETY: `__sk_mem_schedule()` wants a valid socket that is locked: `locked` gives
                // one. It does not sleep.
                unsafe { bindings::__sk_mem_schedule(sk, held, bindings::SK_MEM_RECV as c_int) }
            };
            let taken = held == 0 || BhOff::run(schedule) != 0;
            // SAFETY: The function wants a valid socket that is locked: `locked` gives one.
            unsafe { riwarp_helper_sk_set_memcg(sk, ptr::null_mut()) };
            if !taken {
                return Err(ENOMEM);
            }
            if held > 0 {
                // SAFETY: `__sk_mem_reclaim()` wants a valid socket that is locked, which `locked`
                // gives, and no more than was taken: so much was, just now.
                unsafe { bindings::__sk_mem_reclaim(sk, held) };
            }
            // SAFETY: The helper wants a valid socket that is locked, which `locked` gives, and a
            // reference to the cgroup, which `sk_free()` gives back: that of `owner`.
            unsafe { riwarp_helper_sk_set_memcg(sk, owner.into_raw()) };
            Ok(())
        })?;
        // SAFETY: `charge_raw` wants an object of a slab cache or of `kmalloc()`: a `struct sock`
        // of TCP is the former.
        unsafe { memcg.charge_raw(self.sk().cast()) };
        // SAFETY: `charge_raw` wants an object of a slab cache or of `kmalloc()`: a `struct socket`
        // is the first member of one of the former.
        unsafe { memcg.charge_raw(self.raw.as_ptr().cast()) };
        Ok(())
    }

    /// Gives the socket a local address. Context: process.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE`, `EADDRNOTAVAIL`, `EINVAL` if it has one.
    pub fn bind(&self, addr: &SockAddr) -> Result {
        let mut raw = addr.to_raw();
        // SAFETY: `kernel_bind()` wants a valid socket, which `self` has, and an address of that
        // length, which `raw` is large enough for.
        to_result(unsafe {
            bindings::kernel_bind(self.raw.as_ptr(), (&raw mut raw).cast(), addr.raw_len())
        })
    }

    /// As [`Socket::bind`], but with the rights of the kernel: the port may be a privileged one
    /// whatever the rights of the current task. Context: process.
    ///
    /// # Errors
    ///
    /// Those of [`Socket::bind`].
    pub fn bind_privileged(&self, addr: &SockAddr) -> Result {
        let mut raw = addr.to_raw();
        // SAFETY: `kernel_bind()` wants a valid socket, which `self` has, and an address of that
        // length, which `raw` is large enough for.
        to_result(unsafe {
            riwarp_helper_bind_privileged(self.raw.as_ptr(), (&raw mut raw).cast(), addr.raw_len())
        })
    }

    /// Waits for connections from now on. Context: process.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE`, `EINVAL` if it is connected, or not made for it ([`Socket::into_listener`]).
    pub fn listen(&self, backlog: u16) -> Result {
        if !self.listener {
            return Err(EINVAL);
        }
        // INVARIANT: `listener` is set.
        // SAFETY: `kernel_listen()` wants a valid socket, which `self` has by the type invariant.
        to_result(unsafe { bindings::kernel_listen(self.raw.as_ptr(), backlog.into()) })
    }

    /// Stops listening: connections that were not accepted are reset, and the socket stays bound.
    /// Does nothing to a socket that does not listen. Context: process.
    pub fn stop_listening(&self) {
        if self.state() == TcpState::Listen {
            // SAFETY: `kernel_sock_shutdown()` wants a valid socket, which `self` has. An error
            // says that it does not listen any more.
            unsafe {
                bindings::kernel_sock_shutdown(
                    self.raw.as_ptr(),
                    bindings::sock_shutdown_cmd_SHUT_RD,
                )
            };
        }
    }

    /// Takes a connection that waits. The result has the callbacks that TCP gives, whatever the
    /// listener has. Context: process.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if none waits, `ECONNABORTED` if it is gone already, `EINVAL` if the socket does
    /// not listen, `ENOMEM`.
    pub fn accept(&self) -> Result<Socket> {
        let mut raw = ptr::null_mut();
        // SAFETY: `kernel_accept()` wants a valid socket, which `self` has by the type invariant,
        // and a place for the new one, which `raw` is.
        to_result(unsafe { bindings::kernel_accept(self.raw.as_ptr(), &mut raw, NONBLOCK) })?;
        let raw = NonNull::new(raw).ok_or(ECONNABORTED)?;
        // INVARIANT: A TCP socket, and nobody else has it. Both sockets are of the same kind, so
        // that the callbacks are too. It has not listened.
        let child = Self {
            raw,
            callbacks: self.callbacks,
            listener: false,
        };
        // A child begins with a copy of the listener's callbacks, but without its data.
        // SAFETY: `restore` wants a valid socket and TCP's callbacks: by their invariants `child`
        // has one, and `self` has these.
        unsafe { self.callbacks.restore(child.sk()) };
        child.setup();
        Ok(child)
    }

    /// Begins to connect. Context: process.
    ///
    /// # Errors
    ///
    /// `ENETUNREACH`, `EADDRNOTAVAIL`, `EISCONN`, `ECONNREFUSED` and others that are known at once.
    pub fn connect_nonblock(&self, addr: &SockAddr) -> Result<Connecting> {
        let mut raw = addr.to_raw();
        // SAFETY: `kernel_connect()` wants a valid socket, which `self` has, and an address of that
        // length, which `raw` is large enough for.
        let ret = unsafe {
            bindings::kernel_connect(
                self.raw.as_ptr(),
                (&raw mut raw).cast(),
                addr.raw_len(),
                NONBLOCK,
            )
        };
        match to_result(ret) {
            Ok(()) => Ok(Connecting::Done),
            Err(error) if error == EINPROGRESS => Ok(Connecting::Pending),
            Err(error) => Err(error),
        }
    }

    /// Ties the socket to a device, by its number in the namespace; 0 unties it. Context: process.
    ///
    /// # Errors
    ///
    /// `ENODEV` for a number that no device can have. Whether there is such a device is not
    /// checked.
    pub fn set_bound_dev(&self, ifindex: u32) -> Result {
        let ifindex = c_int::try_from(ifindex).map_err(|_| ENODEV)?;
        // SAFETY: `sock_bindtoindex()` wants a valid socket, which `self` has, and locks it, as
        // asked for.
        to_result(unsafe { bindings::sock_bindtoindex(self.sk(), ifindex, true) })
    }

    /// Says beside which others the socket may be bound; and once it is bound, which others may be
    /// bound beside it. Connections that it accepts inherit that. Context: process.
    pub fn set_reuse(&self, reuse: Reuse) {
        let reuse = match reuse {
            Reuse::Always => bindings::SK_FORCE_REUSE,
            Reuse::Lingering => bindings::SK_CAN_REUSE,
            Reuse::Never => bindings::SK_NO_REUSE,
        };
        // CAST: The constants are small.
        let reuse = reuse as c_int;
        self.locked(|sk| {
            // SAFETY: The helper wants a valid socket that is locked: `locked` gives one.
            unsafe { riwarp_helper_sk_set_reuse(sk, reuse) };
        });
    }

    /// Keeps an IPv6 socket from taking IPv4 connections. Context: process.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is bound, or not IPv6.
    pub fn set_v6only(&self) -> Result {
        if self.family() != Family::V6 {
            return Err(EINVAL);
        }
        // SAFETY: `ip6_sock_set_v6only()` wants a valid IPv6 socket, which `self` has, as just
        // compared; it locks it.
        to_result(unsafe { riwarp_helper_ip6_sock_set_v6only(self.sk()) })
    }

    /// Sets the type of service (IPv4) or traffic class (IPv6). Context: process.
    pub fn set_tos(&self, tos: u8) {
        match self.family() {
            // SAFETY: `ip_sock_set_tos()` wants a valid IPv4 socket, which `self` has, as just
            // compared; it locks it.
            Family::V4 => unsafe { bindings::ip_sock_set_tos(self.sk(), tos.into()) },
            Family::V6 => self.locked(|sk| {
                // SAFETY: The helper wants a valid IPv6 socket that is locked: `locked` gives one,
                // and the family was just compared.
                unsafe { riwarp_helper_ip6_sock_set_tclass(sk, tos.into()) };
            }),
        }
    }

    /// The address on this side. Context: process.
    ///
    /// # Errors
    ///
    /// `EAFNOSUPPORT` should not happen.
    pub fn local_addr(&self) -> Result<SockAddr> {
        let mut raw = bindings::__kernel_sockaddr_storage::default();
        // SAFETY: `kernel_getsockname()` wants a valid socket, which `self` has, and room for an
        // address of its family, which `raw` has for any.
        to_result(unsafe {
            bindings::kernel_getsockname(self.raw.as_ptr(), (&raw mut raw).cast())
        })?;
        SockAddr::from_raw(&raw)
    }

    /// The address on the other side. Context: process.
    ///
    /// # Errors
    ///
    /// `ENOTCONN`.
    pub fn peer_addr(&self) -> Result<SockAddr> {
        let mut raw = bindings::__kernel_sockaddr_storage::default();
        // SAFETY: `kernel_getpeername()` wants a valid socket, which `self` has, and room for an
        // address of its family, which `raw` has for any.
        to_result(unsafe {
            bindings::kernel_getpeername(self.raw.as_ptr(), (&raw mut raw).cast())
        })?;
        SockAddr::from_raw(&raw)
    }

    /// Sends a copy of some octets; gives how many TCP took. Context: process.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if TCP takes none now (`write_space` follows), `EPIPE`, or what happened to the
    /// connection.
    pub fn send(&self, buf: &[u8]) -> Result<usize> {
        let mut msg = bindings::msghdr {
            msg_flags: DONTWAIT,
            ..Default::default()
        };
        let mut vec = bindings::kvec {
            iov_base: buf.as_ptr().cast_mut().cast(),
            iov_len: buf.len(),
        };
        // SAFETY: `kernel_sendmsg()` wants a valid socket, which `self` has, and a vector of memory
        // that is readable: it describes `buf`, which is only read.
        let ret = unsafe {
            bindings::kernel_sendmsg(self.raw.as_ptr(), &mut msg, &mut vec, 1, buf.len())
        };
        to_len(ret)
    }

    /// Takes octets that were received, at most as many as `buf` holds. `Ok(0)` is the end of the
    /// stream. Context: process.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if there are none yet, `EINVAL` if `buf` is empty, or what happened to the
    /// connection.
    pub fn recv(&self, buf: &mut [u8]) -> Result<usize> {
        self.receive(buf, bindings::MSG_DONTWAIT)
    }

    /// As [`Socket::recv`], but leaves the octets there.
    pub fn peek(&self, buf: &mut [u8]) -> Result<usize> {
        self.receive(buf, bindings::MSG_DONTWAIT | bindings::MSG_PEEK)
    }

    fn receive(&self, buf: &mut [u8], flags: c_uint) -> Result<usize> {
        if buf.is_empty() {
            return Err(EINVAL);
        }
        let mut msg = bindings::msghdr::default();
        let mut vec = bindings::kvec {
            iov_base: buf.as_mut_ptr().cast(),
            iov_len: buf.len(),
        };
        // CAST: The flags are small.
        let flags = flags as c_int;
        // SAFETY: `kernel_recvmsg()` wants a valid socket, which `self` has, and a vector of memory
        // that is writable: it describes `buf`, which is borrowed exclusively.
        let ret = unsafe {
            bindings::kernel_recvmsg(self.raw.as_ptr(), &mut msg, &mut vec, 1, buf.len(), flags)
        };
        to_len(ret)
    }

    /// Offers the peer all of the receive buffer from the next acknowledgement on, instead of
    /// letting the window grow with the traffic.
    ///
    /// A peer that sends FPDUs as long as a large segment needs a window for one more while the
    /// last one waits for its end; TCP would send the rest of it with the persist timer only.
    ///
    /// Context: process. For an established connection.
    pub fn open_window(&self) {
        self.locked(|sk| {
            // SAFETY: The helper wants a valid TCP socket that is locked: `locked` gives one.
            unsafe { riwarp_helper_tcp_open_window(sk) };
        });
    }

    /// Makes TCP take `n` octets more, however full its send buffer is, if there is memory. For the
    /// last words of a stream. Context: process.
    pub fn make_room(&self, n: usize) {
        self.locked(|sk| {
            // SAFETY: The helper wants a valid TCP socket that is locked: `locked` gives one.
            unsafe { riwarp_helper_sk_make_room(sk, n) };
        });
    }

    /// How many octets TCP puts into a full packet now (EMSS in RFC 5044). Context: any.
    #[inline]
    pub fn emss(&self) -> u32 {
        // SAFETY: The place of a field is inside of the allocation: `tp` gives a valid TCP socket.
        let mss = unsafe { &raw const (*self.tp()).mss_cache };
        // SAFETY: The field of a valid socket, which is read once and may change at any time.
        unsafe { mss.read_volatile() }
    }

    /// How many octets the peer has acknowledged so far, the FIN included. Context: any.
    pub fn acked(&self) -> u64 {
        // SAFETY: The place of a field is inside of the allocation: `tp` gives a valid TCP socket.
        let acked = unsafe { &raw const (*self.tp()).bytes_acked };
        // SAFETY: The field of a valid socket, which is read once and may change at any time.
        unsafe { acked.read_volatile() }
    }

    /// How many octets have come from the peer so far, in order. Context: any.
    pub fn received(&self) -> u64 {
        // SAFETY: The place of a field is inside of the allocation: `tp` gives a valid TCP socket.
        let received = unsafe { &raw const (*self.tp()).bytes_received };
        // SAFETY: The field of a valid socket, which is read once and may change at any time.
        unsafe { received.read_volatile() }
    }

    /// Ends the stream to the peer, after all that was sent. Runs the `state_change` of a hook.
    /// Context: process.
    pub fn shutdown_write(&self) {
        // SAFETY: `kernel_sock_shutdown()` wants a valid socket, which `self` has. An error says
        // that there was no connection.
        unsafe {
            bindings::kernel_sock_shutdown(self.raw.as_ptr(), bindings::sock_shutdown_cmd_SHUT_WR)
        };
    }

    /// Ends the connection at once by a reset; [`Socket::error`] is `ECONNABORTED` then. Runs the
    /// `state_change` of a hook. Context: process.
    pub fn abort(&self) {
        // SAFETY: `tcp_abort()` wants a valid TCP socket, which `self` has, and locks it. An error
        // says that it was closed before.
        unsafe { bindings::tcp_abort(self.sk(), ECONNABORTED.to_errno().wrapping_neg()) };
    }

    /// The state of the connection, as it is now. Context: any.
    pub fn state(&self) -> TcpState {
        // SAFETY: `state_of` wants a valid socket, which `self` has.
        unsafe { state_of(self.sk()) }
    }

    /// What happened to the connection, as a positive error number; 0 if nothing did. Context: any.
    pub fn error(&self) -> i32 {
        // SAFETY: The place of a field is inside of the allocation: `self` has a valid socket.
        let error = unsafe { &raw const (*self.sk()).sk_err };
        // SAFETY: The field of a valid socket, which is read once and may change at any time.
        unsafe { error.read_volatile() }
    }

    /// The protocol of the socket.
    pub fn family(&self) -> Family {
        // SAFETY: A field of a valid socket, which `self` has, that never changes (`IPV6_ADDRFORM`
        // is for processes).
        let family = unsafe { (*self.sk()).__sk_common.skc_family };
        if u32::from(family) == bindings::AF_INET6 {
            Family::V6
        } else {
            Family::V4
        }
    }

    /// Tells apart which namespace the socket is in.
    pub fn net_id(&self) -> NetId {
        // SAFETY: `sock_net()` wants a valid socket, which `self` has.
        NetId(unsafe { riwarp_helper_sk_net(self.sk()) }.addr())
    }

    /// Looks at what was received, with the socket locked. Context: process.
    pub fn with_inbound<R>(&self, f: impl FnOnce(&mut Inbound<'_>) -> R) -> R {
        self.locked(|sk| {
            // SAFETY: `of_owner` wants a valid TCP socket that the caller owns while the view
            // lives: `locked` gives one that it owns until this returns.
            let mut inbound = unsafe { Inbound::of_owner(sk) };
            f(&mut inbound)
        })
    }

    /// Runs `f` with the valid TCP socket that it is given locked, by this thread as the owner.
    /// Context: process.
    #[inline]
    fn locked<R>(&self, f: impl FnOnce(*mut bindings::sock) -> R) -> R {
        // SAFETY: `lock_sock()` wants a valid socket, which `self` has.
        unsafe { riwarp_helper_lock_sock(self.sk()) };
        let ret = f(self.sk());
        // SAFETY: `release_sock()` wants a socket that the caller owns: it was locked above, and
        // nothing that `f` can reach unlocks it.
        unsafe { bindings::release_sock(self.sk()) };
        ret
    }

    #[inline]
    pub(super) fn sk(&self) -> *mut bindings::sock {
        // SAFETY: `sk_of` wants a valid socket with a `struct sock`: by the type invariant it is
        // one.
        unsafe { sk_of(self.raw) }
    }

    /// A valid TCP socket, as long as `self` lives.
    #[inline]
    pub(super) fn tp(&self) -> *const bindings::tcp_sock {
        self.sk().cast_const().cast()
    }

    pub(super) fn is_listener(&self) -> bool {
        self.listener
    }

    pub(super) fn callbacks(&self) -> Callbacks {
        self.callbacks
    }
}

impl Drop for Socket {
    /// Context: process.
    fn drop(&mut self) {
        let sk = self.sk();
        let lingers = !matches!(self.state(), TcpState::Listen | TcpState::Closed);
        // A socket of the kernel's that does not hold its namespace loses its timers when closed,
        // and with them the rest of the stream if a packet is lost. In a namespace that is going
        // away nothing can be delivered any more.
        // SAFETY: The helper reads a field of a valid socket, which `self` has.
        if lingers && unsafe { riwarp_helper_sk_net_refcnt(sk) } == 0 {
            // SAFETY: `sock_net()` wants a valid socket, which `self` has.
            let net = unsafe { riwarp_helper_sk_net(sk) };
            // SAFETY: `maybe_get_net()` wants the memory of a namespace: a socket that does not
            // count its namespace keeps the memory valid all the same (`net_passive_inc()` in
            // `sk_alloc()`).
            let net = unsafe { riwarp_helper_maybe_get_net(net) };
            if !net.is_null() {
                // SAFETY: `sk_net_refcnt_upgrade()` wants a valid socket that does not count its
                // namespace, as just seen, of a namespace that is alive, which the count above
                // keeps so. Only the drop of the one owner does this.
                unsafe { bindings::sk_net_refcnt_upgrade(sk) };
                // SAFETY: `put_net()` gives back a count that the caller has: that from
                // `maybe_get_net()` above.
                unsafe { riwarp_helper_put_net(net) };
            }
        }
        // SAFETY: `sock_release()` wants a valid socket that nobody uses any more: by the type
        // invariant this value owns it, and whoever hooked it has unhooked it.
        unsafe { bindings::sock_release(self.raw.as_ptr()) };
    }
}

/// # Safety
///
/// `raw` must be a valid socket with a `struct sock`.
#[inline]
unsafe fn sk_of(raw: NonNull<bindings::socket>) -> *mut bindings::sock {
    // SAFETY: A field of a valid socket, which the caller has made `raw`.
    unsafe { (*raw.as_ptr()).sk }.cast()
}

/// Reads the result of a function that gives a length or a negative error number.
#[inline]
pub(super) fn to_len(ret: c_int) -> Result<usize> {
    if ret < 0 {
        to_result(ret)?;
    }
    // CAST: Not negative.
    Ok(ret as usize)
}

// Addresses are handed to C functions that write as much as their family takes.
const _: () = assert!(
    size_of::<bindings::__kernel_sockaddr_storage>() >= size_of::<bindings::sockaddr_in6>()
);
