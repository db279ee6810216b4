//! Every operation, over the wire.

use std::{env, os::fd::AsFd as _, path::Path, sync::Arc};

use pmof_mem::Memory;
use pmof_verbs::{MrAccess, Opcode, Operation, Payload, Placement, SharedReceiveQueue, Status, WorkRequest};

use crate::support::{End, Link, Setup, addresses, all_access, completions, connect, connected, signaled, until, wire};

fn opcodes(end: &End, count: usize) -> Vec<Opcode> {
    let taken = completions(&end.queue, count);
    assert!(taken.iter().all(|completion| completion.status() == Status::Success), "{taken:?}");
    taken.iter().map(pmof_verbs::WorkCompletion::opcode).collect()
}

fn sge(end: &End, offset: u64, len_bytes: u64) -> Payload<'_> {
    Payload::Sge(end.region.sge(offset, len_bytes).unwrap())
}

/// Every operation from `client` to `server`.
fn exercise(link: &mut Link, client: &End, server: &End) {
    client.memory.store(0, b"from a region").unwrap();
    let inline = Payload::inline(b"inline").unwrap();
    let to = |offset| server.at(offset);
    link.client
        .post([
            signaled(1, Operation::Write { to: to(0), payload: sge(client, 0, 13) }),
            signaled(2, Operation::Write { to: to(64), payload: inline }),
            signaled(3, Operation::Write { to: to(128), payload: Payload::Empty }),
            signaled(4, Operation::Read { from: to(0), into: client.region.sge(256, 13).unwrap() }),
        ])
        .unwrap();
    assert_eq!(opcodes(client, 4), [Opcode::Write, Opcode::Write, Opcode::Write, Opcode::Read]);
    assert_eq!(server.read(0, 13), b"from a region");
    assert_eq!(server.read(64, 6), b"inline");
    assert_eq!(client.read(256, 13), b"from a region");

    if link.client.has_atomics() {
        atomics(link, client, server);
    }
    receives(link, client, server);
}

fn atomics(link: &mut Link, client: &End, server: &End) {
    let to = |offset| server.at(offset);
    let into = |offset| client.region.sge(offset, 8).unwrap();
    server.memory.atomic_store(512, 40).unwrap();
    link.client
        .post([
            signaled(5, Operation::FetchAndAdd { at: to(512), addend: 2, into: into(512) }),
            signaled(6, Operation::CompareAndSwap { at: to(512), expected: 42, new: 7, into: into(520) }),
            signaled(7, Operation::CompareAndSwap { at: to(512), expected: 42, new: 8, into: into(528) }),
        ])
        .unwrap();
    let expected = [Opcode::FetchAndAdd, Opcode::CompareAndSwap, Opcode::CompareAndSwap];
    assert_eq!(opcodes(client, 3), expected);
    // The device works in the byte order of the machine, which is little-endian here.
    let number =
        |end: &End, offset| end.read(offset, 8).iter().rev().fold(0, |sum: u64, &byte| sum << 8 | u64::from(byte));
    assert_eq!((number(client, 512), number(client, 520), number(client, 528)), (40, 42, 7));
    assert_eq!(number(server, 512), 7);
    if link.client.has_atomic_write() {
        let write = signaled(8, Operation::AtomicWrite { to: to(576), value: *b"8 bytes!" });
        link.client.post([WorkRequest { fence: true, ..write }]).unwrap();
        assert_eq!(opcodes(client, 1), [Opcode::AtomicWrite]);
        assert_eq!(server.read(576, 8), b"8 bytes!");
    }
}

fn receives(link: &mut Link, client: &End, server: &End) {
    let receives: Vec<_> = (0..4).map(|id| server.receive(100 + id, 1024 + id * 64, 64)).collect();
    link.server.post_receives(&receives).unwrap();
    let payload = Payload::inline(b"message").unwrap();
    let has_immediate = link.client.has_immediate();
    let send = |payload, immediate| {
        if has_immediate { Operation::SendWithImmediate { payload, immediate } } else { Operation::Send { payload } }
    };
    let announced = if has_immediate {
        Operation::WriteWithImmediate { to: server.at(2048), payload, immediate: u32::MAX }
    } else {
        Operation::Send { payload }
    };
    link.client
        .post([
            signaled(1, Operation::Send { payload }),
            signaled(2, send(sge(client, 0, 13), 0x0102_0304)),
            signaled(3, announced),
            signaled(4, send(Payload::Empty, 0)),
        ])
        .unwrap();
    assert_eq!(opcodes(client, 4).len(), 4);
    let taken = completions(&server.queue, 4);
    let seen: Vec<_> = taken
        .iter()
        .map(|completion| (completion.wr_id(), completion.opcode(), completion.byte_len(), completion.imm()))
        .collect();
    let number = |number| has_immediate.then_some(number);
    let third = if has_immediate { Opcode::ReceiveWriteWithImmediate } else { Opcode::Receive };
    assert_eq!(
        seen,
        [
            (100, Opcode::Receive, 7, None),
            (101, Opcode::Receive, 13, number(0x0102_0304)),
            (102, third, 7, number(u32::MAX)),
            (103, Opcode::Receive, 0, number(0)),
        ]
    );
    assert!(taken.iter().all(|completion| completion.qp_num() == link.server.number()));
    assert_eq!(server.read(1024, 7), b"message");
    assert_eq!(server.read(1024 + 64, 13), b"from a region");
    assert_eq!(server.read(if has_immediate { 2048 } else { 1024 + 128 }, 7), b"message");
}

