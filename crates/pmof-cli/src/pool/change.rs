//! `pmof pool add`, `remove` and `replace`.

use std::{thread, time::Duration};

use anyhow::{Context, anyhow, bail};
use pmof::{
    AsynchronousState, ChangeError, Pool, PoolError, PoolOptions, PoolStatus, PoolUrl, ReplicaState, ReplicaStatus,
    causes,
};
use pmof_console::{
    output::{self, by_hand, say, shell_word, with_mend},
    reach::ConnectArgs,
    words::{Level, parsed},
};
use serde::Serialize;

use self::{force::open_without, leaving::what_stays};
use super::{
    remove::{is_unusable, of_target},
    status::ForcedReport,
};
use crate::{
    copy::progress::Progress,
    failure::{self, Differs},
};

mod domains;
mod force;
mod leaving;

/// How often it is looked how far a new member has come.
const LOOK: Duration = Duration::from_millis(50);
/// How often in a row it may be found lost.
const LOST_LOOKS: usize = 200;
/// The same of one that is there, and cannot be used.
const UNFIT_LOOKS: usize = 40;

/// Make another replica of a pool, on a target where it has none, and wait until it is in sync
///
/// The pool must be closed, and is open for writing meanwhile; a program that writes it adds members by itself. With one member more, more members are needed
/// to open the pool: 2 of 3, 3 of 4, 3 of 5. The members in sync are compared first, and what most of them say is wrong on another is repaired. If this is interrupted, the new member catches up when the pool is opened for writing next.
#[derive(Debug, clap::Args)]
pub(super) struct AddArgs {
    #[command(flatten)]
    pool: Of,
    /// The new replica: `tcp://HOST[:PORT]/POOL` and the like; no pool of that name may exist there
    #[arg(value_name = "NEW", value_parser = parsed::<PoolUrl>)]
    new: PoolUrl,
    /// An asynchronous member: it follows from afar, at consistency points, no write waits for it, and it counts for nothing. Its target needs room for the
    /// pool twice
    #[arg(long = "async", conflicts_with = "is_witness")]
    is_asynchronous: bool,
    /// A witness: it keeps who is in sync, and none of the bytes. A pool of two and a witness opens and goes on when any one of the three is lost. Choose a target on a
    /// third machine
    #[arg(long = "witness")]
    is_witness: bool,
    /// Have it keep the last N points that the program names, to go back to: for what is overwritten since, its target needs room for the pool once more
    #[arg(long, value_name = "COUNT", requires = "is_asynchronous", value_parser = clap::value_parser!(u16).range(..=64))]
    keep_points: Option<u16>,
    /// A spare: nothing is made there now, but that there is room is tried. A program that writes the pool makes a member there by itself, in the place of one that it has
    /// missed for long
    #[arg(long = "spare", conflicts_with_all = ["is_witness", "is_asynchronous"])]
    is_spare: bool,
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    how: How,
}

/// Make a replica of a pool no member any more, a lost one too
///
/// It counts for nothing from then on, also when it comes back. What it has stays there; `pmof pool rm` removes that. The pool must be closed; a program that
/// writes it removes members by itself.
#[derive(Debug, clap::Args)]
pub(super) struct RemoveArgs {
    #[command(flatten)]
    pool: Of,
    /// The member, by its URL, or by its number as `pmof pool status` tells it
    #[arg(value_name = "OLD")]
    old: String,
    #[command(flatten)]
    without: Without,
    #[command(flatten)]
    how: How,
}

/// Make another replica of a pool in the place of one that is lost or is to go
///
/// The members in sync are compared first, and what most of them say is wrong on another is repaired. The new one is added; the old one is removed when that is in
/// sync, or at once if it is lost. After an interruption the same command goes on. The pool must be
/// closed; a program that writes it replaces members by itself.
#[derive(Debug, clap::Args)]
pub(super) struct ReplaceArgs {
    #[command(flatten)]
    pool: Of,
    /// The member, by its URL, or by its number as `pmof pool status` tells it
    #[arg(value_name = "OLD")]
    old: String,
    /// The new replica: `tcp://HOST[:PORT]/POOL` and the like; no pool of that name may exist there
    #[arg(value_name = "NEW", value_parser = parsed::<PoolUrl>)]
    new: PoolUrl,
    #[command(flatten)]
    without: Without,
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    how: How,
}

