//! What a crash and a damaged block leave of what format 4 keeps in four copies.

use uuid::Uuid;

use super::*;
use crate::{FileLayout, HEAD_4_BYTES, Header, HeaderError, PoolFormat, PoolState, ROSTER_BYTES, Roster};

const FOUR: PoolFormat = PoolFormat::Four;
const SECTOR_BYTES: usize = 512;

/// A structure of which a file has four copies.
struct Kept {
    places: &'static [u64],
    len_bytes: usize,
    old: CopySteps,
    new: CopySteps,
    /// Whether the newest copy is the new one.
    read: fn(&[u8]) -> Option<bool>,
}

fn kept() -> [Kept; 3] {
    [
        Kept {
            places: FOUR.header_places(),
            len_bytes: BLOCK_BYTES,
            old: header(1).steps(),
            new: header(2).steps(),
            read: |copies| {
                let mut begin = vec![0; HEAD_4_BYTES as usize];
                for (place, block) in FOUR.header_places().iter().zip(blocks(copies)) {
                    begin[*place as usize..][..BLOCK_BYTES].copy_from_slice(block);
                }
                Header::of_file(&begin).ok().map(|(header, _)| header == self::header(2))
            },
        },
        Kept {
            places: FOUR.state_places(),
            len_bytes: BLOCK_BYTES,
            old: state(1).steps(FOUR, 1),
            new: state(2).steps(FOUR, 2),
            read: |copies| PoolState::read(FOUR, 3, copies).ok().map(|(state, _)| state == self::state(2)),
        },
        Kept {
            places: FOUR.roster_places(),
            len_bytes: ROSTER_BYTES / 2,
            old: roster(1).steps(FOUR, 1).unwrap(),
            new: roster(2).steps(FOUR, 2).unwrap(),
            read: |copies| Roster::read_copies(FOUR, 3, copies).ok().map(|kept| kept.roster == roster(2)),
        },
    ]
}

fn header(sequence: u64) -> Header {
    let layout = FileLayout { sequence, ..FileLayout::with_digests(1 << 40).unwrap() };
    Header {
        format: FOUR,
        compatible_features: 0,
        pool_uuid: Uuid::from_u128(1),
        replica_uuid: Uuid::from_u128(2),
        size_bytes: sequence << 30,
        created_at_unix_s: 1,
        replica_count: 3,
        replica_index: 1,
        user_flags: [0; 16],
        layout,
    }
}

fn state(mark: u64) -> PoolState {
    PoolState { mark, ..PoolState::new(Uuid::from_u128(3), 3) }
}

fn roster(version: u64) -> Roster {
    Roster { version, ..Roster::made(3) }
}

impl Kept {
    fn store(&self, file: &mut [u8], step: &[(u64, Vec<u8>)]) {
        for (offset, bytes) in step {
            assert!(self.places.contains(offset) && bytes.len() == self.len_bytes);
            file[*offset as usize..][..bytes.len()].copy_from_slice(bytes);
        }
    }

    fn image(&self, steps: &[Vec<(u64, Vec<u8>)>]) -> Vec<u8> {
        let mut file = vec![0; HEAD_4_BYTES as usize];
        for step in steps {
            self.store(&mut file, step);
        }
        file
    }

    fn read(&self, file: &[u8]) -> Option<bool> {
        let copies: Vec<&[u8]> = self.places.iter().map(|place| &file[*place as usize..][..self.len_bytes]).collect();
        (self.read)(&copies.concat())
    }

    /// The same file with a block of each copy damaged whose bit is set.
    fn damaged(&self, file: &[u8], copies: usize) -> Vec<u8> {
        let mut file = file.to_vec();
        for (_, place) in self.places.iter().enumerate().filter(|(copy, _)| copies >> copy & 1 != 0) {
            let block = &mut file[*place as usize..][..BLOCK_BYTES];
            // The magic stays: a header without it is another case.
            block.iter_mut().enumerate().skip(8).for_each(|(at, byte)| *byte = (at * 7) as u8);
        }
        file
    }
}

#[test]
fn no_three_damaged_copies_take_back_what_was_answered() {
    for kept in kept() {
        let old = kept.image(&kept.old);
        assert_eq!(kept.read(&old), Some(false));
        let mut new = old;
        kept.new.iter().for_each(|step| kept.store(&mut new, step));
        for copies in 0..0b1111 {
            assert_eq!(kept.read(&kept.damaged(&new, copies)), Some(true), "{:?}: {copies:04b}", kept.places);
        }
        assert_eq!(kept.read(&kept.damaged(&new, 0b1111)), None);
    }
}

/// A crash may leave any part of the sectors of the step that it interrupted, and one more block may be damaged.
#[test]
fn a_crash_and_a_damaged_block_leave_the_old_or_the_new() {
    for kept in kept() {
        for step in 0..kept.new.len() {
            let mut before = kept.image(&kept.old);
            kept.new[..step].iter().for_each(|step| kept.store(&mut before, step));
            let mut after = before.clone();
            kept.store(&mut after, &kept.new[step]);
            let torn = kept.new[step].iter().map(|(place, _)| *place as usize);
            for cut in 0..=kept.len_bytes / SECTOR_BYTES {
                for which in 0..4 {
                    let mut image = before.clone();
                    for (copy, place) in torn.clone().enumerate() {
                        // One copy is cut, and the other one old, new or cut, too.
                        let len_bytes = [cut * SECTOR_BYTES, 0, kept.len_bytes, cut * SECTOR_BYTES];
                        let len_bytes = if copy == which % 2 { cut * SECTOR_BYTES } else { len_bytes[which] };
                        image[place..place + len_bytes].copy_from_slice(&after[place..place + len_bytes]);
                    }
                    for copies in [0, 1, 2, 4, 8] {
                        let read = kept.read(&kept.damaged(&image, copies));
                        assert!(read.is_some(), "{:?}: {step}, {cut}, {which}, {copies:04b}", kept.places);
                    }
                }
            }
        }
    }
}

#[test]
fn a_file_that_lost_its_first_block_is_a_pool_and_one_that_was_overwritten_is_none() {
    let [kept, ..] = kept();
    let mut file = kept.image(&kept.old);
    file[..BLOCK_BYTES].fill(7);
    assert_eq!(Header::of_file(&file), Ok((header(1), false)));
    for place in &kept.places[1..] {
        let mut file = file.clone();
        file[*place as usize + 100] ^= 1;
        assert_eq!(Header::of_file(&file), Err(HeaderError::NotAPool), "{place}");
    }
    for len_bytes in [0, 10, BLOCK_BYTES, 100_000] {
        let error = Header::of_file(&file[..len_bytes]).expect_err("it is cut short");
        assert_eq!(error, HeaderError::NotAPool, "{len_bytes}");
    }
}
