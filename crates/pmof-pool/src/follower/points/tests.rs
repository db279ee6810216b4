use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
};

use pmof_mem::{Durability, Medium, MediumKind, MemError, Memory, ShadowMedium, shadow::for_each_crash_point};
use pmof_replication::following::{self, Replica, ShippedRules};
use proptest::prelude::*;

use super::*;
use crate::follower::{
    ChangeSet, Follower, Keep, PointNews,
    tests::{OnMedium, Sent},
};

const PAGES: u64 = 3;
/// The last page is not whole.
const DATA_BYTES: u64 = PAGES * PAGE_BYTES - 1000;
const STAGING_BYTES: u64 = 4096 + 32 + DATA_BYTES + 1024;
const SMALL_LOG: u64 = 3 * PAGE_BYTES;
const LARGE_LOG: u64 = 64 * PAGE_BYTES;

fn len_bytes(log_bytes: u64) -> u64 {
    DATA_BYTES + STAGING_BYTES + points_area_bytes(log_bytes)
}

fn memory(medium: &dyn Medium, level: Durability) -> OnMedium<'_> {
    OnMedium::new(medium, level, DATA_BYTES, STAGING_BYTES)
}

fn open_with(memory: OnMedium<'_>, count: Option<u16>) -> Follower<OnMedium<'_>> {
    Follower::open(memory, STAGING_BYTES, DATA_BYTES, Keep { count, fresh: 77 }).unwrap()
}

/// As whoever comes next does: it keeps what is kept.
fn open(medium: &dyn Medium) -> Follower<OnMedium<'_>> {
    open_with(memory(medium, Durability::Visible), None)
}

/// A change set: its writes, and the name of its point.
#[derive(Clone, Debug)]
struct Step {
    writes: Vec<(u64, Vec<u8>)>,
    name: &'static str,
}

fn step(number: u64, places: &[u64], name: &'static str) -> Step {
    let write = |place: &u64| (*place, vec![number as u8 * 16 + (*place % 13) as u8; 40]);
    Step { writes: places.iter().map(write).collect(), name }
}

/// Points with and without names, over pages that change once, again and again, and never.
fn steps() -> Vec<Step> {
    vec![
        step(1, &[10], ""),
        step(2, &[4000, 100], "one"),
        step(3, &[20, 8200], ""),
        step(4, &[60], "two"),
        step(5, &[DATA_BYTES - 40], "three"),
        step(6, &[30, 4090], ""),
    ]
}

fn point_of(number: u64, name: &str) -> ConsistencyPoint {
    ConsistencyPoint { number, opening: 1, written_bytes: number * 100, unix_ms: number, name: name.to_owned() }
}

fn commit<M: FollowerMemory>(follower: &mut Follower<M>, step: &Step) -> Result<(), M::Error> {
    let mut set = ChangeSet::new();
    for (offset, bytes) in &step.writes {
        assert_eq!(follower.add(&mut set, *offset, bytes)?, Ok(()));
    }
    let point = point_of(follower.applied().map_or(1, |applied| applied + 1), step.name);
    following::commit(&ShippedRules, follower, set, &point)
}

fn commit_all(follower: &mut Follower<OnMedium<'_>>, steps: &[Step]) {
    for step in steps {
        commit(follower, step).unwrap();
    }
}

