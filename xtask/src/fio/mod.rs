//! `cargo xtask fio`: the unmodified engines of fio as a judge of librpma.

use std::{
    env, fs,
    net::IpAddr,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, Subcommand};

use crate::{capi, counts::Counts, vm::testbed::Testbed};

mod cell;
mod cell_run;
mod content;
mod floor;

use cell::Cell;
use cell_run::{Medium, Setting};
use content::Done;
use floor::Floor;

/// `cargo xtask fio`.
#[derive(Debug, Subcommand)]
pub(crate) enum Fio {
    /// Build fio with its librpma engines, where it is not there or its recipe has changed; print the path
    Build,
    /// Run a server and a client of fio's engines in every combination, and look at what the server's memory holds
    ///
    /// The last line is `N passed, N failed, N skipped`; exit status 1 where a cell failed. What both sides of a failed
    /// cell said is kept, and named.
    Matrix(Matrix),
    /// Measure a write and flush of fio over TCP on this host, beside pmof's own persist and raw exchanges of the same bytes
    Floor(Floor),
}

/// Options of `fio matrix`.
#[derive(Debug, Args)]
pub(crate) struct Matrix {
    /// The directory with the librpma.so.0 that is judged; ours, where cargo xtask capi puts it, otherwise
    #[arg(long, value_name = "DIRECTORY")]
    library: Option<PathBuf>,
    /// Another one for the servers
    #[arg(long, value_name = "DIRECTORY")]
    server_library: Option<PathBuf>,
    /// What the library is told to use (`PMOF_TRANSPORT`)
    #[arg(long, default_value = "tcp", value_parser = ["tcp", "shm", "verbs", "fabric+tcp", "fabric+net", "fabric+tcp-msg"])]
    transport: String,
    /// The address that servers listen on and clients connect to
    #[arg(long, default_value = "127.0.0.1")]
    address: IpAddr,
    /// A directory for the servers' files, or a device-DAX; a directory below target/fio otherwise
    #[arg(long, value_name = "PATH")]
    medium: Option<PathBuf>,
    /// Only some cells, the same each time: about a minute
    #[arg(long)]
    sample: bool,
    /// Only cells whose name has this in it
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// A fio that is there already, with the libraries that it needs on the search path; it is built otherwise
    #[arg(long, value_name = "FILE")]
    fio: Option<PathBuf>,
    /// Where what failed cells said is kept
    #[arg(long, value_name = "DIRECTORY", default_value = "target/fio/failed")]
    failed: PathBuf,
}

impl Fio {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            Self::Build => {
                println!("{}", testbed()?.fio()?.binary.display());
                Ok(ExitCode::SUCCESS)
            }
            Self::Matrix(matrix) => matrix.run(),
            Self::Floor(floor) => floor.run(&testbed()?),
        }
    }
}

fn testbed() -> Result<Testbed> {
    Testbed::new(|line| eprintln!("test bed: {line}"))
}

impl Matrix {
    fn run(&self) -> Result<ExitCode> {
        // Relative to where xtask was started; the processes of a cell run elsewhere.
        let here = env::current_dir().context("finding the current directory")?;
        let library = here.join(self.library.clone().unwrap_or_else(capi::directory));
        let server_library = self.server_library.as_ref().map_or_else(|| library.clone(), |path| here.join(path));
        for directory in [&library, &server_library] {
            ensure!(directory.join("librpma.so.0").exists(), "no librpma.so.0 in {}", directory.display());
        }
        let directory = here.join("target/fio").join(format!("run-{}", std::process::id()));
        fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
        let (fio, [server_libraries, client_libraries]) = if let Some(fio) = &self.fio {
            (here.join(fio), [server_library, library].map(PathBuf::into_os_string))
        } else {
            let fio = testbed()?.fio()?;
            let libraries = [&server_library, &library].map(|library| fio.library_path(library));
            (fio.binary, libraries)
        };
        let setting = Setting {
            fio,
            server_libraries,
            client_libraries,
            transport: self.transport.clone(),
            address: self.address,
            medium: self.medium(&here, &directory)?,
            directory,
        };
        let outcome = self.run_cells(&setting, &here.join(&self.failed));
        fs::remove_dir_all(&setting.directory).context("removing the files of the run")?;
        outcome
    }

