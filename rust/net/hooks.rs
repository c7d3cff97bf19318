// SPDX-License-Identifier: GPL-2.0

//! The callbacks of a socket, which TCP calls when octets arrive, when it accepts octets to send
//! again, and when the connection changes state.
//!
//! A `struct sock` has four callbacks and one pointer of private data. [`Hooked`] replaces them and
//! restores them. All callbacks run with `sk_callback_lock` held for reading; restoring takes it
//! for writing, so no callback uses the target afterwards.
//!
//! A connection in the accept queue starts with a copy of its listener's callbacks, without the
//! data; callbacks without data do nothing. TCP may still call an old callback of a socket whose
//! data has changed; therefore the functions to call are part of the data ([`Hook`]).
//! `sk_data_ready` of a listener is an exception: TCP calls it without a lock, and the state of a
//! listener may change at any time (`tcp_abort()`, also run for an administrator). So a listener
//! has a `sk_data_ready` of its own, which does not touch the receive queue.
//!
//! The kernel's TLS has callbacks of its own, which it installs during a handshake. So a hook is
//! taken off for that time ([`Hooked::suspend`]), and then put above those of TLS, which it calls
//! first ([`Hooked::secure`]): they find the records in what has arrived, and send what TCP had no
//! room for.
//!
//! Other users may have private data at a socket: a BPF program may put a connection into a socket
//! map before it is accepted, and TCP looks for the map's data for ever if that is gone. Flags
//! identify the data of this module, which leaves that of others alone.
//!
//! C headers: `include/net/sock.h`, `include/net/tcp.h`.

use super::handshake::TlsPeer;
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
use kernel::sync::atomic::Relaxed;
use kernel::sync::Arc;
use kernel::sync::ArcBorrow;
use kernel::sync::SetOnce;

extern "C" {
    fn riwarp_helper_sk_callback_read_lock(sk: *mut bindings::sock);
    fn riwarp_helper_sk_callback_read_lock_off(sk: *mut bindings::sock);
    fn riwarp_helper_sk_callback_read_trylock(sk: *mut bindings::sock) -> bool;
    fn riwarp_helper_sk_callback_read_unlock(sk: *mut bindings::sock);
    fn riwarp_helper_sk_callback_read_unlock_off(sk: *mut bindings::sock);
    fn riwarp_helper_sk_callback_write_lock(sk: *mut bindings::sock);
    fn riwarp_helper_sk_callback_write_unlock(sk: *mut bindings::sock);
    fn riwarp_helper_sk_clear_nospace(sk: *mut bindings::sock);
    fn riwarp_helper_sk_stream_is_writeable(sk: *const bindings::sock) -> bool;
}

/// `SK_USER_DATA_NOCOPY`: an accepted socket does not inherit the data. This module sets no other
/// flag.
const NOCOPY: usize = 1;
/// The bits of `sk_user_data` that are not part of the pointer (`~SK_USER_DATA_PTRMASK`).
const FLAGS: usize = 7;

