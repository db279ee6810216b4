//! Messages: receives before and after them, lengths, credit, order.

use std::{
    os::fd::AsFd,
    time::{Duration, Instant},
};

use pmof_access::{
    AcceptOptions, Access, Completion, CompletionQueue, ConnectOptions, Connection, ConnectionError, ConnectionEvent,
    Durability, OperationError, OperationKind, Outcome, Peer, PostError, Progress, QueueOptions, Refusal, Region,
    Settings, SharedReceives, Ticket,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{
    fabric::Fabric,
    pair::{LONG, Pair, Setup, Side, join, listen_options, region, threaded},
    support::{content, pattern},
};

const CAPACITY_BYTES: u64 = 64 << 10;

/// Checks the next completion of a receive and gives the message.
#[track_caller]
fn received(side: &Side, memory: &Region, context: u64, immediate: Option<u32>) -> Vec<u8> {
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

/// Whether an operation has no outcome for a while.
fn not_yet(side: &Side, ticket: Ticket) -> bool {
    side.queue.wait_for(side.connection.id(), ticket, Duration::from_millis(2)).is_none()
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
                let sent = sent.unwrap();
                if !before {
                    assert!(not_yet(&pair.initiator, sent), "a send completes when its message has a receive");
                    receive();
                }
                assert_eq!(pair.initiator.done(sent), Outcome::Done { len_bytes: len_bytes as u64 });
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
        let sent = pair.initiator.connection.send(source.slice(range.clone()).unwrap()).unwrap();
        // Nobody else drives the initiator: what the transport does not take at once goes only then.
        pair.initiator.done(sent);
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

pub(crate) fn an_answer_comes_behind_the_outcome_of_its_question<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    let (here, _) = region(&pair.initiator.peer, 64, Access::empty());
    let (there, _) = region(&pair.target.peer, 64, Access::empty());
    for round in 0..20 {
        pair.target.connection.receive(there.slice(..).unwrap(), round).unwrap();
        pair.initiator.connection.receive(here.slice(..).unwrap(), round).unwrap();
        let question = pair.initiator.connection.send(&pattern(10, round)).unwrap();
        received(&pair.target, &there, round, None);
        let answer = pair.target.connection.send(&pattern(20, round)).unwrap();
        // Nobody drives the initiator, so that it finds all at once.
        let _ = pair.target.queue.wait_for(pair.target.connection.id(), Ticket(0), Duration::from_millis(2));
        let found = [next(&pair.initiator.queue), next(&pair.initiator.queue)].map(|done| (done.kind, done.ticket));
        assert_eq!(found[0], (OperationKind::Send, question), "round {round}");
        assert_eq!(found[1].0, OperationKind::Receive);
        pair.target.done(answer);
    }
}

/// The sender of a message that does not fit is told.
#[track_caller]
fn is_refused(pair: &Pair, sent: Ticket) {
    let error = pair.initiator.outcome(sent).unwrap_err();
    let is_it = matches!(error, OperationError::Refused { refusal: Refusal::ReceiveTooSmall, limit: 8, .. });
    assert!(is_it, "{error}");
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
        if !before {
            assert!(not_yet(&pair.initiator, sent));
            receive();
        }
        is_refused(&pair, sent);
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
        let listen = listen_options().settings(settings);
        let pair = fabric.pair_with(&Setup { listen, ..Setup::default() });
        let (inbox, _) = region(&pair.target.peer, 64, Access::empty());
        for index in 0..MESSAGES {
            let mut batch = pair.initiator.connection.batch();
            batch.context(index);
            batch.send(&pattern((index % 64) as usize, index)).unwrap();
        }
        assert_eq!(pair.initiator.queue.wait(Duration::from_millis(20)), None, "nobody receives");
        assert_eq!(pair.initiator.connection.outstanding() as u64, MESSAGES);
        for index in 0..MESSAGES {
            pair.target.connection.receive(inbox.slice(..).unwrap(), index).unwrap();
            // The sender must be driven to learn that there is room again.
            let done = pair.initiator.queue.wait(LONG).expect("in time");
            assert_eq!((done.context, done.kind), (index, OperationKind::Send));
            done.outcome.unwrap();
            assert_eq!(received(&pair.target, &inbox, index, None), pattern((index % 64) as usize, index));
        }
        assert_eq!(pair.initiator.connection.outstanding(), 0);
    }
}

pub(crate) fn what_waits_for_room_keeps_its_place<F: Fabric>() {
    let fabric = F::new();
    let settings = Settings { inbox_messages: 1, ..Settings::default() };
    let listen = listen_options().settings(settings);
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
fn received_while(pair: &Pair, inbox: &Region) -> Vec<u8> {
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

/// Two sides whose receives have queues of their own.
struct Apart {
    pair: Pair,
    here: CompletionQueue,
    there: CompletionQueue,
}

/// `options`: of the initiator's queue of operations and of receives, and the same of the target.
fn apart<F: Fabric>(fabric: &F, options: [QueueOptions; 4]) -> Apart {
    let (initiator, target) = (fabric.peer(), fabric.target());
    let here = initiator.completion_queue(options[1]).unwrap();
    let there = target.completion_queue(options[3]).unwrap();
    let setup = Setup {
        connect: ConnectOptions::default().receive_queue(Some(here.clone())).timeout(LONG),
        accept: AcceptOptions::default().receive_queue(Some(there.clone())),
        initiator_queue: options[0],
        target_queue: options[2],
        ..Setup::default()
    };
    Apart { pair: crate::pair::pair((initiator, target), fabric.listen_address(), &setup), here, there }
}

#[track_caller]
fn next(queue: &CompletionQueue) -> Completion {
    queue.wait(LONG).expect("an outcome in time")
}

pub(crate) fn receives_have_a_queue_of_their_own<F: Fabric>() {
    let caller = QueueOptions::default();
    // On the target's side at least one queue drives by itself.
    for (operations, receives) in [(threaded(), caller), (caller, threaded()), (threaded(), threaded())] {
        let fabric = F::new();
        let Apart { pair, here, there } = apart(&fabric, [caller, caller, operations, receives]);
        let (initiator, target) = (&pair.initiator, &pair.target);
        let (memory, remote) = region(&target.peer, 64, Access::all());
        let (inbox, _) = region(&target.peer, 64, Access::empty());
        let (outbox, _) = region(&initiator.peer, 64, Access::empty());
        for context in 0..20 {
            // Before its message, and after it.
            let receive = || target.connection.receive(inbox.slice(..).unwrap(), context).unwrap();
            let early = (context % 2 == 0).then(receive);
            let mut batch = initiator.connection.batch();
            let sent = match context % 3 {
                0 => batch.write_with_immediate(&remote, 0, b"written", 7).unwrap(),
                _ => batch.send(b"message").unwrap(),
            };
            let flushed = batch.flush(&remote, .., Durability::Visible).unwrap();
            batch.submit();
            let ticket = early.unwrap_or_else(receive);
            assert_eq!([next(&initiator.queue).ticket, next(&initiator.queue).ticket], [sent, flushed]);
            let done = there.wait_for(target.connection.id(), ticket, LONG).expect("in time");
            let kinds = [OperationKind::ReceiveWriteImmediate, OperationKind::Receive];
            assert_eq!((done.context, done.kind), (context, kinds[usize::from(context % 3 != 0)]));
            assert!(matches!(done.outcome, Ok(Outcome::Received { len_bytes: 7, .. })));

            initiator.connection.receive(outbox.slice(..).unwrap(), context).unwrap();
            let answer = target.connection.send(b"answer").unwrap();
            let done = next(&here);
            assert_eq!((done.connection, done.context), (initiator.connection.id(), context));
            assert_eq!(target.done(answer), Outcome::Done { len_bytes: 6 });
        }
        assert_eq!(content(&memory, 0, 7), b"written");
        // What is left of each comes back on its own queue.
        initiator.connection.receive(outbox.slice(..).unwrap(), 99).unwrap();
        target.connection.receive(inbox.slice(..).unwrap(), 98).unwrap();
        target.connection.disconnect();
        for (queue, context) in [(&here, 99), (&there, 98)] {
            let done = next(queue);
            assert_eq!((done.context, done.outcome.is_err()), (context, true));
        }
        for queue in [&initiator.queue, &target.queue, &here, &there] {
            assert_eq!(queue.wait(Duration::from_millis(2)), None);
        }
    }
}

pub(crate) fn either_queue_drives<F: Fabric>() {
    let fabric = F::new();
    let caller = QueueOptions::default();
    let Apart { pair, here, there } = apart(&fabric, [caller, caller, threaded(), caller]);
    let (initiator, target) = (&pair.initiator, &pair.target);
    let (_memory, remote) = region(&target.peer, 64, Access::all());
    let (outbox, _) = region(&initiator.peer, 64, Access::empty());
    let ticket = initiator.connection.flush(&remote, .., Durability::Visible).unwrap();
    // Nobody looks at the queue of operations.
    while initiator.connection.outstanding() > 0 {
        assert_eq!(here.wait(Duration::from_millis(1)), None);
    }
    assert_eq!(next(&initiator.queue).ticket, ticket);
    // Nor here at that of receives.
    initiator.connection.receive(outbox.slice(..).unwrap(), 5).unwrap();
    let sent = target.connection.send(b"message").unwrap();
    let ticket = initiator.connection.flush(&remote, .., Durability::Visible).unwrap();
    initiator.done(ticket);
    while target.connection.outstanding() > 0 {
        assert_eq!(initiator.queue.wait(Duration::from_millis(1)), None);
    }
    target.done(sent);
    let discarded = initiator.connection.id();
    here.interrupt();
    assert!(here.wait_for(discarded, Ticket(0), LONG).is_none(), "interrupted, so in no time");
    here.discard(discarded);
    assert_eq!(here.wait(Duration::from_millis(2)), None);
    assert_eq!(there.wait(Duration::from_millis(2)), None);
}

pub(crate) fn threads_wait_on_both_queues<F: Fabric>() {
    const ROUNDS: u64 = 200;
    if F::IS_VIRTUAL {
        // While one thread posts, the other would take nothing moving for time to go on.
        return;
    }
    let fabric = F::new();
    let spin = pmof_access::Waiting::Adaptive { spin: Duration::ZERO };
    let sleepy = QueueOptions::default().waiting(spin);
    let Apart { pair, here, .. } = apart(&fabric, [sleepy, sleepy, threaded(), threaded()]);
    let (initiator, target) = (&pair.initiator, &pair.target);
    let (_memory, remote) = region(&target.peer, 64, Access::all());
    let (outbox, _) = region(&initiator.peer, 64, Access::empty());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for context in 0..ROUNDS {
                initiator.connection.receive(outbox.slice(..).unwrap(), context).unwrap();
                target.connection.send(b"message").unwrap();
                assert_eq!(next(&here).context, context);
                next(&target.queue).outcome.unwrap();
            }
        });
        for _ in 0..ROUNDS {
            let ticket = initiator.connection.flush(&remote, .., Durability::Visible).unwrap();
            assert_eq!(next(&initiator.queue).ticket, ticket);
        }
    });
}

