//! `pmof serve --metrics`: what a target counts, for Prometheus and whatever else reads its text.

use std::{
    fmt,
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::fd::{AsFd, BorrowedFd},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    str::FromStr,
    thread::JoinHandle,
    time::{Duration, Instant, UNIX_EPOCH},
};

use anyhow::{Context, anyhow};
use pmof::{
    Durability,
    access::DurationCounts,
    target::{Observer, PoolCounts, TargetMetrics},
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text::encode},
    metrics::MetricType,
    registry::Registry,
};
use rustix::event::{PollFd, PollFlags, poll};

/// The path under which Prometheus looks unless told otherwise.
const PATH: &str = "/metrics";

/// The media type of the text.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Longer than the head of any scrape.
const HEAD_MAX_BYTES: usize = 8 << 10;

/// Time for one request and its answer: nobody else is answered meanwhile, and stopping waits for it.
const PATIENCE: Duration = Duration::from_secs(2);

/// Time for a client to close once it has its answer.
const LINGER: Duration = Duration::from_millis(100);

/// Rest after the system refused a connection, for want of descriptors or memory.
const ACCEPT_REST: Duration = Duration::from_millis(50);

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
    /// The thread ends when this is dropped.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    socket: Option<PathBuf>,
}

impl MetricsServer {
    pub(super) fn start(address: &MetricsAddress, observer: Observer) -> anyhow::Result<Self> {
        let listener = Listener::bind(address).with_context(|| format!("cannot serve metrics at {address}"))?;
        let at = match (address, &listener) {
            // With the port that was picked.
            (MetricsAddress::Net(_), Listener::Net(listener)) => {
                MetricsAddress::Net(listener.local_addr()?.to_string())
            }
            _ => address.clone(),
        };
        let socket = match address {
            MetricsAddress::Net(_) => None,
            MetricsAddress::Path(path) => Some(path.clone()),
        };
        let (stop, stopped) = UnixStream::pair().context("cannot make a pair of sockets")?;
        let serve = move || serve(&listener, &observer, &stopped);
        let thread = std::thread::Builder::new().name("pmof-metrics".to_owned()).spawn(serve);
        let thread = Some(thread.context("cannot start a thread; see the limit of processes (ulimit -u)")?);
        log::info!(event = "metrics_listening", address:% = at; "metrics are served at {at}");
        Ok(Self { stop: Some(stop), thread, socket })
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        // It sees that between two connections, and gives each of them little time. A panic was reported by the thread itself.
        let _ = self.thread.take().map(JoinHandle::join);
        // Where it is gone already nothing is left behind.
        let _ = self.socket.take().map(std::fs::remove_file);
    }
}

#[derive(Debug)]
enum Listener {
    Net(TcpListener),
    Path(UnixListener),
}

impl Listener {
    fn bind(address: &MetricsAddress) -> anyhow::Result<Self> {
        let listener = match address {
            MetricsAddress::Net(address) => Self::Net(TcpListener::bind(address)?),
            MetricsAddress::Path(path) => {
                remove_stale(path)?;
                Self::Path(UnixListener::bind(path)?)
            }
        };
        match &listener {
            Self::Net(listener) => listener.set_nonblocking(true)?,
            Self::Path(listener) => listener.set_nonblocking(true)?,
        }
        Ok(listener)
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Net(listener) => listener.as_fd(),
            Self::Path(listener) => listener.as_fd(),
        }
    }

    /// The next one who waits, if there is one.
    fn accept(&self) -> io::Result<Client> {
        // On Linux a connection does not inherit that its listener never waits.
        Ok(match self {
            Self::Net(listener) => Client::Net(listener.accept()?.0),
            Self::Path(listener) => Client::Path(listener.accept()?.0),
        })
    }
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

#[derive(Debug)]
enum Client {
    Net(TcpStream),
    Path(UnixStream),
}