/// What the data is after each step, from before the first.
fn states(steps: &[Step]) -> Vec<Vec<u8>> {
    let mut states = vec![vec![0; DATA_BYTES as usize]];
    for step in steps {
        let mut state = states[states.len() - 1].clone();
        for (offset, bytes) in &step.writes {
            state[*offset as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        states.push(state);
    }
    states
}

fn data_of(medium: &dyn Medium) -> Vec<u8> {
    let mut data = vec![0; DATA_BYTES as usize];
    medium.read(0, &mut data).unwrap();
    data
}

/// The points that are kept, by their numbers, and what each reads as; piece by piece, over the borders of pages.
fn read_all<M: FollowerBytes<Error = MemError>>(
    memory: &M,
) -> Result<BTreeMap<u64, Vec<u8>>, PointReadError<MemError>> {
    let index = match kept_points(memory)? {
        Kept::None => return Ok(BTreeMap::new()),
        Kept::Damaged => return Err(PointReadError::Damaged),
        Kept::Points(index) => index,
    };
    let mut read = BTreeMap::new();
    for kept in index.points {
        let mut view = AtPoint::open(memory, DATA_BYTES, kept.point.number)?;
        let mut bytes = vec![0; DATA_BYTES as usize];
        for (piece, into) in bytes.chunks_mut(5000).enumerate() {
            view.read(memory, piece as u64 * 5000, into)?;
        }
        read.insert(kept.point.number, bytes);
    }
    Ok(read)
}

/// Which of the steps' points are kept when so many steps are done.
fn expected(steps: &[Step], done: u64, keep: usize) -> Vec<u64> {
    let named: Vec<u64> = (1..=done).filter(|number| !steps[*number as usize - 1].name.is_empty()).collect();
    named[named.len().saturating_sub(keep)..].to_vec()
}

/// Whether whoever opens the member finds a prefix, and each point that it should keep as it was; returns how many steps are done.
fn check(medium: &dyn Medium, steps: &[Step], states: &[Vec<u8>], keep: usize) -> Result<u64, String> {
    // A reader comes before whoever makes up for the crash.
    let before = read_all(&memory(medium, Durability::Visible)).map_err(|error| format!("read: {error:?}"))?;
    for (number, bytes) in &before {
        if *bytes != states[*number as usize] {
            return Err(format!("point {number} is not as it was, before the opening"));
        }
    }
    let follower = open(medium);
    let done = follower.applied().ok_or("no prefix")?;
    if data_of(medium) != states[done as usize] {
        return Err(format!("the data is not that of {done}"));
    }
    let kept = read_all(follower.memory()).map_err(|error| format!("read after the opening: {error:?}"))?;
    for (number, bytes) in &kept {
        if *bytes != states[*number as usize] {
            return Err(format!("point {number} is not as it was, at {done}"));
        }
    }
    let numbers: Vec<_> = kept.into_keys().collect();
    if numbers == expected(steps, done, keep) { Ok(done) } else { Err(format!("{numbers:?} are kept at {done}")) }
}

fn sent_of(steps: &[Step], keep: u16, log_bytes: u64) -> Vec<Sent> {
    let medium = Memory::anonymous(len_bytes(log_bytes)).unwrap();
    let follower = open_with(memory(&medium, Durability::Visible).recorded(), Some(keep));
    // The points area is there from before: a cut of its beginning is another test's.
    follower.memory().take_sent();
    let mut follower = open_with(memory(&medium, Durability::Visible).recorded(), Some(keep));
    for step in steps {
        commit(&mut follower, step).unwrap();
    }
    follower.memory().take_sent()
}

/// A member as it is when it begins to keep points.
fn begun(keep: u16, log_bytes: u64) -> Vec<u8> {
    let medium = Memory::anonymous(len_bytes(log_bytes)).unwrap();
    drop(open_with(memory(&medium, Durability::Visible), Some(keep)));
    image_of(&medium)
}

fn image_of(medium: &dyn Medium) -> Vec<u8> {
    let mut image = vec![0; medium.len_bytes() as usize];
    medium.read(0, &mut image).unwrap();
    image
}

/// Cuts what is sent behind each of its bytes, but of long writes only now and then behind those that say nothing of where others lie.
fn cut_everywhere(
    (initial, sent): (&[u8], &[Sent]),
    mut check: impl FnMut(&dyn Medium) -> Result<(), String>,
) -> Result<u64, String> {
    let medium = Memory::anonymous(initial.len() as u64).unwrap();
    let (mut image, mut cuts) = (initial.to_vec(), 0);
    let mut look = |image: &[u8], cuts: &mut u64| {
        *cuts += 1;
        medium.store(0, image).unwrap();
        check(&medium)
    };
    for sent in sent {
        match sent {
            Sent::Bytes(at, bytes) => {
                for (index, byte) in bytes.iter().enumerate() {
                    image[*at as usize + index] = *byte;
                    if index < 160 || index % 61 == 0 || index + 1 == bytes.len() {
                        look(&image, &mut cuts)?;
                    }
                }
            }
            Sent::Number(at, number) => {
                image[*at as usize..][..8].copy_from_slice(&number.to_le_bytes());
                look(&image, &mut cuts)?;
            }
        }
    }
    Ok(cuts)
}

fn cut_steps(sent: &[Sent], keep: u16, log_bytes: u64) -> Result<u64, String> {
    let (steps, mut last) = (steps(), 0);
    let states = states(&steps);
    let initial = begun(keep, log_bytes);
    cut_everywhere((&initial, sent), |medium| {
        let done = check(medium, &steps, &states, keep.into())?;
        if done < last {
            return Err(format!("{done} after {last}"));
        }
        last = done;
        Ok(())
    })
}

/// The writer dies behind each byte that it sends: the member opens at a prefix, and each point that it keeps is as it was.
#[test]
fn a_writer_that_dies_behind_any_byte_leaves_all_points() {
    for keep in [1, 2, 5] {
        let cuts =
            cut_steps(&sent_of(&steps(), keep, LARGE_LOG), keep, LARGE_LOG).expect("all points behind each byte");
        assert!(cuts > 4000, "{cuts} cuts");
    }
}

/// The control: a writer that saves what it overwrites only when it has is noticed.
#[test]
fn old_bytes_that_are_saved_too_late_are_noticed() {
    let mut sent = sent_of(&steps(), 2, LARGE_LOG);
    let in_points = |sent: &Sent| matches!(sent, Sent::Bytes(at, _) if *at >= DATA_BYTES + STAGING_BYTES);
    let in_data = |sent: &Sent| matches!(sent, Sent::Bytes(at, _) if *at < DATA_BYTES);
    // The index that tells of the first set of old bytes: the last write before the data.
    let first_kept = sent.iter().position(in_points).unwrap();
    let data = first_kept + sent[first_kept..].iter().position(in_data).unwrap();
    assert!(in_points(&sent[data - 1]));
    sent.swap(data - 1, data);
    cut_steps(&sent, 2, LARGE_LOG).expect_err("a point that is not as it was");
}

/// What a crash leaves after any step of a medium.
fn crash_everywhere(kind: MediumKind) -> u64 {
    let (steps, keep) = (steps(), 2);
    let states = states(&steps);
    let initial = begun(keep, LARGE_LOG);
    let medium = ShadowMedium::from_image(initial.clone(), kind).unwrap();
    let mut follower = open_with(memory(&medium, Durability::PowerFailure), None);
    for (step, number) in steps.iter().zip(1..) {
        commit(&mut follower, step).unwrap();
        medium.mark(number);
    }
    let coverage = for_each_crash_point::<MemError>(kind, &initial, &medium.trace(), 60, |crash| {
        let left = Memory::anonymous(crash.image.len() as u64)?;
        left.store(0, crash.image)?;
        let done = check(&left, &steps, &states, keep.into()).expect("all points");
        let told = crash.marks.last().copied().unwrap_or(0);
        assert!(done >= told, "{told} was told to be there, {done} is");
        Ok(())
    });
    coverage.unwrap().images
}

#[test]
fn a_crash_of_the_member_at_any_step_leaves_all_points() {
    assert!(crash_everywhere(MediumKind::DevDax) > 1000);
    assert!(crash_everywhere(MediumKind::PageCache) > 50);
}

/// A member goes back to each point, and is cut behind each byte of that: it is at the point, or where it was; and it goes forward again.
#[test]
fn a_rollback_that_is_cut_leaves_the_point_or_what_was_before() {
    let steps = steps();
    let states = states(&steps);
    for number in [2, 4, 5] {
        let medium = Memory::anonymous(len_bytes(LARGE_LOG)).unwrap();
        let mut follower = open_with(memory(&medium, Durability::Visible), Some(3));
        commit_all(&mut follower, &steps);
        drop(follower);
        let initial = image_of(&medium);
        let mut follower = open_with(memory(&medium, Durability::Visible).recorded(), None);
        assert_eq!(follower.heard(), None);
        let changed_bytes = follower.roll_back(number).unwrap();
        assert!(changed_bytes > 0 && changed_bytes <= DATA_BYTES, "{changed_bytes}");
        assert_eq!(follower.point().map(|point| point.name.as_str()), Some(steps[number as usize - 1].name));
        assert_eq!(follower.heard().map(|heard| heard.written_bytes), Some(point_of(6, "").written_bytes));
        let (mut was_rolled, sent) = (false, follower.memory().take_sent());
        let cuts = cut_everywhere((&initial, &sent), |medium| {
            let follower = open(medium);
            let is_rolled = follower.applied() == Some(7);
            let wanted = if is_rolled { number } else { 6 };
            let kept = read_all(follower.memory()).map_err(|error| format!("{error:?}"))?;
            // The same points all the time: that which it goes back to is one of them.
            let all =
                kept.keys().eq(&[2, 4, 5]) && kept.iter().all(|(number, bytes)| *bytes == states[*number as usize]);
            let is_right = data_of(medium) == states[wanted as usize] && all && is_rolled >= was_rolled;
            was_rolled = is_rolled;
            is_right.then_some(()).ok_or_else(|| format!("{is_rolled}, {:?}", kept.keys()))
        });
        assert!(cuts.unwrap() > 500 && was_rolled);
        // Forward again, to the newest.
        follower.roll_back(5).unwrap();
        assert!(data_of(&medium) == states[5]);
        // Step by step, and written again.
        follower.roll_back(4).unwrap();
        follower.roll_back(2).unwrap();
        assert!(data_of(&medium) == states[2]);
        commit(&mut follower, &step(8, &[60, 4050, 8300], "")).unwrap();
        let kept = read_all(follower.memory()).unwrap();
        assert!(kept.keys().eq(&[2, 4, 5]) && kept.iter().all(|(number, bytes)| *bytes == states[*number as usize]));
    }
}

/// A member that is lost before what is staged counts is where it was; behind that it may be either, which the error tells.
#[test]
fn a_rollback_that_is_interrupted_says_whether_it_may_be_done() {
    let steps = steps();
    let (mut unread, mut interrupted) = (0, 0);
    for lost_after in 0.. {
        let medium = Memory::anonymous(len_bytes(LARGE_LOG)).unwrap();
        let mut follower = open_with(memory(&medium, Durability::Visible), Some(3));
        commit_all(&mut follower, &steps);
        drop(follower);
        let mut follower = open(&medium);
        follower.memory().lose_after(lost_after);
        let rolled = follower.roll_back(4);
        drop(follower);
        let seen = seen(&memory(&medium, Durability::Visible)).unwrap();
        let is_staged = seen.staged_point().is_some_and(|point| point.name == "two");
        let is_done = seen.applied_point().is_some_and(|point| point.name == "two");
        match rolled {
            Ok(_) => break,
            Err(RollBackError::Unread(_)) => {
                assert!(!is_staged && !is_done, "{lost_after}");
                unread += 1;
            }
            Err(RollBackError::Interrupted(_)) => {
                // Nobody knows whether the first of these steps was done.
                assert!(is_staged || is_done || interrupted == 0, "{lost_after}");
                interrupted += 1;
            }
        }
    }
    assert!(unread > 3 && interrupted > 3, "{unread}, {interrupted}");
}

/// A log without room drops the oldest points, and never more than it must; the data goes on.
#[test]
fn points_without_room_are_dropped_and_told() {
    let steps = steps();
    let states = states(&steps);
    let medium = Memory::anonymous(len_bytes(SMALL_LOG)).unwrap();
    let mut follower = open_with(memory(&medium, Durability::Visible), Some(5));
    let mut dropped = Vec::new();
    for (step, number) in steps.iter().zip(1..) {
        commit(&mut follower, step).unwrap();
        for news in follower.take_news() {
            match news {
                PointNews::NoRoom(point) => dropped.push(point.number),
                PointNews::Stopped(why) => panic!("{why:?}"),
            }
        }
        let kept = read_all(follower.memory()).unwrap();
        assert!(kept.iter().all(|(number, bytes)| *bytes == states[*number as usize]));
        let mut all = expected(&steps, number, 5);
        all.retain(|number| !dropped.contains(number));
        assert_eq!(kept.into_keys().collect::<Vec<_>>(), all);
    }
    assert_eq!(dropped, [2], "{dropped:?}");
}

fn flip(medium: &dyn Medium, at: u64) {
    let mut byte = [0];
    medium.read(at, &mut byte).unwrap();
    medium.store(at, &[byte[0] ^ 0x10]).unwrap();
}

/// Any byte of the points area is damaged: points read as they were or not at all, and the data is as it was.
#[test]
fn a_damaged_points_area_is_noticed_and_the_data_untouched() {
    let steps = steps();
    let states = states(&steps);
    let medium = Memory::anonymous(len_bytes(LARGE_LOG)).unwrap();
    let mut follower = open_with(memory(&medium, Durability::Visible), Some(2));
    commit_all(&mut follower, &steps);
    drop(follower);
    let (initial, area) = (image_of(&medium), DATA_BYTES + STAGING_BYTES);
    let mut damaged = 0;
    for at in (0..1200).chain(SLOT_BYTES..SLOT_BYTES + 1200).chain((LOG..LOG + 6 * PAGE_BYTES).step_by(97)) {
        medium.store(0, &initial).unwrap();
        flip(&medium, area + at);
        match read_all(&memory(&medium, Durability::Visible)) {
            Ok(read) => assert!(read.iter().all(|(number, bytes)| *bytes == states[*number as usize]), "{at}"),
            Err(PointReadError::Damaged) => damaged += 1,
            Err(error) => panic!("{error:?}"),
        }
        let before = image_of(&medium);
        let mut follower = open(&medium);
        if let Err(error) = follower.roll_back(4) {
            let RollBackError::Unread(error) = error else { panic!("{error:?}") };
            assert!(matches!(error, PointReadError::Damaged | PointReadError::Gone), "{error:?}");
            assert_eq!(follower.applied(), Some(6));
            assert!(data_of(&medium) == before[..DATA_BYTES as usize]);
        } else {
            assert!(data_of(&medium) == states[4], "{at}");
        }
    }
    assert!(damaged > 200, "{damaged}");
}

/// A points area of another member, or of one before, says nothing of this one; nor does one that a writer without it has passed by.
#[test]
fn a_points_area_that_does_not_belong_is_not_believed() {
    let steps = steps();
    let medium = Memory::anonymous(len_bytes(LARGE_LOG)).unwrap();
    let mut follower = open_with(memory(&medium, Durability::Visible), Some(2));
    commit_all(&mut follower, &steps);
    let kept = image_of(&medium);
    drop(follower);
    // The member was made anew.
    medium.store(0, &vec![0; (DATA_BYTES + STAGING_BYTES) as usize]).unwrap();
    let mut follower = open(&medium);
    assert!(read_all(follower.memory()).unwrap().is_empty());
    commit(&mut follower, &steps[1]).unwrap();
    assert!(read_all(follower.memory()).unwrap().is_empty(), "nobody asked for it to keep any");
    drop(follower);
    let mut follower = open_with(memory(&medium, Durability::Visible), Some(2));
    assert_eq!(read_all(follower.memory()).unwrap().into_keys().collect::<Vec<_>>(), [1]);
    commit(&mut follower, &steps[3]).unwrap();
    drop(follower);
    // A writer that saves nothing.
    medium.store(0, &kept).unwrap();
    let at = DATA_BYTES + 8;
    medium.atomic_store(at - 8, 7).unwrap();
    medium.atomic_store(at, 7).unwrap();
    assert!(matches!(kept_points(&memory(&medium, Durability::Visible)), Ok(Kept::Damaged)));
    let mut follower = open(&medium);
    assert!(matches!(follower.take_news()[..], [PointNews::Stopped(None)]));
    assert!(read_all(follower.memory()).unwrap().is_empty());
}

#[test]
fn a_member_that_is_to_keep_none_says_so_before_it_goes_on() {
    let steps = steps();
    let medium = Memory::anonymous(len_bytes(LARGE_LOG)).unwrap();
    let mut follower = open_with(memory(&medium, Durability::Visible), Some(2));
    commit_all(&mut follower, &steps);
    let mut view = AtPoint::open(follower.memory(), DATA_BYTES, 4).unwrap();
    drop(follower);
    let mut follower = open_with(memory(&medium, Durability::Visible), Some(0));
    assert!(follower.take_news().is_empty());
    let read = view.read(follower.memory(), 0, &mut [0; 10]);
    assert!(matches!(read, Err(PointReadError::Gone)), "{read:?}");
    commit(&mut follower, &steps[3]).unwrap();
    assert!(read_all(follower.memory()).unwrap().is_empty());
}

/// A member whose reader goes on at the worst moments: after each step of its writer.
struct Watched<'m> {
    memory: OnMedium<'m>,
    view: RefCell<Option<(AtPoint, Vec<u8>)>>,
    looks: RefCell<u64>,
}

impl Watched<'_> {
    fn look(&self) {
        let mut view = self.view.borrow_mut();
        let Some((view, expected)) = &mut *view else { return };
        let mut bytes = vec![0; DATA_BYTES as usize];
        match view.read(&self.memory, 0, &mut bytes) {
            Ok(()) => assert!(bytes == *expected, "look {}", self.looks.borrow()),
            Err(PointReadError::Gone) => {}
            Err(error) => panic!("{error:?}"),
        }
        *self.looks.borrow_mut() += 1;
    }

    fn then_look(&self, done: Result<(), MemError>) -> Result<(), MemError> {
        self.look();
        done
    }
}

