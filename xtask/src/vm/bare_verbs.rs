//! `testbed/bare-verbs`: a C program on rdma-core alone.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;

use super::{
    modelled::{Modelled, Referees, shadow},
    referees::{NEW, ZERO, cut_when_ready, expect},
    report::Report,
    testbed::Testbed,
    tools,
};

/// What a power cut leaves of remote writes to device-DAX over soft-RoCE, whose inbound writes the target's CPU copies
/// into its caches. In the order of the program's pages.
const ROWS: [(&str, u64); 6] = [
    ("WRITE is lost", ZERO),
    ("WRITE and READ (read-after-write) is lost", ZERO),
    ("WRITE and FLUSH for global visibility is lost", ZERO),
    ("WRITE and FLUSH for persistence is kept", NEW),
    ("ATOMIC WRITE is lost", ZERO),
    ("ATOMIC WRITE and FLUSH for persistence is kept", NEW),
];

/// Compiles the program for the guest, into a directory that exists. Needs a C compiler.
pub(super) fn build(testbed: &Testbed, directory: &Path) -> Result<PathBuf> {
    let program = directory.join("bare-verbs");
    let mut sysroot = std::ffi::OsString::from("--sysroot=");
    sysroot.push(testbed.sysroot()?);
    let mut compiler = Command::new("cc");
    compiler
        .arg(sysroot)
        // The guest's libraries are younger than the host's C library.
        .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-Wl,--allow-shlib-undefined", "-o"])
        .args([&program, &testbed.workspace().join("testbed/bare-verbs/bare-verbs.c")])
        .args(["-libverbs", "-lrdmacm"]);
    tools::run(&mut compiler)?;
    Ok(program)
}

/// Does each row, cuts the power, and looks at the medium.
pub(super) fn rows(testbed: &Testbed, referees: &Referees, report: &mut Report) -> Result<()> {
    let modelled = Modelled::new(testbed)?;
    let machine = modelled
        .machine(testbed, referees, &modelled.options()?)
        .bring(&build(testbed, modelled.directory())?)
        .command(
            "bare-verbs server $PMOF_WIRE_B 7300 $PMOF_DEVDAX 2097152 >/run/server &
             until grep -q listening /run/server; do sleep 0.1; done
             exec bare-verbs rows $PMOF_WIRE_A $PMOF_WIRE_B 7300",
        );
    cut_when_ready(machine)?;
    report.test("RDMA: the model followed every write-back", modelled.followed().map(drop));
    let live = &modelled.media().devdax;
    for ((name, medium), row) in ROWS.into_iter().zip(0..) {
        let outcome = expect(live, row, NEW).and_then(|()| expect(&shadow(live), row, medium));
        report.test(&format!("RDMA: {name}"), outcome);
    }
    Ok(())
}
