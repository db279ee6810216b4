//! `pmof pool status`.

use std::{cell::RefCell, fmt::Write};

use anyhow::{Context, bail};
use pmof::{
    ConsistencyPoint, Forced, MemberState, MemberStatus, PoolError, PoolMembers, PoolOptions, PoolUrl, ReplicaError,
    causes,
};
use pmof_console::{
    output::{self, shell_word, with_mend},
    reach::ConnectArgs,
    words::parsed,
};
use pmof_control::{MemberProgress, MemberStanding, ToldEvent, WriterStatus};
use pmof_pool::TargetUrl;
use serde::Serialize;

use super::{point::PointReport, remove::is_of_unusable, utc::utc};
use crate::{failure::Differs, watch::WatchArgs};

/// Show which members a pool has, in which states they are, and how many losses it survives now
///
/// One address is enough: the members know each other. Nothing is written, and a writer is not disturbed. The exit status is 1 where too few members are
/// there to open the pool, and 3 where two histories of it were found. How much a member that catches up still lacks, the lag of an asynchronous one at this moment, and what happened last are the writer's word of a second or so ago, and
/// not told where it has the pool as files of this machine only.
#[derive(Debug, clap::Args)]
pub(super) struct StatusArgs {
    /// Members of one pool: `tcp://HOST[:PORT]/POOL` and the like; those that are not named are found by them
    #[arg(value_name = "URL", required = true, value_parser = parsed::<PoolUrl>)]
    urls: Vec<PoolUrl>,
    #[command(flatten)]
    watch: WatchArgs,
}

#[derive(Debug, Serialize)]
struct StatusReport {
    pool_uuid: String,
    len_bytes: u64,
    opening: u64,
    epoch: String,
    mark: u64,
    /// The last opening with fewer members than are safe, until `pmof pool clear` says that it is known.
    forced: Option<ForcedReport>,
    /// Who has it open for writing.
    open_by: Option<String>,
    is_closed: bool,
    made_count: usize,
    in_sync_count: usize,
    witness_count: usize,
    quorum: usize,
    /// How many members an opening for writing takes, unless one is known to have everything.
    needed: usize,
    /// How many answer that count for it.
    here: usize,
    /// How many members may be lost now, whichever; null where the pool cannot be opened.
    losses_survived: Option<usize>,
    members: Vec<MemberReport>,
    /// What happened last, by the writer's word; null where it tells nothing.
    events: Option<Vec<EventReport>>,
}

const IN_SYNC: &str = "in_sync";

const CATCHING_UP: &str = "catching_up";

/// What the writer says of a spare that could not take the place of a lost member.
const NOT_TAKEN: &str = "not_taken";

/// What it says of an asynchronous member that it is connected to.
const FOLLOWING: &str = "following";

#[derive(Debug, Serialize)]
struct EventReport {
    unix_ms: u64,
    message: String,
}

/// What the pool's writer says of a member.
#[derive(Debug, Serialize)]
struct ProgressReport {
    standing: &'static str,
    missing_bytes: u64,
    bytes_per_s: u64,
    lag_bytes: u64,
    lag_ms: u64,
}

/// An opening that was forced.
#[derive(Debug, Serialize)]
pub(super) struct ForcedReport {
    opening: u64,
    unix_ms: u64,
    /// The epoch that it went on from.
    epoch: String,
    /// The members that went on, and those that it went on without, by their numbers.
    went_on: Vec<u16>,
    left_out: Vec<u16>,
}

#[derive(Debug, Serialize)]
struct MemberReport {
    index: Option<u16>,
    url: Option<String>,
    replica_uuid: Option<String>,
    domain: String,
    /// It keeps who is in sync, and none of the bytes; its state is "witness" where it answers.
    is_witness: bool,
    state: &'static str,
    reason: Option<String>,
    opening: Option<u64>,
    mark: Option<u64>,
    /// Of an asynchronous member: where it is, and how far its writer was when it was heard last.
    point: Option<PointReport>,
    heard: Option<PointReport>,
    /// The point that it will be at when it is opened next.
    staged: Option<PointReport>,
    /// What the writer says of it, where it has the pool open and tells it.
    progress: Option<ProgressReport>,
    /// It parted from the members and was written since.
    #[serde(skip)]
    is_another_history: bool,
    /// The command that removes what is left of a lost one; `None` where nothing is.
    #[serde(skip)]
    removal: Option<&'static str>,
}

