//! RDS as a transport that is opened.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use pmof_rds::{RdsError, Socket, check_kernel};

use super::wire::RdsWire;
use crate::{
    ConnectError, ConnectOptions, Location, SetupError, Transport,
    error::unreachable,
    rendezvous::RendezvousIncoming,
    transport::{Listening, Opening},
    wire::Wire,
};

/// RDS of this kernel.
#[derive(Debug)]
pub(crate) struct Rds;

impl Rds {
    /// An error where the kernel has none.
    pub(crate) fn open() -> Result<Arc<Self>, RdsError> {
        check_kernel()?;
        Ok(Arc::new(Self))
    }
}

impl Opening for Rds {
    fn transport(&self) -> Option<Transport> {
        Some(Transport::Rds)
    }

    fn is_networked(&self) -> bool {
        true
    }

    fn listen(&self, address: &Location) -> Result<Listening, SetupError> {
        let Location::Ip(at) = address else { return Err(self.wrong_address(address)) };
        if !at.ip().is_unspecified() || at.is_ipv6() {
            check_address(at.ip())?;
        }
        let failed = |source| SetupError::Listen { address: address.clone(), source };
        let (incoming, bound) = RendezvousIncoming::open(*at, RdsWire::accepted).map_err(failed)?;
        Ok(Listening { incoming: Box::new(incoming), address: bound.into() })
    }

    fn connect(&self, address: &Location, options: &ConnectOptions) -> Result<Box<dyn Wire>, ConnectError> {
        let Location::Ip(at) = address else { return Err(self.wrong_address(address).into()) };
        if at.is_ipv6() {
            return Err(SetupError::from(RdsError::Ipv6 { address: at.ip() }).into());
        }
        if let Some(source) = options.source {
            check_address(source)?;
        }
        let loss_timeout = options.timeout.min(options.loss_timeout);
        let started = RdsWire::connecting(*at, options.source, loss_timeout, options.trust_host);
        Ok(Box::new(started.map_err(|error| unreachable(address, &error))?))
    }
}

/// Whether sockets of RDS can be bound to the address.
fn check_address(address: IpAddr) -> Result<(), SetupError> {
    Socket::bind(SocketAddr::new(address, 0))?;
    Ok(())
}

/// As the error of a connection, with all that it says.
pub(super) fn as_io(error: RdsError) -> io::Error {
    io::Error::other(error)
}
