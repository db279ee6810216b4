//! The fast path of a wait and of a poll: on a queue of one connection, a device's, on which nothing but operations is under way. It looks
//! only at the device, sleeps on the device's own descriptor, and hands the outcome over without a stop on the way.

use std::{sync::Arc, sync::atomic::Ordering, time::Duration};

use pmof_mem::cycles;

use super::{Driver, TICK_PERIOD, Wanted};
use crate::{
    Completion, ConnectionId, Waiting,
    link::{Link, LinkCore},
};

/// Looks between two at the clock.
const LOOKS: u32 = 64;

/// The processor's count between two looks at the clock: less than [`TICK_PERIOD`] on every processor.
const CLOCK_CYCLES: u64 = 1 << 22;

/// How a wait or a poll on the fast path ended.
#[derive(Debug)]
pub(crate) enum FastPath {
    /// With the outcome, which lies where the caller said.
    Found,
    /// With something else that is to be seen to.
    Moved,
    /// Without anything. Time has passed.
    Nothing,
    /// The way is not open.
    Closed,
}

impl Driver {
    /// Waits for an outcome as long as nothing else is to be seen to: at most until the connections are told the time again.
    ///
    /// `times`: from when, and until when at most. Without them the clock is not read, which a wait does only if this finds nothing, and the
    /// connections are told the time before its own end.
    #[inline]
    pub(crate) fn wait_on_fast_path(
        &self,
        times: Option<(Duration, Duration)>,
        waiting: Waiting,
        wanted: Wanted,
        found: &mut Option<Completion>,
    ) -> FastPath {
        let from = times.map(|(from, _)| from);
        let Some((link, tick_at)) = self.single_device(from) else { return FastPath::Closed };
        let until = times.map_or(tick_at, |(_, until)| until.min(tick_at));
        let outcome = match (waiting, from) {
            (Waiting::Adaptive { spin: Duration::ZERO }, _) => self.sleep_on_device(&link, until, from, wanted, found),
            (_, None) => self.spin_some(&link, wanted, found),
            (Waiting::Adaptive { spin }, Some(from)) => {
                self.spin_on_device(&link, until.min(from.saturating_add(spin)), wanted, found)
            }
            (Waiting::BusyPoll, _) => self.spin_on_device(&link, until, wanted, found),
        };
        self.wake_others(&outcome);
        outcome
    }

    /// Looks for an outcome once, where none is known, as long as the connection is not to be told the time.
    #[inline]
    pub(crate) fn poll_on_fast_path(&self, found: &mut Option<Completion>) -> FastPath {
        let Some((link, _)) = self.single_device(None) else { return FastPath::Closed };
        let outcome = self.look(&link, None, found);
        self.wake_others(&outcome);
        outcome
    }

    /// Others may wait for room, or for what came with the outcome.
    #[inline]
    fn wake_others(&self, outcome: &FastPath) {
        if matches!(outcome, FastPath::Found | FastPath::Moved) {
            self.wake();
        }
    }

    /// The connection, where the way is open, and when it is to be told the time.
    #[inline]
    fn single_device(&self, now: Option<Duration>) -> Option<(Arc<Link>, Duration)> {
        if self.is_shared() || self.is_interrupted() {
            return None;
        }
        let links = self.links.try_lock()?;
        let tick_at = links.ticked_at.saturating_add(TICK_PERIOD);
        match &links.all[..] {
            [link] if link.completion_channel.is_some() && self.is_early(now, tick_at) => {
                Some((Arc::clone(link), tick_at))
            }
            _ => None,
        }
    }

    /// Whether the connection is not to be told the time yet: by the processor's count where it is not known what time it is now.
    fn is_early(&self, now: Option<Duration>, tick_at: Duration) -> bool {
        let (None, Some(count)) = (now, cycles()) else { return now.unwrap_or_else(|| self.now()) < tick_at };
        let is_early = count.wrapping_sub(self.clocked_at.load(Ordering::Relaxed)) < CLOCK_CYCLES;
        if !is_early {
            self.clocked_at.store(count, Ordering::Relaxed);
        }
        is_early
    }

    /// Whether others than the queue's connections and whoever waits for it have a part in what it does.
    fn is_shared(&self) -> bool {
        self.delivered.get().is_some() || self.has_woken.load(Ordering::SeqCst)
    }

    fn spin_on_device(&self, link: &Link, until: Duration, wanted: Wanted, found: &mut Option<Completion>) -> FastPath {
        loop {
            match self.spin_some(link, wanted, found) {
                FastPath::Nothing => {}
                seen => return seen,
            }
            if self.now() >= until || self.is_interrupted() {
                return FastPath::Nothing;
            }
        }
    }

