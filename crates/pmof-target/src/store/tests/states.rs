//! The state of a pool: what a crash leaves of a change, and who may say that a pool was closed in order.

use pmof_mem::{ShadowMedium, shadow::Event};
use syscall_recorder::{Call, Verdict, record};

use super::{super::state::write_copies, *};
use pmof_control::HEAD_4_BYTES;

fn epoch(number: u128) -> Epoch {
    Epoch { id: Uuid::from_u128(number), members: 0b11 }
}

/// The head of a pool whose state was written in order, and the state that comes next.
fn before_and_after(format: PoolFormat) -> (Vec<u8>, PoolState, PoolState) {
    let old = PoolState { is_open: false, ..PoolState::new(Uuid::from_u128(1), 2) };
    let new = PoolState {
        epoch: epoch(2),
        is_confirmed: false,
        is_open: true,
        is_behind: false,
        opening: 2,
        mark: 3,
        ancestors: vec![old.epoch],
    };
    let mut image = vec![0; HEAD_4_BYTES as usize];
    for (offset, copy) in old.steps(format, 6).into_iter().flatten() {
        image[offset as usize..][..copy.len()].copy_from_slice(&copy);
    }
    (image, old, new)
}

fn state_of(image: &[u8]) -> Result<PoolState, HeaderError> {
    state_in(PoolFormat::Three, image)
}

fn state_in(format: PoolFormat, image: &[u8]) -> Result<PoolState, HeaderError> {
    let places = format.state_places().iter();
    let copies: Vec<_> = places.map(|place| &image[*place as usize..][..format.state_bytes()]).collect();
    PoolState::read(format, 2, &copies.concat()).map(|(state, _)| state)
}

/// The states that crashes may leave of a change, `keep` of whose events take place; and whether all that was left at its end is new.
fn states_left(format: PoolFormat, keep: impl Fn(&Event) -> bool) -> (Vec<Result<PoolState, HeaderError>>, bool) {
    let (image, _, new) = before_and_after(format);
    let recorded = ShadowMedium::from_image(image.clone(), MediumKind::DevDax).expect("a medium");
    write_copies(&recorded, new.steps(format, 8)).expect("written");
    let replayed = ShadowMedium::from_image(image, MediumKind::DevDax).expect("a medium");
    let (mut states, mut is_new) = (Vec::new(), false);
    for event in recorded.trace().iter().filter(|event| keep(event)) {
        match event {
            Event::Store { offset, bytes } => replayed.store(*offset, bytes).expect("inside"),
            Event::WriteBack { offset, len_bytes } => replayed.write_back(*offset, *len_bytes).expect("inside"),
            Event::Fence => replayed.fence().expect("a fence"),
            Event::Mark(_) => {}
        }
        let left: Vec<_> = replayed.crash_images(500).map(|image| state_in(format, &image)).collect();
        is_new = left.iter().all(|state| *state == Ok(new.clone()));
        states.extend(left);
    }
    (states, is_new)
}

#[test]
fn a_crash_leaves_the_old_state_or_the_new_one() {
    for format in [PoolFormat::Three, PoolFormat::Four] {
        let (_, old, new) = before_and_after(format);
        let torn = PoolState { is_open: true, ..old.clone() };
        // Torn, the old one counts as not closed in format 3.
        let good = if format == PoolFormat::Three { [old, torn, new] } else { [old.clone(), old, new] }.map(Ok);
        let (states, is_new) = states_left(format, |_| true);
        assert!(is_new && states.iter().all(|state| good.contains(state)), "{states:?}");
        assert!(states.contains(&good[1]), "some crash comes before");
        // The controls: without write-back or fence it is not durable at the end.
        assert!(!states_left(format, |event| !matches!(event, Event::WriteBack { .. })).1);
        assert!(!states_left(format, |event| *event != Event::Fence).1);
    }
}

