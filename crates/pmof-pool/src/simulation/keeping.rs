//! How writers ask the keeper of epochs.

use std::{future::poll_fn, task::Poll};

use pmof_replication::keeper::{EpochRecord, Keeper, KeeperError, Kept};
use uuid::Uuid;

use super::{
    faults::Fault,
    keeper::{Outside, Request},
    plan::Control,
    tasks::{Shared, sleep, until},
};

/// The longest that a writer watches before it asks again.
const WATCH_STEPS: u64 = 200;

/// The keeper outside of the members, as one writer asks it.
#[derive(Clone)]
pub(super) struct Asked {
    pub(super) world: Shared,
    pub(super) writer: usize,
}

impl Asked {
    fn is_reached(&self) -> bool {
        let world = &mut *self.world.borrow_mut();
        let (step, is_faultless) = (world.step, world.is_faultless);
        let is_reached = is_faultless || world.keeper.as_mut().is_some_and(|keeper| keeper.is_reached(step));
        if !is_reached {
            world.count(Fault::KeeperUnreachable);
        }
        is_reached
    }

    /// Sends a request, which may be lost. `None`: it cannot be sent.
    fn send(&self, request: Request) -> Option<u64> {
        if !self.is_reached() {
            return None;
        }
        let in_force = self.kept().map_or(0, |kept| kept.in_force.epoch.members);
        let world = &mut *self.world.borrow_mut();
        // It matters most that a writer is not told of a member that has joined.
        let joins = matches!(&request, Request::Confirm(announced) if announced.epoch.members & !in_force != 0);
        let reply_rate = if joins { 2 } else { 8 };
        let (step, reply_rate) = (world.step, (!world.is_faultless).then_some(reply_rate));
        let (id, is_slow) = world.keeper.as_mut()?.send(step, reply_rate, self.writer, request);
        if is_slow {
            world.count(Fault::KeeperSlow);
        }
        Some(id)
    }

    async fn ask(&self, request: Request) -> Result<(), KeeperError> {
        let Some(id) = self.send(request) else {
            sleep(&self.world, 1).await;
            return Err(KeeperError::Unreachable);
        };
        poll_fn(|_| {
            let world = &mut *self.world.borrow_mut();
            let Some(keeper) = &world.keeper else { return Poll::Ready(Err(KeeperError::Unreachable)) };
            let (reply, fault) = keeper.reply(id, world.step);
            if let Some(fault) = fault {
                world.count(fault);
            }
            reply
        })
        .await
    }

    fn kept(&self) -> Result<Kept, KeeperError> {
        self.world.borrow().keeper.as_ref().map(Outside::kept).cloned().ok_or(KeeperError::Unreachable)
    }
}

impl Keeper for Asked {
    async fn begin(&self, announced: &EpochRecord) -> Result<(), KeeperError> {
        self.ask(Request::Begin(announced.clone())).await
    }

    async fn confirm(&self, announced: &EpochRecord) -> Result<(), KeeperError> {
        let (control, confirm) = (self.world.borrow().control, Request::Confirm(announced.clone()));
        if control == Some(Control::KeeperNotAwaited) {
            // What comes of it does not matter to this writer.
            let _ = self.send(confirm);
            return Ok(());
        }
        let before = self.kept().map_or(0, |kept| kept.in_force.epoch.members);
        let answered = self.ask(confirm).await;
        if answered == Err(KeeperError::Unknown) {
            if self.kept().is_ok_and(|kept| kept.in_force.epoch == announced.epoch) {
                let mut world = self.world.borrow_mut();
                world.reply_to_join_is_lost(self.writer, announced.epoch.members & !before);
            }
            if control == Some(Control::KeeperUnknownIsNone) {
                return Err(KeeperError::Unreachable);
            }
        }
        answered
    }

    /// What is kept when the reply has come, as a change may have come during the call.
    async fn read(&self) -> Result<Kept, KeeperError> {
        self.ask(Request::Read).await?;
        self.kept()
    }

    async fn watch(&self, known: Uuid) -> Result<Kept, KeeperError> {
        let limit = self.world.borrow().step + WATCH_STEPS;
        let is_known = || self.kept().is_ok_and(|kept| kept.in_force.epoch.id == known);
        until(|| !is_known() || self.world.borrow().step >= limit).await;
        if is_known() || !self.is_reached() {
            return Err(KeeperError::Unreachable);
        }
        self.kept()
    }
}

/// The keeper of a pool.
pub(super) enum PoolKeeper<M> {
    Members(M),
    Outside(Asked),
}

impl<M: Keeper> Keeper for PoolKeeper<M> {
    async fn begin(&self, announced: &EpochRecord) -> Result<(), KeeperError> {
        match self {
            Self::Members(members) => members.begin(announced).await,
            Self::Outside(outside) => outside.begin(announced).await,
        }
    }

    async fn confirm(&self, announced: &EpochRecord) -> Result<(), KeeperError> {
        match self {
            Self::Members(members) => members.confirm(announced).await,
            Self::Outside(outside) => outside.confirm(announced).await,
        }
    }

    async fn read(&self) -> Result<Kept, KeeperError> {
        match self {
            Self::Members(members) => members.read().await,
            Self::Outside(outside) => outside.read().await,
        }
    }

    async fn watch(&self, known: Uuid) -> Result<Kept, KeeperError> {
        match self {
            Self::Members(members) => members.watch(known).await,
            Self::Outside(outside) => outside.watch(known).await,
        }
    }
}
