//! The replicas of a native pool, as they were made or found, on their way to an open pool.

use std::sync::Arc;

use pmof_control::{OpenFor, Role, Roster, RosterMember};
use pmof_replication::{
    opening::{Left, OpenedReplica},
    posting::AckTerms,
};

use super::{New, Opened, Opening, failed};
use crate::{
    PoolError, PoolUrl, ReplicaError,
    electorate::Electorate,
    intent::Intent,
    lineage::Base,
    member::{AbsentMember, Member, Standing},
    pool::{
        Open,
        compare::Comparable,
        domains::number_domains,
        epochs::Epochs,
        events::Event,
        follow::Said,
        format::{Replicas, Terms, Upkeep},
        intents::ToldMaps,
        mirrors::mirror,
        opened::{Identity, place},
    },
    roster::{FoundMember, made, noted},
    view::{Positions, Rule},
};

/// How native replicas came to be.
#[derive(Debug)]
pub(super) enum Origin {
    Made(New),
    Found {
        access: OpenFor,
        electorate: Box<Electorate>,
        /// The place of one that has all that was acknowledged.
        source: usize,
        /// How those in sync were left.
        left: Left,
    },
}

/// The replicas of a native pool.
#[derive(Debug)]
pub(in crate::pool) struct NativeReplicas {
    opening: Opening,
    pub(super) opened: Vec<Opened>,
    identity: Identity,
    /// Which replica lies in each place, where that is known.
    indexes: Vec<Option<u16>>,
    base: Base,
    mark: u64,
    /// What the members are to keep of each other, where a target keeps anything, and the positions of those that need not be told.
    roster: Option<(Roster, Positions)>,
    /// The maps of write intent that were told with them.
    maps: ToldMaps,
    /// The positions of members that have the mark.
    marked: Positions,
    /// What those that are in sync have said, by their positions.
    said: Vec<(usize, Said)>,
    pub(super) origin: Origin,
}

impl NativeReplicas {
    pub(super) fn new(
        opening: Opening,
        mut opened: Vec<Opened>,
        identity: Identity,
        (base, mark): (Base, u64),
        origin: Origin,
    ) -> Self {
        let found = found(&opening.urls, &opened);
        let mut indexes = vec![None; opening.urls.len()];
        for Opened { replica, .. } in &opened {
            indexes[replica.position] = Some(replica.index);
        }
        let roster = match &origin {
            Origin::Made(_) => Some(made(&found)),
            Origin::Found { electorate, access: OpenFor::Write, .. } => {
                let kept = electorate.kept().map(|kept| noted(kept, &found));
                kept.map(
                    |kept| if opening.is_forced { kept.forced_by(Opening::mark(&kept, &opened, &base)) } else { kept },
                )
            }
            Origin::Found { .. } => None,
        };
        let keepers = |roster| (keepers(&opened, &roster), roster);
        let roster = roster.map(keepers).map(|(keepers, roster)| (roster, keepers));
        let said = opened.iter().map(|Opened { replica, .. }| (replica.position, Said::by(&replica.state))).collect();
        let marked = opened.iter().filter(|opened| opened.replica.state.mark == mark);
        let marked = marked.fold(0, |all, opened| all | 1 << opened.replica.position);
        let maps =
            opened.iter_mut().filter_map(|Opened { replica, .. }| Some((replica.position, replica.intent.take()?)));
        let maps = maps.collect();
        Self { opening, opened, identity, indexes, base, mark, roster, maps, marked, said, origin }
    }

    /// The rule by which the members have to know of an epoch; and the one before a change of the members that was found, where that counts, too.
    fn rules(&self) -> (Rule, Option<Rule>) {
        let made = usize::from(self.identity.replica_count);
        let rule = Rule::of(made);
        // Whoever asks for fewer has decided that these are enough, and the mark says so. Where enough are there nothing was decided.
        let least = self.opening.wanted.min_replicas.filter(|_| self.opening.is_forced);
        let rule = least.map_or(rule, |least| rule.at_most(least.max(1)));
        let Origin::Found { electorate, .. } = &self.origin else { return (rule, None) };
        let known = || self.indexes.iter().enumerate().filter_map(|(position, index)| Some((position, (*index)?)));
        let without = |rule: Rule, is_out: &dyn Fn(u16) -> bool| {
            known().filter(|(_, index)| is_out(*index)).fold(rule, |rule, (position, _)| rule.without(position))
        };
        let before = electorate.before();
        let before = before.map(|(count, has)| without(Rule::of(count), &|index| !has(index)));
        (without(rule, &|index| electorate.is_leaving(index)), before)
    }

