//! `cargo xtask upgrade`: pools whose targets and initiators are of this release and of the former one.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};

use crate::{clone, counts::Counts};
use drills::{Programs, Release, Transport};

mod drills;
mod processes;

/// The last commit that speaks only the version of the control messages before the newest. The next change of the version pins the last commit before
/// itself.
const FORMER: &str = "59dddd5e3a350608917802801348fa6eca4912d5";

#[derive(Debug, clap::Args)]
pub(crate) struct Upgrade {
    /// The command pmof of the former release, instead of building it
    #[arg(long)]
    former: Option<PathBuf>,
    /// The command pmof of this release, instead of building it
    #[arg(long)]
    here: Option<PathBuf>,
}

impl Upgrade {
    /// Runs all drills, and closes with the line of counts.
    pub(crate) fn run(self) -> Result<ExitCode> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the workspace's root")?;
        let former = self.former.map_or_else(|| build_former(root), Ok)?;
        let here = self.here.map_or_else(|| build(root, &root.join("target")), Ok)?;
        let programs = Programs { former, here };
        let mut counts = Counts::default();
        let mut count = |name: String, outcome: Result<()>, start: Instant| {
            let took = start.elapsed().as_secs_f64();
            match outcome {
                Ok(()) => {
                    println!("ok upgrade: {name} ({took:.1} s)");
                    counts += Counts::ONE_PASSED;
                }
                Err(error) => {
                    println!("FAILED upgrade: {name}: {error:#}");
                    counts += Counts::ONE_FAILED;
                }
            }
        };
        for transport in [Transport::Tcp, Transport::Shm] {
            for (initiator, targets) in MIXTURES {
                let name = format!("{transport}, initiator {initiator}, targets {}", drills::names(&targets));
                let start = Instant::now();
                count(name, drills::use_mixed(&programs, transport, initiator, targets), start);
            }
            let start = Instant::now();
            count(format!("{transport}, one by one under load and back"), drills::roll(&programs, transport), start);
        }
        println!("{counts}");
        Ok(if counts.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Which release the initiator is, and which the targets are; the first target is lost and comes back.
const MIXTURES: [(Release, [Release; 3]); 5] = {
    use Release::{Former, Here};
    [
        (Here, [Former, Here, Here]),
        (Here, [Here, Former, Former]),
        (Here, [Former, Former, Former]),
        (Former, [Here, Here, Here]),
        (Former, [Here, Former, Here]),
    ]
};

fn build_former(root: &Path) -> Result<PathBuf> {
    let directory = root.join("target/upgrade");
    fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
    let known = clone::git(root, &["cat-file", "-e", &format!("{FORMER}^{{commit}}")]);
    known.context("the history lacks the former release: git fetch --unshallow")?;
    let clone = directory.join("clone");
    clone::at(root, &clone, FORMER)?;
    build(&clone, &directory.join("target"))
}

/// Builds the command pmof of a source tree; gives its path.
fn build(tree: &Path, target: &Path) -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--quiet", "--package", "pmof-cli", "--bin", "pmof"]);
    cargo.current_dir(tree).env("CARGO_TARGET_DIR", target);
    let status = cargo.status().context("starting cargo")?;
    ensure!(status.success(), "building pmof in {}: {status}", tree.display());
    Ok(target.join("debug/pmof"))
}