pub(super) fn run(args: &StatusArgs, connect: ConnectArgs) -> anyhow::Result<()> {
    let named: Vec<_> = args.urls.iter().map(ToString::to_string).collect();
    // Those that were found by the named ones, for when these are lost.
    let found = RefCell::new(Vec::new());
    let members_of = |urls: &[String]| urls.iter().cloned().fold(connect.pools(), PoolOptions::replica).members();
    let members = || {
        let asked = members_of(&named).or_else(|error| {
            let others = found.borrow();
            if others.is_empty() { Err(error) } else { members_of(&others) }
        })?;
        *found.borrow_mut() = others(&asked, &named);
        Ok(asked)
    };
    let report = args.watch.show(|| show(members(), args.watch.json))?;
    match (report.problem(), report.histories()) {
        (Some(problem), _) => bail!("{problem}"),
        (None, Some(histories)) => Err(Differs::error(histories)),
        (None, None) => Ok(()),
    }
}

/// Members on targets that were not named.
fn others(members: &PoolMembers, named: &[String]) -> Vec<String> {
    let is_told = |member: &&MemberStatus| {
        matches!(
            member.state,
            MemberState::InSync
                | MemberState::Syncing
                | MemberState::Behind(_)
                | MemberState::Lost(_)
                | MemberState::Witness
        )
    };
    let places = members.members.iter().filter(is_told).filter_map(|member| member.replica.as_ref());
    let urls = places.filter_map(|place| place.url()).filter(|url| matches!(url.target, TargetUrl::Address(_)));
    urls.map(ToString::to_string).filter(|url| !named.contains(url)).collect()
}

fn show(members: Result<PoolMembers, PoolError>, json: bool) -> anyhow::Result<StatusReport> {
    let members = members.map_err(with_mend).context("cannot tell the state of the pool")?;
    let report = StatusReport::new(&members);
    if json {
        output::print_json(&report)?;
    } else {
        output::print(&report.text())?;
    }
    Ok(report)
}

/// Whether a member answers that counts at an opening.
fn is_here(member: &MemberStatus) -> bool {
    use MemberState::{Behind, InSync, Syncing, Witness};
    matches!(member.state, InSync | Syncing | Behind(_) | Witness)
}

/// How many members have to be there so that no others go on without them.
fn votes_needed(members: &PoolMembers) -> usize {
    (members.made_count + members.witness_count + 1).saturating_sub(members.quorum)
}

impl StatusReport {
    fn new(members: &PoolMembers) -> Self {
        let told = members.writer_status.as_ref();
        let mut listed: Vec<_> = members.members.iter().map(|member| MemberReport::new(member, told)).collect();
        // Sorted by number; members without one come last.
        listed.sort_by_key(|member| member.index.map_or(u32::MAX, u32::from));
        Self {
            pool_uuid: members.pool_uuid.to_string(),
            len_bytes: members.size_bytes,
            opening: members.opening,
            epoch: members.epoch.to_string(),
            mark: members.mark,
            forced: members.forced.as_ref().map(ForcedReport::new),
            open_by: members.writer.clone(),
            is_closed: members.is_closed,
            made_count: members.made_count,
            in_sync_count: members.in_sync_count(),
            witness_count: members.witness_count,
            quorum: members.quorum,
            needed: votes_needed(members).max(members.quorum),
            here: members.members.iter().filter(|member| is_here(member)).count(),
            losses_survived: members.losses_survived,
            members: listed,
            events: told.map(|told| told.events.iter().map(EventReport::new).collect()),
        }
    }

    fn problem(&self) -> Option<String> {
        self.losses_survived.is_none().then(|| format!("the pool cannot be opened for writing now: {}", self.too_few()))
    }

