//! Power cuts in the middle of replicated write loads. What was acknowledged, by a ledger outside the machine, must be
//! there after the next boot, on each replica for itself.
//!
//! Targets, writer and wire are all in the machine that is cut.

use std::{process::ExitCode, time::Instant};

use anyhow::{Context as _, Result, ensure};

use self::series::{Load, Place, Series, Survivors, Tools, Verdict, Way};
use super::{machine::Persistence, suites::Report, testbed::Testbed};

mod series;

/// The places of two replicas. Each pair has a row of boots of its own.
const PAIRS: [&[Place]; 3] =
    [&[Place::Devdax, Place::Fsdax], &[Place::Devdax, Place::File], &[Place::Fsdax, Place::File]];

const WAYS: [Way; 4] = [Way::VerbsNative, Way::Verbs, Way::Tcp, Way::Shm];

/// The suite's: any does.
const SUITE_SEED: u64 = 2026;

/// Machines that may fail before a run is given up.
const BROKEN_MAX: u64 = 5;

/// Loads that must lose something at each place where no unflushed line and sector survives.
///
/// TCP and shm write back each write as it comes and lack only the fence where the flush is left out; any system call
/// makes up for that, on hardware too. There the write-back is left out by a firmware that promises too much.
const CONTROLS: [&[(&str, Load)]; 2] = [
    &[
        ("the flush left out, verbs on devdax", Load { more: "--skip-flush", ..DEVDAX_VERBS }),
        ("visible instead of persistent, verbs on devdax", Load { durability: "visible", ..DEVDAX_VERBS }),
        (
            "read-after-write on devdax, where the firmware wrongly says that caches are kept",
            Load { more: "--method read-after-write", firmware: Persistence::Cpu, ..DEVDAX_VERBS },
        ),
        (
            "no write-back, tcp on devdax, where the firmware wrongly says that caches are kept",
            Load { way: Way::Tcp, firmware: Persistence::Cpu, ..DEVDAX_VERBS },
        ),
        (
            "no write-back, shm on devdax, where the firmware wrongly says that caches are kept",
            Load { way: Way::Shm, firmware: Persistence::Cpu, ..DEVDAX_VERBS },
        ),
    ],
    &[
        ("the flush left out, tcp on a file", Load { more: "--skip-flush", ..FILE_TCP }),
        ("the flush left out, shm on a file", Load { way: Way::Shm, more: "--skip-flush", ..FILE_TCP }),
        ("no fdatasync (process-crash), tcp on a file", Load { durability: "process-crash", ..FILE_TCP }),
    ],
];

const DEVDAX_VERBS: Load = Load::durable(Way::VerbsNative, &[Place::Devdax]);
const FILE_TCP: Load = Load::durable(Way::Tcp, &[Place::File]);

/// The suite: each combination once, and the controls.
pub(super) fn run(testbed: &Testbed, report: &mut Report) -> Result<()> {
    let tools = Tools::build(testbed)?;
    let mut random = Random(SUITE_SEED);
    let mut turn = 0;
    for places in PAIRS {
        let mut series = Series::new(&tools)?;
        let mut names = Vec::new();
        for load in loads(places) {
            let survivors = Survivors::of_turn(turn, random.next());
            turn += 1;
            let verdict = series.cut(&load, survivors, &mut random)?;
            judge(report, names.last(), verdict);
            names.push(format!("{}: {}", name(&load), survivors.name()));
        }
        judge(report, names.last(), Some(series.end()?));
    }
    controls(&tools, report, &mut random)
}

fn judge(report: &mut Report, name: Option<&String>, verdict: Option<Verdict>) {
    if let (Some(name), Some(verdict)) = (name, verdict) {
        let kept = verdict.lost() == 0;
        report.test(name, kept.then_some(()).with_context(|| format!("an acknowledged write is lost: {verdict}")));
    }
}

fn controls(tools: &Tools<'_>, report: &mut Report, random: &mut Random) -> Result<()> {
    let mut seen = |name: &str, verdict: &Verdict| {
        let all_lost = verdict.replicas.iter().all(|(_, lost, _)| *lost > 0);
        let outcome = all_lost.then_some(()).with_context(|| format!("nothing is lost: {verdict}"));
        report.test(&format!("control loses: {name}"), outcome);
    };
    for row in CONTROLS {
        let mut series = Series::new(tools)?;
        let mut last = None;
        for (name, load) in row {
            if let (Some(last), Some(verdict)) = (last, series.cut(load, Survivors::None, random)?) {
                seen(last, &verdict);
            }
            last = Some(*name);
        }
        if let Some(last) = last {
            seen(last, &series.end()?);
        }
    }
    Ok(())
}

