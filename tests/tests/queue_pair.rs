// SPDX-License-Identifier: GPL-2.0

//! A queue pair as the state machine drives it: what goes out, what completes, which events are
//! raised, and what becomes of the connection, for each event and request.
//!
//! Here the actions of a transition are carried out as the driver does, by a transmit task that
//! runs only when it is told to. The tests see none of them, only their effects.

use std::collections::VecDeque;

use iwarp::{
    actions::{
        Actions,
        After,
        Later,
        Now,
        Set, //
    },
    fault::Fault,
    lifecycle::{
        Event,
        FirstFailure,
        Lifecycle,
        Notice,
        QpPhase,
        QpRequest,
        Refused,
        Requested,
        VerbsState, //
    },
    terminate::Terminate, //
};

/// A posted request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Request {
    Send(u32),
    /// A Send that waits for all Reads before it.
    Fenced(u32),
    Read(u32),
}

impl Request {
    fn id(self) -> u32 {
        match self {
            Self::Send(id) | Self::Fenced(id) | Self::Read(id) => id,
        }
    }
}

/// A queue pair, and what others see of it.
struct Qp {
    state: Lifecycle,
    /// The Terminate to be sent.
    kept: Option<Terminate>,
    posted: VecDeque<Request>,
    /// How many of them may still be taken, once the queue is drained.
    drained: Option<usize>,
    /// Reads that are not answered.
    reads: VecDeque<u32>,
    /// Requests of the peer that are not answered.
    answers: u32,
    /// TCP takes no octets.
    is_broken: bool,
    /// What others have seen since the last time.
    seen: Vec<String>,
}

use Request::{
    Fenced,
    Read,
    Send, //
};

impl Qp {
    fn new(state: Lifecycle) -> Self {
        Self {
            state,
            kept: None,
            posted: VecDeque::new(),
            drained: None,
            reads: VecDeque::new(),
            answers: 0,
            is_broken: false,
            seen: Vec::new(),
        }
    }

    /// A queue pair with a stream.
    fn streaming() -> Self {
        let mut qp = Self::new(Lifecycle::NEW);
        qp.attach(false);
        qp.sees(&[]);
        qp
    }

    /// A queue pair that searches for its peer.
    fn searching() -> Self {
        let mut qp = Self::new(Lifecycle::NEW);
        qp.request(QpRequest::ModifyRtrPath).unwrap();
        qp.sees(&[]);
        qp
    }

    /// The same with a stream.
    fn found() -> Self {
        let mut qp = Self::searching();
        qp.request(QpRequest::ModifyRts).unwrap();
        qp.attach(false);
        qp.sees(&[]);
        qp
    }

    fn attach(&mut self, wait_first_fpdu: bool) {
        let attach = QpRequest::Attach { wait_first_fpdu };
        self.request(attach).unwrap();
    }

    /// Checks what others have seen since the last time.
    fn sees(&mut self, seen: &[&str]) {
        assert_eq!(std::mem::take(&mut self.seen), seen);
    }

    fn see(&mut self, what: impl Into<String>) {
        self.seen.push(what.into());
    }

    fn request(&mut self, request: QpRequest) -> Result<(), Refused> {
        let (next, actions) = self.state.request(request)?;
        self.state = next;
        let terminate = Terminate::for_fault(Fault::Local, None);
        self.carry_out(actions, Some(terminate));
        Ok(())
    }

    fn on(&mut self, event: Event) {
        self.on_fault(event, None);
    }

    fn fault(&mut self, notice: Notice, fault: Fault) {
        let terminate = Terminate::for_fault(fault, None);
        self.on_fault(Event::Fault(notice), Some(terminate));
    }

    fn on_fault(&mut self, event: Event, terminate: Option<Terminate>) {
        let (next, actions) = self.state.on(event);
        self.state = next;
        self.carry_out(actions, terminate);
    }