    /// The members that have no data.
    fn witnesses(&self) -> impl Iterator<Item = &RosterMember> {
        let roster = match &self.origin {
            Origin::Found { electorate, .. } => Some(&electorate.roster),
            Origin::Made(_) => None,
        };
        roster.into_iter().flat_map(|roster| &roster.members).filter(|member| member.role == Role::Witness)
    }

    fn is_witness_at(&self, url: &PoolUrl) -> bool {
        self.witnesses().any(|member| member.url.parse::<PoolUrl>().is_ok_and(|known| known == *url))
    }

    /// Those that a change of the members has removed before the pool was opened, and that may not know.
    fn leaving(&self) -> Vec<(usize, u16)> {
        let Origin::Found { electorate, access: OpenFor::Write, .. } = &self.origin else { return Vec::new() };
        let known = self.indexes.iter().enumerate().filter_map(|(position, index)| Some((position, (*index)?)));
        known.filter(|(_, index)| electorate.is_leaving(*index)).collect()
    }

    /// Tells of names that lead to no member, and of members that were found by what the others know.
    fn hint_at_names(&self, open: &Open) {
        let not_members = open.receipt_of(Vec::new()).0.not_members;
        if not_members.is_empty() {
            return;
        }
        let found = open.in_use().filter_map(|member| member.standing().place.url().map(ToString::to_string));
        let named = &self.opening.urls[..self.opening.named_count];
        let not_named: Vec<_> = found.filter(|url| named.iter().all(|named| named.to_string() != *url)).collect();
        let members = if not_named.is_empty() { String::new() } else { format!("; name {}", not_named.join(", ")) };
        for place in not_members {
            log::warn!("{place:#} was named and is no member of the pool{members}");
        }
    }

    fn is_written_again(&self) -> bool {
        matches!(self.origin, Origin::Found { access: OpenFor::Write, .. })
    }
}

impl Replicas for NativeReplicas {
    fn members(&mut self) -> Result<(Vec<Arc<dyn Member>>, Terms), PoolError> {
        let (opening, size_bytes) = (&self.opening, self.identity.size_bytes);
        let mirror = if opening.wanted.has_mirror { Some(mirror(size_bytes)?) } else { None };
        let absent = |position: usize| {
            let why = opening.left_out.iter().find(|(of, _)| *of == position).map(|(_, why)| Arc::clone(why));
            let why = why.unwrap_or_else(|| Arc::new(ReplicaError::Unexpected));
            let absent = AbsentMember::new(place(&opening.urls[position]), why);
            Arc::new(absent.of_witness(self.is_witness_at(&opening.urls[position]))) as Arc<dyn Member>
        };
        let (access, first_read, was_closed) = self.reading();
        let mut members: Vec<Arc<dyn Member>> = (0..opening.urls.len()).map(absent).collect();
        for Opened { replica, site, reached } in std::mem::take(&mut self.opened) {
            let OpenedReplica { position, replica_uuid, behind, is_witness, domain, .. } = replica;
            let place = place(&opening.urls[position]);
            let standing = if behind.is_some() { Standing::behind(place) } else { Standing::new(place) };
            let standing = standing.with_failure_domain(domain).of_witness(is_witness).of_replica(replica_uuid);
            let member = reached.member(standing, site, size_bytes, mirror.as_ref());
            members[position] = member.map_err(|error| failed(&opening.urls[position], error))?;
        }
        number_domains(&members);
        let (left_out, acknowledge) = (opening.told_left_out(), opening.terms());
        let whole = Terms::whole(opening.wanted.require, access, mirror);
        let named_count = opening.named_count;
        Ok((members, Terms { left_out, named_count, acknowledge, was_closed, first_read, ..whole }))
    }

