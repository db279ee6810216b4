//! Rounds: each contender has a turn in each.

use std::{thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use pmof::Method;
use rustix::process::Signal;

use super::{Preset, Workload, WorkloadArgs, contenders::Side, outcome::Outcome};
use crate::bench::{
    engine::Reached,
    live::Live,
    peers::Peer,
    runner::{Extent, Tally, drive, own_cost_ns},
    stage::{Contender, Stage, signal},
    statistics::{LatencyHistogram, MedianInterval, Spread},
    usage::{cpu_of, own_cpu},
};

/// Operations of a turn before those that count: a tenth, within these, and no longer than the turn. The server was stopped and its caches are
/// cold.
const WARM_UP_MIN: u64 = 10;
const WARM_UP_MAX: u64 = 200;
const WARM_UP_TIME: Duration = Duration::from_millis(100);

/// When `--pause-target` begins, after the start of a turn.
const PAUSE_AFTER: Duration = Duration::from_millis(5);

/// Runs `pmof bench latency` or `pmof bench bandwidth`.
pub(in crate::bench) fn run(args: &WorkloadArgs, preset: Preset) -> Result<()> {
    let workload = args.resolve(preset)?;
    let (stage, outcome) = measure(&workload, "")?;
    outcome.print(&workload)?;
    outcome.finish(&stage)
}

/// Measures all contenders, with a line that begins with `head` while somebody looks. This thread stays on the initiator's CPU.
pub(super) fn measure(workload: &Workload<'_>, head: &str) -> Result<(Stage, Outcome)> {
    let args = workload.args;
    let own_cost_ns = own_cost_ns(workload.shape())?;
    let stage = Stage::set(&args.stage, args.medium)?;
    let live = Live::new(head);
    live.show(|| "starting".to_owned());
    let mut pool = Series::new(workload.pools(&stage, args.replicas, args.slow_us)?);
    let method = if workload.is_verbs() { pool.method(workload)? } else { None };
    let mut floor = workload.floor(&stage, method)?.map(Series::new);
    let mut single = (args.replicas > 1).then(|| workload.pools(&stage, 1, 0).map(Series::new)).transpose()?;
    let prompt = (args.slow_us > 0).then(|| workload.pools(&stage, args.replicas, 0));
    let mut prompt = prompt.transpose()?.map(Series::new);
    let mut peers: Vec<Beside> = args.peers.iter().map(|peer| Beside::start(workload, &stage, *peer)).collect();
    if workload.is_pinned() {
        stage.pin_initiator()?;
    }
    for round in 0..workload.rounds {
        let own = [floor.as_mut(), single.as_mut(), prompt.as_mut(), Some(&mut pool)];
        let mut turns: Vec<Turn<'_>> = own.into_iter().flatten().map(Turn::Own).collect();
        turns.extend(peers.iter_mut().map(Turn::Beside));
        // In another order each time: one that always followed the same one would bear what that leaves, such as a busy disk.
        Rng::with_seed(round).shuffle(&mut turns);
        for turn in turns {
            match turn {
                Turn::Own(series) => series.round(workload, round == 0)?,
                Turn::Beside(peer) => peer.round(workload, round == 0),
            }
        }
        live.show(|| so_far(round + 1, workload.rounds, &pool, floor.as_ref()));
    }
    let outcome = Outcome {
        pool: pool.take()?,
        floor: match floor {
            Some(floor) => Ok(floor.take()?),
            None => Err(workload.no_floor(&stage).unwrap_or_default()),
        },
        single: single.map(Series::take).transpose()?,
        prompt: prompt.map(Series::take).transpose()?,
        durability: workload.level(&stage),
        peers: peers.into_iter().map(Beside::take).collect(),
        own_cost_ns,
    };
    Ok((stage, outcome))
}

/// How far it is, and the last round's medians.
fn so_far(rounds: u64, of: u64, pool: &Series, floor: Option<&Series>) -> String {
    let last = |series: &Series| series.p50s_us.last().copied().unwrap_or_default();
    let own_us = last(pool);
    let floor = floor.map(last).map(|floor_us| format!(", floor {floor_us:.2} us, {:.2} over it", own_us / floor_us));
    format!("round {rounds} of {of}: p50 {own_us:.2} us{}", floor.unwrap_or_default())
}

/// Who is measured next.
#[derive(Debug)]
enum Turn<'a> {
    /// Where it fails, all is over.
    Own(&'a mut Series),
    /// Where it fails, the others go on.
    Beside(&'a mut Beside),
}

/// A peer: what its rounds gave, or why there are none.
#[derive(Debug)]
pub(super) struct Beside {
    pub(super) peer: Peer,
    /// Of its server.
    pub(super) version: String,
    pub(super) series: Result<Series, Absent>,
}

/// Why a peer has no numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Absent {
    /// It cannot be measured here.
    Skipped(String),
    /// It was to be measured, and did not start or ended on the way. All others go on.
    Failed(String),
}

impl Beside {
    fn start(workload: &Workload<'_>, stage: &Stage, peer: Peer) -> Self {
        if let Some(why) = peer.reason_to_skip(workload.args.medium, &workload.args.stage.reach) {
            return Self { peer, version: String::new(), series: Err(Absent::Skipped(why)) };
        }
        match workload.peer(stage, peer) {
            Ok((contender, version)) => Self { peer, version, series: Ok(Series::new(contender)) },
            Err(error) => Self { peer, version: String::new(), series: Err(Absent::Failed(format!("{error:#}"))) },
        }
    }

    fn round(&mut self, workload: &Workload<'_>, is_first: bool) {
        let Ok(series) = &mut self.series else { return };
        if let Err(error) = series.round(workload, is_first) {
            self.series = Err(Absent::Failed(format!("{error:#}")));
        }
    }

    fn take(self) -> Self {
        let of = |series: Series| series.take().map_err(|error| Absent::Failed(format!("{error:#}")));
        Self { series: self.series.and_then(of), ..self }
    }
}

/// A contender and what its rounds gave.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) contender: Contender<Side>,
    pub(super) total: Tally,
    pub(super) all: LatencyHistogram,
    pub(super) p50s_us: Vec<f64>,
    pub(super) rates_mib_per_s: Vec<f64>,
    pub(super) rates_per_s: Vec<f64>,
    /// CPU time of this process and of the server, while operations were measured; `None` where nobody knows.
    pub(super) cpu: Option<[Duration; 2]>,
    /// Bytes that left this side and that came to it; `None` where nobody knows.
    pub(super) moved: Option<[u64; 2]>,
    pub(super) reached: Option<Reached>,
}

