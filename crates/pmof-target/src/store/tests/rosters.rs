//! The roster of a pool: it is kept, and it is set as a whole.

use pmof_control::{HEAD_4_BYTES, ROSTER_PART_BYTES, Role, RosterMember};
use pmof_mem::{ShadowMedium, shadow::Event};

use super::{state::write_copies, *};

fn member(index: u16) -> RosterMember {
    let url = format!("tcp://host-{index}:7204/{}", "orders".repeat(15));
    RosterMember { index, role: Role::Data, replica_uuid: Uuid::from_u128(index.into()), url, domain: String::new() }
}

fn roster(count: u16) -> Roster {
    let members = (0..count).map(member).collect();
    Roster { version: 1, notes: 0, members, change: None, forced: None, is_uncertain: false }
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
    pool.set_roster(&roster(3)).expect("written");
    let mut pool = reopened(&store, pool);
    assert_eq!(*pool.roster(), roster(3));
    pool.set_roster(&roster(2)).expect("written");
    let pool = reopened(&store, pool);
    assert_eq!(*pool.roster(), roster(2));
}

#[test]
fn a_long_roster_is_set_by_its_last_part_only() {
    let (_root, store) = fresh();
    let mut pool = create(&store, "orders");
    let encoded = roster(64).encode().expect("fits");
    assert!(encoded.len() > 2 * ROSTER_PART_BYTES, "several parts");
    let parts: Vec<_> = RosterPart::requests(&encoded).collect();
    let set = |request: &Request, pool: &mut OpenPool| pool.ask(request.clone());
    set(&parts[0], &mut pool).expect("the first part");
    assert_eq!(pool.roster().version, 0);
    set(&parts[2], &mut pool).expect_err("the second part is missing");
    for part in &parts {
        set(part, &mut pool).expect("in order");
    }
    let mut pool = reopened(&store, pool);
    assert_eq!(*pool.roster(), roster(64));
    let mut read = Vec::new();
    while let Ok(Reply::Roster(part)) = pool.ask(Request::Roster { offset: read.len() as u16 }) {
        read.extend_from_slice(&part.bytes);
        if read.len() == usize::from(part.len_bytes) {
            break;
        }
    }
    assert!(read == encoded);
}

/// The rosters that crashes may leave of a change, `keep` of whose events take place; and whether all that was left at its end is new.
fn rosters_left(format: PoolFormat, keep: impl Fn(&Event) -> bool) -> (Vec<Result<Roster, HeaderError>>, bool) {
    let mut image = vec![0; HEAD_4_BYTES as usize];
    for (offset, copy) in roster(2).steps(format, 6).expect("it fits").into_iter().flatten() {
        image[offset as usize..][..copy.len()].copy_from_slice(&copy);
    }
    let recorded = ShadowMedium::from_image(image.clone(), MediumKind::DevDax).expect("a medium");
    write_copies(&recorded, roster(3).steps(format, 8).expect("it fits")).expect("written");
    let replayed = ShadowMedium::from_image(image, MediumKind::DevDax).expect("a medium");
    let (mut rosters, mut is_new) = (Vec::new(), false);
    for event in recorded.trace().iter().filter(|event| keep(event)) {
        match event {
            Event::Store { offset, bytes } => replayed.store(*offset, bytes).expect("inside"),
            Event::WriteBack { offset, len_bytes } => replayed.write_back(*offset, *len_bytes).expect("inside"),
            Event::Fence => replayed.fence().expect("a fence"),
            Event::Mark(_) => {}
        }
        let of = |image: Vec<u8>| {
            let places = format.roster_places().iter();
            let copies: Vec<_> = places.map(|place| &image[*place as usize..][..format.roster_bytes()]).collect();
            Roster::read_copies(format, 2, &copies.concat())
        };
        let left: Vec<_> = replayed.crash_images(50).map(|image| of(image).map(|kept| kept.roster)).collect();
        is_new = left.iter().all(|left| *left == Ok(roster(3)));
        rosters.extend(left);
    }
    (rosters, is_new)
}

#[test]
fn a_roster_is_durable_before_it_is_answered_for() {
    for format in [PoolFormat::Three, PoolFormat::Four] {
        let (rosters, is_new) = rosters_left(format, |_| true);
        assert!(is_new, "a loss of power takes back what was answered");
        assert!(
            rosters.iter().all(|left| [Ok(roster(2)), Ok(roster(3))].contains(left)),
            "a crash leaves the old one or the new one"
        );
        assert!(rosters.contains(&Ok(roster(2))), "some crash comes before");
        // The controls: without write-back or fence it is not durable at the end.
        assert!(!rosters_left(format, |event| !matches!(event, Event::WriteBack { .. })).1);
        assert!(!rosters_left(format, |event| *event != Event::Fence).1);
    }
}
