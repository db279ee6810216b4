//! Which suites there are, in the order in which they run.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::{counts::Runner, msrv, unit, vm};

/// How a suite's outcome is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counting {
    /// As one: passed where the command exits with 0.
    AsOne,
    /// As the tests that the runner's output names.
    ByTest(Runner),
}

/// One thing to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    /// The program and its arguments.
    pub(crate) command: &'static [&'static str],
    pub(crate) environment: &'static [(&'static str, &'static str)],
    pub(crate) counting: Counting,
    /// Left out by `--quick`.
    pub(crate) slow: bool,
    /// What must hold, else the suite is skipped.
    pub(crate) needs: Need,
    /// In which row it runs beside suites of the other one; by itself where it is in none. For suites that keep one processor busy and
    /// share no file or port with those of the other row.
    pub(crate) row: Option<Row>,
}

/// One of two rows of suites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Row {
    First,
    Second,
}

/// What a suite cannot run without.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Need {
    Nothing,
    /// `cargo NAME` exists; else what installs it.
    CargoCommand(&'static str, &'static str),
    /// The release binary exists and has this command.
    PmofCommand(&'static str),
    /// Files of programs and libraries, each with what installs it.
    Files(&'static [(&'static str, &'static str)]),
    /// Virtual machines can be made and run.
    TestBed,
    /// Debian's own Rust can be fetched.
    DebianRust,
    /// A systemd can run in namespaces of its own.
    Systemd,
}

const SSHD: (&str, &str) = ("/usr/sbin/sshd", "apt-get install openssh-server openssh-client");
const VALGRIND: (&str, &str) = ("/usr/bin/valgrind", "apt-get install valgrind");
const LIBPMEMOBJ: (&str, &str) = ("/usr/include/libpmemobj.h", "apt-get install libpmemobj-dev");
const LIBPMEMPOOL: (&str, &str) = ("/usr/include/libpmempool.h", "apt-get install libpmempool-dev");

/// The release binary, from the root of the workspace.
const PMOF: &str = "target/release/pmof";

/// A suite that runs always and counts as one; the table names what differs.
const PLAIN: Suite = Suite {
    name: "",
    command: &[],
    environment: &[],
    counting: Counting::AsOne,
    slow: false,
    needs: Need::Nothing,
    row: None,
};

/// Every suite but the unit and integration tests, whose runner is chosen by [`suites`].
const BEFORE_TESTS: &[Suite] = &[
    Suite {
        name: "format",
        command: &["cargo", "fmt", "--all", "--check"],
        needs: Need::CargoCommand("fmt", "rustup component add rustfmt"),
        ..PLAIN
    },
    Suite {
        name: "lints",
        command: &["cargo", "clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"],
        needs: Need::CargoCommand("clippy", "rustup component add clippy"),
        ..PLAIN
    },
    Suite {
        // `--all-targets` leaves out what is built where it is named.
        name: "lints of tests on devices",
        command: &[
            "cargo",
            "clippy",
            "--workspace",
            "--all-features",
            "--test",
            "conformance_libfabric",
            "--test",
            "conformance_rds",
            "--test",
            "conformance_verbs",
            "--test",
            "device",
            "--",
            "-D",
            "warnings",
        ],
        needs: Need::CargoCommand("clippy", "rustup component add clippy"),
        ..PLAIN
    },
    Suite {
        name: "dependencies",
        command: &["cargo", "deny", "check", "bans", "licenses", "sources"],
        needs: Need::CargoCommand("deny", "cargo install --locked cargo-deny"),
        ..PLAIN
    },
    Suite {
        name: "lints without verbs",
        command: &[
            "cargo",
            "clippy",
            "-p",
            "pmof",
            "-p",
            "pmof-cli",
            "-p",
            "pmof-bench",
            "--no-default-features",
            "--",
            "-D",
            "warnings",
        ],
        needs: Need::CargoCommand("clippy", "rustup component add clippy"),
        ..PLAIN
    },
    Suite { name: "least Rust", command: &["cargo", "xtask", "msrv"], slow: true, needs: Need::DebianRust, ..PLAIN },
    Suite {
        name: "tests without verbs",
        command: &["cargo", "test", "-p", "pmof-access", "--no-default-features", "--lib"],
        ..PLAIN
    },
    Suite {
        name: "release build",
        // Of what later suites run, and of nothing else; and the drop-in libraries, linked from it.
        command: &["cargo", "xtask", "capi", "--with-programs"],
        slow: true,
        ..PLAIN
    },
];

const NEXTEST: Suite = Suite {
    name: "tests",
    command: &["cargo", "nextest", "run", "--workspace", "--no-fail-fast", "--no-tests", "pass"],
    counting: Counting::ByTest(Runner::Nextest),
    ..PLAIN
};

/// What a machine has that has only cargo.
const LIBTEST: Suite = Suite {
    name: "tests",
    command: &["cargo", "test", "--workspace", "--all-targets", "--no-fail-fast"],
    counting: Counting::ByTest(Runner::Libtest),
    ..PLAIN
};

const AFTER_TESTS: &[Suite] = &[
    Suite {
        name: "doc tests",
        command: &["cargo", "test", "--workspace", "--doc", "--no-fail-fast"],
        counting: Counting::ByTest(Runner::Libtest),
        ..PLAIN
    },
    Suite {
        name: "documentation",
        command: &["cargo", "doc", "--workspace", "--no-deps"],
        environment: &[("RUSTDOCFLAGS", "-D warnings")],
        ..PLAIN
    },
    Suite {
        name: "public interface",
        command: &["cargo", "xtask", "api"],
        counting: Counting::ByTest(Runner::Closing),
        ..PLAIN
    },
    Suite {
        name: "libfabric",
        // Each test says so where the library is missing. Of the whole workspace, as the tests were built: of one package cargo would
        // compile what it depends on once more.
        command: &[
            "cargo",
            "test",
            "--workspace",
            "--test",
            "conformance_libfabric",
            "--",
            // What needs RDMA devices.
            "--skip",
            "on_devices::",
            "--skip",
            "fabrics::with_",
            "--skip",
            "fabrics::on_the_wire",
        ],
        counting: Counting::ByTest(Runner::Libtest),
        slow: true,
        ..PLAIN
    },
    Suite {
        name: "readme",
        command: &["cargo", "xtask", "readme"],
        counting: Counting::ByTest(Runner::Closing),
        slow: true,
        needs: Need::Files(&[SSHD]),
        ..PLAIN
    },
    Suite {
        name: "librpma: functions over tcp",
        command: &["cargo", "xtask", "rpma", "check"],
        counting: Counting::ByTest(Runner::Closing),
        slow: true,
        needs: Need::TestBed,
        row: Some(Row::First),
        ..PLAIN
    },
    Suite {
        name: "librpma: functions over shm",
        command: &["cargo", "xtask", "rpma", "check", "--transport", "shm"],
        counting: Counting::ByTest(Runner::Closing),
        slow: true,
        needs: Need::TestBed,
        row: Some(Row::First),
        ..PLAIN
    },
    Suite {
        name: "librpma: races over tcp",
        command: &["cargo", "xtask", "rpma", "races"],
        counting: Counting::ByTest(Runner::Closing),
        slow: true,
        needs: Need::Files(&[VALGRIND]),
        row: Some(Row::First),
        ..PLAIN
    },
    Suite {
        name: "librpma: races over shm",
        command: &["cargo", "xtask", "rpma", "races", "--transport", "shm"],
        counting: Counting::ByTest(Runner::Closing),
        slow: true,
        needs: Need::Files(&[VALGRIND]),
        row: Some(Row::First),
        ..PLAIN
    },
    Suite {
        name: "librpma: interface",
        command: &["cargo", "xtask", "rpma", "abi"],
        counting: Counting::ByTest(Runner::Closing),
        slow: true,
        needs: Need::TestBed,
        row: Some(Row::First),
        ..PLAIN
    },
    Suite {
        name: "librpma: table of functions",
        command: &["cargo", "xtask", "rpma", "matrix", "--check"],
        slow: true,
        needs: Need::TestBed,
        row: Some(Row::First),
        ..PLAIN
    },
    Suite {
        name: "librpma: fio over tcp",
        command: &["cargo", "xtask", "fio", "matrix", "--sample"],
        counting: Counting::ByTest(Runner::Closing),
        slow: true,
        needs: Need::TestBed,
        row: Some(Row::First),
        ..PLAIN
    },
    Suite {
        name: "ssh",
        // Of the whole workspace, as the tests were built: of one package cargo would compile what it depends on once more.
        command: &["cargo", "test", "--workspace", "--test", "ssh", "--", "--ignored"],
        counting: Counting::ByTest(Runner::Libtest),
        needs: Need::Files(&[SSHD]),
        row: Some(Row::Second),
        ..PLAIN
    },
    Suite {
        name: "librpmem: functions",
        command: &["cargo", "xtask", "rpmem", "check"],
        counting: Counting::ByTest(Runner::Closing),
        slow: true,
        needs: Need::Files(&[SSHD]),
        row: Some(Row::Second),
        ..PLAIN
    },
    Suite {
        name: "librpmem: libpmemobj",
        // A soak makes 200.
        command: &["cargo", "xtask", "rpmem", "obj", "--kills", "50"],
        counting: Counting::ByTest(Runner::Closing),
        slow: true,
        needs: Need::Files(&[SSHD, LIBPMEMOBJ, LIBPMEMPOOL]),
        row: Some(Row::Second),
        ..PLAIN
    },
    Suite {
        name: "librpmem: libpmemobj over libfabric",
        command: &["cargo", "xtask", "rpmem", "obj", "--provider", "tcp-msg", "--kills", "5"],
        counting: Counting::ByTest(Runner::Closing),
        slow: true,
        needs: Need::Files(&[SSHD, LIBPMEMOBJ, LIBPMEMPOOL]),
        row: Some(Row::Second),
        ..PLAIN
    },
    Suite {
        name: "demo",
        command: &[PMOF, "demo"],
        slow: true,
        needs: Need::PmofCommand("demo"),
        row: Some(Row::Second),
        ..PLAIN
    },
    Suite {
        name: "soak",
        command: &[PMOF, "soak", "--kills", "60"],
        slow: true,
        needs: Need::PmofCommand("soak"),
        row: Some(Row::Second),
        ..PLAIN
    },
    Suite {
        name: "chaos",
        command: &[PMOF, "chaos", "--kills", "12", "--pauses", "2", "--cuts", "2", "--loss-timeout", "1000ms"],
        slow: true,
        needs: Need::PmofCommand("chaos"),
        row: Some(Row::Second),
        ..PLAIN
    },
    Suite {
        name: "chaos: shm",
        command: &[PMOF, "chaos", "--transport", "shm", "--kills", "8", "--pauses", "2", "--loss-timeout", "1000ms"],
        slow: true,
        needs: Need::PmofCommand("chaos"),
        row: Some(Row::Second),
        ..PLAIN
    },
    Suite {
        name: "damage",
        command: &[PMOF, "damage", "--cases", "1500"],
        slow: true,
        needs: Need::PmofCommand("damage"),
        row: Some(Row::Second),
        ..PLAIN
    },
    Suite {
        name: "vm",
        command: &["cargo", "xtask", "vm", "test"],
        counting: Counting::ByTest(Runner::Closing),
        slow: true,
        needs: Need::TestBed,
        ..PLAIN
    },
];

/// What takes too long for every run: `cargo xtask soak`.
const SOAKS: &[Suite] = &[
    Suite {
        name: "chaos: 1,000 kills",
        command: &[PMOF, "chaos", "--kills", "1000", "--pauses", "0", "--cuts", "0"],
        needs: Need::PmofCommand("chaos"),
        ..PLAIN
    },
    Suite {
        name: "chaos: 200 kills over shm",
        command: &[PMOF, "chaos", "--transport", "shm", "--kills", "200", "--pauses", "0"],
        needs: Need::PmofCommand("chaos"),
        ..PLAIN
    },
    Suite {
        name: "damage: 100,000 cases",
        command: &[PMOF, "damage", "--cases", "100000", "--jobs", "8"],
        needs: Need::PmofCommand("damage"),
        ..PLAIN
    },
    Suite {
        // The test bed's own tests, by which one finds why where all else in its machines fails, and what `vm` leaves out of every run.
        name: "vm: further media and devices, and the test bed",
        command: &["cargo", "xtask", "vm", "test", "--soak"],
        counting: Counting::ByTest(Runner::Closing),
        needs: Need::TestBed,
        ..PLAIN
    },
    Suite {
        name: "models: every state within larger bounds",
        command: &["cargo", "xtask", "simulate", "--exhaustive"],
        counting: Counting::ByTest(Runner::Libtest),
        ..PLAIN
    },
    Suite {
        name: "vm: 200 power cuts",
        command: &["cargo", "xtask", "vm", "power-cuts", "--cuts", "200"],
        needs: Need::TestBed,
        ..PLAIN
    },
    Suite {
        name: "librpma: fio over libfabric",
        command: &["cargo", "xtask", "fio", "matrix", "--sample", "--transport", "fabric+tcp-msg"],
        counting: Counting::ByTest(Runner::Closing),
        needs: Need::TestBed,
        ..PLAIN
    },
    Suite {
        name: "librpma: every cell of fio over tcp",
        command: &["cargo", "xtask", "fio", "matrix"],
        counting: Counting::ByTest(Runner::Closing),
        needs: Need::TestBed,
        ..PLAIN
    },
    Suite {
        name: "librpmem: libpmemobj, 200 kills",
        command: &["cargo", "xtask", "rpmem", "obj", "--kills", "200"],
        counting: Counting::ByTest(Runner::Closing),
        needs: Need::Files(&[SSHD, LIBPMEMOBJ, LIBPMEMPOOL]),
        ..PLAIN
    },
    Suite {
        name: "asynchronous members: a stream of 1 MiB cut behind every byte",
        command: &[
            "env",
            "PMOF_STREAM_BYTES=1048576",
            "cargo",
            "nextest",
            "run",
            "-p",
            "pmof-pool",
            "--lib",
            "-E",
            "test(follower::tests)",
        ],
        needs: Need::CargoCommand("nextest", "cargo install cargo-nextest --locked"),
        ..PLAIN
    },
    Suite {
        name: "2,000 writers stopped, taken over and continued",
        command: &[PMOF, "soak", "takeover", "--count", "2000"],
        needs: Need::PmofCommand("soak"),
        ..PLAIN
    },
    Suite {
        name: "200 writers stopped, taken over and continued over shm",
        command: &[PMOF, "soak", "takeover", "--count", "200", "--transport", "shm"],
        needs: Need::PmofCommand("soak"),
        ..PLAIN
    },
    Suite {
        name: "asynchronous members: 10 minutes of load, slowed at random",
        command: &[
            "env",
            "PMOF_LAG_SECONDS=600",
            "cargo",
            "nextest",
            "run",
            "--profile",
            "soak",
            "-p",
            "pmof-pool",
            "--test",
            "pool",
            "--success-output",
            "final",
            "-E",
            "test(lag_stays)",
        ],
        needs: Need::CargoCommand("nextest", "cargo install cargo-nextest --locked"),
        ..PLAIN
    },
    Suite {
        name: "the unit under a systemd of its own",
        command: &["cargo", "xtask", "unit"],
        counting: Counting::ByTest(Runner::Closing),
        needs: Need::Systemd,
        ..PLAIN
    },
    Suite {
        // It builds the former release, which takes minutes.
        name: "upgrade: pools of this and of the former release",
        command: &["cargo", "xtask", "upgrade"],
        counting: Counting::ByTest(Runner::Closing),
        ..PLAIN
    },
    Suite {
        name: "200 signals to each long command",
        command: &[
            "env",
            "PMOF_INTERRUPTIONS=200",
            "cargo",
            "nextest",
            "run",
            "--profile",
            "soak",
            "-p",
            "pmof-cli",
            "--test",
            "cli",
            "-E",
            "test(interrupted)",
        ],
        needs: Need::CargoCommand("nextest", "cargo install cargo-nextest --locked"),
        ..PLAIN
    },
    Suite {
        name: "serve: two hours of load, scrapes and reloads",
        command: &[
            "env",
            "PMOF_SERVE_SECONDS=7200",
            "cargo",
            "nextest",
            "run",
            "--profile",
            "soak",
            "-p",
            "pmof-cli",
            "--test",
            "cli",
            "--success-output",
            "final",
            "-E",
            "test(serves_for_hours)",
        ],
        needs: Need::CargoCommand("nextest", "cargo install cargo-nextest --locked"),
        ..PLAIN
    },
    Suite {
        name: "mutants: the short list",
        command: &["cargo", "xtask", "mutants", "--short"],
        counting: Counting::ByTest(Runner::Closing),
        needs: Need::CargoCommand("nextest", "cargo install cargo-nextest --locked"),
        ..PLAIN
    },
];

/// The suites of `cargo xtask soak`.
pub(crate) fn soaks() -> Vec<Suite> {
    SOAKS.to_vec()
}

/// All suites, with the best test runner that this machine has.
pub(crate) fn suites() -> Vec<Suite> {
    let tests = if succeeds("cargo", &["nextest", "--version"]) { NEXTEST } else { LIBTEST };
    [BEFORE_TESTS, &[tests], AFTER_TESTS].concat()
}

impl Suite {
    /// Why the suite cannot run now, if so, and what would mend it.
    pub(crate) fn reason_to_skip(&self, quick: bool) -> Option<String> {
        if quick && self.slow {
            return Some("left out by --quick".to_owned());
        }
        match self.needs {
            Need::Nothing => None,
            Need::TestBed => vm::missing(),
            Need::DebianRust => msrv::missing(),
            Need::Systemd => unit::missing(),
            Need::Files(files) => {
                let missing = files.iter().find(|(file, _)| !Path::new(file).exists());
                missing.map(|(file, mend)| format!("no {file} here: {mend}"))
            }
            Need::CargoCommand(name, mend) => {
                (!succeeds("cargo", &[name, "--version"])).then(|| format!("no cargo {name} here: {mend}"))
            }
            Need::PmofCommand(_) if !program_file(PMOF).exists() => {
                Some(format!("no {}: see the release build", program_file(PMOF).display()))
            }
            Need::PmofCommand(name) => {
                (!succeeds(PMOF, &[name, "--help"])).then(|| format!("this pmof has no command {name}"))
            }
        }
    }
}

/// The file of a suite's program: pmof lies where cargo builds, other programs on the search path.
pub(crate) fn program_file(program: &str) -> PathBuf {
    match (program.strip_prefix("target/"), std::env::var_os("CARGO_TARGET_DIR")) {
        (Some(built), Some(directory)) => Path::new(&directory).join(built),
        _ => program.into(),
    }
}

/// Whether the program could be started and exited with 0; its output is dropped.
fn succeeds(program: &str, arguments: &[&str]) -> bool {
    Command::new(program_file(program)).args(arguments).output().is_ok_and(|output| output.status.success())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_suite_has_a_name_of_its_own_and_a_command() {
        let suites = suites();
        let names: BTreeSet<_> = suites.iter().map(|suite| suite.name).collect();
        assert_eq!(names.len(), suites.len());
        assert!(suites.iter().all(|suite| !suite.name.is_empty() && !suite.command.is_empty()));
    }

    #[test]
    fn quick_leaves_out_the_slow_and_says_so() {
        let slow = Suite { slow: true, ..PLAIN };
        assert_eq!(slow.reason_to_skip(true).as_deref(), Some("left out by --quick"));
        assert_eq!(slow.reason_to_skip(false), None);
        assert_eq!(PLAIN.reason_to_skip(true), None);
    }

    #[test]
    fn the_first_missing_file_is_named_with_its_mend() {
        let needs =
            Need::Files(&[("/proc/self/exe", "never"), ("/no/such/file", "install it"), ("/nor/this", "nor it")]);
        let reason = Suite { needs, ..PLAIN }.reason_to_skip(false).unwrap();
        assert_eq!(reason, "no /no/such/file here: install it");
        assert_eq!(Suite { needs: Need::Files(&[("/proc/self/exe", "never")]), ..PLAIN }.reason_to_skip(false), None);
    }

    #[test]
    fn a_missing_cargo_command_is_named_with_its_mend() {
        let missing = Suite { needs: Need::CargoCommand("no-such-command", "install it"), ..PLAIN };
        let reason = missing.reason_to_skip(false).unwrap();
        assert!(reason.contains("no-such-command") && reason.contains("install it"), "{reason}");
        // The control: a program that is there does succeed.
        assert!(succeeds("cargo", &["--version"]));
    }
}
