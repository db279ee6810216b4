//! `pmof serve`.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    str::FromStr,
    sync::atomic::Ordering,
    time::Duration,
};

use anyhow::Context;
use pmof::{Declaration, Service, ServiceOptions, StoreOptions, Waiting, causes};
use pmof_access::{Address, VerbsOptions};
use pmof_console::{
    children::exit_with_parent,
    limits::{allow_many_files, pin_to},
    output,
    words::{self, parsed},
};
use pmof_control::{DomainName, PoolName};
use pmof_target::{DataPorts, StdioOptions, serve_stdio};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::flush_method::{ChosenFlush, FlushMethod};
use config::{ConfigFile, Configuration};
use logger::{LogFormat, LogLevel, LogTo, Logger};
use metrics::{MetricsAddress, MetricsServer};
use operated::Operated;

pub(crate) mod config;
pub(crate) mod logger;
mod manager;
mod metrics;
mod operated;
mod stdio;

/// The default configuration files; the second is below the home directory.
const SYSTEM_CONFIG: &str = "/etc/pmof/pmof.conf";
const USER_CONFIG: &str = ".config/pmof/pmof.conf";

/// Run a target, which keeps pools under a directory for initiators. Print `ready ADDRESS` for each address when it accepts
/// connections, and failures of its own memory to standard error.
///
/// Every option can be set in a configuration file, as `option = value`, without the dashes.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent option")]
pub(crate) struct ServeArgs {
    /// Configuration file [default: /etc/pmof/pmof.conf and then ~/.config/pmof/pmof.conf, where they are]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory of the pools; it must exist; the home directory by default with `--stdio`
    #[arg(long, value_name = "DIR", required_unless_present_any = ["stdio", "config"])]
    root: Option<PathBuf>,
    /// Serve one initiator, which started this command through ssh, until standard input ends
    #[arg(long, conflicts_with_all = ["listen", "trust_network"])]
    stdio: bool,
    /// Address on which `--stdio` accepts the data connection; by default the one that ssh connected to
    #[arg(long, value_name = "IP")]
    data_address: Option<IpAddr>,
    /// Ports on which `--stdio` accepts the data connection, as FIRST-LAST, if a firewall allows only these
    #[arg(long, value_name = "PORTS", default_value_t, value_parser = parsed::<DataPorts>)]
    data_ports: DataPorts,
    /// Append the log to this file instead of writing it to standard error
    #[arg(long, value_name = "FILE", conflicts_with = "log_syslog")]
    log_file: Option<PathBuf>,
    /// Write the log to the system log
    #[arg(long)]
    log_syslog: bool,
    /// Form of the log's lines
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    log_format: LogFormat,
    /// Lowest level to log: info by default, with `--stdio` error
    #[arg(long, value_enum, value_name = "LEVEL")]
    log_level: Option<LogLevel>,
    /// Serve metrics for Prometheus at this address, as HOST:PORT or the path of a Unix socket: `http://HOST:PORT/metrics`. They
    /// name pools and no client, and whoever reaches the address may read them
    #[arg(long, value_name = "ADDRESS", conflicts_with = "stdio", value_parser = parsed::<MetricsAddress>)]
    metrics: Option<MetricsAddress>,
    /// Maximum number of pools that have metrics of their own, by their names: those that lack members come first. 0 names none; all count in the totals
    #[arg(long, value_name = "COUNT", default_value_t = 100, conflicts_with = "stdio")]
    metrics_pools: usize,
    /// How long a target that is told to stop (SIGTERM, SIGINT) waits for initiators to close their pools, such as 30s; then it ends their
    /// connections and tells them why. A second signal ends them at once
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = words::time)]
    drain_timeout: Duration,
    /// Maximum number of connections
    #[arg(long, value_name = "COUNT", default_value_t = pmof_target::DEFAULT_MAX_CONNECTIONS, value_parser = at_least_one)]
    max_connections: usize,
    /// Memory that all connections together may use in the target. Each takes 48 KiB (over verbs
    /// 512 KiB, over libfabric up to 96 MiB) and is refused if there is no more. Half of the rest is for answers that clients have not read; connections that hold most of
    /// it wait. The contents of pools do not count.
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = words::size)]
    memory_budget: u64,
    /// Size limit of new pools
    #[arg(long, value_name = "SIZE", default_value = "16T", value_parser = words::size)]
    max_pool_size: u64,
    /// Address to listen on: `tcp://HOST[:PORT]`, `verbs://HOST[:PORT]`, `fabric+PROVIDER://HOST[:PORT]`, `rds://HOST[:PORT]` or `shm:///PATH/OF/SOCKET`;
    /// port 0 picks a free one. May be given several times.
    #[arg(long, value_name = "ADDRESS", default_value = "tcp://127.0.0.1:7204", value_parser = parsed::<Address>)]
    listen: Vec<Address>,
    /// Also listen on addresses that other machines can reach. Clients are not authenticated: everyone who can reach the address
    /// may read, write and remove all pools.
    #[arg(long)]
    trust_network: bool,
    /// Serve every user of this machine over TCP and libfabric, not only the user who runs this command and root. Clients are not
    /// authenticated: each user may read, write and remove all pools.
    #[arg(long, conflicts_with = "stdio")]
    trust_host: bool,
    /// Keep the pool of this name on a devdax device, or on an existing file, instead of a file under the root; the pool
    /// takes all of it. May be given several times.
    #[arg(long, value_name = "NAME=PATH", value_parser = parsed::<DevicePool>)]
    device: Vec<DevicePool>,
    /// System call that flushes pools in files behind the page cache. Each is as durable; `auto` takes the fastest by measurement, once for a file
    /// system, for about a second at the first start (see `pmof doctor --measure`)
    #[arg(long, value_enum, value_name = "METHOD", default_value_t)]
    flush_method: FlushMethod,
    /// Do not offer the FLUSH operation of RDMA devices
    #[arg(long)]
    no_native_flush: bool,
    /// Do not offer the ATOMIC WRITE operation of RDMA devices
    #[arg(long)]
    no_atomic_write: bool,
    /// Declare that writes of the RDMA device reach the persistence domain by themselves, past the CPU caches. Receipts
    /// say that this was declared. Refused for software devices, where this is never true.
    #[arg(long)]
    declare_inbound_persistent: bool,
    /// Have all verbs connections share this many receive buffers of 8 KiB, instead of 16 each
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    shared_receives: Option<u32>,
    /// What fails together with this target: a name that is the same for all such targets, of a machine, a rack or a site.
    /// Without it, this machine. Receipts say that it was declared.
    #[arg(long, value_name = "NAME", value_parser = parsed::<DomainName>)]
    failure_domain: Option<DomainName>,
    /// Never sleep while waiting: the lowest latency, at the cost of a core.
    #[arg(long)]
    busy_poll: bool,
    /// Worker threads; 0 chooses the number.
    #[arg(long, value_name = "COUNT", default_value_t = 0, value_parser = worker_count)]
    workers: usize,
    /// CPU to run on, for benchmarks.
    #[arg(long, hide = true)]
    cpu: Option<usize>,
    /// Process ID of the parent; this process ends with it.
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

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("no connection at all cannot be served: allow at least 1".to_owned()),
        Ok(count) => Ok(count),
        Err(error) => Err(causes(&error).to_string()),
    }
}

