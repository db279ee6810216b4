//! One end of a connection: initiator and target in one state machine.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, Weak},
    time::Duration,
};

use crate::{
    Capabilities, ConnectionError, MemoryAccount, OperationCounters, OutputView, Refusal, RegionTable,
    RegisteredRegion, Settings,
    frame::{Frame, Opcode},
    handshake::{decode_offer, encode_hello, encode_welcome},
    limits,
    output::Output,
};

mod deferred;
mod direct;
mod dirty;
mod initiator;
mod input;
mod local;
mod messages;
mod operations;
mod shared;
mod target;
#[cfg(test)]
mod tests;
mod types;

use deferred::Deferred;
pub use deferred::{DeferredFlush, FlushTicket};
use dirty::DirtyRanges;
use input::Input;
use messages::Messages;
use operations::Operations;
pub use shared::SharedReceives;
pub use types::{Completion, Event, InputPlace, Operation, OperationKind, Outcome, Payload, Signal, Ticket};

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Initiator: the hello is on its way.
    AwaitWelcome,
    /// Target: nothing came yet.
    AwaitHello,
    /// Target: the application decides.
    Requested,
    Established,
    Ended(ConnectionError),
}

/// One end of a connection. `D` is what its transport keeps of a direct operation that has to wait; without such operations it is of no
/// matter.
#[derive(Debug)]
pub struct Endpoint<D = Infallible> {
    state: State,
    own: Settings,
    /// What holds on this connection: capabilities of both; limits as the other side stated them for what it takes.
    agreed: Settings,
    regions: Arc<RegionTable>,
    /// Names this end in the table of regions.
    number: u64,
    /// The version that both sides speak.
    version: u16,
    /// The region used last, so that a stream of operations looks it up once; weak, so that an idle connection does not
    /// keep deregistered memory.
    recent_region: Weak<RegisteredRegion>,
    input: Input,
    output: Output,
    operations: Operations<D>,
    /// What a flush is to name.
    dirty: DirtyRanges,
    /// This end closes as soon as nothing waits any more.
    is_closing: bool,
    messages: Messages,
    /// Sequence of the last request taken in.
    served: u64,
    deferred: Deferred,
    /// Where what the other side asks for is counted.
    counters: Option<Arc<OperationCounters>>,
    completions: VecDeque<Completion>,
    /// Those among them that are no receives'.
    untaken: usize,
    events: VecDeque<Event>,
    /// The event of the end was given.
    is_end_told: bool,
    /// Something came since the last tick, or the wait for an answer began since then.
    heard: bool,
    heard_at: Duration,
}

impl<D> Endpoint<D> {
    /// The end that asks for a connection; `private_data` goes with the request.
    ///
    /// # Panics
    ///
    /// If the private data is longer than [`limits::CONNECT_PRIVATE_MAX_BYTES`].
    pub fn initiator(settings: Settings, regions: Arc<RegionTable>, private_data: &[u8]) -> Self {
        assert!(private_data.len() <= limits::CONNECT_PRIVATE_MAX_BYTES, "checked by the caller");
        let mut endpoint = Self::new(State::AwaitWelcome, settings, regions);
        let hello = encode_hello(endpoint.own, private_data);
        endpoint.output.push_bytes(&hello.encode());
        endpoint.output.push_bytes(private_data);
        endpoint
    }

    /// The end that waits for a request.
    pub fn target(settings: Settings, regions: Arc<RegionTable>) -> Self {
        Self::new(State::AwaitHello, settings, regions)
    }

    fn new(state: State, settings: Settings, regions: Arc<RegionTable>) -> Self {
        let own = settings.clamped();
        Self {
            state,
            own,
            agreed: own,
            version: limits::VERSION_MAX,
            regions,
            number: 0,
            recent_region: Weak::new(),
            input: Input::default(),
            output: Output::default(),
            operations: Operations::default(),
            dirty: DirtyRanges::default(),
            is_closing: false,
            messages: Messages::default(),
            served: 0,
            deferred: Deferred::default(),
            counters: None,
            completions: VecDeque::new(),
            untaken: 0,
            events: VecDeque::new(),
            is_end_told: false,
            heard: true,
            heard_at: Duration::ZERO,
        }
    }

    /// Gives this end the number by which regions are [bound](crate::Scope::Connection) to it; 0 unless set. To be called before
    /// the connection is established.
    pub fn set_number(&mut self, number: u64) {
        self.number = number;
    }

    /// Has what waits to be sent count against a budget of memory: while that is short, requests of the other side are not
    /// taken in until its answers have gone.
    pub fn count_against(&mut self, account: MemoryAccount) {
        self.output.count_against(account);
    }

    /// Has the operations of the other side counted there from now on.
    pub fn count_operations(&mut self, counters: Arc<OperationCounters>) {
        self.counters = Some(counters);
    }

    #[inline]
    fn count(&self, add: impl FnOnce(&OperationCounters)) {
        if let Some(counters) = &self.counters {
            add(counters);
        }
    }

    /// True while operations may be posted.
    #[inline]
    pub fn is_established(&self) -> bool {
        matches!(self.state, State::Established)
    }

