//! Time, real or virtual.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

/// Time that passes only while somebody waits for it.
pub(crate) trait VirtualTime: fmt::Debug + Send + Sync {
    /// Time since it began.
    fn now(&self) -> Duration;

    /// Has a driver driven by whoever waits.
    fn add_driver(&self, driver: Weak<dyn Driven>);

    /// Drives everything once; if nothing moved, goes on to the next moment at which something is due, at most `until`.
    fn advance(&self, until: Option<Duration>);
}

/// What virtual time drives, as nothing happens there by itself.
pub(crate) trait Driven: Send + Sync {
    /// Moves what can be moved without waiting. True if anything moved.
    fn drive(&self) -> bool;

    /// Tells the time. Returns when that is due again, and whether it changed anything.
    fn tick_all(&self) -> (Option<Duration>, bool);
}

#[derive(Clone, Debug)]
pub(crate) enum Clock {
    Real(Instant),
    Virtual(Arc<dyn VirtualTime>),
}

impl Clock {
    pub(crate) fn real() -> Self {
        Self::Real(Instant::now())
    }

    /// Time since a fixed origin.
    pub(crate) fn now(&self) -> Duration {
        match self {
            Self::Real(origin) => origin.elapsed(),
            Self::Virtual(time) => time.now(),
        }
    }
}
