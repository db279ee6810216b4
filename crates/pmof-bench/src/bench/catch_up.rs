//! `pmof bench catch-up`: what it takes to bring a member back.

use std::{
    ops::Range,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, sleep},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use pmof::{Event, Pool, PoolOptions};
use pmof_console::{
    children::Target,
    interrupt::TemporaryDirectory,
    output::{print_json, say, with_mend},
    trust,
    words::{self, Level},
};
use serde::Serialize;

use self::counter::Counter;
use crate::soak::Random;

mod counter;

const POOL_NAME: &str = "bench";

/// Bytes of one write of the foreground.
const FOREGROUND_BYTES: usize = 4096;

/// A member is back within this time, or something is wrong.
const LIMIT: Duration = Duration::from_secs(600);

/// All pages that were written are forgotten within this time, where all members are in sync.
const FORGOTTEN_AFTER: Duration = Duration::from_millis(2500);

/// Floors that are timed; the fastest counts.
const FLOOR_ROUNDS: u8 = 3;

/// How long the rate of the foreground is measured before a member is lost.
const FOREGROUND_TIME: Duration = Duration::from_secs(2);

/// Measure how a member catches up: bytes that are moved, and how fast, beside a stream of the same bytes to the same target
///
/// Members are targets on this machine. Bytes are counted by relays that all connections go through, in a part of the run of its own; times are taken
/// without them. Files lie in --dir: name a tmpfs to leave the disk out.
#[derive(Debug, Args)]
pub(super) struct CatchUpArgs {
    /// Bytes of the pool
    #[arg(long, value_name = "SIZE", default_value_t = 1 << 30, value_parser = words::sizes::<u64>(1 << 20..=1 << 40))]
    size: u64,
    /// Bytes in a hundred thousand that are written while the member is away, in pieces at random
    #[arg(long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(0..=50_000))]
    differ: u64,
    /// Bytes of such a piece
    #[arg(long, value_name = "SIZE", default_value_t = 4096, value_parser = words::sizes::<u64>(4096..=1 << 20))]
    piece: u64,
    /// Members of the pool
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=5))]
    members: u8,
    /// Threads that write meanwhile, for the rate of the foreground
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
    writers: u64,
    /// Failure that a persist must survive
    #[arg(long, value_enum, value_name = "LEVEL", default_value_t = Level::ProcessCrash)]
    durability: Level,
    /// Directory for the pools; a temporary one unless given
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Only bring a member back that lacks nothing
    #[arg(long)]
    empty: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// One catch-up.
