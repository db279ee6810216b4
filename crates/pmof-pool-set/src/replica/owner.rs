//! Decides who owns a file that has a part's name, before it becomes a part, is overwritten or removed. It may be used only if it belongs to
//! the pool or to nobody.

use pmof_mem::System;
use pmof_terms::NATIVE_MAGIC;

use super::vouched::{Source, is_expendable};
use crate::{
    HEADER_LEN_BYTES, HeaderError, PartSize, PoolHeader, PoolSetError, header,
    part::{Part, page_bytes},
    uuid_text,
};

/// The beginning of a file.
pub(super) enum Head {
    /// Only zeros.
    Blank,
    /// A header that is valid in every byte.
    Whole(PoolHeader),
    /// Anything else. A file that is shorter than a header is padded with zeros.
    Other(Box<[u8; HEADER_LEN_BYTES]>),
    /// It cannot be read from the medium.
    Unreadable,
}

impl Head {
    pub(super) fn of(part: &Part) -> Result<Self, PoolSetError> {
        if part.check_bad_blocks(&System::real(), false).is_err() {
            return Ok(Self::Unreadable);
        }
        let bytes = part.head_bytes()?;
        Ok(match PoolHeader::decode(&bytes) {
            Ok(header) => Self::Whole(header),
            Err(HeaderError::Blank) => Self::Blank,
            Err(_) => Self::Other(Box::new(bytes)),
        })
    }

    /// Whether it is the header, possibly damaged, of a part of the pool set `member`.
    pub(super) fn is_of(&self, member: &[u8; 16]) -> bool {
        match self {
            Self::Whole(header) => header.poolset_uuid == *member,
            Self::Other(bytes) => header::names(bytes, member),
            Self::Blank | Self::Unreadable => false,
        }
    }

    /// The pool set that a header names, damaged or not; `None` if nothing shows that there was one. `has_header`: parts of this number
    /// have one, so that fields other than the signature count too.
    pub(super) fn set_named(&self, has_header: bool) -> Option<[u8; 16]> {
        match self {
            Self::Whole(header) => Some(header.poolset_uuid),
            Self::Other(bytes) if header::kind_named(bytes).is_some() || has_header && looks_like_header(bytes) => {
                header::whole_poolset_uuid_named(bytes)
            }
            Self::Other(_) | Self::Blank | Self::Unreadable => None,
        }
    }
}

/// The place of the part whose name a file has.
pub(super) struct Named {
    /// The length of the part.
    pub(super) size: Option<PartSize>,
    /// Parts of this number begin with a header.
    pub(super) has_header: bool,
    /// The first part of the replica names the pool set, and vouches for parts without a header.
    pub(super) is_vouched: bool,
    /// The offset of the file's first byte in the pool; `None` if it is unknown.
    pub(super) start: Option<i64>,
}

/// The owner of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// Nobody: it is empty or holds only zeros. Of a device only the header is checked.
    Nobody,
    /// The pool set: it is one of its parts, or the remains of one.
    Own,
    /// Another pool set, which its valid header names.
    OtherSet { found: [u8; 16], expected: [u8; 16] },
    /// Unknown: nothing shows that it belongs to the pool; with a description.
    Unknown(String),
}

impl Owner {
    /// Fails unless the file may be used.
    pub(super) fn check(self, part: &Part) -> Result<(), PoolSetError> {
        match self {
            Self::Nobody | Self::Own => Ok(()),
            Self::OtherSet { found, expected } => Err(PoolSetError::OtherSet {
                path: part.path.clone(),
                found: uuid_text(&found),
                expected: uuid_text(&expected),
            }),
            Self::Unknown(found) => Err(not_ours(part, found)),
        }
    }
}

/// The owner of the file in the place of a part of the pool set `member`. A header, valid or damaged, names the owner; without one, the first part
/// vouches for it, or a comparison with the `source` decides. `member`: `None` if no header of the set's parts names one.
///
/// Errors: those of reading.
pub(super) fn owner(
    part: &Part,
    named: &Named,
    member: Option<&[u8; 16]>,
    source: Source<'_>,
) -> Result<Owner, PoolSetError> {
    if part.is_nobodys()? {
        return Ok(Owner::Nobody);
    }
    let Named { size, has_header, is_vouched, start } = *named;
    let unknown = |found: String| Ok(Owner::Unknown(found));
    let head = Head::of(part)?;
    match &head {
        Head::Whole(header) if member.is_some_and(|member| header.poolset_uuid != *member) => {
            return Ok(Owner::OtherSet { found: header.poolset_uuid, expected: member.copied().unwrap_or_default() });
        }
        Head::Whole(header) if !has_header => {
            let set = uuid_text(&header.poolset_uuid);
            return unknown(format!(
                "it begins with a header of the pool set {set}, and parts of its number have none"
            ));
        }
        // Bad blocks do not tell what they held.
        Head::Whole(_) | Head::Unreadable if has_header => return Ok(Owner::Own),
        Head::Other(bytes) if has_header => {
            let is_own = member.map_or_else(|| looks_like_header(bytes), |member| header::names(bytes, member));
            return if is_own { Ok(Owner::Own) } else { unknown(words(bytes, member)) };
        }
        Head::Other(bytes) if begins_otherwise(bytes, is_vouched) => return unknown(words(bytes, member)),
        _ => {}
    }
    let is_blank = matches!(head, Head::Blank);
    if is_expendable(part, start, source)? {
        return Ok(Owner::Own);
    }
    match size {
        Some(PartSize::Bytes(expected)) if expected != part.len_bytes && is_blank => unknown(format!(
            "it has {} bytes, not those of the part, and holds something behind the zeros that it begins with",
            part.len_bytes
        )),
        Some(PartSize::Bytes(expected)) if expected != part.len_bytes => {
            unknown(format!("it has {} bytes and should have {expected}", part.len_bytes))
        }
        _ if !has_header && is_vouched => Ok(Owner::Own),
        _ if has_header => unknown(format!(
            "it has zeros for a header, so that nothing says whose it is, and holds something behind the zeros that it begins with{}",
            not_compared(member)
        )),
        _ => unknown(format!(
            "a part of its number has no header, {}{}",
            member.map_or("no header of the set names a pool".to_owned(), |member| format!(
                "the first part of its replica does not name the pool set {}",
                uuid_text(member)
            )),
            not_compared(member)
        )),
    }
}