    fn carry_out(&mut self, actions: Actions, terminate: Option<Terminate>) {
        let Actions { now, after, later } = actions;
        for action in now.iter() {
            match action {
                Now::KeepTerminate => self.kept = terminate,
                Now::Drain => self.drained = Some(self.posted.len()),
            }
        }
        for action in later.iter() {
            self.see(match action {
                Later::ReportFirstFpdu => "first FPDU",
                Later::Leave => "leaves",
                Later::Close => "FIN",
                Later::Abort => "RST",
            });
        }
        self.after(after);
    }

    fn after(&mut self, after: Set<After>) {
        for action in after.iter() {
            match action {
                After::NotifyFatal => self.see("fatal"),
                After::NotifyAccessError => self.see("access error"),
                After::NotifyRequestError => self.see("request error"),
                After::Transmit => self.transmit(),
                After::LimitClosedPeer => self.see("limit of the peer"),
                // The state machine has none of these.
                After::NotifyCompletions
                | After::TransmitLater
                | After::Receive
                | After::FetchIn
                | After::AwaitReceive
                | After::FetchOut
                | After::CheckIdle
                | After::LookAtRule => panic!("{action:?}"),
            }
        }
    }

    /// Posts a request.
    fn post(&mut self, request: Request) {
        self.posted.push_back(request);
        self.transmit();
    }

    /// Answers the oldest Read.
    fn answer_read(&mut self) {
        let id = self.reads.pop_front().unwrap();
        self.see(format!("{id} done"));
        self.on(Event::ReadAnswered);
    }

    /// The transmit task.
    fn transmit(&mut self) {
        loop {
            match self.state.phase() {
                QpPhase::Idle | QpPhase::Gone => return,
                QpPhase::Waiting => {
                    if !self.posted.is_empty() {
                        self.see("limit of the search");
                    }
                    return;
                }
                QpPhase::Rts | QpPhase::Closing => match self.transmit_one() {
                    true => {}
                    false => return,
                },
                QpPhase::Terminate => {
                    let kept = self.kept.take();
                    let code = kept.map(|terminate| terminate.code);
                    let fault = Fault::ALL
                        .into_iter()
                        .find(|fault| Some(fault.code()) == code);
                    self.see(format!("Terminate {fault:?}"));
                    self.on(Event::TerminateSent);
                }
                QpPhase::Error => return self.flush(),
            }
        }
    }

    /// Sends what is next; returns whether there may be more.
    fn transmit_one(&mut self) -> bool {
        if !self.state.may_send() {
            return false;
        }
        if self.is_broken {
            self.on(Event::SendFailed);
            return false;
        }
        if self.answers != 0 {
            self.answers -= 1;
            self.see("answer");
            return true;
        }
        let may_take = self.drained.is_none_or(|left| left != 0);
        let Some(next) = self.posted.front().copied().filter(|_| may_take) else {
            if self.state.phase() == QpPhase::Closing && self.reads.is_empty() {
                self.on(Event::Drained);
            }
            return false;
        };
        if self.state.is_peer_closed() {
            self.after(Set::NONE.with(After::LimitClosedPeer));
            return false;
        }
        if matches!(next, Fenced(_)) && !self.reads.is_empty() {
            self.state = self.state.with_read_wait(true);
            return false;
        }
        self.posted.pop_front();
        if let Some(left) = &mut self.drained {
            *left -= 1;
        }
        match next {
            Send(id) | Fenced(id) => self.see(format!("{id} sent")),
            Read(id) => {
                self.see(format!("{id} asked"));
                self.reads.push_back(id);
            }
        }
        true
    }

    fn flush(&mut self) {
        let mut first = self.state.first_failure();
        self.state = self.state.flushed();
        let reads = std::mem::take(&mut self.reads);
        let posted = std::mem::take(&mut self.posted);
        for id in reads.into_iter().chain(posted.into_iter().map(Request::id)) {
            match first.take() {
                None | Some(FirstFailure::Flushed) => self.see(format!("{id} flushed")),
                Some(failure) => self.see(format!("{id} {failure:?}")),
            }
        }
    }
}

