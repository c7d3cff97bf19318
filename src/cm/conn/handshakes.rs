// SPDX-License-Identifier: GPL-2.0

//! TLS handshakes under way: what a connection keeps for one, and how many there are.
//!
//! Context: process.

use core::net::IpAddr;

use iwarp::mpa::{
    negotiate::{
        Initiator,
        Responder, //
    },
    start::Frame, //
};
use kernel::{
    new_spinlock,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        SpinLock, //
    },
    time::{
        Instant,
        Monotonic, //
    }, //
};
use kernel_ext::net::{
    Credentials,
    Handshake,
    TlsRole, //
};

use crate::cm::listen::admission::HalfOpen;

use super::frames::Inbox;

/// How many handshakes of a device may be under way on either side. The kernel lets 3 to 50 of a
/// network namespace wait for the daemon, those of NVMe and NFS among them.
const HANDSHAKES_MAX: usize = 16;
/// How many of them peers at one address may have begun.
const OF_ADDRESS_MAX: usize = 4;
/// For how long at least a peer's handshake keeps its place if others wait for one, in
/// milliseconds. Peers that answer need a round trip or two, and the daemon's time.
const PLACE_MS: i64 = 1_000;

/// A connection whose handshake is under way.
pub(in crate::cm) struct Securing {
    pub(super) credentials: Credentials,
    pub(super) begun: Begun,
    pub(super) then: AfterHandshake,
}

/// How far a handshake has come.
pub(super) enum Begun {
    /// Others are under way.
    No,
    /// The kernel lets too many wait; the socket was lent.
    Lent(Turn),
    /// The daemon was asked.
    Asked(Handshake, Turn),
}

/// What follows a handshake.
pub(super) enum AfterHandshake {
    /// Initiator: send the Request.
    Request {
        initiator: Initiator,
        request: KBox<Frame>,
    },
    /// Responder: await the Request.
    Await {
        responder: Responder,
        inbox: Inbox,
        entry: HalfOpen,
    },
}

impl AfterHandshake {
    /// Returns the part of this end.
    pub(super) fn role(&self) -> TlsRole {
        match self {
            Self::Request { .. } => TlsRole::Client,
            Self::Await { .. } => TlsRole::Server,
        }
    }
}

/// The handshakes of a device that are under way.
///
/// Those of this end's consumers and those of peers have places of their own. A peer that stops
/// inside a handshake loses its place to another one after a second, first to one at the same
/// address.
#[pin_data]
pub(in crate::cm) struct Handshakes {
    /// Those of peers, oldest first, with capacity for all.
    #[pin]
    accepted: SpinLock<KVec<HandshakePlace>>,
    /// How many this end's consumers have begun.
    // ORDERING: Relaxed: a count that stands for no other memory.
    connecting: Atomic<usize>,
}

/// A peer's handshake.
struct HandshakePlace {
    /// The number of its connection.
    number: u64,
    from: IpAddr,
    since: Instant<Monotonic>,
}

/// What a peer gets that wants to begin a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seat {
    /// A place.
    Free,
    /// That of the handshake at this index, once it has ended.
    After(usize),
    /// None yet.
    Wait,
}

