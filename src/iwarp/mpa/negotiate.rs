// SPDX-License-Identifier: GPL-2.0

//! Start-up: which frames the ends exchange, and what they agree on.
//!
//! The Initiator sends [`Initiator::request`] and passes the answer to
//! [`Initiator::handle_reply`]; the Responder passes the Request to [`Responder::handle_request`]
//! and sends [`Responder::accept`] or [`Responder::reject`]. Both handlers take the octets that
//! have arrived so far, from the first octet of the frame on, and may be called again with more:
//! [`Progress::NeedMore`] says how many octets are needed, never more than the frame has, so that a
//! reader does not take octets of the first FPDU.
//!
//! A [`StartError`] means: close at once, send nothing. A [`Verdict::Failed`] means: enter full
//! operation and send the Terminate of the fault. The driver sets the time-outs (MPA-8).
//!
//! Pure; process context.
//!
//! RFC 5044, section 7.1; RFC 6581, sections 6 to 10 (rows MPA-1..10, -14, -15,
//! -32..48).

mod rtr;

pub use rtr::Rtr;

use crate::{
    fault::Fault,
    features::Features,
    mpa::{
        start::{
            Enhanced,
            Frame,
            FrameKind,
            PrivateData,
            Revision,
            RtrKinds,
            StartError,
            StartHeader,
            WireDepth,
            ENHANCED_LEN,
            FRAME_LEN, //
        },
        Crc,
        Markers, //
    },
    rdmap::Extensions, //
};

/// What one end wants of its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The revision to ask for, and the greatest one to accept.
    pub revision: Revision,
    /// Whether to ask for CRCs (MPA-15).
    pub crc: Crc,
    /// Whether to ask the peer to insert Markers (MPA-23).
    pub markers: Markers,
    /// Whether an Initiator asks for peer-to-peer set-up; needs revision 2.
    pub peer_to_peer: PeerToPeer,
    /// The RTR kinds that this end can send as Initiator, or take as Responder. A Responder with
    /// none is treated as one that takes Write and Read, since its Reply must name a kind (MPA-39).
    pub rtr: RtrKinds,
    /// [`Extensions::SendImmediate`]: an Initiator offers the Send with Immediate, a Responder
    /// takes that offer, both by flags that RFC 5044 reserves (MPA-3).
    pub extensions: Extensions,
    /// What to tell peers that are riwarp devices, by further flags that RFC 5044 reserves.
    /// [`None`]: nothing is told or asked.
    pub features: Option<Features>,
}

/// Whether either end may be the first to send (RFC 6581, section 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PeerToPeer {
    /// The Initiator's ULP sends first.
    #[default]
    Off,
    /// The Initiator sends an RTR by itself, after which both may.
    On,
}

impl Default for Config {
    /// Revision 2, CRCs on (MPA-15), no Markers, RTR by Write or Read if asked for, reserved flags
    /// 0, so no features.
    fn default() -> Self {
        Self {
            revision: Revision::Two,
            crc: Crc::On,
            markers: Markers::Off,
            peer_to_peer: PeerToPeer::Off,
            rtr: RtrKinds::WRITE.union(RtrKinds::READ),
            extensions: Extensions::Rfc7306,
            features: None,
        }
    }
}

/// Read queue depths as an end has or wants them, in requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depths {
    /// How many of the peer's Reads (and Atomics) may be unanswered.
    pub ird: u16,
    /// How many of this end's may be unanswered.
    pub ord: u16,
}

/// What the peer said about its depths; `None` for one that MPA does not negotiate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerDepths {
    /// How many Reads the peer takes.
    pub ird: Option<u16>,
    /// How many Reads the peer would like to send.
    pub ord: Option<u16>,
}

impl PeerDepths {
    const fn new(enhanced: &Enhanced) -> Self {
        Self {
            ird: enhanced.ird.get(),
            ord: enhanced.ord.get(),
        }
    }
}

/// How far a handler got with the octets that have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<T> {
    /// The handler needs at least this many octets, counted from the start of the frame.
    NeedMore(usize),
    /// The frame is complete.
    Done(T),
}

