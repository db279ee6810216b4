//! `pmof doctor`.

use std::path::{Path, PathBuf};

use anyhow::bail;
use pmof::{
    Durability,
    mem::{MediumProbe, PersistenceDomain, RegionProbe, SYSFS_ROOT, probe, probe_cpu, probe_regions},
};
use rustix::process::{Resource, getrlimit};
use serde::Serialize;

use crate::output::{self, LevelReport};

mod text;

/// Transports of the design, and what keeps this version from them.
const TRANSPORTS: [(&str, Option<&str>); 5] = [
    ("tcp", None),
    ("shm", Some(NOT_IN_THIS_VERSION)),
    ("verbs", Some(NOT_IN_THIS_VERSION)),
    ("fabric", Some(NOT_IN_THIS_VERSION)),
    ("rds", Some(NOT_IN_THIS_VERSION)),
];
const NOT_IN_THIS_VERSION: &str = "not in this version";

/// Says what this machine can promise, on what evidence, and what to change.
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Directories and files to ask about; this directory, the one for temporary files and /dev/shm unless given
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    cpu: CpuReport,
    persistent_memory: Vec<RegionReport>,
    /// Why persistent memory could not be asked about.
    persistent_memory_error: Option<String>,
    media: Vec<MediumReport>,
    transports: Vec<TransportReport>,
    limits: LimitsReport,
}

#[derive(Debug, Serialize)]
struct CpuReport {
    model: String,
    has_clwb: bool,
    has_clflushopt: bool,
    /// The instruction that pmof uses for persistent memory, if there is one.
    write_back: Option<String>,
    cache_line_bytes: usize,
}

#[derive(Debug, Serialize)]
struct RegionReport {
    name: String,
    persistence_domain: String,
    is_virtio: bool,
    meaning: &'static str,
}

#[derive(Debug, Serialize)]
struct MediumReport {
    path: String,
    error: Option<String>,
    medium: Option<String>,
    file_system: Option<String>,
    levels: Vec<LevelReport>,
    evidence_found: Vec<String>,
    mend: Option<String>,
}

#[derive(Debug, Serialize)]
struct TransportReport {
    name: &'static str,
    available: bool,
    why: Option<&'static str>,
}

/// `None` is no limit.
#[derive(Debug, Serialize)]
struct LimitsReport {
    open_files: Option<u64>,
    open_files_most: Option<u64>,
    locked_memory_bytes: Option<u64>,
    cpus: usize,
}

pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    let defaults = [PathBuf::from("."), std::env::temp_dir(), PathBuf::from("/dev/shm")];
    let paths: &[PathBuf] = if args.paths.is_empty() { &defaults } else { &args.paths };
    let report = Report::new(paths);
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&report.text())?;
    }
    // A default that cannot be asked is a finding; a path that somebody named is a failure.
    let failed: Vec<_> = report.media.iter().filter_map(|medium| medium.error.as_deref()).collect();
    if args.paths.is_empty() || failed.is_empty() { Ok(()) } else { bail!("{}", failed.join("\npmof: ")) }
}

impl Report {
    fn new(paths: &[PathBuf]) -> Self {
        let (regions, persistent_memory_error) = match probe_regions(Path::new(SYSFS_ROOT)) {
            Ok(regions) => (regions, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        let cpu = probe_cpu();
        let open_files = getrlimit(Resource::Nofile);
        Self {
            cpu: CpuReport {
                model: cpu.model,
                has_clwb: cpu.has_clwb,
                has_clflushopt: cpu.has_clflushopt,
                write_back: cpu.write_back.map(|instruction| instruction.to_string()),
                cache_line_bytes: cpu.line_bytes,
            },
            persistent_memory: regions.iter().map(RegionReport::new).collect(),
            persistent_memory_error,
            media: paths.iter().map(|path| MediumReport::new(path)).collect(),
            transports: TRANSPORTS
                .map(|(name, why)| TransportReport { name, available: why.is_none(), why })
                .into_iter()
                .collect(),
            limits: LimitsReport {
                open_files: open_files.current,
                open_files_most: open_files.maximum,
                locked_memory_bytes: getrlimit(Resource::Memlock).current,
                cpus: std::thread::available_parallelism().map_or(1, usize::from),
            },
        }
    }
}

impl RegionReport {
    fn new(region: &RegionProbe) -> Self {
        let meaning = match (region.is_virtio, region.domain) {
            (true, _) => "virtual persistent memory: durable by fsync only",
            (false, PersistenceDomain::CpuCache) => "CPU caches survive loss of power (eADR): a fence is enough",
            (false, PersistenceDomain::MemoryController) => {
                "what left the CPU caches survives loss of power: cache lines must be written back"
            }
            (false, PersistenceDomain::Unknown) => "the kernel does not say what survives loss of power",
        };
        Self {
            name: region.name.clone(),
            persistence_domain: region.domain.to_string(),
            is_virtio: region.is_virtio,
            meaning,
        }
    }
}

impl MediumReport {
    fn new(path: &Path) -> Self {
        let shown = path.display().to_string();
        match probe(path) {
            Ok(probe) => Self {
                path: shown,
                error: None,
                medium: Some(probe.kind.to_string()),
                file_system: Some(probe.file_system.clone()),
                levels: Durability::ALL.iter().map(|level| level_report(*level, &probe)).collect(),
                evidence_found: probe.evidence,
                mend: probe.mend,
            },
            Err(error) => Self {
                path: shown,
                error: Some(format!("cannot ask about {}: {error}", path.display())),
                medium: None,
                file_system: None,
                levels: Vec::new(),
                evidence_found: Vec::new(),
                mend: None,
            },
        }
    }
}

/// The mechanism is known of the strongest level; what reaches it reaches the weaker ones.
fn level_report(level: Durability, probe: &MediumProbe) -> LevelReport {
    let promise = (level == probe.strongest).then_some(probe.promise);
    LevelReport::new(level, level <= probe.strongest, promise)
}
