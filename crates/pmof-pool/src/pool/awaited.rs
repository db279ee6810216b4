//! What blocks, as futures.

use super::{Pool, PoolOptions, SetOptions};
use crate::{PoolError, background::Background};

fn forked<T>() -> Result<T, PoolError> {
    Err(PoolError::Forked)
}

impl PoolOptions {
    /// [`create`](Self::create), as a future.
    pub fn create_async(&self, size_bytes: u64) -> Background<Result<Pool, PoolError>> {
        let options = self.clone();
        Background::run_or(forked, move || options.create(size_bytes))
    }

    /// [`open`](Self::open), as a future.
    pub fn open_async(&self) -> Background<Result<Pool, PoolError>> {
        let options = self.clone();
        Background::run_or(forked, move || options.open())
    }

    /// [`open_or_create`](Self::open_or_create), as a future.
    pub fn open_or_create_async(&self, size_bytes: u64) -> Background<Result<Pool, PoolError>> {
        let options = self.clone();
        Background::run_or(forked, move || options.open_or_create(size_bytes))
    }

    /// [`open_read_only`](Self::open_read_only), as a future.
    pub fn open_read_only_async(&self) -> Background<Result<Pool, PoolError>> {
        let options = self.clone();
        Background::run_or(forked, move || options.open_read_only())
    }
}

impl SetOptions {
    /// [`open`](Self::open), as a future.
    pub fn open_async(&self) -> Background<Result<Pool, PoolError>> {
        let options = self.clone();
        Background::run_or(forked, move || options.open())
    }
}

impl Pool {
    /// [`read`](Self::read), as a future of the bytes.
    pub fn read_async(&self, offset: u64, len_bytes: usize) -> Background<Result<Vec<u8>, PoolError>> {
        let pool = self.clone();
        Background::run_or(forked, move || {
            // Before there is memory for what no pool has.
            pool.0.facts.check(offset, len_bytes as u64)?;
            let mut bytes = vec![0; len_bytes];
            pool.read(offset, &mut bytes)?;
            Ok(bytes)
        })
    }

    /// [`close`](Self::close), as a future.
    pub fn close_async(&self) -> Background<Result<(), PoolError>> {
        let pool = self.clone();
        Background::run_or(forked, move || pool.close())
    }
}
