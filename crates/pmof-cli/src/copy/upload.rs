//! Copies a file to a pool.

use std::{path::Path, sync::mpsc, thread};

use anyhow::bail;
use pmof::{Acknowledge, Pool, PoolError, PoolOptions, Receipt, causes};
use pmof_console::output::with_mend;

use super::{
    Copied, CpArgs, WINDOW_BYTES, WINDOWS_WAITING,
    checksums::Checksums,
    differs,
    error::CopyError,
    mark,
    progress::Progress,
    source::{Source, Window},
    verify,
};

/// Bytes between two persists: enough to hide the fixed cost of a flush, few enough that a disk of 4 MB/s flushes them
/// within the loss timeout.
const PERSIST_EVERY_BYTES: u64 = 32 << 20;

/// Copies `file` into a new pool. The pool gets its name when it is complete, durable and verified.
pub(super) fn upload(file: &Path, options: &PoolOptions, args: &CpArgs) -> anyhow::Result<Copied> {
    let source = Source::open(file)?;
    let len_bytes = source.len_bytes();
    // A copy gets its name on all replicas or on none: the loss of one aborts it.
    let acknowledge = Acknowledge::AtLeast(1 + args.replica.len());
    let options = options
        .clone()
        .digests(args.digests)
        .user_flags(mark::encode(len_bytes))
        .publish_on_close(true)
        .acknowledge(acknowledge);
    let pool = options.create(len_bytes.max(1)).map_err(with_mend)?;
    let sent = send(&source, &pool, &args.progress("copying", len_bytes))?;
    source.check_length()?;
    if !args.no_verify {
        let replicas: Vec<_> = (0..pool.replica_count()).collect();
        let progress = args.progress("verifying", len_bytes * replicas.len() as u64);
        if let Some(found) = verify(&pool, &replicas, &sent.checksums, &progress)? {
            return Err(differs(&pool, found).into());
        }
    }
    let pool_uuid = pool.uuid();
    pool.close().map_err(with_mend)?;
    Ok(Copied {
        pool_uuid,
        len_bytes,
        moved_bytes: sent.bytes,
        receipt: Some(sent.receipt),
        degraded: None,
        compared: 0,
        moment: None,
    })
}

struct Sent {
    receipt: Receipt,
    checksums: Checksums,
    bytes: u64,
}

/// Reads the file on a separate thread while earlier windows are in flight.
fn send(source: &Source, pool: &Pool, progress: &Progress) -> anyhow::Result<Sent> {
    let (filled, windows) = mpsc::sync_channel(WINDOWS_WAITING);
    let (emptied, buffers) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || read_all(source, &filled, &buffers));
        let mut checksums = Checksums::new(source.len_bytes());
        let (mut bytes, mut unflushed) = (0, 0);
        for window in windows {
            let Window { offset, bytes: content, data } = window?;
            checksums.add(offset, &content);
            for range in data {
                pool.lane().write(offset + range.start as u64, &content[range.clone()])?;
                bytes += range.len() as u64;
                unflushed += range.len() as u64;
            }
            if unflushed >= PERSIST_EVERY_BYTES {
                persist(pool)?;
                unflushed = 0;
            }
            progress.set(offset + content.len() as u64);
            // If the reader has ended, the buffer is not needed.
            let _ = emptied.send(content);
        }
        checksums.finish();
        Ok(Sent { receipt: persist(pool)?, checksums, bytes })
    })
}

fn read_all(source: &Source, filled: &mpsc::SyncSender<Result<Window, CopyError>>, buffers: &mpsc::Receiver<Vec<u8>>) {
    let mut offset = 0;
    loop {
        let window = match source.next_window(offset, buffers.try_recv().unwrap_or_default()) {
            Ok(Some(window)) => Ok(window),
            Ok(None) => return,
            Err(error) => Err(error),
        };
        let is_last = window.is_err();
        offset = window.as_ref().map_or(offset, |window| window.offset + WINDOW_BYTES as u64);
        // The receiving end stops at the first failure of the pool.
        if filled.send(window).is_err() || is_last {
            return;
        }
    }
}

fn persist(pool: &Pool) -> anyhow::Result<Receipt> {
    match pool.lane().persist() {
        Ok(receipt) => Ok(receipt),
        // The whole copy is discarded, so the receipt of the others is not reported.
        Err(PoolError::Persist(failure)) => match failure.failed.first() {
            Some((replica, why)) => bail!("replica {replica} failed: {}; the copy was removed", causes(why)),
            None => bail!("{failure}"),
        },
        Err(error) => Err(with_mend(error)),
    }
}