/// The rules of the stream that both ends have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamRules {
    /// Whether CRCs are generated and checked, in both directions (MPA-14).
    pub crc: Crc,
    /// Whether this end sends Markers, as the peer wants (MPA-23).
    pub send_markers: Markers,
    /// Whether the peer sends Markers, as this end wants.
    pub receive_markers: Markers,
    /// The depths from now on: exact limits (RDMAP-128, -129).
    pub depths: Depths,
    /// What the peer said, for the ULP; `None` without enhanced data.
    pub peer_depths: Option<PeerDepths>,
    /// What both ends understand: that of the configuration, less the Send with Immediate if the
    /// peer did not agree.
    pub extensions: Extensions,
    /// What the ends tell each other about themselves.
    pub features: FeatureRules,
}

/// How far the exchange of [`Features`] has come with the start-up frames, and what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureRules {
    /// What both ends can do, as far as this end knows the peer's.
    pub common: Option<Features>,
    /// What the Initiator tells first of all on its stream.
    pub tell: Option<Features>,
    /// What the Responder can do if the Initiator still has to tell its own.
    pub awaits: Option<Features>,
}

impl FeatureRules {
    /// The ends tell each other nothing.
    pub const NONE: Self = Self {
        common: None,
        tell: None,
        awaits: None,
    };
}

/// A frame whose fixed part, enhanced data and private data have all arrived.
struct Arrived {
    header: StartHeader,
    enhanced: Option<Enhanced>,
    frame_len: usize,
    private_data: PrivateData,
}

impl Arrived {
    /// Reads a frame out of its first `octets`.
    fn read(octets: &[u8], kind: FrameKind) -> Result<Progress<Self>, StartError> {
        let Some((front, rest)) = octets.split_first_chunk::<FRAME_LEN>() else {
            kind.check_key(octets)?;
            return Ok(Progress::NeedMore(FRAME_LEN));
        };
        let header = StartHeader::decode(front, kind)?;
        // NO-OVERFLOW: at most 20 + 512.
        let frame_len = FRAME_LEN.saturating_add(usize::from(header.private_len));
        if octets.len() < frame_len {
            return Ok(Progress::NeedMore(frame_len));
        }
        let enhanced = if header.enhanced {
            // `decode` has checked that the four octets are part of the frame.
            let octets = rest
                .first_chunk::<ENHANCED_LEN>()
                .ok_or(StartError::EnhancedLength)?;
            Some(Enhanced::decode(octets))
        } else {
            None
        };
        // CAST: 20 and 4.
        let hidden = if header.enhanced {
            const { ENHANCED_LEN as u16 }
        } else {
            0
        };
        Ok(Progress::Done(Self {
            header,
            enhanced,
            frame_len,
            private_data: PrivateData {
                offset: const { FRAME_LEN as u16 }.saturating_add(hidden),
                len: header.private_len.saturating_sub(hidden),
            },
        }))
    }

    /// Takes the features of the Responder out of the front of the private data.
    fn take_features(&mut self, octets: &[u8]) -> Option<Features> {
        let private_data = &mut self.private_data;
        let (features, len) = Features::decode(private_data.of(octets))?;
        // CAST: no more than the private data.
        let len = len as u16;
        private_data.offset = private_data.offset.saturating_add(len);
        private_data.len = private_data.len.saturating_sub(len);
        Some(features)
    }
}

/// The active end of a start-up.
#[derive(Clone, Copy, Debug)]
pub struct Initiator {
    config: Config,
    depths: Depths,
}

/// A complete Reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Length of the frame in octets; the octets behind it belong to the stream.
    pub frame_len: usize,
    /// The private data of the peer's ULP, whatever the verdict.
    pub private_data: PrivateData,
    /// What follows from it.
    pub verdict: Verdict,
}

/// What follows from a Reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The stream is up.
    Accepted {
        /// Its rules.
        rules: StreamRules,
        /// What to send before anything else, if peer-to-peer set-up is agreed; otherwise the ULP
        /// of this end has to send first (MPA-9).
        rtr: Option<Rtr>,
    },
    /// The peer's ULP refused: close (MPA-4).
    Rejected,
    /// The peer accepted, but the stream cannot be used: enter full operation by these rules, send
    /// a Terminate for the fault, close.
    Failed {
        /// The rules for the Terminate.
        rules: StreamRules,
        /// [`Fault::InsufficientIrd`] or [`Fault::NoMatchingRtr`] (MPA-38, -43).
        fault: Fault,
    },
}

impl Initiator {
    /// Begins a start-up. Lowers depths above [`WireDepth::MAX`] to that. Does not ask for
    /// peer-to-peer set-up without an RTR kind.
    pub fn new(config: Config, depths: Depths) -> Self {
        let mut this = Self { config, depths };
        this.depths.ird = depths.ird.min(WireDepth::MAX);
        this.depths.ord = depths.ord.min(WireDepth::MAX);
        if this.peer_to_peer() && config.rtr == RtrKinds::READ {
            // MPA-45: the Read that starts the stream takes a slot.
            this.depths.ord = this.depths.ord.max(1);
        }
        this
    }

