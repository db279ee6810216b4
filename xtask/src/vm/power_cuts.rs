//! Power cuts in the middle of loads. What was acknowledged, by a ledger outside the machine, must be there after the next boot,
//! on each replica for itself, by a judge that shares no code with pmof (`testbed/cut-judge`).
//!
//! Targets, writer and wire are all in the machine that is cut.

use std::{process::ExitCode, time::Instant};

use anyhow::{Context as _, Result, ensure};
use cache_model::{CutAfter, Locked};
use lossy_disk::CutBefore;

use self::{
    load::{Load, Moment, Place, Program, Way},
    series::{Series, Survivors, Tools, Verdict},
};
use super::{machine::Persistence, report::Report, testbed::Testbed};

mod load;
mod series;

/// The places of two replicas of a pool.
const PAIRS: [&[Place]; 3] =
    [&[Place::Devdax, Place::Fsdax], &[Place::Devdax, Place::File], &[Place::Fsdax, Place::File]];

/// The places of the suite's pools, of three replicas each: one load for what the pairs do in three.
const ALL_PLACES: &[Place] = &[Place::Devdax, Place::Fsdax, Place::File];

const WAYS: [Way; 4] = [Way::VerbsNative, Way::Verbs, Way::Tcp, Way::Shm];

const DEVDAX: &[Place] = &[Place::Devdax];
const FSDAX: &[Place] = &[Place::Fsdax];
const FILE: &[Place] = &[Place::File];
const OF_SET: &[Place] = &[Place::Fsdax, Place::File, Place::Devdax];

/// The suite's: any does.
const SUITE_SEED: u64 = 2026;

/// Batches that are acknowledged before the cut of a load that must lose: what is written first, by messages and all at once, a
/// target streams past its caches, so that it may be there without a flush.
const BATCHES_OF_CONTROLS: usize = 16;

/// Machines that may fail before a run is given up.
const BROKEN_MAX: u64 = 5;

/// The other loads that must survive, those first that the suite has. The power goes at a random moment, or at that of a sweep.
const LOADS: [Load; 21] = [
    Load { locked: Locked::Nothing, ..Load::durable(Program::Pool, Way::Tcp, DEVDAX) },
    Load::durable(Program::Lagging, Way::Tcp, ALL_PLACES),
    Load::durable(Program::Lanes, Way::VerbsNative, DEVDAX),
    Load::durable(Program::Rpma, Way::VerbsNative, DEVDAX),
    operations(FILE_TWICE, FLUSH),
    Load::durable(Program::Set, Way::VerbsNative, OF_SET),
    Load { moment: FLUSH, ..Load::durable(Program::Sync, Way::Tcp, FILE) },
    Load::durable(Program::Rpmem, Way::Tcp, FILE),
    Load::durable(Program::Pool, Way::FabricVerbs, DEVDAX),
    // Here the suite ends.
    Load::durable(Program::Pool, Way::FabricTcp, DEVDAX),
    Load::durable(Program::Pool, Way::Rds, DEVDAX),
    Load::durable(Program::Lanes, Way::Tcp, FILE),
    Load::durable(Program::Rpma, Way::Tcp, DEVDAX),
    operations(FILE_TWICE, WRITE),
    operations(DEVDAX, WRITE_BACK),
    operations(FSDAX, FENCE),
    operations(FSDAX, WRITE_BACK),
    Load { moment: WRITE, ..Load::durable(Program::Sync, Way::Tcp, FILE) },
    Load::durable(Program::Set, Way::Tcp, OF_SET),
    Load::durable(Program::Lanes, Way::Verbs, FSDAX),
    Load::durable(Program::Rpmem, Way::VerbsNative, DEVDAX),
];
const OF_SUITE: usize = 9;

const FILE_TWICE: &[Place] = &[Place::File, Place::File];
const FLUSH: Moment = Moment::Disk(CutBefore::Flush(0));
const WRITE: Moment = Moment::Disk(CutBefore::Write(0));
const WRITE_BACK: Moment = Moment::Model(CutAfter::WriteBacks(0));
const FENCE: Moment = Moment::Model(CutAfter::Fences(0));

const fn operations(places: &'static [Place], moment: Moment) -> Load {
    Load { moment, ..Load::durable(Program::Operations, Way::Tcp, places) }
}

