//! How those who drive sleep, and how they are woken.

use std::{mem, sync::Arc, time::Duration};

use super::{Driver, SLEEP_MAX, TICK_PERIOD};
use crate::{
    clock::Clock,
    link::LinkCore,
    progress::{Leader, Poller, ReadyFlag as _, SleepSocket, sleep_without_waker},
};

/// How long a sleep is that not everything can end.
const MOMENT: Duration = Duration::from_millis(1);

impl Driver {
    /// Sleeps until something may have changed, at most from `now` until `until`. `is_done` is asked once more before the sleep, from
    /// when on every change ends it.
    pub(crate) fn park(&self, now: Duration, until: Duration, is_done: &mut dyn FnMut() -> bool) {
        match &self.clock {
            Clock::Virtual(time) => {
                let (due, changed) = self.tick(&mut self.links.lock());
                if !changed {
                    time.advance([Some(until), due].into_iter().flatten().min());
                }
            }
            Clock::Real(_) if self.sleepers.try_lead() => {
                self.lead(now, until, is_done);
                self.stop_leading();
            }
            Clock::Real(_) => self.sleepers.follow(until.saturating_sub(now), is_done),
        }
    }

    /// As [`park`](Self::park), for a caller who leaves it to the queue's thread to lead.
    pub(crate) fn park_as_follower(&self, now: Duration, until: Duration, is_done: &mut dyn FnMut() -> bool) {
        /// That thread begins in a moment.
        const MOMENT: Duration = Duration::from_micros(100);
        if self.sleepers.is_led() {
            self.sleepers.follow(until.saturating_sub(now), is_done);
        } else {
            std::thread::sleep(MOMENT);
        }
    }

    /// Sleeps in the kernel, as the thread that leads.
    pub(crate) fn lead(&self, now: Duration, until: Duration, is_done: &mut dyn FnMut() -> bool) {
        if self.flushes.wait_for_answer() {
            return;
        }
        let Some(due) = self.due(now) else { return };
        let time = until.min(due).saturating_sub(now).min(SLEEP_MAX);
        match self.poller.get() {
            Some(poller) => self.sleep_on_poller(poller, time, is_done),
            None => self.sleep_on_sockets(time, is_done),
        }
    }

    /// When the connections are to be told the time again. `None` where telling them has changed something.
    pub(super) fn due(&self, now: Duration) -> Option<Duration> {
        let mut links = self.links.lock();
        let tick_at = links.ticked_at.saturating_add(TICK_PERIOD);
        // Connections that were told the time just now are not told again before each of many short sleeps. Whoever sleeps long asks
        // until when it may: else it would wake only for that, 50 times a second.
        let was_short = now.saturating_sub(links.led_at) < TICK_PERIOD / 2;
        links.led_at = now;
        let (due, changed) = if was_short && now < tick_at { (Some(tick_at), false) } else { self.tick(&mut links) };
        drop(links);
        if changed {
            self.wake();
            return None;
        }
        Some(due.unwrap_or(Duration::MAX))
    }

    fn sleep_on_poller(&self, poller: &Poller, time: Duration, is_done: &mut dyn FnMut() -> bool) {
        let delivered = self.delivered.get();
        if let Some(delivered) = delivered {
            let _ready = self.ready.lock();
            // The sleeper looks at what is there already: that is not to keep it awake.
            delivered.clear();
        }
        self.sleepers.lead(|| poller.sleep(time), &mut || is_done() || self.arm());
        if let Some(delivered) = delivered {
            let ready = self.ready.lock();
            if !ready.is_empty() {
                delivered.set();
            }
        }
    }

    fn sleep_on_sockets(&self, time: Duration, is_done: &mut dyn FnMut() -> bool) {
        let waker = self.wakers.take();
        if let Some(waker) = &waker {
            *self.leader.lock() = Leader::OnSockets(Arc::clone(waker));
        }
        let sleep = || {
            // From here on every change wakes: what the sockets are waited for is looked at after that was said.
            let sockets = self.sockets();
            let time = if sockets.is_some() { time } else { time.min(MOMENT) };
            let sockets = sockets.unwrap_or_default();
            match &waker {
                Some(waker) => waker.sleep(&sockets, time),
                None => sleep_without_waker(&sockets, time.min(MOMENT)),
            }
        };
        self.sleepers.lead(sleep, &mut || is_done() || self.arm());
        mem::take(&mut *self.leader.lock());
    }

    /// What to sleep on. `None` while somebody has to do with the connections, perhaps this very thread.
    fn sockets(&self) -> Option<Vec<SleepSocket>> {
        let links = self.links.try_lock()?;
        let mut sockets = Vec::with_capacity(2 * links.all.len());
        for link in &links.all {
            link.try_lock()?.add_sockets(&mut sockets);
        }
        Some(sockets)
    }

    /// Has those who sleep on a connection's sockets sleep on them anew, where these are to be waited for otherwise.
    pub(crate) fn tell_interest(&self, core: &mut LinkCore) {
        if core.take_new_interest() {
            core.tell_both();
            self.wake();
        }
    }

    /// Ends the sleep of every thread: something changed.
    pub(crate) fn wake(&self) {
        self.sleepers.wake(|| self.leader.lock().wake(self.poller.get().map(|poller| &**poller)));
    }

    /// Makes the calling thread the one that sleeps in the kernel, for good or until it [stops](Self::stop_leading). False if
    /// another one is.
    pub(crate) fn try_lead(&self) -> bool {
        self.sleepers.try_lead()
    }

    pub(crate) fn stop_leading(&self) {
        mem::take(&mut *self.leader.lock());
        self.sleepers.stop_leading();
    }
}
