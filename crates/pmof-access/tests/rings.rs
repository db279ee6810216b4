//! Transports that have no rings say so.

use std::sync::Arc;

use pmof_access::{
    AcceptOptions, Access, ConnectError, ConnectOptions, ListenOptions, Memory, Peer, PostError, QueueOptions,
    RemoteRegion, RingError, Transport,
};

#[test]
fn without_a_device_there_are_no_rings() {
    for transport in [Transport::Tcp, Transport::Shm] {
        let peer = Peer::open(transport).unwrap();
        let memory = Arc::new(Memory::anonymous(1 << 20).unwrap());
        assert!(matches!(peer.create_ring(memory.clone(), 0, 1 << 20), Err(RingError::NotVerbs)));
        assert!(matches!(peer.open_ring(memory, 0, 1 << 20, None), Err(RingError::NotVerbs)));
    }
    let peer = Peer::open(Transport::Tcp).unwrap();
    let queue = peer.completion_queue(QueueOptions::default()).unwrap();
    let listener = peer.listen(std::net::SocketAddr::from(([127, 0, 0, 1], 0)), ListenOptions::default()).unwrap();
    let region = peer.allocate(4096, Access::READ).unwrap();
    let append_to = Some(RemoteRegion::from_descriptor(&region.descriptor()).unwrap());
    let options = ConnectOptions::default().append_to(append_to);
    let error = peer.start_connect(listener.local_address().clone(), &queue, &options).unwrap_err();
    assert!(matches!(error, ConnectError::NoRings), "{error}");
    let pending = peer.start_connect(listener.local_address().clone(), &queue, &ConnectOptions::default()).unwrap();
    let request = listener.next_request(std::time::Duration::from_secs(5)).unwrap().unwrap();
    assert_eq!(request.ring_identity(), None);
    let _there = request.accept(&queue, &AcceptOptions::default()).unwrap();
    assert_eq!(pending.finish().unwrap().append(b"nowhere"), Err(PostError::NoRing));
}
