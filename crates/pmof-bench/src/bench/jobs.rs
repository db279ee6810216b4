//! `pmof bench run`: job files of fio's four librpma engines, and fio's output.
//!
//! A server job is a target with memory of its own, whose descriptor goes with each connection; a client job keeps an engine of the access
//! layer busy. The wire is pmof's, so both ends are `pmof bench run`.

use std::{
    fs,
    io::Write as _,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};
use pmof_access::Transport;
use pmof_console::{
    output::{complain, say},
    words,
};

use super::usage::own_modes;
use load::CpuLoad;
use options::{IoEngine, Job};
use parse::Section;
use result::JobResult;

mod client;
mod json;
mod load;
mod options;
mod parse;
mod result;
mod server;
mod text;

/// Run a job file of fio's librpma engines, and print what fio prints
///
/// The engines are those of APM and GPSPM, client and server, with their options. Start the server's file first; it ends with its clients.
/// Over tcp, where no device does read-after-write, an APM client uses the method that the connection has, which the last line names.
/// Sections of the engine `cpuio` load the CPU beside them. `${NAME}` is an environment variable. Options that change nothing here are accepted with a note.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// The job file
    #[arg(value_name = "JOB.fio")]
    file: PathBuf,
    /// What carries the bytes
    #[arg(long, value_parser = words::transports(), default_value_t = Transport::Tcp)]
    transport: Transport,
    /// What is printed
    #[arg(long, value_enum, default_value_t = Format::Normal)]
    output_format: Format,
    /// Write it to this file
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Servers: listen on addresses that other machines reach. Nobody is authenticated: whoever connects can use the memory
    #[arg(long)]
    trust_network: bool,
}

/// fio's formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// fio's text
    Normal,
    /// fio's JSON
    Json,
    /// The same with the bins of each histogram
    #[value(name = "json+")]
    JsonPlus,
}

/// Runs `pmof bench run`.
pub(super) fn run(args: &RunArgs) -> Result<()> {
    let sections = parse::read(&args.file)?;
    let (mut jobs, mut loads) = (Vec::new(), Vec::new());
    for section in &sections {
        match CpuLoad::of(section)? {
            Some(load) => loads.push(load),
            None => jobs.push(Job::of(section)?),
        }
    }
    ensure!(!jobs.is_empty(), "{} has only jobs of {}: there is nothing to measure", args.file.display(), load::ENGINE);
    ensure!(
        args.transport != Transport::Shm,
        "--transport shm has no addresses and ports, which job files name: use tcp or verbs"
    );
    jobs.iter().filter(|job| job.engine.is_server()).try_for_each(server::check)?;
    // Found out before the work is done, not behind it.
    let mut output = match &args.output {
        Some(path) => Some(fs::File::create(path).with_context(|| format!("cannot write {}", path.display()))?),
        None => None,
    };
    for note in notes(&sections, &loads) {
        complain(&format!("pmof bench run: note: {note}"));
    }
    let before = own_modes()?;
    let results = result::group(&jobs, run_all(args, &jobs, &loads)?);
    let after = own_modes()?;
    let cpu = [0, 1].map(|at| after[at].saturating_sub(before[at]));
    let printed = match args.output_format {
        Format::Normal => text::print(&jobs, &results, cpu),
        Format::Json => json::print(&jobs, &results, cpu, false)?,
        Format::JsonPlus => json::print(&jobs, &results, cpu, true)?,
    };
    if let (Some(file), Some(path)) = (&mut output, &args.output) {
        return writeln!(file, "{printed}").with_context(|| format!("writing {}", path.display()));
    }
    say!("{printed}");
    Ok(())
}

/// Notes printed for a job file that runs.
fn notes(sections: &[Section], loads: &[CpuLoad]) -> Vec<String> {
    let mut notes: Vec<String> =
        sections.iter().flat_map(|section| &section.settings).filter_map(options::note).collect();
    // Those of a global section are of each section behind it.
    notes.sort();
    notes.dedup();
    let of_load = |load: &CpuLoad| {
        let CpuLoad { name, count, percent, .. } = load;
        format!(
            "[{name}]: {count} threads load the CPU at {percent} % until the other jobs have ended; they count as CPU time of these"
        )
    };
    notes.extend(loads.iter().map(of_load));
    notes
}

/// Sets it, whatever ends its scope.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// All clones of all jobs at once, each on a thread. The number says which job a result is of. Where one fails, servers that still wait for a
/// client end. The loads end with the jobs.
fn run_all(args: &RunArgs, jobs: &[Job], loads: &[CpuLoad]) -> Result<Vec<(usize, JobResult)>> {
    let (has_failed, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let _guard = SetOnDrop(&is_over);
        for load in loads {
            for _ in 0..load.count {
                scope.spawn(|| load.run(&is_over));
            }
        }
        let mut threads = Vec::new();
        for (place, job) in jobs.iter().enumerate() {
            for index in 0..job.count {
                let has_failed = &has_failed;
                let run = move || {
                    let done = run_one(args, job, index, has_failed);
                    has_failed.fetch_or(done.is_err(), Ordering::Relaxed);
                    done.with_context(|| format!("[{}], job {index}", job.name))
                };
                threads.push((place, scope.spawn(run)));
            }
        }
        let ended = threads
            .into_iter()
            .map(|(place, thread)| (place, thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))));
        let mut results = Vec::new();
        for (place, done) in ended.collect::<Vec<_>>() {
            results.extend(done?.map(|result| (place, result)));
        }
        Ok(results)
    })
}

/// `None` of a server that had no client when another job failed.
fn run_one(args: &RunArgs, job: &Job, index: u16, has_failed: &AtomicBool) -> Result<Option<JobResult>> {
    let address = format!("{}://{}:{}", args.transport.scheme(), host(&job.server_ip), job.port + index);
    match job.engine {
        IoEngine::ApmServer | IoEngine::GpspmServer => {
            let listening = server::listen(job, &address, index, args.transport, args.trust_network)?;
            complain(&format!("pmof bench run: [{}] listens on {address}", job.name));
            listening.serve(job, has_failed)
        }
        IoEngine::ApmClient | IoEngine::GpspmClient => client::run(job, &address, index, args.transport).map(Some),
    }
}

/// As part of an address.
fn host(ip: &str) -> String {
    if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() }
}
