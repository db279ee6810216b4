//! `pmof chaos`.

use std::{
    collections::VecDeque,
    path::PathBuf,
    sync::Arc,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use pmof::{Event, Pool, PoolError, PoolOptions, ReplicaPlace, ReplicaState};
use pmof_access::{FabricProvider, Transport};
use pmof_console::{
    interrupt::TemporaryDirectory,
    output::{self, say, with_mend},
    trust::{self, TrustArgs},
    words::{self, Level},
};

use self::{
    member::{Back, Kind, Member, State},
    records::{POOL_BYTES, Region},
    report::{Counts, Report},
    writers::{FAULT_LIMIT, Phase, Stalls, Writers, Written},
};
use crate::soak::{Random, seed_of_the_clock};

mod member;
mod records;
mod report;
mod writers;

const POOL_NAME: &str = "chaos";

const MEMBERS: u8 = 3;

/// Members that the pool can go without: a majority must know which ones lack what is acknowledged.
const SPARE_MEMBERS: usize = 1;

/// How often faults are made and members are looked at.
const TICK: Duration = Duration::from_millis(1);

/// A member that was killed or cut off stays so for up to this time, every fourth not at all.
const AWAY: Duration = Duration::from_millis(100);

/// The same of a pause, beyond the loss timeout.
const PAUSED_BEYOND: Duration = Duration::from_millis(20);

/// The pool is left alone for up to this time once all members are in sync.
const BETWEEN_FAULTS: Duration = Duration::from_millis(40);

/// A member that was given back is in sync within this time, or something is wrong.
const RETURN_LIMIT: Duration = Duration::from_secs(60);

/// In the end members are compared so often, while one of them is lost meanwhile.
const COMPARE_TRIES: u32 = 3;

/// Of a member that returns: one in so many ticks brings it the next fault.
const RETURNING_ODDS: u64 = 400;

/// Events that a failure tells.
const KEPT_EVENTS: usize = 12;

/// Lines of progress in one run.
const PROGRESS_LINES: u64 = 10;

/// Kill, pause and cut off members of a pool under load, and check that nobody notices.
///
/// Three targets keep a pool, which several threads write as fast as they can. At random a target is killed (SIGKILL) and started
/// again, or stopped (SIGSTOP) for longer than the loss timeout, or its connections are cut; the pool loses the member and brings it back by
/// itself. No persist may fail. In the end every member must hold the last acknowledged version of each record, and all the same bytes.
#[derive(Debug, clap::Args)]
pub struct ChaosArgs {
    /// Kills of a target
    #[arg(long, value_name = "COUNT", default_value_t = 30, value_parser = clap::value_parser!(u64).range(..=FAULT_LIMIT / 4))]
    kills: u64,
    /// Pauses of a target
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u64).range(..=FAULT_LIMIT / 4))]
    pauses: u64,
    /// Cuts of all connections of a target; tcp only, where 5 unless given
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(..=FAULT_LIMIT / 4))]
    cuts: Option<u64>,
    /// End after this time, whatever is left
    #[arg(long, value_name = "TIME", value_parser = words::time)]
    time: Option<Duration>,
    /// What carries the bytes
    #[arg(long, value_parser = words::transports(), default_value_t = Transport::Tcp)]
    transport: Transport,
    /// Failure that a persist must survive
    #[arg(long, value_enum, value_name = "LEVEL", default_value_t = Level::ProcessCrash)]
    durability: Level,
    /// Time without an answer after which a member counts as lost
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = words::times(Duration::from_millis(1)..=Duration::from_secs(60)))]
    loss_timeout: Duration,
    /// Threads that write
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=64))]
    writers: u64,
    /// Members that may be away at once; with more than 1 the pool has no quorum at times, and persists may fail
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=3))]
    away: u8,
    /// Repeats the writes and the choice of the faults of an earlier run; not what the scheduler made of them
    #[arg(long)]
    seed: Option<u64>,
    /// Directory for the pool; a temporary one unless given
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Which users' targets are trusted.
    #[command(flatten)]
    pub trust: TrustArgs,
    /// Keep a digest of each page, so that bytes that a medium changes are never read
    #[arg(long = "page-digests")]
    digests: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Change a byte of a member behind everybody's back: the run must fail
    #[arg(long, hide = true)]
    break_catch_up: bool,
}

