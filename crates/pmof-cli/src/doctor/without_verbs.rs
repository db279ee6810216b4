//! Replaces `verbs.rs` if the command is built without verbs.

use pmof_doctor::{CapabilitiesUnknown, DeviceCapabilities, RdmaCapabilities};

/// Always fails: no library to ask.
pub(super) struct Verbs;

impl Verbs {
    pub(super) fn ask() -> Self {
        Self
    }
}

impl RdmaCapabilities for Verbs {
    fn of(&self, _device: &str) -> Result<DeviceCapabilities, CapabilitiesUnknown> {
        Err(CapabilitiesUnknown::Failed { why: "this command was built without the feature verbs".to_owned() })
    }
}
