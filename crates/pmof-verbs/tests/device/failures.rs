//! What is refused, and how.

use std::{env, path::Path, sync::Arc};

use pmof_mem::Memory;
use pmof_verbs::{
    AsyncEvent, MrAccess, Operation, Payload, Placement, PostFailure, QueuePairState, RemoteAddress,
    SharedReceiveQueue, Status,
};

use crate::support::{End, Link, REGION_BYTES, Setup, completions, connect, connected, signaled, until, wire};

/// Posts one request that fails, checks how, and that everything after it is flushed.
fn fails(
    server: &Setup,
    expected: Status,
    operation: impl FnOnce(&End, &End) -> Operation<'static>,
    before: impl FnOnce(&mut Link, &End, &End),
) {
    let (a, b) = wire().expect("the caller looked");
    let (mut link, client, server) = connected(a, b, &Setup::default(), server);
    before(&mut link, &client, &server);
    let after = Operation::Write { to: server.at(0), payload: Payload::Empty };
    link.client.post([signaled(1, operation(&client, &server)), signaled(2, after)]).unwrap();
    let taken = completions(&client.queue, 2);
    let seen: Vec<_> = taken.iter().map(|completion| (completion.wr_id(), completion.status())).collect();
    assert_eq!(seen, [(1, expected), (2, Status::Flushed)]);
    until("the error state", || (link.client.state().unwrap() == QueuePairState::Error).then_some(()));
}

fn nothing(_: &mut Link, _: &End, _: &End) {}

fn flush(server: &End, offset: u64, len_bytes: u32, placement: Placement) -> Operation<'static> {
    Operation::Flush { at: server.at(offset), len_bytes, placement, whole_region: false }
}

fn persistent(access: MrAccess) -> Setup {
    let path = env::var_os("PMOF_DEVDAX").expect("PMOF_DEVDAX names the persistent memory of the test bed");
    let memory = Memory::open(Path::new(&path), None).unwrap();
    Setup { memory: Some(Arc::new(memory)), access, ..Setup::default() }
}

#[test]
fn a_flush_beyond_the_regions_rights_is_a_remote_access_error() {
    if wire().is_none() {
        return;
    }
    let access = Status::RemoteAccess;
    let write = MrAccess::REMOTE_WRITE;
    let global = write | MrAccess::FLUSH_GLOBAL;
    fails(&persistent(global), access, |_, server| flush(server, 0, 8, Placement::Persistent), nothing);
    fails(&persistent(write), access, |_, server| flush(server, 0, 8, Placement::Global), nothing);
    let only = write | MrAccess::FLUSH_PERSISTENT;
    fails(&persistent(only), access, |_, server| flush(server, 0, 8, Placement::Global), nothing);
    let both = global | MrAccess::FLUSH_PERSISTENT;
    let beyond = |_: &End, server: &End| flush(server, REGION_BYTES - 8, 16, Placement::Persistent);
    fails(&persistent(both), access, beyond, nothing);
}

#[test]
fn wrong_keys_ranges_and_rights_are_remote_access_errors() {
    if wire().is_none() {
        return;
    }
    let payload = Payload::inline(b"8 bytes!").unwrap();
    let write = |to| Operation::Write { to, payload };
    let wrong_key =
        |_: &End, server: &End| write(RemoteAddress { rkey: server.region.rkey() ^ 0x5555, ..server.at(0) });
    fails(&Setup::default(), Status::RemoteAccess, wrong_key, nothing);
    let beyond = |_: &End, server: &End| write(server.at(REGION_BYTES - 7));
    fails(&Setup::default(), Status::RemoteAccess, beyond, nothing);
    let read_only = Setup { access: MrAccess::REMOTE_READ, ..Setup::default() };
    fails(&read_only, Status::RemoteAccess, |_, server| write(server.at(0)), nothing);
    let write_only = Setup { access: MrAccess::REMOTE_WRITE, ..Setup::default() };
    let read =
        |client: &End, server: &End| Operation::Read { from: server.at(0), into: client.region.sge(0, 8).unwrap() };
    fails(&write_only, Status::RemoteAccess, read, nothing);
}

#[test]
fn other_mistakes_have_their_status() {
    if wire().is_none() {
        return;
    }
    let misaligned = |_: &End, server: &End| Operation::AtomicWrite { to: server.at(4), value: [1; 8] };
    fails(&Setup::default(), Status::RemoteInvalidRequest, misaligned, nothing);
    let too_long = |client: &End, _: &End| Operation::Send { payload: Payload::Sge(client.region.sge(0, 9).unwrap()) };
    let small = |link: &mut Link, _: &End, server: &End| link.server.post_receives(&[server.receive(7, 0, 8)]).unwrap();
    // The specification has an invalid request there.
    fails(&Setup::default(), Status::RemoteOperation, too_long, small);
}

#[test]
fn a_range_that_outlives_its_region_reaches_nothing() {
    let Some((a, b)) = wire() else { return };
    let (mut link, mut client, server) = connected(a, b, &Setup::default(), &Setup::default());
    let stale = client.region.sge(0, 8).unwrap();
    let again = client.domain.register(Arc::clone(&client.memory), 0, REGION_BYTES, MrAccess::LOCAL_WRITE).unwrap();
    drop(std::mem::replace(&mut client.region, again));
    client.memory.store(0, b"8 bytes!").unwrap();
    link.client.post([signaled(1, Operation::Write { to: server.at(0), payload: Payload::Sge(stale) })]).unwrap();
    // Soft-RoCE says the latter.
    let status = completions(&client.queue, 1)[0].status();
    assert!(matches!(status, Status::LocalProtection | Status::Flushed), "{status:?}");
    assert_eq!(server.read(0, 8), [0; 8]);
}

