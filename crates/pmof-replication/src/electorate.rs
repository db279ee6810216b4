//! Whose word counts when a pool is opened: the members that it has now, decided from what those that were found keep, without input or output.

use alloc::{collections::BTreeSet, vec::Vec};

use pmof_control::{Role, Roster};
use uuid::Uuid;

use crate::{
    keeper::Kept,
    lineage::{Agreement, Found, confirmed, quorum, votes_needed},
    roster::settled_at,
};

#[cfg(test)]
mod tests;

/// What one replica says of the pool's members.
#[derive(Clone, Copy, Debug)]
pub struct Word<'w> {
    /// The replica and its state.
    pub found: Found<'w>,
    /// Its identity.
    pub replica_uuid: Uuid,
    /// `None`: its target keeps none.
    pub roster: Option<&'w Roster>,
}

/// The members of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Electorate {
    /// The members now, without a change under way.
    pub roster: Roster,
    /// The same with the last change, while none of those found says that enough of the members before and after it know of it.
    pending: Option<Roster>,
    /// Somebody keeps a roster.
    is_kept: bool,
    /// Those whose roster may be older than the one that they were told: bit *n* for index *n*.
    uncertain: u64,
}

impl Electorate {
    /// The members as the words of those that were found have it. A change holds if its epoch was confirmed, as far as the members before and after it know: it was
    /// announced to enough of the members before and after it, each of which had the roster first, so that whoever can open the pool has met one that knows.
    /// `made`: replicas that the pool was made with.
    pub fn of(words: &[Word<'_>], made: u16) -> Self {
        Self::with_confirmed(words, made, &BTreeSet::new())
    }

    /// The same where a keeper outside of the members has the epoch in force, by which a change holds or does not.
    pub fn by(kept: &Kept, words: &[Word<'_>], made: u16) -> Self {
        Self::with_confirmed(words, made, &kept.in_force.line().collect())
    }

    fn with_confirmed(words: &[Word<'_>], made: u16, in_force: &BTreeSet<Uuid>) -> Self {
        let settled = words.iter().filter_map(|word| {
            let roster = word.roster?;
            // What others were told of is no change of these: one that was to come and never did may have met an epoch that was given up.
            let is_of =
                |word: &&Word<'_>| roster.counted().any(|member| member.is(word.found.index, word.replica_uuid));
            let found: Vec<_> = words.iter().filter(is_of).map(|word| word.found).collect();
            let confirmed = confirmed(&found);
            let holds = |epoch| confirmed.contains(&epoch) || in_force.contains(&epoch);
            Some((roster.settled(holds), roster))
        });
        let settled: Vec<_> = settled.collect();
        let uncertain = words.iter().filter(|word| word.roster.is_some_and(|roster| roster.is_uncertain));
        let uncertain = uncertain.fold(0, |bits, word| bits | 1 << word.found.index);
        let Some((newest, _)) = settled.iter().max_by_key(|(settled, _)| settled.age()) else {
            return Self { roster: Roster::made(made), pending: None, is_kept: false, uncertain };
        };
        let version = newest.version;
        let mut same = settled.iter().filter(|(settled, _)| settled.version == version).map(|(_, kept)| *kept);
        // One that keeps it without a change was told so when enough knew of the change.
        let pending = same.clone().find(|kept| kept.version < version);
        let is_settled = same.any(|kept| kept.version == version);
        let pending = pending.filter(|_| !is_settled).map(Roster::certain);
        Self { roster: newest.certain(), pending, is_kept: true, uncertain }
    }

    /// What the members are to keep when the pool is opened: a change that was found is settled by the epochs behind it only. `None`: no target
    /// keeps a roster.
    pub fn kept(&self) -> Option<&Roster> {
        self.is_kept.then(|| self.pending.as_ref().unwrap_or(&self.roster))
    }

    /// The members, where nothing is under way. `None`: also where no target keeps a roster.
    pub fn settled(&self) -> Option<&Roster> {
        Some(&self.roster).filter(|_| self.is_kept && self.pending.is_none())
    }

    /// Whether a replica is a member that counts, now or before the last change.
    pub fn has(&self, index: u16, replica_uuid: Uuid) -> bool {
        let both = self.pending.as_ref().unwrap_or(&self.roster);
        both.counted().any(|member| member.is(index, replica_uuid))
    }

    /// Whether a replica is an asynchronous member, which counts for nothing.
    pub fn is_asynchronous(&self, index: u16, replica_uuid: Uuid) -> bool {
        let mut asynchronous = self.roster.members.iter().filter(|member| member.role == Role::Asynchronous);
        asynchronous.any(|member| member.is(index, replica_uuid))
    }

    /// Whether a replica is a member that keeps the pool's epochs and no data.
    pub fn is_witness(&self, index: u16, replica_uuid: Uuid) -> bool {
        let both = self.pending.as_ref().unwrap_or(&self.roster);
        both.members.iter().any(|member| member.role == Role::Witness && member.is(index, replica_uuid))
    }

    /// Members that have the pool's bytes.
    pub fn data_count(&self) -> usize {
        self.roster.with_data().count()
    }

    /// Whether the member of an index is one of those before the last change, and no more.
    pub fn is_leaving(&self, index: u16) -> bool {
        self.roster.member(index).is_none()
    }

    /// Members before the last change, and whether the one of an index is among them, where these count, too.
    pub fn before(&self) -> Option<(usize, impl Fn(u16) -> bool + use<>)> {
        let indexes = self.pending.as_ref()?.indexes();
        Some((indexes.count_ones() as usize, move |index: u16| indexes & (1 << index) != 0))
    }

    /// Members that the pool has and that count.
    pub fn count(&self) -> u16 {
        self.roster.counted().count() as u16
    }

    /// Whether those in sync have all that was ever acknowledged, and nobody else can go on without them.
    pub fn is_enough(&self, agreement: &Agreement, found: &[Found<'_>]) -> bool {
        let before = self.pending.as_ref().map(Roster::indexes);
        let is_of_members = self.is_of_members(agreement);
        let is_enough = |members| agreement.is_enough(found, members, is_of_members);
        core::iter::once(self.roster.indexes()).chain(before).all(is_enough) && self.is_certain(agreement, found)
    }

    /// The same where a keeper outside of the members decides: one that is in sync is enough, whose roster is as it was told. It had that before the keeper put its epoch in force.
    pub fn is_enough_by_keeper(&self, agreement: &Agreement, found: &[Found<'_>]) -> bool {
        let mut in_sync = agreement.in_sync.iter().map(|at| found[*at].index);
        let has_certain = in_sync.any(|index| self.uncertain & (1 << index) == 0);
        has_certain || (!agreement.in_sync.is_empty() && self.is_certain(agreement, found))
    }

    /// Whether the roster is the last one that was in force, wherever a damaged slot may have held a newer one: all members by this one are here, and those with
    /// such a slot know no epoch of others; or so many vote whose rosters are as they were told that one of them would know a newer one.
    pub fn is_certain(&self, agreement: &Agreement, found: &[Found<'_>]) -> bool {
        if self.uncertain == 0 {
            return true;
        }
        let (now, before) = (self.roster.indexes(), self.pending.as_ref().map(Roster::indexes));
        let known = now | before.unwrap_or(0);
        let here = found.iter().fold(0_u64, |here, found| here | 1 << found.index);
        let mut uncertain = found.iter().filter(|found| self.uncertain & (1 << found.index) != 0);
        let is_whole = known & !here == 0 && uncertain.all(|found| found.state.epoch.members & !known == 0);
        let votes = agreement.voters().map(|at| found[at].index).filter(|index| self.uncertain & (1 << index) == 0);
        let votes = votes.fold(0_u64, |votes, index| votes | 1 << index);
        let is_met =
            |members: u64| (votes & members).count_ones() as usize >= votes_needed(members.count_ones() as usize);
        is_whole || core::iter::once(now).chain(before).all(is_met)
    }

    /// Whether the members of these indexes are enough to know of an epoch, of those before the last change and of those after it.
    pub fn is_quorum(&self, indexes: impl IntoIterator<Item = u16>) -> bool {
        let found = indexes.into_iter().fold(0_u64, |found, index| found | 1 << index);
        let before = self.pending.as_ref().map(Roster::indexes);
        let is_enough = |members: u64| (found & members).count_ones() as usize >= quorum(members.count_ones() as usize);
        core::iter::once(self.roster.indexes()).chain(before).all(is_enough)
    }

    /// Whether the newest epoch found is not from before the members were changed: a member that was away meanwhile may have been all of that one, and
    /// another one of those who knew better may have gone since.
    fn is_of_members(&self, agreement: &Agreement) -> bool {
        match self.pending.as_ref().and_then(|roster| roster.change) {
            Some(change) => agreement.base.ancestors.iter().any(|epoch| epoch.id == change.epoch && epoch.members != 0),
            None => agreement.base.opening >= settled_at(&self.roster),
        }
    }
}
