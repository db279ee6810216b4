//! `pmof cp`.

use std::{fmt, path::PathBuf, str::FromStr, time::Instant};

use anyhow::Context;
use clap::error::ErrorKind;
use pmof::{Durability, Pool, PoolOptions, PoolUrl, Receipt, Waiting};
use pmof_console::{
    output::{self, ReceiptReport, with_mend},
    reach::ConnectArgs,
    words::{Level, MethodName, parsed},
};
use pmof_pool::PoolUrlError;
use serde::Serialize;
use uuid::Uuid;

use self::{
    checksums::{Checksums, ExpectedWindow},
    error::CopyError,
    moment::Moment,
    progress::Progress,
};
use crate::{
    failure,
    named::{self, LeftOut},
    pool::point::PointReport,
};

mod checksums;
mod download;
pub(crate) mod error;
pub(crate) mod mark;
mod moment;
pub(crate) mod progress;
mod source;
mod upload;

pub(crate) use download::check_destination;

/// Bytes of a window, which is read, sent, checked and written as a unit: one read of a pool. A copy of any size holds only
/// a few windows in memory.
const WINDOW_BYTES: usize = 4 << 20;

/// Windows shared by the file's thread and the network's: one in use by each, and one queued.
const WINDOWS_WAITING: usize = 2;

/// Copy a file to a new pool or a pool to a file, verify the copy, and print the receipt.
///
/// One of SRC and DST is a pool (`tcp://HOST[:PORT]/POOL`, `verbs://HOST[:PORT]/POOL[?source=IP]`,
/// `fabric+PROVIDER://HOST[:PORT]/POOL[?source=IP]`, `rds://HOST[:PORT]/POOL[?source=IP]`, `shm:///PATH/OF/SOCKET?pool=POOL` or `file:///DIRECTORY/POOL`), the other a file. A copy that fails leaves
/// nothing behind, and one that is killed leaves no partial pool or file: the pool gets its name, and the file its path,
/// only when the copy is complete and verified (a killed download leaves `.pmof-cp.*.part` beside DST).
///
/// Of a closed pool all replicas in sync are compared. A pool that a program has open for writing is copied as it was at the newest consistency point that one of its
/// asynchronous members keeps (`pmof pool add --async --keep-points`), and standard error says so; without one it is copied as it is read, with a warning, and no replicas are
/// compared: such a copy is no moment of the pool. A pool whose writer died is copied as one replica has it. The exit status is 3 where the copy does not read back as it was written,
/// or replicas of a closed pool differ.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent option")]
pub(crate) struct CpArgs {
    /// File or pool to copy
    #[arg(value_name = "SRC", value_parser = parsed::<Place>)]
    source: Place,
    /// Pool or file to create
    #[arg(value_name = "DST", value_parser = parsed::<Place>)]
    destination: Place,
    /// Another replica of the pool; may be given several times
    #[arg(long, value_name = "URL", value_parser = parsed::<PoolUrl>)]
    replica: Vec<PoolUrl>,
    /// Copy from as few as COUNT of the pool's replicas; by default a majority, or both of two. Fewer are not safe: the
    /// others may have newer data
    #[arg(long, value_name = "COUNT")]
    min_replicas: Option<usize>,
    /// Copy the pool as it was at a consistency point that one of its asynchronous members keeps: by its name, or its number
    #[arg(long, value_name = "POINT", conflicts_with = "min_replicas")]
    at_point: Option<String>,
    /// Failure that the new pool must survive; power-failure by default
    #[arg(long, value_enum, value_name = "LEVEL")]
    durability: Option<Level>,
    /// Flush method for the new pool; by default the cheapest that provides the durability
    #[arg(long, value_enum, value_name = "METHOD")]
    method: Option<MethodName>,
    /// Do not read the copy back to compare it
    #[arg(long)]
    no_verify: bool,
    /// Keep a digest of each page of the new pool, so that bytes that a medium changes are never read
    #[arg(long = "page-digests")]
    digests: bool,
    /// Replace the file DST if it exists
    #[arg(long)]
    force: bool,
    /// Never sleep while waiting for the network: faster if a core is free
    #[arg(long)]
    busy_poll: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// A file's path, or a pool: what contains `://`.
#[derive(Clone, Debug)]
enum Place {
    File(PathBuf),
    Pool(PoolUrl),
}

/// What a copy did.
#[derive(Debug, Serialize)]
struct Report {
    source: String,
    destination: String,
    direction: &'static str,
    /// The pool that was read or made.
    pool_uuid: String,
    len_bytes: u64,
    /// Bytes that were moved, without the holes of a sparse file.
    moved_bytes: u64,
    elapsed_s: f64,
    mib_per_s: f64,
    /// It was read back and is what the pool had: of all replicas that were compared.
    verified: bool,
    /// The level that an upload reached; `None` for a download.
    durability: Option<String>,
    receipt: Option<ReceiptReport>,
    /// Set if the pool was read from fewer replicas than it has.
    degraded: Option<Degraded>,
    /// Replicas that were compared with each other: those in sync of a closed pool. 0 of an upload.
    replicas_compared: usize,
    /// Which moment of the pool the copy has: `closed`, `not_closed`, `point`, or `written`, which is none. Null for an upload.
    moment: Option<&'static str>,
    /// The consistency point.
    point: Option<PointReport>,
    /// Who may have written the pool while it was read: the copy is no moment of it then.
    written: Option<String>,
}

/// The pool was read from fewer replicas than it has.
#[derive(Debug, Serialize)]
pub(crate) struct Degraded {
    opened_count: usize,
    made_count: usize,
    /// Fewer were allowed than are known to have everything.
    #[serde(skip)]
    is_forced: bool,
    /// Those that were named, and why they were left out.
    left_out: Vec<LeftOut>,
}

impl Degraded {
    pub(crate) fn of(pool: &Pool, is_forced: bool) -> Option<Self> {
        let (opened_count, made_count) = (replicas_in_use(pool).len(), pool.made_count());
        let left_out = pool.left_out().iter().map(|(replica, why)| LeftOut::new(replica, why)).collect();
        (opened_count < made_count).then_some(Self { opened_count, made_count, is_forced, left_out })
    }
}

impl fmt::Display for Degraded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { opened_count: opened, made_count: made, is_forced, left_out } = self;
        write!(f, "read from {opened} of the {made} replicas of the pool")?;
        if !left_out.is_empty() {
            write!(f, "; left out: {}", named::text(left_out))?;
        }
        if *is_forced && 2 * opened <= *made {
            write!(f, "; these are not a majority: the others may have newer data")?;
        }
        Ok(())
    }
}

