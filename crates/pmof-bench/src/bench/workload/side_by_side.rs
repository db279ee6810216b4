//! `pmof bench peers`: `pmof bench latency --peers` for several sizes and media, and a table of all.

use std::{fmt::Write as _, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum as _};
use pmof_console::{
    output::{print_json, say},
    ratios::{OUTLIER, ROUNDS_MIN, RoundRatios},
    words,
};
use serde_json::{Value, json};

use super::{Access, Preset, SIZE_MAX_BYTES, WaitingName, WorkloadArgs, measure::measure, outcome::copies_text};
use crate::bench::{
    peers::Peer,
    stage::{Medium, StageArgs},
};

/// Measure durable writes beside what users have instead, in the same rounds: a local file, network block devices, Redis, etcd
///
/// For each medium and size, pmof, the floor of its transport and each peer take turns. What is not installed is named as skipped; `cargo xtask
/// peers` installs all of them on Debian. Servers of peers are started with a connection that stays open, in a temporary directory on the
/// medium and on the target's CPU, as Debian ships them, and end with this command.
#[derive(Debug, Args)]
pub(in crate::bench) struct PeersArgs {
    #[command(flatten)]
    stage: StageArgs,
    /// What to measure beside pmof; several, with commas between them
    #[arg(long, value_enum, value_name = "PEER", value_delimiter = ',', default_values_t = Peer::value_variants().to_vec())]
    peers: Vec<Peer>,
    /// Bytes of each write; several, with commas between them
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_values_t = [64, 512, 4096, 65_536], value_parser = words::sizes::<u32>(1..=u64::from(SIZE_MAX_BYTES)))]
    size: Vec<u32>,
    /// What the bytes lie on; several, with commas between them
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Medium::Tmpfs, Medium::File])]
    medium: Vec<Medium>,
    /// How pmof's ends, and the peers' clients, wait
    #[arg(long, value_enum, default_value_t = WaitingName::Adaptive)]
    waiting: WaitingName,
    /// Measure each contender for this time in all
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = words::times(Duration::from_millis(10)..=Duration::from_secs(3600)))]
    time: Duration,
    /// Rounds; each measures everything once
    #[arg(long, value_name = "COUNT", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
}

/// Width of a cell of the table, and of that the part behind its median.
const CELL: usize = 42;
const BEHIND: usize = 31;

/// Runs `pmof bench peers`.
pub(in crate::bench) fn run_peers(args: &PeersArgs) -> Result<()> {
    ensure!(
        args.stage.dir.is_none() || args.medium.len() == 1,
        "--dir lies on one medium: name it with --medium, or leave --dir out"
    );
    let total = args.medium.len() * args.size.len();
    let mut all = Vec::with_capacity(total);
    for medium in &args.medium {
        let first = all.len();
        for size_bytes in &args.size {
            let head = format!("[{}/{total}] {}, {size_bytes} bytes: ", all.len() + 1, medium.name());
            all.push(args.cell(*medium, *size_bytes, &head)?);
        }
        if !args.stage.json {
            say!("{}", table(args, *medium, &all[first..])?);
        }
    }
    if args.stage.json { print_json(&json!({ "cells": all })) } else { Ok(()) }
}

