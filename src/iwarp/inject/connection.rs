// SPDX-License-Identifier: GPL-2.0

//! What rules do to connections of `rdma_cm` that begin.

use core::num::NonZeroU32;

use super::{
    delay,
    number,
    Point, //
};

/// What a rule does to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnAction {
    /// It is rejected, with these octets as private data.
    Reject([u8; 4]),
    /// The answer of the end that accepts is lost.
    DropReply,
    /// It waits for so many milliseconds.
    Slow(NonZeroU32),
    /// The peer cannot be reached.
    Unreachable,
    /// It fails in another way.
    ConnectError,
    /// It ends once it is established.
    Disconnect,
    /// The device is removed.
    Remove,
}

impl ConnAction {
    /// Returns the action with this name and value.
    pub(super) fn parse(name: &str, value: Option<&str>) -> Option<Self> {
        Some(match (name, value) {
            ("reject", Some(data)) => Self::Reject(number(data)?.to_be_bytes()),
            ("drop-reply", None) => Self::DropReply,
            ("slow", Some(time)) => Self::Slow(delay(time)?),
            ("unreachable", None) => Self::Unreachable,
            ("connect-error", None) => Self::ConnectError,
            ("disconnect", None) => Self::Disconnect,
            ("remove", None) => Self::Remove,
            _ => return None,
        })
    }

    /// Returns whether a rule may do this there. The consumer of the end that is asked has no event
    /// for a connection that fails.
    pub(super) fn goes_with(self, point: Point) -> bool {
        match self {
            Self::Unreachable | Self::ConnectError | Self::Disconnect => point == Point::Connect,
            Self::Reject(_) | Self::DropReply | Self::Slow(_) | Self::Remove => {
                matches!(point, Point::Connect | Point::Request)
            }
        }
    }
}