    fn spin_some(&self, link: &Link, wanted: Wanted, found: &mut Option<Completion>) -> FastPath {
        for _ in 0..LOOKS {
            match self.look(link, wanted, found) {
                // Another thread that waits on the queue may have taken it in.
                FastPath::Nothing if self.has_ready() => return FastPath::Moved,
                FastPath::Nothing => std::hint::spin_loop(),
                seen => return seen,
            }
        }
        FastPath::Nothing
    }

    /// Sleeps once, until a time: where it is not known what time it is now, only if the alarm is set for it. What shows on no descriptor of
    /// this sleep waits for its end: it is that short.
    fn sleep_on_device(
        &self,
        link: &Link,
        until: Duration,
        from: Option<Duration>,
        wanted: Wanted,
        found: &mut Option<Completion>,
    ) -> FastPath {
        let (Some(poller), Some(completion_channel)) = (self.poller.get(), &link.completion_channel) else {
            return FastPath::Closed;
        };
        let may_sleep = match from {
            Some(from) => from < until,
            None => poller.has_alarm(until),
        };
        if !may_sleep || !self.sleepers.try_lead() {
            return FastPath::Closed;
        }
        let mut seen = FastPath::Nothing;
        if from.is_none_or(|from| poller.set_alarm(from, until)) {
            self.sleepers.lead(|| poller.sleep_till_alarm(completion_channel.as_fd()), &mut || {
                // What comes into the list of such a queue does so under the lock of its connection, which this takes: so the flag
                // that is looked at without a lock says what is there.
                seen = self.look_armed(link, wanted, found);
                !matches!(seen, FastPath::Nothing) || self.is_interrupted() || self.has_ready()
            });
        }
        self.sleepers.stop_leading();
        if matches!(seen, FastPath::Nothing) { self.look(link, wanted, found) } else { seen }
    }

    /// The last look before a sleep: what comes after it makes a notification.
    fn look_armed(&self, link: &Link, wanted: Wanted, found: &mut Option<Completion>) -> FastPath {
        let Some(mut core) = link.try_lock() else { return FastPath::Moved };
        core.request_notification();
        self.look_at(link, &mut core, wanted, found)
    }

    #[inline]
    fn look(&self, link: &Link, wanted: Wanted, found: &mut Option<Completion>) -> FastPath {
        let Some(mut core) = link.try_lock() else { return FastPath::Moved };
        self.look_at(link, &mut core, wanted, found)
    }

    #[inline]
    fn look_at(&self, link: &Link, core: &mut LinkCore, wanted: Wanted, found: &mut Option<Completion>) -> FastPath {
        if core.has_receive_collector() {
            // Not all outcomes are this driver's.
            return FastPath::Moved;
        }
        match core.take_in() {
            Some(true) => {
                self.hand_over(link.id, core, wanted, found);
                if found.is_some() { FastPath::Found } else { FastPath::Moved }
            }
            Some(false) => FastPath::Nothing,
            None => FastPath::Moved,
        }
    }

    /// The outcome that is wanted, directly from the connection if it is the next one; all others go where they are waited
    /// for.
    #[inline]
    fn hand_over(&self, id: u64, core: &mut LinkCore, wanted: Wanted, found: &mut Option<Completion>) {
        let Some(first) = core.next_completion() else { return };
        let first = Completion::new(ConnectionId(id), first);
        // What this connection brought before is known here, since its lock is held.
        let is_only_one = !self.has_ready() && !core.endpoint.has_completions();
        *found = if wanted.is_none() && is_only_one && !self.has_reserved.load(Ordering::SeqCst) {
            Some(first)
        } else {
            self.hand_over_all(first, core, wanted)
        };
    }

    #[inline(never)]
    fn hand_over_all(&self, first: Completion, core: &mut LinkCore, wanted: Wanted) -> Option<Completion> {
        let id = first.connection;
        let mut ready = self.ready.lock();
        let of_first = (first.connection, first.ticket);
        let is_wanted = wanted.map_or_else(|| !self.is_reserved(of_first), |wanted| wanted == of_first);
        // What was collected before comes before it.
        let mut found = None;
        if ready.is_empty() && is_wanted {
            found = Some(first);
        } else {
            ready.add(first);
        }
        while let Some(next) = core.next_completion() {
            ready.add(Completion::new(id, next));
        }
        if !ready.is_empty() {
            self.announce();
        }
        drop(ready);
        found.or_else(|| self.take_wanted(wanted))
    }
}
