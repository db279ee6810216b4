//! An opening does not wait for silent replicas once enough others have answered. If it fails then, it is tried once more with patience.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::PoolError;

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

    pub(super) fn is_patient(&self) -> bool {
        self.is_patient
    }

    /// `was_hasty`: whether a replica was not waited for.
    pub(super) fn note(&self, was_hasty: bool) {
        self.was_hasty.fetch_or(was_hasty, Ordering::Relaxed);
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
