//! `pmof pool import`.

use std::{
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::Instant,
};

use anyhow::{Context, bail};
use clap::error::ErrorKind;
use pmof::{
    Acknowledge, Durability, Pool, PoolError, PoolOptions, PoolRefusal, PoolUrl, Receipt, ReplicaError, causes,
};
use pmof_console::{
    output::{self, ReceiptReport, with_mend},
    reach::ConnectArgs,
    words::{Level, parsed},
};
use serde::Serialize;

use super::{
    format::{ExportHeader, digest_of, hex},
    input::{self, is_stream, name_of},
    reader::{Contents, ExportReader, Piece},
};
use crate::{copy::progress::Progress, failure::Differs};

/// Bytes between two persists: few enough that a slow disk flushes them within the loss timeout.
const PERSIST_EVERY_BYTES: u64 = 32 << 20;
/// Pieces that wait for the network.
const PIECES_WAITING: usize = 32;
/// Bytes that are read back at a time, at least.
const VERIFY_BYTES: u64 = 4 << 20;
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// Make a pool of an export, with the identity, the size and the user flags of the pool that was exported
///
/// The pool has the replicas that are named, which are new ones: they are never mixed with what is left of the pool that was exported. It gets its name when it is
/// complete, durable and verified. An export that is cut short, damaged, of another version or of another pool is refused, and then, or if the import is killed, nothing is
/// left behind. An increment needs the exports that it is based on (`--base`). The exit status is 3 where an export is damaged or cut short, or the new pool does not read back as it was written.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent option")]
pub(crate) struct ImportArgs {
    /// Export, or `-` for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Replicas of the new pool: `tcp://HOST[:PORT]/POOL` and the like
    #[arg(value_name = "URL", required_unless_present = "dry_run", value_parser = parsed::<PoolUrl>)]
    urls: Vec<PoolUrl>,
    /// Export that FILE is an increment of; given several times: first the full export, then the increments in the order in which they were made
    #[arg(long, value_name = "EXPORT")]
    base: Vec<PathBuf>,
    /// Remove pools that have the names first, with all their bytes, when the exports have been read in full and are sound
    #[arg(long)]
    force: bool,
    /// Read the exports in full and check them, and make no pool
    #[arg(long, conflicts_with = "force")]
    dry_run: bool,
    /// Failure that the new pool must survive; power-failure by default
    #[arg(long, value_enum, value_name = "LEVEL")]
    durability: Option<Level>,
    /// Do not read the pool back to compare it with the digests
    #[arg(long)]
    no_verify: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    file: String,
    export: String,
    pool_uuid: String,
    len_bytes: u64,
    unix_ms: u64,
    dry_run: bool,
    verified: bool,
    elapsed_s: f64,
    /// What was promised for the bytes; null with `--dry-run`.
    receipt: Option<ReceiptReport>,
}

pub(crate) fn run(args: &ImportArgs, connect: ConnectArgs) -> anyhow::Result<()> {
    let streams = args.base.iter().chain([&args.file]).filter(|path| is_stream(path)).count();
    if streams > 1 || (args.force && streams > 0) {
        let text = if args.force {
            "--force reads the exports twice, first to check them: it needs files, and not standard input\n"
        } else {
            "standard input is one export: name files for the others\n"
        };
        return Err(clap::Error::raw(ErrorKind::ArgumentConflict, text).into());
    }
    let started = Instant::now();
    let name = name_of(&args.file, "standard input");
    let (contents, receipt) = import(args, connect).with_context(|| {
        let urls: Vec<_> = args.urls.iter().map(ToString::to_string).collect();
        if args.dry_run {
            format!("{name} cannot be imported")
        } else {
            format!("cannot import {name} to {}", urls.join(" "))
        }
    })?;
    let Contents { header, id, .. } = &contents;
    if args.json {
        return output::print_json(&Report {
            file: name_of(&args.file, "-"),
            export: hex(id),
            pool_uuid: header.pool_uuid.to_string(),
            len_bytes: header.size_bytes,
            unix_ms: header.time().as_millis() as u64,
            dry_run: args.dry_run,
            verified: !args.no_verify && !args.dry_run,
            elapsed_s: started.elapsed().as_secs_f64(),
            receipt: receipt.as_ref().map(Into::into),
        });
    }
    let (size, id) = (output::size(header.size_bytes), hex(id));
    Ok(output::print(&match receipt {
        None => format!("sound: a pool of {size}\nexport {id}\n"),
        Some(receipt) => {
            let verified = if args.no_verify { "not verified" } else { "verified" };
            format!("imported a pool of {size}, {verified}\nexport {id}\n{receipt}\n")
        }
    })?)
}

