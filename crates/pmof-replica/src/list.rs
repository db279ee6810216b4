//! Which pools a target has.

use std::sync::Arc;

use pmof_control::{PoolName, Reply, Request};

use crate::{PoolError, PoolOptions, ReplicaError, TargetUrl};

/// Names taken from one target, at most: far more than a directory of pools holds, and little memory. A target that
/// answers without an end meets it.
pub const LIST_MAX_NAMES: usize = 1 << 20;

/// The names of all pools of a target, or of a directory of this machine, in order. Of `options` only the times, the waiting and the source
/// matter.
///
/// Each page is a look of its own: a pool made or removed meanwhile may be in the list or not.
pub fn list_pools(target: &TargetUrl, options: &PoolOptions) -> Result<Vec<PoolName>, PoolError> {
    let failed = |error| PoolError::Target { target: Box::new(target.clone()), source: Arc::new(error) };
    let site = options.reach.site_at(&mut options.reach.peers(), target, None, None).map_err(failed)?;
    let mut names: Vec<PoolName> = Vec::new();
    loop {
        let reply = site.ask(&Request::List { after: names.last().cloned() }).map_err(failed)?;
        let Reply::List { names: page, more } = reply else { return Err(failed(ReplicaError::Unexpected)) };
        let goes_on = names.last().into_iter().chain(&page).is_sorted_by(|before, after| before < after);
        if !goes_on || (more && page.is_empty()) || names.len() + page.len() > LIST_MAX_NAMES {
            return Err(failed(ReplicaError::Unexpected));
        }
        names.extend(page);
        if !more {
            return Ok(names);
        }
    }
}
