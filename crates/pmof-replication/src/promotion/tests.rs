use pmof_control::{Header, PoolFormat, PoolName, USER_FLAGS_BYTES};
use pmof_terms::MediumKind;

use super::*;

const POOL: Uuid = Uuid::from_u128(1);
const SIZE_BYTES: u64 = 1 << 20;

fn uuid(index: u16) -> Uuid {
    Uuid::from_u128(100 + u128::from(index))
}

fn member(index: u16, role: Role) -> RosterMember {
    RosterMember { index, role, replica_uuid: uuid(index), url: format!("tcp://t{index}:1/p"), domain: String::new() }
}

/// Two members, a witness, two asynchronous ones and a spare.
fn roster(version: u64) -> Roster {
    let roles = [Role::Data, Role::Data, Role::Witness, Role::Asynchronous, Role::Asynchronous, Role::Spare];
    let members = roles.into_iter().enumerate().map(|(index, role)| member(index as u16, role)).collect();
    Roster { version, members, ..Roster::made(0) }
}

fn candidate() -> Candidate {
    Candidate::of((POOL, SIZE_BYTES), (3, uuid(3)), roster(5)).unwrap()
}

fn info(index: u16, replica_uuid: Uuid) -> PoolInfo {
    PoolInfo {
        name: PoolName::new("p").unwrap(),
        header: Header {
            format: PoolFormat::Three,
            layout: pmof_control::FileLayout::default(),
            compatible_features: 0,
            pool_uuid: POOL,
            replica_uuid,
            size_bytes: SIZE_BYTES,
            created_at_unix_s: 0,
            replica_count: 2,
            replica_index: index,
            user_flags: [0; USER_FLAGS_BYTES],
        },
        state: PoolState::new(Uuid::from_u128(7), 2),
        file_len_bytes: SIZE_BYTES,
        medium: MediumKind::PageCache,
        promises: [None; 3],
        open_by: None,
    }
}

#[test]
fn only_an_asynchronous_member_is_promoted() {
    let of = |index: u16, replica_uuid| Candidate::of((POOL, SIZE_BYTES), (index, replica_uuid), roster(5));
    assert_eq!(of(3, uuid(3)).unwrap().member, member(3, Role::Asynchronous));
    assert_eq!(of(3, uuid(4)).unwrap_err(), NotAsynchronous { is_witness: false });
    assert_eq!(of(0, uuid(0)).unwrap_err(), NotAsynchronous { is_witness: false });
    assert_eq!(of(2, uuid(2)).unwrap_err(), NotAsynchronous { is_witness: true });
    let others: Vec<_> = candidate().others().map(|member| member.index).collect();
    assert_eq!(others, [0, 1, 2, 4]);
}

#[test]
fn what_answers_is_judged_by_its_pool_and_its_roster() {
    let candidate = candidate();
    let other_pool = |info: PoolInfo| PoolInfo { header: Header { pool_uuid: uuid(9), ..info.header }, ..info };
    let mismatch = candidate.judge(&other_pool(info(0, uuid(0))), None).unwrap_err();
    assert!(matches!(mismatch, Reason::Mismatch { .. }));
    let itself = candidate.judge(&info(3, uuid(3)), None).unwrap_err();
    assert_eq!(itself, Reason::NotTheMember { index: 3, found: 3 });
    let known = candidate.judge(&info(0, uuid(0)), Some(roster(6))).unwrap();
    assert!(known.is_told() && known.is_former(&member(0, Role::Data)));
    // Its pool has removed the candidate.
    let removed = Roster { members: vec![member(0, Role::Data)], ..roster(9) };
    let goes_on = candidate.judge(&info(0, uuid(0)), Some(removed)).unwrap();
    assert!(!goes_on.is_told());
    // Of an export of the pool: no member that the candidate knows.
    let export = candidate.judge(&info(0, uuid(8)), Some(roster(9))).unwrap();
    assert!(!export.is_told());
    // Another asynchronous member is a former member only if it was promoted.
    let follows = candidate.judge(&info(4, uuid(4)), Some(roster(6))).unwrap();
    assert!(!follows.is_former(&member(4, Role::Asynchronous)));
    let mut promoted = info(4, uuid(4));
    promoted.state.epoch = Epoch::new(Uuid::from_u128(8), [4]);
    let alone = Roster { members: vec![member(4, Role::Data)], ..roster(7) };
    let promoted = candidate.judge(&promoted, Some(alone)).unwrap();
    assert!(promoted.is_former(&member(4, Role::Asynchronous)) && promoted.is_told());
    // The new roster is newer than all that learn of it.
    assert_eq!(candidate.newest_version([&known, &goes_on, &export, &promoted]), 7);
    assert_eq!(candidate.newest_version([]), 5);
}

#[test]
fn a_witness_prevents_a_promotion_while_it_is_written() {
    let candidate = candidate();
    let answering = candidate.judge(&info(2, uuid(2)), None).unwrap();
    assert!(answering.prevents(Role::Data) && !answering.prevents(Role::Witness));
    let open = PoolInfo { open_by: Some("w".to_owned()), ..info(2, uuid(2)) };
    assert!(candidate.judge(&open, None).unwrap().prevents(Role::Witness));
}

/// Until its roster names it alone, the member is asynchronous; behind that it is closed in order.
#[test]
fn the_roster_comes_behind_the_epoch() {
    let state = PoolState { opening: 4, ..PoolState::new(Uuid::from_u128(7), 2) };
    let name = Uuid::from_u128(50);
    let Promoting { requests, roster } = candidate().promote(&state, 11, name, 1000).unwrap();
    let [(begin, _), (confirm, _), (set, _), (close, _)] = &requests[..] else { panic!("{requests:?}") };
    let Request::Begin { opening: 5, epoch, ancestors } = begin else { panic!("{begin:?}") };
    assert_eq!((epoch, &ancestors[0]), (&Epoch::new(name, [3]), &state.epoch));
    assert_eq!(*confirm, Request::Confirm { epoch: name });
    assert!(matches!(set, Request::SetRoster { .. }));
    assert_eq!(*close, Request::Close { in_order: true });
    assert_eq!((roster.version, &roster.members[..]), (12, &[member(3, Role::Data)][..]));
    let forced = roster.forced.unwrap();
    assert_eq!((forced.opening, forced.unix_ms, forced.epoch), (5, 1000, state.epoch.id));
    assert_eq!((forced.went_on, forced.left_out), (1 << 3, candidate().roster.indexes()));
}
