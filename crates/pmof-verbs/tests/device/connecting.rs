//! The connection manager.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use pmof_verbs::{
    ACCEPT_PRIVATE_DATA_MAX, CONNECT_PRIVATE_DATA_MAX, CmEventKind, CmId, ConnectParameters, Device, EventChannel,
    Operation, Payload, QueuePairState, REJECT_BY_APPLICATION, REJECT_NO_LISTENER, REJECT_PRIVATE_DATA_MAX, Status,
    VerbsError,
};

use crate::support::{End, Setup, completions, connected, event, listen, resolve, signaled, until, wire};

#[test]
fn private_data_and_depths_arrive() {
    let Some((a, b)) = wire() else { return };
    let client = End::new(Device::by_local_address(a).unwrap(), &Setup::default());
    let server = End::new(Device::by_local_address(b).unwrap(), &Setup::default());
    let channel = EventChannel::new().unwrap();
    let (listener, address) = listen(&channel, b);
    let id = resolve(&channel, a, address);
    let _client_qp = id.create_queue_pair(&client.domain, &client.options).unwrap();
    let asked = [7; CONNECT_PRIVATE_DATA_MAX];
    let parameters = ConnectParameters {
        private_data: &asked,
        responder_resources: 3,
        initiator_depth: 5,
        ..ConnectParameters::default()
    };
    id.connect(&parameters).unwrap();
    let (key, kind) = event(&channel);
    let CmEventKind::ConnectRequest { request, private_data, responder_resources, initiator_depth } = kind else {
        panic!("{kind:?}")
    };
    assert_eq!((key, private_data), (listener.key(), asked.to_vec()));
    // What the one side has under way, the other one serves.
    assert_eq!((responder_resources, initiator_depth), (5, 3));
    assert_eq!(request.peer_address().unwrap().ip(), a);
    assert_eq!(request.local_address().unwrap(), address);
    let _server_qp = request.create_queue_pair(&server.domain, &server.options).unwrap();
    let answered = [9; ACCEPT_PRIVATE_DATA_MAX];
    request.accept(&ConnectParameters { private_data: &answered, ..ConnectParameters::default() }).unwrap();
    let mut of_client = None;
    for _ in 0..2 {
        let (key, kind) = event(&channel);
        let CmEventKind::Established { private_data, responder_resources, initiator_depth } = kind else {
            panic!("{kind:?}")
        };
        if key == id.key() {
            of_client = Some((private_data, responder_resources, initiator_depth));
        }
    }
    let (private_data, responder_resources, initiator_depth) = of_client.unwrap();
    assert_eq!(private_data, answered);
    // The accepting side serves its 16 and has no more under way than the 3 that were offered.
    assert_eq!((responder_resources, initiator_depth), (3, 16));
}

#[test]
fn a_rejection_has_its_data_and_a_missing_listener_has_none() {
    let Some((a, b)) = wire() else { return };
    let client = End::new(Device::by_local_address(a).unwrap(), &Setup::default());
    let channel = EventChannel::new().unwrap();
    let (listener, address) = listen(&channel, b);
    let reason = [3; REJECT_PRIVATE_DATA_MAX];
    for reject in [Some(&reason[..]), None] {
        let id = resolve(&channel, a, address);
        let qp = id.create_queue_pair(&client.domain, &client.options).unwrap();
        id.connect(&ConnectParameters::default()).unwrap();
        let (_, kind) = event(&channel);
        let CmEventKind::ConnectRequest { request, .. } = kind else { panic!("{kind:?}") };
        if let Some(reason) = reject {
            request.reject(reason).unwrap();
        }
        // Dropping a request is a rejection too.
        drop(request);
        let (key, kind) = event(&channel);
        let CmEventKind::Rejected { status, private_data } = kind else { panic!("{kind:?}") };
        assert_eq!((key, status), (id.key(), REJECT_BY_APPLICATION));
        if let Some(reason) = reject {
            assert_eq!(private_data, reason);
        }
        assert_eq!(qp.state().unwrap(), QueuePairState::Error);
    }
    drop(listener);
    let id = resolve(&channel, a, address);
    let _qp = id.create_queue_pair(&client.domain, &client.options).unwrap();
    id.connect(&ConnectParameters::default()).unwrap();
    let (_, kind) = event(&channel);
    assert!(matches!(kind, CmEventKind::Rejected { status: REJECT_NO_LISTENER, .. }), "{kind:?}");
}

