//! Tells the log when the root of a target is taken away or made read-only, and when that is over.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use pmof_mem::causes;

use crate::{PoolStore, events};

/// How often the root is looked at.
const LOOK: Duration = Duration::from_secs(2);

/// Ends the watch.
#[derive(Clone, Debug, Default)]
pub(super) struct RootWatch(Arc<(Mutex<bool>, Condvar)>);

impl RootWatch {
    pub(super) fn end(&self) {
        *self.0.0.lock() = true;
        self.0.1.notify_all();
    }

    /// Until it is ended.
    pub(super) fn run(&self, pools: &PoolStore) {
        let (mut is_attached, mut is_writable) = (true, true);
        loop {
            let (root, attached) = (pools.root(), pools.check_attached());
            match (&attached, is_attached) {
                (Err(error), true) => events::root_detached(root, &causes(error)),
                (Ok(()), false) => events::root_attached(root),
                _ => {}
            }
            is_attached = attached.is_ok();
            let writable = pools.is_root_writable();
            match (writable, is_writable) {
                (false, true) => events::root_not_writable(root),
                (true, false) => events::root_writable(root),
                _ => {}
            }
            is_writable = writable;
            if self.waited() {
                return;
            }
        }
    }

    /// Whether it was ended meanwhile.
    fn waited(&self) -> bool {
        let (until, mut is_ended) = (Instant::now() + LOOK, self.0.0.lock());
        while !*is_ended && !self.0.1.wait_until(&mut is_ended, until).timed_out() {}
        *is_ended
    }
}
