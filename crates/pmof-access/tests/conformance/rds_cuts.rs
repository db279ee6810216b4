//! A link that is cut and restored at random under writes, flushes and atomic additions: what was acknowledged is there, nothing is there twice, and what is
//! not known is told as unknown.
//!
//! Between `PMOF_WIRE_A` and `PMOF_WIRE_B`, whose interfaces are `PMOF_WIRE_A_NETDEV` and `PMOF_WIRE_B_NETDEV`. `PMOF_RDS_WRITES`: how many; `PMOF_RDS_SEED`: which cuts.

use std::{
    collections::VecDeque,
    env,
    net::{IpAddr, SocketAddr},
    process::Command,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use pmof_access::{
    AcceptOptions, Access, ConnectOptions, Connection, ConnectionError, Durability, OperationError, Outcome, Peer,
    Progress, QueueOptions, RemoteRegion, Ticket, Transport,
};

use crate::pair::{LONG, listen_options, threaded};

const WRITES: u64 = 100_000;
const SLOTS: u64 = 1024;
const SLOT_BYTES: u64 = 64;
/// Behind the slots: how many additions took effect.
const COUNTER: u64 = SLOTS * SLOT_BYTES;

/// Operations of which the outcome is awaited.
const IN_FLIGHT: usize = 64;

/// How long the kernel may take to connect the hosts again. Some do not do it at all: see the design page.
const COMES_BACK: Duration = Duration::from_secs(60);

/// Short, so that long cuts end connections.
const LOSS_TIMEOUT: Duration = Duration::from_secs(2);

fn setting(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|error| panic!("{name}: {error}")))
}

/// Cuts the link and restores it until it is told to stop.
struct Cutter {
    netdevs: [String; 2],
}

impl Cutter {
    /// Has both ends lose so many of the packets that they send. An interface that is set down instead makes soft-RoCE fail by itself, after which RDS of
    /// Linux 6.12 does not connect two addresses of one machine again.
    fn lose(&self, share: &str) {
        for netdev in &self.netdevs {
            let arguments = ["qdisc", "replace", "dev", netdev, "root", "netem", "loss", share];
            let status = Command::new("tc").args(arguments).status().expect("tc, from the package iproute2");
            assert!(status.success(), "tc: {status}");
        }
    }

    fn run(&self, mut random: impl FnMut(u64) -> u64, stop: &AtomicBool, cuts: &AtomicU32) {
        while !stop.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(300 + random(2500)));
            self.lose("100%");
            // Some are shorter than the hosts need to notice, some longer than the connection waits.
            let down = match random(8) {
                0 => 6000 + random(3000),
                1..=3 => random(200),
                _ => 500 + random(2000),
            };
            thread::sleep(Duration::from_millis(down));
            self.lose("0%");
            cuts.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What is known of the target's memory.
struct Known {
    /// Of each slot: the number acknowledged last, and the one written last.
    slots: Vec<(u64, u64)>,
    /// Additions acknowledged, and issued.
    additions: (u64, u64),
    /// Every sum that was there before an addition.
    sums: Vec<u64>,
    unknown: u64,
    endings: u64,
}

enum Awaited {
    Flush { slot: u64, number: u64 },
    Addition,
    Other,
}

impl Known {
    fn take_in(&mut self, awaited: &Awaited, outcome: Result<Outcome, OperationError>) {
        match (awaited, outcome) {
            (Awaited::Flush { slot, number }, Ok(_)) => self.slots[*slot as usize].0 = *number,
            (Awaited::Addition, Ok(Outcome::Previous(sum))) => {
                self.additions.0 += 1;
                self.sums.push(sum);
            }
            (_, Ok(_)) => {}
            // Neither done nor not done.
            (
                _,
                Err(OperationError::ConnectionEnded(ConnectionError::Lost { .. } | ConnectionError::TimedOut { .. })),
            ) => {
                self.unknown += 1;
            }
            (_, Err(error)) => panic!("{error}"),
        }
    }

    /// Compares with what is there.
    fn check(&self, memory: &[u8]) {
        let number_at = |at: u64| u64::from_le_bytes(memory[at as usize..at as usize + 8].try_into().unwrap());
        for (slot, (acknowledged, issued)) in (0..).zip(&self.slots) {
            let found = number_at(slot * SLOT_BYTES);
            assert!((*acknowledged..=*issued).contains(&found), "slot {slot}: {found}, not {acknowledged} to {issued}");
            for at in (0..SLOT_BYTES).step_by(8) {
                assert_eq!(number_at(slot * SLOT_BYTES + at), found, "slot {slot} is torn");
            }
        }
        let (acknowledged, issued) = self.additions;
        let found = number_at(COUNTER);
        assert!(
            (acknowledged..=issued).contains(&found),
            "{found} additions took effect, not {acknowledged} to {issued}"
        );
        let mut sums = self.sums.clone();
        sums.sort_unstable();
        sums.dedup();
        assert_eq!(sums.len(), self.sums.len(), "no addition took effect twice");
        assert!(sums.last().is_none_or(|last| *last < found));
    }
}

#[test]
fn nothing_is_lost_or_done_twice_while_the_link_is_cut() {
    let [Ok(near), Ok(far), Ok(near_netdev), Ok(far_netdev)] =
        ["PMOF_WIRE_A", "PMOF_WIRE_B", "PMOF_WIRE_A_NETDEV", "PMOF_WIRE_B_NETDEV"].map(env::var)
    else {
        skip_report::skipped!(
            "no wire between PMOF_WIRE_A and PMOF_WIRE_B that may be cut: the test bed's machine has one"
        );
        return;
    };
    let ends: [IpAddr; 2] = [near, far].map(|end| end.parse().expect("an address"));
    let writes = setting("PMOF_RDS_WRITES").unwrap_or(WRITES);
    let seed = setting("PMOF_RDS_SEED").unwrap_or(1);
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };

