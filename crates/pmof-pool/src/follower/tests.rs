use std::{
    cell::{Cell, RefCell},
    ops::Range,
};

use pmof_mem::{Durability, Medium, MediumKind, MemError, Memory, ShadowMedium, shadow::for_each_crash_point};
use pmof_replication::following::{ShippedRules, commit};
use proptest::prelude::*;

use super::*;

const DATA: Range<u64> = 0..1024;

/// A member on one medium: its data, the staging area behind it, and the points area behind that, where it has one.
pub(super) struct OnMedium<'m> {
    medium: &'m dyn Medium,
    level: Durability,
    data_bytes: u64,
    staging_bytes: u64,
    /// What the writer sent, where that is recorded.
    sent: RefCell<Option<Vec<Sent>>>,
    mark: Cell<u64>,
    /// Data was written and not flushed. All is one medium here, which a flush of the staging area flushes as well; the pools of a member are not.
    is_data_unflushed: Cell<bool>,
    /// Steps until the connection is lost.
    left: Cell<u32>,
}

impl<'m> OnMedium<'m> {
    pub(super) fn new(medium: &'m dyn Medium, level: Durability, data_bytes: u64, staging_bytes: u64) -> Self {
        let (sent, mark, is_data_unflushed) = (RefCell::default(), Cell::new(0), Cell::new(false));
        Self { medium, level, data_bytes, staging_bytes, sent, mark, is_data_unflushed, left: Cell::new(u32::MAX) }
    }

    /// The connection is lost after so many more steps.
    pub(super) fn lose_after(&self, steps: u32) {
        self.left.set(steps);
    }

    fn step(&self) -> Result<(), MemError> {
        let left = self.left.get().checked_sub(1).ok_or(MemError::Misaligned { offset: 0 })?;
        self.left.set(left);
        Ok(())
    }

    /// The same, with a record of what is sent from now on.
    pub(super) fn recorded(self) -> Self {
        Self { sent: RefCell::new(Some(Vec::new())), ..self }
    }

    pub(super) fn take_sent(&self) -> Vec<Sent> {
        self.sent.take().unwrap_or_default()
    }

    fn points(&self) -> u64 {
        self.data_bytes + self.staging_bytes
    }

    fn note(&self, sent: impl FnOnce() -> Sent) {
        if let Some(all) = &mut *self.sent.borrow_mut() {
            all.push(sent());
        }
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), MemError> {
        self.step()?;
        self.note(|| Sent::Bytes(at, bytes.to_vec()));
        self.medium.store(at, bytes)?;
        self.medium.write_back(at, bytes.len() as u64)
    }

    fn flush(&self, range: Range<u64>) -> Result<(), MemError> {
        self.step()?;
        self.medium.flush(self.level, range.start, range.end - range.start).map(|promise| assert!(promise.is_some()))
    }
}

impl FollowerBytes for OnMedium<'_> {
    type Error = MemError;

    fn read_data(&self, offset: u64, into: &mut [u8]) -> Result<(), MemError> {
        self.medium.read(offset, into)
    }

    fn read_staging(&self, offset: u64, into: &mut [u8]) -> Result<(), MemError> {
        self.medium.read(self.data_bytes + offset, into)
    }

    fn data_mark(&self) -> Result<u64, MemError> {
        Ok(self.mark.get())
    }

    fn points_bytes(&self) -> Option<u64> {
        Some(self.medium.len_bytes() - self.points()).filter(|points_bytes| *points_bytes > 0)
    }

    fn read_points(&self, offset: u64, into: &mut [u8]) -> Result<(), MemError> {
        self.medium.read(self.points() + offset, into)
    }
}

impl FollowerMemory for OnMedium<'_> {
    fn write_staging(&self, offset: u64, bytes: &[u8]) -> Result<(), MemError> {
        self.write(self.data_bytes + offset, bytes)
    }

    fn set_staging(&self, offset: u64, number: u64) -> Result<(), MemError> {
        assert!(!self.is_data_unflushed.get(), "a number tells of data that may be lost");
        self.step()?;
        let at = self.data_bytes + offset;
        self.note(|| Sent::Number(at, number));
        self.medium.atomic_store(at, number)?;
        self.medium.write_back(at, 8)
    }

    fn flush_staging(&self) -> Result<(), MemError> {
        self.flush(self.data_bytes..self.points())
    }

    fn write_data(&self, offset: u64, bytes: &[u8]) -> Result<(), MemError> {
        self.is_data_unflushed.set(true);
        self.write(offset, bytes)
    }

    fn flush_data(&self) -> Result<(), MemError> {
        self.is_data_unflushed.set(false);
        self.flush(0..self.data_bytes)
    }

    fn mark_data(&self, mark: u64) -> Result<(), MemError> {
        self.mark.set(mark);
        Ok(())
    }

    fn write_points(&self, offset: u64, bytes: &[u8]) -> Result<(), MemError> {
        self.write(self.points() + offset, bytes)
    }

    fn flush_points(&self) -> Result<(), MemError> {
        self.flush(self.points()..self.medium.len_bytes())
    }
}

