//! Writes, reads and atomic operations: the right bytes in the right places, in order.

use std::{sync::Arc, time::Duration};

use pmof_access::{
    Access, ConnectionError, Durability, Medium, Memory, OperationError, OperationKind, Outcome, PostError, Refusal,
    Region, RemoteRegion, Source,
};
use pmof_proto::Descriptor;

use crate::{
    fabric::Fabric,
    pair::{LONG, Pair, region},
    support::{content, pattern},
};

/// Around every length at which the implementation changes its way.
const SIZES: [usize; 12] = [0, 1, 7, 8, 64, 4095, 4096, 4097, 16_383, 16_384, 16_385, 1 << 20];

/// What lies on both sides of a range and must stay as it is.
const MARGIN: usize = 64;

/// Writes with `source`, reads back, and looks at the target's memory and what surrounds it.
fn round_trip<'s>(pair: &Pair, bytes: &'s [u8], source: impl FnOnce(&Pair) -> Source<'s>) {
    let len_bytes = bytes.len();
    let whole = len_bytes + 2 * MARGIN;
    let (memory, remote) = region(&pair.target.peer, whole as u64, Access::all());
    let (local, _) = region(&pair.initiator.peer, whole as u64, Access::empty());
    memory.store(0, &vec![0xEE; whole]).unwrap();
    local.store(0, &vec![0xDD; whole]).unwrap();
    let connection = &pair.initiator.connection;
    let at = MARGIN as u64;
    let wrote = connection.write(&remote, at, source(pair)).unwrap();
    let into = local.slice(at..at + len_bytes as u64).unwrap();
    let read = connection.read(&remote, at, into).unwrap();
    for ticket in [wrote, read] {
        assert_eq!(pair.initiator.done(ticket), Outcome::Done { len_bytes: len_bytes as u64 });
    }
    for (side, fill) in [(&memory, 0xEE), (&local, 0xDD)] {
        assert!(content(side, at, len_bytes) == bytes, "{len_bytes} bytes came out differently");
        assert_eq!(content(side, 0, MARGIN), [fill; MARGIN]);
        assert_eq!(content(side, at + len_bytes as u64, MARGIN), [fill; MARGIN]);
    }
}

pub(crate) fn bytes_arrive_at_every_size<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    for len_bytes in SIZES {
        let bytes = pattern(len_bytes, 1);
        round_trip(&pair, &bytes, |_| Source::Bytes(&bytes));
    }
}

/// Also those that go past messages; headers are few bytes beside them.
pub(crate) fn what_is_moved_is_counted<F: Fabric>() {
    const HEADERS_MAX: u64 = 1000;
    let fabric = F::new();
    let pair = fabric.pair();
    let before = pair.initiator.connection.traffic();
    for _ in 0..10 {
        let bytes = pattern(5000, 1);
        round_trip(&pair, &bytes, |_| Source::Bytes(&bytes));
    }
    let after = pair.initiator.connection.traffic();
    let moved = [after.out_bytes() - before.out_bytes(), after.in_bytes() - before.in_bytes()];
    assert!(moved.iter().all(|bytes| (50_000..50_000 + 10 * HEADERS_MAX).contains(bytes)), "{moved:?}");
}

pub(crate) fn slices_arrive_at_every_size<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    for len_bytes in SIZES {
        let bytes = pattern(len_bytes, 2);
        round_trip(&pair, &bytes, |pair| {
            let (source, _) = region(&pair.initiator.peer, len_bytes as u64 + 3, Access::empty());
            source.store(3, &bytes).unwrap();
            source.slice(3..).unwrap().into()
        });
    }
}

pub(crate) fn sixty_four_mebibytes_arrive<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    let bytes = pattern(64 << 20, 3);
    round_trip(&pair, &bytes, |_| Source::Bytes(&bytes));
    round_trip(&pair, &bytes, |pair| {
        let (source, _) = region(&pair.initiator.peer, bytes.len() as u64, Access::empty());
        source.store(0, &bytes).unwrap();
        source.slice(..).unwrap().into()
    });
}

pub(crate) fn sizes_mix_in_one_stream<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    let total: usize = SIZES.iter().sum();
    let (memory, remote) = region(&pair.target.peer, 2 * total as u64, Access::all());
    let (source, _) = region(&pair.initiator.peer, total as u64, Access::empty());
    let connection = &pair.initiator.connection;
    let (mut at, mut expected) = (0, Vec::new());
    for (index, len_bytes) in SIZES.into_iter().enumerate() {
        let bytes = pattern(len_bytes, 10 + index as u64);
        connection.write(&remote, at, &bytes).unwrap();
        at += len_bytes as u64;
        source.store(0, &bytes).unwrap();
        let ticket = connection.write(&remote, at, source.slice(..len_bytes as u64).unwrap()).unwrap();
        at += len_bytes as u64;
        pair.initiator.done(ticket);
        expected.extend([&bytes[..], &bytes].concat());
    }
    assert!(content(&memory, 0, 2 * total) == expected);
}

