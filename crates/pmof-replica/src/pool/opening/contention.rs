//! Asking for replicas that other programs ask for at the same time.

use std::time::Instant;

use pmof_control::{PoolName, PoolRefusal, Reply, Request};
use uuid::Uuid;

use super::release;
use crate::{ReplicaError, site::Site};

type Answer = Result<Reply, ReplicaError>;

/// Asks all at once. Where another program has one of them open, this releases the others, and asks for [one after the other](in_turn). `None`: not asked.
pub(super) fn of_all(
    sites: &[(usize, Site)],
    name: impl Fn(usize) -> PoolName,
    request: impl Fn(usize) -> Request,
) -> Vec<Option<Answer>> {
    let asked: Vec<_> = sites.iter().enumerate().map(|(index, (_, site))| site.send(&request(index))).collect();
    let answers = sites.iter().zip(asked).map(|((_, site), asked)| asked.and_then(|asked| site.answer(asked)));
    let answers: Vec<Answer> = answers.collect();
    if !answers.iter().any(is_busy) {
        return answers.into_iter().map(Some).collect();
    }
    sites.iter().zip(&answers).filter(|(_, answer)| is_opened(answer)).for_each(|((_, site), _)| release(site));
    in_turn(sites, answers, name, request)
}

/// Asks for one replica after the other, each for a second where another program has it, who may be gone or may be about to release it. All programs
/// ask in the order of the replicas' indexes, so that no two of them wait for each other: of several that open a pool at once, the one that has
/// the first replica gets the others too, however long their answers take.
fn in_turn(
    sites: &[(usize, Site)],
    answers: Vec<Answer>,
    name: impl Fn(usize) -> PoolName,
    request: impl Fn(usize) -> Request,
) -> Vec<Option<Answer>> {
    let may_be_had = |answer: &Answer| is_opened(answer) || is_busy(answer);
    let asked = sites.iter().zip(&answers).enumerate().filter(|(_, (_, answer))| may_be_had(answer));
    let asked: Vec<_> =
        asked.map(|(index, ((_, site), _))| (index, site.send(&Request::Info { name: name(index) }))).collect();
    let mut order: Vec<_> = asked
        .into_iter()
        .map(|(index, asked)| match asked.and_then(|asked| sites[index].1.answer(asked)) {
            Ok(Reply::Info(info)) => (info.header.replica_index, index),
            _ => (u16::MAX, index),
        })
        .collect();
    order.sort_unstable();
    let mut answers: Vec<_> =
        answers.into_iter().map(|answer| Some(answer).filter(|answer| !may_be_had(answer))).collect();
    for (_, index) in order {
        let answer = sites[index].1.ask_when_free(&request(index));
        if is_busy(answers[index].insert(answer)) {
            break;
        }
    }
    answers
}

/// Asks one, and the others only where that one is had: who asks for the same one first is alone with the others. `None`: not asked.
pub(super) fn of_one_first(
    sites: &[(usize, Site)],
    first: usize,
    request: impl Fn(usize) -> Request,
) -> Vec<Option<Answer>> {
    let since = Instant::now();
    let answer = |index: usize, (request, asked): (Request, Result<_, ReplicaError>)| -> Answer {
        asked.and_then(|asked| sites[index].1.answer_when_free(&request, asked, since))
    };
    let send = |index: usize| {
        let request = request(index);
        let asked = sites[index].1.send(&request);
        (request, asked)
    };
    let mut of_first = Some(answer(first, send(first)));
    let is_had = of_first.as_ref().is_some_and(is_opened);
    let asked: Vec<_> = (0..sites.len()).map(|index| (index != first && is_had).then(|| send(index))).collect();
    let answers = asked
        .into_iter()
        .enumerate()
        .map(|(index, asked)| asked.map(|asked| answer(index, asked)).or_else(|| of_first.take_if(|_| index == first)));
    answers.collect()
}

/// Between 0 and 1, at random.
pub(in crate::pool) fn chance() -> f64 {
    f64::from(Uuid::new_v4().as_fields().0) / f64::from(u32::MAX)
}

fn is_busy(answer: &Answer) -> bool {
    matches!(answer, Err(ReplicaError::Refused { refusal: PoolRefusal::Busy, .. }))
}

fn is_opened(answer: &Answer) -> bool {
    matches!(answer, Ok(Reply::Opened { .. }))
}
