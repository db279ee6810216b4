//! Determines which files of directories belong to a pool. Their numbers prove little, since any file can have such a name: the pool's files are consecutive
//! up to its length, which its first part records, or have the lengths that the set reserves.

use std::{collections::BTreeMap, fs::File, os::unix::fs::FileExt as _, path::Path};

use crate::{
    PART_LEN_BYTES_MIN, PartSize, PartSpec, PoolKind, PoolSetError, SetOptions,
    format::{OBJ_HEAP_LEN, len_bytes_needed},
    header,
    part::{Part, are_directories, file_name, number_of, page_bytes},
};

/// The files of a replica's directories.
pub(super) struct Numbered<'s> {
    specs: &'s [PartSpec],
    /// The length of the pool; `None` if it is unknown.
    pool_len_bytes: Option<u64>,
    /// The offset of each file in the pool, up to the first one that is missing or duplicated.
    starts: BTreeMap<usize, u64>,
    /// The end of the last of these.
    end: u64,
}

impl<'s> Numbered<'s> {
    /// `parts`: all files with numbers. `None` if the parts of the set are not directories.
    pub(super) fn of(specs: &'s [PartSpec], parts: &[Part]) -> Result<Option<Self>, PoolSetError> {
        // Directories can be parts only with this option.
        if !are_directories(specs, SetOptions { single_header: true, no_headers: false })? {
            return Ok(None);
        }
        let mut files: BTreeMap<usize, Vec<&Part>> = BTreeMap::new();
        for part in parts.iter().filter(|part| has_own_name(&part.path)) {
            files.entry(number_of(&part.path).unwrap_or(usize::MAX)).or_default().push(part);
        }
        let (mut starts, mut end) = (BTreeMap::new(), 0);
        for (expected, (number, parts)) in files.iter().enumerate() {
            let [part] = parts[..] else { break };
            if *number != expected {
                break;
            }
            starts.insert(*number, end);
            end += part.mapped_len_bytes(false);
        }
        let first = files.get(&0).and_then(|parts| parts.first().filter(|_| parts.len() == 1));
        let pool_len_bytes = first.map(|first| pool_len_bytes(first)).transpose()?.flatten();
        Ok(Some(Self { specs, pool_len_bytes, starts, end }))
    }

    /// Fails if the files end before the pool does: one is missing, and would be left behind.
    pub(super) fn check_complete(&self) -> Result<(), PoolSetError> {
        let number = self.starts.len();
        if self.pool_len_bytes.is_none_or(|pool| self.end >= pool) {
            return Ok(());
        }
        let directory = self.specs.get(number).or(self.specs.first()).map(|spec| spec.path.clone()).unwrap_or_default();
        Err(PoolSetError::Missing { path: directory.join(file_name(number)) })
    }

    /// Why a file does not belong to the pool, judged by its place and length; `None` if it may belong. The first file has a header, which
    /// decides more precisely.
    ///
    /// A file of zeros is accepted: it may belong to a pool that was being extended.
    pub(super) fn why_foreign(&self, part: &Part) -> Result<Option<String>, PoolSetError> {
        let number = number_of(&part.path).unwrap_or(usize::MAX);
        if !has_own_name(&part.path) {
            return Ok(Some(format!("a part of its number is called {}", file_name(number))));
        }
        if number == 0 {
            let first = self.specs.first().map(|spec| spec.path.join(file_name(0)));
            return Ok(first
                .filter(|first| *first != part.path)
                .map(|first| format!("the first part is {}", first.display())));
        }
        let len_bytes = part.len_bytes;
        let is_reserved = self.specs.get(number).is_some_and(|spec| spec.size == PartSize::Bytes(len_bytes));
        let found = match (self.starts.get(&number), self.pool_len_bytes) {
            (Some(start), Some(pool)) if *start >= pool => {
                format!("the pool has {pool} bytes, and the parts before it hold {start}")
            }
            _ if is_reserved => return Ok(None),
            (Some(start), Some(pool)) => {
                let is_whole = len_bytes >= PART_LEN_BYTES_MIN && len_bytes % page_bytes() == 0;
                // Those of a pool that was extended end with it.
                if is_whole && start + len_bytes <= pool && self.end >= pool {
                    return Ok(None);
                }
                format!("it has {len_bytes} bytes, and no part of the pool there is so long")
            }
            _ => format!("it has {len_bytes} bytes, and the pool set file reserves no such length for it"),
        };
        Ok(if part.is_zero()? { None } else { Some(found) })
    }
}

/// Whether the file has the name of a part in a directory.
fn has_own_name(path: &Path) -> bool {
    number_of(path).is_some_and(|number| path.file_name().is_some_and(|name| *name == *file_name(number)))
}

/// The length of the pool according to its first part; `None` if that does not tell.
pub(super) fn pool_len_bytes(first: &Part) -> Result<Option<u64>, PoolSetError> {
    let Some(kind) = header::kind_named(&first.head_bytes()?) else { return Ok(None) };
    let file = File::from(first.cloned()?);
    let number = |offset: u64| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, offset).map(|()| u64::from_le_bytes(bytes))
    };
    // An object pool without a heap is not filled yet.
    if kind == PoolKind::Obj && !number(OBJ_HEAP_LEN).is_ok_and(|len_bytes| len_bytes > 0) {
        return Ok(None);
    }
    // A file that is too short to be read does not tell.
    Ok(len_bytes_needed(kind, number).ok().filter(|len_bytes| *len_bytes > 0))
}
