//! The formats of pools: how the replicas of each are made, opened and made equal. All else about a pool is the same for every format.

use std::{ops::Range, sync::Arc};

use pmof_access::{Durability, Medium};
use pmof_control::OpenFor;
use pmof_pool_set::Attributes;
use pmof_replication::posting::AckTerms;

use super::{
    BeforeRead, Equalized, Facts, LeftOut, Open, Pool, compare::Comparable, epochs::Epochs, opened::Identity,
    returns::Returns,
};
use crate::{PoolError, intent::Intent, member::Member};

/// A format: makes and opens the replicas of a pool.
pub(super) trait Format {
    /// What is said of a pool to be made.
    type New;
    /// What is said of a pool to be opened.
    type Existing;
    type Replicas: Replicas;

    /// Makes all replicas, or none.
    fn create(self, new: Self::New) -> Result<Self::Replicas, PoolError>;

    /// Opens the replicas that belong together, or none.
    fn open(self, existing: Self::Existing) -> Result<Self::Replicas, PoolError>;
}

/// The replicas of a pool that was made or opened, in one format.
pub(super) trait Replicas {
    /// Gives them away, one in each place, with what a pool of them gives. Called once.
    fn members(&mut self) -> Result<(Vec<Arc<dyn Member>>, Terms), PoolError>;

    /// What all replicas have in common.
    fn identity(&self) -> Identity;

    /// What may be written; before it lies a header.
    fn data_range(&self) -> Range<u64> {
        0..self.identity().size_bytes
    }

    /// What the headers say, in a format that has attributes.
    fn attributes(&self) -> Option<Attributes> {
        None
    }

    /// Which replicas took part in what, in a format whose replicas record that.
    fn epochs(&self, _members: &[Arc<dyn Member>], _terms: AckTerms) -> Option<Epochs> {
        None
    }

    /// The map of write intent of a pool that is opened for writing, in a format that has one. `keeps_digests`: some replica keeps digests of its pages.
    fn intent(&self, _keeps_digests: bool) -> Option<Intent> {
        None
    }

    /// Which ranges the replicas have in common and may differ in, and which replica they are compared with; `None` where all are known to be
    /// equal. In a format with epochs, that of the opening has begun then.
    fn comparable(&self, open: &Open) -> Result<Option<Comparable>, PoolError>;

    /// The last step, when the replicas are equal. Returns what is done for them while the pool is open, in a format that can.
    fn finish(self, open: &mut Open) -> Result<Upkeep, PoolError>;

    /// Takes back what was made, or closes what was opened, after a failure.
    fn abandon(self);
}

/// Makes a pool.
pub(super) fn create<F: Format>(format: F, new: F::New) -> Result<Pool, PoolError> {
    pool_of(format.create(new)?)
}

/// Opens a pool.
pub(super) fn open<F: Format>(format: F, existing: F::Existing) -> Result<Pool, PoolError> {
    pool_of(format.open(existing)?)
}

/// The same for a pool that is open already.
pub(super) fn open_replicas<F: Format>(format: F, existing: F::Existing) -> Result<(Open, Upkeep), PoolError> {
    assemble(format.open(existing)?)
}

fn pool_of(replicas: impl Replicas) -> Result<Pool, PoolError> {
    let (open, upkeep) = assemble(replicas)?;
    Ok(match upkeep {
        Upkeep::Nothing => open.into_pool(None, None),
        Upkeep::Returns(returns) => open.into_pool(Some(*returns), None),
        Upkeep::Follow(follow) => open.into_pool(None, Some(follow)),
    })
}

fn assemble(mut replicas: impl Replicas) -> Result<(Open, Upkeep), PoolError> {
    match Open::assemble(&mut replicas) {
        Ok(mut open) => {
            let upkeep = replicas.finish(&mut open)?;
            Ok((open, upkeep))
        }
        Err(error) => {
            replicas.abandon();
            Err(error)
        }
    }
}

/// What is done for the replicas of an open pool.
#[derive(Debug)]
pub(super) enum Upkeep {
    Nothing,
    /// Those that are lost are brought back.
    Returns(Box<Returns>),
    /// Whoever reads follows those that are in sync.
    Follow(Box<dyn BeforeRead>),
}

/// What a pool gives whose replicas are open, whatever its format.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub(super) durability: Durability,
    pub(super) access: OpenFor,
    pub(super) left_out: LeftOut,
    /// Replicas that were named; the others were found by what those know.
    pub(super) named_count: usize,
    pub(super) acknowledge: AckTerms,
    pub(super) was_closed: bool,
    /// The replica that is read first.
    pub(super) first_read: usize,
    pub(super) mirror: Option<Arc<dyn Medium>>,
}

impl Terms {
    /// Of a pool with all of its replicas.
    pub(super) fn whole(durability: Durability, access: OpenFor, mirror: Option<Arc<dyn Medium>>) -> Self {
        let left_out = LeftOut::new();
        let acknowledge = AckTerms::ALL;
        Self { durability, access, left_out, named_count: 0, acknowledge, was_closed: true, first_read: 0, mirror }
    }
}

impl Open {
    /// Puts the replicas together, and makes those in use equal.
    fn assemble(replicas: &mut impl Replicas) -> Result<Self, PoolError> {
        let (members, terms) = replicas.members()?;
        let Identity { uuid, size_bytes, user_flags, replica_count } = replicas.identity();
        let Terms { durability, access, left_out, named_count, acknowledge, was_closed, first_read, mirror } = terms;
        let facts = Facts {
            uuid,
            size_bytes,
            header_bytes: replicas.data_range().start,
            user_flags,
            attributes: replicas.attributes(),
            made_count: usize::from(replica_count),
            replica_count: members.iter().filter(|member| !member.state().is_witness()).count(),
            named_count,
            durability,
            access,
            left_out,
            equalized: Equalized::default(),
            was_closed,
            first_read,
            point: None,
        };
        let epochs = replicas.epochs(&members, acknowledge);
        let mut open = Self::new((facts, acknowledge), members, epochs, mirror);
        open.intent = replicas.intent(open.keeps_digests()).map(Arc::new);
        if let Some(comparable) = replicas.comparable(&open)? {
            open.facts.equalized = open.equalize(&comparable)?;
            open.settle()?;
        }
        open.facts.was_closed &= open.facts.equalized.copied_bytes == 0;
        Ok(open)
    }
}
