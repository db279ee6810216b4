//! How the threads that wait on one driver share it: one, the leader, sleeps in the kernel until bytes may move; the
//! others sleep here until there is news. So no thread sleeps through an outcome that another one has collected.

use std::{
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::poller::Poller;

/// Every flag is written before the state that it guards is looked at for the last time, and read after that state was
/// changed, all in one total order: either the sleeper sees the change or the other thread sees the sleeper.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    is_led: AtomicBool,
    /// The leader sleeps, or looks for the last time before it does.
    leader_sleeps: AtomicBool,
    /// Threads that sleep here, or look for the last time before they do.
    followers: AtomicUsize,
    /// Counts what was told.
    news: Mutex<u64>,
    told: Condvar,
}

impl Rest {
    /// True if this thread leads from now on.
    pub(crate) fn try_lead(&self) -> bool {
        !self.is_led.swap(true, SeqCst)
    }

    /// True while a thread leads.
    pub(crate) fn is_led(&self) -> bool {
        self.is_led.load(SeqCst)
    }

    /// Lets another thread lead.
    pub(crate) fn stop_leading(&self) {
        self.is_led.store(false, SeqCst);
        self.tell_followers();
    }

    /// The leader's sleep in the kernel, which the poller's wake-up ends, unless `is_done` at the last moment.
    pub(crate) fn lead(&self, sleep: impl FnOnce(), is_done: &mut dyn FnMut() -> bool) {
        self.leader_sleeps.store(true, SeqCst);
        if !is_done() {
            sleep();
        }
        self.leader_sleeps.store(false, SeqCst);
    }

    /// The sleep of a thread that does not lead: until there is news or nobody leads.
    pub(crate) fn follow(&self, timeout: Duration, is_done: &mut dyn FnMut() -> bool) {
        self.followers.fetch_add(1, SeqCst);
        let seen = *self.news.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_done() && self.is_led.load(SeqCst) {
            let news = self.news.lock().unwrap_or_else(PoisonError::into_inner);
            // Whoever wakes looks for itself: time-outs and poison change nothing.
            let _ = self.told.wait_timeout_while(news, timeout, |news| *news == seen);
        }
        self.followers.fetch_sub(1, SeqCst);
    }

    /// Ends the sleep of every thread: something changed.
    pub(crate) fn tell(&self, poller: Option<&Poller>) {
        if self.leader_sleeps.load(SeqCst)
            && let Some(poller) = poller
        {
            poller.wake();
        }
        self.tell_followers();
    }

    fn tell_followers(&self) {
        if self.followers.load(SeqCst) > 0 {
            *self.news.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            self.told.notify_all();
        }
    }
}
