//! `pmof serve --metrics`: what a target counts, for Prometheus and whatever else reads its text.

use std::{
    collections::VecDeque,
    fmt,
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::{
            fs::{FileTypeExt, MetadataExt},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    str::FromStr,
    thread::JoinHandle,
    time::{Duration, Instant, UNIX_EPOCH},
};

use anyhow::{Context, anyhow, ensure};
use pmof::Durability;
use pmof_access::DurationCounts;
use pmof_target::{Observer, PoolCounts, PoolHealth, TargetMetrics};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text::encode},
    metrics::MetricType,
    registry::Registry,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The path under which Prometheus looks unless told otherwise.
const PATH: &str = "/metrics";

/// The media type of the text.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Longer than the head of any scrape.
const HEAD_MAX_BYTES: usize = 8 << 10;

/// Time for one request and its answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Clients that are served at a time. The one that has been there longest gives way to one more, so that clients that say nothing keep nobody from
/// scraping.
const CLIENTS_MAX: usize = 64;

/// Time for a client to close once it has its answer.
const LINGER: Duration = Duration::from_millis(100);

/// Rest after the system refused a connection, for want of descriptors or memory.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// Bytes of a Unix socket's path (`sun_path` has 108, and its last is zero).
const SOCKET_PATH_MAX_BYTES: usize = 107;

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
            let len_bytes = text.len();
            ensure!(
                len_bytes <= SOCKET_PATH_MAX_BYTES,
                "the path of a Unix socket has at most {SOCKET_PATH_MAX_BYTES} bytes, and this one has {len_bytes}: choose a shorter one, such as /run/pmof-metrics.sock"
            );
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
    socket: Option<Socket>,
}

/// A Unix socket that this target has made.
struct Socket {
    path: PathBuf,
    identity: (u64, u64),
}

impl MetricsServer {
    /// `named_pools`: how many pools have metrics of their own, at most.
    pub(super) fn start(address: &MetricsAddress, observer: Observer, named_pools: usize) -> anyhow::Result<Self> {
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
            MetricsAddress::Path(path) => Some(Socket { path: path.clone(), identity: identity(path)? }),
        };
        let (stop, stopped) = UnixStream::pair().context("cannot make a pair of sockets")?;
        let source = Source { observer, named_pools };
        let serve = move || serve(&listener, &source, &stopped);
        let thread = std::thread::Builder::new().name("pmof-metrics".to_owned()).spawn(serve);
        let thread = Some(thread.context("cannot start a thread; see the limit of processes (ulimit -u)")?);
        log::info!(event = "metrics_listening", address:% = at; "metrics are served at {at}");
        Ok(Self { stop: Some(stop), thread, socket })
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        // It sees that at once. A panic was reported by the thread itself.
        let _ = self.thread.take().map(JoinHandle::join);
        let Some(socket) = self.socket.take() else { return };
        // What somebody else put there meanwhile stays.
        if identity(&socket.path).is_ok_and(|found| found == socket.identity) {
            // One that stays is replaced by the next target.
            let _ = std::fs::remove_file(&socket.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let file = std::fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
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
    fn accept(&self) -> io::Result<Stream> {
        // On Linux a connection does not inherit that its listener never waits.
        Ok(match self {
            Self::Net(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Stream::Net(stream)
            }
            Self::Path(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Stream::Path(stream)
            }
        })
    }
}

/// Removes the socket of a target that was killed, and nothing else.
fn remove_stale(path: &Path) -> anyhow::Result<()> {
    let file = match std::fs::symlink_metadata(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    // A connection to a file is refused as well.
    ensure!(file.file_type().is_socket(), "there is a file that is no socket; name a path where nothing is");
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).context("there is a socket that nobody listens on, and it cannot be removed")
        }
        // In use, which listening says.
        _ => Ok(()),
    }
}

#[derive(Debug)]
enum Stream {
    Net(TcpStream),
    Path(UnixStream),
}

