//! The table of operations, where some go by message and some direct: against a model in which each takes effect when it is posted.
//!
//! The network keeps the order of all that it was handed. A direct operation takes effect when it arrives, a FLUSH maybe later than what
//! comes behind it, but for an atomic write; messages wait for the target's CPU.

use std::{collections::VecDeque, sync::Arc};

use pmof_mem::{Durability, Evidence, Mechanism, Medium, MediumKind, Promise, ShadowMedium, shadow::Event as Step};
use proptest::prelude::*;

use super::support::*;
use crate::{
    Access, ConnectionError, Endpoint, Flushed, InputPlace, LocalSlice, Method, Operation, OperationError,
    OperationKind, Outcome, Payload, PostError, RegionTable, RegisteredRegion, Settings, Signal, Ticket,
};

const SLOTS: u64 = 4;
const PROMISE: Promise = Promise { mechanism: Mechanism::CacheLineWriteBack, evidence: Evidence::Probed };

/// What is done to one of a few numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Write,
    AtomicWrite,
    Add,
    Flush,
    Send,
}

#[derive(Clone, Copy, Debug)]
struct Direct {
    change: Change,
    slot: u64,
    value: u64,
}

/// What was handed to the network.
#[derive(Debug)]
enum Sent {
    Bytes(Vec<u8>),
    Direct(Ticket, Direct),
}

struct Bed {
    here: Endpoint<Direct>,
    there: Endpoint<()>,
    medium: Arc<ShadowMedium>,
    network: VecDeque<Sent>,
    /// Arrived, and not taken in by the target's CPU.
    arrived: VecDeque<Vec<u8>>,
    /// Arrived, and not carried out by the device.
    flushes: VecDeque<Ticket>,
    answers: VecDeque<Vec<u8>>,
    /// What the device has done: the last ticket, and what it brought.
    done: VecDeque<(Ticket, Option<u64>)>,
    posted: Vec<(Ticket, Change, u64, u64)>,
    outcomes: Vec<(Ticket, Outcome)>,
}

fn output<D>(of: &mut Endpoint<D>) -> Option<Vec<u8>> {
    let view = of.output_view()?;
    let mut bytes = view.head.to_vec();
    bytes.extend(view.tail);
    of.output_sent(bytes.len());
    Some(bytes)
}

fn carry<D>(bytes: &[u8], to: &mut Endpoint<D>) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let Some(InputPlace::Staging(buffer)) = to.input_place() else { panic!("short payloads are staged") };
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        to.input_arrived(count);
        rest = &rest[count..];
    }
}

impl Bed {
    fn new(settings: Settings) -> Self {
        let medium = Arc::new(ShadowMedium::new(MEDIUM_BYTES, MediumKind::DevDax).unwrap());
        let table = Arc::<RegionTable>::default();
        table.insert(Arc::new(RegisteredRegion::new(KEY, Arc::clone(&medium) as _, 0, MEDIUM_BYTES, Access::all())));
        let mut here = Endpoint::initiator(settings, Arc::default(), b"");
        let mut there = Endpoint::target(settings, table);
        carry(&output(&mut here).unwrap(), &mut there);
        there.accept(b"");
        carry(&output(&mut there).unwrap(), &mut here);
        here.enable_direct();
        Self {
            here,
            there,
            medium,
            network: VecDeque::new(),
            arrived: VecDeque::new(),
            flushes: VecDeque::new(),
            answers: VecDeque::new(),
            done: VecDeque::new(),
            posted: Vec::new(),
            outcomes: Vec::new(),
        }
    }

    fn post(&mut self, change: Change, slot: u64, is_direct: bool) -> Result<Ticket, PostError> {
        // No sum of what is added is a number that is written.
        let value = if change == Change::Add { 1 } else { (self.posted.len() as u64 + 1) << 20 };
        let (direct, signal) = (Direct { change, slot, value }, Signal::Always);
        let bytes = value.to_le_bytes();
        let (key, offset) = (KEY, slot * 8);
        let operation = match change {
            Change::Write => Operation::Write { key, offset, payload: Payload::Inline(&bytes), immediate: None },
            Change::AtomicWrite => Operation::AtomicWrite { key, offset, value },
            Change::Add => Operation::FetchAndAdd { key, offset, addend: value },
            Change::Send => Operation::Send { payload: Payload::Inline(&bytes), immediate: None },
            Change::Flush => Operation::Flush {
                key,
                offset: 0,
                len_bytes: SLOTS * 8,
                level: Durability::PowerFailure,
                evidence: Evidence::Probed,
            },
        };
        let kind = operation.kind();
        let ticket = if !is_direct || change == Change::Send {
            self.here.post(operation, signal, value)?
        } else {
            self.here.may_post_direct(8)?;
            let success = match change {
                Change::Flush => Outcome::Flushed(Flushed {
                    durability: Durability::PowerFailure,
                    method: Method::SendAfterWrite,
                    promise: PROMISE,
                }),
                _ => Outcome::Done { len_bytes: 8 },
            };
            if self.here.may_go_direct(kind) {
                let ticket = self.here.next_ticket();
                self.network.push_back(Sent::Direct(ticket, direct));
                assert_eq!(self.here.went_direct(kind, success, signal, value), ticket);
                ticket
            } else {
                self.here.keep_direct(direct, 0, (kind, success), signal, value)
            }
        };
        self.posted.push((ticket, change, slot, value));
        self.pump();
        Ok(ticket)
    }

