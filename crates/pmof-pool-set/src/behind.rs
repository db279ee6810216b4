//! What lies behind a header that cannot be used.

use std::fmt;

use crate::PoolKind;

/// The pool behind a damaged header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behind {
    /// Its kind, from the header's signature or from the contents.
    pub kind: PoolKind,
    /// What its contents begin with.
    pub contents: BehindContents,
}

/// Whether the beginning of a pool's contents is intact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BehindContents {
    /// It is intact.
    Intact,
    /// The contents are all zeros.
    Empty,
    /// It is damaged, with what is wrong.
    Defect(&'static str),
    /// The medium failed.
    Unreadable,
}

impl fmt::Display for Behind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; ", self.kind.name())?;
        match self.contents {
            BehindContents::Intact => f.write_str("the beginning of its contents is intact"),
            BehindContents::Empty => f.write_str("its contents are all zero"),
            BehindContents::Defect(defect) => f.write_str(defect),
            BehindContents::Unreadable => f.write_str("its contents cannot be read"),
        }
    }
}
