//! Pools, as programs use them: a lane for each operation in flight, and the pool's own persist where there is one at a time.

use std::{collections::VecDeque, time::Instant};

use anyhow::{Context as _, Result};
use pmof::{Lane, Pending, Pool, Receipt};
use pmof_access::Traffic;

use super::{Engine, Reached};
use crate::bench::pattern::{Kind, Post, Shape};

/// Operations on pools, which take turns.
#[derive(Debug)]
pub(crate) struct PoolEngine {
    pools: Vec<Pool>,
    /// One for each slot.
    lanes: Vec<Lane>,
    /// Of slots whose flush is in flight, the oldest first.
    pending: VecDeque<(usize, Pending)>,
    /// Slots whose operation was over when it was posted.
    over: Vec<usize>,
    shape: Shape,
    bytes: Vec<u8>,
    read: Vec<u8>,
    receipt: Option<Receipt>,
}

impl PoolEngine {
    /// `depth` operations in flight on each pool.
    pub(crate) fn new(pools: Vec<Pool>, shape: Shape, depth: usize) -> Self {
        let lanes = (0..depth * pools.len()).map(|slot| pools[slot % pools.len()].lane()).collect();
        let size_bytes = shape.size_bytes as usize;
        Self {
            pools,
            lanes,
            pending: VecDeque::new(),
            over: Vec::new(),
            shape,
            bytes: vec![7; size_bytes],
            read: vec![0; size_bytes],
            receipt: None,
        }
    }

    fn write(&mut self, post: &Post) -> Result<()> {
        let pool = &self.pools[post.slot % self.pools.len()];
        if let ([place], 1, 1) = (&post.places[..], self.lanes.len(), self.shape.batch) {
            self.receipt = Some(pool.persist(*place, &self.bytes)?);
            self.over.push(post.slot);
            return Ok(());
        }
        let is_alone = self.lanes.len() == 1;
        let lane = &mut self.lanes[post.slot];
        for place in &post.places {
            lane.write(*place, &self.bytes)?;
        }
        match self.shape.batch {
            0 => self.over.push(post.slot),
            _ if is_alone => {
                self.receipt = Some(lane.persist()?);
                self.over.push(post.slot);
            }
            _ => self.pending.push_back((post.slot, lane.flush())),
        }
        Ok(())
    }

    /// Collects the flushes that are done now.
    fn poll(&mut self, done: &mut Vec<usize>) -> Result<()> {
        let mut failed = None;
        self.pending.retain_mut(|(slot, pending)| match pending.poll() {
            None => true,
            Some(Ok(receipt)) => {
                self.receipt = Some(receipt);
                done.push(*slot);
                false
            }
            Some(Err(error)) => {
                failed = Some(error);
                false
            }
        });
        failed.map_or(Ok(()), |error| Err(error.into()))
    }
}

impl Engine for PoolEngine {
    fn depth(&self) -> usize {
        self.lanes.len()
    }

    fn post(&mut self, posts: &[Post]) -> Result<()> {
        for post in posts {
            match post.kind {
                Kind::Write => self.write(post).context("a persist")?,
                Kind::Read => {
                    let pool = &self.pools[post.slot % self.pools.len()];
                    let place = post.places.first().copied().unwrap_or(0);
                    pool.read(place, &mut self.read).context("a read")?;
                    self.over.push(post.slot);
                }
            }
        }
        Ok(())
    }

    fn collect(&mut self, until: Option<Instant>, done: &mut Vec<usize>) -> Result<()> {
        if !self.over.is_empty() {
            done.append(&mut self.over);
            return Ok(());
        }
        self.poll(done).context("a persist")?;
        while done.is_empty() {
            match until {
                Some(until) if Instant::now() >= until => break,
                Some(_) => self.poll(done).context("a persist")?,
                None => {
                    let (slot, pending) = self.pending.pop_front().context("nothing is in flight")?;
                    self.receipt = Some(pending.wait().context("a persist")?);
                    done.push(slot);
                }
            }
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        if self.shape.batch == 0 && self.shape.read_percent < 100 {
            let pending: Vec<Pending> = self.lanes.iter_mut().map(Lane::flush).collect();
            for pending in pending {
                self.receipt = Some(pending.wait().context("the flush of a turn")?);
            }
        }
        Ok(())
    }

    fn moved(&self) -> Option<[u64; 2]> {
        let mut traffic = Traffic::default();
        self.pools.iter().for_each(|pool| traffic.add(&pool.traffic()));
        Some([traffic.out_bytes(), traffic.in_bytes()])
    }

    fn reached(&self) -> Option<Reached> {
        self.receipt.clone().map(Reached::Pool)
    }
}

impl Drop for PoolEngine {
    fn drop(&mut self) {
        // Targets that are gone already have nothing to be told.
        for pool in &self.pools {
            let _ = pool.close();
        }
    }
}
