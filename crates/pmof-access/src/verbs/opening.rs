//! RDMA devices as a transport that is opened.

use std::{ffi::c_void, sync::Arc};

use pmof_mem::Medium;
use pmof_proto::{Access, limits};
use pmof_verbs::DeviceInfo;

use super::{
    incoming::VerbsIncoming,
    memory::DeviceMemory,
    opened::Opened,
    wire::{ConnectFailure, VerbsWire},
};
use crate::{
    AppendRing, ConnectError, ConnectOptions, Location, RegisterError, RingError, SetupError, Transport, VerbsOptions,
    error::unreachable,
    region::Reach,
    transport::{Device, Listening, Opening, Rings},
    wire::Wire,
};

/// An opened device.
#[derive(Debug)]
pub(crate) struct Verbs(pub(super) Arc<Opened>);

impl Verbs {
    pub(crate) fn open(options: &VerbsOptions) -> Result<Arc<Self>, SetupError> {
        Ok(Arc::new(Self(Opened::open(options)?)))
    }
}

impl Opening for Verbs {
    fn transport(&self) -> Option<Transport> {
        Some(Transport::Verbs)
    }

    fn device_info(&self) -> Option<&DeviceInfo> {
        Some(self.0.device.capabilities())
    }

    fn is_networked(&self) -> bool {
        true
    }

    fn reach(
        &self,
        memory: &Arc<dyn Medium>,
        (offset, len_bytes): (u64, u64),
        access: Access,
    ) -> Result<Reach, RegisterError> {
        Ok(Reach::Device(Arc::new(DeviceMemory::register(&self.0, memory, offset, len_bytes, access)?)))
    }

    fn listen(&self, address: &Location) -> Result<Listening, SetupError> {
        let Location::Ip(at) = address else { return Err(self.wrong_address(address)) };
        let (incoming, bound) = VerbsIncoming::open(&self.0, *at)?;
        Ok(Listening { incoming: Box::new(incoming), address: bound.into() })
    }

    fn connect(&self, address: &Location, options: &ConnectOptions) -> Result<Box<dyn Wire>, ConnectError> {
        let Location::Ip(at) = address else { return Err(self.wrong_address(address).into()) };
        let send_queue = options.settings.send_queue.clamp(1, limits::SEND_QUEUE_LIMIT);
        let append_to = options.append_to.map(|ring| ring.key().0);
        let (source, loss_timeout) = (options.source, options.loss_timeout);
        let wire = VerbsWire::connecting(&self.0, *at, source, append_to, send_queue, loss_timeout);
        Ok(Box::new(wire.map_err(|failure| match failure {
            ConnectFailure::Network(error) => unreachable(address, &error),
            ConnectFailure::Setup(error) => error.into(),
        })?))
    }

    fn device(&self) -> Option<&dyn Device> {
        Some(self)
    }

    fn rings(&self) -> Option<&dyn Rings> {
        self.0.has_rings().then_some(self)
    }
}

impl Device for Verbs {
    fn name(&self) -> &str {
        self.0.device.name()
    }

    fn context(&self) -> *mut c_void {
        self.0.device.raw_context()
    }
}

impl Rings for Verbs {
    fn offer(
        &self,
        of: ([u8; 16], u32),
        make: Box<dyn FnOnce() -> Result<AppendRing, RingError> + '_>,
    ) -> Result<AppendRing, RingError> {
        self.0.offer(of, make)
    }
}