/// More threads than any machine has CPUs are a slip of the finger.
const WORKERS_LIMIT: usize = 4096;

fn worker_count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if count > WORKERS_LIMIT => Err(format!("more than {WORKERS_LIMIT} threads serve nobody faster")),
        Ok(count) => Ok(count),
        Err(error) => Err(causes(&error).to_string()),
    }
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
    let configuration = Configuration::read(args.config_files())?;
    configuration.args()?.run(configuration)
}

impl ServeArgs {
    fn config_files(&self) -> Vec<ConfigFile> {
        // The targets of `pmof demo` and the like are those commands' own.
        if self.config.is_none() && self.exit_with_parent.is_some() {
            return Vec::new();
        }
        ConfigFile::named_or_usual(self.config.as_ref(), SYSTEM_CONFIG, USER_CONFIG)
    }

    fn run(&self, configuration: Configuration) -> anyhow::Result<()> {
        if let Some(parent) = self.exit_with_parent {
            exit_with_parent(parent)?;
        }
        if let Some(cpu) = self.cpu {
            pin_to(cpu).with_context(|| format!("cannot run on CPU {cpu}"))?;
        }
        allow_many_files();
        let logger = self.start_log()?;
        if self.stdio {
            let root = self.root.clone().map_or_else(home, Ok)?;
            let (data_address, data_ports) = (self.data_address, self.data_ports.clone());
            return run_stdio(
                &root,
                StdioOptions::default()
                    .service(self.options(&self.chosen_flush(&root)))
                    .data_address(data_address)
                    .data_ports(data_ports),
            );
        }
        let root =
            self.root.as_deref().context("no directory for the pools: give --root, or root in the configuration")?;
        // Before it is ready: a signal that comes meanwhile is not lost.
        let signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).context("cannot handle signals")?;
        let flush = self.chosen_flush(root);
        let service = Service::start(root, &self.listen, self.options(&flush))?;
        flush.tell(root);
        let metrics =
            self.metrics.as_ref().map(|address| MetricsServer::start(address, service.observer(), self.metrics_pools));
        let _metrics = metrics.transpose()?;
        let _watchdog = manager::Watchdog::start(service.observer())?;
        for address in service.addresses() {
            // Whoever has read enough of it need not read on.
            output::print(&format!("ready {address}\n"))?;
        }
        manager::ready();
        Operated::new(service, logger, configuration, self.drain_timeout).until_stopped(signals);
        Ok(())
    }

    fn start_log(&self) -> anyhow::Result<Logger> {
        let log_to = match &self.log_file {
            _ if self.log_syslog => LogTo::Syslog,
            Some(file) => LogTo::File(file.clone()),
            None => LogTo::Stderr,
        };
        logger::start("pmof", self.log_level(), self.log_format, &log_to)
    }

    fn log_level(&self) -> LogLevel {
        // Standard error of a target that ssh starts is its initiator's.
        self.log_level.unwrap_or(if self.stdio { LogLevel::Error } else { LogLevel::Info })
    }

    /// How pools under `root` are flushed. A target that serves one command or one ssh session is not kept waiting for a measurement.
    fn chosen_flush(&self, root: &Path) -> ChosenFlush {
        self.flush_method.choose(root, !self.stdio && self.exit_with_parent.is_none())
    }

    fn options(&self, flush: &ChosenFlush) -> ServiceOptions {
        let kept = self.declare_memory_kept.then_some(Declaration::MemoryKept);
        let declaration = self.declare_battery_backed.then_some(Declaration::BatteryBacked).or(kept);
        let devices = self.device.iter().map(|DevicePool(name, path)| (name.clone(), path.clone())).collect();
        let verbs = VerbsOptions::default()
            .native_flush(!self.no_native_flush)
            .atomic_write(!self.no_atomic_write)
            .inbound_declared(self.declare_inbound_persistent)
            .shared_receives(self.shared_receives);
        let store = StoreOptions::default()
            .declaration(declaration)
            .devices(devices)
            .max_pool_bytes(self.max_pool_size)
            .sync_choice(flush.choice);
        let options = ServiceOptions::default()
            .workers(self.workers)
            .trust_network(self.trust_network)
            .trust_host(self.trust_host)
            .max_connections(self.max_connections)
            .memory_budget_bytes(self.memory_budget)
            .verbs(verbs)
            .store(store);
        let options = if self.busy_poll { options.waiting(Waiting::BusyPoll) } else { options };
        match &self.failure_domain {
            Some(name) => options.failure_domain(name.clone()),
            None => options,
        }
    }
}

/// Serves the initiator at the other end of standard input and output. A signal ends the session as the end of its input does.
pub(crate) fn run_stdio(root: &Path, options: StdioOptions) -> anyhow::Result<()> {
    let (input, is_stopped) = stdio::input_until_signal()?;
    match serve_stdio(root, options, input, std::io::stdout().lock()) {
        Err(_) if is_stopped.load(Ordering::Acquire) => Ok(()),
        ended => Ok(ended?),
    }
}

/// The home directory.
#[allow(deprecated, reason = "deprecated for the sake of Windows until Rust 1.87")]
pub(crate) fn home() -> anyhow::Result<PathBuf> {
    std::env::home_dir().filter(|home| home.is_absolute()).context("there is no home directory: name one with --root")
}
