//! Requests that are answered alike whoever asks: an initiator over a connection, or this process.

use std::sync::Arc;

use pmof_control::{
    DATA_RANGES_MAX, DIGESTED_MAX_BYTES, DIGESTS_MAX, MAX_MESSAGE_BYTES, NewPool, OpenFor, PoolName, Reply, Request,
    ServiceCode,
};
use pmof_mem::{Medium as _, Memory};
use pmof_pool_set::{Digester, data_ranges};
use uuid::Uuid;

use crate::{OpenPool, PoolStore, StoreError, refused::Refused};

/// Makes a pool as `Create` asks for it.
pub(crate) fn create(
    pools: &PoolStore,
    name: &PoolName,
    (new, publish_on_close): (&NewPool, bool),
    holder: String,
) -> Result<OpenPool, StoreError> {
    if publish_on_close { pools.create_unpublished(name, new) } else { pools.create(name, new, holder) }
}

/// Closes a pool in order, and gives it its name where it has none.
pub(crate) fn close(pools: &PoolStore, mut pool: OpenPool, holder: String) -> Result<(), StoreError> {
    pools.serve(&mut pool, Request::Close { in_order: true }, holder).map(drop)
}

/// Answers what is asked of pools that need not be open: `Remove`, `Discard`, `Info` and `List`.
pub(crate) fn about_store(pools: &PoolStore, request: Request) -> Result<Reply, Refused> {
    Ok(match request {
        Request::Remove { name, meant: None } => pools.remove(&name).map(|()| Reply::Removed)?,
        Request::Remove { name, meant: Some(meant) } => pools.remove_replica(&name, meant).map(|()| Reply::Removed)?,
        Request::Discard { name } => pools.discard(&name).map(|()| Reply::Removed)?,
        Request::Info { name } => Reply::Info(Box::new(pools.info(&name)?)),
        // No more are looked at than a message holds.
        Request::Infos { names } => Reply::infos_page(names.iter().map(|name| {
            pools.info(name).map_err(|error| {
                let Refused { code, text } = Refused::from(error);
                (code, text)
            })
        })),
        Request::List { after } => Reply::list_page(pools.list_bytes(after.as_ref(), MAX_MESSAGE_BYTES)?),
        _ => return Err(not_for_pools()),
    })
}

/// Answers what is asked of what an open pool keeps beside its data: its state, its roster and its map of write intent.
pub(crate) fn about_state(pools: &PoolStore, pool: &mut OpenPool, request: Request) -> Result<Reply, Refused> {
    Ok(pools.serve(pool, request, String::new())?)
}

/// Answers `Boot`.
pub(crate) fn about_boot(boot: Option<Uuid>) -> Result<Reply, Refused> {
    let no_boot = || Refused::new(ServiceCode::BadMessage, "this machine does not say when it was started");
    Ok(Reply::Boot { boot: boot.ok_or_else(no_boot)? })
}

fn not_for_pools() -> Refused {
    Refused::new(ServiceCode::BadMessage, "that is not asked of pools")
}

/// The bytes of what is open: the memory, where they begin there, and how many they are.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    pub(crate) memory: Arc<Memory>,
    pub(crate) begin: u64,
    pub(crate) size_bytes: u64,
    pub(crate) is_writable: bool,
}

impl Served {
    /// The user's data of a pool.
    pub(crate) fn of_pool(pool: &OpenPool) -> Self {
        let is_writable = pool.access() == OpenFor::Write;
        Self { memory: pool.medium(), begin: pool.data_offset(), size_bytes: pool.data_len_bytes(), is_writable }
    }

    /// Answers `Digest`, once all of it is [done](Digesting::advance).
    pub(crate) fn digest(&self, offset: u64, len_bytes: u64, block_bytes: u64) -> Result<Digesting, Refused> {
        let Self { begin, size_bytes, .. } = self;
        let is_inside = offset.checked_add(len_bytes).is_some_and(|end| end <= *size_bytes);
        let is_short = len_bytes <= DIGESTED_MAX_BYTES && (1..=DIGESTED_MAX_BYTES).contains(&block_bytes);
        if !is_inside || !is_short || len_bytes.div_ceil(block_bytes) > DIGESTS_MAX as u64 {
            let text = format!("cannot digest {len_bytes} bytes at {offset} of {size_bytes} by {block_bytes}");
            return Err(Refused::new(ServiceCode::BadMessage, text));
        }
        Ok(Digesting { served: self.clone(), digester: Digester::new(begin + offset, len_bytes, block_bytes) })
    }

    /// Answers `Data`.
    pub(crate) fn data(&self, offset: u64) -> Result<Reply, Refused> {
        let Self { memory, begin, size_bytes, .. } = self;
        if offset > *size_bytes {
            let text = format!("there is no data at {offset} of {size_bytes}");
            return Err(Refused::new(ServiceCode::BadMessage, text));
        }
        let found = data_ranges(memory, begin + offset..begin + size_bytes, DATA_RANGES_MAX);
        let (ranges, end) = found.map_err(|error| Refused::new(ServiceCode::Medium, error))?;
        let ranges = ranges.into_iter().map(|range| range.start - begin..range.end - begin).collect();
        Ok(Reply::Data { ranges, end: end - begin })
    }
}

/// An answer to `Digest` on its way.
#[derive(Debug)]
pub(crate) struct Digesting {
    served: Served,
    digester: Digester,
}

impl Digesting {
    /// The number of the device that holds what is digested; 0 of what lies on none.
    pub(crate) fn medium(&self) -> u64 {
        let file = self.served.memory.file();
        file.and_then(|file| rustix::fs::fstat(file).ok()).map_or(0, |stat| stat.st_dev)
    }

    /// Digests up to `part_bytes` more; the answer once that was the last.
    pub(crate) fn advance(mut self, part_bytes: u64) -> Result<Progress, Refused> {
        let Served { memory, is_writable, .. } = &self.served;
        let failed = |error| Refused::new(ServiceCode::Medium, error);
        let part = self.digester.next(part_bytes);
        if *is_writable && !part.is_empty() {
            // What an earlier process stored and did not live to write back looks as durable as the rest; now the next flush
            // makes it so.
            memory.write_back(part.start, part.end - part.start).map_err(failed)?;
        }
        self.digester.advance(memory, part_bytes).map_err(failed)?;
        let Self { served, digester } = self;
        Ok(match digester.finish() {
            Ok(digests) => Progress::Done(Reply::Digests { digests }),
            Err(digester) => Progress::Unfinished(Self { served, digester }),
        })
    }

    /// All of it at once.
    pub(crate) fn finish(self) -> Result<Reply, Refused> {
        let mut progress = self.advance(u64::MAX)?;
        loop {
            match progress {
                Progress::Done(reply) => return Ok(reply),
                Progress::Unfinished(more) => progress = more.advance(u64::MAX)?,
            }
        }
    }
}

/// How far a digest is.
#[derive(Debug)]
pub(crate) enum Progress {
    Done(Reply),
    Unfinished(Digesting),
}

pub(crate) fn not_open() -> Refused {
    Refused::new(ServiceCode::NotOpen, "no pool is open")
}
