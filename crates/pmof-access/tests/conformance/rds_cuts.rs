//! A link that is cut and restored at random under writes, flushes and atomic additions: what was acknowledged is there, nothing takes effect twice, and what is
//! not known is told as unknown. Two controls lose a write and repeat one, and must be seen.
//!
//! Between `PMOF_WIRE_A` and `PMOF_WIRE_B`, whose interfaces are `PMOF_WIRE_A_NETDEV` and `PMOF_WIRE_B_NETDEV`. `PMOF_RDS_WRITES`: how many; `PMOF_RDS_SEED`: which cuts.

use std::{
    collections::VecDeque,
    env,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    process::Command,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use pmof_access::{
    AcceptOptions, Access, ConnectOptions, Connection, ConnectionError, Durability, OperationError, Outcome, Peer,
    Progress, QueueOptions, Region, RemoteRegion, Ticket, Transport,
};

use crate::{
    fabric::Fabric as _,
    fabrics::Rds,
    pair::{LONG, listen_options, threaded},
};

const WRITES: u64 = 100_000;

/// Each write has a place of its own, whose words all hold its number.
const PLACE_BYTES: u64 = 64;

/// Set by this program in the words of a place when its write was acknowledged and seen: a write that takes effect again clears it.
const SEEN: u64 = 1 << 63;

/// Each connection has a counter of its own behind the places, so that its sums are known exactly.
const COUNTERS: u64 = 1024;
const WRITES_PER_ADDITION: u64 = 8;

/// Operations of which the outcome is awaited.
const IN_FLIGHT: usize = 64;

/// How long the kernel may take to connect the hosts again.
const COMES_BACK: Duration = Duration::from_secs(120);

/// Short, so that long cuts end connections.
const LOSS_TIMEOUT: Duration = Duration::from_secs(2);

fn setting(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|error| panic!("{name}: {error}")))
}

/// Cuts the link and restores it until it is told to stop.
struct Cutter {
    netdevs: [String; 2],
    state: u64,
}

impl Cutter {
    /// Nothing is lost yet. The discipline is there before anything is sent: putting it in place makes the interface fail for a moment, as setting it down does, and a
    /// packet of soft-RoCE that fails to be sent stops the queue pair that it belongs to: that of the connection manager for good.
    fn new(netdevs: [String; 2], seed: u64) -> Self {
        let cutter = Self { netdevs, state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1 };
        cutter.lose("0%");
        cutter
    }

