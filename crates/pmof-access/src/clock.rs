//! Time, real or virtual.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::sim::SimNetwork;

#[derive(Clone, Debug)]
pub(crate) enum Clock {
    Real(Instant),
    Virtual(Arc<SimNetwork>),
}

impl Clock {
    pub(crate) fn real() -> Self {
        Self::Real(Instant::now())
    }

    /// Time since a fixed origin.
    pub(crate) fn now(&self) -> Duration {
        match self {
            Self::Real(origin) => origin.elapsed(),
            Self::Virtual(network) => network.now(),
        }
    }
}