const LOST: Event = Event::StreamEnded { lost: true };

#[test]
fn posted_requests_go_out_with_the_stream() {
    let mut qp = Qp::new(Lifecycle::NEW);
    qp.post(Send(1));
    qp.sees(&[]);
    qp.attach(false);
    qp.sees(&["1 sent"]);
}

#[test]
fn responder_sends_nothing_before_the_first_fpdu() {
    let mut qp = Qp::new(Lifecycle::NEW);
    qp.post(Send(1));
    qp.attach(true);
    qp.sees(&[]);
    qp.on(Event::FirstFpdu);
    qp.sees(&["first FPDU", "1 sent"]);
    let mut qp = Qp::new(Lifecycle::NEW);
    qp.post(Send(1));
    qp.attach(true);
    qp.on(Event::AllowSending);
    qp.sees(&["1 sent"]);
    qp.on(Event::FirstFpdu);
    qp.sees(&["first FPDU"]);
}

#[test]
fn verbs_to_init_and_rtr_do_nothing_else() {
    let mut qp = Qp::new(Lifecycle::RESET);
    qp.post(Send(1));
    for request in [QpRequest::ModifyInit, QpRequest::ModifyRtr, QpRequest::Bind] {
        qp.request(request).unwrap();
        qp.sees(&[]);
    }
    qp.attach(false);
    qp.sees(&["1 sent"]);
    for request in [QpRequest::ModifyInit, QpRequest::ModifyRtr] {
        qp.request(request).unwrap();
        qp.sees(&[]);
    }
}

#[test]
fn search_is_limited_by_posted_requests() {
    let mut qp = Qp::new(Lifecycle::NEW);
    qp.post(Send(1));
    qp.request(QpRequest::ModifyRtrPath).unwrap();
    qp.sees(&[]);
    qp.request(QpRequest::ModifyRts).unwrap();
    qp.sees(&["limit of the search"]);
    qp.request(QpRequest::BindSearch).unwrap();
    qp.sees(&[]);
    qp.attach(false);
    qp.sees(&["1 sent"]);
}

#[test]
fn search_that_fails_fails_the_first_request() {
    let mut qp = Qp::searching();
    qp.post(Send(1));
    qp.post(Send(2));
    qp.sees(&["limit of the search", "limit of the search"]);
    qp.on(Event::SearchTimeout);
    qp.sees(&["RST", "1 RetryExceeded", "2 flushed"]);
    let mut qp = Qp::searching();
    qp.post(Send(1));
    qp.sees(&["limit of the search"]);
    qp.on(Event::WrongPsn);
    qp.sees(&["RST", "1 flushed"]);
}

#[test]
fn sqd_sends_posted_requests_then_fin() {
    let mut qp = Qp::streaming();
    qp.post(Read(1));
    qp.post(Fenced(2));
    qp.sees(&["1 asked"]);
    qp.request(QpRequest::ModifySqd).unwrap();
    qp.sees(&["leaves"]);
    // Posted too late.
    qp.post(Send(3));
    qp.answer_read();
    qp.sees(&["1 done", "2 sent", "FIN"]);
    qp.request(QpRequest::ModifySqd).unwrap();
    qp.sees(&[]);
    qp.on(Event::StreamEnded { lost: false });
    qp.sees(&["3 flushed"]);
}

#[test]
fn sqd_without_posted_requests_sends_fin() {
    let mut qp = Qp::streaming();
    qp.request(QpRequest::ModifySqd).unwrap();
    qp.sees(&["leaves", "FIN"]);
}

#[test]
fn drain_ends_with_last_response() {
    let mut qp = Qp::streaming();
    qp.post(Read(1));
    qp.post(Read(2));
    qp.sees(&["1 asked", "2 asked"]);
    qp.request(QpRequest::ModifySqd).unwrap();
    qp.sees(&["leaves"]);
    qp.answer_read();
    qp.sees(&["1 done"]);
    qp.answer_read();
    qp.sees(&["2 done", "FIN"]);
}