/// Runs `pmof chaos`.
pub fn run(args: &ChaosArgs) -> Result<()> {
    let is_tcp = args.transport == Transport::Tcp;
    ensure!(
        !matches!(
            args.transport,
            Transport::Verbs | Transport::Fabric(FabricProvider::Verbs | FabricProvider::VerbsConnected)
        ),
        "--transport {} is not for chaos: use tcp, shm, rds or fabric+tcp",
        args.transport.scheme()
    );
    ensure!(
        is_tcp || args.cuts.is_none_or(|cuts| cuts == 0),
        "--cuts is for --transport tcp: no relay can be put between the ends of the others"
    );
    let left = Counts { kills: args.kills, pauses: args.pauses, cuts: args.cuts.unwrap_or(if is_tcp { 5 } else { 0 }) };
    ensure!(left.all() > 0, "there is nothing to do: --kills, --pauses or --cuts must be more than 0");
    let seed = args.seed.unwrap_or_else(seed_of_the_clock);
    let mut chaos = Chaos::start(args, seed, left).with_context(|| format!("seed {seed}"))?;
    if !args.json {
        say!("{} faults; seed {seed}; pool under {}", left.all(), chaos.directory.path().display());
    }
    match chaos.run().and_then(|()| chaos.finish()) {
        Ok(report) if args.json => output::print_json(&report),
        Ok(report) => {
            report.print();
            Ok(())
        }
        Err(error) => {
            let faults = chaos.fault;
            Err(error.context(format!(
                "chaos failed after {faults} faults; to repeat: --seed {seed}; the pool is kept in {}",
                chaos.stop().display()
            )))
        }
    }
}

/// A run under way.
#[derive(Debug)]
struct Chaos<'a> {
    args: &'a ChaosArgs,
    random: Random,
    left: Counts,
    /// Number of the next fault.
    fault: u64,
    next_fault: Instant,
    ends: Option<Instant>,
    report: Report,
    began: Instant,
    stalls: Arc<Stalls>,
    cold: Region,
    writers: Option<Writers>,
    pool: Pool,
    events: pmof::Events,
    last_events: VecDeque<String>,
    /// Before the directories, so that targets are killed before their pools are removed.
    members: Vec<Member>,
    directory: TemporaryDirectory,
    _sockets: TemporaryDirectory,
}

impl<'a> Chaos<'a> {
    fn start(args: &'a ChaosArgs, seed: u64, left: Counts) -> Result<Self> {
        let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
        let directory = TemporaryDirectory::create("pmof-chaos-", &parent);
        let directory = directory.with_context(|| format!("cannot make a directory in {}", parent.display()))?;
        let sockets = TemporaryDirectory::create("pmof-", &std::env::temp_dir()).context("cannot make a directory")?;
        let start = |index| Member::start(directory.path(), sockets.path(), args.transport, index);
        let members = (0..MEMBERS).map(start).collect::<Result<Vec<_>>>()?;
        let pool = options(args, &members).create(POOL_BYTES).map_err(with_mend)?;
        let mut cold = Region::cold(seed);
        let mut bytes = Vec::new();
        for record in 0..cold.record_count() {
            let offset = cold.write(record, 1, &mut bytes);
            pool.persist(offset, &bytes)?;
            cold.acknowledge(record, 1);
        }
        let stalls = Arc::new(Stalls::new());
        let (events, now) = (pool.events(), Instant::now());
        Ok(Self {
            args,
            random: Random::new(seed),
            left,
            fault: 0,
            next_fault: now + BETWEEN_FAULTS,
            ends: args.time.map(|time| now + time),
            report: Report::new(args.transport.scheme(), args.durability.durability().to_string(), seed),
            began: now,
            writers: Some(Writers::start(&pool, &stalls, seed, args.writers)?),
            stalls,
            cold,
            pool,
            events,
            last_events: VecDeque::new(),
            members,
            directory,
            _sockets: sockets,
        })
    }

    /// Makes faults until none is left and all members are in sync.
    fn run(&mut self) -> Result<()> {
        let all = self.left.all();
        loop {
            self.take_note()?;
            self.restore()?;
            self.see_returned()?;
            let now = Instant::now();
            let is_over = self.left.all() == 0 || self.ends.is_some_and(|ends| ends <= now);
            if is_over && self.members.iter().all(Member::is_in_sync) {
                return Ok(());
            }
            if !is_over && self.next_fault <= now && self.make_fault()? {
                let done = self.fault;
                if !self.args.json && done % all.div_ceil(PROGRESS_LINES) == 0 {
                    let persists = self.writers.as_ref().map_or(0, Writers::persists);
                    say!("{done:>6} faults, {persists} persists, {:.1} s", self.began.elapsed().as_secs_f64());
                }
            }
            sleep(TICK);
        }
    }

