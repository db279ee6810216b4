//! What a workload prints: one JSON object, or a few lines for people.

use anyhow::Result;
use pmof::{Durability, Flushed};
use pmof_console::output::{print_json, say};
use serde_json::Value;

use super::{
    Workload,
    measure::{Absent, Beside, Series},
};
use crate::bench::{
    engine::Reached,
    report::{Report, latency_head, latency_line, spread_text},
    runner::Pace,
    stage::Stage,
    statistics::{LatencyHistogram, MedianInterval, Spread},
};

/// A rate is kept where so much of it is reached.
const RATE_KEPT: f64 = 0.95;

/// What all rounds gave.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) pool: Series,
    /// The floor, or why there is none.
    pub(super) floor: Result<Series, &'static str>,
    /// A pool of one replica, where several are measured.
    pub(super) single: Option<Series>,
    /// The same pool whose replicas are all prompt, where one is slow.
    pub(super) prompt: Option<Series>,
    /// What was asked for, which peers reach too.
    pub(super) durability: Durability,
    pub(super) peers: Vec<Beside>,
    /// What measuring takes of each operation.
    pub(super) own_cost_ns: f64,
}

impl Outcome {
    pub(super) fn print(&self, workload: &Workload<'_>) -> Result<()> {
        if workload.args.stage.json {
            print_json(&self.to_json(workload)?)?;
            return Ok(());
        }
        self.print_text(workload)
    }

    /// Gives the pools back.
    pub(super) fn finish(self, stage: &Stage) -> Result<()> {
        let Self { pool, floor, single, prompt, peers, .. } = self;
        let others = [Some(pool), floor.ok(), single, prompt].into_iter().flatten();
        for done in others.chain(peers.into_iter().filter_map(|peer| peer.series.ok())) {
            done.contender.finish(|side| side.finish(stage))?;
        }
        Ok(())
    }

    /// One object.
    pub(super) fn to_json(&self, workload: &Workload<'_>) -> Result<Value> {
        let (args, mut report) = (workload.args, Report::default());
        report
            .put("transport", args.stage.reach.transport.scheme())?
            .put("medium", args.stage.medium_name(args.medium))?
            .put("mode", workload.mode.name())?
            .put("layer", workload.layer.name())?
            .put("rw", args.rw.name())?
            .put("read_percent", workload.read_percent)?
            .put("size_bytes", workload.size_bytes)?
            .put("span_bytes", workload.span_bytes())?
            .put("depth", workload.depth)?
            .put("batch", workload.batch)?
            .put("threads", args.threads)?
            .put("connections", workload.connections)?
            .put("replicas", args.replicas)?
            .put("delay_us", args.delay_us)?
            .put("waiting", workload.waiting_name())?
            .put("target_load_percent", args.target_load)?
            .put("pause_target_ms", args.pause_target_ms)?
            .put("rate_per_s", args.rate)?
            .put("rate_is_kept", args.rate.map(|rate| self.achieved_per_s() >= rate * RATE_KEPT))?
            .put("rounds", workload.rounds)?
            .put("measuring_ns", self.own_cost_ns)?;
        put_series(&mut report, "", &self.pool)?;
        for (name, part) in [("read_", &self.pool.total.reads), ("write_", &self.pool.total.writes)] {
            if (1..100).contains(&workload.read_percent) && !part.is_empty() {
                report.put_latencies(name, &part.summary())?;
            }
        }
        match &self.pool.reached {
            Some(Reached::Pool(receipt)) => report.put_receipt(receipt)?,
            Some(Reached::Connection(flushed)) => report.put_flushed(*flushed)?,
            None => report.put("durability", Value::Null)?,
        };
        match &self.floor {
            Ok(floor) => {
                put_series(&mut report, "floor_", floor)?;
                report.put_spread("ratio_p50", &self.pool.ratio_p50(floor)?)?;
                report.put_spread("ratio_bandwidth", &self.pool.ratio_bandwidth(floor)?)?;
            }
            Err(why) => {
                let absent = ["floor_p50_us", "floor_mib_per_s", "ratio_p50", "ratio_bandwidth"];
                report.put_no_floor(why, &absent)?;
            }
        }
        if let Some(single) = &self.single {
            report.put_latencies("single_", &single.all.summary())?;
            report.put_spread("ratio_replicas_p50", &self.pool.ratio_p50(single)?)?;
        }
        if let Some(prompt) = &self.prompt {
            report.put("slow_us", args.slow_us)?.put("slow_after_us", args.slow_after_us)?;
            report.put_latencies("prompt_", &prompt.all.summary())?;
            report.put_spread("ratio_slow_p50", &self.pool.ratio_p50(prompt)?)?;
            report.put("ratio_slow_p99", self.ratio_slow_p99(prompt))?;
        }
        if !self.peers.is_empty() {
            let peers: Result<Vec<Value>> = self.peers.iter().map(|peer| self.peer_json(peer)).collect();
            report.put("peers", peers?)?;
        }
        Ok(report.into_value())
    }

