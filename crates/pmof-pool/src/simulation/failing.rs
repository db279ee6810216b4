//! Targets and the network fail.

use pmof_control::PoolState;

use super::{
    faults::Fault,
    media::Media,
    plan::{Control, PAGES, WORDS},
    target::{Restored, Target},
    truth::Pages,
    versions::Version,
    world::{Connection, Event, Link, WALL_CLOCK_MS, World, brief},
};
use crate::lineage::{Found, agree};

impl World {
    /// One thing goes wrong with a target or with the network.
    pub(super) fn fail_something(&mut self) {
        let (target, kind) = (self.random.below(self.targets.len()), self.random.below(45));
        match kind {
            // What the control is about happens more often there.
            _ if self.control == Some(Control::MarksNotCompared) && self.random.once_in(2) => self.copy(target),
            _ if self.control == Some(Control::MarksNotCompared) && self.random.once_in(2) => self.restore(target),
            _ if self.control == Some(Control::WitnessJoins) && self.random.once_in(3) => self.stop_witness(),
            0..=2 => self.stop(target, true),
            3 => self.stop(target, false),
            4..=6 => self.cut(true),
            7..=9 => self.cut(false),
            10..=12 => self.block(target),
            22 | 23 | 28 if self.plan.asynchronous.is_some() => self.cut_follower(),
            13 | 20..=23 | 28..=31 => self.restore(target),
            14 => self.targets[target].fails_flush = true,
            15 => self.targets[target].fails_state = true,
            24 => self.targets[target].is_full = true,
            25 => self.jump_clock(),
            26 | 27 => self.duplicate(),
            32 => self.targets[target].fails_read = true,
            33 | 34 => self.pause(target),
            35 => self.set_wall_clock(),
            40 | 41 if self.plan.has_versions => self.change_version(target),
            42..=44 => self.targets[target].disk_steps = 10 + self.random.below(150) as u64,
            36..=39 if self.plan.has_rot => self.rot(target),
            _ => self.copy(target),
        }
        // Most faults end after a while.
        let other = self.random.below(self.targets.len());
        if self.random.once_in(2) {
            (self.targets[other].is_up, self.targets[other].is_full) = (true, false);
            self.targets[other].disk_steps = 0;
            if std::mem::take(&mut self.targets[other].is_paused) {
                self.targets[other].resumed_at = self.step;
            }
        }
        if self.plan.has_versions && self.random.once_in(3) {
            self.put_version_back(other);
        }
        if self.random.once_in(2) {
            let writer = self.random.below(self.links.len());
            self.links[writer] = vec![Link::default(); self.targets.len()];
        }
    }

    /// The memory of the asynchronous member is cut off before long.
    fn cut_follower(&mut self) {
        let Some(target) = self.plan.asynchronous else { return };
        let after = self.random.below(60);
        if let Some(areas) = &mut self.targets[target].areas {
            areas.cut_after = Some(after);
        }
    }

    /// Within its next operations, sometimes: one that comes back is lost again while it is copied to.
    pub(super) fn cut_follower_soon(&mut self, target: usize) {
        if self.is_at_rest || !self.random.once_in(4) {
            return;
        }
        let after = self.random.below(12);
        if let Some(areas) = &mut self.targets[target].areas {
            areas.cut_after = Some(after);
        }
    }

    fn stop_witness(&mut self) {
        if let Some(witness) = self.targets.iter().position(|target| target.is_there && target.is_witness) {
            self.stop(witness, true);
            self.targets[witness].is_up = true;
        }
    }

    /// All that was broken works again.
    pub(super) fn heal(&mut self) {
        self.is_faultless = true;
        // A program of another version is another process.
        for number in 0..self.targets.len() {
            if self.targets[number].version != Version::Here {
                self.stop(number, false);
            }
        }
        for target in &mut self.targets {
            (target.is_up, target.fails_flush, target.fails_state, target.is_full) = (true, false, false, false);
            (target.fails_read, target.is_paused, target.version) = (false, false, Version::Here);
            target.disk_steps = 0;
            target.areas.iter_mut().for_each(|areas| areas.cut_after = None);
        }
        for links in &mut self.links {
            links.fill(Link::default());
        }
    }