pub(crate) fn is_readable(watched: &impl AsFd, timeout: Duration) -> bool {
    let timeout = Timespec::try_from(timeout).expect("no more than years");
    poll(&mut [PollFd::new(watched, PollFlags::IN)], Some(&timeout)).expect("poll works") > 0
}

pub(crate) fn a_receive_queue_is_waited_for_by_its_descriptor<F: Fabric>() {
    if F::IS_VIRTUAL {
        return;
    }
    let caller = QueueOptions::default();
    let of_operations = caller.progress(Progress::OfOperations);
    for receives in [caller, threaded(), of_operations] {
        let shows_receives_alone = receives.progress == Progress::OfOperations;
        let fabric = F::new();
        // What shows is brought by the thread of the other queue, where this one has none.
        let Apart { pair, there, .. } = apart(&fabric, [caller, caller, threaded(), receives]);
        let (inbox, _) = region(&pair.target.peer, 64, Access::empty());
        let (_memory, remote) = region(&pair.target.peer, 64, Access::all());
        while there.poll().is_some() {}
        for context in 0..20 {
            if shows_receives_alone {
                pair.initiator.connection.write(&remote, 0, b"no message").unwrap();
                assert!(
                    !is_readable(&there.fd().unwrap(), Duration::from_millis(2)),
                    "what is no receive does not show"
                );
            }
            pair.target.connection.receive(inbox.slice(..).unwrap(), context).unwrap();
            let sent = pair.initiator.connection.send(b"message").unwrap();
            pair.initiator.done(sent);
            // The answer came when the receive was consumed: the queue's own socket has nothing to tell.
            assert!(is_readable(&there.fd().unwrap(), LONG), "in time");
            let done = loop {
                if let Some(done) = there.poll() {
                    break done;
                }
            };
            assert_eq!((done.context, there.poll()), (context, None));
            let may_show_more = !F::SHOWS_OUTCOMES_ALONE && !shows_receives_alone;
            assert!(may_show_more || !is_readable(&there.fd().unwrap(), Duration::ZERO), "nothing is left");
        }
    }
}

