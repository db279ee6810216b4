//! `pmof pool export`.

use std::{
    fs::File,
    io::{self, IsTerminal as _, Write},
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::{Duration, Instant, SystemTime},
};

use anyhow::Context;
use clap::error::ErrorKind;
use pmof::{Durability, PoolOptions, PoolUrl};
use pmof_console::{output, reach::ConnectArgs, words::parsed};
use pmof_pool_set::Digest;
use serde::Serialize;

use super::{
    format::{CHUNK_BYTES, ExportHeader, Moment, hex},
    input::{is_stream, name_of, open_file},
    reader::{Contents, digests_of_export},
    source::Source,
    writer::{ExportWriter, Written},
};
use crate::{
    copy::{Degraded, check_destination, progress::Progress},
    failure, named,
    new_file::{NewFile, sync_name},
    pool::point::PointReport,
};

/// Bytes that are read of the pool at a time: whole chunks.
const WINDOW_BYTES: usize = 4 << 20;
/// Windows that wait for their digests.
const WINDOWS_WAITING: usize = 2;
const BUFFER_BYTES: usize = 1 << 20;

/// Write a pool to a file or to standard output, as it was at one moment, with its identity, size and user flags
///
/// A pool that is closed is exported as it is, and its replicas in sync are compared; where they differ, the exit status is 3. If somebody opens it for writing meanwhile, the export fails. A pool that is being written is exported at the newest
/// consistency point that one of its asynchronous members keeps (`pmof pool add --async --keep-points`); without one it is refused. A pool whose writer died is exported as
/// one of its replicas in sync has it. Zeroes are not stored. `pmof pool import` makes a pool of it again.
///
/// With `--since` it has only what differs from an earlier export of the pool. An export that fails or is killed leaves nothing behind; the file gets its name when it
/// is complete and durable.
#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    /// Pool: `tcp://HOST[:PORT]/POOL` and the like; its other members are found by it
    #[arg(value_name = "URL", value_parser = parsed::<PoolUrl>)]
    url: PoolUrl,
    /// File to create, or `-` for standard output; what is reported then goes to standard error
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Another member of the pool; may be given several times
    #[arg(long, value_name = "URL", value_parser = parsed::<PoolUrl>)]
    replica: Vec<PoolUrl>,
    /// Export the pool as it was at a consistency point that one of its asynchronous members keeps: by its name, or its number
    #[arg(long, value_name = "POINT")]
    at_point: Option<String>,
    /// Export from as few as COUNT of the pool's replicas; by default a majority, or both of two. Fewer are not safe: the others may have newer data
    #[arg(long, value_name = "COUNT", conflicts_with = "at_point")]
    min_replicas: Option<usize>,
    /// Export only what differs from this earlier export of the pool, full or not, or from the digests of one
    #[arg(long, value_name = "EXPORT")]
    since: Option<PathBuf>,
    /// Write the digests of the export to this file, too, for a later `--since` where the export itself is not at hand
    #[arg(long, value_name = "FILE")]
    digests: Option<PathBuf>,
    /// Do not compare the replicas in sync of a closed pool: read each byte from one of them only
    #[arg(long)]
    no_verify: bool,
    /// Replace files that exist
    #[arg(long)]
    force: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    url: String,
    file: String,
    /// The export's identifier: increments name the one that they are based on.
    export: String,
    since: Option<String>,
    pool_uuid: String,
    len_bytes: u64,
    /// Bytes of the pool that the export has; those of zeroes, and those that did not change, are not stored.
    stored_bytes: u64,
    export_bytes: u64,
    /// `closed`, `not_closed` or `point`.
    moment: &'static str,
    /// Replicas that were compared with each other: those in sync of a closed pool.
    replicas_compared: usize,
    /// Set if the pool was read from fewer replicas than it has.
    degraded: Option<Degraded>,
    point: Option<PointReport>,
    opening: u64,
    unix_ms: u64,
    elapsed_s: f64,
}

pub(crate) fn run(args: &ExportArgs, connect: ConnectArgs) -> anyhow::Result<()> {
    if is_stream(&args.file) && io::stdout().is_terminal() {
        let text = "an export is not for a terminal: name a file, or lead standard output to one\n";
        return Err(clap::Error::raw(ErrorKind::ValueValidation, text).into());
    }
    let to = name_of(&args.file, "standard output");
    let started = Instant::now();
    let exported = export(args, connect).with_context(|| format!("cannot export {} to {to}", args.url))?;
    let report = Report::new(args, exported, started.elapsed());
    let text = if args.json { output::json_object(&report)? + "\n" } else { report.text() };
    if is_stream(&args.file) {
        // Whoever asked may be gone.
        let _ = io::stderr().write_all(text.as_bytes());
        return Ok(());
    }
    Ok(output::print(&text)?)
}

