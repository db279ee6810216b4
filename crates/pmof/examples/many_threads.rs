//! One pool used by many threads: each has a lane of its own, and all of them one connection a replica.
//!
//! ```sh
//! cargo run -p pmof --example many_threads -- tcp://127.0.0.1:7204/threads
//! ```

use std::{env, error::Error, thread};

use pmof::{Durability, Pool, PoolError};

const THREADS: u64 = 16;
const RECORDS: u64 = 100;
const RECORD_BYTES: u64 = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let mut options = Pool::options().require(Durability::ProcessCrash);
    for url in env::args().skip(1) {
        options = options.replica(url);
    }
    let pool = options.open_or_create(THREADS * RECORDS * RECORD_BYTES)?;
    let written = thread::scope(|scope| {
        let write = |thread| {
            // A clone is the same pool.
            let pool = pool.clone();
            scope.spawn(move || write(&pool, thread))
        };
        let threads: Vec<_> = (0..THREADS).map(write).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).sum::<Result<u64, _>>()
    })?;
    println!("{written} records of {RECORD_BYTES} bytes on {} replicas", pool.replica_count());
    Ok(pool.close()?)
}

/// Two records with each flush; returns how many are durable.
fn write(pool: &Pool, thread: u64) -> Result<u64, PoolError> {
    let mut lane = pool.lane();
    let mut written = 0;
    for pair in 0..RECORDS / 2 {
        for record in [2 * pair, 2 * pair + 1] {
            let offset = (thread * RECORDS + record) * RECORD_BYTES;
            lane.write(offset, &[thread as u8; RECORD_BYTES as usize])?;
        }
        lane.persist()?;
        written += 2;
    }
    Ok(written)
}
