//! Flushes that are shared, on a medium that knows what a loss of power could leave of them.

use std::{
    fmt::Debug,
    thread,
    time::{Duration, Instant},
};

use pmof_locks::{Condvar, Mutex};
use pmof_mem::{
    Medium as _, MediumKind, MemError,
    shadow::{CrashPoint, ShadowMedium, for_each_crash_point},
};

use super::group::Group;
use crate::member::{Atomicity, Extent, Flush, Written};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(10);

/// Each thread writes to a line of its own.
const LINE_BYTES: u64 = 64;

/// A device whose flushes are done when a test lets them: durable is what they name, and what was written before they were posted.
struct Device {
    shadow: ShadowMedium,
    group: Group<u64, u64>,
    flushes: Mutex<Flushes>,
    changed: Condvar,
}

#[derive(Default)]
struct Flushes {
    posted: Vec<Flush>,
    /// So many of them may be done.
    passed: u64,
}

impl Device {
    fn new(lines: u64) -> Self {
        let shadow = ShadowMedium::new(lines * LINE_BYTES, MediumKind::DevDax).expect("a medium");
        Self { shadow, group: Group::default(), flushes: Mutex::default(), changed: Condvar::new() }
    }

    fn post(&self, flush: Flush) -> u64 {
        let mut flushes = self.flushes.lock();
        let Flush::Written(Written { relaxed: Some((begin, end)), .. }) = flush else { panic!("{flush:?}") };
        self.shadow.write_back(begin, end - begin).expect("inside");
        flushes.posted.push(flush);
        self.changed.notify_all();
        flushes.posted.len() as u64
    }

    fn finish(&self, number: u64) -> u64 {
        let mut flushes = self.flushes.lock();
        let over = self.changed.wait_while_for(&mut flushes, |flushes| flushes.passed < number, LONG);
        assert!(!over.timed_out(), "flush {number} was never let pass");
        self.shadow.fence().expect("a fence");
        number
    }

    /// A persist, and a mark of it as soon as it is acknowledged. Returns the number of the flush that did it.
    fn persist(&self, line: u64, value: u64) -> u64 {
        self.shadow.store(line * LINE_BYTES, &value.to_le_bytes()).expect("inside");
        let flush = Flush::of(written((line * LINE_BYTES, line * LINE_BYTES + 8)));
        let number = self.group.persist(flush, |flush| self.post(flush), |number| self.finish(number));
        self.shadow.mark(line << 32 | value);
        number
    }

    fn let_pass(&self, count: u64) {
        self.flushes.lock().passed = count;
        self.changed.notify_all();
    }

    fn wait_for_posted(&self, count: usize) {
        let mut flushes = self.flushes.lock();
        let over = self.changed.wait_while_for(&mut flushes, |flushes| flushes.posted.len() < count, LONG);
        assert!(!over.timed_out(), "{count} flushes were to be posted, {:?} were", flushes.posted);
    }

    /// Waits until so many have joined the batch that gathers.
    fn wait_for_gathered(&self, count: usize) {
        let begun = Instant::now();
        let gathered = || self.group.standing().1;
        while gathered() < count {
            assert!(begun.elapsed() < LONG, "{count} were to join, {} have", gathered());
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Cuts the power at every moment: what was acknowledged is there. Returns how many images lacked what was not.
    fn cut_power(&self) -> u64 {
        let initial = vec![0; self.shadow.len_bytes() as usize];
        let mut lacking = 0;
        let check = |point: CrashPoint<'_>| -> Result<(), MemError> {
            for (line, bytes) in point.image.chunks(LINE_BYTES as usize).enumerate() {
                let (word, _) = bytes.split_first_chunk().expect("a line");
                let value = u64::from_le_bytes(*word);
                let acknowledged = point.marks.iter().filter(|mark| **mark >> 32 == line as u64).max();
                let least = acknowledged.map_or(0, |mark| mark & u64::from(u32::MAX));
                assert!(value >= least, "line {line} holds {value} and {least} was acknowledged");
                lacking += u64::from(value == least);
            }
            Ok(())
        };
        let coverage = for_each_crash_point(MediumKind::DevDax, &initial, &self.shadow.trace(), 512, check);
        assert!(coverage.expect("a replay").images > 0);
        lacking
    }
}

fn written(extent: Extent) -> Written {
    let mut written = Written::default();
    written.add(Atomicity::Relaxed, extent);
    written
}

fn joined<T: Debug>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().expect("no panic")
}

#[test]
fn whoever_comes_during_a_flush_shares_the_next() {
    let device = Device::new(5);
    let device = &device;
    thread::scope(|scope| {
        let first = scope.spawn(|| device.persist(1, 1));
        device.wait_for_posted(1);
        let second = [2, 3].map(|line| scope.spawn(move || device.persist(line, 1)));
        device.wait_for_gathered(2);
        device.let_pass(1);
        assert_eq!(joined(first), 1);
        device.wait_for_posted(2);
        let third = scope.spawn(|| device.persist(4, 1));
        device.wait_for_gathered(1);
        device.let_pass(2);
        assert_eq!(second.map(joined), [2, 2]);
        device.wait_for_posted(3);
        device.let_pass(3);
        assert_eq!(joined(third), 3);
    });
    let flush = |begin, end| Flush::Written(written((begin * LINE_BYTES, end * LINE_BYTES + 8)));
    assert_eq!(device.flushes.lock().posted, [flush(1, 1), flush(2, 3), flush(4, 4)]);
    assert!(device.cut_power() > 0, "nothing could be lost in this test");
}

#[test]
fn many_threads_keep_what_was_acknowledged_to_each() {
    let device = Device::new(8);
    device.let_pass(u64::MAX);
    thread::scope(|scope| {
        for line in 0..8 {
            let device = &device;
            scope.spawn(move || (1..=12).for_each(|value| _ = device.persist(line, value)));
        }
    });
    assert!(device.cut_power() > 0);
    assert!(!device.group.standing().0, "nobody waits for a flush any more");
}

#[test]
fn a_single_thread_has_a_flush_for_each_persist() {
    let device = Device::new(1);
    device.let_pass(u64::MAX);
    assert_eq!([1, 2, 3].map(|value| device.persist(0, value)), [1, 2, 3]);
}

#[test]
fn a_panic_of_whoever_waits_for_the_device_leaves_the_others_a_flush() {
    let device = Device::new(4);
    let (device, group) = (&device, &device.group);
    let flush = |line: u64| Flush::of(written((line * LINE_BYTES, line * LINE_BYTES + 8)));
    let fails_at_two = |number: u64| {
        let number = device.finish(number);
        assert_ne!(number, 2, "a panic that this test expects");
        number
    };
    thread::scope(|scope| {
        let first = scope.spawn(|| device.persist(0, 1));
        device.wait_for_posted(1);
        let second = [1, 2]
            .map(|line| scope.spawn(move || group.persist(flush(line), |flush| device.post(flush), fails_at_two)));
        device.wait_for_gathered(2);
        device.let_pass(1);
        assert_eq!(joined(first), 1);
        device.wait_for_posted(2);
        let third = scope.spawn(|| device.persist(3, 1));
        device.wait_for_gathered(1);
        device.let_pass(u64::MAX);
        let outcomes = second.map(|thread| thread.join().ok());
        assert_eq!(outcomes.iter().flatten().count(), 1, "one panicked, the other flushed for itself: {outcomes:?}");
        assert!(joined(third) > 2, "nor is the panic's flush believed by who came after it");
    });
    assert!(device.persist(3, 2) > 4, "and it goes on");
}
