//! `pmof pool rm`.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use pmof::{PoolError, PoolInfo, PoolOptions, PoolRefusal, PoolUrl, ReplicaError, causes};
use pmof_console::{
    output::{self, by_hand, with_mend},
    reach::ConnectArgs,
    words::parsed,
};
use pmof_pool::SetRemoval;
use pmof_pool_set::{PoolSet, PoolSetError, ReplicaSpec, check_unlinkable, set_at};
use serde::Serialize;

use super::{
    place::PoolPlace,
    removable::{self, Looked},
    sets::How,
};

#[derive(Debug, clap::Args)]
pub(crate) struct RemoveArgs {
    /// Pool, by its URL; a pool set file, whose parts are removed, on other machines too, all or none; or a pool's only part; may
    /// be given several times
    #[arg(value_name = "URL|PATH", required = true, value_parser = parsed::<PoolPlace>)]
    places: Vec<PoolPlace>,
    /// Remove members of a pool that has others too, the staging areas of asynchronous members, pools that are damaged, and what is left of pool sets whose parts are missing or damaged. Files that never belonged to the pool stay, except with `NOHDRS`, where nothing says who owns a file; parts of two pools are refused. Of several pools of targets those that are gone already are no error
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
    /// Parts that did not exist, and pools that were gone already.
    absent: Vec<String>,
    /// Files that have the names of parts but do not belong to a pool.
    left: Vec<String>,
    /// Pool set files of removed pools that still exist.
    set_files_left: Vec<String>,
}

/// What was removed, in words, or would be.
#[derive(Debug, Default)]
struct Gone {
    /// Replicas with their parts; the URL of a pool of a target.
    lines: Vec<String>,
    /// Parts that did not exist.
    absent: Vec<String>,
    /// Files that are not parts of a pool, and stay.
    left: Vec<String>,
    /// The pool set file, if it still exists.
    set_file_left: Option<String>,
}

/// Looks at all pools of targets first, and removes nothing if one of them is not there or cannot be removed; else all pools that can be removed, each completely or not at
/// all, and fails if one could not be.
pub(crate) fn run(args: &RemoveArgs, connect: ConnectArgs) -> anyhow::Result<()> {
    check_named_once(&args.places)?;
    check_apart(&args.places)?;
    let Looked { gone, seen } = removable::check_there(&args.places, args.force, connect)?;
    if !args.force {
        removable::check_no_members_left(&args.places, connect)?;
    }
    let (mut removed, mut failed, mut errors) = (Vec::new(), Vec::new(), Vec::new());
    let (mut text, mut set_files_left) = (Vec::new(), Vec::new());
    let (mut absent, mut left) = (Vec::new(), Vec::new());
    let (verb, is) = if args.how.dry_run { ("would remove", "would still be") } else { ("removed", "is still") };
    let was = if args.how.dry_run { "is" } else { "was" };
    for place in &args.places {
        let (name, outcome) = match place {
            PoolPlace::Url(url) if gone.contains(&url) => {
                text.push(format!("{url} {was} gone already\n"));
                absent.push(url.to_string());
                continue;
            }
            PoolPlace::Url(url) => {
                // By force, whatever was done with it meanwhile.
                let seen = seen.iter().find(|(seen, _)| *seen == url && !args.force).map(|(_, infos)| &infos[..]);
                (url.to_string(), remove_url(args, (url, seen), connect))
            }
            PoolPlace::Path(path) => (path.display().to_string(), remove_set(args, path, connect)),
        };
        match outcome {
            Ok(gone) => {
                text.extend(gone.lines.iter().map(|line| format!("{verb} {line}\n")));
                text.extend(gone.absent.iter().map(|part| format!("{part} {was} not there\n")));
                let hint = if gone.left.is_empty() { "`--set-file` removes it too" } else { "it names what is left" };
                for file in &gone.left {
                    errors.push(causes(&PoolSetError::NotAPart { path: file.into() }).to_string());
                }
                absent.extend(gone.absent);
                left.extend(gone.left);
                if let Some(left) = gone.set_file_left {
                    text.push(format!("the pool set file {left} {is} there ({hint})\n"));
                    set_files_left.push(left);
                }
                removed.push(name);
            }
            Err(error) => {
                errors.push(format!("{:#}", error.context(format!("cannot remove {name}"))));
                failed.push(name);
            }
        }
    }
    if args.how.json {
        output::print_json(&RemoveReport { dry_run: args.how.dry_run, removed, failed, absent, left, set_files_left })?;
    } else {
        output::print(&text.concat())?;
    }
    if errors.is_empty() { Ok(()) } else { bail!("{}", errors.join("\npmof: ")) }
}

/// Refuses a pool that is named twice: its second removal would fail.
fn check_named_once(places: &[PoolPlace]) -> anyhow::Result<()> {
    let mut seen = BTreeSet::new();
    for place in places {
        let (name, same) = match place {
            PoolPlace::Url(url) => (url.to_string(), PathBuf::from(url.to_string())),
            PoolPlace::Path(path) => {
                (path.display().to_string(), fs::canonicalize(path).unwrap_or_else(|_| path.clone()))
            }
        };
        if !seen.insert(same) {
            bail!("{name} is named twice: name each pool once; nothing was removed");
        }
    }
    Ok(())
}