    /// Has both ends lose so many of the packets that they send.
    fn lose(&self, share: &str) {
        for netdev in &self.netdevs {
            let arguments = ["qdisc", "replace", "dev", netdev, "root", "netem", "loss", share];
            let status = Command::new("tc").args(arguments).status().expect("tc, from the package iproute2");
            assert!(status.success(), "tc: {status}");
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % below
    }

    fn run(mut self, stop: &AtomicBool, cuts: &AtomicU32) {
        while !stop.load(Ordering::Relaxed) {
            let up = 300 + self.random(2500);
            thread::sleep(Duration::from_millis(up));
            self.lose("100%");
            // Some are shorter than the hosts need to notice, some longer than the connection waits.
            let down = match self.random(8) {
                0 => 6000 + self.random(3000),
                1..=3 => self.random(200),
                _ => 500 + self.random(2000),
            };
            thread::sleep(Duration::from_millis(down));
            self.lose("0%");
            cuts.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What a target does wrong, halfway.
#[derive(Clone, Copy, Debug)]
enum Fault {
    LosesWrite,
    RepeatsWrite,
    RepeatsAddition,
}

enum Awaited {
    Flush { number: u64 },
    Addition,
    Other,
}

/// What is known of the target's memory.
struct Ledger<'m> {
    memory: &'m Region,
    /// Of each write, by its number.
    acknowledged: Vec<bool>,
    issued: u64,
    /// Of each connection: additions acknowledged, and issued.
    additions: Vec<(u64, u64)>,
    unknown: u64,
}

impl<'m> Ledger<'m> {
    fn new(memory: &'m Region, writes: u64) -> Self {
        let acknowledged = vec![false; writes as usize + 1];
        Self { memory, acknowledged, issued: 0, additions: Vec::new(), unknown: 0 }
    }

    fn take_in(&mut self, awaited: &Awaited, outcome: Result<Outcome, OperationError>) -> Result<(), String> {
        match (awaited, outcome) {
            (Awaited::Flush { number }, Ok(_)) => self.see(*number),
            (Awaited::Addition, Ok(Outcome::Previous(sum))) => {
                let (acknowledged, _) = self.additions.last_mut().expect("a connection");
                let expected = std::mem::replace(acknowledged, *acknowledged + 1);
                if sum == expected { Ok(()) } else { Err(format!("{sum} additions took effect, not {expected}")) }
            }
            (_, Ok(_)) => Ok(()),
            // Neither done nor not done.
            (
                _,
                Err(OperationError::ConnectionEnded(ConnectionError::Lost { .. } | ConnectionError::TimedOut { .. })),
            ) => {
                self.unknown += 1;
                Ok(())
            }
            (_, Err(error)) => Err(error.to_string()),
        }
    }

    /// Compares a write that is acknowledged with what is there, and marks its place.
    fn see(&mut self, number: u64) -> Result<(), String> {
        self.acknowledged[number as usize] = true;
        let mut found = [0; PLACE_BYTES as usize];
        self.memory.read(place(number), &mut found).expect("in bounds");
        if found != words(number) {
            return Err(format!("write {number} was acknowledged and is lost: {found:?}"));
        }
        self.memory.store(place(number), &words(number | SEEN)).expect("in bounds");
        Ok(())
    }

    /// Compares everything with what is there.
    fn check(&self) -> Result<(), String> {
        let mut memory = vec![0; self.memory.len_bytes() as usize];
        self.memory.read(0, &mut memory).expect("in bounds");
        let (places, counters) = memory.split_at(place(self.acknowledged.len() as u64) as usize);
        for (number, found) in (0..).zip(places.chunks_exact(PLACE_BYTES as usize)) {
            if self.acknowledged[number as usize] {
                if found != words(number | SEEN) {
                    return Err(format!("write {number} took effect once more: {found:?}"));
                }
            } else if found != words(0) && (found != words(number) || number > self.issued) {
                return Err(format!("write {number}, of unknown outcome, left {found:?}"));
            }
        }
        for ((acknowledged, issued), counter) in self.additions.iter().zip(counters.chunks_exact(8)) {
            let found = u64::from_le_bytes(counter.try_into().expect("8 bytes"));
            if !(*acknowledged..=*issued).contains(&found) {
                return Err(format!("{found} additions took effect, not {acknowledged} to {issued}"));
            }
        }
        Ok(())
    }
}

fn place(number: u64) -> u64 {
    number * PLACE_BYTES
}

fn words(word: u64) -> [u8; PLACE_BYTES as usize] {
    let word = word.to_le_bytes();
    std::array::from_fn(|at| word[at % 8])
}

/// One run.
struct Soak {
    ends: [IpAddr; 2],
    writes: u64,
    cutter: Option<Cutter>,
    fault: Option<Fault>,
}

/// What came of it.
struct Tally {
    elapsed: Duration,
    cuts: u32,
    connections: usize,
    longest_away: Duration,
    acknowledged: usize,
    unknown: u64,
    additions: (u64, u64),
}

impl Soak {
    fn run(self) -> Result<Tally, String> {
        let target = Peer::open(Transport::Rds).unwrap();
        let memory = target.allocate(place(self.writes + 1) + 8 * COUNTERS, Access::all()).unwrap();
        let serving = target.completion_queue(threaded()).unwrap();
        let listener = target.listen(SocketAddr::new(self.ends[1], 0), listen_options()).unwrap();
        let (stop, cuts) = (AtomicBool::new(false), AtomicU32::new(0));
        let start = Instant::now();
        let mut ledger = Ledger::new(&memory, self.writes);
        let mut longest_away = Duration::ZERO;
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
            if let Some(cutter) = self.cutter {
                scope.spawn(|| cutter.run(&stop, &cuts));
            }
            // However it ends, so do the others.
            let _stopping = Stopping(&stop);
            let initiator = Peer::open(Transport::Rds).unwrap();
            let queue = initiator.completion_queue(QueueOptions::default().progress(Progress::Thread)).unwrap();
            let options = ConnectOptions::default().source(self.ends[0]).loss_timeout(LOSS_TIMEOUT);
            let address = format!("rds://{}", listener.local_address().socket_address().unwrap()).parse().unwrap();
            let remote = RemoteRegion::from_descriptor(&memory.descriptor()).unwrap();
            let mut away_since = Instant::now();
            while ledger.issued < self.writes {
                let Ok(connection) = initiator.connect(&address, &queue, &options) else {
                    if away_since.elapsed() > COMES_BACK {
                        return Err(format!(
                            "the kernel did not connect the hosts again in {COMES_BACK:?}, after {} writes",
                            ledger.issued
                        ));
                    }
                    continue;
                };
                longest_away = longest_away.max(away_since.elapsed());
                ledger.additions.push((0, 0));
                assert!(ledger.additions.len() as u64 <= COUNTERS, "more connections than counters");
                let mut awaited = VecDeque::new();
                let outcome = |awaited: &mut VecDeque<(Ticket, Awaited)>, ledger: &mut Ledger<'_>| {
                    let Some((ticket, what)) = awaited.pop_front() else { return Ok(()) };
                    let done = queue.wait_for(connection.id(), ticket, LONG).expect("an outcome in time");
                    ledger.take_in(&what, done.outcome)
                };
                while ledger.issued < self.writes && connection.ended().is_none() {
                    let fault = self.fault.filter(|_| ledger.issued == self.writes / 2);
                    // An end shows in the outcomes of what was posted before.
                    let _ = post(&connection, &remote, fault, &mut awaited, &mut ledger);
                    while awaited.len() > IN_FLIGHT {
                        outcome(&mut awaited, &mut ledger)?;
                    }
                }
                while !awaited.is_empty() {
                    outcome(&mut awaited, &mut ledger)?;
                }
                away_since = Instant::now();
                if ledger.issued < self.writes {
                    println!(
                        "{} of {} written after {:.1} s",
                        ledger.issued,
                        self.writes,
                        start.elapsed().as_secs_f64()
                    );
                }
            }
            Ok(())
        })?;
        ledger.check()?;
        Ok(Tally {
            elapsed: start.elapsed(),
            cuts: cuts.into_inner(),
            connections: ledger.additions.len(),
            longest_away,
            acknowledged: ledger.acknowledged.iter().filter(|acknowledged| **acknowledged).count(),
            unknown: ledger.unknown,
            additions: ledger.additions.iter().fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1)),
        })
    }
}