/// What was written, and of what.
struct Exported {
    written: Written,
    /// How many replicas were compared.
    compared: usize,
    degraded: Option<Degraded>,
}

fn export(args: &ExportArgs, connect: ConnectArgs) -> anyhow::Result<Exported> {
    for path in args.digests.iter().chain(Some(&args.file).filter(|file| !is_stream(file))) {
        check_destination(path, args.force)?;
    }
    let base = match &args.since {
        Some(path) => Some(earlier(path)?),
        None => None,
    };
    let urls = std::iter::once(&args.url).chain(&args.replica).map(ToString::to_string);
    let options = urls.fold(connect.pools().require(Durability::Visible), PoolOptions::replica);
    let options = args.min_replicas.into_iter().fold(options, PoolOptions::min_replicas);
    let source = Source::open(&options, args.at_point.as_deref(), !args.no_verify)?;
    if args.at_point.is_none() && !matches!(source.moment, Moment::Point(_)) {
        named::check_members(source.pool(), &std::iter::once(&args.url).chain(&args.replica).collect::<Vec<_>>())?;
    }
    let is_at_point = matches!(source.moment, Moment::Point(_));
    let degraded = Degraded::of(source.pool(), args.min_replicas.is_some()).filter(|_| !is_at_point);
    if let Some(degraded) = &degraded {
        failure::warn(&format!("{degraded}"));
    }
    let exported = |written| Exported { written, compared: source.compared_count(), degraded };
    let header = header_of(&source, base.as_ref());
    if let Some((path, base)) = args.since.as_ref().zip(base.as_ref()) {
        base.header.check_same_pool(&header).with_context(|| format!("{} is of no use here", path.display()))?;
    }
    let base = base.map(|base| base.digests);
    let progress = Progress::new("exporting", header.size_bytes, !args.json);
    let files = (args.digests.as_deref().map(new_file).transpose()?, args.force);
    if is_stream(&args.file) {
        let output = io::BufWriter::with_capacity(BUFFER_BYTES, io::stdout());
        let written = write_all(&source, (output, header, base), &progress).map_err(gone)?;
        return Ok(exported(keep_digests(written, files)?));
    }
    let file = new_file(&args.file)?;
    let output = io::BufWriter::with_capacity(BUFFER_BYTES, file.file());
    let written = write_all(&source, (output, header, base), &progress)?;
    publish(file, args.force)?;
    Ok(exported(keep_digests(written, files)?))
}

/// What an earlier export, or the file of its digests, says.
fn earlier(path: &Path) -> anyhow::Result<Contents> {
    let file = open_file(path)?;
    digests_of_export(io::BufReader::with_capacity(BUFFER_BYTES, file))
        .with_context(|| format!("{} is of no use here", path.display()))
}

fn header_of(source: &Source, base: Option<&Contents>) -> ExportHeader {
    let (pool, now) = (source.pool(), SystemTime::now().duration_since(SystemTime::UNIX_EPOCH));
    ExportHeader {
        pool_uuid: pool.uuid(),
        size_bytes: pool.len_bytes(),
        user_flags: pool.user_flags(),
        chunk_bytes: base.map_or(CHUNK_BYTES, |base| base.header.chunk_bytes),
        moment: source.moment.clone(),
        opening: source.opening,
        unix_ms: now.unwrap_or_default().as_millis() as u64,
        base: base.map(|base| base.id),
    }
}