    fn identity(&self) -> Identity {
        self.identity
    }

    fn epochs(&self, members: &[Arc<dyn Member>], terms: AckTerms) -> Option<Epochs> {
        let (rule, before) = self.rules();
        let epochs = Epochs::new(members.to_vec(), self.indexes.clone(), self.base.clone(), self.mark, rule, terms);
        epochs.note_marked(self.marked);
        epochs.keep_witness_count(self.witnesses().count());
        if let Some((roster, kept)) = &self.roster {
            epochs.keep_roster(roster.clone(), *kept);
        }
        before.inspect(|before| epochs.found_changed(*before));
        if matches!(self.origin, Origin::Made(_)) {
            epochs.note_made();
        }
        Some(epochs)
    }

    /// A pool of one replica has no other to differ from, and may keep digests of its pages. That of a new pool begins when it has its name.
    fn intent(&self, keeps_digests: bool) -> Option<Intent> {
        let is_kept = self.is_written_again() && (self.identity.replica_count > 1 || keeps_digests);
        is_kept.then(|| Intent::new(self.identity.size_bytes))
    }

    /// All of a native pool is comparable where nothing tells which ranges may differ.
    fn comparable(&self, open: &Open) -> Result<Option<Comparable>, PoolError> {
        match self.origin {
            Origin::Found { access: OpenFor::Write, source, left, .. } => open.begin(left, source, &self.maps),
            Origin::Made(_) | Origin::Found { .. } => Ok(None),
        }
    }

    fn finish(self, open: &mut Open) -> Result<Upkeep, PoolError> {
        let is_kept = match &self.origin {
            Origin::Made(new) => {
                if let Some(epochs) = &open.epochs {
                    epochs.tell_roster();
                }
                open.is_unpublished = *new == New::Unpublished;
                if let Some(epochs) = &open.epochs {
                    epochs.note_equal();
                }
                // Of an unpublished one, too, whose pages have to be raised before they are written.
                if (*new == New::Published && self.identity.replica_count > 1) || open.keeps_digests() {
                    open.begin_intent();
                }
                // What has no name yet is gone with its connection.
                *new == New::Published
            }
            Origin::Found { access, .. } => {
                for (position, index) in self.leaving() {
                    open.let_member_go(position, index);
                }
                open.fill_mirror()?;
                self.hint_at_names(open);
                if let Some(forced) = self.roster.as_ref().and_then(|(roster, _)| roster.forced) {
                    log::warn!("{}", Event::Forced { forced });
                }
                *access == OpenFor::Write
            }
        };
        if is_kept {
            return Ok(Upkeep::Returns(Box::new(self.opening.returns(self.identity, open))));
        }
        // Whoever asked for some replicas has those, and no others.
        let is_followed = open.facts.access == OpenFor::Read && self.opening.wanted.min_replicas.is_none();
        Ok(if is_followed { Upkeep::Follow(Box::new(self.opening.follow(self.said))) } else { Upkeep::Nothing })
    }

    /// They are closed when their connections end, which nothing holds any more.
    fn abandon(self) {}
}

/// Which replicas were found where.
fn found(urls: &[Arc<PoolUrl>], opened: &[Opened]) -> Vec<FoundMember> {
    let found = |Opened { replica, .. }: &Opened| {
        let OpenedReplica { position, index, replica_uuid, .. } = *replica;
        FoundMember { index, replica_uuid, url: Arc::clone(&urls[position]) }
    };
    opened.iter().map(found).collect()
}

/// Positions of replicas that keep this roster, or whose targets keep none.
fn keepers(opened: &[Opened], roster: &Roster) -> Positions {
    let keeps = |opened: &&Opened| opened.replica.roster.as_ref().is_none_or(|kept| kept == roster);
    opened.iter().filter(keeps).fold(0, |all, opened| all | 1 << opened.replica.position)
}
