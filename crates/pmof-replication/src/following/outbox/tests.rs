use proptest::prelude::*;

use super::*;
use crate::pages::PAGE_BYTES;

const SIZE_BYTES: u64 = 8 * PAGE_BYTES;
const LONG: Duration = Duration::from_secs(3600);
/// Of tests in which no time passes.
const NOW: Duration = Duration::from_secs(7);

fn bound(bytes: u64, then: AtLagBound) -> LagBound {
    LagBound { bytes, age: Duration::MAX, then, interval: Some(LONG) }
}

fn outbox(bytes: u64, then: AtLagBound) -> Outbox {
    connected(bound(bytes, then))
}

fn connected(bound: LagBound) -> Outbox {
    let mut outbox = Outbox::new(bound, SIZE_BYTES, Arc::default());
    assert!(outbox.begin().is_empty());
    outbox.all_is_read();
    outbox.applied();
    outbox
}

fn write(outbox: &mut Outbox, offset: u64, bytes: Vec<u8>) -> bool {
    let writes = Arc::clone(&outbox.writes);
    let _writing = writes.begin();
    outbox.keep(offset, &bytes.into(), Atomicity::Relaxed, NOW)
}

fn keep(outbox: &mut Outbox, offset: u64, len_bytes: usize) -> bool {
    write(outbox, offset, vec![1; len_bytes])
}

/// A point that is durable as soon as it is made.
fn make(outbox: &mut Outbox, point: &ConsistencyPoint) {
    let boundary = outbox.boundary();
    outbox.reach(boundary, point);
}

fn reach(outbox: &mut Outbox, number: u64) {
    make(outbox, &ConsistencyPoint { number, ..ConsistencyPoint::default() });
}

fn named(number: u64) -> ConsistencyPoint {
    ConsistencyPoint { number, name: number.to_string(), ..ConsistencyPoint::default() }
}

/// What is done with a pool and its member, step by step.
#[derive(Clone, Debug)]
enum Step {
    Write {
        offset: u64,
        len_bytes: usize,
        byte: u8,
    },
    Point,
    /// A point with a name.
    Name,
    /// A point is announced, and its flush fails or comes late.
    Boundary,
    Reach,
    Member,
    Cut,
}

fn any_step() -> impl Strategy<Value = Step> {
    let write = (0..SIZE_BYTES - 3000, 1..3000_usize, 1..255_u8);
    prop_oneof![
        6 => write.prop_map(|(offset, len_bytes, byte)| Step::Write { offset, len_bytes, byte }),
        2 => Just(Step::Point),
        2 => Just(Step::Name),
        1 => Just(Step::Boundary),
        1 => Just(Step::Reach),
        4 => Just(Step::Member),
        1 => Just(Step::Cut),
    ]
}

type Writes = Vec<(u64, Vec<u8>)>;

/// A pool, and a member that follows it by an outbox.
struct Model {
    outbox: Outbox,
    pool: Vec<u8>,
    /// What the pool held at each point.
    points: Vec<Vec<u8>>,
    member: Vec<u8>,
    /// A copy under way: what has yet to be read, whether this is the last round, and what was read.
    copying: Option<(PageMap, bool, Writes)>,
    pending: Option<(Boundary, u64)>,
    /// Points that were given names, those that the member was at, and those that it is said not to have been at.
    named: Vec<u64>,
    kept: Vec<u64>,
    gone: Vec<u64>,
}

