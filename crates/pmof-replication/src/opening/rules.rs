//! The rules of an opening, each in a method of its own, so that the simulation can break one and show that it is needed.

use alloc::vec::Vec;

use uuid::Uuid;

use crate::{
    electorate::{Electorate, Word},
    keeper::Kept,
    lineage::{Agreement, Apart, Found, agree, agree_by},
};

/// How an opening judges what it found. `kept`: what a keeper outside of the members has, where the pool has one.
pub trait Rules {
    /// The members that the pool has.
    fn electorate(&self, words: &[Word<'_>], made: u16, kept: Option<&Kept>) -> Electorate {
        match kept {
            None => Electorate::of(words, made),
            Some(kept) => Electorate::by(kept, words, made),
        }
    }

    /// Whether a replica is a member with a vote.
    fn is_member(&self, electorate: &Electorate, index: u16, replica_uuid: Uuid) -> bool {
        electorate.has(index, replica_uuid)
    }

    /// Which replicas belong together.
    ///
    /// # Errors
    /// The replicas that do not, where nothing decides which of them count.
    fn agree(&self, found: &[Found<'_>], made: u16, kept: Option<&Kept>) -> Result<Agreement, Vec<(usize, Apart)>> {
        match kept {
            None => agree(found, made),
            Some(kept) => agree_by(kept, found),
        }
    }

    /// Has a writer's members catch up that may lack what was acknowledged.
    fn put_behind(&self, agreement: &mut Agreement, found: &[Found<'_>]) {
        agreement.put_stale_behind(found);
        agreement.put_late_behind();
    }

    /// Whether those in sync have all that was ever acknowledged, and no others can go on without them.
    fn is_enough(
        &self,
        electorate: &Electorate,
        agreement: &Agreement,
        found: &[Found<'_>],
        kept: Option<&Kept>,
    ) -> bool {
        match kept {
            None => electorate.is_enough(agreement, found),
            Some(_) => electorate.is_enough_by_keeper(agreement, found),
        }
    }
}

/// The rules as they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShippedRules;

impl Rules for ShippedRules {}
