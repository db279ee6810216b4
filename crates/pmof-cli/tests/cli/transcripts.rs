//! What every command prints, as a terminal shows it: `tests/transcripts` has a file for each.
//!
//! A line that begins with `$ ` is run by bash, in a directory of its own with three targets beside it, whose addresses are in `$A`, `$B` and `$C`; the lines
//! below are what it printed on both outputs, with values that vary replaced, and its exit status if that is not 0. `...` stands for any lines, `[..]` for
//! any text of a line. `# point URL NAME` has a program name a consistency point of a pool. `SNAPSHOTS=overwrite` writes what commands print now into the
//! files. A test of the library holds that no command is left out.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use pmof::{AsynchronousState, Durability, Pool};
use regex::Regex;
use snapbox::{Assert, Data, Redactions, assert::DEFAULT_ACTION_ENV};

use crate::names;
use crate::support::{Target, directory, file_with, files, pmof, text, wait_until};

/// What the commands of a transcript have at hand.
struct Shell {
    place: tempfile::TempDir,
    targets: [Target; 3],
}

impl Shell {
    fn start() -> Self {
        let (place, targets) = (directory(), std::array::from_fn(|_| Target::start()));
        file_with(&place, "notes.txt", b"a note that is kept\n");
        fs::create_dir(place.path().join("tmp")).unwrap();
        Self { place, targets }
    }

    /// What it prints, with the status that it ends with.
    fn run(&self, line: &str) -> String {
        let program = Path::new(env!("CARGO_BIN_EXE_pmof"));
        let path = format!("{}:{}", text(program.parent().unwrap()), std::env::var("PATH").unwrap_or_default());
        let mut bash = Command::new("bash");
        bash.args(["-c", "exec 2>&1; eval \"$0\"", line]).current_dir(&self.place).stdin(Stdio::null());
        for (name, target) in ["A", "B", "C"].into_iter().zip(&self.targets) {
            bash.env(name, &target.address).env(format!("{name}_ROOT"), target.root.path());
        }
        // Free until somebody else is given it.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        bash.env("PORT", port.to_string())
            .env("SOURCES", env!("CARGO_MANIFEST_DIR"))
            .env("PATH", path)
            .env("HOME", self.place.path());
        bash.env("TMPDIR", self.place.path().join("tmp")).env_remove("PMOF_SSH").env_remove("JOURNAL_STREAM");
        let output = bash.env("COLUMNS", "100").env("LC_ALL", "C").output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        names::check(&printed);
        match output.status.code() {
            Some(0) => printed,
            Some(code) => format!("{printed}[exit {code}]\n"),
            None => format!("{printed}[{}]\n", output.status),
        }
    }

    fn redactions(&self) -> Redactions {
        let mut redactions = Redactions::new();
        let mut put = |placeholder, value: &str| redactions.insert(placeholder, value.to_owned()).unwrap();
        put("[HERE]", text(self.place.path()));
        for (name, target) in ["[A]", "[B]", "[C]"].into_iter().zip(&self.targets) {
            put(name, &target.address);
        }
        for (name, target) in ["[A_ROOT]", "[B_ROOT]", "[C_ROOT]"].into_iter().zip(&self.targets) {
            put(name, text(target.root.path()));
        }
        put("[VERSION]", env!("CARGO_PKG_VERSION"));
        for (placeholder, pattern) in [
            ("[PORT]", r"127\.0\.0\.1:(?<redacted>\d+)"),
            ("[UUID]", r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
            ("[DIGEST]", r"\b[0-9a-f]{64}\b"),
            ("[EPOCH]", r"  (?<redacted>[0-9a-f]{8})  "),
            ("[CRC]", r"(?<redacted>0x[0-9a-f]{8})\b"),
            ("[TIME]", r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z| UTC)?"),
            ("[TOOK]", r"in (?<redacted>\d+(\.\d+)? (s|ms|us))\b"),
            ("[TOOK]", r"(?<redacted>\d+\.\d s) ago"),
            ("[PROCESS]", r"process (?<redacted>\d+)"),
            ("[N]", r#""[a-z_]+_(s|ms|us|per_s)":(?<redacted>\d+(\.\d+)?)"#),
            ("[N]", r#""(free|total)_bytes":(?<redacted>\d+)"#),
            ("[SEED]", r"\bseed (?<redacted>\d{4,})"),
            ("[RANDOM]", r"/pmof-[a-z]+-(?<redacted>\w{6})\b"),
            ("[MACHINE]", r"(?<redacted>machine-\w+)"),
        ] {
            redactions.insert(placeholder, Regex::new(pattern).unwrap()).unwrap();
        }
        redactions
    }
}

/// Names a consistency point, as the program that writes the pool does.
fn name_point(url: &str, name: &str) {
    let pool = Pool::options().require(Durability::ProcessCrash).replica(url).open().unwrap();
    wait_until("following", || matches!(pool.status().unwrap().asynchronous[0].state, AsynchronousState::Following));
    pool.persist(0, b"A note").unwrap();
    pool.consistency_point(name).unwrap();
    wait_until("kept", || pmof(["pool", "points", "--json", url]).done().contains(name));
    pool.close().unwrap();
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts").join(name.replace('_', "-") + ".txt")
}

fn check(name: &str) {
    let expected = fs::read_to_string(file(name)).unwrap();
    let shell = Shell::start();
    let redactions = shell.redactions();
    let mut blocks = Vec::new();
    for line in expected.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            blocks.push(format!("{line}\n{}", redactions.redact(&shell.run(command))));
        } else if let Some((url, name)) = line.strip_prefix("# point ").and_then(|point| point.split_once(' ')) {
            name_point(&url.replace("$A", &shell.targets[0].address), name);
            blocks.push(format!("{line}\n"));
        }
    }
    // What there is to compare with may have `...` and `[..]`, which stay where they fit.
    let assert = Assert::new().action_env(DEFAULT_ACTION_ENV).normalize_paths(false);
    assert.eq(blocks.join("\n"), Data::read_from(&file(name), None));
}

macro_rules! transcripts {
    ($($name:ident),* $(,)?) => {
        $(#[test] fn $name() { check(stringify!($name)); })*

        #[test]
        fn each_file_is_tested() {
            let mut names = [$(stringify!($name)),*].map(|name| name.replace('_', "-") + ".txt");
            names.sort();
            assert_eq!(names[..], files(file("x").parent().unwrap()));
        }
    };
}

transcripts!(
    bench,
    bench_bandwidth,
    bench_batch,
    bench_catch_up,
    bench_idle,
    bench_lanes,
    bench_peers,
    bench_latency,
    bench_run,
    bench_scale,
    bench_takeover,
    chaos,
    completions,
    cp,
    damage,
    demo,
    doctor,
    man,
    pool,
    pool_add,
    pool_check,
    pool_clear,
    pool_create,
    pool_dump,
    pool_export,
    pool_feature,
    pool_import,
    pool_info,
    pool_ls,
    pool_points,
    pool_promote,
    pool_release,
    pool_remove,
    pool_replace,
    pool_rm,
    pool_rollback,
    pool_scrub,
    pool_status,
    pool_sync,
    pool_transform,
    report,
    report_compare,
    report_rows,
    serve,
    soak,
    soak_check,
    soak_takeover,
    soak_write,
    status,
);