pub(super) const NO_POINTS: Keep = Keep { count: None, fresh: 1 };

fn memory(medium: &dyn Medium, level: Durability) -> OnMedium<'_> {
    OnMedium::new(medium, level, DATA.end, medium.len_bytes() - DATA.end)
}

fn open(medium: &dyn Medium, level: Durability) -> Follower<OnMedium<'_>> {
    Follower::open(memory(medium, level), medium.len_bytes() - DATA.end, DATA.end, NO_POINTS).unwrap()
}

/// Change sets whose bytes all say which one wrote them, and what the data holds after each.
struct Sets {
    writes: Vec<Vec<(u64, Vec<u8>)>>,
    states: Vec<Vec<u8>>,
}

impl Sets {
    /// Change set *n* writes in `places`, `len_bytes` each.
    fn new(count: u64, places: u64, len_bytes: u64) -> Self {
        let mut state = vec![0; DATA.end as usize];
        let (mut writes, mut states) = (Vec::new(), vec![state.clone()]);
        for number in 1..=count {
            let of_place = |place: u64| {
                let offset = (number * 37 + place * 211) % (DATA.end - len_bytes + 1);
                (offset, vec![(number % 251) as u8 + 1; len_bytes as usize])
            };
            let of_set: Vec<_> = (0..places).map(of_place).collect();
            for (offset, bytes) in &of_set {
                state[*offset as usize..][..bytes.len()].copy_from_slice(bytes);
            }
            writes.push(of_set);
            states.push(state.clone());
        }
        Self { writes, states }
    }

    fn commit<M: FollowerMemory>(&self, follower: &mut Follower<M>, number: u64) -> Result<(), M::Error> {
        let mut set = ChangeSet::new();
        for (offset, bytes) in &self.writes[number as usize - 1] {
            assert_eq!(follower.add(&mut set, *offset, bytes)?, Ok(()));
        }
        commit(&ShippedRules, follower, set, &point(number))
    }
}

fn point(number: u64) -> ConsistencyPoint {
    ConsistencyPoint {
        number,
        opening: 1,
        written_bytes: number * 100,
        unix_ms: number,
        name: format!("point {number}"),
    }
}

fn data_of(medium: &dyn Medium) -> Vec<u8> {
    let mut data = vec![0; DATA.end as usize];
    medium.read(0, &mut data).unwrap();
    data
}

/// What a writer sends to a member, in its order.
#[derive(Clone, Debug)]
pub(super) enum Sent {
    Bytes(u64, Vec<u8>),
    Number(u64, u64),
}

/// What a writer sends that commits these sets.
fn sent_of(sets: &Sets, len_bytes: u64) -> Vec<Sent> {
    let medium = Memory::anonymous(len_bytes).unwrap();
    let recorded = memory(&medium, Durability::Visible).recorded();
    let mut follower = Follower::open(recorded, len_bytes - DATA.end, DATA.end, NO_POINTS).unwrap();
    for number in 1..=sets.writes.len() as u64 {
        sets.commit(&mut follower, number).unwrap();
        follower.hear(&point(number)).unwrap();
    }
    follower.memory.take_sent()
}

/// Cuts what is sent behind each of its bytes, and opens the member. `Err`: how many bytes were sent when it was at no prefix, or at one that it does not say.
fn cut_everywhere(sets: &Sets, sent: &[Sent], len_bytes: u64) -> Result<u64, u64> {
    let medium = Memory::anonymous(len_bytes).unwrap();
    let mut image = vec![0; len_bytes as usize];
    let (mut cuts, mut before) = (0, 0);
    let mut check = |image: &[u8]| {
        cuts += 1;
        medium.store(0, image).unwrap();
        let follower = open(&medium, Durability::Visible);
        let applied = follower.applied().filter(|applied| *applied >= before);
        let is_prefix = applied.is_some_and(|applied| data_of(&medium) == sets.states[applied as usize]);
        let name = follower.point().map(|point| point.name.clone()).unwrap_or_default();
        let is_named = applied.is_some_and(|applied| applied == 0 || name == format!("point {applied}"));
        before = applied.unwrap_or(before);
        if is_prefix && is_named { Ok(cuts) } else { Err(cuts) }
    };
    for sent in sent {
        match sent {
            Sent::Bytes(at, bytes) => {
                for (byte, at) in bytes.iter().zip(*at as usize..) {
                    image[at] = *byte;
                    check(&image)?;
                }
            }
            Sent::Number(at, number) => {
                image[*at as usize..][..8].copy_from_slice(&number.to_le_bytes());
                check(&image)?;
            }
        }
    }
    check(&image)
}