    fn peer_to_peer(&self) -> bool {
        self.config.revision == Revision::Two
            && self.config.peer_to_peer == PeerToPeer::On
            && !self.config.rtr.is_empty()
    }

    /// Returns the Request: the first octets on the connection (MPA-1). A getter.
    ///
    /// # Errors
    ///
    /// [`StartError::PrivateDataTooLong`] for more than 508 octets in revision 2, 512 in revision
    /// 1.
    pub fn request(&self, private_data: &[u8]) -> Result<Frame, StartError> {
        let peer_to_peer = self.peer_to_peer();
        let enhanced = (self.config.revision == Revision::Two).then_some(Enhanced {
            peer_to_peer,
            rtr: if peer_to_peer {
                self.config.rtr
            } else {
                RtrKinds::NONE
            },
            ird: WireDepth::new(self.depths.ird),
            ord: WireDepth::new(self.depths.ord),
        });
        let header = StartHeader {
            kind: FrameKind::Request,
            markers: self.config.markers,
            crc: self.config.crc,
            rejected: false,
            revision: self.config.revision,
            enhanced: false,
            send_immediate: self.config.extensions == Extensions::SendImmediate,
            features: self.config.features.is_some(),
            private_len: 0,
        };
        Frame::new(header, enhanced, None, private_data)
    }

    /// Returns the rules of a connection to this end itself, which needs no start-up: both ends
    /// have one configuration. A getter.
    pub fn rules_with_itself(&self) -> StreamRules {
        let Config {
            crc,
            markers,
            extensions,
            features,
            ..
        } = self.config;
        let depth = self.depths.ird.min(self.depths.ord);
        StreamRules {
            crc,
            send_markers: markers,
            receive_markers: markers,
            depths: Depths {
                ird: self.depths.ird,
                ord: depth,
            },
            peer_depths: Some(PeerDepths {
                ird: Some(self.depths.ird),
                ord: Some(depth),
            }),
            extensions,
            features: FeatureRules {
                common: features,
                ..FeatureRules::NONE
            },
        }
    }

    /// Judges what has arrived so far, from the first octet of the Reply on.
    ///
    /// Accepts a Reply of a lower revision than the Request, or without enhanced data: then nothing
    /// is negotiated and no RTR is sent (MPA-34).
    ///
    /// # Errors
    ///
    /// Those of [`StartHeader::decode`], and [`StartError::Revision`] for a Reply above the
    /// Request's revision.
    pub fn handle_reply(&self, octets: &[u8]) -> Result<Progress<Reply>, StartError> {
        let mut arrived = match Arrived::read(octets, FrameKind::Reply)? {
            Progress::Done(arrived) => arrived,
            Progress::NeedMore(len) => return Ok(Progress::NeedMore(len)),
        };
        if arrived.header.revision > self.config.revision {
            return Err(StartError::Revision);
        }
        let offered = self.config.features.filter(|_| arrived.header.features);
        let features = offered.and_then(|ours| {
            let theirs = arrived.take_features(octets)?;
            Some(FeatureRules {
                common: Some(ours.common(theirs)),
                tell: Some(ours),
                awaits: None,
            })
        });
        let verdict = if arrived.header.rejected {
            Verdict::Rejected
        } else {
            self.judge(&arrived, features.unwrap_or(FeatureRules::NONE))
        };
        Ok(Progress::Done(Reply {
            frame_len: arrived.frame_len,
            private_data: arrived.private_data,
            verdict,
        }))
    }