pub(crate) fn both_sides_may_write<F: Fabric>() {
    const LEN: usize = 1 << 20;
    let fabric = F::new();
    let pair = fabric.pair();
    let (own, own_remote) = region(&pair.initiator.peer, LEN as u64, Access::all());
    let (other, other_remote) = region(&pair.target.peer, LEN as u64, Access::all());
    // More than the sockets hold, in both directions at once: neither side may wait for the other.
    for round in 0..8 {
        pair.initiator.connection.write(&other_remote, 0, &pattern(LEN, round)).unwrap();
        pair.target.connection.write(&own_remote, 0, &pattern(LEN, 100 + round)).unwrap();
    }
    // The initiator's memory is served only while somebody drives its queue.
    let (mut done, start) = ([0, 0], fabric.now());
    while done != [8, 8] {
        for (index, (side, wait)) in
            [(&pair.initiator, Duration::from_millis(1)), (&pair.target, Duration::ZERO)].into_iter().enumerate()
        {
            if let Some(finished) = side.queue.wait(wait) {
                assert_eq!(finished.outcome, Ok(Outcome::Done { len_bytes: LEN as u64 }));
                done[index] += 1;
            }
        }
        assert!(fabric.now().saturating_sub(start) < LONG);
    }
    assert!(content(&other, 0, LEN) == pattern(LEN, 7));
    assert!(content(&own, 0, LEN) == pattern(LEN, 107));
}

pub(crate) fn operations_take_effect_in_order<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    let (_memory, remote) = region(&pair.target.peer, 1 << 17, Access::all());
    let (local, _) = region(&pair.initiator.peer, 40 << 17, Access::empty());
    let connection = &pair.initiator.connection;
    let mut last = None;
    // Every read sees the write before it and not the one after it, also where it is sent from the region itself.
    for round in 0..40 {
        connection.write(&remote, 0, &pattern(1 << 17, round)).unwrap();
        let into = local.slice(round << 17..(round + 1) << 17).unwrap();
        last = Some(connection.read(&remote, 0, into).unwrap());
    }
    connection.write(&remote, 0, &pattern(1 << 17, 99)).unwrap();
    pair.initiator.done(last.unwrap());
    for round in 0..40 {
        assert!(content(&local, round << 17, 1 << 17) == pattern(1 << 17, round), "read {round}");
    }
}

pub(crate) fn writes_with_immediate_are_announced<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    let (memory, remote) = region(&pair.target.peer, 1 << 16, Access::all());
    let (inbox, _) = region(&pair.target.peer, 64, Access::empty());
    for (index, len_bytes) in [0, 1, 4096, 20_000].into_iter().enumerate() {
        let receive = (index % 2 == 0).then(|| pair.target.connection.receive(inbox.slice(..).unwrap(), 70));
        let bytes = pattern(len_bytes, index as u64);
        let immediate = u32::MAX - index as u32;
        let ticket = pair.initiator.connection.batch().write_with_immediate(&remote, 8, &bytes, immediate).unwrap();
        let receive = receive.unwrap_or_else(|| pair.target.connection.receive(inbox.slice(..).unwrap(), 70)).unwrap();
        assert_eq!(pair.initiator.done(ticket), Outcome::Done { len_bytes: len_bytes as u64 });
        let done = pair.target.queue.wait(LONG).unwrap();
        assert_eq!((done.ticket, done.context, done.kind), (receive, 70, OperationKind::ReceiveWriteImmediate));
        let received = Outcome::Received { len_bytes: len_bytes as u64, immediate: Some(immediate) };
        assert_eq!(done.outcome, Ok(received));
        assert_eq!(content(&memory, 8, len_bytes), bytes);
        assert_eq!(content(&inbox, 0, 64), [0; 64], "the bytes are in the region, not in the receive");
    }
}

fn number(memory: &Region, offset: u64) -> u64 {
    u64::from_le_bytes(content(memory, offset, 8).try_into().unwrap())
}

