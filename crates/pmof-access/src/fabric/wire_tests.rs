use std::time::Instant;

use pmof_proto::{OutputView, Ticket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::{
    FabricProvider,
    rendezvous::RendezvousIncoming,
    transport::Incoming,
    wire::{DirectOutcome, Finished},
};

/// Longer than anything takes that works.
const LONG: Duration = Duration::from_secs(30);

struct Nobody;

impl Finished for Nobody {
    fn finished(&mut self, _: Ticket, _: DirectOutcome) {
        panic!("nothing was posted");
    }
}

/// Both ends of a connection.
struct Pair {
    here: Box<dyn Wire>,
    there: FabricWire,
}

impl Pair {
    /// `None`, and skipped, where the library is not installed.
    fn connected() -> Option<Self> {
        let address = [127, 0, 0, 1].into();
        let open = || Opened::open(FabricProvider::TcpConnected, Some(address));
        let opened = match open() {
            Ok(opened) => [opened, open().unwrap()],
            Err(error) => {
                skip_report::skipped!("no libfabric: {error}");
                return None;
            }
        };
        let accepted = |socket| FabricWire::accepted(&opened[0], socket);
        let (incoming, bound) = RendezvousIncoming::open(SocketAddr::new(address, 0), accepted).unwrap();
        let there = FabricWire::connecting(&opened[1], bound, LONG, false).unwrap();
        let here = within_limit(|| incoming.accept().unwrap()).0;
        let mut pair = Self { here, there };
        within_limit(|| {
            pair.turn();
            pair.there.is_standing.then_some(())
        });
        Some(pair)
    }

    fn turn(&mut self) {
        self.here.progress(&mut Nobody).unwrap();
        self.there.progress(&mut Nobody).unwrap();
    }

    /// Sends a byte to the side that connected.
    fn say(&mut self) {
        let view = OutputView { head: &[7], body: None, tail: &[] };
        within_limit(|| {
            self.here.progress(&mut Nobody).unwrap();
            self.here.send(&view, &[]).ok()
        });
        self.here.submit();
    }

    fn hear(&mut self) {
        within_limit(|| {
            self.turn();
            self.there.receive(InputPlace::Staging(&mut [0; 8])).ok()
        });
    }

    /// Whether a sleeper of the side that connected is woken in time.
    fn wakes(&self, limit: Duration) -> bool {
        let limit = Timespec::try_from(limit).unwrap();
        poll(&mut [PollFd::new(&self.there.sleeping, PollFlags::IN)], Some(&limit)).unwrap() > 0
    }
}

fn within_limit<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < LONG, "nothing happens");
    }
}

#[test]
fn the_descriptor_is_watched_only_for_those_who_sleep() {
    let Some(mut pair) = Pair::connected() else { return };
    assert!(!pair.there.sleeping.has_queue(), "nobody has slept yet");
    for round in 0..2 {
        // What is on its way from before.
        for _ in 0..100 {
            pair.turn();
        }
        pair.there.request_notification();
        assert!(pair.there.sleeping.has_queue(), "round {round}");
        assert!(!pair.wakes(Duration::from_millis(100)), "round {round}: there is nothing to wake for");
        pair.say();
        assert!(pair.wakes(LONG), "round {round}: a byte has come");
        pair.hear();
        assert!(pair.there.sleeping.has_queue(), "round {round}: once awake is not for good");
        for _ in 0..AWAKE_TURNS_MAX {
            pair.say();
            pair.hear();
        }
        assert!(!pair.there.sleeping.has_queue(), "round {round}: nobody sleeps");
        assert!(pair.wakes(LONG), "round {round}: whoever goes to sleep just now looks again");
    }
}
