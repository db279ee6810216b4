//! How the thread that leads a driver's sleepers is woken.

use std::sync::Arc;

use super::{Poller, Registration, Waker};

/// What the thread that leads sleeps on. Set by that thread before it sleeps.
#[derive(Debug, Default)]
pub(crate) enum Leader {
    /// The driver's own poller.
    #[default]
    OnPoller,
    /// The sockets themselves.
    OnSockets(Arc<Waker>),
    /// Whatever the assistant sleeps on, for this driver and others.
    Assistant(Arc<Registration>),
}

impl Leader {
    /// Ends its sleep, the present one or the next. `poller` is the driver's own, if there is one.
    pub(crate) fn wake(&self, poller: Option<&Poller>) {
        match self {
            Self::OnPoller => {
                poller.inspect(|poller| poller.wake());
            }
            Self::OnSockets(waker) => waker.wake(),
            Self::Assistant(registration) => registration.notify(),
        }
    }
}
