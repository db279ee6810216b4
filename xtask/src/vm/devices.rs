//! The tests that need RDMA devices and persistent memory: those of the bindings, of the safe layer above them, and the conformance
//! suite of the access layer on every medium and, where it matters, in a machine that keeps the contents of the CPU's caches.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

use super::{
    machine::{Machine, Persistence},
    report::Report,
    running::{End, Finished},
    testbed::Testbed,
    tools,
};
use crate::{
    counts::{Counts, Runner},
    skips::Skips,
};

/// Time for all of them on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(1500);

/// One run of a test binary: its name, what it is told by the environment, and which of its tests.
struct Run {
    what: &'static str,
    package: &'static str,
    target: &'static str,
    environment: &'static str,
    /// Commands before it, in a shell of its own.
    before: &'static str,
    /// Put before the command: a checker, say.
    under: &'static str,
    tests: &'static str,
}

const PLAIN: Run = Run {
    what: "",
    package: "pmof-access",
    target: "conformance_verbs",
    environment: "",
    before: "",
    under: "",
    tests: "",
};

/// Devices that others do not want to see: made last.
const IWARP: &str = ". /host/guest/iwarp.sh &&";

/// All but the two halves of a power cut, which are the suite `ring-cuts`'.
const NOT_OF_CUTS: &str = "--skip the_power_";

/// Tests of the conformance suite that depend on what a region lies on.
const OF_MEDIA: &str = "verbs::regions verbs::transfers verbs::flushing verbs::completions";

/// Those of them that every run has on a medium after the first one: what a flush promises there, and whose memory it is.
const OF_FURTHER_MEDIA: &str = "verbs::flushing verbs::regions::the_target verbs::transfers::bytes_arrive";

/// Those that every run has over iWARP: what differs there is how connections begin and end, and what a device can do.
const OF_IWARP: &str = "verbs::connecting verbs::ending verbs::flushing verbs::transfers::bytes_arrive \
    verbs::transfers::operations verbs_only::over_iwarp";

const DEVDAX: &str = "PMOF_MEDIUM=devdax";
const FSDAX: &str = "PMOF_MEDIUM=fsdax";
const TMPFS: &str = "PMOF_MEDIUM=tmpfs";

const MEMCHECK: &str = "valgrind -q --leak-check=full --show-leak-kinds=definite,indirect \
    --errors-for-leak-kinds=definite,indirect --suppressions=/host/bin/memcheck.supp --error-exitcode=9";

/// Without the number of its connections.
const MEMCHECK_RUN: Run = Run {
    package: "pmof-verbs",
    target: "device",
    under: MEMCHECK,
    tests: "lifetimes::connections_come_and_go",
    ..PLAIN
};

/// Without what of them runs.
const EXAMPLES: Run = Run { package: "pmof", target: "examples", environment: "PMOF_EXAMPLES=/host/bin", ..PLAIN };

/// All but the conformance suite.
const RUNS: &[Run] = &[
    // First: they write to no device-DAX on which others have left something. What is typed wrongly, and pools over tcp, are no matter
    // of devices.
    Run {
        what: "examples, verbs, every medium",
        // Every run kills examples over tcp, and a soak does over verbs. The suite `pools` kills targets of pools over verbs.
        tests: "--skip wrong:: --skip pools:: --skip killed::",
        ..EXAMPLES
    },
    Run {
        what: "bindings",
        package: "pmof-verbs-sys",
        target: "device",
        environment: "PMOF_VERBS_DEVICE=rxe0",
        ..PLAIN
    },
    Run { what: "safe layer", package: "pmof-verbs", target: "device", ..PLAIN },
    Run { what: "a hundred connections under memcheck", environment: "PMOF_VERBS_CYCLES=100", ..MEMCHECK_RUN },
    Run { what: "shm on persistent memory", target: "shm", tests: "persistent_memory --ignored", ..PLAIN },
    Run {
        what: "pools of pool sets, verbs",
        package: "pmof-pool",
        target: "remote",
        environment: "PMOF_TEST_LISTEN=verbs://$PMOF_WIRE_B:0",
        ..PLAIN
    },
    Run {
        what: "pools after a failed flush",
        package: "pmof-pool",
        target: "failed_flush",
        environment: "PMOF_THIN_DISK=required",
        before: "modprobe loop &&",
        ..PLAIN
    },
    Run {
        what: "pools whose pages cannot be loaded",
        package: "pmof-pool",
        target: "unreadable",
        environment: "PMOF_THIN_DISK=required",
        before: "modprobe loop &&",
        ..PLAIN
    },
    Run {
        what: "librpma: memory that is deregistered in use",
        package: "pmof-rpma",
        target: "deregistering",
        environment: "PMOF_TEST_ADDRESS=$PMOF_WIRE_B",
        // What is written to the memory, which is the worse: a round takes a third of a second here.
        tests: "writes_of nor_do_answers",
        ..PLAIN
    },
    Run {
        what: "safe layer, iWARP",
        package: "pmof-verbs",
        target: "device",
        before: IWARP,
        tests: "every_operation_does classic_posting only_what_is_signaled two_connections a_completion_makes lifetimes",
        ..PLAIN
    },
];

