//! Openings with fewer members than are safe leave a mark, until somebody says that it is known.

use std::{fs::OpenOptions, os::unix::fs::FileExt as _, sync::Arc, time::Duration};

use pmof_control::{ROSTER_BYTES, ROSTER_OFFSET};
use pmof_pool::{ChangeError, Event, Pool, PoolError};

use crate::{interrupted::Ways, support::*};

const POOL_BYTES: u64 = 1 << 20;

/// A pool of two of which the second is lost for good, and the first was opened by force.
fn forced(two: &mut [Target; 2]) -> Pool {
    options(urls(&*two)).create(POOL_BYTES).unwrap().close().unwrap();
    two[1].stop();
    let first = options([two[0].url("orders")]);
    assert!(first.open().is_err());
    assert_eq!(first.members().unwrap().forced, None);
    let before = first.members().unwrap();
    let pool = first.min_replicas(1).open().unwrap();
    let forced = pool.status().unwrap().forced.unwrap();
    assert_eq!(
        (forced.opening, forced.went_on, forced.left_out, forced.epoch),
        (before.opening + 1, 1, 2, before.epoch)
    );
    assert!(forced.unix_ms > 1_700_000_000_000);
    pool
}

fn fixed<const N: usize>() -> [Target; N] {
    std::array::from_fn(|_| Target::start_fixed())
}

#[test]
fn the_mark_of_a_forced_opening_stays_until_it_is_cleared() {
    let mut two = fixed();
    let third = Target::start_fixed();
    let pool = forced(&mut two);
    let mark = pool.status().unwrap().forced;
    assert!(matches!(pool.clear_forced(), Err(ChangeError::Forced)), "as it is open now nothing is changed");
    // Also where the writer dies at once.
    drop(pool);
    let first = options([two[0].url("orders")]);
    let pool = first.open_waiting(LONG).unwrap();
    let event = pool.events().next_for(Duration::ZERO);
    assert!(matches!(&event, Some(Event::Forced { forced }) if Some(*forced) == mark), "{event:?}");
    assert!(event.unwrap().to_string().contains("too few members (0) and without others (1)"));
    pool.replace("1", &third.url("orders")).unwrap();
    pool.close().unwrap();
    for member in [&two[0], &third] {
        assert_eq!(options([member.url("orders")]).members().unwrap().forced, mark);
    }
    let pool = options([third.url("orders")]).open().unwrap();
    assert_eq!(pool.status().unwrap().forced, mark);
    assert_eq!(pool.clear_forced().unwrap(), mark);
    assert_eq!((pool.clear_forced().unwrap(), pool.status().unwrap().forced), (None, None));
    assert!(pool.events().next_for(Duration::ZERO).is_none());
    drop(pool);
    two[0].stop();
    assert_eq!(options([third.url("orders")]).members().unwrap().forced, None, "durably, on each of them");
}

#[test]
fn an_opening_that_would_be_safe_is_not_marked() {
    let mut three: [Target; 3] = fixed();
    options(urls(&three)).create(POOL_BYTES).unwrap().close().unwrap();
    three[2].stop();
    let pool = options(urls(&three[..2])).min_replicas(1).open().unwrap();
    assert_eq!(pool.status().unwrap().forced, None);
    pool.close().unwrap();
    three[1].stop();
    let reader = options([three[0].url("orders")]).min_replicas(1).open_read_only().unwrap();
    drop(reader);
    assert_eq!(options([three[0].url("orders")]).members().unwrap().forced, None, "nothing was written");
    let pool = options([three[0].url("orders")]).min_replicas(1).open().unwrap();
    assert_eq!(pool.status().unwrap().forced.map(|forced| (forced.went_on, forced.left_out)), Some((1, 6)));
    pool.close().unwrap();
}

/// A slot that has it is damaged: the other one has it too. Of both the target says so.
#[test]
fn a_mark_that_is_garbled_in_one_slot_is_kept_in_the_other() {
    let mut two = fixed();
    forced(&mut two).close().unwrap();
    let file = OpenOptions::new().read(true).write(true).open(two[0].root.path().join("orders")).unwrap();
    let first = options([two[0].url("orders")]);
    let mut slots = vec![0; ROSTER_BYTES];
    file.read_exact_at(&mut slots, ROSTER_OFFSET).unwrap();
    let slot_bytes = ROSTER_BYTES / 2;
    let sequence = |slot: usize| u64::from_le_bytes(slots[slot + 8..][..8].try_into().unwrap());
    let newest = if sequence(0) > sequence(slot_bytes) { 0 } else { slot_bytes };
    let damage = |target: &mut Target, at: usize| {
        target.stop();
        file.write_all_at(&[slots[at] ^ 4], ROSTER_OFFSET + at as u64).unwrap();
        target.restart();
    };
    // In the last of its bytes, which are the members that it went on without.
    let last = slots[newest..][..slot_bytes - 4].iter().rposition(|byte| *byte != 0).unwrap();
    let mark = first.members().unwrap().forced;
    assert!(mark.is_some());
    damage(&mut two[0], newest + last);
    assert_eq!(first.members().unwrap().forced, mark);
    damage(&mut two[0], slot_bytes - newest + last);
    let error = first.members().unwrap_err();
    assert!(format!("{error:?}").contains("damaged"), "{error:?}");
}

/// Where enough members are there, nothing is forced by asking for fewer: a partition leaves one side that goes on, as ever.
#[test]
fn asking_for_fewer_than_are_there_lowers_no_quorum() {
    let three: [Target; 3] = fixed();
    options(urls(&three)).create(POOL_BYTES).unwrap().close().unwrap();
    let ways = Arc::<Ways>::default();
    let named = [three[0].url("orders"), ways.to(&three[1]), ways.to(&three[2])];
    let pool = options(named).min_replicas(1).open().unwrap();
    assert_eq!((pool.persist(0, b"of all").unwrap().replicas.len(), pool.status().unwrap().forced), (3, None));
    ways.cut();
    let error = pool.persist(0, b"of one").unwrap_err();
    assert!(matches!(error, PoolError::Persist(_)), "{error:?}");
    // As whoever cannot reach the first one, whichever way.
    let others = options(urls(&three[1..])).min_replicas(2).open_waiting(LONG).unwrap();
    others.persist(0, b"of two").unwrap();
    assert!(pool.persist(0, b"of one").is_err());
    drop(pool);
    others.close().unwrap();
    let pool = options(urls(&three)).open_waiting(LONG).unwrap();
    wait_in_sync(&pool);
    assert_eq!((read(&pool, 0, 6), pool.status().unwrap().forced), (b"of two".to_vec(), None));
    pool.close().unwrap();
}

/// Two of four are as many as an opening needs, and fewer than have to know of an epoch: the other two may be opened in the same way.
#[test]
fn half_of_the_members_go_on_with_a_mark_only() {
    let mut four: [Target; 4] = fixed();
    options(urls(&four)).create(POOL_BYTES).unwrap().close().unwrap();
    four[2].stop();
    four[3].stop();
    assert!(options(urls(&four[..2])).open().is_err());
    let pool = options(urls(&four[..2])).min_replicas(2).open().unwrap();
    pool.persist(0, b"half").unwrap();
    let mark = pool.status().unwrap().forced.expect("a mark");
    assert_eq!((mark.went_on, mark.left_out), (0b11, 0b1100));
    pool.close().unwrap();
    four[2].restart();
    let pool = options(urls(&four[..3])).open().unwrap();
    assert_eq!(pool.status().unwrap().forced, Some(mark), "three of four are safe, and the mark stays");
    pool.close().unwrap();
}
