//! `pmof serve --metrics`: what a target counts, for Prometheus and whatever else reads its text.

use std::{
    fmt,
    io::ErrorKind,
    net::{SocketAddr, ToSocketAddrs},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, UNIX_EPOCH},
};

use anyhow::{Context, anyhow};
use pmof::{
    Durability,
    access::DurationCounts,
    target::{Observer, PoolCounts, TargetMetrics},
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, NoLabelSet, text::encode},
    metrics::MetricType,
    registry::Registry,
};
use tiny_http::{Header, Method, Request, Response, Server};

/// The path under which Prometheus looks unless told otherwise.
const PATH: &str = "/metrics";

/// The media type of the text.
const CONTENT_TYPE: &str = "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Where metrics are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MetricsAddress {
    /// `HOST:PORT`.
    Net(String),
    /// An absolute path of a Unix socket.
    Path(PathBuf),
}

impl FromStr for MetricsAddress {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        if text.starts_with('/') {
            return Ok(Self::Path(text.into()));
        }
        let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
        match port {
            Some(Ok(_)) => Ok(Self::Net(text.to_owned())),
            _ => Err(anyhow!("write HOST:PORT, such as 127.0.0.1:7205, or the absolute path of a socket")),
        }
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Net(address) => write!(f, "http://{address}{PATH}"),
            Self::Path(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Serves metrics until it is dropped; then its socket is removed.
pub(super) struct MetricsServer {
    server: Arc<Server>,
    thread: Option<JoinHandle<()>>,
    socket: Option<PathBuf>,
}

impl MetricsServer {
    pub(super) fn start(address: &MetricsAddress, observer: Observer) -> anyhow::Result<Self> {
        let (server, socket) = listen(address).with_context(|| format!("cannot serve metrics at {address}"))?;
        let server = Arc::new(server);
        let here = Arc::clone(&server);
        let serve = move || here.incoming_requests().for_each(|request| answer(request, &observer));
        let thread = std::thread::Builder::new().name("pmof-metrics".to_owned()).spawn(serve);
        let thread = Some(thread.context("cannot start a thread; see the limit of processes (ulimit -u)")?);
        let at = match (address, server.server_addr().to_ip()) {
            // With the port that was picked.
            (MetricsAddress::Net(_), Some(address)) => MetricsAddress::Net(address.to_string()),
            _ => address.clone(),
        };
        log::info!(event = "metrics_listening", address:% = at; "metrics are served at {at}");
        Ok(Self { server, thread, socket })
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.server.unblock();
        // A panic was reported by the thread itself.
        let _ = self.thread.take().map(JoinHandle::join);
        // Where it is gone already nothing is left behind.
        let _ = self.socket.take().map(std::fs::remove_file);
    }
}

fn listen(address: &MetricsAddress) -> anyhow::Result<(Server, Option<PathBuf>)> {
    let started = match address {
        MetricsAddress::Net(address) => {
            let all: Vec<SocketAddr> = address.to_socket_addrs().context("the host has no address")?.collect();
            Server::http(&all[..]).map(|server| (server, None))
        }
        MetricsAddress::Path(path) => {
            remove_stale(path)?;
            Server::http_unix(path).map(|server| (server, Some(path.clone())))
        }
    };
    started.map_err(|error| anyhow!(error))
}

/// Removes the socket of a target that was killed.
fn remove_stale(path: &Path) -> anyhow::Result<()> {
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))
        }
        // In use, or not there; or something else, which listening says.
        _ => Ok(()),
    }
}

fn answer(request: Request, observer: &Observer) {
    let path = request.url().split('?').next().unwrap_or_default();
    let response = match (request.method(), path) {
        (Method::Get | Method::Head, PATH) => {
            let response = Response::from_string(text(observer.metrics()));
            CONTENT_TYPE.parse::<Header>().into_iter().fold(response, Response::with_header)
        }
        (Method::Get | Method::Head, _) => {
            Response::from_string(format!("metrics are at {PATH}\n")).with_status_code(404)
        }
        _ => Response::from_string("metrics can only be read\n").with_status_code(405),
    };
    // Whoever asked may be gone.
    let _ = request.respond(response);
}