impl Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Net(stream) => stream.read(into),
            Self::Path(stream) => stream.read(into),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Net(stream) => stream.write(bytes),
            Self::Path(stream) => stream.write(bytes),
        }
    }

    fn end_writing(&self) -> io::Result<()> {
        match self {
            Self::Net(stream) => stream.shutdown(Shutdown::Write),
            Self::Path(stream) => stream.shutdown(Shutdown::Write),
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Net(stream) => stream.as_fd(),
            Self::Path(stream) => stream.as_fd(),
        }
    }
}

/// What is served.
#[derive(Debug)]
struct Source {
    observer: Observer,
    named_pools: usize,
}

fn serve(listener: &Listener, source: &Source, stopped: &UnixStream) {
    let mut clients: Vec<Client> = Vec::new();
    loop {
        let now = Instant::now();
        clients.retain(|client| client.until > now);
        let first = clients.iter().map(|client| client.until - now).min();
        // A time that no clock can tell is none.
        let limit = first.and_then(|left| Timespec::try_from(left).ok());
        let mut waits = vec![
            PollFd::from_borrowed_fd(stopped.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
        ];
        waits.extend(clients.iter().map(|client| PollFd::from_borrowed_fd(client.stream.as_fd(), client.awaited())));
        let waited = poll(&mut waits, limit.as_ref());
        let came: Vec<_> = waits.iter().map(|wait| waited.is_ok() && !wait.revents().is_empty()).collect();
        if came[0] {
            return;
        }
        let mut of_clients = came[2..].iter();
        clients.retain_mut(|client| of_clients.next() != Some(&true) || client.goes_on(source));
        if !came[1] {
            continue;
        }
        match listener.accept() {
            Ok(stream) => {
                if clients.len() == CLIENTS_MAX {
                    clients.remove(0);
                }
                clients.push(Client { stream, step: Step::Request(Vec::new()), until: Instant::now() + PATIENCE });
            }
            Err(error) if is_for_now(&error) => {}
            Err(_) => std::thread::sleep(ACCEPT_REST),
        }
    }
}

fn is_for_now(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[derive(Debug)]
struct Client {
    stream: Stream,
    step: Step,
    until: Instant,
}

#[derive(Debug)]
enum Step {
    /// The head as far as it has come.
    Request(Vec<u8>),
    /// What has yet to be sent.
    Answer(VecDeque<u8>),
    /// What was not read of the request would turn the end into a reset, which takes the answer away.
    End,
}

impl Client {
    fn awaited(&self) -> PollFlags {
        match self.step {
            Step::Request(_) | Step::End => PollFlags::IN,
            Step::Answer(_) => PollFlags::OUT,
        }
    }

    /// Reads or writes what is possible now. False: it is done with, or gone.
    fn goes_on(&mut self, source: &Source) -> bool {
        self.advance(source).unwrap_or_else(|error| is_for_now(&error))
    }

    fn advance(&mut self, source: &Source) -> io::Result<bool> {
        let mut bytes = [0; 1024];
        match &mut self.step {
            Step::Request(head) => {
                let len_bytes = self.stream.read(&mut bytes)?;
                head.extend_from_slice(&bytes[..len_bytes]);
                if is_whole(head) {
                    self.step = Step::Answer(answer(head, source).into());
                } else if head.len() > HEAD_MAX_BYTES {
                    let page = page("431 Request Header Fields Too Large", "the request is too long\n");
                    self.step = Step::Answer(page.into());
                }
                Ok(len_bytes > 0)
            }
            Step::Answer(rest) => {
                let len_bytes = self.stream.write(rest.as_slices().0)?;
                rest.drain(..len_bytes);
                if rest.is_empty() {
                    self.stream.end_writing()?;
                    (self.step, self.until) = (Step::End, self.until.min(Instant::now() + LINGER));
                }
                Ok(true)
            }
            Step::End => Ok(self.stream.read(&mut bytes)? > 0),
        }
    }
}

/// Whether the request's head has come. A body is of no matter.
fn is_whole(head: &[u8]) -> bool {
    head.windows(4).any(|bytes| bytes == b"\r\n\r\n") || head.windows(2).any(|bytes| bytes == b"\n\n")
}

fn answer(head: &[u8], source: &Source) -> Vec<u8> {
    let line = head.split(|byte| *byte == b'\r' || *byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let is_http = words.next().is_some_and(|version| version.starts_with("HTTP/1."));
    let path = target.split('?').next().unwrap_or_default();
    match (is_http, method, path) {
        (false, ..) => page("400 Bad Request", "this is no request of HTTP/1\n"),
        (true, "GET", PATH) => page_of("200 OK", CONTENT_TYPE, &text(source.observer.metrics(), source.named_pools)),
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

fn text(mut metrics: TargetMetrics, named_pools: usize) -> String {
    metrics.health.truncate(named_pools);
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
        self.pools(&mut page)?;
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
        let PoolCounts { being_written, idle, unusable, degraded, unprotected, .. } = *pools;
        page.gauges(
            (
                "pools",
                "Pools under the root: being written, idle, or unusable (damaged, unreadable or of another version)",
            ),
            "state",
            [("being_written", being_written), ("idle", idle), ("unusable", unusable)],
        )?;
        page.gauge(
            "pools_degraded",
            "Pools that a member of is missing or behind, as far as the target knows",
            degraded as f64,
        )?;
        let help = "Pools of several members of which at most one has everything";
        page.gauge("pools_unprotected", help, unprotected as f64)?;
        let Ok(status) = status else { return Ok(()) };
        let help = "1 while the root's path leads to the directory that the target opened";
        page.gauge("root_attached", help, f64::from(status.is_root_attached))?;
        page.gauge("root_writable", "1 while pools can be made under the root", f64::from(status.is_root_writable))?;
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

    /// The pools named, at most a bounded number.
    fn pools(&self, page: &mut Page<'_>) -> fmt::Result {
        let health = &self.0.health;
        let mut family = |name, help, value: fn(&PoolHealth) -> u64| {
            page.gauges((name, help), "pool", health.iter().map(|pool| (pool.name.as_str(), value(pool))))
        };
        family("pool_members", "Members that are to have the pool's bytes as they are now", |pool| pool.members)?;
        family("pool_members_in_sync", "Members that have all that was acknowledged", |pool| pool.in_sync)?;
        family("pool_members_behind", "Members that catch up, or are too slow", |pool| pool.behind)?;
        family("pool_members_missing", "Members that are lost or were left out", |pool| pool.missing)?;
        let help = "1 if of several members at most one has everything";
        family("pool_unprotected", help, |pool| u64::from(pool.is_unprotected()))?;
        let scrubbed = health.iter().filter_map(|pool| {
            let since = pool.scrubbed?.duration_since(UNIX_EPOCH).ok()?;
            Some((pool.name.as_str(), since.as_secs()))
        });
        let help = "When the pool's writer told that it had scrubbed all of it, in seconds since 1970";
        page.gauges(("pool_last_scrub_timestamp_seconds", help), "pool", scrubbed)
    }

    fn connections(&self, page: &mut Page<'_>) -> fmt::Result {
        let TargetMetrics { accepted, turned_away, left_open, files_lost, .. } = &self.0;
        let counts = accepted.iter().map(|(transport, count)| (*transport, *count));
        page.counters(("connections_accepted", "Connections that were taken"), "transport", counts)?;
        let counts = turned_away.iter().map(|(reason, count)| (*reason, *count));
        page.counters(("connections_refused", "Connections that were turned away"), "reason", counts)?;
        page.counter("pools_left_open", "Connections that ended with a pool open for writing", *left_open)?;
        let help = "Pools whose file was removed or replaced by another process while they were open for writing";
        page.counter("pool_files_lost", help, *files_lost)
    }

    fn requests(&self, page: &mut Page<'_>) -> fmt::Result {
        let requests = &self.0.requests;
        let help = "Time to answer requests on pools (open, create, remove, ...), in seconds";
        let mut family = page.0.encode_descriptor("request_seconds", help, None, MetricType::Histogram)?;
        for (request, counts) in requests.iter().filter(|(_, counts)| counts.durations.count > 0) {
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
    use pmof::PoolRefusal;
    use pmof_access::Refusal;

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
