//! `cargo xtask rpmem`: C programs as judges of librpmem, over ssh to a real sshd on a loopback port.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, Subcommand};
use serde_json::Value;

use crate::{capi, counts::Counts, judge, suites};
use stage::Stage;

mod stage;

/// Debian's package libpmemobj-dev.
const LIBPMEMOBJ: &str = "/usr/include/libpmemobj.h";

/// `cargo xtask rpmem`.
#[derive(Debug, Subcommand)]
pub(crate) enum Rpmem {
    /// Compile testbed/rpmem/api*.c and run it: each of the 12 functions, used and misused
    ///
    /// The output is the program's, the last line `N passed, N failed, N skipped`; so is the exit code.
    Check {
        /// Under valgrind: errors and leaks fail too
        #[arg(long)]
        valgrind: bool,
        #[command(flatten)]
        library: Library,
    },
    /// Compile testbed/rpmem/obj*.c and run it: Debian's libpmemobj and libpmempool with remote replicas, clients and targets
    /// killed, parts lost
    ///
    /// Needs libpmemobj-dev and libpmempool-dev. Output and exit code as with check.
    Obj {
        /// Kill a client so many times
        #[arg(long, default_value_t = 200)]
        kills: u32,
        /// Of the work and the moments of the kills
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Use this provider of libfabric (`RPMEM_PROVIDER`), such as `tcp-msg`, and check that all connections go over it
        #[arg(long, value_name = "NAME")]
        provider: Option<String>,
        #[command(flatten)]
        library: Library,
    },
    /// Compile testbed/rpmem/bench.c and run it: what a persist, a transaction and opening a pool take, beside raw TCP and ssh
    Bench {
        /// Rounds; each measures everything once
        #[arg(long, default_value_t = 15)]
        rounds: u32,
        #[command(flatten)]
        library: Library,
    },
}

/// Which librpmem is judged.
#[derive(Debug, Args)]
pub(crate) struct Library {
    /// The directory with the librpmem.so.1 that is judged; ours, where cargo xtask capi puts it, otherwise
    #[arg(long, value_name = "DIRECTORY")]
    library: Option<PathBuf>,
}

impl Library {
    fn directory(&self) -> Result<PathBuf> {
        let directory = env::current_dir().context("finding the current directory")?;
        let directory = directory.join(self.library.clone().unwrap_or_else(capi::directory));
        let missing = "cargo xtask capi builds ours";
        ensure!(directory.join("librpmem.so.1").exists(), "no librpmem.so.1 in {}: {missing}", directory.display());
        Ok(directory)
    }
}

impl Rpmem {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            Self::Check { valgrind, library } => check(valgrind, &library),
            Self::Obj { kills, seed, provider, library } => obj(kills, seed, provider.as_deref(), &library),
            Self::Bench { rounds, library } => bench(rounds, &library),
        }
    }
}

fn check(valgrind: bool, library: &Library) -> Result<ExitCode> {
    let library = library.directory()?;
    let program = compile("rpmem-check", &judge::sources(&sources()?, &["api", "stage.c"])?, &["-lrpmem"])?;
    let stage = Stage::start(&release("rpmemd")?)?;
    let mut command = judge::command(&program, valgrind);
    if valgrind {
        command.arg("--valgrind");
    }
    stage.prepare(&mut command, &library);
    judge::run(command.arg(stage.directory()).arg(stage.target()))
}

fn obj(kills: u32, seed: u64, provider: Option<&str>, library: &Library) -> Result<ExitCode> {
    let library = library.directory()?;
    if let Some(why) = provider.map(|_| no_libfabric()).transpose()?.flatten() {
        println!("skipped: {why}\n{}", Counts::ONE_SKIPPED);
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(Path::new(LIBPMEMOBJ).exists(), "no {LIBPMEMOBJ} here: apt-get install libpmemobj-dev libpmempool-dev");
    let program =
        compile("rpmem-obj", &judge::sources(&sources()?, &["obj", "stage.c"])?, &["-lpmemobj", "-lpmempool"])?;
    let real = format!("-DREAL=\"{}\"", library.join("librpmem.so.1").display());
    let between = compile(
        "between/librpmem.so.1",
        &[sources()?.join("between.c")],
        &[&real, "-shared", "-fPIC", "-Wl,-soname,librpmem.so.1"],
    )?;
    let keep = between.with_file_name("kept");
    fs::create_dir_all(&keep).with_context(|| format!("making {}", keep.display()))?;
    let stage = Stage::start(&release("rpmemd")?)?;
    let mut command = Command::new(program);
    stage.prepare(&mut command, &library);
    command.args(["--kills", &kills.to_string(), "--seed", &seed.to_string(), "--between"]);
    command.args(between.parent()).arg("--keep").arg(keep).arg("--pmof").arg(release("pmof")?);
    if let Some(provider) = provider {
        command.env("RPMEM_PROVIDER", provider).args(["--provider", provider]);
        command.env("RPMEM_LOG_LEVEL", "3").env("RPMEM_LOG_FILE", stage.directory().join("log")).env_remove("PMOF_LOG");
    }
    judge::run(command.arg(stage.directory()).arg(stage.target()))
}

/// Why there is no libfabric here, if there is none.
fn no_libfabric() -> Result<Option<String>> {
    let mut doctor = Command::new(release("pmof")?);
    let output = doctor.args(["doctor", "--json"]).output().context("starting pmof doctor")?;
    let report: Value = serde_json::from_slice(&output.stdout).context("the JSON of pmof doctor")?;
    Ok(report["libfabric"]["unusable"]["reason"].as_str().map(str::to_owned))
}

fn bench(rounds: u32, library: &Library) -> Result<ExitCode> {
    let library = library.directory()?;
    let program =
        compile("rpmem-bench", &judge::sources(&sources()?, &["bench.c", "stage.c"])?, &["-lrpmem", "-lpmemobj"])?;
    let stage = Stage::start(&release("rpmemd")?)?;
    let mut command = Command::new(program);
    stage.prepare(&mut command, &library);
    // Else libpmemobj would call msync for its own part.
    command.env("PMEM_IS_PMEM_FORCE", "1").args(["--rounds", &rounds.to_string()]);
    judge::run(command.arg(stage.directory()).arg(stage.target()))
}

/// A program, as the release build makes it.
fn release(program: &str) -> Result<PathBuf> {
    let path = suites::program_file(&format!("target/release/{program}"));
    let path = env::current_dir().context("finding the current directory")?.join(path);
    ensure!(path.exists(), "no {}: cargo build --release -p pmof-cli makes it", path.display());
    Ok(path)
}

fn sources() -> Result<PathBuf> {
    Ok(env::current_dir().context("finding the current directory")?.join("testbed/rpmem"))
}

/// Compiles a program, with further arguments, into target/rpmem.
fn compile(name: &str, sources: &[PathBuf], arguments: &[&str]) -> Result<PathBuf> {
    let made = env::current_dir().context("finding the current directory")?.join("target/rpmem").join(name);
    if let Some(directory) = made.parent() {
        fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    }
    let built = capi::directory();
    let mut compiler = judge::compiler(sources, &built.join("include"), &made)?;
    compiler.arg("-L").arg(&built).args(arguments);
    let output = compiler.output().with_context(|| format!("starting {compiler:?}"))?;
    ensure!(output.status.success(), "{compiler:?}:\n{}", String::from_utf8_lossy(&output.stderr));
    Ok(made)
}
