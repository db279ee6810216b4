//! A member that keeps the pool's epochs and its roster, and no data.

use std::sync::Arc;

use pmof_control::{Reply, Request};

use super::{Control, Member, Standing};
use crate::{ReplicaError, site::Site};

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

    never_written!();

    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), Arc<ReplicaError>> {
        Err(Arc::new(ReplicaError::Behind))
    }

    fn close(&self) -> Result<(), Arc<ReplicaError>> {
        self.0.ask_for(&Request::Close { in_order: true }, &Reply::Closed).map(drop)
    }

    fn control(&self) -> Option<&Control> {
        Some(&self.0)
    }
}
