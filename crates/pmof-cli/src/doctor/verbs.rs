//! The capabilities of RDMA devices.

use pmof::causes;
use pmof_access::{DeviceInfo, VerbsError, rdma_devices};
use pmof_doctor::{CapabilitiesUnknown, DeviceCapabilities, RdmaCapabilities};

/// What libibverbs reports about this machine's devices.
pub(super) struct Verbs(Result<Vec<DeviceInfo>, VerbsError>);

impl Verbs {
    pub(super) fn ask() -> Self {
        Self(rdma_devices())
    }
}

impl RdmaCapabilities for Verbs {
    fn of(&self, device: &str) -> Result<DeviceCapabilities, CapabilitiesUnknown> {
        let failed = |why: String| CapabilitiesUnknown::Failed { why };
        let devices = match &self.0 {
            Ok(devices) => devices,
            Err(VerbsError::Library(_)) => return Err(CapabilitiesUnknown::LibraryMissing),
            Err(error) => return Err(failed(causes(&error).to_string())),
        };
        let found = devices.iter().find(|found| found.name == device);
        let found = found.ok_or_else(|| failed(format!("libibverbs has no driver for {device}")))?;
        Ok(DeviceCapabilities {
            has_flush_global: found.native_flush_global,
            has_flush_persistent: found.native_flush_persistent,
            has_atomic_write: found.atomic_write,
            has_on_demand_paging: found.on_demand_paging.serves_writes(),
            // Only a queue pair would tell, and probing must not create one.
            max_inline_bytes: None,
            max_qp_rd_atom: Some(found.max_responder_resources.into()),
            max_sge: Some(found.max_sge.into()),
            max_cqe: Some(found.max_completion_entries.into()),
            max_mr_bytes: Some(found.max_region_bytes),
        })
    }
}
