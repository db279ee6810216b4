//! The network as a transport that is opened.

use std::{net::SocketAddr, os::fd::BorrowedFd, sync::Arc};

use super::SimNetwork;
use crate::{
    ConnectError, ConnectOptions, Location, SetupError, Transport,
    clock::Clock,
    error::unreachable,
    transport::{Incoming, Listening, NewConnection, Opening},
    wire::Wire,
};

/// A peer's place in the network.
#[derive(Debug)]
pub(crate) struct Sim(pub(crate) Arc<SimNetwork>);

impl Opening for Sim {
    fn transport(&self) -> Option<Transport> {
        None
    }

    fn clock(&self) -> Clock {
        Clock::Virtual(self.0.clone())
    }

    fn listen(&self, address: &Location) -> Result<Listening, SetupError> {
        let Location::Ip(at) = address else { return Err(self.wrong_address(address)) };
        let named = |port| Location::from(SocketAddr::from(([127, 0, 0, 1], port)));
        let failed = |source| SetupError::Listen { address: named(at.port()), source };
        let port = self.0.listen(at.port()).map_err(failed)?;
        let incoming = SimIncoming { network: Arc::clone(&self.0), port };
        Ok(Listening { incoming: Box::new(incoming), address: named(port) })
    }

    fn connect(&self, address: &Location, _: &ConnectOptions) -> Result<Box<dyn Wire>, ConnectError> {
        let Location::Ip(at) = address else { return Err(self.wrong_address(address).into()) };
        Ok(Box::new(self.0.connect(at.port()).map_err(|error| unreachable(address, &error))?))
    }
}

/// An open port.
#[derive(Debug)]
struct SimIncoming {
    network: Arc<SimNetwork>,
    port: u16,
}

impl Incoming for SimIncoming {
    fn accept(&self) -> Result<Option<NewConnection>, SetupError> {
        Ok(self.network.accept(self.port).map(|wire| (Box::new(wire) as Box<dyn Wire>, None)))
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Drop for SimIncoming {
    fn drop(&mut self) {
        self.network.close_port(self.port);
    }
}