impl Series {
    fn new(contender: Contender<Side>) -> Self {
        Self {
            contender,
            total: Tally::default(),
            all: LatencyHistogram::default(),
            p50s_us: Vec::new(),
            rates_mib_per_s: Vec::new(),
            rates_per_s: Vec::new(),
            cpu: Some([Duration::ZERO; 2]),
            moved: Some([0; 2]),
            reached: None,
        }
    }

    /// How it flushes, by one operation; `None` of reads.
    fn method(&mut self, workload: &Workload<'_>) -> Result<Option<Method>> {
        let extent = Extent { operations: 1, time: workload.turn.time };
        self.contender.run(|side| {
            side.drive(workload, extent)?;
            let reached = side.workers.first().and_then(|worker| worker.engine.reached());
            Ok(reached.and_then(|reached| match reached {
                Reached::Pool(receipt) => receipt.replicas.first().map(|replica| replica.method),
                Reached::Connection(flushed) => Some(flushed.method),
            }))
        })
    }

    fn round(&mut self, workload: &Workload<'_>, is_first: bool) -> Result<()> {
        let (turn, pause) = (workload.turn, Duration::from_millis(workload.args.pause_target_ms));
        let (tally, cpu, moved, reached) = self.contender.run(|side| {
            if let Some(programs) = &mut side.programs {
                return Ok((programs.turn(turn)?, None, None, None));
            }
            if is_first && !workload.args.ramp.is_zero() {
                let time = workload.args.ramp;
                side.drive(workload, Extent { operations: u64::MAX, time })?;
            }
            let operations = (turn.operations / 10).clamp(WARM_UP_MIN, WARM_UP_MAX);
            side.drive(workload, Extent { operations, time: WARM_UP_TIME.min(turn.time) })?;
            let (before, moved_before) = (side.cpu()?, side.moved());
            let tally = if pause.is_zero() || side.servers.is_empty() {
                side.drive(workload, turn)?
            } else {
                side.drive_with_pause(workload, pause)?
            };
            let after = side.cpu()?;
            let cpu = Some([0, 1].map(|at| after[at].saturating_sub(before[at])));
            let moved = side.moved().zip(moved_before).map(|(after, before)| [0, 1].map(|at| after[at] - before[at]));
            Ok((tally, cpu, moved, side.workers.first().and_then(|worker| worker.engine.reached())))
        })?;
        ensure!(tally.operations() > 0, "no operation ended within a round: give it more --time");
        let (seconds, all) = (tally.elapsed.as_secs_f64(), tally.all());
        self.p50s_us.push(all.p50_us());
        self.rates_mib_per_s.push(tally.bytes as f64 / f64::from(1 << 20) / seconds);
        self.rates_per_s.push(tally.operations() as f64 / seconds);
        self.all.add(&all);
        let elapsed = self.total.elapsed + tally.elapsed;
        self.total.beside(&tally);
        self.total.elapsed = elapsed;
        self.cpu = self.cpu.zip(cpu).map(|(sum, cpu)| [0, 1].map(|at| sum[at] + cpu[at]));
        self.moved = self.moved.zip(moved).map(|(sum, moved)| [0, 1].map(|at| sum[at] + moved[at]));
        self.reached = reached.or(self.reached.take());
        Ok(())
    }