/// Refuses sets that share a file: one of them would be half removed. A set that cannot be read is reported at its removal.
fn check_apart(places: &[PoolPlace]) -> anyhow::Result<()> {
    let sets = places.iter().filter_map(|place| match place {
        PoolPlace::Path(path) => set_at(path).ok(),
        PoolPlace::Url(_) => None,
    });
    let all = sets.reduce(|mut all, mut set| {
        all.replicas.append(&mut set.replicas);
        all
    });
    match all {
        Some(all) if places.len() > 1 => all.check_files().context("nothing was removed"),
        _ => Ok(()),
    }
}

/// `seen`: as it has to be still.
fn remove_url(
    args: &RemoveArgs,
    (url, seen): (&PoolUrl, Option<&[PoolInfo]>),
    connect: ConnectArgs,
) -> anyhow::Result<Gone> {
    let options = connect.pools().replica(url.to_string());
    if args.how.dry_run {
        match options.info() {
            Err(error) if args.force && is_unusable(&error) && is_listed(url, connect)? => {}
            described => drop(described.map_err(with_mend)?),
        }
    } else {
        match seen.map_or_else(|| options.remove(), |seen| options.remove_unchanged(seen)) {
            // A whole pool is removed as ever; nothing else is known of a damaged one than its name.
            Err(error) if args.force && is_unusable(&error) => {
                options.discard().map_err(|error| match by_hand(url, &of_target(url, connect)) {
                    Some(by_hand) if is_unusable(&error) => anyhow::anyhow!("{}; {by_hand}", causes(&error)),
                    _ => with_mend(error),
                })?;
            }
            Err(error) if is_unusable(&error) && is_listed(url, connect)? => {
                bail!("{}; `--force` removes what is left of it", causes(&error))
            }
            removed => removed.map_err(with_mend)?,
        }
    }
    Ok(Gone { lines: vec![url.to_string()], ..Gone::default() })
}

/// Whether a target has a pool of this name and cannot use it.
pub(super) fn is_unusable(error: &PoolError) -> bool {
    matches!(error, PoolError::Replica { source, .. } if is_of_unusable(source))
}

/// The same of a target's word.
pub(super) fn is_of_unusable(why: &ReplicaError) -> bool {
    matches!(why, ReplicaError::Refused { refusal: PoolRefusal::NotAUsablePool | PoolRefusal::UncertainState, .. })
}

/// Whether it is a pool, or was one: what is not is not listed.
pub(super) fn is_listed(url: &PoolUrl, connect: ConnectArgs) -> anyhow::Result<bool> {
    Ok(pmof::list_pools(&url.target, &of_target(url, connect))?.contains(&url.name))
}

/// How a pool's target is asked.
pub(super) fn of_target(url: &PoolUrl, connect: ConnectArgs) -> PoolOptions {
    url.source.into_iter().fold(connect.pools(), PoolOptions::source)
}

/// Removes all of a pool or nothing: only after every part and every host has been checked.
fn remove_set(args: &RemoveArgs, path: &Path, connect: ConnectArgs) -> anyhow::Result<Gone> {
    let set = set_at(path)?;
    let removal = SetRemoval::prepare(&set, args.force, &connect.remotes())?;
    let is_set_file = PoolSet::is_set_file(path)?;
    if args.set_file && is_set_file {
        check_unlinkable(&std::path::absolute(path)?)?;
    }
    let gone = Gone::of(path, &set, is_set_file, args.set_file, &removal);
    if args.how.dry_run {
        return Ok(gone);
    }
    removal.carry_out()?;
    if args.set_file && is_set_file && gone.left.is_empty() {
        fs::remove_file(path).with_context(|| format!("its replicas are removed, but {} is not", path.display()))?;
    }
    Ok(gone)
}

impl Gone {
    /// What is removed with the set at `path`, which may be a pool's only part. The set file stays if one of its files does.
    fn of(path: &Path, set: &PoolSet, is_set_file: bool, with_set_file: bool, removal: &SetRemoval) -> Self {
        let texts = |paths: &[PathBuf]| paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        let mut gone = Self::default();
        for (index, replica) in set.replicas.iter().enumerate() {
            match (replica, removal.local(index)) {
                (ReplicaSpec::Remote(remote), _) => {
                    let (set, node) = (remote.set.display(), &remote.node);
                    gone.lines
                        .push(format!("replica {index}: the parts of {set} on {node}, where the pool set file stays"));
                }
                (ReplicaSpec::Local(_), Some(found)) => {
                    let parts: Vec<_> = found.parts().map(|part| part.display().to_string()).collect();
                    let name = if is_set_file { format!("replica {index}: ") } else { String::new() };
                    gone.lines.extend((!parts.is_empty()).then(|| name + &parts.join(", ")));
                    gone.absent.extend(texts(found.absent()));
                    gone.left.extend(texts(found.left()));
                }
                (ReplicaSpec::Local(_), None) => {}
            }
        }
        let (is_removed, set_file) = (with_set_file && is_set_file && gone.left.is_empty(), path.display().to_string());
        gone.lines.extend(is_removed.then(|| format!("the pool set file {set_file}")));
        gone.set_file_left = (is_set_file && !is_removed).then_some(set_file);
        gone
    }
}
