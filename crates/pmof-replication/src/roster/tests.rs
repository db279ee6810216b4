use pmof_control::Role;

use super::*;

fn three() -> Roster {
    let of = |index: u16| RosterMember {
        replica_uuid: Uuid::from_u128(index.into()),
        url: format!("tcp://{index}:1/p"),
        index,
        role: Role::Data,
        domain: String::new(),
    };
    Roster { notes: 1, members: (0..3).map(of).collect(), ..Roster::made(3) }
}

#[test]
fn the_newest_roster_counts() {
    let older = three();
    let newer = Roster { notes: 2, ..older.clone() };
    assert_eq!(newest([&older, &newer, &older]), Some(&newer));
    let changed = Roster { version: 1, ..older.clone() };
    assert_eq!(newest([&older, &changed, &newer]), Some(&changed), "whatever was noted of the former members");
    assert_eq!(newest([]), None);
}

#[test]
fn a_member_that_is_about_to_go_is_none_behind_the_change() {
    let roster = three();
    let has = |roster: &Roster, index: u16| has_after(roster, index, Uuid::from_u128(index.into()));
    let removing = roster.removing(2, Uuid::new_v4());
    assert_eq!([0, 1, 2].map(|index| has(&removing, index)), [true, true, false]);
    assert!([0, 1, 2].iter().all(|index| has(&roster, *index)), "without the change it is");
    let coming = RosterMember { index: 3, replica_uuid: Uuid::from_u128(3), ..roster.members[0].clone() };
    assert!(has(&roster.adding(coming, Uuid::new_v4()), 3), "one that is about to come is");
    assert!(!has_after(&roster, 1, Uuid::from_u128(7)), "another replica of the same index is not");
}