impl Model {
    fn step(&mut self, step: &Step) {
        match step {
            Step::Write { offset, len_bytes, byte } => {
                self.pool[*offset as usize..][..*len_bytes].fill(*byte);
                write(&mut self.outbox, *offset, vec![*byte; *len_bytes]);
            }
            Step::Name => {
                self.points.push(self.pool.clone());
                let number = self.points.len() as u64 - 1;
                self.named.push(number);
                make(&mut self.outbox, &named(number));
            }
            Step::Point => {
                self.points.push(self.pool.clone());
                reach(&mut self.outbox, self.points.len() as u64 - 1);
            }
            Step::Boundary => {
                self.points.push(self.pool.clone());
                self.pending = Some((self.outbox.boundary(), self.points.len() as u64 - 1));
            }
            // Points are made one after the other.
            Step::Reach => {
                let last = self.points.len() as u64 - 1;
                if let Some((boundary, number)) = self.pending.take().filter(|(_, number)| *number == last) {
                    self.outbox.reach(boundary, &ConsistencyPoint { number, ..ConsistencyPoint::default() });
                }
            }
            Step::Member if self.copying.is_some() => self.copy(),
            Step::Member => self.send(),
            Step::Cut => {
                self.outbox.switch_off(None);
                self.begin(PageMap::full(SIZE_BYTES));
            }
        }
    }

    fn begin(&mut self, missing: PageMap) {
        missing.add(&self.outbox.remember());
        self.copying = Some((missing, false, Vec::new()));
    }

    fn send(&mut self) {
        match self.outbox.due(NOW).unwrap_or(Due::Nothing) {
            Due::Copy => self.begin(PageMap::new(SIZE_BYTES)),
            Due::Send(entries, point) => {
                let writes = entries.iter().map(|entry| (entry.offset, entry.bytes.to_vec())).collect();
                self.commit(writes, &point);
            }
            Due::Point | Due::Nothing | Due::Ended => {}
        }
    }

    /// Reads a page that is left, or begins another round, or ends. In the last round few pages are left.
    fn copy(&mut self) {
        let (left, is_last, mut pages) = self.copying.take().unwrap();
        if let Some(range) = left.take(0, PAGE_BYTES) {
            pages.push((range.start, self.pool[range.start as usize..range.end as usize].to_vec()));
            self.copying = Some((left, is_last, pages));
            return;
        }
        if !is_last {
            left.add(&self.outbox.remember());
            let is_last = left.count_bytes() <= 2 * PAGE_BYTES;
            if is_last {
                left.add(&self.outbox.begin());
            }
            self.copying = Some((left, is_last, pages));
            return;
        }
        self.outbox.all_is_read();
        self.points.push(self.pool.clone());
        reach(&mut self.outbox, self.points.len() as u64 - 1);
        let Some((entries, point)) = self.outbox.take_to_point() else {
            self.copying = Some((left, false, pages));
            return;
        };
        pages.extend(entries.iter().map(|entry| (entry.offset, entry.bytes.to_vec())));
        self.commit(pages, &point);
    }

