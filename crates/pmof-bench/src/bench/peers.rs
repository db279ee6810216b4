//! Peers: what users have instead of pmof, measured with the same bytes in the same rounds.
//!
//! Their servers are children on the servers' CPU, in the measured medium's directory, and are stopped while others are measured. Each
//! client is one connection that stays open and waits as pmof's initiator does; a put is over when the bytes have the durability that is stated.

use std::{
    fs,
    net::SocketAddr,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use pmof::Durability;
use pmof_access::Transport;
use pmof_console::{interrupt::TemporaryDirectory, reach::ReachArgs};

use super::{
    engine::Engine,
    floor::FloorFile,
    pattern::Post,
    stage::{Medium, POOL_BYTES, Server, Stage},
};
use etcd::EtcdClient;
pub(super) use fio::FioPair;
use http2::Http2;
use nbd::{NbdClient, NbdSync};
use put::Put;
use redis::RedisClient;
use server::{PeerServer, find, free_addresses, version, with_free_ports};
use stream::PeerStream;

mod etcd;
mod fio;
mod http2;
mod nbd;
mod put;
mod redis;
pub(super) mod server;
mod stream;
#[cfg(test)]
mod tests;

/// Written at once while a file is made.
const FILL_BYTES: usize = 1 << 20;

/// Replicas of Redis beside the server that is written to.
const REDIS_REPLICAS: u32 = 2;

/// What users have instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Peer {
    /// A file on this machine: pwrite and fdatasync, without another process
    File,
    /// A network block device of nbdkit over TCP: a write, then a flush
    NbdkitTcp,
    /// The same over a Unix socket
    NbdkitUnix,
    /// The same over TCP, by forced unit access: one round trip
    NbdkitFua,
    /// A network block device of qemu-nbd over TCP: a write, then a flush
    QemuTcp,
    /// The same over a Unix socket
    QemuUnix,
    /// Redis with two replicas, in memory: SET, then WAIT 2
    RedisWait,
    /// Redis with an append-only file that each SET syncs
    RedisAof,
    /// etcd of one member: put, over gRPC
    Etcd,
    /// Debian's librpma under fio's APM engine, over --transport verbs: write, then the flush of the library
    Librpma,
    /// A pool of three replicas at one target: pmof's counterpart of redis-wait
    #[value(name = "pmof-3")]
    Pmof3,
}

/// All of them.
pub(super) const PEER_NAMES: [&str; 11] = [
    "file",
    "nbdkit-tcp",
    "nbdkit-unix",
    "nbdkit-fua",
    "qemu-tcp",
    "qemu-unix",
    "redis-wait",
    "redis-aof",
    "etcd",
    "librpma",
    "pmof-3",
];

/// How a peer makes bytes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Promised {
    /// What the bytes survive; `None`: as much as was asked of pmof.
    pub(super) durability: Option<Durability>,
    /// How many processes have the bytes then.
    pub(super) copies: u32,
    pub(super) method: &'static str,
    pub(super) mechanism: &'static str,
}

/// A peer that runs.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) client: Client,
    pub(super) servers: Vec<Server>,
    /// Of its server, where it has one.
    pub(super) version: String,
}

/// Who makes operations and times them.
#[derive(Debug)]
pub(super) enum Client {
    /// This process.
    Engine(Box<dyn Engine>),
    /// Programs that are started for each turn.
    Programs(FioPair),
}

