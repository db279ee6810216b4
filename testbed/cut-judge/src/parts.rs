//! The parts of a replica of a PMDK pool set (PMDK 1.12.1, `struct pool_hdr`): headers, and the bytes behind them in one piece.

use crate::pool_file::{number, uuid};

const HEADER_BYTES: usize = 4096;
const INCOMPATIBLE: usize = 16;
const SINGLE_HEADER: u64 = 1;
const CHECKSUM_2K: u64 = 2;
const POOLSET_UUID: std::ops::Range<usize> = 24..40;
const PART_UUID: std::ops::Range<usize> = 40..56;
const NEXT_PART: std::ops::Range<usize> = 72..88;
const PREVIOUS_REPLICA: std::ops::Range<usize> = 88..104;
const NEXT_REPLICA: std::ops::Range<usize> = 104..120;
const CHECKSUM: usize = 4088;

/// One replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// UUID of the pool set.
    pub uuid: [u8; 16],
    /// UUID of its first part, by which other replicas know it.
    pub own: [u8; 16],
    /// UUID of the replica before it in the set; its own where there is no other.
    pub previous: [u8; 16],
    /// UUID of the replica behind it.
    pub next: [u8; 16],
    /// The pool's bytes: the first part with its header, each other part without its own.
    pub pool: Vec<u8>,
}

impl Replica {
    /// Puts the parts of one replica together. `None` where no part has a header: the replica was never finished, or was cleared. One that is
    /// being made has a signature and UUIDs at most.
    pub fn read(parts: &[Vec<u8>]) -> Result<Option<Self>, String> {
        let is_said = |at: usize| at < 8 || (POOLSET_UUID.start..PART_UUID.end).contains(&at);
        let is_begun =
            |part: &Vec<u8>| part.iter().take(HEADER_BYTES).enumerate().all(|(at, byte)| *byte == 0 || is_said(at));
        let Some(first) = parts.first() else { return Err("a replica has at least one part".to_owned()) };
        if is_begun(first) {
            return Ok(None);
        }
        check(first).map_err(|what| format!("part 0: {what}"))?;
        let is_single = number(first, INCOMPATIBLE, 4) & SINGLE_HEADER != 0;
        let mut pool = first.clone();
        for (index, part) in parts.iter().enumerate().skip(1) {
            if is_single {
                pool.extend_from_slice(part);
                continue;
            }
            check(part).map_err(|what| format!("part {index}: {what}"))?;
            if part[POOLSET_UUID] != first[POOLSET_UUID] || parts[index - 1][NEXT_PART] != part[PART_UUID] {
                return Err(format!("part {index} does not follow part {}", index - 1));
            }
            pool.extend_from_slice(&part[HEADER_BYTES..]);
        }
        let at = |range: std::ops::Range<usize>| uuid(first, range.start);
        let (own, previous, next) = (at(PART_UUID), at(PREVIOUS_REPLICA), at(NEXT_REPLICA));
        Ok(Some(Self { uuid: at(POOLSET_UUID), own, previous, next, pool }))
    }

    /// Whether its neighbours are nobody, as those of one that is being made.
    pub fn is_unfinished(&self) -> bool {
        self.previous == [0xff; 16] && self.next == [0xff; 16]
    }
}

/// Fletcher's checksum with two sums of 32 bits, over words of 32 bits; the checksum itself, and with `CKSUM_2K` all from byte 2048
/// on, count as zero.
fn check(part: &[u8]) -> Result<(), String> {
    let header = part.get(..HEADER_BYTES).ok_or_else(|| format!("{} bytes are no part", part.len()))?;
    let covered = if number(header, INCOMPATIBLE, 4) & CHECKSUM_2K == 0 { CHECKSUM } else { 2048 };
    let (mut low, mut high) = (0_u32, 0_u32);
    for at in (0..HEADER_BYTES).step_by(4) {
        if at < covered {
            low = low.wrapping_add(number(header, at, 4) as u32);
        }
        high = high.wrapping_add(low);
    }
    let (computed, stored) = (u64::from(high) << 32 | u64::from(low), number(header, CHECKSUM, 8));
    if computed == stored { Ok(()) } else { Err(format!("its checksum is {stored:#x} and should be {computed:#x}")) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn part(number: u8, next: u8, bytes: usize) -> Vec<u8> {
        let mut part = vec![number; bytes];
        part[..HEADER_BYTES].fill(0);
        part[..8].copy_from_slice(b"PMEMOBJ\0");
        part[INCOMPATIBLE] = CHECKSUM_2K as u8;
        part[POOLSET_UUID].fill(9);
        part[PART_UUID].fill(number);
        part[NEXT_PART].fill(next);
        seal(&mut part);
        part
    }

    /// A part with its links to other replicas, and one value in all bytes behind its header.
    pub(crate) fn linked(mut part: Vec<u8>, previous: u8, next: u8, value: u8) -> Vec<u8> {
        part[PREVIOUS_REPLICA].fill(previous);
        part[NEXT_REPLICA].fill(next);
        part[HEADER_BYTES..].fill(value);
        seal(&mut part);
        part
    }

    fn seal(part: &mut [u8]) {
        let (mut low, mut high) = (0_u32, 0_u32);
        for at in (0..HEADER_BYTES).step_by(4) {
            low =
                low.wrapping_add(if at < 2048 { u32::from_le_bytes(part[at..at + 4].try_into().unwrap()) } else { 0 });
            high = high.wrapping_add(low);
        }
        part[CHECKSUM..CHECKSUM + 4].copy_from_slice(&low.to_le_bytes());
        part[CHECKSUM + 4..HEADER_BYTES].copy_from_slice(&high.to_le_bytes());
    }

    #[test]
    fn parts_are_put_together() {
        let parts = [part(1, 2, 8192), part(2, 1, 12_288)];
        let replica = Replica::read(&parts).unwrap().unwrap();
        assert_eq!((replica.uuid, replica.pool.len()), ([9; 16], 8192 + 8192));
        assert_eq!((replica.pool[8191], replica.pool[8192]), (1, 2));
        let linked = Replica::read(&[linked(part(1, 1, 8192), 3, 2, 0)]).unwrap().unwrap();
        assert_eq!((linked.own, linked.previous, linked.next), ([1; 16], [3; 16], [2; 16]));
        assert!(!linked.is_unfinished());
        assert_eq!(Replica::read(&[vec![0; 8192]]), Ok(None));
    }

    #[test]
    fn a_part_that_does_not_belong_there_is_reported() {
        assert!(Replica::read(&[part(1, 3, 8192), part(2, 1, 8192)]).is_err());
        assert!(Replica::read(&[part(1, 2, 8192), vec![0; 8192]]).is_err());
        for at in [0, 30, 2047, 4088, 4095] {
            let mut damaged = part(1, 1, 8192);
            damaged[at] ^= 1;
            assert!(Replica::read(&[damaged]).is_err(), "{at}");
        }
    }
}
