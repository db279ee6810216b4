//! `pmof serve`.

use std::{io::Write, path::PathBuf, str::FromStr, time::Duration};

use anyhow::Context;
use log::{Level, LevelFilter, Log, Metadata, Record};
use pmof::{
    Declaration, PoolName, Service, ServiceOptions, StoreOptions, Waiting,
    access::{Address, VerbsOptions},
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Runs a target: keeps pools under a directory for initiators. Prints `ready ADDRESS` per address when it accepts, and to
/// standard error what fails in its own memory.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub(crate) struct ServeArgs {
    /// Directory of the pools; it must exist.
    #[arg(long, value_name = "DIR")]
    root: PathBuf,
    /// Address to listen on: `tcp://HOST:PORT`, `verbs://HOST:PORT` or `shm:///PATH/OF/SOCKET`; port 0 picks a free one.
    /// May be given several times.
    #[arg(long, value_name = "ADDRESS", default_value = "tcp://127.0.0.1:7204")]
    listen: Vec<Address>,
    /// Listen also on addresses that other machines reach. Nobody is authenticated: whoever reaches one may read, write
    /// and remove all pools.
    #[arg(long)]
    trust_network: bool,
    /// Keep the pool of this name on a devdax device, or on an existing file, instead of a file under the root; the pool
    /// takes all of it. May be given several times.
    #[arg(long, value_name = "NAME=PATH")]
    device: Vec<DevicePool>,
    /// Do not offer the FLUSH operation of RDMA devices
    #[arg(long)]
    no_native_flush: bool,
    /// Do not offer the ATOMIC WRITE operation of RDMA devices
    #[arg(long)]
    no_atomic_write: bool,
    /// Your word that writes of the RDMA device reach the persistence domain by themselves, past the CPU caches. Receipts
    /// say that it was declared. Refused for software devices, where it is not so.
    #[arg(long)]
    declare_inbound_persistent: bool,
    /// Have all verbs connections share so many receive buffers of 8 KiB, instead of 16 each
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    shared_receives: Option<u32>,
    /// Never sleep while waiting: the lowest latency, for a core of its own.
    #[arg(long)]
    busy_poll: bool,
    /// Worker threads; 0 chooses.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    workers: usize,
    /// CPU to run on, for measurements.
    #[arg(long, hide = true)]
    cpu: Option<usize>,
    /// Process number of the parent, with which this process ends.
    #[arg(long, hide = true, value_name = "PID")]
    exit_with_parent: Option<u32>,
    /// Your word that this machine's memory survives loss of power (battery, UPS with a save to disk). Receipts say
    /// that it was declared, not probed.
    #[arg(long)]
    declare_battery_backed: bool,
    /// Your word that this machine's memory survives loss of power, but not what is still in the CPU caches, which are
    /// therefore written back. Receipts say that it was declared, not probed.
    #[arg(long, conflicts_with = "declare_battery_backed")]
    declare_memory_kept: bool,
}

/// `NAME=PATH`.
#[derive(Clone, Debug)]
struct DevicePool(PoolName, PathBuf);

impl FromStr for DevicePool {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (name, path) = text.split_once('=').context("write NAME=PATH, such as orders=/dev/dax0.0")?;
        Ok(Self(PoolName::new(name)?, path.into()))
    }
}

pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<()> {
    if let Some(parent) = args.exit_with_parent {
        crate::children::exit_with_parent(parent)?;
    }
    if let Some(cpu) = args.cpu {
        crate::bench::pin::pin_to(cpu).with_context(|| format!("cannot run on CPU {cpu}"))?;
    }
    allow_many_files();
    // There is no other logger that it could come after.
    let _ = log::set_logger(&ErrorLog);
    log::set_max_level(LevelFilter::Error);
    let service = Service::start(&args.root, &args.listen, args.options())?;
    let mut output = std::io::stdout().lock();
    for address in service.addresses() {
        writeln!(output, "ready {address}")?;
    }
    output.flush()?;
    loop {
        std::thread::sleep(Duration::MAX);
    }
}

/// What failed in this process while it served others, who learn only that it did: their errors point here.
struct ErrorLog;

impl Log for ErrorLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Error
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            // That nobody can read it is no reason to stop serving.
            let _ = writeln!(std::io::stderr(), "pmof: {}", record.args());
        }
    }

    fn flush(&self) {}
}

impl ServeArgs {
    fn options(&self) -> ServiceOptions {
        let kept = self.declare_memory_kept.then_some(Declaration::MemoryKept);
        let declaration = self.declare_battery_backed.then_some(Declaration::BatteryBacked).or(kept);
        let devices = self.device.iter().map(|DevicePool(name, path)| (name.clone(), path.clone())).collect();
        let mut options = ServiceOptions {
            workers: self.workers,
            trust_network: self.trust_network,
            verbs: VerbsOptions {
                native_flush: !self.no_native_flush,
                atomic_write: !self.no_atomic_write,
                inbound_declared: self.declare_inbound_persistent,
                shared_receives: self.shared_receives,
                ..Default::default()
            },
            store: StoreOptions { declaration, devices, ..Default::default() },
            ..Default::default()
        };
        if self.busy_poll {
            options.waiting = Waiting::BusyPoll;
        }
        options
    }
}

/// Every connection takes a file descriptor, so as many are asked for as the system allows without asking anyone.
pub(crate) fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    // Where it cannot be raised, connections beyond the limit wait, as before.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
