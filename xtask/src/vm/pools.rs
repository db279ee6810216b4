//! Pools over verbs by the commands of pmof: receipts, refusals, the demo, CXL memory, and a machine without rdma-core.

use anyhow::{Context as _, Result};

use super::{
    guest_suite::run_checks,
    machine::{Machine, Persistence},
    options,
    report::Report,
    testbed::Testbed,
};

pub(super) fn run(testbed: &Testbed, report: &mut Report) -> Result<()> {
    let pmof = options::pmof(testbed, true)?.context("cargo made no release binary of pmof")?;
    let machine = Machine::new(testbed).bring(&pmof);
    run_checks(machine.clone(), "pools.sh", report)?;
    run_checks(machine.cxl().persistence(Persistence::Cpu), "pools.sh", report)
}
