//! Messages: receives before and after them, lengths, credit, order.

use std::time::Duration;

use pmof_access::{
    Access, ConnectionError, ConnectionEvent, ListenOptions, OperationError, OperationKind, Outcome, PostError,
    Refusal, Settings, Ticket,
};

use crate::{
    fabric::Fabric,
    pair::{LONG, Pair, Setup, Side, region},
    support::{content, pattern},
};

const CAPACITY_BYTES: u64 = 64 << 10;

/// Checks the next completion of a receive and gives the message.
#[track_caller]
fn received(side: &Side, memory: &pmof_access::Region, context: u64, immediate: Option<u32>) -> Vec<u8> {
    let done = side.queue.wait(LONG).expect("a message in time");
    assert_eq!((done.kind, done.context), (OperationKind::Receive, context));
    match done.outcome {
        Ok(Outcome::Received { len_bytes, immediate: found }) => {
            assert_eq!(found, immediate);
            content(memory, 0, len_bytes as usize)
        }
        other => panic!("{other:?}"),
    }
}

pub(crate) fn messages_find_their_receives<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    let (inbox, _) = region(&pair.target.peer, CAPACITY_BYTES, Access::empty());
    let mut context = 0;
    for before in [true, false] {
        for immediate in [None, Some(0), Some(u32::MAX)] {
            for len_bytes in [0, 1, 64, 4097, 16_385, CAPACITY_BYTES as usize] {
                context += 1;
                let bytes = pattern(len_bytes, context);
                let receive = || pair.target.connection.receive(inbox.slice(..).unwrap(), context).unwrap();
                if before {
                    receive();
                }
                let mut batch = pair.initiator.connection.batch();
                let sent = match immediate {
                    Some(immediate) => batch.send_with_immediate(&bytes, immediate),
                    None => batch.send(&bytes),
                };
                batch.submit();
                assert_eq!(pair.initiator.done(sent.unwrap()), Outcome::Done { len_bytes: len_bytes as u64 });
                if !before {
                    receive();
                }
                assert!(received(&pair.target, &inbox, context, immediate) == bytes, "{len_bytes} bytes");
            }
        }
    }
}

pub(crate) fn slices_are_sent_too<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    let (inbox, _) = region(&pair.target.peer, CAPACITY_BYTES, Access::empty());
    let (source, _) = region(&pair.initiator.peer, CAPACITY_BYTES, Access::empty());
    source.store(0, &pattern(CAPACITY_BYTES as usize, 1)).unwrap();
    for range in [0..0, 5..6, 0..CAPACITY_BYTES] {
        pair.target.connection.receive(inbox.slice(..).unwrap(), 1).unwrap();
        pair.initiator.connection.send(source.slice(range.clone()).unwrap()).unwrap();
        let expected = content(&source, range.start, (range.end - range.start) as usize);
        assert!(received(&pair.target, &inbox, 1, None) == expected, "{range:?}");
    }
}

pub(crate) fn both_sides_may_send<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    let (here, _) = region(&pair.initiator.peer, 64, Access::empty());
    let (there, _) = region(&pair.target.peer, 64, Access::empty());
    for round in 0..10 {
        pair.target.connection.receive(there.slice(..).unwrap(), round).unwrap();
        pair.initiator.connection.receive(here.slice(..).unwrap(), round).unwrap();
        let ping = pair.initiator.connection.send(&pattern(10, round)).unwrap();
        pair.initiator.done(ping);
        assert_eq!(received(&pair.target, &there, round, None), pattern(10, round));
        let mut batch = pair.target.connection.batch();
        batch.signal(pmof_access::Signal::OnError);
        batch.send(&pattern(20, round)).unwrap();
        batch.submit();
        assert_eq!(received(&pair.initiator, &here, round, None), pattern(20, round));
    }
}

/// After a message that does not fit: both sides know, and nothing goes on.
fn is_too_small(pair: &Pair) {
    let error = pair.target.queue.wait(LONG).unwrap().outcome.unwrap_err();
    assert_eq!(error, OperationError::ReceiveTooSmall { message_bytes: 9, capacity_bytes: 8 });
    let refused = ConnectionError::Refused { refusal: Refusal::ReceiveTooSmall, private_data: Vec::new() };
    for (side, why) in
        [(&pair.initiator, refused), (&pair.target, ConnectionError::RefusedHere(Refusal::ReceiveTooSmall))]
    {
        assert_eq!(side.event(), ConnectionEvent::Established);
        assert_eq!(side.event(), ConnectionEvent::Lost(why));
    }
}

pub(crate) fn a_message_must_fit<F: Fabric>() {
    let fabric = F::new();
    for before in [true, false] {
        let pair = fabric.pair();
        let (inbox, _) = region(&pair.target.peer, 8, Access::empty());
        let receive = || pair.target.connection.receive(inbox.slice(..).unwrap(), 1).unwrap();
        if before {
            receive();
        }
        let sent = pair.initiator.connection.send(b"123456789").unwrap();
        let outcome = pair.initiator.outcome(sent);
        if before {
            let error = outcome.unwrap_err();
            assert!(
                matches!(error, OperationError::Refused { refusal: Refusal::ReceiveTooSmall, limit: 8, .. }),
                "{error}"
            );
        } else {
            // It had a place of its own when it came.
            outcome.unwrap();
            receive();
        }
        is_too_small(&pair);
        assert_eq!(content(&inbox, 0, 8), [0; 8]);
    }
}

