//! The roster of a pool: it is kept, and it is set as a whole.

use pmof_control::{ROSTER_BYTES, ROSTER_OFFSET, ROSTER_PART_BYTES, Request, Role, Roster, RosterMember, RosterPart};

use super::*;

fn member(index: u16) -> RosterMember {
    let url = format!("tcp://host-{index}:7204/{}", "orders".repeat(15));
    RosterMember { index, role: Role::Data, replica_uuid: Uuid::from_u128(index.into()), url, domain: String::new() }
}

fn roster(count: u16) -> Roster {
    Roster { version: 1, notes: 0, members: (0..count).map(member).collect(), change: None, forced: None }
}

fn reopened(store: &PoolStore, pool: OpenPool) -> OpenPool {
    let name = pool.name().clone();
    drop(pool);
    store.open_pool(&name, OpenFor::Write, "me".to_owned()).expect("it is there")
}

#[test]
fn a_roster_is_kept_and_a_new_pool_has_none_but_those_it_was_made_with() {
    let (_root, store) = fresh();
    let mut pool = create(&store, "orders");
    let made = pool.roster().clone();
    assert_eq!((made.version, made.members.len()), (0, usize::from(pool.header().replica_count)));
    pool.set_roster(roster(3)).expect("written");
    let mut pool = reopened(&store, pool);
    assert_eq!(*pool.roster(), roster(3));
    pool.set_roster(roster(2)).expect("written");
    let pool = reopened(&store, pool);
    assert_eq!(*pool.roster(), roster(2));
    // One damaged slot leaves the other one, the first roster's too.
    let second_slot = ROSTER_OFFSET + ROSTER_BYTES as u64 / 2;
    pool.medium().store(second_slot + 100, &[0xee; 8]).expect("inside");
    let pool = reopened(&store, pool);
    assert_eq!(*pool.roster(), roster(3));
}

#[test]
fn a_long_roster_is_set_by_its_last_part_only() {
    let (_root, store) = fresh();
    let mut pool = create(&store, "orders");
    let encoded = roster(64).encode().expect("fits");
    assert!(encoded.len() > 2 * ROSTER_PART_BYTES, "several parts");
    let parts: Vec<_> = RosterPart::requests(&encoded).collect();
    let set = |request: &Request, pool: &mut OpenPool| match request {
        Request::SetRoster { offset, part } => pool.set_roster_part(*offset, part),
        other => panic!("{other:?}"),
    };
    set(&parts[0], &mut pool).expect("the first part");
    assert_eq!(pool.roster().version, 0);
    set(&parts[2], &mut pool).expect_err("the second part is missing");
    for part in &parts {
        set(part, &mut pool).expect("in order");
    }
    let pool = reopened(&store, pool);
    assert_eq!(*pool.roster(), roster(64));
    let mut read = Vec::new();
    while let Ok(part) = pool.roster_part(read.len() as u16) {
        read.extend_from_slice(&part.bytes);
        if read.len() == usize::from(part.len_bytes) {
            break;
        }
    }
    assert!(read == encoded);
}
