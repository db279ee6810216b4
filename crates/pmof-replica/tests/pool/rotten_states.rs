//! A bit that flips in the page that says which replicas are in sync: no acknowledged write is lost by it.

use std::{fs::OpenOptions, os::unix::fs::FileExt as _};

use pmof_control::{STATE_BYTES, STATE_OFFSET};
use pmof_replica::Pool;

use crate::support::*;

/// Of two slots that lie behind each other, which one is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Newest,
    Older,
}

/// Flips a bit of a slot of the state page of a target's replica of `orders`.
fn flip_in_state(target: &Target, slot: Slot, at: usize) {
    let file = OpenOptions::new().read(true).write(true).open(target.root.path().join("orders")).unwrap();
    let (mut page, slot_bytes) = ([0; STATE_BYTES], STATE_BYTES / 2);
    file.read_exact_at(&mut page, STATE_OFFSET).unwrap();
    let sequence = |slot: usize| u64::from_le_bytes(page[slot * slot_bytes + 8..][..8].try_into().unwrap());
    let newest = usize::from(sequence(1) > sequence(0));
    let flipped = if slot == Slot::Newest { newest } else { 1 - newest };
    let at = flipped * slot_bytes + at;
    file.write_all_at(&[page[at] ^ 0x04], STATE_OFFSET + at as u64).unwrap();
}

/// The first member is lost, the others go on without it, and their writer dies before it raises another mark.
fn first_is_lost(targets: &mut [Target]) {
    let pool = options(urls(&*targets)).create(4096).unwrap();
    pool.persist(0, b"of all").unwrap();
    targets[0].stop();
    assert!(pool.persist(0, b"others").unwrap().is_degraded());
    drop(pool);
    targets[0].restart();
}

fn opened(targets: &[Target]) -> Pool {
    options(urls(targets)).open().unwrap_or_else(|error| panic!("{}", pmof_mem::causes(&error)))
}

#[test]
fn a_flipped_bit_does_not_make_the_lost_one_the_source() {
    for slot in [Slot::Newest, Slot::Older] {
        // In the magic, the sequence number, the epoch, the flags and the checksum.
        for at in [0, 9, 20, 48, 2046] {
            let mut two = [(); 2].map(|()| Target::start());
            first_is_lost(&mut two);
            flip_in_state(&two[1], slot, at);
            two[1].restart();
            let pool = opened(&two);
            assert_eq!(read(&pool, 0, 6), b"others", "{slot:?}, byte {at}");
            wait_in_sync(&pool);
        }
    }
}

#[test]
fn nor_does_it_with_three_where_another_is_away() {
    for slot in [Slot::Newest, Slot::Older] {
        let mut three = [(); 3].map(|()| Target::start());
        first_is_lost(&mut three);
        flip_in_state(&three[1], slot, 20);
        three[1].restart();
        three[2].stop();
        let pool = options([three[0].url("orders"), three[1].url("orders")]).open().unwrap();
        assert_eq!(read(&pool, 0, 6), b"others", "{slot:?}");
    }
}