    /// That there are two histories of the pool, and where: the one of its members, and another.
    fn histories(&self) -> Option<String> {
        let other = self.members.iter().find(|member| member.is_another_history)?;
        let urls = self.members.iter().filter(|member| member.state == IN_SYNC).filter_map(|member| member.url.clone());
        let (urls, opening) = (urls.collect::<Vec<_>>().join(", "), other.opening.unwrap_or_default());
        let url = other.url.as_deref().unwrap_or("a replica");
        Some(format!(
            "there are two histories of the pool: {urls} at opening {}, and {url} at opening {opening}; each lacks what the other acknowledged since they parted: read each of the two alone \
             (pmof cp --min-replicas 1), and decide which to keep before you remove either",
            self.opening
        ))
    }

    /// Why the pool cannot be opened, and what to do.
    fn too_few(&self) -> String {
        let Self { in_sync_count: in_sync, here, needed, made_count: made, witness_count: witnesses, .. } = *self;
        let all = made + witnesses;
        let (is, read) =
            (if here == 1 { "is" } else { "are" }, "read what is there with `pmof cp --min-replicas 1 MEMBER FILE`");
        let has_bytes = self.members.iter().any(|member| matches!(member.state, "syncing" | "behind"));
        let at_point = self.members.iter().find(|member| member.point.is_some()).and_then(|member| member.url.as_ref());
        match (in_sync, all) {
            (0, _) if !has_bytes => match at_point {
                Some(url) => format!(
                    "no member is there that has the pool's bytes; bring one back that has everything, or, if all are lost for good, make a pool of the asynchronous member: `pmof pool promote {}`",
                    shell_word(url)
                ),
                None => "no member is there that has the pool's bytes; bring one back that has everything".to_owned(),
            },
            (0, _) => format!("no member that is there has everything; bring one back that does, or {read}"),
            _ if here >= needed => {
                format!("those that are there do not go together as the members below say; see there, or {read}")
            }
            (_, 2) => format!(
                "{here} of its {all} members {is} there, and it takes both to know that the other did not go on alone; bring that back, {read}, or, if it is lost for good, \
                 go on without it: `pmof pool replace MEMBER N NEW --force`"
            ),
            // Of an even number, half know that no others go on without them, and a majority has to know of an opening for writing.
            _ if all % 2 == 0 && here == all / 2 => format!(
                "{here} of its {all} members {is} there, and an opening for writing takes {needed}, which have to know of it; bring back {} more, or {read}",
                needed - here
            ),
            _ => format!(
                "{here} of its {all} members {is} there, and it takes {needed} to know that no other goes on without them; bring back {} more, or {read}",
                needed - here
            ),
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let mut line = |name: &str, value: &dyn std::fmt::Display| {
            let _ = writeln!(text, "{name:<10} {value}");
        };
        line("pool", &self.pool_uuid);
        // Neither a witness nor an asynchronous member tells it.
        if self.len_bytes > 0 {
            line("size", &output::size(self.len_bytes));
        }
        let state = match (&self.open_by, self.is_closed) {
            (Some(writer), _) => writer,
            (None, true) => "none, closed in order",
            (None, false) => "none, not closed",
        };
        line("writer", &state);
        if self.opening > 0 {
            line("opening", &format!("{}, epoch {}, mark {}", self.opening, self.epoch, self.mark));
        }
        let witnesses = match self.witness_count {
            0 => String::new(),
            1 => ", and a witness".to_owned(),
            more => format!(", and {more} witnesses"),
        };
        if let Some(forced) = &self.forced {
            line("forced", &format!("{forced}; `pmof pool clear MEMBER` when that is known"));
        }
        line("in sync", &format!("{} of {}{witnesses}, quorum {}", self.in_sync_count, self.made_count, self.quorum));
        match self.losses_survived {
            Some(0) => line("survives", &"no further loss"),
            Some(1) => line("survives", &"the loss of any one member"),
            Some(losses) => line("survives", &format!("the loss of any {losses} members")),
            None => line("survives", &format!("nothing: it cannot be opened for writing; {}", self.too_few())),
        }
        for member in &self.members {
            let index = member.index.map_or_else(|| "?".to_owned(), |index| index.to_string());
            let url = member.url.as_deref().unwrap_or("(no address known)");
            let domain = if member.domain.is_empty() { String::new() } else { format!(" in {}", member.domain) };
            let why = member.reason.as_ref().map_or_else(String::new, |why| format!(": {why}"));
            let why = member.progress.as_ref().map_or_else(String::new, ToString::to_string) + &why;
            let domain =
                if member.is_witness && member.state != "witness" { format!("{domain}, a witness") } else { domain };
            line("member", &format!("{index} {:<8} {url}{domain}{why}", member.state.replace('_', " ")));
        }
        if let Some(histories) = self.histories() {
            line("histories", &histories);
        }
        for EventReport { unix_ms, message } in self.events.iter().flatten() {
            line("event", &format!("{} {message}", utc(unix_ms / 1000)));
        }
        let is_gone = |member: &&MemberReport| member.index.is_some() && matches!(member.state, "lost" | "foreign");
        if let (Some(gone), Some(_)) = (self.members.iter().find(is_gone), self.losses_survived) {
            let index = gone.index.map_or_else(String::new, |index| index.to_string());
            // The commands open the pool themselves.
            let when = match self.open_by {
                Some(_) => {
                    "the program that has the pool open replaces it (Pool::replace), or takes a spare; once it has closed the pool, "
                }
                None => "",
            };
            let of_what_is_left = |command: &str| format!(", `{command}` of what is left there");
            let removal = gone.removal.map_or_else(String::new, of_what_is_left);
            line(
                "mend",
                &format!(
                    "if one does not come back: {when}`pmof pool replace MEMBER {index} NEW` makes another in its place, at another address; at its own \
                     `pmof pool remove MEMBER {index}`{removal}, and `pmof pool add{}`",
                    if gone.is_witness { " --witness" } else { "" }
                ),
            );
        }
        text
    }
}

impl EventReport {
    fn new(event: &ToldEvent) -> Self {
        Self { unix_ms: event.unix_ms, message: event.text.clone() }
    }
}

impl ProgressReport {
    fn new(progress: &MemberProgress, is_spare: bool) -> Self {
        let MemberProgress { standing, missing_bytes, bytes_per_second: bytes_per_s, lag_bytes, lag_ms, .. } =
            *progress;
        let standing = match standing {
            MemberStanding::InSync => IN_SYNC,
            MemberStanding::CatchingUp => CATCHING_UP,
            MemberStanding::Slow => "slow",
            MemberStanding::Lost if is_spare => NOT_TAKEN,
            MemberStanding::Lost => "lost",
            MemberStanding::Following => FOLLOWING,
            _ => "unknown",
        };
        Self { standing, missing_bytes, bytes_per_s, lag_bytes, lag_ms }
    }
}

impl std::fmt::Display for ProgressReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { standing, missing_bytes, bytes_per_s, lag_bytes, lag_ms } = self;
        match *standing {
            IN_SYNC => Ok(()),
            CATCHING_UP => {
                let (missing, rate) = (output::size(*missing_bytes), output::size(*bytes_per_s));
                write!(f, ", lacks {missing} (copied at {rate} a second)")
            }
            FOLLOWING => {
                write!(f, ", follows and lags {} and {:.1} s", output::size(*lag_bytes), *lag_ms as f64 / 1000.0)
            }
            standing => write!(f, ", {} by its writer's word", standing.replace('_', " ")),
        }
    }
}

