use anyhow::bail;

use super::*;
use crate::bench::pattern::Shape;

const SHAPE: Shape = Shape { size_bytes: 100, start: 0, len_bytes: 1000, random: false, read_percent: 0, batch: 1 };

/// Answers in order, each after `service`, but stalls once.
#[derive(Debug)]
struct Server {
    depth: usize,
    service: Duration,
    /// Number of the operation that meets the pause, and its length.
    pause: (u64, Duration),
    flights: std::collections::VecDeque<usize>,
    answered: u64,
    most: usize,
    settled: u32,
}

impl Server {
    fn new(depth: usize, service: Duration, pause: (u64, Duration)) -> Self {
        Self { depth, service, pause, flights: std::collections::VecDeque::new(), answered: 0, most: 0, settled: 0 }
    }
}

impl Engine for Server {
    fn depth(&self) -> usize {
        self.depth
    }

    fn post(&mut self, posts: &[Post]) -> Result<()> {
        self.flights.extend(posts.iter().map(|post| post.slot));
        self.most = self.most.max(self.flights.len());
        Ok(())
    }

    fn collect(&mut self, _: Option<Instant>, done: &mut Vec<usize>) -> Result<()> {
        let Some(slot) = self.flights.pop_front() else { bail!("nothing is in flight") };
        self.answered += 1;
        let pause = if self.answered == self.pause.0 { self.pause.1 } else { Duration::ZERO };
        thread::sleep(self.service + pause);
        done.push(slot);
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        self.settled += 1;
        Ok(())
    }
}

fn extent(operations: u64) -> Extent {
    Extent { operations, time: Duration::from_secs(60) }
}

/// Latencies above this bound.
fn longer_than(tally: &Tally, ms: u64) -> u64 {
    tally.writes.counts().filter(|(ns, _)| *ns > ms * 1_000_000).map(|(_, count)| count).sum()
}

#[test]
fn every_operation_is_counted_once_and_settled() {
    let mut server = Server::new(3, Duration::ZERO, (0, Duration::ZERO));
    let tally = drive(&mut server, &mut Pattern::new(SHAPE, 1), extent(1000), Pace::Closed).unwrap();
    assert_eq!((tally.operations(), tally.bytes, server.answered), (1000, 100_000, 1000));
    assert_eq!((server.most, server.settled), (3, 1), "as many in flight as the engine keeps");
    let mixed = Shape { read_percent: 50, batch: 4, ..SHAPE };
    let tally = drive(&mut server, &mut Pattern::new(mixed, 1), extent(1000), Pace::Closed).unwrap();
    assert_eq!(tally.bytes, tally.reads.len() * 100 + tally.writes.len() * 400);
    assert_eq!(tally.all().len(), 1000);
}

#[test]
fn a_turn_ends_with_its_time() {
    let extent = Extent { operations: u64::MAX, time: Duration::from_millis(20) };
    for pace in [Pace::Closed, Pace::Open(1000.0)] {
        let mut server = Server::new(1, Duration::from_micros(100), (0, Duration::ZERO));
        let tally = drive(&mut server, &mut Pattern::new(SHAPE, 1), extent, pace).unwrap();
        assert!(tally.operations() > 0 && tally.elapsed >= Duration::from_millis(15), "{pace:?}: {tally:?}");
    }
}

/// What an open loop is for: all that was due during a pause waited, and says so. In the closed loop, only the one in flight did.
#[test]
fn a_pause_is_in_the_tail_of_an_open_loop_and_hides_in_a_closed_one() {
    let pause = (100, Duration::from_millis(100));
    let run = |pace| {
        let mut server = Server::new(1, Duration::ZERO, pause);
        drive(&mut server, &mut Pattern::new(SHAPE, 1), extent(1000), pace).unwrap()
    };
    let (closed, open) = (run(Pace::Closed), run(Pace::Open(2000.0)));
    assert_eq!((closed.operations(), open.operations()), (1000, 1000));
    // 2000 a second for 100 ms: of the 200 that were due, half waited for more than 50 ms. A busy machine adds to both.
    let (hidden, shown) = (longer_than(&closed, 50), longer_than(&open, 50));
    assert!(shown >= 90, "{shown} of 1000 waited for more than 50 ms");
    assert!(hidden >= 1 && hidden * 10 < shown, "{hidden} in the closed loop, {shown} in the open one");
}

#[test]
fn an_open_loop_starts_nothing_before_it_is_due() {
    let mut server = Server::new(4, Duration::ZERO, (0, Duration::ZERO));
    let tally = drive(&mut server, &mut Pattern::new(SHAPE, 1), extent(100), Pace::Open(5000.0)).unwrap();
    // The last of 100 is due 99 intervals after the first.
    assert!(tally.elapsed >= Duration::from_secs_f64(99.0 / 5000.0), "{:?}", tally.elapsed);
}

#[test]
fn measuring_has_a_cost_of_its_own() {
    let cost_ns = own_cost_ns(SHAPE).unwrap();
    assert!(cost_ns > 0.0 && cost_ns.is_finite(), "{cost_ns}");
}