#[derive(Clone, Debug, Serialize)]
struct Run {
    what: &'static str,
    differing_bytes: u64,
    copied_bytes: u64,
    /// All that went to and came from the member, and what else was asked of the others.
    moved_bytes: Option<u64>,
    ratio_moved: Option<f64>,
    elapsed_s: f64,
    /// Of a stream of the same pieces to the same target, in the same run.
    floor_elapsed_s: Option<f64>,
    ratio_rate: Option<f64>,
    /// Persists a second while it caught up, and before it was lost.
    ratio_foreground: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Runs {
    runs: Vec<Run>,
}

/// Runs `pmof bench catch-up`.
pub(super) fn run(args: &CatchUpArgs) -> Result<()> {
    let mut runs = Vec::new();
    if args.empty {
        runs.push(Scene::set(args, false)?.known("nothing lacks", args, &[])?);
    } else {
        let pieces = scattered(args);
        let mut counted = Scene::set(args, true)?;
        runs.push(counted.known("by the map, counted", args, &pieces)?);
        runs.push(counted.unknown("by digests, counted", args, &pieces)?);
        drop(counted);
        let mut timed = Scene::set(args, false)?;
        let together: Vec<_> = std::iter::once(0..args.size / 4).collect();
        for (known, unknown, pieces) in [
            ("by the map, scattered", "by digests, scattered", &pieces[..]),
            ("by the map, in a row", "by digests, in a row", &together[..]),
        ] {
            let floor = timed.floor(args, pieces)?;
            let runs_of = [timed.known(known, args, pieces)?, timed.unknown(unknown, args, pieces)?];
            runs.extend(runs_of.map(|run| run.beside(floor)));
        }
        runs.push(timed.under_load("by the map, under load", args, &together)?);
    }
    if args.json {
        return print_json(&Runs { runs });
    }
    say!("{:<26}{:>13}{:>13}{:>9}{:>9}{:>9}{:>12}", "", "differ", "copied", "moved", "s", "rate", "foreground");
    for run in &runs {
        let ratio = |ratio: Option<f64>| ratio.map_or_else(String::new, |ratio| format!("{ratio:.2} x"));
        let ratios = [run.ratio_moved, run.ratio_rate, run.ratio_foreground].map(ratio);
        let [moved, rate, foreground] = &ratios;
        let Run { what, differing_bytes, copied_bytes, elapsed_s: seconds, .. } = run;
        say!("{what:<26}{differing_bytes:>13}{copied_bytes:>13}{moved:>9}{seconds:>9.3}{rate:>9}{foreground:>12}");
    }
    say!(
        "moved: of the bytes that differ; rate: of a stream of the same pieces to the same target; foreground: persists, of those before the loss"
    );
    Ok(())
}

/// Pieces apart, all over the pool.
fn scattered(args: &CatchUpArgs) -> Vec<Range<u64>> {
    let (count, places) = (args.size / 1000 * args.differ / 100 / args.piece, args.size / args.piece);
    let mut random = Random::new(7);
    let mut chosen = std::collections::BTreeSet::new();
    while (chosen.len() as u64) < count.min(places / 2) {
        chosen.insert(random.below(places));
    }
    chosen.into_iter().map(|place| place * args.piece..(place + 1) * args.piece).collect()
}

/// All of a pool.
fn in_pieces(size: u64) -> Vec<Range<u64>> {
    (0..size >> 20).map(|at| at << 20..(at + 1) << 20).collect()
}

fn bytes_of(pieces: &[Range<u64>]) -> u64 {
    pieces.iter().map(|piece| piece.end - piece.start).sum()
}

/// Members on targets of this machine, and the pool.
struct Scene {
    pool: Pool,
    options: PoolOptions,
    targets: Vec<Target>,
    counters: Vec<Counter>,
    /// Makes what is written another each time.
    round: u8,
    directory: TemporaryDirectory,
}

impl Scene {
    fn set(args: &CatchUpArgs, is_counted: bool) -> Result<Self> {
        let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
        let directory = TemporaryDirectory::create("pmof-bench-", &parent);
        let directory = directory.with_context(|| format!("cannot make a directory in {}", parent.display()))?;
        let mut options = trust::pool_options().require(args.durability.durability());
        let (mut targets, mut counters) = (Vec::new(), Vec::new());
        for index in 0..args.members {
            let root = directory.path().join(index.to_string());
            std::fs::create_dir(&root).with_context(|| format!("cannot make {}", root.display()))?;
            let target = Target::start(&root, &format!("tcp://127.0.1.{}:0", index + 1), &[])?;
            let mut address = target.address().to_owned();
            if is_counted {
                let counter = Counter::start(super::socket_address(&address)?)?;
                address = format!("tcp://{}", counter.address());
                counters.push(counter);
            }
            options = options.replica(format!("{address}/{POOL_NAME}"));
            targets.push(target);
        }
        let pool = options.create(args.size).map_err(with_mend)?;
        let scene = Self { pool, options, targets, counters, round: 0, directory };
        if !args.empty {
            // So that what is read and written has its memory.
            scene.write(&in_pieces(args.size))?;
        }
        Ok(scene)
    }

    /// Writes pieces, some at once.
    fn write(&self, pieces: &[Range<u64>]) -> Result<()> {
        write_to(&self.pool, pieces, self.round)
    }

    fn lose(&mut self) -> Result<()> {
        self.last()?.kill()
    }

    fn give_back(&mut self) -> Result<()> {
        let root = self.directory.path().join((self.targets.len() - 1).to_string());
        self.last()?.restart(&root, &[])
    }