impl PeersArgs {
    /// What `pmof bench latency --peers --json` prints. `head` begins the line that shows how far it is.
    fn cell(&self, medium: Medium, size_bytes: u32, head: &str) -> Result<Value> {
        let args = WorkloadArgs {
            stage: self.stage.clone(),
            mode: None,
            layer: None,
            rw: Access::Write,
            rwmixread: None,
            size: Some(size_bytes),
            depth: None,
            batch: None,
            threads: 1,
            connections: None,
            medium,
            span: None,
            replicas: 1,
            at_least: None,
            delay_us: 0,
            slow_us: 0,
            slow_after_us: 0,
            waiting: Some(self.waiting),
            target_load: 0,
            peers: self.peers.clone(),
            rate: None,
            pause_target_ms: 0,
            count: None,
            time: Some(self.time),
            ramp: Duration::ZERO,
            rounds: Some(self.rounds),
        };
        // A thread of its own: it stays on one CPU, and what it starts ends with it.
        let measured = thread::scope(|scope| {
            let measuring = scope.spawn(|| -> Result<Value> {
                let workload = args.resolve(Preset::Latency)?;
                let (stage, outcome) = measure(&workload, head)?;
                let json = outcome.to_json(&workload)?;
                outcome.finish(&stage)?;
                Ok(json)
            });
            measuring.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        measured.with_context(|| format!("measuring {size_bytes} bytes on {}", medium.name()))
    }
}

/// Medians by size: a line for pmof, for its floor and for each peer.
fn table(args: &PeersArgs, medium: Medium, cells: &[Value]) -> Result<String> {
    let transport = args.stage.reach.transport.scheme();
    let mut text = format!(
        "Durable writes over {transport}, {}, {}: medians in us, behind them pmof's over them in the median of the rounds, and the extremes of these\n",
        medium.name(),
        args.waiting.name()
    );
    let sizes = args.size.iter().fold(String::new(), |line, size_bytes| line + &format!("{size_bytes:>CELL$}"));
    writeln!(text, "{:<12}{sizes}", "bytes")?;
    let own = |cell: &Value| cell["p50_us"].as_f64().map(|p50_us| format!("{p50_us:.2}{:BEHIND$}", ""));
    let first = cells.first().context("there are no sizes")?;
    writeln!(text, "{}  {}", line("pmof", cells, own), promise(first, 1))?;
    let floor = |cell: &Value| number(cell, cell["floor_p50_us"].as_f64()?, cell);
    writeln!(text, "{}  the bare work of the transport and the medium", line("floor", cells, floor))?;
    let mut absent = String::new();
    for (place, peer) in args.peers.iter().enumerate() {
        let of = |cell: &Value| {
            let peer = &cell["peers"][place];
            number(cell, peer["p50_us"].as_f64()?, peer)
        };
        let measured = cells.iter().map(|cell| &cell["peers"][place]).find(|peer| peer["p50_us"].is_number());
        if let Some(shown) = measured {
            let copies = shown["copies"].as_u64().unwrap_or(1);
            writeln!(text, "{}  {}", line(peer.name(), cells, of), promise(shown, copies))?;
        } else {
            let found = &first["peers"][place];
            let (word, why) = match found["skipped"].as_str() {
                Some(why) => ("skipped", why),
                None => ("failed", found["failed"].as_str().unwrap_or_default()),
            };
            writeln!(absent, "{word}: {}: {why}", peer.name())?;
        }
    }
    writeln!(
        text,
        "!: a round's ratio is more than {OUTLIER} times the median, or less than it over {OUTLIER}, or no round's is that of the medians that are shown"
    )?;
    if args.rounds < ROUNDS_MIN {
        writeln!(text, "{} rounds are too few for medians of ratios: it takes {ROUNDS_MIN}", args.rounds)?;
    }
    Ok(text + &absent)
}

fn line(name: &str, cells: &[Value], of: impl Fn(&Value) -> Option<String>) -> String {
    let absent = || format!("-{:BEHIND$}", "");
    let numbers = cells.iter().map(|cell| format!("{:>CELL$}", of(cell).unwrap_or_else(absent)));
    format!("{name:<12}{}", numbers.collect::<String>())
}

/// A median, and pmof's over it as `found` has it.
fn number(cell: &Value, p50_us: f64, found: &Value) -> Option<String> {
    let of = |name: &str| found[name].as_f64();
    let (median, min, max) = (of("ratio_p50")?, of("ratio_p50_min")?, of("ratio_p50_max")?);
    let ratios = RoundRatios { median, min, max, rounds: cell["rounds"].as_u64() };
    let text = ratios.text(Some(cell["p50_us"].as_f64()? / p50_us), |ratio| format!("{ratio:.2}"));
    Some(format!("{p50_us:.2}  {text:<width$}", width = BEHIND - 2))
}

/// Which failure the bytes survive, and by what.
fn promise(result: &Value, copies: u64) -> String {
    let word = |name: &str| result[name].as_str().unwrap_or_default();
    let copies = copies_text(u32::try_from(copies).unwrap_or(u32::MAX));
    let text =
        format!("{}, {copies}: {}, {} {}", word("durability"), word("method"), word("mechanism"), word("version"));
    text.trim_end().to_owned()
}
