// SPDX-License-Identifier: GPL-2.0

//! Kernel TCP sockets: creating, connecting, sending, receiving, closing. Nothing here waits for
//! the peer.
//!
//! A socket does not hold its network namespace, so that connections do not delay its deletion; the
//! owner closes the socket in time (see [`Socket`], "Namespaces"). After an orderly close TCP holds
//! the namespace until it has delivered the rest of the stream and seen it acknowledged, as for
//! user space.
//!
//! C headers: `include/linux/net.h`, `include/net/sock.h`, `include/net/tcp.h`.

use super::addr::ipv6_from_raw;
use super::addr::Family;
use super::addr::SockAddr;
use super::device::NetId;
use super::device::NetRef;
use super::hooks::Callbacks;
use super::skb::Inbound;
use super::skb::SockLock;
use super::state::state_of;
use super::state::TcpState;
use crate::bindings;
use crate::compat::ECONNABORTED;
use crate::compat::EINPROGRESS;
use crate::compat::ENOTCONN;
use crate::mm::memcg::Memcg;
use crate::sync::BhOff;
use bindings::sock_common__bindgen_ty_1__bindgen_ty_1 as Addrs;
use bindings::sock_common__bindgen_ty_3__bindgen_ty_1 as Ports;
use core::mem::size_of;
use core::net::IpAddr;
use core::net::Ipv4Addr;
use core::num::NonZeroU64;
use core::ptr;
use core::ptr::NonNull;
use kernel::error::to_result;
use kernel::ffi::c_int;
use kernel::ffi::c_uint;
use kernel::ffi::c_ulong;
use kernel::ffi::c_void;
use kernel::prelude::*;
use kernel::sync::atomic::Atomic;
use kernel::sync::SetOnce;

/// Reads a field of a [`Socket`]'s `struct tcp_sock` once; it may change at any time.
macro_rules! read {
    ($socket:expr, $($field:ident).+) => {{
        // SAFETY: The field lies inside the allocation: `tp` returns a valid TCP socket.
        let field = unsafe { &raw const (*$socket.tp())$(.$field)+ };
        // SAFETY: A field of plain data in a valid socket.
        unsafe { field.read_volatile() }
    }};
}

mod info;
mod secure;
mod send;
mod tcp;
mod tls;

pub use info::TcpInfo;
pub use secure::tls_exists;
pub use secure::tls_has_x509;
pub(super) use send::send_locked;
pub use send::SendHint;

use secure::Layer;
use tcp::Tcp;
use tls::Tls;
use tls::RECORD_MAX;

extern "C" {
    fn riwarp_helper_bh_lock_sock(sk: *mut bindings::sock);
    fn riwarp_helper_bh_unlock_sock(sk: *mut bindings::sock);
    fn riwarp_helper_bind_privileged(
        sock: *mut bindings::socket,
        addr: *mut c_void,
        len: c_int,
    ) -> c_int;
    fn riwarp_helper_ip6_sock_set_tclass(sk: *mut bindings::sock, val: c_int);
    fn riwarp_helper_lock_sock(sk: *mut bindings::sock);
    fn riwarp_helper_maybe_get_net(net: *mut bindings::net) -> *mut bindings::net;
    fn riwarp_helper_put_net(net: *mut bindings::net);
    fn riwarp_helper_sk_acceptq_is_half_full(sk: *const bindings::sock) -> c_int;
    fn riwarp_helper_sk_bind_without_port(sk: *mut bindings::sock);
    fn riwarp_helper_sk_has_port(sk: *const bindings::sock) -> bool;
    fn riwarp_helper_sk_held(sk: *const bindings::sock) -> c_int;
    fn riwarp_helper_sk_memcg(sk: *const bindings::sock) -> *mut bindings::mem_cgroup;
    fn riwarp_helper_sk_owned_by_user(sk: *const bindings::sock) -> bool;
    fn riwarp_helper_sk_set_memcg(sk: *mut bindings::sock, memcg: *mut bindings::mem_cgroup);
    fn riwarp_helper_sk_net(sk: *const bindings::sock) -> *mut bindings::net;
    fn riwarp_helper_sk_net_refcnt(sk: *const bindings::sock) -> c_int;
    fn riwarp_helper_sk_port_is_local(sk: *const bindings::sock, port: u16) -> bool;
    fn riwarp_helper_sk_port_is_reserved(sk: *const bindings::sock, port: u16) -> bool;
    fn riwarp_helper_sk_port_is_privileged(sk: *const bindings::sock, port: u16) -> bool;
    fn riwarp_helper_sk_limit_rate(sk: *mut bindings::sock, rate: c_ulong);
    fn riwarp_helper_sk_unlimit_rate(sk: *mut bindings::sock);
    fn riwarp_helper_sk_make_room(sk: *mut bindings::sock, n: usize);
    fn riwarp_helper_tcp_open_window(sk: *mut bindings::sock);
    fn riwarp_helper_sk_set_port_range(sk: *mut bindings::sock, low: u16, high: u16);
    fn riwarp_helper_sk_set_reuse(sk: *mut bindings::sock, reuse: c_int);
    fn riwarp_helper_sk_set_v6only(sk: *mut bindings::sock, only: bool);
    fn riwarp_helper_sk_setup(sk: *mut bindings::sock, rcvbuf: c_int);
    fn riwarp_helper_try_lock_sock(sk: *mut bindings::sock) -> bool;
}

const PAGE_SIZE: usize = kernel::page::PAGE_SIZE;

