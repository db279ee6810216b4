//! Which member a reader reads first: the nearest of those that are as good.

use std::time::{Duration, Instant};

use pmof_control::{OpenFor, Request};
use pmof_replication::opening::Left;

use super::{NativeReplicas, Opened, Origin};
use crate::site::Site;

/// How often a target is asked; the shortest time counts.
const ASKED: usize = 4;

/// What another one must save of a round trip at least: less is a busy machine, and no distance.
const LEAST_SAVED: Duration = Duration::from_millis(1);

impl NativeReplicas {
    /// What it is opened for, which member is read first, and whether those in sync were closed in order.
    pub(super) fn reading(&self) -> (OpenFor, usize, bool) {
        match self.origin {
            Origin::Made(_) => (OpenFor::Write, 0, true),
            Origin::Found { access, source, left, .. } => {
                let first = if access == OpenFor::Read { nearest(&self.opened, source) } else { source };
                (access, first, left == Left::Closed)
            }
        }
    }
}

/// The position of the member to read first. `source`: that which would be read wherever it is; another one is as good if it is in sync at the same mark, and was left as
/// that one was. On this machine is nearer than any target. Of targets one is nearer whose round trip is less than half: else the source stays, so that readers do not change places for nothing.
fn nearest(opened: &[Opened], source: usize) -> usize {
    let Some(first) = opened.iter().find(|opened| opened.replica.position == source) else { return source };
    let is_as_good = |opened: &&Opened| {
        let (state, wanted) = (&opened.replica.state, &first.replica.state);
        opened.replica.behind.is_none()
            && !opened.replica.is_witness
            && (state.epoch.id, state.mark, state.is_open) == (wanted.epoch.id, wanted.mark, wanted.is_open)
    };
    let others: Vec<_> =
        opened.iter().filter(|opened| opened.replica.position != source).filter(|opened| is_as_good(opened)).collect();
    if others.is_empty() || matches!(first.site, Site::Here(_)) {
        return source;
    }
    if let Some(here) = others.iter().find(|opened| matches!(opened.site, Site::Here(_))) {
        return here.replica.position;
    }
    let nearer = others.iter().filter_map(|opened| Some((round_trip(&opened.site)?, opened.replica.position))).min();
    match (round_trip(&first.site), nearer) {
        (Some(own), Some((other, position))) if other < own / 2 && other + LEAST_SAVED <= own => position,
        (None, Some((_, position))) => position,
        _ => source,
    }
}

/// `None`: it does not answer.
fn round_trip(site: &Site) -> Option<Duration> {
    let time = || {
        let began = Instant::now();
        site.ask(&Request::Domain).ok().map(|_| began.elapsed())
    };
    (0..ASKED).filter_map(|_| time()).min()
}