/// Loads that must lose something at each place where no unflushed line and sector survives.
///
/// TCP and shm write back each write as it comes and lack only the fence where the flush is left out; any system call
/// makes up for that, on hardware too. There the write-back is left out by a firmware that promises too much, or only
/// `sfence` is a fence, and the load writes so little at a time that the target streams nothing, which would fence it.
const CONTROLS: &[(&str, Load)] = &[
    ("the flush left out, verbs on devdax", Load { more: "--skip-flush", ..DEVDAX_VERBS }),
    (
        "read-after-write on devdax, where the firmware wrongly says that caches are kept",
        Load { more: "--method read-after-write", firmware: Persistence::Cpu, ..DEVDAX_VERBS },
    ),
    (
        "no write-back, tcp on devdax, where the firmware wrongly says that caches are kept",
        Load { way: Way::Tcp, firmware: Persistence::Cpu, ..DEVDAX_VERBS },
    ),
    (
        "the flush with its fence left out, tcp on devdax, where only sfence is a fence",
        Load { way: Way::Tcp, more: "--skip-flush", locked: Locked::Nothing, ..DEVDAX_VERBS },
    ),
    ("the flush left out, tcp on a file", Load { more: "--skip-flush", ..FILE_TCP }),
    (
        "librpma, a flush to visibility",
        Load { more: "visibility", ..Load::durable(Program::Rpma, Way::VerbsNative, DEVDAX) },
    ),
    (
        "pool set, the drain left out, where the firmware wrongly says that caches are kept",
        Load {
            more: "--skip-drain",
            firmware: Persistence::Cpu,
            ..Load::durable(Program::Set, Way::VerbsNative, OF_SET)
        },
    ),
    (
        "librpmem, the drain left out, verbs on devdax",
        Load { more: "undrained", ..Load::durable(Program::Rpmem, Way::VerbsNative, DEVDAX) },
    ),
];

/// What every run leaves out: the same rules broken on a further way, or by a lower level.
const FURTHER_CONTROLS: &[(&str, Load)] = &[
    ("visible instead of persistent, verbs on devdax", Load { durability: "visible", ..DEVDAX_VERBS }),
    (
        "no write-back, shm on devdax, where the firmware wrongly says that caches are kept",
        Load { way: Way::Shm, firmware: Persistence::Cpu, ..DEVDAX_VERBS },
    ),
    ("the flush left out, shm on a file", Load { way: Way::Shm, more: "--skip-flush", ..FILE_TCP }),
    (
        "the flush left out, libfabric's verbs on devdax",
        Load { way: Way::FabricVerbs, more: "--skip-flush", ..DEVDAX_VERBS },
    ),
    (
        "no write-back, RDS on devdax, where the firmware wrongly says that caches are kept",
        Load { way: Way::Rds, firmware: Persistence::Cpu, ..DEVDAX_VERBS },
    ),
    ("no fdatasync (process-crash), tcp on a file", Load { durability: "process-crash", ..FILE_TCP }),
    (
        "lanes, no write-back, verbs on devdax, where the firmware wrongly says that caches are kept",
        Load { firmware: Persistence::Cpu, ..Load::durable(Program::Lanes, Way::VerbsNative, DEVDAX) },
    ),
];

const DEVDAX_VERBS: Load = Load::durable(Program::Pool, Way::VerbsNative, DEVDAX);
const FILE_TCP: Load = Load::durable(Program::Pool, Way::Tcp, FILE);

/// Loads that must survive: each combination once.
pub(super) fn run(testbed: &Testbed, report: &mut Report) -> Result<()> {
    let tools = Tools::build(testbed)?;
    let mut random = Random(SUITE_SEED);
    let mut series = Series::new(&tools)?;
    let mut last: Option<String> = None;
    for (turn, load) in (0..).zip(pools(ALL_PLACES).into_iter().chain(LOADS[..OF_SUITE].iter().copied())) {
        let survivors = Survivors::of_turn(turn, random.next());
        let load = load.at_turn(turn);
        let verdict = series.cut(&load, survivors, 1, &mut random).with_context(|| load.name())?;
        judge(report, last.as_ref(), verdict);
        last = Some(format!("{}: {}", load.name(), survivors.name()));
    }
    judge(report, last.as_ref(), Some(series.end()?));
    Ok(())
}