    fn pump(&mut self) {
        while let Some(bytes) = output(&mut self.here) {
            self.network.push_back(Sent::Bytes(bytes));
        }
    }

    /// Lets go what is due.
    fn advance(&mut self) {
        self.pump();
        while self.here.due_direct().is_some() {
            let (ticket, direct) = self.here.take_due().expect("it is due");
            self.network.push_back(Sent::Direct(ticket, direct));
            self.here.due_went();
            self.pump();
        }
    }

    fn flush(&mut self) {
        if let Some(ticket) = self.flushes.pop_front() {
            self.medium.fence().unwrap();
            self.done.push_back((ticket, None));
        }
    }

    /// One step of something. False: there was nothing to do.
    fn step(&mut self, which: u8) -> bool {
        match which {
            0 => match self.network.pop_front() {
                None => return false,
                Some(Sent::Bytes(bytes)) => self.arrived.push_back(bytes),
                Some(Sent::Direct(ticket, direct)) => self.arrives(ticket, direct),
            },
            1 => match self.arrived.pop_front() {
                None => return false,
                Some(bytes) => {
                    carry(&bytes, &mut self.there);
                    self.answers.extend(output(&mut self.there));
                }
            },
            2 => match self.answers.pop_front() {
                None => return false,
                Some(bytes) => carry(&bytes, &mut self.here),
            },
            3 if !self.flushes.is_empty() => self.flush(),
            // A device completes in order: nothing behind a FLUSH before it.
            4 if self
                .done
                .front()
                .is_some_and(|(ticket, _)| self.flushes.front().is_none_or(|flush| ticket < flush)) =>
            {
                match self.done.pop_front() {
                    Some((ticket, Some(number))) => self.here.direct_returned(ticket, Outcome::Previous(number)),
                    Some((ticket, None)) => self.here.direct_done(ticket),
                    None => {}
                }
            }
            _ => return false,
        }
        self.advance();
        while let Some(done) = self.here.poll_completion() {
            self.outcomes.push((done.ticket, done.outcome.expect("nothing fails")));
        }
        true
    }

    fn arrives(&mut self, ticket: Ticket, Direct { change, slot, value }: Direct) {
        let mut brought = None;
        match change {
            Change::Write => self.medium.store(slot * 8, &value.to_le_bytes()).unwrap(),
            Change::AtomicWrite => {
                while !self.flushes.is_empty() {
                    self.flush();
                }
                self.medium.atomic_store(slot * 8, value).unwrap();
            }
            Change::Add => brought = Some(self.medium.fetch_and_add(slot * 8, value).unwrap()),
            Change::Flush => return self.flushes.push_back(ticket),
            Change::Send => panic!("a message goes by message"),
        }
        let after = self.done.partition_point(|(done, _)| *done < ticket);
        self.done.insert(after, (ticket, brought));
    }

    /// Has everything come to its end.
    fn finish(&mut self) {
        while (0..5).any(|which| self.step(which)) {}
    }
}

