//! Measures how long a write and its flush take by each call, on a file without a name in a directory.
//!
//! The calls that a fence may use are measured through [`Memory`] itself, with fences that clients share as they do in a target. Writes with
//! `RWF_DSYNC` and `O_DSYNC` are measured for information. The contenders take turns in rounds, so that what else the disk does meets all of
//! them. Compared are the times of the same round, so that what changes from one round to the next counts for none.

use std::{
    fmt, io,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    path::Path,
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::{
    fs::{CWD, Mode, OFlags},
    io::{Errno, ReadWriteFlags},
};

use crate::{
    Medium as _, MediumKind, MemError, Memory, SyncChoice, SyncMethod, System,
    file::{Opened, io_error, reserve_with_zeros, unnamed_file},
};

/// Each client writes to so many places in turn.
const PLACES: u64 = 8;

/// Distance of places: the longest write.
const PLACE_BYTES: u64 = 64 << 10;

/// Rounds that a time limit has room for at least, unless single writes take longer than their slot.
const ROUNDS: u32 = 15;

/// The longest slot of a contender: more time is for more rounds.
const SLOT_MAX: Duration = Duration::from_millis(10);

/// Fewer prove nothing.
const ROUNDS_MIN: usize = 3;

/// A method replaces `fdatasync` only if it takes less than so many thousandths of its time, so that noise does not decide.
const CLEARLY_FASTER_PERMILLE: u64 = 970;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SyncContender {
    /// A method of fences, after a store to the memory.
    Fence(SyncMethod),
    /// `pwritev2(2)` with `RWF_DSYNC` by each client.
    RwfDsync,
    /// `pwrite(2)` by each client to a file that was opened with `O_DSYNC`.
    ODsync,
}

impl fmt::Display for SyncContender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fence(method) => method.fmt(f),
            Self::RwfDsync => f.pad("RWF_DSYNC"),
            Self::ODsync => f.pad("O_DSYNC"),
        }
    }
}

/// How long one contender took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncTime {
    /// What was measured.
    pub contender: SyncContender,
    /// Wall time divided by the writes of all clients together: median of rounds, in nanoseconds.
    pub median_ns: u64,
    /// Its time divided by that of `fdatasync` in the same round: median, in thousandths.
    pub to_fdatasync_permille: u64,
}

/// Writes of one length by one number of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncCell {
    /// Length of each write.
    pub size_bytes: u64,
    /// How many write and flush at once.
    pub client_count: usize,
    /// Rounds that were measured.
    pub round_count: usize,
    /// One for each contender.
    pub times: Vec<SyncTime>,
    /// The method for fences.
    pub chosen: SyncMethod,
}

impl SyncCell {
    /// The times of a contender.
    pub fn time(&self, contender: SyncContender) -> Option<SyncTime> {
        self.times.iter().copied().find(|time| time.contender == contender)
    }

    /// The fastest contender.
    pub fn best(&self) -> Option<SyncTime> {
        self.times.iter().copied().min_by_key(|time| time.to_fdatasync_permille)
    }
}

/// What was measured on one file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncMeasurement {
    /// The file system's name in the mount table.
    pub file_system: String,
    /// Its `st_dev`.
    pub device: u64,
    /// For each length of [`SyncChoice::SIZES_BYTES`], each number of [`SyncChoice::CLIENTS`]. Empty where there was no time for it.
    pub cells: Vec<SyncCell>,
}

impl SyncMeasurement {
    /// The methods that were fastest, for files of this file system.
    pub fn choice(&self) -> SyncChoice {
        let client_counts = SyncChoice::CLIENTS.len();
        let cells = self.cells.iter().enumerate();
        cells.fold(SyncChoice::default().on_device(self.device), |choice, (index, cell)| {
            choice.with_cell((index / client_counts, index % client_counts), cell.chosen)
        })
    }
}