/// The conformance suite: whole on one medium of one kind of device, and of each other what is different there.
const CONFORMANCE: &[Run] = &[
    Run { what: "verbs, DRAM", tests: NOT_OF_CUTS, ..PLAIN },
    Run { what: "verbs, devdax", environment: DEVDAX, tests: OF_FURTHER_MEDIA, ..PLAIN },
    Run { what: "verbs, fsdax", environment: FSDAX, tests: OF_FURTHER_MEDIA, ..PLAIN },
    Run { what: "verbs, tmpfs", environment: TMPFS, tests: OF_FURTHER_MEDIA, ..PLAIN },
    // There are no rings.
    Run { what: "iWARP", before: IWARP, tests: OF_IWARP, ..PLAIN },
];

/// The same over libfabric, where what the provider does differs: on the loopback interface, and on soft-RoCE. Its verbs must not keep
/// what was registered.
const LIBFABRIC: &[Run] = &[
    Run { what: "tcp", tests: OF_LIBFABRIC_TCP, ..LIBFABRIC_RUN },
    Run { what: "verbs, connected endpoints", environment: NO_CACHE, tests: OF_LIBFABRIC_VERBS, ..LIBFABRIC_RUN },
    Run {
        what: "verbs, with what it refuses",
        environment: "FI_UNIVERSE_SIZE=32",
        tests: "fabrics::with_a_cache fabrics::with_receives",
        ..LIBFABRIC_RUN
    },
    Run {
        what: "verbs;ofi_rxm, with more peers than a queue has room for",
        environment: "FI_MR_CACHE_MAX_COUNT=0 FI_OFI_RXM_USE_SRX=1",
        tests: "fabrics::with_many_peers",
        ..LIBFABRIC_RUN
    },
];

/// All of it, which every run leaves out.
const LIBFABRIC_SOAK: &[Run] = &[
    Run {
        what: "tcp",
        tests: "fabric_tcp fabric_net fabrics:: --skip fabrics::with --skip fabrics::on_the_wire",
        ..LIBFABRIC_RUN
    },
    Run { what: "verbs, connected endpoints", environment: NO_CACHE, tests: "fabric_verbs_msg::", ..LIBFABRIC_RUN },
    // Its endpoints take so long to make that several are not opened within the connect timeout.
    Run {
        what: "verbs;ofi_rxm",
        environment: RXM,
        tests: "fabric_verbs:: --skip fabric_verbs::messages::connections_share_receives",
        ..LIBFABRIC_RUN
    },
];

const LIBFABRIC_RUN: Run = Run { target: "conformance_libfabric", before: "ulimit -n 8192 &&", ..PLAIN };

/// What libfabric's verbs keeps registered is within reach of peers.
const NO_CACHE: &str = "FI_MR_CACHE_MAX_COUNT=0";

/// As small as `ofi_rxm` can be made: with its defaults two connections take all memory of the machine.
const RXM: &str = "FI_MR_CACHE_MAX_COUNT=0 FI_UNIVERSE_SIZE=32 FI_OFI_RXM_USE_SRX=1 FI_OFI_RXM_BUFFER_SIZE=8300 \
    FI_OFI_RXM_MSG_RX_SIZE=128 FI_OFI_RXM_MSG_TX_SIZE=128 FI_OFI_RXM_TX_SIZE=256 FI_OFI_RXM_RX_SIZE=256";

/// What a provider does itself, in seconds.
const OF_LIBFABRIC_TCP: &str = "fabric_tcp::regions fabric_tcp::flushing fabric_tcp::transfers::operations \
    fabric_tcp_msg::regions fabric_tcp_msg::transfers::operations fabrics:: --skip fabrics::with --skip fabrics::on_the_wire";