/// Say that you know that a pool was forced: nothing shows it from then on
///
/// A pool that was opened with fewer members than are safe, as `pmof pool replace --force` and `remove --force` do, says so in `pmof pool status` until this. The pool must be closed;
/// a program that writes it clears that by itself.
#[derive(Debug, clap::Args)]
pub(super) struct ClearArgs {
    #[command(flatten)]
    pool: Of,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, Serialize)]
struct ClearReport {
    /// What was shown until now; null where nothing was.
    cleared: Option<ForcedReport>,
}

#[derive(Debug, clap::Args)]
struct Without {
    /// Go on with MEMBER alone where the pool has two members, the other one is lost for good, and nothing says that MEMBER has all that was acknowledged: what
    /// only the other one has is gone
    #[arg(long)]
    force: bool,
}

#[derive(Debug, clap::Args)]
struct Source {
    /// Do not compare the members in sync before one of them is copied from
    #[arg(long)]
    no_verify: bool,
}

#[derive(Debug, clap::Args)]
struct Of {
    /// A member of the pool: `tcp://HOST[:PORT]/POOL` and the like; the others are found by it
    #[arg(value_name = "MEMBER", value_parser = parsed::<PoolUrl>)]
    member: PoolUrl,
}

#[derive(Debug, clap::Args)]
struct How {
    /// What the bytes of each member are to survive at least, the new one's too
    #[arg(long, value_enum, value_name = "LEVEL", default_value = "process-crash")]
    durability: Level,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    added: Option<String>,
    removed: Option<String>,
    /// Members that the pool has now and that have its data.
    made_count: usize,
    in_sync_count: usize,
    witness_count: usize,
}

pub(super) fn add(args: &AddArgs, connect: ConnectArgs) -> anyhow::Result<()> {
    let options = options(&args.pool, &args.how, connect);
    let pool = opened(&args.keep_points.into_iter().fold(options, PoolOptions::keep_points))?;
    let added = match args {
        AddArgs { is_witness: true, .. } => add_witness(&pool, args),
        AddArgs { is_spare: true, .. } => add_spare(&pool, args),
        _ => compare(&pool, args.source.no_verify, &args.how).and_then(|()| {
            let add = if args.is_asynchronous { add_asynchronous } else { add_replica };
            add(&pool, args, connect)
        }),
    };
    closed_unless(&pool, added)?;
    end(&pool, (Some(args.new.to_string()), None), &args.how)
}

/// Closes the pool in order where it was not changed as it was to be: it is as it was, or as far as the change has come.
fn closed_unless<T>(pool: &Pool, changed: anyhow::Result<T>) -> anyhow::Result<T> {
    // The first failure is the one to tell of.
    changed.inspect_err(|_| drop(pool.close()))
}

/// Compares the members in sync before a new one is copied from one of them, and repairs what most of them say is wrong on another: else it would get
/// what rotted on that one.
fn compare(pool: &Pool, no_verify: bool, how: &How) -> anyhow::Result<()> {
    let in_sync = pool.status().map_err(with_mend)?.in_sync_count();
    if no_verify || in_sync < 2 {
        return Ok(());
    }
    let progress = Progress::new("comparing", pool.len_bytes(), !how.json);
    let report = pool.scrub(&mut |bytes| progress.set(bytes)).map_err(with_mend);
    drop(progress);
    let report = report.context("cannot compare the members in sync; nothing was changed")?;
    for repaired in &report.repaired {
        failure::warn(&format!(
            "repaired bytes {}..{} of {}, which differed from the others",
            repaired.range.start, repaired.range.end, repaired.replica
        ));
    }
    let Some(first) = report.undecided.first() else { return Ok(()) };
    Err(Differs::error(format!(
        "the {in_sync} members in sync differ in {} pages, first at byte {}, and nothing says which is right; nothing was changed: find out which one is \
         (pmof pool check, pmof cp), and remove the other (pmof pool remove), or have one copied as it is (--no-verify)",
        report.undecided.len(),
        first.start
    )))
}