#[test]
fn drained_event_is_ignored_in_other_states() {
    let mut qp = Qp::streaming();
    qp.on(Event::Drained);
    qp.sees(&[]);
    let mut qp = Qp::streaming();
    qp.request(QpRequest::ModifyErr).unwrap();
    qp.sees(&["FIN"]);
    qp.on(Event::Drained);
    qp.sees(&[]);
}

#[test]
fn sqe_ends_with_a_terminate() {
    let mut qp = Qp::streaming();
    qp.post(Read(1));
    qp.sees(&["1 asked"]);
    qp.request(QpRequest::ModifySqe).unwrap();
    qp.sees(&["Terminate Some(Local)", "FIN", "1 flushed"]);
    qp.request(QpRequest::ModifySqe).unwrap();
    qp.sees(&[]);
}

#[test]
fn err_flushes_and_closes() {
    let mut qp = Qp::streaming();
    qp.post(Read(1));
    qp.sees(&["1 asked"]);
    qp.request(QpRequest::ModifyErr).unwrap();
    qp.sees(&["FIN", "1 flushed"]);
    let mut qp = Qp::new(Lifecycle::NEW);
    qp.post(Send(1));
    qp.request(QpRequest::ModifyErr).unwrap();
    qp.sees(&["FIN", "1 flushed"]);
}

#[test]
fn reset_and_destroy_do_nothing_by_themselves() {
    let mut qp = Qp::streaming();
    qp.post(Read(1));
    qp.sees(&["1 asked"]);
    qp.on(LOST);
    qp.sees(&["1 flushed"]);
    for posted in [true, false] {
        qp.request(QpRequest::ResetBegin { posted }).unwrap();
        qp.sees(&[]);
    }
    qp.request(QpRequest::ResetEnd).unwrap();
    qp.sees(&[]);
    qp.post(Send(2));
    qp.on(Event::Destroy);
    qp.post(Send(3));
    qp.sees(&[]);
}

#[test]
fn stream_that_ends_flushes_all() {
    for lost in [false, true] {
        let mut qp = Qp::streaming();
        qp.post(Read(1));
        qp.post(Read(2));
        qp.sees(&["1 asked", "2 asked"]);
        qp.on(Event::StreamEnded { lost });
        qp.sees(&["1 flushed", "2 flushed"]);
    }
}

#[test]
fn closed_peer_timeout_fails_posted_requests() {
    let mut qp = Qp::found();
    qp.post(Read(1));
    qp.post(Fenced(2));
    qp.sees(&["1 asked"]);
    qp.on(Event::PeerClosed);
    qp.sees(&["limit of the peer"]);
    // The peer's requests are answered.
    qp.answers = 1;
    qp.transmit();
    qp.sees(&["answer", "limit of the peer"]);
    qp.on(Event::PeerClosedTimeout);
    qp.sees(&["FIN", "1 RetryExceeded", "2 flushed"]);
}

#[test]
fn half_closed_stream_that_ends_has_exceeded_its_retries() {
    let mut qp = Qp::found();
    qp.post(Read(1));
    qp.on(Event::PeerClosed);
    qp.sees(&["1 asked"]);
    qp.on(LOST);
    qp.sees(&["1 RetryExceeded"]);
}

#[test]
fn closed_peer_timeout_is_ignored_in_other_states() {
    let mut qp = Qp::found();
    qp.post(Read(1));
    qp.sees(&["1 asked"]);
    qp.on(Event::PeerClosedTimeout);
    qp.sees(&[]);
    qp.answer_read();
    qp.sees(&["1 done"]);
}

#[test]
fn fault_ends_with_its_terminate_and_event() {
    for (notice, event) in [
        (Notice::Completion, None),
        (Notice::Fatal, Some("fatal")),
        (Notice::AccessError, Some("access error")),
        (Notice::RequestError, Some("request error")),
    ] {
        let mut qp = Qp::streaming();
        qp.post(Read(1));
        qp.sees(&["1 asked"]);
        qp.fault(notice, Fault::Crc);
        let end = ["Terminate Some(Crc)", "FIN", "1 flushed"];
        let seen: Vec<_> = event.into_iter().chain(end).collect();
        qp.sees(&seen);
    }
}

