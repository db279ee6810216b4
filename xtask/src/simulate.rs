//! `cargo xtask simulate`: many runs of the simulation of replicated pools, each by a seed of its own; or every state of a small model.

use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};
use clap::Args;

/// How many runs, and which.
#[derive(Debug, Args)]
pub(crate) struct Simulate {
    /// How many seeds are run, one after the other
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// The first of them; a seed that failed fails again
    #[arg(long, default_value_t = 0)]
    first_seed: u64,
    /// Counts the seeds that notice a rule broken on purpose, by the name of its control
    #[arg(long, conflicts_with = "exhaustive")]
    control: Option<String>,
    /// Instead of seeds: every state that two writers of a small pool can come to, within bounds, and openings of four and five replicas
    #[arg(long, conflicts_with_all = ["seeds", "first_seed"])]
    exhaustive: bool,
}

/// The models whose states are too many for every run.
const EXHAUSTIVE: &[&str] = &[
    "view::model::exhaustive",
    "lineage::model::of_four_none_reads_older_bytes",
    "lineage::model::of_five_none_reads_older_bytes",
];

impl Simulate {
    /// Exit status 0 where no rule was broken.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let (package, tests): (_, &[&str]) =
            if self.exhaustive { ("pmof-replication", EXHAUSTIVE) } else { ("pmof-pool", &["simulation::farm::farm"]) };
        let status = Command::new("cargo")
            .args(["test", "--release", "--package", package, "--lib", "--"])
            .args(tests)
            .args(["--exact", "--ignored", "--nocapture"])
            .env("PMOF_SEEDS", self.seeds.to_string())
            .env("PMOF_FIRST_SEED", self.first_seed.to_string())
            .envs(self.control.iter().map(|control| ("PMOF_CONTROL", control)))
            .status()
            .context("starting cargo")?;
        Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
