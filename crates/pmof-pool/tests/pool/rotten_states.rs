//! A bit that flips in the page that says which replicas are in sync: no acknowledged write is lost by it.

use std::{fs::OpenOptions, os::unix::fs::FileExt as _};

use pmof_control::{PoolRefusal, ROSTER_BYTES, ROSTER_OFFSET, STATE_BYTES, STATE_OFFSET};
use pmof_pool::{Pool, PoolError, PoolOptions, ReplicaError};

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

/// Writes the state and the roster of a target's replica as earlier programs did, which kept each in one of two slots, in turn: the newest one of both goes
/// into the older slot too, but for a change that only the newest has.
fn age(target: &Target, what: Kept) {
    let file = orders(target);
    for slot in what.slots() {
        let mut bytes = slot.read(&file);
        bytes[what.copies_at()] = 0;
        slot.write(&file, bytes);
    }
}

/// Flips a bit of the newest slot, as a crash or a medium may.
fn damage_newest(target: &Target, what: Kept) {
    let file = orders(target);
    let newest = what.slots().into_iter().max_by_key(|slot| slot.sequence(&file)).unwrap();
    let mut bytes = newest.read(&file);
    bytes[100] ^= 0x10;
    file.write_all_at(&bytes, newest.at).unwrap();
}

fn orders(target: &Target) -> std::fs::File {
    OpenOptions::new().read(true).write(true).open(target.root.path().join("orders")).unwrap()
}

/// What is kept in two slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    State,
    Roster,
}

/// A slot, and where it lies.
#[derive(Clone, Copy)]
struct At {
    at: u64,
    len_bytes: usize,
}

impl Kept {
    fn slots(self) -> [At; 2] {
        let (begin, len_bytes) = match self {
            Self::State => (STATE_OFFSET, STATE_BYTES / 2),
            Self::Roster => (ROSTER_OFFSET, ROSTER_BYTES / 2),
        };
        [0, 1].map(|slot| At { at: begin + (slot * len_bytes) as u64, len_bytes })
    }

    /// Where a slot says that each is in both.
    fn copies_at(self) -> usize {
        match self {
            Self::State => 50,
            Self::Roster => 54,
        }
    }
}

impl At {
    fn read(self, file: &std::fs::File) -> Vec<u8> {
        let mut bytes = vec![0; self.len_bytes];
        file.read_exact_at(&mut bytes, self.at).unwrap();
        bytes
    }

    fn sequence(self, file: &std::fs::File) -> u64 {
        u64::from_le_bytes(self.read(file)[8..16].try_into().unwrap())
    }

    fn write(self, file: &std::fs::File, mut bytes: Vec<u8>) {
        let checksum_at = self.len_bytes - 4;
        let checksum = crc32c::crc32c(&bytes[..checksum_at]).to_le_bytes();
        bytes[checksum_at..].copy_from_slice(&checksum);
        file.write_all_at(&bytes, self.at).unwrap();
    }
}

