//! Handles come and go in any order, on any thread.

use std::{
    env,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use pmof_verbs::{CmEventKind, ConnectParameters, Device, EventChannel, Operation, Payload, Status};

use crate::support::{
    End, Link, Setup, completions, connect, connected, event, listen, resolve, signaled, until, wire,
};

/// Calls `visit` with every order of the first `n` numbers.
fn orders(n: usize, chosen: &mut Vec<usize>, visit: &mut impl FnMut(&[usize])) {
    if chosen.len() == n {
        visit(chosen);
        return;
    }
    for next in 0..n {
        if !chosen.contains(&next) {
            chosen.push(next);
            orders(n, chosen, visit);
            chosen.pop();
        }
    }
}

/// Whatever is dropped at its turn.
type Handle = Option<Box<dyn std::any::Any>>;

#[test]
fn handles_are_dropped_in_any_order() {
    let Some((a, b)) = wire() else { return };
    let mut count = 0;
    orders(5, &mut vec![], &mut |order| {
        let (mut link, client, server) = connected(a, b, &Setup::default(), &Setup::default());
        // Something is under way at both ends.
        link.server.post_receives(&[server.receive(1, 0, 64)]).unwrap();
        let payload = Payload::Sge(client.region.sge(0, 4096).unwrap());
        link.client.post([signaled(1, Operation::Write { to: server.at(0), payload })]).unwrap();
        let Link { channel, listener, client_id, server_id, client: client_qp, server: server_qp } = link;
        let End { device, domain, queue, region, memory, options } = client;
        drop((device, domain, options, memory));
        let mut handles: [Handle; 5] = [
            Some(Box::new(channel)),
            Some(Box::new((client_id, server_id, listener))),
            Some(Box::new((client_qp, server_qp))),
            Some(Box::new((queue, server.queue))),
            Some(Box::new((region, server.region))),
        ];
        drop((server.device, server.domain, server.options, server.memory));
        for &at in order {
            handles[at] = None;
        }
        count += 1;
    });
    assert_eq!(count, 120);
}

#[test]
fn a_queue_pair_keeps_what_it_uses() {
    let Some((a, b)) = wire() else { return };
    let (link, client, server) = connected(a, b, &Setup::default(), &Setup::default());
    let Link { channel, listener, client_id, server_id, client: mut client_qp, server: server_qp } = link;
    let to = server.at(0);
    drop((channel, listener, client_id, server_id, client.domain, client.device, client.options));
    drop((server.domain, server.device, server.options, server.queue));
    let payload = Payload::inline(b"still here").unwrap();
    client_qp.post([signaled(1, Operation::Write { to, payload })]).unwrap();
    assert_eq!(completions(&client.queue, 1)[0].status(), Status::Success);
    let mut bytes = [0; 10];
    server.memory.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"still here");
    drop(server_qp);
}

/// One connection from the request to the last event.
fn cycle(channel: &EventChannel, client: &End, server: &End, id: &pmof_verbs::CmId) {
    let mut qp = id.create_queue_pair(&client.domain, &client.options).unwrap();
    id.connect(&ConnectParameters::default()).unwrap();
    let (_, kind) = event(channel);
    let CmEventKind::ConnectRequest { request, .. } = kind else { panic!("{kind:?}") };
    let server_qp = request.create_queue_pair(&server.domain, &server.options).unwrap();
    request.accept(&ConnectParameters { private_data: b"welcome", ..ConnectParameters::default() }).unwrap();
    for _ in 0..2 {
        let (_, kind) = event(channel);
        assert!(matches!(kind, CmEventKind::Established { .. }), "{kind:?}");
    }
    let payload = Payload::inline(b"once").unwrap();
    qp.post([signaled(1, Operation::Write { to: server.at(0), payload })]).unwrap();
    assert_eq!(completions(&client.queue, 1)[0].status(), Status::Success);
    id.disconnect().unwrap();
    let (_, kind) = event(channel);
    assert!(matches!(kind, CmEventKind::Disconnected), "{kind:?}");
    drop((request, server_qp));
}

/// As many as `PMOF_VERBS_CYCLES` says: a thousand of them are run under memcheck.
#[test]
fn connections_come_and_go() {
    let Some((a, b)) = wire() else { return };
    let count = env::var("PMOF_VERBS_CYCLES").map_or(20, |text| text.parse().expect("a number"));
    let client = End::new(Device::by_local_address(a).unwrap(), &Setup::default());
    let server = End::new(Device::by_local_address(b).unwrap(), &Setup::default());
    let channel = EventChannel::new().unwrap();
    let (_listener, address) = listen(&channel, b);
    for _ in 0..count {
        let id = resolve(&channel, a, address);
        cycle(&channel, &client, &server, &id);
        drop(id);
        while channel.next_event().unwrap().is_some() {}
    }
    eprintln!("{count} connections came and went");
}

#[test]
fn events_are_taken_while_other_threads_drop_connections() {
    let Some((a, b)) = wire() else { return };
    let client = End::new(Device::by_local_address(a).unwrap(), &Setup::default());
    let server = End::new(Device::by_local_address(b).unwrap(), &Setup::default());
    for _ in 0..20 {
        let link = connect(&client, &server, a, b);
        let is_over = AtomicBool::new(false);
        let channel = link.channel.clone();
        let keys = [link.client_id.key(), link.server_id.key()];
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    if let Some(event) = channel.next_event().unwrap() {
                        assert!(keys.contains(&event.id), "{event:?}");
                    }
                    while client.device.next_async_event().unwrap().is_some() {}
                }
            });
            let Link { client_id, server_id, client: client_qp, server: server_qp, listener, .. } = link;
            client_id.disconnect().unwrap();
            let other = scope.spawn(move || drop((server_qp, server_id)));
            drop((client_qp, client_id, listener));
            other.join().unwrap();
            is_over.store(true, Ordering::Relaxed);
        });
    }
    until("an empty queue", || {
        (client.queue.poll(&mut [pmof_verbs::WorkCompletion::default(); 8]).unwrap() == 0).then_some(())
    });
}