    /// Stops a target: its process, or its machine.
    pub(super) fn stop(&mut self, number: usize, loses_power: bool) {
        if !std::mem::replace(&mut self.targets[number].is_up, false) {
            return;
        }
        self.targets[number].is_paused = false;
        self.count(if loses_power { Fault::TargetLostPower } else { Fault::TargetKilled });
        self.note(|| format!("t{number} stops, loses power: {loses_power}"));
        for index in 0..self.connections.len() {
            if self.connections[index].target == number && self.connections[index].is_open_there {
                self.end_there(index);
                // Its answers may be on their way.
                if self.random.once_in(2) {
                    self.connections[index].replies.clear();
                }
            }
        }
        if loses_power {
            self.targets[number].boots += 1;
            self.drop_unflushed(number);
            if let Some(areas) = &mut self.targets[number].areas {
                areas.lose_power(&mut self.random);
                self.count(Fault::FollowerLostPower);
            }
        }
    }

    /// Of what is not durable some words become so, and others are gone.
    pub(super) fn drop_unflushed(&mut self, number: usize) {
        for page in 0..PAGES {
            let mut fates = [false; 2];
            for word in 0..WORDS {
                let target = &self.targets[number];
                if target.durable[page][word] == target.cache[page][word] {
                    continue;
                }
                let is_kept = self.random.once_in(2);
                fates[usize::from(is_kept)] = true;
                let target = &mut self.targets[number];
                if is_kept {
                    target.durable[page][word] = target.cache[page][word];
                } else {
                    target.cache[page][word] = target.durable[page][word];
                }
                self.count(if is_kept { Fault::UnflushedWordKept } else { Fault::UnflushedWordLost });
            }
            if fates == [true; 2] {
                self.count(Fault::PageTorn);
            }
        }
    }

    /// A target's process is stopped: it hears nothing until it goes on, and then all of it, also of connections that were given up meanwhile.
    fn pause(&mut self, number: usize) {
        let target = &mut self.targets[number];
        if target.is_up && !std::mem::replace(&mut target.is_paused, true) {
            self.count(Fault::TargetPaused);
            self.note(|| format!("t{number} is paused"));
        }
    }

    /// The time of day is set, forwards or back.
    fn set_wall_clock(&mut self) {
        let writer = self.random.below(self.clocks.len());
        let ahead_ms = self.random.below(2 * WALL_CLOCK_MS as usize) as u64;
        self.clocks[writer].ahead_ms = ahead_ms;
        self.count(Fault::WallClockSet);
    }

    /// A target is stopped, and started again with another version of its program or of its file.
    fn change_version(&mut self, number: usize) {
        let version = Version::other(&mut self.random);
        if self.targets[number].is_there || !version.is_of_file() {
            self.stop(number, false);
            self.note(|| format!("t{number} is started again with another version: {version:?}"));
            (self.targets[number].is_up, self.targets[number].version) = (true, version);
            self.count(Fault::VersionChanged);
        }
    }

    /// The other way round.
    fn put_version_back(&mut self, number: usize) {
        if self.targets[number].version != Version::Here {
            self.stop(number, false);
            self.note(|| format!("t{number} is started again with this version"));
            (self.targets[number].is_up, self.targets[number].version) = (true, Version::Here);
            self.count(Fault::VersionPutBack);
        }
    }

    /// A writer takes all that it waits for to be late.
    fn jump_clock(&mut self) {
        let writer = self.random.below(self.links.len());
        let waits = |connection: &Connection| {
            let has_asked = !connection.requests.is_empty() || !connection.replies.is_empty();
            connection.writer == writer && connection.is_open_here && has_asked
        };
        for index in 0..self.connections.len() {
            if waits(&self.connections[index]) {
                self.count(Fault::ClockJumped);
                self.note(|| format!("connection {index} is given up: a clock has jumped"));
                self.close_here(index);
            }
        }
    }

    /// The next control message of a connection arrives twice, as where a request is sent again over a new one.
    fn duplicate(&mut self) {
        let open = self.connections.iter_mut().filter(|connection| connection.is_open_here && connection.is_open_there);
        let mut open: Vec<_> = open.collect();
        if !open.is_empty() {
            let at = self.random.below(open.len());
            open[at].duplicates = true;
        }
    }

    /// Whether a connection is open at both ends.
    pub(super) fn is_open(&self, index: usize) -> bool {
        self.connections[index].is_open_here && self.connections[index].is_open_there
    }

    fn cut(&mut self, at_writer: bool) {
        let open: Vec<_> = (0..self.connections.len()).filter(|index| self.is_open(*index)).collect();
        if open.is_empty() {
            return;
        }
        let index = open[self.random.below(open.len())];
        self.cut_connection(index, at_writer);
    }

