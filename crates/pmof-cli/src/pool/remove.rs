//! `pmof pool rm`.

use std::{fs, path::Path};

use anyhow::{Context, anyhow, bail};
use pmof::{Pool, PoolUrl};
use pmof_pool::{PoolSet, RemoteReplicas as _, ReplicaSpec};
use serde::Serialize;

use super::{
    place::{PoolPlace, set_at},
    remote::OverSsh,
    sets::How,
};
use crate::output::{self, describe, with_mend};

#[derive(Debug, clap::Args)]
pub(crate) struct RemoveArgs {
    /// Pool, by its URL; a pool set file, whose parts are removed, on other machines too; or a pool's only part; may be given
    /// several times
    #[arg(value_name = "URL|PATH", required = true)]
    places: Vec<PoolPlace>,
    /// Remove what is left of pools whose parts are missing or damaged; of pool set files only
    #[arg(long)]
    force: bool,
    /// Remove the pool set files of this machine too
    #[arg(long)]
    set_file: bool,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, Serialize)]
struct RemoveReport {
    dry_run: bool,
    removed: Vec<String>,
    failed: Vec<String>,
}

/// Removes all that can be removed, and fails where one could not be.
pub(crate) fn run(args: &RemoveArgs) -> anyhow::Result<()> {
    let (mut removed, mut failed, mut errors) = (Vec::new(), Vec::new(), Vec::new());
    for place in &args.places {
        let (name, outcome) = match place {
            PoolPlace::Url(url) => (url.to_string(), remove_url(args, url)),
            PoolPlace::Path(path) => (path.display().to_string(), remove_set(args, path)),
        };
        match outcome {
            Ok(()) => removed.push(name),
            Err(error) => {
                errors.push(describe(&error.context(format!("cannot remove {name}"))));
                failed.push(name);
            }
        }
    }
    if args.how.json {
        output::print_json(&RemoveReport { dry_run: args.how.dry_run, removed, failed })?;
    } else {
        let verb = if args.how.dry_run { "would remove " } else { "removed " };
        output::print(&removed.iter().map(|name| [verb, name, "\n"].concat()).collect::<String>())?;
    }
    if errors.is_empty() { Ok(()) } else { bail!("{}", errors.join("\npmof: ")) }
}

fn remove_url(args: &RemoveArgs, url: &PoolUrl) -> anyhow::Result<()> {
    let options = Pool::options().replica(url.to_string());
    if args.how.dry_run {
        return options.info().map(drop).map_err(with_mend);
    }
    options.remove().map_err(with_mend)
}

fn remove_set(args: &RemoveArgs, path: &Path) -> anyhow::Result<()> {
    let set = set_at(path)?;
    if args.how.dry_run {
        return check_parts(args, &set);
    }
    for (index, replica) in set.replicas.iter().enumerate() {
        let failed = || format!("replica {index}");
        match replica {
            ReplicaSpec::Local(parts) => pmof_pool::remove(parts, args.force).with_context(failed)?,
            ReplicaSpec::Remote(remote) => {
                OverSsh::new().remove(remote, args.force).map_err(|error| anyhow!("{error}")).with_context(failed)?;
            }
        }
    }
    if args.set_file && PoolSet::is_set_file(path)? {
        fs::remove_file(path)?;
    }
    Ok(())
}

fn check_parts(args: &RemoveArgs, set: &PoolSet) -> anyhow::Result<()> {
    let parts = set.replicas.iter().filter_map(ReplicaSpec::local).flatten();
    match parts.into_iter().find(|part| !part.path.exists()) {
        Some(part) if !args.force => {
            bail!("the part {} is missing; `--force` removes what is left", part.path.display())
        }
        _ => Ok(()),
    }
}
