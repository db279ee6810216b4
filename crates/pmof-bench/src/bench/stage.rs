//! What a measurement needs: CPUs, a directory on the right medium, and the other processes.

use std::{
    io::{BufRead, BufReader},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{Child, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, ValueEnum};
use pmof::{Declaration, Durability, Pool, PoolOptions, Waiting};
use pmof_access::{FabricProvider, Transport};
use pmof_console::{
    children::{Target, this_program},
    interrupt::{KilledOnSignal, TemporaryDirectory},
    limits,
    reach::{ReachArgs, device_option},
    trust,
};
use pmof_mem::MediumKind;
use rustix::process::{Pid, Signal, kill_process};

use super::{fabric, peers::server::PeerServer};

/// Size of the pools that are measured; also the size of the floor's file, so that both meet the same file system.
pub(super) const POOL_BYTES: u64 = super::floor::FILE_BYTES;

/// Written at once while a pool is made warm: few enough round trips, and small enough to check the cache as it goes.
const WARM_BYTES: usize = 1 << 20;

/// tmpfs on every Linux, for POSIX shared memory (`shm_overview`(7)).
const TMPFS_DIRECTORY: &str = "/dev/shm";

/// On a disk on every Linux: it outlives a restart (Filesystem Hierarchy Standard 3.0, 5.15).
const FILE_DIRECTORY: &str = "/var/tmp";

/// What all measurements are asked.
#[derive(Clone, Debug, Args)]
pub(super) struct StageArgs {
    #[command(flatten)]
    pub(super) reach: ReachArgs,
    /// Keep the pool on this devdax device or existing file instead; it is removed there at the end
    #[arg(long, value_name = "PATH")]
    pub(super) device: Option<PathBuf>,
    /// Make the pools in a fresh directory in here [default: /dev/shm for tmpfs, /var/tmp for file]
    #[arg(long, value_name = "DIR")]
    pub(super) dir: Option<PathBuf>,
    /// CPU of the initiator [default: the first that this process may use]
    #[arg(long, value_name = "CPU")]
    pub(super) initiator_cpu: Option<usize>,
    /// CPU of targets, floors and relays [default: the second]
    #[arg(long, value_name = "CPU")]
    pub(super) target_cpu: Option<usize>,
    /// Keep a digest of each page, so that bytes that a medium changes are never read
    #[arg(long = "page-digests")]
    pub(super) digests: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(super) json: bool,
}

/// What pools lie on, and with it which failure a persist survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Medium {
    /// Memory of the machine: a persist survives the target's death (`ProcessCrash`)
    Tmpfs,
    /// The same, declared to survive loss of power without its CPU caches: a persist writes cache lines back
    Kept,
    /// A file behind the page cache: a persist survives loss of power (`PowerFailure`)
    File,
}

impl StageArgs {
    /// What pools lie on, for reports.
    pub(super) fn medium_name(&self, medium: Medium) -> String {
        self.device.as_ref().map_or_else(|| medium.name().to_owned(), |device| device.display().to_string())
    }
}

impl Medium {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tmpfs => "tmpfs",
            Self::Kept => "kept",
            Self::File => "file",
        }
    }

    /// What is declared of it.
    pub(super) fn declaration(self) -> Option<Declaration> {
        (self == Self::Kept).then_some(Declaration::MemoryKept)
    }

    /// What is asked of a persist.
    pub(super) fn durability(self) -> Durability {
        match self {
            Self::Tmpfs => Durability::ProcessCrash,
            Self::Kept | Self::File => Durability::PowerFailure,
        }
    }

    fn kind(self) -> MediumKind {
        match self {
            Self::Tmpfs | Self::Kept => MediumKind::Tmpfs,
            Self::File => MediumKind::PageCache,
        }
    }

    fn directory(self) -> &'static Path {
        Path::new(match self {
            Self::Tmpfs | Self::Kept => TMPFS_DIRECTORY,
            Self::File => FILE_DIRECTORY,
        })
    }
}

/// CPUs and a directory. The directory goes when the stage does.
#[derive(Debug)]
pub(super) struct Stage {
    directory: TemporaryDirectory,
    initiator_cpu: usize,
    servers_cpu: usize,
    medium: Medium,
    reach: ReachArgs,
    device: Option<PathBuf>,
    digests: bool,
}