// CAST: The constants are small.
const NONBLOCK: c_int = bindings::O_NONBLOCK as c_int;
const DONTWAIT: c_uint = bindings::MSG_DONTWAIT | bindings::MSG_NOSIGNAL;

/// The receive buffer in the kernel's terms, which count the overhead of each packet: the largest
/// FPDU (64 KiB and its framing) fits several times, whatever the sizes of its packets.
const RCVBUF: c_int = 1 << 20;

/// The immediate result of a connection attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connecting {
    /// The connection is established.
    Done,
    /// In progress: `state_change` reports the end, and [`Socket::error`] the cause of a failure.
    Pending,
}

/// How full the accept queue of a listener is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptQueue {
    /// More than half: TCP may soon drop connections.
    Long,
    /// At most half.
    Short,
}

/// Which other sockets may be bound to the same port and address as a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// Any: TCP skips the conflict check (`SK_FORCE_REUSE`). Only for a port that the caller is
    /// known to own.
    Always,
    /// Those that are not `Never` and do not listen (`SO_REUSEADDR`), such as connections in
    /// TIME-WAIT.
    Lingering,
    /// None. The default.
    Never,
}

/// A TCP socket. Dropping it closes it: with a FIN, or with a reset if received octets were not
/// read.
///
/// Methods whose context is "process" take the socket lock and may sleep. Releasing it may run
/// callbacks of [`super::Hooked`]. The lock has no priority inheritance, and a sender may hold it
/// while it waits for memory. So each method whose name begins with `try_` fails with `EBUSY`
/// instead, without effect, while another thread owns the socket.
///
/// # Namespaces
///
/// A socket keeps the memory of its `struct net` (`net_passive_inc()` in `sk_alloc()`), but not the
/// namespace: the `exit` operations free what TCP uses of it, such as its counters. So the socket
/// must be dropped before the `pre_exit` operations end. No type ensures this; these rules do:
///
/// * No socket is made later. [`Socket::new_tcp`] requires a [`NetRef`], which cannot be had once
///   the count of the namespace is zero, as it is before the first `pre_exit`; [`Socket::accept`]
///   requires an existing socket.
/// * The driver's [`super::NetnsExit::netns_exit`] drops the existing ones; it must be able to
///   reach the owner of every socket.
///
/// # Invariants
///
/// `raw` is a valid kernel TCP socket with a `struct sock`; this value owns it. The `pre_exit`
/// operations of its namespace have not ended, for the reasons above. `callbacks` are those that
/// TCP gives to a new socket. The socket has never listened unless `listener` is set.
///
/// # Layers
///
/// Octets go through TCP itself, or through the kernel's TLS above it ([`Socket::secure`]). What
/// goes to TCP directly, and would send clear text or read cipher text on a socket with TLS, are
/// methods of [`Tcp`], which such a socket does not have; so are those of its receive queue.
pub struct Socket {
    raw: NonNull<bindings::socket>,
    callbacks: Callbacks,
    listener: bool,
    /// Whether it has a file, as a handshake demands, which then owns the socket.
    file: bool,
    /// Whether it was given to a handshake: without TLS it carries no octets any more.
    lent: Atomic<bool>,
    /// TLS, once it is on.
    tls: SetOnce<Pin<KBox<Tls>>>,
}

// SAFETY: A `struct socket` is not bound to a thread; any thread may call `sock_release()`, as the
// drop does.
unsafe impl Send for Socket {}
// SAFETY: The C functions called through a shared reference lock the socket; what is read without
// the lock are single values.
unsafe impl Sync for Socket {}