#[test]
fn every_operation_does_what_it_says_both_ways() {
    let Some((a, b)) = wire() else { return };
    for (from, to) in [(a, b), (b, a)] {
        let (mut link, client, server) = connected(from, to, &Setup::default(), &Setup::default());
        let has = client.device.capabilities();
        assert_eq!(link.client.has_flush(), has.native_flush_global || has.native_flush_persistent);
        assert_eq!(link.client.has_atomic_write(), has.atomic_write);
        assert_eq!(link.client.has_atomics(), has.atomics);
        assert_eq!(link.client.has_immediate(), has.has_immediate());
        assert!(link.client.inline_max_bytes() >= 64);
        exercise(&mut link, &client, &server);
    }
}

/// The same devices by `ibv_post_send`, at one end and at both.
#[test]
fn classic_posting_does_the_same() {
    let Some((a, b)) = wire() else { return };
    let classic = Setup { classic: true, ..Setup::default() };
    for server in [&Setup::default(), &classic] {
        let (mut link, client, server) = connected(a, b, &classic, server);
        assert!(!link.client.is_extended() && !link.client.has_flush() && !link.client.has_atomic_write());
        assert_eq!(link.client.has_atomics(), client.device.capabilities().atomics);
        assert!(link.client.inline_max_bytes() >= 64);
        exercise(&mut link, &client, &server);
    }
}

#[test]
fn ipv6_carries_every_operation() {
    let Some((a, b)) = addresses("PMOF_IPV6", "PMOF_IPV6_B") else { return };
    let (mut link, client, server) = connected(a, b, &Setup::default(), &Setup::default());
    assert_eq!(link.client_id.local_address().unwrap().ip(), a);
    assert_eq!(link.server_id.local_address().unwrap().ip(), b);
    exercise(&mut link, &client, &server);
}

/// A server whose region is persistent memory.
fn persistent() -> Setup {
    let path = env::var_os("PMOF_DEVDAX").expect("PMOF_DEVDAX names the persistent memory of the test bed");
    let memory = Memory::open(Path::new(&path), None).unwrap();
    Setup { memory: Some(Arc::new(memory)), access: all_access() | MrAccess::FLUSH_PERSISTENT, ..Setup::default() }
}

#[test]
fn one_post_writes_flushes_writes_atomically_and_reads_in_order() {
    let Some((a, b)) = wire() else { return };
    let (mut link, client, server) = connected(a, b, &Setup::default(), &persistent());
    client.memory.store(0, b"record").unwrap();
    let flush =
        |len_bytes, placement, whole_region| Operation::Flush { at: server.at(0), len_bytes, placement, whole_region };
    link.client
        .post([
            signaled(1, Operation::Write { to: server.at(0), payload: sge(&client, 0, 6) }),
            signaled(2, flush(6, Placement::Persistent, false)),
            signaled(3, Operation::AtomicWrite { to: server.at(8), value: *b"pointer!" }),
            signaled(4, flush(16, Placement::GlobalAndPersistent, false)),
            signaled(5, flush(16, Placement::Global, false)),
            signaled(6, flush(0, Placement::Persistent, true)),
            signaled(7, Operation::Read { from: server.at(0), into: client.region.sge(64, 16).unwrap() }),
        ])
        .unwrap();
    let taken = completions(&client.queue, 7);
    let ids: Vec<_> = taken.iter().map(pmof_verbs::WorkCompletion::wr_id).collect();
    assert_eq!(ids, [1, 2, 3, 4, 5, 6, 7]);
    let (write, flush, read) = (Opcode::Write, Opcode::Flush, Opcode::Read);
    let expected = [write, flush, Opcode::AtomicWrite, flush, flush, flush, read];
    let opcodes: Vec<_> = taken.iter().map(|taken| (taken.status(), taken.opcode())).collect();
    assert_eq!(opcodes, expected.map(|of| (Status::Success, of)));
    assert_eq!(&client.read(64, 6), b"record");
    assert_eq!(&client.read(72, 8), b"pointer!");
}

