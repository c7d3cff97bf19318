// SPDX-License-Identifier: GPL-2.0

//! What has to happen after an event, by where it may be carried out.
//!
//! A transition returns [`Actions`]. Their three types say when the driver carries them out:
//!
//! | type | when |
//! |---|---|
//! | [`Now`] | with the transition, under the same lock |
//! | [`After`] | once the caller has released its locks |
//! | [`Later`] | by the work item of the connection |
//!
//! The driver has one executor for each of the first two, which matches all of it. Of the third the
//! steps of the connection read each flag.
//!
//! Pure, any context.

use core::marker::PhantomData;

/// An action; its type has 16 at most.
pub trait Action: Copy + Eq + 'static {
    /// All actions of the type, each at its place and with its name, in the order in which they are
    /// carried out.
    const ALL: &'static [(Self, &'static str)];

    /// Returns the place of the action in a set, below 16.
    fn place(self) -> u8;
}

/// Declares a type of actions, each with its name, in the order in which they are carried out.
macro_rules! actions {
    (
        $(#[$doc:meta])*
        pub enum $type:ident {
            $($(#[$action_doc:meta])* $action:ident = $name:literal,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $type {
            $($(#[$action_doc])* $action,)*
        }

        impl Action for $type {
            const ALL: &'static [(Self, &'static str)] = &[$((Self::$action, $name),)*];

            #[inline]
            fn place(self) -> u8 {
                // CAST: fewer than 16 variants.
                self as u8
            }
        }

        // A set has a bit for each.
        const _: () = assert!($type::ALL.len() <= 16);
    };
}

actions! {
    /// Actions that are carried out with the transition, under the same lock.
    pub enum Now {
        /// Keep the Terminate of this fault, the first one (RDMAP-144).
        KeepTerminate = "keep Terminate",
        /// Take no more requests from the send queue than are posted.
        Drain = "drain",
    }
}

actions! {
    /// Actions that are carried out once the locks of the caller are released, in any context.
    pub enum After {
        /// Raise the asynchronous event of a fatal error.
        NotifyFatal = "notify fatal",
        /// Raise the asynchronous event of an access that was refused.
        NotifyAccessError = "notify access error",
        /// Raise the asynchronous event of a request that was refused.
        NotifyRequestError = "notify request error",
        /// Notify the consumers of the completion queues of what was posted.
        NotifyCompletions = "notify completions",
        /// Run the transmit task: to send, to flush, or to stop sending.
        Transmit = "transmit",
        /// Run the transmit task after a pause, since memory is short. Only of a transmit task that
        /// may sleep.
        TransmitLater = "transmit later",
        /// Go on receiving: more has arrived than one round takes.
        Receive = "receive",
        /// Fetch the memory that the receiver waits for.
        FetchIn = "fetch in",
        /// Look for a receive until one is posted for the first message that has arrived.
        AwaitReceive = "await receive",
        /// Fetch the memory that the transmit task waits for.
        FetchOut = "fetch out",
        /// Look in a second whether the stream is idle.
        CheckIdle = "check idle",
        /// Start the time limit of what is posted for a peer that has closed its half.
        LimitClosedPeer = "limit closed peer",
        /// Look soon whether a rule still holds a request or a message.
        LookAtRule = "look at rule",
    }
}

actions! {
    /// Actions that the work item of the connection carries out. They are flags that it takes, so
    /// they need no memory and cannot be lost.
    pub enum Later {
        /// Report to the connection that the peer's first FPDU is valid.
        ReportFirstFpdu = "report first FPDU",
        /// Announce to the connection that an orderly close will follow.
        Leave = "leave",
        /// Close the connection with a FIN.
        Close = "close",
        /// Close the connection with a reset.
        Abort = "abort",
    }
}

/// A set of actions of one type.
#[must_use = "an action that nobody carries out is lost"]
#[derive(Debug)]
pub struct Set<A>(u16, PhantomData<A>);

impl<A> Clone for Set<A> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Set<A> {}

impl<A> PartialEq for Set<A> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<A> Eq for Set<A> {}

impl<A> Default for Set<A> {
    #[inline]
    fn default() -> Self {
        Self::NONE
    }
}

impl<A> Set<A> {
    /// No action.
    pub const NONE: Self = Self(0, PhantomData);

    /// Adds an action.
    #[inline]
    pub fn insert(&mut self, action: A)
    where
        A: Action,
    {
        *self = self.with(action);
    }

    /// Adds the actions of another set.
    #[inline]
    pub fn add(&mut self, other: Self) {
        self.0 |= other.0;
    }

    /// Returns whether there is no action.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl<A: Action> Set<A> {
    /// Returns the set with one action more.
    #[inline]
    pub fn with(self, action: A) -> Self {
        Self(self.0 | Self::bit(action), PhantomData)
    }

    /// Returns whether the action is in the set.
    #[inline]
    pub fn contains(self, action: A) -> bool {
        self.0 & Self::bit(action) != 0
    }

    /// Returns the actions in their order.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = A> {
        self.named().map(|(action, _)| action)
    }

    /// Returns the actions with their names.
    #[inline]
    pub fn named(self) -> impl Iterator<Item = (A, &'static str)> {
        let mut left = self.0;
        core::iter::from_fn(move || {
            // CAST: widens. A place beyond the last action is that of the empty set.
            let named = A::ALL.get(left.trailing_zeros() as usize)?;
            left &= left.wrapping_sub(1);
            Some(*named)
        })
    }

    #[inline]
    fn bit(action: A) -> u16 {
        1 << (action.place() & 15)
    }
}

/// What the driver has to do for a transition.
#[must_use = "an action that nobody carries out is lost"]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Actions {
    /// With the transition.
    pub now: Set<Now>,
    /// Once the locks of the caller are released.
    pub after: Set<After>,
    /// By the work item of the connection.
    pub later: Set<Later>,
}

impl Actions {
    /// Nothing.
    pub const NONE: Self = Self {
        now: Set::NONE,
        after: Set::NONE,
        later: Set::NONE,
    };

    /// Adds an action.
    #[inline]
    pub fn now(mut self, action: Now) -> Self {
        self.now = self.now.with(action);
        self
    }

    /// Adds an action.
    #[inline]
    pub fn after(mut self, action: After) -> Self {
        self.after = self.after.with(action);
        self
    }

    /// Adds an action.
    #[inline]
    pub fn later(mut self, action: Later) -> Self {
        self.later = self.later.with(action);
        self
    }

    /// Returns the names of all actions, in the order of their types.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let now = self.now.named().map(|(_, name)| name);
        let after = self.after.named().map(|(_, name)| name);
        let later = self.later.named().map(|(_, name)| name);
        now.chain(after).chain(later)
    }
}

#[cfg(any(test, MODULE))]
#[cfg_attr(MODULE, kernel::prelude::kunit_tests(iwarp_actions))]
mod tests {
    use super::*;

    fn all_are_told_apart<A: Action>() {
        let mut all = Set::NONE;
        let mut count = 0;
        for (place, (action, _)) in A::ALL.iter().enumerate() {
            assert_eq!(usize::from(action.place()), place);
            assert!(!all.contains(*action));
            assert!(Set::NONE.with(*action).iter().eq([*action]));
            all = all.with(*action);
            count += 1;
        }
        assert_eq!(all.iter().count(), count);
    }

    #[test]
    fn set_holds_each_action_once() {
        all_are_told_apart::<Now>();
        all_are_told_apart::<After>();
        all_are_told_apart::<Later>();
        assert!(Set::<After>::NONE.is_empty());
    }

    #[test]
    fn set_keeps_the_order_of_its_actions() {
        let mut set = Set::NONE.with(After::Transmit);
        set.add(Set::NONE.with(After::NotifyFatal));
        assert!(set.iter().eq([After::NotifyFatal, After::Transmit]));
    }
}