    fn last(&mut self) -> Result<&mut Target> {
        self.targets.last_mut().context("there are members")
    }

    /// Of a member that was lost while the pool was open.
    fn known(&mut self, what: &'static str, args: &CatchUpArgs, pieces: &[Range<u64>]) -> Result<Run> {
        self.settle()?;
        let mut events = self.pool.events();
        self.write_without_one(args, pieces)?;
        self.time_return(what, pieces, &mut events)
    }

    /// Of a member that was not there when the pool was opened.
    fn unknown(&mut self, what: &'static str, args: &CatchUpArgs, pieces: &[Range<u64>]) -> Result<Run> {
        self.settle()?;
        self.write_without_one(args, pieces)?;
        self.pool.close()?;
        self.pool = self.options.open().map_err(with_mend)?;
        let mut events = self.pool.events();
        self.time_return(what, pieces, &mut events)
    }

    /// Loses the member, and writes what it is to lack.
    fn write_without_one(&mut self, args: &CatchUpArgs, pieces: &[Range<u64>]) -> Result<()> {
        self.lose()?;
        self.round += 1;
        self.pool.persist(args.size - 8, &[self.round; 8])?;
        self.write(pieces)
    }

    fn time_return(&mut self, what: &'static str, pieces: &[Range<u64>], events: &mut pmof::Events) -> Result<Run> {
        let before = self.counted();
        self.give_back()?;
        let (copied_bytes, seconds) = in_sync(events)?;
        Ok(self.run(what, pieces, copied_bytes, seconds, before))
    }

    /// The same as [`known`](Self::known), while others write.
    fn under_load(&mut self, what: &'static str, args: &CatchUpArgs, pieces: &[Range<u64>]) -> Result<Run> {
        self.settle()?;
        let (is_over, persists) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let writer = |index| {
            let (pool, is_over, persists) = (self.pool.clone(), Arc::clone(&is_over), Arc::clone(&persists));
            // Behind what is written while the member is away, so that it does not add to that.
            let places = args.size / 8 / FOREGROUND_BYTES as u64;
            let from = args.size / 2;
            thread::spawn(move || {
                let mut random = Random::new(index);
                let bytes = [1; FOREGROUND_BYTES];
                while !is_over.load(Ordering::Relaxed) {
                    pool.persist(from + random.below(places) * FOREGROUND_BYTES as u64, &bytes)?;
                    persists.fetch_add(1, Ordering::Relaxed);
                }
                anyhow::Ok(())
            })
        };
        let writers: Vec<_> = (0..args.writers).map(writer).collect();
        let rate_since = |began: Instant, count: u64| {
            (persists.load(Ordering::Relaxed) - count) as f64 / began.elapsed().as_secs_f64()
        };
        sleep(FOREGROUND_TIME);
        let (began, count) = (Instant::now(), persists.load(Ordering::Relaxed));
        sleep(FOREGROUND_TIME);
        let before = rate_since(began, count);
        let mut events = self.pool.events();
        self.lose()?;
        self.round += 1;
        self.write(pieces)?;
        self.give_back()?;
        wait_for(&mut events, |event| matches!(event, Event::CatchingUp { .. }).then_some(()))?;
        let (began, count) = (Instant::now(), persists.load(Ordering::Relaxed));
        let (copied_bytes, seconds) = in_sync(&mut events)?;
        let during = rate_since(began, count);
        is_over.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.join().ok().context("a writer panicked")??;
        }
        let run = self.run(what, pieces, copied_bytes, seconds, None);
        // What the writers added is copied too.
        let floor = self.floor(args, pieces)? * copied_bytes as f64 / bytes_of(pieces) as f64;
        Ok(Run { ratio_foreground: Some(during / before), ..run.beside(floor) })
    }

