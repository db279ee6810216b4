//! The initiator.

use std::{
    net::{IpAddr, SocketAddr},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use instruction_counter::mark;
use pmof_access::{
    Access, CompletionQueue, ConnectOptions, Connection, DeviceChoice, Durability, Method, Outcome, Peer, QueueOptions,
    Region, RegionSlice, RemoteRegion, Signal, Source, VerbsOptions, Waiting,
};

use crate::{Mode, Plan};

/// Writes of up to this many bytes are passed as bytes and sent inline; longer ones use registered memory.
const INLINE_BYTES: u32 = 64;

/// Time for a batch and for a connection.
const LONG: Duration = Duration::from_secs(60);

struct Client<'p> {
    plan: &'p Plan,
    queue: CompletionQueue,
    connection: Connection,
    remote: RemoteRegion,
    level: Durability,
    bytes: Vec<u8>,
    slice: RegionSlice,
    memory: Region,
}

pub(crate) fn run(source: IpAddr, target: SocketAddr, plan: &Plan) -> Result<ExitCode> {
    let client = Client::connect(source, target, plan)?;
    // No page of it is new while the clock runs.
    let mut batch_ns = vec![1_u64; usize::try_from(plan.count)?];
    for _ in 0..plan.warmup {
        client.write_flush()?;
    }
    mark!(1);
    let start = Instant::now();
    let mut before = start;
    for each in &mut batch_ns {
        client.write_flush()?;
        let after = Instant::now();
        *each = (after - before).as_nanos() as u64;
        before = after;
    }
    mark!(2);
    batch_ns.sort_unstable();
    println!(
        "op=write-flush size={} batch={} count={} mode={} inline={} placement={} p50_ns={} p99_ns={} total_ns={}",
        plan.size,
        plan.batch,
        plan.count,
        if plan.mode == Mode::Event { "event" } else { "poll" },
        u8::from(plan.size <= INLINE_BYTES),
        if client.level == Durability::PowerFailure { "persistent" } else { "global" },
        batch_ns[(batch_ns.len() - 1) / 2],
        batch_ns[(batch_ns.len() - 1) * 99 / 100],
        (before - start).as_nanos()
    );
    client.check_bytes()?;
    Ok(ExitCode::SUCCESS)
}

impl<'p> Client<'p> {
    fn connect(source: IpAddr, target: SocketAddr, plan: &'p Plan) -> Result<Self> {
        let options = VerbsOptions::default().device(DeviceChoice::Local(source));
        let peer = Peer::open_verbs(&options)?;
        let waiting = match plan.mode {
            Mode::Event => Waiting::Adaptive { spin: Duration::ZERO },
            Mode::Poll => Waiting::BusyPoll,
        };
        let queue = peer.completion_queue(QueueOptions::default().waiting(waiting))?;
        let mut options = ConnectOptions::default().source(Some(source));
        options.settings.send_queue = options.settings.send_queue.max(plan.batch + 1);
        let connection = peer.start_connect(target, &queue, &options)?.finish()?;
        let remote = connection.remote_region(connection.private_data())?;
        // Without the medium's own promise, as of dram, a flush is for the target's CPU to see.
        let level = remote.promise(Durability::PowerFailure).map_or(Durability::Visible, |_| Durability::PowerFailure);
        let (method, _) = connection.flush_method(&remote, level)?;
        ensure!(method == Method::NativeFlush, "the method would be {method}: this program compares native flushes");
        let size = u64::from(plan.size);
        ensure!(remote.len_bytes() >= size * u64::from(plan.batch), "the server offers less than a batch");
        // The bytes to write, and behind them room to read all of a batch back.
        let memory = peer.allocate(size * u64::from(plan.batch + 1), Access::empty())?;
        let bytes: Vec<u8> = (0..plan.size).map(|at| (at * 7 + plan.batch) as u8).collect();
        memory.store(0, &bytes)?;
        let slice = memory.slice(..size)?;
        Ok(Self { plan, queue, connection, remote, level, bytes, slice, memory })
    }

    fn write_flush(&self) -> Result<()> {
        let size = u64::from(self.plan.size);
        let mut batch = self.connection.batch();
        batch.signal(Signal::OnError);
        for at in 0..u64::from(self.plan.batch) {
            let source = if self.plan.size <= INLINE_BYTES {
                Source::Bytes(&self.bytes)
            } else {
                Source::Region(self.slice.clone())
            };
            batch.write(&self.remote, at * size, source)?;
        }
        batch.signal(Signal::Always).flush(&self.remote, ..size * u64::from(self.plan.batch), self.level)?;
        batch.submit();
        let done = self.queue.wait(LONG).context("no completion came")?;
        match done.outcome? {
            Outcome::Flushed(flushed) if flushed.durability == self.level => Ok(()),
            other => bail!("the flush ended as {other:?}"),
        }
    }

    /// Whether every place that was written holds the bytes.
    fn check_bytes(&self) -> Result<()> {
        let size = u64::from(self.plan.size);
        let ticket = self.connection.read(&self.remote, 0, self.memory.slice(size..)?)?;
        let done = self.queue.wait_for(self.connection.id(), ticket, LONG).context("the read did not complete")?;
        done.outcome?;
        let mut back = vec![0; self.bytes.len()];
        for at in 0..u64::from(self.plan.batch) {
            self.memory.read(size + at * size, &mut back)?;
            ensure!(back == self.bytes, "the bytes read back are not those written");
        }
        Ok(())
    }
}
