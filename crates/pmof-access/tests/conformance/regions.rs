//! Regions: rights, bounds, descriptors, and how long memory lives.

use std::sync::Arc;

use pmof_access::{
    Access, Connection, ConnectionError, ConnectionEvent, DESCRIPTOR_BYTES, DescriptorError, Durability, Medium,
    Memory, OperationError, Outcome, PostError, Refusal, RegisterError, RemoteRegion, ResolveError, ShortDescriptor,
    Ticket,
};
use pmof_proto::Descriptor;

use crate::{
    fabric::Fabric,
    pair::{LONG, Pair, Setup, join, region},
    support::{content, pattern},
};

const LEN_BYTES: u64 = 4096;

/// A length that no memory has, and that still ends inside every address space.
const HUGE: u64 = 1 << 62;

/// The right that each operation of [`post_one`] needs: one of the bits is enough.
const RIGHTS: [Access; 8] = [
    Access::WRITE,
    Access::WRITE,
    Access::WRITE,
    Access::WRITE,
    Access::READ,
    Access::ATOMIC,
    Access::ATOMIC,
    Access::FLUSH_VISIBLE.union(Access::FLUSH_PERSISTENT),
];

/// Which of them takes a receive.
const WITH_IMMEDIATE: usize = 2;

/// Posts the operation with this number on 8 bytes at `offset`.
fn post_one(pair: &Pair, remote: &RemoteRegion, index: usize, offset: u64) -> Result<Ticket, PostError> {
    let connection = &pair.initiator.connection;
    let (local, _) = region(&pair.initiator.peer, 8, Access::empty());
    let whole = || local.slice(..).unwrap();
    match index {
        0 => connection.write(remote, offset, b"12345678"),
        1 => connection.write(remote, offset, whole()),
        WITH_IMMEDIATE => connection.batch().write_with_immediate(remote, offset, b"12345678", 1),
        3 => connection.batch().atomic_write(remote, offset, 1),
        4 => connection.read(remote, offset, whole()),
        5 => connection.batch().compare_and_swap(remote, offset, 0, 2),
        6 => connection.batch().fetch_and_add(remote, offset, 1),
        _ => connection.flush(remote, offset..offset.saturating_add(8), Durability::Visible),
    }
}

/// The region's descriptor with one thing changed and a right checksum, as a malicious peer would make it.
fn forge(descriptor: &[u8], change: impl FnOnce(&mut Descriptor)) -> RemoteRegion {
    let mut descriptor = Descriptor::decode(descriptor).unwrap();
    change(&mut descriptor);
    RemoteRegion::from_descriptor(&descriptor.encode()).unwrap()
}