    /// True on a standing connection with nothing to send, nothing that waits to be sent, no event to be taken and no flush that was handed
    /// out: all there can be is operations under way, and outcomes.
    #[inline]
    pub fn has_no_traffic(&self) -> bool {
        self.is_established()
            && self.output.is_empty()
            && !self.operations.has_waiting()
            && self.events.is_empty()
            && !self.deferred.holds_input()
    }

    /// True if outcomes wait to be taken.
    #[inline]
    pub fn has_completions(&self) -> bool {
        !self.completions.is_empty()
    }

    /// Why the connection ended, if it has.
    #[inline]
    pub fn ended(&self) -> Option<&ConnectionError> {
        match &self.state {
            State::Ended(why) => Some(why),
            _ => None,
        }
    }

    /// What was agreed in the handshake.
    #[inline]
    pub fn agreed(&self) -> Settings {
        self.agreed
    }

    /// Takes the request; `private_data` goes with the answer. Without effect unless the connection was requested.
    ///
    /// # Panics
    ///
    /// If the private data is longer than [`limits::ACCEPT_PRIVATE_MAX_BYTES`].
    pub fn accept(&mut self, private_data: &[u8]) {
        assert!(private_data.len() <= limits::ACCEPT_PRIVATE_MAX_BYTES, "checked by the caller");
        if self.state != State::Requested {
            return;
        }
        let mut answer = self.own;
        answer.capabilities = self.agreed.capabilities;
        answer.send_queue = self.agreed.send_queue;
        let welcome = encode_welcome(self.version, answer, None, private_data);
        self.output.push_bytes(&welcome.encode());
        self.output.push_bytes(private_data);
        self.established(Vec::new());
        self.process();
    }

    /// Refuses the request with a reason. Without effect once the connection is established or has ended.
    ///
    /// # Panics
    ///
    /// If the private data is longer than [`limits::REJECT_PRIVATE_MAX_BYTES`].
    pub fn reject(&mut self, refusal: Refusal, private_data: &[u8]) {
        assert!(private_data.len() <= limits::REJECT_PRIVATE_MAX_BYTES, "checked by the caller");
        if matches!(self.state, State::Requested | State::AwaitHello) {
            let welcome = encode_welcome(self.version, self.own, Some(refusal), private_data);
            self.output.push_bytes(&welcome.encode());
            self.output.push_bytes(private_data);
            self.end(ConnectionError::RefusedHere(refusal));
        }
    }

    /// Closes in order: what was posted is still sent, what has no outcome yet completes as ended. Operations that wait for those before
    /// them go first; what waits for room or a receive at the other side, which may never come, does not, nor what was posted after
    /// it.
    pub fn disconnect(&mut self) {
        self.is_closing = self.state == State::Established && self.operations.has_waiting() && !self.is_stalled();
        if !self.is_closing {
            self.close_now();
        }
    }

    /// Closes in order what is [closing](Self::is_closing), although operations wait.
    pub fn close_now(&mut self) {
        if self.state == State::Established {
            self.say_disconnect();
        }
        self.end(ConnectionError::ClosedHere);
    }

    /// True from a [`disconnect`](Self::disconnect) that waits until the connection has ended.
    #[inline]
    pub fn is_closing(&self) -> bool {
        self.is_closing
    }

    fn say_disconnect(&mut self) {
        self.tell_all_credit();
        self.output.push_bytes(&Frame::new(Opcode::Disconnect, 0).encode());
    }

    /// The wire broke or ended.
    pub fn wire_lost(&mut self, why: String) {
        self.fail(ConnectionError::Lost { why });
    }

    /// Ends the connection for a reason that the transport found; nothing more is sent.
    pub fn fail(&mut self, why: ConnectionError) {
        self.output.clear();
        self.end(why);
        self.end_posted();
    }

    /// Ends the connection and tells the other side why. Nothing of it is carried out from here on: neither what was received in part nor what
    /// comes yet. Replies that wait to be sent still go, since what they tell happened before.
    pub fn end_for(&mut self, refusal: Refusal) {
        if self.ended().is_none() {
            self.tell_all_credit();
            self.last_words(refusal);
            self.end(ConnectionError::RefusedHere(refusal));
        }
    }

