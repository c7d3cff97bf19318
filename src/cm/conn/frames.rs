// SPDX-License-Identifier: GPL-2.0

//! Start-up frames: what the device's settings put into them, and those in transit, octets between
//! the socket and `iwarp::mpa`.
//!
//! Octets move in whatever pieces TCP has them, without waiting. A reader takes exactly the octets
//! of the frame, so that the first FPDU stays in TCP for the queue pair.
//!
//! Context: process.

use iwarp::{
    fault::Fault,
    features::Features,
    mpa::{
        self,
        marker::MARKER_LEN,
        negotiate::{
            Config,
            PeerToPeer,
            StreamRules, //
        },
        start::{
            Frame,
            PrivateData,
            Revision,
            FRAME_MAX, //
        },
        Crc,
        Markers, //
    },
    rdmap::{
        Extensions,
        Marked, //
    },
    segment::{
        Message,
        Segmenter, //
    },
    terminate::Terminate, //
};
use kernel::prelude::*;
use kernel_ext::{
    crc32c,
    net::{
        Credentials,
        SockAddr,
        Socket, //
    }, //
};

use crate::device::{
    settings::MpaRevision,
    Device, //
};

/// An incoming frame.
pub(in crate::cm) struct Inbox {
    /// [`FRAME_MAX`] octets.
    octets: KVec<u8>,
    len: usize,
}

/// What a read or peek of the socket found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cm) enum Readable {
    /// The peer has closed its half of the connection.
    End,
    /// Nothing yet.
    Nothing,
    /// Octets.
    Octets,
}

impl Inbox {
    /// Makes an empty inbox.
    pub(in crate::cm) fn new() -> Result<Self> {
        let mut octets = KVec::new();
        octets.resize(FRAME_MAX, 0, GFP_KERNEL)?;
        Ok(Self { octets, len: 0 })
    }

    /// Returns the octets received so far, from the first one of the frame on.
    pub(in crate::cm) fn octets(&self) -> &[u8] {
        self.octets.get(..self.len).unwrap_or_default()
    }

    /// Reads from the socket until `wanted` octets are present or none are available.
    pub(in crate::cm) fn fill(&mut self, socket: &Socket, wanted: usize) -> Result<Readable> {
        let Some(room) = self.octets.get_mut(self.len..wanted) else {
            return Err(EINVAL);
        };
        match socket.recv(room) {
            Ok(0) => Ok(Readable::End),
            Ok(octets) => {
                self.len = self.len.saturating_add(octets);
                Ok(Readable::Octets)
            }
            Err(error) if error == EAGAIN => Ok(Readable::Nothing),
            Err(error) => Err(error),
        }
    }
}

/// Peeks whether octets are available.
pub(in crate::cm) fn readable(socket: &Socket) -> Result<Readable> {
    match socket.peek(&mut [0]) {
        Ok(0) => Ok(Readable::End),
        Ok(_) => Ok(Readable::Octets),
        Err(error) if error == EAGAIN => Ok(Readable::Nothing),
        Err(error) => Err(error),
    }
}

/// An outgoing frame.
pub(in crate::cm) struct Outbox {
    frame: KBox<Frame>,
    sent: usize,
}

/// Whether a frame was sent completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cm) enum Sent {
    /// TCP accepted all octets.
    All,
    /// Another thread owns the socket.
    Busy,
    /// TCP has no space for the rest now.
    Part,
}

impl Outbox {
    /// Makes an outbox for a frame.
    pub(in crate::cm) fn new(frame: KBox<Frame>) -> Self {
        Self { frame, sent: 0 }
    }

