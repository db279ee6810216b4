//! What of the lines that were not written back a power cut leaves.
//!
//! A cache may write a dirty line back at any time, so that each line that differs between the live image and the
//! medium may hold either. Within a line that was on its way only eight aligned bytes are written as one.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use rustix::{fs::SeekFrom, io::Errno};

use crate::LINE_BYTES;

const LINE: usize = LINE_BYTES as usize;
const WORD: usize = 8;
const CHUNK: usize = 1 << 20;

/// Which of the lines that differ survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// None: what was not written back is lost. The worst case of most programs.
    None,
    /// All, as if every line had just been evicted.
    All,
    /// Each by a coin, thrown from this seed.
    Random(u64),
}

/// Whether a line that survives may do so in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tear {
    /// It survives whole.
    Lines,
    /// With [`Choice::Random`] each of its aligned eight bytes has a coin of its own.
    Words,
}

/// What was decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Lines that differed.
    pub differing: u64,
    /// Of them, those of which at least eight bytes survived.
    pub survived: u64,
}

/// Why an image could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SurvivorsError {
    /// A call on a file failed.
    #[error("{call} {}: {source}", path.display())]
    File {
        /// The call.
        call: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The images are not of the same length, or shorter than the memory.
    #[error(
        "live image {live} bytes, medium {medium} bytes, memory {memory} bytes: the medium must be a copy of the image"
    )]
    Lengths {
        /// The live image, bytes.
        live: u64,
        /// The medium, bytes.
        medium: u64,
        /// The memory in them, bytes.
        memory: u64,
    },
}

/// Turns the medium of a machine that is dead into what its power cut left: some lines of the live image are put into it.
/// Bytes of the files past `memory_bytes`, the label area, are taken from the live image.
pub fn survivors(
    live: &Path,
    medium: &Path,
    memory_bytes: u64,
    choice: Choice,
    tear: Tear,
) -> Result<Outcome, SurvivorsError> {
    let live = Image::open(live, OpenOptions::new().read(true))?;
    let medium = Image::open(medium, OpenOptions::new().read(true).write(true))?;
    if live.length != medium.length || live.length < memory_bytes {
        return Err(SurvivorsError::Lengths { live: live.length, medium: medium.length, memory: memory_bytes });
    }
    let mut coins = Coins(match choice {
        Choice::Random(seed) => seed,
        Choice::None | Choice::All => 0,
    });
    let mut outcome = Outcome::default();
    let (mut now, mut then) = (vec![0; CHUNK], vec![0; CHUNK]);
    // The coins are thrown in the order of addresses, so that a seed gives the same image wherever the holes are.
    for (start, end) in chunks(live.data()?, medium.data()?) {
        let length = (end - start) as usize;
        live.read(start, &mut now[..length])?;
        medium.read(start, &mut then[..length])?;
        for at in (0..length).step_by(LINE) {
            let span = at..(at + LINE).min(length);
            if now[span.clone()] == then[span.clone()] {
                continue;
            }
            let address = start + at as u64;
            if address >= memory_bytes {
                medium.write(address, &now[span])?;
                continue;
            }
            outcome.differing += 1;
            let mut any = false;
            for word in span.step_by(WORD) {
                let word = word..(word + WORD).min(length);
                let keep = match (choice, tear) {
                    (Choice::None, _) => false,
                    (Choice::All, _) => true,
                    (Choice::Random(_), Tear::Words) => coins.throw(),
                    (Choice::Random(_), Tear::Lines) if word.start == at => coins.throw(),
                    (Choice::Random(_), Tear::Lines) => any,
                };
                if keep {
                    any = true;
                    medium.write(start + word.start as u64, &now[word])?;
                }
            }
            outcome.survived += u64::from(any);
        }
    }
    Ok(outcome)
}

/// Where the first `length` bytes of a file may hold others than zeros: ranges in order, their bounds multiples of 1 MiB
/// or the length.
pub fn data_extents(file: &File, length: u64) -> io::Result<Vec<(u64, u64)>> {
    let chunk = CHUNK as u64;
    let mut extents: Vec<(u64, u64)> = Vec::new();
    let mut at = 0;
    while at < length {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) if start < length => start,
            Ok(_) | Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let hole = rustix::fs::seek(file, SeekFrom::Hole(start))?;
        let end = hole.next_multiple_of(chunk).min(length);
        extents.push((start / chunk * chunk, end));
        at = end;
    }
    Ok(extents)
}

#[derive(Debug)]
struct Image {
    path: PathBuf,
    file: File,
    length: u64,
}

impl Image {
    fn open(path: &Path, options: &OpenOptions) -> Result<Image, SurvivorsError> {
        let error = |source| SurvivorsError::File { call: "opening", path: path.to_owned(), source };
        let file = options.open(path).map_err(error)?;
        let length = file.metadata().map_err(error)?.len();
        Ok(Image { path: path.to_owned(), file, length })
    }

    fn error(&self, call: &'static str, source: io::Error) -> SurvivorsError {
        SurvivorsError::File { call, path: self.path.clone(), source }
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<(), SurvivorsError> {
        self.file.read_exact_at(bytes, at).map_err(|source| self.error("reading", source))
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), SurvivorsError> {
        self.file.write_all_at(bytes, at).map_err(|source| self.error("writing", source))
    }

    fn data(&self) -> Result<Vec<(u64, u64)>, SurvivorsError> {
        data_extents(&self.file, self.length).map_err(|source| self.error("looking for data in", source))
    }
}

/// Both lists as one of chunks, in order, each chunk once.
fn chunks(mut extents: Vec<(u64, u64)>, more: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    extents.extend(more);
    extents.sort_unstable();
    let mut chunks: Vec<(u64, u64)> = Vec::new();
    for (start, end) in extents {
        let mut at = chunks.last().map_or(start, |last| start.max(last.1));
        while at < end {
            let stop = end.min(at + CHUNK as u64);
            chunks.push((at, stop));
            at = stop;
        }
    }
    chunks
}

/// Splitmix64 (Steele, Lea and Flood, 2014).
struct Coins(u64);

impl Coins {
    fn throw(&mut self) -> bool {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) & 1 == 1
    }
}

#[cfg(test)]
#[path = "survivors_tests.rs"]
mod tests;