/// A target with several connections that share receives.
struct Sharing {
    pair: Pair,
    more: Vec<(Connection, Connection)>,
    shared: SharedReceives,
    inbox: Region,
}

const PLACE_BYTES: u64 = 64;
const PLACES: u64 = 64;

fn sharing<F: Fabric>(fabric: &F, target_queue: QueueOptions, inbox_messages: u32, limit: usize) -> Sharing {
    let (initiator, target): (Peer, Peer) = (fabric.peer(), fabric.target());
    let shared = target.shared_receive_queue(limit);
    let settings = Settings { inbox_messages, ..Settings::default() };
    let setup = Setup {
        accept: AcceptOptions::default().shared_receives(Some(shared.clone())),
        listen: listen_options().settings(settings),
        target_queue,
        ..Setup::default()
    };
    let pair = crate::pair::pair((initiator, target), fabric.listen_address(), &setup);
    let (one, two) = (&pair.initiator, &pair.target);
    let more = (0..2).map(|_| join(&one.peer, &one.queue, &pair.listener, &two.queue, &setup)).collect();
    let (inbox, _) = region(&pair.target.peer, PLACE_BYTES * PLACES, Access::empty());
    Sharing { pair, more, shared, inbox }
}

impl Sharing {
    fn initiator(&self, index: usize) -> &Connection {
        index.checked_sub(1).map_or(&self.pair.initiator.connection, |index| &self.more[index].0)
    }