fn add_replica(pool: &Pool, args: &AddArgs, connect: ConnectArgs) -> anyhow::Result<()> {
    match pool.add(&args.new.to_string()) {
        // What an interrupted addition has begun.
        Err(ChangeError::AlreadyMember { .. }) if is_out_of_sync(pool, &args.new)? => {}
        added => added.map_err(told)?,
    }
    wait(pool, &args.new, &args.how, connect)?;
    domains::warn_of_shared(&pool.status().map_err(with_mend)?, &args.new.to_string());
    Ok(())
}

fn add_asynchronous(pool: &Pool, args: &AddArgs, connect: ConnectArgs) -> anyhow::Result<()> {
    let url = args.new.to_string();
    let state = || -> anyhow::Result<Option<AsynchronousState>> {
        let mut members = pool.status().map_err(with_mend)?.asynchronous.into_iter();
        Ok(members.find(|member| member.replica.to_string() == url).map(|member| member.state))
    };
    match pool.add_asynchronous(&url) {
        // What an interrupted addition has begun.
        Err(ChangeError::AlreadyMember { .. }) if state()?.is_some() => {}
        added => added.map_err(told)?,
    }
    let mut lost_looks = 0;
    loop {
        match state()? {
            None | Some(AsynchronousState::Following) => return Ok(()),
            // Whatever is missing or unfit there, nobody makes it again.
            Some(AsynchronousState::Lost(why)) if !why.is_out_of_reach() && lost_looks >= UNFIT_LOOKS => {
                let anew = anew(pool, &args.new, "add --async", connect);
                bail!("{url} is an asynchronous member already, and of no use: {}; {anew}", causes(&*why));
            }
            Some(AsynchronousState::Lost(why)) if lost_looks >= LOST_LOOKS => {
                bail!(
                    "{url} is an asynchronous member, and lost: {}; it is copied to when it is back and the pool is open",
                    causes(&*why)
                );
            }
            Some(AsynchronousState::Lost(_)) => lost_looks += 1,
            Some(_) => lost_looks = 0,
        }
        thread::sleep(LOOK);
    }
}

fn add_witness(pool: &Pool, args: &AddArgs) -> anyhow::Result<()> {
    let url = args.new.to_string();
    let added = pool.add_witness(&url);
    let mut status = pool.status().map_err(with_mend)?;
    let of = |status: &PoolStatus| status.witnesses.iter().find(|witness| witness.replica.to_string() == url).cloned();
    match added {
        // By the same command before.
        Err(ChangeError::AlreadyMember { .. }) if of(&status).is_some() => {}
        added => added.map_err(told)?,
    }
    let mut lost_looks = 0;
    while let Some(ReplicaState::Lost(why)) = of(&status).map(|witness| witness.state) {
        lost_looks += 1;
        if lost_looks > LOST_LOOKS {
            bail!(
                "{url} is a witness, and lost: {}; it counts again when it is back; if it is gone for good, remove it (pmof pool remove) before you add it again",
                causes(&*why)
            );
        }
        thread::sleep(LOOK);
        status = pool.status().map_err(with_mend)?;
    }
    domains::warn_of_shared(&status, &url);
    Ok(())
}

fn add_spare(pool: &Pool, args: &AddArgs) -> anyhow::Result<()> {
    let url = args.new.to_string();
    let added = pool.add_spare(&url);
    let is_known =
        || pool.status().is_ok_and(|status| status.spares.iter().any(|spare| spare.replica.to_string() == url));
    match added {
        // By the same command before.
        Err(ChangeError::AlreadyMember { .. }) if is_known() => Ok(()),
        added => added.map_err(told),
    }
}