/// Checks that the target refuses the operation, and that this ends the connection on both sides.
#[track_caller]
fn is_refused<F: Fabric>(pair: &Pair, ticket: Ticket, rule: Refusal) {
    let refused = match pair.initiator.outcome(ticket) {
        Err(error) if F::is_refused_there(&error, rule) => match error {
            OperationError::Refused { refusal, .. } => ConnectionError::Refused { refusal, private_data: Vec::new() },
            OperationError::ConnectionEnded(why) => why,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?} instead of {rule:?}"),
    };
    assert_eq!(pair.initiator.event(), ConnectionEvent::Established);
    assert_eq!(pair.initiator.event(), ConnectionEvent::Lost(refused.clone()));
    assert_eq!(pair.target.event(), ConnectionEvent::Established);
    match pair.target.event() {
        ConnectionEvent::Lost(why) => assert!(F::is_refused_here(&why, rule), "{why}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(pair.initiator.connection.send(b"more"), Err(PostError::NotConnected(refused)));
}

pub(crate) fn every_right_is_checked_when_posting<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    for bits in 0..=Access::all().bits() {
        let access = Access::from_bits(bits).unwrap();
        let (_memory, remote) = region(&pair.target.peer, LEN_BYTES, access);
        assert_eq!((remote.access(), remote.len_bytes()), (access, LEN_BYTES));
        let (inbox, _) = region(&pair.target.peer, 8, Access::empty());
        for (index, right) in RIGHTS.into_iter().enumerate() {
            // Writes with immediate take a receive each.
            if index == WITH_IMMEDIATE && access.intersects(right) {
                pair.target.connection.receive(inbox.slice(..).unwrap(), 0).unwrap();
            }
            match post_one(&pair, &remote, index, 0) {
                Ok(ticket) => {
                    assert!(access.intersects(right), "operation {index} with {access:?}");
                    pair.initiator.done(ticket);
                }
                Err(PostError::NoRight { .. }) => {
                    assert!(!access.intersects(right), "operation {index} with {access:?}");
                }
                Err(other) => panic!("operation {index} with {access:?}: {other}"),
            }
        }
    }
}

pub(crate) fn the_target_checks_rights_itself<F: Fabric>() {
    for (index, right) in RIGHTS.into_iter().enumerate() {
        if !F::SERVED_BY_CPU && right.contains(Access::FLUSH_VISIBLE) {
            // Where devices do the work, whoever may read may make visible: it takes a read.
            continue;
        }
        if !F::checks(right) {
            continue;
        }
        let fabric = F::new();
        let pair = fabric.pair();
        let (memory, _) = region(&pair.target.peer, LEN_BYTES, Access::all() - right);
        let forged = forge(&memory.descriptor(), |descriptor| descriptor.access = Access::all());
        let ticket = post_one(&pair, &forged, index, 0).unwrap();
        is_refused::<F>(&pair, ticket, Refusal::NoRight);
        assert_eq!(content(&memory, 0, 8), [0; 8], "operation {index}");
    }
}

pub(crate) fn bounds_are_checked_when_posting<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    let (_memory, remote) = region(&pair.target.peer, LEN_BYTES, Access::all());
    let (inbox, _) = region(&pair.target.peer, 8, Access::empty());
    pair.target.connection.receive(inbox.slice(..).unwrap(), 0).unwrap();
    for (index, _) in RIGHTS.into_iter().enumerate() {
        let last = post_one(&pair, &remote, index, LEN_BYTES - 8).unwrap();
        pair.initiator.done(last);
        for offset in [LEN_BYTES - 7, LEN_BYTES, LEN_BYTES + 8, u64::MAX - 7, u64::MAX] {
            let error = post_one(&pair, &remote, index, offset).unwrap_err();
            assert!(matches!(error, PostError::OutOfBounds { .. }), "operation {index} at {offset}: {error}");
        }
    }
    let connection = &pair.initiator.connection;
    for range in [(0, LEN_BYTES + 1), (9, 8), (u64::MAX, u64::MAX)] {
        let error = connection.flush(&remote, range.0..range.1, Durability::Visible).unwrap_err();
        assert!(matches!(error, PostError::OutOfBounds { .. }), "{range:?}: {error}");
    }
    assert!(connection.flush(&remote, 0..=u64::MAX, Durability::Visible).is_err());
    assert!(connection.is_established());
}

pub(crate) fn the_target_checks_bounds_itself<F: Fabric>() {
    for (index, right) in RIGHTS.into_iter().enumerate() {
        if !F::SERVED_BY_CPU && right.contains(Access::FLUSH_VISIBLE) {
            // Making visible changes nothing and tells nothing: some devices are asked to do it for the whole region.
            continue;
        }
        for offset in [LEN_BYTES - 7, LEN_BYTES, HUGE - 16] {
            let offset = if matches!(index, 3 | 5 | 6) { offset.next_multiple_of(8) } else { offset };
            let fabric = F::new();
            let pair = fabric.pair();
            // The region is followed by more of the same memory, which is none of the peer's business.
            let memory: Arc<dyn Medium> = Arc::new(Memory::anonymous(2 * LEN_BYTES).unwrap());
            let owned = pair.target.peer.register(Arc::clone(&memory), 0, LEN_BYTES, Access::all()).unwrap();
            let forged = forge(&owned.descriptor(), |descriptor| descriptor.len_bytes = HUGE);
            let ticket = post_one(&pair, &forged, index, offset).unwrap();
            is_refused::<F>(&pair, ticket, Refusal::OutOfBounds);
            let mut all = vec![0; 2 * LEN_BYTES as usize];
            memory.read(0, &mut all).unwrap();
            assert!(all.iter().all(|byte| *byte == 0), "operation {index} at {offset} changed something");
        }
    }
}