/// One after the other: whoever scrapes comes every few seconds, and one who is slow has [`PATIENCE`].
fn serve(listener: &Listener, observer: &Observer, stopped: &UnixStream) {
    loop {
        let (listening, stopping) = (listener.as_fd(), stopped.as_fd());
        let mut waits =
            [PollFd::from_borrowed_fd(listening, PollFlags::IN), PollFd::from_borrowed_fd(stopping, PollFlags::IN)];
        let waited = poll(&mut waits, None);
        if !waits[1].revents().is_empty() {
            return;
        }
        match waited.map_err(io::Error::from).and_then(|_| listener.accept()) {
            // Whoever asked may be gone, or too slow.
            Ok(client) => drop(client.serve(observer)),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => std::thread::sleep(ACCEPT_REST),
        }
    }
}

impl Client {
    fn serve(mut self, observer: &Observer) -> io::Result<()> {
        let until = Instant::now() + PATIENCE;
        let mut head = Vec::new();
        while !is_whole(&head) {
            if head.len() > HEAD_MAX_BYTES {
                return self.write(until, &page("431 Request Header Fields Too Large", "the request is too long\n"));
            }
            let mut bytes = [0; 1024];
            match self.read(until, &mut bytes)? {
                0 => return Ok(()),
                len_bytes => head.extend_from_slice(&bytes[..len_bytes]),
            }
        }
        let answer = answer(&head, observer);
        self.write(until, &answer)
    }

    /// No single call waits beyond `until`.
    fn limit(&self, until: Instant) -> io::Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        match self {
            Self::Net(stream) => {
                stream.set_read_timeout(Some(left))?;
                stream.set_write_timeout(Some(left))
            }
            Self::Path(stream) => {
                stream.set_read_timeout(Some(left))?;
                stream.set_write_timeout(Some(left))
            }
        }
    }

    fn read(&mut self, until: Instant, into: &mut [u8]) -> io::Result<usize> {
        self.limit(until)?;
        match self {
            Self::Net(stream) => stream.read(into),
            Self::Path(stream) => stream.read(into),
        }
    }

    fn write(&mut self, until: Instant, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.limit(until)?;
            let len_bytes = match self {
                Self::Net(stream) => stream.write(bytes)?,
                Self::Path(stream) => stream.write(bytes)?,
            };
            bytes = &bytes[len_bytes..];
        }
        // What was not read of the request would turn the end into a reset, which takes the answer away.
        let end = |stream: &mut dyn Read| {
            let mut rest = [0; 1024];
            let _ = stream.read(&mut rest);
        };
        self.limit(until.min(Instant::now() + LINGER))?;
        match self {
            Self::Net(stream) => {
                stream.shutdown(Shutdown::Write)?;
                end(stream);
            }
            Self::Path(stream) => {
                stream.shutdown(Shutdown::Write)?;
                end(stream);
            }
        }
        Ok(())
    }
}

/// Whether the request's head has come. A body is of no matter.
fn is_whole(head: &[u8]) -> bool {
    head.windows(4).any(|bytes| bytes == b"\r\n\r\n") || head.windows(2).any(|bytes| bytes == b"\n\n")
}

fn answer(head: &[u8], observer: &Observer) -> Vec<u8> {
    let line = head.split(|byte| *byte == b'\r' || *byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let is_http = words.next().is_some_and(|version| version.starts_with("HTTP/1."));
    let path = target.split('?').next().unwrap_or_default();
    match (is_http, method, path) {
        (false, ..) => page("400 Bad Request", "this is no request of HTTP/1\n"),
        (true, "GET", PATH) => page_of("200 OK", CONTENT_TYPE, &text(observer.metrics())),
        (true, "GET", _) => page("404 Not Found", &format!("metrics are at {PATH}\n")),
        _ => page("405 Method Not Allowed", "metrics can only be read, with GET\n"),
    }
}

fn page(status: &str, text: &str) -> Vec<u8> {
    page_of(status, "text/plain; charset=utf-8", text)
}

fn page_of(status: &str, content_type: &str, text: &str) -> Vec<u8> {
    let len_bytes = text.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len_bytes}\r\nConnection: close\r\n\r\n"
    );
    (head + text).into_bytes()
}

