//! Members that were not named, where others say that they lie.

use std::sync::Arc;

use pmof_control::{OpenFor, REPLICAS_MAX, Request, Roster};

use super::{Failed, Opened, Opening, heard::Heard, release};
use crate::{
    PoolUrl, ReplicaError,
    lineage::{quorum, votes_needed},
    pool::opened::Identity,
    reach::grace_since,
    roster::{FoundMember, newest},
};

impl Opening {
    /// The newest roster of those that are open and of those that were heard, if it is newer than the one that was followed.
    pub(super) fn newer_roster(&self, opened: &[Opened], heard: &[Heard], followed: Option<&Roster>) -> Option<Roster> {
        let kept = opened.iter().filter_map(|opened| opened.roster.as_ref());
        let newest = newest(kept.chain(heard.iter().map(|heard| &heard.roster)));
        let is_newer = |roster: &&Roster| followed.is_none_or(|followed| roster.age() > followed.age());
        newest.filter(|roster| self.wanted.min_replicas.is_none() && is_newer(roster)).cloned()
    }

    /// Opens members that were not named, where others say that they lie, of so many that there are. What is found there instead is left out.
    pub(super) fn open_others(
        &mut self,
        (others, count, have): (&[FoundMember], usize, usize),
        access: OpenFor,
        identity: &mut Option<Identity>,
        question: impl Fn(&PoolUrl, u16) -> Request,
    ) -> (Vec<Opened>, Vec<Failed>) {
        let first = self.urls.len();
        let (mut reached, mut unreached) = (Vec::with_capacity(others.len()), Vec::new());
        let others: Vec<_> = others.iter().take(usize::from(REPLICAS_MAX).saturating_sub(first)).collect();
        let enough = self
            .wanted
            .haste
            .enough(votes_needed(count).max(quorum(count)).max(self.wanted.least()).saturating_sub(have));
        let urls: Vec<_> = others.iter().map(|other| Arc::clone(&other.url)).collect();
        let sites = self.wanted.reach.sites(&self.peers, &urls, (enough, grace_since(self.began, &urls)));
        for (other, site) in others.into_iter().zip(sites) {
            self.wanted.haste.note(&site);
            match site {
                Ok(site) => {
                    self.sites.push((self.urls.len(), site));
                    self.urls.push(Arc::clone(&other.url));
                    reached.push(other);
                }
                Err(error) => unreached.push((other, error)),
            }
        }
        let (opened, failed) = self.ask(access, None, identity, question);
        // They may come back, unless they are named under other addresses.
        for (other, error) in unreached.into_iter().take(count.saturating_sub(self.urls.len())) {
            self.left_out.push((self.urls.len(), Arc::new(error)));
            self.urls.push(Arc::clone(&other.url));
        }
        let wanted = |position: usize| reached[position - first];
        let (opened, foreign): (Vec<_>, Vec<_>) =
            opened.into_iter().partition(|opened| is_member(wanted(opened.position), opened));
        for Opened { position, index, site, .. } in foreign {
            release(&site);
            let why = ReplicaError::NotTheMember { index: wanted(position).index, found: index };
            self.left_out.push((position, Arc::new(why)));
        }
        // One that somebody else has open is no less in use because it was not named.
        let (busy, lost): (Vec<_>, Vec<_>) = failed.into_iter().partition(|failed| failed.error.is_busy());
        for Failed { position, site, open, error } in lost {
            if open.is_some() {
                release(&site);
            }
            self.left_out.push((position, Arc::new(error)));
        }
        (opened, busy)
    }
}

/// Whether the replica is the one that was looked for.
fn is_member(wanted: &FoundMember, opened: &Opened) -> bool {
    wanted.index == opened.index && (wanted.replica_uuid.is_nil() || wanted.replica_uuid == opened.replica_uuid)
}
