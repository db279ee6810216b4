//! One fixed scenario on the simulated network, with a fault at every byte of either direction.
//!
//! Whatever happens: it ends in bounded time, every posted operation has exactly one outcome, and nothing that was
//! reported successful is missing: not from the target's memory, and after a flush not from any image that a crash of the
//! target could leave.

mod support;

use std::{collections::BTreeMap, fmt::Debug, sync::Arc, time::Duration};

use pmof_access::{
    AcceptOptions, Access, Capabilities, Completion, CompletionQueue, ConnectOptions, Connection, ConnectionId,
    Durability, ListenOptions, Medium, MediumKind, Memory, Outcome, Peer, PostError, QueueOptions, Region,
    RemoteRegion, Settings, Ticket,
    sim::{Faults, SimNetwork},
};
use pmof_mem::{
    ShadowMedium,
    faults::{SkipFence, SkipWriteBack},
};
use support::pattern;

const LEN_BYTES: u64 = 4096;
const LIMIT: Duration = Duration::from_millis(100);

/// Longer than any run may take: every wait in it, one after the other.
const RUN_MAX: Duration = Duration::from_secs(5);

/// Images looked at after each flush: all of them, as long as no more than this are possible.
const IMAGES: usize = 64;

/// More and fewer bytes than the scenario sends in either direction, without the frame that says goodbye.
const BYTES_MAX: u64 = 10_000;
const BYTES_MIN: u64 = 1_100;
const GOODBYE_BYTES: u64 = 64;

/// An offset, and what may be found there.
type Durable = (u64, Vec<Vec<u8>>);

/// What success of an operation means.
#[derive(Clone, Debug)]
enum Meaning {
    /// The target's memory holds these bytes there, from now on.
    Written(u64, Vec<u8>),
    /// This is in every image of a crash from now on.
    Flushed(Vec<Durable>),
    /// It completes with this number.
    Previous(u64),
    /// The bytes read are these.
    Read(Vec<u8>),
    /// The message received is this one.
    Received(Vec<u8>),
    Sent,
}

/// One run of the scenario.
struct Run {
    queues: [CompletionQueue; 2],
    awaited: BTreeMap<(ConnectionId, Ticket), Meaning>,
    shadow: Arc<ShadowMedium>,
    target_memory: Arc<dyn Medium>,
    /// Where reads and received messages of either side end up.
    scratch: [Region; 2],
    /// What every crash image must hold from now on.
    durable: Vec<Durable>,
    outcomes: Vec<String>,
    failed: usize,
    violations: Vec<String>,
}

/// What a run leaves.
#[derive(Debug, PartialEq, Eq)]
struct Report {
    /// Every operation succeeded.
    is_clean: bool,
    outcomes: Vec<String>,
    violations: Vec<String>,
}

impl Run {
    fn violation(&mut self, what: impl Into<String>) {
        self.violations.push(what.into());
    }

    fn posted(&mut self, connection: &Connection, ticket: Result<Ticket, PostError>, meaning: Meaning) {
        match ticket {
            Ok(ticket) => {
                if self.awaited.insert((connection.id(), ticket), meaning).is_some() {
                    self.violation("a ticket was given twice");
                }
            }
            Err(PostError::NotConnected(_)) => self.failed += 1,
            Err(other) => self.violation(format!("posting failed: {other}")),
        }
    }

    /// Collects outcomes until nothing is outstanding at this side.
    fn settle(&mut self, side: usize, connection: &Connection) {
        while connection.outstanding() > 0 || self.awaits_receive(connection) {
            match self.queues[side].wait(3 * LIMIT) {
                Some(done) => self.completed(side, done),
                // A receive may wait for as long as the other side is silent.
                None if connection.outstanding() == 0 => return,
                None => return self.violation("an operation has no outcome"),
            }
        }
        while let Some(done) = self.queues[side].poll() {
            self.completed(side, done);
        }
    }

    fn awaits_receive(&self, connection: &Connection) -> bool {
        let is_its_own = |((id, _), meaning): (&(ConnectionId, Ticket), &Meaning)| {
            *id == connection.id() && matches!(meaning, Meaning::Received(_))
        };
        self.awaited.iter().any(is_its_own)
    }