impl Stage {
    /// Makes the directory, checks its medium, and chooses the CPUs.
    pub(super) fn set(args: &StageArgs, medium: Medium) -> Result<Self> {
        args.reach.check()?;
        let parent = args.dir.as_deref().unwrap_or(medium.directory());
        let directory = TemporaryDirectory::create("pmof-bench-", parent)
            .with_context(|| format!("cannot make a directory in {}: name another one with --dir", parent.display()))?;
        let found = pmof_mem::probe(directory.path())?;
        ensure!(
            args.device.is_some() || found.kind == medium.kind(),
            "{} lies on {} ({}), which --medium {} does not measure: name another directory with --dir",
            parent.display(),
            found.kind,
            found.file_system,
            medium.name(),
        );
        let allowed = limits::allowed_cpus().context("asking for the CPUs that may be used")?;
        let (initiator_cpu, servers_cpu) = choose_cpus(&allowed, args.initiator_cpu, args.target_cpu)?;
        let (reach, device, digests) = (args.reach.clone(), args.device.clone(), args.digests);
        Ok(Self { directory, initiator_cpu, servers_cpu, medium, reach, device, digests })
    }

    /// Keeps this thread on the initiator's CPU. To be called when all children are there: they inherit what is allowed,
    /// and may then not go to their own CPU.
    pub(super) fn pin_initiator(&self) -> Result<()> {
        limits::pin_to(self.initiator_cpu).context("pinning the initiator")
    }

    pub(super) fn initiator_cpu(&self) -> usize {
        self.initiator_cpu
    }

    /// An address that targets may listen on, where one was named.
    pub(super) fn address(&self) -> Option<IpAddr> {
        self.reach.address
    }

    /// The CPU of everything but the initiator.
    pub(super) fn servers_cpu(&self) -> usize {
        self.servers_cpu
    }

    /// What is asked of a persist.
    pub(super) fn durability(&self) -> Durability {
        if self.device.is_some() { Durability::PowerFailure } else { self.medium.durability() }
    }

    /// Why there is no floor to compare with, if so.
    pub(super) fn no_floor(&self) -> Option<&'static str> {
        match (self.reach.transport, &self.device) {
            (Transport::Fabric(provider), _) if !fabric::FLOORS.contains(&provider) => {
                Some("this command has a bare program only of libfabric's providers tcp and net")
            }
            (_, Some(_)) => Some("the pool takes all of the device"),
            _ => None,
        }
    }

    /// A file in the directory that a floor server may make.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts a target on the servers' CPU; its pools lie in a directory of their own, or the pool of this name on the device.
    pub(super) fn target(&self, name: &str, pool: &str, polling: bool) -> Result<Target> {
        let cpu = self.servers_cpu.to_string();
        let mut options = vec!["--cpu", &cpu];
        if polling {
            options.push("--busy-poll");
        }
        self.start_target(name, pool, &options)
    }

    /// The same, on all CPUs and as it waits by default.
    pub(super) fn target_anywhere(&self, name: &str, pool: &str) -> Result<Target> {
        self.start_target(name, pool, &[])
    }

    /// Starts a load of so much of the servers' CPU.
    pub(super) fn load(&self, percent: u8) -> Result<Helper> {
        Helper::start(&["bench-load", "--cpu", &self.servers_cpu.to_string(), "--percent", &percent.to_string()], 0)
    }

    fn start_target(&self, name: &str, pool: &str, options: &[&str]) -> Result<Target> {
        let root = self.directory.path().join(name);
        std::fs::create_dir(&root).with_context(|| format!("cannot make {}", root.display()))?;
        let device = self.device.as_deref().map(|device| device_option(pool, device)).transpose()?;
        let mut options = options.to_vec();
        if self.medium == Medium::Kept {
            options.push("--declare-memory-kept");
        }
        options.extend(device.as_deref());
        self.reach.start_target(&root, &options)
    }

    /// The URL of a pool at a target.
    pub(super) fn pool_url(&self, address: &str, pool: &str) -> String {
        self.reach.pool_url(address, pool)
    }

    /// Removes pools from the device, if there is one: all else goes with the directory.
    pub(super) fn clean_up(&self, urls: &[String]) -> Result<()> {
        if self.device.is_some() {
            urls.iter().cloned().fold(trust::pool_options(), PoolOptions::replica).remove()?;
        }
        Ok(())
    }

    /// Starts a floor server.
    pub(super) fn floor_server(&self) -> Result<Helper> {
        self.floor_server_with(&[])
    }

    /// The same of a provider of libfabric.
    pub(super) fn fabric_floor_server(&self, provider: FabricProvider) -> Result<Helper> {
        self.floor_server_with(&["--transport", provider.scheme()])
    }

    /// The same of verbs, where the targets listen.
    pub(super) fn verbs_floor_server(&self) -> Result<Helper> {
        let ip = self.reach.address.context("verbs has no address: name one of an RDMA device with --address")?;
        self.floor_server_at(ip, "verbs")
    }

    /// The same of RDS.
    pub(super) fn rds_floor_server(&self) -> Result<Helper> {
        self.floor_server_at(self.reach.address.unwrap_or(Ipv4Addr::LOCALHOST.into()), "rds")
    }

    fn floor_server_at(&self, ip: IpAddr, transport: &str) -> Result<Helper> {
        let (listen, cpu) = (SocketAddr::new(ip, 0).to_string(), self.servers_cpu.to_string());
        Helper::start(&["bench-floor", "--transport", transport, "--listen", &listen, "--cpu", &cpu], 1)
    }

    fn floor_server_with(&self, more: &[&str]) -> Result<Helper> {
        let cpu = self.servers_cpu.to_string();
        let options = ["bench-floor", "--listen", "127.0.0.1:0", "--cpu", &cpu];
        Helper::start(&[&options[..], more].concat(), 1)
    }

    /// Starts a relay with `routes` addresses, all of which lead to `to`. It shares the initiator's CPU, which is free while
    /// bytes are under way, if the initiator sleeps; a target that shares its CPU answers the later the more replicas.
    pub(super) fn relay(&self, to: SocketAddr, routes: usize, delay_us: u64) -> Result<Helper> {
        let (cpu, to, delay_us) = (self.initiator_cpu.to_string(), to.to_string(), delay_us.to_string());
        let mut options = vec!["relay", "--cpu", &cpu, "--delay-us", &delay_us];
        for _ in 0..routes {
            options.extend(["--listen", "127.0.0.1:0", "--to", &to]);
        }
        Helper::start(&options, routes)
    }

    /// How the initiator reaches pools; without `waiting`, as by default.
    pub(super) fn pool_options(&self, urls: impl IntoIterator<Item = String>, waiting: Option<Waiting>) -> PoolOptions {
        let mut options = self.reach.pool_options().require(self.durability()).digests(self.digests);
        if let Some(waiting) = waiting {
            options = options.waiting(waiting);
        }
        urls.into_iter().fold(options, PoolOptions::replica)
    }
}

