//! What wakes those who drive a connection: which of its descriptors they watch, and for what.

use std::{mem, sync::Arc};

use rustix::io::Errno;

use super::{Link, LinkCore, Phase};
use crate::{
    local_user,
    progress::{Interest, Poller, SleepSocket},
};

/// Which of a connection's drivers has it watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchedBy {
    /// That of its operations, which may be that of its receives too.
    Operations,
    /// That of its receives.
    Receives,
}

/// What those who drive a connection wait for, and where.
#[derive(Debug)]
pub(super) struct Watching {
    /// What whoever waits for the wire waits for.
    interest: Interest,
    /// That has changed, and nobody was told who sleeps on the wire itself.
    has_new_interest: bool,
    /// Where readiness is watched, for each of its drivers, and under which number.
    pollers: [Option<(Arc<Poller>, u64)>; 2],
}

impl Default for Watching {
    fn default() -> Self {
        Self { interest: Interest { input: true, output: false }, has_new_interest: false, pollers: [None, None] }
    }
}

impl Watching {
    /// For each of the wire's descriptors: output goes only by the first one.
    fn interests(&self) -> [Interest; 2] {
        [self.interest, Interest { output: false, ..self.interest }]
    }
}

impl Link {
    /// Watches the wire for one of its drivers with this poller from now on, or with none.
    pub(crate) fn watch(&self, by: WatchedBy, watcher: Option<(&Arc<Poller>, u64)>) -> Result<(), Errno> {
        self.lock().watch(by, watcher)
    }
}

impl LinkCore {
    /// Watches the wire for one of its drivers with this poller from now on, or with none.
    pub(crate) fn watch(&mut self, by: WatchedBy, watcher: Option<(&Arc<Poller>, u64)>) -> Result<(), Errno> {
        self.unwatch_by(by);
        self.update_interest();
        let (Some((poller, id)), Some(wire)) = (watcher, &self.wire) else { return Ok(()) };
        let added = wire.as_fds().into_iter().zip(self.watching.interests()).try_for_each(|(fd, interest)| match fd {
            Some(fd) => poller.add(fd, id, interest),
            None => Ok(()),
        });
        self.watching.pollers[by as usize] = Some((Arc::clone(poller), id));
        added.inspect_err(|_| self.unwatch_by(by))
    }

    /// Adds what a thread sleeps on that waits for the wire itself. What it is to wait for besides, from here on, is
    /// [told](Self::take_new_interest).
    pub(crate) fn add_sockets(&mut self, to: &mut Vec<SleepSocket>) {
        self.update_interest();
        self.watching.has_new_interest = false;
        let Some(wire) = &self.wire else { return };
        let sockets = wire.sockets().into_iter().zip(self.watching.interests());
        to.extend(sockets.filter_map(|(socket, interest)| Some((socket?, interest))));
    }

    /// Whether the kernel says that the other side closed its end of the wire's socket.
    pub(crate) fn is_closed_there(&self) -> bool {
        let [socket, _] = self.wire.as_ref().map_or([None, None], |wire| wire.sockets());
        socket.is_some_and(|socket| !local_user::is_open(&socket))
    }

    /// True once after what the wire is to be waited for has changed: whoever sleeps on it is to look.
    pub(crate) fn take_new_interest(&mut self) -> bool {
        mem::take(&mut self.watching.has_new_interest)
    }

    /// Changes what the wire is watched for, after output was queued or sent.
    pub(crate) fn update_interest(&mut self) {
        if self.is_device() && self.phase == Phase::Open {
            // As it was from the beginning.
            return;
        }
        let wanted = self.wanted_interest();
        if self.watching.interest == wanted {
            return;
        }
        self.watching.interest = wanted;
        self.watching.has_new_interest = true;
        if let Some(fd) = self.wire.as_ref().and_then(|wire| wire.as_fds()[0]) {
            for (poller, id) in self.watching.pollers.iter().flatten() {
                // It fails where the process closed the descriptor behind our back.
                let _ = poller.modify(fd, *id, wanted);
            }
        }
    }

    /// No poller watches the wire any more.
    pub(crate) fn unwatch(&mut self) {
        self.unwatch_by(WatchedBy::Operations);
        self.unwatch_by(WatchedBy::Receives);
    }

    fn unwatch_by(&mut self, by: WatchedBy) {
        if let (Some((poller, _)), Some(wire)) = (self.watching.pollers[by as usize].take(), &self.wire) {
            wire.as_fds().into_iter().flatten().for_each(|fd| poller.remove(fd));
        }
    }

    pub(super) fn wanted_interest(&self) -> Interest {
        match self.phase {
            // A device tells of room to send in the same way as of input.
            Phase::Open if self.is_device() => Interest { input: true, output: false },
            // After the end, input is read to be dropped.
            Phase::Open => {
                let input = self.endpoint.wants_input() || self.endpoint.ended().is_some();
                Interest { input, output: self.blocked }
            }
            Phase::Draining { .. } => Interest { input: true, output: false },
            Phase::Closed => Interest { input: false, output: false },
        }
    }
}