/// The chore `vm power-cuts`: so many cuts, spread over all combinations, and a table.
pub(super) fn many(testbed: &Testbed, cuts: u64, seed: u64) -> Result<ExitCode> {
    let combinations: Vec<_> = PAIRS.into_iter().flat_map(loads).collect();
    ensure!(cuts >= combinations.len() as u64, "{} combinations need at least so many cuts", combinations.len());
    let count = combinations.len() as u64;
    let share = |at: usize| cuts / count + u64::from((at as u64) < cuts % count);
    let tools = Tools::build(testbed)?;
    let began = Instant::now();
    let mut run = Run {
        tools: &tools,
        random: Random(seed),
        tallies: Vec::new(),
        rows: Vec::new(),
        done: 0,
        cuts,
        broken: 0,
        began,
    };
    for (at, load) in combinations.iter().enumerate() {
        if run.rows.last().is_none_or(|row| row.places != load.places) {
            run.rows.push(Row::new(&tools, load.places)?);
        }
        run.tallies.push(Tally { name: name(load), row: run.rows.len() - 1, quota: share(at), ..Tally::default() });
    }
    println!("{cuts} power cuts; seed {seed}");
    run.cut_all(&combinations).with_context(|| format!("after {} cuts; seed {seed}", run.done))?;
    Ok(run.print_table())
}

/// All loads on these places. Native flush needs device-DAX.
fn loads(places: &'static [Place]) -> Vec<Load> {
    let possible = |way: &Way| *way != Way::VerbsNative || places.contains(&Place::Devdax);
    WAYS.into_iter().filter(possible).map(|way| Load::durable(way, places)).collect()
}

fn name(load: &Load) -> String {
    let places: Vec<_> = load.places.iter().map(|place| place.name()).collect();
    format!("{}, {}", load.way.name(), places.join(" + "))
}

/// What was found of one combination.
#[derive(Debug, Default)]
struct Tally {
    name: String,
    /// The row of boots that it belongs to, and how many cuts it gets.
    row: usize,
    quota: u64,
    acknowledged: Vec<u64>,
    in_flight: u64,
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
    rows: Vec<Row<'a>>,
    done: u64,
    cuts: u64,
    /// Machines that did not come to their cut, or to the verdict on the one before.
    broken: u64,
    began: Instant,
}

/// The boots on the same images.
struct Row<'a> {
    places: &'static [Place],
    series: Series<'a>,
    /// The cut that awaits its verdict.
    last: Option<(usize, Survivors)>,
}

impl<'a> Row<'a> {
    fn new(tools: &'a Tools<'a>, places: &'static [Place]) -> Result<Self> {
        Ok(Self { places, series: Series::new(tools)?, last: None })
    }
}

impl Run<'_> {
    /// Cuts each combination as often as it has to be, in turn, so that a run that is stopped has seen all of them.
    fn cut_all(&mut self, combinations: &[Load]) -> Result<()> {
        let rounds = self.tallies.iter().map(|tally| tally.quota).max().unwrap_or_default();
        for round in 0..rounds {
            for (at, load) in combinations.iter().enumerate() {
                if round >= self.tallies[at].quota {
                    continue;
                }
                // Not the same for all combinations of a round.
                let survivors = Survivors::of_turn(round + at as u64, self.random.next());
                let row = &mut self.rows[self.tallies[at].row];
                match row.series.cut(load, survivors, &mut self.random) {
                    Ok(verdict) => {
                        let last = row.last.replace((at, survivors));
                        self.note(last, verdict);
                    }
                    Err(error) => {
                        self.broken += 1;
                        println!("BROKEN: {}: {error:#}", self.tallies[at].name);
                        ensure!(self.broken <= BROKEN_MAX, "too many machines did not come to their end");
                        *row = Row::new(self.tools, load.places)?;
                    }
                }
            }
        }
        for row in std::mem::take(&mut self.rows) {
            let verdict = row.series.end()?;
            self.note(row.last, Some(verdict));
        }
        Ok(())
    }

    fn note(&mut self, cut: Option<(usize, Survivors)>, verdict: Option<Verdict>) {
        let (Some((at, survivors)), Some(verdict)) = (cut, verdict) else { return };
        let tally = &mut self.tallies[at];
        tally.acknowledged.push(verdict.acknowledged);
        tally.in_flight += u64::from(verdict.in_flight());
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
            "\n| combination | cuts | acknowledged batches before a cut, median (least) | cut in flight | lost | none / all / random / torn |"
        );
        println!("|---|---:|---:|---:|---:|---|");
        for tally in &mut self.tallies {
            tally.acknowledged.sort_unstable();
            let [none, all, random, torn] = tally.states;
            println!(
                "| {} | {} | {} ({}) | {} | {} | {none} / {all} / {random} / {torn} |",
                tally.name,
                tally.acknowledged.len(),
                tally.acknowledged.get(tally.acknowledged.len() / 2).copied().unwrap_or_default(),
                tally.acknowledged.first().copied().unwrap_or_default(),
                tally.in_flight,
                tally.lost,
            );
        }
        let lost: u64 = self.tallies.iter().map(|tally| tally.lost).sum();
        println!(
            "\n{} power cuts in {:.0} s; acknowledged batches lost: {lost}; machines that broke down: {}",
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
