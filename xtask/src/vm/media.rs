//! `pmof doctor` on stacks of media that the guest builds (`testbed/guest/media.sh`).

use std::{fs::File, time::Duration};

use anyhow::{Context as _, Result};

use super::{
    guest_suite::run_checks_within,
    machine::{DiskSource, Machine},
    options,
    report::Report,
    testbed::Testbed,
};

/// The size of each disk that stacks are built on, in bytes.
const SPARE_BYTES: u64 = 128 << 20;

/// All stacks take ten to eleven minutes on two busy processors.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// Stacks for every run: those that ordinary machines have and hosts of this project cannot build, each kind once.
const SELECTION: &[&str] = &[
    "spare_disk",
    "disk_write_through",
    "fsdax",
    "dm_linear",
    "luks_detached",
    "lvm_on_luks",
    "lvm_thin",
    "ext4_journal_loop",
];

/// Every stack.
pub(super) fn all(testbed: &Testbed, report: &mut Report) -> Result<()> {
    run(testbed, report, &[])
}

/// The selection for every run.
pub(super) fn selection(testbed: &Testbed, report: &mut Report) -> Result<()> {
    run(testbed, report, SELECTION)
}

/// The stacks of these names; all where there is none.
fn run(testbed: &Testbed, report: &mut Report, names: &[&str]) -> Result<()> {
    let pmof = options::pmof(testbed, true)?.context("cargo made no release binary of pmof")?;
    let directory = testbed.run_directory()?;
    let mut machine = Machine::new(testbed).bring(&pmof);
    for name in ["spare", "other"] {
        let disk = directory.path().join(name);
        File::create(&disk)?.set_len(SPARE_BYTES)?;
        machine = machine.disk(name, DiskSource::File(disk));
    }
    // The guest has all that the stacks are made of: what cannot be built there is a failure.
    let machine = machine.environment("PMOF_MEDIA_ALL", "1").environment("PMOF_MEDIA_ONLY", &names.join(" "));
    run_checks_within(machine, "media.sh", TIMEOUT, report)
}