    fn medium(&self, here: &Path, directory: &Path) -> Result<Medium> {
        let Some(path) = &self.medium else { return Ok(Medium::Directory(directory.to_owned())) };
        let path = here.join(path);
        let kind = fs::metadata(&path).with_context(|| format!("looking at {}", path.display()))?.file_type();
        Ok(if kind.is_char_device() { Medium::Device(path) } else { Medium::Directory(path) })
    }

    fn cells(&self) -> Vec<Cell> {
        let mut cells = if self.sample { cell::sample() } else { cell::matrix() };
        cells.retain(|cell| self.only.as_ref().is_none_or(|text| cell.to_string().contains(text.as_str())));
        cells
    }

    fn run_cells(&self, setting: &Setting, failed: &Path) -> Result<ExitCode> {
        let cells = self.cells();
        ensure!(!cells.is_empty(), "no cell has this in its name: {}", self.only.as_deref().unwrap_or_default());
        let start = Instant::now();
        let mut table = Table::default();
        for (number, cell) in cells.iter().enumerate() {
            let cell_start = Instant::now();
            let outcome = setting.run(cell);
            let seconds = cell_start.elapsed().as_secs_f64();
            match &outcome {
                Ok(_) => println!("ok {}/{} {cell} ({seconds:.1} s)", number + 1, cells.len()),
                Err(error) => {
                    let kept = keep(&setting.directory, &failed.join(format!("{}-{number}", std::process::id())))?;
                    println!("FAILED {}/{} {cell} ({seconds:.1} s): {error:#}", number + 1, cells.len());
                    println!("       what both sides said: {}", kept.display());
                }
            }
            table.add(cell, outcome.ok());
        }
        table.print();
        let counts = table.counts();
        println!("{} cells over {} in {:.0} s", cells.len(), self.transport, start.elapsed().as_secs_f64());
        println!("{counts}");
        Ok(if counts.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Copies the small files of a run.
fn keep(from: &Path, to: &Path) -> Result<PathBuf> {
    fs::create_dir_all(to).with_context(|| format!("making {}", to.display()))?;
    for entry in fs::read_dir(from)?.flatten() {
        let name = entry.file_name();
        let suffix = Path::new(&name).extension().unwrap_or_default();
        if suffix == "out" || suffix == "err" || suffix == "json" {
            fs::copy(entry.path(), to.join(&name)).with_context(|| format!("keeping {}", name.to_string_lossy()))?;
        }
    }
    Ok(to.to_owned())
}

/// A row for each engine and access: how many cells passed and failed, and the least mean latency.
#[derive(Debug, Default)]
struct Table {
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    work: String,
    passed: u64,
    failed: u64,
    bytes: u64,
    least_latency_ns: Option<u64>,
}

impl Table {
    fn add(&mut self, cell: &Cell, done: Option<Done>) {
        let work = format!("{} {}", cell.engine.name(), cell.access.name());
        let known = self.rows.iter().position(|row| row.work == work);
        let at = known.unwrap_or_else(|| {
            self.rows.push(Row { work, passed: 0, failed: 0, bytes: 0, least_latency_ns: None });
            self.rows.len() - 1
        });
        let row = &mut self.rows[at];
        let Some(done) = done else {
            row.failed += 1;
            return;
        };
        row.passed += 1;
        row.bytes += done.written_bytes + done.read_bytes;
        row.least_latency_ns = Some(row.least_latency_ns.map_or(done.latency_ns, |least| least.min(done.latency_ns)));
    }

    fn print(&self) {
        println!(
            "\n{:<16} {:>7} {:>7} {:>9} {:>20}",
            "engine, access", "passed", "failed", "MiB", "least mean latency"
        );
        for row in &self.rows {
            let latency = row
                .least_latency_ns
                .map_or_else(|| "-".to_owned(), |latency_ns| format!("{:.1} us", latency_ns as f64 / 1e3));
            println!("{:<16} {:>7} {:>7} {:>9} {latency:>20}", row.work, row.passed, row.failed, row.bytes >> 20);
        }
    }

    fn counts(&self) -> Counts {
        self.rows.iter().fold(Counts::default(), |mut sum, row| {
            sum += Counts { passed: row.passed, failed: row.failed, skipped: 0 };
            sum
        })
    }
}
