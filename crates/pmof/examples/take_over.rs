//! A standby takes a pool over from a writer that hangs: what the first one acknowledged is there, and nothing that it does later is.
//!
//! ```sh
//! cargo run -p pmof --example take_over
//! ```
//!
//! It starts a target of its own, and both writers are in this process.

use std::{error::Error, time::Duration};

use pmof::{Durability, Pool, Service, ServiceOptions};

/// A writer of whom the target has heard nothing for so long counts as hanging. Choose several seconds: this is short for an example.
const SILENT: Duration = Duration::from_millis(300);
/// How long the standby waits for that.
const LONG: Duration = Duration::from_secs(20);

fn main() -> Result<(), Box<dyn Error>> {
    let root = tempfile::tempdir()?;
    let target = Service::start(root.path(), &["tcp://127.0.0.1:0".parse()?], ServiceOptions::default())?;
    let options =
        Pool::options().replica(format!("{}/orders", target.addresses()[0])).require(Durability::ProcessCrash);

    let first = options.create(4096)?;
    first.persist(0, b"by the first ")?;
    println!("an opening as usual: {}", pmof::causes(&options.open().expect_err("one writer at a time")));

    // The first writer hangs from here on. The standby waits until it has been silent for long enough.
    let standby = options.take_over(SILENT).open_waiting(LONG)?;
    let mut bytes = [0; 12];
    standby.read(0, &mut bytes)?;
    println!("the standby has it, and reads: {}", String::from_utf8_lossy(&bytes));
    standby.persist(64, b"by the standby")?;

    // The first writer wakes up. It is fenced: nothing of this reaches the pool.
    let error = first.persist(64, b"too late      ").expect_err("it is fenced");
    assert!(error.is_fenced());
    println!("the first one: {}", pmof::causes(&error));
    let mut bytes = [0; 14];
    standby.read(64, &mut bytes)?;
    println!("the pool: {}", String::from_utf8_lossy(&bytes));
    Ok(standby.close()?)
}
