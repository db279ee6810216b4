use std::{sync::Arc, thread};

use pmof_replication::following::{AtLagBound, WriteCount};

use super::*;
use crate::pages::PAGE_BYTES;

const LONG: Duration = Duration::from_secs(3600);

fn outbox(bytes: u64) -> Arc<SharedOutbox> {
    let bound = LagBound { bytes, age: Duration::MAX, then: AtLagBound::Wait, interval: Some(LONG) };
    let mut outbox = Outbox::new(bound, 8 * PAGE_BYTES, Arc::<WriteCount>::default());
    outbox.begin();
    outbox.all_is_read();
    outbox.applied();
    Arc::new(SharedOutbox::new(bound, Instant::now(), outbox))
}

#[test]
fn a_writer_waits_until_there_is_room() {
    let outbox = outbox(100);
    let room = outbox.wait_for_room(80).unwrap();
    thread::scope(|scope| {
        let writer = scope.spawn(|| outbox.wait_for_room(30).is_some());
        drop(room);
        assert!(writer.join().unwrap());
    });
    outbox.keep(0, &vec![1; 90].into(), Atomicity::Relaxed);
    assert!(matches!(outbox.wait(LONG), Due::Point));
    thread::scope(|scope| {
        let writer = scope.spawn(|| outbox.wait_for_room(30).is_none());
        outbox.with(|outbox| outbox.switch_off(None));
        assert!(writer.join().unwrap());
    });
}

#[test]
fn the_end_wakes_all_that_wait() {
    let outbox = outbox(10);
    let room = outbox.wait_for_room(10);
    thread::scope(|scope| {
        let writer = scope.spawn(|| outbox.wait_for_room(1).is_none());
        let member = scope.spawn(|| matches!(outbox.wait(LONG), Due::Ended));
        outbox.with(Outbox::end);
        assert!(writer.join().unwrap() && member.join().unwrap());
    });
    drop(room);
}