impl FollowerBytes for Watched<'_> {
    type Error = MemError;

    fn read_data(&self, offset: u64, into: &mut [u8]) -> Result<(), MemError> {
        self.memory.read_data(offset, into)
    }

    fn read_staging(&self, offset: u64, into: &mut [u8]) -> Result<(), MemError> {
        self.memory.read_staging(offset, into)
    }

    fn data_mark(&self) -> Result<u64, MemError> {
        self.memory.data_mark()
    }

    fn points_bytes(&self) -> Option<u64> {
        self.memory.points_bytes()
    }

    fn read_points(&self, offset: u64, into: &mut [u8]) -> Result<(), MemError> {
        self.memory.read_points(offset, into)
    }
}

impl FollowerMemory for Watched<'_> {
    fn mark_data(&self, mark: u64) -> Result<(), MemError> {
        self.memory.mark_data(mark)
    }

    fn write_staging(&self, offset: u64, bytes: &[u8]) -> Result<(), MemError> {
        self.then_look(self.memory.write_staging(offset, bytes))
    }

    fn set_staging(&self, offset: u64, number: u64) -> Result<(), MemError> {
        self.then_look(self.memory.set_staging(offset, number))
    }

    fn flush_staging(&self) -> Result<(), MemError> {
        self.memory.flush_staging()
    }

    fn write_data(&self, offset: u64, bytes: &[u8]) -> Result<(), MemError> {
        self.then_look(self.memory.write_data(offset, bytes))
    }

    fn flush_data(&self) -> Result<(), MemError> {
        self.memory.flush_data()
    }

    fn write_points(&self, offset: u64, bytes: &[u8]) -> Result<(), MemError> {
        self.then_look(self.memory.write_points(offset, bytes))
    }

    fn flush_points(&self) -> Result<(), MemError> {
        self.memory.flush_points()
    }
}