fn not_compared(member: Option<&[u8; 16]>) -> &'static str {
    if member.is_some() { ", and what it holds is not the pool's as far as it can be compared" } else { "" }
}

/// Whether a file in the place of a part without a header begins like something else. If the first part vouches for it, bytes that only might
/// have been a header may be contents.
fn begins_otherwise(bytes: &[u8; HEADER_LEN_BYTES], is_vouched: bool) -> bool {
    header::kind_named(bytes).is_some() || bytes.starts_with(&NATIVE_MAGIC) || !is_vouched && looks_like_header(bytes)
}

pub(super) fn not_ours(part: &Part, found: String) -> PoolSetError {
    PoolSetError::NotOurs { path: part.path.clone(), found, is_device: part.devdax_align_bytes.is_some() }
}

/// Describes a file that begins with `bytes`, which are not a header of `member`.
fn words(bytes: &[u8; HEADER_LEN_BYTES], member: Option<&[u8; 16]>) -> String {
    if bytes.starts_with(&NATIVE_MAGIC) {
        return "it does not begin as a part of a pool does, but as a pool of a target (PMOFPOOL)".to_owned();
    }
    if !looks_like_header(bytes) {
        return "it does not begin as a part of a pool does".to_owned();
    }
    let kind = header::kind_named(bytes).map_or(String::new(), |kind| format!(" ({})", kind.name()));
    let found = uuid_text(&header::poolset_uuid_named(bytes));
    let expected = member.map_or(String::new(), |member| format!(", not of {}", uuid_text(member)));
    format!("it looks like a damaged part of the pool set {found}{kind}{expected}")
}

/// Whether these bytes were a header once: they begin with the signature of a kind of pool, or have all fields of a header, whatever
/// the signature, and zeros where a header has zeros.
fn looks_like_header(bytes: &[u8; HEADER_LEN_BYTES]) -> bool {
    header::kind_named(bytes).is_some() || !bytes.starts_with(&NATIVE_MAGIC) && header::is_laid_out(bytes)
}

/// Describes the file where a part is to be created, if it holds anything.
///
/// Errors: those of reading.
pub(crate) fn something_in(part: &Part) -> Result<Option<String>, PoolSetError> {
    if part.is_nobodys()? {
        return Ok(None);
    }
    Ok(Some(match Head::of(part)? {
        Head::Whole(header) => format!(
            "it is a part of the pool set {} (if the command that made it was killed, `pmof pool sync` completes the set, and `pmof pool rm --force` removes what it left)",
            uuid_text(&header.poolset_uuid)
        ),
        Head::Other(bytes) => words(&bytes, None),
        Head::Blank => format!(
            "it has zeros for a header and holds something behind them, from byte {} on",
            part.first_data()?.unwrap_or(HEADER_LEN_BYTES as u64)
        ),
        Head::Unreadable => "what it begins with cannot be read".to_owned(),
    }))
}

/// Whether a part with a header records an interrupted creation or overwriting of its replica.
pub(super) fn is_being_made(part: &Part) -> Result<bool, PoolSetError> {
    Ok(match Head::of(part)? {
        Head::Whole(header) => header.attributes().is_unfinished(),
        Head::Other(bytes) => {
            *bytes == header::left_by_creation() || header::is_begun(&bytes, &header::poolset_uuid_named(&bytes))
        }
        Head::Blank => true,
        Head::Unreadable => false,
    })
}

/// Fails if a part without a header begins like a part of another pool set than `member`, or like a pool of a target: then another pool's file has
/// its name.
pub(super) fn check_no_header(part: &Part, member: &[u8; 16]) -> Result<(), PoolSetError> {
    match Head::of(part)? {
        Head::Whole(header) if header.poolset_uuid != *member => {
            Owner::OtherSet { found: header.poolset_uuid, expected: *member }.check(part)
        }
        Head::Other(bytes) if begins_otherwise(&bytes, true) => {
            let is_native = bytes.starts_with(&NATIVE_MAGIC);
            let what = if is_native { "a pool of a target (PMOFPOOL)" } else { "a damaged part of a pool" };
            Err(PoolSetError::WrongKind {
                path: part.path.clone(),
                why: what,
                mend: "a part of its number has no header: move it away, and sync again",
            })
        }
        _ => Ok(()),
    }
}

/// The offset in the pool of the first byte of a part's file, which holds the pool's bytes from `start` on. Headers of all but the first are not mapped.
pub(super) fn file_start(start: u64, is_behind_header: bool) -> i64 {
    let header_bytes = if is_behind_header { page_bytes() } else { 0 };
    0_i64.saturating_add_unsigned(start).saturating_sub_unsigned(header_bytes)
}
