//! Whether a pool was made of an asynchronous member, of which those that it followed may know nothing.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::Instant,
};

use pmof_control::{Reply, Request, Role, Roster, RosterMember};
use pmof_replication::opening::{limits::PROMOTED_WAIT, was_promoted};
use uuid::Uuid;

use super::rosters::hear;
use crate::{PoolUrl, ReplicaError, TargetUrl, reach::Reach};

/// A pool that was made of an asynchronous member.
#[derive(Debug)]
pub(super) struct Promoted {
    pub(super) url: Arc<PoolUrl>,
    pub(super) roster: Roster,
}

/// Those of the asynchronous members of `roster` that were promoted since, by their own word, which is not waited for long. Those at the addresses `asked` are not asked again, nor any where this process
/// would have to start a program or open a file.
pub(super) fn promoted(reach: &Reach, roster: &Roster, uuid: Uuid, asked: &[Arc<PoolUrl>]) -> Vec<Promoted> {
    let members = roster.members.iter().filter(|member| member.role == Role::Asynchronous);
    let places = members.filter_map(|member| Some((member.clone(), member.url.parse::<PoolUrl>().ok()?)));
    let may_be_asked = |(_, url): &(RosterMember, PoolUrl)| {
        matches!(url.target, TargetUrl::Address(_)) && asked.iter().all(|asked| **asked != *url)
    };
    let (told, said) = mpsc::channel();
    for (member, url) in places.filter(may_be_asked) {
        let (connect_timeout, loss_timeout) =
            (reach.connect_timeout.min(PROMOTED_WAIT), reach.loss_timeout.min(PROMOTED_WAIT));
        let (reach, told) = (Reach { connect_timeout, loss_timeout, ..reach.clone() }, told.clone());
        let ask = move || {
            if let Ok(Some(promoted)) = look(&reach, &Arc::new(url), (uuid, &member)) {
                // Whoever asked may have gone on.
                let _ = told.send(promoted);
            }
        };
        if let Err(error) = thread::Builder::new().name("pmof-pool-hear".to_owned()).spawn(ask) {
            log::warn!("no thread to ask an asynchronous member could be started: {error}");
        }
    }
    drop(told);
    let until = Instant::now() + PROMOTED_WAIT;
    let next = || said.recv_timeout(until.saturating_duration_since(Instant::now())).ok();
    std::iter::from_fn(next).filter(|promoted| promoted.roster.age() > roster.age()).collect()
}

/// What is at an address of an asynchronous member, if it is that one and was promoted.
pub(super) fn look(
    reach: &Reach,
    url: &Arc<PoolUrl>,
    (uuid, member): (Uuid, &RosterMember),
) -> Result<Option<Promoted>, ReplicaError> {
    let site = reach.site(&reach.peers(), url)?;
    let Reply::Info(info) = site.ask_when_free(&Request::Info { name: url.name.clone() })? else {
        return Err(ReplicaError::Unexpected);
    };
    let (index, replica_uuid) = (info.header.replica_index, info.header.replica_uuid);
    if info.header.pool_uuid != uuid || !member.is(index, replica_uuid) || !was_promoted(&info) {
        return Ok(None);
    }
    let (_, roster) = hear(&site, url)?;
    let is_asynchronous = |member: &RosterMember| member.role == Role::Asynchronous && member.is(index, replica_uuid);
    // One that was removed since leads on to those that its pool has now.
    let roster = roster.filter(|roster| !roster.members.iter().any(is_asynchronous));
    Ok(roster.map(|roster| Promoted { url: Arc::clone(url), roster }))
}
