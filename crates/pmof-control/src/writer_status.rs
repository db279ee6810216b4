//! What the writer of a pool knows of its members, and what its members do not know.

use alloc::{string::String, vec::Vec};
/// Longest text of an event in bytes; a longer one is cut when encoded.
pub const MAX_EVENT_BYTES: usize = 200;

/// Most members that are told of.
pub const MAX_TOLD_MEMBERS: usize = 64;

/// Most events that are told of.
pub const MAX_TOLD_EVENTS: usize = 16;

/// How the writer of a pool sees its members, as it told a target last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriterStatus {
    /// Its members, in no order: at most [`MAX_TOLD_MEMBERS`].
    pub members: Vec<MemberProgress>,
    /// What happened last, the oldest first: at most [`MAX_TOLD_EVENTS`], and fewer where their texts are long.
    pub events: Vec<ToldEvent>,
    /// When the writer last ended a scrub of the whole pool, in milliseconds since 1970, by its clock; 0 where it has not.
    pub scrubbed_unix_ms: u64,
}

/// One member, as the pool's writer sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberProgress {
    /// Which replica of the pool it is.
    pub index: u16,
    /// Where it is in its life.
    pub standing: MemberStanding,
    /// Bytes that have yet to be copied to it, at most.
    pub missing_bytes: u64,
    /// Bytes of these that were copied in the last second or so.
    pub bytes_per_second: u64,
    /// Of an asynchronous member: bytes that were written and that it does not have, at most.
    pub lag_bytes: u64,
    /// Of an asynchronous member: milliseconds since the oldest of them was written, at most.
    pub lag_ms: u64,
}

/// Where a member is in its life, as its writer sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemberStanding {
    /// It has all that was acknowledged; a witness: it answers.
    InSync = 0,
    /// What it lacks is copied to it.
    CatchingUp = 1,
    /// It is connected, and sent nothing since it was too slow.
    Slow = 2,
    /// It is out of reach, or was left out.
    Lost = 3,
    /// An asynchronous member that is sent what is written.
    Following = 4,
}

impl MemberStanding {
    /// The standing of that number.
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::InSync, Self::CatchingUp, Self::Slow, Self::Lost, Self::Following]
            .into_iter()
            .find(|one| *one as u8 == number)
    }
}

/// Something that happened to a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToldEvent {
    /// When, in milliseconds since 1970, by the writer's clock.
    pub unix_ms: u64,
    /// What, for people.
    pub text: String,
}
