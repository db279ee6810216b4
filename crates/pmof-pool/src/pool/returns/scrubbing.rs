//! A pool that its writer scrubs in the background.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use super::{Returns, spawn};
use crate::{
    PoolError,
    pool::{Shared, events::Event, scrub::Scrub},
};

/// How many times as long as a window took is waited for after it: those who write and read have the rest of the time.
const REST: u32 = 9;

/// Between two scrubs, whatever is asked for; and after a replica was lost in the middle of one, before it goes on.
const LEAST_PAUSE: Duration = Duration::from_secs(1);

impl Returns {
    /// Has the pool scrubbed in the background, if whoever opened it asks for that.
    pub(super) fn start_scrubbing(self: &Arc<Self>, pool: &Arc<Shared>) {
        let Some(every) = self.scrub_every else { return };
        let (returns, pool) = (Arc::clone(self), Arc::downgrade(pool));
        if let Err(error) = spawn("pmof-pool-scrub", move || returns.scrub_again_and_again(&pool, every)) {
            log::error!("no thread to scrub the pool could be started: {error}");
        }
    }

    fn scrub_again_and_again(&self, pool: &Weak<Shared>, every: Duration) {
        while self.pause(every.max(LEAST_PAUSE)) && self.scrub_once(pool) {}
    }

    /// False: nobody is to scrub the pool any more.
    fn scrub_once(&self, pool: &Weak<Shared>) -> bool {
        let (mut scrub, began) = (Scrub::default(), Instant::now());
        loop {
            let Some(shared) = pool.upgrade() else { return false };
            if scrub.is_done(&shared) {
                shared.events.add(Event::Scrubbed { report: Arc::new(scrub.report), took: began.elapsed() });
                shared.note_scrubbed();
                return true;
            }
            let window_began = Instant::now();
            let pause = match shared.scrub_window(&mut scrub) {
                Ok(()) => window_began.elapsed() * REST,
                // Those that are left are compared from there on.
                Err(PoolError::Replica { .. }) => LEAST_PAUSE,
                Err(_) => return false,
            };
            drop(shared);
            if !self.pause(pause) {
                return false;
            }
        }
    }
}
