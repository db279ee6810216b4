//! The contents of a pool, and the features in its headers.

use std::{
    io::{self, Write},
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, bail};
use clap::Args;
use pmof_console::{output, reach::ConnectArgs, words};
use pmof_mem::{Medium as _, Memory};
use pmof_pool_set::{
    Feature, FeatureChange, FeatureOptions, LocalReplica, OpenFor, PoolKind, ReplicaSpec, log_range, set_at,
};
use serde::Serialize;

use crate::new_file::{NewFile, sync_name};

/// Bytes read at a time; a multiple of a dump line.
const CHUNK_LEN_BYTES: u64 = 1 << 20;
/// Bytes on a line of the dump.
const LINE_LEN_BYTES: usize = 16;

/// Print the contents of a pool: of a log, or of a range of any pool
#[derive(Debug, Args)]
pub(crate) struct DumpArgs {
    /// Pool set file, or a pool's only part
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// First byte; 0 is the first of the pool's header. Without it: the contents of a log
    #[arg(long, value_name = "SIZE", value_parser = words::size)]
    offset: Option<u64>,
    /// Number of bytes; by default all to the end
    #[arg(long, value_name = "SIZE", value_parser = words::size)]
    len: Option<u64>,
    /// Write raw bytes instead of text
    #[arg(long)]
    binary: bool,
    /// Write to a new file
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Show the features of a pool, or turn one on or off in all headers
#[derive(Debug, Args)]
pub(crate) struct FeatureArgs {
    /// Pool set file, or a pool's only part
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Turn it on: `CKSUM_2K`, `SHUTDOWN_STATE` or `CHECK_BAD_BLOCKS`
    #[arg(long, value_name = "FEATURE", value_parser = parse_feature, conflicts_with = "disable")]
    enable: Option<Feature>,
    /// Turn it off
    #[arg(long, value_name = "FEATURE", value_parser = parse_feature)]
    disable: Option<Feature>,
    /// Change nothing; say what would be done
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn parse_feature(name: &str) -> Result<Feature, String> {
    let names = || Feature::ALL.map(Feature::name).join(", ");
    Feature::of_name(name).ok_or_else(|| format!("there are {}", names()))
}

pub(crate) fn dump(args: &DumpArgs) -> anyhow::Result<()> {
    let set = set_at(&args.path)?;
    let parts = set.replicas.iter().find_map(ReplicaSpec::local).context("the set has no replica on this machine")?;
    let replica = LocalReplica::open(parts, set.options, OpenFor::Read, None)?;
    let memory = replica.memory();
    let is_log = replica.header(0).and_then(|header| header.kind()) == Some(PoolKind::Log);
    let range = match (args.offset, is_log) {
        (None, true) => log_range(&mut Arc::clone(&memory)).map_err(anyhow::Error::from_boxed)?,
        (offset, _) => offset.unwrap_or(0)..memory.len_bytes(),
    };
    let end = args.len.map_or(range.end, |len_bytes| range.start.saturating_add(len_bytes));
    if range.start > range.end || range.end > memory.len_bytes() {
        bail!("the pool has {} bytes: offset {} lies outside it", memory.len_bytes(), range.start);
    }
    if end > range.end {
        let (start, there) = (range.start, range.end - range.start);
        bail!(
            "there are {there} bytes from offset {start} on, fewer than `--len` asks for: leave it out for all of them"
        );
    }
    match &args.output {
        Some(path) => write_file(path, |file| print(&memory, range.start..end, args.binary, file))?,
        None => print(&memory, range.start..end, args.binary, &mut io::stdout().lock())?,
    }
    Ok(replica.close()?)
}

/// Creates a file from the output of `write`, durably and atomically.
fn write_file(path: &Path, write: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let failed = || format!("cannot create {}", path.display());
    if path.symlink_metadata().is_ok() {
        bail!("cannot create {}: it exists; remove it, or name another file", path.display());
    }
    let new = NewFile::create(path, ".pmof-dump.").with_context(failed)?;
    write(&mut new.file()).with_context(failed)?;
    new.file().sync_all().with_context(failed)?;
    new.publish(false).with_context(failed)?;
    sync_name(path).with_context(failed)
}

fn print(memory: &Memory, range: Range<u64>, is_binary: bool, output: &mut dyn Write) -> anyhow::Result<()> {
    let mut output = io::BufWriter::new(output);
    let mut bytes = vec![0; CHUNK_LEN_BYTES as usize];
    let (mut offset, end) = (range.start, range.end);
    while offset < end {
        let chunk = &mut bytes[..(end - offset).min(CHUNK_LEN_BYTES) as usize];
        memory.read(offset, chunk)?;
        let written = if is_binary { output.write_all(chunk) } else { write_lines(&mut output, offset, chunk) };
        match written.and_then(|()| output.flush()) {
            // A reader that closes its end, as `head` does, is not an error.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            outcome => outcome.context("cannot write")?,
        }
        offset += chunk.len() as u64;
    }
    Ok(())
}

fn write_lines(output: &mut impl Write, offset: u64, bytes: &[u8]) -> io::Result<()> {
    for (index, line) in bytes.chunks(LINE_LEN_BYTES).enumerate() {
        write!(output, "{:012x} ", offset + (index * LINE_LEN_BYTES) as u64)?;
        for position in 0..LINE_LEN_BYTES {
            match line.get(position) {
                Some(byte) => write!(output, " {byte:02x}")?,
                None => write!(output, "   ")?,
            }
        }
        let is_shown = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
        let shown: String = line.iter().map(|byte| if is_shown(*byte) { *byte as char } else { '.' }).collect();
        writeln!(output, "  {shown}")?;
    }
    Ok(())
}

#[derive(Debug, Serialize)]
struct FeatureReport {
    set: PathBuf,
    dry_run: bool,
    features: Vec<&'static str>,
}

pub(crate) fn feature(args: &FeatureArgs, connect: ConnectArgs) -> anyhow::Result<()> {
    let pool = connect.set(set_at(&args.path)?);
    let options = FeatureOptions::default().dry_run(args.dry_run);
    let features = match (args.enable, args.disable) {
        (Some(feature), _) => pool.change_feature(FeatureChange::Enable(feature), &options)?,
        (_, Some(feature)) => pool.change_feature(FeatureChange::Disable(feature), &options)?,
        _ => pool.features()?,
    };
    let features: Vec<_> = features.known().map(Feature::name).collect();
    if args.json {
        return output::print_json(&FeatureReport { set: args.path.clone(), dry_run: args.dry_run, features });
    }
    Ok(output::print(&features.iter().map(|name| [name, "\n"].concat()).collect::<String>())?)
}
