//! The state of a pool: what a crash leaves of a change, and who may say that a pool was closed in order.

use pmof_mem::{ShadowMedium, shadow::Event};

use super::*;

fn epoch(number: u128) -> Epoch {
    Epoch { id: Uuid::from_u128(number), members: 0b11 }
}

/// The head of a pool whose state was written in order, and the state that comes next.
fn before_and_after() -> (Vec<u8>, PoolState, PoolState) {
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
    let mut image = vec![0; DATA_OFFSET as usize];
    for sequence in [6, 7] {
        let (offset, slot) = old.slot(sequence);
        image[STATE_OFFSET as usize + offset..][..slot.len()].copy_from_slice(&slot);
    }
    (image, old, new)
}

fn state_of(image: &[u8]) -> Result<PoolState, HeaderError> {
    PoolState::read(PoolFormat::Three, 2, &image[STATE_OFFSET as usize..][..STATE_BYTES]).map(|(state, _)| state)
}

/// The states that crashes may leave of a change, `keep` of whose events take place; and whether all that was left at its end is new.
fn states_left(keep: impl Fn(&Event) -> bool) -> (Vec<Result<PoolState, HeaderError>>, bool) {
    let (image, _, new) = before_and_after();
    let recorded = ShadowMedium::from_image(image.clone(), MediumKind::DevDax).expect("a medium");
    write_state(&recorded, &new, 8).expect("written");
    let replayed = ShadowMedium::from_image(image, MediumKind::DevDax).expect("a medium");
    let (mut states, mut is_new) = (Vec::new(), false);
    for event in recorded.trace().iter().filter(|event| keep(event)) {
        match event {
            Event::Store { offset, bytes } => replayed.store(*offset, bytes).expect("inside"),
            Event::WriteBack { offset, len_bytes } => replayed.write_back(*offset, *len_bytes).expect("inside"),
            Event::Fence => replayed.fence().expect("a fence"),
            Event::Mark(_) => {}
        }
        let left: Vec<_> = replayed.crash_images(500).map(|image| state_of(&image)).collect();
        is_new = left.iter().all(|state| *state == Ok(new.clone()));
        states.extend(left);
    }
    (states, is_new)
}

#[test]
fn a_crash_leaves_the_old_state_or_the_new_one() {
    let (_, old, new) = before_and_after();
    // Torn, the old one counts as not closed.
    let good = [Ok(old.clone()), Ok(PoolState { is_open: true, ..old }), Ok(new)];
    let (states, is_new) = states_left(|_| true);
    assert!(is_new && states.iter().all(|state| good.contains(state)));
    assert!(states.contains(&good[1]), "some crash tears it");
    // The controls: without write-back or fence it is not durable at the end.
    assert!(!states_left(|event| !matches!(event, Event::WriteBack { .. })).1);
    assert!(!states_left(|event| *event != Event::Fence).1);
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
