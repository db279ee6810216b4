//! Loads over lanes: of a remote pool, and of a pool set.

use std::{sync::Arc, thread, time::Instant};

use anyhow::{Context as _, Result, anyhow};
use pmof::{
    Atomicity, Differing, OpenFor, RemotePool, SetPool, SetPoolOptions,
    mem::Medium as _,
    pool_set::{Attributes, NewPool, NewSet, PoolSet},
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
    let options = args.common.remote_options();
    let pool = if args.common.create {
        let attributes =
            Attributes { signature: *b"PMEMOBJ\0", major: 6, incompat: 2, poolset_uuid: [7; 16], ..blank() };
        RemotePool::create(&args.target, &args.set, POOL_BYTES, Some(&attributes), &options)
    } else {
        RemotePool::open(&args.target, &args.set, 0, OpenFor::Write, &options).map(|(pool, _)| pool)
    };
    let pool = pool.context("opening the remote pool")?;
    each_lane(&args.common, REMOTE_BASE, |lane, begin, writes| {
        for write in writes {
            pool.flush_bytes(lane, begin + write.offset, &write.bytes, Atomicity::Words)?;
        }
        Ok(pool.drain(lane)?)
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
    let set = PoolSet::read(&args.set)?;
    let pool = open(&set, &args.common)?;
    let memory = pool.memory();
    each_lane(&args.common, SET_BASE, |lane, begin, writes| {
        for write in writes {
            memory.store(begin + write.offset, &write.bytes)?;
            pool.flush(lane, begin + write.offset, write.bytes.len() as u64, Atomicity::Words)?;
        }
        if args.skip_drain { Ok(()) } else { Ok(pool.drain(lane)?) }
    })?;
    Ok(pool.close()?)
}

fn open(set: &PoolSet, common: &Common) -> Result<SetPool> {
    let options =
        SetPoolOptions { remote: common.remote_options(), differing: Differing::Copy, ..SetPoolOptions::default() };
    let pool = if common.create {
        SetPool::create(set, &NewSet::new(NewPool::Obj { layout: "cut".to_owned() }), &options)
    } else {
        SetPool::open(set, &options)
    };
    pool.context("opening the pool of the set")
}

/// Runs the streams of all lanes, each in a thread of its own; the first failure ends the load.
fn each_lane(common: &Common, base: u64, persist: impl Fn(u32, u64, &[Write]) -> Result<()> + Sync) -> Result<()> {
    let ledger = Arc::new(Ledger::open(&common.ledger)?);
    let deadline: Option<Instant> = common.deadline();
    thread::scope(|scope| {
        let start = |lane| {
            let (ledger, persist) = (&ledger, &persist);
            scope.spawn(move || {
                let begin = base + u64::from(lane) * AREA_BYTES;
                let batches = Batches::new(common.seed, lane, AREA_BYTES);
                stream(ledger, lane, batches, deadline, |writes| persist(lane, begin, writes))
            })
        };
        let threads: Vec<_> = (0..LANES).map(start).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a lane's thread panicked"))?)
    })
}
