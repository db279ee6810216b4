//! How far a replica is believed to lack nothing but what was written while it was away.

use uuid::Uuid;

/// What is known of one replica and of the boots of its machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trust {
    /// The boot of its machine in which it was in sync. A later one has lost what was not durable.
    boot: Option<Uuid>,
    /// That of its last connection.
    seen: Option<Uuid>,
    /// It was asked for that, and has answered.
    is_asked: bool,
    /// It differed when it had caught up.
    is_distrusted: bool,
}

/// What a replica that returns still has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// What it had when it was in sync.
    pub(super) in_sync: bool,
    /// What it had when it was connected last.
    pub(super) last: bool,
}

impl Trust {
    /// Whether the replica was asked for its machine's boot, and has answered.
    pub fn is_asked(&self) -> bool {
        self.is_asked
    }

    /// A member in sync has answered which boot it is.
    pub fn note_boot(&mut self, boot: Option<Uuid>) {
        (self.boot, self.seen, self.is_asked) = (boot, boot, true);
    }

    /// The replica differed when it had caught up: it is compared as a whole when it returns.
    pub fn note_difference(&mut self) {
        self.is_distrusted = true;
    }

    /// What a replica still has whose flushes survive a loss of power.
    pub(super) fn of_durable(&self) -> Kept {
        Kept { in_sync: !self.is_distrusted, last: true }
    }

    /// What a replica still has that returns in this boot of its machine.
    pub(super) fn of_boot(&mut self, boot: Option<Uuid>) -> Kept {
        let seen = core::mem::replace(&mut self.seen, boot);
        self.is_asked = true;
        let is_known = boot.is_some();
        Kept { in_sync: is_known && boot == self.boot && !self.is_distrusted, last: is_known && boot == seen }
    }

    /// The replica is in sync. `is_compared`: it was compared as a whole.
    pub(super) fn note_in_sync(&mut self, is_compared: bool) {
        self.boot = self.seen;
        self.is_distrusted &= !is_compared;
    }
}
