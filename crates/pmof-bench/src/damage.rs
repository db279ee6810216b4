//! `pmof damage`.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, sleep},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use pmof_console::{
    interrupt::TemporaryDirectory,
    output::{self, say},
    words,
};
use pmof_locks::Mutex;

use self::{
    case::{Case, Outcome},
    cell::Cell,
    control::Control,
    expected::{Fault, FaultKind},
    farm::Farm,
    report::Report,
};
use crate::soak::{Random, seed_of_the_clock};

mod case;
mod cell;
mod control;
mod expected;
mod farm;
mod image;
mod report;
#[cfg(test)]
mod tests;

/// A case takes milliseconds, and seconds where each of its pages is lost and the machine is busy: one that is not done by then hangs.
const HANG_LIMIT: Duration = Duration::from_secs(120);

/// The interval at which the watchdog looks for cases that hang.
const TICK: Duration = Duration::from_millis(20);

/// Lines of progress in one run.
const PROGRESS_LINES: u64 = 10;

/// The step from the cell of one case to that of the next: a prime that divides no number of cells, so that a short run has some of all.
const CELL_STEP: u64 = 1009;

/// Damage the files of pools in every structure, and check that no wrong byte is read and none is lost.
///
/// Each case makes a pool with digests on one to three targets of this process, writes it, and then damages it: a bit, a byte, 512 bytes, 4 KiB or 64 KiB
/// of a header, state, roster, map of write intent, digest word or page, on some or all replicas, while the targets are stopped, the pool is closed or open. Every byte is
/// read and compared, and the files are judged afterwards. Each combination has a control without verification, which must read something wrong.
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
#[derive(Debug, clap::Args)]
pub struct DamageArgs {
    /// Cases to run
    #[arg(long, value_name = "COUNT", default_value_t = 5000, value_parser = clap::value_parser!(u64).range(1..))]
    cases: u64,
    /// Run this case of the seed only
    #[arg(long, value_name = "INDEX")]
    case: Option<u64>,
    /// End after this time, whatever is left
    #[arg(long, value_name = "TIME", value_parser = words::time)]
    time: Option<Duration>,
    /// Cases that run at once
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
    jobs: u64,
    /// Repeats the cases of an earlier run
    #[arg(long)]
    seed: Option<u64>,
    /// Directory for the pools; a temporary one unless given
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Damage files past the page cache (`O_DIRECT`), so that pages that are mapped are dropped and loaded again
    #[arg(long)]
    direct: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print the tables of the documentation
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Judge as if nothing were verified: the run must fail
    #[arg(long, hide = true)]
    break_verification: bool,
}

/// Runs `pmof damage`.
pub fn run(args: &DamageArgs) -> Result<()> {
    let report = damage(args, args.json || args.markdown)?;
    let failed = report.failed();
    if args.json && failed == 0 {
        output::print_json(&report)?;
    } else if args.markdown {
        report.print_markdown();
    } else if !args.json {
        report.print();
    }
    if failed > 0 {
        // One object is printed, and the error is that.
        let listed = if args.json { report.failures() } else { String::new() };
        bail!(
            "{failed} of {} cases and their controls failed; to repeat one: --seed {} --case INDEX{listed}",
            report.cases(),
            report.seed()
        );
    }
    Ok(())
}

/// Runs all cases.
fn damage(args: &DamageArgs, is_quiet: bool) -> Result<Report> {
    let seed = args.seed.unwrap_or_else(seed_of_the_clock);
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let directory = TemporaryDirectory::create("pmof-damage-", &parent);
    let directory = directory.with_context(|| format!("cannot make a directory in {}", parent.display()))?;
    let sockets = TemporaryDirectory::create("pmof-", &std::env::temp_dir()).context("cannot make a directory")?;
    let cases = args.case.map_or(0..args.cases, |case| case..case.saturating_add(1));
    if !is_quiet {
        say!("{} cases; seed {seed}; pools under {}", cases.end - cases.start, directory.path().display());
    }
    let run = Arc::new(Run {
        seed,
        cells: Cell::all(),
        next: AtomicU64::new(cases.start),
        end: cases.end,
        deadline: args.time.map(|time| Instant::now() + time),
        is_direct: args.direct,
        has_digests: !args.break_verification,
        is_over: AtomicBool::new(false),
        under_way: Mutex::new(vec![None; args.jobs as usize]),
        report: Mutex::new(Report::new(seed)),
        panics: count_panics(),
    });
    let began = Instant::now();
    run.all(directory.path(), sockets.path(), is_quiet)?;
    let mut report = run.report.lock().clone();
    report.finish(began.elapsed().as_secs_f64());
    Ok(report)
}

/// What the threads of a run share.
#[derive(Debug)]
struct Run {
    seed: u64,
    cells: Vec<Cell>,
    next: AtomicU64,
    end: u64,
    deadline: Option<Instant>,
    is_direct: bool,
    has_digests: bool,
    is_over: AtomicBool,
    /// The case of each thread, and since when.
    under_way: Mutex<Vec<Option<(u64, Instant)>>>,
    report: Mutex<Report>,
    /// Panics of any thread: targets run in this process.
    panics: Arc<AtomicU64>,
}

