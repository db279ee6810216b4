//! What many connections together make a target hold.

use std::sync::Arc;

use pmof_mem::Durability;

use super::support::*;
use crate::{
    GUARANTEED_BYTES, LocalSlice, MemoryBudget, Operation, Signal,
    frame::{Frame, Opcode},
    limits::{HEADER_BYTES, REPLY_COPY_MAX_BYTES},
};

const RESERVE: u64 = GUARANTEED_BYTES;

/// A pair whose target counts against the budget.
fn counted(budget: &Arc<MemoryBudget>) -> Pair {
    let mut pair = Pair::new(settings(false));
    pair.sides[1].endpoint.count_against(budget.open(RESERVE).expect("room for one more"));
    pair
}

fn read(offset: u64, into: &LocalSlice) -> Operation<'static> {
    Operation::Read { key: KEY, offset, into: into.clone() }
}

fn held(pairs: &[Pair]) -> u64 {
    pairs.iter().map(|pair| pair.sides[1].endpoint.output.held_bytes()).sum()
}

#[track_caller]
fn all_succeeded(pair: &mut Pair, count: usize) {
    assert_eq!(pair.sides[0].completions.len(), count);
    for done in pair.sides[0].completions.drain(..) {
        assert!(done.outcome.is_ok(), "{done:?}");
    }
}

#[test]
fn peers_that_take_nothing_stay_within_the_budget_and_keep_nobody_out() {
    const HOGS: usize = 12;
    const READS: usize = 100;
    let len_bytes = REPLY_COPY_MAX_BYTES as usize;
    let limit = (HOGS as u64 + 1) * RESERVE + (1 << 20);
    let budget = MemoryBudget::new(limit);
    let mut hogs: Vec<_> = (0..HOGS).map(|_| counted(&budget)).collect();
    let into = local(&vec![0; len_bytes]);
    for hog in &mut hogs {
        assert!(hog.outcome(write(0, &pattern(len_bytes, 3))).is_ok());
        hog.wires[1].window_bytes = 0;
        for _ in 0..READS {
            hog.post(read(0, &into));
        }
        hog.run();
        assert!(!hog.sides[1].endpoint.wants_input(), "it waits until its answers are taken");
    }
    assert!(held(&hogs) <= limit, "{} of {limit} bytes are held", held(&hogs));
    // Who came last has what the first one has, within a few answers.
    let per_hog = |hog: &Pair| hog.sides[1].endpoint.output.replies_waiting();
    let counts: Vec<_> = hogs.iter().map(per_hog).collect();
    assert!(counts.iter().all(|count| *count >= 1), "{counts:?}");

    let mut honest = counted(&budget);
    for turn in 0..20 {
        let bytes = pattern(5000, turn);
        assert!(honest.outcome(write(0, &bytes)).is_ok());
        assert!(honest.outcome(flush(Durability::Visible)).is_ok());
        let back = local(&vec![0; len_bytes]);
        assert!(honest.outcome(read(0, &back)).is_ok());
        assert_eq!(bytes_of(&back), bytes[..len_bytes]);
    }
    for hog in &mut hogs {
        hog.wires[1].window_bytes = 10_000;
        hog.run();
        all_succeeded(hog, READS);
    }
    assert_eq!(bytes_of(&into), pattern(len_bytes, 3));
    let kept = budget.in_use().borrowed_bytes;
    assert!(kept <= (1 << 20) / 4, "{kept} bytes are kept although nothing waits");
    drop((hogs, honest));
    assert_eq!((budget.in_use().borrowed_bytes, budget.in_use().reserved_bytes), (0, 0));
}

#[test]
fn where_nothing_is_left_every_connection_gets_on() {
    for chunk in &CHUNKS[1..] {
        let budget = MemoryBudget::new(2 * RESERVE);
        let mut pairs = [counted(&budget), counted(&budget)];
        for pair in &mut pairs[..1] {
            pair.chunk = *chunk;
            pair.wires[1].window_bytes = 100;
            let first = pattern(12_000, 1);
            assert!(pair.outcome(write(0, &first)).is_ok());
            let (long, short) = (local(&[0; 12_000]), local(&[0; 4096]));
            let mut posted = 0;
            let mut post = |pair: &mut Pair, operation: Operation<'_>| {
                pair.post(operation);
                posted += 1;
            };
            for turn in 0..2 {
                post(pair, read(0, &short));
                post(pair, read(0, &long));
                // What waits to be sent from its place is about to change, and there is no room for a copy.
                post(pair, write(100, &pattern(11_000, turn)));
                post(pair, Operation::FetchAndAdd { key: KEY, offset: 8, addend: 1 });
                post(pair, read(0, &local(&[])));
                post(pair, flush(Durability::Visible));
                post(pair, write(0, &first));
            }
            post(pair, read(0, &long));
            pair.run();
            all_succeeded(pair, posted);
            assert_eq!(bytes_of(&long), first);
            assert_eq!(bytes_of(&short)[..8], first[..8]);
        }
        assert!(held(&pairs) <= 2 * RESERVE + 4096);
    }
}

#[test]
fn answers_without_bytes_count_too() {
    let budget = MemoryBudget::new(RESERVE + (64 << 10));
    let mut pair = counted(&budget);
    pair.wires[1].window_bytes = 0;
    // Of a peer that ignores the queue it agreed to, and takes nothing.
    for sequence in 1..=10_000 {
        let frame = Frame::new(Opcode::Read, sequence);
        pair.inject_frame(0, &Frame { key: KEY.0, ..frame });
    }
    pair.run();
    assert!(!pair.sides[1].endpoint.wants_input());
    let held = held(std::slice::from_ref(&pair));
    assert!(held > 16 * HEADER_BYTES as u64 && held <= RESERVE + (64 << 10), "{held} bytes");
}

#[test]
fn without_success_to_tell_nothing_is_held() {
    let budget = MemoryBudget::new(RESERVE);
    let mut pair = counted(&budget);
    for turn in 0..200_u8 {
        pair.post_as(0, write(0, &pattern(100, turn)), Signal::OnError, 0);
        pair.run();
    }
    assert!(budget.in_use().borrowed_bytes == 0 && pair.outcome(flush(Durability::Visible)).is_ok());
}
