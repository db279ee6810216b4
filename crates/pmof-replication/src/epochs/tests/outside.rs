//! Epochs that a keeper outside of the members decides on.

use super::*;
use crate::keeper::{EpochRecord, KeptBy, tests::Fault};

/// Members whose epoch in force is the keeper's, too.
fn kept_outside(count: usize) -> Members {
    let members = members(count);
    let epoch = Epoch { id: Uuid::from_u128(1), members: (1 << count) - 1 };
    let indexes = (0..count).map(|index| Some(index as u16)).collect();
    let rule = Rule::of(count).kept_by(KeptBy::Outside);
    members.with(|epochs| epochs.view = View::new(rule, indexes, Base::after(epoch, 1, &[]), 0, (1 << count) - 1));
    let keeper = Some(InMemory::new(members.with(|epochs| epochs.view.kept()).unwrap().in_force));
    Members { keeper, ..members }
}

impl Members {
    fn outside(&self) -> &InMemory {
        self.keeper.as_ref().unwrap()
    }

    fn lose(&self, position: usize) {
        self.states[position].take(Event::Lost);
    }

    /// The members of the epoch that the keeper has in force, and its name.
    fn in_force(&self) -> (u64, Uuid) {
        let epoch = self.outside().kept().in_force.epoch;
        (epoch.members, epoch.id)
    }

    fn epoch(&self) -> Uuid {
        self.with(|epochs| epochs.view.epoch()).unwrap()
    }

    /// Another writer puts an epoch of its own in force behind the keeper's.
    fn overrule(&self, id: u128, of_members: u64) -> Uuid {
        let parent = self.outside().kept().in_force;
        let epoch = Epoch { id: Uuid::from_u128(id), members: of_members };
        let ancestors = core::iter::once(parent.epoch).chain(parent.ancestors).collect();
        let record = EpochRecord { epoch, opening: parent.opening + 1, ancestors };
        self.outside().with(|register| register.begin(&record).and_then(|()| register.confirm(&record))).unwrap();
        epoch.id
    }

    fn refusals(&self) -> Vec<KeeperError> {
        self.refused.take()
    }
}

fn acknowledges(members: &Members) -> bool {
    done(acknowledge(members, || false, || {}))
}

/// The same for each keeper: what is announced, what is in force, and that the members were told before.
#[test]
fn both_keepers_say_what_is_in_force() {
    for members in [members(3), kept_outside(3)] {
        let before = done(members.keeper().read()).unwrap();
        assert_eq!(before.announced, None);
        assert!(done(begin(&members)));
        assert_eq!(members.told(), ["Begin 111", "Confirm 111"]);
        let kept = done(members.keeper().read()).unwrap();
        assert_eq!(kept.in_force.parent(), Some(before.in_force.epoch.id));
        assert_eq!((kept.in_force.epoch.id, kept.announced), (members.epoch(), None));
        members.lose(2);
        let name = Uuid::from_u128(7);
        let mut change = Change::Named(name);
        members.with(|epochs| epochs.view.step(&mut change, 0b11, 0b11, name));
        let announced = members.with(|epochs| epochs.view.record(&change)).unwrap();
        assert_eq!(done(members.keeper().begin(&announced)), Ok(()));
        let kept = done(members.keeper().read()).unwrap();
        assert_eq!(kept.announced, Some(announced));
        assert_ne!(kept.in_force.epoch.id, name);
    }
}

#[test]
fn a_quorum_refuses_too_few() {
    let members = members(3);
    members.lose(1);
    members.lose(2);
    let announced = members.with(|epochs| epochs.view.kept()).unwrap().in_force;
    assert_eq!(done(members.keeper().begin(&announced)), Err(KeeperError::TooFew));
}

#[test]
fn one_of_two_goes_on() {
    let members = kept_outside(2);
    members.lose(0);
    assert!(acknowledges(&members));
    assert_eq!(members.told(), ["Begin 10", "Confirm 10"]);
    assert_eq!((members.in_force(), members.current.get()), ((0b10, members.epoch()), 0b10));
}

#[test]
fn one_of_three_goes_on() {
    let members = kept_outside(3);
    members.lose(0);
    members.lose(1);
    assert!(acknowledges(&members));
    assert_eq!(members.in_force().0, 0b100);
}

#[test]
fn nothing_is_acknowledged_before_the_keeper_knows() {
    for fault in [Fault::Unreachable, Fault::RequestLost, Fault::ReplyLost] {
        let members = kept_outside(2);
        members.lose(0);
        members.outside().fail(fault);
        assert!(!acknowledges(&members), "{fault:?} at the announcement");
        assert_eq!(members.told(), [""; 0], "none hears of what may not be announced");
        assert_eq!(members.refusals().len(), 1);
        assert!(acknowledges(&members), "{fault:?}");
        assert_eq!(members.in_force(), (0b10, members.epoch()));
    }
}

