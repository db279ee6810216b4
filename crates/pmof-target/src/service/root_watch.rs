//! Tells the log when the root of a target is taken away or made read-only, and when that is over.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use pmof_locks::{Condvar, Mutex};
use pmof_mem::causes;

use crate::{PoolStore, events};

/// How often the root is looked at.
const LOOK: Duration = Duration::from_secs(2);

/// How long the end of a watch waits for a look: that of a file system that hangs may take for ever.
const END: Duration = Duration::from_secs(1);

/// Ends the watch.
#[derive(Clone, Debug, Default)]
pub(super) struct RootWatch(Arc<(Mutex<Stage>, Condvar)>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// It has yet to begin, or is over.
    #[default]
    Over,
    Watching,
    /// It was told to end.
    Ending,
}

impl RootWatch {
    /// Begins to watch the root of the pools that are a part of `of`.
    pub(super) fn start<T: Send + Sync + 'static>(
        &self,
        of: Arc<T>,
        pools: impl Fn(&T) -> &PoolStore + Send + 'static,
    ) -> std::io::Result<()> {
        let mut seen = Seen { is_attached: true, is_writable: true };
        self.spawn(move || seen.look(pools(&of)))
    }

    /// Has a thread look again and again.
    fn spawn(&self, look: impl FnMut() + Send + 'static) -> std::io::Result<()> {
        let this = self.clone();
        *self.0.0.lock() = Stage::Watching;
        let spawned = thread::Builder::new().name("pmof-root".to_owned()).spawn(move || {
            let mut look = look;
            while {
                look();
                !this.is_to_end()
            } {}
            // What it looks at is let go before anybody who waits goes on.
            drop(look);
            this.set(Stage::Over);
        });
        if spawned.is_err() {
            self.set(Stage::Over);
        }
        spawned.map(drop)
    }

    /// Ends it, and waits until it is over, unless a look hangs.
    pub(super) fn end(&self) {
        let (until, (stage, changed)) = (Instant::now() + END, &*self.0);
        let mut stage = stage.lock();
        if *stage == Stage::Watching {
            *stage = Stage::Ending;
            changed.notify_all();
        }
        while *stage != Stage::Over && !changed.wait_until(&mut stage, until).timed_out() {}
    }

    fn set(&self, stage: Stage) {
        *self.0.0.lock() = stage;
        self.0.1.notify_all();
    }

    /// Whether it was told so before the next look is due.
    fn is_to_end(&self) -> bool {
        let (until, mut stage) = (Instant::now() + LOOK, self.0.0.lock());
        while *stage == Stage::Watching && !self.0.1.wait_until(&mut stage, until).timed_out() {}
        *stage != Stage::Watching
    }
}

/// How the root was when it was looked at last.
struct Seen {
    is_attached: bool,
    is_writable: bool,
}

impl Seen {
    fn look(&mut self, pools: &PoolStore) {
        let (root, attached) = (pools.root(), pools.check_attached());
        match (&attached, self.is_attached) {
            (Err(error), true) => events::root_detached(root, &causes(error)),
            (Ok(()), false) => events::root_attached(root),
            _ => {}
        }
        self.is_attached = attached.is_ok();
        // Elsewhere, no pool is made in it, writable or not.
        if !self.is_attached {
            return;
        }
        let writable = pools.is_root_writable();
        match (writable, self.is_writable) {
            (false, true) => events::root_not_writable(root),
            (true, false) => events::root_writable(root),
            _ => {}
        }
        self.is_writable = writable;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_root_that_hangs_keeps_no_service_from_its_end() {
        let (watch, (begun, looks), (release, hang)) = (RootWatch::default(), mpsc::channel(), mpsc::channel::<()>());
        let look = move || {
            begun.send(()).unwrap();
            // As a stat of a file system whose server does not answer.
            let _ = hang.recv();
        };
        watch.spawn(look).unwrap();
        looks.recv().unwrap();
        watch.end();
        drop(release);
        watch.end();
        assert_eq!(*watch.0.0.lock(), Stage::Over, "what it looked at is let go");
    }
}