/// The socket address in a target's or helper's `tcp://HOST[:PORT]`.
pub(crate) fn socket_address(url: &str) -> Result<SocketAddr> {
    let address = url.strip_prefix("tcp://").and_then(|address| address.parse().ok());
    address.with_context(|| format!("{url} is not tcp://ADDRESS:PORT"))
}

/// Writes all of a pool once and makes it durable, so that what is measured meets no page and no block for the first time.
pub(super) fn warm(pool: &Pool) -> Result<()> {
    let bytes = vec![1; WARM_BYTES];
    let mut offset = 0;
    while offset < pool.len_bytes() {
        let len_bytes = (pool.len_bytes() - offset).min(WARM_BYTES as u64) as usize;
        pool.persist(offset, &bytes[..len_bytes]).context("writing the pool for the first time")?;
        offset += len_bytes as u64;
    }
    Ok(())
}

/// A child of this very binary that prints `ready tcp://ADDRESS` lines. Killed (SIGKILL) when dropped, and by the kernel when the thread
/// that started it ends in any other way.
#[derive(Debug)]
pub(crate) struct Helper {
    child: Child,
    _on_signal: KilledOnSignal,
    addresses: Vec<SocketAddr>,
}

impl Helper {
    /// Starts a floor server on all CPUs, whose files have so many bytes.
    pub(super) fn floor_server_anywhere(file_bytes: u64) -> Result<Self> {
        Self::start(&["bench-floor", "--listen", "127.0.0.1:0", "--file-bytes", &file_bytes.to_string()], 1)
    }