pub(crate) fn zero_is_a_length_too<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    let (memory, remote) = region(&pair.target.peer, LEN_BYTES, Access::all());
    let (local, _) = region(&pair.initiator.peer, LEN_BYTES, Access::empty());
    memory.store(0, &pattern(LEN_BYTES as usize, 4)).unwrap();
    let connection = &pair.initiator.connection;
    for offset in [0, 1, LEN_BYTES] {
        let nothing = || local.slice(offset..offset).unwrap();
        let tickets = [
            connection.write(&remote, offset, b"").unwrap(),
            connection.write(&remote, offset, nothing()).unwrap(),
            connection.read(&remote, offset, nothing()).unwrap(),
        ];
        for ticket in tickets {
            assert_eq!(pair.initiator.done(ticket), Outcome::Done { len_bytes: 0 });
        }
        let ticket = connection.flush(&remote, offset..offset, Durability::Visible).unwrap();
        assert!(matches!(pair.initiator.done(ticket), Outcome::Flushed(_)));
    }
    assert!(connection.write(&remote, LEN_BYTES + 1, b"").is_err());
    assert_eq!(content(&memory, 0, LEN_BYTES as usize), pattern(LEN_BYTES as usize, 4));
}

pub(crate) fn nothing_needs_no_region<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    let (connection, nowhere) = (&pair.initiator.connection, RemoteRegion::nowhere());
    let (local, _) = region(&pair.initiator.peer, 8, Access::empty());
    let tickets =
        [connection.write(&nowhere, 0, b"").unwrap(), connection.read(&nowhere, 0, local.slice(..0).unwrap()).unwrap()];
    for ticket in tickets {
        assert_eq!(pair.initiator.done(ticket), Outcome::Done { len_bytes: 0 });
    }
    let ticket = connection.flush(&nowhere, .., Durability::Visible).unwrap();
    assert!(matches!(pair.initiator.done(ticket), Outcome::Flushed(_)));
    assert!(matches!(connection.write(&nowhere, 0, b"x"), Err(PostError::OutOfBounds { .. })));
}

pub(crate) fn a_short_descriptor_leads_to_its_region<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    let (memory, remote) = region(&pair.target.peer, LEN_BYTES, Access::all());
    let short = ShortDescriptor::decode(&memory.short_descriptor(17).unwrap().encode()).unwrap();
    assert_eq!((short.len_bytes(), short.note()), (LEN_BYTES, 17));
    let connection = &pair.initiator.connection;
    let written = connection.write(&remote, 0, b"before").unwrap();
    let found = connection.resolve(&short, Access::all(), LONG).unwrap();
    assert_eq!((found.len_bytes(), found.access(), found.kind()), (LEN_BYTES, remote.access(), remote.kind()));
    // Only what was asked for elsewhere is left to collect.
    pair.initiator.done(written);
    assert_eq!(pair.initiator.queue.poll(), None);
    let ticket = connection.write(&found, 6, b" after").unwrap();
    assert_eq!(pair.initiator.done(ticket), Outcome::Done { len_bytes: 6 });
    let ticket = connection.flush(&found, .., Durability::Visible).unwrap();
    pair.initiator.done(ticket);
    assert_eq!(content(&memory, 0, 12), b"before after");

    memory.deregister();
    let gone = match connection.resolve(&short, Access::all(), LONG) {
        Err(ResolveError::Operation(gone)) => gone,
        Err(other) => panic!("{other}"),
        // It said all, so its owner was not asked.
        Ok(region) => {
            let ticket = connection.write(&region, 0, b"late").unwrap();
            let done = pair.initiator.queue.wait_for(connection.id(), ticket, LONG).expect("in time");
            done.outcome.unwrap_err()
        }
    };
    assert!(F::is_refused_there(&gone, Refusal::UnknownRegion), "{gone}");
}