#[test]
fn only_who_began_closes() {
    let (_root, store) = fresh();
    drop(create(&store, "orders"));
    let is_open = || store.info(&name("orders")).expect("info").state.is_open;
    let mut vain = open(&store, "orders", OpenFor::Write).expect("the pool");
    vain.close().expect("nothing to say");
    drop(vain);
    assert!(is_open(), "the maker did not close it");
    let mut pool = open(&store, "orders", OpenFor::Write).expect("the pool");
    pool.begin(epoch(2), 2, &[]).expect("begun");
    assert!(matches!(pool.confirm(Uuid::from_u128(3)), Err(StoreError::NotTheEpoch { .. })));
    let is_confirmed = || store.info(&name("orders")).expect("info").state.is_confirmed;
    assert!(is_open() && !is_confirmed());
    pool.confirm(Uuid::from_u128(2)).expect("confirmed");
    assert!(is_open() && is_confirmed());
    pool.close().expect("closed");
    assert!(!is_open() && is_confirmed());
    let mut reader = open(&store, "orders", OpenFor::Read).expect("the pool");
    assert!(matches!(reader.begin(epoch(4), 3, &[]), Err(StoreError::ReadOnly { .. })));
}

/// As a target does behind the page cache: what was stored is on the disk before the state says that the pool was closed.
#[test]
fn a_pool_is_flushed_before_it_says_that_it_is_closed() {
    for fails in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let path = root.join("orders");
        let (mut is_closing, mut is_flushed) = (false, false);
        let judge = |call: &Call| {
            let head = fs::read(&path).unwrap_or_default();
            is_closing |= head.get(DATA_OFFSET as usize..).is_some_and(|data| data.starts_with(b"stored"));
            let is_open = is_closing && state_of(&head[..DATA_OFFSET as usize]).is_ok_and(|state| state.is_open);
            if matches!(call, Call::Fdatasync(synced) if *synced == path) && is_open {
                is_flushed = true;
                return if fails { Verdict::Fail(5) } else { Verdict::Pass };
            }
            Verdict::Pass
        };
        let act = || {
            let store = store_at(&root);
            let pool = NewPool { replica_index: 0, replica_count: 2, ..new_pool(SIZE_BYTES) };
            let mut pool = store.create(&name("orders"), &pool, String::new()).expect("a pool");
            let medium = pool.medium();
            medium.store(DATA_OFFSET, b"stored").and_then(|()| medium.write_back(DATA_OFFSET, 6)).expect("a store");
            pool.close()
        };
        let closed = match record(judge, act) {
            Ok((closed, _)) => closed,
            Err(error) => {
                skip_report::skipped!("{error}");
                return;
            }
        };
        assert!(is_flushed, "fdatasync comes before the state");
        assert_eq!(closed.is_err(), fails, "{closed:?}");
        let is_open = state_of(&fs::read(&path).unwrap()[..DATA_OFFSET as usize]).unwrap().is_open;
        assert_eq!(is_open, fails, "what failed to be flushed was not closed in order");
    }
}

#[test]
fn a_mark_grows_and_outlives_epochs_and_closes() {
    let (_root, store) = fresh();
    drop(create(&store, "orders"));
    let mark = || store.info(&name("orders")).expect("info").state.mark;
    let mut pool = open(&store, "orders", OpenFor::Write).expect("the pool");
    pool.raise_mark(7).expect("raised");
    pool.raise_mark(6).expect("nothing to do");
    pool.begin(epoch(2), 2, &[]).expect("begun");
    assert_eq!(mark(), 7, "until all are equal again it tells which replica has everything");
    pool.confirm(Uuid::from_u128(2)).expect("confirmed");
    pool.raise_mark(8).expect("raised");
    pool.close().expect("closed");
    drop(pool);
    assert_eq!(mark(), 8);
    let mut reader = open(&store, "orders", OpenFor::Read).expect("the pool");
    assert!(matches!(reader.raise_mark(9), Err(StoreError::ReadOnly { .. })));
}