/// Loads that must lose.
pub(super) fn run_controls(testbed: &Testbed, report: &mut Report) -> Result<()> {
    cut_controls(testbed, CONTROLS, report)
}

/// What [`run_controls`] leaves out.
pub(super) fn run_further_controls(testbed: &Testbed, report: &mut Report) -> Result<()> {
    cut_controls(testbed, FURTHER_CONTROLS, report)
}

fn cut_controls(testbed: &Testbed, controls: &[(&str, Load)], report: &mut Report) -> Result<()> {
    let tools = Tools::build(testbed)?;
    let mut random = Random(SUITE_SEED);
    let mut series = Series::new(&tools)?;
    let mut last = None;
    for (name, load) in controls {
        let verdict =
            series.cut(load, Survivors::None, BATCHES_OF_CONTROLS, &mut random).with_context(|| (*name).to_owned())?;
        if let Some(name) = last.replace(*name) {
            judge_control(report, name, verdict.as_ref());
        }
    }
    judge_control(report, last.unwrap_or_default(), Some(&series.end()?));
    Ok(())
}

fn judge(report: &mut Report, name: Option<&String>, verdict: Option<Verdict>) {
    if let (Some(name), Some(verdict)) = (name, verdict) {
        let kept = verdict.lost() == 0;
        report.test(name, kept.then_some(()).with_context(|| format!("what was acknowledged is lost: {verdict}")));
    }
}

fn judge_control(report: &mut Report, name: &str, verdict: Option<&Verdict>) {
    let Some(verdict) = verdict else { return };
    let all_lost = verdict.replicas.iter().all(|(lost, _)| *lost > 0);
    let outcome = all_lost.then_some(()).with_context(|| format!("a replica has lost nothing: {verdict:?}"));
    report.test(&format!("control loses: {name}"), outcome);
}

/// The chore `vm power-cuts`: so many cuts, spread over all combinations, and a table.
pub(super) fn many(testbed: &Testbed, cuts: u64, seed: u64, only: &[String]) -> Result<ExitCode> {
    let loads = PAIRS.into_iter().flat_map(pools).chain(LOADS);
    let is_wanted = |load: &Load| only.is_empty() || only.iter().any(|text| load.name().contains(text));
    let mut loads: Vec<_> = loads.filter(is_wanted).collect();
    ensure!(!loads.is_empty(), "no combination has any of {only:?} in its name");
    // Those that go with each other are next to each other, so that most loads open what a cut has left.
    loads.sort_by_key(|load| (load.program as u8, load.places.iter().map(|place| *place as u8).collect::<Vec<_>>()));
    ensure!(cuts >= loads.len() as u64, "{} combinations need at least so many cuts", loads.len());
    let count = loads.len() as u64;
    let tally = |(at, load): (usize, &Load)| {
        let quota = cuts / count + u64::from((at as u64) < cuts % count);
        Tally { name: load.name(), quota, ..Tally::default() }
    };
    let tallies = loads.iter().enumerate().map(tally).collect();
    let tools = Tools::build(testbed)?;
    let (random, began) = (Random(seed), Instant::now());
    let mut run = Run { tools: &tools, random, tallies, series: None, last: None, done: 0, cuts, broken: 0, began };
    println!("{cuts} power cuts; seed {seed}");
    run.cut_all(&loads).with_context(|| format!("after {} cuts; seed {seed}", run.done))?;
    Ok(run.print_table())
}

/// All loads of pools on these places. Native flush needs device-DAX.
fn pools(places: &'static [Place]) -> Vec<Load> {
    let possible = |way: &Way| *way != Way::VerbsNative || places.contains(&Place::Devdax);
    WAYS.into_iter().filter(possible).map(|way| Load::durable(Program::Pool, way, places)).collect()
}

/// What was found of one combination.
#[derive(Debug, Default)]
struct Tally {
    name: String,
    /// How many cuts it gets.
    quota: u64,
    acknowledged: Vec<u64>,
    in_flight: u64,
    /// Cuts at which a replica was behind the others.
    lagging: u64,
    lost: u64,
    /// Cuts after which none, all, random lines, and random words survived.
    states: [u64; 4],
}

