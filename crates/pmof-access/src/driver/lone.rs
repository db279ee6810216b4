//! The short way of a wait: on a queue of one connection, a device's, on which nothing but operations is under way. It looks
//! at the device alone, sleeps on the device's own descriptor, and hands the outcome over without a stop on the way.

use std::{sync::Arc, sync::atomic::Ordering, time::Duration};

use super::{Driver, TICK_PERIOD, Wanted};
use crate::{
    Completion, ConnectionId, Waiting,
    link::{Link, LinkCore},
};

/// Looks between two at the clock.
const LOOKS: u32 = 64;

/// How a wait by the short way ended.
#[derive(Debug)]
pub(crate) enum Lone {
    /// With the outcome.
    Found(Completion),
    /// With something else that is to be seen to.
    Moved,
    /// Without anything. Time has passed.
    Nothing,
    /// The way is not open.
    No,
}

impl Driver {
    /// Waits for an outcome, from a time until another, as long as nothing else is to be seen to: at most until the
    /// connections are told the time again.
    pub(crate) fn wait_lone(&self, (from, until): (Duration, Duration), waiting: Waiting, wanted: Wanted) -> Lone {
        let Some((link, tick_at)) = self.lone_device(from) else { return Lone::No };
        let until = until.min(tick_at);
        let lone = match waiting {
            Waiting::Adaptive { spin: Duration::ZERO } => self.sleep_lone(&link, (from, until), wanted),
            Waiting::Adaptive { spin } => self.spin_lone(&link, until.min(from.saturating_add(spin)), wanted),
            Waiting::BusyPoll => self.spin_lone(&link, until, wanted),
        };
        if matches!(lone, Lone::Found(_) | Lone::Moved) {
            // Others may wait for room, or for what this thread did not wait for.
            self.tell();
        }
        lone
    }

    /// The connection, where the way is open, and when it is to be told the time.
    fn lone_device(&self, now: Duration) -> Option<(Arc<Link>, Duration)> {
        let is_shared = self.brought.get().is_some() || self.has_woken.load(Ordering::SeqCst);
        if is_shared || self.is_interrupted() {
            return None;
        }
        let links = self.links.try_lock().ok()?;
        let tick_at = links.ticked_at.saturating_add(TICK_PERIOD);
        match &links.all[..] {
            [link] if link.announcer.is_some() && now < tick_at => Some((Arc::clone(link), tick_at)),
            _ => None,
        }
    }

    fn spin_lone(&self, link: &Link, until: Duration, wanted: Wanted) -> Lone {
        loop {
            for _ in 0..LOOKS {
                match self.look(link, wanted) {
                    // Another thread that waits on the queue may have taken it in.
                    Lone::Nothing if self.has_ready() => return Lone::Moved,
                    Lone::Nothing => std::hint::spin_loop(),
                    seen => return seen,
                }
            }
            if self.now() >= until || self.is_interrupted() {
                return Lone::Nothing;
            }
        }
    }

    /// Sleeps once. What shows on no descriptor of this sleep waits for its end: it is that short.
    fn sleep_lone(&self, link: &Link, (from, until): (Duration, Duration), wanted: Wanted) -> Lone {
        let (Some(poller), Some(announcer)) = (&self.poller, &link.announcer) else { return Lone::No };
        if from >= until || !self.rest.try_lead() {
            return Lone::No;
        }
        let mut seen = Lone::Nothing;
        if poller.set_alarm(from, until) {
            self.rest.lead(|| poller.sleep_till_alarm(announcer.as_fd()), &mut || {
                seen = self.look_armed(link, wanted);
                !matches!(seen, Lone::Nothing) || self.is_interrupted() || self.has_ready()
            });
        }
        self.rest.stop_leading();
        if matches!(seen, Lone::Nothing) { self.look(link, wanted) } else { seen }
    }

    /// The last look before a sleep: what comes after it is announced.
    fn look_armed(&self, link: &Link, wanted: Wanted) -> Lone {
        let Some(mut core) = link.try_lock() else { return Lone::Moved };
        core.announce();
        self.look_at(link, &mut core, wanted)
    }

    fn look(&self, link: &Link, wanted: Wanted) -> Lone {
        let Some(mut core) = link.try_lock() else { return Lone::Moved };
        self.look_at(link, &mut core, wanted)
    }

    fn look_at(&self, link: &Link, core: &mut LinkCore, wanted: Wanted) -> Lone {
        match core.take_in() {
            Some(true) => self.hand_over(link.id, core, wanted).map_or(Lone::Moved, Lone::Found),
            Some(false) => Lone::Nothing,
            None => Lone::Moved,
        }
    }

    /// The outcome that is wanted, straight from the connection if it is the next one; all others go where they are waited
    /// for.
    fn hand_over(&self, id: u64, core: &mut LinkCore, wanted: Wanted) -> Option<Completion> {
        let first = Completion::new(ConnectionId(id), core.next_completion()?);
        let mut ready = self.lock_ready();
        let of_first = (first.connection, first.ticket);
        let is_wanted = wanted.map_or_else(|| !self.is_aside(of_first), |wanted| wanted == of_first);
        // What was collected before comes before it.
        let mut found = None;
        if ready.is_empty() && is_wanted {
            found = Some(first);
        } else {
            ready.push_back(first);
        }
        while let Some(next) = core.next_completion() {
            ready.push_back(Completion::new(ConnectionId(id), next));
        }
        if !ready.is_empty() {
            self.seen_signal().inspect(|signal| signal.set());
        }
        drop(ready);
        found.or_else(|| self.take_wanted(wanted))
    }
}
