//! Questions to several targets at once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use pmof_replication::opening::limits::GRACE_TIMES;

use crate::ReplicaError;

#[cfg(test)]
mod tests;

/// How long the others are awaited once enough have answered, in several questions one after the other.
#[derive(Debug)]
pub(crate) struct Tempo {
    grace: Duration,
    /// The longest that enough have taken.
    took: Duration,
}

impl Tempo {
    pub(crate) fn new(grace: Duration) -> Self {
        Self { grace, took: Duration::ZERO }
    }

    /// At least so long from now on.
    pub(crate) fn set_grace(&mut self, grace: Duration) {
        self.grace = grace;
    }

    fn after(&mut self, took: Duration) -> Duration {
        self.took = self.took.max(took);
        self.grace.max(self.took * GRACE_TIMES)
    }
}

/// Asks all of these places at once, each on a thread of its own. Waits until all have answered, or, once `enough` have without an error, for its grace more.
/// A place that is silent until then gets [`Silent`](ReplicaError::Silent), and the flag that `ask` was given for it is set; a later answer is dropped. So `ask`
/// changes nothing there: it connects and looks.
pub(crate) fn together<P, T>(
    places: Vec<P>,
    (enough, tempo): (usize, &mut Tempo),
    ask: impl Fn(P, &Arc<AtomicBool>) -> Result<T, ReplicaError> + Send + Sync + 'static,
) -> Vec<Result<T, ReplicaError>>
where
    P: Send + 'static,
    T: Send + 'static,
{
    let (count, began) = (places.len(), Instant::now());
    let given_up: Vec<_> = places.iter().map(|_| Arc::new(AtomicBool::new(false))).collect();
    let (tell, told) = mpsc::channel();
    let ask = Arc::new(ask);
    for (at, place) in places.into_iter().enumerate() {
        let (ask, given_up, tell) = (Arc::clone(&ask), Arc::clone(&given_up[at]), tell.clone());
        // Where there is no thread for it, it is asked before the next.
        let place = Arc::new(Mutex::new(Some(place)));
        let act = {
            let place = Arc::clone(&place);
            move || {
                let Some(place) = place.lock().take() else { return };
                // The one that asked may have gone on.
                let _ = tell.send((at, ask(place, &given_up)));
            }
        };
        if count == 1 {
            act();
        } else if let Err(error) = thread::Builder::new().name("pmof-pool-ask".to_owned()).spawn(act.clone()) {
            log::warn!("no thread to ask a replica could be started: {error}");
            act();
        }
    }
    drop(tell);
    let mut answers: Vec<Option<Result<T, ReplicaError>>> = (0..count).map(|_| None).collect();
    let (mut left, mut until) = (count, None);
    while left > 0 {
        let is_enough = answers.iter().flatten().filter(|answer| answer.is_ok()).count() >= enough;
        if is_enough && until.is_none() {
            until = Some(Instant::now() + tempo.after(began.elapsed()));
        }
        let next = match until {
            Some(until) => told.recv_timeout(until.saturating_duration_since(Instant::now())),
            None => told.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        let Ok((at, answer)) = next else { break };
        answers[at] = Some(answer);
        left -= 1;
    }
    if until.is_none() {
        tempo.after(began.elapsed());
    }
    let silent = answers.iter().zip(&given_up).filter(|(answer, _)| answer.is_none());
    silent.for_each(|(_, given_up)| given_up.store(true, Ordering::Relaxed));
    let waited_ms = began.elapsed().as_millis() as u64;
    answers.into_iter().map(|answer| answer.unwrap_or(Err(ReplicaError::Silent { waited_ms }))).collect()
}
