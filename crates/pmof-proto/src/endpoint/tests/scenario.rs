//! A fixed run of operations of both sides that knows what every outcome must be, whatever happened to the wire.

use std::collections::BTreeMap;

use pmof_mem::{Durability, MediumKind};

use super::support::*;
use crate::{Access, LocalSlice, Operation, OperationKind, Outcome, Payload, Signal, Ticket, frame::Frame};

/// What must hold if an operation succeeded.
#[derive(Debug)]
enum Proof {
    /// The bytes lie in the other side's region.
    Stored {
        offset: u64,
        bytes: Vec<u8>,
    },
    /// The bytes lie in local memory.
    Fetched {
        into: LocalSlice,
        bytes: Vec<u8>,
    },
    Previous(u64),
    /// All writes posted before succeeded.
    Flushed,
    /// A message came, with these bytes and this immediate.
    Received {
        into: LocalSlice,
        bytes: Vec<u8>,
        immediate: Option<u32>,
    },
    None,
}

#[derive(Debug)]
struct Expected {
    signal: Signal,
    proof: Proof,
}

/// The pair and all that was posted.
pub(super) struct Scenario {
    pub(super) pair: Pair,
    expected: [BTreeMap<Ticket, Expected>; 2],
    place: u64,
}

impl Scenario {
    /// A fresh pair of which nothing has been posted; faults may be set before [`play`](Self::play).
    pub(super) fn new(has_crc: bool) -> Self {
        let mut pair = Pair::apart([settings(has_crc); 2], b"hello");
        for side in 0..2 {
            pair.register(side, KEY, Plain::new(MEDIUM_BYTES, MediumKind::FsDax), Access::all());
        }
        pair.chunk = Chunk::Bytes(777);
        Self { pair, expected: [BTreeMap::new(), BTreeMap::new()], place: 0 }
    }

    /// Connects, posts and runs until nothing moves. Where the wire breaks, what can still be posted is.
    pub(super) fn play(&mut self) {
        self.pair.run();
        self.pair.sides[1].endpoint.accept(b"welcome");
        self.pair.run();
        for side in 0..2 {
            self.receive(1 - side, b"a message", Some(3));
            self.message(side, b"a message", Some(3));
            self.write(side, 100, Signal::Always);
            self.write(side, 50, Signal::OnError);
            self.fetch(side);
            self.atomics(side);
            self.post(side, flush(Durability::PowerFailure), Signal::Always, Proof::Flushed);
        }
        self.pair.run();
        for side in 0..2 {
            self.message(side, b"early", None);
        }
        self.pair.run();
        for side in 0..2 {
            self.receive(1 - side, b"early", None);
            self.write(side, 20, Signal::OnError);
            self.post(side, flush(Durability::Visible), Signal::OnError, Proof::Flushed);
            self.write(side, 1500, Signal::Always);
        }
        self.pair.run();
        self.pair.sides[0].endpoint.disconnect();
        self.pair.run();
    }

    /// How many of the operations that want a completion failed.
    pub(super) fn failures(&self) -> usize {
        self.pair.sides.iter().flat_map(|side| &side.completions).filter(|done| done.outcome.is_err()).count()
    }

    /// Every posted operation has exactly one outcome, and every success is true.
    pub(super) fn check(&self, what: &str) {
        for (side, expected) in self.expected.iter().enumerate() {
            let endpoint = &self.pair.sides[side].endpoint;
            assert!(endpoint.ended().is_some(), "{what}: side {side} has ended");
            assert_eq!(endpoint.outstanding(), 0, "{what}: side {side} has outcomes for all");
            let mut outcomes = BTreeMap::new();
            for done in &self.pair.sides[side].completions {
                assert!(expected.contains_key(&done.ticket), "{what}: only what was posted completes");
                assert!(outcomes.insert(done.ticket, done).is_none(), "{what}: {:?} completed twice", done.ticket);
            }
            for (ticket, operation) in expected {
                let found = outcomes.get(ticket).map(|done| done.outcome.as_ref());
                let is_implied = operation.signal == Signal::OnError;
                match found {
                    Some(Ok(outcome)) if !is_implied => {
                        self.prove(side, *ticket, &operation.proof, Some(*outcome), what);
                    }
                    None if is_implied => self.prove(side, *ticket, &operation.proof, None, what),
                    Some(Err(_)) => {}
                    other => panic!("{what}: side {side}, {ticket:?}, {:?}: {other:?}", operation.signal),
                }
            }
        }
    }

    fn prove(&self, side: usize, ticket: Ticket, proof: &Proof, outcome: Option<Outcome>, what: &str) {
        let what = format!("{what}, side {side}, {ticket:?}");
        match proof {
            Proof::Stored { offset, bytes } => {
                assert_eq!(self.region(1 - side, *offset, bytes.len()), *bytes, "{what}");
            }
            Proof::Fetched { into, bytes } => assert_eq!(bytes_of(into), *bytes, "{what}"),
            Proof::Previous(number) => assert_eq!(outcome, Some(Outcome::Previous(*number)), "{what}"),
            Proof::Flushed => {
                assert!(matches!(outcome, None | Some(Outcome::Flushed(_))), "{what}");
                for (_, earlier) in self.expected[side].range(..ticket) {
                    if let Proof::Stored { offset, bytes } = &earlier.proof {
                        assert_eq!(self.region(1 - side, *offset, bytes.len()), *bytes, "{what}: covered by a flush");
                    }
                }
            }
            Proof::Received { into, bytes, immediate } => {
                let received = Outcome::Received { len_bytes: bytes.len() as u64, immediate: *immediate };
                assert_eq!(outcome, Some(received), "{what}");
                assert_eq!(bytes_of(into)[..bytes.len()], *bytes, "{what}");
            }
            Proof::None => {}
        }
    }