pub(super) fn remove(args: &RemoveArgs, connect: ConnectArgs) -> anyhow::Result<()> {
    let (pool, forced) = open_without(&args.pool, (&args.old, None), &args.without, &args.how, connect)?;
    let what_stays = what_stays(&options(&args.pool, &args.how, connect), &args.old);
    forced.told(closed_unless(&pool, pool.remove(&args.old).map_err(told)))?;
    end(&pool, (None, Some((args.old.clone(), what_stays))), &args.how)
}

pub(super) fn replace(args: &ReplaceArgs, connect: ConnectArgs) -> anyhow::Result<()> {
    let (pool, forced) = open_without(&args.pool, (&args.old, Some(&args.new)), &args.without, &args.how, connect)?;
    forced.told(closed_unless(&pool, compare(&pool, args.source.no_verify, &args.how)))?;
    let what_stays = what_stays(&options(&args.pool, &args.how, connect), &args.old);
    let replaced = pool.replace(&args.old, &args.new.to_string()).map_err(told);
    let replaced = replaced.map_err(|error| match error.downcast_ref() {
        Some(ChangeError::ItsOwnPlace { .. }) => {
            let witnesses = pool.status().map(|status| status.witnesses).unwrap_or_default();
            let is_witness = witnesses.iter().any(|witness| witness.replica.to_string() == args.new.to_string());
            let anew = anew(&pool, &args.new, if is_witness { "add --witness" } else { "add" }, connect);
            anyhow!("{} is the member that is to be replaced: name another address; {anew}", args.new)
        }
        _ => error,
    });
    let waited = replaced.and_then(|replaced| wait(&pool, &args.new, &args.how, connect).map(|()| replaced));
    let (new, old) = (args.new.to_string(), args.old.clone());
    if forced.told(closed_unless(&pool, waited))? {
        domains::warn_of_shared(&pool.status().map_err(with_mend)?, &new);
        return end(&pool, (Some(new), Some((old, what_stays))), &args.how);
    }
    failure::warn(&format!("{new} is a member already, and {old} is none: nothing was replaced"));
    end(&pool, (None, None), &args.how)
}

pub(super) fn clear(args: &ClearArgs, connect: ConnectArgs) -> anyhow::Result<()> {
    let pool = open(&args.pool, &args.how, connect)?;
    let cleared = closed_unless(&pool, pool.clear_forced().map_err(told))?.as_ref().map(ForcedReport::new);
    pool.close().map_err(with_mend).context("cannot close the pool")?;
    if args.how.json {
        return output::print_json(&ClearReport { cleared });
    }
    match cleared {
        Some(forced) => say!("known, and no longer shown: {forced}"),
        None => say!("the pool was not forced"),
    }
    Ok(())
}

fn options(of: &Of, how: &How, connect: ConnectArgs) -> PoolOptions {
    connect.pools().replica(of.member.to_string()).require(how.durability.durability())
}

fn open(of: &Of, how: &How, connect: ConnectArgs) -> anyhow::Result<Pool> {
    opened(&options(of, how, connect))
}

fn opened(options: &PoolOptions) -> anyhow::Result<Pool> {
    options.open().map_err(|error| {
        let is_busy = error.is_busy();
        let error = with_mend(error).context("cannot open the pool");
        if is_busy {
            return anyhow!(
                "{error:#}; its writer changes the members itself (Pool::add, remove, replace), or close it first"
            );
        }
        error
    })
}

fn state_of(pool: &Pool, member: &PoolUrl) -> anyhow::Result<Option<ReplicaState>> {
    let replicas = pool.status().map_err(with_mend)?.replicas;
    Ok(replicas
        .into_iter()
        .find(|replica| replica.replica.to_string() == member.to_string())
        .map(|replica| replica.state))
}

fn is_out_of_sync(pool: &Pool, member: &PoolUrl) -> anyhow::Result<bool> {
    Ok(state_of(pool, member)?.is_some_and(|state| !matches!(state, ReplicaState::InSync)))
}

