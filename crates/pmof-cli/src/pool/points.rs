//! `pmof pool points` and `pmof pool rollback`.

use std::{fmt::Write, time::Duration};

use anyhow::Context;
use pmof::{KeptPointStatus, MemberPoints, PoolOptions, PoolUrl, RollbackError, causes};
use pmof_console::{
    output::{self, say, shell_word, with_mend},
    reach::ConnectArgs,
    words::{Level, parsed},
};
use serde::Serialize;

use super::{point::PointReport, utc::utc};
use crate::failure;

/// List the consistency points that a pool's asynchronous members keep
///
/// `pmof cp --at-point NAME` copies the pool as it was at one, `pmof pool rollback` goes back to it.
#[derive(Debug, clap::Args)]
pub(super) struct PointsArgs {
    /// Members of one pool: `tcp://HOST[:PORT]/POOL` and the like; those that are not named are found by them
    #[arg(value_name = "URL", required = true, value_parser = parsed::<PoolUrl>)]
    urls: Vec<PoolUrl>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Have an asynchronous member of a closed pool go back to a consistency point that it keeps
///
/// What was written behind the point is dropped on that member, and no other is changed: the next program that opens the pool brings this one forward again. To go on from
/// the point, run `pmof pool promote` next. An interruption leaves the member as it was, or at the point, which it then is when it is opened next, by a promotion, too:
/// `pmof pool status` tells.
#[derive(Debug, clap::Args)]
pub(super) struct RollbackArgs {
    /// The asynchronous member: `tcp://HOST[:PORT]/POOL` and the like
    #[arg(value_name = "URL", value_parser = parsed::<PoolUrl>)]
    url: PoolUrl,
    /// The point, by its name, or by its number, as `pmof pool points` tells it; of several of one name the newest
    #[arg(value_name = "POINT")]
    point: String,
    /// What the bytes of the pool are to survive at least
    #[arg(long, value_enum, value_name = "LEVEL", default_value = "process-crash")]
    durability: Level,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct PointsReport {
    members: Vec<MemberReport>,
}

#[derive(Debug, Serialize)]
struct MemberReport {
    url: String,
    points: Vec<KeptReport>,
    /// Why its points are not known.
    reason: Option<String>,
}

#[derive(Debug, Serialize)]
struct KeptReport {
    #[serde(flatten)]
    point: PointReport,
    /// Bytes that are kept of what was overwritten up to the next point.
    saved_bytes: u64,
}

#[derive(Debug, Serialize)]
struct RollbackReport {
    url: String,
    point: PointReport,
    changed_bytes: u64,
    /// What was written behind the point; null where that is not known.
    lost_bytes: Option<u64>,
    lost_ms: Option<u64>,
    /// Points that the member has no room for any more.
    dropped_points: Vec<String>,
}

pub(super) fn list(args: &PointsArgs, connect: ConnectArgs) -> anyhow::Result<()> {
    let options = args.urls.iter().map(ToString::to_string).fold(connect.pools(), PoolOptions::replica);
    let members = options.points().map_err(with_mend).context("cannot tell which points are kept")?;
    let report = PointsReport { members: members.iter().map(MemberReport::new).collect() };
    if args.json { output::print_json(&report) } else { Ok(output::print(&report.text())?) }
}

pub(super) fn roll_back(args: &RollbackArgs, connect: ConnectArgs) -> anyhow::Result<()> {
    let options = connect.pools().replica(args.url.to_string()).require(args.durability.durability());
    let rolled = options.roll_back(&args.point).map_err(|error| {
        let nothing = "nothing was rolled back";
        match error {
            RollbackError::Pool(error) => with_mend(error).context(nothing),
            error @ RollbackError::Interrupted { .. } => anyhow::Error::from(error)
                .context("the rollback was interrupted; when the member answers, `pmof pool status` tells, and the same command goes on"),
            error => anyhow::Error::from(error).context(nothing),
        }
    })?;
    let ms = |time: Duration| time.as_millis() as u64;
    let report = RollbackReport {
        url: args.url.to_string(),
        point: PointReport::from(&rolled.to),
        changed_bytes: rolled.changed_bytes,
        lost_bytes: rolled.dropped_bytes(),
        lost_ms: rolled.dropped_time().map(ms),
        dropped_points: rolled.dropped_points.iter().map(|point| point.name.clone()).collect(),
    };
    let bytes = report.lost_bytes.map_or_else(|| "an unknown number of".to_owned(), |bytes| bytes.to_string());
    let seconds =
        report.lost_ms.map_or_else(|| "an unknown time".to_owned(), |ms| format!("{:.1} s", ms as f64 / 1000.0));
    failure::warn(&format!(
        "{} went back: {bytes} bytes that were written in the {seconds} behind the point are not there any more",
        report.url
    ));
    if !report.dropped_points.is_empty() {
        let gone = &report.dropped_points;
        failure::warn(&format!("there was no room to keep all older points: gone are {gone:?}"));
    }
    if args.json {
        return output::print_json(&report);
    }
    let RollbackReport { url, point: PointReport { number, name, unix_ms, .. }, changed_bytes, .. } = report;
    let word = shell_word(&url);
    say!("{url} is at consistency point {number}, {name:?}, of {}", utc(unix_ms / 1000));
    say!("{changed_bytes} bytes of it were put back");
    say!(
        "the pool's other members are as they were: `pmof pool promote --force {word}` goes on from here and gives up what they have beyond it, `pmof pool promote {word}` does where none answers"
    );
    Ok(())
}

impl MemberReport {
    fn new(member: &MemberPoints) -> Self {
        let (points, reason) = match &member.points {
            Ok(points) => (points.iter().map(KeptReport::new).collect(), None),
            Err(why) => (Vec::new(), Some(causes(&**why).to_string())),
        };
        Self { url: member.replica.to_string(), points, reason }
    }
}

impl KeptReport {
    fn new(kept: &KeptPointStatus) -> Self {
        Self { point: PointReport::from(&kept.point), saved_bytes: kept.saved_bytes }
    }
}

impl PointsReport {
    fn text(&self) -> String {
        let mut text = String::new();
        if self.members.is_empty() {
            text.push_str("the pool has no asynchronous members, which could keep points\n");
        }
        for member in &self.members {
            let said = match &member.reason {
                Some(reason) => format!("not known: {reason}"),
                None => format!("{} kept", member.points.len()),
            };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{}: {said}", member.url);
            for KeptReport { point, saved_bytes } in &member.points {
                let (time, saved) = (utc(point.unix_ms / 1000), output::size(*saved_bytes));
                let _ = writeln!(text, "  {:<8} {time}  {saved:>10}  {:?}", point.number, point.name);
            }
        }
        text
    }
}