    fn completed(&mut self, side: usize, done: Completion) {
        let Some(meaning) = self.awaited.remove(&(done.connection, done.ticket)) else {
            return self.violation(format!("an outcome of nothing, or a second one: {done:?}"));
        };
        let kind = done.kind;
        match done.outcome {
            Ok(outcome) => {
                self.outcomes.push(format!("{kind:?} {outcome:?}"));
                self.check(side, &meaning, outcome);
            }
            Err(error) => {
                self.outcomes.push(format!("{kind:?} {error:?}"));
                self.failed += 1;
            }
        }
    }

    /// Looks whether what was reported is so.
    fn check(&mut self, side: usize, meaning: &Meaning, outcome: Outcome) {
        let scratch = |run: &Self, len: usize| support::content(&run.scratch[side], 0, len);
        match (meaning, outcome) {
            (Meaning::Written(offset, bytes), Outcome::Done { len_bytes }) => {
                let mut found = vec![0; bytes.len()];
                self.target_memory.read(*offset, &mut found).expect("inside");
                self.expect_equal("a write", &found, bytes);
                self.expect_equal("a write's length", &len_bytes, &(bytes.len() as u64));
            }
            (Meaning::Flushed(durable), Outcome::Flushed(flushed)) => {
                self.expect_equal("a flush's level", &flushed.durability, &Durability::PowerFailure);
                self.durable.extend(durable.iter().cloned());
                self.check_images();
            }
            (Meaning::Previous(number), Outcome::Previous(found)) => self.expect_equal("a number", &found, number),
            (Meaning::Read(bytes), Outcome::Done { .. }) => {
                let found = scratch(self, bytes.len());
                self.expect_equal("a read", &found, bytes);
            }
            (Meaning::Received(bytes), Outcome::Received { len_bytes, .. }) => {
                let found = scratch(self, len_bytes as usize);
                self.expect_equal("a message", &found, bytes);
            }
            (Meaning::Sent, Outcome::Done { .. }) => {}
            (meaning, outcome) => self.violation(format!("{outcome:?} for {meaning:?}")),
        }
    }

    fn expect_equal<T: PartialEq + Debug>(&mut self, what: &str, found: &T, expected: &T) {
        if found != expected {
            self.violation(format!("{what} is {found:?} instead of {expected:?}"));
        }
    }

    /// Whatever a crash leaves now holds all that was acknowledged.
    fn check_images(&mut self) {
        for image in self.shadow.crash_images(IMAGES) {
            let is_kept =
                |(offset, allowed): &Durable| allowed.iter().any(|bytes| image[*offset as usize..].starts_with(bytes));
            let lost = !self.durable.iter().all(is_kept);
            if lost {
                return self.violation("a crash loses what a flush acknowledged");
            }
        }
    }
}

/// The faults of a run: on the way to the target, and back.
type FaultPair = (Faults, Faults);

/// How the target keeps its memory.
type Wrap = fn(Arc<ShadowMedium>) -> Arc<dyn Medium>;

fn run(faults: FaultPair, wrap: Wrap, settings: Settings) -> Report {
    let network = SimNetwork::new();
    network.set_faults(faults.0, faults.1);
    let peers = [Peer::simulated(&network), Peer::simulated(&network)];
    let queues = peers.each_ref().map(|peer| peer.completion_queue(QueueOptions::default()).expect("a queue"));
    let shadow = Arc::new(ShadowMedium::new(LEN_BYTES, MediumKind::FsDax).expect("a shadow"));
    let target_memory = wrap(Arc::clone(&shadow));
    let region = peers[1].register(Arc::clone(&target_memory), 0, LEN_BYTES, Access::all()).expect("a region");
    let scratch = peers.each_ref().map(|peer| peer.allocate(LEN_BYTES, Access::empty()).expect("memory"));
    let mut run = Run {
        queues,
        awaited: BTreeMap::new(),
        shadow,
        target_memory,
        scratch,
        durable: Vec::new(),
        outcomes: Vec::new(),
        failed: 0,
        violations: Vec::new(),
    };
    match connect(&peers, &run.queues, &region, settings) {
        Some((here, there)) => {
            scenario(&mut run, &peers[0], &here, &there);
            finish(&mut run, [&here, &there]);
        }
        None => run.failed += 1,
    }
    if network.now() > RUN_MAX {
        run.violation(format!("it took {:?}", network.now()));
    }
    Report { is_clean: run.failed == 0, outcomes: run.outcomes, violations: run.violations }
}

