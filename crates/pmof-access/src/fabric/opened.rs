//! An opened provider, with what the connections of one peer share.

use std::{
    io,
    net::IpAddr,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use pmof_fabric::{Domain, Endpoint, EndpointOptions, FabricError, Query, list};

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
    pub(super) domain: Domain,
    endpoints: Mutex<Vec<Weak<Mutex<Endpoint>>>>,
}

impl Opened {
    pub(super) fn open(provider: FabricProvider) -> Result<Arc<Self>, SetupError> {
        let infos = list(&Query { provider: provider.library_name().map(ToOwned::to_owned), ..Query::default() })?;
        let missing = || SetupError::System { call: "fi_getinfo", source: io::ErrorKind::NotFound.into() };
        let info = infos.into_iter().next().ok_or_else(missing)?;
        let domain = Domain::open(info)?;
        Ok(Arc::new(Self { provider, domain, endpoints: Mutex::default() }))
    }

    /// What the library calls the provider.
    pub(super) fn name(&self) -> String {
        self.domain.info().provider()
    }

    /// An endpoint at this address of this machine.
    pub(super) fn endpoint(&self, at: IpAddr) -> Result<SharedEndpoint, FabricError> {
        let options = EndpointOptions { operations: OPERATIONS };
        // Providers that do not use IP have addresses of their own.
        let source = self.domain.info().has_ip_addresses().then_some(at);
        let infos = list(&Query { provider: Some(self.name()), source, ..Query::default() })?;
        let info = infos.first().unwrap_or(self.domain.info());
        let endpoint = Arc::new(Mutex::new(Endpoint::open(&self.domain, info, options)?));
        let mut endpoints = self.endpoints.lock();
        endpoints.retain(|endpoint| endpoint.strong_count() > 0);
        endpoints.push(Arc::downgrade(&endpoint));
        Ok(endpoint)
    }

    /// Whether one more endpoint may be watched; who is not looks from time to time. Providers with a layer over them have an epoll
    /// instance for each endpoint.
    pub(super) fn may_watch(&self) -> bool {
        let count = || self.endpoints.lock().iter().filter(|endpoint| endpoint.strong_count() > 0).count();
        self.name().contains(';') || count() <= WATCHED_MAX
    }

    /// Closes all endpoints. On return no operation of the other sides is under way: a provider that is software may still be
    /// receiving a write to memory that was taken away meanwhile.
    pub(super) fn close_endpoints(&self) {
        let endpoints = std::mem::take(&mut *self.endpoints.lock());
        for endpoint in endpoints.iter().filter_map(Weak::upgrade) {
            endpoint.lock().close();
        }
    }
}