const OF_LIBFABRIC_VERBS: &str = "fabric_verbs_msg::regions fabric_verbs_msg::flushing fabric_verbs_msg::connecting \
    fabric_verbs_msg::ending fabric_verbs_msg::transfers::operations fabrics::on_the_wire";

/// That of the machine that keeps the contents of its caches.
const WITH_CACHES_KEPT: &[Run] = &[Run { what: "rings, caches kept", tests: "rings:: --skip the_power_", ..PLAIN }];

/// The conformance suite over RDS, whose modules nothing else loads.
const RDS_RUN: Run =
    Run { target: "conformance_rds", before: "ulimit -n 8192 && modprobe -a rds rds_rdma sch_netem &&", ..PLAIN };

const RDS: &[Run] = &[
    Run { what: "rds, memory by cookies", package: "pmof-rds", target: "device", ..RDS_RUN },
    Run { what: "rds, devices", environment: "PMOF_RDS_ADDRESS=$PMOF_WIRE_B", tests: NOT_OF_LINKS, ..RDS_RUN },
    Run { what: "rds, loopback", tests: "rds::messages rds::transfers", ..RDS_RUN },
];

/// A link that is cut, by itself: it takes minutes.
const RDS_SOAK: &[Run] = &[
    Run { what: "rds, loopback, all", tests: NOT_OF_LINKS, ..RDS_RUN },
    Run { what: "rds, a link that is cut", tests: "rds_cuts", ..RDS_RUN },
];

const NOT_OF_LINKS: &str = "--skip rds_cuts";

/// What every run leaves out.
const SOAK: &[Run] = &[
    Run { what: "examples that are killed, verbs, every medium", tests: "killed::", ..EXAMPLES },
    Run { what: "a thousand connections under memcheck", environment: "PMOF_VERBS_CYCLES=1000", ..MEMCHECK_RUN },
    Run { what: "verbs, devdax, all of media", environment: DEVDAX, tests: OF_MEDIA, ..PLAIN },
    Run { what: "verbs, fsdax, all of media", environment: FSDAX, tests: OF_MEDIA, ..PLAIN },
    Run { what: "verbs, tmpfs, all of media", environment: TMPFS, tests: OF_MEDIA, ..PLAIN },
    Run { what: "iWARP, all but rings", before: IWARP, tests: "verbs:: verbs_only::", ..PLAIN },
];

impl Run {
    /// The file's name in the machine: targets of several packages have the same.
    fn file_name(&self) -> String {
        format!("{}-{}", self.package, self.target)
    }
}

pub(super) fn run(testbed: &Testbed, report: &mut Report) -> Result<()> {
    report.test(
        "every structure is laid out as in the headers of rdma-core",
        layout("pmof-verbs-sys", "PMOF_RDMA_HEADERS", testbed),
    );
    let staged = testbed.run_directory()?;
    run_in(testbed, with_examples(testbed, staged.path(), "devices: ")?, RUNS, report)
}

/// The conformance suite of the access layer.
pub(super) fn run_conformance(testbed: &Testbed, report: &mut Report) -> Result<()> {
    let machine = machine(testbed, "conformance: ");
    run_in(testbed, machine.clone(), CONFORMANCE, report)?;
    run_in(testbed, machine.persistence(Persistence::Cpu), WITH_CACHES_KEPT, report)
}

/// The conformance suite of the access layer over RDS.
pub(super) fn run_rds(testbed: &Testbed, report: &mut Report) -> Result<()> {
    run_in(testbed, machine(testbed, "rds: "), RDS, report)
}

/// What [`run_rds`] leaves out.
pub(super) fn run_rds_soak(testbed: &Testbed, report: &mut Report) -> Result<()> {
    run_in(testbed, machine(testbed, "rds-soak: "), RDS_SOAK, report)
}

/// The conformance suite over libfabric, as new as the guest's Debian has it.
pub(super) fn run_libfabric(testbed: &Testbed, report: &mut Report) -> Result<()> {
    report.test(
        "libfabric's structures are laid out as in the guest's headers",
        layout("pmof-fabric-sys", "PMOF_FABRIC_HEADERS", testbed),
    );
    run_in(testbed, machine(testbed, "libfabric: "), LIBFABRIC, report)
}

/// What [`run_libfabric`] leaves out.
pub(super) fn run_libfabric_soak(testbed: &Testbed, report: &mut Report) -> Result<()> {
    run_in(testbed, machine(testbed, "libfabric-soak: "), LIBFABRIC_SOAK, report)
}

