//! A counter that survives: the first thing to do with a pool.
//!
//! ```sh
//! pmof serve --root DIRECTORY                                # in another terminal, or on another machine
//! cargo run -p pmof --example counter -- tcp://127.0.0.1:7204/counter
//! ```
//!
//! Each run adds one and prints it. Name several replicas, and it is kept on all of them.

use std::{env, error::Error};

use pmof::{Durability, Pool};

fn main() -> Result<(), Box<dyn Error>> {
    let mut options = Pool::options().require(Durability::ProcessCrash);
    for url in env::args().skip(1) {
        options = options.replica(url);
    }
    let pool = options.open_or_create(4096)?;

    let mut bytes = [0; 8];
    pool.read(0, &mut bytes)?;
    let count = u64::from_le_bytes(bytes) + 1;

    // 8 bytes at an offset divisible by 8 are written whole or not at all.
    let mut lane = pool.lane();
    lane.atomic_write(0, count)?;
    let receipt = lane.persist()?;
    println!("{count}: {receipt}");
    Ok(pool.close()?)
}
