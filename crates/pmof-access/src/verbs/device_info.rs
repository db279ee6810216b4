//! What a peer says of its device.

use std::any::Any;

use pmof_verbs::DeviceInfo;

use super::opening::Verbs;
use crate::Peer;

impl Peer {
    /// What the RDMA device can do, where there is one.
    pub fn device_info(&self) -> Option<&DeviceInfo> {
        let opening: &dyn Any = self.opening();
        Some(opening.downcast_ref::<Verbs>()?.0.device.capabilities())
    }
}
