//! Programs for librpma over verbs, with our library and with Debian's: what both do alike is what the judges expect.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};

use super::{
    devices::{EXIT_MARK, START_MARK, parts, report_part},
    librpma::Fio,
    machine::Machine,
    running::End,
    suites::Report,
    testbed::Testbed,
};
use crate::{capi, counts::Runner};

/// Time for one machine with all that it runs.
const TIMEOUT: Duration = Duration::from_mins(25);

/// One program in a machine; its last line are its counts.
struct Run {
    /// Without an apostrophe: a shell writes it.
    what: &'static str,
    script: String,
}

/// The cells of fio's matrix that an emulated machine does in a few minutes: each engine with each access.
const CELLS: &str = "4096 B, depth 8, 1 threads";

pub(super) fn run(testbed: &Testbed, report: &mut Report) -> Result<()> {
    let staged = testbed.run_directory()?;
    let program = testbed.build_rpma_check(staged.path())?;
    let reference = testbed.librpma_reference()?;
    let checks = [
        check("Debian 13: each function", "--reference --pmem $PMOF_DEVDAX $PMOF_WIRE_B"),
        check("Debian 13: each function, IPv6", "--reference --pmem $PMOF_DEVDAX $PMOF_IPV6"),
    ];
    run_in(testbed, Machine::new(testbed).bring(&program), &reference, &checks, report)?;

    let ours = fs::canonicalize(capi::build()?).context("finding the drop-in librpma")?;
    let fio = testbed.fio()?;
    let machine = with_fio(Machine::new(testbed).bring(&program), &fio)?;
    let checks = [
        check("ours: each function", "--pmem $PMOF_DEVDAX $PMOF_WIRE_B"),
        check("ours: each function, IPv6", "--pmem $PMOF_DEVDAX $PMOF_IPV6"),
        Run {
            what: "ours: engines of fio",
            script: format!(
                "cd /run && xtask fio matrix --fio /host/bin/fio --library /host/bin --transport verbs \
                 --address $PMOF_WIRE_B --medium $PMOF_DEVDAX --only '{CELLS}'"
            ),
        },
    ];
    run_in(testbed, machine, &ours, &checks, report)
}

fn check(what: &'static str, arguments: &str) -> Run {
    Run { what, script: format!("rpma-check {arguments}") }
}

/// fio, what it is linked to, and this program, which runs it.
fn with_fio<'a>(machine: Machine<'a>, fio: &Fio) -> Result<Machine<'a>> {
    let xtask = std::env::current_exe().context("finding xtask's own file")?;
    let brought = [fio.binary.clone(), xtask].into_iter().chain(fio.libraries()?);
    Ok(brought.fold(machine, |machine, file| machine.bring(&file)))
}

/// Runs all in one machine with the library of that directory.
fn run_in(testbed: &Testbed, machine: Machine, library: &Path, runs: &[Run], report: &mut Report) -> Result<()> {
    // What is brought is a file of this name, not a link to it.
    let staged = testbed.run_directory()?;
    let file = staged.path().join("librpma.so.0");
    fs::copy(library.join("librpma.so.0"), &file).with_context(|| format!("copying from {}", library.display()))?;
    let part = |run: &Run| {
        let Run { what, script } = run;
        debug_assert!(!what.contains('\''), "{what}");
        format!(
            "echo '{START_MARK}{what}'\n\
             (export LD_LIBRARY_PATH=/host/bin PMOF_TRANSPORT=verbs; {script}) 2>&1\n\
             echo '{EXIT_MARK}'$?\n"
        )
    };
    let script: String = runs.iter().map(part).collect();
    let finished = machine.bring(&file).command(script).start()?.wait(TIMEOUT)?;
    let text = finished.text();
    for (run, part) in runs.iter().zip(parts(&text)) {
        for line in part.lines().filter(|line| is_failure(line)) {
            println!("{}: {line}", run.what);
        }
        report_part(report, run.what, part, Runner::Closing, &finished);
    }
    ensure!(finished.end == End::Exited(0), "the machine: {}", finished.explain());
    Ok(())
}

/// What is worth showing of an output of a thousand lines.
fn is_failure(line: &str) -> bool {
    ["not ok ", "# returned ", "Bail out!", "FAILED ", "=="].iter().any(|begin| line.starts_with(begin))
}
