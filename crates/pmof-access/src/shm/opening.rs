//! Shared memory as a transport that is opened.

use std::{io, os::fd::BorrowedFd, sync::Arc};

use pmof_mem::{Medium, MemError, Memory};
use pmof_proto::Access;

use super::{incoming::ShmIncoming, shares::Shares, wire::ShmWire};
use crate::{
    ConnectError, ConnectOptions, Location, RegisterError, SetupError, Transport,
    error::unreachable,
    region::Reach,
    transport::{Incoming, LISTEN_BACKLOG, Listening, NewConnection, Opening},
    wire::Wire,
};

/// What the other processes of this host may map.
#[derive(Debug, Default)]
pub(crate) struct Shm(Arc<Shares>);

impl Opening for Shm {
    fn transport(&self) -> Option<Transport> {
        Some(Transport::Shm)
    }

    fn reach(&self, _: &Arc<dyn Medium>, _: (u64, u64), _: Access) -> Result<Reach, RegisterError> {
        Ok(Reach::Shared(Arc::clone(&self.0)))
    }

    fn allocate(&self, len_bytes: u64, access: Access) -> Result<Memory, MemError> {
        allocate(len_bytes, access)
    }

    fn listen(&self, address: &Location) -> Result<Listening, SetupError> {
        let Location::Path(path) = address else { return Err(self.wrong_address(address)) };
        let failed = |source| SetupError::Listen { address: address.clone(), source };
        let incoming = ShmIncoming::open(path, LISTEN_BACKLOG, Arc::clone(&self.0)).map_err(failed)?;
        Ok(Listening { incoming: Box::new(incoming), address: address.clone() })
    }

    fn connect(&self, address: &Location, options: &ConnectOptions) -> Result<Box<dyn Wire>, ConnectError> {
        let Location::Path(path) = address else { return Err(self.wrong_address(address).into()) };
        let failed = |error: io::Error| unreachable(address, &error);
        Ok(Box::new(ShmWire::connect(path, Arc::clone(&self.0), options.trust_host).map_err(failed)?))
    }
}

impl Incoming for ShmIncoming {
    fn accept(&self) -> Result<Option<NewConnection>, SetupError> {
        let accepted = self.accept_one().map_err(|source| SetupError::System { call: "accept4", source })?;
        Ok(accepted.map(|wire| (Box::new(wire) as Box<dyn Wire>, None)))
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket())
    }
}

/// Memory for a region that the peer allocates itself. Nobody else can ever change that which grants no changes.
fn allocate(len_bytes: u64, access: Access) -> Result<Memory, MemError> {
    Memory::shared_anonymous(len_bytes, !access.intersects(Access::WRITE | Access::ATOMIC))
}
