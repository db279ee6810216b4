//! The project's own chores: `cargo xtask test`, `cargo xtask vm`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

mod api;
mod capi;
#[cfg(test)]
mod circles;
mod clone;
mod counts;
mod fio;
mod judge;
mod miri;
mod msrv;
mod mutants;
#[cfg(test)]
mod no_std;
#[cfg(test)]
mod pages;
mod peers;
mod readme;
mod release;
mod rpma;
mod rpmem;
mod run;
mod simulate;
mod skips;
mod sshd;
mod suites;
mod tsan;
mod unit;
mod upgrade;
mod vm;

/// The project's own chores.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Debug, Subcommand)]
enum Chore {
    /// Run every suite, and close with the line `N passed, N failed, N skipped`
    ///
    /// All suites run, also after a failure. Exit status 0 where none failed. With CI=true in the environment a suite
    /// that is skipped counts as failed.
    Test {
        /// Leave out what needs a release build
        #[arg(long)]
        quick: bool,
    },
    /// Run what takes too long for every run of the tests: thousands of kills and power cuts, mutants, further media and devices
    ///
    /// Needs the release build of `cargo xtask capi --with-programs`.
    Soak,
    /// Compare the public interface of pmof, and of the crates that it offers as modules, with crates/pmof/public-api
    Api(api::Api),
    /// Build the drop-in libraries into target/capi: librpma.so.0 and librpmem.so.1, each with its header and pkg-config file
    Capi {
        /// Build for release also what the suites run: the command pmof and programs of the test bed
        #[arg(long)]
        with_programs: bool,
    },
    /// Virtual machines with RDMA devices and persistent memory: see testbed/README.md
    #[command(subcommand)]
    Vm(Box<vm::Vm>),
    /// fio's unmodified librpma engines against a librpma: see testbed/README.md
    #[command(subcommand)]
    Fio(fio::Fio),
    /// A C program that calls each function of a librpma: see testbed/README.md
    #[command(subcommand)]
    Rpma(rpma::Rpma),
    /// C programs that judge a librpmem, one of them with Debian's libpmemobj: see testbed/README.md
    #[command(subcommand)]
    Rpmem(rpmem::Rpmem),
    /// Break the code in named ways, and see that the suite which must notice does: see docs/mutants.md
    Mutants(mutants::Mutants),
    /// Run the commands of README.md and of the page on pool sets, as written, in a clean clone of HEAD
    ///
    /// Needs /usr/sbin/sshd, and port 7204 of the loopback address. What it builds stays in target/readme.
    Readme,
    /// Install the unit of systemd as docs/operating.md says, under a systemd of its own, and try what a manager does with a service
    ///
    /// Needs root, and target/release/pmof. All of it happens in namespaces, above a layer over the machine's files that is gone with them.
    Unit,
    /// Install what `pmof bench peers` compares with, from Debian's packages, and say how each is started
    ///
    /// Needs root, or sudo without a password. What is installed already stays as it is.
    Peers,
    /// Compile with the least Rust that Cargo.toml names, as Debian 13 has it, fetched from Debian's packages
    ///
    /// The packages are unpacked into target/testbed and what is built stays in target/msrv; nothing is installed. Tests are not compiled.
    Msrv,
    /// Run the simulation of replicated pools with many seeds, in release, and count what went wrong in them
    ///
    /// Prints seeds a second, how often each kind of fault happened, and each seed that broke a rule; of the first of those, the shortest time
    /// for which things must go wrong, and all that happened in it.
    Simulate(simulate::Simulate),
    /// Use pools of targets and initiators that are of this release and of the former one, and upgrade them one by one under load
    ///
    /// The former release is the last commit that speaks only the version of the control messages before the newest. It is cloned to target/upgrade and built
    /// there once. docs/testing.md says what each change of the messages does with it.
    Upgrade(upgrade::Upgrade),
    /// Tests of many threads under the thread sanitizer; needs a nightly toolchain with its sources
    Tsan,
    /// Tests of unsafe code under Miri, as far as that can run them; needs a nightly toolchain with Miri
    Miri,
}

fn main() -> Result<ExitCode> {
    match Cli::parse().chore {
        Chore::Test { quick } => run::run_all(&suites::suites(), quick),
        Chore::Soak => run::run_all(&suites::soaks(), false),
        Chore::Api(api) => api.run(),
        Chore::Capi { with_programs } => {
            let built = if with_programs { capi::build()? } else { capi::build_alone()? };
            println!("{}", built.display());
            Ok(ExitCode::SUCCESS)
        }
        Chore::Vm(vm) => vm.run(),
        Chore::Fio(fio) => fio.run(),
        Chore::Rpma(rpma) => rpma.run(),
        Chore::Rpmem(rpmem) => rpmem.run(),
        Chore::Mutants(mutants) => mutants.run(),
        Chore::Readme => readme::run(),
        Chore::Unit => unit::run(),
        Chore::Peers => peers::run(),
        Chore::Msrv => msrv::run(),
        Chore::Simulate(simulate) => simulate.run(),
        Chore::Upgrade(upgrade) => upgrade.run(),
        Chore::Tsan => tsan::run(),
        Chore::Miri => miri::run(),
    }
}