#[test]
fn a_disconnect_reaches_the_other_side_and_flushes_both() {
    let Some((a, b)) = wire() else { return };
    let (mut link, client, server) = connected(a, b, &Setup::default(), &Setup::default());
    link.server.post_receives(&[server.receive(1, 0, 64)]).unwrap();
    link.client.post_receives(&[client.receive(2, 0, 64)]).unwrap();
    link.client_id.disconnect().unwrap();
    assert_eq!(completions(&client.queue, 1)[0].status(), Status::Flushed);
    let mut keys = vec![];
    while keys.len() < 2 {
        let (key, kind) = event(&link.channel);
        assert!(matches!(kind, CmEventKind::Disconnected), "{kind:?}");
        if key == link.server_id.key() {
            link.server_id.disconnect().unwrap();
        }
        keys.push(key);
    }
    keys.sort_unstable();
    assert_eq!(keys, [link.client_id.key(), link.server_id.key()]);
    assert_eq!(completions(&server.queue, 1)[0].status(), Status::Flushed);
    link.client.post([signaled(3, Operation::Write { to: server.at(0), payload: Payload::Empty })]).unwrap();
    assert_eq!(completions(&client.queue, 1)[0].status(), Status::Flushed);
}

#[test]
fn an_accepted_connection_moves_to_a_channel_of_its_own() {
    let Some((a, b)) = wire() else { return };
    let (link, _client, _server) = connected(a, b, &Setup::default(), &Setup::default());
    let own = EventChannel::new().unwrap();
    link.server_id.migrate(&own).unwrap();
    link.server_id.migrate(&own).unwrap();
    assert!(own.next_event().unwrap().is_none());
    link.client_id.disconnect().unwrap();
    let (key, kind) = event(&own);
    assert!(key == link.server_id.key() && matches!(kind, CmEventKind::Disconnected), "{kind:?}");
    link.server_id.disconnect().unwrap();
    let (key, kind) = event(&link.channel);
    assert!(key == link.client_id.key() && matches!(kind, CmEventKind::Disconnected), "{kind:?}");
}

#[test]
fn calls_out_of_turn_are_errors() {
    let Some((a, b)) = wire() else { return };
    let client = End::new(Device::by_local_address(a).unwrap(), &Setup::default());
    let server = End::new(Device::by_local_address(b).unwrap(), &Setup::default());
    let channel = EventChannel::new().unwrap();
    let fresh = CmId::new(&channel).unwrap();
    assert!(fresh.local_address().is_none() || fresh.local_address().unwrap().port() == 0);
    assert!(matches!(fresh.device(), Err(VerbsError::NotBound)));
    assert!(matches!(fresh.connect(&ConnectParameters::default()), Err(VerbsError::NotBound)));
    assert!(matches!(fresh.accept(&ConnectParameters::default()), Err(VerbsError::NotBound)));
    assert!(matches!(fresh.resolve_route(Duration::from_secs(1)), Err(VerbsError::NotBound)));
    assert!(matches!(fresh.disconnect(), Err(VerbsError::NotBound)));
    assert!(fresh.reject(&[]).is_err());
    assert!(matches!(fresh.create_queue_pair(&client.domain, &client.options), Err(VerbsError::NotBound)));
    fresh.set_ack_timeout(14).unwrap();
    assert!(matches!(fresh.set_ack_timeout(32), Err(VerbsError::OutOfRange { .. })));

    let (listener, address) = listen(&channel, b);
    let id = resolve(&channel, a, address);
    assert!(matches!(id.connect(&ConnectParameters::default()), Err(VerbsError::NoQueuePair)));
    let result = id.create_queue_pair(&server.domain, &client.options);
    assert!(matches!(result, Err(VerbsError::OtherDevice { what: "the protection domain" })));
    let mixed = pmof_verbs::QueuePairOptions { receive_cq: server.queue.clone(), ..client.options.clone() };
    let result = id.create_queue_pair(&client.domain, &mixed);
    assert!(matches!(result, Err(VerbsError::OtherDevice { what: "the receive completion queue" })));
    let _qp = id.create_queue_pair(&client.domain, &client.options).unwrap();
    assert!(id.create_queue_pair(&client.domain, &client.options).is_err());
    let good = ConnectParameters::default();
    let too_much = [0; CONNECT_PRIVATE_DATA_MAX + 1];
    for bad in [
        ConnectParameters { private_data: &too_much, ..good },
        ConnectParameters { responder_resources: 0, ..good },
        ConnectParameters { retry_count: 7, ..good },
        ConnectParameters { rnr_retry_count: 8, ..good },
    ] {
        assert!(matches!(id.connect(&bad), Err(VerbsError::OutOfRange { .. })), "{bad:?}");
    }
    assert!(matches!(listener.reject(&[0; REJECT_PRIVATE_DATA_MAX + 1]), Err(VerbsError::OutOfRange { .. })));
}

