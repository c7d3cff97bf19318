// SPDX-License-Identifier: GPL-2.0

//! The callbacks of a socket: what TCP calls when octets have come, may be sent, or the connection
//! changes.
//!
//! TCP has four callbacks in its `struct sock`, with one pointer of private data. [`Hooked`] puts
//! its own there and takes them back. All of them run with `sk_callback_lock` held for reading,
//! which taking back waits for; so after it, the target is used by nobody.
//!
//! A connection that waits to be accepted begins with a copy of its listener's callbacks, without
//! the data; callbacks without data do nothing. TCP may still call an old callback of a socket that
//! has new data meanwhile; hence the data says itself what is to be called. Only `sk_data_ready` of
//! a listener differs: TCP calls it without a lock, and the function is what tells, for the state
//! of a listener may change at any time (`tcp_abort()`, also on behalf of an administrator).
//!
//! Others have uses for the data of a socket too (a BPF map of sockets, say). Ours is known by its
//! flags.
//!
//! C headers: `include/net/sock.h`, `include/net/tcp.h`.

use super::skb::Inbound;
use super::skb::SockLock;
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

extern "C" {
    fn riwarp_helper_sk_callback_read_lock(sk: *mut bindings::sock);
    fn riwarp_helper_sk_callback_read_lock_off(sk: *mut bindings::sock);
    fn riwarp_helper_sk_callback_read_unlock(sk: *mut bindings::sock);
    fn riwarp_helper_sk_callback_read_unlock_off(sk: *mut bindings::sock);
    fn riwarp_helper_sk_callback_write_lock(sk: *mut bindings::sock);
    fn riwarp_helper_sk_callback_write_unlock(sk: *mut bindings::sock);
    fn riwarp_helper_sk_clear_nospace(sk: *mut bindings::sock);
    fn riwarp_helper_sk_stream_is_writeable(sk: *const bindings::sock) -> bool;
}

/// `SK_USER_DATA_NOCOPY`: a child does not get the data. The only flag of ours.
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
    /// May be called more often than that. Octets that came before the end of the stream may still
    /// be waiting, and `data_ready` follows for them.
    fn state_change(self: ArcBorrow<'_, Self>);
}

type Callback = Option<unsafe extern "C" fn(*mut bindings::sock)>;

/// The callbacks of a `struct sock`.
#[derive(Clone, Copy)]
pub(super) struct Callbacks {
    data_ready: Callback,
    write_space: Callback,
    state_change: Callback,
    error_report: Callback,
}

impl Callbacks {
    /// Those of a socket that does not listen.
    const HOOKED: Self = Self {
        data_ready: Some(data_ready),
        write_space: Some(write_space),
        state_change: Some(state_change),
        error_report: Some(state_change),
    };

    /// Those of a socket that does nothing else.
    const LISTENING: Self = Self {
        data_ready: Some(connection_ready),
        ..Self::HOOKED
    };

    /// # Safety
    ///
    /// `sk` must be a valid socket, and nobody may change its callbacks meanwhile.
    pub(super) unsafe fn read(sk: *mut bindings::sock) -> Self {
        Self {
            // SAFETY: The caller has made `sk` valid, and nobody changes the field meanwhile.
            data_ready: unsafe { (*sk).sk_data_ready },
            // SAFETY: The caller has made `sk` valid, and nobody changes the field meanwhile.
            write_space: unsafe { (*sk).sk_write_space },
            // SAFETY: The caller has made `sk` valid, and nobody changes the field meanwhile.
            state_change: unsafe { (*sk).sk_state_change },
            // SAFETY: The caller has made `sk` valid, and nobody changes the field meanwhile.
            error_report: unsafe { (*sk).sk_error_report },
        }
    }

    /// Makes these the callbacks of a socket that has no hook, or takes its hook away; waits for
    /// callbacks that run.
    ///
    /// # Safety
    ///
    /// `sk` must be a valid socket, and these callbacks be ours or those that TCP gives. (Inside a
    /// callback of it this would wait for itself.)
    pub(super) unsafe fn restore(self, sk: *mut bindings::sock) {
        // SAFETY: `write` wants a valid socket, which the caller has made `sk`, and data that the
        // callbacks expect: ours do nothing if it is null, and those of TCP do not look at it.
        unsafe { self.write(sk, ptr::null_mut()) };
    }