/// Waits until the new member is in sync.
fn wait(pool: &Pool, new: &PoolUrl, how: &How, connect: ConnectArgs) -> anyhow::Result<()> {
    let size_bytes = pool.len_bytes();
    let progress = Progress::new("copying", size_bytes, !how.json);
    let mut lost_looks = 0;
    loop {
        match state_of(pool, new)? {
            None | Some(ReplicaState::InSync) => return Ok(()),
            Some(ReplicaState::Lost(why)) if !why.is_out_of_reach() && lost_looks >= UNFIT_LOOKS => {
                let anew = anew(pool, new, "add", connect);
                bail!("{new} is a member already, and of no use: {}; {anew}", causes(&*why));
            }
            Some(ReplicaState::CatchingUp { missing_bytes }) => progress.set(size_bytes.saturating_sub(missing_bytes)),
            Some(ReplicaState::Lost(why)) if lost_looks >= LOST_LOOKS => {
                bail!(
                    "{new} is a member, and lost: {}; it catches up when it is back and the pool is open",
                    causes(&*why)
                );
            }
            Some(ReplicaState::Lost(_)) => lost_looks += 1,
            Some(_) => lost_looks = 0,
        }
        pool.persist(0, &[])
            .map_err(with_mend)
            .context("the new member is not in sync yet, and catches up at the next opening")?;
        thread::sleep(LOOK);
    }
}

/// How a member is made anew where it was, by commands as they are to be given.
fn anew(pool: &Pool, url: &PoolUrl, add: &str, connect: ConnectArgs) -> String {
    let is_other = |replica: &&ReplicaStatus| {
        matches!(replica.state, ReplicaState::InSync) && replica.replica.to_string() != url.to_string()
    };
    let other = pool
        .status()
        .ok()
        .and_then(|status| status.replicas.iter().find(is_other).map(|other| other.replica.to_string()));
    let (member, word) = (other.map_or_else(|| "MEMBER".to_owned(), |other| shell_word(&other)), shell_word(url));
    let remove = match connect.pools().replica(url.to_string()).info() {
        Ok(_) => format!("`pmof pool rm {word}`, "),
        Err(error) if is_unusable(&error) => match by_hand(url, &of_target(url, connect)) {
            Some(by_hand) => format!("then what is there ({by_hand}), and "),
            None => format!("`pmof pool rm --force {word}`, "),
        },
        Err(_) => String::new(),
    };
    format!("to make it anew there: `pmof pool remove {member} {word}`, {remove}`pmof pool {add} {member} {word}`")
}

/// Says what was added, and what was removed and stays of that where it is.
fn end(
    pool: &Pool,
    (added, removed): (Option<String>, Option<(String, &'static str)>),
    how: &How,
) -> anyhow::Result<()> {
    let status = pool.status().map_err(with_mend)?;
    let (made_count, in_sync_count, witness_count) =
        (status.made_count, status.in_sync_count(), status.witnesses.len());
    pool.close().map_err(with_mend).context("cannot close the pool")?;
    if how.json {
        let removed = removed.map(|(removed, _)| removed);
        return output::print_json(&Report { added, removed, made_count, in_sync_count, witness_count });
    }
    if let Some(added) = added {
        say!("added {added}");
    }
    if let Some((removed, what_stays)) = removed {
        say!("removed {removed}, {what_stays}");
    }
    let besides = match witness_count {
        0 => String::new(),
        1 => " and a witness".to_owned(),
        _ => format!(" and {witness_count} witnesses"),
    };
    let s = if made_count == 1 { "" } else { "s" };
    say!("the pool has {made_count} member{s}, {in_sync_count} of them in sync{besides}");
    Ok(())
}

fn told(error: ChangeError) -> anyhow::Error {
    match error {
        ChangeError::Pool(error) => with_mend(error),
        ChangeError::NotMade { replica, source } => {
            with_mend(PoolError::Replica { replica, source }).context("no member was added")
        }
        error => error.into(),
    }
}
