//! How long writes and their flushes take in a directory, by each system call.

use std::fmt::{self, Display, Formatter};

use pmof_mem::{SyncCell, SyncContender, SyncMeasurement, SyncMethod};
use serde::Serialize;

/// What was measured in one directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlushTimes {
    /// The directory.
    pub path: String,
    /// Its file system.
    pub file_system: String,
    /// For each length of a write, each number of clients.
    pub cells: Vec<FlushCell>,
    /// What the file system flushes besides a pool's bytes.
    pub remark: Option<&'static str>,
}

/// Writes of one length by one number of clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlushCell {
    /// Length of each write.
    pub size_bytes: u64,
    /// How many write and flush at once, all to one pool.
    pub client_count: usize,
    /// Rounds that were measured.
    pub round_count: usize,
    /// Each call that was measured.
    pub calls: Vec<FlushCall>,
    /// The call that flushes pools there, unless the operator names one.
    pub chosen: String,
}

/// One system call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlushCall {
    /// Its name.
    pub call: String,
    /// It can flush pools: it is durable by rule, and needs no bytes but those in the page cache.
    pub is_usable: bool,
    /// Wall time divided by the writes of all clients: median of rounds.
    pub median_ns: u64,
    /// Its time divided by that of fdatasync in the same round: median, in thousandths.
    pub to_fdatasync_permille: u64,
}

impl FlushTimes {
    /// The report of a measurement.
    pub fn new(path: String, measurement: &SyncMeasurement) -> Self {
        Self {
            path,
            file_system: measurement.file_system.clone(),
            cells: measurement.cells.iter().map(FlushCell::new).collect(),
            remark: remark(&measurement.file_system),
        }
    }
}

/// What is written besides the file (Documentation/filesystems/ext4/journal.rst, `data=ordered`; xfs-delayed-logging-design.rst).
fn remark(file_system: &str) -> Option<&'static str> {
    match file_system {
        "ext3" | "ext4" => Some(
            "where a flush has to commit the journal, as for the first write to a block, ext4 commits the changes of all files, and writes the \
             newly allocated data of others first (data=ordered): keep pools on a file system of their own, or on XFS",
        ),
        "xfs" => Some(
            "where a flush has to write the log, XFS writes it up to the last change of the pool's file, with what others logged before it, and no data of other files",
        ),
        _ => None,
    }
}

impl FlushCell {
    fn new(cell: &SyncCell) -> Self {
        let calls = cell.times.iter().map(|time| FlushCall {
            call: time.contender.to_string(),
            is_usable: matches!(time.contender, SyncContender::Fence(_)),
            median_ns: time.median_ns,
            to_fdatasync_permille: time.to_fdatasync_permille,
        });
        Self {
            size_bytes: cell.size_bytes,
            client_count: cell.client_count,
            round_count: cell.round_count,
            calls: calls.collect(),
            chosen: cell.chosen.to_string(),
        }
    }

    fn lowest(&self, is_wanted: impl Fn(&FlushCall) -> bool) -> Option<u64> {
        self.calls.iter().filter(|call| is_wanted(call)).map(|call| call.to_fdatasync_permille).min()
    }

    /// The chosen call's time divided by that of the best call that may flush pools, and by that of the best of all.
    fn ratios(&self) -> Option<(f64, f64)> {
        let chosen = self.lowest(|call| call.call == self.chosen)? as f64;
        let to = |best: Option<u64>| best.map(|best| chosen / best as f64);
        Some((to(self.lowest(|call| call.is_usable))?, to(self.lowest(|_| true))?))
    }
}

impl Display for FlushTimes {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { path, file_system, cells, remark } = self;
        writeln!(f, "Time of a write and its flush in {path} ({file_system})")?;
        let Some(first) = cells.first() else {
            return writeln!(
                f,
                "  the disk is too slow to be measured; pools are flushed by {}",
                SyncMethod::default()
            );
        };
        write!(f, "  {:>6}  {:>7}", "bytes", "clients")?;
        for call in &first.calls {
            let name = if call.is_usable { call.call.clone() } else { format!("{}*", call.call) };
            write!(f, "  {name:>12}")?;
        }
        writeln!(f, "  {:>9}  {:>10}  {:>11}", "chosen", "to usable", "to all")?;
        for cell in cells {
            write!(f, "  {:>6}  {:>7}", cell.size_bytes, cell.client_count)?;
            for call in &cell.calls {
                write!(f, "  {:>9.1} us", call.median_ns as f64 / 1000.0)?;
            }
            let (to_usable, to_all) = cell.ratios().unwrap_or((f64::NAN, f64::NAN));
            writeln!(f, "  {:>9}  {to_usable:>10.2}  {to_all:>11.2}", cell.chosen)?;
        }
        let rounds = cells.iter().map(|cell| cell.round_count).min().unwrap_or(0);
        writeln!(
            f,
            "  medians of {rounds} rounds, of the writes of all clients together; the ratios are those of calls in the same round, 1.00 is the best"
        )?;
        writeln!(f, "  * for comparison: it writes its own bytes, and pools are written through mappings")?;
        writeln!(
            f,
            "  {} replaces fdatasync only where it is 3 % faster, and in clearly more than half of the rounds",
            SyncMethod::Msync
        )?;
        remark.map_or(Ok(()), |remark| writeln!(f, "  {remark}"))
    }
}

#[cfg(test)]
mod tests {
    use pmof_mem::SyncTime;

    use super::*;

    fn measured(file_system: &str, cells: Vec<SyncCell>) -> FlushTimes {
        FlushTimes::new("/pools".into(), &SyncMeasurement { file_system: file_system.into(), device: 1, cells })
    }

    fn cell(chosen: SyncMethod) -> SyncCell {
        let time = |contender, median_ns| SyncTime { contender, median_ns, to_fdatasync_permille: median_ns / 100 };
        let times = vec![
            time(SyncContender::Fence(SyncMethod::Fdatasync), 100_000),
            time(SyncContender::Fence(SyncMethod::Msync), 80_000),
            time(SyncContender::RwfDsync, 40_000),
        ];
        SyncCell { size_bytes: 512, client_count: 16, round_count: 8, times, chosen }
    }

    #[test]
    fn a_table_says_what_is_chosen_and_how_far_it_is_from_the_best() {
        let text = measured("ext4", vec![cell(SyncMethod::Msync)]).to_string();
        let row: Vec<_> = text.lines().nth(2).unwrap().split_whitespace().collect();
        assert_eq!(row, ["512", "16", "100.0", "us", "80.0", "us", "40.0", "us", "msync", "1.00", "2.00"], "{text}");
        assert!(text.contains("RWF_DSYNC*") && text.contains("medians of 8 rounds"), "{text}");
        let text = measured("ext4", vec![cell(SyncMethod::Fdatasync)]).to_string();
        assert!(text.lines().nth(2).unwrap().contains("1.25"), "a bad choice shows: {text}");
    }

    #[test]
    fn file_systems_differ_in_what_else_they_flush() {
        let remark = |file_system| measured(file_system, Vec::new()).remark.unwrap_or_default();
        assert!(remark("ext4").contains("all files") && remark("xfs").contains("no data of other files"));
        assert_eq!(remark("btrfs"), "");
        assert!(measured("xfs", Vec::new()).to_string().contains("too slow"));
    }
}