    fn region(&self, side: usize, offset: u64, len: usize) -> Vec<u8> {
        let region = self.pair.tables[side].find(KEY).expect("registered");
        let mut bytes = vec![0; len];
        region.memory().read(region.offset() + offset, &mut bytes).expect("in bounds");
        bytes
    }

    fn post(&mut self, side: usize, operation: Operation<'_>, signal: Signal, proof: Proof) {
        if let Ok(ticket) = self.pair.sides[side].endpoint.post(operation, signal, 0) {
            self.expected[side].insert(ticket, Expected { signal, proof });
        }
    }

    fn write(&mut self, side: usize, len: usize, signal: Signal) {
        let (offset, bytes) = (self.place, pattern(len, self.place as u8));
        self.place += len as u64 + 1;
        let proof = Proof::Stored { offset, bytes: bytes.clone() };
        self.post(side, write(offset, &bytes), signal, proof);
    }

    /// Writes and reads the same.
    fn fetch(&mut self, side: usize) {
        let offset = self.place;
        self.write(side, 40, Signal::OnError);
        let into = local(&[0xEE; 40]);
        let proof = Proof::Fetched { into: into.clone(), bytes: pattern(40, offset as u8) };
        self.post(side, Operation::Read { key: KEY, offset, into }, Signal::Always, proof);
    }

    fn atomics(&mut self, side: usize) {
        let key = KEY;
        let offset = self.place.next_multiple_of(8);
        self.place = offset + 8;
        let stored = Proof::Stored { offset, bytes: 12_u64.to_le_bytes().to_vec() };
        self.post(side, Operation::AtomicWrite { key, offset, value: 5 }, Signal::Always, Proof::None);
        let swap = Operation::CompareAndSwap { key, offset, expected: 5, new: 10 };
        self.post(side, swap, Signal::Always, Proof::Previous(5));
        self.post(side, Operation::FetchAndAdd { key, offset, addend: 2 }, Signal::Always, Proof::Previous(10));
        // A write that changes nothing, whose success says that all of the above is there.
        let (again, proof) = (12_u64.to_le_bytes(), stored);
        self.post(side, write(offset, &again), Signal::OnError, proof);
    }

    fn message(&mut self, side: usize, bytes: &[u8], immediate: Option<u32>) {
        let operation = Operation::Send { payload: Payload::Inline(bytes), immediate };
        self.post(side, operation, Signal::Always, Proof::None);
    }

    fn receive(&mut self, side: usize, bytes: &[u8], immediate: Option<u32>) {
        let into = local(&[0xEE; 30]);
        if let Ok(ticket) = self.pair.sides[side].endpoint.post_receive(into.clone(), 0) {
            let proof = Proof::Received { into, bytes: bytes.to_vec(), immediate };
            self.expected[side].insert(ticket, Expected { signal: Signal::Always, proof });
        }
    }
}

/// Where the frames of a stream begin, and what they are.
pub(super) fn frames_of(log: &[u8]) -> Vec<(usize, Frame)> {
    let mut frames = Vec::new();
    let mut at = 0;
    while let Some(header) = log.get(at..at + 64) {
        let frame = Frame::decode(header.try_into().expect("64 bytes")).expect("a whole stream");
        frames.push((at, frame));
        at += 64 + frame.payload_bytes() as usize;
    }
    assert_eq!(at, log.len(), "a stream consists of frames");
    frames
}

#[test]
fn the_scenario_succeeds_where_nothing_goes_wrong() {
    for has_crc in [false, true] {
        for chunk in CHUNKS {
            let mut scenario = Scenario::new(has_crc);
            scenario.pair.chunk = chunk;
            scenario.play();
            scenario.check("no fault");
            assert_eq!(scenario.failures(), 0);
            let kinds: std::collections::HashSet<OperationKind> =
                scenario.pair.sides.iter().flat_map(|side| &side.completions).map(|done| done.kind).collect();
            assert_eq!(kinds.len(), 8, "{kinds:?}");
        }
    }
}

#[test]
#[should_panic(expected = "covered by a flush")]
fn the_checks_see_a_write_that_is_not_there() {
    let mut scenario = Scenario::new(false);
    scenario.play();
    let region = scenario.pair.tables[1].find(KEY).unwrap();
    // The second write of side 0, which only a flush vouches for.
    region.memory().store(REGION_AT + 101 + 10, &[0xFF]).unwrap();
    let is_flush = |expected: &Expected| matches!(expected.proof, Proof::Flushed);
    let (ticket, _) = scenario.expected[0].iter().find(|(_, expected)| is_flush(expected)).unwrap();
    scenario.prove(0, *ticket, &Proof::Flushed, None, "control");
}
