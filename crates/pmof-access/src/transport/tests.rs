use super::*;
use crate::{Address, Peer};

#[test]
fn a_transport_that_was_left_out_is_named_with_its_feature() {
    let address: Address = "verbs://127.0.0.1:7204".parse().unwrap();
    let errors = [
        Peer::open(Transport::Verbs).err().map(|error| error.to_string()),
        Peer::open_verbs(&VerbsOptions::default()).err().map(|error| error.to_string()),
        Peer::towards(&address, None).err().map(|error| error.to_string()),
    ];
    let what = "this program was built without the transport verbs: build it with the feature \"verbs\" of pmof";
    for error in errors {
        // With the feature it is the machine that decides.
        assert_eq!(error.as_deref() == Some(what), cfg!(not(feature = "verbs")), "{error:?}");
    }
    assert!(cfg!(feature = "verbs") || !has_rdma_device());
}

#[test]
fn an_address_of_another_transport_is_refused() {
    for (transport, address) in [
        (Transport::Tcp, Location::from(std::path::Path::new("/run/x"))),
        (Transport::Shm, Location::from(SocketAddr::from(([127, 0, 0, 1], 1)))),
    ] {
        let opening = open(transport, None).unwrap();
        let listened = opening.listen(&address).map(|listening| listening.address);
        assert!(matches!(listened, Err(SetupError::WrongAddress { transport: of, .. }) if of == transport));
        let connected = opening.connect(&address, &ConnectOptions::default());
        assert!(matches!(connected, Err(ConnectError::Setup(SetupError::WrongAddress { .. }))), "{connected:?}");
    }
}