/// What a writer asks of its keeper in one step.
fn confirm_with(members: &Members, fault: Fault) -> bool {
    let (mut change, name) = (Change::Idle, members.fresh_name());
    let in_use = in_use(members);
    members.with(|epochs| epochs.view.step(&mut change, in_use, in_use, name));
    assert_eq!(done(ask_keeper(members, &change)), Ok(()));
    members.with(|epochs| epochs.view.step(&mut change, in_use, in_use, name));
    members.outside().fail(fault);
    let why = done(ask_keeper(members, &change)).unwrap_err();
    refused(members, &mut change, &why)
}

#[test]
fn persists_wait_for_an_unknown_outcome() {
    for (fault, is_in_force) in [(Fault::ReplyLost, true), (Fault::RequestLost, false), (Fault::Unreachable, false)] {
        let members = kept_outside(2);
        members.lose(0);
        assert!(!confirm_with(&members, fault));
        assert_eq!(members.in_force().0 == 0b10, is_in_force);
        assert_ne!(members.current.get(), 0b10, "{fault:?}");
        // Whatever came of it, the next epoch is one of these members.
        members.told();
        assert!(acknowledges(&members), "{fault:?}");
        assert_eq!((members.in_force(), members.current.get()), ((0b10, members.epoch()), 0b10), "{fault:?}");
        assert_eq!(members.told(), ["Begin 10", "Confirm 10"]);
    }
}

/// A member that was to join counts, or does not: what is acknowledged meanwhile is on all that may be read.
#[test]
fn a_member_that_may_have_joined_counts() {
    let members = kept_outside(3);
    members.lose(2);
    assert!(acknowledges(&members));
    let back = MemberCell::new(MemberState::InSync);
    let members = Members { states: members.states.into_iter().take(2).chain([back]).collect(), ..members };
    assert!(!confirm_with(&members, Fault::ReplyLost));
    assert_eq!(members.current.get(), 0b111);
    assert!(done(acknowledge(&members, || false, || {})));
    members.lose(2);
    members.outside().fail(Fault::Unreachable);
    assert!(!acknowledges(&members), "the lost one may be read alone");
    assert!(acknowledges(&members));
    assert_eq!(members.in_force().0, 0b011);
}

#[test]
fn a_writer_that_is_overruled_changes_nothing() {
    let members = kept_outside(2);
    let by = members.overrule(50, 0b01);
    members.lose(0);
    assert!(!acknowledges(&members));
    assert_eq!(members.refusals(), [KeeperError::Overruled { by }]);
    assert_eq!(members.with(|epochs| epochs.view.overruled_by()), Some(by));
    assert_eq!((members.told(), members.current.get(), members.in_force().1), (vec![], 0, by));
    assert!(!done(begin(&members)));
    assert_eq!(members.refusals(), [], "it asks no more");
}

