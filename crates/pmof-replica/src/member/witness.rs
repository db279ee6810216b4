//! A member that keeps the pool's epochs and its roster, and no data.

use std::{sync::Arc, time::Duration};

use pmof_access::Durability;
use pmof_control::{Reply, Request};

use super::{Control, Flush, FlushLevel, Flushing, Member, Standing, Write};
use crate::{ReplicaError, ReplicaReceipt, site::Site};

/// A witness, which is asked and told, and neither written nor read.
#[derive(Debug)]
pub(crate) struct WitnessMember(Control);

impl WitnessMember {
    /// `standing`: [of a witness](Standing::of_witness).
    pub(crate) fn new(standing: Standing, site: Site) -> Self {
        Self(Control::new(standing, site, true))
    }
}

impl Member for WitnessMember {
    fn standing(&self) -> &Standing {
        &self.0.standing
    }

    fn write(&self, _: &Write<'_>) {}

    fn start_flush(&self, _: Flush, _: FlushLevel) -> Flushing {
        Flushing::default()
    }

    fn is_flushed(&self, _: &mut Flushing, _: Duration) -> bool {
        true
    }

    fn finish_flush(&self, _: &mut Flushing) -> Option<ReplicaReceipt> {
        None
    }

    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), Arc<ReplicaError>> {
        Err(Arc::new(ReplicaError::Behind))
    }

    fn strongest(&self) -> Durability {
        Durability::Visible
    }

    fn close(&self) -> Result<(), Arc<ReplicaError>> {
        self.0.ask_for(&Request::Close { in_order: true }, &Reply::Closed).map(drop)
    }

    fn control(&self) -> Option<&Control> {
        Some(&self.0)
    }
}