/// What an upload and a download both report.
struct Copied {
    pool_uuid: Uuid,
    len_bytes: u64,
    moved_bytes: u64,
    receipt: Option<Receipt>,
    degraded: Option<Degraded>,
    /// Replicas that were compared.
    compared: usize,
    /// `None` for an upload.
    moment: Option<Moment>,
}

pub(crate) fn run(args: &CpArgs) -> anyhow::Result<()> {
    let start = Instant::now();
    let copied = match (&args.source, &args.destination) {
        (Place::File(_), Place::Pool(_)) if args.at_point.is_some() => {
            return Err(wrong_use("--at-point is for existing pools"));
        }
        (Place::File(file), Place::Pool(url)) if !args.force && args.min_replicas.is_none() => {
            upload::upload(file, &args.pool(url).require(args.level()), args)
        }
        (Place::Pool(url), Place::File(file)) if args.durability.is_none() && args.method.is_none() => {
            download::download(url, file, args)
        }
        (Place::File(_), Place::Pool(_)) if args.force => {
            return Err(wrong_use("--force is for files: a pool is never replaced"));
        }
        (Place::File(_), Place::Pool(_)) => {
            return Err(wrong_use("--min-replicas is for existing pools: a new one is created on all replicas"));
        }
        (Place::Pool(_), Place::File(_)) => {
            let option = if args.method.is_some() { "--method" } else { "--durability" };
            return Err(wrong_use(&format!("{option} is for new pools, not for files")));
        }
        _ => {
            return Err(wrong_use(
                "one of SRC and DST must be a file, the other a pool such as tcp://127.0.0.1:7204/NAME",
            ));
        }
    };
    let copied = copied.with_context(|| format!("cannot copy {} to {}", args.source, args.destination))?;
    if let Some(warning) = copied.moment.as_ref().and_then(Moment::warning) {
        failure::warn_as(warning.trim_start_matches("warning: "), &format!("pmof cp: {warning}"));
    }
    let is_written = matches!(copied.moment, Some(Moment::Written(_)));
    let seconds = start.elapsed().as_secs_f64();
    let mib_per_s = copied.moved_bytes as f64 / f64::from(1 << 20) / seconds;
    if args.json {
        return output::print_json(&Report {
            source: args.source.to_string(),
            destination: args.destination.to_string(),
            direction: if matches!(args.source, Place::File(_)) { "upload" } else { "download" },
            pool_uuid: copied.pool_uuid.to_string(),
            len_bytes: copied.len_bytes,
            moved_bytes: copied.moved_bytes,
            elapsed_s: seconds,
            mib_per_s,
            verified: !args.no_verify && !is_written,
            durability: copied.receipt.as_ref().map(|receipt| receipt.durability.to_string()),
            receipt: copied.receipt.as_ref().map(Into::into),
            degraded: copied.degraded,
            replicas_compared: copied.compared,
            moment: copied.moment.as_ref().map(Moment::name),
            point: copied.moment.as_ref().and_then(Moment::point).map(PointReport::from),
            written: match &copied.moment {
                Some(Moment::Written(why)) => Some(why.clone()),
                _ => None,
            },
        });
    }
    let verified = match (args.no_verify, is_written) {
        (true, _) => "not verified",
        (false, true) => "read back, no replicas compared",
        (false, false) => "verified",
    };
    let mut text = format!("copied {} in {seconds:.2} s, {verified}\n", output::size(copied.len_bytes));
    if let Some(receipt) = &copied.receipt {
        text += &receipt.to_string();
    }
    if let Some(moment) = &copied.moment {
        // An address does not say which pool it is.
        text += &["read of pool ", &copied.pool_uuid.to_string(), &moment.to_string()].concat();
    }
    text.push('\n');
    Ok(output::print(&text)?)
}

