//! Copies of members' files: what has a member's identity and lies elsewhere than the member.

use std::sync::Arc;

use pmof_control::{FailureDomain, Reply, Request, Roster};

use super::{Answer, ask, may_be_asked};
use crate::{PoolUrl, peers::Peers, reach::Reach};

/// Milliseconds that two answers of one target may be apart.
const APART_MS: u64 = 10_000;

/// Finds those of the `answers` that are copies: the roster has the same replica at another address, and it is there. It is asked there where it was not.
pub(super) fn find(reach: &Reach, peers: &Peers, roster: &Roster, answers: &mut Vec<Answer>) {
    let named: Vec<_> = answers.iter().map(|answer| Arc::clone(&answer.url)).collect();
    for member in roster.counted() {
        let Ok(home) = member.url.parse::<PoolUrl>() else { continue };
        let is_it = |answer: &Answer| {
            answer.found().is_some_and(|found| member.is(found.index, found.replica_uuid)) && answer.is_of(answers)
        };
        let elsewhere = |at: &usize| is_it(&answers[*at]) && *answers[*at].url != home;
        let strays: Vec<_> = (0..answers.len()).filter(elsewhere).collect();
        if strays.is_empty() {
            continue;
        }
        let known = answers.iter().find(|answer| *answer.url == home);
        let asked = match known {
            Some(_) => None,
            None if may_be_asked(&home, &named) => Some(ask(reach, peers, &Arc::new(home.clone()))),
            None => continue,
        };
        let Some(at_home) = known.or(asked.as_ref()).filter(|answer| is_it(answer)) else { continue };
        let is_copy = |at: &usize| !is_one_file(reach, peers, at_home, &answers[*at]);
        let copies: Vec<_> = strays.into_iter().filter(|at| is_copy(at)).collect();
        let home = Arc::clone(&at_home.url);
        answers.extend(asked.filter(|_| !copies.is_empty()));
        for at in copies {
            answers[at].copy_of = Some(Arc::clone(&home));
        }
    }
}

/// Whether two addresses lead to one file, as far as the targets tell: to one name in one directory of one kernel. Two containers may have directories of
/// one name, and are not started at the same time.
fn is_one_file(reach: &Reach, peers: &Peers, one: &Answer, other: &Answer) -> bool {
    if one.url.name != other.url.name {
        return false;
    }
    let kernel = |answer: &Answer| answer.domain.as_ref().and_then(|domain: &FailureDomain| domain.kernel);
    if let (Some(one), Some(other)) = (kernel(one), kernel(other)) {
        if one != other {
            return false;
        }
    }
    let status = |answer: &Answer| match reach.site(peers, &answer.url).ok()?.ask(&Request::Status).ok()? {
        Reply::Status(status) => Some(status),
        _ => None,
    };
    let (Some(one), Some(other)) = (status(one), status(other)) else { return true };
    one.root == other.root && one.uptime_ms.abs_diff(other.uptime_ms) < APART_MS
}