fn text(metrics: TargetMetrics) -> String {
    let (mut registry, mut text) = (Registry::default(), String::new());
    registry.register_collector(Box::new(Metrics(metrics)));
    // A string takes all that is written to it.
    let _ = encode(&mut text, &registry);
    text
}

#[derive(Debug)]
struct Metrics(TargetMetrics);

impl Collector for Metrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        self.target(&mut page)?;
        self.connections(&mut page)?;
        self.requests(&mut page)?;
        self.operations(&mut page)
    }
}

impl Metrics {
    fn target(&self, page: &mut Page<'_>) -> fmt::Result {
        let TargetMetrics { started, status, pools, .. } = &self.0;
        let since = started.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64();
        page.gauge("start_time_seconds", "When the target was started, in seconds since 1970", since)?;
        page.gauge("root_readable", "1 if the room under the root could be looked at", f64::from(status.is_ok()))?;
        let PoolCounts { being_written, idle, unusable, .. } = *pools;
        page.gauges(
            "pools",
            "Pools under the root: being written, idle, or unusable (damaged, unreadable or of another version)",
            "state",
            [("being_written", being_written), ("idle", idle), ("unusable", unusable)],
        )?;
        let Ok(status) = status else { return Ok(()) };
        let versions = [
            ("version", status.version.clone()),
            ("protocol", status.protocol_version.to_string()),
            ("pool_format", status.pool_format.to_string()),
        ];
        // A gauge, as is usual: the older text knows no type for it.
        let help = "Always 1; its labels are the versions of the target";
        let mut build = page.0.encode_descriptor("pmof_build_info", help, None, MetricType::Gauge)?;
        build.encode_family(&versions)?.encode_gauge(&1_u64)?;
        page.gauge("draining", "1 if the target was told to stop", f64::from(status.is_draining))?;
        page.gauge("connections", "Connections", status.connections as f64)?;
        page.gauge("connections_max", "Connections that the target takes", status.max_connections as f64)?;
        page.gauge("connection_memory_bytes", "Memory that connections take", status.memory_bytes as f64)?;
        page.gauge(
            "connection_memory_budget_bytes",
            "Memory that connections may take",
            status.memory_budget_bytes as f64,
        )?;
        page.gauge("root_free_bytes", "Room that is left in the root's file system", status.free_bytes as f64)?;
        page.gauge("root_size_bytes", "Size of the root's file system", status.total_bytes as f64)
    }

    fn connections(&self, page: &mut Page<'_>) -> fmt::Result {
        let TargetMetrics { accepted, turned_away, left_open, .. } = &self.0;
        let counts = accepted.iter().map(|(transport, count)| (*transport, *count));
        page.counters("connections_accepted", "Connections that were taken", "transport", counts)?;
        let counts = turned_away.iter().map(|(reason, count)| (*reason, *count));
        page.counters("connections_refused", "Connections that were turned away", "reason", counts)?;
        page.counter("pools_left_open", "Connections that ended with a pool open", *left_open)
    }

    fn requests(&self, page: &mut Page<'_>) -> fmt::Result {
        let requests = &self.0.requests;
        let help = "Time to answer requests on pools (open, create, remove, ...), in seconds";
        let mut family = page.0.encode_descriptor("pmof_request_seconds", help, None, MetricType::Histogram)?;
        for (request, counts) in requests {
            let labels = [("request", *request)];
            encode_durations(&mut family.encode_family(&labels)?, &counts.durations)?;
        }
        let help = "Requests on pools that were refused";
        let mut family = page.0.encode_descriptor("pmof_requests_refused", help, None, MetricType::Counter)?;
        for (request, counts) in requests {
            for (reason, count) in &counts.refused {
                let labels = [("request", (*request).to_owned()), ("reason", snake_case(reason))];
                family.encode_family(&labels)?.encode_counter::<NoLabelSet, u64, f64>(count, None)?;
            }
        }
        Ok(())
    }