    fn target(&self, index: usize) -> &Connection {
        index.checked_sub(1).map_or(&self.pair.target.connection, |index| &self.more[index].1)
    }

    fn post(&self, place: u64) -> Result<Ticket, PostError> {
        let start = place % PLACES * PLACE_BYTES;
        self.shared.post(self.inbox.slice(start..start + PLACE_BYTES).unwrap(), place)
    }

    /// Checks that the next message came on this connection and into this receive.
    #[track_caller]
    fn arrives(&self, index: usize, place: u64, message: &[u8]) {
        let start = Instant::now();
        let done = loop {
            if let Some(done) = self.pair.target.queue.wait(Duration::from_millis(1)) {
                break done;
            }
            assert!(self.initiator(index).is_established() && start.elapsed() < LONG);
            self.pair.initiator.queue.wait(Duration::ZERO);
        };
        assert_eq!((done.connection, done.context), (self.target(index).id(), place));
        let Ok(Outcome::Received { len_bytes, .. }) = done.outcome else { panic!("{done:?}") };
        assert_eq!(content(&self.inbox, place % PLACES * PLACE_BYTES, len_bytes as usize), message);
    }
}

pub(crate) fn connections_share_receives<F: Fabric>() {
    for target_queue in [threaded(), QueueOptions::default()] {
        let fabric = F::new();
        let sharing = sharing(&fabric, target_queue, 8, 4);
        let tickets: Vec<_> = (0..4).map(|place| sharing.post(place).unwrap()).collect();
        assert!(tickets.is_sorted() && sharing.shared.waiting() == 4);
        assert_eq!(sharing.post(4), Err(PostError::ReceiveQueueFull { limit: 4 }));
        let own = sharing.target(0).receive(sharing.inbox.slice(..8).unwrap(), 0);
        assert_eq!(own, Err(PostError::SharedReceives));
        for round in 0..30_u64 {
            let index = (round * 7 % 3) as usize;
            let bytes = pattern((round % 60) as usize, round);
            sharing.initiator(index).send(&bytes).unwrap();
            sharing.arrives(index, round, &bytes);
            sharing.post(round + 4).unwrap();
        }
        assert_eq!(sharing.shared.waiting(), 4);
    }
}

