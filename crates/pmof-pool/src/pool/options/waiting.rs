//! Opening a pool that another one has.

use std::time::{Duration, Instant};

use super::PoolOptions;
use crate::{
    PoolError, PoolUrl,
    pool::{
        Pool,
        members::{MemberState, PoolMembers},
    },
};

/// Between two openings of one that waits, each of which asks for a second already.
const PAUSE: Duration = Duration::from_millis(50);

impl PoolOptions {
    /// As [`open`](Self::open), but asks again and again, for so long, while another has the pool. With [`take_over`](Self::take_over) this waits until
    /// the other one has been silent for long enough.
    ///
    /// The members that were not named are found by those that are, as ever, and asked from then on, too: it goes on waiting, until the time is up, when those that were
    /// named die or hang, or too many of all of them.
    pub fn open_waiting(&self, timeout: Duration) -> Result<Pool, PoolError> {
        let began = Instant::now();
        let mut heard: Option<Self> = None;
        loop {
            let error = match heard.as_ref().unwrap_or(self).open() {
                Err(error) => error,
                opened => return opened,
            };
            // Of a pool that was there, members that are lost may be back in time.
            let may_wait = error.is_busy() || (heard.is_some() && error.is_replica_lost());
            if !may_wait || began.elapsed() >= timeout {
                return Err(error);
            }
            if heard.is_none() {
                heard = self.members().ok().and_then(|members| self.with_others(&members));
            }
            std::thread::sleep(PAUSE.min(timeout.saturating_sub(began.elapsed())));
        }
    }

    /// The same with the members named that others know of. `None`: not all of them are here now.
    fn with_others(&self, members: &PoolMembers) -> Option<Self> {
        if self.min_replicas.is_some() {
            return Some(self.clone());
        }
        let mut options = self.clone();
        let named = self.urls().ok()?;
        let is_named = |url: &PoolUrl| named.iter().any(|named| **named == *url);
        for member in &members.members {
            let has_data = matches!(member.state, MemberState::InSync | MemberState::Syncing | MemberState::Behind(_));
            let url = member.replica.as_ref().and_then(|replica| replica.url());
            if let Some(url) = url.filter(|url| has_data && !is_named(url)) {
                options.replicas.push(url.to_string());
            }
        }
        let is_lost = members.members.iter().any(|member| matches!(member.state, MemberState::Lost(_)));
        (!is_lost).then_some(options)
    }
}