/// A slot of the state page, or of the roster, changed behind the target's back.
fn damage(store: &PoolStore, slot_bytes: usize, (offset, slot): (u64, usize)) {
    let path = store.root().join("orders");
    let file = File::options().read(true).write(true).open(path).expect("the file");
    let (at, mut byte) = (offset + (slot * slot_bytes) as u64 + 20, [0]);
    file.read_exact_at(&mut byte, at).expect("a read");
    file.write_all_at(&[byte[0] ^ 1], at).expect("a write");
}

/// Each change: a state that is answered for is in both slots.
#[test]
fn a_damaged_slot_takes_no_answered_state_back() {
    type Change = fn(&mut OpenPool);
    let begun: Change = |pool| pool.begin(epoch(2), 2, &[]).expect("begun");
    let confirmed: Change = |pool| pool.confirm(Uuid::from_u128(2)).expect("confirmed");
    let raised: Change = |pool| pool.raise_mark(7).expect("raised");
    let closed: Change = |pool| pool.close().expect("closed");
    let steps = [begun, confirmed, raised, closed];
    for count in 0..=steps.len() {
        for slot in [0, 1] {
            let (_root, store) = fresh();
            let mut pool = create(&store, "orders");
            steps[..count].iter().for_each(|step| step(&mut pool));
            let expected = PoolState { is_open: true, ..pool.state().clone() };
            drop(pool);
            damage(&store, STATE_BYTES / 2, (STATE_OFFSET, slot));
            let pool = open(&store, "orders", OpenFor::Write).expect("one slot is whole");
            assert_eq!(*pool.state(), expected, "{count} changes, slot {slot}");
            drop(pool);
            // An opening for writing puts it into both slots before anything depends on it.
            damage(&store, STATE_BYTES / 2, (STATE_OFFSET, 1 - slot));
            assert_eq!(store.info(&name("orders")).expect("info").state, expected, "{count} changes, slot {slot}");
        }
    }
}

/// As `a_damaged_slot_takes_no_answered_state_back`, of the list of members.
#[test]
fn a_damaged_slot_takes_no_answered_roster_back() {
    let roster = |version| Roster { version, ..Roster::made(3) };
    for version in 1..=4 {
        for slot in [0, 1] {
            let (_root, store) = fresh();
            let mut pool = create(&store, "orders");
            (1..=version).for_each(|version| pool.set_roster(&roster(version)).expect("kept"));
            drop(pool);
            for slot in [slot, 1 - slot] {
                damage(&store, ROSTER_BYTES / 2, (ROSTER_OFFSET, slot));
                let pool = open(&store, "orders", OpenFor::Write).expect("one slot is whole");
                assert_eq!(*pool.roster(), roster(version), "version {version}, slot {slot}");
            }
        }
    }
}

/// A change that was cut short is whole when the next writer learns of it, so that a bit cannot take back what that one goes on from.
#[test]
fn what_a_crash_left_in_one_slot_is_put_into_both() {
    let (_root, store) = fresh();
    let mut pool = create(&store, "orders");
    pool.begin(epoch(2), 2, &[]).expect("begun");
    let confirmed = pool.state().confirmed(1, Uuid::from_u128(2)).expect("its epoch");
    // The pool was made with slots 1 and 2, and the epoch is in 3 and 4.
    let [(offset, slot), _] = confirmed.slots(5);
    pool.medium().store(STATE_OFFSET + offset as u64, &slot).expect("inside");
    drop(pool);
    let pool = open(&store, "orders", OpenFor::Write).expect("the pool");
    assert_eq!(*pool.state(), confirmed);
    drop(pool);
    for slot in [0, 1] {
        damage(&store, STATE_BYTES / 2, (STATE_OFFSET, slot));
        let pool = open(&store, "orders", OpenFor::Write).expect("one slot is whole");
        assert_eq!(*pool.state(), confirmed, "slot {slot}");
    }
}
