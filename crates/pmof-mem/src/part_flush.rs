//! Flushing memory that is made of several files.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    path::PathBuf,
};

use crate::{
    Evidence, MemError, Promise, Settled,
    flush::{Flush, Flushed},
    judge::Judgement,
    mapping::Mapping,
};

/// A part, mapped: where it lies and how it is flushed.
#[derive(Debug)]
pub(crate) struct PartFlush {
    /// Offset in the mapping of its first byte, and of the first byte behind it.
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) path: PathBuf,
    pub(crate) file: OwnedFd,
    pub(crate) file_offset: u64,
    pub(crate) judgement: Judgement,
    pub(crate) flush: Flush,
}

impl PartFlush {
    fn flushed(&self) -> Flushed<'_> {
        let Self { start, path, file, file_offset, .. } = self;
        Flushed { path, file: Some(file.as_fd()), file_offset: *file_offset, mapping_offset: *start }
    }

    pub(crate) fn write_back(parts: &[Self], mapping: &Mapping, offset: u64, len_bytes: u64) -> Result<(), MemError> {
        let end = offset + len_bytes;
        for part in Self::touched(parts, offset, end) {
            let (from, to) = (offset.max(part.start), end.min(part.end));
            part.flush.write_back(|| part.flushed(), mapping, from, to - from)?;
        }
        Ok(())
    }

    /// What the weakest part of a range promises, which is not empty.
    pub(crate) fn promise(
        parts: &[Self],
        offset: u64,
        len_bytes: u64,
        of_part: impl Fn(&Judgement) -> Option<Promise>,
    ) -> Option<Promise> {
        let weaker = |one: Promise, other: Promise| {
            let is_declared = [one.evidence, other.evidence].contains(&Evidence::Declared);
            let evidence = if is_declared { Evidence::Declared } else { Evidence::Probed };
            // They count up with what they take.
            let does_more = one.mechanism as u8 > other.mechanism as u8;
            Promise { mechanism: if does_more { one.mechanism } else { other.mechanism }, evidence }
        };
        let mut touched = Self::touched(parts, offset, offset.saturating_add(len_bytes));
        let first = of_part(&touched.next()?.judgement)?;
        touched.try_fold(first, |weakest, part| Some(weaker(weakest, of_part(&part.judgement)?)))
    }

    fn touched(parts: &[Self], offset: u64, end: u64) -> impl Iterator<Item = &Self> {
        let first = parts.partition_point(|part| part.end <= offset);
        parts[first..].iter().take_while(move |part| part.start < end)
    }

    pub(crate) fn settle(parts: &[Self], mapping: &Mapping) -> Result<Settled, MemError> {
        let settle = |part: &Self| part.flush.settle(&part.flushed(), mapping, part.start, part.end - part.start);
        parts.iter().try_fold(Settled::default(), |done, part| Ok(done.join(settle(part)?)))
    }

    pub(crate) fn fence(parts: &[Self], mapping: &Mapping) -> Result<(), MemError> {
        parts.iter().try_for_each(|part| part.flush.fence(|| part.flushed(), mapping))
    }

    pub(crate) fn device(parts: &[Self]) -> Option<u64> {
        parts.iter().find_map(|part| part.flush.device(|| part.flushed()))
    }
}