    /// Takes in what the pool tells.
    fn take_note(&mut self) -> Result<()> {
        while let Some(event) = self.events.next_for(Duration::ZERO) {
            if self.last_events.len() == KEPT_EVENTS {
                self.last_events.pop_front();
            }
            self.last_events.push_back(format!("{:.3} s: {event}", self.began.elapsed().as_secs_f64()));
            match &event {
                Event::Lost { replica, .. } => {
                    let member = member_at(&mut self.members, replica)?;
                    self.report.losses += 1;
                    self.report.losses_unprovoked += u64::from(member.is_in_sync());
                    member.note_loss();
                }
                Event::CatchingUp { .. } => self.report.catch_ups_begun += 1,
                Event::InSync { replica, copied_bytes, is_verified, .. } => {
                    let member = member_at(&mut self.members, replica)?;
                    member.returns += 1;
                    member.is_unverified = !is_verified;
                    self.report.catch_ups += 1;
                    self.report.copied_bytes += copied_bytes;
                }
                Event::Verified { replica, .. } => {
                    member_at(&mut self.members, replica)?.is_unverified = false;
                    self.report.catch_ups_verified += 1;
                }
                Event::Rejected { .. } | Event::Differs { .. } => bail!("{event}"),
                _ => {}
            }
        }
        Ok(())
    }

    /// Gives back what is due.
    fn restore(&mut self) -> Result<()> {
        let now = Instant::now();
        for member in &mut self.members {
            let State::Away { fault, kind, until, is_noticed } = member.state else { continue };
            if until <= now {
                member.restore(kind, is_noticed)?;
                self.stalls.enter(Phase::Return(fault));
            }
        }
        Ok(())
    }

    /// Looks whether members are in sync again.
    fn see_returned(&mut self) -> Result<()> {
        let now = Instant::now();
        let status = self.pool.status()?;
        let limit = 2 * self.args.loss_timeout;
        for (member, status) in self.members.iter_mut().zip(status.replicas) {
            let State::Returning { since, .. } = member.state else { continue };
            if let Some(back) = member.is_back(&status.state, limit) {
                member.state = State::InSync;
                match back {
                    Back::Returned(after) => self.report.returned(after),
                    Back::Unnoticed => self.report.pauses_unnoticed += 1,
                }
                self.next_fault = now + BETWEEN_FAULTS.mul_f64(chance(&mut self.random));
            } else if now - since > RETURN_LIMIT {
                let (limit, state, last) = (RETURN_LIMIT.as_secs(), status.state, &self.last_events);
                bail!(
                    "{} is not in sync {limit} s after it was given back: {state:?}; the last events: {last:#?}",
                    member.url()
                );
            }
        }
        if self.members.iter().all(Member::is_in_sync) {
            self.stalls.enter(Phase::Faultless(self.fault));
        }
        Ok(())
    }

    /// False: as many are away as may be.
    fn make_fault(&mut self) -> Result<bool> {
        // Of one that is in sync before the fault no return is to be told later.
        self.take_note()?;
        let status = self.pool.status()?;
        let may_more_go =
            self.members.iter().filter(|member| !member.is_in_sync()).count() < usize::from(self.args.away);
        let index = self.random.below(u64::from(MEMBERS)) as usize;
        let is_chosen = match self.members[index].state {
            State::InSync => may_more_go,
            // One that is in sync just now is told of first.
            State::Returning { .. } if matches!(status.replicas[index].state, ReplicaState::InSync) => false,
            State::Returning { .. } => self.random.below(RETURNING_ODDS) == 0,
            State::Away { .. } => false,
        };
        if !is_chosen {
            return Ok(false);
        }
        let kind = self.left.take(self.random.below(self.left.all()));
        let away = match kind {
            Kind::Pause => {
                let beyond = PAUSED_BEYOND + AWAY.mul_f64(chance(&mut self.random));
                self.args.loss_timeout + beyond
            }
            _ if self.random.below(4) == 0 => Duration::ZERO,
            _ => AWAY.mul_f64(chance(&mut self.random)),
        };
        self.report.faults.count(kind);
        self.report.kinds.push(kind);
        self.stalls.enter(Phase::Fault(self.fault));
        let member = &mut self.members[index];
        self.report.faults_while_returning += u64::from(!member.is_in_sync());
        member.inflict(self.fault, kind, Instant::now() + away)?;
        self.fault += 1;
        Ok(true)
    }

