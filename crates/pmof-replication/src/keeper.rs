//! What decides which epoch of a pool is in force.
//!
//! The members of a pool decide it themselves where they are its keeper: an epoch is in force once a quorum of them knows it durably
//! ([`MemberQuorum`](crate::epochs::MemberQuorum)). A pool may have another keeper instead, outside of its members: one value that is compared and swapped, such as a key of etcd.
//! That keeper then decides, so that one member of two is enough to open the pool.
//!
//! A keeper replaces the decision and nothing else. With each keeper the members know an epoch durably before anything is acknowledged under it, they fence the writer before,
//! and they keep the roster.

use alloc::{boxed::Box, vec::Vec};
use core::fmt;

use pmof_control::Epoch;
use uuid::Uuid;

mod register;
#[cfg(test)]
pub(crate) mod tests;

pub use register::Register;

/// An epoch, and its ancestors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochRecord {
    /// Its name and its members.
    pub epoch: Epoch,
    /// One more than that of the epoch that it descends from.
    pub opening: u64,
    /// Epochs before, the latest first, at most [`ANCESTORS_MAX`](pmof_control::ANCESTORS_MAX): the first is the one that it descends from. Those that were given up have no
    /// members.
    pub ancestors: Vec<Epoch>,
}

impl EpochRecord {
    /// The epoch that it descends from. `None`: it is a pool's first.
    pub fn parent(&self) -> Option<Uuid> {
        self.ancestors.first().map(|parent| parent.id)
    }

    /// The epochs that were in force up to this one, by their names.
    pub fn line(&self) -> impl Iterator<Item = Uuid> {
        let before = self.ancestors.iter().filter(|epoch| epoch.members != 0);
        core::iter::once(self.epoch.id).chain(before.map(|epoch| epoch.id))
    }
}

/// What a keeper knows of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The epoch in force.
    pub in_force: EpochRecord,
    /// One that was announced behind it, and may come in force.
    pub announced: Option<EpochRecord>,
}

/// Which keeper a pool has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeptBy {
    /// A quorum of its members.
    #[default]
    Members,
    /// A keeper outside of its members.
    Outside,
}

/// Decides which epoch of one pool is in force.
///
/// The futures may wait for another machine, for a bounded time: an implementation has a limit of its own, and ends with [`Unreachable`](KeeperError::Unreachable) or
/// [`Unknown`](KeeperError::Unknown) when that is over. A writer asks only when its epoch changes; a persist that needs no other epoch never waits for a keeper.
///
/// An implementation promises:
/// - At most one epoch is ever confirmed behind another one. All epochs that were in force are one line.
/// - [`confirm`](Self::confirm) takes effect only for the epoch that was announced last.
/// - [`read`](Self::read) returns what the last change left, or one that came during the call.
/// - What it has confirmed is durable: it never goes back to an epoch before.
pub trait Keeper {
    /// Announces an epoch behind the one in force, in place of one that was announced before. It is not in force yet, and the members have not heard of it: when they do, none
    /// that was announced before it can come in force.
    ///
    /// # Errors
    /// [`KeeperError`]. Nothing was acknowledged under the epoch, so that the caller may announce another one after any error but [`KeeperError::Overruled`].
    fn begin(&self, announced: &EpochRecord) -> impl Future<Output = Result<(), KeeperError>>;

    /// Puts the epoch in force that was announced, which the members know durably. None before it counts from then on. If it is in force already, that is no error.
    ///
    /// # Errors
    /// [`KeeperError`]. After [`KeeperError::Unknown`] the epoch may be in force, or come in force until another one is announced.
    fn confirm(&self, announced: &EpochRecord) -> impl Future<Output = Result<(), KeeperError>>;

    /// Returns the epoch in force, and what is announced behind it.
    ///
    /// # Errors
    /// [`KeeperError::Unreachable`], [`KeeperError::Unknown`].
    fn read(&self) -> impl Future<Output = Result<Kept, KeeperError>>;

    /// Waits until another epoch than `known` is in force, and returns what is kept then. A writer need not wait for it to be safe: its next change is refused, and the members
    /// fence it. It learns sooner that it was replaced.
    ///
    /// # Errors
    /// [`KeeperError::Unreachable`], [`KeeperError::Unknown`]: nothing was learned, and the caller may ask again.
    fn watch(&self, known: Uuid) -> impl Future<Output = Result<Kept, KeeperError>>;
}

/// Why a keeper has not done what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeeperError {
    /// Too few members are connected to know of an epoch.
    TooFew,
    /// It was not reached, and has changed nothing.
    Unreachable,
    /// It did not answer. The request may have been carried out, or may be later.
    Unknown,
    /// Another epoch is in force, which is no ancestor of the one that was asked for.
    Overruled {
        /// The epoch in force.
        by: Uuid,
    },
    /// Another epoch was announced since.
    Displaced {
        /// That epoch; `None` where none is announced.
        by: Option<Uuid>,
    },
    /// A member has confirmed an epoch that the keeper does not know: the keeper has lost changes, as one that was restored from a backup has. Nothing that it says counts until that is
    /// repaired.
    PutBack {
        /// What the member knows.
        known: Uuid,
    },
}

impl fmt::Display for KeeperError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooFew => f.write_str("too few members are connected to know of an epoch"),
            Self::Unreachable => f.write_str("the keeper of epochs was not reached"),
            Self::Unknown => f.write_str("the keeper of epochs did not answer, and may have made the change"),
            Self::Overruled { by } => write!(f, "epoch {by} is in force, which another writer began"),
            Self::Displaced { by: Some(by) } => write!(f, "epoch {by} was announced in its place"),
            Self::Displaced { by: None } => f.write_str("the epoch is not announced"),
            Self::PutBack { known } => {
                write!(
                    f,
                    "the keeper of epochs does not know epoch {known}, which a member has confirmed: was it restored from a backup?"
                )
            }
        }
    }
}

impl core::error::Error for KeeperError {}

/// What an outside keeper was read to have, for an opening.
pub type ReadKept = Result<Box<Kept>, KeeperError>;
