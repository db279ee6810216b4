//! Compares replicas, and makes one equal to another: by digests computed on each replica's machine, and by bytes only
//! where the digests differ.

use std::{error::Error, fmt, ops::Range};

use pmof_mem::Medium;

use crate::{
    AccessError, Contents, DIGEST_BLOCK_LEN_BYTES, PoolKind, PoolSetError, Window, contents_in_common,
    format::contents_apart, heap, windows, zero_digests,
};

#[cfg(test)]
mod tests;

/// Differences that are reported one by one; more are only counted.
pub const DIFFERENCES_MAX: usize = 1000;

/// Which ranges of two replicas are compared, and how.
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

/// One of two replicas failed, or gave an invalid answer.
#[derive(Debug)]
pub struct ComparisonError {
    /// Whether it is the first one, which the other is compared with or made equal to.
    pub is_first: bool,
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
        Self { is_first: true, source: source.into() }
    }

    fn other(source: impl Into<AccessError>) -> Self {
        Self { is_first: false, source: source.into() }
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
        for window in self.windows(first, other, progress)? {
            self.add_window(first, other, &window, &mut found)?;
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
            for Window { range: window, .. } in windows(range, [&data, &[]]) {
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
        for window in self.windows(first, other, progress)? {
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

    /// Whether two replicas are equal in all significant bytes. If so, everything of `other` that was compared is made durable:
    /// equal bytes may have been stored by a process that died before it made them durable.
    pub fn confirm(&self, first: &mut dyn Contents, other: &mut dyn Contents) -> Result<bool, ComparisonError> {
        let mut found = Differences::default();
        for window in self.windows(first, other, &mut |_| {})? {
            self.add_window(first, other, &window, &mut found)?;
            if !found.is_empty() {
                return Ok(false);
            }
            other.persist(window.range).map_err(ComparisonError::other)?;
        }
        Ok(true)
    }

    /// What [`copy`](Self::copy) would do; nothing is changed.
    pub fn would_copy(
        &self,
        first: &mut dyn Contents,
        other: &mut dyn Contents,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Copied, ComparisonError> {
        let mut copied = Copied::default();
        for window in self.windows(first, other, progress)? {
            for block in differing(first, other, &window)? {
                copied.blocks += 1;
                copied.bytes += block.end - block.start;
            }
            progress(window.len_bytes());
        }
        Ok(copied)
    }

    /// The windows to compare: everything that is not a hole in both. `progress` receives what is skipped.
    fn windows(
        &self,
        first: &mut dyn Contents,
        other: &mut dyn Contents,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Vec<Window>, ComparisonError> {
        let mut all = Vec::new();
        for range in self.common.iter().cloned() {
            let data = [
                first.data_ranges(range.clone()).map_err(ComparisonError::first)?,
                other.data_ranges(range.clone()).map_err(ComparisonError::other)?,
            ];
            all.extend(windows(range, data.each_ref().map(Vec::as_slice)));
        }
        progress(self.len_bytes() - all.iter().map(Window::len_bytes).sum::<u64>());
        Ok(all)
    }

    fn add_window(
        &self,
        first: &mut dyn Contents,
        other: &mut dyn Contents,
        window: &Window,
        found: &mut Differences,
    ) -> Result<(), ComparisonError> {
        for block in differing(first, other, window)? {
            let [mut one, mut two] = [0, 1].map(|_| vec![0; (block.end - block.start) as usize]);
            first.read(block.start, &mut one).map_err(ComparisonError::first)?;
            other.read(block.start, &mut two).map_err(ComparisonError::other)?;
            self.add(block.start, &one, &two, found);
        }
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

/// The blocks of a window that differ. No digests are requested for holes.
fn differing(
    first: &mut dyn Contents,
    other: &mut dyn Contents,
    window: &Window,
) -> Result<Vec<Range<u64>>, ComparisonError> {
    let digests = |replica: &mut dyn Contents, is_hole: bool| {
        if is_hole { Ok(zero_digests(window.len_bytes())) } else { replica.digests(window.range.clone()) }
    };
    let expected = blocks(window.range.clone()).count();
    let counted = |replica: &mut dyn Contents, is_hole: bool| match digests(replica, is_hole)? {
        found if found.len() == expected => Ok::<_, AccessError>(found),
        found => Err(format!("{} digests were received instead of {expected}", found.len()).into()),
    };
    let one = counted(first, window.is_hole[0]).map_err(ComparisonError::first)?;
    let two = counted(other, window.is_hole[1]).map_err(ComparisonError::other)?;
    let pairs = blocks(window.range.clone()).zip(one.into_iter().zip(two));
    Ok(pairs.filter(|(_, (one, two))| one != two).map(|(block, _)| block).collect())
}

/// The blocks of a range, each but the last [`DIGEST_BLOCK_LEN_BYTES`] long.
fn blocks(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    range.step_by(DIGEST_BLOCK_LEN_BYTES as usize).map(move |start| start..(start + DIGEST_BLOCK_LEN_BYTES).min(end))
}