impl Handshakes {
    /// Makes places of which none is taken.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(in crate::cm) fn new() -> Result<Arc<Self>> {
        let places = KVec::with_capacity(HANDSHAKES_MAX, GFP_KERNEL)?;
        Arc::pin_init(
            pin_init!(Self {
                accepted <- new_spinlock!(places, "riwarp::Handshakes::accepted"),
                connecting: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }
}

/// Decides about a handshake from an address, beside those whose addresses and ages in milliseconds
/// these are, oldest first.
fn seat(others: impl Iterator<Item = (IpAddr, i64)> + Clone, from: IpAddr) -> Seat {
    let of_address = others.clone().filter(|other| other.0 == from).count();
    let crowded = of_address >= OF_ADDRESS_MAX;
    if !crowded && others.clone().count() < HANDSHAKES_MAX {
        return Seat::Free;
    }
    let mut others = others.enumerate();
    let oldest = others.find(|(_, other)| !crowded || other.0 == from);
    match oldest {
        Some((index, (_, age))) if age >= PLACE_MS => Seat::After(index),
        Some(_) | None => Seat::Wait,
    }
}

/// The place of a handshake, free again when this is dropped.
pub(super) struct Turn {
    handshakes: Arc<Handshakes>,
    /// The number of the connection of a peer's handshake.
    accepted: Option<u64>,
}

/// Why a peer's handshake cannot begin yet.
pub(super) struct NoTurn {
    /// The number of the connection that has to end for it.
    pub(super) gives_way: Option<u64>,
}

impl Turn {
    /// Takes a place for a handshake of this end's consumer.
    pub(super) fn connecting(handshakes: &Arc<Handshakes>) -> Option<Self> {
        let mut seen = handshakes.connecting.load(Relaxed);
        while seen < HANDSHAKES_MAX {
            let more = seen.saturating_add(1);
            match handshakes.connecting.cmpxchg(seen, more, Relaxed) {
                Ok(_) => {
                    return Some(Self {
                        handshakes: handshakes.clone(),
                        accepted: None,
                    })
                }
                Err(other) => seen = other,
            }
        }
        None
    }

    /// Takes a place for the handshake of a peer, by the number of its connection.
    ///
    /// # Errors
    ///
    /// There is none. If one that is taken has been so for long, its connection has to end.
    pub(super) fn accepted(
        handshakes: &Arc<Handshakes>,
        number: u64,
        from: IpAddr,
    ) -> Result<Self, NoTurn> {
        let mut places = handshakes.accepted.lock();
        let ages = places
            .iter()
            .map(|place| (place.from, place.since.elapsed().as_millis()));
        let gives_way = match seat(ages, from) {
            Seat::Free => {
                let place = HandshakePlace {
                    number,
                    from,
                    since: Instant::now(),
                };
                if places.push_within_capacity(place).is_ok() {
                    return Ok(Self {
                        handshakes: handshakes.clone(),
                        accepted: Some(number),
                    });
                }
                None
            }
            Seat::After(index) => places.get(index).map(|place| place.number),
            Seat::Wait => None,
        };
        Err(NoTurn { gives_way })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        match self.accepted {
            Some(number) => self
                .handshakes
                .accepted
                .lock()
                .retain(|place| place.number != number),
            // NO-OVERFLOW: `connecting` has counted this one.
            None => {
                let _ = self.handshakes.connecting.fetch_sub(1, Relaxed);
            }
        }
    }
}

#[kernel::prelude::kunit_tests(riwarp_handshakes)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;

    fn address(last: u8) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
    }

    /// Decides about a handshake from an address beside those from these, of one age.
    fn seat_beside(others: &[u8], age: i64, from: u8) -> Seat {
        let others = others.iter().map(|last| (address(*last), age));
        seat(others, address(from))
    }

    #[test]
    fn handshakes_of_one_address_are_few() {
        assert_eq!(seat_beside(&[], 0, 1), Seat::Free);
        assert_eq!(seat_beside(&[1, 1, 1], 0, 1), Seat::Free);
        assert_eq!(seat_beside(&[2, 1, 1, 1, 1], 0, 1), Seat::Wait);
        assert_eq!(seat_beside(&[2, 1, 1, 1, 1], 999, 1), Seat::Wait);
        // The oldest of the same address gives way.
        assert_eq!(seat_beside(&[2, 1, 1, 1, 1], 1_000, 1), Seat::After(1));
        assert_eq!(seat_beside(&[2, 1, 1, 1, 1], 1_000, 3), Seat::Free);
    }

    #[test]
    fn handshake_that_stops_gives_its_place_to_another_address() {
        let all: [u8; 16] = core::array::from_fn(|i| i as u8);
        assert_eq!(seat_beside(&all[..15], 5_000, 100), Seat::Free);
        assert_eq!(seat_beside(&all, 999, 100), Seat::Wait);
        assert_eq!(seat_beside(&all, 1_000, 100), Seat::After(0));
    }
}
