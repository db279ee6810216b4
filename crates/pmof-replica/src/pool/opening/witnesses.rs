//! Members that keep the pool's epochs and no data, as an opening finds them.

use std::sync::Arc;

use pmof_control::Roster;

use super::{Failed, Opened, Opening, place};
use crate::{
    PoolError, ReplicaError,
    electorate::Electorate,
    lineage::Apart,
    pool::opened::{Identity, check_size, none_opened},
};

impl Opened {
    /// Why it is not in sync with the others.
    pub(super) fn why_apart(&self, apart: Apart, made: u16) -> ReplicaError {
        if self.is_witness { self.as_witness() } else { ReplicaError::of(apart, made) }
    }

    /// That it is a witness, and where those are that have the pool's bytes.
    pub(super) fn as_witness(&self) -> ReplicaError {
        let with_data = self.roster.iter().flat_map(Roster::with_data);
        let members = with_data.filter(|member| !member.url.is_empty()).map(|member| member.url.clone()).collect();
        ReplicaError::Witness { index: self.index, members }
    }
}

impl Opening {
    /// Tells witnesses from replicas, by the pool's roster. Returns those that have the size of neither.
    pub(super) fn find_witnesses(
        opened: &mut Vec<Opened>,
        electorate: &Electorate,
        identity: &Identity,
    ) -> Vec<Failed> {
        let mut failed = Vec::new();
        for mut opening in std::mem::take(opened) {
            opening.is_witness = electorate.is_witness(opening.index, opening.replica_uuid);
            match check_size((opening.size_bytes, identity.uuid), identity, opening.is_witness) {
                Ok(()) => opened.push(opening),
                Err(error) => {
                    let Opened { position, site, replica_uuid, .. } = opening;
                    failed.push(Failed { position, site, open: Some(replica_uuid), error });
                }
            }
        }
        failed
    }

    /// That witnesses answer and no member that has data.
    pub(super) fn witnesses_alone(&self, opened: &[Opened], failed: &[Failed]) -> Option<PoolError> {
        let are_alone = !opened.is_empty() && opened.iter().all(|opened| opened.is_witness);
        if !are_alone || failed.iter().any(|failed| failed.error.is_busy()) {
            return None;
        }
        let mut all: Vec<_> =
            opened.iter().map(|opened| (place(&self.urls[opened.position]), Arc::new(opened.as_witness()))).collect();
        all.append(&mut self.told_left_out());
        // Those that answered wrongly are not lost, and are told by themselves.
        failed.is_empty().then(|| none_opened(&all))
    }
}