fn connect(
    peers: &[Peer; 2],
    queues: &[CompletionQueue; 2],
    region: &Region,
    settings: Settings,
) -> Option<(Connection, Connection)> {
    let listen = ListenOptions::default().settings(settings).handshake_timeout(LIMIT);
    let listener = peers[1].listen(std::net::SocketAddr::from(([127, 0, 0, 1], 0)), listen).expect("a port");
    let options = ConnectOptions::default()
        .private_data(b"scenario".to_vec())
        .timeout(3 * LIMIT)
        .loss_timeout(LIMIT)
        .settings(settings);
    let pending = peers[0].start_connect(listener.local_address(), &queues[0], &options).ok()?;
    let request = listener.next_request(2 * LIMIT).expect("it works")?;
    assert_eq!(request.private_data(), b"scenario");
    let options = AcceptOptions::default().private_data(region.descriptor().to_vec()).loss_timeout(LIMIT);
    let there = request.accept(&queues[1], &options).ok()?;
    Some((pending.finish().ok()?, there))
}

/// The fixed scenario; every step waits for its outcome, so that the next one builds on it.
fn scenario(run: &mut Run, initiator: &Peer, here: &Connection, there: &Connection) {
    let Ok(remote) = here.remote_region(here.private_data()) else {
        return run.violation("the private data came out wrong");
    };
    write_and_flush(run, initiator, here, &remote);
    let add = here.batch().fetch_and_add(&remote, 1024, 3);
    run.posted(here, add, Meaning::Previous(77));
    let swap = here.batch().compare_and_swap(&remote, 1024, 80, 90);
    run.posted(here, swap, Meaning::Previous(80));
    run.settle(0, here);

    let read = here.read(&remote, 512, run.scratch[0].slice(..300).expect("inside"));
    run.posted(here, read, Meaning::Read(pattern(300, 2)));
    run.settle(0, here);

    let (question, answer) = (pattern(50, 5), pattern(20, 6));
    let receive = there.receive(run.scratch[1].slice(..).expect("inside"), 0);
    run.posted(there, receive, Meaning::Received(question.clone()));
    let receive = here.receive(run.scratch[0].slice(..).expect("inside"), 0);
    run.posted(here, receive, Meaning::Received(answer.clone()));
    let sent = here.send(&question);
    run.posted(here, sent, Meaning::Sent);
    // Where the question is lost, its receive comes back in the end.
    if run.queues[1].wait(2 * LIMIT).map(|done| run.completed(1, done)).is_some() {
        let sent = there.send(&answer);
        run.posted(there, sent, Meaning::Sent);
    }
}

fn write_and_flush(run: &mut Run, initiator: &Peer, here: &Connection, remote: &RemoteRegion) {
    let writes = [(0, pattern(100, 1)), (512, pattern(300, 2))];
    let source = initiator.allocate(300, Access::empty()).expect("memory");
    source.store(0, &writes[1].1).expect("inside");
    let mut batch = here.batch();
    let tickets = [
        batch.write(remote, 0, &writes[0].1),
        batch.write(remote, 512, source.slice(..).expect("inside")),
        batch.flush(remote, .., Durability::PowerFailure),
    ];
    batch.submit();
    let [first, second, flush] = tickets;
    for (ticket, (offset, bytes)) in [first, second].into_iter().zip(writes.clone()) {
        run.posted(here, ticket, Meaning::Written(offset, bytes));
    }
    run.posted(here, flush, Meaning::Flushed(writes.map(|(offset, bytes)| (offset, vec![bytes])).to_vec()));
    run.settle(0, here);

    let number = |number: u64| number.to_le_bytes().to_vec();
    let atomic = here.batch().atomic_write(remote, 1024, 77);
    run.posted(here, atomic, Meaning::Written(1024, number(77)));
    let flush = here.flush(remote, 1024..1032, Durability::PowerFailure);
    run.posted(here, flush, Meaning::Flushed(vec![(1024, [77, 80, 90].map(number).to_vec())]));
    run.settle(0, here);
}

/// Both sides close; nothing may be left.
fn finish(run: &mut Run, ends: [&Connection; 2]) {
    if ends.iter().all(|end| end.is_established()) {
        for (side, end) in ends.into_iter().enumerate() {
            run.settle(side, end);
        }
    }
    for (side, end) in ends.into_iter().enumerate() {
        end.disconnect();
        run.settle(side, end);
    }
    for queue in run.queues.clone() {
        if let Some(done) = queue.wait(LIMIT) {
            run.violation(format!("something came after the end: {done:?}"));
        }
    }
    if !run.awaited.is_empty() {
        run.violation(format!("no outcome: {:?}", run.awaited));
    }
    run.check_images();
}