pub(crate) fn atomic_operations_do_what_they_say<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    let (memory, remote) = region(&pair.target.peer, 64, Access::all());
    let connection = &pair.initiator.connection;
    let ticket = connection.batch().atomic_write(&remote, 8, 0x0123_4567_89AB_CDEF).unwrap();
    assert_eq!(pair.initiator.done(ticket), Outcome::Done { len_bytes: 8 });
    assert_eq!(content(&memory, 8, 8), [0xEF, 0xCD, 0xAB, 0x89, 0x67, 0x45, 0x23, 0x01], "little-endian");

    let hit = connection.batch().compare_and_swap(&remote, 8, 0x0123_4567_89AB_CDEF, 7).unwrap();
    let miss = connection.batch().compare_and_swap(&remote, 8, 8, 9).unwrap();
    assert_eq!(pair.initiator.done(hit), Outcome::Previous(0x0123_4567_89AB_CDEF));
    assert_eq!(pair.initiator.done(miss), Outcome::Previous(7));
    assert_eq!(number(&memory, 8), 7);

    let add = connection.batch().fetch_and_add(&remote, 8, u64::MAX - 6).unwrap();
    let wrapped = connection.batch().fetch_and_add(&remote, 8, 5).unwrap();
    assert_eq!(pair.initiator.done(add), Outcome::Previous(7));
    assert_eq!(pair.initiator.done(wrapped), Outcome::Previous(0));
    assert_eq!(number(&memory, 8), 5);
    assert_eq!((number(&memory, 0), number(&memory, 16)), (0, 0));
}

pub(crate) fn atomic_operations_are_aligned<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    let (_memory, remote) = region(&pair.target.peer, 64, Access::all());
    let connection = &pair.initiator.connection;
    for offset in [1, 4, 7, 9, 55] {
        let mut batch = connection.batch();
        let misaligned = Err(PostError::Misaligned { offset });
        assert_eq!(batch.atomic_write(&remote, offset, 1), misaligned);
        assert_eq!(batch.compare_and_swap(&remote, offset, 0, 1), misaligned);
        assert_eq!(batch.fetch_and_add(&remote, offset, 1), misaligned);
    }
    assert!(connection.is_established());

    // What is aligned in the region need not be so in its medium; the target refuses that.
    let medium: Arc<dyn Medium> = Arc::new(Memory::anonymous(64).unwrap());
    let crooked = pair.target.peer.register(medium, 4, 32, Access::all()).unwrap();
    let remote = RemoteRegion::from_descriptor(&crooked.descriptor()).unwrap();
    let ticket = connection.batch().fetch_and_add(&remote, 8, 1).unwrap();
    let error = pair.initiator.outcome(ticket).unwrap_err();
    assert!(matches!(error, OperationError::Refused { refusal: Refusal::Misaligned, .. }), "{error}");
}

pub(crate) fn a_refused_operation_ends_the_connection<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    let (memory, remote) = region(&pair.target.peer, 64, Access::all());
    let mut forged = Descriptor::decode(&memory.descriptor()).unwrap();
    forged.len_bytes = 1 << 20;
    let forged = RemoteRegion::from_descriptor(&forged.encode()).unwrap();
    let connection = &pair.initiator.connection;
    let mut batch = connection.batch();
    let before = batch.write(&remote, 0, b"before").unwrap();
    let refused = batch.write(&forged, 100, b"beyond").unwrap();
    let after = batch.write(&remote, 8, b"after").unwrap();
    let vouching = batch.flush(&remote, .., Durability::Visible).unwrap();
    batch.submit();
    let (before, refused) = (pair.initiator.outcome(before), pair.initiator.outcome(refused));
    let refusal = F::refusal(Refusal::OutOfBounds);
    let limit = if refusal == Refusal::OutOfBounds { 64 } else { 0 };
    let expected = OperationError::Refused { refusal, offset: 100, len_bytes: 6, limit };
    let why = match refused {
        Err(OperationError::ConnectionEnded(why)) => {
            // Where nothing says which one was refused, nothing is known of those before it either, unless each is acknowledged.
            let unknown = OperationError::ConnectionEnded(why.clone());
            assert!(F::is_refused_there(&unknown, Refusal::OutOfBounds), "{why}");
            let is_known = F::ACKNOWLEDGES_EACH && before == Ok(Outcome::Done { len_bytes: 6 });
            assert!(is_known || before == Err(unknown), "{before:?}");
            why
        }
        other => {
            assert_eq!((before, other), (Ok(Outcome::Done { len_bytes: 6 }), Err(expected)));
            ConnectionError::Refused { refusal, private_data: Vec::new() }
        }
    };
    for ticket in [after, vouching] {
        assert_eq!(pair.initiator.outcome(ticket), Err(OperationError::ConnectionEnded(why.clone())));
    }
    assert_eq!(connection.write(&remote, 0, b"x"), Err(PostError::NotConnected(why)));
    assert_eq!(content(&memory, 0, 13), b"before\0\0\0\0\0\0\0");
}