#[test]
fn first_of_two_faults_counts() {
    // Nothing runs between the two.
    let mut qp = Qp::streaming();
    let terminate = |fault| Terminate::for_fault(fault, None);
    let (next, actions) = qp.state.on(Event::Fault(Notice::Fatal));
    (qp.state, qp.kept) = (next, Some(terminate(Fault::Crc)));
    assert!(actions.now.contains(Now::KeepTerminate));
    qp.fault(Notice::AccessError, Fault::Local);
    qp.sees(&[]);
    qp.transmit();
    qp.sees(&["Terminate Some(Crc)", "FIN"]);
    qp.fault(Notice::Fatal, Fault::Local);
    qp.sees(&[]);
}

#[test]
fn terminate_of_the_peer_fails_the_first_request() {
    for failure in [
        FirstFailure::RemoteAccess,
        FirstFailure::RemoteInvalidRequest,
        FirstFailure::RemoteOperation,
        FirstFailure::ReceiverNotReady,
    ] {
        let mut qp = Qp::streaming();
        qp.post(Read(1));
        qp.post(Read(2));
        qp.sees(&["1 asked", "2 asked"]);
        qp.on(Event::PeerTerminate(failure));
        let first = format!("1 {failure:?}");
        qp.sees(&["FIN", "fatal", &first, "2 flushed"]);
    }
}

#[test]
fn read_response_releases_fenced_request() {
    let mut qp = Qp::streaming();
    qp.post(Read(1));
    qp.post(Fenced(2));
    qp.sees(&["1 asked"]);
    assert!(qp.state.waits_for_reads());
    qp.answer_read();
    qp.sees(&["1 done", "2 sent"]);
    assert!(!qp.state.waits_for_reads());
    qp.post(Read(3));
    qp.sees(&["3 asked"]);
    qp.answer_read();
    qp.sees(&["3 done"]);
}

#[test]
fn broken_connection_is_reset() {
    let mut qp = Qp::streaming();
    qp.is_broken = true;
    qp.post(Send(1));
    qp.sees(&["RST"]);
    qp.on(LOST);
    qp.sees(&["1 flushed"]);
}

/// An event of an old connection may come late.
#[test]
fn new_stream_is_not_half_closed() {
    let mut qp = Qp::searching();
    qp.on(Event::PeerClosed);
    qp.sees(&[]);
    qp.post(Send(1));
    qp.sees(&["limit of the search"]);
    qp.attach(false);
    qp.sees(&["1 sent"]);
}

#[test]
fn query_reports_requested_attributes() {
    let mut qp = Qp::new(Lifecycle::RESET);
    let asks = |qp: &mut Qp, request, state| {
        qp.request(request).unwrap();
        assert_eq!(qp.state.verbs_state(), VerbsState::Requested(state));
    };
    asks(&mut qp, QpRequest::ModifyInit, Requested::Init);
    asks(&mut qp, QpRequest::ModifyRtr, Requested::Rtr);
    asks(&mut qp, QpRequest::ModifyInit, Requested::Init);
    asks(&mut qp, QpRequest::ModifyRtrPath, Requested::Rtr);
    asks(&mut qp, QpRequest::ModifyRts, Requested::Rts);
    asks(&mut qp, QpRequest::ResetEnd, Requested::Reset);
}

#[test]
fn first_failure_is_kept_until_all_is_flushed() {
    let (state, _) = Qp::streaming().state.on(LOST);
    let failure = FirstFailure::RemoteAccess;
    let (state, _) = state.on(Event::PeerTerminate(failure));
    assert_eq!(state.first_failure(), Some(FirstFailure::Flushed));
    assert_eq!(state.flushed().first_failure(), None);
}