/// Posts the next write, its flush and, with every eighth, an addition. `None` where the connection has ended.
fn post(
    connection: &Connection,
    remote: &RemoteRegion,
    fault: Option<Fault>,
    awaited: &mut VecDeque<(Ticket, Awaited)>,
    ledger: &mut Ledger<'_>,
) -> Option<()> {
    let number = ledger.issued + 1;
    let write = |number| connection.write(remote, place(number), &words(number)).ok();
    if !matches!(fault, Some(Fault::LosesWrite)) {
        awaited.push_back((write(number)?, Awaited::Other));
    }
    // Whatever becomes of it from here on.
    ledger.issued = number;
    let flushed = connection.flush(remote, place(number)..place(number + 1), Durability::Visible).ok()?;
    awaited.push_back((flushed, Awaited::Flush { number }));
    if matches!(fault, Some(Fault::RepeatsWrite)) {
        // One that was acknowledged long ago.
        awaited.push_back((write(1)?, Awaited::Other));
    }
    let counter = place(ledger.acknowledged.len() as u64) + 8 * (ledger.additions.len() as u64 - 1);
    let add = || connection.batch().fetch_and_add(remote, counter, 1).ok();
    if number % WRITES_PER_ADDITION == 0 {
        let added = add()?;
        ledger.additions.last_mut()?.1 += 1;
        awaited.push_back((added, Awaited::Addition));
    }
    if matches!(fault, Some(Fault::RepeatsAddition)) {
        awaited.push_back((add()?, Awaited::Other));
    }
    Some(())
}

struct Stopping<'s>(&'s AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
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
    let cutter = Cutter::new([near_netdev, far_netdev], seed);
    let tally = Soak { ends, writes, cutter: Some(cutter), fault: None }.run().unwrap_or_else(|why| panic!("{why}"));
    assert!(tally.cuts > 0, "the link was never cut");
    println!(
        "{writes} writes and flushes in {:.1} s with {} cuts (seed {seed}): {} acknowledged, compared and there once; {} of {} additions acknowledged; \
         {} outcomes unknown; {} connections, at most {:.1} s apart",
        tally.elapsed.as_secs_f64(),
        tally.cuts,
        tally.acknowledged,
        tally.additions.0,
        tally.additions.1,
        tally.unknown,
        tally.connections,
        tally.longest_away.as_secs_f64(),
    );
}

#[test]
fn a_target_that_loses_or_repeats_is_seen() {
    if !Rds::is_there() {
        return;
    }
    let run = |fault| Soak { ends: [Ipv4Addr::LOCALHOST.into(); 2], writes: 1000, cutter: None, fault }.run();
    let tally = run(None).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!((tally.acknowledged, tally.unknown, tally.additions, tally.connections), (1000, 0, (125, 125), 1));
    for (fault, what) in [
        (Fault::LosesWrite, "write 501 was acknowledged and is lost"),
        (Fault::RepeatsWrite, "write 1 took effect once more"),
        (Fault::RepeatsAddition, "63 additions took effect, not 62"),
    ] {
        let Err(why) = run(Some(fault)) else { panic!("{fault:?} was not seen") };
        assert!(why.starts_with(what), "{fault:?}: {why}");
    }
}
