//! What a connection may do with the key of memory that another one has open.

use std::fs;

use pmof_access::{Access, Address, Durability, OperationError, Outcome, Refusal, RemoteRegion};
use pmof_control::{NewPool, OpenFor, PoolName, Reply, Request, SetName};
use pmof_target::{Service, ServiceOptions};
use uuid::Uuid;

use crate::support::{LONG, RawInitiator};

/// Checks that `owner` reaches the memory and that a connection of another initiator does not.
#[track_caller]
fn is_bound(owner: &RawInitiator, address: &Address, descriptor: &[u8]) {
    let remote = RemoteRegion::from_descriptor(descriptor).unwrap();
    for operation in 0..3 {
        let other = RawInitiator::connect(address);
        assert!(other.connection.prepare(&remote, LONG));
        let local = other.peer.allocate(8, Access::empty()).unwrap();
        let ticket = match operation {
            0 => other.connection.read(&remote, 0, local.slice(..).unwrap()),
            1 if remote.access().contains(Access::WRITE) => other.connection.write(&remote, 0, b"stolen"),
            _ => other.connection.batch().by_message(true).read(&remote, 0, local.slice(..).unwrap()),
        };
        let done = other.queue.wait_for(other.connection.id(), ticket.unwrap(), LONG).expect("in time");
        let unknown = |error| matches!(error, OperationError::Refused { refusal: Refusal::UnknownRegion, .. });
        assert!(done.outcome.clone().is_err_and(unknown), "{address}, operation {operation}: {:?}", done.outcome);
    }
    let local = owner.peer.allocate(8, Access::empty()).unwrap();
    let ticket = owner.connection.read(&remote, 0, local.slice(..).unwrap()).unwrap();
    let done = owner.queue.wait_for(owner.connection.id(), ticket, LONG).expect("in time");
    assert!(matches!(done.outcome, Ok(Outcome::Done { .. })), "{address}: {done:?}");
}

#[test]
fn a_key_of_a_pool_is_worth_nothing_on_another_connection() {
    let root = tempfile::tempdir_in("/dev/shm").unwrap();
    let listen = ["tcp://127.0.0.1:0".to_owned(), format!("shm://{}/x.sock", root.path().display())];
    let listen = listen.map(|text| text.parse::<Address>().unwrap());
    let service = Service::start(root.path(), &listen, ServiceOptions::default()).unwrap();
    fs::write(root.path().join("x.set"), format!("PMEMPOOLSET\n2M {}\n", root.path().join("part").display())).unwrap();
    for (index, address) in service.addresses().iter().enumerate() {
        let owner = RawInitiator::connect(address);
        let name = PoolName::new(format!("orders{index}")).unwrap();
        let require = Durability::Visible;
        let new = NewPool {
            pool_uuid: Uuid::new_v4(),
            epoch: Uuid::from_u128(9),
            size_bytes: 4096,
            replica_index: 0,
            replica_count: 1,
            require,
            user_flags: [0; 16],
            protection: None,
        };
        let created = owner.ask(&Request::Create { name: name.clone(), new, publish_on_close: false });
        let Reply::Opened { descriptor, .. } = created else { panic!("{created:?}") };
        is_bound(&owner, address, &descriptor);

        let reader = RawInitiator::connect(address);
        let opened = reader.ask(&Request::Open { name, access: OpenFor::Read, require, may_be_older: false });
        let Reply::Opened { descriptor, .. } = opened else { panic!("{opened:?}") };
        is_bound(&reader, address, &descriptor);

        let name = SetName::new("x.set").unwrap();
        let attributes = Some([0; 104]);
        let of_set = RawInitiator::connect(address);
        let created = of_set.ask(&Request::CreateSet { name, size_bytes: 4096, attributes, require });
        let Reply::SetOpened { descriptor, header_descriptor, .. } = created else { panic!("{created:?}") };
        is_bound(&of_set, address, &descriptor);
        is_bound(&of_set, address, &header_descriptor);
        // Not kept: it goes with its connection, before the next one makes it.
        drop(of_set);
        while root.path().join("part").exists() {
            std::thread::yield_now();
        }
    }
}