pub(crate) fn a_damaged_descriptor_is_noticed<F: Fabric>() {
    let fabric = F::new();
    let (memory, _) = region(&fabric.peer(), LEN_BYTES, Access::all());
    let good = memory.descriptor();
    assert!(RemoteRegion::from_descriptor(&good).is_ok());
    for at in 0..DESCRIPTOR_BYTES {
        for bit in 0..8 {
            let mut bad = good;
            bad[at] ^= 1 << bit;
            assert_eq!(
                RemoteRegion::from_descriptor(&bad).unwrap_err(),
                DescriptorError::Checksum,
                "byte {at} bit {bit}"
            );
        }
        let error = RemoteRegion::from_descriptor(&good[..at]).unwrap_err();
        assert_eq!(error, DescriptorError::Length { len_bytes: at });
    }
    // What follows a descriptor in private data is the application's.
    let longer = [&good[..], b"name"].concat();
    assert_eq!(RemoteRegion::from_descriptor(&longer).unwrap().len_bytes(), LEN_BYTES);
}

pub(crate) fn a_key_opens_one_region_of_one_peer<F: Fabric>() {
    for foreign in [false, true] {
        let fabric = F::new();
        let pair = fabric.pair();
        let (memory, _) = region(&pair.target.peer, LEN_BYTES, Access::all());
        let (elsewhere, _) = region(&fabric.peer(), LEN_BYTES, Access::all());
        let remote = if foreign {
            RemoteRegion::from_descriptor(&elsewhere.descriptor()).unwrap()
        } else {
            forge(&memory.descriptor(), F::forge_key)
        };
        let ticket = pair.initiator.connection.write(&remote, 0, b"x").unwrap();
        is_refused::<F>(&pair, ticket, Refusal::UnknownRegion);
        assert_eq!((content(&memory, 0, 1), content(&elsewhere, 0, 1)), (vec![0], vec![0]));
    }
}

/// One more connection of the pair's peers, the initiator's end first.
fn another(pair: &Pair) -> (Connection, Connection) {
    join(&pair.initiator.peer, &pair.initiator.queue, &pair.listener, &pair.target.queue, &Setup::default())
}

/// Memory that every transport registers in its way, shm to be mapped.
fn shared_memory() -> Arc<Memory> {
    Arc::new(Memory::shared_anonymous(LEN_BYTES, false).unwrap())
}