impl Run {
    /// Runs all cases on threads of their own, and watches for one that hangs.
    fn all(self: &Arc<Self>, directory: &Path, sockets: &Path, is_quiet: bool) -> Result<()> {
        let jobs = self.under_way.lock().len();
        let mut threads = Vec::new();
        for job in 0..jobs {
            let (run, directory, sockets) =
                (Arc::clone(self), directory.join(format!("job-{job}")), sockets.join(job.to_string()));
            std::fs::create_dir_all(&sockets).context("cannot make a directory")?;
            let work = move || run.work(job, &directory, &sockets);
            threads
                .push(thread::Builder::new().name("pmof-damage".into()).spawn(work).context("cannot start a thread")?);
        }
        let all = self.end - self.next.load(Ordering::Relaxed).min(self.end);
        let mut told = 0;
        while !threads.iter().all(thread::JoinHandle::is_finished) {
            sleep(TICK);
            if self.has_hung() {
                // Its thread cannot be ended: the process does, by the error.
                return Ok(());
            }
            let done = self.report.lock().cases();
            if !is_quiet && done / all.div_ceil(PROGRESS_LINES) > told {
                told = done / all.div_ceil(PROGRESS_LINES);
                say!("{done:>8} cases, {} failed", self.report.lock().failed());
            }
        }
        for thread in threads {
            thread.join().ok().context("a thread panicked")??;
        }
        Ok(())
    }

    fn has_hung(&self) -> bool {
        let hung: Vec<u64> = self
            .under_way
            .lock()
            .iter()
            .flatten()
            .filter(|(_, since)| since.elapsed() > HANG_LIMIT)
            .map(|(case, _)| *case)
            .collect();
        for case in &hung {
            let fault = Fault::new(FaultKind::Hang, format!("it is not done after {} s", HANG_LIMIT.as_secs()));
            self.report.lock().add_case(*case, self.cell(*case), Err(fault));
        }
        if !hung.is_empty() {
            self.is_over.store(true, Ordering::Relaxed);
        }
        !hung.is_empty()
    }

    fn cell(&self, case: u64) -> Cell {
        let cells = self.cells.len() as u64;
        self.cells[(case % cells * CELL_STEP % cells) as usize]
    }

    /// One thread's cases.
    fn work(&self, job: usize, directory: &Path, sockets: &Path) -> Result<()> {
        let mut farm = Farm::start(directory, sockets)?;
        loop {
            let case = self.next.fetch_add(1, Ordering::Relaxed);
            let is_late = self.deadline.is_some_and(|deadline| deadline <= Instant::now());
            if case >= self.end || is_late || self.is_over.load(Ordering::Relaxed) {
                return Ok(());
            }
            let cell = self.cell(case);
            // The first case of each cell in a run, or the only one, has the control with it.
            if case < self.cells.len() as u64 || self.end == case + 1 {
                self.begin(job, case);
                let seed = Random::new(self.seed ^ !case).word();
                let control = self.guard(|| Control::run(cell, seed, &mut farm, &format!("control-{case}")));
                self.report.lock().add_control(case, cell, control);
            }
            self.begin(job, case);
            let shown = self.guard(|| self.case(case, cell, &mut farm));
            if shown.is_err() {
                farm.restart()?;
            }
            farm.remove(&pool_name(case));
            self.under_way.lock()[job] = None;
            self.report.lock().add_case(case, cell, shown);
        }
    }

    fn begin(&self, job: usize, case: u64) {
        self.under_way.lock()[job] = Some((case, Instant::now()));
    }

    fn case(&self, case: u64, cell: Cell, farm: &mut Farm) -> Result<Outcome, Fault> {
        let random = Random::new(Random::new(self.seed).word() ^ Random::new(case).word());
        let mut case = Case::new(cell, random, farm, pool_name(case));
        (case.is_direct, case.has_digests) = (self.is_direct, self.has_digests);
        case.run()
    }

    /// Turns panics, of this thread or of a target's, into faults.
    fn guard<T>(&self, run: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
        let before = self.panics.load(Ordering::Relaxed);
        let shown = catch_unwind(AssertUnwindSafe(run));
        match shown {
            Ok(shown) if self.panics.load(Ordering::Relaxed) == before => shown,
            _ => Err(Fault::new(FaultKind::Panic, "a thread panicked: standard error says where")),
        }
    }
}

fn pool_name(case: u64) -> String {
    format!("case-{case}")
}

/// Counts panics of all threads from now on.
fn count_panics() -> Arc<AtomicU64> {
    let panics = Arc::new(AtomicU64::new(0));
    let (before, counted) = (std::panic::take_hook(), Arc::clone(&panics));
    std::panic::set_hook(Box::new(move |panic| {
        counted.fetch_add(1, Ordering::Relaxed);
        before(panic);
    }));
    panics
}