    let target = Peer::open(Transport::Rds).unwrap();
    let memory = target.allocate(COUNTER + 8, Access::all()).unwrap();
    let serving = target.completion_queue(threaded()).unwrap();
    let listener = target.listen(SocketAddr::new(ends[1], 0), listen_options()).unwrap();
    let (stop, cuts) = (AtomicBool::new(false), AtomicU32::new(0));
    let cutter = Cutter { netdevs: [near_netdev, far_netdev] };
    let mut known =
        Known { slots: vec![(0, 0); SLOTS as usize], additions: (0, 0), sums: Vec::new(), unknown: 0, endings: 0 };
    let start = Instant::now();
    let mut next = 1;
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut served = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                if let Some(request) = listener.next_request(Duration::from_millis(20)).unwrap() {
                    // One that is gone again is tried anew.
                    served.extend(request.accept(&serving, &AcceptOptions::default()));
                }
            }
        });
        scope.spawn(|| cutter.run(random, &stop, &cuts));
        // However it ends, so do the others.
        let _stopping = Stopping(&stop);
        let initiator = Peer::open(Transport::Rds).unwrap();
        let queue = initiator.completion_queue(QueueOptions::default().progress(Progress::Thread)).unwrap();
        let options = ConnectOptions::default().source(ends[0]).loss_timeout(LOSS_TIMEOUT);
        let address = format!("rds://{}", listener.local_address().socket_address().unwrap()).parse().unwrap();
        let remote = RemoteRegion::from_descriptor(&memory.descriptor()).unwrap();
        let mut away_since: Option<Instant> = None;
        while next <= writes {
            let Ok(connection) = initiator.connect(&address, &queue, &options) else {
                if away_since.get_or_insert_with(Instant::now).elapsed() > COMES_BACK {
                    break;
                }
                continue;
            };
            away_since = None;
            let mut awaited = VecDeque::new();
            let outcome = |awaited: &mut VecDeque<(Ticket, Awaited)>, known: &mut Known| {
                let Some((ticket, what)) = awaited.pop_front() else { return };
                let done = queue.wait_for(connection.id(), ticket, LONG).expect("an outcome in time");
                known.take_in(&what, done.outcome);
            };
            while next <= writes && connection.ended().is_none() {
                if post(&connection, &remote, next, &mut awaited, &mut known).is_some() {
                    next += 1;
                }
                while awaited.len() > IN_FLIGHT {
                    outcome(&mut awaited, &mut known);
                }
            }
            while !awaited.is_empty() {
                outcome(&mut awaited, &mut known);
            }
            known.endings += u64::from(connection.ended().is_some());
            println!("{} of {writes} written after {:.1} s", next - 1, start.elapsed().as_secs_f64());
        }
    });
    let mut bytes = vec![0; COUNTER as usize + 8];
    memory.read(0, &mut bytes).unwrap();
    known.check(&bytes);
    if next <= writes {
        skip_report::skipped!(
            "the kernel did not connect the hosts again: {} of {writes} writes were made and checked",
            next - 1
        );
    }
    println!(
        "{} writes and flushes in {:.1} s with {} cuts (seed {seed}): {} connections ended, {} outcomes unknown, {} of {} additions acknowledged",
        next - 1,
        start.elapsed().as_secs_f64(),
        cuts.load(Ordering::Relaxed),
        known.endings,
        known.unknown,
        known.additions.0,
        known.additions.1,
    );
}

/// Posts a write, its flush and, with every eighth, an addition. None where the connection has ended.
fn post(
    connection: &Connection,
    remote: &RemoteRegion,
    number: u64,
    awaited: &mut VecDeque<(Ticket, Awaited)>,
    known: &mut Known,
) -> Option<()> {
    let slot = number % SLOTS;
    let record = number.to_le_bytes().repeat(SLOT_BYTES as usize / 8);
    // Whatever becomes of it from here on.
    let written = connection.write(remote, slot * SLOT_BYTES, &record).ok()?;
    known.slots[slot as usize].1 = number;
    awaited.push_back((written, Awaited::Other));
    let flushed = connection.flush(remote, slot * SLOT_BYTES..(slot + 1) * SLOT_BYTES, Durability::Visible).ok()?;
    awaited.push_back((flushed, Awaited::Flush { slot, number }));
    if number % 8 == 0 {
        let added = connection.batch().fetch_and_add(remote, COUNTER, 1).ok()?;
        known.additions.1 += 1;
        awaited.push_back((added, Awaited::Addition));
    }
    Some(())
}

struct Stopping<'s>(&'s AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