impl ForcedReport {
    pub(super) fn new(forced: &Forced) -> Self {
        let Forced { opening, unix_ms, epoch, went_on, left_out } = *forced;
        let indexes = |bits: u64| (0..64).filter(|index| bits & (1 << index) != 0).collect();
        Self { opening, unix_ms, epoch: epoch.to_string(), went_on: indexes(went_on), left_out: indexes(left_out) }
    }
}

impl std::fmt::Display for ForcedReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { opening, unix_ms, epoch, went_on, left_out } = self;
        let named = |indexes: &[u16]| indexes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        write!(
            f,
            "opening {opening} at {} went on from epoch {epoch} with member {}",
            utc(unix_ms / 1000),
            named(went_on)
        )?;
        if left_out.is_empty() {
            return write!(
                f,
                ", whose states may have been older ones: it may lack what was acknowledged behind those"
            );
        }
        write!(f, ", without {}: it lacks what only those had", named(left_out))
    }
}

/// Where an asynchronous member is, and how far its writer was beyond that.
fn point_of(
    point: Option<&ConsistencyPoint>,
    heard: Option<&ConsistencyPoint>,
    staged: Option<&ConsistencyPoint>,
) -> String {
    let Some(point) = point else { return "at no consistency point yet".to_owned() };
    let named = |ConsistencyPoint { number, name, .. }: &ConsistencyPoint| {
        if name.is_empty() { number.to_string() } else { format!("{number} {name:?}") }
    };
    let lag = heard.map(|heard| {
        let ms = heard.unix_ms.saturating_sub(point.unix_ms);
        let bytes = (heard.opening == point.opening).then(|| heard.written_bytes.saturating_sub(point.written_bytes));
        let bytes = bytes.map_or_else(|| "an unknown number of".to_owned(), |bytes| bytes.to_string());
        format!("; lagged {bytes} bytes, {:.1} s, when its writer was heard last", ms as f64 / 1000.0)
    });
    let staged = staged.map(|staged| format!("; is at consistency point {} when it is opened next", named(staged)));
    format!("at consistency point {}{}{}", named(point), lag.unwrap_or_default(), staged.unwrap_or_default())
}

