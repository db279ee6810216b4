//! What a member of an open pool is to its writer: one state, and the events that change it.
//!
//! [`MemberState::after`] is the whole table. An event that the table has no row for is a fault of the program, and an assertion in release builds
//! too. Some events come late, because another thread was first; the table says which of them change nothing.

use crate::sync::atomic::{AtomicU8, Ordering};

/// Whether a member can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// It answers as promptly as the pool waits.
    Connected,
    /// It is connected, and took longer than the pool waits: nothing is sent to it until it keeps up.
    Slow,
    /// Its connection or its memory has failed.
    Lost,
}

/// What a member is to the pool's writer.
///
/// A witness keeps epochs and the roster and no data, so it is never in sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// It has all that was acknowledged, and each persist waits for it.
    InSync,
    /// It was lost while it was in sync, or the pool was opened without it. Nothing that it lacks is acknowledged before a quorum knows an
    /// epoch without it.
    Lost,
    /// It was removed, or never was a member: it does not come back.
    Removed,
    /// It has data, and lacks some that was acknowledged; an epoch says so. While it is connected it catches up, or is about to.
    Behind(Link),
    /// It keeps epochs and the roster, and no data.
    Witness(Link),
    /// It is to become a member that has data. It counts for nothing yet, and what it lacks may be copied to it already.
    Candidate(Link),
    /// It is to become a witness. It counts for nothing yet.
    WitnessCandidate(Link),
}

/// What changes a member's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An epoch that makes it a member is in force, or may be.
    MadeMember,
    /// The others go on without it, because it is too slow.
    LeftBehind,
    /// It keeps up: what is written is sent to it from now on.
    Admitted,
    /// It has all that the members in sync have, and the next epoch counts it among them.
    CaughtUp,
    /// Its connection or its memory has failed.
    Lost,
    /// It was removed from the pool, or is found to be no member of it.
    Removed,
    /// A new connection to it is open, and it has data.
    BackWithData,
    /// A new connection to it is open, and it is a witness.
    BackAsWitness,
}

impl MemberState {
    /// All states.
    pub const ALL: [Self; 15] = [
        Self::InSync,
        Self::Lost,
        Self::Removed,
        Self::Behind(Link::Connected),
        Self::Behind(Link::Slow),
        Self::Behind(Link::Lost),
        Self::Witness(Link::Connected),
        Self::Witness(Link::Slow),
        Self::Witness(Link::Lost),
        Self::Candidate(Link::Connected),
        Self::Candidate(Link::Slow),
        Self::Candidate(Link::Lost),
        Self::WitnessCandidate(Link::Connected),
        Self::WitnessCandidate(Link::Slow),
        Self::WitnessCandidate(Link::Lost),
    ];

    /// The state that an event leads to. `None`: a program that is right never has this event in this state.
    #[must_use]
    pub const fn after(self, event: Event) -> Option<Self> {
        use MemberState::{Behind, Candidate, InSync, Removed, Witness, WitnessCandidate};
        match event {
            // It may have been lost or left behind while the others were told of the epoch.
            Event::MadeMember => match self {
                Candidate(link) => Some(Behind(link)),
                WitnessCandidate(link) => Some(Witness(link)),
                Removed => Some(Removed),
                _ => None,
            },
            Event::LeftBehind => match self {
                InSync => Some(Behind(Link::Slow)),
                connected if connected.is_connected() => Some(connected.with_link(Link::Slow)),
                late => Some(late),
            },
            // One in sync is sent everything already. One that was lost is admitted by a thread that has yet to hear of it.
            Event::Admitted => match self {
                InSync => None,
                connected if connected.is_connected() => Some(connected.with_link(Link::Connected)),
                late => Some(late),
            },
            // A witness has no data, and one in sync has all of it. Others come late: writers left it behind, or it was lost, while the last of it
            // was copied; and a candidate that was given up may be copied to for a moment longer.
            Event::CaughtUp => match self {
                Behind(Link::Connected) => Some(InSync),
                InSync | Witness(_) | WitnessCandidate(_) => None,
                late => Some(late),
            },
            // Any thread may find a loss, at any time.
            Event::Lost => match self {
                InSync => Some(Self::Lost),
                other => Some(other.with_link(Link::Lost)),
            },
            // A member may be removed in any state, and stays removed.
            Event::Removed => Some(Removed),
            Event::BackWithData if self.is_lost() => Some(Behind(Link::Connected)),
            Event::BackAsWitness if self.is_lost() => Some(Witness(Link::Connected)),
            Event::BackWithData | Event::BackAsWitness => None,
        }
    }

