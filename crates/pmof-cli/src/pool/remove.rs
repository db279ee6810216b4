//! `pmof pool rm`.

use std::{fs, path::Path};

use anyhow::{Context, bail};
use pmof::{PoolUrl, SetRemoval};
use pmof_pool::{PoolSet, ReplicaSpec};
use serde::Serialize;

use super::{
    place::{PoolPlace, set_at},
    sets::How,
};
use crate::{
    output::{self, describe, with_mend},
    reach::ConnectArgs,
};

#[derive(Debug, clap::Args)]
pub(crate) struct RemoveArgs {
    /// Pool, by its URL; a pool set file, whose parts are removed, on other machines too, all or none; or a pool's only part; may
    /// be given several times
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
    /// Those of pools that were removed, and are still there.
    set_files_left: Vec<String>,
}

/// What was removed, in words, or would be.
#[derive(Debug, Default)]
struct Gone {
    /// Replicas with their parts; the URL of a pool of a target.
    lines: Vec<String>,
    /// The pool set file that is still there.
    set_file_left: Option<String>,
}

/// Removes all pools that can be removed, each whole or not at all, and fails where one could not be.
pub(crate) fn run(args: &RemoveArgs, connect: ConnectArgs) -> anyhow::Result<()> {
    let (mut removed, mut failed, mut errors) = (Vec::new(), Vec::new(), Vec::new());
    let (mut text, mut set_files_left) = (Vec::new(), Vec::new());
    let (verb, is) = if args.how.dry_run { ("would remove", "would still be") } else { ("removed", "is still") };
    for place in &args.places {
        let (name, outcome) = match place {
            PoolPlace::Url(url) => (url.to_string(), remove_url(args, url, connect)),
            PoolPlace::Path(path) => (path.display().to_string(), remove_set(args, path, connect)),
        };
        match outcome {
            Ok(gone) => {
                text.extend(gone.lines.iter().map(|line| format!("{verb} {line}\n")));
                if let Some(left) = gone.set_file_left {
                    text.push(format!("the pool set file {left} {is} there (`--set-file` removes it too)\n"));
                    set_files_left.push(left);
                }
                removed.push(name);
            }
            Err(error) => {
                errors.push(describe(&error.context(format!("cannot remove {name}"))));
                failed.push(name);
            }
        }
    }
    if args.how.json {
        output::print_json(&RemoveReport { dry_run: args.how.dry_run, removed, failed, set_files_left })?;
    } else {
        output::print(&text.concat())?;
    }
    if errors.is_empty() { Ok(()) } else { bail!("{}", errors.join("\npmof: ")) }
}

fn remove_url(args: &RemoveArgs, url: &PoolUrl, connect: ConnectArgs) -> anyhow::Result<Gone> {
    let options = connect.pools().replica(url.to_string());
    if args.how.dry_run {
        options.info().map_err(with_mend)?;
    } else {
        options.remove().map_err(with_mend)?;
    }
    Ok(Gone { lines: vec![url.to_string()], ..Gone::default() })
}

/// All of a pool, or nothing: it goes only when every part and every host has been looked at.
fn remove_set(args: &RemoveArgs, path: &Path, connect: ConnectArgs) -> anyhow::Result<Gone> {
    let set = set_at(path)?;
    let removal = SetRemoval::prepare(&set, args.force, &connect.remotes())?;
    let is_set_file = PoolSet::is_set_file(path)?;
    let gone = Gone::of(path, &set, is_set_file, args.set_file);
    if args.how.dry_run {
        return Ok(gone);
    }
    removal.carry_out()?;
    if args.set_file && is_set_file {
        fs::remove_file(path).with_context(|| format!("its replicas are removed, and {} is not", path.display()))?;
    }
    Ok(gone)
}

impl Gone {
    /// What goes with the set at `path`, which may be a pool's only part.
    fn of(path: &Path, set: &PoolSet, is_set_file: bool, with_set_file: bool) -> Self {
        let replica = |(index, replica): (usize, &ReplicaSpec)| match replica {
            ReplicaSpec::Local(parts) if is_set_file => {
                let parts: Vec<_> = parts.iter().map(|part| part.path.display().to_string()).collect();
                format!("replica {index}: {}", parts.join(", "))
            }
            ReplicaSpec::Local(_) => path.display().to_string(),
            ReplicaSpec::Remote(remote) => {
                let set = remote.set.display();
                format!("replica {index}: the parts of {set} on {}, where the pool set file stays", remote.node)
            }
        };
        let mut lines: Vec<_> = set.replicas.iter().enumerate().map(replica).collect();
        let (is_removed, set_file) = (with_set_file && is_set_file, path.display().to_string());
        lines.extend(is_removed.then(|| format!("the pool set file {set_file}")));
        Self { lines, set_file_left: (is_set_file && !is_removed).then_some(set_file) }
    }
}
