//! What is compared: pools or connections, and the floor of their transport.

use std::time::Duration;

use anyhow::{Context as _, Result};
use pmof::{Acknowledge, Method, Pool};
use pmof_access::{FabricProvider, Transport};

use super::{Layer, Mode, Workload};
use crate::bench::{
    engine::{
        Engine,
        access::{AccessEngine, Reach},
        floor::{ExchangeFloor, MemoryFloor, StreamFloor},
        pool::PoolEngine,
    },
    fabric::{self, FabricFloor},
    floor::{FILE_BYTES, FloorClient, FloorMode},
    local::LocalFloor,
    pattern::{Kind, Pattern},
    peers::{Client, FioPair, Peer, Running},
    rds::{RdsFloor, RdsWork},
    stage::{Contender, Helper, Medium, POOL_BYTES, Server, Stage, socket_address, warm},
    verbs::{VerbsFloor, VerbsWork},
};

/// What the floor answers to an exchange, and to a request of a stream: enough to say that the bytes came.
const EXCHANGE_REPLY_BYTES: u32 = 8;
const STREAM_REPLY_BYTES: u32 = 64;

/// What the floor of a read asks with: as much as a request of pmof.
const READ_REQUEST_BYTES: u32 = 64;

/// A thread's engine, and what it does with it.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) engine: Box<dyn Engine>,
    pub(super) pattern: Pattern,
}

/// The threads of a contender, or the programs.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) workers: Vec<Worker>,
    /// What makes the operations where this process does not.
    pub(super) programs: Option<FioPair>,
    /// Pools to be removed at the end, if they lie on a device.
    pub(super) urls: Vec<String>,
    /// The processes that work for the initiator.
    pub(super) servers: Vec<u32>,
}