    /// The same of a replica that is a witness, when it is found.
    #[must_use]
    pub const fn of_witness(self) -> Self {
        match self {
            Self::InSync => Self::Witness(Link::Connected),
            Self::Lost => Self::Witness(Link::Lost),
            Self::Removed => Self::Removed,
            Self::Behind(link) | Self::Witness(link) => Self::Witness(link),
            Self::Candidate(link) | Self::WitnessCandidate(link) => Self::WitnessCandidate(link),
        }
    }

    const fn with_link(self, link: Link) -> Self {
        match self {
            Self::Behind(_) => Self::Behind(link),
            Self::Witness(_) => Self::Witness(link),
            Self::Candidate(_) => Self::Candidate(link),
            Self::WitnessCandidate(_) => Self::WitnessCandidate(link),
            Self::InSync | Self::Lost | Self::Removed => self,
        }
    }

    const fn link(self) -> Link {
        match self {
            Self::InSync => Link::Connected,
            Self::Lost | Self::Removed => Link::Lost,
            Self::Behind(link) | Self::Witness(link) | Self::Candidate(link) | Self::WitnessCandidate(link) => link,
        }
    }

    /// Whether it has all that was acknowledged, and is asked for the next.
    #[inline]
    pub const fn is_in_sync(self) -> bool {
        matches!(self, Self::InSync)
    }

    /// Whether it has not failed and is not removed. One that is slow is connected.
    #[inline]
    pub const fn is_connected(self) -> bool {
        !matches!(self.link(), Link::Lost)
    }

    /// Whether it is connected and too slow to be waited for.
    #[inline]
    pub const fn is_slow(self) -> bool {
        matches!(self.link(), Link::Slow)
    }

    /// Whether it is connected and answers as promptly as the pool waits.
    #[inline]
    pub const fn is_prompt(self) -> bool {
        matches!(self.link(), Link::Connected)
    }

    /// Whether it is connected and lacks what was acknowledged, as a witness always does.
    #[inline]
    pub const fn is_behind(self) -> bool {
        self.is_connected() && !self.is_in_sync()
    }

    /// Whether it has failed, and may come back.
    #[inline]
    pub const fn is_lost(self) -> bool {
        !self.is_connected() && !self.is_removed()
    }

    /// Whether it was removed, or never was a member.
    #[inline]
    pub const fn is_removed(self) -> bool {
        matches!(self, Self::Removed)
    }

    /// Whether it is no member yet.
    #[inline]
    pub const fn is_candidate(self) -> bool {
        matches!(self, Self::Candidate(_) | Self::WitnessCandidate(_))
    }

    /// Whether it keeps epochs and no data: nothing is written to it, read from it or copied to it.
    #[inline]
    pub const fn is_witness(self) -> bool {
        matches!(self, Self::Witness(_) | Self::WitnessCandidate(_))
    }

    /// Whether it is a member that has the pool's data, or had it when it was lost.
    #[inline]
    pub const fn is_data_member(self) -> bool {
        matches!(self, Self::InSync | Self::Lost | Self::Behind(_))
    }

    /// Whether it has, or is to have, the pool's data.
    #[inline]
    pub const fn has_data(self) -> bool {
        self.is_data_member() || matches!(self, Self::Candidate(_))
    }

    /// Whether it is all that it can be: in sync, or a witness that answers.
    #[inline]
    pub const fn is_well(self) -> bool {
        self.is_in_sync() || (self.is_witness() && self.is_prompt())
    }

