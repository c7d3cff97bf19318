// SPDX-License-Identifier: GPL-2.0

//! The bell of a socket: what TCP calls when octets have come, may be sent, or the connection
//! changes.
//!
//! TCP has four callbacks in its `struct sock`, with one pointer of private data. [`Hooked`] puts
//! its own there and takes them back. All of them run with `sk_callback_lock` held for reading,
//! which taking back waits for; so after it, the target is used by nobody.
//!
//! A connection that waits to be accepted begins with a copy of its listener's callbacks, without
//! the data; callbacks without data do nothing. TCP may still call an old callback of a socket that
//! has new data meanwhile; hence the data says itself what is to be called, and all sockets have
//! the same callbacks.
//!
//! C headers: `include/net/sock.h`, `include/net/tcp.h`.

use super::skb::Inbound;
use super::skb::Locked;
use super::socket::Socket;
use crate::bindings;
use crate::sync::BhOff;
use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr;
use core::ptr::NonNull;
use kernel::ffi::c_void;
use kernel::prelude::*;
use kernel::sync::atomic::Atomic;
use kernel::sync::atomic::Full;
use kernel::sync::Arc;
use kernel::sync::ArcBorrow;

type Sk = bindings::sock;

extern "C" {
    fn riwarp_helper_sk_callback_read_lock(sk: *mut Sk);
    fn riwarp_helper_sk_callback_read_lock_off(sk: *mut Sk);
    fn riwarp_helper_sk_callback_read_unlock(sk: *mut Sk);
    fn riwarp_helper_sk_callback_read_unlock_off(sk: *mut Sk);
    fn riwarp_helper_sk_callback_write_lock(sk: *mut Sk);
    fn riwarp_helper_sk_callback_write_unlock(sk: *mut Sk);
    fn riwarp_helper_sk_clear_nospace(sk: *mut Sk);
    fn riwarp_helper_sk_stream_is_writeable(sk: *const Sk) -> bool;
}

/// `SK_USER_DATA_NOCOPY`: a child does not get the data.
const NOCOPY: usize = 1;
/// The bits of `sk_user_data` that are not part of the pointer (`~SK_USER_DATA_PTRMASK`).
const FLAGS: usize = 7;