    /// Sends what has not been sent yet.
    pub(in crate::cm) fn flush(&mut self, socket: &Socket) -> Result<Sent> {
        loop {
            let rest = self.frame.as_octets().get(self.sent..).unwrap_or_default();
            if rest.is_empty() {
                return Ok(Sent::All);
            }
            match socket.try_send(rest) {
                Ok(octets) => self.sent = self.sent.saturating_add(octets),
                Err(error) if error == EAGAIN => return Ok(Sent::Part),
                Err(error) if error == EBUSY => return Ok(Sent::Busy),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Sends the Terminate for a stream that fails just as it begins (MPA-38, -43, -46).
///
/// The Terminate is the first and only FPDU, and small. An empty connection always has space for
/// it; if TCP has none, it is not sent.
pub(in crate::cm) fn send_terminate(socket: &Socket, rules: &StreamRules, fault: Fault) {
    let terminate = Message::Terminate(Terminate::for_fault(fault, None));
    let Some(plan) = Segmenter::new(terminate, 0).next(mpa::MULPDU_MIN) else {
        return;
    };
    let mut fpdu = [0; TERMINATE_MAX];
    let mut len = 0;
    let mut put = |octets: &[u8]| {
        if let Some(room) = fpdu.get_mut(len..len + octets.len()) {
            room.copy_from_slice(octets);
            len += octets.len();
        }
        len
    };
    if rules.send_markers == Markers::On {
        // MPA-25: the first Marker precedes the first FPDU, with a pointer of zero.
        put(&[0; MARKER_LEN]);
    }
    put(plan.header());
    let end = put(PADDING
        .get(..usize::from(plan.pad_len()))
        .unwrap_or_default());
    let crc = match rules.crc {
        Crc::On => crc32c::finish(crc32c::update(
            crc32c::INIT,
            fpdu.get(..end).unwrap_or_default(),
        )),
        Crc::Off => 0,
    };
    let end = end + mpa::CRC_LEN;
    if let Some(field) = fpdu.get_mut(end - mpa::CRC_LEN..end) {
        field.copy_from_slice(&mpa::crc_trailer(crc));
    }
    // A short send cannot be completed later.
    let _ = socket.try_send(fpdu.get(..end).unwrap_or_default());
}

/// More than a Terminate without a quote takes: Marker, length, headers, pad and CRC.
const TERMINATE_MAX: usize = 64;
const PADDING: [u8; 3] = [0; 3];

/// Returns the part of the peer's private data that fits an event: at most 255 octets.
pub(in crate::cm) fn event_private_data(place: PrivateData, frame: &[u8]) -> &[u8] {
    let private_data = place.of(frame);
    let len = private_data.len().min(usize::from(u8::MAX));
    private_data.get(..len).unwrap_or_default()
}

/// The side of a start-up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::cm) enum Role {
    /// The side that opens the connection.
    Initiator,
    /// The side that listens.
    Responder,
}

/// Returns the start-up configuration from the device's settings.
pub(in crate::cm) fn config(device: &Device, role: Role) -> Config {
    let settings = &device.settings;
    let revision = match (role, settings.mpa_rev()) {
        (Role::Initiator, MpaRevision::One) => Revision::One,
        // The setting applies to Requests sent; a Request of either revision is answered.
        (Role::Initiator, MpaRevision::Two) | (Role::Responder, _) => Revision::Two,
    };
    Config {
        revision,
        crc: if settings.crc() { Crc::On } else { Crc::Off },
        markers: Markers::Off,
        peer_to_peer: if settings.peer_to_peer() {
            PeerToPeer::On
        } else {
            PeerToPeer::Off
        },
        extensions: if settings.extensions() {
            Extensions::SendImmediate
        } else {
            Extensions::Rfc7306
        },
        features: settings.ulpdu_limit().map(|ulpdu_max| Features {
            ulpdu_max,
            marked: Marked::ALL,
        }),
        ..Config::default()
    }
}

/// Returns the configuration of a side that connects, and the credentials of the TLS handshake in
/// front of its Request, if the device has it begin with one.
pub(in crate::cm) fn initiator_config(device: &Device) -> (Config, Option<Credentials>) {
    let mut config = config(device, Role::Initiator);
    let tls = device.tls.policy().map(|policy| policy.credentials);
    if tls.is_some() {
        // What authenticates each record is stronger (MPA-15).
        config.crc = Crc::Off;
    }
    (config, tls)
}

/// Makes the socket of a side that connects to a peer, with the file that a TLS handshake demands.
///
/// # Errors
///
/// Those of [`Device::net`], [`Socket::new_tcp`], [`Credentials::server_name`] and
/// [`Socket::into_file`].
pub(in crate::cm) fn initiator_socket(
    device: &Device,
    peer: &SockAddr,
    tls: Option<&Credentials>,
) -> Result<Socket> {
    let socket = Socket::new_tcp(&device.net()?, peer.family())?;
    match tls {
        Some(credentials) => socket.into_file(&credentials.server_name(peer.ip())?),
        None => Ok(socket),
    }
}
