//! Compares replicas, and makes one equal to another: by digests computed on each replica's machine, and by bytes only
//! where the digests differ.

use std::{error::Error, fmt, ops::Range};

use pmof_mem::Medium;

use crate::{
    AccessError, Contents, DIGEST_BLOCK_LEN_BYTES, PoolKind, PoolSetError, WINDOW_LEN_BYTES, Window,
    contents_in_common, format::contents_apart, heap, windows,
};

mod blocks;
#[cfg(test)]
mod tests;

pub use blocks::BlockDigests;

/// Differences that are reported one by one; more are only counted.
pub const DIFFERENCES_MAX: usize = 1000;

/// Which ranges of a pool's replicas are compared, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Ranges that replicas of a closed pool have in common, sorted.
    common: Vec<Range<u64>>,
    /// Ranges in which a difference means nothing, sorted and disjoint.
    unused: Vec<Range<u64>>,
    /// Ranges that replicas do not share.
    apart: Vec<Range<u64>>,
}

/// A range of bytes in which two replicas differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Where, in bytes from the start of the pool; the first and the last byte differ, those between may.
    pub range: Range<u64>,
    /// Whether it lies in space of an obj pool's heap that is not in use: libpmemobj writes there in the first replica only.
    pub is_unused: bool,
}

/// All differences between two replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// The first [`DIFFERENCES_MAX`] significant ones, in order.
    pub told: Vec<Difference>,
    /// Number of significant differences.
    pub count: u64,
    /// Number of differences in space that is not in use.
    pub unused_count: u64,
    /// Bytes that differ in space that is not in use.
    pub unused_bytes: u64,
    /// Bytes that differ in the runtime state of a program, which replicas do not share.
    pub runtime_bytes: u64,
}

/// What was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Blocks that differed.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// One of the replicas failed, or gave an invalid answer.
#[derive(Debug)]
pub struct ComparisonError {
    /// Which one of those that were compared, from 0. Of two, the first is the one that the other is made equal to.
    pub replica: usize,
    /// What went wrong.
    pub source: AccessError,
}

/// Transparent: it adds only the place to the error.
impl fmt::Display for ComparisonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl Error for ComparisonError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.source()
    }
}

impl ComparisonError {
    fn first(source: impl Into<AccessError>) -> Self {
        Self { replica: 0, source: source.into() }
    }

    fn other(source: impl Into<AccessError>) -> Self {
        Self { replica: 1, source: source.into() }
    }
}

impl Comparison {
    /// By all that replicas of this kind of pool have in common; `len_bytes`: of the pool. `first`: the first replica, whose
    /// heap says what is in use.
    pub fn of_pool(kind: Option<PoolKind>, first: &impl Medium, len_bytes: u64) -> Result<Self, PoolSetError> {
        let common = contents_in_common(kind, len_bytes);
        let unused = if kind == Some(PoolKind::Obj) { heap::unused(first, len_bytes)? } else { Vec::new() };
        Ok(Self { common, unused, apart: contents_apart(kind) })
    }

    /// Compares everything that replicas of this kind of pool share, whether in use or not.
    pub fn of_kind(kind: Option<PoolKind>, len_bytes: u64) -> Self {
        Self { common: contents_in_common(kind, len_bytes), unused: Vec::new(), apart: contents_apart(kind) }
    }

    /// Compares these ranges, in order and apart, in which all replicas hold the same.
    pub fn of_ranges(common: Vec<Range<u64>>) -> Self {
        Self { common, ..Self::default() }
    }

    /// Bytes that are compared.
    pub fn len_bytes(&self) -> u64 {
        self.common.iter().map(|range| range.end - range.start).sum()
    }

