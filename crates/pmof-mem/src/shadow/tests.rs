use std::{
    collections::HashSet,
    io::{Read, Write},
    os::{fd::AsFd, unix::net::UnixStream},
};

use proptest::prelude::*;

use super::{Coverage, CrashPoint, Event, Exhaustive, ShadowMedium, for_each_crash_point};
use crate::{
    Durability, Mechanism, Medium, MediumKind, MemError,
    faults::{SkipFence, SkipWriteBack},
};

const LIMIT: usize = 100_000;
const DATA_LEN: usize = 128;
const FLAG_AT: u64 = 4096;
const LEN: u64 = 8192;

fn shadow(kind: MediumKind) -> ShadowMedium {
    ShadowMedium::new(LEN, kind).unwrap()
}

fn persist(medium: &impl Medium, offset: u64, len_bytes: u64) {
    medium.write_back(offset, len_bytes).unwrap();
    medium.fence().unwrap();
}

/// Data of two lines, then a flag that says so: a reader that sees the flag must see the data.
fn commit(medium: &impl Medium, is_swapped: bool) {
    let data = || {
        medium.store(0, &[7; DATA_LEN]).unwrap();
        persist(medium, 0, DATA_LEN as u64);
    };
    let flag = || {
        medium.atomic_store(FLAG_AT, 1).unwrap();
        persist(medium, FLAG_AT, 8);
    };
    if is_swapped {
        flag();
        data();
    } else {
        data();
        flag();
    }
}

#[derive(Debug, PartialEq)]
enum Wrong {
    FlagWithoutData,
    AcknowledgedLost,
    Medium(String),
}

impl From<MemError> for Wrong {
    fn from(error: MemError) -> Self {
        Self::Medium(error.to_string())
    }
}

/// Acknowledged ⊆ recovered ⊆ issued, for the commit above.
fn check_commit(kind: MediumKind, trace: &[Event]) -> Result<Coverage, Wrong> {
    for_each_crash_point(kind, &[0; LEN as usize], trace, LIMIT, |CrashPoint { marks, image, .. }| {
        let is_flagged = image[FLAG_AT as usize] == 1;
        if is_flagged && image[..DATA_LEN] != [7; DATA_LEN] {
            return Err(Wrong::FlagWithoutData);
        }
        if !marks.is_empty() && !is_flagged { Err(Wrong::AcknowledgedLost) } else { Ok(()) }
    })
}

#[test]
fn a_right_commit_survives_every_crash_and_each_wrong_one_is_seen() {
    for kind in [MediumKind::FsDax, MediumKind::DevDax, MediumKind::PageCache, MediumKind::VirtioPmem] {
        let right = shadow(kind);
        commit(&right, false);
        right.mark(1);
        let coverage = check_commit(kind, &right.trace()).unwrap();
        assert_eq!(coverage.exhaustive, Exhaustive::Yes);
        assert!(coverage.images > coverage.points, "{coverage:?}");

        let no_write_back = SkipWriteBack(shadow(kind));
        commit(&no_write_back, false);
        assert_eq!(check_commit(kind, &no_write_back.0.trace()), Err(Wrong::FlagWithoutData), "{kind}");

        let no_fence = SkipFence(shadow(kind));
        commit(&no_fence, false);
        assert_eq!(check_commit(kind, &no_fence.0.trace()), Err(Wrong::FlagWithoutData), "{kind}");

        let swapped = shadow(kind);
        commit(&swapped, true);
        assert_eq!(check_commit(kind, &swapped.trace()), Err(Wrong::FlagWithoutData), "{kind}");

        let early = shadow(kind);
        early.mark(1);
        commit(&early, false);
        assert_eq!(check_commit(kind, &early.trace()), Err(Wrong::AcknowledgedLost), "{kind}");
    }
}

#[test]
fn eight_aligned_bytes_are_never_torn_and_sixteen_are() {
    let medium = shadow(MediumKind::FsDax);
    medium.store(64, &[9; 16]).unwrap();
    let images: Vec<Vec<u8>> = medium.crash_images(LIMIT).collect();
    assert_eq!(images.len(), 3);
    for word in images.iter().flat_map(|image| image[64..80].chunks_exact(8)) {
        assert!([[0; 8], [9; 8]].iter().any(|whole| word == whole), "{word:?}");
    }
    assert!(images.iter().any(|image| image[64..80] == [9, 9, 9, 9, 9, 9, 9, 9, 0, 0, 0, 0, 0, 0, 0, 0]));
    // Lowest address first: the second word is never there without the first.
    assert!(!images.iter().any(|image| image[64] == 0 && image[72] == 9));
}

