//! A replica that a pool was opened without.

use std::sync::Arc;

use super::{Member, Standing};
use crate::{ReplicaError, ReplicaPlace};

/// The place of a replica that is out of reach, or does not belong to the others: it has failed from the start.
#[derive(Debug)]
pub(crate) struct AbsentMember(Standing, Arc<ReplicaError>);

impl AbsentMember {
    pub(crate) fn new(place: Arc<ReplicaPlace>, why: Arc<ReplicaError>) -> Self {
        let standing = Standing::failed(place, Arc::clone(&why));
        Self(standing, why)
    }

    /// The place of a witness that is out of reach.
    pub(crate) fn of_witness(self, is_witness: bool) -> Self {
        Self(self.0.of_witness(is_witness), self.1)
    }
}

impl Member for AbsentMember {
    fn standing(&self) -> &Standing {
        &self.0
    }

    never_written!();

    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), Arc<ReplicaError>> {
        Err(Arc::clone(&self.1))
    }

    fn close(&self) -> Result<(), Arc<ReplicaError>> {
        Err(Arc::clone(&self.1))
    }
}
