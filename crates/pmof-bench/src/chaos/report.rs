//! What a run did and found.

use std::time::Duration;

use pmof_console::output::say;
use serde::Serialize;

use super::{
    member::Kind,
    writers::{Phase, Stalls, Written},
};
use crate::bench::statistics::{LatencyHistogram, LatencySummary};

/// Faults by their kinds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Counts {
    pub(super) kills: u64,
    pub(super) pauses: u64,
    pub(super) cuts: u64,
}

impl Counts {
    pub(super) fn all(self) -> u64 {
        self.kills + self.pauses + self.cuts
    }

    fn of(&mut self, kind: Kind) -> &mut u64 {
        match kind {
            Kind::Kill => &mut self.kills,
            Kind::Pause => &mut self.pauses,
            Kind::Cut => &mut self.cuts,
        }
    }

    pub(super) fn count(&mut self, kind: Kind) {
        *self.of(kind) += 1;
    }

    /// Takes out the `number`-th of all.
    pub(super) fn take(&mut self, number: u64) -> Kind {
        let kind = match number {
            number if number < self.kills => Kind::Kill,
            number if number < self.kills + self.pauses => Kind::Pause,
            _ => Kind::Cut,
        };
        *self.of(kind) -= 1;
        kind
    }
}

/// How long something took.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Times {
    samples: usize,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
}

impl Times {
    fn of(times: impl IntoIterator<Item = Duration>) -> Self {
        let mut histogram = LatencyHistogram::default();
        times.into_iter().for_each(|time| histogram.record(time));
        let LatencySummary { samples, p50_us, p99_us, max_us, .. } = histogram.summary();
        Self { samples: samples as usize, p50_us, p99_us, max_us }
    }

    fn print(&self, what: &str) {
        if self.samples > 0 {
            let Self { samples, p50_us, p99_us, max_us } = self;
            let [p50_ms, p99_ms, max_ms] = [p50_us, p99_us, max_us].map(|us| us / 1e3);
            say!("{what:<38}{p50_ms:>10.2}{p99_ms:>10.2}{max_ms:>10.2} ms   of {samples}");
        }
    }
}

/// The longest persist of each fault, and what it is compared with.
#[derive(Clone, Debug, Serialize)]
pub(super) struct StallReport {
    kill: Times,
    pause: Times,
    cut: Times,
    /// From when a member was given back until it was in sync.
    returning: Times,
    /// Between faults, while all members are in sync.
    faultless: Times,
}

/// What a run did and found.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    pub(super) faults: Counts,
    pub(super) faults_while_returning: u64,
    /// Pauses of targets that were asked for nothing meanwhile.
    pub(super) pauses_unnoticed: u64,
    persists: u64,
    persists_degraded: u64,
    pub(super) errors: u64,
    pub(super) error_texts: Vec<String>,
    persist: Option<LatencySummary>,
    stall: Option<StallReport>,
    pub(super) losses: u64,
    /// Losses of members that no fault was made to.
    pub(super) losses_unprovoked: u64,
    pub(super) catch_ups_begun: u64,
    pub(super) catch_ups: u64,
    /// Members that caught up by what they were known to lack, and were then found to be the same as a whole.
    pub(super) catch_ups_verified: u64,
    pub(super) copied_bytes: u64,
    in_sync_after: Option<Times>,
    pub(super) compared_bytes: u64,
    pub(super) elapsed_s: f64,
    transport: &'static str,
    durability: String,
    seed: u64,
    #[serde(skip)]
    pub(super) kinds: Vec<Kind>,
    #[serde(skip)]
    returned: Vec<Duration>,
}

impl Report {
    pub(super) fn new(transport: &'static str, durability: String, seed: u64) -> Self {
        Self {
            faults: Counts::default(),
            faults_while_returning: 0,
            pauses_unnoticed: 0,
            persists: 0,
            persists_degraded: 0,
            errors: 0,
            error_texts: Vec::new(),
            persist: None,
            stall: None,
            losses: 0,
            losses_unprovoked: 0,
            catch_ups_begun: 0,
            catch_ups: 0,
            catch_ups_verified: 0,
            copied_bytes: 0,
            in_sync_after: None,
            compared_bytes: 0,
            elapsed_s: 0.0,
            transport,
            durability,
            seed,
            kinds: Vec::new(),
            returned: Vec::new(),
        }
    }

