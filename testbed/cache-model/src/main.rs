//! `cache-model`: what a machine under the cache model left, and what it counted.

#![forbid(unsafe_code)]

use std::path::PathBuf;

use cache_model::{Choice, Counters, Tear, survivors};
use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(about = "What a machine under the cache model left at its power cut, and what it counted")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Turn the shadow image of a dead machine into what the power cut left
    Survivors {
        /// The image that backed the machine's memory
        live: PathBuf,
        /// Its shadow, which is changed
        shadow: PathBuf,
        /// Bytes of the images that are memory; the rest is taken from the live image
        #[arg(long)]
        memory_bytes: u64,
        /// Which of the lines that were not written back survive: none, all or random:SEED
        #[arg(long, default_value = "none", value_parser = choice)]
        choice: Choice,
        /// Let lines survive in part, by eight bytes
        #[arg(long)]
        tear: bool,
    },
    /// Print the counters of a machine
    Counters {
        /// The file given to the plugin as counters=
        file: PathBuf,
    },
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Survivors { live, shadow, memory_bytes, choice, tear } => {
            let tear = if tear { Tear::Words } else { Tear::Lines };
            let outcome = survivors(&live, &shadow, memory_bytes, choice, tear)?;
            println!("{} lines were not written back, {} of them survived", outcome.differing, outcome.survived);
        }
        Command::Counters { file } => println!("{}", Counters::read(&file)?),
    }
    Ok(())
}

fn choice(text: &str) -> Result<Choice, String> {
    match (text, text.strip_prefix("random:").map(str::parse)) {
        ("none", _) => Ok(Choice::None),
        ("all", _) => Ok(Choice::All),
        (_, Some(Ok(seed))) => Ok(Choice::Random(seed)),
        _ => Err("expected none, all or random:SEED".to_owned()),
    }
}
