//! Asking for replicas that other programs ask for at the same time.

use std::{thread, time::Instant};

use pmof_control::{PoolRefusal, Reply, Request};
use uuid::Uuid;

use super::release;
use crate::{
    ReplicaError,
    site::Site,
    target::{BUSY_WAIT, busy_pauses},
};

type Answer = Result<Reply, ReplicaError>;

/// Asks all at once. Where another has one of them open, who may be gone or may be asking for the others just now, none is kept while that one is waited
/// for: two that each kept what the other one waits for would both be refused. Gives up after a second.
pub(super) fn of_all(sites: &[(usize, Site)], request: impl Fn(usize) -> Request) -> Vec<Answer> {
    let (since, mut pauses) = (Instant::now(), busy_pauses());
    loop {
        let asked: Vec<_> = sites.iter().enumerate().map(|(index, (_, site))| site.send(&request(index))).collect();
        let answers = sites.iter().zip(asked).map(|((_, site), asked)| asked.and_then(|asked| site.answer(asked)));
        let answers: Vec<Answer> = answers.collect();
        let is_busy = |answer: &Answer| matches!(answer, Err(ReplicaError::Refused { refusal: PoolRefusal::Busy, .. }));
        if !answers.iter().any(is_busy) || since.elapsed() >= BUSY_WAIT {
            return answers;
        }
        sites.iter().zip(&answers).filter(|(_, answer)| is_opened(answer)).for_each(|((_, site), _)| release(site));
        // By chance, so that two that ask for the same replicas do not meet each time.
        thread::sleep(pauses.next().unwrap_or_default().mul_f64(chance()));
    }
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

fn is_opened(answer: &Answer) -> bool {
    matches!(answer, Ok(Reply::Opened { .. }))
}
