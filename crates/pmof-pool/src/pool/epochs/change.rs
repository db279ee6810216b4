//! Changes of a pool's members, one at a time: the roster with the change first, then the epoch that makes it, then the roster after it.

use std::sync::Arc;

use pmof_control::{Reply, Request, Roster, RosterMember, RosterPart};
use pmof_replication::epochs as engine;

use super::{Epochs, done};
use crate::{
    ReplicaError,
    member::{Control, Member},
    membership::Changed,
    view::{Positions, Rule},
};

impl Epochs {
    /// The pool's members, without a change under way. `None`: no target keeps them.
    pub(in crate::pool) fn roster(&self) -> Option<Roster> {
        let state = self.state.lock();
        state.known.membership.settled(&state.known.view)
    }

    /// What the members are to keep, and do at these positions. Others are told before they are told of an epoch.
    pub(in crate::pool) fn keep_roster(&self, roster: Roster, kept: Positions) {
        let mut state = self.state.lock();
        state.known.membership.keep(roster, kept);
        self.note_counts(&state);
    }

    /// Has all that are connected keep the roster.
    pub(in crate::pool) fn tell_roster(&self) {
        self.run(&mut self.state.lock(), |driver| done(engine::inform(driver)));
    }

    /// A place for a member that is to come, which is told of epochs from now on. Its position: the `free` one, where nobody is who has been a member, or a new one.
    pub(in crate::pool) fn add_place(&self, free: Option<usize>, index: u16, member: &Arc<dyn Member>) -> usize {
        let mut state = self.state.lock();
        // Those who are told of an epoch are others than before.
        state.known.note_change();
        if let Some(position) = free {
            state.members[position] = Arc::clone(member);
            state.known.membership.note_replaced(position);
            state.known.view.reuse_place(position, index);
            return position;
        }
        state.members.push(Arc::clone(member));
        state.known.view.add_place(index);
        state.members.len() - 1
    }

    /// Notes durably that the asynchronous member or the spare of an index is there, or is none any more. It counts for nothing, so that no epoch comes of it.
    pub(in crate::pool) fn set_uncounted(&self, index: u16, member: Option<RosterMember>) -> Changed {
        self.run(&mut self.state.lock(), |driver| done(engine::set_uncounted(driver, index, member)))
    }

    /// Notes durably that it is known that the pool was forced.
    pub(in crate::pool) fn clear_forced(&self) -> Changed {
        self.run(&mut self.state.lock(), |driver| done(engine::clear_forced(driver)))
    }

    /// A change was made before the pool was opened, and `rule` was in force before it.
    pub(in crate::pool) fn found_changed(&self, rule: Rule) {
        self.state.lock().known.view.found_changed(rule);
    }

    /// Puts the place of nobody where a member was that has gone, or never came.
    pub(in crate::pool) fn remove_place(&self, position: usize, absent: &Arc<dyn Member>) {
        let mut state = self.state.lock();
        state.members[position] = Arc::clone(absent);
        state.known.membership.remove_place(position);
        state.known.note_change();
        state.known.view.remove_place(position);
    }
}

/// Has a replica that comes back keep the roster; one that does already is not kept waiting for its disk. A target that is too old keeps none, and is not
/// asked again. False: it is lost.
pub(in crate::pool) fn give_roster(control: &Control, roster: &Roster) -> bool {
    let Ok(encoded) = roster.encode() else { return true };
    let tell = || RosterPart::requests(&encoded).try_for_each(|request| control.ask_for(&request, &Reply::RosterSet));
    let given = keeps(control, &encoded).and_then(|keeps| if keeps { Ok(()) } else { tell() });
    given.map_or_else(|why| matches!(*why, ReplicaError::Refused { .. }), |()| true)
}

/// Whether a replica keeps this roster already.
fn keeps(control: &Control, encoded: &[u8]) -> Result<bool, Arc<ReplicaError>> {
    let mut offset = 0;
    while offset < encoded.len() {
        match control.ask(&Request::Roster { offset: offset as u16 })? {
            Reply::Roster(part) if !part.bytes.is_empty() && encoded[offset..].starts_with(&part.bytes) => {
                if usize::from(part.len_bytes) != encoded.len() {
                    return Ok(false);
                }
                offset += part.bytes.len();
            }
            Reply::Roster(_) => return Ok(false),
            _ => return Err(control.fail(ReplicaError::Unexpected)),
        }
    }
    Ok(true)
}