    /// A member is in sync so long after it was given back.
    pub(super) fn returned(&mut self, after: Duration) {
        self.returned.push(after);
    }

    /// Takes in what the writers did.
    pub(super) fn take_in(&mut self, written: &[Written], stalls: &Stalls) {
        let mut latencies = LatencyHistogram::default();
        for written in written {
            latencies.add(&written.latencies);
            self.persists_degraded += written.degraded;
            self.errors += written.errors;
            self.error_texts.extend(written.texts.iter().cloned());
        }
        let summary = latencies.summary();
        self.persists = summary.samples - self.errors;
        self.persist = Some(summary);
        let kinds = &self.kinds;
        let faults = 0..kinds.len() as u64;
        let of_kind = |kind| {
            let of_kind = faults.clone().filter(move |fault| kinds[*fault as usize] == kind);
            Times::of(of_kind.map(|fault| stalls.longest(Phase::Fault(fault))))
        };
        let longest = |phase: fn(u64) -> Phase| {
            let longest = faults.clone().map(|fault| stalls.longest(phase(fault)));
            // Where no persist belonged to a phase, it was too short, or there was none.
            Times::of(longest.filter(|longest| !longest.is_zero()))
        };
        self.stall = Some(StallReport {
            kill: of_kind(Kind::Kill),
            pause: of_kind(Kind::Pause),
            cut: of_kind(Kind::Cut),
            returning: longest(Phase::Return),
            faultless: longest(Phase::Faultless),
        });
        self.in_sync_after = Some(Times::of(self.returned.iter().copied()));
    }

    pub(super) fn print(&self) {
        let Counts { kills, pauses, cuts } = self.faults;
        say!(
            "{kills} kills, {pauses} pauses, {cuts} cuts in {:.1} s, {} of them of members that were returning; {} pauses unnoticed",
            self.elapsed_s,
            self.faults_while_returning,
            self.pauses_unnoticed
        );
        say!("{} persists, {} of them degraded, {} errors", self.persists, self.persists_degraded, self.errors);
        for text in &self.error_texts {
            say!("  {text}");
        }
        say!("{:<38}{:>10}{:>10}{:>10}", "", "p50", "p99", "max");
        if let Some(persist) = &self.persist {
            let ms = [persist.p50_us, persist.p99_us, persist.max_us].map(|us| us / 1e3);
            say!("{:<38}{:>10.3}{:>10.3}{:>10.3} ms", "a persist", ms[0], ms[1], ms[2]);
        }
        if let Some(stall) = &self.stall {
            stall.kill.print("longest persist of a kill");
            stall.pause.print("longest persist of a pause");
            stall.cut.print("longest persist of a cut");
            stall.returning.print("longest persist while one returns");
            stall.faultless.print("longest persist between faults");
        }
        if let Some(in_sync_after) = &self.in_sync_after {
            in_sync_after.print("in sync again after");
        }
        say!(
            "{} losses, {} of members that no fault was made to; {} catch-ups of {} begun, {} bytes copied, {} verified by digests",
            self.losses,
            self.losses_unprovoked,
            self.catch_ups,
            self.catch_ups_begun,
            self.copied_bytes,
            self.catch_ups_verified
        );
        say!(
            "all members hold every acknowledged record and the same {} bytes ({}, {}); seed {}",
            self.compared_bytes,
            self.transport,
            self.durability,
            self.seed
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_taken_until_none_is_left() {
        let mut counts = Counts { kills: 2, pauses: 1, cuts: 1 };
        let mut random = crate::soak::Random::new(3);
        let mut taken = Counts::default();
        while counts.all() > 0 {
            taken.count(counts.take(random.below(counts.all())));
        }
        assert_eq!((taken.kills, taken.pauses, taken.cuts), (2, 1, 1));
    }
}
