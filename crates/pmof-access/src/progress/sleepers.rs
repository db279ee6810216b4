//! How the threads that wait on one driver share it: one, the leader, sleeps in the kernel until bytes may move; the
//! others sleep here until there is news. So no thread sleeps through an outcome that another one has collected.

use std::time::Duration;

use crate::sync::{
    Condvar, Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
};

/// Every flag is written before the state that it guards is looked at for the last time, and read after that state was
/// changed, all in one total order: either the sleeper sees the change or the other thread sees the sleeper.
#[derive(Debug, Default)]
pub(crate) struct Sleepers {
    is_led: AtomicBool,
    /// The leader sleeps, or looks for the last time before it does.
    leader_sleeps: AtomicBool,
    /// Threads that sleep here, or look for the last time before they do.
    followers: AtomicUsize,
    /// Counts how often the followers were woken.
    news: Mutex<u64>,
    has_news: Condvar,
}

impl Sleepers {
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
        self.wake_followers();
    }

    /// The leader's sleep in the kernel, which [`wake`](Self::wake) ends, unless `is_done` at the last moment.
    pub(crate) fn lead(&self, sleep: impl FnOnce(), is_done: &mut dyn FnMut() -> bool) {
        self.doze();
        if !is_done() {
            sleep();
        }
        self.rouse();
    }

    /// The leader sleeps from here on, or does something else: [`wake`](Self::wake) tells it of what changes. It looks for the last time
    /// after this.
    pub(crate) fn doze(&self) {
        self.leader_sleeps.store(true, SeqCst);
    }

    /// The leader is back.
    pub(crate) fn rouse(&self) {
        self.leader_sleeps.store(false, SeqCst);
    }

    /// The sleep of a thread that does not lead: until there is news or nobody leads.
    pub(crate) fn follow(&self, timeout: Duration, is_done: &mut dyn FnMut() -> bool) {
        self.followers.fetch_add(1, SeqCst);
        let seen = *self.news.lock();
        if !is_done() && self.is_led() {
            // Whoever wakes looks for itself: that its time is up changes nothing.
            let _ = self.has_news.wait_while_for(&mut self.news.lock(), |news| *news == seen, timeout);
        }
        self.followers.fetch_sub(1, SeqCst);
    }

    /// Ends the sleep of every thread: something changed. `wake_leader` ends a sleep in the kernel, the present one or the next.
    pub(crate) fn wake(&self, wake_leader: impl FnOnce()) {
        if self.leader_sleeps.load(SeqCst) {
            wake_leader();
        }
        self.wake_followers();
    }

    fn wake_followers(&self) {
        if self.followers.load(SeqCst) > 0 {
            *self.news.lock() += 1;
            self.has_news.notify_all();
        }
    }
}
