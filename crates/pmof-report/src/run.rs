//! Measures what is left of a plan, and writes the report.

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, bail, ensure};
use pmof_console::output::{print_json, say};
use serde_json::json;

use crate::{
    MeasureArgs,
    child::{Bench, Ended, Interrupts},
    document::{Document, FORMAT, Finished, Measured, Outcome, write_whole},
    journal::{Header, Journal},
    machine::Machine,
    matrix::{Cell, Plan, chart},
    page::html,
    progress::Progress,
    table::csv,
};

/// Media that cells lie on, and where `pmof bench` makes their directories.
const MEDIA: [(&str, &str); 3] = [("tmpfs", "/dev/shm"), ("kept", "/dev/shm"), ("file", "/var/tmp")];

/// A trial is over in a moment, or not at all; in an emulated machine on a busy one it takes half a minute.
const TRIAL_LIMIT: Duration = Duration::from_secs(120);

/// What a cell may take beyond its estimate, and how many times that: targets under load answer slowly.
const CELL_SLACK: Duration = Duration::from_secs(60);
const CELL_SLOWNESS: f64 = 10.0;

/// Where a report is written.
#[derive(Debug)]
struct Files {
    html: PathBuf,
    csv: PathBuf,
    json: PathBuf,
    journal: PathBuf,
}

impl Files {
    /// `output` is the page if it ends in `.html`, else a directory, which is made.
    fn at(output: &Path) -> Result<Self> {
        let html = if output.extension().is_some_and(|extension| extension == "html") {
            output.to_owned()
        } else {
            fs::create_dir_all(output)
                .with_context(|| format!("cannot make {}: name another --output", output.display()))?;
            output.join("report.html")
        };
        let of = |extension| html.with_extension(extension);
        Ok(Self { csv: of("csv"), json: of("json"), journal: of("journal"), html })
    }

    fn check_free(&self) -> Result<()> {
        let taken = [&self.html, &self.csv, &self.json].into_iter().find(|path| path.exists());
        ensure!(
            taken.is_none(),
            "{} exists: name another --output, or remove it",
            taken.map(|path| path.display().to_string()).unwrap_or_default()
        );
        Ok(())
    }

    fn write(&self, document: &Document) -> Result<()> {
        let texts = [(&self.html, html(document)?), (&self.csv, csv(document)?), (&self.json, document.to_json()?)];
        for (path, text) in texts {
            write_whole(path, text.as_bytes()).with_context(|| {
                format!("cannot write {}: its cells are saved, go on with --resume", path.display())
            })?;
        }
        Ok(())
    }
}

pub(crate) fn run(args: &MeasureArgs) -> Result<()> {
    let plan = args.plan();
    if !args.resume {
        plan.check()?;
    }
    if args.list {
        plan.cells().iter().for_each(|cell| say!("{}", cell.place));
        return Ok(());
    }
    let files = Files::at(&args.output)?;
    let media: Vec<(&str, &Path)> = MEDIA.iter().map(|(medium, parent)| (*medium, Path::new(parent))).collect();
    let machine = Machine::of_this(&media);
    let (journal, header, done) = if args.resume {
        let (journal, header, done) = Journal::resume(&files.journal)?;
        let difference = header.machine.difference(&machine);
        ensure!(
            difference.is_none(),
            "{} was begun with something else ({}): its cells and new ones would not compare; remove it and start anew",
            files.journal.display(),
            difference.unwrap_or_default()
        );
        (journal, header, done)
    } else {
        files.check_free()?;
        let header = Header::new(now(), plan, machine);
        (Journal::begin(&files.journal, &header)?, header, Vec::new())
    };
    let mut measuring = Measuring {
        bench: Bench::new(&media, Interrupts::catch()?)?,
        journal,
        plan: &header.plan,
        trials: HashMap::new(),
    };
    let Some(done) = measuring.finish(done)? else {
        bail!(
            "stopped: the finished cells are saved in {}; go on with `pmof report --resume --output {}`",
            files.journal.display(),
            args.output.display()
        )
    };
    let Measuring { journal, .. } = measuring;
    let document = Document {
        pmof_report: FORMAT,
        started: header.started,
        finished: now(),
        plan: header.plan,
        machine: header.machine,
        cells: done,
    };
    files.write(&document)?;
    journal.remove()?;
    let (measured, skipped) = document.counts();
    if measured == 0 {
        let why = document.why_skipped().unwrap_or_default();
        bail!(
            "nothing was measured: each of the {skipped} cells was skipped, the first since {why}; {} has them all",
            files.html.display()
        );
    }
    if args.json {
        let [html, csv, json] = [&files.html, &files.csv, &files.json].map(|path| path.display().to_string());
        return print_json(
            &json!({ "html": html, "csv": csv, "json": json, "measured": measured, "skipped": skipped }),
        );
    }
    say!(
        "{}: {measured} cells measured, {skipped} skipped; the same in {} and {}",
        files.html.display(),
        files.csv.display(),
        files.json.display()
    );
    Ok(())
}

