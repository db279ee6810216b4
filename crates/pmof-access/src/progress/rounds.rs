//! What an assistant does: it goes round the drivers that nobody else drives.

use std::{collections::HashMap, mem, sync::Arc, time::Duration};

use super::{
    Backoff, Waiting,
    assisted::{Assisted, Registration, Registry},
    callers::Watch,
};
use crate::clock::Clock;

/// Up to this many drivers are driven in every turn while they are busy; of more, those whose sockets are readable.
const DRIVEN_MAX: usize = 4;

/// Turns without a movement between two looks at the sockets of those that are not busy.
const TURNS_PER_LOOK: u32 = 16;

/// The longest sleep. So much later, at most, somebody is told the time.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Of two that have slept for so long and are due soon after each other, the second is not waited for.
const DUE_TOGETHER: Duration = Duration::from_millis(250);

/// The drivers of an assistant.
#[derive(Debug)]
pub(super) struct Rounds<'d> {
    registry: &'d Registry,
    clock: Clock,
    members: HashMap<u64, Member>,
    /// Those that are driven without a sleep.
    busy: Vec<u64>,
    /// Nobody is due before.
    alarm: Duration,
    moved_at: Duration,
    is_flushing: bool,
}

/// A driver, as its assistant has it.
#[derive(Debug)]
struct Member {
    registration: Arc<Registration>,
    watch: Watch,
    state: State,
    /// When something moved, by the clock of the rounds.
    moved_at: Duration,
    asleep_at: Duration,
    /// When it is to be looked at without a call.
    due: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Callers drive, or did just now.
    Left,
    /// The assistant leads, without a sleep.
    Busy,
    /// It leads, and sleeps as far as this one is concerned.
    Asleep,
}

impl<'d> Rounds<'d> {
    pub(super) fn new(registry: &'d Registry) -> Self {
        let clock = Clock::real();
        let (members, busy) = (HashMap::new(), Vec::new());
        Self { registry, clock, members, busy, alarm: Duration::MAX, moved_at: Duration::ZERO, is_flushing: false }
    }

    /// Until the end of the assistant.
    pub(super) fn work(mut self) {
        let mut turns = 0_u32;
        while !self.registry.is_closed() {
            let now = self.clock.now();
            for id in self.registry.calls().take() {
                self.answer(id, now);
            }
            if now >= self.alarm {
                self.see_to_due(now);
            }
            if self.busy.is_empty() {
                let time = self.alarm.saturating_sub(now).min(SLEEP_MAX);
                self.registry.calls().sleep(|| self.registry.poller().sleep(time));
                self.look_at_sockets();
                continue;
            }
            let mut moved = self.drive_busy(now);
            turns = turns.wrapping_add(1);
            if self.busy.len() > DRIVEN_MAX || turns % TURNS_PER_LOOK == 0 {
                moved |= self.look_at_sockets();
            }
            if !moved {
                self.pause();
            }
        }
    }

    /// As whoever waits does before it sleeps.
    fn pause(&self) {
        let never = Waiting::Adaptive { spin: Duration::MAX };
        let backoff = Backoff::since(self.moved_at, never);
        let _ = backoff.next(self.clock.now(), &self.clock, self.is_flushing).is_park();
    }

    fn answer(&mut self, id: u64, now: Duration) {
        if !self.members.contains_key(&id) {
            let Some(registration) = self.registry.get(id) else { return };
            let watch = registration.driver.lock().as_ref().and_then(|driver| driver.callers()).map(Watch::new);
            let Some(watch) = watch else { return };
            let due = now + watch.look_after;
            self.members
                .insert(id, Member { registration, watch, state: State::Left, moved_at: now, asleep_at: now, due });
            self.alarm = self.alarm.min(due);
        }
        if let Some(member) = self.members.get(&id) {
            member.registration.take_notification();
        }
        self.turn(id, now);
    }

    /// Those whose sockets tell of something. True if anything moved.
    fn look_at_sockets(&mut self) -> bool {
        let mut found = Vec::new();
        self.registry.poller().ready(|id| found.push(id));
        let now = self.clock.now();
        // One with two sockets may be there twice.
        found.sort_unstable();
        found.dedup();
        found.into_iter().fold(false, |moved, id| {
            self.unwatch_left(id, now);
            self.turn(id, now) | moved
        })
    }