impl Workload<'_> {
    /// Why there is no floor to compare with, if so.
    pub(super) fn no_floor(&self, stage: &Stage) -> Option<&'static str> {
        match self.read_percent {
            1..=99 => Some("reads and writes have floors of their own: measure them in runs of their own"),
            _ if self.fabric_provider().is_some() && (self.args.medium == Medium::File || !self.is_polling()) => {
                Some("the bare program of libfabric spins, and has no files")
            }
            _ if self.is_rds() && self.args.medium == Medium::File => Some("the bare program of RDS has no files"),
            _ if self.is_verbs() && self.args.medium == Medium::File => {
                Some("the bare program of verbs has no files: a device cannot reach the page cache")
            }
            _ => stage.no_floor(),
        }
    }

    /// The bare work of this transport, unless there is none. `method`: how pmof flushes, if that is known.
    pub(super) fn floor(&self, stage: &Stage, method: Option<Method>) -> Result<Option<Contender<Side>>> {
        if self.no_floor(stage).is_some() {
            return Ok(None);
        }
        if self.args.stage.reach.transport == Transport::Shm {
            return self.memory_floor(stage).map(Some);
        }
        if let Some(provider) = self.fabric_provider() {
            return self.fabric_floor(stage, provider).map(Some);
        }
        if self.is_rds() {
            return self.rds_floor(stage).map(Some);
        }
        if self.is_verbs() {
            return self.verbs_floor(stage, method.unwrap_or(Method::ReadAfterWrite)).map(Some);
        }
        let server = if self.is_pinned() { stage.floor_server()? } else { Helper::floor_server_anywhere(FILE_BYTES)? };
        let process = server.process_id();
        let mut address = *server.addresses().first().context("the floor server has no address")?;
        let mut servers = vec![Server::Helper(server)];
        if self.args.delay_us > 0 {
            let relay = stage.relay(address, 1, self.args.delay_us)?;
            address = *relay.addresses().first().context("the relay has no address")?;
            servers.push(Server::Helper(relay));
        }
        let depth = self.depth as usize * usize::from(self.lines());
        let connect = |index: u16| -> Result<Box<dyn Engine>> {
            let mode = match (self.args.medium, self.batch, self.read_percent) {
                (Medium::File, 1.., 0) if self.mode != Mode::Visible => {
                    FloorMode::FileSync(stage.file(&format!("floor-{index}")))
                }
                _ if depth > 1 => FloorMode::Stream,
                _ => FloorMode::Ack,
            };
            let bytes = u32::try_from(self.operation_bytes())?;
            let (request, reply) = match (self.read_percent, depth) {
                (100, _) => (READ_REQUEST_BYTES, bytes),
                (_, 1) => (bytes, EXCHANGE_REPLY_BYTES),
                _ => (bytes, STREAM_REPLY_BYTES),
            };
            let client = FloorClient::connect(address, &mode, request, reply, self.floor_polls())
                .context("connecting to the floor server")?;
            Ok(if depth > 1 { Box::new(StreamFloor::new(client, depth)) } else { Box::new(ExchangeFloor::new(client)) })
        };
        let engines = (0..self.args.threads).map(connect).collect::<Result<Vec<_>>>()?;
        self.add_load(stage, &mut servers)?;
        Contender::new(self.side(engines, Vec::new(), vec![process]), servers).map(Some)
    }

    /// The provider of libfabric that has a floor.
    fn fabric_provider(&self) -> Option<FabricProvider> {
        match self.args.stage.reach.transport {
            Transport::Fabric(provider) => fabric::FLOORS.contains(&provider).then_some(provider),
            _ => None,
        }
    }

    fn is_polling(&self) -> bool {
        self.is_pinned() && self.initiator_waiting() == Some(pmof::Waiting::BusyPoll)
    }

    fn fabric_floor(&self, stage: &Stage, provider: FabricProvider) -> Result<Contender<Side>> {
        let server = stage.fabric_floor_server(provider)?;
        let process = server.process_id();
        let address = *server.addresses().first().context("the floor server has no address")?;
        let mut servers = vec![Server::Helper(server)];
        let depth = self.depth as usize * usize::from(self.lines());
        let connect = |_| -> Result<Box<dyn Engine>> {
            let floor = FabricFloor::connect(address, provider, self.size_bytes, depth, self.batch)
                .context("connecting to the floor server")?;
            Ok(Box::new(floor))
        };
        let engines = (0..self.args.threads).map(connect).collect::<Result<Vec<_>>>()?;
        self.add_load(stage, &mut servers)?;
        Contender::new(self.side(engines, Vec::new(), vec![process]), servers)
    }

    pub(super) fn is_verbs(&self) -> bool {
        self.args.stage.reach.transport == Transport::Verbs
    }

    fn verbs_floor(&self, stage: &Stage, method: Method) -> Result<Contender<Side>> {
        let server = stage.verbs_floor_server()?;
        let process = server.process_id();
        let address = *server.addresses().first().context("the floor server has no address")?;
        let mut servers = vec![Server::Helper(server)];
        let work = VerbsWork {
            size_bytes: self.size_bytes,
            depth: self.depth as usize * usize::from(self.lines()),
            batch: self.batch,
            method,
            polling: self.floor_polls(),
        };
        let connect = |_| -> Result<Box<dyn Engine>> {
            let floor = VerbsFloor::connect(address, self.args.stage.reach.source, work)
                .context("connecting to the floor server")?;
            Ok(Box::new(floor))
        };
        let engines = (0..self.args.threads).map(connect).collect::<Result<Vec<_>>>()?;
        self.add_load(stage, &mut servers)?;
        Contender::new(self.side(engines, Vec::new(), vec![process]), servers)
    }

    fn is_rds(&self) -> bool {
        self.args.stage.reach.transport == Transport::Rds
    }

    fn rds_floor(&self, stage: &Stage) -> Result<Contender<Side>> {
        let server = stage.rds_floor_server()?;
        let process = server.process_id();
        let address = *server.addresses().first().context("the floor server has no address")?;
        let mut servers = vec![Server::Helper(server)];
        let work = RdsWork {
            kind: if self.read_percent == 100 { Kind::Read } else { Kind::Write },
            len_bytes: usize::try_from(self.operation_bytes())?,
            depth: self.depth as usize * usize::from(self.lines()),
            polling: self.floor_polls(),
        };
        let connect = |_| -> Result<Box<dyn Engine>> {
            let floor = RdsFloor::connect(address, self.args.stage.reach.source, work)
                .context("connecting to the floor server")?;
            Ok(Box::new(floor))
        };
        let engines = (0..self.args.threads).map(connect).collect::<Result<Vec<_>>>()?;
        self.add_load(stage, &mut servers)?;
        Contender::new(self.side(engines, Vec::new(), vec![process]), servers)
    }

    fn memory_floor(&self, stage: &Stage) -> Result<Contender<Side>> {
        let depth = self.depth as usize * usize::from(self.lines());
        let make = |index: u16| -> Result<Box<dyn Engine>> {
            let (path, size_bytes) = (stage.file(&format!("floor-{index}")), self.size_bytes as usize);
            let floor = LocalFloor::new(&path, self.args.medium, size_bytes, self.span_bytes())?;
            Ok(Box::new(MemoryFloor::new(floor, depth, self.batch > 0)))
        };
        let engines = (0..self.args.threads).map(make).collect::<Result<Vec<_>>>()?;
        Contender::new(self.side(engines, Vec::new(), Vec::new()), Vec::new())
    }

    /// Pools of so many replicas, with a target and relays of their own; the last replica is later by `slow_us`.
    pub(super) fn pools(&self, stage: &Stage, replicas: u16, slow_us: u64) -> Result<Contender<Side>> {
        let name = format!("replicas-{replicas}-{slow_us}");
        let target = if self.is_pinned() {
            stage.target(&name, "bench-0", self.target_polls())?
        } else {
            stage.target_anywhere(&name, "bench-0")?
        };
        let process = target.process_id();
        let mut addresses = vec![target.address().to_owned(); usize::from(replicas)];
        let mut servers = Vec::new();
        if self.args.delay_us > 0 {
            let relay = stage.relay(socket_address(target.address())?, addresses.len(), self.args.delay_us)?;
            addresses = relay.addresses().iter().map(|address| format!("tcp://{address}")).collect();
            servers.push(Server::Helper(relay));
        }
        if let (true, Some(last)) = (slow_us > 0, addresses.last_mut()) {
            let relay = stage.relay(socket_address(target.address())?, 1, self.args.delay_us + slow_us)?;
            *last = format!("tcp://{}", relay.addresses().first().context("the relay has no address")?);
            servers.push(Server::Helper(relay));
        }
        servers.push(Server::Target(target));
        let (mut urls, mut engines) = (Vec::new(), Vec::new());
        for thread in 0..self.args.threads {
            engines.push(self.engine(stage, thread, &addresses, &mut urls)?);
        }
        self.add_load(stage, &mut servers)?;
        Contender::new(self.side(engines, urls, vec![process]), servers)
    }

    /// A peer that was started, and the version of its server.
    pub(super) fn peer(&self, stage: &Stage, peer: Peer) -> Result<(Contender<Side>, String)> {
        if peer == Peer::Pmof3 {
            return Ok((self.pools(stage, 3, 0)?, String::new()));
        }
        let Running { client, mut servers, version } = peer.start(stage, self.size_bytes, self.spin())?;
        let processes = servers.iter().map(Server::process_id).collect();
        self.add_load(stage, &mut servers)?;
        let side = match client {
            Client::Engine(engine) => self.side(vec![engine], Vec::new(), processes),
            Client::Programs(programs) => {
                Side { programs: Some(programs), ..self.side(Vec::new(), Vec::new(), processes) }
            }
        };
        Ok((Contender::new(side, servers)?, version))
    }

    /// Makes the pools of one thread, one for each connection, and what works on them; adds their URLs.
    fn engine(
        &self,
        stage: &Stage,
        thread: u16,
        addresses: &[String],
        urls: &mut Vec<String>,
    ) -> Result<Box<dyn Engine>> {
        let lines = usize::from(self.lines());
        let first = usize::from(thread) * lines * addresses.len();
        let name = |line: usize, replica: usize| format!("bench-{}", first + line * addresses.len() + replica);
        let mut pools = Vec::with_capacity(lines);
        for line in 0..lines {
            let url = |(replica, address): (usize, &String)| stage.pool_url(address, &name(line, replica));
            let replicas: Vec<String> = addresses.iter().enumerate().map(url).collect();
            pools.push(self.pool(stage, &replicas)?);
            urls.extend(replicas);
        }
        let depth = self.depth as usize;
        if self.layer == Layer::Pool {
            return Ok(Box::new(PoolEngine::new(pools, self.shape(), depth)));
        }
        pools.iter().try_for_each(Pool::close)?;
        let reach = Reach {
            to: addresses.first().context("the target has no address")?.parse()?,
            source: self.args.stage.reach.source,
            method: self.method(),
            level: Some(self.level(stage)),
            waiting: self.initiator_waiting(),
        };
        let pools: Vec<String> = (0..lines).map(|line| name(line, 0)).collect();
        Ok(Box::new(AccessEngine::open_pools(&reach, &pools, self.shape(), depth)?))
    }

    fn pool(&self, stage: &Stage, urls: &[String]) -> Result<Pool> {
        let mut options = stage.pool_options(urls.to_vec(), self.initiator_waiting()).require(self.level(stage));
        if let Some(method) = self.method() {
            options = options.method(method);
        }
        if let Some(least) = self.args.at_least {
            options = options.acknowledge(Acknowledge::AtLeast(usize::from(least).min(urls.len())));
        }
        if self.args.slow_us > 0 && urls.len() > 1 {
            // With a slow replica, the others are enough.
            let slow_after = Duration::from_micros(self.args.slow_after_us);
            options = options.acknowledge(Acknowledge::AtLeast(urls.len() - 1)).slow_after(slow_after);
        }
        let pool = options.create(POOL_BYTES).context("making the pool")?;
        warm(&pool)?;
        Ok(pool)
    }

    fn side(&self, engines: Vec<Box<dyn Engine>>, urls: Vec<String>, servers: Vec<u32>) -> Side {
        let pattern = |seed| Pattern::new(self.shape(), seed);
        let workers = engines.into_iter().zip(1..).map(|(engine, seed)| Worker { engine, pattern: pattern(seed) });
        Side { workers: workers.collect(), programs: None, urls, servers }
    }

    fn add_load(&self, stage: &Stage, servers: &mut Vec<Server>) -> Result<()> {
        if self.args.target_load > 0 {
            servers.push(Server::Helper(stage.load(self.args.target_load)?));
        }
        Ok(())
    }
}

impl Side {
    /// Gives the pools back, and the device that they lie on.
    pub(super) fn finish(self, stage: &Stage) -> Result<()> {
        drop(self.workers);
        stage.clean_up(&self.urls)
    }
}
