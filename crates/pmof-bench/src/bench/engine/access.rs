//! Connections of the access layer: what lies below pools, with one method of flush.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use pmof::{Durability, Flushed, Method, Waiting};
use pmof_access::{
    Access, Address, Completion, CompletionQueue, Connection, Outcome, Peer, QueueOptions, Region, RemoteRegion,
    Signal, Traffic,
};
use pmof_control::{MAX_MESSAGE_BYTES, MessageHead, OpenFor, PoolName, Reply, Request, SpokenVersions};

use super::{Engine, Reached};
use crate::bench::pattern::{Kind, Post, Shape};

/// Longest wait for one answer: far beyond a healthy one, short enough to end a run that hangs.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// How an engine connects.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    pub(crate) to: Address,
    pub(crate) source: Option<std::net::IpAddr>,
    /// `None`: the cheapest that reaches the level.
    pub(crate) method: Option<Method>,
    /// `None`: the strongest that the memory can give.
    pub(crate) level: Option<Durability>,
    /// `None`: as programs do by default.
    pub(crate) waiting: Option<Waiting>,
}

/// Operations on connections, which take turns.
#[derive(Debug)]
pub(crate) struct AccessEngine {
    lines: Vec<Line>,
    queue: CompletionQueue,
    /// A place for the data of each slot.
    local: Region,
    depth: usize,
    shape: Shape,
    level: Durability,
    reached: Option<Flushed>,
}

/// A connection and the memory behind it.
#[derive(Debug)]
struct Line {
    peer: Peer,
    connection: Connection,
    remote: RemoteRegion,
    /// The pool is given back at the end.
    has_pool: bool,
}

impl AccessEngine {
    /// Opens the pools of these names, each on a connection of its own, with `depth` operations in flight on each.
    pub(crate) fn open_pools(reach: &Reach, pools: &[String], shape: Shape, depth: usize) -> Result<Self> {
        let require = reach.level.unwrap_or(Durability::Visible);
        let descriptor =
            |peer: &Peer, connection: &Connection, index: usize| open_pool(peer, connection, &pools[index], require);
        Self::open(reach, pools.len(), shape, depth, true, descriptor)
    }

    /// Connects to memory whose descriptor comes with the connection.
    pub(crate) fn open_published(reach: &Reach, shape: Shape, depth: usize) -> Result<Self> {
        Self::open(reach, 1, shape, depth, false, |_, connection, _| Ok(connection.private_data().to_vec()))
    }

    /// How much memory is behind each connection.
    pub(crate) fn workspace_bytes(&self) -> u64 {
        self.lines.iter().map(|line| line.remote.len_bytes()).min().unwrap_or(0)
    }

    /// Connects `lines` times; `descriptor` gives the descriptor of the memory behind each connection.
    fn open(
        reach: &Reach,
        lines: usize,
        shape: Shape,
        depth: usize,
        has_pool: bool,
        descriptor: impl Fn(&Peer, &Connection, usize) -> Result<Vec<u8>>,
    ) -> Result<Self> {
        let peer = Peer::towards(&reach.to, reach.source)?;
        let waiting = reach.waiting.unwrap_or(QueueOptions::default().waiting);
        let queue = peer.completion_queue(QueueOptions::default().waiting(waiting))?;
        let mut options = pmof_console::trust::connect_options().source(reach.source).method(reach.method);
        let posted = depth as u64 * (u64::from(shape.batch) + 1);
        options.settings.send_queue = u32::try_from(posted)?.max(options.settings.send_queue);
        let connect = |index| -> Result<Line> {
            let connection = peer.connect(&reach.to, &queue, &options)?;
            let remote = connection.remote_region(&descriptor(&peer, &connection, index)?)?;
            ensure!(connection.prepare(&remote, ANSWER_LIMIT), "the target does not hand over its memory");
            if shape.read_percent < 100 {
                connection.flush_method(&remote, reach.level.unwrap_or(remote.strongest()))?;
            }
            Ok(Line { peer: peer.clone(), connection, remote, has_pool })
        };
        let opened = (0..lines).map(connect).collect::<Result<Vec<_>>>()?;
        let local_bytes = shape.size_bytes * (depth * lines) as u64;
        let local = peer.allocate(local_bytes, Access::empty())?;
        local.store(0, &vec![7; local_bytes as usize])?;
        let strongest = opened.iter().map(|line| line.remote.strongest()).min().unwrap_or(Durability::Visible);
        let level = reach.level.unwrap_or(strongest);
        Ok(Self { lines: opened, queue, local, depth, shape, level, reached: None })
    }

