//! The target's end of an ssh session: `pmof serve --stdio`.

use std::{
    fmt,
    io::{self, Read, Write},
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    os::fd::AsFd,
    path::Path,
    str::FromStr,
    time::{Duration, Instant},
};

use pmof_bootstrap::Secret;
use pmof_bootstrap::{Greeting, HELLO_BYTES, Hello, HelloError, STDIO_VERSION, StartFailure};
use pmof_mem::causes;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use pmof_access::{Address, LocalEnd, Location, Peer, Place, SetupError, Transport, VerbsOptions};

use crate::{Identity, Service, ServiceError, ServiceOptions, StoreError, service::Admission};

/// Time for the initiator's connection to come and prove the secret.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(60);

/// How often it is looked whether that connection is there still.
const LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Connections of one session, at most: one is authenticated, and the others never are.
const SESSION_CONNECTIONS: usize = 64;

/// Ports that a session may listen on, as `FIRST-LAST` or one number; 0 stands for any that is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataPorts(RangeInclusive<u16>);

/// Why a text names no ports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} names no ports: write FIRST-LAST, such as 7300-7399, or one port")]
pub struct DataPortsError {
    /// What was given.
    pub text: String,
}

impl Default for DataPorts {
    fn default() -> Self {
        Self(0..=0)
    }
}

impl FromStr for DataPorts {
    type Err = DataPortsError;

    fn from_str(text: &str) -> Result<Self, DataPortsError> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.trim().parse(), last.trim().parse()) {
            (Ok(first), Ok(last)) if first <= last && (first > 0 || last == 0) => Ok(Self(first..=last)),
            _ => Err(DataPortsError { text: text.to_owned() }),
        }
    }
}

impl fmt::Display for DataPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0.start(), self.0.end())
    }
}

/// How a target that was started through ssh behaves.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct StdioOptions {
    /// The service. Its admission and the rule about addresses that other machines reach are the session's own.
    pub service: ServiceOptions,
    /// Where to listen for the data path; else the address that the initiator's ssh came to (`SSH_CONNECTION`), else
    /// 127.0.0.1.
    pub data_address: Option<IpAddr>,
    /// Ports for it, for firewalls; any unless told otherwise. Each transport of a session takes one.
    pub data_ports: DataPorts,
}

impl StdioOptions {
    /// Sets [`service`](Self#structfield.service).
    #[must_use]
    pub fn service(mut self, service: ServiceOptions) -> Self {
        self.service = service;
        self
    }

    /// Sets [`data_address`](Self#structfield.data_address).
    #[must_use]
    pub fn data_address(mut self, data_address: impl Into<Option<IpAddr>>) -> Self {
        self.data_address = data_address.into();
        self
    }

    /// Sets [`data_ports`](Self#structfield.data_ports).
    #[must_use]
    pub fn data_ports(mut self, data_ports: DataPorts) -> Self {
        self.data_ports = data_ports;
        self
    }
}

/// Why a session failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StdioError {
    /// What came is no initiator, or one of another version.
    #[error(transparent)]
    Hello(#[from] HelloError),
    /// Standard input or output.
    #[error("the session's {stream} failed")]
    Stream {
        /// Which.
        stream: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// It is not known where the initiator reaches this machine.
    #[error(
        "ssh came to {address:?}, which is no address to listen on; name one with --data-address (data-address in the configuration)"
    )]
    NoDataAddress {
        /// What `SSH_CONNECTION` says.
        address: String,
    },
    /// The service did not start.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// The initiator is gone, or was never there, and its pool was not closed.
    #[error("the initiator ended {}; look on its machine for the reason", if *has_come { "without closing its pool" } else { "before it connected" })]
    Left {
        /// It had connected.
        has_come: bool,
    },
    /// The system gave no random bytes.
    #[error("no random bytes for the session's secret")]
    Random(#[from] getrandom::Error),
}

/// Serves one session: answers the initiator on `output`, serves its data connection, and returns when `input` ends, when that
/// connection has ended, or when there is none after a minute.
///
/// Nothing is told to a connection before it proved the secret that was handed over on `output`, and only one connection may.
pub fn serve_stdio(
    root: &Path,
    options: StdioOptions,
    mut input: impl Read + AsFd,
    mut output: impl Write,
) -> Result<(), StdioError> {
    let hello = hello(&mut input, &mut output)?;
    let started = start(root, options, &hello);
    let (service, greeting) = match started {
        Ok((service, greeting)) => (service, greeting),
        Err(error) => {
            say(
                &mut output,
                &Greeting::Failed { why: error.start_failure(), text: causes(&error).to_string() },
                &hello.nonce,
            )?;
            return Err(error);
        }
    };
    say(&mut output, &greeting, &hello.nonce)?;
    let since = Instant::now();
    let mut rest = [0; 512];
    loop {
        // The initiator's machine may be gone without a word: then its connection ends long before ssh does.
        if service.has_served() || (!service.has_admitted() && since.elapsed() > ARRIVAL_TIMEOUT) {
            return ended(&service);
        }
        match poll(&mut [PollFd::new(&input, PollFlags::IN)], Some(&LOOK)) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(errno) => return Err(StdioError::Stream { stream: "standard input", source: errno.into() }),
        }
        // Nothing more is said; its end is the session's.
        match input.read(&mut rest) {
            Ok(0) => return ended(&service),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(StdioError::Stream { stream: "standard input", source }),
        }
    }
}