/// Receives the events of a socket.
///
/// # Context
///
/// All methods are called with bottom halves off, in softirq or process context, and must not
/// sleep. They must not call methods of the same [`Socket`] that take its lock (those with context
/// "process"), nor [`Hooked::unhook`] on it, nor drop the [`Hooked`].
///
/// They may run inside the owner's own calls: releasing the socket lock processes the backlog, in
/// the context of the thread that releases it.
pub trait SocketEvents: Send + Sync + 'static {
    /// Handles the arrival of octets, of the end of the stream or (on a listener) of a connection.
    ///
    /// Calls for one connection never overlap: the socket is locked as `inbound` says. Calls for a
    /// listener may overlap, and `inbound` is empty.
    fn data_ready(self: ArcBorrow<'_, Self>, inbound: &mut Inbound<'_>, off: BhOff<'_>);

    /// On a socket with TLS, handles the arrival of octets or of the end of the stream, of which
    /// there may be a whole record: [`Socket::with_inbound`] or [`Socket::recv`] decrypt it in
    /// process context.
    fn readable(self: ArcBorrow<'_, Self>);

    /// TCP accepts octets again after it returned `EAGAIN`.
    fn write_space(self: ArcBorrow<'_, Self>);

    /// The connection changed state ([`Socket::state`]) or met an error ([`Socket::error`]).
    /// Spurious calls are possible. Octets that arrived before the end of the stream may still be
    /// unread; `data_ready` follows for them.
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
    /// The callbacks of a socket that does not listen.
    const HOOKED: Self = Self {
        data_ready: Some(data_ready),
        write_space: Some(write_space),
        state_change: Some(state_change),
        error_report: Some(state_change),
    };

    /// The callbacks of a socket with TLS.
    const SECURE: Self = Self {
        data_ready: Some(secure_data_ready),
        write_space: Some(secure_write_space),
        error_report: Some(secure_error_report),
        ..Self::HOOKED
    };

    /// The callbacks of a listener.
    const LISTENING: Self = Self {
        data_ready: Some(connection_ready),
        ..Self::HOOKED
    };

    /// # Safety
    ///
    /// `sk` must be a valid socket whose callbacks do not change during the call.
    pub(super) unsafe fn read(sk: *mut bindings::sock) -> Self {
        Self {
            // SAFETY: The caller guarantees that `sk` is valid and that the field does not change
            // during the call.
            data_ready: unsafe { (*sk).sk_data_ready },
            // SAFETY: The caller guarantees that `sk` is valid and that the field does not change
            // during the call.
            write_space: unsafe { (*sk).sk_write_space },
            // SAFETY: The caller guarantees that `sk` is valid and that the field does not change
            // during the call.
            state_change: unsafe { (*sk).sk_state_change },
            // SAFETY: The caller guarantees that `sk` is valid and that the field does not change
            // during the call.
            error_report: unsafe { (*sk).sk_error_report },
        }
    }

    /// Installs these callbacks without private data, which removes the hook if the socket has one.
    /// Waits for running callbacks.
    ///
    /// # Errors
    ///
    /// `EBUSY` if the socket has private data of another user, which stays.
    ///
    /// # Safety
    ///
    /// `sk` must be a valid socket, and these callbacks must be this module's or TCP's. (A call
    /// from a callback of the same socket deadlocks.)
    pub(super) unsafe fn restore(self, sk: *mut bindings::sock) -> Result {
        // SAFETY: `write` requires a valid socket, which the caller guarantees, and data that the
        // callbacks expect: this module's do nothing if it is null, and TCP's do not read it.
        unsafe { self.write(sk, ptr::null_mut()) }
    }

    /// Installs these callbacks, and private data unless the socket has that of another user.
    ///
    /// # Errors
    ///
    /// `EBUSY` if it has.
    ///
    /// # Safety
    ///
    /// `sk` must be a valid socket, and `user_data` what the callbacks expect: for this module's
    /// null, or a [`Hook`] with [`NOCOPY`], which stays valid until other data is written.
    unsafe fn write(self, sk: *mut bindings::sock, user_data: *mut c_void) -> Result {
        // SAFETY: The lock is part of `sk`, which the caller guarantees to be valid.
        unsafe { riwarp_helper_sk_callback_write_lock(sk) };
        // SAFETY: The field lies inside the allocation, since `sk` is valid.
        let place = unsafe { &raw mut (*sk).sk_user_data };
        // SAFETY: A field of a valid socket, read once.
        let present = unsafe { place.read_volatile() }.addr();
        // Null may have flags too.
        let foreign = present & !FLAGS != 0 && present & FLAGS != NOCOPY;
        // TCP reads these fields without the lock; so each is written once.
        if !foreign {
            // SAFETY: A field of a valid socket, written only under the lock, which is held.
            unsafe { place.write_volatile(user_data) };
        }
        // SAFETY: The field lies inside the allocation, since `sk` is valid.
        let place = unsafe { &raw mut (*sk).sk_data_ready };
        // SAFETY: A field of a valid socket, written only under the lock, which is held.
        unsafe { place.write_volatile(self.data_ready) };
        // SAFETY: The field lies inside the allocation, since `sk` is valid.
        let place = unsafe { &raw mut (*sk).sk_write_space };
        // SAFETY: A field of a valid socket, written only under the lock, which is held.
        unsafe { place.write_volatile(self.write_space) };
        // SAFETY: The field lies inside the allocation, since `sk` is valid.
        let place = unsafe { &raw mut (*sk).sk_state_change };
        // SAFETY: A field of a valid socket, written only under the lock, which is held.
        unsafe { place.write_volatile(self.state_change) };
        // SAFETY: The field lies inside the allocation, since `sk` is valid.
        let place = unsafe { &raw mut (*sk).sk_error_report };
        // SAFETY: A field of a valid socket, written only under the lock, which is held.
        unsafe { place.write_volatile(self.error_report) };
        // SAFETY: This call took the lock above.
        unsafe { riwarp_helper_sk_callback_write_unlock(sk) };
        if foreign {
            Err(EBUSY)
        } else {
            Ok(())
        }
    }
}

/// The private data of a hooked socket.
///
/// # Invariants
///
/// `target` comes from `Arc<T>::into_raw` and owns a reference; the functions are those for this
/// `T`.
#[repr(align(8))]
pub(super) struct Hook {
    target: *const c_void,
    data_ready: unsafe fn(*const c_void, &mut Inbound<'_>, BhOff<'_>),
    readable: unsafe fn(*const c_void),
    write_space: unsafe fn(*const c_void),
    state_change: unsafe fn(*const c_void),
    release: unsafe fn(*const c_void),
    /// The callbacks of TLS, below ours.
    below: SetOnce<Callbacks>,
}

// The low bits of the pointer hold flags.
const _: () = assert!(core::mem::align_of::<Hook>() > FLAGS);

impl Hook {
    pub(super) fn new<T: SocketEvents>(target: Arc<T>) -> Self {
        // INVARIANT: The hook takes over the reference of `target`; all functions are for `T`.
        Self {
            target: Arc::into_raw(target).cast(),
            data_ready: call_data_ready::<T>,
            readable: call_readable::<T>,
            write_space: call_write_space::<T>,
            state_change: call_state_change::<T>,
            release: release::<T>,
            below: SetOnce::new(),
        }
    }

    /// Calls [`SocketEvents::state_change`].
    pub(super) fn state_change(&self) {
        // SAFETY: By the invariants of `Hook`, `target` is what the function requires; it stays
        // valid as long as this hook.
        unsafe { (self.state_change)(self.target) };
    }
}

impl Drop for Hook {
    fn drop(&mut self) {
        // SAFETY: `release` requires a pointer of `Arc<T>::into_raw` and the reference that it
        // owns: by the type invariant `target` is one, for the `T` of `release`; nothing uses it
        // after the drop.
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
    // SAFETY: `from_raw` requires a pointer of `Arc<T>::into_raw` that stays valid for the borrow:
    // the caller guarantees this of `target` for the call.
    unsafe { ArcBorrow::<T>::from_raw(target.cast()) }.data_ready(inbound, off);
}

/// # Safety
///
/// `target` must come from `Arc<T>::into_raw` and stay valid for the call.
unsafe fn call_readable<T: SocketEvents>(target: *const c_void) {
    // SAFETY: `from_raw` requires a pointer of `Arc<T>::into_raw` that stays valid for the borrow:
    // the caller guarantees this of `target` for the call.
    unsafe { ArcBorrow::<T>::from_raw(target.cast()) }.readable();
}

/// # Safety
///
/// `target` must come from `Arc<T>::into_raw` and stay valid for the call.
unsafe fn call_write_space<T: SocketEvents>(target: *const c_void) {
    // SAFETY: `from_raw` requires a pointer of `Arc<T>::into_raw` that stays valid for the borrow:
    // the caller guarantees this of `target` for the call.
    unsafe { ArcBorrow::<T>::from_raw(target.cast()) }.write_space();
}

/// # Safety
///
/// `target` must come from `Arc<T>::into_raw` and stay valid for the call.
unsafe fn call_state_change<T: SocketEvents>(target: *const c_void) {
    // SAFETY: `from_raw` requires a pointer of `Arc<T>::into_raw` that stays valid for the borrow:
    // the caller guarantees this of `target` for the call.
    unsafe { ArcBorrow::<T>::from_raw(target.cast()) }.state_change();
}

/// # Safety
///
/// `target` must come from `Arc<T>::into_raw`, and the caller must own a reference, which this call
/// consumes.
unsafe fn release<T: SocketEvents>(target: *const c_void) {
    // SAFETY: `from_raw` requires a pointer of `Arc<T>::into_raw` and the reference that it owns:
    // the caller passes both.
    drop(unsafe { Arc::<T>::from_raw(target.cast()) });
}

/// A socket whose events go to a `T`.
///
/// Events before [`Hooked::new`] are not reported: check [`Socket::state`],
/// [`Socket::with_inbound`] or [`Socket::accept`] once afterwards.
///
/// # Invariants
///
/// `hook` is null, or owns the [`Hook`] that the socket's private data points to, unless
/// `suspended`.
pub struct Hooked<T: SocketEvents> {
    socket: Arc<Socket>,
    hook: Atomic<*const c_void>,
    /// Whether the hook is off the socket, since a handshake has it.
    // ORDERING: Relaxed: the owner calls `suspend` and `secure` one after the other, and whoever
    // unhooks the socket comes after it.
    suspended: Atomic<bool>,
    _target: PhantomData<Arc<T>>,
}

// SAFETY: The socket is `Send`, and so is the `Arc<T>` that the hook owns, since `SocketEvents`
// requires `T: Send + Sync`.
unsafe impl<T: SocketEvents> Send for Hooked<T> {}
// SAFETY: The socket is `Sync`; a shared reference can only free the hook, and only the thread that
// swaps the pointer for null does so.
unsafe impl<T: SocketEvents> Sync for Hooked<T> {}

impl<T: SocketEvents> Hooked<T> {
    /// Hooks a socket. Events may arrive before this returns. Context: process.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, or `EBUSY` if the socket has private data of another user; closes the socket.
    pub fn new(socket: Socket, target: Arc<T>) -> Result<Self> {
        let socket = Arc::new(socket, GFP_KERNEL)?;
        let hook = KBox::into_raw(KBox::new(Hook::new(target), GFP_KERNEL)?);
        let user_data = hook.map_addr(|addr| addr | NOCOPY).cast();
        let callbacks = if socket.is_listener() {
            Callbacks::LISTENING
        } else {
            Callbacks::HOOKED
        };
        // SAFETY: `write` requires a valid socket, which `socket` is by its invariants, and the
        // data that our callbacks expect: a hook, which `unhook` frees only after removing it from
        // the socket.
        let written = unsafe { callbacks.write(socket.sk(), user_data) };
        // INVARIANT: As written above; data of another user never points to the hook.
        let hooked = Self {
            socket,
            hook: Atomic::new(hook.cast_const().cast()),
            suspended: Atomic::new(false),
            _target: PhantomData,
        };
        written.map(|()| hooked)
    }

    /// Returns the socket, which may outlive the hook.
    pub fn socket(&self) -> &Arc<Socket> {
        &self.socket
    }

    /// Lends the socket to a handshake: takes the hook off, so that TCP's own callbacks are there,
    /// and waits for running ones. Nothing is reported any more until [`Hooked::secure`]. Returns
    /// the target.
    ///
    /// Context: process, as for [`Hooked::unhook`]; the caller calls one of the three at a time,
    /// and has the namespace of the socket counted.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the socket has no file, was lent before, or is not hooked; `EBUSY` if it has
    /// private data of another user.
    pub(super) fn suspend(&self) -> Result<Arc<T>> {
        let target = self.target().ok_or(EINVAL)?;
        self.socket.lend()?;
        self.suspended.store(true, Relaxed);
        // SAFETY: `restore` requires a valid socket and TCP's callbacks: the invariants of `Socket`
        // guarantee both.
        unsafe { self.socket.callbacks().restore(self.socket.sk()) }?;
        Ok(target)
    }

    /// Returns the target, unless the socket was unhooked. The caller unhooks it at no other place
    /// meanwhile.
    pub(super) fn target(&self) -> Option<Arc<T>> {
        // ORDERING: Relaxed: see above.
        let hook = self.hook.load(Relaxed).cast::<Hook>();
        // SAFETY: By the type invariant it is null or a hook, which only `unhook` frees.
        let hook = unsafe { hook.as_ref() }?;
        // SAFETY: `from_raw` requires a pointer of `Arc<T>::into_raw` that stays valid: by the
        // invariants of `Hook` its target is one.
        Some(unsafe { ArcBorrow::<T>::from_raw(hook.target.cast()) }.into())
    }

    /// Turns the socket into one with TLS after a handshake with this peer, and hooks it again,
    /// above TLS. Events before this are not reported.
    ///
    /// Context: process; the caller calls one of `suspend`, this and `unhook` at a time.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if no handshake has had the socket, or it has TLS.
    /// * `ENOTCONN` if the kernel's TLS is not on in both directions.
    /// * `EPROTO` if it is not TLS 1.3; `EOPNOTSUPP` if an adapter encrypts.
    /// * `EBUSY` if the socket has private data of another user.
    /// * `ENOMEM`.
    pub fn secure(&self, peer: TlsPeer) -> Result {
        // ORDERING: as in `suspend`.
        let hook = self.hook.load(Relaxed).cast_mut().cast::<Hook>();
        // SAFETY: By the type invariant it is null or a hook, which only `unhook` frees.
        let target = unsafe { hook.as_ref() }.ok_or(EINVAL)?;
        self.socket.secure(peer)?;
        target.below.populate(self.socket.callbacks());
        let user_data = hook.map_addr(|addr| addr | NOCOPY).cast();
        self.suspended.store(false, Relaxed);
        // SAFETY: `write` requires a valid socket, which `socket` is by its invariants, and the
        // data that our callbacks expect: a hook, which `unhook` frees only after removing it.
        unsafe { Callbacks::SECURE.write(self.socket.sk(), user_data) }
    }

    /// Removes the hook: waits for running callbacks, then drops the reference to the target. Does
    /// nothing if another call removed it or is removing it.
    ///
    /// Context: process; not from a callback of the same socket, nor with a lock held that its
    /// callbacks take.
    pub fn unhook(&self) {
        // ORDERING: pairs with itself: only one of several calls gets the pointer. Callbacks do not
        // use this field, and the lock in `restore` waits for them.
        let hook = self.hook.xchg(ptr::null(), Full);
        if let Some(hook) = NonNull::new(hook.cast_mut().cast::<Hook>()) {
            // A handshake may have installed those of TLS, which have to stay.
            if !self.suspended.load(Relaxed) {
                // The data of another user, which no hook has replaced, stays.
                // SAFETY: `restore` requires a valid socket and the callbacks below this module's:
                // the invariants of `Socket` guarantee both.
                let _ = unsafe { self.socket.callbacks().restore(self.socket.sk()) };
            }
            // SAFETY: `from_raw` requires a pointer of `KBox::into_raw` that is freed only here: by
            // the type invariant it is one, and only the call that swapped it for null gets it. The
            // socket no longer points to it, and callbacks that saw it have ended, since they hold
            // the lock that `restore` took for writing.
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
    /// Unhooks, then closes the socket unless somebody else has it; resets connections in its
    /// accept queue. Context: process.
    fn drop(&mut self) {
        self.unhook();
    }
}

/// Holds `sk_callback_lock` for reading, so that the callbacks do not change. Context: process or
/// softirq.
///
/// # Invariants
///
/// `sk` is a valid TCP socket whose private data, if its only flag is [`NOCOPY`], was written by
/// [`Hooked::new`]; its `sk_callback_lock` is held for reading, with bottom halves off; `softirq`
/// says that they were off before.
///
/// Bottom halves are off because TCP also calls from process context: a softirq that interrupted it
/// would queue behind a waiting writer and deadlock. In softirq, when the socket's spin lock is
/// held, they are off already.
///
/// A callback that may nest in another one of the same socket does not wait for the lock
/// ([`Held::try_new`]): with `PREEMPT_RT` a reader queues behind a waiting writer, which would wait
/// for the outer callback. (Elsewhere a reader that has bottom halves off does not queue.)
struct Held {
    sk: NonNull<bindings::sock>,
    softirq: bool,
}

impl Held {
    /// # Safety
    ///
    /// `sk` must be a valid TCP socket as long as the result lives, or null. Its private data, if
    /// its only flag is [`NOCOPY`], must have been written by [`Hooked::new`], as it has been if
    /// TCP called one of the callbacks below for it. `softirq` requires that bottom halves are off
    /// while the result lives.
    #[inline]
    unsafe fn new(sk: *mut bindings::sock, softirq: bool) -> Option<Self> {
        let sk = NonNull::new(sk)?;
        if softirq {
            // SAFETY: The lock is part of `sk`, which the caller guarantees to be valid; bottom
            // halves are off, as the caller guarantees by `softirq`.
            unsafe { riwarp_helper_sk_callback_read_lock_off(sk.as_ptr()) };
        } else {
            // SAFETY: The lock is part of `sk`, which the caller guarantees to be valid.
            unsafe { riwarp_helper_sk_callback_read_lock(sk.as_ptr()) };
        }
        // INVARIANT: As locked above.
        Some(Self { sk, softirq })
    }

    /// As [`Held::new`]; [`None`] also where a writer holds the lock or waits for it. On a hooked
    /// socket that is [`Hooked::new`] or [`Hooked::unhook`], for which events in the meantime need
    /// not be reported.
    ///
    /// # Safety
    ///
    /// As for [`Held::new`].
    #[inline]
    unsafe fn try_new(sk: *mut bindings::sock) -> Option<Self> {
        let sk = NonNull::new(sk)?;
        // SAFETY: The lock is part of `sk`, which the caller guarantees to be valid.
        let locked = unsafe { riwarp_helper_sk_callback_read_trylock(sk.as_ptr()) };
        // INVARIANT: As locked above.
        locked.then(|| Self { sk, softirq: false })
    }

    #[inline]
    fn bh_off(&self) -> BhOff<'_> {
        // SAFETY: `assume` requires bottom halves off for the lifetime of the result: by the type
        // invariant they are off while `self` lives, which the result borrows.
        unsafe { BhOff::assume() }
    }

    #[inline]
    fn hook(&self) -> Option<&Hook> {
        // SAFETY: The field lies inside the allocation: by the type invariant the socket is valid.
        let place = unsafe { &raw const (*self.sk.as_ptr()).sk_user_data };
        // SAFETY: A field of a valid socket, read once.
        let user_data = unsafe { place.read_volatile() };
        // Null has other flags too.
        if user_data.addr() & FLAGS != NOCOPY {
            return None;
        }
        let hook = user_data.map_addr(|addr| addr & !FLAGS).cast::<Hook>();
        // SAFETY: By the type invariant `Hooked::new` wrote the data that has this flag alone, so
        // it points to a hook. The hook stays valid while the lock is held: it is freed only after
        // its removal under the lock.
        unsafe { hook.as_ref() }
    }
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        if self.softirq {
            // SAFETY: By the type invariant this value holds the lock and has not switched bottom
            // halves off.
            unsafe { riwarp_helper_sk_callback_read_unlock_off(self.sk.as_ptr()) };
        } else {
            // SAFETY: By the type invariant this value holds the lock and has switched bottom
            // halves off.
            unsafe { riwarp_helper_sk_callback_read_unlock(self.sk.as_ptr()) };
        }
    }
}

/// # Safety
///
/// Only TCP may call this, as `sk_data_ready` of a socket that has never listened: `sk` is valid
/// for the call, and locked until it returns, by an owner or by its spin lock.
unsafe extern "C" fn data_ready(sk: *mut bindings::sock) {
    // SAFETY: `in_callback` requires a valid TCP socket that is locked by an owner or by its spin
    // lock: this function's `# Safety` says so.
    let locked = unsafe { SockLock::in_callback(sk) };
    // SAFETY: `Held::new` requires a valid TCP socket, by this function's `# Safety`, for which TCP
    // called one of these callbacks, this one, and bottom halves off if `softirq`: they are off
    // while a socket's spin lock is held, and TCP holds it until this returns.
    let held = unsafe { Held::new(sk, locked == SockLock::Softirq) };
    let Some(held) = &held else {
        return;
    };
    if let Some(hook) = held.hook() {
        // SAFETY: `Inbound::new` requires a valid TCP socket that is locked as `locked` says while
        // the view lives: TCP keeps it locked until this returns, and the view ends before.
        let mut inbound = unsafe { Inbound::new(sk, locked) };
        // SAFETY: By the invariants of `Hook`, `target` is what the function requires; it stays
        // valid as long as the hook, which `held` keeps.
        unsafe { (hook.data_ready)(hook.target, &mut inbound, held.bh_off()) };
    }
}

/// # Safety
///
/// Only TCP may call this, as `sk_data_ready` of a socket that listens or has listened, or of a
/// connection that was made from one: `sk` is valid for the call.
unsafe extern "C" fn connection_ready(sk: *mut bindings::sock) {
    // SAFETY: `Held::new` requires a valid TCP socket, by this function's `# Safety`, for which TCP
    // called one of these callbacks, this one.
    let held = unsafe { Held::new(sk, false) };
    let Some(held) = &held else {
        return;
    };
    if let Some(hook) = held.hook() {
        // SAFETY: `Inbound::new` requires a valid TCP socket; `Unlocked` says that it is not
        // locked.
        let mut inbound = unsafe { Inbound::new(sk, SockLock::Unlocked) };
        // SAFETY: By the invariants of `Hook`, `target` is what the function requires; it stays
        // valid as long as the hook, which `held` keeps.
        unsafe { (hook.data_ready)(hook.target, &mut inbound, held.bh_off()) };
    }
}

/// # Safety
///
/// Only TCP may call this, as `sk_write_space`: `sk` is valid for the call.
unsafe extern "C" fn write_space(sk: *mut bindings::sock) {
    // `tcp_sendmsg_locked()` calls this if memory is short, also inside `data_ready`, which sends.
    // SAFETY: `Held::try_new` requires a valid TCP socket, by this function's `# Safety`, for which
    // TCP called one of these callbacks, this one.
    let held = unsafe { Held::try_new(sk) };
    // TCP calls after each acknowledgment until `SOCK_NOSPACE` is cleared, which it set when its
    // send buffer was full.
    if let Some(hook) = held.as_ref().and_then(Held::hook) {
        // SAFETY: `__sk_stream_is_writeable()` requires a valid socket: `sk` is one, by this
        // function's `# Safety`.
        if unsafe { riwarp_helper_sk_stream_is_writeable(sk) } {
            // SAFETY: The helper requires a valid socket that has a `struct socket`: a hooked one
            // has, since `Hooked` unhooks it, which waits for this call, before releasing it.
            unsafe { riwarp_helper_sk_clear_nospace(sk) };
            // SAFETY: By the invariants of `Hook`, `target` is what the function requires; it stays
            // valid as long as the hook, which `held` keeps.
            unsafe { (hook.write_space)(hook.target) };
        }
    }
}

/// What happens to a socket with TLS other than by TCP's callbacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketNotice {
    /// As [`SocketEvents::readable`].
    Readable,
    /// As [`SocketEvents::state_change`].
    StateChange,
}

/// Passes a notice to the target of a hooked socket. Context: process.
pub(super) fn notify(socket: &Socket, notice: SocketNotice) {
    // SAFETY: `Held::new` requires a valid TCP socket, which `socket` is; its private data, if it
    // has the flag alone, was written by `Hooked`, since an accepted or new socket has none and
    // nobody else sets that flag on a kernel's connection.
    let held = unsafe { Held::new(socket.sk(), false) };
    let Some(hook) = held.as_ref().and_then(Held::hook) else {
        return;
    };
    match notice {
        // SAFETY: By the invariants of `Hook`, `target` is what the function requires; it stays
        // valid as long as the hook, which `held` keeps.
        SocketNotice::Readable => unsafe { (hook.readable)(hook.target) },
        // SAFETY: By the invariants of `Hook`, `target` is what the function requires, as above.
        SocketNotice::StateChange => unsafe { (hook.state_change)(hook.target) },
    }
}

/// # Safety
///
/// Only TCP may call this, as `sk_data_ready` of a socket with TLS: `sk` is valid for the call, and
/// locked until it returns, by an owner or by its spin lock.
unsafe extern "C" fn secure_data_ready(sk: *mut bindings::sock) {
    // SAFETY: `Held::new` requires a valid TCP socket, by this function's `# Safety`, for which TCP
    // called one of these callbacks, this one.
    let held = unsafe { Held::new(sk, false) };
    let Some(hook) = held.as_ref().and_then(Held::hook) else {
        return;
    };
    if let Some(below) = hook.below.as_ref().and_then(|below| below.data_ready) {
        // SAFETY: TLS's own, which TCP would call here; it takes no lock that is held.
        unsafe { below(sk) };
    }
    // SAFETY: By the invariants of `Hook`, `target` is what the function requires; it stays valid
    // as long as the hook, which `held` keeps.
    unsafe { (hook.readable)(hook.target) };
}

/// # Safety
///
/// Only TCP may call this, as `sk_write_space` of a socket with TLS: `sk` is valid for the call.
unsafe extern "C" fn secure_write_space(sk: *mut bindings::sock) {
    // SAFETY: `Held::try_new` requires a valid TCP socket, by this function's `# Safety`, for which
    // TCP called one of these callbacks, this one.
    let held = unsafe { Held::try_new(sk) };
    let Some(hook) = held.as_ref().and_then(Held::hook) else {
        return;
    };
    if let Some(below) = hook.below.as_ref().and_then(|below| below.write_space) {
        // SAFETY: TLS's own, which TCP would call here; it takes no lock that is held.
        unsafe { below(sk) };
    }
    // SAFETY: `__sk_stream_is_writeable()` requires a valid socket: `sk` is one, by this function's
    // `# Safety`.
    if unsafe { riwarp_helper_sk_stream_is_writeable(sk) } {
        // SAFETY: The helper requires a valid socket that has a `struct socket`: a hooked one has.
        unsafe { riwarp_helper_sk_clear_nospace(sk) };
        // SAFETY: By the invariants of `Hook`, `target` is what the function requires; it stays
        // valid as long as the hook, which `held` keeps.
        unsafe { (hook.write_space)(hook.target) };
    }
}

/// # Safety
///
/// Only TCP or TLS may call this, as `sk_error_report` of a socket with TLS: `sk` is valid for the
/// call.
unsafe extern "C" fn secure_error_report(sk: *mut bindings::sock) {
    // TLS calls this inside `secure_data_ready` if what has arrived is no record.
    // SAFETY: `Held::try_new` requires a valid TCP socket, by this function's `# Safety`, for which
    // one of these callbacks was called, this one.
    let held = unsafe { Held::try_new(sk) };
    if let Some(hook) = held.as_ref().and_then(Held::hook) {
        hook.state_change();
    }
}

/// # Safety
///
/// Only TCP may call this, as `sk_state_change` or `sk_error_report`: `sk` is valid for the call.
unsafe extern "C" fn state_change(sk: *mut bindings::sock) {
    // SAFETY: `Held::new` requires a valid TCP socket, by this function's `# Safety`, for which TCP
    // called one of these callbacks, this one.
    let held = unsafe { Held::new(sk, false) };
    if let Some(hook) = held.as_ref().and_then(Held::hook) {
        // SAFETY: By the invariants of `Hook`, `target` is what the function requires; it stays
        // valid as long as the hook, which `held` keeps.
        unsafe { (hook.state_change)(hook.target) };
    }
}