    /// Starts it and waits for `count` addresses.
    pub(crate) fn start(options: &[&str], count: usize) -> Result<Self> {
        let (command, options) = options.split_first().context("a helper has no command")?;
        let child = this_program(command)?.args(options).stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let child = child.context("cannot start a helper process")?;
        let mut helper = Self { _on_signal: KilledOnSignal::new(&child), child, addresses: Vec::new() };
        let mut output = BufReader::new(helper.child.stdout.take().context("the helper has no output")?);
        for _ in 0..count {
            let mut line = String::new();
            output.read_line(&mut line).context("cannot read from the helper")?;
            let address = line.trim_end().strip_prefix("ready ");
            let address = address.with_context(|| format!("pmof {command} did not start; see above"))?;
            helper.addresses.push(socket_address(address)?);
        }
        Ok(helper)
    }

    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    pub(super) fn process_id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // It may be dead already; there is nobody to tell.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that a contender needs.
#[derive(Debug)]
pub(super) enum Server {
    Target(Target),
    Helper(Helper),
    Peer(PeerServer),
}

impl Server {
    /// A stopped process does not see the SIGTERM that some have the kernel send when this process is killed: those go on, and take nothing while
    /// they wait.
    fn is_stopped_between_turns(&self) -> bool {
        match self {
            Self::Target(_) | Self::Helper(_) => true,
            Self::Peer(peer) => !peer.ends_by_sigterm(),
        }
    }

    pub(super) fn process_id(&self) -> u32 {
        match self {
            Self::Target(target) => target.process_id(),
            Self::Helper(helper) => helper.process_id(),
            Self::Peer(peer) => peer.process_id(),
        }
    }
}

/// One of the things that are compared: the initiator's side, and the servers, which run only while it is measured.
#[derive(Debug)]
pub(super) struct Contender<W> {
    work: W,
    servers: Vec<Server>,
}

impl<W> Contender<W> {
    /// Takes both over, and stops the servers.
    pub(super) fn new(work: W, servers: Vec<Server>) -> Result<Self> {
        let contender = Self { work, servers };
        contender.signal(Signal::STOP)?;
        Ok(contender)
    }

    /// Does something while the servers run.
    pub(super) fn run<T>(&mut self, turn: impl FnOnce(&mut W) -> Result<T>) -> Result<T> {
        self.signal(Signal::CONT)?;
        let done = turn(&mut self.work);
        self.signal(Signal::STOP)?;
        done
    }

    /// Ends it with a last turn.
    pub(super) fn finish(self, turn: impl FnOnce(W) -> Result<()>) -> Result<()> {
        self.signal(Signal::CONT)?;
        turn(self.work)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        for server in self.servers.iter().filter(|server| server.is_stopped_between_turns()) {
            self::signal(server.process_id(), signal)?;
        }
        Ok(())
    }
}

/// Stops or continues a child.
pub(crate) fn signal(process_id: u32, signal: Signal) -> Result<()> {
    let process_id = i32::try_from(process_id).ok().and_then(Pid::from_raw);
    let process_id = process_id.context("a child has no process number")?;
    kill_process(process_id, signal).context("cannot stop or continue a child")
}

/// The CPUs of the initiator and of the servers: as asked, else the first ones allowed that differ.
fn choose_cpus(allowed: &[usize], initiator: Option<usize>, servers: Option<usize>) -> Result<(usize, usize)> {
    for asked in [initiator, servers].into_iter().flatten() {
        ensure!(allowed.contains(&asked), "CPU {asked} is not among those that this process may use: {allowed:?}");
    }
    let first_but = |taken: Option<usize>| allowed.iter().copied().find(|cpu| Some(*cpu) != taken);
    let first = initiator.or_else(|| first_but(servers));
    let second = servers.or_else(|| first_but(first));
    let (Some(first), Some(second)) = (first, second) else {
        bail!("one CPU is not enough: the initiator and the target each need one, allow this process two")
    };
    ensure!(first != second, "the initiator and the target both on CPU {first} would measure the scheduler");
    Ok((first, second))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_the_first_that_differ() {
        let chosen = |initiator, servers| choose_cpus(&[2, 5, 7], initiator, servers).unwrap();
        assert_eq!(chosen(None, None), (2, 5));
        assert_eq!(chosen(Some(5), None), (5, 2));
        assert_eq!(chosen(None, Some(2)), (5, 2));
        assert_eq!(chosen(Some(7), Some(5)), (7, 5));
    }

    #[test]
    fn one_cpu_is_refused() {
        for (allowed, initiator, servers) in [(&[3][..], None, None), (&[], None, None), (&[1, 2], Some(1), Some(1))] {
            let error = choose_cpus(allowed, initiator, servers).unwrap_err();
            assert!(error.to_string().contains("CPU"), "{error}");
        }
    }

    #[test]
    fn addresses_of_children_are_read() {
        assert_eq!(socket_address("tcp://127.0.0.1:7204").unwrap(), "127.0.0.1:7204".parse().unwrap());
        for wrong in ["127.0.0.1:7204", "tcp://host:1", "tcp://127.0.0.1", ""] {
            assert!(socket_address(wrong).is_err(), "{wrong}");
        }
    }
}