#[test]
fn lines_tear_in_all_combinations() {
    let medium = shadow(MediumKind::FsDax);
    medium.store(56, &[5; 16]).unwrap();
    let images: HashSet<(u8, u8)> = medium.crash_images(LIMIT).map(|image| (image[56], image[64])).collect();
    assert_eq!(images, HashSet::from([(0, 0), (0, 5), (5, 0), (5, 5)]));
    // One page holds both, so the order of the stores is kept there.
    let pages = shadow(MediumKind::PageCache);
    pages.store(56, &[5; 16]).unwrap();
    let images: HashSet<(u8, u8)> = pages.crash_images(LIMIT).map(|image| (image[56], image[64])).collect();
    assert_eq!(images, HashSet::from([(0, 0), (5, 0), (5, 5)]));
}

#[test]
fn a_store_between_write_back_and_fence_is_not_covered() {
    let medium = shadow(MediumKind::FsDax);
    medium.atomic_store(0, 1).unwrap();
    medium.write_back(0, 8).unwrap();
    medium.atomic_store(0, 2).unwrap();
    medium.fence().unwrap();
    let values: Vec<u8> = medium.crash_images(LIMIT).map(|image| image[0]).collect();
    assert_eq!(values, [1, 2]);
    persist(&medium, 0, 1);
    assert_eq!(medium.crash_images(LIMIT).map(|image| image[0]).collect::<Vec<_>>(), [2]);
}

#[test]
fn a_page_cache_fence_needs_a_write_back_and_then_covers_all() {
    let medium = shadow(MediumKind::PageCache);
    medium.store(0, &[1]).unwrap();
    medium.store(5000, &[1]).unwrap();
    medium.fence().unwrap();
    assert_eq!(medium.crash_images(LIMIT).possible(), 4);
    persist(&medium, 0, 1);
    assert_eq!(medium.crash_images(LIMIT).possible(), 1);
}

#[test]
fn images_are_distinct_even_where_a_value_comes_back() {
    let medium = shadow(MediumKind::FsDax);
    for value in [1, 2, 1, 0, 0] {
        medium.atomic_store(8, value).unwrap();
    }
    let images = medium.crash_images(LIMIT);
    assert_eq!((images.possible(), images.exhaustive()), (3, Exhaustive::Yes));
    let values: Vec<u8> = images.map(|image| image[8]).collect();
    assert_eq!(values, [0, 1, 2]);
}

#[test]
fn too_many_images_become_a_seeded_sample_with_both_ends() {
    let medium = shadow(MediumKind::FsDax);
    medium.store(0, &[3; LEN as usize]).unwrap();
    let images = medium.crash_images(100);
    assert_eq!((images.exhaustive(), images.possible()), (Exhaustive::No, u128::MAX));
    let sample: Vec<_> = images.clone().collect();
    assert_eq!(sample.len(), 100);
    assert!(sample[0].iter().all(|byte| *byte == 0) && sample[1].iter().all(|byte| *byte == 3));
    assert!(sample.iter().collect::<HashSet<_>>().len() > 90);
    assert_eq!(sample, images.clone().collect::<Vec<_>>(), "a seed repeats its sample");
    assert_ne!(sample, images.with_seed(1).collect::<Vec<_>>());
}

#[test]
fn the_newest_state_is_in_a_sample_also_where_it_came_before() {
    let medium = shadow(MediumKind::FsDax);
    medium.store(0, &[3; LEN as usize]).unwrap();
    medium.atomic_store(0, 0).unwrap();
    medium.atomic_store(0, u64::from_le_bytes([3; 8])).unwrap();
    let mut current = vec![0; LEN as usize];
    medium.read(0, &mut current).unwrap();
    assert_eq!(medium.crash_images(3).nth(1), Some(current));
}