    fn operations(&self, page: &mut Page<'_>) -> fmt::Result {
        let TargetMetrics { operations, waits, .. } = &self.0;
        let counts = [("read", operations.reads), ("write", operations.writes), ("atomic", operations.atomics)];
        page.counters("operations", "Operations that came to the target", "operation", counts)?;
        page.counter("read_bytes", "Bytes that were read", operations.read_bytes)?;
        page.counter("written_bytes", "Bytes that were written", operations.written_bytes)?;
        let levels = Durability::ALL.map(snake_case);
        let counts = levels.iter().map(String::as_str).zip(operations.flushes);
        page.counters("flushes", "Flushes that were answered, by the level that they reached", "level", counts)?;
        let reasons: Vec<_> =
            operations.refusals.iter().map(|(refusal, count)| (snake_case(refusal), *count)).collect();
        let counts = reasons.iter().map(|(reason, count)| (reason.as_str(), *count));
        page.counters("operations_refused", "Operations that were refused", "reason", counts)?;
        let help =
            "Time that media took which flushes had to wait for, in seconds; flushes that wait together count once";
        let mut family = page.0.encode_descriptor("pmof_medium_wait_seconds", help, None, MetricType::Histogram)?;
        encode_durations(&mut family, waits)?;
        page.counter("medium_wait_failures", "Waits for media that failed", waits.failures)
    }
}

/// The text that is made; names get the prefix here.
struct Page<'e>(DescriptorEncoder<'e>);

impl Page<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let name = format!("pmof_{name}");
        self.0.encode_descriptor(&name, help, None, MetricType::Gauge)?.encode_gauge(&value)
    }

    fn gauges<'l>(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        values: impl IntoIterator<Item = (&'l str, u64)>,
    ) -> fmt::Result {
        let name = format!("pmof_{name}");
        let mut family = self.0.encode_descriptor(&name, help, None, MetricType::Gauge)?;
        values
            .into_iter()
            .try_for_each(|(of, value)| family.encode_family(&[(label, of)])?.encode_gauge(&(value as f64)))
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let name = format!("pmof_{name}");
        let mut metric = self.0.encode_descriptor(&name, help, None, MetricType::Counter)?;
        metric.encode_counter::<NoLabelSet, u64, f64>(&value, None)
    }

    fn counters<'l>(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        values: impl IntoIterator<Item = (&'l str, u64)>,
    ) -> fmt::Result {
        let name = format!("pmof_{name}");
        let mut family = self.0.encode_descriptor(&name, help, None, MetricType::Counter)?;
        values.into_iter().try_for_each(|(of, value)| {
            family.encode_family(&[(label, of)])?.encode_counter::<NoLabelSet, u64, f64>(&value, None)
        })
    }
}

fn encode_durations(
    metric: &mut prometheus_client::encoding::MetricEncoder<'_>,
    durations: &DurationCounts,
) -> fmt::Result {
    let class =
        |(limit, count): &(Option<Duration>, u64)| (limit.map_or(f64::INFINITY, |limit| limit.as_secs_f64()), *count);
    let classes: Vec<_> = durations.classes.iter().map(class).collect();
    metric.encode_histogram::<NoLabelSet>(durations.total.as_secs_f64(), durations.count, &classes, None)
}

/// The name of a variant, as labels are written.
fn snake_case(variant: impl fmt::Debug) -> String {
    let mut name = String::new();
    for (index, c) in format!("{variant:?}").char_indices() {
        if c.is_ascii_uppercase() && index > 0 {
            name.push('_');
        }
        name.push(c.to_ascii_lowercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use pmof::{PoolRefusal, access::Refusal};

    use super::*;

    #[test]
    fn labels_do_not_change() {
        assert_eq!(Durability::ALL.map(snake_case), ["visible", "process_crash", "power_failure"]);
        assert_eq!(snake_case(PoolRefusal::NotAUsablePool), "not_a_usable_pool");
        assert_eq!(snake_case(Refusal::OutOfBounds), "out_of_bounds");
    }

    #[test]
    fn an_address_is_a_host_with_a_port_or_an_absolute_path() {
        for right in ["127.0.0.1:7205", "localhost:0", "[::1]:7205"] {
            assert_eq!(right.parse::<MetricsAddress>().unwrap(), MetricsAddress::Net(right.to_owned()));
        }
        assert_eq!("/run/m".parse::<MetricsAddress>().unwrap(), MetricsAddress::Path("/run/m".into()));
        for wrong in ["7205", ":7205", "localhost", "localhost:http", "host:70000", "run/m", ""] {
            assert!(wrong.parse::<MetricsAddress>().is_err(), "{wrong}");
        }
    }
}