pub(crate) fn shared_receives_go_out_in_order_of_arrival<F: Fabric>() {
    const MESSAGES: u64 = 40;
    for target_queue in [threaded(), QueueOptions::default()] {
        let fabric = F::new();
        let sharing = sharing(&fabric, target_queue, 4, PLACES as usize);
        // Two of each connection wait at the target, one after the other.
        let order = [2, 0, 1, 1, 2, 0];
        for (number, index) in order.into_iter().enumerate() {
            let connection = sharing.initiator(index);
            connection.send(&[number as u8]).unwrap();
            while sharing.shared.waiting_messages() <= number {
                for queue in [&sharing.pair.initiator.queue, &sharing.pair.target.queue] {
                    assert_eq!(queue.wait(Duration::from_micros(100)), None);
                }
            }
        }
        for (number, index) in order.into_iter().enumerate() {
            sharing.post(number as u64).unwrap();
            sharing.arrives(index, number as u64, &[number as u8]);
        }
        // More than the inboxes hold: senders wait, and go on as receives come.
        for number in 0..MESSAGES {
            sharing.initiator((number % 3) as usize).send(&[number as u8]).unwrap();
        }
        let mut counts = [0; 3];
        for place in 0..MESSAGES {
            sharing.post(place).unwrap();
            let start = Instant::now();
            let done = loop {
                if let Some(done) = sharing.pair.target.queue.wait(Duration::from_millis(1)) {
                    break done;
                }
                while sharing.pair.initiator.queue.wait(Duration::ZERO).is_some() {}
                assert!(start.elapsed() < LONG, "no message in time");
            };
            assert_eq!(done.context, place);
            let index = (0..3).find(|index| sharing.target(*index).id() == done.connection).expect("one of them");
            let number = content(&sharing.inbox, place % PLACES * PLACE_BYTES, 1)[0];
            assert_eq!(u64::from(number), counts[index] * 3 + index as u64, "each connection's order holds");
            counts[index] += 1;
        }
        assert_eq!(sharing.shared.waiting(), 0);
    }
}

pub(crate) fn shared_receives_outlive_connections<F: Fabric>() {
    let fabric = F::new();
    let sharing = sharing(&fabric, threaded(), 4, PLACES as usize);
    for place in 0..3 {
        sharing.post(place).unwrap();
    }
    sharing.initiator(1).send(b"one").unwrap();
    sharing.arrives(1, 0, b"one");
    sharing.initiator(1).disconnect();
    let closed = || sharing.target(1).ended().is_some();
    while !closed() {
        sharing.pair.initiator.queue.wait(Duration::from_millis(1));
    }
    assert_eq!(sharing.pair.target.queue.wait(Duration::from_millis(2)), None, "it gives nothing back");
    assert_eq!(sharing.shared.waiting(), 2);
    sharing.initiator(2).send(b"two").unwrap();
    sharing.arrives(2, 1, b"two");
    let Sharing { pair, more, shared, inbox } = sharing;
    drop(shared);
    pair.initiator.connection.send(b"three").unwrap();
    let done = next(&pair.target.queue);
    assert_eq!((done.connection, done.context), (pair.target.connection.id(), 2));
    assert_eq!(content(&inbox, 2 * PLACE_BYTES, 5), b"three");
    drop(more);
}

pub(crate) fn a_shared_receive_must_fit<F: Fabric>() {
    let fabric = F::new();
    for before in [true, false] {
        let sharing = sharing(&fabric, threaded(), 4, 8);
        let post = || sharing.shared.post(sharing.inbox.slice(..8).unwrap(), 1).unwrap();
        if before {
            post();
        }
        let sent = sharing.initiator(0).send(b"123456789").unwrap();
        if !before {
            assert!(not_yet(&sharing.pair.initiator, sent));
            post();
        }
        is_refused(&sharing.pair, sent);
        is_too_small(&sharing.pair);
        sharing.post(3).unwrap();
        sharing.initiator(1).send(b"fits").unwrap();
        sharing.arrives(1, 3, b"fits");
    }
}
