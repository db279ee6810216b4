//! `pmof doctor` on stacks of media that the guest builds (`testbed/guest/media.sh`).

use std::fs::File;

use anyhow::{Context as _, Result};

use super::{
    guest_suite::run_checks,
    machine::{DiskSource, Machine},
    options,
    suites::Report,
    testbed::Testbed,
};

/// The size of the disk that stacks are built on, in bytes.
const SPARE_BYTES: u64 = 128 << 20;

pub(super) fn run(testbed: &Testbed, report: &mut Report) -> Result<()> {
    let pmof = options::pmof(testbed, true)?.context("cargo made no release binary of pmof")?;
    let directory = testbed.run_directory()?;
    let spare = directory.path().join("spare");
    File::create(&spare)?.set_len(SPARE_BYTES)?;
    let machine = Machine::new(testbed).bring(&pmof).disk("spare", DiskSource::File(spare));
    // The guest has all that the stacks are made of: what cannot be built there is a failure.
    run_checks(machine.environment("PMOF_MEDIA_ALL", "1"), "media.sh", report)
}