/// Reads the pool while what was read before is digested and written on another thread.
fn write_all<W: Write + Send>(
    source: &Source,
    (output, header, base): (W, ExportHeader, Option<Vec<Digest>>),
    progress: &Progress,
) -> anyhow::Result<Written> {
    let (filled, windows) = mpsc::sync_channel::<Vec<u8>>(WINDOWS_WAITING);
    let (emptied, buffers) = mpsc::channel();
    let size_bytes = header.size_bytes;
    let writer = thread::scope(|scope| -> anyhow::Result<ExportWriter<W>> {
        let writer = scope.spawn(move || -> io::Result<ExportWriter<W>> {
            let mut writer = ExportWriter::new(output, header, base)?;
            for bytes in windows {
                writer.add(&bytes)?;
                // The buffer is not needed once everything is read.
                let _ = emptied.send(bytes);
            }
            Ok(writer)
        });
        let mut offset = 0;
        while offset < size_bytes {
            let mut bytes = buffers.try_recv().unwrap_or_default();
            bytes.resize((size_bytes - offset).min(WINDOW_BYTES as u64) as usize, 0);
            source.read(offset, &mut bytes)?;
            offset += bytes.len() as u64;
            if filled.send(bytes).is_err() {
                // The writer stopped; its error is reported below.
                break;
            }
            progress.set(offset);
        }
        drop(filled);
        match writer.join() {
            Ok(written) => Ok(written.map_err(not_written)?),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })?;
    // Before the end is written: without it nobody takes the bytes for an export.
    source.check()?;
    Ok(writer.finish().map_err(not_written)?.1)
}

/// What was to be written found no room, or could not be written for another reason.
fn not_written(error: io::Error) -> anyhow::Error {
    let what = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "there is no room for it: free space there, or write it elsewhere, also to another machine (- is standard output); nothing of it is left"
        }
        io::ErrorKind::FileTooLarge => {
            "the file system or a limit (ulimit -f) does not allow a file as long: write it elsewhere; nothing of it is left"
        }
        _ => "cannot write",
    };
    anyhow::Error::from(error).context(what)
}

/// Nobody reads standard output any more.
fn gone(error: anyhow::Error) -> anyhow::Error {
    let is_gone = error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
    if is_gone { error.context("what reads standard output ended before the export did") } else { error }
}

fn new_file(path: &Path) -> anyhow::Result<NewFile> {
    NewFile::create(path, ".pmof-export.").with_context(|| format!("cannot create {}", path.display()))
}

fn publish(file: NewFile, force: bool) -> anyhow::Result<()> {
    let path = file.path().to_owned();
    let named = file.file().sync_all().and_then(|()| file.publish(force)).and_then(|()| sync_name(&path));
    named.map_err(not_written).with_context(|| format!("cannot make {} durable", path.display()))
}

fn keep_digests(written: Written, (file, force): (Option<NewFile>, bool)) -> anyhow::Result<Written> {
    let Some(file) = file else { return Ok(written) };
    let output: &File = file.file();
    let path = file.path().display().to_string();
    let digests = written.write_digests(io::BufWriter::new(output)).map_err(not_written);
    digests.with_context(|| format!("cannot write {path}"))?;
    publish(file, force)?;
    Ok(written)
}

impl Report {
    fn new(args: &ExportArgs, exported: Exported, elapsed: Duration) -> Self {
        let Exported { written, compared: replicas_compared, degraded } = exported;
        let header = &written.header;
        let (moment, point) = match &header.moment {
            Moment::Closed => ("closed", None),
            Moment::NotClosed => ("not_closed", None),
            Moment::Point(point) => ("point", Some(point)),
        };
        Self {
            url: args.url.to_string(),
            file: name_of(&args.file, "-"),
            export: hex(&written.id),
            since: header.base.as_ref().map(hex),
            pool_uuid: header.pool_uuid.to_string(),
            len_bytes: header.size_bytes,
            stored_bytes: written.stored_bytes,
            export_bytes: written.stream_bytes,
            moment,
            replicas_compared,
            degraded,
            point: point.map(PointReport::from),
            opening: header.opening,
            unix_ms: header.time().as_millis() as u64,
            elapsed_s: elapsed.as_secs_f64(),
        }
    }

    fn text(&self) -> String {
        let at = match (self.moment, &self.point) {
            ("point", Some(point)) => format!("at consistency point {:?}", point.name),
            ("closed", _) if self.degraded.is_some() => {
                "as those that were read have it, and not as all of its replicas do".to_owned()
            }
            ("closed", _) => "as its writer closed it".to_owned(),
            _ => "as one replica has it: its writer died and did not close it".to_owned(),
        };
        let what = if self.since.is_some() { "what changed of the" } else { "the" };
        let (size, stored) = (output::size(self.len_bytes), output::size(self.stored_bytes));
        format!("exported {what} pool of {size}, {at}: {stored} stored\nexport {}\n", self.export)
    }
}
