//! Memory of this side as the other sides reach it.

use std::{any::Any, fmt, io, sync::Arc};

use pmof_fabric::{MemoryRegion, MrAccess, RegisterError as Refusal};
use pmof_locks::Mutex;
use pmof_mem::Medium;
use pmof_proto::{Access, DirectAccess, RdmaFeatures, Scope};

use super::opened::Opened;
use crate::{RegisterError, region::DeviceReach};

/// Keys that are tried until one is free.
const KEY_TRIES: u32 = 8;

/// A range of memory that is registered for the other sides. This side's own operations copy what they send.
#[derive(Debug)]
pub(super) struct FabricMemory {
    opened: Arc<Opened>,
    remote: Mutex<Option<MemoryRegion>>,
    direct: DirectAccess,
    /// Why the other sides cannot reach it directly, if they cannot.
    refusal: Option<String>,
}

impl FabricMemory {
    pub(super) fn register(
        opened: &Arc<Opened>,
        memory: &Arc<dyn Medium>,
        range: (u64, u64),
        access: Access,
    ) -> Result<Self, RegisterError> {
        let mut wanted = MrAccess::empty();
        wanted.set(MrAccess::REMOTE_READ, access.contains(Access::READ));
        wanted.set(MrAccess::REMOTE_WRITE, access.contains(Access::WRITE));
        let mut registered =
            Self { opened: Arc::clone(opened), remote: Mutex::new(None), direct: DirectAccess::None, refusal: None };
        // The library takes no empty range; there is nothing to reach in it either.
        if wanted.is_empty() || range.1 == 0 {
            return Ok(registered);
        }
        for _ in 0..KEY_TRIES {
            let key = random()?;
            match opened.domain.register(Arc::clone(memory), range, wanted, key.into()) {
                Ok(region) => {
                    registered.take_up(region);
                    return Ok(registered);
                }
                Err(Refusal::KeyInUse { .. }) => {}
                // The target's CPU can still serve it.
                Err(refusal) => {
                    registered.refusal = Some(pmof_mem::causes(&refusal).to_string());
                    return Ok(registered);
                }
            }
        }
        registered.refusal = Some(format!("{KEY_TRIES} random keys are in use"));
        Ok(registered)
    }

    /// Offers the region, if a descriptor has room for its key.
    fn take_up(&mut self, region: MemoryRegion) {
        match u32::try_from(region.key()) {
            Ok(remote_key) => {
                let features = RdmaFeatures::empty();
                self.direct = DirectAccess::Rdma { address: region.base(), remote_key, features };
                *self.remote.get_mut() = Some(region);
            }
            Err(_) => self.refusal = Some("the provider's keys have more than the 32 bits of a descriptor".to_owned()),
        }
    }
}

impl DeviceReach for FabricMemory {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }

    fn direct(&self) -> DirectAccess {
        self.direct
    }

    fn refusal(&self) -> Option<&dyn fmt::Display> {
        self.refusal.as_ref().map(|refusal| refusal as &dyn fmt::Display)
    }

    fn prefetch(&self, _: u64, _: u64, _: bool) -> bool {
        false
    }

    fn revoke(&self) {
        drop(self.remote.lock().take());
    }

    fn fence(&self, scope: Scope) {
        self.opened.close_endpoints(scope);
    }

    fn fence_ends_connections(&self) -> bool {
        true
    }

    fn close(&self) {}

    fn release(&self) {}

    fn prepare_receives(&self) -> Result<(), String> {
        Err("libfabric has no rings".to_owned())
    }
}

fn random() -> Result<u32, RegisterError> {
    getrandom::u32().map_err(|error| RegisterError::Random { source: io::Error::other(error.to_string()) })
}