    #[inline]
    pub(crate) const fn code(self) -> u8 {
        let kind = match self {
            Self::InSync => return 0,
            Self::Lost => return 1,
            Self::Removed => return 2,
            Self::Behind(_) => 1,
            Self::Witness(_) => 2,
            Self::Candidate(_) => 3,
            Self::WitnessCandidate(_) => 4,
        };
        kind << 2 | self.link() as u8
    }

    #[inline]
    pub(crate) const fn of_code(code: u8) -> Self {
        let link = match code & 3 {
            0 => Link::Connected,
            1 => Link::Slow,
            _ => Link::Lost,
        };
        match (code >> 2, link) {
            (0, Link::Connected) => Self::InSync,
            (0, Link::Slow) => Self::Lost,
            (0, Link::Lost) => Self::Removed,
            (1, link) => Self::Behind(link),
            (2, link) => Self::Witness(link),
            (3, link) => Self::Candidate(link),
            (_, link) => Self::WitnessCandidate(link),
        }
    }
}

impl Event {
    /// All events.
    pub const ALL: [Self; 8] = [
        Self::MadeMember,
        Self::LeftBehind,
        Self::Admitted,
        Self::CaughtUp,
        Self::Lost,
        Self::Removed,
        Self::BackWithData,
        Self::BackAsWitness,
    ];

    /// What is true of a state after this event, whatever it was before.
    pub(crate) const fn has_led_to(self, state: MemberState) -> bool {
        match self {
            Self::MadeMember => !state.is_candidate() && !state.is_in_sync(),
            Self::LeftBehind => !state.is_prompt(),
            Self::Admitted => !state.is_slow() && !state.is_in_sync(),
            Self::CaughtUp => !matches!(state, MemberState::Behind(Link::Connected)) && !state.is_witness(),
            Self::Lost => !state.is_connected(),
            Self::Removed => state.is_removed(),
            Self::BackWithData => matches!(state, MemberState::Behind(Link::Connected)),
            Self::BackAsWitness => matches!(state, MemberState::Witness(Link::Connected)),
        }
    }
}

/// The states before and after an event; equal where it came late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Before.
    pub from: MemberState,
    /// After.
    pub to: MemberState,
}

/// A member's state, which threads read and change without a lock.
#[derive(Debug)]
pub struct MemberCell(AtomicU8);

impl MemberCell {
    /// A member that is in this state.
    pub fn new(state: MemberState) -> Self {
        Self(AtomicU8::new(state.code()))
    }

    /// One load. What was stored before an event is seen by those who see the state after it.
    #[inline]
    pub fn get(&self) -> MemberState {
        MemberState::of_code(self.0.load(Ordering::Acquire))
    }

    /// Takes an event in. Of two threads that do so at once, the second has its event after the first's.
    ///
    /// # Panics
    /// If the [table](MemberState::after) has no such event in this state.
    #[track_caller]
    pub fn take(&self, event: Event) -> Transition {
        let mut code = self.0.load(Ordering::Acquire);
        loop {
            let from = MemberState::of_code(code);
            let to = checked(from, event);
            if from == to {
                return Transition { from, to };
            }
            match self.0.compare_exchange(code, to.code(), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Transition { from, to },
                Err(now) => code = now,
            }
        }
    }

    /// The state of another connection to the same member, which takes the place of this one: the event is the new one's.
    ///
    /// # Panics
    /// As [`take`](Self::take).
    #[track_caller]
    #[must_use]
    pub fn succeeded_by(&self, event: Event) -> Self {
        Self::new(checked(self.get(), event))
    }
}

#[track_caller]
fn checked(from: MemberState, event: Event) -> MemberState {
    let Some(to) = from.after(event) else {
        panic!("a member that is {from:?} had the event {event:?}, which it cannot have: this is a bug in pmof");
    };
    assert!(event.has_led_to(to), "{event:?} has led a member from {from:?} to {to:?}: this is a bug in pmof");
    to
}