#[test]
fn only_what_is_signaled_completes() {
    let Some((a, b)) = wire() else { return };
    let (mut link, client, server) = connected(a, b, &Setup::default(), &Setup::default());
    let write = |id| signaled(id, Operation::Write { to: server.at(0), payload: sge(&client, 0, 8) });
    let silent = |id| WorkRequest { signaled: false, ..write(id) };
    link.client.post([silent(1), silent(2), write(3)]).unwrap();
    assert_eq!(completions(&client.queue, 1)[0].wr_id(), 3);
    link.client.post([] as [WorkRequest<'_>; 0]).unwrap();
    assert_eq!(client.queue.poll(&mut [pmof_verbs::WorkCompletion::default(); 4]).unwrap(), 0);
}

/// A signalled write of inline bytes.
fn write<'b>(server: &End, id: u64, offset: u64, bytes: &'b [u8]) -> WorkRequest<'b> {
    signaled(id, Operation::Write { to: server.at(offset), payload: Payload::inline(bytes).unwrap() })
}

#[test]
fn what_was_appended_waits_for_the_doorbell_and_goes_before_what_is_posted_with_it() {
    let Some((a, b)) = wire() else {
        return;
    };
    let (mut link, client, server) = connected(a, b, &Setup::default(), &Setup::default());
    let ids =
        |count| completions(&client.queue, count).iter().map(pmof_verbs::WorkCompletion::wr_id).collect::<Vec<_>>();
    assert!(link.client.is_extended() && !link.client.has_appended());
    link.client.ring().unwrap();
    let mut bytes = *b"one";
    link.client.append(&write(&server, 1, 0, &bytes)).unwrap();
    // They were copied.
    bytes = *b"two";
    link.client.append(&write(&server, 2, 64, &bytes)).unwrap();
    assert!(link.client.has_appended());
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(client.queue.poll(&mut [pmof_verbs::WorkCompletion::default(); 4]).unwrap(), 0);
    link.client.ring().unwrap();
    assert!(!link.client.has_appended());
    assert_eq!(ids(2), [1, 2]);
    assert_eq!((server.read(0, 3), server.read(64, 3)), (b"one".to_vec(), b"two".to_vec()));
    link.client.append(&write(&server, 3, 0, b"first")).unwrap();
    link.client.post([write(&server, 4, 0, b"after")]).unwrap();
    assert_eq!(ids(2), [3, 4]);
    assert_eq!(server.read(0, 5), b"after");
    // One that cannot be appended takes those before it along, and the queue pair goes on.
    link.client.append(&write(&server, 5, 0, b"never")).unwrap();
    let too_long = Operation::Write { to: server.at(0), payload: Payload::Inline(&[0; pmof_verbs::INLINE_BYTES + 1]) };
    assert!(link.client.append(&signaled(7, too_long)).is_err() && !link.client.has_appended());
    link.client.post_one(&write(&server, 8, 64, b"then")).unwrap();
    assert_eq!(ids(1), [8]);
    assert_eq!((server.read(0, 5), server.read(64, 4)), (b"after".to_vec(), b"then".to_vec()));
    // What was never posted holds up nothing.
    link.client.append(&write(&server, 9, 0, b"never")).unwrap();
    drop(link);
}

#[test]
fn two_connections_share_one_queue_of_receives() {
    let Some((a, b)) = wire() else { return };
    let setup = Setup::default();
    let client = End::new(pmof_verbs::Device::by_local_address(a).unwrap(), &setup);
    let server = End::new(pmof_verbs::Device::by_local_address(b).unwrap(), &setup);
    let srq = SharedReceiveQueue::new(&server.domain, 40, 1).unwrap();
    assert!(srq.entries() >= 40);
    let server = server.sharing(&srq);
    let mut links = [connect(&client, &server, a, b), connect(&client, &server, a, b)];
    let receives: Vec<_> = (0..40).map(|id| server.receive(id, id * 64, 64)).collect();
    srq.post_receives(&receives).unwrap();
    assert!(links[0].server.post_receives(&receives[..1]).is_err_and(|failure| failure.errno == libc::EINVAL));
    for round in 0..20 {
        for link in &mut links {
            let bytes = [round];
            let payload = Payload::inline(&bytes).unwrap();
            link.client.post([signaled(u64::from(round), Operation::Send { payload })]).unwrap();
            completions(&client.queue, 1);
            let taken = completions(&server.queue, 1)[0];
            assert_eq!((taken.status(), taken.qp_num()), (Status::Success, link.server.number()));
            assert_eq!(server.read(taken.wr_id() * 64, 1), [round]);
        }
    }
}

#[test]
fn a_completion_makes_the_descriptor_readable_once_per_request() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let Some((a, b)) = wire() else { return };
    let (mut link, client, server) = connected(a, b, &Setup::default(), &Setup::default());
    assert!(!client.queue.take_event().unwrap());
    for id in 0..3 {
        client.queue.request_notify().unwrap();
        link.client.post([signaled(id, Operation::Write { to: server.at(0), payload: Payload::Empty })]).unwrap();
        let fd = client.queue.channel().unwrap().as_fd();
        let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_eq!(poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)), Ok(1));
        assert!(until("the event", || client.queue.take_event().unwrap().then_some(true)));
        assert!(!client.queue.take_event().unwrap());
        completions(&client.queue, 1);
    }
    let silent = pmof_verbs::CompletionQueue::new(&client.device, 1, false).unwrap();
    assert!(silent.channel().is_none() && !silent.take_event().unwrap());
}
