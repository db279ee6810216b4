use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::Counters;

const LINES: usize = 4;
const BYTES: usize = LINES * LINE;
const START: u64 = 0x1_0000_0000;

struct Bench {
    live: Vec<u8>,
    medium: Vec<u8>,
    counters: Counters,
}

impl Memory for Bench {
    fn contains(&self, line: u64) -> bool {
        (START..START + BYTES as u64).contains(&line)
    }

    fn live(&self, line: u64) -> [u8; LINE] {
        let at = (line - START) as usize;
        self.live[at..at + LINE].try_into().unwrap()
    }

    fn persist(&mut self, line: u64, bytes: &[u8; LINE], mask: u64) {
        let at = (line - START) as usize;
        for byte in (0..LINE).filter(|byte| mask >> byte & 1 == 1) {
            self.medium[at + byte] = bytes[byte];
        }
    }

    fn lines(&self) -> Vec<u64> {
        (0..LINES as u64).map(|line| START + line * LINE_BYTES).collect()
    }

    fn count(&mut self, counter: Counter) {
        self.counters.count(counter);
    }
}

fn model() -> Model<Bench> {
    Model::new(Bench { live: vec![0; BYTES], medium: vec![0; BYTES], counters: Counters::default() })
}

fn store(model: &mut Model<Bench>, at: usize, bytes: &[u8]) {
    model.memory.live[at..at + bytes.len()].copy_from_slice(bytes);
}

#[test]
fn a_plain_store_stays_in_the_cache() {
    let mut model = model();
    store(&mut model, 0, b"lost");
    assert!(!model.fence(0));
    assert_eq!(model.memory.medium, [0; BYTES]);
    assert_eq!(model.memory.counters, Counters::default());
}

#[test]
fn write_back_needs_the_fence_of_its_own_processor() {
    let mut model = model();
    store(&mut model, 3, b"kept");
    assert!(model.write_back(1, START + 5));
    assert!(model.holds_back(1) && !model.holds_back(0));
    assert!(!model.fence(0));
    assert_eq!(model.memory.medium[3..7], [0; 4]);
    assert!(model.fence(1));
    assert_eq!(&model.memory.medium[3..7], b"kept");
    assert!(!model.holds_back(1) && model.in_flight.is_empty());
}

#[test]
fn the_old_value_survives_under_a_newer_store() {
    let mut model = model();
    store(&mut model, 0, b"old");
    model.write_back(0, START);
    store(&mut model, 0, b"new");
    model.fence(0);
    assert_eq!(&model.memory.medium[..3], b"old");
}

#[test]
fn clflush_needs_no_fence() {
    let mut model = model();
    store(&mut model, 64, b"kept");
    assert!(model.write_back_now(START + 127));
    assert_eq!(&model.memory.medium[64..68], b"kept");
}

#[test]
fn a_store_past_the_cache_takes_its_own_bytes_only() {
    let mut model = model();
    store(&mut model, 60, b"cccccccc");
    store(&mut model, 62, b"nnnn");
    assert!(model.store_past_cache(0, START + 62, 4));
    model.fence(0);
    assert_eq!(&model.memory.medium[60..68], b"\0\0nnnn\0\0");
}

#[test]
fn stores_in_a_row_past_the_cache_are_one_entry_a_line() {
    let mut model = model();
    for at in (0..128).step_by(8) {
        store(&mut model, at, &[at as u8 + 1; 8]);
        model.store_past_cache(0, START + at as u64, 8);
    }
    assert_eq!(model.held[0].len(), 2);
    model.fence(0);
    assert_eq!(model.memory.medium[..128], model.memory.live[..128]);
}

#[test]
fn an_older_line_never_replaces_a_newer_one() {
    let mut model = model();
    store(&mut model, 0, b"1");
    model.write_back(0, START);
    store(&mut model, 0, b"2");
    model.write_back(1, START);
    model.fence(1);
    model.fence(0);
    assert_eq!(&model.memory.medium[..1], b"2");
    store(&mut model, 0, b"3");
    model.write_back(0, START);
    store(&mut model, 0, b"4");
    model.write_back_now(START);
    model.fence(0);
    assert_eq!(&model.memory.medium[..1], b"4");
}

#[test]
fn wbinvd_writes_all() {
    let mut model = model();
    store(&mut model, 0, b"a");
    store(&mut model, BYTES - 1, b"z");
    model.write_back_all();
    assert_eq!(model.memory.medium, model.memory.live);
}

#[test]
fn other_memory_is_not_touched() {
    let mut model = model();
    assert!(!model.write_back(0, START - 1));
    assert!(!model.write_back_now(START + BYTES as u64));
    assert!(!model.store_past_cache(0, START - 8, 8));
    assert!(!model.store_to_medium(u64::MAX - 3, 8));
    assert!(model.store_past_cache(0, START - 4, 8));
    assert_eq!(model.memory.counters.get(Counter::WriteBacksElsewhere), 2);
    assert_eq!(model.memory.counters.get(Counter::StoresPastCache), 1);
}

#[test]
fn pieces_cover_a_store() {
    assert_eq!(pieces(64, 64).collect::<Vec<_>>(), [(64, WHOLE)]);
    assert_eq!(pieces(126, 4).collect::<Vec<_>>(), [(64, 0b11 << 62), (128, 0b11)]);
    assert_eq!(pieces(5, 0).count(), 0);
    assert_eq!(pieces(1, 191).collect::<Vec<_>>(), [(0, WHOLE - 1), (64, WHOLE), (128, WHOLE)]);
}