/// Data and staging area each as they were at one of two moments, between which the pool's mark rose twice: they make a point together, or none.
#[test]
fn data_and_staging_area_of_different_times_are_at_no_point() {
    let sets = Sets::new(2, 3, 64);
    let medium = Memory::anonymous(SMALL_BYTES).unwrap();
    let image = || {
        let mut image = vec![0; SMALL_BYTES as usize];
        medium.read(0, &mut image).unwrap();
        image
    };
    let mut follower = open(&medium, Durability::Visible);
    follower.date_copies(3).unwrap();
    sets.commit(&mut follower, 1).unwrap();
    let first = image();
    // Not the second one: until it is noted that the data was told a mark, the one before is taken, too.
    for mark in [3, 2, 4, 5] {
        follower.date_copies(mark).unwrap();
    }
    sets.commit(&mut follower, 2).unwrap();
    let second = image();
    for (data, staging) in [(&first, &first), (&first, &second), (&second, &first), (&second, &second)] {
        let split = DATA.end as usize;
        medium.store(0, &data[..split]).unwrap();
        medium.store(DATA.end, &staging[split..]).unwrap();
        let memory = memory(&medium, Durability::Visible);
        memory.mark.set(if data == &first { 3 } else { 5 });
        let follower = Follower::open(memory, SMALL_BYTES - DATA.end, DATA.end, NO_POINTS).unwrap();
        let is_whole = data == staging;
        assert_eq!((follower.applied().is_some(), follower.point().is_some()), (is_whole, is_whole));
        assert_eq!(seen(follower.memory()).unwrap().applied_point().is_some(), is_whole);
    }
}

/// The data is told a mark between two notes of that: wherever the writer dies, the member is at its point.
#[test]
fn a_writer_that_dies_while_it_tells_a_mark_leaves_the_point() {
    let medium = Memory::anonymous(SMALL_BYTES).unwrap();
    let mut follower = open(&medium, Durability::Visible);
    Sets::new(1, 3, 64).commit(&mut follower, 1).unwrap();
    follower.date_copies(7).unwrap();
    let point_with = |telling: u64, data_mark: u64, told: u64| {
        medium.atomic_store(DATA.end + TELLING, telling).unwrap();
        medium.atomic_store(DATA.end + TOLD, told).unwrap();
        let memory = memory(&medium, Durability::Visible);
        memory.mark.set(data_mark);
        Follower::open(memory, SMALL_BYTES - DATA.end, DATA.end, NO_POINTS).unwrap().point().is_some()
    };
    assert!(
        [(7, 7, 7), (9, 7, 7), (9, 9, 7), (9, 9, 9)]
            .into_iter()
            .all(|(telling, mark, told)| point_with(telling, mark, told))
    );
    assert!(!point_with(9, 6, 7) && !point_with(9, 10, 7) && !point_with(9, 7, 9));
}

/// A number that the writer before had not flushed is durable before anything comes of it.
#[test]
fn an_opening_relies_on_no_number_that_a_loss_of_power_would_take() {
    let medium = Memory::anonymous(SMALL_BYTES).unwrap();
    let mut follower = open(&medium, Durability::Visible);
    Sets::new(1, 3, 64).commit(&mut follower, 1).unwrap();
    for applied in [0, 1] {
        medium.atomic_store(DATA.end + APPLIED, applied).unwrap();
        let recorded = memory(&medium, Durability::Visible).recorded();
        let follower = Follower::open(recorded, SMALL_BYTES - DATA.end, DATA.end, NO_POINTS).unwrap();
        let mut sent = follower.memory.take_sent().into_iter();
        let mut number = || match sent.next() {
            Some(Sent::Number(at, number)) => Some((at - DATA.end, number)),
            _ => None,
        };
        assert_eq!([number(), number()], [Some((APPLIED, applied)), Some((STAGED, 1))]);
        assert_eq!(sent.any(|sent| matches!(sent, Sent::Number(at, 1) if at == DATA.end + APPLIED)), applied == 0);
    }
}

