//! Members that were not named, at the addresses that others have for them.

use alloc::{sync::Arc, vec::Vec};

use pmof_control::{REPLICAS_MAX, Roster};

use super::{
    Rules,
    ask::{Failed, Run, Wish},
    heard::Heard,
    outcome::{Identity, OpenedReplica},
};
use crate::{
    asking::{Failure, Reason},
    lineage::{quorum, votes_needed},
    place::{FoundMember, Place},
    roster::newest,
};

impl<P: Place, F: Failure, R: Rules> Run<P, F, R> {
    /// The newest roster that an open or a heard replica keeps, if it is newer than `followed`.
    pub(super) fn newer_roster(
        &self,
        opened: &[OpenedReplica],
        heard: &[Heard],
        followed: Option<&Roster>,
    ) -> Option<Roster> {
        let kept = opened.iter().filter_map(|opened| opened.roster.as_ref());
        let newest = newest(kept.chain(heard.iter().map(|heard| &heard.roster)));
        let is_newer = |roster: &&Roster| followed.is_none_or(|followed| roster.age() > followed.age());
        newest.filter(|roster| self.terms.min_replicas.is_none() && is_newer(roster)).cloned()
    }

    /// Opens members that were not named. The pool has `count` of them, and `have` are open. What is found there instead is left out.
    pub(super) async fn open_others(
        &mut self,
        others: Vec<FoundMember<P>>,
        (count, have): (usize, usize),
        identity: &mut Option<Identity>,
    ) -> (Vec<OpenedReplica>, Vec<Failed<F>>) {
        let first = self.places.len();
        let (mut connected, mut unreached) = (Vec::with_capacity(others.len()), Vec::new());
        let others: Vec<_> = others.into_iter().take(usize::from(REPLICAS_MAX).saturating_sub(first)).collect();
        let enough = votes_needed(count).max(quorum(count)).max(self.terms.least_replicas).saturating_sub(have);
        let places: Vec<_> = others.iter().map(|other| Arc::clone(&other.url)).collect();
        let patience = self.patience(enough, &places);
        let sites = self.connect(&places, patience).await;
        for (other, site) in others.into_iter().zip(sites) {
            match site {
                Ok(site) => {
                    self.sites.push((self.places.len(), site));
                    self.places.push(Arc::clone(&other.url));
                    connected.push(other);
                }
                Err(cause) => unreached.push((other, cause)),
            }
        }
        let sites = core::mem::take(&mut self.sites);
        let (opened, failed) = self.ask(sites, Wish::Open, None, enough, identity).await;
        // They may come back, unless they are named under other addresses.
        for (other, cause) in unreached.into_iter().take(count.saturating_sub(self.places.len())) {
            self.left_out.push((self.places.len(), cause));
            self.places.push(other.url);
        }
        let wanted = |position: usize| &connected[position - first];
        let (opened, foreign): (Vec<_>, Vec<_>) =
            opened.into_iter().partition(|opened| is_member(wanted(opened.position), opened));
        self.release(foreign.iter().map(|opened| opened.site)).await;
        for OpenedReplica { position, index: found, .. } in foreign {
            let index = wanted(position).index;
            self.left_out.push((position, Reason::NotTheMember { index, found }.into()));
        }
        // One that another program has open is no less in use because it was not named.
        let (busy, lost): (Vec<_>, Vec<_>) = failed.into_iter().partition(|failed| failed.cause.is_busy());
        self.release(lost.iter().filter(|failed| failed.open.is_some()).map(|failed| failed.site)).await;
        self.left_out.extend(lost.into_iter().map(|Failed { position, cause, .. }| (position, cause)));
        (opened, busy)
    }
}

/// Whether the replica is the one that was looked for.
fn is_member<P>(wanted: &FoundMember<P>, opened: &OpenedReplica) -> bool {
    wanted.index == opened.index && (wanted.replica_uuid.is_nil() || wanted.replica_uuid == opened.replica_uuid)
}
