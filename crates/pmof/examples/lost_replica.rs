//! A replica dies while the pool is written: what the program sees, and how the replica comes back by itself.
//!
//! ```sh
//! cargo run -p pmof --example lost_replica
//! ```
//!
//! It starts three targets of its own, stops one, and starts it again on the same address.

use std::{error::Error, time::Duration};

use pmof::{Durability, Event, Pool, PoolOptions, Service, ServiceOptions};

/// Longer than a target takes to come back.
const LONG: Duration = Duration::from_secs(20);

fn main() -> Result<(), Box<dyn Error>> {
    let roots = [tempfile::tempdir()?, tempfile::tempdir()?, tempfile::tempdir()?];
    let mut targets = Vec::new();
    for root in &roots {
        targets.push(Service::start(root.path(), &["tcp://127.0.0.1:0".parse()?], ServiceOptions::default())?);
    }
    let urls: Vec<_> = targets.iter().map(|target| format!("{}/orders", target.addresses()[0])).collect();
    let options = Pool::options().require(Durability::ProcessCrash);
    let pool = urls.iter().fold(options, PoolOptions::replica).create(1 << 20)?;
    let mut events = pool.events();
    println!("{}", pool.persist(0, b"on all three")?);

    let address = targets[2].addresses()[0].clone();
    drop(targets.pop());
    // No error: two of three are a majority. The receipt says which replica lacks the bytes.
    let receipt = pool.persist(64, b"on the two that are left")?;
    assert!(receipt.is_degraded());
    println!("{receipt}");

    // The target starts again, on its memory and its address. The program does nothing: the pool copies what the replica lacks.
    targets.push(Service::start(roots[2].path(), &[address], ServiceOptions::default())?);
    loop {
        let event = events.next_for(LONG).ok_or("the replica did not come back in time")?;
        println!("{event}");
        if matches!(event, Event::InSync { .. }) {
            break;
        }
    }

    let mut bytes = [0; 24];
    pool.read_replica(2, 64, &mut bytes)?;
    println!("the third has what was written without it: {}", String::from_utf8_lossy(&bytes));
    println!("{}", pool.persist(128, b"on all three again")?);
    Ok(pool.close()?)
}