/// A writer that dies may have told the data a mark that no other member has: the next one's is lower, and the member stays at its point.
#[test]
fn a_lower_mark_of_the_next_writer_leaves_the_point() {
    let medium = Memory::anonymous(SMALL_BYTES).unwrap();
    let mut follower = open(&medium, Durability::Visible);
    Sets::new(1, 3, 64).commit(&mut follower, 1).unwrap();
    medium.atomic_store(DATA.end + TELLING, 9).unwrap();
    medium.atomic_store(DATA.end + TOLD, 7).unwrap();
    let memory = memory(&medium, Durability::Visible);
    memory.mark.set(9);
    let mut follower = Follower::open(memory, SMALL_BYTES - DATA.end, DATA.end, NO_POINTS).unwrap();
    follower.date_copies(8).unwrap();
    assert!(seen(follower.memory()).unwrap().applied_point().is_some());
}

const SMALL_BYTES: u64 = DATA.end + BODY + 400;

/// The writer dies behind each byte that it sends: the member opens at a prefix, which it names, and never at an older one than before. `PMOF_STREAM_BYTES` makes it a longer stream.
#[test]
fn a_writer_that_dies_behind_any_byte_leaves_a_prefix() {
    let wanted = std::env::var("PMOF_STREAM_BYTES").map_or(40_000, |bytes| bytes.parse().expect("a number of bytes"));
    // Of each change set more than so many bytes are sent.
    let sets = Sets::new(wanted / 1300, 3, 64);
    let sent = sent_of(&sets, SMALL_BYTES);
    let cuts = cut_everywhere(&sets, &sent, SMALL_BYTES).expect("a prefix behind each byte");
    assert!(cuts > wanted, "{cuts} cuts");
    println!("{cuts} cuts");
}

/// The control: a writer that applies a change set before all of it is staged leaves no prefix.
#[test]
fn a_change_set_that_is_applied_before_it_is_staged_is_noticed() {
    let sets = Sets::new(3, 3, 64);
    let mut sent = sent_of(&sets, SMALL_BYTES);
    let is_data = |sent: &Sent| matches!(sent, Sent::Bytes(at, _) if DATA.contains(at));
    let staged = sent.iter().position(|sent| matches!(sent, Sent::Number(..))).unwrap();
    let applied = sent.iter().position(is_data).unwrap();
    assert!(staged < applied);
    let early = sent.remove(applied);
    sent.insert(staged, early);
    assert!(cut_everywhere(&sets, &sent, SMALL_BYTES).is_err());
}

/// What a crash leaves after any step, whoever opens the member makes a prefix of, with all that was told to be there.
fn crash_everywhere(kind: MediumKind) -> u64 {
    let sets = Sets::new(4, 3, 24);
    let medium = ShadowMedium::new(SMALL_BYTES, kind).unwrap();
    let mut follower = open(&medium, Durability::PowerFailure);
    for number in 1..=4 {
        sets.commit(&mut follower, number).unwrap();
        medium.mark(number);
    }
    let initial = vec![0; SMALL_BYTES as usize];
    let coverage = for_each_crash_point::<MemError>(kind, &initial, &medium.trace(), 200, |crash| {
        let left = ShadowMedium::from_image(crash.image.to_vec(), kind)?;
        let applied = open(&left, Durability::PowerFailure).applied().expect("a prefix");
        let told = crash.marks.last().copied().unwrap_or(0);
        assert!(applied >= told, "{told} was told to be there, {applied} is");
        assert!(data_of(&left) == sets.states[applied as usize], "no prefix after {} events", crash.events_done);
        // The opening may be interrupted too.
        for_each_crash_point::<MemError>(kind, crash.image, &left.trace(), 5, |again| {
            let left = ShadowMedium::from_image(again.image.to_vec(), kind)?;
            assert_eq!(open(&left, Durability::PowerFailure).applied(), Some(applied));
            assert!(data_of(&left) == sets.states[applied as usize], "no prefix after a second crash");
            Ok(())
        })
        .map(drop)
    });
    coverage.unwrap().images
}

#[test]
fn a_crash_of_the_member_at_any_step_leaves_a_prefix() {
    assert!(crash_everywhere(MediumKind::DevDax) > 1000);
    assert!(crash_everywhere(MediumKind::PageCache) > 50);
}

