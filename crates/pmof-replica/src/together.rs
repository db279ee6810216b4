//! Questions to several targets at once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use crate::{ReplicaError, background::Background};

#[cfg(test)]
mod tests;

/// How much longer the others may take once enough have answered.
pub(crate) const GRACE: Duration = Duration::from_millis(300);
/// The same where ssh has to log in and start a target: longer than that takes.
pub(crate) const SSH_GRACE: Duration = Duration::from_secs(3);
/// Where it is more, as on a busy machine: so many times what enough have taken.
const GRACE_TIMES: u32 = 3;

/// Asks all of these places at once, each on a thread of the library. Waits until all have answered, or, once `enough` have without an error, for a grace more.
/// Those that are silent until then have [`Silent`](ReplicaError::Silent), and the flag that `ask` was given is set for them; what they answer later is dropped.
pub(crate) fn together<P, T>(
    places: Vec<P>,
    (enough, grace): (usize, Duration),
    ask: impl Fn(P, &Arc<AtomicBool>) -> Result<T, ReplicaError> + Send + Sync + 'static,
) -> Vec<Result<T, ReplicaError>>
where
    P: Send + 'static,
    T: Send + 'static,
{
    let given_up = Arc::new(AtomicBool::new(false));
    let (count, began) = (places.len(), Instant::now());
    if count == 1 {
        return places.into_iter().map(|place| ask(place, &given_up)).collect();
    }
    let (tell, told) = mpsc::channel();
    let ask = Arc::new(ask);
    for (at, place) in places.into_iter().enumerate() {
        let (ask, given_up, tell) = (Arc::clone(&ask), Arc::clone(&given_up), tell.clone());
        // Dropped, it goes on.
        drop(Background::run(move || {
            // The one that asked may have gone on.
            let _ = tell.send((at, ask(place, &given_up)));
        }));
    }
    drop(tell);
    let mut answers: Vec<Option<Result<T, ReplicaError>>> = (0..count).map(|_| None).collect();
    let (mut left, mut until) = (count, None);
    while left > 0 {
        let is_enough = answers.iter().flatten().filter(|answer| answer.is_ok()).count() >= enough;
        if is_enough && until.is_none() {
            until = Some(Instant::now() + grace.max(began.elapsed() * GRACE_TIMES));
        }
        let next = match until {
            Some(until) => told.recv_timeout(until.saturating_duration_since(Instant::now())),
            None => told.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        let Ok((at, answer)) = next else { break };
        answers[at] = Some(answer);
        left -= 1;
    }
    given_up.store(true, Ordering::Relaxed);
    let waited_ms = began.elapsed().as_millis() as u64;
    answers.into_iter().map(|answer| answer.unwrap_or(Err(ReplicaError::Silent { waited_ms }))).collect()
}
