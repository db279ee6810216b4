//! Loads over lanes: of a remote pool, and of a pool set.

use std::{sync::Arc, thread, time::Instant};

use anyhow::{Context as _, Result, anyhow};
use pmof::{
    Atomicity, Differing, Lane, Pool,
    pool_set::{Attributes, NewPool, NewSet, OpenFor, PoolSet, RemoteSetOptions},
};

use crate::{
    Common, LanesArgs, SetArgs,
    ledger::Ledger,
    pattern::{Batches, Write},
    stream,
};

/// Lanes, each with an area of its own.
const LANES: u32 = 4;

/// Bytes of a lane's area.
const AREA_BYTES: u64 = 256 << 10;

/// Where the first area of a remote pool begins: behind what PMDK's formats keep at the beginning.
const REMOTE_BASE: u64 = 1 << 20;

/// Where the first area of a pool set begins: the areas lie across the end of a first part of 4 MiB.
const SET_BASE: u64 = (4 << 20) - (512 << 10);

/// Bytes of a pool, header included.
const POOL_BYTES: u64 = 4 << 20;

pub(crate) fn lanes(args: &LanesArgs) -> Result<()> {
    let remote = RemoteSetOptions::new(args.target.clone(), args.set.clone()).target(args.common.remote_options());
    let pool = if args.common.create {
        let attributes =
            Attributes { signature: *b"PMEMOBJ\0", major: 6, incompat: 2, poolset_uuid: [7; 16], ..blank() };
        remote.create(POOL_BYTES, Some(&attributes))
    } else {
        remote.open(0, OpenFor::Write)
    };
    let pool = pool.context("opening the remote pool")?;
    each_lane(&args.common, REMOTE_BASE, &pool, |lane, begin, writes| {
        for write in writes {
            lane.write(begin + write.offset, &write.bytes)?;
        }
        lane.persist()?;
        Ok(())
    })?;
    Ok(pool.close()?)
}

fn blank() -> Attributes {
    Attributes {
        signature: [0; 8],
        major: 0,
        compat: 0,
        incompat: 0,
        ro_compat: 0,
        poolset_uuid: [0; 16],
        uuid: [1; 16],
        next_uuid: [1; 16],
        prev_uuid: [1; 16],
        user_flags: [0; 16],
    }
}

pub(crate) fn set(args: &SetArgs) -> Result<()> {
    let pool = open(PoolSet::read(&args.set)?, &args.common)?;
    let memory = pool.mirror().context("the pool of a set has a mirror")?;
    each_lane(&args.common, SET_BASE, &pool, |lane, begin, writes| {
        for write in writes {
            let offset = begin + write.offset;
            memory.store(offset, &write.bytes)?;
            lane.write_range(offset..offset + write.bytes.len() as u64)?;
        }
        if !args.skip_drain {
            lane.persist()?;
        }
        Ok(())
    })?;
    Ok(pool.close()?)
}

fn open(set: PoolSet, common: &Common) -> Result<Pool> {
    let set = Pool::from_set(set).target(common.remote_options()).differing(Differing::Copy);
    let pool =
        if common.create { set.create(&NewSet::new(NewPool::Obj { layout: "cut".to_owned() })) } else { set.open() };
    pool.context("opening the pool of the set")
}

/// Runs the streams of all lanes, each in a thread of its own; the first failure ends the load.
fn each_lane(
    common: &Common,
    base: u64,
    pool: &Pool,
    persist: impl Fn(&mut Lane, u64, &[Write]) -> Result<()> + Sync,
) -> Result<()> {
    let ledger = Arc::new(Ledger::open(&common.ledger)?);
    let deadline: Option<Instant> = common.deadline();
    thread::scope(|scope| {
        let start = |lane| {
            let (ledger, persist) = (&ledger, &persist);
            scope.spawn(move || {
                let begin = base + u64::from(lane) * AREA_BYTES;
                let batches = Batches::new(common.seed, lane, AREA_BYTES);
                let mut of_pool = pool.lane();
                of_pool.set_atomicity(Atomicity::Words);
                stream(ledger, lane, batches, deadline, |writes| persist(&mut of_pool, begin, writes))
            })
        };
        let threads: Vec<_> = (0..LANES).map(start).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a lane's thread panicked"))?)
    })
}