/// A member at no point is written to as it comes; a crash at any step leaves it at none, or at the first with all that was copied.
#[test]
fn what_is_copied_to_a_member_at_no_point_is_there_when_it_is_at_one() {
    for kind in [MediumKind::DevDax, MediumKind::PageCache] {
        let medium = ShadowMedium::new(SMALL_BYTES, kind).unwrap();
        let mut follower = open(&medium, Durability::PowerFailure);
        let mut expected = vec![0; DATA.end as usize];
        for (number, offset) in [(1, 0), (2, 300), (3, 64)] {
            follower.write_unstaged(offset, &[number; 100]).unwrap();
            expected[offset as usize..][..100].fill(number);
        }
        let mut set = ChangeSet::new();
        assert_eq!(follower.add(&mut set, 20, &[9; 10]).unwrap(), Ok(()));
        expected[20..30].fill(9);
        commit(&ShippedRules, &mut follower, set, &point(1)).unwrap();
        medium.mark(1);
        let initial = vec![0; SMALL_BYTES as usize];
        let coverage = for_each_crash_point::<MemError>(kind, &initial, &medium.trace(), 200, |crash| {
            let left = ShadowMedium::from_image(crash.image.to_vec(), kind)?;
            let follower = open(&left, Durability::PowerFailure);
            let is_told = crash.marks.last() == Some(&1);
            assert!(follower.is_at_point() || (!is_told && follower.point().is_none()));
            assert!(!follower.is_at_point() || data_of(&left) == expected, "after {} events", crash.events_done);
            Ok(())
        });
        assert!(coverage.unwrap().images > 20);
    }
}

#[test]
fn a_change_set_longer_than_the_staging_area_is_none() {
    let medium = Memory::anonymous(DATA.end + BODY + 64).unwrap();
    let mut follower = open(&medium, Durability::Visible);
    let mut set = ChangeSet::new();
    assert_eq!(follower.add(&mut set, 0, &[1; 49]).unwrap(), Err(TooLong));
    assert_eq!(follower.add(&mut set, 0, &[1; 16]).unwrap(), Ok(()));
    assert_eq!(follower.add(&mut set, 16, &[2; 17]).unwrap(), Err(TooLong));
    // What was too long is no part of it.
    commit(&ShippedRules, &mut follower, set, &point(7)).unwrap();
    assert_eq!(data_of(&medium)[..20], [&[1; 16][..], &[0; 4]].concat());
    assert_eq!(open(&medium, Durability::Visible).point().map(|point| point.number), Some(1));
}

/// A member that is damaged says so until all that differs was applied.
#[test]
fn a_damaged_member_is_at_no_point_until_the_next_change_set() {
    for (staged, applied) in [(1_u64, 0_u64), (3, 1), (0, 1)] {
        let medium = Memory::anonymous(SMALL_BYTES).unwrap();
        medium.atomic_store(DATA.end + STAGED, staged).unwrap();
        medium.atomic_store(DATA.end + APPLIED, applied).unwrap();
        let mut follower = open(&medium, Durability::Visible);
        assert_eq!((follower.applied(), follower.point()), (None, None));
        commit(&ShippedRules, &mut follower, ChangeSet::new(), &point(0)).unwrap();
        let next = Some(staged.max(applied) + 1);
        assert_eq!((follower.applied(), open(&medium, Durability::Visible).applied()), (next, next));
    }
}

#[test]
fn what_is_staged_and_not_whole_is_not_applied() {
    let sets = Sets::new(2, 2, 16);
    let sent = sent_of(&sets, SMALL_BYTES);
    let staged = sent.iter().position(|sent| matches!(sent, Sent::Number(..))).unwrap();
    for damaged in [DATA.end + FRAME, DATA.end + BODY, DATA.end + BODY + 20] {
        let medium = Memory::anonymous(SMALL_BYTES).unwrap();
        for sent in &sent[..=staged] {
            match sent {
                Sent::Bytes(at, bytes) => medium.store(*at, bytes).unwrap(),
                Sent::Number(at, number) => medium.atomic_store(*at, *number).unwrap(),
            }
        }
        let mut byte = [0];
        medium.read(damaged, &mut byte).unwrap();
        medium.store(damaged, &[byte[0] ^ 1]).unwrap();
        assert_eq!(open(&medium, Durability::Visible).applied(), None);
        assert!(data_of(&medium) == sets.states[0]);
    }
}

