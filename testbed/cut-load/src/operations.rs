//! Loads of operations on pools as wholes.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use pmof::{Durability, Pool, PoolOptions};

use crate::{
    ledger::{Ledger, LedgerArgs},
    pattern::Batches,
};

/// The mark that arms the cache model's cut.
const ARM: u8 = 7;

/// What a fill writes: as the judge has it, 512 words of the smallest area.
const FILLED_BYTES: usize = 4096;
const SMALLEST_AREA_BYTES: u64 = 8192 * 8;

/// Pools take turns, so that several are there in different states.
const POOLS: u64 = 3;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Target, and with it the pool's name but for its number: `tcp://127.0.0.1:7204/p`; may be given several times
    #[arg(long, required = true)]
    url: Vec<String>,
    /// There is room for one pool only, whose name the URLs have as it is
    #[arg(long)]
    one: bool,
    /// Bytes of a pool
    #[arg(long, default_value_t = 128 << 10)]
    bytes: u64,
    /// Rounds; each makes a pool, fills, closes, opens and closes it, and removes another
    #[arg(long, default_value_t = 4)]
    rounds: u64,
    /// Milliseconds to wait before the first operation, as the start of counting
    #[arg(long, default_value_t = 0)]
    pause_ms: u64,
    #[command(flatten)]
    ledger: LedgerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SyncArgs {
    /// Pool set file; all parts but those of the first replica are lost again and again
    #[arg(long)]
    set: PathBuf,
    /// Parts to lose, also those of a target
    #[arg(long, required = true)]
    lose: Vec<PathBuf>,
    /// Rounds
    #[arg(long, default_value_t = 4)]
    rounds: u64,
    /// Milliseconds to wait before the first operation, as the start of counting
    #[arg(long, default_value_t = 0)]
    pause_ms: u64,
    #[command(flatten)]
    ledger: LedgerArgs,
}

/// What the guest's console shows when operations begin, and the mark that arms the cache model.
fn begin(pause_ms: u64) {
    println!("operations begin");
    std::thread::sleep(Duration::from_millis(pause_ms));
    instruction_counter::mark!(ARM);
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let names = if args.one { 1 } else { POOLS };
    for number in 0..names {
        for url in &args.url {
            // What an earlier run left, if it did.
            let _ = options(std::slice::from_ref(&named(args, url, number))).remove();
        }
    }
    let ledger = Ledger::open(&args.ledger)?;
    begin(args.pause_ms);
    for round in 0..args.rounds {
        let number = round % names;
        let urls: Vec<_> = args.url.iter().map(|url| named(args, url, number)).collect();
        let (_, name) = urls[0].rsplit_once(['/', '=']).context("a URL names a pool")?;
        let name = name.split('?').next().unwrap_or(name).to_owned();
        one_round(args, &ledger, &options(&urls), &name, round)?;
    }
    Ok(())
}

fn named(args: &Args, url: &str, number: u64) -> String {
    if args.one {
        return url.to_owned();
    }
    match url.split_once("?source=") {
        Some((url, source)) => format!("{url}{number}?source={source}"),
        None => format!("{url}{number}"),
    }
}

fn options(urls: &[String]) -> PoolOptions {
    urls.iter().fold(Pool::options().require(Durability::PowerFailure), PoolOptions::replica)
}

fn one_round(args: &Args, ledger: &Ledger, options: &PoolOptions, name: &str, round: u64) -> Result<()> {
    // The pool that this name had in an earlier round.
    if round >= if args.one { 1 } else { POOLS } {
        ledger.operation("remove", name, 0, || Ok(options.remove()?))?;
    }
    let pool = ledger.operation("create", name, args.bytes, || Ok(options.create(args.bytes)?))?;
    ledger.operation("fill", name, round, || fill(&pool, round))?;
    ledger.operation("close", name, 0, || Ok(pool.close()?))?;
    let pool = ledger.operation("open", name, 0, || Ok(options.open()?))?;
    let mut found = vec![0; FILLED_BYTES];
    pool.read(0, &mut found)?;
    ensure!(found == filling(round), "{name} does not hold what it was filled with");
    ledger.operation("close", name, 0, || Ok(pool.close()?))
}

fn fill(pool: &Pool, value: u64) -> Result<()> {
    pool.persist(0, &filling(value))?;
    Ok(())
}

fn filling(value: u64) -> Vec<u8> {
    let (_, mut writes) = Batches::new(value, 0, SMALLEST_AREA_BYTES).next();
    writes[0].bytes.truncate(FILLED_BYTES);
    writes.swap_remove(0).bytes
}

pub(crate) fn sync(args: &SyncArgs) -> Result<()> {
    let ledger = Ledger::open(&args.ledger)?;
    let name = args.set.file_name().context("a set has a name")?.to_string_lossy().into_owned();
    begin(args.pause_ms);
    for _ in 0..args.rounds {
        ledger.operation("sync", &name, 0, || {
            lose(&args.lose)?;
            let output = Command::new("pmof").args(["pool", "sync"]).arg(&args.set).output()?;
            if !output.status.success() {
                bail!("pmof pool sync: {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Removes files, durably.
fn lose(files: &[PathBuf]) -> Result<()> {
    for file in files {
        match fs::remove_file(file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => File::open(file.parent().unwrap_or(Path::new(".")))?.sync_all()?,
        }
    }
    Ok(())
}