impl CpArgs {
    /// The replicas that are named, of which `url` is the first.
    fn named<'a>(&'a self, url: &'a PoolUrl) -> impl Iterator<Item = &'a PoolUrl> {
        std::iter::once(url).chain(&self.replica)
    }

    fn pool(&self, url: &PoolUrl) -> PoolOptions {
        let options = self.named(url).fold(self.connect.pools(), |options, url| options.replica(url.to_string()));
        let options = MethodName::force(self.method, options);
        let options = self.min_replicas.into_iter().fold(options, PoolOptions::min_replicas);
        if self.busy_poll { options.waiting(Waiting::BusyPoll) } else { options }
    }

    fn level(&self) -> Durability {
        self.durability.map_or(Durability::PowerFailure, Level::durability)
    }

    fn progress(&self, verb: &'static str, len_bytes: u64) -> Progress {
        Progress::new(verb, len_bytes, !self.json)
    }
}

impl FromStr for Place {
    type Err = PoolUrlError;

    fn from_str(text: &str) -> Result<Self, PoolUrlError> {
        if text.contains("://") { text.parse().map(Self::Pool) } else { Ok(Self::File(text.into())) }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Pool(url) => url.fmt(f),
        }
    }
}

/// The replicas that the pool was opened with, by their numbers.
fn replicas_in_use(pool: &Pool) -> Vec<usize> {
    let replicas = pool.replicas().into_iter().enumerate();
    replicas.filter(|(_, (_, why))| why.is_none()).map(|(index, _)| index).collect()
}

/// Reads these replicas, and finds the first that does not hold what was copied: its number, and where.
fn verify(
    pool: &Pool,
    replicas: &[usize],
    expected: &Checksums,
    progress: &Progress,
) -> anyhow::Result<Option<(usize, ExpectedWindow)>> {
    let mut bytes = vec![0; WINDOW_BYTES];
    for &index in replicas {
        for window in expected.windows() {
            let found = &mut bytes[..window.len_bytes];
            pool.read_replica(index, window.offset, found).map_err(with_mend)?;
            if crc32c::crc32c(found) != window.checksum {
                return Ok(Some((index, window)));
            }
            progress.advance(window.len_bytes as u64);
        }
    }
    Ok(None)
}

/// That a replica does not read back as it was copied.
fn differs(pool: &Pool, (index, window): (usize, ExpectedWindow)) -> CopyError {
    let replica = pool.replicas().get(index).map_or_else(|| index.to_string(), |(replica, _)| replica.to_string());
    CopyError::Differs { replica, offset: window.offset, len_bytes: window.len_bytes }
}

fn wrong_use(what: &str) -> anyhow::Error {
    clap::Error::raw(ErrorKind::ArgumentConflict, format!("{what}\n")).into()
}