    /// Waits until all members are in sync, and all that caught up was compared, in the background. A busy machine may lose one without a fault.
    fn settle(&mut self) -> Result<()> {
        let until = Instant::now() + RETURN_LIMIT;
        loop {
            self.take_note()?;
            let status = self.pool.status()?;
            if !status.is_degraded() && !self.members.iter().any(|member| member.is_unverified) {
                return Ok(());
            }
            let limit = RETURN_LIMIT.as_secs();
            ensure!(
                Instant::now() < until,
                "members are not in sync and verified {limit} s behind the end: {:?}",
                status.replicas
            );
            sleep(TICK);
        }
    }

    /// Compares what all members hold.
    fn finish(&mut self) -> Result<Report> {
        let written = self.writers.take().context("the writers have ended")?.finish()?;
        self.settle()?;
        if self.args.break_catch_up {
            self.members[0].spoil()?;
        }
        self.report.take_in(&written, &self.stalls);
        self.report.elapsed_s = self.began.elapsed().as_secs_f64();
        let errors = self.report.errors;
        if errors > 0 && usize::from(self.args.away) <= SPARE_MEMBERS {
            let (texts, unprovoked) = (self.report.error_texts.join("; "), self.report.losses_unprovoked);
            ensure!(
                unprovoked == 0,
                "{errors} persists failed; {unprovoked} times a member was lost that no fault had touched, as on a machine that is too busy to answer \
                 within --loss-timeout {}: give it more time. {texts}",
                format_args!("{:?}", self.args.loss_timeout)
            );
            bail!("{errors} persists failed though enough members were left: {texts}");
        }
        self.compare_in_sync(&written)?;
        self.pool.close()?;
        // What the targets keep is what they said.
        self.pool = options(self.args, &self.members).open().map_err(with_mend)?;
        ensure!(self.pool.copied_bytes() == 0, "the members differed after the pool was closed in order");
        self.events = self.pool.events();
        self.compare_in_sync(&written)?;
        self.pool.close()?;
        self.report.compared_bytes = POOL_BYTES * u64::from(MEMBERS);
        Ok(self.report.clone())
    }

    /// The same, of members that are in sync: one that is lost meanwhile is waited for.
    fn compare_in_sync(&mut self, written: &[Written]) -> Result<()> {
        let mut tries_left = COMPARE_TRIES;
        loop {
            self.settle()?;
            tries_left -= 1;
            let regions: Vec<_> = written.iter().map(|written| &written.region).chain([&self.cold]).collect();
            match self.compare(&regions) {
                // What differs is no error of the pool's.
                Err(error) if tries_left > 0 && error.is::<PoolError>() => {}
                compared => return compared,
            }
        }
    }

    fn compare(&self, regions: &[&Region]) -> Result<()> {
        let mut first = vec![0; POOL_BYTES as usize];
        let mut other = vec![0; POOL_BYTES as usize];
        for (index, member) in self.members.iter().enumerate() {
            let bytes = if index == 0 { &mut first } else { &mut other };
            self.pool.read_replica(index, 0, bytes)?;
            let wrong = regions.iter().filter_map(|region| region.judge(bytes)).collect::<Vec<_>>();
            if let Some(wrong_first) = wrong.first() {
                let count: u64 = wrong.iter().map(|wrong| wrong.records).sum();
                bail!(
                    "{count} records on {} are not what was acknowledged last; the first is wrong at offset {}: version {} was acknowledged, \
                     it names {}",
                    member.url(),
                    wrong_first.offset,
                    wrong_first.expected_version,
                    wrong_first.named_version
                );
            }
            if index > 0 && first != other {
                let at = first.iter().zip(&other).position(|(first, other)| first != other).unwrap_or(0);
                bail!("{} and {} differ at offset {at}", self.members[0].url(), member.url());
            }
        }
        Ok(())
    }

    /// Kills the targets and leaves the pool.
    fn stop(self) -> PathBuf {
        let Self { members, directory, .. } = self;
        drop(members);
        directory.keep()
    }
}

fn member_at<'m>(members: &'m mut [Member], place: &ReplicaPlace) -> Result<&'m mut Member> {
    let place = place.to_string();
    let member = members.iter_mut().find(|member| member.url() == place);
    member.with_context(|| format!("an event of {place}, which is no member"))
}

fn options(args: &ChaosArgs, members: &[Member]) -> PoolOptions {
    let options = trust::pool_options().require(args.durability.durability());
    let options = options.loss_timeout(args.loss_timeout).digests(args.digests);
    members.iter().fold(options, |options, member| options.replica(member.url()))
}

/// Between 0 and 1.
fn chance(random: &mut Random) -> f64 {
    random.below(1 << 20) as f64 / f64::from(1 << 20)
}
