//! Limits of connections over tcp and shm.

use std::time::Duration;

use pmof_access::{DEFAULT_SPIN, Progress, QueueOptions, Waiting};

/// The loss timeout: how long an answer may be overdue. Programs for librpma expect no limit, and a file's flush
/// may wait for gigabytes that others wrote.
pub(crate) const LOSS_TIMEOUT: Duration = Duration::from_secs(30);

/// Separate queues of receives: their descriptors show only receives.
pub(crate) fn receives() -> QueueOptions {
    QueueOptions::default().waiting(Waiting::Adaptive { spin: DEFAULT_SPIN }).progress(Progress::OfOperations)
}
