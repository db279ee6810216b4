//! A step of a replica's return that is not done.

use std::time::Duration;

use pmof_control::{Reply, Request};
use pmof_replication::posting::LEAST_PATIENCE;

use crate::{ReplicaError, member::Control};

/// Why a replica did not come back this time.
pub(super) type Halt = pmof_replication::returning::Halt<ReplicaError>;

/// Asks a replica that is about to join for what is answered in one way only. `limit`: how long the answer may take.
pub(super) fn ask_within(
    control: &Control,
    request: &Request,
    expected: &Reply,
    limit: Option<Duration>,
) -> Result<(), Halt> {
    let Some(limit) = limit else {
        return control.ask_for(request, expected).map_err(|_| Halt::Later);
    };
    let mut asking = control.start_asking(request);
    match control.answer_within(&mut asking, limit.max(LEAST_PATIENCE)) {
        Some(Ok(reply)) if reply == *expected => Ok(()),
        Some(Ok(_)) => {
            control.fail(ReplicaError::Unexpected);
            Err(Halt::Later)
        }
        Some(Err(_)) => Err(Halt::Later),
        None => {
            asking.abandon();
            Err(Halt::Slow)
        }
    }
}