impl Peer {
    pub(super) fn name(self) -> &'static str {
        PEER_NAMES[self as usize]
    }

    /// The program that serves it, and Debian's package of it.
    fn program(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::File | Self::Pmof3 => None,
            Self::Librpma => Some(("fio", "fio and librpma0")),
            Self::NbdkitTcp | Self::NbdkitUnix | Self::NbdkitFua => Some(("nbdkit", "nbdkit")),
            Self::QemuTcp | Self::QemuUnix => Some(("qemu-nbd", "qemu-utils")),
            Self::RedisWait | Self::RedisAof => Some(("redis-server", "redis-server")),
            Self::Etcd => Some(("etcd", "etcd-server")),
        }
    }

    /// Why it cannot be measured here, if so.
    pub(super) fn reason_to_skip(self, medium: Medium, reach: &ReachArgs) -> Option<String> {
        if self == Self::Librpma && reach.transport != Transport::Verbs {
            let why = "it needs an RDMA device and --transport verbs: `cargo xtask vm report` measures it beside pmof in a virtual machine";
            return Some(why.to_owned());
        }
        if self == Self::Librpma && medium == Medium::File {
            return Some("RDMA devices cannot reach the page cache: measure it with --medium tmpfs".to_owned());
        }
        if self == Self::RedisWait && medium == Medium::File {
            return Some("it keeps the bytes in memory, whatever the medium: redis-aof is the one of files".to_owned());
        }
        if medium == Medium::Kept && self != Self::Pmof3 {
            return Some("it knows no memory that is kept: measure it with --medium tmpfs".to_owned());
        }
        let (program, package) = self.program()?;
        let Some(file) = find(program) else {
            return Some(format!(
                "{program} is not installed: apt-get install {package}, or `cargo xtask peers` for all of them"
            ));
        };
        (self == Self::Librpma && !fio::has_engines(&file))
            .then(|| format!("fio {} has no engines of librpma, which 3.27 to 3.37 can be built with", version(&file)))
    }

    /// What holds for its bytes when a put is over; pmof's own pools say it themselves.
    pub(super) fn promised(self) -> Option<Promised> {
        let of = |copies, method, mechanism| Some(Promised { durability: None, copies, method, mechanism });
        match self {
            Self::File => of(1, "pwrite", "fdatasync by this process"),
            Self::NbdkitTcp | Self::NbdkitUnix => of(1, "NBD write, flush", "fdatasync by nbdkit"),
            Self::NbdkitFua => of(1, "NBD write with FUA", "fdatasync by nbdkit"),
            Self::QemuTcp | Self::QemuUnix => of(1, "NBD write, flush", "fdatasync by qemu-nbd"),
            Self::RedisWait => of(REDIS_REPLICAS + 1, "SET, WAIT 2", "memory of three servers, redis-server"),
            Self::RedisAof => of(1, "SET", "fdatasync of the append-only file by redis-server"),
            Self::Etcd => of(1, "put over gRPC", "fdatasync of the log by etcd"),
            Self::Librpma => Some(Promised {
                durability: Some(Durability::Visible),
                copies: 1,
                method: "RDMA write, rpma_flush",
                mechanism: "memory of fio's server, fio",
            }),
            Self::Pmof3 => None,
        }
    }

    /// Starts its servers, if it has any, and connects. `spin`: how long a wait spins before it sleeps.
    pub(super) fn start(self, stage: &Stage, size_bytes: u64, spin: Duration) -> Result<Running> {
        let started = Starting { peer: self, stage, size_bytes: usize::try_from(size_bytes)?, spin };
        let program = self.program().map(|(program, _)| find(program).with_context(|| format!("{program} is gone")));
        let program = program.transpose()?;
        let version = program.as_deref().map(version).unwrap_or_default();
        if let (Self::Librpma, Some(program)) = (self, &program) {
            let pair = FioPair::new(program, stage, size_bytes)?;
            return Ok(Running { client: Client::Programs(pair), servers: Vec::new(), version });
        }
        let (client, servers): (Box<dyn Put>, Vec<PeerServer>) = match (self, program.as_deref()) {
            (Self::NbdkitTcp | Self::NbdkitFua | Self::QemuTcp, Some(program)) => started.nbd_tcp(program)?,
            (Self::NbdkitUnix | Self::QemuUnix, Some(program)) => started.nbd_unix(program)?,
            (Self::RedisWait, Some(program)) => started.redis_wait(program)?,
            (Self::RedisAof, Some(program)) => started.redis_aof(program)?,
            (Self::Etcd, Some(program)) => started.etcd(program)?,
            _ => {
                let file = FloorFile::create(&started.path("file"), POOL_BYTES).context("making the file")?;
                (Box::new(LocalFile { file, bytes: vec![7; started.size_bytes] }), Vec::new())
            }
        };
        let servers = servers.into_iter().map(Server::Peer).collect();
        Ok(Running { client: Client::Engine(Box::new(PeerEngine { client, over: None })), servers, version })
    }
}

