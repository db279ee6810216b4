//! Replicas that are not opened, or not yet, and know better who the members are: a spare takes a member's place while that one is away, and a pool
//! may be made of an asynchronous member.

use alloc::{rc::Rc, sync::Arc, vec::Vec};

use pmof_control::{OpenFor, PoolInfo, PoolState, Roster};
use uuid::Uuid;

use super::{Rules, ask::Run, outcome::OpenedReplica};
use crate::{
    asking::{Action, Failure, at_each, look, promoted},
    electorate::Word,
    lineage::Found,
    place::{Place, elsewhere, lacks, spares_elsewhere},
    roster::newest,
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
    pub(super) fn word(&self, opened: &[OpenedReplica]) -> Option<Word<'_>> {
        let is_open = opened.iter().any(|opened| opened.replica_uuid == self.replica_uuid);
        let (found, roster) = (Found { index: self.index, state: &self.state }, Some(&self.roster));
        (!is_open).then_some(Word { found, replica_uuid: self.replica_uuid, roster })
    }
}

impl<P: Place, F: Failure, R: Rules> Run<P, F, R> {
    /// What those say that lie where `roster` has its spares, if members are missing and they know better.
    pub(super) async fn hear_spares(&mut self, roster: &Roster, opened: &[OpenedReplica], uuid: Uuid) -> Vec<Heard> {
        if !lacks(roster, &self.found(opened)) {
            return Vec::new();
        }
        let spares = spares_elsewhere(roster, &self.places);
        self.hear_at(&spares, roster, uuid).await
    }

    /// What those say of which a pool was made, of the asynchronous members of `roster`.
    pub(super) async fn hear_promoted(&mut self, roster: &Roster, uuid: Uuid) -> Vec<Heard> {
        let promoted = promoted(&self.exchange, (roster, uuid), &self.places).await;
        let heard = promoted.into_iter().filter_map(|(_, site, (info, enclosed))| {
            self.exchange.tell(Action::Drop { site });
            Some(Heard::new(&info, enclosed.roster?))
        });
        heard.collect()
    }

    /// For a forced opening: what members, spares and promoted members say that keep a newer roster. The open replicas may have been removed since.
    pub(super) async fn hear_all(&mut self, opened: &[OpenedReplica], uuid: Uuid) -> Vec<Heard> {
        let mut heard: Vec<Heard> = Vec::new();
        if self.access == OpenFor::Read || self.terms.min_replicas.is_none() {
            return heard;
        }
        let (mut asked, found) = (self.places.clone(), self.found(opened));
        let mut followed = newest(opened.iter().filter_map(|opened| opened.roster.as_ref())).cloned();
        while let Some(roster) = followed.take() {
            let mut fresh = self.hear_promoted(&roster, uuid).await;
            if lacks(&roster, &found) {
                let members = elsewhere(&roster, &found, &asked).into_iter().map(|other| other.url);
                let places: Vec<Arc<P>> = members.chain(spares_elsewhere(&roster, &asked)).collect();
                fresh.extend(self.hear_at(&places, &roster, uuid).await);
                asked.extend(places);
            }
            followed = newest(fresh.iter().map(|heard| &heard.roster)).cloned();
            heard.extend(fresh);
        }
        heard
    }

    /// What lies there, where it is of this pool and keeps a newer roster than this.
    async fn hear_at(&mut self, places: &[Arc<P>], roster: &Roster, uuid: Uuid) -> Vec<Heard> {
        let exchange = Rc::clone(&self.exchange);
        let look = async |site, place: &P| look(&exchange, site, place).await;
        let answers = at_each(&exchange, places, self.patience(0, places), look).await;
        let newer = answers.into_iter().filter_map(|answer| {
            self.note_silence(&answer);
            let (site, (info, enclosed)) = answer.ok()?;
            exchange.tell(Action::Drop { site });
            let newer = enclosed.roster.filter(|newer| info.header.pool_uuid == uuid && newer.age() > roster.age())?;
            Some(Heard::new(&info, newer))
        });
        newer.collect()
    }
}