    /// What to send next, if anything.
    pub fn output_view(&self) -> Option<OutputView<'_>> {
        self.output.view()
    }

    /// Bytes queued for output and not yet sent.
    #[inline]
    pub fn output_waiting_bytes(&self) -> usize {
        let (pushed, sent) = self.output.totals();
        (pushed - sent) as usize
    }

    /// `count` bytes of the view were sent.
    ///
    /// # Panics
    ///
    /// If the view held fewer.
    pub fn output_sent(&mut self, count: usize) {
        self.output.sent(count);
        // A peer that takes bytes is alive.
        self.heard |= count > 0 && !self.is_handshaking();
        if !self.operations.is_borrowing {
            self.output_moved();
        }
    }

    /// True when the connection has ended and all that should still go out has gone: the wire may be closed.
    pub fn is_finished(&self) -> bool {
        self.ended().is_some() && self.output.is_empty()
    }

    /// The next outcome.
    #[inline]
    pub fn poll_completion(&mut self) -> Option<Completion> {
        let completion = self.completions.pop_front()?;
        self.untaken -= usize::from(!completion.kind.is_receive());
        Some(completion)
    }

    /// The next event.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Tells the time (since any fixed origin). Ends the connection if an answer is due and for `limit` nothing came and
    /// nothing could be sent; the whole handshake has `limit`. Returns when to call again, if an answer is due.
    pub fn tick(&mut self, now: Duration, limit: Duration) -> Option<Duration> {
        let awaited = self.awaited();
        if self.heard || awaited.is_none() {
            self.heard = false;
            self.heard_at = now;
        }
        let awaited = awaited?;
        let due = self.heard_at.saturating_add(limit);
        if now < due {
            return Some(due);
        }
        self.fail(ConnectionError::TimedOut { limit_ms: limit.as_millis() as u64, awaited });
        None
    }

    /// What the other side owes.
    fn awaited(&self) -> Option<&'static str> {
        match self.state {
            State::AwaitWelcome => Some("the answer to the connection request"),
            State::AwaitHello => Some("the connection request"),
            State::Established if self.awaits_rest() => Some("the rest of a frame"),
            State::Established if self.operations.awaits_reply() => Some("the reply to a posted operation"),
            State::Established if !self.output.is_empty() => Some("room to send"),
            State::Ended(_) if !self.output.is_empty() => Some("room to send the last words"),
            _ => None,
        }
    }

    /// True if a frame came in part, and it is the other side's turn.
    fn awaits_rest(&self) -> bool {
        self.input.is_inside_frame() && !self.input.paused && !self.deferred.holds_input()
    }

    fn is_handshaking(&self) -> bool {
        matches!(self.state, State::AwaitHello | State::AwaitWelcome)
    }

    /// What waited for output to go may go on.
    fn output_moved(&mut self) {
        self.end_posted();
        self.tell_credit();
        if self.input.paused {
            self.process();
        }
    }

    /// The borrowed payload lies in the stream, so other things may follow it.
    fn borrowed_done(&mut self) {
        if self.operations.is_borrowing {
            self.operations.is_borrowing = false;
            self.output_moved();
        }
    }

    fn established(&mut self, private_data: Vec<u8>) {
        self.state = State::Established;
        self.heard = true;
        self.events.push_back(Event::Established { private_data });
    }

    /// Ends the connection once; everything without an outcome gets one.
    fn end(&mut self, why: ConnectionError) {
        if self.ended().is_some() {
            return;
        }
        self.is_closing = false;
        if let Some(receive) = self.input.take_receive() {
            self.return_receive(receive);
        }
        self.input.clear();
        self.deferred.clear();
        self.operations.is_borrowing = false;
        self.recent_region = Weak::new();
        // The last words have their own time.
        self.heard = true;
        self.end_receives(&why);
        self.state = State::Ended(why);
        self.end_posted();
    }

    /// Ends the connection because of what the other side did, and tells it.
    fn refuse_stream(&mut self, what: &'static str) {
        self.last_words(Refusal::Malformed);
        self.end(ConnectionError::Malformed { what });
    }

    /// Tells the other side that the connection ends, with a reply that answers no request.
    fn last_words(&mut self, refusal: Refusal) {
        if self.state == State::Established {
            let mut reply = Frame::new(Opcode::Reply, 0);
            reply.code = refusal as u8;
            self.output.push_bytes(&reply.encode());
        }
    }

    fn hello_arrived(&mut self, frame: &Frame, private_data: Vec<u8>) {
        let offer = match decode_offer(frame, limits::CONNECT_PRIVATE_MAX_BYTES) {
            Ok(offer) => offer,
            Err(why) => return self.end(why),
        };
        match offer.common_version() {
            Ok(version) => self.version = version,
            Err(refusal) => return self.reject(refusal, &[]),
        }
        self.agree(&offer.settings);
        self.state = State::Requested;
        self.events.push_back(Event::Requested { private_data });
    }

    fn welcome_arrived(&mut self, frame: &Frame, private_data: Vec<u8>) {
        let offer = match decode_offer(frame, limits::ACCEPT_PRIVATE_MAX_BYTES) {
            Ok(offer) => offer,
            Err(why) => return self.end(why),
        };
        if frame.code != 0 {
            let refusal = Refusal::from_wire(frame.code).unwrap_or(Refusal::Rejected);
            return self.end(ConnectionError::Refused { refusal, private_data });
        }
        match offer.common_version() {
            Ok(version) if offer.version_min == offer.version_max => self.version = version,
            _ => return self.end(ConnectionError::RefusedHere(Refusal::NoCommonVersion)),
        }
        self.agree(&offer.settings);
        self.established(private_data);
    }

    fn agree(&mut self, offered: &Settings) {
        self.agreed = Settings {
            capabilities: offered.capabilities & self.own.capabilities,
            send_queue: offered.send_queue.min(self.own.send_queue),
            ..*offered
        };
    }

    fn payload_crc_agreed(&self) -> bool {
        self.agreed.capabilities.contains(Capabilities::PAYLOAD_CRC)
    }
}
