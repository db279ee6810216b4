//! How connections over tcp and shm are set up.

use std::time::Duration;

use pmof_access::{DEFAULT_SPIN, Progress, QueueOptions, Waiting};

/// Time without an answer that is due, after which a connection is lost. Programs for librpma know of no limit, and a file's flush
/// may stand behind gigabytes that others wrote.
pub(crate) const LOSS_TIMEOUT: Duration = Duration::from_secs(30);

/// Queues of receives alone: their descriptors show these and nothing else.
pub(crate) const RECEIVES: QueueOptions =
    QueueOptions { waiting: Waiting::Adaptive { spin: DEFAULT_SPIN }, progress: Progress::OfOperations };
