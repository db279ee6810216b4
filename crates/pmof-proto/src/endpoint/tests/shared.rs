//! Receives that several endpoints take.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Wake, Waker},
};

use super::support::*;
use crate::{ConnectionError, OperationError, Outcome, PostError, SharedReceives, Signal};

#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Pairs whose targets share `queue`, and what their bells were rung.
fn pairs(queue: &Arc<SharedReceives>, count: usize) -> (Vec<Pair>, Vec<Arc<Bell>>) {
    let bells: Vec<Arc<Bell>> = (0..count).map(|_| Arc::default()).collect();
    let share = |bell: &Arc<Bell>| {
        let mut pair = Pair::new(settings(false));
        pair.sides[1].endpoint.share_receives(Arc::clone(queue), Waker::from(Arc::clone(bell)));
        pair
    };
    (bells.iter().map(share).collect(), bells)
}

fn rung(bells: &[Arc<Bell>]) -> Vec<usize> {
    bells.iter().map(|bell| bell.0.swap(0, Ordering::Relaxed)).collect()
}

/// Context and length of the message of each receive that the target completed since the last look.
fn taken(pair: &mut Pair) -> Vec<(u64, u64)> {
    let length = |outcome| match outcome {
        Ok(Outcome::Received { len_bytes, .. }) => len_bytes,
        other => panic!("{other:?}"),
    };
    pair.sides[1].completions.drain(..).map(|done| (done.context, length(done.outcome))).collect()
}

#[test]
fn receives_go_to_messages_in_order_of_arrival() {
    let queue = Arc::new(SharedReceives::new(3));
    let (mut pairs, bells) = pairs(&queue, 2);
    for (context, index) in [(0, 1), (1, 0), (2, 1)] {
        queue.post(local(&[0; 9]), context).unwrap();
        pairs[index].post_as(0, send(&[7; 5]), Signal::Always, 0);
        pairs[index].run();
        assert_eq!(taken(&mut pairs[index]), [(context, 5)]);
    }
    // Now the messages come first, of growing length.
    for (length, index) in [(1, 1), (2, 0), (3, 0), (4, 1)] {
        pairs[index].post_as(0, send(&vec![7; length]), Signal::Always, 0);
        pairs[index].run();
    }
    assert_eq!(rung(&bells), [0, 0]);
    for context in 10..13 {
        queue.post(local(&[0; 9]), context).unwrap();
    }
    assert_eq!((rung(&bells), queue.waiting_receives()), (vec![2, 1], 0));
    // In whichever order the endpoints look.
    for pair in &mut pairs {
        pair.sides[1].endpoint.match_shared();
        pair.run();
    }
    assert_eq!(taken(&mut pairs[0]), [(11, 2), (12, 3)]);
    assert_eq!(taken(&mut pairs[1]), [(10, 1)]);
}

#[test]
fn what_an_endpoint_that_ends_did_not_take_goes_to_others() {
    let queue = Arc::new(SharedReceives::new(1));
    let (mut pairs, bells) = pairs(&queue, 3);
    for pair in &mut pairs {
        pair.post_as(0, send(b"message"), Signal::Always, 0);
        pair.run();
    }
    queue.post(local(&[0; 9]), 1).unwrap();
    assert_eq!(rung(&bells), [1, 0, 0]);
    // It was told, but ends before it looks; so does the next one, dropped without an end.
    pairs[0].sides[1].endpoint.disconnect();
    assert_eq!(rung(&bells), [0, 1, 0]);
    drop(pairs.remove(1));
    assert_eq!(rung(&bells), [0, 0, 1]);
    pairs[1].sides[1].endpoint.match_shared();
    pairs[1].run();
    assert_eq!(taken(&mut pairs[1]), [(1, 7)]);
    // Nobody waits any more.
    queue.post(local(&[0; 9]), 2).unwrap();
    assert_eq!((rung(&bells), queue.waiting_receives()), (vec![0, 0, 0], 1));
    assert_eq!(queue.post(local(b""), 3), Err(PostError::ReceiveQueueFull { limit: 1 }));
}

#[test]
fn a_receive_that_is_half_full_completes_with_the_end() {
    let queue = Arc::new(SharedReceives::new(2));
    let (mut pairs, _) = pairs(&queue, 1);
    let pair = &mut pairs[0];
    queue.post(local(&[0; 9]), 1).unwrap();
    queue.post(local(&[0; 9]), 2).unwrap();
    // The hello and a header have 64 bytes each.
    pair.wires[0].cut_after = Some(64 + 64 + 3);
    pair.post_as(0, send(b"message"), Signal::Always, 0);
    pair.run();
    let done = pair.sides[1].completions.pop_front().expect("an outcome");
    let Err(OperationError::ConnectionEnded(ConnectionError::Lost { .. })) = done.outcome else { panic!("{done:?}") };
    assert_eq!((done.context, pair.sides[1].completions.len(), queue.waiting_receives()), (1, 0, 1));
    let own = pair.sides[1].endpoint.post_receive(local(b""), 0);
    assert!(matches!(own, Err(PostError::NotConnected(_))));
}

#[test]
fn an_endpoint_that_shares_has_no_receives_of_its_own() {
    let (mut pairs, _) = pairs(&Arc::new(SharedReceives::new(2)), 1);
    let target = &mut pairs[0].sides[1].endpoint;
    assert!(target.shares_receives());
    assert_eq!(target.post_receive(local(b""), 0), Err(PostError::SharedReceives));
}