#[derive(Clone, Debug)]
enum Operation {
    Store { at: usize, length: usize },
    WriteBack { processor: usize, at: usize },
    WriteBackNow { at: usize },
    PastCache { processor: usize, at: usize, length: usize },
    ToMedium { at: usize, length: usize },
    Fence { processor: usize },
    WriteBackAll,
}

fn operation() -> impl Strategy<Value = Operation> {
    let at = 0..BYTES;
    let length = 1..100usize;
    prop_oneof![
        4 => (at.clone(), length.clone()).prop_map(|(at, length)| Operation::Store { at, length }),
        4 => (0..3usize, at.clone()).prop_map(|(processor, at)| Operation::WriteBack { processor, at }),
        1 => at.clone().prop_map(|at| Operation::WriteBackNow { at }),
        4 => (0..3usize, at.clone(), length.clone())
            .prop_map(|(processor, at, length)| Operation::PastCache { processor, at, length }),
        1 => (at, length).prop_map(|(at, length)| Operation::ToMedium { at, length }),
        3 => (0..3usize).prop_map(|processor| Operation::Fence { processor }),
        1 => Just(Operation::WriteBackAll),
    ]
}

/// The same rules said another way: every byte has its whole history, and the medium knows how much of it arrived.
struct Oracle {
    /// Values of each byte, by time.
    history: Vec<BTreeMap<u64, u8>>,
    /// Until when each byte's history has arrived.
    arrived: Vec<u64>,
    waiting: Vec<Vec<(usize, u64)>>,
    time: u64,
}

impl Oracle {
    fn store(&mut self, at: usize, bytes: &[u8]) {
        for (byte, value) in (at..).zip(bytes) {
            self.history[byte].insert(self.time, *value);
        }
    }

    fn wait(&mut self, processor: usize, bytes: std::ops::Range<usize>) {
        let time = self.time;
        self.waiting[processor].extend(bytes.map(|byte| (byte, time)));
    }

    fn arrive(&mut self, byte: usize, time: u64) {
        self.arrived[byte] = self.arrived[byte].max(time);
    }

    fn medium(&self) -> Vec<u8> {
        let value =
            |(byte, history): (usize, &BTreeMap<u64, u8>)| *history.range(..=self.arrived[byte]).last().unwrap().1;
        self.history.iter().enumerate().map(value).collect()
    }

    fn run(&mut self, operation: &Operation, value: u8) {
        self.time += 1;
        let line = |at: usize| at / LINE * LINE..at / LINE * LINE + LINE;
        let span = |at: usize, length: usize| at..(at + length).min(BYTES);
        match *operation {
            Operation::Store { at, length } => self.store(at, &vec![value; span(at, length).len()]),
            Operation::WriteBack { processor, at } => self.wait(processor, line(at)),
            Operation::WriteBackNow { at } => line(at).for_each(|byte| self.arrive(byte, self.time)),
            Operation::PastCache { processor, at, length } => {
                self.store(at, &vec![value; span(at, length).len()]);
                self.wait(processor, span(at, length));
            }
            Operation::ToMedium { at, length } => {
                self.store(at, &vec![value; span(at, length).len()]);
                span(at, length).for_each(|byte| self.arrive(byte, self.time));
            }
            Operation::Fence { processor } => {
                for (byte, time) in std::mem::take(&mut self.waiting[processor]) {
                    self.arrive(byte, time);
                }
            }
            Operation::WriteBackAll => (0..BYTES).for_each(|byte| self.arrive(byte, self.time)),
        }
    }
}

fn run(model: &mut Model<Bench>, operation: &Operation, value: u8) {
    let clip = |at: usize, length: usize| length.min(BYTES - at);
    match *operation {
        Operation::Store { at, length } => store(model, at, &vec![value; clip(at, length)]),
        Operation::WriteBack { processor, at } => assert!(model.write_back(processor, START + at as u64)),
        Operation::WriteBackNow { at } => assert!(model.write_back_now(START + at as u64)),
        Operation::PastCache { processor, at, length } => {
            store(model, at, &vec![value; clip(at, length)]);
            assert!(model.store_past_cache(processor, START + at as u64, clip(at, length) as u64));
        }
        Operation::ToMedium { at, length } => {
            store(model, at, &vec![value; clip(at, length)]);
            assert!(model.store_to_medium(START + at as u64, clip(at, length) as u64));
        }
        Operation::Fence { processor } => {
            model.fence(processor);
        }
        Operation::WriteBackAll => model.write_back_all(),
    }
}

proptest! {
    #[test]
    fn the_medium_is_what_the_histories_say(operations in prop::collection::vec(operation(), 1..120)) {
        let mut model = model();
        let mut oracle = Oracle {
            history: vec![BTreeMap::from([(0, 0)]); BYTES],
            arrived: vec![0; BYTES],
            waiting: vec![Vec::new(); 3],
            time: 0,
        };
        for (step, operation) in operations.iter().enumerate() {
            let value = step as u8 + 1;
            run(&mut model, operation, value);
            oracle.run(operation, value);
            prop_assert_eq!(&model.memory.medium, &oracle.medium());
        }
        for processor in 0..3 {
            model.fence(processor);
        }
        prop_assert!(model.in_flight.is_empty());
    }
}