/// Answers the initiator of a target that cannot start, for a reason that its caller knows.
pub fn refuse_stdio(
    why: StartFailure,
    text: String,
    mut input: impl Read,
    mut output: impl Write,
) -> Result<(), StdioError> {
    let hello = hello(&mut input, &mut output)?;
    say(&mut output, &Greeting::Failed { why, text }, &hello.nonce)
}

/// What the initiator says first. One of another version is told so.
fn hello(input: &mut impl Read, output: &mut impl Write) -> Result<Hello, StdioError> {
    let mut hello = [0; HELLO_BYTES];
    input.read_exact(&mut hello).map_err(|source| match source.kind() {
        io::ErrorKind::UnexpectedEof => StdioError::Hello(HelloError::NotAHello),
        _ => StdioError::Stream { stream: "standard input", source },
    })?;
    Hello::decode(&hello).map_err(|error| {
        if let HelloError::OtherVersion { nonce, .. } = &error {
            if let Err(error) = say(output, &Greeting::OtherVersion { version: STDIO_VERSION }, nonce) {
                return error;
            }
        }
        error.into()
    })
}

/// How a session ended: well, if the initiator came and closed what it had opened.
fn ended(service: &Service) -> Result<(), StdioError> {
    let has_come = service.has_admitted();
    if has_come && !service.was_left_open() { Ok(()) } else { Err(StdioError::Left { has_come }) }
}

impl StdioError {
    fn start_failure(&self) -> StartFailure {
        match self {
            Self::NoDataAddress { .. } => StartFailure::Configuration,
            Self::Service(ServiceError::Store(StoreError::Root { source, .. })) => StartFailure::of(source),
            Self::Service(ServiceError::Store(StoreError::NotWritable { .. })) => StartFailure::NotPermitted,
            _ => StartFailure::Other,
        }
    }
}

fn say(output: &mut impl Write, greeting: &Greeting, nonce: &[u8; 16]) -> Result<(), StdioError> {
    output
        .write_all(&greeting.encode(nonce))
        .and_then(|()| output.flush())
        .map_err(|source| StdioError::Stream { stream: "standard output", source })
}

fn start(root: &Path, options: StdioOptions, hello: &Hello) -> Result<(Service, Greeting), StdioError> {
    let secret = Secret::generate()?;
    let StdioOptions { mut service, data_address, data_ports } = options;
    let host = data_address.map_or_else(address_of_session, Ok)?;
    let is_served = |transport: &Transport| match transport.descriptor().local_end {
        LocalEnd::Device => serves_verbs(host, &service.verbs),
        _ => serves(*transport, host),
    };
    let identity = Identity::SshUser { user_id: rustix::process::getuid().as_raw() };
    service.admission = Admission::Secret { secret, identity };
    // Whoever comes has to prove the secret.
    service.trust_network = true;
    service.max_connections = service.max_connections.min(SESSION_CONNECTIONS);
    let best = hello.transports().find(is_served).unwrap_or(Transport::Tcp);
    // A domain of libfabric was asked for and is there; the way to a device or a bound socket may not be.
    let beside = (!matches!(best.descriptor().local_end, LocalEnd::Domain | LocalEnd::Any)).then_some(Transport::Tcp);
    let transports: Vec<_> = [Some(best), beside].into_iter().flatten().collect();
    let mut ports = data_ports.0;
    loop {
        let port = ports.next().unwrap_or(0);
        // What meets over a TCP connection has the port: tcp takes the next one, or is left out where that is the last.
        let has_port = port != 0 && best.descriptor().greeting_magic.is_some();
        let second = if has_port { ports.clone().next() } else { Some(port) };
        let listen = |(transport, port)| Address { transport, place: Place::Host { host: host.to_string(), port } };
        let ports_of_each = [Some(port), second].into_iter().flatten();
        let addresses: Vec<_> = transports.iter().copied().zip(ports_of_each).map(listen).collect();
        match Service::start(root, &addresses, service.clone()) {
            Ok(service) => {
                let addresses = service.addresses().to_vec();
                return Ok((service, Greeting::Ready { secret, addresses }));
            }
            // Another session has it.
            Err(ServiceError::Setup(SetupError::Listen { source, .. }))
                if source.kind() == io::ErrorKind::AddrInUse && !ports.is_empty() => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The address of this machine that the initiator's ssh came to: it reached it once. Without ssh it is this machine.
fn address_of_session() -> Result<IpAddr, StdioError> {
    let connection = std::env::var("SSH_CONNECTION").unwrap_or_default();
    // Client's address and port, this side's address and port.
    match connection.split_whitespace().nth(2) {
        Some(address) => address.parse().map_err(|_| StdioError::NoDataAddress { address: address.to_owned() }),
        None => Ok(IpAddr::from([127, 0, 0, 1])),
    }
}

/// Whether an RDMA device has the address.
fn serves_verbs(host: IpAddr, options: &VerbsOptions) -> bool {
    let device = pmof_access::DeviceChoice::Local(host);
    listens(Peer::open_verbs(&options.clone().device(device)), host)
}

/// Whether a transport without options of its own works at the address.
fn serves(transport: Transport, host: IpAddr) -> bool {
    listens(Peer::open_at(transport, host), host)
}

fn listens(peer: Result<Peer, SetupError>, host: IpAddr) -> bool {
    let location = Location::from(SocketAddr::from((host, 0)));
    let options = pmof_access::ListenOptions::default().trust_network(true);
    peer.and_then(|peer| peer.listen(location, options)).is_ok()
}
