// SPDX-License-Identifier: GPL-2.0

//! Every state and every event against a table that was read by people (states.txt), and the
//! properties that the table must have.

use iwarp::{
    fault::Fault,
    state::{
        Actions,
        Event,
        Posting,
        State,
        VerbsState, //
    }, //
};

const EVENTS: [Event; 16] = [
    Event::Modify(VerbsState::Reset),
    Event::Modify(VerbsState::Init),
    Event::Modify(VerbsState::Rtr),
    Event::Modify(VerbsState::Rts),
    Event::Modify(VerbsState::Sqd),
    Event::Modify(VerbsState::Sqe),
    Event::Modify(VerbsState::Err),
    Event::Established,
    Event::Joined,
    Event::Fault(Fault::Crc),
    Event::Fault(Fault::Local),
    Event::TerminateSent,
    Event::TerminateReceived,
    Event::PeerClosed,
    Event::Closed,
    Event::Lost,
];

const ACTIONS: [(Actions, &str); 6] = [
    (Actions::FLUSH, "flush"),
    (Actions::SEND_TERMINATE, "send-terminate"),
    (Actions::SHUTDOWN, "shutdown"),
    (Actions::ABORT, "abort"),
    (Actions::REPORT_ERROR, "report-error"),
    (Actions::REPORT_CLOSE, "report-close"),
];

/// One line of the table.
fn line(state: State, event: Event) -> String {
    let answer = match state.handle(event) {
        Err(_) => String::from("refused"),
        Ok(transition) => ACTIONS
            .iter()
            .filter(|(action, _)| transition.actions.contains(*action))
            .fold(format!("{:?}", transition.next), |line, (_, name)| {
                line + " " + name
            }),
    };
    format!("{state:?} {event:?} -> {answer}\n")
}

#[test]
fn every_state_and_every_event() {
    let table: String = State::ALL
        .iter()
        .flat_map(|state| EVENTS.iter().map(|event| line(*state, *event)))
        .collect();
    assert_eq!(table, include_str!("states.txt"));
}

/// Every transition that is not refused.
fn transitions() -> impl Iterator<Item = (State, Event, State, Actions)> {
    State::ALL.into_iter().flat_map(|state| {
        EVENTS.into_iter().filter_map(move |event| {
            let transition = state.handle(event).ok()?;
            Some((state, event, transition.next, transition.actions))
        })
    })
}

#[test]
fn only_requests_of_the_consumer_and_connections_are_refused() {
    for state in State::ALL {
        for event in EVENTS {
            let may_be_refused =
                matches!(event, Event::Modify(_) | Event::Established | Event::Joined);
            assert!(
                may_be_refused || state.handle(event).is_ok(),
                "{state:?} {event:?}"
            );
        }
        // The consumer can always give up.
        assert!(state.handle(Event::Modify(VerbsState::Reset)).is_ok());
        assert!(state.handle(Event::Modify(VerbsState::Err)).is_ok());
    }
}

#[test]
fn nothing_leaves_the_error_state_but_a_reset() {
    for (from, event, next, actions) in transitions() {
        if from == State::Error && event != Event::Modify(VerbsState::Reset) {
            assert_eq!(next, State::Error);
            assert!(!actions.contains(Actions::SEND_TERMINATE));
        }
    }
}

#[test]
fn what_is_posted_is_flushed_once_on_the_way_down() {
    // RDMAP-99: none lost, none twice.
    for (from, event, next, actions) in transitions() {
        let goes_down = next == State::Error && from != State::Error;
        let starts_over = next == State::Reset && from != State::Reset;
        assert_eq!(
            actions.contains(Actions::FLUSH),
            goes_down || starts_over,
            "{from:?} {event:?}"
        );
    }
}

#[test]
fn at_most_one_terminate_is_sent() {
    // RDMAP-100, -144: on the way into the one state that waits for it.
    for (from, event, next, actions) in transitions() {
        let begins = next == State::Terminating && from != State::Terminating;
        assert_eq!(
            actions.contains(Actions::SEND_TERMINATE),
            begins,
            "{from:?} {event:?}"
        );
    }
}

#[test]
fn every_fault_on_a_stream_is_reported_to_both_ends() {
    // RDMAP-136, -139.
    for fault in Fault::ALL {
        for state in State::ALL {
            let transition = state.handle(Event::Fault(fault)).unwrap();
            if state.receives() {
                assert_eq!(transition.next, State::Terminating);
                assert!(transition
                    .actions
                    .contains(Actions::SEND_TERMINATE.and(Actions::REPORT_ERROR)));
            } else {
                assert_eq!(transition.next, state);
                assert_eq!(transition.actions, Actions::NONE);
            }
        }
    }
}

#[test]
fn a_terminate_is_followed_by_a_graceful_close() {
    // RDMAP-135.
    let transition = State::Terminating.handle(Event::TerminateSent).unwrap();
    assert!(transition.actions.contains(Actions::SHUTDOWN));
    assert!(!transition.actions.contains(Actions::ABORT));
}

#[test]
fn repeated_events_change_nothing_more() {
    for (from, event, next, _) in transitions() {
        if let Ok(again) = next.handle(event) {
            assert_eq!(again.next, next, "{from:?} {event:?}");
        }
    }
}

#[test]
fn posting_follows_the_state() {
    use Posting::{
        Flushed,
        Queued,
        Refused, //
    };
    let table: Vec<_> = State::ALL
        .iter()
        .map(|state| (state.send_posting(), state.recv_posting()))
        .collect();
    assert_eq!(
        table,
        [
            (Refused, Refused),
            (Refused, Queued),
            (Refused, Queued),
            (Queued, Queued),
            (Flushed, Queued),
            (Flushed, Flushed),
            (Flushed, Flushed),
        ]
    );
}

#[test]
fn nothing_moves_but_in_the_middle_states() {
    // RDMAP-137, DDP-83.
    for state in State::ALL {
        let moves = matches!(state, State::Rtr | State::Rts | State::Closing);
        assert_eq!((state.receives(), state.transmits()), (moves, moves));
    }
}

#[test]
fn verbs_states_are_distinct() {
    for one in State::ALL {
        for other in State::ALL {
            assert_eq!(one == other, one.verbs() == other.verbs());
        }
    }
}
