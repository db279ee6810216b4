//! A relay of TCP connections that can be cut.

use std::net::{Shutdown, TcpListener, TcpStream};

use pmof_access::Location;

/// The address of a relay to a target, and what cuts its connections.
pub(crate) fn relay(target: &Location) -> (Location, Box<dyn FnOnce()>) {
    let target = target.socket_address().expect("an address of TCP");
    let relay = TcpListener::bind((target.ip(), 0)).expect("a port");
    let address = relay.local_addr().expect("its address");
    let streams = std::thread::spawn(move || {
        let (near, _) = relay.accept().expect("the initiator comes");
        let far = TcpStream::connect(target).expect("the target listens");
        for (from, to) in [(&near, &far), (&far, &near)] {
            let (mut from, mut to) = (from.try_clone().expect("a copy"), to.try_clone().expect("a copy"));
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
        }
        [near, far]
    });
    let cut = move || {
        for stream in streams.join().expect("the relay works") {
            // One of the sides may have gone already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    };
    (address.into(), Box::new(cut))
}