    /// A peer under its name: numbers as pmof's own, with pmof's over them as ratios; or why there are none.
    fn peer_json(&self, beside: &Beside) -> Result<Value> {
        let mut report = Report::default();
        report.put("name", beside.peer.name())?;
        let series = match &beside.series {
            Ok(series) => series,
            Err(Absent::Skipped(why)) => {
                report.put("skipped", why)?;
                return Ok(report.into_value());
            }
            Err(Absent::Failed(why)) => {
                report.put("failed", why)?;
                return Ok(report.into_value());
            }
        };
        put_series(&mut report, "", series)?;
        report.put_spread("ratio_p50", &self.pool.ratio_p50(series)?)?;
        report.put("version", &beside.version)?;
        match (&series.reached, beside.peer.promised()) {
            (Some(Reached::Pool(receipt)), _) => {
                report.put_receipt(receipt)?.put("copies", receipt.replicas.len())?;
            }
            (_, Some(promised)) => {
                let durability = promised.durability.unwrap_or(self.durability);
                report.put("durability", durability.to_string())?.put("copies", promised.copies)?;
                report.put("method", promised.method)?.put("mechanism", promised.mechanism)?;
                report.put("evidence", "documented")?;
            }
            _ => {}
        }
        Ok(report.into_value())
    }

    /// Operations that ended in a second, in the median of the rounds.
    fn achieved_per_s(&self) -> f64 {
        Spread::of(self.pool.rates_per_s.iter().copied()).map_or(0.0, |rate| rate.median)
    }

    fn ratio_slow_p99(&self, prompt: &Series) -> f64 {
        self.pool.all.summary().p99_us / prompt.all.summary().p99_us
    }

    fn print_text(&self, workload: &Workload<'_>) -> Result<()> {
        let args = workload.args;
        let pace = match workload.pace {
            Pace::Closed => String::new(),
            Pace::Open(_) => format!(", started at {} a second", args.rate.unwrap_or_default()),
        };
        say!(
            "{} of {} bytes over {}, {}, {} in flight on {} connection(s), {} thread(s), {} replica(s), {} us of delay each way, {}{pace}:",
            args.rw.name(),
            workload.size_bytes,
            args.stage.reach.transport.scheme(),
            args.stage.medium_name(args.medium),
            workload.depth,
            workload.connections,
            args.threads,
            args.replicas,
            args.delay_us,
            workload.waiting_name()
        );
        match workload.batch {
            _ if workload.read_percent == 100 => {}
            0 => say!("Each write is an operation; a flush ends each round."),
            1 => say!("A write and its flush are an operation."),
            batch => say!("{batch} writes and their flush are an operation."),
        }
        say!(
            "{}  {:>12}{:>12}{:>12}{:>12}{:>12}",
            latency_head(),
            "MiB/s",
            "CPU us",
            "target's",
            "sent bytes",
            "received"
        );
        say_series("pmof", &self.pool);
        for (name, part) in [("  reads", &self.pool.total.reads), ("  writes", &self.pool.total.writes)] {
            if (1..100).contains(&workload.read_percent) && !part.is_empty() {
                say!("{}", latency_line(name, &part.summary()));
            }
        }
        if let Some(single) = &self.single {
            say_series("one replica", single);
        }
        if let Some(prompt) = &self.prompt {
            say_series("none slow", prompt);
        }
        for beside in &self.peers {
            if let Ok(series) = &beside.series {
                say_series(beside.peer.name(), series);
            }
        }
        match &self.floor {
            Ok(floor) => {
                say_series("floor", floor);
                say!("p50 over the floor's: {}", spread_text(&self.pool.ratio_p50(floor)?));
                say!("bytes a second over the floor's: {}", spread_text(&self.pool.ratio_bandwidth(floor)?));
            }
            Err(why) => say!("no floor: {why}"),
        }
        if let Some(single) = &self.single {
            say!("p50 over one replica's: {}", spread_text(&self.pool.ratio_p50(single)?));
        }
        if let Some(prompt) = &self.prompt {
            say!(
                "with one replica {} us slower, p50 over that without: {}; p99: {:.3}",
                args.slow_us,
                spread_text(&self.pool.ratio_p50(prompt)?),
                self.ratio_slow_p99(prompt)
            );
        }
        self.peers.iter().try_for_each(|beside| self.say_peer(beside))?;
        let achieved = self.achieved_per_s();
        if let Some(rate) = args.rate.filter(|rate| achieved < rate * RATE_KEPT) {
            say!(
                "{achieved:.0} of {rate} operations a second ended: each waits behind all that are late already, and its latency says how long the run was"
            );
        }
        let interval = self.pool.p50_interval()?;
        say!(
            "p50 of a round: {:.2} to {:.2} us with {:.1} % confidence; measuring takes {:.0} ns of each operation",
            interval.low,
            interval.high,
            interval.confidence_percent,
            self.own_cost_ns
        );
        match &self.pool.reached {
            Some(Reached::Pool(receipt)) => say!("{receipt}"),
            Some(Reached::Connection(Flushed { durability, method, promise })) => {
                say!("{durability} ({method}, {}, {})", promise.mechanism, promise.evidence);
            }
            None => {}
        }
        Ok(())
    }

