//! `pmof pool promote`.

use std::time::Duration;

use anyhow::Context;
use pmof::{ConsistencyPoint, PoolUrl, Promotion, PromotionError};
use pmof_console::{
    output::{self, say, with_mend},
    reach::ConnectArgs,
    words::{self, Level, parsed},
};
use serde::Serialize;

/// Make a pool of an asynchronous member, where all members that count are lost for good
///
/// The pool has that one member, and what was written up to its last consistency point. What was written behind that is lost: the answer says how much that is, as far as the
/// member knows. The former members must not be used any more, should they come back. The pool is marked as one that was forced: `pmof pool status` shows that until `pmof pool clear`.
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
    point: Option<u64>,
    point_name: Option<String>,
    point_unix_ms: Option<u64>,
    /// What was written beyond the point, as far as the member had heard; null where that is not known.
    lost_bytes: Option<u64>,
    lost_ms: Option<u64>,
    /// How long the writer had not been heard of: what it wrote then is lost, too.
    silent_ms: Option<u64>,
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
    say!("`pmof pool status` shows that it was forced, until `pmof pool clear`");
    Ok(())
}

impl PromoteReport {
    fn new(url: &PoolUrl, promotion: &Promotion) -> Self {
        let point = promotion.point.as_ref();
        let ms = |time: Option<Duration>| time.map(|time| time.as_millis() as u64);
        Self {
            url: url.to_string(),
            point: point.map(|point| point.number),
            point_name: point.map(|point| point.name.clone()),
            point_unix_ms: point.map(|point| point.unix_ms),
            lost_bytes: promotion.lost_bytes(),
            lost_ms: ms(promotion.lost_time()),
            silent_ms: ms(promotion.silent_time()),
        }
    }
}
