//! Replicas that are not opened, or not yet, and know better who the members are: a spare takes a member's place while that one is away.

use std::sync::Arc;

use pmof_control::{OpenFor, PoolInfo, PoolState, Roster};
use uuid::Uuid;

use super::{Opened, Opening};
use crate::{
    PoolUrl,
    electorate::{Electorate, Word},
    lineage::Found,
    pool::{
        promoted::{Promoted, promoted},
        rosters::hear,
    },
    reach::grace_since,
    roster::{elsewhere, lacks, newest, spares_elsewhere},
    together::together,
};

/// What a replica says that was asked for nothing else.
#[derive(Debug)]
pub(super) struct Heard {
    index: u16,
    replica_uuid: Uuid,
    state: PoolState,
    pub(super) roster: Roster,
}

impl Heard {
    fn new(info: &PoolInfo, roster: Roster) -> Self {
        let (index, replica_uuid) = (info.header.replica_index, info.header.replica_uuid);
        Self { index, replica_uuid, state: info.state.clone(), roster }
    }

    /// Its word, unless it was opened since.
    pub(super) fn word(&self, opened: &[Opened]) -> Option<Word<'_>> {
        let is_open = opened.iter().any(|opened| opened.replica_uuid == self.replica_uuid);
        let (found, roster) = (Found { index: self.index, state: &self.state }, Some(&self.roster));
        (!is_open).then_some(Word { found, replica_uuid: self.replica_uuid, roster })
    }
}

impl Opening {
    /// What those say that lie where `roster` has its spares, if members are missing and they know better.
    pub(super) fn hear_spares(&mut self, roster: &Roster, opened: &[Opened], uuid: Uuid) -> Vec<Heard> {
        if !lacks(roster, &self.found(opened)) {
            return Vec::new();
        }
        self.hear_at(&spares_elsewhere(roster, &self.urls), roster, uuid)
    }

    /// What those say of which a pool was made, of the asynchronous members of `roster`: whoever keeps that roster is no member of it.
    pub(super) fn hear_promoted(&self, roster: &Roster, uuid: Uuid) -> Vec<Heard> {
        let promoted = promoted(&self.wanted.reach, roster, uuid, &self.urls);
        promoted.into_iter().map(|Promoted { info, roster, .. }| Heard::new(&info, roster)).collect()
    }

    /// What others say that know better than those that are open, where these are to go on with too few members: they may be none any more.
    pub(super) fn hear_all(&mut self, opened: &[Opened], access: OpenFor, uuid: Uuid) -> Vec<Heard> {
        let mut heard: Vec<Heard> = Vec::new();
        if access == OpenFor::Read || self.wanted.min_replicas.is_none() {
            return heard;
        }
        let (mut asked, found) = (self.urls.clone(), self.found(opened));
        let mut followed = newest(opened.iter().filter_map(|opened| opened.roster.as_ref())).cloned();
        while let Some(roster) = followed.take() {
            let mut fresh = self.hear_promoted(&roster, uuid);
            if lacks(&roster, &found) {
                let members = elsewhere(&roster, &found, &asked).into_iter().map(|other| other.url);
                let urls: Vec<Arc<PoolUrl>> = members.chain(spares_elsewhere(&roster, &asked)).collect();
                fresh.extend(self.hear_at(&urls, &roster, uuid));
                asked.extend(urls);
            }
            followed = newest(fresh.iter().map(|heard| &heard.roster)).cloned();
            heard.extend(fresh);
        }
        heard
    }

    /// What lies there, where it is of this pool and keeps a newer roster than this.
    fn hear_at(&self, urls: &[Arc<PoolUrl>], roster: &Roster, uuid: Uuid) -> Vec<Heard> {
        let (reach, peers) = (self.wanted.reach.clone(), self.peers.clone());
        let heard = together(
            urls.to_vec(),
            (self.wanted.haste.enough(0), grace_since(self.began, urls)),
            move |url: Arc<PoolUrl>, given_up| hear(&reach.until(given_up).site(&peers, &url)?, &url),
        );
        let newer = heard.into_iter().filter_map(|heard| {
            self.wanted.haste.note(&heard);
            let (info, newer) = heard.ok()?;
            let newer = newer.filter(|newer| info.header.pool_uuid == uuid && newer.age() > roster.age())?;
            Some(Heard::new(&info, newer))
        });
        newer.collect()
    }
}

/// The members, by the words of those that are open and of those that were heard.
pub(super) fn electorate(opened: &[Opened], heard: &[Heard], made: u16) -> Electorate {
    let mut words = super::words(opened);
    words.extend(heard.iter().filter_map(|heard| heard.word(opened)));
    Electorate::of(&words, made)
}
