//! Copies of members' files: a replica with a member's identity that lies elsewhere than the member.

use alloc::{boxed::Box, sync::Arc, vec, vec::Vec};

use pmof_control::{Reply, Request, Roster};

use super::ask::{Answer, Run, first};
use crate::{
    asking::{Action, Failure, Patience, Task, limits::LOOK_TIME, reply},
    opening::Rules,
    place::Place,
};

/// Milliseconds that two answers of one target may be apart.
const APART_MS: u64 = 10_000;

impl<P: Place, F: Failure, R: Rules> Run<'_, P, F, R> {
    /// Marks the answers that are copies: the roster has the same replica at another address, and it is there. A member's address that was not named is asked.
    pub(super) async fn find_copies(&mut self, roster: &Roster) {
        for member in roster.counted() {
            let Some(home) = P::parse(&member.url) else { continue };
            let is_it = |run: &Self, at: usize| {
                let answer = &run.answers[at];
                let is_of_pool = first(&run.answers).is_some_and(|first| answer.why_foreign(first).is_none());
                is_of_pool && answer.found().is_some_and(|found| member.is(found.index, found.replica_uuid))
            };
            let is_stray = |at: &usize| is_it(self, *at) && *self.answers[*at].place != home;
            let strays: Vec<_> = (0..self.answers.len()).filter(is_stray).collect();
            let known = self.answers.iter().position(|answer| *answer.place == home);
            if strays.is_empty() || known.is_none() && !home.may_be_followed() {
                continue;
            }
            let at_home = known.unwrap_or(self.answers.len());
            if known.is_none() {
                self.ask(vec![(Arc::new(home), None)], 0).await;
            }
            let mut has_copies = false;
            for stray in strays {
                if is_it(self, at_home) && !self.are_one_file(at_home, stray).await {
                    self.answers[stray].copy_of = Some(Arc::clone(&self.answers[at_home].place));
                    has_copies = true;
                }
            }
            if known.is_none() && !has_copies {
                if let Some(site) = self.answers.remove(at_home).site() {
                    self.exchange.tell(Action::Drop { site });
                }
            }
        }
    }

    /// Whether two addresses lead to one file, as far as the targets tell: to one name in one directory of one kernel. Two containers may have directories of
    /// one name, and are not started at the same time.
    async fn are_one_file(&self, one: usize, other: usize) -> bool {
        let [one, other] = [one, other].map(|at| &self.answers[at]);
        if one.place.pool_name() != other.place.pool_name() {
            return false;
        }
        let kernel = |answer: &Answer<P, F>| answer.told.as_ref().ok()?.1.domain.as_ref()?.kernel;
        if let (Some(one), Some(other)) = (kernel(one), kernel(other)) {
            if one != other {
                return false;
            }
        }
        let sites = [one, other].into_iter().filter_map(Answer::site);
        let tasks = sites.map(|site| -> Task<'_, _> { Box::pin(reply(self.exchange, site, Request::Status)) });
        let answers = self.exchange.answers(tasks.collect(), Patience::within(LOOK_TIME), Result::is_ok).await;
        let [Ok(Reply::Status(one)), Ok(Reply::Status(other))] = &answers[..] else { return true };
        one.root == other.root && one.uptime_ms.abs_diff(other.uptime_ms) < APART_MS
    }
}
