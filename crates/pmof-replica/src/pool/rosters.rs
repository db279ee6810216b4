//! Rosters of the members of a pool: read when it is opened, to find those that were not named, and written where they say something else.

use std::sync::Arc;

use pmof_control::{Reply, Request, Roster, RosterPart};
use pmof_mem::causes;

use super::Open;
use crate::{
    ReplicaError,
    member::Control,
    roster::{FoundMember, made, newest, noted},
    site::{Asked, Site},
};

/// What members that were found keep of the pool's members, by their indexes; `None` where a target keeps nothing.
#[derive(Clone, Debug, Default)]
pub(super) struct Rosters(Vec<(u16, Option<Roster>)>);

impl Rosters {
    /// Adds what targets say, all of which are asked at once.
    pub(super) fn read<'t>(&mut self, opened: impl Iterator<Item = (u16, &'t Site)>) {
        let asked: Vec<_> =
            opened.map(|(index, site)| (index, site, site.send(&Request::Roster { offset: 0 }))).collect();
        for (index, site, asked) in asked {
            // One that is lost meanwhile is noticed when it is used.
            let roster = asked.and_then(|asked| read_roster(site, asked)).ok().flatten();
            self.0.push((index, roster));
        }
    }

    /// The roster that counts. `None`: nobody keeps one.
    pub(super) fn newest(&self) -> Option<&Roster> {
        newest(self.0.iter().filter_map(|(_, roster)| roster.as_ref()))
    }

    /// Whether a member keeps an older one.
    fn is_older(&self, index: u16, than: &Roster) -> bool {
        let kept = self.0.iter().find(|(of, _)| *of == index).and_then(|(_, roster)| roster.as_ref());
        kept.is_some_and(|roster| roster.age() < than.age())
    }
}

/// The roster that a target keeps of the pool that is open there. `None`: it is too old to keep one.
pub(super) fn read_roster(site: &Site, asked: Asked) -> Result<Option<Roster>, ReplicaError> {
    let (mut bytes, mut answer) = (Vec::new(), site.answer(asked));
    loop {
        let part = match answer {
            Ok(Reply::Roster(part)) => part,
            Err(ReplicaError::Refused { .. }) => return Ok(None),
            Ok(_) => return Err(ReplicaError::Unexpected),
            Err(error) => return Err(error),
        };
        bytes.extend_from_slice(&part.bytes);
        if bytes.len() >= usize::from(part.len_bytes) {
            return Roster::decode(&bytes).map(Some).map_err(|_| ReplicaError::Unexpected);
        }
        if part.bytes.is_empty() {
            return Err(ReplicaError::Unexpected);
        }
        answer = site.ask(&Request::Roster { offset: bytes.len() as u16 });
    }
}

impl Open {
    /// Has the members of a new pool keep where all of them lie.
    pub(super) fn note_made(&self, found: &[FoundMember]) {
        self.tell_roster(&made(found), |_| true);
    }

    /// Has the members keep where those that were found lie, if they do not know.
    pub(super) fn note_found(&self, rosters: &Rosters, found: &[FoundMember]) {
        let Some(newest) = rosters.newest() else { return };
        let roster = noted(newest, found);
        self.tell_roster(&roster, |index| rosters.is_older(index, &roster));
    }

    /// Tells those a roster that lack it. One that does not take it keeps the old one: the next opening tells it again.
    fn tell_roster(&self, roster: &Roster, lacks: impl Fn(u16) -> bool) {
        let encoded = match roster.encode() {
            Ok(encoded) => encoded,
            Err(error) => {
                log::warn!("the pool's members will not know of each other: {}", causes(&error));
                return;
            }
        };
        let Some(epochs) = &self.epochs else { return };
        let indexes: Vec<_> = {
            let state = epochs.lock();
            (0..self.members.len()).map(|position| state.view().index(position)).collect()
        };
        for (member, index) in self.members.iter().zip(indexes) {
            let Some(control) = member.control().filter(|_| index.is_some_and(&lacks)) else { continue };
            if let Err(error) = set_roster(control, &encoded) {
                log::info!("{:#} does not keep the pool's members: {}", member.standing().place, causes(&*error));
            }
        }
    }
}

fn set_roster(control: &Control, encoded: &[u8]) -> Result<(), Arc<ReplicaError>> {
    RosterPart::requests(encoded).try_for_each(|request| control.ask_for(&request, &Reply::RosterSet))
}