impl Socket {
    /// Makes a socket in a namespace. Context: process, sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `EAFNOSUPPORT` and other errors of `sock_create_kern()`.
    pub fn new_tcp(net: &NetRef, family: Family) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // CAST: The constants are small.
        let (kind, proto) = (
            bindings::sock_type_SOCK_STREAM as c_int,
            bindings::IPPROTO_TCP as c_int,
        );
        // SAFETY: `sock_create_kern()` requires a valid namespace, which `net` is by the invariants
        // of `NetRef`, and a pointer to store the socket in, `raw`.
        to_result(unsafe {
            bindings::sock_create_kern(net.as_raw(), family.as_raw(), kind, proto, &mut raw)
        })?;
        let raw = NonNull::new(raw).ok_or(EINVAL)?;
        // SAFETY: `sk_of` requires a valid socket with a `struct sock`: `sock_create_kern()` has
        // made one.
        let sk = unsafe { sk_of(raw) };
        // SAFETY: `read` requires a valid socket whose callbacks do not change: it is new and not
        // shared yet.
        let callbacks = unsafe { Callbacks::read(sk) };
        // INVARIANT: As made above; it does not listen.
        let socket = Self {
            raw,
            callbacks,
            listener: false,
            file: false,
            lent: Atomic::new(false),
            tls: SetOnce::new(),
        };
        socket.uncharge();
        socket.setup();
        Ok(socket)
    }

    /// Charges a new socket to no memory cgroup, whatever the current task: the consumer may be in
    /// the kernel, and what a work item sends must not wait for the cgroup of some process.
    fn uncharge(&self) {
        let charged = self.locked(|sk| {
            // SAFETY: The helper requires a valid socket that is locked: `locked` gives one.
            let memcg = unsafe { riwarp_helper_sk_memcg(sk) };
            // SAFETY: The helper requires a valid socket that is locked: `locked` gives one. TCP
            // keeps nothing in a new socket that would be charged to the cgroup.
            unsafe { riwarp_helper_sk_set_memcg(sk, ptr::null_mut()) };
            // SAFETY: `from_raw` requires a reference or null: that of the socket ends here.
            unsafe { Memcg::from_raw(memcg) }
        });
        drop(charged);
    }

    /// Turns the socket into one that only listens ([`Socket::listen`]).
    pub fn into_listener(mut self) -> Self {
        self.listener = true;
        self
    }

    /// Sets the options of every socket, created or accepted.
    fn setup(&self) {
        // Nagle's algorithm would hold back the last packet of a batch.
        // SAFETY: `tcp_sock_set_nodelay()` requires a valid TCP socket that the caller has not
        // locked: `self` has one, which is not shared yet.
        unsafe { bindings::tcp_sock_set_nodelay(self.sk()) };
        self.locked(|sk| {
            // Allocations must not sleep, since softirqs send too; and must not wait for reclaim,
            // since what is sent here may be what frees memory. SAFETY: The helper requires a valid
            // socket that is locked: `locked` gives one.
            unsafe { riwarp_helper_sk_setup(sk, RCVBUF) };
        });
    }

    /// Charges the socket, and what TCP keeps in it now and later, to a memory cgroup, unless one
    /// is charged already. No new socket is charged to any, nor is one that a work item has
    /// accepted, since the current task is a kernel thread.
    ///
    /// Charges what TCP keeps already as `accept()` of a process does (`__sk_charge()`, which
    /// modules cannot call): reserves it once more with the cgroup set, then releases it once
    /// without. This does not wait for the cgroup, which may exceed its limit.
    ///
    /// Context: process.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if TCP is at its global memory limit.
    pub fn charge_to(&self, memcg: &Memcg) -> Result {
        let Some(owner) = memcg.for_sockets() else {
            return Ok(());
        };
        self.locked(|sk| {
            // SAFETY: The helper requires a valid socket that is locked: `locked` gives one.
            if !unsafe { riwarp_helper_sk_memcg(sk) }.is_null() {
                return Ok(());
            }
            // SAFETY: The helper requires a valid socket that is locked: `locked` gives one.
            let held = unsafe { riwarp_helper_sk_held(sk) };
            // CAST: A page's size is small.
            let held =
                held.max(0).saturating_add(PAGE_SIZE as c_int - 1) & !(PAGE_SIZE as c_int - 1);
            // SAFETY: The helper requires a valid socket that is locked: `locked` gives one. The
            // field owns a reference; below it gets one or is set to null again.
            unsafe { riwarp_helper_sk_set_memcg(sk, owner.as_raw()) };
            // With bottom halves off a charge does not wait and does not fail at the cgroup's
            // limit.
            let schedule = |_: BhOff<'_>| {
                // SAFETY: `__sk_mem_schedule()` requires a valid socket that is locked: `locked`
                // gives one. It does not sleep.
                unsafe { bindings::__sk_mem_schedule(sk, held, bindings::SK_MEM_RECV as c_int) }
            };
            let taken = held == 0 || BhOff::run(schedule) != 0;
            // SAFETY: The helper requires a valid socket that is locked: `locked` gives one.
            unsafe { riwarp_helper_sk_set_memcg(sk, ptr::null_mut()) };
            if !taken {
                return Err(ENOMEM);
            }
            if held > 0 {
                // SAFETY: `__sk_mem_reclaim()` requires a valid socket that is locked, which
                // `locked` gives, and at most the amount that was reserved: `held`, just now.
                unsafe { bindings::__sk_mem_reclaim(sk, held) };
            }
            // SAFETY: The helper requires a valid socket that is locked, which `locked` gives, and
            // a reference to the cgroup, which `sk_free()` puts: that of `owner`.
            unsafe { riwarp_helper_sk_set_memcg(sk, owner.into_raw()) };
            Ok(())
        })?;
        // SAFETY: `charge_raw` requires an object of a slab cache or of `kvmalloc()`: a `struct
        // sock` of TCP is the former.
        unsafe { memcg.charge_raw(self.sk().cast()) };
        // SAFETY: `charge_raw` requires an object of a slab cache or of `kvmalloc()`: a `struct
        // socket` is the first member of one of the former.
        unsafe { memcg.charge_raw(self.raw.as_ptr().cast()) };
        Ok(())
    }

    /// Binds the socket to a local address. Context: process.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE`, `EADDRNOTAVAIL`, `EINVAL` if it is bound.
    pub fn bind(&self, addr: &SockAddr) -> Result {
        let mut raw = addr.to_raw();
        // SAFETY: `kernel_bind()` requires a valid socket, which `self` has, and an address of that
        // length, which `raw` has room for.
        to_result(unsafe {
            bindings::kernel_bind(self.raw.as_ptr(), (&raw mut raw).cast(), addr.raw_len())
        })
    }

    /// Binds as [`Socket::bind`] does, but with the kernel's rights: the port may be privileged
    /// whatever the rights of the current task. Context: process.
    ///
    /// # Errors
    ///
    /// Those of [`Socket::bind`].
    pub fn bind_privileged(&self, addr: &SockAddr) -> Result {
        let mut raw = addr.to_raw();
        // SAFETY: `kernel_bind()` requires a valid socket, which `self` has, and an address of that
        // length, which `raw` has room for.
        to_result(unsafe {
            riwarp_helper_bind_privileged(self.raw.as_ptr(), (&raw mut raw).cast(), addr.raw_len())
        })
    }

    /// Binds to the address of `addr`, whose port must be 0: TCP chooses one when the socket
    /// connects, and then it may be one that connections to other peers have
    /// (`IP_BIND_ADDRESS_NO_PORT`). Context: process.
    ///
    /// # Errors
    ///
    /// Those of [`Socket::bind`].
    pub fn bind_without_port(&self, addr: &SockAddr) -> Result {
        // SAFETY: The helper requires a valid socket, which `self` has; the flag is atomic.
        unsafe { riwarp_helper_sk_bind_without_port(self.sk()) };
        self.bind(addr)
    }

    /// Asks TCP to connect the socket from this port, which it then may have for connections to
    /// other peers too, or from any if it is 0 (`IP_LOCAL_PORT_RANGE`). Only for a socket that is
    /// bound without a port ([`Socket::bind_without_port`]), and for a port of those that TCP
    /// chooses. Context: process.
    pub fn prefer_port(&self, port: u16) {
        // SAFETY: The helper requires a valid socket, which `self` has by the type invariant.
        unsafe { riwarp_helper_sk_set_port_range(self.sk(), port, port) };
    }

    /// Returns whether the port is one of those that TCP may choose in the namespace of the socket
    /// (`ip_local_port_range`), reserved ones included. Context: any.
    pub fn is_local_port(&self, port: u16) -> bool {
        // SAFETY: The helper requires a valid socket, which `self` has by the type invariant.
        unsafe { riwarp_helper_sk_port_is_local(self.sk(), port) }
    }

    /// Returns whether TCP never chooses the port in the namespace of the socket
    /// (`ip_local_reserved_ports`). Context: any.
    pub fn is_reserved_port(&self, port: u16) -> bool {
        // SAFETY: The helper requires a valid socket, which `self` has by the type invariant.
        unsafe { riwarp_helper_sk_port_is_reserved(self.sk(), port) }
    }

    /// Returns whether it takes a right to bind a port in the namespace of the socket
    /// (CAP_NET_BIND_SERVICE). Context: any.
    pub fn is_privileged(&self, port: u16) -> bool {
        // SAFETY: The helper requires a valid socket, which `self` has by the type invariant.
        unsafe { riwarp_helper_sk_port_is_privileged(self.sk(), port) }
    }

    /// Starts listening. Context: process.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE`, `EINVAL` if it is connected or not a listener ([`Socket::into_listener`]).
    pub fn listen(&self, backlog: u16) -> Result {
        if !self.listener {
            return Err(EINVAL);
        }
        // INVARIANT: `listener` is set.
        // SAFETY: `kernel_listen()` requires a valid socket, which `self` has by the type
        // invariant.
        to_result(unsafe { bindings::kernel_listen(self.raw.as_ptr(), backlog.into()) })
    }

    /// Returns how full the accept queue is. Context: any.
    pub fn accept_queue(&self) -> AcceptQueue {
        // SAFETY: The helper requires a valid socket, which `self` has by the type invariant.
        match unsafe { riwarp_helper_sk_acceptq_is_half_full(self.sk()) } {
            0 => AcceptQueue::Short,
            _ => AcceptQueue::Long,
        }
    }

    /// Stops listening: resets connections in the accept queue and leaves the socket bound. Does
    /// nothing if the socket does not listen. Context: process.
    pub fn stop_listening(&self) {
        if self.state() == TcpState::Listen {
            // SAFETY: `kernel_sock_shutdown()` requires a valid socket, which `self` has. An error
            // means that it no longer listens.
            unsafe {
                bindings::kernel_sock_shutdown(
                    self.raw.as_ptr(),
                    bindings::sock_shutdown_cmd_SHUT_RD,
                )
            };
        }
    }

    /// Accepts a connection. The result has TCP's own callbacks, whatever the listener has.
    /// Context: process.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if the accept queue is empty, `ECONNABORTED` if the connection is gone or belongs
    /// to a BPF socket map, `EINVAL` if the socket does not listen, `ENOMEM`.
    pub fn accept(&self) -> Result<Socket> {
        let mut raw = ptr::null_mut();
        // SAFETY: `kernel_accept()` requires a valid socket, which `self` has by the type
        // invariant, and a pointer to store the new one in, `raw`.
        to_result(unsafe { bindings::kernel_accept(self.raw.as_ptr(), &mut raw, NONBLOCK) })?;
        let raw = NonNull::new(raw).ok_or(ECONNABORTED)?;
        // INVARIANT: A TCP socket that is not shared. Both sockets have the same protocol, so TCP's
        // callbacks are the same. It has not listened.
        let child = Self {
            raw,
            callbacks: self.callbacks,
            listener: false,
            file: false,
            lent: Atomic::new(false),
            tls: SetOnce::new(),
        };
        // The child starts with a copy of the listener's callbacks, without the data.
        // SAFETY: `restore` requires a valid socket and TCP's callbacks: by the type invariant
        // `child` has the former and `self` the latter.
        unsafe { self.callbacks.restore(child.sk()) }.map_err(|_| ECONNABORTED)?;
        child.setup();
        Ok(child)
    }

    /// Starts to connect. Context: process.
    ///
    /// # Errors
    ///
    /// `ENETUNREACH`, `EADDRNOTAVAIL`, `EISCONN`, `ECONNREFUSED` and other immediate errors.
    pub fn connect_nonblock(&self, addr: &SockAddr) -> Result<Connecting> {
        let mut raw = addr.to_raw();
        // SAFETY: `kernel_connect()` requires a valid socket, which `self` has, and an address of
        // that length, which `raw` has room for.
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

    /// Binds the socket to a device by its index in the namespace; 0 unbinds it. Context: process.
    ///
    /// # Errors
    ///
    /// `ENODEV` for an index that no device can have. Does not check that the device exists.
    pub fn set_bound_dev(&self, ifindex: u32) -> Result {
        let ifindex = c_int::try_from(ifindex).map_err(|_| ENODEV)?;
        // SAFETY: `sock_bindtoindex()` requires a valid socket, which `self` has; with `true` it
        // takes the lock.
        to_result(unsafe { bindings::sock_bindtoindex(self.sk(), ifindex, true) })
    }

    /// Sets which other sockets may share the port and address: at its own bind and, once bound, at
    /// theirs. Accepted connections inherit this. Context: process.
    pub fn set_reuse(&self, reuse: Reuse) {
        let reuse = match reuse {
            Reuse::Always => bindings::SK_FORCE_REUSE,
            Reuse::Lingering => bindings::SK_CAN_REUSE,
            Reuse::Never => bindings::SK_NO_REUSE,
        };
        // CAST: The constants are small.
        let reuse = reuse as c_int;
        self.locked(|sk| {
            // SAFETY: The helper requires a valid socket that is locked: `locked` gives one.
            unsafe { riwarp_helper_sk_set_reuse(sk, reuse) };
        });
    }

    /// Makes an IPv6 socket refuse IPv4 connections, or take them. (A new socket does what the
    /// setting `net.ipv6.bindv6only` says.) Context: process.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is bound, or not IPv6.
    pub fn set_v6only(&self, only: bool) -> Result {
        if self.family() != Family::V6 {
            return Err(EINVAL);
        }
        self.locked(|sk| {
            // SAFETY: The helper requires a valid socket: `locked` gives one.
            if unsafe { riwarp_helper_sk_has_port(sk) } {
                return Err(EINVAL);
            }
            // SAFETY: The helper requires a valid socket that is locked: `locked` gives one.
            unsafe { riwarp_helper_sk_set_v6only(sk, only) };
            Ok(())
        })
    }

    /// Sets the type of service (IPv4) or traffic class (IPv6). Context: process.
    pub fn set_tos(&self, tos: u8) {
        match self.family() {
            // SAFETY: `ip_sock_set_tos()` requires a valid IPv4 socket, which `self` has, as just
            // checked; it takes the lock.
            Family::V4 => unsafe { bindings::ip_sock_set_tos(self.sk(), tos.into()) },
            Family::V6 => self.locked(|sk| {
                // SAFETY: The helper requires a valid IPv6 socket that is locked: `locked` gives
                // one, and the family was just checked.
                unsafe { riwarp_helper_ip6_sock_set_tclass(sk, tos.into()) };
            }),
        }
    }

    /// Returns the local address. Context: process.
    ///
    /// # Errors
    ///
    /// `EAFNOSUPPORT`, which a TCP socket never gives.
    pub fn local_addr(&self) -> Result<SockAddr> {
        let mut raw = bindings::__kernel_sockaddr_storage::default();
        // SAFETY: `kernel_getsockname()` requires a valid socket, which `self` has, and room for an
        // address of its family, which `raw` has for any.
        to_result(unsafe {
            bindings::kernel_getsockname(self.raw.as_ptr(), (&raw mut raw).cast())
        })?;
        SockAddr::from_raw(&raw)
    }

    /// Returns the peer's address. Context: process.
    ///
    /// # Errors
    ///
    /// `ENOTCONN`.
    pub fn peer_addr(&self) -> Result<SockAddr> {
        let mut raw = bindings::__kernel_sockaddr_storage::default();
        // SAFETY: `kernel_getpeername()` requires a valid socket, which `self` has, and room for an
        // address of its family, which `raw` has for any.
        to_result(unsafe {
            bindings::kernel_getpeername(self.raw.as_ptr(), (&raw mut raw).cast())
        })?;
        SockAddr::from_raw(&raw)
    }

    /// Returns the addresses of both ends as TCP has them, without taking the socket lock. IPv4
    /// addresses are such on an IPv6 socket too. They stay what they were when the connection has
    /// ended.
    ///
    /// Context: any.
    pub fn addr_pair(&self) -> (SockAddr, SockAddr) {
        // SAFETY: The field lies inside the allocation: `self` has a valid socket.
        let common = unsafe { &raw const (*self.sk()).__sk_common };
        // SAFETY: The field lies inside the allocation, as above.
        let ports = unsafe { &raw const (*common).__bindgen_anon_3 };
        // SAFETY: A member of the union, of plain data, in a valid socket, read once.
        let ports = unsafe { ports.cast::<Ports>().read_volatile() };
        let (local, remote) = match self.family() {
            Family::V4 => {
                // SAFETY: The field lies inside the allocation, as above.
                let addrs = unsafe { &raw const (*common).__bindgen_anon_1 };
                // SAFETY: A member of the union, of plain data, in a valid socket, read once.
                let addrs = unsafe { addrs.cast::<Addrs>().read_volatile() };
                let ip = |raw: u32| IpAddr::V4(Ipv4Addr::from(raw.to_ne_bytes()));
                (ip(addrs.skc_rcv_saddr), ip(addrs.skc_daddr))
            }
            Family::V6 => {
                // SAFETY: A field of plain data in a valid socket, read once.
                let local = unsafe { (&raw const (*common).skc_v6_rcv_saddr).read_volatile() };
                // SAFETY: A field of plain data in a valid socket, read once.
                let remote = unsafe { (&raw const (*common).skc_v6_daddr).read_volatile() };
                let ip = |raw| IpAddr::V6(ipv6_from_raw(raw)).to_canonical();
                (ip(&local), ip(&remote))
            }
        };
        // TCP clears `skc_num` when the connection has ended, but not this.
        let port = read!(self, inet_conn.icsk_inet.inet_sport);
        (
            SockAddr::new(local, u16::from_be(port)),
            SockAddr::new(remote, u16::from_be(ports.skc_dport)),
        )
    }

    /// Sends a copy of the octets; returns how many TCP accepted. Context: process; not while the
    /// task may be in the middle of another send, as it is if it reclaims memory.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if TCP accepts none now (`write_space` follows), `EPIPE`, or the error of the
    /// connection; `ENOTCONN` between a handshake and TLS.
    pub fn send(&self, buf: &[u8]) -> Result<usize> {
        match self.layer() {
            Layer::Tcp(tcp) => tcp.send(buf),
            Layer::Tls(tls) => tls.send(buf),
            Layer::Lent => Err(ENOTCONN),
        }
    }

    /// Sends as [`Socket::send`] does.
    ///
    /// # Errors
    ///
    /// `EBUSY` if another thread owns the socket. Otherwise those of `send`.
    pub fn try_send(&self, buf: &[u8]) -> Result<usize> {
        match self.layer() {
            Layer::Tcp(tcp) => tcp.try_send(buf),
            Layer::Tls(tls) => tls.try_send(buf),
            Layer::Lent => Err(ENOTCONN),
        }
    }

    /// Reads received octets into `buf`. `Ok(0)` is the end of the stream. Context: process.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if none have arrived, `EINVAL` if `buf` is empty, or the error of the connection;
    /// `ENOTCONN` between a handshake and TLS.
    pub fn recv(&self, buf: &mut [u8]) -> Result<usize> {
        match self.layer() {
            Layer::Tcp(tcp) => tcp.recv(buf),
            Layer::Tls(tls) => tls.recv(buf),
            Layer::Lent => Err(ENOTCONN),
        }
    }

    /// Reads as [`Socket::recv`] does, but leaves the octets in the queue.
    pub fn peek(&self, buf: &mut [u8]) -> Result<usize> {
        match self.layer() {
            Layer::Tcp(tcp) => tcp.peek(buf),
            Layer::Tls(tls) => tls.peek(buf),
            Layer::Lent => Err(ENOTCONN),
        }
    }

    /// Offers the peer the whole receive buffer from the next acknowledgment on, instead of
    /// growing the window with the traffic.
    ///
    /// A peer that sends FPDUs as long as a large segment needs a window for one more while the
    /// last is incomplete; otherwise its TCP sends the rest only with the persist timer.
    ///
    /// Context: process. For an established connection.
    pub fn open_window(&self) {
        self.locked(|sk| {
            // SAFETY: The helper requires a valid TCP socket that is locked: `locked` gives one.
            unsafe { riwarp_helper_tcp_open_window(sk) };
        });
    }

    /// Makes TCP accept `n` more octets however full its send buffer is, if it has memory. For the
    /// last message of a stream, a Terminate. Context: process.
    pub fn make_room(&self, n: usize) {
        self.locked(|sk| {
            // SAFETY: The helper requires a valid TCP socket that is locked: `locked` gives one.
            unsafe { riwarp_helper_sk_make_room(sk, n) };
        });
    }

    /// Returns how many octets TCP now puts into a full segment (EMSS in RFC 5044); with TLS, how
    /// many a record has at most. Context: any.
    #[inline]
    pub fn emss(&self) -> u32 {
        if self.is_secure() {
            return RECORD_MAX;
        }
        read!(self, mss_cache)
    }

    /// Lets TCP send so many octets a second at most. Context: any.
    #[cold]
    pub fn limit_rate(&self, rate: NonZeroU64) {
        // CAST: 64 bits fit.
        let rate = rate.get() as c_ulong;
        // SAFETY: By the type invariant the socket is valid; TCP reads the fields without its lock.
        unsafe { riwarp_helper_sk_limit_rate(self.sk(), rate) };
    }

    /// Lets TCP send as fast as it can, from now on: also what a lower rate holds. Context:
    /// process.
    #[cold]
    pub fn unlimit_rate(&self) {
        self.locked(|sk| {
            // SAFETY: The helper requires a valid TCP socket that is locked: `locked` gives one.
            unsafe { riwarp_helper_sk_unlimit_rate(sk) };
        });
    }

    /// Returns how many octets the peer has acknowledged so far, the FIN included. Context: any.
    pub fn acked(&self) -> u64 {
        read!(self, bytes_acked)
    }

    /// Returns how many octets have arrived in order so far. Context: any.
    pub fn received(&self) -> u64 {
        read!(self, bytes_received)
    }

    /// Returns whether the peer has acknowledged everything, while nothing more is sent. Context:
    /// any.
    pub fn is_acked(&self) -> bool {
        read!(self, snd_una) == read!(self, write_seq)
    }

    /// Sends a FIN after everything that was sent; nothing else may be sent meanwhile. Runs the
    /// hook's `state_change`. Context: process.
    ///
    /// Returns false if TCP has no memory for the FIN. `tcp_send_fin()` sends none then, now or
    /// later, although the state becomes that of a connection with a FIN. Does so too if this end
    /// cannot say that the stream is complete: with TLS the closure alert goes before the FIN.
    pub fn shutdown_write(&self) -> bool {
        match self.layer() {
            Layer::Tcp(tcp) => tcp.shutdown_write(),
            Layer::Tls(tls) => tls.try_shutdown_write().unwrap_or(false),
            Layer::Lent => false,
        }
    }

    /// Sends a FIN as [`Socket::shutdown_write`] does.
    ///
    /// # Errors
    ///
    /// `EBUSY` if another thread owns the socket; with TLS also as long as TCP has no room for all
    /// records and the closure alert.
    pub fn try_shutdown_write(&self) -> Result<bool> {
        match self.layer() {
            Layer::Tcp(tcp) => tcp.try_shutdown_write(),
            Layer::Tls(tls) => tls.try_shutdown_write(),
            Layer::Lent => Ok(false),
        }
    }

    /// Resets the connection, and drops what it has received and what it has not sent;
    /// [`Socket::error`] is `ECONNABORTED` then, and the addresses are lost. Runs the hook's
    /// `state_change`. Context: process.
    ///
    /// # Errors
    ///
    /// `EBUSY` if another thread owns the socket.
    pub fn try_abort(&self) -> Result {
        match self.layer() {
            Layer::Tcp(tcp) => tcp.try_abort(),
            Layer::Tls(_) | Layer::Lent => self.abort_above_tcp(ECONNABORTED, false),
        }
    }

    /// Returns the current state of the connection. Context: any.
    pub fn state(&self) -> TcpState {
        // SAFETY: `state_of` requires a valid socket, which `self` has.
        unsafe { state_of(self.sk()) }
    }

    /// Returns the error of the connection as a positive error number; 0 if none. Context: any.
    pub fn error(&self) -> i32 {
        // SAFETY: The field lies inside the allocation: `self` has a valid socket.
        let error = unsafe { &raw const (*self.sk()).sk_err };
        // SAFETY: A field of a valid socket, read once; it may change at any time.
        match unsafe { error.read_volatile() } {
            // A read above TCP takes the error away.
            0 => self.tls.as_ref().map_or(0, |tls| tls.error()),
            error => error,
        }
    }

    /// Returns the address family of the socket.
    pub fn family(&self) -> Family {
        // SAFETY: A field of a valid socket, which `self` has. It never changes (only a process can
        // use `IPV6_ADDRFORM`).
        let family = unsafe { (*self.sk()).__sk_common.skc_family };
        if u32::from(family) == bindings::AF_INET6 {
            Family::V6
        } else {
            Family::V4
        }
    }

    /// Identifies the namespace of the socket.
    pub fn net_id(&self) -> NetId {
        // SAFETY: `sock_net()` requires a valid socket, which `self` has.
        NetId(unsafe { riwarp_helper_sk_net(self.sk()) }.addr())
    }

    /// Calls `f` with the receive queue, with the socket locked; with TLS, with what was decrypted.
    /// Context: process.
    pub fn with_inbound<R>(&self, f: impl FnOnce(&mut Inbound<'_>) -> R) -> R {
        match self.layer() {
            Layer::Tcp(tcp) => tcp.with_inbound(f),
            Layer::Tls(tls) => tls.with_inbound(f),
            Layer::Lent => self.with_nothing(f),
        }
    }

    /// Calls `f` with the receive queue, as TCP calls [`super::SocketEvents::data_ready`] in
    /// softirq. [`None`] if a thread owns the socket, it listens, or it has TLS, which needs to
    /// sleep; waits only for other processors that hold its spin lock.
    ///
    /// Context: process with bottom halves off; no lock held that such callbacks take.
    pub fn with_unowned_inbound<R>(
        &self,
        off: BhOff<'_>,
        f: impl FnOnce(&mut Inbound<'_>) -> R,
    ) -> Option<R> {
        match self.layer() {
            Layer::Tcp(tcp) => tcp.with_unowned_inbound(off, f),
            Layer::Tls(_) | Layer::Lent => None,
        }
    }

    /// Calls `f` as [`Socket::with_inbound`] does.
    ///
    /// # Errors
    ///
    /// `EBUSY` if another thread owns the socket; then `f` was not called.
    pub fn try_with_inbound<R>(&self, f: impl FnOnce(&mut Inbound<'_>) -> R) -> Result<R> {
        match self.layer() {
            Layer::Tcp(tcp) => tcp.try_with_inbound(f),
            Layer::Tls(tls) => tls.try_with_inbound(f),
            Layer::Lent => Ok(self.with_nothing(f)),
        }
    }

    /// Calls `f` with an empty queue.
    fn with_nothing<R>(&self, f: impl FnOnce(&mut Inbound<'_>) -> R) -> R {
        // SAFETY: `Inbound::new` requires a valid TCP socket; `Unlocked` says that it is not
        // locked.
        f(&mut unsafe { Inbound::new(self.sk(), SockLock::Unlocked) })
    }

    /// Calls `f` with the valid TCP socket, whose spin lock is held meanwhile and which has no
    /// owner; [`None`] if a thread owns it. `f` must not sleep.
    ///
    /// Context: softirq, or process with bottom halves off; the lock is not held.
    #[inline]
    fn with_unowned<R>(
        &self,
        _off: BhOff<'_>,
        f: impl FnOnce(*mut bindings::sock) -> R,
    ) -> Option<R> {
        let sk = self.sk();
        // SAFETY: `bh_lock_sock()` requires a valid socket, which `self` has, and bottom halves
        // off, since softirqs take the lock too: `_off` proves it until the unlock below.
        unsafe { riwarp_helper_bh_lock_sock(sk) };
        // SAFETY: `sock_owned_by_user_nocheck()` reads a field of a valid socket, which changes
        // only under the spin lock: it is held.
        let owned = unsafe { riwarp_helper_sk_owned_by_user(sk) };
        // Nobody becomes the owner while the spin lock is held.
        let ret = (!owned).then(|| f(sk));
        // SAFETY: `bh_unlock_sock()` requires that the caller holds the lock: it was taken above.
        unsafe { riwarp_helper_bh_unlock_sock(sk) };
        ret
    }

    /// Calls `f` with the valid TCP socket, locked with this thread as the owner. Context: process.
    #[inline]
    fn locked<R>(&self, f: impl FnOnce(*mut bindings::sock) -> R) -> R {
        // SAFETY: `lock_sock()` requires a valid socket, which `self` has.
        unsafe { riwarp_helper_lock_sock(self.sk()) };
        // SAFETY: `release_after` requires that this thread owns the socket: locked above.
        unsafe { self.release_after(f) }
    }

    /// Calls `f` as `locked` does.
    ///
    /// # Errors
    ///
    /// `EBUSY` if another thread owns the socket; then `f` was not called.
    fn try_locked<R>(&self, f: impl FnOnce(*mut bindings::sock) -> R) -> Result<R> {
        // SAFETY: The helper requires a valid socket, which `self` has.
        if !unsafe { riwarp_helper_try_lock_sock(self.sk()) } {
            return Err(EBUSY);
        }
        // SAFETY: `release_after` requires that this thread owns the socket: locked above.
        Ok(unsafe { self.release_after(f) })
    }

    /// # Safety
    ///
    /// The calling thread must own the socket; it no longer does on return.
    #[inline]
    unsafe fn release_after<R>(&self, f: impl FnOnce(*mut bindings::sock) -> R) -> R {
        let ret = f(self.sk());
        // SAFETY: `release_sock()` requires a socket that the caller owns, which the caller
        // guarantees; nothing that `f` can reach unlocks it.
        unsafe { bindings::release_sock(self.sk()) };
        ret
    }

    pub(super) fn raw(&self) -> *mut bindings::socket {
        self.raw.as_ptr()
    }

    #[inline]
    pub(super) fn sk(&self) -> *mut bindings::sock {
        // SAFETY: `sk_of` requires a valid socket with a `struct sock`: by the type invariant it is
        // one.
        unsafe { sk_of(self.raw) }
    }

    /// Returns the TCP socket, which is valid while `self` lives.
    #[inline]
    fn tp(&self) -> *const bindings::tcp_sock {
        self.sk().cast_const().cast()
    }

    pub(super) fn is_listener(&self) -> bool {
        self.listener
    }

    /// Returns the callbacks below this module's: TCP's, or with TLS those of TLS.
    pub(super) fn callbacks(&self) -> Callbacks {
        self.tls
            .as_ref()
            .map_or(self.callbacks, |tls| tls.callbacks())
    }
}

impl Drop for Socket {
    /// Context: process.
    fn drop(&mut self) {
        let sk = self.sk();
        let lingers = !matches!(self.state(), TcpState::Listen | TcpState::Closed);
        // Closing a kernel socket that does not hold its namespace stops its timers, and with them
        // the retransmission of the rest of the stream. So it takes a reference first, unless the
        // namespace is exiting, where nothing can be delivered any more.
        // SAFETY: The helper reads a field of a valid socket, which `self` has.
        if lingers && unsafe { riwarp_helper_sk_net_refcnt(sk) } == 0 {
            // SAFETY: `sock_net()` requires a valid socket, which `self` has.
            let net = unsafe { riwarp_helper_sk_net(sk) };
            // SAFETY: `maybe_get_net()` requires the memory of a namespace: a socket keeps that
            // memory valid even if it does not count its namespace (`net_passive_inc()` in
            // `sk_alloc()`).
            let net = unsafe { riwarp_helper_maybe_get_net(net) };
            if !net.is_null() {
                // SAFETY: `sk_net_refcnt_upgrade()` requires a valid socket that does not count its
                // namespace, as just checked, in a live namespace, which the count above
                // guarantees. Only the drop of the sole owner does this.
                unsafe { bindings::sk_net_refcnt_upgrade(sk) };
                // SAFETY: `put_net()` drops a count that the caller owns: that of `maybe_get_net()`
                // above.
                unsafe { riwarp_helper_put_net(net) };
            }
        }
        if self.file {
            return self.close_file();
        }
        // SAFETY: `sock_release()` requires a valid socket that is no longer used: by the type
        // invariant this value owns it, and a [`super::Hooked`] unhooks it before dropping it.
        unsafe { bindings::sock_release(self.raw.as_ptr()) };
    }
}

/// # Safety
///
/// `raw` must be a valid socket with a `struct sock`.
#[inline]
unsafe fn sk_of(raw: NonNull<bindings::socket>) -> *mut bindings::sock {
    // SAFETY: A field of `raw`, which the caller guarantees to be a valid socket.
    unsafe { (*raw.as_ptr()).sk }.cast()
}

/// Converts a return value that is a length or a negative error number.
#[inline]
pub(super) fn to_len(ret: c_int) -> Result<usize> {
    if ret < 0 {
        to_result(ret)?;
    }
    // CAST: Not negative.
    Ok(ret as usize)
}

// C functions write as many octets to an address as its family has.
const _: () = assert!(
    size_of::<bindings::__kernel_sockaddr_storage>() >= size_of::<bindings::sockaddr_in6>()
);