#[test]
fn a_region_that_is_gone_is_a_remote_access_error() {
    let Some((a, b)) = wire() else { return };
    let (mut link, client, server) = connected(a, b, &Setup::default(), &Setup::default());
    let to = server.at(0);
    let End { region, .. } = server;
    drop(region);
    link.client.post([signaled(1, Operation::Write { to, payload: Payload::inline(b"x").unwrap() })]).unwrap();
    assert_eq!(completions(&client.queue, 1)[0].status(), Status::RemoteAccess);
}

#[test]
fn a_batch_is_posted_whole_or_not_at_all() {
    let Some((a, b)) = wire() else { return };
    let without = Setup { flush: false, atomic_write: false, inline_bytes: 16, ..Setup::default() };
    let (mut link, client, server) = connected(a, b, &without, &Setup::default());
    assert!(!link.client.has_flush() && !link.client.has_atomic_write());
    let write = |id, payload| signaled(id, Operation::Write { to: server.at(0), payload });
    let fine = write(1, Payload::inline(b"no").unwrap());
    let refused = |link: &mut Link, bad| {
        let result = link.client.post([fine, bad]);
        assert_eq!(client.queue.poll(&mut [pmof_verbs::WorkCompletion::default(); 4]).unwrap(), 0);
        result.unwrap_err()
    };
    let flushing = signaled(2, flush(&server, 0, 8, Placement::Global));
    assert_eq!(refused(&mut link, flushing), PostFailure::Unsupported { operation: "flush" });
    let atomic = signaled(2, Operation::AtomicWrite { to: server.at(0), value: [0; 8] });
    assert_eq!(refused(&mut link, atomic), PostFailure::Unsupported { operation: "atomic write" });
    let max_bytes = link.client.inline_max_bytes();
    let long = Payload::Inline(&[0; 129]);
    assert_eq!(
        refused(&mut link, write(2, long)),
        PostFailure::InlineTooLong { len_bytes: 129, max_bytes: max_bytes.min(128) }
    );
    let too_many: Vec<_> = (0..=u64::from(link.client.send_depth()) + 64).map(|id| write(id, Payload::Empty)).collect();
    assert_eq!(link.client.post(&too_many), Err(PostFailure::QueueFull));
    assert_eq!(server.read(0, 2), [0, 0]);
    link.client.post([fine]).unwrap();
    assert_eq!(completions(&client.queue, 1)[0].status(), Status::Success);
    assert_eq!(server.read(0, 2), b"no");
}

/// `ibv_post_send` stops in the middle where the queue is full.
#[test]
fn a_batch_that_is_too_long_for_a_classic_queue_is_posted_in_part() {
    let Some((a, b)) = wire() else { return };
    let classic = Setup { classic: true, ..Setup::default() };
    let (mut link, _client, server) = connected(a, b, &classic, &Setup::default());
    let write = |id| signaled(id, Operation::Write { to: server.at(0), payload: Payload::Empty });
    let bad = signaled(2, flush(&server, 0, 8, Placement::Global));
    assert_eq!(link.client.post([write(1), bad]), Err(PostFailure::Unsupported { operation: "flush" }));
    let too_many: Vec<_> = (0..4096).map(write).collect();
    let failure = link.client.post(&too_many).unwrap_err();
    let PostFailure::Partial { posted, errno } = failure else { panic!("{failure}") };
    assert!(posted >= link.client.send_depth() as usize && posted < too_many.len(), "{failure}");
    assert!(matches!(errno, libc::ENOMEM | libc::ENOSPC), "{failure}");
}

#[test]
fn modify_to_error_flushes_what_is_posted() {
    let Some((a, b)) = wire() else { return };
    let (mut link, client, server) = connected(a, b, &Setup::default(), &Setup::default());
    assert_eq!(link.server.state().unwrap(), QueuePairState::ReadyToSend);
    link.server.set_receiver_not_ready_timer(1).unwrap();
    assert!(link.server.set_receiver_not_ready_timer(32).is_err());
    let receives: Vec<_> = (0..3).map(|id| server.receive(id, id * 64, 64)).collect();
    link.server.post_receives(&receives).unwrap();
    link.server.modify_to_error().unwrap();
    let taken = completions(&server.queue, 3);
    assert!(taken.iter().all(|completion| completion.status() == Status::Flushed), "{taken:?}");
    assert_eq!(link.server.state().unwrap(), QueuePairState::Error);
    drop(client);
}

#[test]
fn a_queue_pair_in_error_tells_of_its_last_shared_receive() {
    let Some((a, b)) = wire() else { return };
    let client = End::new(pmof_verbs::Device::by_local_address(a).unwrap(), &Setup::default());
    let server = End::new(pmof_verbs::Device::by_local_address(b).unwrap(), &Setup::default());
    let srq = SharedReceiveQueue::new(&server.domain, 4, 1).unwrap();
    let server = server.sharing(&srq);
    let link = connect(&client, &server, a, b);
    link.server.modify_to_error().unwrap();
    let wanted = AsyncEvent::LastReceiveTaken { qp_num: link.server.number() };
    // Other tests of this process share the device's events.
    until("the event", || server.device.async_events().map(Result::unwrap).find(|event| *event == wanted));
}
