//! `pmof pool promote`.

use std::time::Duration;

use anyhow::Context;
use pmof::{ConsistencyPoint, FormerMember, FormerState, PoolUrl, Promotion, PromotionError, causes};
use pmof_console::{
    output::{self, say, shell_word, with_mend},
    reach::ConnectArgs,
    words::{self, Level, parsed},
};
use serde::Serialize;

use super::point::PointReport;
use crate::failure;

/// Make a pool of an asynchronous member, where all members that count are lost for good
///
/// The pool has that one member, and what was written up to its last consistency point. What was written behind that is lost: the answer says how much that is, as far as the
/// member knows. The former members are none of it: those that answer are told, are taken from a writer that has them, and lead to the new pool from then on. Those that do not answer are named: no program must open one that comes back before it was removed, or opened once where
/// the new pool can be reached, which tells it. The pool is marked as one that was forced: `pmof pool status` shows that until `pmof pool clear`.
#[derive(Debug, clap::Args)]
pub(super) struct PromoteArgs {
    /// The asynchronous member: `tcp://HOST[:PORT]/POOL` and the like
    #[arg(value_name = "URL", value_parser = parsed::<PoolUrl>)]
    url: PoolUrl,
    /// Do it though a member that counts answers, and give up what that has
    #[arg(long)]
    force: bool,
    /// Take it from a writer that has it open and of which its target has heard nothing for this time, such as 10s; 0s takes it from any
    #[arg(long, value_name = "TIME", value_parser = words::time)]
    silent_for: Option<Duration>,
    /// What the bytes of the pool are to survive at least
    #[arg(long, value_enum, value_name = "LEVEL", default_value = "process-crash")]
    durability: Level,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct PromoteReport {
    url: String,
    /// Where it is; null where that is not known.
    point: Option<PointReport>,
    /// What was written beyond the point, as far as the member had heard; null where that is not known.
    lost_bytes: Option<u64>,
    lost_ms: Option<u64>,
    /// How long the writer had not been heard of: what it wrote then is lost, too.
    silent_ms: Option<u64>,
    former: Vec<FormerReport>,
}

#[derive(Debug, Serialize)]
struct FormerReport {
    index: u16,
    url: Option<String>,
    /// It knows durably that it is no member any more.
    told: bool,
    /// Why it does not.
    reason: Option<String>,
}

pub(super) fn run(args: &PromoteArgs, connect: ConnectArgs) -> anyhow::Result<()> {
    let options = connect.pools().replica(args.url.to_string()).require(args.durability.durability());
    let options = args.silent_for.into_iter().fold(options, pmof::PoolOptions::take_over);
    let promotion = options.promote(args.force).map_err(|error| match error {
        PromotionError::Pool(error) => with_mend(error),
        error => error.into(),
    });
    let promotion = promotion.context("nothing was promoted")?;
    let report = PromoteReport::new(&args.url, &promotion);
    for warning in promotion.former.iter().filter_map(|former| untold(former, &args.url)) {
        failure::warn(&warning);
    }
    if args.json {
        return output::print_json(&report);
    }
    say!("{} is a pool of its own now", report.url);
    match &promotion.point {
        Some(ConsistencyPoint { number, name, .. }) if name.is_empty() => say!("it is at consistency point {number}"),
        Some(ConsistencyPoint { number, name, .. }) => say!("it is at consistency point {number}, {name:?}"),
        None => say!("it is at a consistency point whose number and time are not known"),
    }
    let seconds =
        |ms: Option<u64>| ms.map_or_else(|| "unknown".to_owned(), |ms| format!("{:.1} s", ms as f64 / 1000.0));
    let bytes = report.lost_bytes.map_or_else(|| "an unknown number of".to_owned(), |bytes| bytes.to_string());
    say!("lost: {bytes} bytes, written in {}, as far as the member had heard", seconds(report.lost_ms));
    say!("lost too: all that was written since its writer was heard last, {} ago", seconds(report.silent_ms));
    for FormerReport { url, .. } in report.former.iter().filter(|former| former.told) {
        let url = url.as_deref().unwrap_or_default();
        say!("{url} is no member any more, and leads here: `pmof pool rm {}` removes it", shell_word(url));
    }
    say!("`pmof pool status` shows that it was forced, until `pmof pool clear`");
    Ok(())
}

/// What whoever promoted a member has to know of a former one that does not know it.
fn untold(former: &FormerMember, promoted: &PoolUrl) -> Option<String> {
    let FormerMember { index, url, .. } = former;
    Some(match &former.state {
        FormerState::Told => return None,
        // Nothing is there that could take itself for the pool.
        FormerState::NotTold(why) if why.is_absent() => return None,
        FormerState::Unknown => format!(
            "former member {index} was not told that it is none any more, since its address is not known: no program must open it; remove it where it is found (pmof pool rm)"
        ),
        FormerState::GoesOn => format!(
            "{url} is of another pool of the same identity, which {promoted} was removed from before, or which was made of an export, and goes on as that: never name both, and keep one of them only"
        ),
        FormerState::NotTold(why) => format!(
            "{url} was not told that it is no member any more: {}; it takes itself for the pool, and no program must open it before it was removed (pmof pool rm {url}) or was opened once while {promoted} can be reached, which leads there and tells it",
            causes(&**why)
        ),
        _ => format!("whether {url} knows that it is no member any more is not known"),
    })
}

impl PromoteReport {
    fn new(url: &PoolUrl, promotion: &Promotion) -> Self {
        let ms = |time: Option<Duration>| time.map(|time| time.as_millis() as u64);
        Self {
            url: url.to_string(),
            point: promotion.point.as_ref().map(PointReport::from),
            lost_bytes: promotion.lost_bytes(),
            lost_ms: ms(promotion.lost_time()),
            silent_ms: ms(promotion.silent_time()),
            former: promotion.former.iter().map(FormerReport::new).collect(),
        }
    }
}

impl FormerReport {
    fn new(former: &FormerMember) -> Self {
        let FormerMember { index, ref url, ref state } = *former;
        let (told, reason) = match state {
            FormerState::Told => (true, None),
            FormerState::NotTold(why) => (false, Some(causes(&**why).to_string())),
            FormerState::Unknown => (false, Some("its address is not known".to_owned())),
            FormerState::GoesOn => (false, Some("it is of another pool of the same identity, and goes on".to_owned())),
            _ => (false, None),
        };
        Self { index, url: Some(url.clone()).filter(|url| !url.is_empty()), told, reason }
    }
}