    /// # Safety
    ///
    /// `sk` must be a valid socket, and `user_data` what the callbacks expect: for ours null, or a
    /// [`Hook`] with [`NOCOPY`], which stays valid until other data was written.
    unsafe fn write(self, sk: *mut bindings::sock, user_data: *mut c_void) {
        // SAFETY: The lock is part of a valid socket, which the caller has made `sk`.
        unsafe { riwarp_helper_sk_callback_write_lock(sk) };
        // SAFETY: The place of a field is inside of the allocation, since `sk` is valid.
        let place = unsafe { &raw mut (*sk).sk_user_data };
        // TCP reads these without the lock, hence single writes.
        // SAFETY: The field of a valid socket; it is written to under the lock only, which is held.
        unsafe { place.write_volatile(user_data) };
        // SAFETY: The place of a field is inside of the allocation, since `sk` is valid.
        let place = unsafe { &raw mut (*sk).sk_data_ready };
        // SAFETY: The field of a valid socket; it is written to under the lock only, which is held.
        unsafe { place.write_volatile(self.data_ready) };
        // SAFETY: The place of a field is inside of the allocation, since `sk` is valid.
        let place = unsafe { &raw mut (*sk).sk_write_space };
        // SAFETY: The field of a valid socket; it is written to under the lock only, which is held.
        unsafe { place.write_volatile(self.write_space) };
        // SAFETY: The place of a field is inside of the allocation, since `sk` is valid.
        let place = unsafe { &raw mut (*sk).sk_state_change };
        // SAFETY: The field of a valid socket; it is written to under the lock only, which is held.
        unsafe { place.write_volatile(self.state_change) };
        // SAFETY: The place of a field is inside of the allocation, since `sk` is valid.
        let place = unsafe { &raw mut (*sk).sk_error_report };
        // SAFETY: The field of a valid socket; it is written to under the lock only, which is held.
        unsafe { place.write_volatile(self.error_report) };
        // SAFETY: The lock was taken above, by this call.
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
        // SAFETY: `release` wants a pointer of `Arc<T>::into_raw` that owns a reference, which it
        // gets: by the type invariant `target` is one, of the `T` that `release` is for, and the
        // hook is used no more.
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
    // SAFETY: `from_raw` wants a pointer of `Arc<T>::into_raw` that stays valid as long as the
    // borrow: the caller has made `target` so for the call.
    unsafe { ArcBorrow::<T>::from_raw(target.cast()) }.data_ready(inbound, off);
}

/// # Safety
///
/// `target` must come from `Arc<T>::into_raw` and stay valid for the call.
unsafe fn call_write_space<T: SocketEvents>(target: *const c_void) {
    // SAFETY: `from_raw` wants a pointer of `Arc<T>::into_raw` that stays valid as long as the
    // borrow: the caller has made `target` so for the call.
    unsafe { ArcBorrow::<T>::from_raw(target.cast()) }.write_space();
}

/// # Safety
///
/// `target` must come from `Arc<T>::into_raw` and stay valid for the call.
unsafe fn call_state_change<T: SocketEvents>(target: *const c_void) {
    // SAFETY: `from_raw` wants a pointer of `Arc<T>::into_raw` that stays valid as long as the
    // borrow: the caller has made `target` so for the call.
    unsafe { ArcBorrow::<T>::from_raw(target.cast()) }.state_change();
}

/// # Safety
///
/// `target` must come from `Arc<T>::into_raw`, and the caller must own a reference, which it gives
/// up.
unsafe fn release<T: SocketEvents>(target: *const c_void) {
    // SAFETY: `from_raw` wants a pointer of `Arc<T>::into_raw` and the reference that it owns: the
    // caller has made `target` one and gives the reference up.
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

// SAFETY: The socket is `Send`, and so is what the hook owns, an `Arc<T>`, since `SocketEvents`
// asks for a `T` that is `Send` and `Sync`.
unsafe impl<T: SocketEvents> Send for Hooked<T> {}
// SAFETY: The socket is `Sync`; of the hook a shared reference gives nothing but its end, to one
// thread only, the one that swaps its pointer for null.
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
        let callbacks = if socket.is_listener() {
            Callbacks::LISTENING
        } else {
            Callbacks::HOOKED
        };
        // SAFETY: `write` wants a valid socket, which `socket` has by its invariants, and the data
        // that our callbacks expect: a hook, which is freed by `unhook`, after it was taken away
        // from the socket.
        unsafe { callbacks.write(socket.sk(), user_data) };
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
            // SAFETY: `restore` wants a valid socket and TCP's callbacks: by the invariants of
            // `Socket` these are such.
            unsafe { self.socket.callbacks().restore(self.socket.sk()) };
            // SAFETY: `from_raw` wants a pointer of `KBox::into_raw` that nobody else frees: by the
            // type invariant this is one, and only the call that swapped it for null gets it. The
            // socket does not lead to it any more, and callbacks that saw it have ended, since they
            // hold the lock that was taken to restore.
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
/// `sk` is a valid TCP socket whose private data, if its only flag is [`NOCOPY`], was written by
/// [`Hooked::new`]; its `sk_callback_lock` is held for reading, with bottom halves off, which
/// `softirq` says were off before.
///
/// Off, because TCP also calls from process context: a softirq that came in between would wait for
/// ever for somebody who waits to write. With them off, a reader that meets a reader never waits,
/// so that callbacks may nest. In softirq, which the spin lock of the socket stands for, they are
/// off already.
struct Held {
    sk: NonNull<bindings::sock>,
    softirq: bool,
}

impl Held {
    /// # Safety
    ///
    /// `sk` must be a valid TCP socket as long as the result lives, or null. Its private data, if
    /// its only flag is [`NOCOPY`], must have been written by [`Hooked::new`]; this is so if one of
    /// the callbacks below was called for it. `softirq` only if bottom halves are off as long as
    /// the result lives.
    #[inline]
    unsafe fn new(sk: *mut bindings::sock, softirq: bool) -> Option<Self> {
        let sk = NonNull::new(sk)?;
        if softirq {
            // SAFETY: The lock is part of a valid socket, which the caller has made `sk`; bottom
            // halves are off, as the caller says by `softirq`.
            unsafe { riwarp_helper_sk_callback_read_lock_off(sk.as_ptr()) };
        } else {
            // SAFETY: The lock is part of a valid socket, which the caller has made `sk`.
            unsafe { riwarp_helper_sk_callback_read_lock(sk.as_ptr()) };
        }
        // INVARIANT: As locked above.
        Some(Self { sk, softirq })
    }

    #[inline]
    fn bh_off(&self) -> BhOff<'_> {
        // SAFETY: `assume` wants them off for the lifetime of the result: by the type invariant
        // they are as long as `self` lives, which the result borrows.
        unsafe { BhOff::assume() }
    }

    #[inline]
    fn hook(&self) -> Option<&Hook> {
        // SAFETY: The place of a field is inside of the allocation: by the type invariant the
        // socket is valid.
        let place = unsafe { &raw const (*self.sk.as_ptr()).sk_user_data };
        // SAFETY: The field of a valid socket, which is read once.
        let user_data = unsafe { place.read_volatile() };
        // Also null has another.
        if user_data.addr() & FLAGS != NOCOPY {
            return None;
        }
        let hook = user_data.map_addr(|addr| addr & !FLAGS).cast::<Hook>();
        // SAFETY: By the type invariant `Hooked::new` has written data with this flag alone, so it
        // points to a hook. That stays as long as the lock is held: it is freed only after it was
        // taken away under the lock.
        unsafe { hook.as_ref() }
    }
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        if self.softirq {
            // SAFETY: By the type invariant the lock is held, for this value, which has not
            // switched bottom halves off.
            unsafe { riwarp_helper_sk_callback_read_unlock_off(self.sk.as_ptr()) };
        } else {
            // SAFETY: By the type invariant the lock is held, for this value, which has switched
            // bottom halves off.
            unsafe { riwarp_helper_sk_callback_read_unlock(self.sk.as_ptr()) };
        }
    }
}