    fn judge(&self, arrived: &Arrived, features: FeatureRules) -> Verdict {
        let mut rules = rules(&self.config, &arrived.header, self.depths);
        rules.features = features;
        let Some(enhanced) = arrived.enhanced else {
            return Verdict::Accepted { rules, rtr: None };
        };
        let peer = PeerDepths::new(&enhanced);
        rules.peer_depths = Some(peer);
        // MPA-36, -37: a depth that the peer leaves open does not change.
        if let Some(ird) = peer.ird {
            rules.depths.ord = rules.depths.ord.min(ird);
        }
        if peer.ord.is_some_and(|ord| ord > rules.depths.ird) {
            // MPA-38.
            let fault = Fault::InsufficientIrd;
            return Verdict::Failed { rules, fault };
        }
        if !self.peer_to_peer() {
            return Verdict::Accepted { rules, rtr: None };
        }
        let offered = if enhanced.peer_to_peer {
            enhanced.rtr
        } else {
            RtrKinds::NONE
        };
        match Rtr::choose(self.config.rtr.intersection(offered)) {
            // MPA-43.
            None => Verdict::Failed {
                rules,
                fault: Fault::NoMatchingRtr,
            },
            Some(rtr) => {
                if rtr == Rtr::Read {
                    // MPA-45.
                    rules.depths.ord = rules.depths.ord.max(1);
                }
                Verdict::Accepted {
                    rules,
                    rtr: Some(rtr),
                }
            }
        }
    }
}

/// The passive end of a start-up.
#[derive(Clone, Copy, Debug)]
pub struct Responder {
    config: Config,
}

/// A complete Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Length of the frame in octets; nothing may lie behind it (MPA-7).
    pub frame_len: usize,
    /// The private data of the peer's ULP.
    pub private_data: PrivateData,
    /// The peer's depths, by which the ULP chooses its own; `None` without enhanced data.
    pub peer_depths: Option<PeerDepths>,
    header: StartHeader,
    enhanced: Option<Enhanced>,
}

impl Request {
    /// Returns whether the Initiator asks that either end may send first. A getter.
    pub fn is_peer_to_peer(&self) -> bool {
        self.enhanced.is_some_and(|enhanced| enhanced.peer_to_peer)
    }
}

/// A start-up that the Responder's ULP accepted.
///
/// Whatever the kind, this end sends nothing behind the Reply until a valid first FPDU of the
/// Initiator has arrived (MPA-9).
#[derive(Clone, Copy, Debug)]
pub struct Accepted {
    /// The Reply to send.
    pub reply: Frame,
    /// The rules of the stream.
    pub rules: StreamRules,
    /// The kinds allowed for the first FPDU ([`RtrKinds::expect`]); none without peer-to-peer
    /// set-up, when the first FPDU is the ULP's.
    pub rtr: RtrKinds,
}

impl Responder {
    /// Begins a start-up. Ignores `peer_to_peer` of the configuration, which Initiators use.
    pub fn new(mut config: Config) -> Self {
        if config.rtr.is_empty() {
            config.rtr = RtrKinds::WRITE.union(RtrKinds::READ);
        }
        Self { config }
    }

    /// Returns the same start-up without the Send with Immediate, for a consumer that cannot
    /// receive one. A getter.
    #[must_use]
    pub fn without_send_immediate(mut self) -> Self {
        if self.config.extensions == Extensions::SendImmediate {
            self.config.extensions = Extensions::Rfc7306;
        }
        self
    }

    /// Returns the same start-up without asking for CRCs, for a stream whose octets are protected
    /// otherwise (MPA-15). A getter.
    #[must_use]
    pub fn without_crc(mut self) -> Self {
        self.config.crc = Crc::Off;
        self
    }

    /// Judges what has arrived so far, from the first octet of the Request on.
    ///
    /// # Errors
    ///
    /// Those of [`StartHeader::decode`], and [`StartError::Revision`] for a Request above the
    /// configured revision.
    pub fn handle_request(&self, octets: &[u8]) -> Result<Progress<Request>, StartError> {
        let arrived = match Arrived::read(octets, FrameKind::Request)? {
            Progress::Done(arrived) => arrived,
            Progress::NeedMore(len) => return Ok(Progress::NeedMore(len)),
        };
        if arrived.header.revision > self.config.revision {
            return Err(StartError::Revision);
        }
        Ok(Progress::Done(Request {
            frame_len: arrived.frame_len,
            private_data: arrived.private_data,
            peer_depths: arrived.enhanced.as_ref().map(PeerDepths::new),
            header: arrived.header,
            enhanced: arrived.enhanced,
        }))
    }