#[test]
fn addresses_that_lead_nowhere_are_errors() {
    let Some((a, b)) = wire() else { return };
    let channel = EventChannel::new().unwrap();
    let (listener, address) = listen(&channel, b);
    let second = CmId::new(&channel).unwrap();
    let error = second.bind(address).and_then(|()| second.listen(1)).unwrap_err();
    assert!(error.to_string().contains("another listener has the port"), "{error}");
    drop(listener);

    let id = CmId::new(&channel).unwrap();
    let error = id.bind("198.51.100.1:0".parse().unwrap()).unwrap_err();
    assert!(matches!(error, VerbsError::Call { call: "rdma_bind_addr", .. }), "{error}");
    let error = id.resolve_address(None, "198.51.100.1:1".parse().unwrap(), Duration::from_secs(1)).unwrap_err();
    assert!(error.to_string().contains("198.51.100.1:1"), "{error}");
    // On the link, and nobody there.
    let nobody = SocketAddr::new(Ipv4Addr::new(10, 77, 0, 99).into(), 1);
    let id = CmId::new(&channel).unwrap();
    id.resolve_address(Some(SocketAddr::new(a, 0)), nobody, Duration::from_millis(300)).unwrap();
    let (_, kind) = event(&channel);
    assert!(matches!(kind, CmEventKind::AddressError { status } if status == -libc::ETIMEDOUT), "{kind:?}");
}

#[test]
fn a_listener_on_any_address_takes_what_comes() {
    let Some((a, b)) = wire() else { return };
    let client = End::new(Device::by_local_address(a).unwrap(), &Setup::default());
    let channel = EventChannel::new().unwrap();
    let listener = CmId::new(&channel).unwrap();
    listener.set_reuse_address(true).unwrap();
    listener.set_af_only(true).unwrap();
    listener.bind("0.0.0.0:0".parse().unwrap()).unwrap();
    listener.listen(4).unwrap();
    assert!(matches!(listener.device(), Err(VerbsError::NotBound)));
    let address = SocketAddr::new(b, listener.local_address().unwrap().port());
    let id = resolve(&channel, a, address);
    let _qp = id.create_queue_pair(&client.domain, &client.options).unwrap();
    id.connect(&ConnectParameters::default()).unwrap();
    let (_, kind) = event(&channel);
    let CmEventKind::ConnectRequest { request, .. } = kind else { panic!("{kind:?}") };
    assert!(request.device().unwrap().is_same(&Device::by_local_address(b).unwrap()));
    until("no more events", || channel.next_event().unwrap().is_none().then_some(()));
}