/// # Safety
///
/// To be called by TCP, as `sk_data_ready` of a socket that has never listened: `sk` is valid for
/// the call, and locked until it returns, by an owner or by its spin lock.
unsafe extern "C" fn data_ready(sk: *mut bindings::sock) {
    // SAFETY: `in_callback` wants a valid TCP socket that is locked in one way or the other, as
    // this function's `# Safety` says that it is.
    let locked = unsafe { SockLock::in_callback(sk) };
    // SAFETY: `Held::new` wants a valid TCP socket, by this function's `# Safety`, one of whose
    // callbacks was called, this one, and bottom halves off if `softirq`: whoever holds the spin
    // lock of a socket has them off, and TCP holds it until this returns.
    let held = unsafe { Held::new(sk, locked == SockLock::Softirq) };
    let Some(held) = &held else {
        return;
    };
    if let Some(hook) = held.hook() {
        // SAFETY: `Inbound::new` wants a valid TCP socket that is locked as `locked` says for as
        // long as the view lives: TCP keeps it so until this returns, and the view ends before.
        let mut inbound = unsafe { Inbound::new(sk, locked) };
        // SAFETY: By the invariants of `Hook`, `target` is what the function wants; it stays valid
        // as long as the hook does, which `held` keeps.
        unsafe { (hook.data_ready)(hook.target, &mut inbound, held.bh_off()) };
    }
}

