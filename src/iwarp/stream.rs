// SPDX-License-Identifier: GPL-2.0

//! The two directions of a stream, as values: what each of them remembers, and what it decides.
//!
//! [`StreamReceiver`] decides what an FPDU that has arrived leads to; the receive side's lock
//! protects it. [`StreamSender`] decides which message is sent next and what its end leads to; only
//! the running transmit task has it. They share nothing: a consumer that posts from within a round
//! of the receiver finds the sender as it was. The state that both look at is a
//! [`crate::lifecycle::Lifecycle`].
//!
//! Pure, any context.

mod receiver;
mod sender;

pub use receiver::{
    ArrivedFpdu,
    Delivery,
    FpduEnd,
    NextResponse,
    NextSend,
    NextWrite,
    NotPlaced,
    NotTaken,
    ReceiveFailure,
    Received,
    ReceiverParams,
    Round,
    StreamReceiver,
    UnderWay, //
};

pub use sender::{
    Job,
    MessageEnd,
    Outgoing,
    Pause,
    SenderParams,
    Side,
    StreamSender,
    Unsupported, //
};
