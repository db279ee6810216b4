//! A log that survives: whatever crashes, and when, each line that was acknowledged is there, whole and in order.
//!
//! ```sh
//! cargo run -p pmof --example log -- tcp://127.0.0.1:7204/log            # prints it
//! cargo run -p pmof --example log -- tcp://127.0.0.1:7204/log "a line"   # appends to it
//! ```
//!
//! The first 8 bytes are the tail: where the next record begins. A record below the tail is part of the log. It is durable before
//! the tail moves, and the tail moves by an atomic write, so a crash leaves the log with the record or without it.

use std::{env, error::Error};

use pmof::{Durability, Pool, PoolError, Receipt};

const POOL_BYTES: u64 = 1 << 20;
/// The first record; the tail of a new pool is 0 and means the same.
const FIRST: u64 = 8;
/// A record begins with its length.
const LENGTH_BYTES: u64 = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let (urls, lines): (Vec<_>, Vec<_>) = env::args().skip(1).partition(|argument| argument.contains("://"));
    let options = urls.into_iter().fold(Pool::options().require(Durability::ProcessCrash), pmof::PoolOptions::replica);
    let pool = options.open_or_create(POOL_BYTES)?;
    for line in &lines {
        println!("{}", append(&pool, line.as_bytes())?);
    }
    if lines.is_empty() {
        for record in records(&pool)? {
            println!("{}", String::from_utf8_lossy(&record));
        }
    }
    Ok(pool.close()?)
}

fn tail(pool: &Pool) -> Result<u64, PoolError> {
    let mut bytes = [0; 8];
    pool.read(0, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes).max(FIRST))
}

/// Fails where the record does not fit behind the tail.
fn append(pool: &Pool, record: &[u8]) -> Result<Receipt, PoolError> {
    let at = tail(pool)?;
    let mut lane = pool.lane();
    lane.write(at, &(record.len() as u32).to_le_bytes())?;
    lane.write(at + LENGTH_BYTES, record)?;
    lane.persist()?;
    // Only now: with one flush for both, the tail might be durable first.
    lane.atomic_write(0, at + LENGTH_BYTES + record.len() as u64)?;
    lane.persist()
}

fn records(pool: &Pool) -> Result<Vec<Vec<u8>>, PoolError> {
    let (mut at, tail) = (FIRST, tail(pool)?);
    let mut records = Vec::new();
    while at < tail {
        let mut length = [0; LENGTH_BYTES as usize];
        pool.read(at, &mut length)?;
        let mut record = vec![0; u32::from_le_bytes(length) as usize];
        pool.read(at + LENGTH_BYTES, &mut record)?;
        at += LENGTH_BYTES + record.len() as u64;
        records.push(record);
    }
    Ok(records)
}
