//! How commands that start targets of their own reach them.

use std::{net::IpAddr, path::Path, time::Duration};

use anyhow::{Result, ensure};
use pmof::{Pool, PoolOptions, SetOptions, SshOptions, TargetOptions};
use pmof_access::Transport;
use pmof_pool_set::PoolSet;

use crate::{
    children::Target,
    trust::{self, TrustArgs},
    words::{self, MethodName},
};

/// How long targets are waited for.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct ConnectArgs {
    /// Time for a target to answer, and for ssh to log in and start one [default: 5s, through ssh 30s]
    #[arg(long, value_name = "TIME", global = true, value_parser = words::times(Duration::from_millis(1)..=Duration::from_secs(86_400)))]
    connect_timeout: Option<Duration>,
    #[command(flatten)]
    trust: TrustArgs,
}

impl ConnectArgs {
    /// Of pools of targets.
    pub fn pools(self) -> PoolOptions {
        let options = trust::pool_options().ssh(self.ssh());
        match self.timeout() {
            Some(timeout) => options.connect_timeout(timeout),
            None => options,
        }
    }

    /// Of replicas of pool sets, each for itself.
    pub fn remotes(self) -> TargetOptions {
        let options = trust::target_options().ssh(self.ssh());
        match self.timeout() {
            Some(timeout) => options.connect_timeout(timeout),
            None => options,
        }
    }

    /// Which users' targets are trusted.
    pub fn trust(self) -> TrustArgs {
        self.trust
    }

    fn ssh(self) -> SshOptions {
        let options = SshOptions::from_env();
        match self.timeout() {
            Some(timeout) => options.timeout(timeout),
            None => options,
        }
    }

    fn timeout(self) -> Option<Duration> {
        self.connect_timeout
    }

    /// Of pool sets.
    pub fn set(self, set: PoolSet) -> SetOptions {
        Pool::from_set(set).target(self.remotes())
    }
}

/// Where targets of the command itself listen.
#[derive(Clone, Debug, clap::Args)]
pub struct ReachArgs {
    /// What carries the bytes
    #[arg(long, value_parser = words::transports(), default_value_t = Transport::Tcp)]
    pub transport: Transport,
    /// Address of this machine that the targets listen on; verbs needs one that belongs to an RDMA device [default:
    /// 127.0.0.1]
    #[arg(long, value_name = "IP")]
    pub address: Option<IpAddr>,
    /// Local address to come from, where routing does not decide it; verbs and RDS only
    #[arg(long, value_name = "IP")]
    pub source: Option<IpAddr>,
    /// The only method of flush to use; the cheapest that gives the durability unless given
    #[arg(long, value_enum, value_name = "METHOD")]
    pub method: Option<MethodName>,
    /// Which users' targets are trusted.
    #[command(flatten)]
    pub trust: TrustArgs,
}

impl ReachArgs {
    /// Fails where the options contradict each other.
    pub fn check(&self) -> Result<()> {
        let transport = self.transport;
        ensure!(
            matches!(transport, Transport::Verbs | Transport::Rds) || self.source.is_none(),
            "--source is for --transport verbs and rds: other transports leave it to routing"
        );
        ensure!(
            transport != Transport::Verbs || self.address.is_some(),
            "--transport verbs needs --address IP: one of this machine that belongs to an RDMA device (`rdma link`)"
        );
        ensure!(
            transport != Transport::Shm || self.address.is_none(),
            "--address is not for --transport shm: its targets are found through a socket of this machine"
        );
        Ok(())
    }

    /// Starts a target for `root`; `more` are further options of `pmof serve`.
    pub fn start_target(&self, root: &Path, more: &[&str]) -> Result<Target> {
        let address = self.address.unwrap_or(IpAddr::from([127, 0, 0, 1]));
        let host = if address.is_ipv6() { format!("[{address}]") } else { address.to_string() };
        let options = self.serve_options(more);
        match self.transport {
            Transport::Shm => Target::start_on_socket(root, &options),
            other => Target::start(root, &format!("{}://{host}:0", other.scheme()), &options),
        }
    }

    /// Starts a killed target again for `root`, where it was.
    pub fn restart_target(&self, target: &mut Target, root: &Path, more: &[&str]) -> Result<()> {
        target.restart(root, &self.serve_options(more))
    }

    fn serve_options<'a>(&self, more: &[&'a str]) -> Vec<&'a str> {
        let mut options = more.to_vec();
        if self.address.is_some_and(|address| !address.is_loopback()) {
            options.push("--trust-network");
        }
        options
    }

    /// The URL of a pool at a target of this transport.
    pub fn pool_url(&self, address: &str, name: &str) -> String {
        let url = words::pool_url(self.transport, address, name);
        match self.source {
            Some(source) => format!("{url}?source={source}"),
            None => url,
        }
    }

    /// How pools are opened.
    pub fn pool_options(&self) -> PoolOptions {
        MethodName::force(self.method, trust::pool_options())
    }
}

/// A device for `pmof serve --device`.
pub fn device_option(pool: &str, device: &Path) -> Result<String> {
    ensure!(device.to_str().is_some(), "{} is not UTF-8; link to it under another name", device.display());
    Ok(format!("--device={pool}={}", device.display()))
}

#[cfg(test)]
mod tests {
    use pmof::PoolUrl;

    use super::*;

    fn reach(transport: Transport, address: Option<&str>, source: Option<&str>) -> ReachArgs {
        let parse = |text: &str| text.parse().unwrap();
        ReachArgs {
            transport,
            address: address.map(parse),
            source: source.map(parse),
            method: None,
            trust: TrustArgs::default(),
        }
    }

    #[test]
    fn urls_are_those_that_pools_understand() {
        for (reach, address, expected) in [
            (reach(Transport::Tcp, None, None), "tcp://127.0.0.1:1", "tcp://127.0.0.1:1/a"),
            (reach(Transport::Shm, None, None), "shm:///run/a.sock", "shm:///run/a.sock?pool=a"),
            (
                reach(Transport::Verbs, Some("10.0.0.2"), Some("10.0.0.1")),
                "verbs://10.0.0.2:1",
                "verbs://10.0.0.2:1/a?source=10.0.0.1",
            ),
            (
                reach(Transport::Rds, Some("10.0.0.2"), Some("10.0.0.1")),
                "rds://10.0.0.2:1",
                "rds://10.0.0.2:1/a?source=10.0.0.1",
            ),
        ] {
            reach.check().unwrap();
            let url = reach.pool_url(address, "a");
            assert_eq!(url, expected);
            assert_eq!(url.parse::<PoolUrl>().unwrap().to_string(), expected);
        }
    }

    #[test]
    fn contradictions_are_refused() {
        for wrong in [
            reach(Transport::Tcp, None, Some("10.0.0.1")),
            reach(Transport::Shm, Some("10.0.0.1"), None),
            reach(Transport::Verbs, None, None),
        ] {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
    }
}