    /// What comes for callers is not for the assistant.
    fn unwatch_left(&mut self, id: u64, now: Duration) {
        let Some(member) = self.members.get(&id).filter(|member| member.state == State::Left) else { return };
        let driver = member.registration.driver.lock();
        let is_left = |driver: &&Arc<dyn Assisted>| now < member.due && !driver.is_watched();
        if driver.as_ref().filter(is_left).is_some_and(|driver| !driver.unwatch_for(&member.registration)) {
            std::thread::yield_now();
        }
    }

    fn drive_busy(&mut self, now: Duration) -> bool {
        let busy = mem::take(&mut self.busy);
        let drives_all = busy.len() <= DRIVEN_MAX;
        self.is_flushing = false;
        let mut moved = false;
        for id in &busy {
            let is_over = |member: &Member| member.is_idle_for_long(now);
            if drives_all || self.members.get(id).is_some_and(is_over) {
                moved |= self.turn(*id, now);
            }
        }
        // What has become busy meanwhile came behind.
        let new = mem::replace(&mut self.busy, busy);
        self.busy.extend(new);
        let members = &self.members;
        self.busy.retain(|id| members.get(id).is_some_and(|member| member.state == State::Busy));
        self.busy.sort_unstable();
        self.busy.dedup();
        moved
    }

    fn see_to_due(&mut self, now: Duration) {
        let soon = now + DUE_TOGETHER;
        let is_due = |member: &Member| match member.state {
            State::Left => member.due <= now,
            State::Asleep => member.due <= now || (member.due <= soon && now >= member.asleep_at + DUE_TOGETHER),
            State::Busy => false,
        };
        let due: Vec<u64> = self.members.iter().filter(|(_, member)| is_due(member)).map(|(id, _)| *id).collect();
        for id in due {
            self.turn(id, now);
        }
        let waiting = self.members.values().filter(|member| member.state != State::Busy);
        self.alarm = waiting.map(|member| member.due).min().unwrap_or(Duration::MAX);
    }

    /// Does for one what is to be done. True if anything moved.
    fn turn(&mut self, id: u64, now: Duration) -> bool {
        let Some(member) = self.members.get_mut(&id) else { return false };
        let registration = Arc::clone(&member.registration);
        let driver = registration.driver.lock();
        let Some(driver) = &*driver else {
            self.members.remove(&id);
            return false;
        };
        let was_busy = member.state == State::Busy;
        let moved = member.turn(&**driver, now, &self.clock);
        if moved {
            self.moved_at = member.moved_at;
        }
        if member.state == State::Busy {
            self.is_flushing |= driver.is_flushing();
            if !was_busy {
                self.busy.push(id);
            }
        } else {
            self.alarm = self.alarm.min(member.due);
        }
        moved
    }
}

impl Member {
    fn is_idle_for_long(&self, now: Duration) -> bool {
        match self.registration.waiting {
            Waiting::Adaptive { spin } => now.saturating_sub(self.moved_at) >= spin,
            Waiting::BusyPoll => false,
        }
    }

    fn turn(&mut self, driver: &dyn Assisted, now: Duration, clock: &Clock) -> bool {
        let Some(callers) = driver.callers() else { return false };
        match self.state {
            State::Left if now < self.due && !driver.is_watched() => return false,
            State::Left => {
                let is_idle = self.watch.look(callers, driver.has_only_devices());
                self.due = now + self.watch.look_after;
                // A caller may have lost its processor in the middle of a turn: to spin beside it would only keep it waiting.
                let may_drive = (is_idle && !driver.is_in_use()) || driver.is_watched();
                if !may_drive || !driver.try_lead_for(&self.registration) {
                    return false;
                }
                self.moved_at = now;
            }
            State::Busy => {}
            State::Asleep => driver.rouse(),
        }
        self.state = State::Busy;
        if !driver.is_watched() && (self.watch.is_back(callers) || driver.is_in_use()) {
            driver.stop_leading();
            (self.state, self.due) = (State::Left, now + self.watch.look_after);
            return false;
        }
        let moved = driver.drive();
        if moved {
            self.moved_at = clock.now();
        } else if self.is_idle_for_long(now) {
            if let Some(time) = driver.doze(SLEEP_MAX) {
                (self.state, self.asleep_at, self.due) = (State::Asleep, now, now + time);
            }
        }
        moved
    }
}
