//! A client job: connects, and keeps the connection busy.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use pmof::{Method, Waiting};
use pmof_access::Transport;

use super::{
    options::{IoEngine, Job},
    result::JobResult,
};
use crate::bench::{
    engine::{
        Engine as _,
        access::{AccessEngine, Reach},
    },
    pattern::{Pattern, Shape},
    runner::{Extent, Pace, drive},
};

/// How long a client tries to connect: its server may have been started in the same breath.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
const CONNECT_PAUSE: Duration = Duration::from_millis(50);

pub(super) fn run(job: &Job, address: &str, index: u16, transport: Transport) -> Result<JobResult> {
    let to: pmof_access::Address = address.parse()?;
    let method = match (job.engine, transport) {
        (IoEngine::GpspmClient, _) => Some(Method::SendAfterWrite),
        (_, Transport::Verbs) if job.read_percent < 100 => Some(Method::ReadAfterWrite),
        _ => None,
    };
    let reach = Reach { to, source: None, method, level: None, waiting: Some(Waiting::BusyPoll) };
    let each = job.writes_per_flush();
    let shape = Shape {
        size_bytes: job.block_bytes,
        start: 0,
        len_bytes: job.size_bytes.unwrap_or(u64::MAX),
        random: job.random,
        read_percent: job.read_percent,
        batch: each,
    };
    let mut engine = connect(&reach, shape, job.slots()).with_context(|| format!("connecting to {address}"))?;
    let workspace = engine.workspace_bytes();
    ensure!(
        job.block_bytes <= workspace,
        "blocks of {} bytes do not fit into the {workspace} bytes of the server's memory",
        job.block_bytes
    );
    let shape = Shape { len_bytes: shape.len_bytes.min(workspace), ..shape };
    let mut pattern = Pattern::new(shape, job.seed + u64::from(index));
    if !job.ramp.is_zero() {
        let extent = Extent { operations: u64::MAX, time: job.ramp };
        drive(&mut engine, &mut pattern, extent, Pace::Closed)?;
    }
    let tally = drive(&mut engine, &mut pattern, extent(job, &shape), Pace::Closed)?;
    Ok(JobResult { tally, writes_each: each.into(), ramp: job.ramp, reached: engine.reached(), count: 1 })
}

/// A job that is not timed moves its size once.
fn extent(job: &Job, shape: &Shape) -> Extent {
    let blocks = job.io_bytes.unwrap_or(shape.len_bytes) / job.block_bytes;
    let blocks = job.operations.map_or(blocks, |operations| operations.min(blocks.max(1)));
    let each = u64::from(job.writes_per_flush());
    let operations = if job.is_timed { u64::MAX } else { blocks.div_ceil(each).max(1) };
    Extent { operations, time: job.run.unwrap_or(Duration::MAX) }
}

fn connect(reach: &Reach, shape: Shape, depth: usize) -> Result<AccessEngine> {
    let start = Instant::now();
    loop {
        match AccessEngine::open_published(reach, shape, depth) {
            Err(_) if start.elapsed() < CONNECT_LIMIT => thread::sleep(CONNECT_PAUSE),
            opened => return opened,
        }
    }
}