/// A member whose writer goes on in the middle of a read: at a call that is chosen.
struct Overtaken<'m, F: Fn()> {
    memory: OnMedium<'m>,
    calls: Cell<u64>,
    at: u64,
    then: F,
}

impl<F: Fn()> Overtaken<'_, F> {
    fn then(&self, read: Result<(), MemError>) -> Result<(), MemError> {
        self.calls.set(self.calls.get() + 1);
        if self.calls.get() == self.at {
            (self.then)();
        }
        read
    }
}

impl<F: Fn()> FollowerBytes for Overtaken<'_, F> {
    type Error = MemError;

    fn read_data(&self, offset: u64, into: &mut [u8]) -> Result<(), MemError> {
        self.then(self.memory.read_data(offset, into))
    }

    fn read_staging(&self, offset: u64, into: &mut [u8]) -> Result<(), MemError> {
        self.then(self.memory.read_staging(offset, into))
    }

    fn data_mark(&self) -> Result<u64, MemError> {
        self.memory.data_mark()
    }

    fn points_bytes(&self) -> Option<u64> {
        self.memory.points_bytes()
    }

    fn read_points(&self, offset: u64, into: &mut [u8]) -> Result<(), MemError> {
        self.then(self.memory.read_points(offset, into))
    }
}

/// A writer overtakes a reader at any call: what is read is the point, or the point is gone.
#[test]
fn a_reader_that_is_overtaken_reads_the_point_or_nothing() {
    let steps = steps();
    let states = states(&steps);
    for (log_bytes, keep) in [(LARGE_LOG, 3), (SMALL_LOG, 1)] {
        let (mut read_count, mut gone_count) = (0, 0);
        for at in 0..40 {
            let medium = Memory::anonymous(len_bytes(log_bytes)).unwrap();
            commit_all(&mut open_with(memory(&medium, Durability::Visible), Some(keep)), &steps[..2]);
            let then = || commit_all(&mut open(&medium), &steps[2..]);
            let calls = Cell::new(0);
            let overtaken = Overtaken { memory: memory(&medium, Durability::Visible), calls, at, then };
            let mut view = AtPoint::open(&memory(&medium, Durability::Visible), DATA_BYTES, 2).unwrap();
            let mut bytes = vec![0; DATA_BYTES as usize];
            // The second time all of it is done, whether or not the first read was overtaken.
            for _ in 0..2 {
                match view.read(&overtaken, 0, &mut bytes) {
                    Ok(()) => {
                        assert!(bytes == states[2], "overtaken at call {at}");
                        read_count += 1;
                    }
                    Err(PointReadError::Gone) => gone_count += 1,
                    Err(error) => panic!("{error:?}"),
                }
            }
        }
        assert!(read_count > 4 && (gone_count > 4) == (keep == 1), "{read_count} read, {gone_count} gone");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever is written, in a log that may be short, each point that is kept reads as the data was, also to a reader that was there from before and reads after each step of the writer.
    #[test]
    fn points_read_as_the_data_was(
        sets in proptest::collection::vec(
            (proptest::collection::vec((0..DATA_BYTES - 300, 1..300_usize), 0..5), any::<bool>()), 1..24),
        keep in 1..5_u16,
        log_pages in 1..20_u64,
        reopened in any::<u32>(),
    ) {
        let log_bytes = log_pages * PAGE_BYTES + 700;
        let medium = Memory::anonymous(len_bytes(log_bytes)).unwrap();
        let watched = || {
            let memory = memory(&medium, Durability::Visible);
            Watched { memory, view: RefCell::default(), looks: RefCell::default() }
        };
        let open = |count| Follower::open(watched(), STAGING_BYTES, DATA_BYTES, Keep { count, fresh: 5 }).unwrap();
        let (mut follower, mut states) = (open(Some(keep)), vec![vec![0; DATA_BYTES as usize]]);
        for ((writes, is_named), number) in sets.into_iter().zip(1_u64..) {
            let mut state = states[states.len() - 1].clone();
            let of_write = |(offset, len_bytes): (u64, usize)| {
                let bytes = vec![number as u8; len_bytes];
                state[offset as usize..][..len_bytes].copy_from_slice(&bytes);
                (offset, bytes)
            };
            let step = Step { writes: writes.into_iter().map(of_write).collect(), name: if is_named { "point" } else { "" } };
            commit(&mut follower, &step).unwrap();
            states.push(state);
            let kept = read_all(follower.memory()).unwrap();
            prop_assert!(kept.len() <= usize::from(keep));
            prop_assert!(!is_named || kept.contains_key(&number));
            for (number, bytes) in &kept {
                prop_assert!(*bytes == states[*number as usize], "point {}", number);
            }
            if reopened >> (number % 32) & 1 == 1 {
                follower = open(None);
            }
            // Of any that is kept, a reader from now on.
            let chosen = kept.keys().nth(number as usize % 3).map(|chosen| {
                (AtPoint::open(follower.memory(), DATA_BYTES, *chosen).unwrap(), states[*chosen as usize].clone())
            });
            *follower.memory().view.borrow_mut() = chosen;
        }
    }
}
