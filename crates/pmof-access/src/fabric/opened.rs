//! An opened provider, with what the connections of one peer share.

use std::{
    io,
    net::IpAddr,
    sync::{Arc, Weak},
};

use pmof_fabric::{
    ConnectionRequest, Domain, Endpoint, EndpointKind, EndpointOptions, FabricError, Info, PassiveEndpoint, Query, list,
};
use pmof_locks::Mutex;
use pmof_proto::Scope;

use crate::{FabricProvider, SetupError};

/// Operations and receives of a connection that are under way at once.
pub(super) const OPERATIONS: usize = 256;

/// Endpoints that are watched where all of a domain share one epoll instance: the kernel bounds the paths to a socket, to 50 of four
/// instances and 10 of five (`path_limits` of its `fs/eventpoll.c`), and the fifth is the program's.
const WATCHED_MAX: usize = 8;

/// The endpoint of a connection, which another thread may close.
pub(super) type SharedEndpoint = Arc<Mutex<Endpoint>>;

#[derive(Debug)]
pub(super) struct Opened {
    pub(super) provider: FabricProvider,
    /// The address of this machine that the domain was opened at.
    pub(super) local: Option<IpAddr>,
    pub(super) domain: Domain,
    endpoints: Mutex<Vec<Known>>,
}

/// An endpoint, and the number of the connection that it belongs to; 0 before that is told.
#[derive(Debug)]
struct Known {
    endpoint: Weak<Mutex<Endpoint>>,
    connection: u64,
}

impl Opened {
    /// The provider's first domain, or that of an address of this machine.
    pub(super) fn open(provider: FabricProvider, local: Option<IpAddr>) -> Result<Arc<Self>, SetupError> {
        let query = |source| {
            let named = provider.library_name().map(ToOwned::to_owned);
            let kind = if provider.is_connected() { EndpointKind::Connected } else { EndpointKind::Datagram };
            list(&Query { provider: named, kind, source, ..Query::default() })
        };
        let infos = match query(local) {
            // Providers with addresses of their own know none of IP; and who listens tells what an address lacks.
            Err(at_address @ FabricError::NoProvider { .. }) if local.is_some() => match query(None) {
                Ok(infos) if infos.first().is_some_and(|info| !info.is_of_device()) => infos,
                _ => return Err(at_address.into()),
            },
            infos => infos?,
        };
        let missing = || SetupError::System { call: "fi_getinfo", source: io::ErrorKind::NotFound.into() };
        let info = infos.into_iter().next().ok_or_else(missing)?;
        let domain = Domain::open(info)?;
        Ok(Arc::new(Self { provider, local, domain, endpoints: Mutex::default() }))
    }

    /// What the library calls the provider.
    pub(super) fn name(&self) -> String {
        self.domain.info().provider()
    }

    /// What the sides call the provider between themselves: those with connected endpoints understand no others.
    pub(super) fn spoken_name(&self) -> String {
        self.name() + if self.is_connected() { "/msg" } else { "" }
    }

    /// Whether its endpoints are connected ones.
    pub(super) fn is_connected(&self) -> bool {
        self.provider.is_connected()
    }

    /// The offer at the address that the domain was opened at, else at this one of this machine.
    fn offer(&self, at: IpAddr) -> Result<Option<Info>, FabricError> {
        let at = self.local.filter(|local| !local.is_unspecified()).unwrap_or(at);
        // Providers that do not use IP have addresses of their own.
        let ours = self.domain.info();
        let source = ours.ip_family().map(|_| at);
        let query = Query { provider: Some(self.name()), kind: ours.kind(), source, ..Query::default() };
        let mut infos = list(&query)?;
        let of_domain = infos.iter().position(|info| info.domain() == ours.domain());
        if let (None, Some(other), true) = (of_domain, infos.first(), ours.is_of_device()) {
            return Err(FabricError::OtherDevice {
                address: at,
                provider: self.name(),
                ours: ours.domain(),
                theirs: other.domain(),
            });
        }
        Ok((!infos.is_empty()).then(|| infos.swap_remove(of_domain.unwrap_or(0))))
    }

    /// An endpoint at the address that the domain was opened at, else at this one of this machine.
    fn made(
        &self,
        at: IpAddr,
        open: impl FnOnce(&Domain, &Info, EndpointOptions) -> Result<Endpoint, FabricError>,
    ) -> Result<SharedEndpoint, FabricError> {
        let offer = self.offer(at)?;
        let options = EndpointOptions { operations: OPERATIONS };
        Ok(self.shared(open(&self.domain, offer.as_ref().unwrap_or(self.domain.info()), options)?))
    }

    fn shared(&self, endpoint: Endpoint) -> SharedEndpoint {
        let endpoint = Arc::new(Mutex::new(endpoint));
        let mut endpoints = self.endpoints.lock();
        endpoints.retain(|known| known.endpoint.strong_count() > 0);
        endpoints.push(Known { endpoint: Arc::downgrade(&endpoint), connection: 0 });
        endpoint
    }

    /// Notes which connection an endpoint belongs to.
    pub(super) fn belongs_to(&self, endpoint: &SharedEndpoint, connection: u64) {
        let endpoint = Arc::downgrade(endpoint);
        let mut endpoints = self.endpoints.lock();
        if let Some(known) = endpoints.iter_mut().find(|known| known.endpoint.ptr_eq(&endpoint)) {
            known.connection = connection;
        }
    }

    /// A reliable datagram endpoint.
    pub(super) fn endpoint(&self, at: IpAddr) -> Result<SharedEndpoint, FabricError> {
        self.made(at, Endpoint::open)
    }

    /// A connected endpoint for a connection to the passive one of this name.
    pub(super) fn endpoint_to(&self, at: IpAddr, name: &[u8]) -> Result<SharedEndpoint, FabricError> {
        self.made(at, |domain, info, options| Endpoint::open_to(domain, info, name, options))
    }

    /// A connected endpoint for a request.
    pub(super) fn endpoint_for(&self, request: &ConnectionRequest) -> Result<SharedEndpoint, FabricError> {
        let options = EndpointOptions { operations: OPERATIONS };
        Ok(self.shared(Endpoint::open_for(&self.domain, request, options)?))
    }

    /// What takes a connection's request.
    pub(super) fn passive(&self, at: IpAddr) -> Result<PassiveEndpoint, FabricError> {
        let offer = self.offer(at)?;
        PassiveEndpoint::open(&self.domain, offer.as_ref().unwrap_or(self.domain.info()))
    }

    /// Whether one more endpoint may be watched; who is not looks from time to time. Providers with a layer over them have an epoll
    /// instance for each endpoint.
    pub(super) fn may_watch(&self) -> bool {
        let count = || self.endpoints.lock().iter().filter(|known| known.endpoint.strong_count() > 0).count();
        self.name().contains(';') || self.domain.info().is_of_device() || count() <= WATCHED_MAX
    }

    /// Closes the endpoints of these connections. On return no operation of their other sides is under way: a provider that is software may
    /// still be receiving a write to memory that was taken away meanwhile.
    pub(super) fn close_endpoints(&self, of: Scope) {
        let is_meant = |known: &Known| match of {
            Scope::Peer => true,
            Scope::Connection(number) => known.connection == number,
        };
        let endpoints: Vec<_> = self
            .endpoints
            .lock()
            .iter()
            .filter(|known| is_meant(known))
            .filter_map(|known| known.endpoint.upgrade())
            .collect();
        for endpoint in endpoints {
            endpoint.lock().close();
        }
    }
}