    fn post_on(&self, line: &Line, posts: &[Post]) -> Result<()> {
        let size_bytes = self.shape.size_bytes;
        let mut batch = line.connection.batch();
        for post in posts {
            let own = post.slot as u64 * size_bytes;
            let own = own..own + size_bytes;
            batch.context(post.slot as u64);
            if post.kind == Kind::Read {
                batch.signal(Signal::Always);
                batch.read(&line.remote, post.range(size_bytes).start, self.local.slice(own)?)?;
                continue;
            }
            batch.signal(if self.shape.batch == 0 { Signal::Always } else { Signal::OnError });
            for place in &post.places {
                batch.write(&line.remote, *place, self.local.part(own.clone())?)?;
            }
            if self.shape.batch > 0 {
                batch.signal(Signal::Always);
                batch.flush(&line.remote, post.range(size_bytes), self.level)?;
            }
        }
        batch.submit();
        Ok(())
    }

    fn take(&mut self, completion: Completion, done: &mut Vec<usize>) -> Result<()> {
        if let Outcome::Flushed(flushed) = completion.outcome.context("an operation failed")? {
            self.reached = Some(flushed);
        }
        done.push(completion.context as usize);
        Ok(())
    }
}

impl Engine for AccessEngine {
    fn depth(&self) -> usize {
        self.depth * self.lines.len()
    }

    fn post(&mut self, posts: &[Post]) -> Result<()> {
        // One doorbell a connection.
        for posts in posts.chunk_by(|one, next| one.slot / self.depth == next.slot / self.depth) {
            let line = posts.first().map_or(0, |post| post.slot / self.depth);
            self.post_on(&self.lines[line], posts)?;
        }
        Ok(())
    }

    fn collect(&mut self, until: Option<Instant>, done: &mut Vec<usize>) -> Result<()> {
        let limit = until.map_or(ANSWER_LIMIT, |until| until.saturating_duration_since(Instant::now()));
        match self.queue.wait(limit) {
            Some(completion) => self.take(completion, done)?,
            None if until.is_some() => return Ok(()),
            None => bail!("the target has not answered for {} s: see whether it still runs", ANSWER_LIMIT.as_secs()),
        }
        while let Some(completion) = self.queue.poll() {
            self.take(completion, done)?;
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        if self.shape.batch == 0 && self.shape.read_percent < 100 {
            for line in &self.lines {
                let ticket = line.connection.flush(&line.remote, .., self.level)?;
                let done = self.queue.wait_for(line.connection.id(), ticket, ANSWER_LIMIT);
                let outcome = done.context("the target does not answer the flush")?.outcome?;
                let Outcome::Flushed(flushed) = outcome else { bail!("a flush was answered by {outcome:?}") };
                self.reached = Some(flushed);
            }
        }
        Ok(())
    }

    fn moved(&self) -> Option<[u64; 2]> {
        let mut traffic = Traffic::default();
        self.lines.iter().for_each(|line| traffic.add(&line.connection.traffic()));
        Some([traffic.out_bytes(), traffic.in_bytes()])
    }

    fn reached(&self) -> Option<Reached> {
        self.reached.map(Reached::Connection)
    }
}

impl Drop for AccessEngine {
    fn drop(&mut self) {
        for line in self.lines.iter().filter(|line| line.has_pool) {
            // A target that is gone already has nothing to be told.
            let _ = ask(&line.peer, &line.connection, &Request::Close { in_order: true });
        }
    }
}

/// Opens a pool on a connection of the access layer; gives its descriptor.
fn open_pool(peer: &Peer, connection: &Connection, name: &str, require: Durability) -> Result<Vec<u8>> {
    let request = Request::Open { name: PoolName::new(name)?, access: OpenFor::Write, require, may_be_older: false };
    match ask(peer, connection, &request)? {
        Reply::Opened { descriptor, .. } => Ok(descriptor),
        other => bail!("the target did not open the pool: {other:?}"),
    }
}

fn ask(peer: &Peer, connection: &Connection, request: &Request) -> Result<Reply> {
    let answer = peer.allocate(MAX_MESSAGE_BYTES as u64, Access::empty())?;
    let ticket = connection.receive(answer.slice(..)?, 0)?;
    let version = SpokenVersions::decode(connection.private_data())?.common()?;
    connection.batch().signal(Signal::OnError).send(&request.encode(MessageHead { version, request_id: 1 })?)?;
    let done = connection.queue().wait_for(connection.id(), ticket, ANSWER_LIMIT);
    let outcome = done.context("the target does not answer")?.outcome?;
    let Outcome::Received { len_bytes, .. } = outcome else { bail!("a receive gave {outcome:?}") };
    let mut message = vec![0; len_bytes as usize];
    answer.read(0, &mut message)?;
    Ok(Reply::decode(&message)?.1)
}
