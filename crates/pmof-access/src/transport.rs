//! What opens a transport. A new one implements [`Opening`], [`Incoming`] and [`Wire`] in its own module, and gets its line in the
//! [table](open) of those that are built in.

use std::{
    ffi::c_void,
    fmt,
    net::{IpAddr, SocketAddr},
    os::fd::BorrowedFd,
    sync::Arc,
};

use pmof_mem::{Medium, MemError, Memory};
use pmof_proto::Access;

use crate::{
    AppendRing, ConnectError, ConnectOptions, Location, RegisterError, RingError, SetupError, Transport, clock::Clock,
    region::Reach, wire::Wire,
};

mod built_in;
mod descriptor;
mod options;

pub use built_in::has_rdma_device;
pub(crate) use built_in::{open, open_verbs};
#[cfg(feature = "fabric")]
pub(crate) use descriptor::FABRIC_MAGIC;
#[cfg(feature = "rds")]
pub(crate) use descriptor::RDS_MAGIC;
pub(crate) use descriptor::schemes;
pub use descriptor::{LocalEnd, TransportDescriptor};
pub use options::{DeviceChoice, VerbsOptions};

/// The local opening of one transport: what a [`Peer`](crate::Peer) is over.
pub(crate) trait Opening: Send + Sync + fmt::Debug {
    /// Which it is; `None` for a simulated network.
    fn transport(&self) -> Option<Transport>;

    /// The address of this machine that it was opened at, where it is told apart from others by that.
    fn local(&self) -> Option<IpAddr> {
        None
    }

    /// What its queues and listeners tell the time by.
    fn clock(&self) -> Clock {
        Clock::real()
    }

    /// Makes `len_bytes` bytes at `offset` of the memory reachable past this side's CPU, as far as they can be.
    fn reach(
        &self,
        _memory: &Arc<dyn Medium>,
        (_offset, _len_bytes): (u64, u64),
        _access: Access,
    ) -> Result<Reach, RegisterError> {
        Ok(Reach::None)
    }

    /// Anonymous memory that the other sides reach as well as any.
    fn allocate(&self, len_bytes: u64, _access: Access) -> Result<Memory, MemError> {
        Memory::anonymous(len_bytes)
    }

    /// Whether other machines may reach it.
    fn is_networked(&self) -> bool {
        false
    }

    /// Listens; port 0 picks a free one.
    fn listen(&self, address: &Location) -> Result<Listening, SetupError>;

    /// Starts to connect, without waiting.
    fn connect(&self, address: &Location, options: &ConnectOptions) -> Result<Box<dyn Wire>, ConnectError>;

    /// The device that carries out operations, where there is one.
    fn device(&self) -> Option<&dyn Device> {
        None
    }

    /// What the RDMA device can do, where there is one.
    #[cfg(feature = "verbs")]
    fn device_info(&self) -> Option<&pmof_verbs::DeviceInfo> {
        None
    }

    /// Where rings are to be had, what keeps them.
    fn rings(&self) -> Option<&dyn Rings> {
        None
    }

    /// The error for an address of another transport.
    fn wrong_address(&self, address: &Location) -> SetupError {
        let transport = self.transport().unwrap_or(Transport::Tcp);
        SetupError::WrongAddress { address: address.clone(), transport }
    }
}

/// A device of this machine.
pub(crate) trait Device {
    fn name(&self) -> &str;

    /// What libibverbs calls its context.
    fn context(&self) -> *mut c_void;
}

/// What keeps the rings of a peer.
pub(crate) trait Rings {
    /// Makes the handle of a ring and offers it to those who have its key, unless it is offered already.
    fn offer(
        &self,
        of: ([u8; 16], u32),
        make: Box<dyn FnOnce() -> Result<AppendRing, RingError> + '_>,
    ) -> Result<AppendRing, RingError>;
}

/// A connection that nobody has said anything on, and where it comes from.
pub(crate) type NewConnection = (Box<dyn Wire>, Option<SocketAddr>);

/// Connections that the kernel keeps while the application does not take them.
pub(crate) const LISTEN_BACKLOG: i32 = 1024;

/// Where connections come in.
pub(crate) trait Incoming: Send + Sync + fmt::Debug {
    /// The next one, if one waits.
    fn accept(&self) -> Result<Option<NewConnection>, SetupError>;

    /// Readable while one waits; `None` on a simulated network.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;
}

/// What was opened to listen, and where: with the port that was picked.
pub(crate) struct Listening {
    pub(crate) incoming: Box<dyn Incoming>,
    pub(crate) address: Location,
}

#[cfg(test)]
mod tests;