/// Measures the methods of fences that are durable by rule for files of `directory`, and with `with_others` also the calls that no fence can
/// use. It takes about `limit`, plus what a single flush of the slowest disk takes.
///
/// Errors: `Unsuitable` where the kernel does not flush files of the directory; `Io`, `NoSpace` where no file can be made there.
pub fn measure_sync(directory: &Path, limit: Duration, with_others: bool) -> Result<SyncMeasurement, MemError> {
    let stage = Stage::new(directory)?;
    let mut contenders: Vec<_> = stage.usable().map(SyncContender::Fence).collect();
    if with_others {
        contenders.extend([SyncContender::RwfDsync, SyncContender::ODsync]);
    }
    let cells: Vec<_> = SyncChoice::SIZES_BYTES
        .into_iter()
        .flat_map(|size| SyncChoice::CLIENTS.map(|clients| (size, clients)))
        .collect();
    let slot_count = u32::try_from(cells.len() * contenders.len()).unwrap_or(u32::MAX).saturating_mul(ROUNDS);
    let (begun, slot) = (Instant::now(), (limit / slot_count).min(SLOT_MAX));
    let mut rounds = vec![Vec::new(); cells.len()];
    // The first round loads pages and blocks and does not count.
    for round in 0.. {
        for (index, (size_bytes, client_count)) in cells.iter().enumerate() {
            let mut times = vec![0; contenders.len()];
            for turn in 0..contenders.len() {
                let at = (turn + round) % contenders.len();
                let slot = if round == 0 { Duration::ZERO } else { slot };
                times[at] = stage.time(contenders[at], *size_bytes, *client_count, slot)?;
            }
            if round > 0 {
                rounds[index].push(times);
            }
        }
        if begun.elapsed() + slot * (slot_count / ROUNDS) > limit {
            break;
        }
    }
    let cells = cells.into_iter().zip(&rounds).filter(|(_, rounds)| rounds.len() >= ROUNDS_MIN);
    let cells = cells.map(|((size_bytes, client_count), rounds)| cell(size_bytes, client_count, &contenders, rounds));
    Ok(SyncMeasurement { file_system: stage.file_system.clone(), device: stage.device, cells: cells.collect() })
}

/// Compares the contenders by their rounds, each of which has a time of every contender.
fn cell(size_bytes: u64, client_count: usize, contenders: &[SyncContender], rounds: &[Vec<u64>]) -> SyncCell {
    let of = |index: usize| rounds.iter().map(|times| times[index]).collect::<Vec<_>>();
    let usual = contenders.iter().position(|contender| *contender == SyncContender::Fence(SyncMethod::Fdatasync));
    let usual = usual.map(of).unwrap_or_default();
    let ratios =
        |times: &[u64]| times.iter().zip(&usual).map(|(own, usual)| own * 1000 / usual.max(&1)).collect::<Vec<_>>();
    let times = contenders.iter().enumerate().map(|(index, contender)| SyncTime {
        contender: *contender,
        median_ns: median(of(index)),
        to_fdatasync_permille: median(ratios(&of(index))),
    });
    let msync = contenders.iter().position(|contender| *contender == SyncContender::Fence(SyncMethod::Msync));
    let is_faster = msync.is_some_and(|index| is_clearly_faster(&ratios(&of(index))));
    let chosen = if is_faster { SyncMethod::Msync } else { SyncMethod::Fdatasync };
    SyncCell { size_bytes, client_count, round_count: rounds.len(), times: times.collect(), chosen }
}

/// Whether a method is faster than `fdatasync` by its ratios, in thousandths: by their median, and in more rounds than a coin would give it:
/// half of them and twice the standard deviation of that.
fn is_clearly_faster(ratios: &[u64]) -> bool {
    let won_count = ratios.iter().filter(|ratio| **ratio < 1000).count();
    let is_sure = won_count as f64 >= ratios.len() as f64 / 2.0 + (ratios.len() as f64).sqrt();
    is_sure && median(ratios.to_vec()) < CLEARLY_FASTER_PERMILLE
}

/// The value in the middle, the upper of two; 0 of none.
fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

/// A file that is measured on.
struct Stage {
    file_system: String,
    device: u64,
    kind: MediumKind,
    fences: Vec<(SyncMethod, Memory)>,
    plain: OwnedFd,
    synchronous: OwnedFd,
}

