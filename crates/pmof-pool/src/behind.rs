//! What lies behind a header that cannot be used.

use std::{fmt, sync::Arc};

use pmof_mem::{Medium as _, Memory};

use crate::{ContentsState, PoolKind, memory_state};

/// The pool behind a header that does not say what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behind {
    /// Its kind: by the header's signature, or by what lies behind it.
    pub kind: PoolKind,
    /// What its contents begin with.
    pub contents: BehindContents,
}

/// Whether what a pool's contents begin with is as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BehindContents {
    /// It is.
    Intact,
    /// There are none: all zeros.
    Empty,
    /// It is not: what is wrong.
    Defect(&'static str),
    /// The medium failed.
    Unreadable,
}

/// What lies behind the first header of a pool, whatever that says; `None` if nothing tells that it is a pool.
pub fn behind_header(memory: &Arc<Memory>) -> Option<Behind> {
    let mut signature = [0; 8];
    memory.read(0, &mut signature).ok()?;
    let contents = |kind| match memory_state(Some(kind), memory) {
        Ok(ContentsState::Sound) => BehindContents::Intact,
        Ok(ContentsState::Empty) => BehindContents::Empty,
        Ok(ContentsState::Damaged(defect)) => BehindContents::Defect(defect),
        Err(_) => BehindContents::Unreadable,
    };
    // Of pools of objects alone checksums tell that what lies there is no accident.
    let by_contents = || Some(PoolKind::Obj).filter(|kind| contents(*kind) == BehindContents::Intact);
    let kind = PoolKind::of_signature(&signature).or_else(by_contents)?;
    Some(Behind { kind, contents: contents(kind) })
}

impl fmt::Display for Behind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; ", self.kind.name())?;
        match self.contents {
            BehindContents::Intact => f.write_str("what its contents begin with is intact"),
            BehindContents::Empty => f.write_str("its contents are all zero"),
            BehindContents::Defect(defect) => f.write_str(defect),
            BehindContents::Unreadable => f.write_str("its contents cannot be read"),
        }
    }
}
