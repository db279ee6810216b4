//! `pmof doctor`.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::bail;
use pmof_console::{output, words};
use pmof_doctor::{FlushTimes, Platform, Report, examine};
use pmof_mem::{MediumProbe, System, causes, measure_sync, probe};

use crate::flush_method::flush_cache;

#[cfg_attr(not(feature = "fabric"), path = "doctor/without_fabric.rs")]
mod fabric;
#[cfg_attr(not(feature = "rds"), path = "doctor/without_rds.rs")]
mod rds;
#[cfg_attr(not(feature = "verbs"), path = "doctor/without_verbs.rs")]
mod verbs;

/// Say what this machine can promise, on what evidence, and what to change.
///
/// Every memory that can hold a pool is judged over every transport: mounted file systems, dax devices, memory of
/// processes. Nothing is written without `--measure`. In each named directory, a temporary file is created to ask the kernel and removed
/// afterwards: a file without a name; on overlayfs `.pmof-probe-PID-N`, since only a name leads to the underlying file there.
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Directories, files and devices to judge in addition to those found; the current directory by default
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// In each named directory, also measure how long writes and their flushes take by each system call, in a file of 8 MiB without a name.
    /// `pmof serve` chooses by what was measured
    #[arg(long)]
    measure: bool,
    /// How long each directory is measured, such as 30s. A slow or busy disk needs more
    #[arg(long, value_name = "TIME", default_value = "5s", requires = "measure", value_parser = words::time)]
    measure_time: Duration,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    let defaults = [PathBuf::from(".")];
    let paths: &[PathBuf] = if args.paths.is_empty() { &defaults } else { &args.paths };
    let (probes, mut errors) = probe_all(paths);
    let flush_times = if args.measure { measure_all(&probes, args.measure_time, &mut errors) } else { Vec::new() };
    let platform = Platform { system: System::real(), paths: probes, libfabric: fabric::ask(), rds: rds::ask() };
    let report = Report { flush_times, ..examine(&platform, &verbs::Verbs::ask()) };
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&report.to_string())?;
    }
    // A failure to judge the current directory is ignored; for a named path it is an error.
    if args.paths.is_empty() || errors.is_empty() { Ok(()) } else { bail!("{}", errors.join("\npmof: ")) }
}

/// Measures the directories among the places, and keeps what was found for `pmof serve`.
fn measure_all(probes: &[MediumProbe], limit: Duration, errors: &mut Vec<String>) -> Vec<FlushTimes> {
    let cache = flush_cache();
    let directories = probes.iter().map(|probe| probe.path.as_path()).filter(|path| path.is_dir());
    let mut measure = |path: &Path| match measure_sync(path, limit, true) {
        Ok(measurement) => {
            // A cache that cannot be written costs `pmof serve` a second.
            let _ = cache.as_ref().map(|cache| cache.remember(path, &measurement));
            Some(FlushTimes::new(path.display().to_string(), &measurement))
        }
        Err(error) => {
            errors.push(format!("cannot measure {}: {}", path.display(), causes(&error)));
            None
        }
    };
    directories.filter_map(&mut measure).collect()
}

fn probe_all(paths: &[PathBuf]) -> (Vec<MediumProbe>, Vec<String>) {
    let ask = |path: &Path| probe(path).map_err(|error| format!("cannot ask about {}: {error}", path.display()));
    let (mut probes, mut errors, mut asked) = (Vec::new(), Vec::new(), HashSet::new());
    for path in paths {
        // A place that is named twice or by two paths is judged once. A path that leads nowhere is an error each time.
        if fs::canonicalize(path).is_ok_and(|place| !asked.insert(place)) {
            continue;
        }
        match ask(path) {
            Ok(probe) => probes.push(probe),
            Err(error) => errors.push(error),
        }
    }
    (probes, errors)
}