impl Stage {
    fn new(directory: &Path) -> Result<Self, MemError> {
        let most_clients = SyncChoice::CLIENTS.into_iter().max().unwrap_or(1) as u64;
        let len_bytes = most_clients * PLACES * PLACE_BYTES;
        let file = unnamed_file(directory, 0)?;
        reserve_with_zeros(file.as_fd(), directory, len_bytes)?;
        rustix::fs::fsync(&file).map_err(|errno| io_error("fsync", directory, "", errno))?;
        // What was written just now lies in large folios, which a mapping of a pool never has (`Mapping::load_pages`).
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        let device = rustix::fs::fstat(&file).map_err(|errno| io_error("fstat", directory, "", errno))?.st_dev;
        let name = format!("/proc/self/fd/{}", file.as_raw_fd());
        let reopened = |flags: OFlags| {
            let opened = rustix::fs::openat(CWD, &name, OFlags::RDWR | OFlags::CLOEXEC | flags, Mode::empty());
            opened.map_err(|errno| io_error("open", directory, "mount procfs", errno))
        };
        let memory_by = |method| {
            let opened = Opened { fd: reopened(OFlags::empty())?, len_bytes, devdax: None };
            let memory = Memory::of(&System::real(), directory, opened, true, None)?;
            Ok((method, memory.synced_by(SyncChoice::always(method))))
        };
        let (method, memory) = memory_by(SyncMethod::Fdatasync)?;
        let (kind, file_system) = (memory.kind(), memory.file_system().to_owned());
        if kind != MediumKind::PageCache {
            let (why, mend) = ("its files are not flushed by the kernel", "name a directory of a disk");
            return Err(MemError::Unsuitable { path: directory.into(), why, mend });
        }
        let mut fences = vec![(method, memory)];
        if SyncMethod::Msync.is_usable(kind, &file_system) {
            fences.push(memory_by(SyncMethod::Msync)?);
        }
        let synchronous = reopened(OFlags::DSYNC)?;
        Ok(Self { file_system, device, kind, fences, plain: file, synchronous })
    }

    fn usable(&self) -> impl Iterator<Item = SyncMethod> + '_ {
        SyncMethod::ALL.into_iter().filter(|method| method.is_usable(self.kind, &self.file_system))
    }

    /// Nanoseconds for each write, of all clients together: each writes at least once, and until `slot` is over.
    fn time(
        &self,
        contender: SyncContender,
        size_bytes: u64,
        client_count: usize,
        slot: Duration,
    ) -> Result<u64, MemError> {
        let (start, is_over) = (Barrier::new(client_count + 1), AtomicBool::new(false));
        let run = |client: usize| {
            let mut bytes = vec![client as u8; size_bytes as usize];
            start.wait();
            let mut write_count = 0_u64;
            while write_count == 0 || !is_over.load(Ordering::Relaxed) {
                bytes[..8].copy_from_slice(&write_count.to_le_bytes());
                let place = client as u64 * PLACES + write_count % PLACES;
                self.write(contender, place * PLACE_BYTES, &bytes)?;
                write_count += 1;
            }
            Ok(write_count)
        };
        std::thread::scope(|scope| {
            let run = &run;
            let clients: Vec<_> = (0..client_count).map(|client| scope.spawn(move || run(client))).collect();
            start.wait();
            let begun = Instant::now();
            std::thread::sleep(slot);
            is_over.store(true, Ordering::Relaxed);
            let mut write_count = 0;
            for client in clients {
                write_count += client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            }
            Ok((begun.elapsed() / u32::try_from(write_count).unwrap_or(u32::MAX)).as_nanos() as u64)
        })
    }

    fn write(&self, contender: SyncContender, offset: u64, bytes: &[u8]) -> Result<(), MemError> {
        let failed = |call, errno: Errno| io_error(call, "(measured)".as_ref(), "", errno);
        match contender {
            SyncContender::Fence(method) => {
                let Some((_, memory)) = self.fences.iter().find(|(own, _)| *own == method) else { return Ok(()) };
                memory.store(offset, bytes)?;
                memory.write_back(offset, bytes.len() as u64)?;
                memory.fence()
            }
            SyncContender::RwfDsync => {
                let parts = [io::IoSlice::new(bytes)];
                let written = rustix::io::pwritev2(&self.plain, &parts, offset, ReadWriteFlags::DSYNC);
                whole(written.map_err(|errno| failed("pwritev2", errno))?, bytes)
            }
            SyncContender::ODsync => {
                let written = rustix::io::pwrite(&self.synchronous, bytes, offset);
                whole(written.map_err(|errno| failed("pwrite", errno))?, bytes)
            }
        }
    }
}

fn whole(written_bytes: usize, bytes: &[u8]) -> Result<(), MemError> {
    if written_bytes == bytes.len() {
        return Ok(());
    }
    Err(io_error("pwrite", "(measured)".as_ref(), "", io::Error::from(io::ErrorKind::WriteZero)))
}

#[cfg(test)]
mod tests;
