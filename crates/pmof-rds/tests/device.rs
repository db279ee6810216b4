//! RDMA by cookies over the wire between `PMOF_WIRE_A` and `PMOF_WIRE_B`.

use std::{
    env,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use pmof_mem::{Medium, Memory};
use pmof_rds::{Carrier, Cookie, Direction, Done, MapError, RdsError, Received, Socket, Status};

/// A socket at each end of the wire.
fn ends() -> Option<[Socket; 2]> {
    let [Ok(near), Ok(far)] = ["PMOF_WIRE_A", "PMOF_WIRE_B"].map(env::var) else {
        skip_report::skipped!("no wire between PMOF_WIRE_A and PMOF_WIRE_B: the test bed's machine has one");
        return None;
    };
    let bound = [near, far].map(|end| Socket::bind(SocketAddr::new(end.parse::<IpAddr>().expect("an address"), 0)));
    match bound {
        [Ok(near), Ok(far)] => Some([near, far]),
        [Err(error @ RdsError::NoModule { .. }), _] => {
            skip_report::skipped!("{error}");
            None
        }
        [near, far] => panic!("{near:?} {far:?}"),
    }
}

/// What comes next.
fn next(socket: &Socket) -> (Option<Received>, Vec<u8>, Vec<Done>) {
    let (start, mut bytes, mut done) = (Instant::now(), [0; 64], Vec::new());
    while start.elapsed() < Duration::from_secs(60) {
        match socket.receive(&mut bytes, &mut done) {
            Ok(received) => {
                return (received, bytes[..received.map_or(0, |received| received.len_bytes)].to_vec(), done);
            }
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    }
    panic!("nothing comes");
}

#[test]
fn memory_is_written_and_read_by_its_cookie() {
    let Some([near, far]) = ends() else { return };
    assert_eq!((near.carrier(), far.carrier()), (Carrier::Rdma, Carrier::Rdma));
    let (near_at, far_at) = (near.local_address(), far.local_address());
    // The hosts are connected before memory is registered.
    near.send(far_at, b"hello").unwrap();
    let (received, bytes, _) = next(&far);
    assert_eq!((received.map(|received| received.from), &bytes[..]), (Some(near_at), &b"hello"[..]));
    // A datagram comes over a connection that its receiver is still making.
    let start = Instant::now();
    while !far.is_path_up(*near_at.ip()) {
        assert!(start.elapsed() < Duration::from_secs(60), "the hosts are not connected");
        thread::sleep(Duration::from_millis(1));
    }
    assert!(!far.is_path_up([192, 0, 2, 1].into()));

    let memory: Arc<dyn Medium> = Arc::new(Memory::anonymous(1 << 20).unwrap());
    let refused = far.map(near_at, &memory, (4096, 1 << 20), b"");
    assert!(matches!(refused, Err(MapError::OutOfBounds { .. })), "{refused:?}");
    let own: Cookie = far.map(near_at, &memory, (4096, 8192), b"here").unwrap();
    let (received, bytes, _) = next(&near);
    assert_eq!((received.and_then(|received| received.cookie), &bytes[..]), (Some(own), &b"here"[..]));

    near.post((far_at, Direction::Write), (own, 100), vec![7; 5000].into(), 1).unwrap();
    let (_, _, done) = next(&near);
    assert!(
        matches!(&done[..], [Done { token: 1, status: Status::Success, buffer }] if buffer[..] == [7; 5000]),
        "{done:?}"
    );
    // The other side is told of an operation by an empty datagram.
    assert_eq!(next(&far).0.map(|received| (received.from, received.len_bytes)), Some((near_at, 0)));
    let mut found = vec![0; 5002];
    memory.read(4096 + 99, &mut found).unwrap();
    assert!(found[0] == 0 && found[1..5001] == [7; 5000] && found[5001] == 0);

    memory.store(4096, &[9; 64]).unwrap();
    near.post((far_at, Direction::Read), (own, 0), vec![0; 64].into(), 2).unwrap();
    let (_, _, done) = next(&near);
    assert!(
        matches!(&done[..], [Done { token: 2, status: Status::Success, buffer }] if buffer[..] == [9; 64]),
        "{done:?}"
    );

    // What was freed is refused.
    far.free(own);
    near.post((far_at, Direction::Write), (own, 0), vec![1; 64].into(), 3).unwrap();
    let (_, _, done) = next(&near);
    assert!(matches!(&done[..], [Done { token: 3, status, .. }] if *status != Status::Success), "{done:?}");
    memory.read(4096, &mut found[..64]).unwrap();
    assert_eq!(found[..64], [9; 64]);
}