    fn take(self) -> Result<Self> {
        ensure!(!self.all.is_empty(), "there were no rounds");
        ensure!(self.p50s_us.iter().all(|p50_us| *p50_us > 0.0), "the clock is too coarse to measure this");
        Ok(self)
    }

    /// This one's p50 over `other`'s, round by round.
    pub(super) fn ratio_p50(&self, other: &Self) -> Result<Spread> {
        ratio(&self.p50s_us, &other.p50s_us)
    }

    /// This one's bytes a second over `other`'s, round by round.
    pub(super) fn ratio_bandwidth(&self, other: &Self) -> Result<Spread> {
        ratio(&self.rates_mib_per_s, &other.rates_mib_per_s)
    }

    /// Where the median of a round's p50 lies.
    pub(super) fn p50_interval(&self) -> Result<MedianInterval> {
        MedianInterval::of(self.p50s_us.iter().copied()).context("there were no rounds")
    }

    /// For one operation: bytes that left this side and that came to it.
    pub(super) fn moved_bytes(&self) -> Option<[f64; 2]> {
        Some(self.moved?.map(|bytes| bytes as f64 / self.all.len().max(1) as f64))
    }

    /// For one operation, in microseconds: of this process and of the server.
    pub(super) fn cpu_us(&self) -> Option<[f64; 2]> {
        Some(self.cpu?.map(|cpu| cpu.as_secs_f64() * 1e6 / self.all.len().max(1) as f64))
    }
}

fn ratio(own: &[f64], other: &[f64]) -> Result<Spread> {
    Spread::of(own.iter().zip(other).map(|(own, other)| own / other)).context("there were no rounds")
}

impl Side {
    /// All threads at once; alone, this one.
    fn drive(&mut self, workload: &Workload<'_>, extent: Extent) -> Result<Tally> {
        let threads = self.workers.len() as u64;
        let each = Extent { operations: extent.operations.div_ceil(threads), ..extent };
        if let [worker] = &mut self.workers[..] {
            return drive(worker.engine.as_mut(), &mut worker.pattern, each, workload.pace);
        }
        thread::scope(|scope| {
            let turn = |worker: &mut super::contenders::Worker| {
                drive(worker.engine.as_mut(), &mut worker.pattern, each, workload.pace)
            };
            let threads: Vec<_> = self.workers.iter_mut().map(|worker| scope.spawn(move || turn(worker))).collect();
            let mut total = Tally::default();
            for thread in threads {
                total.beside(&thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
            }
            Ok(total)
        })
    }

    /// The same, while the servers are stopped for a while.
    fn drive_with_pause(&mut self, workload: &Workload<'_>, pause: Duration) -> Result<Tally> {
        let servers = self.servers.clone();
        let all = move |what| servers.iter().try_for_each(|server| signal(*server, what));
        thread::scope(|scope| {
            let pausing = scope.spawn(move || {
                thread::sleep(PAUSE_AFTER);
                all(Signal::STOP)?;
                thread::sleep(pause);
                all(Signal::CONT)
            });
            let tally = self.drive(workload, workload.turn);
            pausing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            tally
        })
    }

    /// Of all threads, where all know it.
    fn moved(&self) -> Option<[u64; 2]> {
        let mut workers = self.workers.iter().map(|worker| worker.engine.moved());
        workers.try_fold([0; 2], |sum, moved| moved.map(|moved| [0, 1].map(|at| sum[at] + moved[at])))
    }

    fn cpu(&self) -> Result<[Duration; 2]> {
        let servers = self.servers.iter().map(|server| cpu_of(*server));
        Ok([own_cpu(), servers.sum::<Result<Duration>>()?])
    }
}