#[test]
fn the_writer_is_heard_beyond_the_point() {
    let medium = Memory::anonymous(SMALL_BYTES).unwrap();
    let mut follower = open(&medium, Durability::Visible);
    commit(&ShippedRules, &mut follower, ChangeSet::new(), &point(1)).unwrap();
    for written_bytes in [300, 700, 900] {
        follower.hear(&ConsistencyPoint { written_bytes, ..point(0) }).unwrap();
        let again = open(&medium, Durability::Visible);
        assert_eq!(again.heard().map(|heard| heard.written_bytes), Some(written_bytes));
        assert_eq!(again.point(), Some(&point(1)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// Long change sets are read again to be applied, in pieces; what is left is the same as of a short one.
    #[test]
    fn long_and_short_change_sets_are_applied_alike(
        writes in proptest::collection::vec((0..3_u64 << 20, 1..700_000_usize, any::<u8>()), 1..40),
        is_cut in any::<bool>(),
    ) {
        let size_bytes = 4_u64 << 20;
        let staging = staging_bytes(size_bytes, 40 * 700_000);
        let medium = Memory::anonymous(size_bytes + staging).unwrap();
        let open = || {
            let memory = OnMedium::new(&medium, Durability::Visible, size_bytes, staging);
            Follower::open(memory, staging, size_bytes, NO_POINTS).unwrap()
        };
        let mut follower = open();
        let (mut set, mut expected) = (ChangeSet::new(), vec![0; size_bytes as usize]);
        for (offset, len_bytes, byte) in writes {
            let bytes = vec![byte; len_bytes];
            prop_assert_eq!(follower.add(&mut set, offset, &bytes).unwrap(), Ok(()));
            expected[offset as usize..][..len_bytes].copy_from_slice(&bytes);
        }
        if is_cut {
            // All but the numbers and the data.
            let body_crc = follower.finish(&mut set).unwrap();
            let header = ChangeSetHeader { number: 1, body_bytes: set.body_bytes(), body_crc };
            follower.memory().write_staging(FRAME, &header.to_bytes()).unwrap();
            follower.memory().set_staging(STAGED, 1).unwrap();
            prop_assert_eq!(open().applied(), Some(1));
        } else {
            commit(&ShippedRules, &mut follower, set, &point(1)).unwrap();
        }
        let mut found = vec![0; size_bytes as usize];
        medium.read(0, &mut found).unwrap();
        prop_assert!(found == expected);
    }

    /// Pages that are copied again take the place of those in the change set: it grows no more, and is read back as one that had the last of each.
    #[test]
    fn pages_are_in_a_change_set_once(
        pages in proptest::collection::vec((0..11_u64 << 8, 1..256_u64, any::<u8>()), 1..60),
        is_cut in any::<bool>(),
    ) {
        const PAGE: u64 = 4096;
        let size_bytes = 12_u64 << 20;
        let staging = staging_bytes(size_bytes, 1000);
        let medium = Memory::anonymous(size_bytes + staging).unwrap();
        let open = || {
            let memory = OnMedium::new(&medium, Durability::Visible, size_bytes, staging);
            Follower::open(memory, staging, size_bytes, NO_POINTS).unwrap()
        };
        let mut follower = open();
        commit(&ShippedRules, &mut follower, ChangeSet::new(), &point(1)).unwrap();
        let (mut set, mut expected) = (ChangeSet::new(), vec![0; size_bytes as usize]);
        for (first, count, byte) in pages.iter().chain(&pages) {
            let (offset, byte) = (first * PAGE, byte.wrapping_add((*first % 7) as u8));
            let bytes = vec![byte; (count * PAGE) as usize];
            prop_assert!(follower.put(&mut set, offset, &bytes).unwrap());
            expected[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        prop_assert!(set.body_bytes() <= size_bytes + size_bytes / 128);
        prop_assert_eq!(follower.add(&mut set, 5, &[200; 3]).unwrap(), Ok(()));
        expected[5..8].fill(200);
        if is_cut {
            let body_crc = follower.finish(&mut set).unwrap();
            let header = ChangeSetHeader { number: 2, body_bytes: set.body_bytes(), body_crc };
            follower.memory().write_staging(FRAME, &header.to_bytes()).unwrap();
            follower.memory().set_staging(STAGED, 2).unwrap();
            prop_assert_eq!(open().applied(), Some(2));
        } else {
            commit(&ShippedRules, &mut follower, set, &point(2)).unwrap();
        }
        let mut found = vec![0; size_bytes as usize];
        medium.read(0, &mut found).unwrap();
        prop_assert!(found == expected);
    }
}