    /// Accepts a Request with the depths that the ULP chose. A getter.
    ///
    /// Lowers the depths to what the peer can use of them (MPA-36), and raises `ird` to 1 if the
    /// stream may start with a Read (MPA-45).
    ///
    /// # Errors
    ///
    /// [`StartError::PrivateDataTooLong`] for more than 508 octets beside enhanced data, 512
    /// otherwise, and 8 less beside features.
    pub fn accept(
        &self,
        request: &Request,
        depths: Depths,
        private_data: &[u8],
    ) -> Result<Accepted, StartError> {
        let mut rules = rules(
            &self.config,
            &request.header,
            Depths {
                ird: depths.ird.min(WireDepth::MAX),
                ord: depths.ord.min(WireDepth::MAX),
            },
        );
        let features = self.config.features.filter(|_| request.header.features);
        rules.features.awaits = features;
        let enhanced = request.enhanced.map(|asked| self.agree(&asked, &mut rules));
        let reply = self.frame(request, Outcome::Accepted, enhanced, features, private_data)?;
        Ok(Accepted {
            reply,
            rules,
            rtr: enhanced.map_or(RtrKinds::NONE, |enhanced| enhanced.rtr),
        })
    }

    /// Refuses a Request on behalf of the ULP and returns the Reply to send before the connection
    /// is closed (MPA-4). A getter.
    ///
    /// # Errors
    ///
    /// [`StartError::PrivateDataTooLong`], as in [`Self::accept`].
    pub fn reject(&self, request: &Request, private_data: &[u8]) -> Result<Frame, StartError> {
        let enhanced = request.enhanced.map(|asked| {
            self.agree(
                &asked,
                &mut rules(&self.config, &request.header, Depths::default()),
            )
        });
        self.frame(request, Outcome::Rejected, enhanced, None, private_data)
    }

    /// Returns the answer to enhanced data, and adapts the rules to it.
    fn agree(&self, asked: &Enhanced, rules: &mut StreamRules) -> Enhanced {
        // MPA-39: the common kinds, or those of this end if none is common.
        let rtr = match (asked.peer_to_peer, self.config.rtr.intersection(asked.rtr)) {
            (false, _) => RtrKinds::NONE,
            (true, RtrKinds::NONE) => self.config.rtr,
            (true, common) => common,
        };
        let peer = PeerDepths::new(asked);
        rules.peer_depths = Some(peer);
        // MPA-36: no more than the Initiator takes, and no more than it asks for.
        rules.depths.ord = rules.depths.ord.min(peer.ird.unwrap_or(u16::MAX));
        rules.depths.ird = rules.depths.ird.min(peer.ord.unwrap_or(u16::MAX));
        if rtr.contains(RtrKinds::READ) {
            // MPA-45.
            rules.depths.ird = rules.depths.ird.max(1);
        }
        Enhanced {
            peer_to_peer: asked.peer_to_peer,
            rtr,
            // MPA-37: a depth that the Initiator leaves open stays open.
            ird: match peer.ord {
                Some(_) => WireDepth::new(rules.depths.ird),
                None => WireDepth::OPEN,
            },
            ord: match peer.ird {
                Some(_) => WireDepth::new(rules.depths.ord),
                None => WireDepth::OPEN,
            },
        }
    }

    fn frame(
        &self,
        request: &Request,
        outcome: Outcome,
        enhanced: Option<Enhanced>,
        features: Option<Features>,
        private_data: &[u8],
    ) -> Result<Frame, StartError> {
        let header = StartHeader {
            kind: FrameKind::Reply,
            markers: self.config.markers,
            crc: either(self.config.crc, request.header.crc),
            rejected: outcome == Outcome::Rejected,
            // MPA-33: the revision of the Request.
            revision: request.header.revision,
            enhanced: false,
            send_immediate: outcome == Outcome::Accepted
                && extensions(&self.config, &request.header) == Extensions::SendImmediate,
            features: features.is_some(),
            private_len: 0,
        };
        Frame::new(header, enhanced, features, private_data)
    }
}

/// What the Responder's ULP decided.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Accepted,
    Rejected,
}

/// Returns whether CRCs are on: one end that wants them is enough (MPA-14).
fn either(ours: Crc, theirs: Crc) -> Crc {
    if ours == Crc::On || theirs == Crc::On {
        Crc::On
    } else {
        Crc::Off
    }
}

/// Returns what both ends understand.
fn extensions(config: &Config, theirs: &StartHeader) -> Extensions {
    match config.extensions {
        Extensions::SendImmediate if !theirs.send_immediate => Extensions::Rfc7306,
        ours => ours,
    }
}

/// Returns the rules that follow from the fixed part of the peer's frame.
fn rules(config: &Config, theirs: &StartHeader, depths: Depths) -> StreamRules {
    StreamRules {
        crc: either(config.crc, theirs.crc),
        send_markers: theirs.markers,
        receive_markers: config.markers,
        depths,
        peer_depths: None,
        extensions: extensions(config, theirs),
        features: FeatureRules::NONE,
    }
}
