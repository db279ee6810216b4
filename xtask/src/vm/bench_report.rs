//! `cargo xtask vm report`: `pmof report` over verbs in a machine, beside Debian's librpma under fio.

use std::{fs, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use super::{
    machine::{Machine, quote},
    options,
    running::End,
    testbed::Testbed,
};

/// For the whole report, under emulation.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// What `pmof report` writes.
const FILES: [&str; 3] = ["report.html", "report.csv", "report.json"];

/// What the command runs.
#[derive(Debug, Args)]
pub(crate) struct BenchReport {
    /// Where to put report.html, report.csv and report.json; files of these names are replaced
    #[arg(long, value_name = "DIR", default_value = "target/vm-report")]
    output: PathBuf,
    /// Only cells whose name contains this, such as latency-write/; may be repeated
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Measure all points instead of those of `--quick`
    #[arg(long)]
    full: bool,
}

impl BenchReport {
    pub(super) fn run(&self, testbed: &Testbed) -> Result<ExitCode> {
        let pmof = options::pmof(testbed, true)?.context("cargo made no release binary of pmof")?;
        let fio = testbed.fio()?;
        let staged = testbed.run_directory()?;
        let (library, shared) = (staged.path().join("librpma.so.0"), staged.path().join("shared"));
        let of_debian = testbed.librpma_of_host_release()?.join("librpma.so.0");
        fs::copy(&of_debian, &library).with_context(|| format!("copying {}", of_debian.display()))?;
        fs::create_dir(&shared).context("making a directory for the report")?;
        let machine = Machine::new(testbed).processors(2).shared(&shared).show_output("");
        let brought = [pmof, fio.binary.clone(), library].into_iter().chain(fio.libraries()?);
        let machine = brought.fold(machine, |machine, file| machine.bring(&file));
        let finished = machine.command(self.script()).start()?.wait(TIMEOUT)?;
        ensure!(finished.end == End::Exited(0), "{}; it wrote: {}", finished.explain(), finished.text());
        fs::create_dir_all(&self.output).with_context(|| format!("cannot make {}", self.output.display()))?;
        for file in FILES {
            let to = self.output.join(file);
            fs::copy(shared.join(file), &to).with_context(|| format!("cannot write {}", to.display()))?;
        }
        println!("{}", self.output.join("report.html").display());
        Ok(ExitCode::SUCCESS)
    }

    /// Both ends have the same address, since fio's client has no option for its own.
    fn script(&self) -> String {
        let only = self.only.iter().fold(String::new(), |options, text| options + " --only " + &quote(text));
        let quick = if self.full { "" } else { " --quick" };
        format!(
            "export LD_LIBRARY_PATH=/host/bin
             pmof report{quick} --transports verbs,tcp --address $PMOF_WIRE_B --output /tmp/report{only} &&
             cp /tmp/report/report.* /shared/"
        )
    }
}
