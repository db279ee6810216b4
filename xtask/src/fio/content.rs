//! What the server's files must hold, and what the two processes must have said.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};

use super::cell::Cell;

/// fio's `verify_pattern` that [`pattern`] makes: each eight bytes of a block are the block's offset.
pub(crate) const VERIFY_PATTERN: &str = "%o";

/// What is in the files before a client writes: no offset of a block.
const BEFORE: u8 = 0xee;

/// Lines of an engine that are no error: hints, and a server that was not there yet.
const HARMLESS: &[&str] = &["Note: ", "Remember that flushing to DRAM", "You can use librpma_client", "Thread ["];

/// A file as a whole client that writes, or has written, leaves it.
fn pattern(block_bytes: u64, bytes: u64) -> Vec<u8> {
    (0..bytes / 8).flat_map(|word| (word * 8 / block_bytes * block_bytes).to_le_bytes()).collect()
}

/// Makes a thread's file: with the pattern where the cell reads it, else with something that is not the pattern.
pub(crate) fn prepare(file: &Path, cell: &Cell) -> Result<()> {
    let bytes = cell.bytes_of_thread();
    let content =
        if cell.access.writes() { vec![BEFORE; usize::try_from(bytes)?] } else { pattern(cell.block_bytes, bytes) };
    fs::write(file, content).with_context(|| format!("writing {}", file.display()))
}

/// How many blocks of the file have been written. Each must hold the pattern, or what was there before.
pub(crate) fn written_blocks(file: &Path, cell: &Cell) -> Result<u64> {
    let content = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    let bytes = cell.bytes_of_thread();
    ensure!(content.len() as u64 == bytes, "{} has {} bytes, not {bytes}", file.display(), content.len());
    let wanted = pattern(cell.block_bytes, bytes);
    let size = usize::try_from(cell.block_bytes)?;
    let mut written = 0;
    for (number, (found, wanted)) in content.chunks(size).zip(wanted.chunks(size)).enumerate() {
        if found == wanted {
            written += 1;
            continue;
        }
        let first = found.iter().position(|byte| *byte != BEFORE);
        if let Some(at) = first {
            let shown = &found[at..found.len().min(at + 16)];
            anyhow::bail!(
                "{}: block {number} is neither written nor untouched: at {} there is {shown:02x?}",
                file.display(),
                number * size + at
            );
        }
    }
    Ok(written)
}

/// The first line on standard output that tells of an error: fio's own word for one.
pub(crate) fn failure(output: &str) -> Option<&str> {
    output.lines().find(|line| line.starts_with("fio: pid="))
}

/// The first line on standard error that tells of an error.
pub(crate) fn complaint(errors: &str) -> Option<&str> {
    errors.lines().map(str::trim).find(|line| {
        let harmless = HARMLESS.iter().any(|begin| line.starts_with(begin));
        // The library's own log, Debian's and ours: what is below an error may be told.
        let told = ["*WARNING*", "*NOTICE*", "*INFO*", "*DEBUG*"].iter().any(|level| line.contains(level));
        let is_ours = line.strip_prefix("pmof librpma ").is_some_and(|rest| !rest.starts_with("error:"));
        !line.is_empty() && !harmless && !told && !is_ours
    })
}

/// What a client did, from its JSON: bytes written and read, and fio's error number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) written_bytes: u64,
    pub(crate) read_bytes: u64,
    pub(crate) error: i64,
    /// Means of the completion latency of requests, in ns; 0 where there were none.
    pub(crate) latency_ns: u64,
}