pub(crate) fn a_message_has_a_longest_length<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    let limit_bytes = u64::from(Settings::default().message_max_bytes);
    let too_long = Err(PostError::TooLong { len_bytes: limit_bytes + 1, limit_bytes });
    assert_eq!(pair.initiator.connection.send(&vec![0; limit_bytes as usize + 1]), too_long);
    let (source, _) = region(&pair.initiator.peer, limit_bytes + 1, Access::empty());
    assert_eq!(pair.initiator.connection.send(source.slice(..).unwrap()), too_long);
    assert!(pair.initiator.connection.is_established());
}

pub(crate) fn a_slow_receiver_is_not_overrun<F: Fabric>() {
    const MESSAGES: u64 = 500;
    for inbox_messages in [1, 3, 64] {
        let fabric = F::new();
        let settings = Settings { inbox_messages, ..Settings::default() };
        let listen = ListenOptions { settings, ..ListenOptions::default() };
        let pair = fabric.pair_with(&Setup { listen, ..Setup::default() });
        let (inbox, _) = region(&pair.target.peer, 64, Access::empty());
        for index in 0..MESSAGES {
            let mut batch = pair.initiator.connection.batch();
            batch.context(index);
            batch.send(&pattern((index % 64) as usize, index)).unwrap();
        }
        // No more are on their way than the receiver keeps: the rest has no outcome.
        let mut sent = 0;
        while pair.initiator.queue.wait(Duration::from_millis(20)).is_some() {
            sent += 1;
        }
        assert_eq!(sent, inbox_messages);
        assert_eq!(pair.initiator.connection.outstanding() as u64, MESSAGES - u64::from(sent));
        let mut sent = u64::from(sent);
        for index in 0..MESSAGES {
            pair.target.connection.receive(inbox.slice(..).unwrap(), index).unwrap();
            assert_eq!(received(&pair.target, &inbox, index, None), pattern((index % 64) as usize, index));
            // The sender must be driven to learn that there is room again.
            while sent < MESSAGES && sent < index + 1 + u64::from(inbox_messages) {
                let done = pair.initiator.queue.wait(LONG).expect("room in time");
                assert_eq!((done.context, done.kind), (sent, OperationKind::Send));
                done.outcome.unwrap();
                sent += 1;
            }
        }
        assert_eq!((sent, pair.initiator.connection.outstanding()), (MESSAGES, 0));
    }
}

pub(crate) fn what_waits_for_room_keeps_its_place<F: Fabric>() {
    let fabric = F::new();
    let settings = Settings { inbox_messages: 1, ..Settings::default() };
    let listen = ListenOptions { settings, ..ListenOptions::default() };
    let pair = fabric.pair_with(&Setup { listen, ..Setup::default() });
    let (memory, remote) = region(&pair.target.peer, 64 << 10, Access::all());
    let (inbox, _) = region(&pair.target.peer, 64, Access::empty());
    let connection = &pair.initiator.connection;
    connection.send(b"first").unwrap();
    let mut bytes = b"second".to_vec();
    connection.send(&bytes).unwrap();
    let mut large = pattern(32 << 10, 1);
    let behind = connection.write(&remote, 0, &large).unwrap();
    // The caller's bytes are free again, although they have not gone.
    bytes.fill(0);
    large.fill(0);
    assert!(pair.initiator.queue.wait_for(connection.id(), behind, Duration::from_millis(20)).is_none());
    assert_eq!(content(&memory, 0, 8), [0; 8], "a write does not overtake a message");
    for expected in [&b"first"[..], b"second"] {
        pair.target.connection.receive(inbox.slice(..).unwrap(), 3).unwrap();
        assert_eq!(received_while(&pair, &inbox), expected);
    }
    assert_eq!(pair.initiator.done(behind), Outcome::Done { len_bytes: 32 << 10 });
    assert!(content(&memory, 0, 32 << 10) == pattern(32 << 10, 1));
}

/// The next message at the target, while the initiator is driven too.
fn received_while(pair: &Pair, inbox: &pmof_access::Region) -> Vec<u8> {
    loop {
        if let Some(done) = pair.target.queue.wait(Duration::from_millis(1)) {
            match done.outcome {
                Ok(Outcome::Received { len_bytes, .. }) => return content(inbox, 0, len_bytes as usize),
                other => panic!("{other:?}"),
            }
        }
        assert!(pair.initiator.connection.is_established());
        // Drives it and takes no outcome: tickets begin at 1.
        assert!(pair.initiator.queue.wait_for(pair.initiator.connection.id(), Ticket(0), Duration::ZERO).is_none());
    }
}

pub(crate) fn receives_come_back_when_the_connection_ends<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    let (inbox, _) = region(&pair.target.peer, 64, Access::empty());
    for context in 0..5 {
        pair.target.connection.receive(inbox.slice(..).unwrap(), context).unwrap();
    }
    pair.initiator.connection.disconnect();
    for context in 0..5 {
        let done = pair.target.queue.wait(LONG).unwrap();
        assert_eq!((done.kind, done.context), (OperationKind::Receive, context));
        assert_eq!(done.outcome, Err(OperationError::ConnectionEnded(ConnectionError::Closed)));
    }
    let ended = Err(PostError::NotConnected(ConnectionError::Closed));
    assert_eq!(pair.target.connection.receive(inbox.slice(..).unwrap(), 0), ended);
}