/// Whether a mode works over a transport on this machine.
#[derive(Clone, Debug)]
enum Trial {
    Works,
    Fails(String),
    /// A signal came before that was known.
    Interrupted,
}

/// RFC 3339, in UTC.
fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

struct Measuring<'a> {
    bench: Bench,
    journal: Journal,
    plan: &'a Plan,
    /// Of each transport and mode.
    trials: HashMap<(String, &'static str), Trial>,
}

impl Measuring<'_> {
    /// Measures what is not done yet; all cells in the order of the plan, or `None` where a signal came.
    fn finish(&mut self, done: Vec<Finished>) -> Result<Option<Vec<Finished>>> {
        let cells = self.plan.cells();
        let places: HashSet<_> = done.iter().map(|cell| &cell.place).collect();
        let left: Vec<Cell> = cells.iter().filter(|cell| !places.contains(&cell.place)).cloned().collect();
        let mut progress = Progress::new(done.len(), &left);
        let mut reasons = HashSet::new();
        let mut finished: HashMap<_, _> = done.into_iter().map(|cell| (cell.place.clone(), cell)).collect();
        for cell in left {
            progress.begin(&cell);
            let Some(outcome) = self.measure(&cell)? else {
                progress.finish();
                return Ok(None);
            };
            let mut is_measured = true;
            if let Outcome::Skipped(why) = &outcome {
                is_measured = false;
                if reasons.insert(why.clone()) {
                    progress.note(&format!("skipped {} and the like: {why}", cell.place));
                }
            }
            progress.end(&cell, is_measured);
            let command = format!("pmof {}", cell.arguments.join(" "));
            let cell = Finished { place: cell.place, command, outcome };
            self.journal.save(&cell)?;
            finished.insert(cell.place.clone(), cell);
        }
        progress.finish();
        let in_order = cells.into_iter().map(|cell| finished.remove(&cell.place).context("a cell was lost"));
        in_order.collect::<Result<_>>().map(Some)
    }

    fn measure(&mut self, cell: &Cell) -> Result<Option<Outcome>> {
        let series = chart(&cell.place.chart).and_then(|chart| chart.series(&cell.place.series));
        let series = series.context("a cell of no chart")?;
        // A transport that does not work at all needs no trial of each mode.
        for mode in ["auto", series.mode] {
            match self.trial(&cell.place.transport, mode)? {
                Trial::Works => {}
                Trial::Fails(why) => return Ok(Some(Outcome::Skipped(why))),
                Trial::Interrupted => return Ok(None),
            }
        }
        let limit = CELL_SLACK + Duration::from_secs_f64(cell.estimate_s * CELL_SLOWNESS);
        Ok(match self.bench.run(&cell.arguments, series.medium, limit)? {
            Ended::Interrupted => None,
            Ended::Failed(why) => Some(Outcome::Skipped(why)),
            Ended::Done(value) => {
                Measured::of(&value).context("`pmof bench` printed a result of another kind")?;
                Some(Outcome::Result(value))
            }
        })
    }

    /// Tries a mode over a transport, once.
    fn trial(&mut self, transport: &str, mode: &'static str) -> Result<Trial> {
        let key = (transport.to_owned(), mode);
        if let Some(known) = self.trials.get(&key) {
            return Ok(known.clone());
        }
        let trial = match self.bench.run(&self.plan.trial(transport, mode), "tmpfs", TRIAL_LIMIT)? {
            Ended::Interrupted => return Ok(Trial::Interrupted),
            Ended::Failed(why) => Trial::Fails(why),
            Ended::Done(_) => Trial::Works,
        };
        self.trials.insert(key, trial.clone());
        Ok(trial)
    }
}