fn import(args: &ImportArgs, connect: ConnectArgs) -> anyhow::Result<(Contents, Option<Receipt>)> {
    if args.dry_run || args.force {
        let contents = check(args)?;
        if args.dry_run {
            return Ok((contents, None));
        }
        remove_old(&args.urls, connect)?;
    }
    let first = args.base.first().unwrap_or(&args.file);
    let reader = open(first)?;
    let pool = create(args, reader.header(), connect)?;
    let progress = Progress::new("importing", reader.header().size_bytes, !args.json);
    let mut contents = fill((reader, first), None, &pool, &progress)?;
    for path in args.base.iter().skip(1).chain(Some(&args.file).filter(|_| !args.base.is_empty())) {
        contents = fill((open(path)?, path), Some(contents), &pool, &progress)?;
    }
    drop(progress);
    let receipt = persist(&pool)?;
    if !args.no_verify {
        let count = pool.replica_count();
        let progress = Progress::new("verifying", contents.header.size_bytes * count as u64, !args.json);
        (0..count).try_for_each(|index| verify(&pool, index, &contents, &progress))?;
    }
    pool.close().map_err(with_mend)?;
    Ok((contents, Some(receipt)))
}

fn of(path: &Path) -> String {
    format!("{} is of no use", name_of(path, "standard input"))
}

fn open(path: &Path) -> anyhow::Result<ExportReader<Box<dyn std::io::Read + Send>>> {
    ExportReader::open(input::open(path)?).with_context(|| of(path))
}

/// Reads all exports in full.
fn check(args: &ImportArgs) -> anyhow::Result<Contents> {
    let nowhere = |_| Ok(());
    let first = args.base.first().unwrap_or(&args.file);
    let mut contents = open(first)?.read_all(None, nowhere).with_context(|| of(first))?;
    for path in args.base.iter().skip(1).chain(Some(&args.file).filter(|_| !args.base.is_empty())) {
        contents = open(path)?.read_all(Some(contents), nowhere).with_context(|| of(path))?;
    }
    Ok(contents)
}

/// Removes what has the names, unless somebody writes it.
fn remove_old(urls: &[PoolUrl], connect: ConnectArgs) -> anyhow::Result<()> {
    let options = |url: &PoolUrl| connect.pools().replica(url.to_string());
    let mut there = Vec::new();
    for url in urls {
        match options(url).info() {
            Ok(infos) => match infos.into_iter().find_map(|info| info.open_by) {
                Some(writer) => bail!("{writer} has {url} open for writing: close it there first"),
                None => there.push(url),
            },
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(with_mend(error)),
        }
    }
    for url in there {
        options(url).remove().map_err(with_mend)?;
    }
    Ok(())
}

fn is_absent(error: &PoolError) -> bool {
    let PoolError::Replica { source, .. } = error else { return false };
    matches!(**source, ReplicaError::Refused { refusal: PoolRefusal::NotFound, .. })
}