fn text(metrics: TargetMetrics) -> String {
    let (mut registry, mut text) = (Registry::with_prefix("pmof"), String::new());
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
            (
                "pools",
                "Pools under the root: being written, idle, or unusable (damaged, unreadable or of another version)",
            ),
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
        let mut build = page.0.encode_descriptor("build_info", help, None, MetricType::Gauge)?;
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
        page.counters(("connections_accepted", "Connections that were taken"), "transport", counts)?;
        let counts = turned_away.iter().map(|(reason, count)| (*reason, *count));
        page.counters(("connections_refused", "Connections that were turned away"), "reason", counts)?;
        page.counter("pools_left_open", "Connections that ended with a pool open", *left_open)
    }

    fn requests(&self, page: &mut Page<'_>) -> fmt::Result {
        let requests = &self.0.requests;
        let help = "Time to answer requests on pools (open, create, remove, ...), in seconds";
        let mut family = page.0.encode_descriptor("request_seconds", help, None, MetricType::Histogram)?;
        for (request, counts) in requests {
            let labels = [("request", *request)];
            encode_durations(&mut family.encode_family(&labels)?, &counts.durations)?;
        }
        let help = "Requests on pools that were refused";
        let mut family = page.0.encode_descriptor("requests_refused", help, None, MetricType::Counter)?;
        for (request, counts) in requests {
            for (reason, count) in &counts.refused {
                let labels = [("request", (*request).to_owned()), ("reason", snake_case(reason))];
                encode_counter(family.encode_family(&labels)?, *count)?;
            }
        }
        Ok(())
    }

    fn operations(&self, page: &mut Page<'_>) -> fmt::Result {
        let TargetMetrics { operations, waits, .. } = &self.0;
        let counts = [("read", operations.reads), ("write", operations.writes), ("atomic", operations.atomics)];
        page.counters(("operations", "Operations that came to the target"), "operation", counts)?;
        page.counter("read_bytes", "Bytes that were read", operations.read_bytes)?;
        page.counter("written_bytes", "Bytes that were written", operations.written_bytes)?;
        let levels = Durability::ALL.map(snake_case);
        let counts = levels.iter().map(String::as_str).zip(operations.flushes);
        page.counters(("flushes", "Flushes that were answered, by the level that they reached"), "level", counts)?;
        let reasons: Vec<_> =
            operations.refusals.iter().map(|(refusal, count)| (snake_case(refusal), *count)).collect();
        let counts = reasons.iter().map(|(reason, count)| (reason.as_str(), *count));
        page.counters(("operations_refused", "Operations that were refused"), "reason", counts)?;
        let help =
            "Time that media took which flushes had to wait for, in seconds; flushes that wait together count once";
        let mut family = page.0.encode_descriptor("medium_wait_seconds", help, None, MetricType::Histogram)?;
        encode_durations(&mut family, waits)?;
        page.counter("medium_wait_failures", "Waits for media that failed", waits.failures)
    }
}

/// The text that is made.
struct Page<'e>(DescriptorEncoder<'e>);

impl Page<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        self.0.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
    }

    fn gauges<'l>(
        &mut self,
        about: (&str, &str),
        label: &'static str,
        values: impl IntoIterator<Item = (&'l str, u64)>,
    ) -> fmt::Result {
        self.family(about, MetricType::Gauge, label, values, |mut metric, value| metric.encode_gauge(&value))
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        encode_counter(self.0.encode_descriptor(name, help, None, MetricType::Counter)?, value)
    }

    fn counters<'l>(
        &mut self,
        about: (&str, &str),
        label: &'static str,
        values: impl IntoIterator<Item = (&'l str, u64)>,
    ) -> fmt::Result {
        self.family(about, MetricType::Counter, label, values, encode_counter)
    }

    fn family<'l>(
        &mut self,
        (name, help): (&str, &str),
        of: MetricType,
        label: &'static str,
        values: impl IntoIterator<Item = (&'l str, u64)>,
        encode: impl Fn(MetricEncoder<'_>, u64) -> fmt::Result,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, of)?;
        values.into_iter().try_for_each(|(of, value)| encode(family.encode_family(&[(label, of)])?, value))
    }
}

fn encode_counter(mut metric: MetricEncoder<'_>, value: u64) -> fmt::Result {
    metric.encode_counter::<NoLabelSet, u64, f64>(&value, None)
}

fn encode_durations(metric: &mut MetricEncoder<'_>, durations: &DurationCounts) -> fmt::Result {
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
