//! What is left of a member that is removed.

use pmof::{MemberState, PoolOptions};

use super::force::named;

/// What stays of the member `old`, which is about to be removed, where it is.
pub(super) fn what_stays(options: &PoolOptions, old: &str) -> &'static str {
    let found = options.members().ok();
    let Some(member) = found.as_ref().and_then(|found| named(found, old).ok()) else {
        return "and what it has stays there";
    };
    match &member.state {
        MemberState::Lost(why) if why.is_absent() => "of which nothing is there",
        MemberState::Lost(why) if why.is_out_of_reach() => "which is out of reach: what it has stays there",
        MemberState::Lost(_) => "and what is left of it stays there",
        _ if member.is_witness => "a witness, whose file stays there",
        MemberState::Spare => "a spare, where nothing is",
        MemberState::Asynchronous { .. } => "whose bytes stay there, and its areas beside them (.changes, .points)",
        MemberState::InSync | MemberState::Syncing | MemberState::Behind(_) => "whose bytes stay there",
        _ => "and what is there stays",
    }
}
