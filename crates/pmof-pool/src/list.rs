//! Which pools a target has, and how it is.

use std::sync::Arc;

use pmof_control::{PoolInfo, PoolName, PoolRefusal, Reply, Request, TargetStatus};

use crate::{PoolError, PoolOptions, ReplicaError, TargetUrl, site::Site};

/// Names taken from one target, at most: far more than a directory of pools holds, and little memory. A target that
/// answers without an end meets it.
pub const LIST_MAX_NAMES: usize = 1 << 20;

/// A pool of a target, and what the target says of it or why it cannot be used.
pub type ListedPool = (PoolName, Result<Box<PoolInfo>, ReplicaError>);

/// The names of all pools of a target, or of a directory of this machine, in order. Of `options` only the times, the waiting and the source
/// matter.
///
/// Each page is a look of its own: a pool made or removed meanwhile may be in the list or not.
pub fn list_pools(target: &TargetUrl, options: &PoolOptions) -> Result<Vec<PoolName>, PoolError> {
    let site = options.reach.site_at(&options.reach.peers(), target, None, None);
    site.and_then(|site| names(&site)).map_err(|error| failed(target, error))
}

/// The same with what the target says of each. A pool that is removed meanwhile is left out.
pub fn describe_pools(target: &TargetUrl, options: &PoolOptions) -> Result<Vec<ListedPool>, PoolError> {
    let describe = || {
        let site = options.reach.site_at(&options.reach.peers(), target, None, None)?;
        let names = names(&site)?;
        let (mut pools, mut rest) = (Vec::with_capacity(names.len()), &names[..]);
        while !rest.is_empty() {
            let infos = match site.ask(&Request::infos_page(rest)) {
                Ok(Reply::Infos(infos)) if (1..=rest.len()).contains(&infos.len()) => infos,
                Ok(_) => return Err(ReplicaError::Unexpected),
                Err(error) => return Err(error),
            };
            let (told, others) = rest.split_at(infos.len());
            rest = others;
            for (name, info) in told.iter().zip(infos) {
                match info.map_err(|(code, text)| (PoolRefusal::from_code(code), text)) {
                    Ok(info) if info.name == *name => pools.push((name.clone(), Ok(Box::new(info)))),
                    Ok(_) => return Err(ReplicaError::Unexpected),
                    Err((PoolRefusal::NotFound, _)) => {}
                    Err((refusal, text)) => pools.push((name.clone(), Err(ReplicaError::Refused { refusal, text }))),
                }
            }
        }
        Ok(pools)
    };
    describe().map_err(|error| failed(target, error))
}

/// How a target is. A directory of this machine has none, and refuses.
pub fn target_status(target: &TargetUrl, options: &PoolOptions) -> Result<TargetStatus, PoolError> {
    let ask = || match options.reach.site_at(&options.reach.peers(), target, None, None)?.ask(&Request::Status)? {
        Reply::Status(status) => Ok(*status),
        _ => Err(ReplicaError::Unexpected),
    };
    ask().map_err(|error| failed(target, error))
}

fn failed(target: &TargetUrl, error: ReplicaError) -> PoolError {
    PoolError::Target { target: Box::new(target.clone()), source: Arc::new(error) }
}

fn names(site: &Site) -> Result<Vec<PoolName>, ReplicaError> {
    let mut names: Vec<PoolName> = Vec::new();
    loop {
        let reply = site.ask(&Request::List { after: names.last().cloned() })?;
        let Reply::List { names: page, more } = reply else { return Err(ReplicaError::Unexpected) };
        let goes_on = names.last().into_iter().chain(&page).is_sorted_by(|before, after| before < after);
        if !goes_on || (more && page.is_empty()) || names.len() + page.len() > LIST_MAX_NAMES {
            return Err(ReplicaError::Unexpected);
        }
        names.extend(page);
        if !more {
            return Ok(names);
        }
    }
}
