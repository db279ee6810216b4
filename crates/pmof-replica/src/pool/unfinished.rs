//! What a program leaves that dies while it makes a pool: some of the replicas, without the others.

use std::sync::Arc;

use pmof_control::{MeantReplica, PoolInfo, Request, Roster};

use super::rosters::hear;
use crate::{PoolUrl, reach::Reach};

/// Removes the replicas of pools that were never there, if those are all that there is at `urls`. Returns whether it removed any. A pool is there once all of its
/// replicas are made and know of each other, which is before anything can be acknowledged.
pub(super) fn remove(reach: &Reach, urls: &[Arc<PoolUrl>]) -> bool {
    let (peers, mut found) = (reach.peers(), Vec::new());
    for url in urls {
        let Ok(site) = reach.site(&peers, url) else { return false };
        match hear(&site, url) {
            Ok((info, roster)) if is_unfinished(&info, roster.as_ref()) => found.push((site, url, info)),
            Err(error) if error.is_absent() => {}
            _ => return false,
        }
    }
    // As many as were to be made have been made: an opening says what is wrong with these.
    if found.is_empty() || found.len() == urls.len() && found.iter().all(|(.., info)| is_same(info, &found[0].2)) {
        return false;
    }
    let mut has_removed = false;
    for (site, url, info) in &found {
        // Another program may have opened it since it was looked at, and is the pool's only one now.
        let meant = MeantReplica { uuid: info.header.replica_uuid, epoch: Some(info.state.epoch.id) };
        let remove = Request::Remove { name: url.name.clone(), meant: Some(meant) };
        if site.ask(&remove).is_ok() {
            log::info!("{url} was left by a program that died while it made the pool, and is removed");
            has_removed = true;
        }
    }
    has_removed
}

fn is_same(info: &PoolInfo, first: &PoolInfo) -> bool {
    info.header.pool_uuid == first.header.pool_uuid
}

/// Whether a replica is as it was made: nobody has it open, nothing was acknowledged in it, and it knows of no others.
fn is_unfinished(info: &PoolInfo, roster: Option<&Roster>) -> bool {
    let state = &info.state;
    let is_first = state.opening == 1 && state.ancestors.is_empty() && state.is_confirmed && !state.is_behind;
    let has_others = info.header.replica_count > 1;
    let is_blank = roster.is_some_and(|roster| *roster == Roster::made(info.header.replica_count));
    is_first && state.is_open && state.mark == 0 && has_others && is_blank && info.open_by.is_none()
}
