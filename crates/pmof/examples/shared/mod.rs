//! What every example needs and none is about: the command line, the opening of either side, and memory for a target.
#![allow(dead_code, reason = "no example needs all of it")]

use std::{env, error::Error, fmt, net::IpAddr, path::Path, process::ExitCode, sync::Arc, time::Duration};

use pmof::{
    access::{
        Address, ConnectOptions, Connection, ConnectionEvent, ConnectionRequest, ListenOptions, Listener, Medium,
        Memory, Outcome, Peer, Ticket,
    },
    causes,
    mem::MemError,
};

/// What may go wrong: each error of pmof says on what, why, and what to do.
pub(crate) type Failure = Box<dyn Error>;

/// Longer than anything takes between two sides that are there.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Longer than anybody takes to start the other side by hand.
const ARRIVAL: Duration = Duration::from_secs(600);

/// Bytes of a file that an example makes.
const FILE_BYTES: u64 = 1 << 20;

/// The first bytes of a file or device that belongs to an example.
const MARK: &[u8; 8] = b"PMOFEXMP";

/// Where an example's own bytes begin there.
pub(crate) const DATA_OFFSET: u64 = 4096;

/// The command line, once it is understood.
#[derive(Debug)]
pub(crate) struct Arguments {
    pub(crate) address: Address,
    /// What follows the address.
    pub(crate) more: Vec<String>,
    source: Option<IpAddr>,
    trust_network: bool,
}

/// One side of an example: what may follow the address on its command line, and what it does.
pub(crate) type Side = (&'static str, fn(&Arguments) -> Result<(), Failure>);

/// Runs the side that the command line asks for. The exit code is 2 where it is not understood, and 1 after an error.
pub(crate) fn run(target: Side, initiator: Side) -> ExitCode {
    let name = env::args().next().unwrap_or_default();
    let name = Path::new(&name).file_name().unwrap_or_default().to_string_lossy();
    let mut words: Vec<String> = env::args().skip(1).collect();
    let serves = words.first().is_some_and(|word| word == "serve");
    let (more, act) = if serves { target } else { initiator };
    if serves {
        words.remove(0);
    }
    let arguments = Arguments::parse(words, serves, more.split_whitespace().count());
    let Err(error) = arguments.map_err(misuse).and_then(|arguments| act(&arguments)) else {
        return ExitCode::SUCCESS;
    };
    eprintln!("{name}: {}", causes(&*error));
    if !error.is::<Misuse>() {
        return ExitCode::FAILURE;
    }
    eprintln!("usage: {name} serve [--trust-network] URL {}", target.0);
    eprintln!("       {name} [--source IP] URL {}", initiator.0);
    ExitCode::from(2)
}

/// The command line was not understood.
#[derive(Debug)]
struct Misuse(String);

impl Error for Misuse {}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An error of the command line, after which its form is shown.
pub(crate) fn misuse(why: impl fmt::Display) -> Failure {
    Misuse(why.to_string()).into()
}

impl Arguments {
    fn parse(words: Vec<String>, serves: bool, more_max: usize) -> Result<Self, Failure> {
        let mut words = words.into_iter().peekable();
        let trust_network = serves && words.next_if(|word| word == "--trust-network").is_some();
        let source = match words.next_if(|word| !serves && word == "--source") {
            Some(_) => Some(words.next().ok_or("--source needs an IP address")?.parse()?),
            None => None,
        };
        let address = words.next().ok_or("an address is missing")?.parse()?;
        let more: Vec<String> = words.collect();
        match more.get(more_max) {
            Some(word) => Err(format!("{word:?} is one word too many").into()),
            None => Ok(Self { address, more, source, trust_network }),
        }
    }

    /// Listens, and says where: `ready URL`.
    ///
    /// Connections are not authenticated, so other machines are kept out unless `--trust-network` lets everybody in. No
    /// RDMA device has a loopback address: over verbs it is always needed.
    pub(crate) fn listen(&self) -> Result<(Peer, Listener), Failure> {
        let locations = self.address.resolve().map_err(|why| format!("cannot resolve {}: {why}", self.address))?;
        let location = locations.into_iter().next().ok_or("the name has no address")?;
        let peer = match location.socket_address() {
            Some(address) => Peer::open_at(self.address.transport, address.ip())?,
            None => Peer::open(self.address.transport)?,
        };
        let options = ListenOptions::default().trust_network(self.trust_network);
        let listener = peer.listen(location, options)?;
        println!("ready {}://{}", self.address.transport, listener.local_address());
        Ok((peer, listener))
    }

    /// Opens what leads to the target.
    pub(crate) fn peer(&self) -> Result<Peer, Failure> {
        Ok(Peer::towards(&self.address, self.source)?)
    }

    /// How to connect to it: private data for the target, and where to come from.
    pub(crate) fn options(&self, private_data: impl Into<Vec<u8>>) -> ConnectOptions {
        ConnectOptions::default().private_data(private_data.into()).source(self.source)
    }

    /// The memory of the file or device that the command line names, made where there is none; without a name, memory that
    /// ends with this process. What no example wrote is left alone.
    pub(crate) fn memory(&self) -> Result<Arc<dyn Medium>, Failure> {
        let Some(path) = self.more.first().map(Path::new) else {
            return Ok(Arc::new(Memory::shared_anonymous(FILE_BYTES, false)?));
        };
        let memory = match Memory::create(path, FILE_BYTES, None) {
            Err(MemError::Io { source, .. }) if source.kind() == std::io::ErrorKind::AlreadyExists => {
                Memory::open(path, None)?
            }
            other => other?,
        };
        let mut mark = [0; MARK.len()];
        memory.read(0, &mut mark)?;
        if mark != [0; MARK.len()] && mark != *MARK || memory.len_bytes() < FILE_BYTES {
            return Err(format!("{} is no file of an example: name another, or a new one", path.display()).into());
        }
        memory.store(0, MARK)?;
        memory.write_back(0, MARK.len() as u64)?;
        memory.fence()?;
        Ok(Arc::new(memory))
    }
}

/// The next connection request.
pub(crate) fn next_request(listener: &Listener) -> Result<ConnectionRequest, Failure> {
    Ok(listener.next_request(ARRIVAL)?.ok_or("nobody came")?)
}

/// Waits for the outcome of one operation.
pub(crate) fn outcome(connection: &Connection, ticket: Ticket) -> Result<Outcome, Failure> {
    let done = connection.queue().wait_for(connection.id(), ticket, PATIENCE).ok_or("no outcome in time")?;
    Ok(done.outcome?)
}

/// Serves the other side's operations until it closes the connection.
pub(crate) fn serve_until_closed(connection: &Connection) -> Result<(), Failure> {
    loop {
        match connection.next_event(ARRIVAL).ok_or("the other side does nothing")? {
            ConnectionEvent::Closed => return Ok(()),
            ConnectionEvent::Lost(why) => return Err(why.into()),
            _ => {}
        }
    }
}