/// `vm power-cuts` under way.
struct Run<'a> {
    tools: &'a Tools<'a>,
    random: Random,
    /// One for each combination.
    tallies: Vec<Tally>,
    /// The boots on the same images; none at the beginning, and after a machine that broke down.
    series: Option<Series<'a>>,
    /// The cut that awaits its verdict.
    last: Option<(usize, Survivors)>,
    done: u64,
    cuts: u64,
    /// Machines that did not come to their cut, or to the verdict on the one before.
    broken: u64,
    began: Instant,
}

impl Run<'_> {
    /// Cuts each combination as often as it has to be: those that go with each other in turn.
    fn cut_all(&mut self, loads: &[Load]) -> Result<()> {
        let mut at = 0;
        for group in loads.chunk_by(Load::goes_with) {
            let places = at..at + group.len();
            at += group.len();
            let rounds = places.clone().map(|at| self.tallies[at].quota).max().unwrap_or_default();
            for (round, at) in (0..rounds).flat_map(|round| places.clone().map(move |at| (round, at))) {
                if round < self.tallies[at].quota {
                    self.cut(at, &loads[at].at_turn(round))?;
                }
            }
        }
        if let Some(series) = self.series.take() {
            let verdict = series.end()?;
            self.note(Some(verdict));
        }
        Ok(())
    }

    fn cut(&mut self, at: usize, load: &Load) -> Result<()> {
        // Not the same for all combinations.
        let survivors = Survivors::of_turn(self.done + at as u64, self.random.next());
        let series = match &mut self.series {
            Some(series) => series,
            none => none.insert(Series::new(self.tools)?),
        };
        match series.cut(load, survivors, 1, &mut self.random) {
            Ok(verdict) => self.note(verdict),
            Err(error) => {
                self.broken += 1;
                println!("BROKEN: {}: {error:#}", self.tallies[at].name);
                ensure!(self.broken <= BROKEN_MAX, "too many machines did not come to their end");
                (self.series, self.last) = (None, None);
                return Ok(());
            }
        }
        self.last = Some((at, survivors));
        Ok(())
    }

    fn note(&mut self, verdict: Option<Verdict>) {
        let (Some((at, survivors)), Some(verdict)) = (self.last, verdict) else { return };
        let tally = &mut self.tallies[at];
        tally.acknowledged.push(verdict.acknowledged);
        tally.in_flight += u64::from(verdict.in_flight());
        tally.lagging += u64::from(verdict.is_lagging());
        tally.lost += verdict.lost();
        let state = match survivors {
            Survivors::None => 0,
            Survivors::All => 1,
            Survivors::Random(_) => 2,
            Survivors::Torn(_) => 3,
        };
        tally.states[state] += 1;
        self.done += 1;
        let (outcome, seconds) = (if verdict.lost() == 0 { "kept" } else { "LOST" }, self.began.elapsed().as_secs());
        println!(
            "{seconds:>5} s, cut {:>3} of {}: {}, {}: {outcome}: {verdict}",
            self.done,
            self.cuts,
            tally.name,
            survivors.name()
        );
    }

    fn print_table(&mut self) -> ExitCode {
        println!(
            "\n| combination | cuts | acknowledged before a cut, median (least) | cut in flight | one lagged | lost | none / all / random / torn |"
        );
        println!("|---|---:|---:|---:|---:|---:|---|");
        for tally in &mut self.tallies {
            tally.acknowledged.sort_unstable();
            let [none, all, random, torn] = tally.states;
            println!(
                "| {} | {} | {} ({}) | {} | {} | {} | {none} / {all} / {random} / {torn} |",
                tally.name,
                tally.acknowledged.len(),
                tally.acknowledged.get(tally.acknowledged.len() / 2).copied().unwrap_or_default(),
                tally.acknowledged.first().copied().unwrap_or_default(),
                tally.in_flight,
                tally.lagging,
                tally.lost,
            );
        }
        let lost: u64 = self.tallies.iter().map(|tally| tally.lost).sum();
        println!(
            "\n{} power cuts in {:.0} s; acknowledged and lost: {lost}; machines that broke down: {}",
            self.done,
            self.began.elapsed().as_secs_f64(),
            self.broken
        );
        if lost == 0 && self.broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Numbers that a seed decides (`SplitMix64`, Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `limit`.
    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}
