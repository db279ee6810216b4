//! The floors: what the transport and the medium take for the same bytes, with nothing around them.

use std::{collections::VecDeque, time::Instant};

use anyhow::{Context as _, Result};

use super::Engine;
use crate::bench::{
    floor::{FloorClient, Stream},
    local::LocalFloor,
    pattern::{Kind, Post},
};

/// One exchange at a time over a raw socket.
#[derive(Debug)]
pub(crate) struct ExchangeFloor {
    client: FloorClient,
    over: Option<usize>,
}

/// Several requests in flight over a raw socket; they are answered in order.
#[derive(Debug)]
pub(crate) struct StreamFloor {
    client: FloorClient,
    stream: Stream,
    depth: usize,
    /// Slots in flight, in the order of their requests.
    posted: VecDeque<usize>,
}

/// Stores, write-backs and fences in this process.
#[derive(Debug)]
pub(crate) struct MemoryFloor {
    floor: LocalFloor,
    depth: usize,
    /// Each operation ends with a fence.
    fences: bool,
    over: Vec<usize>,
}

impl ExchangeFloor {
    pub(crate) fn new(client: FloorClient) -> Self {
        Self { client, over: None }
    }
}

impl Engine for ExchangeFloor {
    fn depth(&self) -> usize {
        1
    }

    fn post(&mut self, posts: &[Post]) -> Result<()> {
        for post in posts {
            self.client.round_trip().context("an exchange with the floor server")?;
            self.over = Some(post.slot);
        }
        Ok(())
    }

    fn collect(&mut self, _: Option<Instant>, done: &mut Vec<usize>) -> Result<()> {
        done.extend(self.over.take());
        Ok(())
    }

    fn moved(&self) -> Option<[u64; 2]> {
        Some(self.client.moved())
    }
}

impl StreamFloor {
    pub(crate) fn new(client: FloorClient, depth: usize) -> Self {
        Self { client, stream: Stream::default(), depth, posted: VecDeque::new() }
    }
}

impl Engine for StreamFloor {
    fn depth(&self) -> usize {
        self.depth
    }

    fn post(&mut self, posts: &[Post]) -> Result<()> {
        self.posted.extend(posts.iter().map(|post| post.slot));
        self.stream.request(posts.len() as u64);
        Ok(())
    }

    fn collect(&mut self, until: Option<Instant>, done: &mut Vec<usize>) -> Result<()> {
        let answered = self.client.advance(&mut self.stream, until).context("streaming to the floor server")?;
        done.extend(self.posted.drain(..self.posted.len().min(answered as usize)));
        Ok(())
    }

    fn moved(&self) -> Option<[u64; 2]> {
        Some(self.client.moved())
    }
}

impl MemoryFloor {
    pub(crate) fn new(floor: LocalFloor, depth: usize, fences: bool) -> Self {
        Self { floor, depth, fences, over: Vec::new() }
    }
}

impl Engine for MemoryFloor {
    fn depth(&self) -> usize {
        self.depth
    }

    fn post(&mut self, posts: &[Post]) -> Result<()> {
        for post in posts {
            match post.kind {
                Kind::Read => self.floor.read()?,
                Kind::Write => {
                    post.places.iter().try_for_each(|_| self.floor.store())?;
                    if self.fences {
                        self.floor.fence()?;
                    }
                }
            }
            self.over.push(post.slot);
        }
        Ok(())
    }

    fn collect(&mut self, _: Option<Instant>, done: &mut Vec<usize>) -> Result<()> {
        done.append(&mut self.over);
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        self.floor.fence()
    }
}
