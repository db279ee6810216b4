//! A server job: memory for one connection, until that ends.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use pmof::Waiting;
use pmof_access::{
    AcceptOptions, Access, Address, Connection, DeviceChoice, ListenOptions, Listener, Location, Peer, QueueOptions,
    Region, Transport, VerbsOptions,
};
use pmof_mem::{Medium as _, Memory};

use super::{options::Job, result::JobResult};
use crate::bench::runner::Tally;

/// How long one look for a client or an end lasts.
const LOOK: Duration = Duration::from_millis(200);

/// A job whose client may come.
#[derive(Debug)]
pub(super) struct Listening {
    peer: Peer,
    region: Region,
    listener: Listener,
}

/// Whether the memory of all clones lies in the job's file.
pub(super) fn check(job: &Job) -> Result<()> {
    let (file, size) = (job.file.as_deref().unwrap_or_default(), job.size_bytes.unwrap_or_default());
    if file == "malloc" {
        return Ok(());
    }
    let has_bytes = Memory::open(Path::new(file), None).with_context(|| format!("filename={file}"))?.len_bytes();
    let wanted_bytes = size.saturating_mul(job.count.into());
    ensure!(
        wanted_bytes <= has_bytes,
        "[{}]: {} times size={size} is more than the {has_bytes} bytes of filename={file}: lower size or numjobs, or name a longer file",
        job.name,
        job.count
    );
    Ok(())
}

pub(super) fn listen(
    job: &Job,
    address: &str,
    index: u16,
    transport: Transport,
    trust_network: bool,
) -> Result<Listening> {
    let address: Address = address.parse()?;
    let place = address.resolve().context("finding serverip")?.into_iter().next().context("serverip has no address")?;
    let peer = peer(job, transport, &place)?;
    let region = memory(job, &peer, index)?;
    let listener = peer.listen(place, ListenOptions::default().trust_network(trust_network))?;
    Ok(Listening { peer, region, listener })
}

impl Listening {
    /// Serves one client to its end; `None` where there was none when another job had failed.
    pub(super) fn serve(self, job: &Job, has_failed: &AtomicBool) -> Result<Option<JobResult>> {
        let Self { peer, region, listener } = self;
        let request = loop {
            if let Some(request) = listener.next_request(LOOK)? {
                break request;
            }
            if has_failed.load(Ordering::Relaxed) {
                return Ok(None);
            }
        };
        drop(listener);
        let waiting = if job.polling { Waiting::BusyPoll } else { QueueOptions::default().waiting };
        let queue = peer.completion_queue(QueueOptions::default().waiting(waiting))?;
        let options = AcceptOptions::default().private_data(region.descriptor().to_vec());
        let connection: Connection = request.accept(&queue, &options)?;
        let begin = Instant::now();
        while connection.ended().is_none() {
            queue.wait_unless(LOOK, || connection.is_drained());
        }
        let tally = Tally { elapsed: begin.elapsed(), ..Tally::default() };
        Ok(Some(JobResult { tally, count: 1, writes_each: 1, ..Default::default() }))
    }
}

/// Of an RDMA device, `direct_write_to_pmem` declares that inbound writes reach the persistence domain by themselves.
fn peer(job: &Job, transport: Transport, place: &Location) -> Result<Peer> {
    match place.socket_address() {
        Some(local) if transport == Transport::Verbs => {
            let device = DeviceChoice::Local(local.ip());
            let options = VerbsOptions::default().device(device).inbound_declared(job.direct_write);
            Ok(Peer::open_verbs(&options)?)
        }
        Some(local) => Ok(Peer::open_at(transport, local.ip())?),
        None => Ok(Peer::open(transport)?),
    }
}

/// The part of the job's memory that belongs to the connection of this number.
fn memory(job: &Job, peer: &Peer, index: u16) -> Result<Region> {
    let access = Access::READ | Access::WRITE | Access::FLUSH_VISIBLE | Access::FLUSH_PERSISTENT;
    let (file, size) = (job.file.as_deref().unwrap_or_default(), job.size_bytes.unwrap_or_default());
    if file == "malloc" {
        return peer.allocate(size, access - Access::FLUSH_PERSISTENT).context("allocating memory");
    }
    let memory = Memory::open(Path::new(file), None).with_context(|| format!("filename={file}"))?;
    let region = peer.register(Arc::new(memory), u64::from(index) * size, size, access);
    region.with_context(|| format!("{size} bytes at {} of {file}", u64::from(index) * size))
}