impl MemberReport {
    fn new(member: &MemberStatus, told: Option<&WriterStatus>) -> Self {
        let of_member = |progress: &&MemberProgress| Some(progress.index) == member.index;
        let progress = told.and_then(|told| told.members.iter().find(of_member));
        let progress = progress.map(|told| ProgressReport::new(told, matches!(member.state, MemberState::Spare)));
        let words = |why: &ReplicaError| Some(causes(why).to_string());
        let is_refused = || progress.as_ref().is_some_and(|progress| progress.standing == NOT_TAKEN);
        let (state, reason) = match &member.state {
            MemberState::InSync => (IN_SYNC, None),
            MemberState::Syncing => ("syncing", None),
            MemberState::Behind(why) => ("behind", words(why)),
            MemberState::Foreign(why) => ("foreign", words(why)),
            MemberState::Witness => ("witness", None),
            MemberState::Spare if is_refused() => ("spare", Some("the events tell why".to_owned())),
            MemberState::Spare => ("spare", None),
            MemberState::Lost(why) => ("lost", words(why)),
            MemberState::Asynchronous { lost: Some(why), .. } => ("async", words(why)),
            MemberState::Asynchronous { point, heard, staged, .. } => {
                // One lag a member: the writer's, or the last one heard.
                let is_told = progress.as_ref().is_some_and(|progress| progress.standing == FOLLOWING);
                let heard = heard.as_deref().filter(|_| !is_told);
                ("async", Some(point_of(point.as_deref(), heard, staged.as_deref())))
            }
            MemberState::Unnamed => ("unnamed", Some("it was not looked for; name its address".to_owned())),
            _ => ("unknown", None),
        };
        let info = member.info.as_ref();
        let [point, heard, staged] = match &member.state {
            MemberState::Asynchronous { point, heard, staged, .. } => [point.as_ref(), heard.as_ref(), staged.as_ref()],
            _ => [None; 3],
        };
        Self {
            index: member.index,
            url: member.replica.as_ref().map(ToString::to_string),
            replica_uuid: info.map(|info| info.header.replica_uuid.to_string()),
            domain: member.domain.clone(),
            is_witness: member.is_witness,
            state,
            reason,
            opening: info.map(|info| info.state.opening),
            mark: info.map(|info| info.state.mark),
            point: point.map(|point| PointReport::from(&**point)),
            heard: heard.map(|heard| PointReport::from(&**heard)),
            staged: staged.map(|staged| PointReport::from(&**staged)),
            progress,
            is_another_history: matches!(&member.state, MemberState::Foreign(why) if matches!(**why, ReplicaError::AnotherHistory { .. })),
            removal: match &member.state {
                MemberState::Lost(why) if why.is_absent() => None,
                MemberState::Lost(why) if is_of_unusable(why) => Some("pmof pool rm --force"),
                _ => Some("pmof pool rm"),
            },
        }
    }
}
