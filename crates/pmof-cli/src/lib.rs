//! The `pmof` command, and `rpmemd`, the name under which installations of librpmem start a target.

#![forbid(unsafe_code)]
// `println!` panics if the reader is gone: see `output::say`.
#![deny(clippy::print_stdout)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use pmof_bench::{bench, chaos, damage, soak};
use pmof_console::{interrupt::clean_up_on_signals, trust::TrustArgs};

mod backup;
mod copy;
mod demo;
mod doctor;
mod failure;
mod flush_method;
mod named;
mod new_file;
mod pool;
mod quiet;
mod rpmemd;
#[cfg(test)]
mod rules;
mod serve;
mod shell;
mod status;
mod unequal;
mod watch;

/// Persistent memory over fabrics: memory on other machines, durable with one flush.
#[derive(Debug, Parser)]
#[command(name = "pmof", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::DemoArgs),
    Serve(serve::ServeArgs),
    Status(status::StatusArgs),
    Cp(copy::CpArgs),
    Pool(pool::PoolArgs),
    Bench(bench::BenchArgs),
    Report(pmof_report::ReportArgs),
    Doctor(doctor::DoctorArgs),
    Soak(soak::SoakArgs),
    Chaos(chaos::ChaosArgs),
    Damage(damage::DamageArgs),
    Completions(shell::CompletionsArgs),
    Man(shell::ManArgs),
    #[command(hide = true)]
    BenchFloor(bench::FloorServerArgs),
    #[command(hide = true)]
    BenchFloorClient(bench::FloorClientArgs),
    #[command(hide = true)]
    BenchLoad(bench::LoadArgs),
    #[command(hide = true)]
    BenchPeer(bench::PeerServerArgs),
    #[command(hide = true)]
    Relay(bench::RelayArgs),
    #[command(hide = true)]
    SoakWriter(soak::WriterArgs),
}

impl Command {
    /// Whether it makes directories, files and targets for its own use.
    fn makes_files(&self) -> bool {
        match self {
            Self::Demo(_) | Self::Cp(_) | Self::Bench(_) | Self::Soak(_) | Self::Chaos(_) | Self::Damage(_) => true,
            Self::Pool(args) => args.makes_files(),
            _ => false,
        }
    }

    /// Which users' targets are trusted.
    fn trust(&self) -> TrustArgs {
        match self {
            Self::Demo(args) => args.reach.trust,
            Self::Status(args) => args.connect.trust(),
            Self::Cp(args) => args.connect.trust(),
            Self::Pool(args) => args.connect.trust(),
            Self::Bench(args) => args.trust,
            Self::Soak(args) => args.trust(),
            Self::Chaos(args) => args.trust,
            Self::SoakWriter(args) => args.trust,
            _ => TrustArgs::default(),
        }
    }
}

/// Runs `pmof` on the process's arguments.
pub fn pmof() -> ExitCode {
    pmof_mem::survive_file_size_limit();
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(wrong_use) => return failure::called_wrongly(&wrong_use),
    };
    if command.makes_files() {
        // Where that fails, signals end it as they always do.
        let _ = clean_up_on_signals();
    }
    command.trust().apply();
    let done = match &command {
        Command::Demo(args) => demo::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Status(args) => status::run(args),
        Command::Cp(args) => copy::run(args),
        Command::Pool(args) => pool::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Report(args) => pmof_report::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Soak(args) => soak::run(args),
        Command::Chaos(args) => chaos::run(args),
        Command::Damage(args) => damage::run(args),
        Command::Completions(args) => shell::completions(args),
        Command::Man(args) => shell::man(args),
        Command::BenchFloor(args) => bench::run_floor_server(args),
        Command::BenchFloorClient(args) => bench::run_floor_client(args),
        Command::BenchLoad(args) => bench::run_load(args),
        Command::BenchPeer(args) => bench::run_peer_server(args),
        Command::Relay(args) => bench::run_relay(args),
        Command::SoakWriter(args) => soak::run_writer(args),
    };
    end("pmof", done, 1)
}

/// Runs `rpmemd` on the process's arguments.
pub fn rpmemd() -> ExitCode {
    pmof_mem::survive_file_size_limit();
    let done = rpmemd::run(&rpmemd::RpmemdArgs::parse());
    let code = done.as_ref().err().map_or(0, rpmemd::exit_code);
    end("rpmemd", done, code)
}

/// Reports a failure and returns `code`.
fn end(name: &str, done: anyhow::Result<()>, code: u8) -> ExitCode {
    match done.and_then(|()| pmof_console::output::check_printed()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let code = failure::exit_code(&error, code);
            if let Some(wrong_use) = error.downcast_ref::<clap::Error>() {
                return failure::called_wrongly(wrong_use);
            }
            failure::tell(name, &error, code);
            ExitCode::from(code)
        }
    }
}