/// Who wants to be told what happens on a socket.
///
/// # Context
///
/// All functions are called with bottom halves off, in softirq or in process context, and must not
/// sleep. They must not call methods of the same [`Socket`] that take its lock (those with context
/// "process"), nor [`Hooked::unhook`] of it, nor drop the [`Hooked`].
///
/// They may run inside the owner's own calls: TCP works off what came while the socket was locked
/// when the lock is released, in the context of whoever releases it.
pub trait SocketEvents: Send + Sync + 'static {
    /// Octets, the end of the stream, or (on a listener) a connection has come.
    ///
    /// Never called twice at once for one connection: the socket is locked, in the way that
    /// `inbound` says. On a listener it may be called several times at once, and `inbound` is
    /// empty.
    fn data_ready(self: ArcBorrow<'_, Self>, inbound: &mut Inbound<'_>, off: BhOff<'_>);

    /// TCP takes octets again, after it gave `EAGAIN`.
    fn write_space(self: ArcBorrow<'_, Self>);

    /// The connection is in another state ([`Socket::state`]) or met an error ([`Socket::error`]).
    /// May be called more often than that. Octets that came before the end of the stream may still be
    /// waiting, and `data_ready` follows for them.
    fn state_change(self: ArcBorrow<'_, Self>);
}

type Callback = Option<unsafe extern "C" fn(*mut Sk)>;

/// The callbacks of a `struct sock`.
#[derive(Clone, Copy)]
pub(super) struct Callbacks {
    data_ready: Callback,
    write_space: Callback,
    state_change: Callback,
    error_report: Callback,
}

impl Callbacks {
    const HOOKED: Self = Self {
        data_ready: Some(data_ready),
        write_space: Some(write_space),
        state_change: Some(state_change),
        error_report: Some(state_change),
    };

    /// # Safety
    ///
    /// `sk` must be valid, and nobody may change its callbacks meanwhile.
    pub(super) unsafe fn read(sk: *mut Sk) -> Self {
        // SAFETY: By the contract of this function.
        let sk = unsafe { &*sk };
        Self {
            data_ready: sk.sk_data_ready,
            write_space: sk.sk_write_space,
            state_change: sk.sk_state_change,
            error_report: sk.sk_error_report,
        }
    }

    /// Makes these the callbacks of a socket that has no hook, or takes its hook away; waits for
    /// callbacks that run.
    ///
    /// # Safety
    ///
    /// `sk` must be valid. The caller must not run inside a callback of it.
    pub(super) unsafe fn restore(self, sk: *mut Sk) {
        // SAFETY: By the contract of this function.
        unsafe { self.write(sk, ptr::null_mut()) };
    }

    /// # Safety
    ///
    /// As for [`Callbacks::restore`]; `user_data` is what the callbacks expect.
    unsafe fn write(self, sk: *mut Sk, user_data: *mut c_void) {
        // SAFETY: By the contract of this function, `sk` is valid.
        unsafe { riwarp_helper_sk_callback_write_lock(sk) };
        // TCP reads these without the lock, hence single writes.
        // SAFETY: `sk` is valid, and its callbacks are changed under this lock only.
        unsafe { (&raw mut (*sk).sk_user_data).write_volatile(user_data) };
        // SAFETY: As above.
        unsafe { (&raw mut (*sk).sk_data_ready).write_volatile(self.data_ready) };
        // SAFETY: As above.
        unsafe { (&raw mut (*sk).sk_write_space).write_volatile(self.write_space) };
        // SAFETY: As above.
        unsafe { (&raw mut (*sk).sk_state_change).write_volatile(self.state_change) };
        // SAFETY: As above.
        unsafe { (&raw mut (*sk).sk_error_report).write_volatile(self.error_report) };
        // SAFETY: Locked above.
        unsafe { riwarp_helper_sk_callback_write_unlock(sk) };
    }
}

/// What the private data of a hooked socket points to.
///
/// # Invariants
///
/// `target` comes from `Arc<T>::into_raw` and owns a reference; the functions are those for that
/// `T`.
#[repr(align(8))]
struct Hook {
    target: *const c_void,
    data_ready: unsafe fn(*const c_void, &mut Inbound<'_>, BhOff<'_>),
    write_space: unsafe fn(*const c_void),
    state_change: unsafe fn(*const c_void),
    release: unsafe fn(*const c_void),
}

// The low bits of the pointer hold flags.
const _: () = assert!(core::mem::align_of::<Hook>() > FLAGS);

impl Hook {
    fn new<T: SocketEvents>(target: Arc<T>) -> Self {
        // INVARIANT: The reference goes from `target` to the hook; all functions are for `T`.
        Self {
            target: Arc::into_raw(target).cast(),
            data_ready: call_data_ready::<T>,
            write_space: call_write_space::<T>,
            state_change: call_state_change::<T>,
            release: release::<T>,
        }
    }
}

impl Drop for Hook {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the hook owns a reference to a `T` that `release` is for.
        unsafe { (self.release)(self.target) };
    }
}

/// # Safety
///
/// `target` must come from `Arc<T>::into_raw` and stay valid for the call.
unsafe fn call_data_ready<T: SocketEvents>(
    target: *const c_void,
    inbound: &mut Inbound<'_>,
    off: BhOff<'_>,
) {
    // SAFETY: By the contract of this function.
    unsafe { ArcBorrow::<T>::from_raw(target.cast()) }.data_ready(inbound, off);
}

/// # Safety
///
/// `target` must come from `Arc<T>::into_raw` and stay valid for the call.
unsafe fn call_write_space<T: SocketEvents>(target: *const c_void) {
    // SAFETY: By the contract of this function.
    unsafe { ArcBorrow::<T>::from_raw(target.cast()) }.write_space();
}

/// # Safety
///
/// `target` must come from `Arc<T>::into_raw` and stay valid for the call.
unsafe fn call_state_change<T: SocketEvents>(target: *const c_void) {
    // SAFETY: By the contract of this function.
    unsafe { ArcBorrow::<T>::from_raw(target.cast()) }.state_change();
}

/// # Safety
///
/// `target` must come from `Arc<T>::into_raw`, and the caller must own a reference, which it gives
/// up.
unsafe fn release<T: SocketEvents>(target: *const c_void) {
    // SAFETY: By the contract of this function.
    drop(unsafe { Arc::<T>::from_raw(target.cast()) });
}

/// A socket whose events go to a `T`.
///
/// What happened before it was hooked causes no event: look at [`Socket::state`],
/// [`Socket::with_inbound`] or [`Socket::accept`] once after.
///
/// # Invariants
///
/// `hook` is null, or owns the [`Hook`] that the socket's private data points to.
pub struct Hooked<T: SocketEvents> {
    socket: Socket,
    hook: Atomic<*const c_void>,
    _target: PhantomData<Arc<T>>,
}

// SAFETY: The socket is `Send`, and so is `Arc<T>` for such `T`.
unsafe impl<T: SocketEvents> Send for Hooked<T> {}
// SAFETY: The socket is `Sync`; the hook is taken by one thread only, the one that swaps its
// pointer for null.
unsafe impl<T: SocketEvents> Sync for Hooked<T> {}

impl<T: SocketEvents> Hooked<T> {
    /// Hooks a socket. Its events may come before this returns. Context: process.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; the socket is closed then.
    pub fn new(socket: Socket, target: Arc<T>) -> Result<Self> {
        let hook = KBox::into_raw(KBox::new(Hook::new(target), GFP_KERNEL)?);
        let user_data = hook.map_addr(|addr| addr | NOCOPY).cast();
        // SAFETY: The socket is valid and was not hooked before, so that no callback of ours runs
        // with data. The data is what these callbacks expect and stays until it is taken away from
        // the socket.
        unsafe { Callbacks::HOOKED.write(socket.sk(), user_data) };
        // INVARIANT: As written above.
        Ok(Self {
            socket,
            hook: Atomic::new(hook.cast_const().cast()),
            _target: PhantomData,
        })
    }

    /// Takes the hook away: waits for callbacks that run, then drops the reference to the target.
    /// Nothing happens if it was taken away before; the call that did may not have returned then.
    ///
    /// Context: process; not from a callback of the same socket, nor with a lock held that
    /// callbacks take.
    pub fn unhook(&self) {
        let hook = self.hook.xchg(ptr::null(), Full);
        if let Some(hook) = NonNull::new(hook.cast_mut().cast::<Hook>()) {
            // SAFETY: The socket is valid; not inside a callback, as the documentation asks for.
            unsafe { self.socket.callbacks().restore(self.socket.sk()) };
            // SAFETY: By the type invariant the pointer owns the hook, and only one call gets it.
            // The socket does not lead to it any more, and callbacks that saw it have ended, since
            // they hold the lock that was taken to restore.
            drop(unsafe { KBox::from_raw(hook.as_ptr()) });
        }
    }
}

impl<T: SocketEvents> Deref for Hooked<T> {
    type Target = Socket;

    fn deref(&self) -> &Socket {
        &self.socket
    }
}

impl<T: SocketEvents> Drop for Hooked<T> {
    /// Unhooks, then closes the socket; connections that wait to be accepted are reset. Context:
    /// process.
    fn drop(&mut self) {
        self.unhook();
    }
}

/// The callbacks of a socket, held against change. Context: process or softirq.
///
/// # Invariants
///
/// `sk` is a valid TCP socket whose private data, if any, was written by [`Hooked::new`]; its
/// `sk_callback_lock` is held for reading, with bottom halves off.
///
/// Off, because TCP also calls from process context: a softirq that came in between would wait for
/// ever for somebody who waits to write. With them off, a reader that meets a reader never waits,
/// so that callbacks may nest. In softirq, which the spin lock of the socket stands for, they are off
/// already.
struct Held {
    sk: NonNull<Sk>,
    softirq: bool,
}

impl Held {
    /// # Safety
    ///
    /// `sk` must be a valid TCP socket as long as the result lives. Its private data, if any, must
    /// have been written by [`Hooked::new`]; this is so if one of the callbacks below was called
    /// for it. `softirq` only if bottom halves are off as long as the result lives.
    #[inline]
    unsafe fn new(sk: *mut Sk, softirq: bool) -> Option<Self> {
        let sk = NonNull::new(sk)?;
        if softirq {
            // SAFETY: By the contract of this function, `sk` is valid and bottom halves are off.
            unsafe { riwarp_helper_sk_callback_read_lock_off(sk.as_ptr()) };
        } else {
            // SAFETY: By the contract of this function, `sk` is valid.
            unsafe { riwarp_helper_sk_callback_read_lock(sk.as_ptr()) };
        }
        // INVARIANT: As locked above.
        Some(Self { sk, softirq })
    }

    #[inline]
    fn bh_off(&self) -> BhOff<'_> {
        // SAFETY: By the type invariant they are off as long as this lives, whom the result borrows.
        unsafe { BhOff::assume() }
    }

    #[inline]
    fn hook(&self) -> Option<&Hook> {
        // SAFETY: By the type invariant the socket is valid.
        let user_data = unsafe { (&raw const (*self.sk.as_ptr()).sk_user_data).read_volatile() };
        let hook = user_data.map_addr(|addr| addr & !FLAGS).cast::<Hook>();
        // SAFETY: By the invariants the pointer is null or a hook, which stays as long as the lock
        // is held: it is freed only after it was taken away under the lock.
        unsafe { hook.as_ref() }
    }
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        if self.softirq {
            // SAFETY: By the type invariant it is held.
            unsafe { riwarp_helper_sk_callback_read_unlock_off(self.sk.as_ptr()) };
        } else {
            // SAFETY: As above.
            unsafe { riwarp_helper_sk_callback_read_unlock(self.sk.as_ptr()) };
        }
    }
}

