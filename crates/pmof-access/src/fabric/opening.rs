//! A provider of libfabric as a transport that is opened.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use pmof_mem::Medium;
use pmof_proto::Access;

use super::{memory::FabricMemory, opened::Opened, wire::FabricWire};
use crate::{
    ConnectError, ConnectOptions, FabricProvider, Location, RegisterError, SetupError, Transport,
    error::unreachable,
    region::Reach,
    rendezvous::RendezvousIncoming,
    transport::{Listening, Opening},
    wire::Wire,
};

/// An opened provider.
#[derive(Debug)]
pub(crate) struct LibFabric(Arc<Opened>);

impl LibFabric {
    pub(crate) fn open(provider: FabricProvider, local: Option<IpAddr>) -> Result<Arc<Self>, SetupError> {
        Ok(Arc::new(Self(Opened::open(provider, local)?)))
    }

    /// The addresses of a domain are of one family, and regions are registered before any address is known.
    fn check_family(&self, at: SocketAddr) -> io::Result<()> {
        match self.0.domain.info().ip_family() {
            Some(ours) if !ours.has(at.ip()) => {
                let why = format!("the peer was opened for {ours}: open it at, or towards, this address");
                Err(io::Error::new(io::ErrorKind::Unsupported, why))
            }
            _ => Ok(()),
        }
    }
}

impl Opening for LibFabric {
    fn transport(&self) -> Option<Transport> {
        Some(Transport::Fabric(self.0.provider))
    }

    fn local(&self) -> Option<IpAddr> {
        self.0.local
    }

    fn is_networked(&self) -> bool {
        true
    }

    fn reach(&self, memory: &Arc<dyn Medium>, range: (u64, u64), access: Access) -> Result<Reach, RegisterError> {
        Ok(Reach::Device(Arc::new(FabricMemory::register(&self.0, memory, range, access)?)))
    }

    fn listen(&self, address: &Location) -> Result<Listening, SetupError> {
        let Location::Ip(at) = address else { return Err(self.wrong_address(address)) };
        let failed = |source| SetupError::Listen { address: address.clone(), source };
        self.check_family(*at).map_err(failed)?;
        let opened = Arc::clone(&self.0);
        let accepted = move |socket| FabricWire::accepted(&opened, socket);
        let (incoming, bound) = RendezvousIncoming::open(*at, accepted).map_err(failed)?;
        Ok(Listening { incoming: Box::new(incoming), address: bound.into() })
    }

    fn connect(&self, address: &Location, options: &ConnectOptions) -> Result<Box<dyn Wire>, ConnectError> {
        let Location::Ip(at) = address else { return Err(self.wrong_address(address).into()) };
        let loss_timeout = options.timeout.min(options.loss_timeout);
        let started = self
            .check_family(*at)
            .and_then(|()| FabricWire::connecting(&self.0, *at, loss_timeout, options.trust_host));
        Ok(Box::new(started.map_err(|error| unreachable(address, &error))?))
    }
}