pub(crate) fn a_key_may_be_bound_to_one_connection<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    let (initiator, target) = (&pair.initiator, &pair.target);
    let bound = target.peer.register_for(&target.connection, shared_memory(), 0, LEN_BYTES, Access::all()).unwrap();
    let remote = RemoteRegion::from_descriptor(&bound.descriptor()).unwrap();
    let short = bound.short_descriptor(0).unwrap();
    let works = |bytes: &[u8]| {
        assert!(initiator.connection.prepare(&remote, LONG));
        initiator.done(initiator.connection.write(&remote, 0, bytes).unwrap());
        initiator.done(initiator.connection.flush(&remote, .., Durability::Visible).unwrap());
        assert_eq!(content(&bound, 0, bytes.len()), bytes);
    };
    works(b"mine");
    assert_eq!(initiator.connection.resolve(&short, Access::all(), LONG).unwrap().len_bytes(), LEN_BYTES);

    let (local, _) = region(&initiator.peer, 8, Access::empty());
    let slice = || local.slice(..).unwrap();
    let ways = if F::BINDS_DIRECT_WAY { &[false, true][..] } else { &[true] };
    for is_by_message in ways {
        for operation in 0..4 {
            let (other, _there) = another(&pair);
            assert!(*is_by_message || other.prepare(&remote, LONG));
            let mut batch = other.batch();
            batch.by_message(*is_by_message);
            let ticket = match operation {
                0 => batch.write(&remote, 0, b"stolen"),
                1 => batch.read(&remote, 0, slice()),
                2 => batch.fetch_and_add(&remote, 0, 1),
                _ => batch.flush(&remote, .., Durability::Visible),
            };
            drop(batch);
            let outcome = initiator.queue.wait_for(other.id(), ticket.unwrap(), LONG).expect("in time").outcome;
            // The same words as for a key that there is not.
            let is_refused = |error| matches!(error, OperationError::Refused { refusal: Refusal::UnknownRegion, .. });
            assert!(outcome.clone().is_err_and(is_refused), "operation {operation}: {outcome:?}");
        }
    }
    let (other, _there) = another(&pair);
    let refused = match other.resolve(&short, Access::all(), LONG) {
        Err(ResolveError::Operation(refused)) => refused,
        Err(error) => panic!("{error}"),
        Ok(region) => {
            let ticket = other.write(&region, 0, b"stolen").unwrap();
            initiator.queue.wait_for(other.id(), ticket, LONG).expect("in time").outcome.unwrap_err()
        }
    };
    assert!(matches!(refused, OperationError::Refused { .. }), "{refused:?}");
    works(b"still mine");
}

pub(crate) fn what_is_not_bound_is_shared_by_connections<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    let shared = pair.target.peer.register(shared_memory(), 0, LEN_BYTES, Access::all()).unwrap();
    let remote = RemoteRegion::from_descriptor(&shared.descriptor()).unwrap();
    let (other, _there) = another(&pair);
    for (connection, bytes) in [(&pair.initiator.connection, b"one"), (&other, b"two")] {
        assert!(connection.prepare(&remote, LONG));
        connection.write(&remote, 0, bytes).unwrap();
        let ticket = connection.flush(&remote, .., Durability::Visible).unwrap();
        let done = pair.initiator.queue.wait_for(connection.id(), ticket, LONG).expect("in time");
        assert!(matches!(done.outcome, Ok(Outcome::Flushed(_))), "{done:?}");
        assert_eq!(content(&shared, 0, 3), bytes);
    }
}

pub(crate) fn a_deregistered_region_is_gone<F: Fabric>() {
    for dropped in [false, true] {
        let fabric = F::new();
        let pair = fabric.pair();
        let (memory, remote) = region(&pair.target.peer, LEN_BYTES, Access::all());
        let connection = &pair.initiator.connection;
        let ticket = connection.write(&remote, 0, b"before").unwrap();
        pair.initiator.done(ticket);
        let copy = memory.clone();
        if dropped {
            drop((memory, copy));
        } else {
            memory.deregister();
            assert_eq!(content(&copy, 0, 6), b"before");
        }
        let ticket = connection.write(&remote, 0, b"after").unwrap();
        is_refused::<F>(&pair, ticket, Refusal::UnknownRegion);
    }
}

pub(crate) fn a_fence_lets_nothing_more_through<F: Fabric>() {
    const LARGE: usize = 1 << 20;
    let fabric = F::new();
    let pair = fabric.pair();
    let (memory, remote) = region(&pair.target.peer, LARGE as u64, Access::all());
    let (source, _) = region(&pair.initiator.peer, LARGE as u64, Access::empty());
    source.store(0, &pattern(LARGE, 5)).unwrap();
    let connection = &pair.initiator.connection;
    pair.initiator.done(connection.write(&remote, 0, b"before").unwrap());
    let in_flight: Vec<_> = (0..4).map(|_| connection.write(&remote, 0, source.slice(..).unwrap()).unwrap()).collect();
    let copy = memory.clone();
    pair.target.connection.fence();
    memory.fence();
    let then = content(&copy, 0, LARGE);
    // What was in flight may have been done or not.
    for ticket in in_flight {
        let _ = pair.initiator.outcome(ticket);
    }
    for round in 0..2 {
        let flush =
            connection.write(&remote, 8, b"late").and_then(|_| connection.flush(&remote, .., Durability::Visible));
        if let Ok(ticket) = flush {
            assert!(pair.initiator.outcome(ticket).is_err(), "round {round}");
        }
    }
    assert!(connection.ended().is_some());
    assert!(content(&copy, 0, LARGE) == then, "something came through");
}

