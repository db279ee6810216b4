//! `pmof serve`.

use std::{
    io::Write,
    net::{SocketAddr, ToSocketAddrs},
    path::PathBuf,
    time::Duration,
};

use anyhow::Context;
use pmof::{Declaration, Service, ServiceOptions, StoreOptions, Waiting, access::Address};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Runs a target: keeps pools under a directory for initiators. Prints `ready ADDRESS` per address when it accepts.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// Directory of the pools; it must exist.
    #[arg(long, value_name = "DIR")]
    root: PathBuf,
    /// Loopback address to listen on; port 0 picks a free one. May be given several times.
    #[arg(long, value_name = "ADDRESS", default_value = "tcp://127.0.0.1:7204")]
    listen: Vec<Address>,
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
}

pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<()> {
    if let Some(parent) = args.exit_with_parent {
        crate::children::exit_with_parent(parent)?;
    }
    if let Some(cpu) = args.cpu {
        crate::bench::pin::pin_to(cpu).with_context(|| format!("cannot run on CPU {cpu}"))?;
    }
    allow_many_files();
    let mut options = ServiceOptions { workers: args.workers, ..Default::default() };
    if args.busy_poll {
        options.waiting = Waiting::BusyPoll;
    }
    let declaration = args.declare_battery_backed.then_some(Declaration::BatteryBacked);
    options.store = StoreOptions { declaration, ..Default::default() };
    let addresses = args.listen.iter().map(resolve).collect::<anyhow::Result<Vec<_>>>()?;
    let service = Service::start(&args.root, &addresses, options)?;
    let mut output = std::io::stdout().lock();
    for address in service.addresses() {
        writeln!(output, "ready tcp://{address}")?;
    }
    output.flush()?;
    loop {
        std::thread::sleep(Duration::MAX);
    }
}

fn resolve(address: &Address) -> anyhow::Result<SocketAddr> {
    let failed = || format!("cannot resolve {address}");
    (address.host.as_str(), address.port).to_socket_addrs().with_context(failed)?.next().with_context(failed)
}

/// Every connection takes a file descriptor, so as many are asked for as the system allows without asking anyone.
pub(crate) fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    // Where it cannot be raised, connections beyond the limit wait, as before.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