    fn commit(&mut self, writes: Writes, point: &ConsistencyPoint) {
        for (offset, bytes) in writes {
            self.member[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        self.outbox.applied();
        if !point.name.is_empty() {
            self.kept.push(point.number);
        }
        assert!(self.member == self.points[point.number as usize], "the member is not at point {}", point.number);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whenever a member has applied something, it is what the pool was at that point: whatever was dropped, cut off and copied before.
    #[test]
    fn a_member_is_always_at_a_point(steps in proptest::collection::vec(any_step(), 1..120), bytes in 4000..40_000_u64) {
        let mut outbox = outbox(bytes, AtLagBound::FallBehind);
        let empty = vec![0; SIZE_BYTES as usize];
        let (pool, points, member) = (empty.clone(), vec![empty.clone()], empty);
        outbox.stop_at_names(true, None);
        let [named, kept, gone] = [const { Vec::new() }; 3];
        let mut model = Model { outbox, pool, points, member, copying: None, pending: None, named, kept, gone };
        for step in &steps {
            model.step(step);
            model.gone.extend(model.outbox.take_gone().iter().map(|point| point.number));
            let lag = model.outbox.lag(NOW).unwrap();
            let is_kept = model.outbox.boundary().kept().is_some();
            prop_assert!(!is_kept || lag.bytes <= bytes, "{lag:?}");
        }
        // In the end it comes to the end.
        for _ in 0..40 {
            model.step(&Step::Member);
        }
        model.step(&Step::Point);
        model.step(&Step::Member);
        model.step(&Step::Member);
        prop_assert!(model.member == model.pool);
        prop_assert!(model.outbox.is_sent());
        // The member was at each point with a name, or it is told.
        model.gone.extend(model.outbox.take_unsent().iter().map(|point| point.number));
        let mut told = [&model.kept[..], &model.gone[..]].concat();
        told.sort_unstable();
        prop_assert_eq!(told, model.named);
    }
}

#[test]
fn a_point_of_before_the_member_fell_behind_is_none() {
    let mut outbox = outbox(100, AtLagBound::FallBehind);
    assert!(keep(&mut outbox, 0, 50));
    let boundary = outbox.boundary();
    assert!(keep(&mut outbox, 50, 60));
    assert!(matches!(outbox.due(NOW), Some(Due::Copy)));
    assert_eq!(outbox.begin().count_bytes(), PAGE_BYTES);
    outbox.reach(boundary, &named(1));
    assert!(outbox.take_to_point().is_none());
    assert_eq!(outbox.take_gone(), [named(1)]);
}

#[test]
fn there_is_room_again_when_the_member_has_applied() {
    let mut outbox = outbox(100, AtLagBound::Wait);
    assert_eq!(outbox.try_room(80, NOW), HasRoom::Given);
    keep(&mut outbox, 0, 80);
    outbox.give_back(80);
    assert!(matches!(outbox.due(NOW), Some(Due::Point)));
    reach(&mut outbox, 1);
    let Some(Due::Send(entries, _)) = outbox.due(NOW) else { panic!("nothing to send") };
    assert_eq!((entries.len(), outbox.lag(NOW).map(|lag| lag.bytes)), (1, Some(80)));
    assert_eq!(outbox.try_room(30, NOW), HasRoom::NotYet);
    outbox.applied();
    assert_eq!(outbox.try_room(50, NOW), HasRoom::Given);
    // What is reserved counts.
    assert_eq!(outbox.try_room(50, NOW), HasRoom::Given);
    assert_eq!(outbox.try_room(1, NOW), HasRoom::NotYet);
    outbox.give_back(50);
    assert_eq!(outbox.try_room(1, NOW), HasRoom::Given);
    // No write waits for more than there may be, nor for a member that is not connected.
    assert_eq!(outbox.try_room(101, NOW), HasRoom::NotNeeded);
    outbox.switch_off(None);
    assert_eq!(outbox.try_room(100, NOW), HasRoom::NotNeeded);
}

#[test]
fn those_who_make_the_points_do_not_wait_for_one() {
    let mut outbox = connected(LagBound { interval: None, ..bound(100, AtLagBound::Wait) });
    keep(&mut outbox, 0, 80);
    assert_eq!(outbox.try_room(30, NOW), HasRoom::NotNeeded);
    assert!(matches!(outbox.due(NOW), Some(Due::Copy)));
}

#[test]
fn those_who_write_wait_for_a_member_that_is_late() {
    let age = Duration::from_millis(3);
    let mut outbox = connected(LagBound { age, ..bound(100, AtLagBound::Wait) });
    keep(&mut outbox, 0, 1);
    assert_eq!(outbox.try_room(1, NOW), HasRoom::Given);
    assert_eq!(outbox.try_room(1, NOW + age), HasRoom::NotYet);
    reach(&mut outbox, 1);
    assert!(outbox.take_to_point().is_some());
    assert_eq!(outbox.try_room(1, NOW + age), HasRoom::NotYet);
    outbox.applied();
    assert_eq!(outbox.try_room(1, NOW + age), HasRoom::Given);
}

/// A point is due in time for the member to be sent it before the bound of the age.
#[test]
fn a_point_is_due_before_the_age_is_over() {
    for (interval, age, due) in [(10, 100, 10), (10, 8, 4)].map(|(interval, age, due)| {
        (Some(Duration::from_millis(interval)), Duration::from_millis(age), Duration::from_millis(due))
    }) {
        let mut outbox = connected(LagBound { age, interval, ..bound(100, AtLagBound::Wait) });
        assert_eq!(outbox.wakes_at(), None);
        keep(&mut outbox, 0, 1);
        assert_eq!(outbox.wakes_at(), Some(NOW + due));
        assert!(outbox.due(NOW + due / 2).is_none());
        assert!(matches!(outbox.due(NOW + due), Some(Due::Point)));
    }
}

/// A member that keeps points is at each that has a name, and passes by those that have none, and those that have where it keeps none.
#[test]
fn points_with_names_are_stopped_at_where_they_are_kept() {
    for (stops, expected) in [(true, vec![2, 4, 5]), (false, vec![5])] {
        let mut outbox = outbox(1 << 20, AtLagBound::FallBehind);
        outbox.stop_at_names(stops, None);
        for (number, name) in [(1, ""), (2, "two"), (3, ""), (4, "four"), (5, "")] {
            keep(&mut outbox, number, 1);
            make(&mut outbox, &ConsistencyPoint { number, name: name.to_owned(), ..ConsistencyPoint::default() });
        }
        let (mut points, mut written) = (Vec::new(), 0);
        while let Some(Due::Send(entries, point)) = outbox.due(NOW) {
            written += entries.len() as u64;
            assert_eq!(written, point.number, "the writes before the point");
            points.push(point.number);
            outbox.applied();
        }
        assert_eq!(points, expected);
    }
}

/// What is written while a member is away is remembered, with what it was not sent and what it may not have applied; and it is not remembered of one that is nowhere known.
#[test]
fn what_a_member_lacks_is_remembered_while_it_is_away() {
    for is_known in [true, false] {
        let mut outbox = outbox(1 << 20, AtLagBound::FallBehind);
        keep(&mut outbox, 0, 10);
        let taken = PageMap::new(SIZE_BYTES);
        taken.mark(PAGE_BYTES..PAGE_BYTES + 1);
        outbox.switch_off(is_known.then_some(&taken));
        assert!(outbox.is_off() != is_known && outbox.is_sent() && outbox.lag(NOW).is_none());
        keep(&mut outbox, 3 * PAGE_BYTES, 10);
        outbox.lose_track(&(5 * PAGE_BYTES..5 * PAGE_BYTES + 1));
        keep(&mut outbox, 6 * PAGE_BYTES, 1);
        let missing = outbox.begin();
        let pages: Vec<_> = (0..8).filter(|page| missing.meets(&(page * PAGE_BYTES..page * PAGE_BYTES + 1))).collect();
        assert_eq!(pages, if is_known { vec![0, 1, 3, 5, 6] } else { vec![] });
        assert!(outbox.lag(NOW).is_some());
    }
}

/// A write that is in progress may be in a copy in part: a point waits for its end, and is none if it came behind the point.
#[test]
fn a_point_is_none_of_a_copy_that_a_write_may_be_in() {
    let mut outbox = outbox(1 << 20, AtLagBound::FallBehind);
    let writes = Arc::clone(&outbox.writes);
    outbox.stop_at_names(true, None);
    for is_before in [true, false] {
        outbox.switch_off(None);
        outbox.begin();
        let before = is_before.then(|| writes.begin());
        make(&mut outbox, &named(1));
        let writing = before.unwrap_or_else(|| writes.begin());
        outbox.all_is_read();
        make(&mut outbox, &ConsistencyPoint::default());
        assert_eq!(outbox.take_to_point().map(|(_, point)| point.name), Some(String::new()));
        outbox.applied();
        assert_eq!(outbox.has_name_wait(), is_before);
        drop(writing);
        assert_eq!(matches!(outbox.due(NOW), Some(Due::Point)), is_before);
        make(&mut outbox, &ConsistencyPoint::default());
        assert_eq!(outbox.take_to_point().map(|(_, point)| point == named(1)), Some(is_before));
        outbox.applied();
        assert_eq!(outbox.take_gone().len(), usize::from(!is_before));
    }
}
