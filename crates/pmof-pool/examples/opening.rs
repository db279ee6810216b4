//! How long a pool takes to open after its writer was killed: opens it, or makes it, writes a page to each of some extents, and is killed by `SIGKILL`. Run it again and again:
//!
//! ```sh
//! cargo run --release -p pmof-pool --example opening -- 1073741824 tcp://HOST[:PORT]/orders tcp://HOST[:PORT]/orders
//! ```

use std::{
    error::Error,
    process::{self, Command},
    time::Instant,
};

use pmof_access::Durability;
use pmof_pool::{Pool, PoolOptions};

/// Pages written before the end, in different extents.
const PAGES: u64 = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let size_bytes: u64 = arguments.next().ok_or("the size of the pool in bytes is missing")?.parse()?;
    let options = arguments.fold(Pool::options().require(Durability::ProcessCrash), PoolOptions::replica);
    let began = Instant::now();
    let pool = options.open_or_create(size_bytes)?;
    println!(
        "opened in {:.1} ms: {} bytes compared, {} copied",
        began.elapsed().as_secs_f64() * 1e3,
        pool.compared_bytes(),
        pool.copied_bytes()
    );
    let seed = u64::from(process::id());
    for page in 0..PAGES {
        let offset = (seed * 7919 + page * 104_729) % (size_bytes / 4096) * 4096;
        pool.persist(offset, &[page as u8; 4096])?;
    }
    Command::new("kill").args(["-KILL", &process::id().to_string()]).status()?;
    Ok(())
}