fn changes() -> impl Strategy<Value = Change> {
    use Change::{Add, AtomicWrite, Flush, Send, Write};
    prop_oneof![4 => Just(Write), 2 => Just(AtomicWrite), 2 => Just(Add), 2 => Just(Flush), 1 => Just(Send)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn operations_take_effect_and_complete_in_the_order_posted_whichever_way_they_go(
        steps in prop::collection::vec((changes(), 0..SLOTS, any::<bool>(), prop::collection::vec(0..5_u8, 0..5)), 1..60),
    ) {
        let mut bed = Bed::new(Settings::default());
        for index in 0..60 {
            let into = LocalSlice { memory: Plain::new(8, MediumKind::Anonymous), offset: 0, len_bytes: 8 };
            bed.there.post_receive(into, index).unwrap();
        }
        for (change, slot, is_direct, then) in steps {
            bed.post(change, slot, is_direct).unwrap();
            for which in then {
                bed.step(which);
            }
        }
        bed.finish();
        let mut numbers = [0_u64; SLOTS as usize];
        let mut expected = Vec::new();
        for (ticket, change, slot, value) in &bed.posted {
            let number = &mut numbers[*slot as usize];
            let mut outcome = Outcome::Done { len_bytes: 8 };
            match change {
                Change::Write | Change::AtomicWrite => *number = *value,
                Change::Add => {
                    outcome = Outcome::Previous(*number);
                    *number += value;
                }
                Change::Flush => {
                    outcome = Outcome::Flushed(Flushed { durability: Durability::PowerFailure, method: Method::SendAfterWrite, promise: PROMISE });
                }
                Change::Send => {}
            }
            expected.push((*ticket, outcome));
        }
        prop_assert_eq!(&bed.outcomes, &expected);
        let mut found = [0; SLOTS as usize * 8];
        bed.medium.read(0, &mut found).unwrap();
        let found: Vec<_> = found.chunks(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())).collect();
        prop_assert_eq!(found, numbers);
        // No atomic write is carried out before a flush that was posted before it.
        let fences_before: Vec<_> = bed.posted.iter().scan(0, |flushes, (_, change, _, value)| {
            *flushes += usize::from(*change == Change::Flush);
            Some((*change, *value, *flushes))
        }).collect();
        let mut fences = 0;
        for step in bed.medium.trace() {
            match step {
                Step::Fence => fences += 1,
                Step::Store { bytes, .. } => {
                    let value = u64::from_le_bytes(bytes[..].try_into().unwrap());
                    let is_it = |(change, of, _): &&(Change, u64, usize)| (*change, *of) == (Change::AtomicWrite, value);
                    let wanted = fences_before.iter().find(is_it);
                    prop_assert!(wanted.is_none_or(|(.., flushes)| fences >= *flushes), "{value} after {fences} fences");
                }
                _ => {}
            }
        }
    }
}

fn refused(offset: u64) -> OperationError {
    OperationError::Refused { refusal: crate::Refusal::DeviceRefused, offset, len_bytes: 8, limit: 0 }
}

/// An endpoint with direct writes in a row of which nobody is to hear, then a flush that is heard of.
fn with_writes(writes: u64) -> Endpoint<Direct> {
    let mut endpoint = Bed::new(Settings::default()).here;
    let success = Outcome::Done { len_bytes: 8 };
    for _ in 0..writes {
        endpoint.went_direct(OperationKind::Write, success, Signal::OnError, 1);
    }
    endpoint.went_direct(OperationKind::Flush, success, Signal::Always, 2);
    endpoint
}

#[test]
fn writes_in_a_row_are_counted_as_if_each_had_been_posted() {
    use OperationKind::{Flush, Write};
    // Behind nothing, behind a write that they go on from, and behind one that is heard of or has another context.
    for before in [None, Some((Signal::OnError, 1)), Some((Signal::Always, 1)), Some((Signal::OnError, 2))] {
        for count in 0..5 {
            let mut endpoint = Bed::new(Settings::default()).here;
            let success = Outcome::Done { len_bytes: 8 };
            let first = before.map_or(0, |(signal, context)| endpoint.went_direct(Write, success, signal, context).0);
            endpoint.went_direct_in_a_row(count, 1);
            let last = first + count;
            assert_eq!(endpoint.outstanding() as u64, last);
            assert_eq!(endpoint.went_direct(Flush, success, Signal::Always, 3), Ticket(last + 1));
            if count == 0 {
                continue;
            }
            endpoint.direct_failed(Ticket(last), refused(0));
            endpoint.fail(ConnectionError::Closed);
            endpoint.direct_stopped();
            let heard = (before == Some((Signal::Always, 1))).then_some((1, Write, false));
            let expected = heard.into_iter().chain([(last, Write, true), (last + 1, Flush, false)]);
            assert_eq!(told(&mut endpoint), expected.collect::<Vec<_>>(), "{before:?} {count}");
        }
    }
}

fn told(endpoint: &mut Endpoint<Direct>) -> Vec<(u64, OperationKind, bool)> {
    let is_refused = |outcome: &Result<_, _>| matches!(outcome, Err(OperationError::Refused { .. }));
    std::iter::from_fn(|| endpoint.poll_completion())
        .map(|done| (done.ticket.0, done.kind, is_refused(&done.outcome)))
        .collect()
}