/// The pool, which has no name yet: if this process dies, it is gone.
fn create(args: &ImportArgs, header: &ExportHeader, connect: ConnectArgs) -> anyhow::Result<Pool> {
    let options = args.urls.iter().map(ToString::to_string).fold(connect.pools(), PoolOptions::replica);
    let level = args.durability.map_or(Durability::PowerFailure, Level::durability);
    // It gets its name on all replicas or on none: the loss of one aborts it.
    let options = options.require(level).acknowledge(Acknowledge::AtLeast(args.urls.len())).publish_on_close(true);
    let options = options.uuid(header.pool_uuid).user_flags(header.user_flags);
    options.create(header.size_bytes).map_err(with_mend)
}

/// Reads an export and checks it on another thread while what was read before is written to the pool.
fn fill<R: std::io::Read + Send>(
    (reader, path): (ExportReader<R>, &Path),
    before: Option<Contents>,
    pool: &Pool,
    progress: &Progress,
) -> anyhow::Result<Contents> {
    let (filled, pieces) = mpsc::sync_channel(PIECES_WAITING);
    thread::scope(|scope| {
        let reader = scope.spawn(move || reader.read_all(before, |piece| Ok(filled.send(piece)?)));
        let mut unflushed = 0;
        for piece in pieces {
            unflushed += write(pool, &piece)?;
            if unflushed >= PERSIST_EVERY_BYTES {
                persist(pool)?;
                unflushed = 0;
            }
            progress.set(piece.end());
        }
        match reader.join() {
            Ok(read) => read.with_context(|| of(path)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Writes a piece. Returns how many bytes that were.
fn write(pool: &Pool, piece: &Piece) -> anyhow::Result<u64> {
    match piece {
        Piece::Data { offset, bytes } => {
            pool.lane().write(*offset, bytes).map_err(with_mend)?;
            Ok(bytes.len() as u64)
        }
        Piece::Zeroes { offset, len_bytes } => {
            let (mut at, mut lane) = (*offset, pool.lane());
            let mut unflushed = 0;
            while at < piece.end() {
                let zeroes = &ZEROES[..(piece.end() - at).min(ZEROES.len() as u64) as usize];
                lane.write(at, zeroes).map_err(with_mend)?;
                at += zeroes.len() as u64;
                unflushed += zeroes.len() as u64;
                if unflushed >= PERSIST_EVERY_BYTES {
                    persist(pool)?;
                    unflushed = 0;
                }
            }
            Ok(*len_bytes)
        }
    }
}

fn persist(pool: &Pool) -> anyhow::Result<Receipt> {
    match pool.lane().persist() {
        Ok(receipt) => Ok(receipt),
        // All of it is discarded, so the receipt of the others is not reported.
        Err(PoolError::Persist(failure)) => match failure.failed.first() {
            Some((replica, why)) => bail!("replica {replica} failed: {}; nothing of the import is left", causes(why)),
            None => bail!("{failure}"),
        },
        Err(error) => Err(with_mend(error)),
    }
}

/// Reads a replica back.
fn verify(pool: &Pool, index: usize, contents: &Contents, progress: &Progress) -> anyhow::Result<()> {
    let Contents { header, digests, .. } = contents;
    let chunk_bytes = header.chunk_bytes as usize;
    let mut bytes = vec![0; (VERIFY_BYTES as usize).max(chunk_bytes)];
    let mut digests = digests.iter();
    let mut offset = 0;
    while offset < header.size_bytes {
        let found = &mut bytes[..(header.size_bytes - offset).min(VERIFY_BYTES.max(chunk_bytes as u64)) as usize];
        pool.read_replica(index, offset, found).map_err(with_mend)?;
        for (chunk, digest) in found.chunks(chunk_bytes).zip(&mut digests) {
            if digest_of(chunk) != *digest {
                return Err(Differs::error(format!(
                    "replica {index} (from 0, in the order given) differs from the export in the {} bytes at offset {offset}; check the memory and \
                     disk of its machine, and import again",
                    chunk.len()
                )));
            }
            offset += chunk.len() as u64;
            progress.advance(chunk.len() as u64);
        }
    }
    Ok(())
}