    fn say_peer(&self, beside: &Beside) -> Result<()> {
        let name = beside.peer.name();
        let series = match &beside.series {
            Ok(series) => series,
            Err(Absent::Skipped(why)) => {
                say!("skipped: {name}: {why}");
                return Ok(());
            }
            Err(Absent::Failed(why)) => {
                say!("failed: {name}: {why}");
                return Ok(());
            }
        };
        let ratio = spread_text(&self.pool.ratio_p50(series)?);
        match beside.peer.promised() {
            Some(promised) => say!(
                "p50 over {name}'s: {ratio}; {}, {}: {} ({})",
                promised.durability.unwrap_or(self.durability),
                copies_text(promised.copies),
                promised.method,
                format!("{} {}", promised.mechanism, beside.version).trim_end()
            ),
            None => say!("p50 over {name}'s: {ratio}"),
        }
        Ok(())
    }
}

/// `1 copy`, `3 copies`.
pub(super) fn copies_text(copies: u32) -> String {
    if copies == 1 { "1 copy".to_owned() } else { format!("{copies} copies") }
}

fn put_series(report: &mut Report, prefix: &str, series: &Series) -> Result<()> {
    report.put_latencies(prefix, &series.all.summary())?;
    let interval = series.p50_interval()?;
    report.put(&format!("{prefix}p50_us_low"), interval.low)?.put(&format!("{prefix}p50_us_high"), interval.high)?;
    report.put(&format!("{prefix}p50_confidence_percent"), interval.confidence_percent)?;
    for (name, rates) in [("mib_per_s", &series.rates_mib_per_s), ("operations_per_s", &series.rates_per_s)] {
        if let Some(spread) = Spread::of(rates.iter().copied()) {
            report.put_spread(&format!("{prefix}{name}"), &spread)?;
        }
        if let Some(MedianInterval { low, high, .. }) = MedianInterval::of(rates.iter().copied()) {
            report.put(&format!("{prefix}{name}_low"), low)?.put(&format!("{prefix}{name}_high"), high)?;
        }
    }
    for (at, name) in ["initiator_cpu_us", "target_cpu_us"].into_iter().enumerate() {
        report.put(&format!("{prefix}{name}"), series.cpu_us().map(|cpu_us| cpu_us[at]))?;
    }
    for (at, name) in ["sent_bytes", "received_bytes"].into_iter().enumerate() {
        report.put(&format!("{prefix}{name}"), series.moved_bytes().map(|moved| moved[at]))?;
    }
    report.put(&format!("{prefix}histogram_ns"), histogram(&series.all))?;
    Ok(())
}

/// Pairs of nanoseconds and how many latencies took so long.
fn histogram(all: &LatencyHistogram) -> Vec<(u64, u64)> {
    all.counts().collect()
}

fn say_series(what: &str, series: &Series) {
    let texts = |numbers: Option<[f64; 2]>, digits: usize| {
        numbers.map_or([(); 2].map(|()| "-".to_owned()), |numbers| numbers.map(|number| format!("{number:.digits$}")))
    };
    let [own_us, server_us] = texts(series.cpu_us(), 2);
    let rate = Spread::of(series.rates_mib_per_s.iter().copied()).map_or(0.0, |rate| rate.median);
    let [sent, received] = texts(series.moved_bytes(), 1);
    let line = latency_line(what, &series.all.summary());
    say!("{line}  {rate:>12.1}{own_us:>12}{server_us:>12}{sent:>12}{received:>12}");
}