    /// Seconds that a stream of the same pieces takes to the same target: just started, as it is when a member comes back, with its file there.
    fn floor(&mut self, args: &CatchUpArgs, pieces: &[Range<u64>]) -> Result<f64> {
        self.settle()?;
        let mut seconds = f64::INFINITY;
        let root = self.directory.path().join("floor");
        std::fs::create_dir(&root).with_context(|| format!("cannot make {}", root.display()))?;
        let address = format!("tcp://127.0.1.{}:0", self.targets.len() + 1);
        let mut target = Target::start(&root, &address, &[])?;
        let pool =
            trust::pool_options().require(args.durability.durability()).replica(format!("{}/floor", target.address()));
        let floor = pool.create(args.size).map_err(with_mend)?;
        write_to(&floor, &in_pieces(args.size), 0)?;
        floor.close()?;
        for round in 1..=FLOOR_ROUNDS {
            target.kill()?;
            target.restart(&root, &[])?;
            let floor = pool.open().map_err(with_mend)?;
            let began = Instant::now();
            write_to(&floor, pieces, round)?;
            seconds = seconds.min(began.elapsed().as_secs_f64());
            floor.close()?;
        }
        pool.remove().map_err(with_mend)?;
        drop(target);
        std::fs::remove_dir_all(&root).with_context(|| format!("cannot remove {}", root.display()))?;
        Ok(seconds)
    }

    /// All members are in sync, and nothing is kept of what was written before.
    fn settle(&self) -> Result<()> {
        let until = Instant::now() + LIMIT;
        while self.pool.status()?.is_degraded() {
            ensure!(Instant::now() < until, "the members are not in sync");
            sleep(Duration::from_millis(1));
        }
        sleep(FORGOTTEN_AFTER);
        Ok(())
    }

    fn counted(&self) -> Option<Vec<u64>> {
        (!self.counters.is_empty()).then(|| self.counters.iter().map(Counter::bytes).collect())
    }

    fn run(
        &self,
        what: &'static str,
        pieces: &[Range<u64>],
        copied_bytes: u64,
        seconds: f64,
        before: Option<Vec<u64>>,
    ) -> Run {
        // One page more, which tells the pool of the loss.
        let differing_bytes = bytes_of(pieces) + 4096;
        let moved_bytes = before.zip(self.counted()).map(|(before, now)| {
            let all: u64 = now.iter().zip(&before).map(|(now, before)| now - before).sum();
            // What is copied is read from another member besides.
            all.saturating_sub(copied_bytes)
        });
        let ratio_moved = moved_bytes.map(|bytes| bytes as f64 / differing_bytes as f64);
        let (floor_elapsed_s, ratio_rate, ratio_foreground) = (None, None, None);
        Run {
            what,
            differing_bytes,
            copied_bytes,
            moved_bytes,
            ratio_moved,
            elapsed_s: seconds,
            floor_elapsed_s,
            ratio_rate,
            ratio_foreground,
        }
    }
}

impl Run {
    fn beside(self, floor_elapsed_s: f64) -> Self {
        Self { floor_elapsed_s: Some(floor_elapsed_s), ratio_rate: Some(floor_elapsed_s / self.elapsed_s), ..self }
    }
}

fn write_to(pool: &Pool, pieces: &[Range<u64>], round: u8) -> Result<()> {
    let mut lane = pool.lane();
    for (number, piece) in pieces.iter().enumerate() {
        let mut at = piece.start;
        while at < piece.end {
            let end = piece.end.min(at + (1 << 20));
            lane.write(at, &vec![round ^ number as u8 ^ 0x55; (end - at) as usize])?;
            at = end;
        }
    }
    lane.flush().wait()?;
    Ok(())
}

/// Waits until the member is in sync: bytes copied, and seconds.
fn in_sync(events: &mut pmof::Events) -> Result<(u64, f64)> {
    wait_for(events, |event| match event {
        Event::InSync { copied_bytes, took, .. } => Some((*copied_bytes, took.as_secs_f64())),
        _ => None,
    })
}

fn wait_for<T>(events: &mut pmof::Events, found: impl Fn(&Event) -> Option<T>) -> Result<T> {
    let until = Instant::now() + LIMIT;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let Some(event) = events.next_for(left) else { bail!("the member is not back") };
        if let Some(found) = found(&event) {
            return Ok(found);
        }
    }
}
