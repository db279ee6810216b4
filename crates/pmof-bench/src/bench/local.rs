//! The floor of shared memory: stores, write-back and fence on the same medium, in this very process.

use std::path::Path;

use anyhow::{Context as _, Result};
use pmof_mem::{Medium as _, Memory};

use super::{floor::FILE_BYTES, stage::Medium};

/// A file of the measured pool's size on its medium, mapped here, written in the same order as the pool.
#[derive(Debug)]
pub(super) struct LocalFloor {
    memory: Memory,
    bytes: Vec<u8>,
    span_bytes: u64,
    offset: u64,
}

impl LocalFloor {
    /// Makes the file, whose name goes at once, and writes all of it once.
    pub(super) fn new(path: &Path, medium: Medium, size_bytes: usize, span_bytes: u64) -> Result<Self> {
        let memory = Memory::create(path, FILE_BYTES, medium.declaration()).context("making the floor's file")?;
        std::fs::remove_file(path).with_context(|| format!("removing {}", path.display()))?;
        memory.store(0, &vec![1; FILE_BYTES as usize])?;
        memory.write_back(0, FILE_BYTES)?;
        memory.fence()?;
        Ok(Self { memory, bytes: vec![7; size_bytes], span_bytes, offset: 0 })
    }

    /// Stores the next bytes and writes them back.
    pub(super) fn store(&mut self) -> Result<()> {
        self.memory.store(self.offset, &self.bytes)?;
        self.memory.write_back(self.offset, self.bytes.len() as u64)?;
        self.advance();
        Ok(())
    }

    /// Waits for what was written back.
    pub(super) fn fence(&self) -> Result<()> {
        Ok(self.memory.fence()?)
    }

    /// Reads the next bytes.
    pub(super) fn read(&mut self) -> Result<()> {
        self.memory.read(self.offset, &mut self.bytes)?;
        self.advance();
        Ok(())
    }

    fn advance(&mut self) {
        let len_bytes = self.bytes.len() as u64;
        self.offset += len_bytes;
        if self.offset + len_bytes > self.span_bytes {
            self.offset = 0;
        }
    }
}
