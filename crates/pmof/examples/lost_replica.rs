//! A replica dies while the pool is written: what the program sees, what it may go on with, and how it comes back.
//!
//! ```sh
//! cargo run -p pmof --example lost_replica
//! ```
//!
//! It starts three targets of its own, and stops one.

use std::error::Error;

use pmof::{Durability, Pool, PoolError, Service, ServiceOptions, causes};

fn main() -> Result<(), Box<dyn Error>> {
    let roots = [tempfile::tempdir()?, tempfile::tempdir()?, tempfile::tempdir()?];
    let mut targets = Vec::new();
    for root in &roots {
        targets.push(Service::start(root.path(), &["tcp://127.0.0.1:0".parse()?], ServiceOptions::default())?);
    }
    let urls: Vec<_> = targets.iter().map(|target| format!("{}/orders", target.addresses()[0])).collect();
    let replicas = |options, urls: &[String]| urls.iter().fold(options, pmof::PoolOptions::replica);

    let options = Pool::options().require(Durability::ProcessCrash);
    let pool = replicas(options.clone(), &urls).create(1 << 20)?;
    println!("{}", pool.persist(0, b"on all three")?);

    drop(targets.pop());
    // The error holds the receipt of those that have the bytes: nothing is lost by going on.
    match pool.persist(64, b"on the two that are left") {
        Err(PoolError::Persist(failure)) => println!("{failure}"),
        other => println!("unexpected: {other:?}"),
    }
    for (place, failure) in pool.replicas() {
        println!("{place}: {}", failure.map_or_else(|| "in use".to_owned(), |why| causes(&why).to_string()));
    }
    // The loss was told: closing need not tell it again.
    pool.close()?;

    // A majority is enough, if the program says so. The dead one is left out, by name.
    let pool = replicas(options, &urls).min_replicas(2).open()?;
    let mut bytes = [0; 24];
    pool.read(64, &mut bytes)?;
    println!("{} of {}: {}", pool.replica_count(), pool.made_count(), String::from_utf8_lossy(&bytes));
    Ok(pool.close()?)
}
