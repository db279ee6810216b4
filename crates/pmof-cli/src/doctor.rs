//! `pmof doctor`.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::bail;
use pmof::{
    access::{DeviceInfo, VerbsError, rdma_devices},
    mem::{MediumProbe, System, probe},
};
use pmof_doctor::{CapabilitiesUnknown, DeviceCapabilities, Platform, RdmaCapabilities, examine};

use crate::output;

/// Says what this machine can promise, on what evidence, and what to change.
///
/// Every memory that a pool could lie on is judged over every transport: mounted file systems, dax devices, memory of
/// processes. Nothing is written. In each directory that is named, a file is made to ask the kernel and is gone afterwards:
/// a file without a name; on overlayfs `.pmof-probe-PID-N`, since there only a name leads to the file that it is kept in.
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Directories, files and devices to ask about beside all that is found; this directory unless given
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    let defaults = [PathBuf::from(".")];
    let paths: &[PathBuf] = if args.paths.is_empty() { &defaults } else { &args.paths };
    let (paths, errors) = probe_all(paths);
    let report = examine(&Platform { system: System::real(), paths }, &Verbs(rdma_devices()));
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&report.to_string())?;
    }
    // That this directory cannot be asked is no failure; that a named one cannot, is.
    if args.paths.is_empty() || errors.is_empty() { Ok(()) } else { bail!("{}", errors.join("\npmof: ")) }
}

/// What libibverbs says of this machine's devices.
struct Verbs(Result<Vec<DeviceInfo>, VerbsError>);

impl RdmaCapabilities for Verbs {
    fn of(&self, device: &str) -> Result<DeviceCapabilities, CapabilitiesUnknown> {
        let failed = |why: String| CapabilitiesUnknown::Failed { why };
        let devices = match &self.0 {
            Ok(devices) => devices,
            Err(VerbsError::Library(_)) => return Err(CapabilitiesUnknown::LibraryMissing),
            Err(error) => return Err(failed(error.to_string())),
        };
        let found = devices.iter().find(|found| found.name == device);
        let found = found.ok_or_else(|| failed(format!("libibverbs has no driver for {device}")))?;
        Ok(DeviceCapabilities {
            has_flush_global: found.native_flush_global,
            has_flush_persistent: found.native_flush_persistent,
            has_atomic_write: found.atomic_write,
            has_on_demand_paging: found.on_demand_paging.serves_writes(),
            // Only a queue pair tells, and making one is no question.
            max_inline_bytes: None,
            max_qp_rd_atom: Some(found.max_responder_resources.into()),
            max_sge: Some(found.max_sge.into()),
            max_cqe: Some(found.max_completion_entries.into()),
            max_mr_bytes: Some(found.max_region_bytes),
        })
    }
}

fn probe_all(paths: &[PathBuf]) -> (Vec<MediumProbe>, Vec<String>) {
    let ask = |path: &Path| probe(path).map_err(|error| format!("cannot ask about {}: {error}", path.display()));
    let (mut probes, mut errors, mut asked) = (Vec::new(), Vec::new(), HashSet::new());
    for path in paths {
        // The same place by another path, or named again, is asked about once. What leads nowhere is an error each time.
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
