//! How long to wait between two tries to bring a member back.

use core::time::Duration;

use super::Halt;

/// Pauses between two tries.
#[derive(Clone, Copy, Debug)]
pub struct Pauses {
    /// The first one; doubled each time.
    pub first: Duration,
    /// The longest one.
    pub longest: Duration,
    /// The first one of a replica that answers, and not as it should.
    pub misbehaved: Duration,
    /// Of a replica that cannot return as it is.
    pub rejected: Duration,
    /// The longest one of a member that was too slow.
    pub longest_slow: Duration,
    /// How often to check during a pause whether a slow member is needed.
    pub need_look: Duration,
    /// How often to check whether a candidate that lacks little has become a member.
    pub candidate_look: Duration,
    /// How often a member that waits for a quorum checks whether enough are connected.
    pub quorum_look: Duration,
    /// A member that is lost again within this time has not recovered: its pauses go on where they were.
    pub recovered_after: Duration,
}

impl Default for Pauses {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(10),
            longest: Duration::from_secs(2),
            misbehaved: Duration::from_secs(1),
            rejected: Duration::from_secs(30),
            longest_slow: Duration::from_secs(30),
            need_look: Duration::from_millis(100),
            candidate_look: Duration::from_millis(20),
            quorum_look: Duration::from_millis(100),
            recovered_after: Duration::from_secs(10),
        }
    }
}

/// How the tries to bring one member back have gone.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// Before the next try.
    pause: Duration,
    /// It was slow in this return.
    was_slow: bool,
    back_since: Option<Duration>,
}

impl Backoff {
    /// Of a member that was not lost before.
    pub fn new(pauses: &Pauses) -> Self {
        Self { pause: pauses.first, was_slow: false, back_since: None }
    }

    /// The member was lost. `has_misbehaved`: its target was reached.
    pub fn begin(&mut self, pauses: &Pauses, now: Duration, has_misbehaved: bool) {
        self.was_slow = false;
        if self.back_since.is_none_or(|since| now.saturating_sub(since) > pauses.recovered_after) {
            self.pause = pauses.first;
        }
        if has_misbehaved {
            self.pause = self.pause.max(pauses.misbehaved);
        }
    }

    /// Before the next try.
    pub(super) fn pause(&self) -> Duration {
        self.pause
    }

    /// A try has halted.
    pub(super) fn halted<F>(&mut self, pauses: &Pauses, halt: &Halt<F>) {
        match halt {
            Halt::Rejected(_) => self.pause = pauses.rejected,
            Halt::Slow => {
                self.was_slow = true;
                self.lengthen(pauses.longest_slow);
            }
            Halt::Later | Halt::Ended => self.lengthen(pauses.longest),
        }
    }

    /// The member is back. If it is lost again soon, its pauses go on from here.
    pub(super) fn came_back(&mut self, pauses: &Pauses, now: Duration) {
        self.lengthen(if self.was_slow { pauses.longest_slow } else { pauses.longest });
        self.back_since = Some(now);
    }

    fn lengthen(&mut self, longest: Duration) {
        self.pause = (self.pause * 2).min(longest);
    }
}
