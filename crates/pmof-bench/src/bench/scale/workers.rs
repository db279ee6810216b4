//! What `pmof bench scale` compares: threads that persist, or do what a persist comes to without pmof.

use std::{fs::File, os::unix::fs::FileExt as _};

use anyhow::{Context as _, Result};
use pmof::{Pool, Receipt};

use super::POOL_BYTES;
use crate::bench::floor::FloorClient;

/// What one thread does, again and again.
pub(super) trait Worker: Send {
    /// Makes the next bytes durable.
    fn step(&mut self) -> Result<()>;
}

/// Where the next bytes go: from the start of a part to its end, and again.
#[derive(Debug)]
pub(super) struct Place {
    bytes: Vec<u8>,
    start: u64,
    offset: u64,
}

impl Place {
    pub(super) fn new(size: u32, part: u16) -> Self {
        let start = u64::from(part) * POOL_BYTES;
        Self { bytes: vec![7; size as usize], start, offset: start }
    }

    fn advance(&mut self) {
        let len_bytes = self.bytes.len() as u64;
        self.offset += len_bytes;
        if self.offset + len_bytes > self.start + POOL_BYTES {
            self.offset = self.start;
        }
    }
}

/// A client with a pool of its own, or with a handle of the one of all.
#[derive(Debug)]
pub(super) struct Client {
    pool: Pool,
    at: Place,
    receipt: Option<Receipt>,
}

impl Client {
    pub(super) fn new(pool: Pool, at: Place) -> Self {
        Self { pool, at, receipt: None }
    }

    /// The receipt of its last persist.
    pub(super) fn into_receipt(self) -> Option<Receipt> {
        self.receipt
    }
}

impl Worker for Client {
    fn step(&mut self) -> Result<()> {
        self.receipt = Some(self.pool.persist(self.at.offset, &self.at.bytes)?);
        self.at.advance();
        Ok(())
    }
}

/// A thread that does without a target.
#[derive(Debug)]
pub(super) struct Raw {
    pub(super) file: File,
    pub(super) at: Place,
}

impl Worker for Raw {
    fn step(&mut self) -> Result<()> {
        self.file.write_all_at(&self.at.bytes, self.at.offset).context("pwrite")?;
        self.file.sync_data().context("fdatasync")?;
        self.at.advance();
        Ok(())
    }
}

/// A thread that has a thread of another process do the same, over a raw socket.
#[derive(Debug)]
pub(super) struct Exchange(pub(super) FloorClient);

impl Worker for Exchange {
    fn step(&mut self) -> Result<()> {
        self.0.round_trip().context("an exchange with the floor server").map(drop)
    }
}
