//! What a peer says of its device.

use pmof_verbs::DeviceInfo;

use crate::Peer;

impl Peer {
    /// What the RDMA device can do, where there is one.
    pub fn device_info(&self) -> Option<&DeviceInfo> {
        self.opening().device_info()
    }
}