    /// All differences between two replicas. `progress` receives the number of bytes compared in each step.
    pub fn differences(
        &self,
        first: &mut dyn Contents,
        other: &mut dyn Contents,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Differences, ComparisonError> {
        let mut found = Differences::default();
        for window in self.windows(&mut [&mut *first, &mut *other], progress)? {
            for block in differing(first, other, &window)? {
                self.add_block(&block, first, other, &mut found)?;
            }
            progress(window.len_bytes());
        }
        for range in &self.apart {
            let mut bytes = [0, 1].map(|_| vec![0; (range.end - range.start) as usize]);
            first.read(range.start, &mut bytes[0]).map_err(ComparisonError::first)?;
            other.read(range.start, &mut bytes[1]).map_err(ComparisonError::other)?;
            found.runtime_bytes += bytes[0].iter().zip(&bytes[1]).filter(|(one, other)| one != other).count() as u64;
        }
        Ok(found)
    }

    /// Reads all of a replica that has no other to compare with, to find unreadable blocks. `progress` as
    /// above.
    pub fn read(&self, replica: &mut dyn Contents, progress: &mut dyn FnMut(u64)) -> Result<(), AccessError> {
        for range in self.common.clone() {
            let data = replica.data_ranges(range.clone())?;
            let mut left = range.end - range.start;
            for Window { range: window, .. } in windows(range, &[data]) {
                replica.digests(window.clone())?;
                progress(window.end - window.start);
                left -= window.end - window.start;
            }
            progress(left);
        }
        Ok(())
    }

    /// Makes `other` equal to `first`. Each step ends durably, for equal bytes too, so that the copy can be interrupted at any time and
    /// started again. `progress` as above.
    pub fn copy(
        &self,
        first: &mut dyn Contents,
        other: &mut dyn Contents,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Copied, ComparisonError> {
        let mut copied = Copied::default();
        let mut bytes = vec![0; DIGEST_BLOCK_LEN_BYTES as usize];
        for window in self.windows(&mut [&mut *first, &mut *other], progress)? {
            let blocks = differing(first, other, &window)?;
            for block in &blocks {
                let bytes = &mut bytes[..(block.end - block.start) as usize];
                first.read(block.start, bytes).map_err(ComparisonError::first)?;
                other.write(block.start, bytes).map_err(ComparisonError::other)?;
                copied.blocks += 1;
                copied.bytes += bytes.len() as u64;
            }
            // All of it: equal bytes may have been stored by a process that died before it made them durable.
            other.persist(window.range.clone()).map_err(ComparisonError::other)?;
            progress(window.len_bytes());
        }
        Ok(copied)
    }

    /// Whether a block of two replicas differs in more than space that is not in use.
    ///
    /// # Errors
    /// Those of reading it.
    pub fn differs(
        &self,
        block: &Range<u64>,
        first: &mut dyn Contents,
        other: &mut dyn Contents,
    ) -> Result<bool, ComparisonError> {
        let mut found = Differences::default();
        self.add_block(block, first, other, &mut found)?;
        Ok(!found.is_empty())
    }

    /// What [`copy`](Self::copy) would do; nothing is changed.
    pub fn would_copy(
        &self,
        first: &mut dyn Contents,
        other: &mut dyn Contents,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Copied, ComparisonError> {
        let mut copied = Copied::default();
        for window in self.windows(&mut [&mut *first, &mut *other], progress)? {
            for block in differing(first, other, &window)? {
                copied.blocks += 1;
                copied.bytes += block.end - block.start;
            }
            progress(window.len_bytes());
        }
        Ok(copied)
    }

    /// The windows to compare, in order: everything that is not a hole in all replicas. `progress` receives the bytes that are skipped.
    ///
    /// # Errors
    /// Those of asking a replica where its holes are.
    pub fn windows(
        &self,
        replicas: &mut [&mut dyn Contents],
        progress: &mut dyn FnMut(u64),
    ) -> Result<Vec<Window>, ComparisonError> {
        let mut all = Vec::new();
        for range in self.common.iter().cloned() {
            let mut data = Vec::with_capacity(replicas.len());
            for (replica, contents) in replicas.iter_mut().enumerate() {
                // Digests of a short range are there as soon as an answer where its holes are.
                data.push(match range.end - range.start {
                    ..=WINDOW_LEN_BYTES => vec![range.clone()],
                    _ => contents.data_ranges(range.clone()).map_err(|source| ComparisonError { replica, source })?,
                });
            }
            all.extend(windows(range, &data));
        }
        progress(self.len_bytes() - all.iter().map(Window::len_bytes).sum::<u64>());
        Ok(all)
    }

    fn add_block(
        &self,
        block: &Range<u64>,
        first: &mut dyn Contents,
        other: &mut dyn Contents,
        found: &mut Differences,
    ) -> Result<(), ComparisonError> {
        let [mut one, mut two] = [0, 1].map(|_| vec![0; (block.end - block.start) as usize]);
        first.read(block.start, &mut one).map_err(ComparisonError::first)?;
        other.read(block.start, &mut two).map_err(ComparisonError::other)?;
        self.add(block.start, &one, &two, found);
        Ok(())
    }

    /// Adds the differences of a block that begins at `start`. Differing bytes with fewer than 8 equal bytes between them count as one difference.
    fn add(&self, start: u64, one: &[u8], other: &[u8], found: &mut Differences) {
        const NEAR_LEN_BYTES: u64 = 8;
        let mut open: Option<Difference> = None;
        for (index, _) in one.iter().zip(other).enumerate().filter(|(_, (one, other))| one != other) {
            let offset = start + index as u64;
            let is_unused = self.is_unused(offset);
            found.unused_bytes += u64::from(is_unused);
            match &mut open {
                Some(last) if offset - last.range.end < NEAR_LEN_BYTES && last.is_unused == is_unused => {
                    last.range.end = offset + 1;
                }
                _ => {
                    let new = Difference { range: offset..offset + 1, is_unused };
                    found.extend(open.replace(new));
                }
            }
        }
        found.extend(open);
    }

    fn is_unused(&self, offset: u64) -> bool {
        let behind = self.unused.partition_point(|range| range.start <= offset);
        behind > 0 && self.unused[behind - 1].contains(&offset)
    }
}

impl Differences {
    /// Whether there are no significant differences.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn extend(&mut self, difference: Option<Difference>) {
        match difference {
            Some(Difference { is_unused: true, .. }) => self.unused_count += 1,
            Some(difference) => {
                self.count += 1;
                if self.told.len() < DIFFERENCES_MAX {
                    self.told.push(difference);
                }
            }
            None => {}
        }
    }
}

/// The blocks of a window in which two replicas differ.
fn differing(
    first: &mut dyn Contents,
    other: &mut dyn Contents,
    window: &Window,
) -> Result<Vec<Range<u64>>, ComparisonError> {
    Ok(BlockDigests::of_window(&mut [first, other], window).of_all()?.differing())
}
