//! `rpmemd`: the options and configuration of librpmem's daemon, on a target of pmof.

use std::{ffi::OsString, io::IsTerminal as _, net::IpAddr, path::PathBuf};

use clap::{CommandFactory as _, FromArgMatches as _};
use pmof::{ServiceOptions, Waiting};
use pmof_access::VerbsOptions;
use pmof_bootstrap::StartFailure;
use pmof_console::words::parsed;
use pmof_control::SetName;
use pmof_target::{DataPorts, SetStoreError, StdioOptions, refuse_stdio};

use crate::serve::{
    config::{self, ConfigError, ConfigFile},
    home,
    logger::{self, LogFormat, LogLevel, LogTo},
    run_stdio,
};

/// The default configuration files; the second is below the home directory.
const SYSTEM_CONFIG: &str = "/etc/rpmemd/rpmemd.conf";
const USER_CONFIG: &str = ".rpmemd.conf";

/// Serve one program that uses librpmem and starts this command through ssh, until it ends.
#[derive(Debug, clap::Parser)]
#[command(name = "rpmemd", version, args_override_self = true)]
pub(crate) struct RpmemdArgs {
    /// Delete the parts of a pool set instead, named relative to the directory of pool sets
    #[arg(short, long, value_name = "SET", value_parser = parsed::<SetName>)]
    remove: Option<SetName>,
    /// With --remove: even if parts are missing, damaged, empty or full of holes
    #[arg(short, long, requires = "remove")]
    force: bool,
    /// With --remove: also delete the pool set file
    #[arg(short = 's', long, requires = "remove")]
    pool_set: bool,
    #[command(flatten)]
    settings: Settings,
}

/// Options that can also be set in the configuration file.
#[derive(Debug, clap::Args)]
struct Settings {
    /// Configuration file instead of /etc/rpmemd/rpmemd.conf and ~/.rpmemd.conf
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Worker threads; 0 chooses the number
    #[arg(short = 't', long, value_name = "COUNT", default_value_t = 0)]
    nthreads: usize,
    /// Directory of the pool sets; the home directory by default. `$HOME` is replaced by the home directory
    #[arg(long, value_name = "DIR")]
    poolset_dir: Option<PathBuf>,
    /// Declare that writes of the RDMA device reach the persistence domain by themselves, past the CPU caches. Refused for
    /// software devices, where this is never true
    #[arg(long, value_name = "YES|NO", value_parser = yes_or_no, num_args = 0..=1, default_missing_value = "yes")]
    persist_apm: Option<bool>,
    /// Accepted and ignored: the cheapest proven method is always used
    #[arg(long, value_name = "YES|NO", value_parser = yes_or_no, num_args = 0..=1, default_missing_value = "yes")]
    persist_general: Option<bool>,
    /// Log to the system log
    #[arg(long, value_name = "YES|NO", value_parser = yes_or_no, num_args = 0..=1, default_missing_value = "yes")]
    use_syslog: Option<bool>,
    /// Log to this file if the system log is not used; standard error by default
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
    /// Lowest level to log
    #[arg(long, value_enum, value_name = "LEVEL", default_value_t = LogLevel::Error)]
    log_level: LogLevel,
    /// Address to accept the data connection on; by default the one that ssh connected to
    #[arg(long, value_name = "IP")]
    data_address: Option<IpAddr>,
    /// Ports to accept the data connection on, as FIRST-LAST, if a firewall allows only these
    #[arg(long, value_name = "PORTS", default_value_t, value_parser = parsed::<DataPorts>)]
    data_ports: DataPorts,
    /// Never sleep while waiting, for measurements
    #[arg(long, hide = true)]
    busy_poll: bool,
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("write yes or no".to_owned()),
    }
}

pub(crate) fn run(args: &RpmemdArgs) -> anyhow::Result<()> {
    let prepared = prepare(args);
    let Some(set) = &args.remove else {
        return prepared.inspect_err(refuse)?.serve();
    };
    Ok(pmof_target::remove_set(&prepared?.root, set, args.force, args.pool_set)?)
}

/// The exit code of a failed removal, an errno as librpmem expects it.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    let errno = error.downcast_ref::<SetStoreError>().map(|error| error.refusal().errno());
    errno.and_then(|errno| u8::try_from(errno).ok()).unwrap_or(1)
}

fn prepare(args: &RpmemdArgs) -> anyhow::Result<Prepared> {
    let files = ConfigFile::named_or_usual(args.settings.config.as_ref(), SYSTEM_CONFIG, USER_CONFIG);
    let given: Vec<OsString> = std::env::args_os().skip(1).collect();
    let matches = config::arguments(&RpmemdArgs::command(), &given, &files)?;
    let settings = Settings::from_arg_matches(&matches)?;
    if args.remove.is_none() {
        settings.start_log()?;
        let version = env!("CARGO_PKG_VERSION");
        log::info!(event = "started", version; "rpmemd version {version}");
    }
    let root = settings.poolset_dir.clone().map_or_else(home, with_home)?;
    Ok(Prepared { settings, root })
}

/// Reports to the initiator why no target starts.
fn refuse(error: &anyhow::Error) {
    // The peer does not send anything first.
    if std::io::stdin().is_terminal() {
        return;
    }
    let system = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>());
    let why = match error.downcast_ref::<ConfigError>() {
        Some(ConfigError::Read { source, .. }) => StartFailure::of(source),
        Some(ConfigError::Line { .. }) => StartFailure::Configuration,
        None => system.map_or(StartFailure::Configuration, StartFailure::of),
    };
    // The reason is printed to standard error even if this does not arrive.
    let _ = refuse_stdio(why, format!("{error:#}"), std::io::stdin().lock(), std::io::stdout().lock());
}

/// A target with its settings and its log.
struct Prepared {
    settings: Settings,
    root: PathBuf,
}

impl Prepared {
    fn serve(self) -> anyhow::Result<()> {
        let Self { settings, root } = self;
        let verbs = VerbsOptions::default().inbound_declared(settings.persist_apm == Some(true));
        let mut service = ServiceOptions::default().workers(settings.nthreads).verbs(verbs);
        if settings.busy_poll {
            service = service.waiting(Waiting::BusyPoll);
        }
        let (data_address, data_ports) = (settings.data_address, settings.data_ports);
        run_stdio(&root, StdioOptions::default().service(service).data_address(data_address).data_ports(data_ports))
    }
}

impl Settings {
    fn start_log(&self) -> anyhow::Result<()> {
        let log_to = match (&self.log_file, self.use_syslog) {
            (_, Some(true)) => LogTo::Syslog,
            (Some(file), _) => LogTo::File(file.clone()),
            _ => LogTo::Stderr,
        };
        logger::start("rpmemd", self.log_level, LogFormat::Text, &log_to).map(drop)
    }
}

/// A directory in which `$HOME` is replaced by the home directory.
fn with_home(path: PathBuf) -> anyhow::Result<PathBuf> {
    match path.to_str().and_then(|text| text.split_once("$HOME")) {
        Some((before, after)) => {
            let home = home()?;
            Ok([before.as_ref(), home.as_os_str(), after.as_ref()].into_iter().collect::<OsString>().into())
        }
        None => Ok(path),
    }
}