fn plain(shadow: Arc<ShadowMedium>) -> Arc<dyn Medium> {
    shadow
}

fn with_crc() -> Settings {
    Settings { capabilities: Capabilities::PAYLOAD_CRC, ..Settings::default() }
}

/// Runs the scenario with a fault at byte 0, 1, 2 ... of each direction, until the fault lies behind the last byte.
/// Checks that it could strike at all of them.
fn at_every_byte(settings: Settings, fault: impl Fn(u64) -> Faults) {
    for direction in [0, 1] {
        let mut first_clean = None;
        for at in 0..BYTES_MAX {
            let mut faults = [Faults::default(); 2];
            faults[direction] = fault(at);
            let report = run((faults[0], faults[1]), plain, settings);
            assert_eq!(report.violations, [""; 0], "direction {direction}, byte {at}: {:?}", report.outcomes);
            let is_over = *first_clean.get_or_insert(at) + GOODBYE_BYTES < at;
            if !report.is_clean {
                first_clean = None;
            } else if is_over {
                break;
            }
        }
        let bytes = first_clean.expect("in the end the fault lies behind the last byte");
        assert!(bytes > BYTES_MIN, "direction {direction} has only {bytes} bytes");
    }
}

#[test]
fn without_faults_everything_succeeds() {
    for settings in [Settings::default(), with_crc()] {
        let report = run(FaultPair::default(), plain, settings);
        assert!(report.is_clean, "{:?}", report.outcomes);
        assert_eq!(report.violations, [""; 0]);
        assert_eq!(report.outcomes.len(), 12, "{:?}", report.outcomes);
    }
}

#[test]
fn a_cut_at_any_byte_loses_nothing_acknowledged() {
    at_every_byte(Settings::default(), |at| Faults { cut_after_bytes: Some(at), ..Faults::default() });
}

#[test]
fn silence_from_any_byte_on_ends_in_time() {
    at_every_byte(Settings::default(), |at| Faults { silent_after_bytes: Some(at), ..Faults::default() });
}

#[test]
fn a_corrupt_byte_is_never_taken_for_data() {
    for mask in [0x01, 0x80] {
        at_every_byte(with_crc(), |at| Faults { corrupt: Some((at, mask)), ..Faults::default() });
    }
}

#[test]
fn slow_and_scattered_bytes_give_the_same_results() {
    let expected = run(FaultPair::default(), plain, Settings::default());
    for (delay_us, chunk_bytes) in [(0, 1), (0, 7), (900, 0), (900, 1), (1, 63), (3000, 64)] {
        let slow = Faults { delay: Duration::from_micros(delay_us), chunk_bytes, ..Faults::default() };
        for faults in [(slow, Faults::default()), (Faults::default(), slow), (slow, slow)] {
            assert_eq!(run(faults, plain, Settings::default()), expected, "{delay_us} us, {chunk_bytes} bytes");
        }
    }
}

/// The checks see what they are for.
mod controls {
    use super::*;

    fn is_seen(wrap: Wrap, settings: Settings, faults: FaultPair) -> bool {
        !run(faults, wrap, settings).violations.is_empty()
    }

    #[test]
    fn a_flush_that_does_not_flush_is_seen() {
        assert!(is_seen(|shadow| Arc::new(SkipFence(shadow)), Settings::default(), FaultPair::default()));
        assert!(is_seen(|shadow| Arc::new(SkipWriteBack(shadow)), Settings::default(), FaultPair::default()));
    }

    #[test]
    fn a_write_that_does_not_arrive_is_seen() {
        /// Other memory than the one that is looked at.
        fn elsewhere(_: Arc<ShadowMedium>) -> Arc<dyn Medium> {
            Arc::new(ShadowMedium::new(LEN_BYTES, MediumKind::FsDax).expect("a shadow"))
        }
        assert!(is_seen(elsewhere, Settings::default(), FaultPair::default()));
        let anonymous: Wrap = |_| Arc::new(Memory::anonymous(LEN_BYTES).expect("memory"));
        assert!(is_seen(anonymous, Settings::default(), FaultPair::default()), "a refused flush is one as well");
    }

    #[test]
    fn without_checksums_corruption_is_seen() {
        let corrupt = |at| (Faults { corrupt: Some((at, 1)), ..Faults::default() }, Faults::default());
        let seen = (0..600).filter(|at| is_seen(plain, Settings::default(), corrupt(*at))).count();
        assert!(seen >= 100, "the first payload has 100 bytes, {seen} corrupt ones were seen");
    }
}