#[test]
fn a_watch_ends_a_writer_that_is_overruled() {
    let members = kept_outside(2);
    let known = members.epoch();
    let keeper = members.keeper();
    let mut watching = pin!(keeper.watch(known));
    assert!(watching.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let by = members.overrule(50, 0b01);
    let kept = done(watching).unwrap();
    assert_eq!(members.with(|epochs| epochs.view.note_in_force(&kept)), Some(by));
    assert!(!done(begin(&members)));
}

#[test]
fn own_epochs_overrule_no_writer() {
    let members = kept_outside(2);
    assert!(done(begin(&members)));
    let kept = members.outside().kept();
    assert_eq!(members.with(|epochs| epochs.view.note_in_force(&kept)), None);
    members.lose(0);
    assert!(!confirm_with(&members, Fault::ReplyLost));
    let kept = members.outside().kept();
    assert_eq!(members.with(|epochs| epochs.view.note_in_force(&kept)), None);
    assert!(acknowledges(&members));
}

#[test]
fn a_displaced_epoch_is_announced_again() {
    let members = kept_outside(2);
    let parent = members.outside().kept().in_force;
    let other = EpochRecord {
        epoch: Epoch { id: Uuid::from_u128(60), members: 0b01 },
        opening: 2,
        ancestors: vec![parent.epoch],
    };
    let (mut change, name) = (Change::Idle, members.fresh_name());
    members.with(|epochs| epochs.view.step(&mut change, 0b11, 0b11, name));
    assert_eq!(done(ask_keeper(&members, &change)), Ok(()));
    members.outside().with(|register| register.begin(&other)).unwrap();
    members.with(|epochs| epochs.view.step(&mut change, 0b11, 0b11, name));
    let why = done(ask_keeper(&members, &change)).unwrap_err();
    assert_eq!(why, KeeperError::Displaced { by: Some(other.epoch.id) });
    assert!(refused(&members, &mut change, &why));
    assert!(matches!(change, Change::Idle));
    assert!(done(begin(&members)));
    assert_eq!(members.in_force(), (0b11, members.epoch()));
}

#[test]
fn a_join_that_the_keeper_refuses_is_none() {
    let members = kept_outside(2);
    members.lose(1);
    assert!(acknowledges(&members));
    let back = MemberCell::new(MemberState::Behind(Link::Connected));
    let members = Members { states: members.states.into_iter().take(1).chain([back]).collect(), ..members };
    let mark = members.with(|epochs| epochs.view.mark());
    members.outside().fail(Fault::Unreachable);
    assert!(done(announce_with(&members, 1, mark.clone())).is_none());
    assert_eq!(members.current.get(), 0b01, "what is acknowledged is under the epoch before");
    let joining = done(announce_with(&members, 1, mark)).unwrap();
    members.states[1].take(Event::CaughtUp);
    members.outside().fail(Fault::Unreachable);
    assert!(!done(join(&members, &joining)));
    assert_eq!(members.current.get(), 0b01);
    assert!(done(begin(&members)));
    assert_eq!(members.in_force().0, 0b11);
}

/// What becomes of a change of the members whose epoch the keeper may have put in force.
fn removed_with(fault: Fault) -> Members {
    let members = kept_outside(3);
    assert!(done(begin(&members)));
    members.told();
    let planned = members.with(|epochs| epochs.membership.plan(&mut epochs.view, &Planned::Remove(2), uuid(90)));
    let (plan, next) = planned.unwrap();
    assert!(members.with(|epochs| epochs.membership.replace(next)));
    done(inform(&members));
    let mut change = Change::Named(plan.epoch);
    for _ in 0..2 {
        members.with(|epochs| epochs.view.step(&mut change, 0b111, 0b011, plan.epoch));
        if matches!(change, Change::Confirmed(_)) {
            members.outside().fail(fault);
            let why = done(ask_keeper(&members, &change)).unwrap_err();
            assert!(!refused(&members, &mut change, &why));
        } else {
            assert_eq!(done(ask_keeper(&members, &change)), Ok(()));
        }
    }
    let changed = members.with(|epochs| Membership::outcome(&epochs.view, &plan, false));
    assert_eq!(changed, Changed::Undecided);
    assert!(!members.with(|epochs| epochs.membership.take_back(&mut epochs.view, plan, changed)));
    members
}

#[test]
fn a_change_that_may_hold_is_settled_by_the_next_epoch() {
    for (fault, holds) in [(Fault::ReplyLost, true), (Fault::RequestLost, false)] {
        let members = removed_with(fault);
        assert!(members.with(|epochs| epochs.membership.has_change()));
        members.outside().fail(Fault::Unreachable);
        assert!(!done(settle_last(&members)), "the keeper is not reached");
        assert!(members.with(|epochs| epochs.membership.has_change()));
        assert!(done(settle_last(&members)), "{fault:?}");
        let roster = members.with(|epochs| epochs.membership.settled(&epochs.view)).unwrap();
        assert_eq!((roster.indexes() == 0b011, roster.change), (holds, None), "{fault:?}");
        assert!(!members.with(|epochs| epochs.membership.has_change()));
        assert_eq!(members.with(|epochs| epochs.membership.leaving() == 0), !holds);
    }
}

/// An opening may find any one member of the epoch in force.
#[test]
fn all_in_force_keep_a_note() {
    let spare = || Some(RosterMember { role: Role::Spare, replica_uuid: Uuid::nil(), ..member(7) });
    let members = kept_outside(3);
    assert!(done(begin(&members)));
    members.lose(2);
    members.told();
    assert_eq!(done(set_uncounted(&members, 7, spare())), Changed::Done);
    assert_eq!(members.told(), ["Begin 11", "Confirm 11", "SetRoster 11"]);
    // One is lost when it is to keep it: the other may be found without it.
    members.fails.set(Some((0, 1)));
    assert_eq!(done(set_uncounted(&members, 7, None)), Changed::Undecided);
    members.outside().fail(Fault::Unreachable);
    assert_eq!(done(set_uncounted(&members, 7, None)), Changed::TooFew);
    assert_eq!(done(set_uncounted(&members, 7, None)), Changed::Done);
    assert_eq!(members.in_force().0, 0b001);
}