pub(crate) fn parse(json: &str) -> Result<Done> {
    // Messages of the engines may come before it.
    let start = json.find('{').context("fio wrote no JSON")?;
    let report: serde_json::Value = serde_json::from_str(&json[start..]).context("fio's JSON")?;
    let jobs = report["jobs"].as_array().context("fio's JSON has no jobs")?;
    let mut done = Done::default();
    for job in jobs {
        let number = |direction: &str, field: &str| job[direction][field].as_u64().context("a number in fio's JSON");
        done.written_bytes += number("write", "io_bytes")?;
        done.read_bytes += number("read", "io_bytes")?;
        done.error = done.error.max(job["error"].as_i64().context("an error number in fio's JSON")?);
        let mean = |direction: &str| job[direction]["lat_ns"]["mean"].as_f64().unwrap_or_default();
        #[expect(clippy::cast_sign_loss, reason = "a time")]
        let latency_ns = mean("write").max(mean("read")) as u64;
        done.latency_ns = done.latency_ns.max(latency_ns);
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fio::cell::{Access, Engine, Memory};

    fn cell(access: Access) -> Cell {
        let (engine, memory) = (Engine::Apm, Memory::Medium);
        Cell { engine, access, block_bytes: 256, depth: 1, sync: false, threads: 1, memory }
    }

    #[test]
    fn written_untouched_and_wrong_blocks_are_distinguished() {
        let directory = std::env::temp_dir().join(format!("pmof-fio-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let file = directory.join("file");
        let cell = cell(Access::Write);
        prepare(&file, &cell).unwrap();
        assert_eq!(written_blocks(&file, &cell).unwrap(), 0);
        let mut content = fs::read(&file).unwrap();
        content[512..768].copy_from_slice(&pattern(256, 1024)[512..768]);
        fs::write(&file, &content).unwrap();
        assert_eq!(written_blocks(&file, &cell).unwrap(), 1);
        content[700] ^= 1;
        fs::write(&file, &content).unwrap();
        assert!(written_blocks(&file, &cell).unwrap_err().to_string().contains("block 2 "));
        prepare(&file, &self::cell(Access::Read)).unwrap();
        assert_eq!(written_blocks(&file, &cell).unwrap(), 4096);
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn every_word_of_a_block_is_its_offset() {
        let made = pattern(256, 1024);
        assert_eq!(made.len(), 1024);
        assert_eq!(made[..8], 0_u64.to_le_bytes());
        assert_eq!(made[256..264], 256_u64.to_le_bytes());
        assert_eq!(made[1016..], 768_u64.to_le_bytes());
    }

    #[test]
    fn errors_are_found_among_hints() {
        let hints = "Note: Direct Write to PMem is not supported\n\nThread [1]: Retrying (#1) ...\n\
                     Jan 01 00:00:00.000000 [7] *WARNING* conn.rs:  1: f: claim\n";
        assert_eq!(complaint(hints), None);
        let error = "fio: pid=3, err=5/file:ioengines.c:339, func=td_io_queue";
        assert_eq!(complaint(&format!("{hints}{error}\n")), Some(error));
        assert_eq!(failure(&format!("fio-3.33\nStarting 1 thread\n{error}\n")), Some(error));
        assert_eq!(failure("fio: size of memory mapped from the file f: 4096\nserver: err= 0: pid=7\n"), None);
        assert!(complaint("Jan 01 00:00:00.000000 [7] *ERROR*   conn.rs:  1: f: no\n").is_some());
        // As told of a client that came before its server, which fio has try again.
        assert_eq!(complaint("pmof librpma warning: pmof::connection: nobody listens on that port there\n"), None);
        assert!(complaint("pmof librpma error: pmof::memory: fdatasync failed\n").is_some());
    }

    #[test]
    fn a_report_is_summed_over_its_jobs() {
        let json = r#"hint
            {"jobs": [{"error": 0, "write": {"io_bytes": 5, "lat_ns": {"mean": 7.5}}, "read": {"io_bytes": 1}},
                      {"error": 9, "write": {"io_bytes": 6, "lat_ns": {"mean": 3.0}}, "read": {"io_bytes": 2}}]}"#;
        assert_eq!(parse(json).unwrap(), Done { written_bytes: 11, read_bytes: 3, error: 9, latency_ns: 7 });
        assert!(parse("no").is_err() && parse("{}").is_err());
    }
}