/// What is needed to start a peer.
#[derive(Clone, Copy, Debug)]
struct Starting<'s> {
    peer: Peer,
    stage: &'s Stage,
    size_bytes: usize,
    spin: Duration,
}

type Started = (Box<dyn Put>, Vec<PeerServer>);

impl Starting<'_> {
    /// A file or directory of this peer on the medium.
    fn path(&self, what: &str) -> PathBuf {
        self.stage.file(&format!("{}-{what}", self.peer.name()))
    }

    fn server(&self, name: &str, program: &Path, arguments: &[String]) -> Result<PeerServer> {
        PeerServer::start(self.stage.servers_cpu(), program, arguments, self.path(&format!("{name}.log")))
    }

    fn nbd_tcp(&self, program: &Path) -> Result<Started> {
        let device = self.device()?;
        with_free_ports(free_addresses, |[address]: [SocketAddr; 1]| {
            let (ip, port) = (address.ip().to_string(), address.port().to_string());
            let arguments = match self.peer {
                Peer::QemuTcp => qemu_nbd(&["--bind", &ip, "--port", &port], &device),
                _ => nbdkit(&["--ipaddr", &ip, "--port", &port], &device),
            };
            let mut server = self.server("server", program, &arguments)?;
            let client = server.wait_for(|| self.nbd(PeerStream::tcp(address, self.spin)?))?;
            Ok((client, vec![server]))
        })
    }

    fn nbd_unix(&self, program: &Path) -> Result<Started> {
        let device = self.device()?;
        // The path of a socket has at most 107 bytes.
        let directory =
            TemporaryDirectory::create("pmof-", &std::env::temp_dir()).context("cannot make a directory")?;
        let socket = directory.path().join("nbd.sock");
        let path = socket.display().to_string();
        let arguments = match self.peer {
            Peer::QemuUnix => qemu_nbd(&["--socket", &path], &device),
            _ => nbdkit(&["--unix", &path], &device),
        };
        let mut server = self.server("server", program, &arguments)?;
        let client = server.wait_for(|| self.nbd(PeerStream::unix(&socket, self.spin)?))?;
        // Once connected, nobody needs the socket's name.
        Ok((client, vec![server]))
    }

    fn nbd(&self, stream: PeerStream) -> Result<Box<dyn Put>> {
        let sync = if self.peer == Peer::NbdkitFua { NbdSync::Fua } else { NbdSync::Flush };
        Ok(Box::new(NbdClient::connect(stream, sync, self.size_bytes, POOL_BYTES)?))
    }

    /// A file that is served as a device, all of which was written.
    fn device(&self) -> Result<PathBuf> {
        let path = self.path("device");
        let file = fs::File::create_new(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let bytes = vec![1; FILL_BYTES];
        for offset in (0..POOL_BYTES).step_by(FILL_BYTES) {
            file.write_all_at(&bytes, offset).with_context(|| format!("filling {}", path.display()))?;
        }
        file.sync_all().with_context(|| format!("syncing {}", path.display()))?;
        Ok(path)
    }

    fn redis_wait(&self, program: &Path) -> Result<Started> {
        with_free_ports(free_addresses, |addresses: [SocketAddr; REDIS_REPLICAS as usize + 1]| {
            let [first, followers @ ..] = addresses;
            let mut servers = vec![self.redis_server(program, first, &["--appendonly", "no"])?];
            for address in followers {
                let (ip, port) = (first.ip().to_string(), first.port().to_string());
                let more = ["--appendonly", "no", "--replicaof", &ip, &port];
                servers.push(self.redis_server(program, address, &more)?);
            }
            let client = self.redis_client(&mut servers[0], first, REDIS_REPLICAS)?;
            Ok((client, servers))
        })
    }

    fn redis_aof(&self, program: &Path) -> Result<Started> {
        with_free_ports(free_addresses, |[address]: [SocketAddr; 1]| {
            let more = ["--appendonly", "yes", "--appendfsync", "always"];
            let mut server = self.redis_server(program, address, &more)?;
            let client = self.redis_client(&mut server, address, 0)?;
            Ok((client, vec![server]))
        })
    }

    /// As Debian ships it, but for its snapshots, and for replicas that begin at once and are stopped between turns.
    fn redis_server(&self, program: &Path, address: SocketAddr, more: &[&str]) -> Result<PeerServer> {
        let directory = self.path(&address.port().to_string());
        fs::create_dir(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let (ip, port, directory) =
            (address.ip().to_string(), address.port().to_string(), directory.display().to_string());
        let common = ["--bind", &ip, "--port", &port, "--dir", &directory, "--save", "", "--daemonize", "no"];
        let replication = ["--repl-diskless-sync-delay", "0", "--repl-timeout", "3600"];
        let arguments = [&common[..], &replication, more].concat();
        self.server(&port, program, &arguments.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    fn redis_client(&self, server: &mut PeerServer, address: SocketAddr, replicas: u32) -> Result<Box<dyn Put>> {
        let client = server.wait_for(|| {
            let stream = PeerStream::tcp(address, self.spin)?;
            RedisClient::connect(stream, self.size_bytes, replicas)
        })?;
        Ok(Box::new(client))
    }

    fn etcd(&self, program: &Path) -> Result<Started> {
        let directory = self.path("data").display().to_string();
        with_free_ports(free_addresses, |[client, peer]: [SocketAddr; 2]| {
            // What a start that failed left would be another cluster's.
            let _ = fs::remove_dir_all(&directory);
            let mut server = self.server("server", program, &etcd([client, peer], &directory))?;
            let connected = server.wait_for(|| {
                let http = Http2::new(PeerStream::tcp(client, self.spin)?, &client.to_string())?;
                EtcdClient::connect(http, self.size_bytes)
            })?;
            Ok((Box::new(connected) as Box<dyn Put>, vec![server]))
        })
    }
}

/// A cluster of one server, which answers clients at the first address.
fn etcd([client, peer]: [SocketAddr; 2], directory: &str) -> Vec<String> {
    let (client_url, peer_url) = (format!("http://{client}"), format!("http://{peer}"));
    let cluster = format!("default={peer_url}");
    let words = [
        ["--data-dir", directory],
        ["--listen-client-urls", &client_url],
        ["--advertise-client-urls", &client_url],
        ["--listen-peer-urls", &peer_url],
        ["--initial-advertise-peer-urls", &peer_url],
        ["--initial-cluster", &cluster],
        ["--quota-backend-bytes", "8589934592"],
        ["--logger", "zap"],
        ["--log-level", "error"],
    ];
    words.concat().into_iter().map(str::to_owned).collect()
}

fn nbdkit(listen: &[&str], device: &Path) -> Vec<String> {
    let file = format!("file={}", device.display());
    let words = [&["--foreground", "--newstyle"], listen, &["file", &file]].concat();
    words.into_iter().map(str::to_owned).collect()
}

fn qemu_nbd(listen: &[&str], device: &Path) -> Vec<String> {
    let file = device.display().to_string();
    let words = [&["--format", "raw", "--persistent", "--cache", "writeback"], listen, &[&file]].concat();
    words.into_iter().map(str::to_owned).collect()
}

/// A file of this process.
#[derive(Debug)]
struct LocalFile {
    file: FloorFile,
    bytes: Vec<u8>,
}

impl Put for LocalFile {
    fn put(&mut self, _place: u64) -> Result<()> {
        Ok(self.file.write_durably(&self.bytes)?)
    }

    fn moved(&self) -> Option<[u64; 2]> {
        None
    }
}

/// One put at a time.
#[derive(Debug)]
struct PeerEngine {
    client: Box<dyn Put>,
    over: Option<usize>,
}

impl Engine for PeerEngine {
    fn depth(&self) -> usize {
        1
    }

    fn post(&mut self, posts: &[Post]) -> Result<()> {
        for post in posts {
            self.client.put(post.places.first().copied().unwrap_or(0))?;
            self.over = Some(post.slot);
        }
        Ok(())
    }

    fn collect(&mut self, _: Option<Instant>, done: &mut Vec<usize>) -> Result<()> {
        done.extend(self.over.take());
        Ok(())
    }

    fn moved(&self) -> Option<[u64; 2]> {
        self.client.moved()
    }
}