/// The third takes the second's place. By the older roster of the first, which is all that is left of it, the second is a member: it is none, and the third may
/// have gone on.
#[test]
fn an_older_roster_of_an_earlier_program_is_not_believed_without_the_others() {
    let mut targets: [Target; 4] = std::array::from_fn(|_| Target::start_fixed());
    let pool = options(urls(&targets[..3])).create(4096).unwrap();
    pool.persist(0, b"of three").unwrap();
    pool.close().unwrap();
    let older = Kept::Roster.slots()[0].read(&orders(&targets[0]));
    let pool = opened(&targets[..3]);
    pool.replace(&targets[1].url("orders"), &targets[3].url("orders")).unwrap();
    wait_in_sync(&pool);
    pool.persist(0, b"later on").unwrap();
    pool.close().unwrap();
    // As the earlier program left it: the older roster in the one slot, the newer one, damaged, in the other.
    targets[0].stop();
    let file = orders(&targets[0]);
    let [first, second] = Kept::Roster.slots();
    let mut bytes = older;
    bytes[54] = 0;
    first.write(&file, bytes);
    second.write(&file, {
        let mut bytes = second.read(&file);
        bytes[54] = 0;
        bytes
    });
    file.write_all_at(&[0xee; 8], second.at + 100).unwrap();
    targets[0].restart();
    targets[2].stop();
    targets[3].stop();
    let error = options([targets[0].url("orders"), targets[1].url("orders")]).open().unwrap_err();
    assert!(!matches!(error, PoolError::Degraded { .. }), "{error}");
    // Nor is it kept in both slots as one that is believed.
    let error = options([targets[0].url("orders"), targets[1].url("orders")]).open().unwrap_err();
    assert!(matches!(error, PoolError::UncertainRoster { .. }), "{error}");
    targets[2].restart();
    targets[3].restart();
    let pool = options([targets[0].url("orders"), targets[2].url("orders")]).open().unwrap();
    assert_eq!(read(&pool, 0, 8), b"later on");
    let mut places: Vec<_> = pool.replicas().iter().map(|(place, _)| place.to_string()).collect();
    places.sort();
    let mut expected: Vec<_> = [0, 2, 3].map(|of: usize| targets[of].url("orders")).into();
    expected.sort();
    assert_eq!(places, expected);
    pool.close().unwrap();
    // It is mended.
    targets[2].stop();
    options([targets[0].url("orders")]).open().unwrap().close().unwrap();
}

#[test]
fn a_torn_roster_of_an_earlier_program_keeps_no_two_from_opening() {
    let two: [Target; 2] = std::array::from_fn(|_| Target::start_fixed());
    options(urls(&two)).create(4096).unwrap().close().unwrap();
    for target in &two {
        age(target, Kept::Roster);
        damage_newest(target, Kept::Roster);
    }
    opened(&two).close().unwrap();
    damage_newest(&two[0], Kept::Roster);
    opened(&two).close().unwrap();
}

/// A loss of power tore the newest state of all members.
#[test]
fn states_that_may_be_older_are_believed_where_the_operator_says_so() {
    let two: [Target; 2] = std::array::from_fn(|_| Target::start_fixed());
    let pool = options(urls(&two)).create(4096).unwrap();
    pool.persist(0, b"here").unwrap();
    pool.close().unwrap();
    for target in &two {
        age(target, Kept::State);
        damage_newest(target, Kept::State);
    }
    for min_replicas in [None, Some(2)] {
        let options = min_replicas.into_iter().fold(options(urls(&two)), PoolOptions::min_replicas);
        let opened = options.open_read_only();
        assert_eq!(opened.is_ok(), min_replicas.is_some(), "{opened:?}");
        if let Err(error) = opened {
            let text = pmof_mem::causes(&error).to_string();
            assert!(text.contains("pmof cp --min-replicas 1 MEMBER FILE"), "{text}");
        }
    }
    // It was not written by that.
    options(urls(&two)).open().unwrap_err();
    let pool = options(urls(&two)).min_replicas(1).open().unwrap();
    assert_eq!(read(&pool, 0, 4), b"here");
    pool.close().unwrap();
    let pool = opened(&two);
    assert!(pool.status().unwrap().forced.is_some(), "it is known that it was so");
    pool.close().unwrap();
}

/// With enough others there is nothing to decide.
#[test]
fn a_state_that_may_be_older_is_not_believed_beside_enough_others() {
    let two: [Target; 2] = std::array::from_fn(|_| Target::start_fixed());
    options(urls(&two)).create(4096).unwrap().close().unwrap();
    age(&two[0], Kept::State);
    damage_newest(&two[0], Kept::State);
    let pool = options(urls(&two)).min_replicas(1).open().unwrap();
    let [(replica, why)] = pool.left_out() else { panic!("{:?}", pool.left_out()) };
    assert_eq!(replica.to_string(), two[0].url("orders"));
    assert!(matches!(**why, ReplicaError::Refused { refusal: PoolRefusal::UncertainState, .. }), "{why}");
}