/// What [`run`] and [`run_conformance`] leave out.
pub(super) fn run_soak(testbed: &Testbed, report: &mut Report) -> Result<()> {
    let staged = testbed.run_directory()?;
    run_in(testbed, with_examples(testbed, staged.path(), "devices-soak: ")?, SOAK, report)
}

/// A machine to which the examples are brought, by this directory.
fn with_examples<'a>(testbed: &'a Testbed, staged: &Path, prefix: &'static str) -> Result<Machine<'a>> {
    // `cargo test --examples` would build the tests of examples.
    let examples = build(testbed.workspace(), ["build", "--examples"])?;
    let mut machine = machine(testbed, prefix);
    for (_, example) in examples.iter().filter(|(_, file)| is_example(file)) {
        let name = example.file_name().context("a program has a name")?;
        let file = staged.join(name);
        strip(example, &file)?;
        machine = machine.bring(&file);
    }
    Ok(machine)
}

fn machine<'a>(testbed: &'a Testbed, prefix: &'static str) -> Machine<'a> {
    Machine::new(testbed).show_output(prefix).bring(&testbed.workspace().join(SUPPRESSIONS))
}

fn run_in(testbed: &Testbed, mut machine: Machine, runs: &[Run], report: &mut Report) -> Result<()> {
    let mut targets: Vec<_> = runs.iter().map(|run| run.target).collect();
    targets.sort_unstable();
    targets.dedup();
    let tests = ["test", "--no-run"].into_iter().chain(targets.iter().flat_map(|target| ["--test", target]));
    let binaries = build(testbed.workspace(), tests)?;
    let staged = testbed.run_directory()?;
    for run in runs {
        let file = staged.path().join(run.file_name());
        if !file.exists() {
            let built = binaries.iter().find(|(name, _)| *name == run.file_name());
            let (_, built) = built.with_context(|| format!("cargo built no test {}", run.file_name()))?;
            strip(built, &file)?;
            machine = machine.bring(&file);
        }
    }
    let finished = machine.command(script(runs)).start()?.wait(TIMEOUT)?;
    let text = finished.text();
    for (run, part) in runs.iter().zip(parts(&text)) {
        report_part(report, run.what, part, Runner::Libtest, &finished);
    }
    ensure!(finished.end == End::Exited(0), "the machine: {}", finished.explain());
    Ok(())
}

/// Counts what one run of several in a machine printed, how it exited, and how long it took there.
pub(super) fn report_part(report: &mut Report, what: &str, part: &str, runner: Runner, finished: &Finished) {
    let mut counts = Counts::default();
    part.lines().filter_map(|line| runner.counts_of_line(line)).for_each(|found| counts += found);
    if runner == Runner::Libtest {
        counts = Skips::of_lines(part).taken_from(counts);
    }
    let outcome = match part.lines().find_map(|line| line.strip_prefix(EXIT_MARK)) {
        Some("0") => Ok(()),
        Some(status) => Err(anyhow::anyhow!("it exited with {status}; see above")),
        None => Err(anyhow::anyhow!("it did not end: {}", finished.explain())),
    };
    let seconds = part.lines().find_map(|line| line.strip_prefix(SECONDS_MARK)?.parse().ok());
    report.counted(what, counts, seconds, outcome);
}

const SUPPRESSIONS: &str = "crates/pmof-verbs/tests/memcheck.supp";

const START_MARK: &str = "==== ";
const EXIT_MARK: &str = "---- exit ";
const SECONDS_MARK: &str = "---- seconds ";

/// The shell's commands for one run of several in a machine, between the marks that [`report_part`] reads. The name is without an
/// apostrophe.
pub(super) fn script_of_part(what: &str, commands: &str) -> String {
    debug_assert!(!what.contains('\''), "{what}");
    format!(
        "echo '{START_MARK}{what}'; SECONDS=0\n({commands}) 2>&1\necho '{EXIT_MARK}'$?; echo \"{SECONDS_MARK}$SECONDS\"\n"
    )
}

/// The built conformance suite over verbs.
pub(super) fn conformance(testbed: &Testbed) -> Result<PathBuf> {
    let built = build(testbed.workspace(), ["test", "--no-run", "--test", PLAIN.target])?;
    let name = PLAIN.file_name();
    let found = built.into_iter().find(|(built, _)| *built == name);
    Ok(found.with_context(|| format!("cargo built no test {name}"))?.1)
}