#[test]
fn atomics_sockets_and_bounds_are_those_of_a_medium() {
    let medium = ShadowMedium::new(100, MediumKind::FsDax).unwrap();
    assert_eq!(medium.fetch_and_add(8, 5).unwrap(), 0);
    assert_eq!(medium.compare_and_swap(8, 4, 9).unwrap(), 5);
    assert_eq!(medium.compare_and_swap(8, 5, 9).unwrap(), 5);
    assert_eq!(medium.trace().len(), 2, "a swap that fails stores nothing");
    assert!(matches!(medium.atomic_store(4, 0), Err(MemError::Misaligned { offset: 4 })));
    for error in [medium.atomic_store(96, 0), medium.store(99, &[1, 2]), medium.write_back(0, 101)] {
        assert!(matches!(error, Err(MemError::OutOfBounds { size_bytes: 100, .. })));
    }
    let (mut near, far) = UnixStream::pair().unwrap();
    near.write_all(b"inside+tail").unwrap();
    let mut tail = [0; 5];
    assert_eq!(medium.receive(far.as_fd(), 90, 6, &mut tail).unwrap(), 11);
    assert_eq!(medium.trace().last(), Some(&Event::Store { offset: 90, bytes: b"inside".to_vec() }));
    assert_eq!(medium.crc32c(90, 6).unwrap(), crc32c::crc32c(b"inside"));
    assert_eq!(medium.send(far.as_fd(), b"<", 90, 6, b">").unwrap(), 8);
    let mut came = [0; 8];
    near.read_exact(&mut came).unwrap();
    assert_eq!(&came, b"<inside>");
    assert_eq!(&tail, b"+tail");
}

#[test]
fn kinds_and_lengths_without_a_domain_are_refused() {
    for kind in [MediumKind::Anonymous, MediumKind::Tmpfs] {
        assert!(matches!(ShadowMedium::new(8, kind), Err(MemError::Unsuitable { .. })));
    }
    for len_bytes in [0, u64::MAX] {
        assert!(matches!(ShadowMedium::new(len_bytes, MediumKind::FsDax), Err(MemError::BadLength { .. })));
    }
    let power = |kind| shadow(kind).promise(Durability::PowerFailure).unwrap().mechanism;
    assert_eq!(power(MediumKind::FsDax), Mechanism::CacheLineWriteBack);
    assert_eq!(power(MediumKind::PageCache), Mechanism::FileSync);
}

#[test]
fn a_trace_of_a_longer_medium_is_refused() {
    let trace = [Event::Store { offset: 60, bytes: vec![1; 8] }];
    let outcome = for_each_crash_point(MediumKind::FsDax, &[0; 64], &trace, 10, |_| Ok::<_, MemError>(()));
    assert!(matches!(outcome, Err(MemError::OutOfBounds { .. })));
}

proptest! {
    /// Against a model of its own: a crash leaves, for every word, a value at least as new as the last durable one.
    #[test]
    fn no_image_is_older_than_durable_or_newer_than_current(
        steps in prop::collection::vec((0_u64..4, 0_u64..32), 1..40),
    ) {
        let medium = ShadowMedium::new(256, MediumKind::FsDax).unwrap();
        let (mut durable, mut covered, mut now) = ([0_u64; 32], [0_u64; 32], [0_u64; 32]);
        for (number, (what, word)) in (1..).zip(steps) {
            match what {
                0 | 1 => {
                    medium.atomic_store(word * 8, number).unwrap();
                    now[word as usize] = number;
                }
                2 => {
                    medium.write_back(word * 8, 8).unwrap();
                    let line = word as usize / 8 * 8;
                    covered[line..line + 8].copy_from_slice(&now[line..line + 8]);
                }
                _ => {
                    medium.fence().unwrap();
                    durable = covered;
                }
            }
        }
        for image in medium.crash_images(500) {
            for (index, bytes) in image.chunks_exact(8).enumerate() {
                let value = u64::from_le_bytes(bytes.try_into().unwrap());
                prop_assert!((durable[index]..=now[index]).contains(&value), "word {index}: {value}");
            }
        }
        let oldest = medium.crash_images(500).next().unwrap();
        for (index, bytes) in oldest.chunks_exact(8).enumerate() {
            prop_assert_eq!(u64::from_le_bytes(bytes.try_into().unwrap()), durable[index]);
        }
    }
}
