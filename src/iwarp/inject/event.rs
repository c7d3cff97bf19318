// SPDX-License-Identifier: GPL-2.0

//! The asynchronous events that rules can raise.

/// An event, and nothing else that it would stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// What the consumer hears it of.
    pub of: EventSource,
    /// Its number (`enum ib_event_type`).
    pub number: u8,
}

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventSource {
    /// The port, or the whole device.
    Port,
    /// The queue pair of the request or message.
    Qp,
    /// The queue for its completion.
    Cq,
    /// The shared receive queue of the queue pair.
    Srq,
}

/// Each event, by its name in `enum ibv_event_type` without `IBV_EVENT_`. No `GID_CHANGE`:
/// `ib_core` raises that one itself, for devices of RoCE only (drivers/infiniband/core/cache.c).
const EVENTS: [(&str, EventSource, u8); 13] = [
    ("CQ_ERR", EventSource::Cq, 0),
    ("QP_FATAL", EventSource::Qp, 1),
    ("QP_REQ_ERR", EventSource::Qp, 2),
    ("QP_ACCESS_ERR", EventSource::Qp, 3),
    ("COMM_EST", EventSource::Qp, 4),
    ("SQ_DRAINED", EventSource::Qp, 5),
    ("DEVICE_FATAL", EventSource::Port, 8),
    ("PORT_ACTIVE", EventSource::Port, 9),
    ("PORT_ERR", EventSource::Port, 10),
    ("LID_CHANGE", EventSource::Port, 11),
    ("SRQ_ERR", EventSource::Srq, 14),
    ("SRQ_LIMIT_REACHED", EventSource::Srq, 15),
    ("QP_LAST_WQE_REACHED", EventSource::Qp, 16),
];

/// Returns the event with this name.
pub(super) fn event(name: &str) -> Option<AsyncEvent> {
    let (_, of, number) = EVENTS.into_iter().find(|(known, ..)| *known == name)?;
    Some(AsyncEvent { of, number })
}