/// Runs all binaries, one after the other: they share devices, and some cut the wire.
fn script(runs: &[Run]) -> String {
    let part = |run: &Run| {
        let Run { what, environment, before, under, tests, .. } = run;
        let file = run.file_name();
        // A checker does not look for its program on the search path.
        let program = if under.is_empty() { file } else { format!("/host/bin/{file}") };
        let command = format!("timeout -s KILL 600 {under} {program} --test-threads=1 --show-output {tests}");
        script_of_part(what, &format!("{before} {environment} {command}"))
    };
    runs.iter().map(part).collect()
}

/// The output of each run.
pub(super) fn parts(output: &str) -> impl Iterator<Item = &str> {
    output.split(START_MARK).skip(1)
}

/// Compares the bindings with the guest's headers, which know all operations; those of the host may be too old.
fn layout(package: &str, variable: &str, testbed: &Testbed) -> Result<()> {
    // Alone: the guest's C library is no matter of the host's compiler.
    let headers = testbed.run_directory()?;
    let of_guest = testbed.sysroot()?.join("usr/include");
    for name in ["infiniband", "rdma"] {
        let link = headers.path().join(name);
        std::os::unix::fs::symlink(of_guest.join(name), &link)
            .with_context(|| format!("linking {}", link.display()))?;
    }
    let status = Command::new("cargo")
        .args(["test", "--quiet", "--package", package, "--test", "layout"])
        .env(variable, headers.path())
        .current_dir(testbed.workspace())
        .status()
        .context("starting cargo")?;
    ensure!(status.success(), "cargo test --test layout: {status}");
    Ok(())
}

/// Copies a program without its debug information, which checkers in a machine would read for minutes.
fn strip(program: &Path, to: &Path) -> Result<()> {
    tools::run(tools::command("strip").arg("-o").arg(to).arg(program))?;
    Ok(())
}

/// Builds what a command of cargo names, as the tests were built that need no machine; each program has the name of its package and target.
fn build<'a>(workspace: &Path, command: impl IntoIterator<Item = &'a str>) -> Result<Vec<(String, PathBuf)>> {
    let output = Command::new("cargo")
        .args(command)
        .args(["--workspace", "--message-format", "json"])
        .current_dir(workspace)
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("starting cargo")?;
    ensure!(output.status.success(), "building the tests that run in machines: {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(built).collect())
}

/// Cargo puts examples into a directory of their own.
fn is_example(program: &Path) -> bool {
    program.parent().is_some_and(|directory| directory.ends_with("examples"))
}

/// The program that a message of cargo names, if it names one, and the name of its package and target.
fn built(message: &str) -> Option<(String, PathBuf)> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let executable = message.get("executable")?.as_str()?;
    let target = message.get("target")?.get("name")?.as_str()?;
    // `path+file:///w/crates/pmof-verbs#0.1.0`, or `path+file:///w/capi/rpma#pmof-rpma@0.1.0`.
    let (path, fragment) = message.get("package_id")?.as_str()?.rsplit_once('#')?;
    let package = match fragment.split_once('@') {
        Some((package, _)) => package,
        None => path.rsplit_once('/')?.1,
    };
    Some((format!("{package}-{target}"), PathBuf::from(executable)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_programs_are_read() {
        let message = |package: &str, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"{package}","target":{{"name":"device"}},"executable":{executable}}}"#
            )
        };
        let file = PathBuf::from("/t/deps/device-12ab");
        let of = |package: &str| built(&message(package, r#""/t/deps/device-12ab""#));
        assert_eq!(of("path+file:///w/crates/pmof-verbs#0.1.0"), Some(("pmof-verbs-device".to_owned(), file.clone())));
        assert_eq!(of("path+file:///w/capi/rpma#pmof-rpma@0.1.0"), Some(("pmof-rpma-device".to_owned(), file)));
        assert_eq!(built(&message("path+file:///w/crates/pmof-verbs#0.1.0", "null")), None);
        assert_eq!(built(r#"{"reason":"build-finished","success":true}"#), None);
    }

    #[test]
    fn every_run_has_its_part_of_the_output() {
        let script = script(RUNS);
        assert_eq!(script.matches(START_MARK).count(), RUNS.len());
        let output = format!("{START_MARK}a\nrunning\n{EXIT_MARK}0\n{START_MARK}b\n{EXIT_MARK}101\n");
        let parts: Vec<_> = parts(&output).collect();
        assert_eq!(parts.len(), 2);
        assert!(parts[1].contains("101"));
    }
}
