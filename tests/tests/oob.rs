// SPDX-License-Identifier: GPL-2.0

//! Two queue pairs that connect to each other, in every possible order of events.
//!
//! A model of the driver's use of [`Pair::judge_connect`]. Each end has one connection at a time
//! and may connect a few times. Messages of one connection and direction arrive in order, and
//! otherwise at any time. All reachable states are visited.

use std::collections::HashSet;

use iwarp::oob::{
    ConnectState,
    FeatureBits,
    Judgement,
    Pair,
    Psn,
    QpAddr,
    QpNumber, //
};

/// A message on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Message {
    Request,
    Reply,
    /// The ready-to-receive message.
    First,
    /// A reset or FIN.
    Close,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Connection {
    caller: usize,
    /// The caller's TCP connection is established.
    up: bool,
    /// The messages sent to each end that have not arrived, in order.
    to: [Vec<Message>; 2],
    /// Whether each end's socket is closed.
    closed: [bool; 2],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Side {
    state: u8,
    bound: Option<usize>,
    /// Whether the end has its stream.
    open: bool,
    calls_left: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    sides: [Side; 2],
    connections: Vec<Connection>,
}

const STATES: [ConnectState; 4] = [
    ConnectState::Free,
    ConnectState::Connecting,
    ConnectState::Requesting,
    ConnectState::Accepting,
];

fn index_of(state: ConnectState) -> u8 {
    STATES.iter().position(|one| *one == state).unwrap() as u8
}

/// Returns the pair as an end sees it; end 0 is the smaller one.
fn pair(side: usize) -> Pair {
    let end = |side: usize| QpAddr {
        gid: [side as u8; 16],
        number: QpNumber::new(9),
    };
    Pair {
        local: end(side),
        remote: end(1 - side),
        receive_psn: Psn::new(1),
        send_psn: Some(Psn::new(1)),
        features: FeatureBits::NONE,
        rnr_retry: None,
    }
}

impl World {
    fn new(calls: [u8; 2]) -> Self {
        let side = |calls_left| Side {
            state: index_of(ConnectState::Free),
            bound: None,
            open: false,
            calls_left,
        };
        Self {
            sides: calls.map(side),
            connections: Vec::new(),
        }
    }

    fn set(&mut self, side: usize, state: ConnectState, bound: Option<usize>) {
        self.sides[side].state = index_of(state);
        self.sides[side].bound = bound;
    }

    fn state(&self, side: usize) -> ConnectState {
        STATES[usize::from(self.sides[side].state)]
    }

    fn close(&mut self, side: usize, id: usize) {
        let connection = &mut self.connections[id];
        if !connection.closed[side] {
            connection.closed[side] = true;
            connection.to[side].clear();
            connection.to[1 - side].push(Message::Close);
        }
    }

    /// Removes a connection of this end that failed before it became a stream.
    fn lose(&mut self, side: usize, id: usize) {
        self.close(side, id);
        if self.sides[side].bound == Some(id) {
            assert!(!self.sides[side].open, "a stream is lost: {self:?}");
            self.set(side, ConnectState::Free, None);
        }
    }

    fn receive(&mut self, side: usize, id: usize, message: Message) {
        let is_mine = self.sides[side].bound == Some(id);
        let open = self.sides[side].open;
        match message {
            Message::Request => {
                let taken = !open && pair(side).judge_connect(self.state(side)) == Judgement::Take;
                if !taken {
                    return self.close(side, id);
                }
                if let Some(old) = self.sides[side].bound {
                    self.close(side, old);
                }
                self.set(side, ConnectState::Accepting, Some(id));
                self.connections[id].to[1 - side].push(Message::Reply);
            }
            Message::Reply => {
                assert!(
                    is_mine && self.state(side) == ConnectState::Requesting,
                    "{self:?}"
                );
                self.sides[side].open = true;
                self.connections[id].to[1 - side].push(Message::First);
            }
            Message::First => {
                assert!(
                    is_mine && self.state(side) == ConnectState::Accepting,
                    "{self:?}"
                );
                self.sides[side].open = true;
            }
            Message::Close => self.lose(side, id),
        }
    }

    /// Returns all possible next states.
    fn successors(&self) -> Vec<Self> {
        let mut found = Vec::new();
        for side in 0..2 {
            if self.state(side) == ConnectState::Free && self.sides[side].calls_left > 0 {
                let mut next = self.clone();
                next.sides[side].calls_left -= 1;
                next.connections.push(Connection {
                    caller: side,
                    up: false,
                    to: [Vec::new(), Vec::new()],
                    closed: [false; 2],
                });
                next.set(side, ConnectState::Connecting, Some(self.connections.len()));
                found.push(next);
            }
        }
        for (id, connection) in self.connections.iter().enumerate() {
            let caller = connection.caller;
            if !connection.up && !connection.closed[caller] {
                let mut next = self.clone();
                next.connections[id].up = true;
                next.connections[id].to[1 - caller].push(Message::Request);
                next.set(caller, ConnectState::Requesting, Some(id));
                found.push(next);
            }
            for side in 0..2 {
                if !connection.closed[side] && !connection.to[side].is_empty() {
                    let mut next = self.clone();
                    let message = next.connections[id].to[side].remove(0);
                    next.receive(side, id, message);
                    found.push(next);
                }
            }
        }
        found
    }

    fn is_done(&self) -> bool {
        self.sides.iter().all(|side| side.open)
    }
}

/// Visits all states; returns their number.
fn explore(calls: [u8; 2]) -> usize {
    let mut seen = HashSet::new();
    let mut todo = vec![World::new(calls)];
    while let Some(world) = todo.pop() {
        if !seen.insert(world.clone()) {
            continue;
        }
        if world.is_done() {
            assert_eq!(world.sides[0].bound, world.sides[1].bound, "{world:?}");
        }
        let next = world.successors();
        // Only a connected pair may have no next state: without calls that fail by themselves, each
        // end's second call succeeds at the latest.
        assert!(!next.is_empty() || world.is_done(), "stuck: {world:?}");
        todo.extend(next);
    }
    seen.len()
}

#[test]
fn any_order_of_connects_leaves_one_connection() {
    for calls in [[1, 0], [0, 1], [1, 1], [2, 2], [3, 2], [2, 3]] {
        let states = explore(calls);
        println!("{calls:?}: {states} states");
        assert!(states > 4);
    }
}

#[test]
fn psns_are_kept_from_logs() {
    let shown = format!("{:?}", pair(0));
    assert_eq!(shown.matches("Psn(..)").count(), 2, "{shown}");
}