/// # Safety
///
/// To be called by TCP, as `sk_data_ready` of a socket that listens or has listened, or of a
/// connection that was made from one: `sk` is valid for the call.
unsafe extern "C" fn connection_ready(sk: *mut bindings::sock) {
    // SAFETY: `Held::new` wants a valid TCP socket, by this function's `# Safety`, one of whose
    // callbacks was called, this one.
    let held = unsafe { Held::new(sk, false) };
    let Some(held) = &held else {
        return;
    };
    if let Some(hook) = held.hook() {
        // SAFETY: `Inbound::new` wants a valid TCP socket; that it is not locked is what `No` says.
        let mut inbound = unsafe { Inbound::new(sk, SockLock::Unlocked) };
        // SAFETY: By the invariants of `Hook`, `target` is what the function wants; it stays valid
        // as long as the hook does, which `held` keeps.
        unsafe { (hook.data_ready)(hook.target, &mut inbound, held.bh_off()) };
    }
}

/// # Safety
///
/// To be called by TCP, as `sk_write_space`: `sk` is valid for the call.
unsafe extern "C" fn write_space(sk: *mut bindings::sock) {
    // SAFETY: `Held::new` wants a valid TCP socket, by this function's `# Safety`, one of whose
    // callbacks was called, this one.
    let held = unsafe { Held::new(sk, false) };
    // TCP calls whenever something was acknowledged, until the mark is cleared that it set when it
    // was full.
    if let Some(hook) = held.as_ref().and_then(Held::hook) {
        // SAFETY: `__sk_stream_is_writeable()` wants a valid socket: by this function's `# Safety`
        // it is.
        if unsafe { riwarp_helper_sk_stream_is_writeable(sk) } {
            // SAFETY: The helper wants a valid socket that has a `struct socket`: a hooked one has,
            // since `Hooked` unhooks it, and by that waits for this call, before it releases it.
            unsafe { riwarp_helper_sk_clear_nospace(sk) };
            // SAFETY: By the invariants of `Hook`, `target` is what the function wants; it stays
            // valid as long as the hook does, which `held` keeps.
            unsafe { (hook.write_space)(hook.target) };
        }
    }
}

/// # Safety
///
/// To be called by TCP, as `sk_state_change` or `sk_error_report`: `sk` is valid for the call.
unsafe extern "C" fn state_change(sk: *mut bindings::sock) {
    // SAFETY: `Held::new` wants a valid TCP socket, by this function's `# Safety`, one of whose
    // callbacks was called, this one.
    let held = unsafe { Held::new(sk, false) };
    if let Some(hook) = held.as_ref().and_then(Held::hook) {
        // SAFETY: By the invariants of `Hook`, `target` is what the function wants; it stays valid
        // as long as the hook does, which `held` keeps.
        unsafe { (hook.state_change)(hook.target) };
    }
}
