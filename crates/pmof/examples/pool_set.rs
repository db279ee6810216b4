//! The pool of a PMDK pool set, whose replicas are files of this machine and, where the set names them, of others.
//!
//! ```sh
//! printf 'PMEMPOOLSET\n9M /tmp/visits.0\nREPLICA\n9M /tmp/visits.1\n' > visits.set
//! cargo run -p pmof --example pool_set -- visits.set
//! ```
//!
//! The first run makes the pool, each further one opens it, counts a visit and prints how many there were. `pmof pool check visits.set`
//! compares the replicas.

use std::{env, error::Error, path::Path};

use pmof::{
    Pool,
    pool_set::{NewPool, NewSet, PoolSet, ReplicaSpec},
};

/// Behind what libpmemobj keeps at the beginning of a pool: its header, its lanes, and the description of its heap.
const VISITS_OFFSET: u64 = 8 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let file = env::args().nth(1).ok_or("usage: pool_set SET-FILE")?;
    let set = PoolSet::read(Path::new(&file))?;
    let is_new = set.replicas.iter().all(|replica| match replica {
        ReplicaSpec::Local(parts) => parts.iter().all(|part| !part.path.exists()),
        ReplicaSpec::Remote(_) => true,
    });
    let options = Pool::from_set(set);
    let pool = if is_new {
        options.create(&NewSet::new(NewPool::Obj { layout: "visits".to_owned() }))?
    } else {
        // Refused if the replicas differ: the format cannot tell which one is newer.
        options.open()?
    };

    let mut bytes = [0; 8];
    pool.read(VISITS_OFFSET, &mut bytes)?;
    let visits = u64::from_le_bytes(bytes) + 1;
    let mut lane = pool.lane();
    lane.atomic_write(VISITS_OFFSET, visits)?;
    println!("visit {visits}: {}", lane.persist()?);
    Ok(pool.close()?)
}
