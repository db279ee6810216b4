//! What the formats of pools differ in, and how a pool of any of them is put together from its replicas.

use std::{ops::Range, sync::Arc};

use pmof_access::{Durability, Medium};
use pmof_control::OpenFor;
use pmof_pool::Attributes;

use super::{Equalized, Facts, LeftOut, Open, acknowledge::AckTerms, epochs::Epochs, opened::Identity};
use crate::{PoolError, intent::Intent, member::Member};

/// A format, as a pool of it was made or found.
pub(super) trait Format {
    /// What all replicas have in common.
    fn identity(&self) -> Identity;

    /// What may be written; before it lies a header.
    fn data_range(&self) -> Range<u64> {
        0..self.identity().size_bytes
    }

    /// What the headers say, of a format that has attributes.
    fn attributes(&self) -> Option<Attributes> {
        None
    }

    /// Who takes part in what, of a format whose replicas keep that.
    fn epochs(&self, _members: &[Arc<dyn Member>], _terms: AckTerms) -> Option<Epochs> {
        None
    }

    /// What the replicas keep of writes under way, of a format whose replicas do, where it is opened for writing.
    fn intent(&self) -> Option<Intent> {
        None
    }

    /// Makes the replicas equal in all ranges that are comparable, where they need not be so.
    fn equalize(&self, open: &Open) -> Result<Equalized, PoolError>;
}

/// What a pool gives whose replicas are open, whatever its format.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub(super) durability: Durability,
    pub(super) access: OpenFor,
    pub(super) left_out: LeftOut,
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
        let acknowledge = AckTerms::of_all();
        Self { durability, access, left_out, acknowledge, was_closed: true, first_read: 0, mirror }
    }
}

impl Open {
    /// Puts the replicas together, one in each place, and has those in use hold the same.
    pub(super) fn assemble(
        format: &dyn Format,
        members: Vec<Arc<dyn Member>>,
        terms: Terms,
    ) -> Result<Self, PoolError> {
        let Identity { uuid, size_bytes, user_flags, replica_count } = format.identity();
        let Terms { durability, access, left_out, acknowledge, was_closed, first_read, mirror } = terms;
        let facts = Facts {
            uuid,
            size_bytes,
            header_bytes: format.data_range().start,
            user_flags,
            attributes: format.attributes(),
            made_count: usize::from(replica_count),
            replica_count: members.len(),
            durability,
            access,
            left_out,
            equalized: Equalized::default(),
            was_closed,
            first_read,
        };
        let epochs = format.epochs(&members, acknowledge);
        let mut open = Self::new((facts, acknowledge), members, epochs, mirror);
        open.intent = format.intent().map(Arc::new);
        open.facts.equalized = format.equalize(&open)?;
        open.facts.was_closed &= open.facts.equalized.copied_bytes == 0;
        Ok(open)
    }
}