#[test]
fn of_writes_in_a_row_the_one_that_failed_is_named_and_those_before_it_are_not() {
    use OperationKind::{Flush, Write};
    for failed in 1..=6 {
        let mut endpoint = with_writes(5);
        endpoint.direct_failed(Ticket(failed), refused(8 * failed));
        assert_eq!(endpoint.outstanding() as u64, 7 - failed);
        endpoint.fail(ConnectionError::ClosedHere);
        assert_eq!(told(&mut endpoint), [], "the transport may still reach this side's memory");
        endpoint.direct_stopped();
        let kind = |ticket| if ticket == 6 { Flush } else { Write };
        let expected: Vec<_> = (failed..=6).map(|ticket| (ticket, kind(ticket), ticket == failed)).collect();
        assert_eq!(told(&mut endpoint), expected);
    }
}

#[test]
fn writes_in_a_row_finish_a_part_at_a_time() {
    let mut endpoint = with_writes(5);
    for (done, outstanding) in [(0, 6), (2, 4), (4, 2), (5, 1)] {
        endpoint.direct_done(Ticket(done));
        assert_eq!((endpoint.outstanding(), told(&mut endpoint)), (outstanding, Vec::new()), "{done}");
    }
    endpoint.direct_done(Ticket(6));
    assert_eq!(told(&mut endpoint), [(6, OperationKind::Flush, false)]);
    assert_eq!(endpoint.outstanding(), 0);
}

#[test]
fn what_a_silent_operation_brings_is_not_the_outcome_of_what_follows_it() {
    let success = Outcome::Done { len_bytes: 8 };
    let mut endpoint = Bed::new(Settings::default()).here;
    endpoint.went_direct(OperationKind::FetchAndAdd, success, Signal::OnError, 1);
    endpoint.went_direct(OperationKind::Flush, success, Signal::Always, 2);
    endpoint.direct_returned(Ticket(1), Outcome::Previous(7));
    endpoint.direct_done(Ticket(2));
    let done = endpoint.poll_completion().expect("the flush");
    assert_eq!((done.ticket, done.context, done.outcome), (Ticket(2), 2, Ok(success)));
}

#[test]
fn a_silent_flush_is_under_way_until_it_is_done_whatever_follows_it() {
    let success = Outcome::Done { len_bytes: 8 };
    let mut endpoint = Bed::new(Settings::default()).here;
    endpoint.went_direct(OperationKind::Write, success, Signal::OnError, 1);
    endpoint.went_direct(OperationKind::Flush, success, Signal::OnError, 1);
    endpoint.went_direct(OperationKind::Write, success, Signal::Always, 2);
    for (done, may_go) in [(1, false), (2, true), (3, true)] {
        endpoint.direct_done(Ticket(done));
        assert_eq!(endpoint.operations.may_go_by_message(OperationKind::AtomicWrite), may_go, "{done}");
    }
    assert_eq!(told(&mut endpoint), [(3, OperationKind::Write, false)]);
}

#[test]
fn a_direct_write_behind_a_message_completes_when_that_has_found_its_receive() {
    let mut bed = Bed::new(Settings::default());
    bed.post(Change::Send, 0, false).unwrap();
    let write = bed.post(Change::Write, 0, true).unwrap();
    bed.finish();
    assert_eq!(bed.outcomes, []);
    let into = LocalSlice { memory: Plain::new(8, MediumKind::Anonymous), offset: 0, len_bytes: 8 };
    bed.there.post_receive(into, 0).unwrap();
    bed.answers.extend(output(&mut bed.there));
    bed.finish();
    assert_eq!(bed.outcomes.last().map(|(ticket, _)| *ticket), Some(write));
    assert_eq!(bed.outcomes.len(), 2);
}

#[test]
fn a_disconnect_lets_go_what_waits_for_operations_and_not_what_waits_for_receives() {
    let mut bed = Bed::new(Settings::default());
    bed.post(Change::Write, 0, false).unwrap();
    let direct = bed.post(Change::Write, 1, true).unwrap();
    bed.here.disconnect();
    assert!(bed.here.is_closing() && bed.here.ended().is_none(), "the direct write waits for the one by message");
    assert!(matches!(bed.post(Change::Write, 2, true), Err(PostError::NotConnected(ConnectionError::ClosedHere))));
    bed.finish();
    assert_eq!(bed.here.ended(), Some(&ConnectionError::ClosedHere));
    let mut number = [0; 8];
    bed.medium.read(8, &mut number).unwrap();
    assert_eq!((number, direct), ((2_u64 << 20).to_le_bytes(), Ticket(2)));

    let mut full = Bed::new(Settings { inbox_messages: 1, ..Settings::default() });
    for _ in 0..2 {
        full.post(Change::Send, 0, false).unwrap();
    }
    full.post(Change::Write, 0, true).unwrap();
    full.here.disconnect();
    assert_eq!(full.here.ended(), Some(&ConnectionError::ClosedHere), "there may never be a receive");
}
