//! The connection whose other side appends to a ring, as the ring knows it.

use std::sync::{Arc, Weak};

use super::Driver;
use crate::{link::Link, ring::Appender};

/// A connection, and who drives it.
#[derive(Debug)]
pub(crate) struct DrivenAppender {
    link: Weak<Link>,
    driver: Weak<Driver>,
}

impl DrivenAppender {
    pub(crate) fn new(link: &Arc<Link>, driver: &Arc<Driver>) -> Arc<Self> {
        Arc::new(Self { link: Arc::downgrade(link), driver: Arc::downgrade(driver) })
    }
}

impl Appender for DrivenAppender {
    fn slots_freed(&self) {
        let link = self.link.upgrade();
        let locked = link.as_ref().and_then(|link| link.try_lock());
        if let Some(mut core) = locked {
            core.flush_output();
        } else if let Some(driver) = self.driver.upgrade() {
            // Whoever holds the connection gives the slots back, or, where it has just done so, whoever is woken.
            driver.wake();
        }
    }
}