pub(crate) fn memory_lives_as_long_as_an_operation<F: Fabric>() {
    const LARGE: usize = 1 << 20;
    let fabric = F::new();
    let pair = fabric.pair();
    let (memory, remote) = region(&pair.target.peer, LARGE as u64, Access::all());
    let (source, _) = region(&pair.initiator.peer, LARGE as u64, Access::empty());
    source.store(0, &pattern(LARGE, 5)).unwrap();
    let connection = &pair.initiator.connection;
    let ticket = connection.write(&remote, 0, source.slice(..).unwrap()).unwrap();
    drop(source);
    pair.initiator.done(ticket);
    assert_eq!(content(&memory, 0, LARGE), pattern(LARGE, 5));

    let back: Arc<dyn Medium> = Arc::new(Memory::anonymous(LARGE as u64).unwrap());
    let into = pair.initiator.peer.register(Arc::clone(&back), 0, LARGE as u64, Access::empty()).unwrap();
    let ticket = connection.read(&remote, 0, into.slice(..).unwrap()).unwrap();
    drop(into);
    pair.initiator.done(ticket);
    let mut bytes = vec![0; LARGE];
    back.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, pattern(LARGE, 5));

    // The target may take its memory away at any moment: the operation is refused or done, nothing else.
    let ticket = connection.write(&remote, 0, &pattern(LARGE, 6)).unwrap();
    drop(memory);
    match pair.initiator.outcome(ticket) {
        Ok(Outcome::Done { .. }) => {}
        Err(error) if F::is_refused_there(&error, Refusal::UnknownRegion) => {}
        other => panic!("{other:?}"),
    }
}

pub(crate) fn local_ranges_are_checked<F: Fabric>() {
    let fabric = F::new();
    let peer = fabric.peer();
    let (memory, _) = region(&peer, LEN_BYTES, Access::empty());
    assert_eq!(memory.len_bytes(), LEN_BYTES);
    assert!(memory.slice(..).is_ok() && memory.slice(LEN_BYTES..).is_ok() && memory.slice(0..LEN_BYTES).is_ok());
    for range in [(0, LEN_BYTES + 1), (LEN_BYTES + 1, LEN_BYTES + 1), (2, 1), (0, u64::MAX)] {
        let error = memory.slice(range.0..range.1).unwrap_err();
        assert!(matches!(error, PostError::OutOfBounds { .. }), "{range:?}: {error}");
    }
    assert!(memory.slice(..=u64::MAX).is_err());
    for offset in [LEN_BYTES, u64::MAX] {
        assert!(memory.read(offset, &mut [0]).is_err() && memory.store(offset, &[0]).is_err());
    }
    let medium: Arc<dyn Medium> = Arc::new(Memory::anonymous(LEN_BYTES).unwrap());
    for (offset, len_bytes) in [(0, LEN_BYTES + 1), (1, LEN_BYTES), (u64::MAX, 1), (1, u64::MAX)] {
        let error = peer.register(Arc::clone(&medium), offset, len_bytes, Access::all()).unwrap_err();
        assert!(matches!(error, RegisterError::Memory(_)), "{offset} {len_bytes}: {error}");
    }
    // A part of a medium is addressed from its own beginning.
    let part = peer.register(Arc::clone(&medium), 1024, 16, Access::all()).unwrap();
    part.store(8, b"here").unwrap();
    let mut found = [0; 4];
    medium.read(1032, &mut found).unwrap();
    assert_eq!(&found, b"here");
}