/// # Safety
///
/// Only called by TCP, as `sk_data_ready`: with the socket locked, unless it listens.
unsafe extern "C" fn data_ready(sk: *mut Sk) {
    // SAFETY: By the contract of this function.
    let locked = unsafe { Locked::in_callback(sk) };
    // SAFETY: By the contract of this function. Who holds the spin lock of a socket has bottom halves
    // off, and TCP holds it until this returns.
    let held = unsafe { Held::new(sk, locked == Locked::Softirq) };
    let Some(held) = &held else {
        return;
    };
    if let Some(hook) = held.hook() {
        // SAFETY: By the contract of this function, for as long as the view lives.
        let mut inbound = unsafe { Inbound::new(sk, locked) };
        // SAFETY: By the invariants of `Hook`, function and target fit.
        unsafe { (hook.data_ready)(hook.target, &mut inbound, held.bh_off()) };
    }
}

/// # Safety
///
/// Only called by TCP, as `sk_write_space`.
unsafe extern "C" fn write_space(sk: *mut Sk) {
    // SAFETY: By the contract of this function.
    let held = unsafe { Held::new(sk, false) };
    // TCP calls whenever something was acknowledged, until the mark is cleared that it set when it
    // was full.
    if let Some(hook) = held.as_ref().and_then(Held::hook) {
        // SAFETY: The socket is valid.
        if unsafe { riwarp_helper_sk_stream_is_writeable(sk) } {
            // SAFETY: The socket is valid. It has a `struct socket`: a hooked socket is not
            // released.
            unsafe { riwarp_helper_sk_clear_nospace(sk) };
            // SAFETY: By the invariants of `Hook`, function and target fit.
            unsafe { (hook.write_space)(hook.target) };
        }
    }
}

/// # Safety
///
/// Only called by TCP, as `sk_state_change` or `sk_error_report`.
unsafe extern "C" fn state_change(sk: *mut Sk) {
    // SAFETY: By the contract of this function.
    let held = unsafe { Held::new(sk, false) };
    if let Some(hook) = held.as_ref().and_then(Held::hook) {
        // SAFETY: By the invariants of `Hook`, function and target fit.
        unsafe { (hook.state_change)(hook.target) };
    }
}
