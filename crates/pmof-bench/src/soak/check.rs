//! `pmof soak check`: the half that compares what is there with the ledger.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use pmof::{Durability, PoolUrl};
use pmof_console::{
    output::{self, with_mend},
    reach::ConnectArgs,
    words::parsed,
};
use pmof_control::{HEADER_BYTES, Header};
use pmof_mem::{Medium, Memory};
use serde::Serialize;
use uuid::Uuid;

use super::{
    diary::Told,
    ledger::{Ledger, WORD_BYTES, WrongWord},
    workload::{RING_MIN_BYTES, Ring, Workload},
};

/// Compare pools with the ledger of `pmof soak write`; fails where something acknowledged is gone
///
/// Every word of 8 bytes must be the last acknowledged one or one issued after it, on each replica for itself. Prints one
/// JSON object: batches acked and issued, bytes checked, words that are wrong, and of how many acknowledged batches
/// something is lost.
#[derive(Debug, clap::Args)]
pub(super) struct CheckArgs {
    /// Replica of the pool at a running target; may be given several times
    #[arg(long, value_name = "URL", required_unless_present = "file", value_parser = parsed::<PoolUrl>)]
    pool: Vec<PoolUrl>,
    /// File or devdax device of the pool at a target that does not run; may be given several times
    #[arg(long, value_name = "PATH")]
    file: Vec<PathBuf>,
    /// The ledger that the writer kept
    #[arg(long, value_name = "PATH")]
    ledger: PathBuf,
    /// The writer's seed
    #[arg(long)]
    seed: u64,
    #[command(flatten)]
    pub(super) connect: ConnectArgs,
}

/// What was found, over all replicas.
#[derive(Debug, Default, Serialize)]
struct Report {
    /// Batches acknowledged.
    batches_acknowledged: u64,
    /// Batches issued.
    batches_issued: u64,
    verified_bytes: u64,
    /// Of these, bytes issued and not acknowledged.
    unacknowledged_bytes: u64,
    /// Words of 8 bytes that hold what they must not.
    words_wrong: u64,
    /// Acknowledged batches of which some replica lacks something.
    batches_lost: u64,
}

/// Runs `pmof soak check`.
pub(super) fn run(args: &CheckArgs) -> Result<()> {
    let told = Told::read(&args.ledger)?;
    let Some(run) = told.run.filter(|_| told.issued > 0) else {
        bail!(
            "the ledger {} is empty, so that nothing can be compared: name the one that `pmof soak write` kept",
            args.ledger.display()
        )
    };
    ensure!(
        run.seed == args.seed,
        "the ledger {} is of a run with seed {}, and --seed is {}: nothing was compared",
        args.ledger.display(),
        run.seed,
        args.seed
    );
    let mut report = Report { batches_acknowledged: told.acked, batches_issued: told.issued, ..Default::default() };
    let mut lost = HashSet::new();
    let mut first = None;
    let urls = args.pool.iter().map(|url| (url.to_string(), read_pool(url, args.connect)));
    let files = args.file.iter().map(|path| (path.display().to_string(), read_file(path)));
    for (name, bytes) in urls.chain(files) {
        let (pool, bytes) = bytes.with_context(|| format!("cannot read {name}"))?;
        ensure!(
            pool == run.pool,
            "{name} is pool {pool}, and the ledger {} is of pool {}: nothing was compared",
            args.ledger.display(),
            run.pool
        );
        compare(args.seed, told, &bytes, &mut report, |wrong, batch| {
            lost.extend(batch);
            first.get_or_insert_with(|| format!("{name}, offset {}", wrong.offset));
        });
    }
    report.batches_lost = lost.len() as u64;
    output::print_json(&report)?;
    match first {
        // Until batch 0 is acknowledged nothing is known of what the pool held before.
        None if told.acked == 0 => {
            bail!(
                "the ledger {} acknowledges nothing, so that nothing was compared: let the writer run longer",
                args.ledger.display()
            )
        }
        None => Ok(()),
        Some(place) => bail!(
            "{} words are wrong, the first in {place}; {} acknowledged batches lost something",
            report.words_wrong,
            report.batches_lost
        ),
    }
}

/// Compares one replica. `wrong` learns of each word and of the acknowledged batch that it belongs to.
fn compare(seed: u64, told: Told, bytes: &[u8], report: &mut Report, mut wrong: impl FnMut(&WrongWord, Option<u64>)) {
    if told.acked == 0 {
        return;
    }
    let (mut ring, workload) = (Ring::new(seed, bytes.len() as u64), Workload::new(seed));
    let mut ledger = Ledger::new(ring.words());
    while let Some((number, batch)) = ring.next().filter(|(number, _)| *number < told.issued) {
        ledger.issue(number, batch.into_writes());
        if number < told.acked {
            // It was issued just now.
            let _ = ledger.acknowledge(number);
        }
    }
    let part = &bytes[..ring.words() * WORD_BYTES];
    let checked = ledger.judge(part, |word| {
        report.words_wrong += 1;
        wrong(&word, workload.ring_batch_of(word.acknowledged, word.offset as usize / WORD_BYTES));
    });
    report.verified_bytes += checked.words * WORD_BYTES as u64;
    report.unacknowledged_bytes += checked.unacknowledged_words * WORD_BYTES as u64;
}

fn read_pool(url: &PoolUrl, connect: ConnectArgs) -> Result<(Uuid, Vec<u8>)> {
    let options = connect.pools().replica(url.to_string()).require(Durability::Visible);
    // Each replica for itself.
    let options = options.min_replicas(1);
    let pool = options.open_read_only().map_err(with_mend)?;
    let mut bytes = part_of(pool.len_bytes())?;
    pool.read(0, &mut bytes)?;
    pool.close()?;
    Ok((pool.uuid(), bytes))
}

fn read_file(path: &Path) -> Result<(Uuid, Vec<u8>)> {
    let memory = Memory::open_read_only(path, None)?;
    ensure!(memory.len_bytes() >= HEADER_BYTES as u64, "it is shorter than the header of a pool");
    let mut head = vec![0; HEADER_BYTES];
    memory.read(0, &mut head)?;
    let header = Header::decode(&head)?;
    let needed_bytes = header.data_offset() + header.size_bytes;
    ensure!(
        memory.len_bytes() >= needed_bytes,
        "it has {} bytes where its header says {needed_bytes}: the file was truncated, and what lay behind its end is lost",
        memory.len_bytes()
    );
    let mut bytes = part_of(header.size_bytes)?;
    memory.read(header.data_offset(), &mut bytes)?;
    Ok((header.pool_uuid, bytes))
}

/// Room for the ring of a pool of this size.
fn part_of(pool_bytes: u64) -> Result<Vec<u8>> {
    ensure!(pool_bytes >= RING_MIN_BYTES, "{pool_bytes} bytes are less than any pool of `pmof soak write` has");
    Ok(vec![0; Ring::new(0, pool_bytes).words() * WORD_BYTES])
}