    /// A connection is lost, or its target's machine loses power and is up again at once.
    pub(super) fn lose_for_a_moment(&mut self, connection: usize) {
        if self.random.once_in(2) {
            let number = self.connections[connection].target;
            self.stop(number, true);
            self.targets[number].is_up = true;
        } else {
            let at_writer = self.random.once_in(2);
            self.cut_connection(connection, at_writer);
        }
    }

    fn cut_connection(&mut self, index: usize, at_writer: bool) {
        let has_request = !self.connections[index].requests.is_empty();
        self.note(|| format!("connection {index} is cut, at the writer: {at_writer}"));
        if at_writer {
            self.count(Fault::CutAtWriter);
            self.close_here(index);
            return;
        }
        if has_request && self.random.once_in(2) {
            // The request arrives, its answer does not.
            self.happen(Event::Deliver(index));
            self.count(Fault::CutBehindRequest);
        }
        self.count(Fault::CutAtTarget);
        self.connections[index].replies.clear();
        self.end_there(index);
    }

    fn block(&mut self, target: usize) {
        let (writer, which) = (self.random.below(self.links.len()), self.random.below(3));
        self.count([Fault::RequestsBlocked, Fault::RepliesBlocked, Fault::BothWaysBlocked][which]);
        self.note(|| format!("between w{writer} and t{target} nothing goes: {which}"));
        self.links[writer][target] = Link { requests_blocked: which != 1, replies_blocked: which != 0 };
    }

    fn copy(&mut self, target: usize) {
        let target = &mut self.targets[target];
        target.copies.push((target.media.clone(), target.state.clone(), target.durable));
    }

    /// Whether the others have all that a target has, and agree on it with the older copy beside them. What no replica has is lost for good,
    /// and a pool of which most replicas are older copies is for its owner to judge.
    fn is_needless(&self, number: usize, copy: &PoolState) -> bool {
        let made = self.plan.made as u16;
        // With a mark, too, that is on its way.
        [0, 1].iter().all(|raised| {
            let state = |target: &Target| PoolState { mark: target.state.mark + raised, ..target.state.clone() };
            let states: Vec<_> = self.targets[..self.plan.made].iter().map(state).collect();
            let found = states.iter().enumerate().map(|(index, state)| Found { index: index as u16, state });
            let now: Vec<_> = found.collect();
            let mut later = now.clone();
            later[number].state = copy;
            let (Ok(now), Ok(mut with_copy)) = (agree(&now, made), agree(&later, made)) else { return false };
            with_copy.put_stale_behind(&later);
            let has_others = with_copy.in_sync.iter().any(|source| *source != number);
            let is_same = now.base.ancestors.first() == with_copy.base.ancestors.first();
            // A change under way may yet be confirmed: without the target's vote, or with it as a member.
            let is_settled = states.iter().all(|state| state.is_confirmed);
            is_settled && has_others && is_same && with_copy.is_enough(&later, (1 << made) - 1, true)
        })
    }

    /// Puts a target's file back to a copy that is older than its marks can explain.
    fn restore(&mut self, number: usize) {
        if self.plan.has_changes || number >= self.plan.made {
            return;
        }
        let target = &self.targets[number];
        let is_older = |(_, state, _): &&(Media, PoolState, Pages)| state.mark + 2 <= target.state.mark;
        let Some((media, state, pages)) = target.copies.iter().rfind(is_older).cloned() else { return };
        if self.targets.iter().any(|target| target.restored.is_some()) || !self.is_needless(number, &state) {
            return;
        }
        self.stop(number, true);
        self.count(Fault::OlderCopyRestored);
        self.note(|| format!("t{number} is put back to {} {pages:?}", brief(&state)));
        let target = &mut self.targets[number];
        let is_behind = |state: &PoolState| state.is_behind_own(number as u16) || state.is_behind;
        let restored = if is_behind(&state) || is_behind(&target.state) {
            Restored::Voter
        } else {
            let parent = target.state.ancestors.first().filter(|_| !target.state.is_confirmed);
            Restored::InSync { epoch: parent.unwrap_or(&target.state.epoch).id }
        };
        target.media.restore_state(&media);
        (target.state, target.durable, target.cache) = (state, pages, pages);
        target.restored_times += 1;
        (target.is_up, target.restored) = (true, Some(restored));
    }
}
