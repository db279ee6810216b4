//! An opening does not wait for silent replicas once enough others have answered. If it fails then, it is tried once more with patience.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::{PoolError, ReplicaError};

/// How long an opening waits for silent replicas.
#[derive(Clone, Debug, Default)]
pub(in crate::pool) struct Haste {
    /// Each replica is waited for until its time is over.
    is_patient: bool,
    /// A replica was not waited for.
    was_hasty: Arc<AtomicBool>,
}

impl Haste {
    /// For an opening that failed in haste, or that no rule corrects: with fewer replicas than are safe.
    pub(in crate::pool) fn patient() -> Self {
        Self { is_patient: true, ..Self::default() }
    }

    /// How many answers are enough, where these would be.
    pub(super) fn enough(&self, answers: usize) -> usize {
        if self.is_patient { usize::MAX } else { answers }
    }

    /// Looks at what one said, or did not say.
    pub(super) fn note<T>(&self, answer: &Result<T, ReplicaError>) {
        if !self.is_patient && matches!(answer, Err(ReplicaError::Silent { .. })) {
            self.was_hasty.store(true, Ordering::Relaxed);
        }
    }

    /// Whether patience may help.
    pub(in crate::pool) fn was_hasty(&self) -> bool {
        self.was_hasty.load(Ordering::Relaxed)
    }
}

/// Opens without waiting for replicas that are silent, and where that fails once more with them, unless the pool is in use.
pub(in crate::pool) fn in_haste<T>(open: impl Fn(Haste) -> Result<T, PoolError>) -> Result<T, PoolError> {
    let haste = Haste::default();
    match open(haste.clone()) {
        // One that was fenced has a successor, from which nothing is taken back.
        Err(error) if haste.was_hasty() && !error.is_busy() && !error.is_fenced() => open(Haste::patient()),
        outcome => outcome,
    }
}
