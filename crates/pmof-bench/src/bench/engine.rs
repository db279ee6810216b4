//! What operations are made with: pools, connections of the access layer, and the floors.

use std::{fmt, time::Instant};

use anyhow::Result;
use pmof::{Flushed, Receipt};

use super::pattern::Post;

pub(super) mod access;
pub(super) mod floor;
pub(super) mod polled;
pub(super) mod pool;

/// Makes operations for one thread.
pub(super) trait Engine: fmt::Debug + Send {
    /// Operations that it keeps in flight; slots are numbered from 0.
    fn depth(&self) -> usize;

    /// Starts operations, each in a slot that is free.
    fn post(&mut self, posts: &[Post]) -> Result<()>;

    /// Adds the slots of operations that are done: at least one, unless `until` comes first. Not called with nothing in flight.
    fn collect(&mut self, until: Option<Instant>, done: &mut Vec<usize>) -> Result<()>;

    /// Makes durable what no flush of its own covered. Nothing is in flight.
    fn settle(&mut self) -> Result<()> {
        Ok(())
    }

    /// Bytes that left this side and that came to it, headers included, since it was made; `None` where nobody knows.
    fn moved(&self) -> Option<[u64; 2]> {
        None
    }

    /// How the last flush went; `None` where nothing was flushed, or by a floor.
    fn reached(&self) -> Option<Reached> {
        None
    }
}

/// What a flush reached.
#[derive(Clone, Debug)]
pub(super) enum Reached {
    /// On every replica.
    Pool(Receipt),
    /// On the one connection.
    Connection(Flushed),
}
