//! The floors that pmof is measured beside: the same bytes over plain TCP, with nothing around them.
//!
//! A floor does one write and one read system call per message wherever the kernel allows it. There is no framing:
//! after a handshake both sides know the sizes of all messages.
//!
//! | bytes | from | what |
//! |---|---|---|
//! | 16 | client | mode, `request_bytes`, `reply_bytes`, flags (bit 0: the server polls): u32 each, little-endian |
//! | 2 + n | client | mode file sync only: length of the path (u16), the path |
//! | 4 | server | 0 when everything is in place, else the errno that prevented it; then the connection closes |
//! | ... | both | requests and replies, all bytes zero |
//!
//! A polling server spins on its socket as long as a connection lives, so a client should be connected only while it
//! measures: a floor that idles beside another measurement takes a CPU from it.

use std::{
    ffi::OsStr,
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send, sockopt::set_tcp_congestion},
};

pub(crate) use file::{FILE_BYTES, FloorFile};

mod file;

/// Longest request and longest reply: four times the largest write that is measured, and small enough that a stray
/// handshake cannot take much memory.
const MESSAGE_LIMIT_BYTES: u32 = 4 << 20;

/// Longest path of a file sync: what Linux takes (`PATH_MAX`).
const PATH_LIMIT_BYTES: u16 = 4096;

/// What a stream moves by one system call at most; larger blocks fall out of the CPU's second-level cache.
const STREAM_BLOCK_BYTES: usize = 256 << 10;

/// A peer that moves nothing for this long is given up: far beyond any healthy answer, short enough for a test run.
const STALL_LIMIT: Duration = Duration::from_secs(30);

/// Part of every Linux, and without timers.
const CONGESTION_CONTROL: &str = "reno";

/// How often a spinning side looks at the clock: a glance per thousand reads costs nothing.
const SPINS_PER_GLANCE: u32 = 1024;

const FLAG_POLLING: u32 = 1;
const HANDSHAKE_BYTES: usize = 16;

/// What the server does with each request before it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FloorMode {
    /// Reads it whole.
    Ack,
    /// Reads whatever has come, up to 256 KiB at once, and sends all replies that are due in one write.
    Stream,
    /// Read it whole, writes it to a rotating place of a file that was written before, and calls fdatasync.
    ///
    /// The server makes the file; it must not exist yet, and is removed when the connection closes.
    FileSync(PathBuf),
}

/// A connection to a floor server.
#[derive(Debug)]
pub(crate) struct FloorClient {
    wire: Wire,
    request_bytes: usize,
    reply_bytes: usize,
    /// Zeros to send; as long as the longer of a request and a stream's block.
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    /// Requests that were answered.
    answered: u64,
}

/// Serves each connection on a thread of its own, until it closes or stalls for 30 s. Files that are made have `file_bytes`. Returns only
/// when accepting, or starting a thread, fails.
///
/// There is no authentication, and a file sync makes a file where the client says: listen on loopback only.
pub(crate) fn serve_floor(listener: &TcpListener, file_bytes: u64) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept()?;
        // The client learns of a failure by the handshake's answer or by the closed connection; the next one is served.
        thread::Builder::new().spawn(move || serve_connection(stream, file_bytes))?;
    }
}

impl FloorClient {
    /// Connects and agrees on the sizes; 1 byte to 4 MiB each. With `polling` both ends spin on their sockets.
    pub(crate) fn connect(
        addr: SocketAddr,
        mode: &FloorMode,
        request_bytes: u32,
        reply_bytes: u32,
        polling: bool,
    ) -> io::Result<Self> {
        let wire = Wire::new(TcpStream::connect_timeout(&addr, STALL_LIMIT)?, polling)?;
        wire.send_all(&Handshake { mode: mode.clone(), request_bytes, reply_bytes, polling }.encode()?)?;
        let mut answer = [0; 4];
        wire.receive_whole(&mut answer)?.then_some(()).ok_or(io::ErrorKind::UnexpectedEof)?;
        match i32::from_le_bytes(answer) {
            0 => {}
            errno => return Err(io::Error::from_raw_os_error(errno)),
        }
        Ok(Self {
            wire,
            request_bytes: request_bytes as usize,
            reply_bytes: reply_bytes as usize,
            outgoing: vec![0; STREAM_BLOCK_BYTES.max(request_bytes as usize)],
            incoming: vec![0; STREAM_BLOCK_BYTES.max(reply_bytes as usize)],
            answered: 0,
        })
    }

    /// Bytes of the requests that were answered, and of their replies.
    pub(crate) fn moved(&self) -> [u64; 2] {
        [self.request_bytes, self.reply_bytes].map(|bytes| bytes as u64 * self.answered)
    }

    /// Sends one request and waits for its reply; returns how long both took.
    pub(crate) fn round_trip(&mut self) -> io::Result<Duration> {
        let start = Instant::now();
        self.wire.send_all(&self.outgoing[..self.request_bytes])?;
        if !self.wire.receive_whole(&mut self.incoming[..self.reply_bytes])? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.answered += 1;
        Ok(start.elapsed())
    }

    /// Sends `total` requests, up to `depth` of them unanswered at a time; returns the time to the last reply.
    ///
    /// Throughput over loopback still wavers by a tenth from run to run: compare in many short rounds, and by their median.
    pub(crate) fn stream(&mut self, depth: usize, total: u64) -> io::Result<Duration> {
        if depth == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a depth of 0 sends nothing: use 1 or more"));
        }
        let longest = self.request_bytes.max(self.reply_bytes) as u64;
        if total.checked_mul(longest).is_none() {
            let what = format!("{total} requests exceed 2^64 bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let mut stream = Stream::default();
        let mut requested = total.min(depth as u64);
        let mut answered = 0;
        let start = Instant::now();
        stream.request(requested);
        while answered < total {
            let new = self.advance(&mut stream, None)?;
            answered += new;
            let more = new.min(total - requested);
            requested += more;
            stream.request(more);
        }
        Ok(start.elapsed())
    }

    /// Moves bytes of a stream until at least one more reply is here, or `until` has come; returns how many replies came.
    pub(crate) fn advance(&mut self, stream: &mut Stream, until: Option<Instant>) -> io::Result<u64> {
        let (request_bytes, reply_bytes) = (self.request_bytes as u64, self.reply_bytes as u64);
        let mut spins = Spins::default();
        loop {
            let block = self.outgoing.len().min((stream.requests * request_bytes - stream.sent_bytes) as usize);
            let due_bytes = stream.sent_bytes / request_bytes * reply_bytes;
            let room = self.incoming.len().min((due_bytes - stream.received_bytes) as usize);
            let outgoing = if block > 0 { self.wire.try_send(&self.outgoing[..block])? } else { None };
            let incoming = if room > 0 { self.wire.try_receive(&mut self.incoming[..room])? } else { None };
            if incoming == Some(0) {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            stream.sent_bytes += outgoing.unwrap_or(0) as u64;
            stream.received_bytes += incoming.unwrap_or(0) as u64;
            let answered = stream.received_bytes / reply_bytes;
            if answered > 0 {
                stream.forget(answered, request_bytes, reply_bytes);
                self.answered += answered;
                return Ok(answered);
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(0);
            }
            if outgoing.is_some() || incoming.is_some() {
                spins = Spins::default();
            } else {
                self.wire.pause(&mut spins, block > 0, until)?;
            }
        }
    }
}

/// How far the requests of a stream are that have no reply yet.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    requests: u64,
    sent_bytes: u64,
    received_bytes: u64,
}

impl Stream {
    /// Has so many more requests sent.
    pub(crate) fn request(&mut self, count: u64) {
        self.requests += count;
    }

    /// Takes answered requests out, so that no count grows with the length of a run.
    fn forget(&mut self, answered: u64, request_bytes: u64, reply_bytes: u64) {
        self.requests -= answered;
        self.sent_bytes -= answered * request_bytes;
        self.received_bytes -= answered * reply_bytes;
    }
}

/// The first message of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Handshake {
    mode: FloorMode,
    request_bytes: u32,
    reply_bytes: u32,
    polling: bool,
}

impl Handshake {
    fn encode(&self) -> io::Result<Vec<u8>> {
        check_size("request", self.request_bytes)?;
        check_size("reply", self.reply_bytes)?;
        let (number, path) = match &self.mode {
            FloorMode::Ack => (1_u32, None),
            FloorMode::Stream => (2, None),
            FloorMode::FileSync(path) => (3, Some(path.as_os_str().as_bytes())),
        };
        let flags = if self.polling { FLAG_POLLING } else { 0 };
        let mut bytes = Vec::with_capacity(HANDSHAKE_BYTES);
        for field in [number, self.request_bytes, self.reply_bytes, flags] {
            bytes.extend(field.to_le_bytes());
        }
        if let Some(path) = path {
            let len = u16::try_from(path.len()).ok().filter(|len| (1..=PATH_LIMIT_BYTES).contains(len));
            let len = len.ok_or_else(|| bad_handshake("a path has 1 to 4096 bytes"))?;
            bytes.extend(len.to_le_bytes());
            bytes.extend(path);
        }
        Ok(bytes)
    }

    /// `None` is a connection that closed without a word.
    fn receive(wire: &Wire) -> io::Result<Option<Self>> {
        let mut bytes = [0; HANDSHAKE_BYTES];
        if !wire.receive_whole(&mut bytes)? {
            return Ok(None);
        }
        let field = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (request_bytes, reply_bytes, flags) = (field(4), field(8), field(12));
        check_size("request", request_bytes)?;
        check_size("reply", reply_bytes)?;
        if flags & !FLAG_POLLING != 0 {
            return Err(bad_handshake("only flag bit 0 is defined"));
        }
        let mode = match field(0) {
            1 => FloorMode::Ack,
            2 => FloorMode::Stream,
            3 => FloorMode::FileSync(receive_path(wire)?),
            _ => return Err(bad_handshake("modes are 1 (ack), 2 (stream) and 3 (file sync)")),
        };
        Ok(Some(Self { mode, request_bytes, reply_bytes, polling: flags & FLAG_POLLING != 0 }))
    }
}

fn receive_path(wire: &Wire) -> io::Result<PathBuf> {
    let mut len = [0; 2];
    wire.receive_whole(&mut len)?.then_some(()).ok_or(io::ErrorKind::UnexpectedEof)?;
    let len = u16::from_le_bytes(len);
    if !(1..=PATH_LIMIT_BYTES).contains(&len) {
        return Err(bad_handshake("a path has 1 to 4096 bytes"));
    }
    let mut path = vec![0; usize::from(len)];
    wire.receive_whole(&mut path)?.then_some(()).ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(Path::new(OsStr::from_bytes(&path)).to_path_buf())
}

fn check_size(what: &str, len_bytes: u32) -> io::Result<()> {
    if (1..=MESSAGE_LIMIT_BYTES).contains(&len_bytes) {
        return Ok(());
    }
    Err(bad_handshake(&format!("a {what} of {len_bytes} bytes is outside 1..={MESSAGE_LIMIT_BYTES}")))
}

fn bad_handshake(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("floor handshake: {why}"))
}

fn serve_connection(stream: TcpStream, file_bytes: u64) -> io::Result<()> {
    let mut wire = Wire::new(stream, false)?;
    match prepare(&wire, file_bytes) {
        Ok(None) => Ok(()),
        Ok(Some((handshake, file))) => {
            wire.polling = handshake.polling;
            wire.send_all(&0_i32.to_le_bytes())?;
            match handshake.mode {
                FloorMode::Stream => serve_stream(&wire, &handshake),
                FloorMode::Ack | FloorMode::FileSync(_) => serve_requests(&wire, &handshake, file),
            }
        }
        Err(error) => wire.send_all(&error.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error()).to_le_bytes()),
    }
}

fn prepare(wire: &Wire, file_bytes: u64) -> io::Result<Option<(Handshake, Option<FloorFile>)>> {
    let Some(handshake) = Handshake::receive(wire)? else { return Ok(None) };
    let file = match &handshake.mode {
        FloorMode::FileSync(path) => Some(FloorFile::create(path, file_bytes)?),
        FloorMode::Ack | FloorMode::Stream => None,
    };
    Ok(Some((handshake, file)))
}

fn serve_requests(wire: &Wire, handshake: &Handshake, mut file: Option<FloorFile>) -> io::Result<()> {
    let mut request = vec![0; handshake.request_bytes as usize];
    let reply = vec![0; handshake.reply_bytes as usize];
    while wire.receive_whole(&mut request)? {
        if let Some(file) = &mut file {
            file.write_durably(&request)?;
        }
        wire.send_all(&reply)?;
    }
    Ok(())
}

fn serve_stream(wire: &Wire, handshake: &Handshake) -> io::Result<()> {
    let mut block = vec![0; STREAM_BLOCK_BYTES];
    let replies = vec![0; STREAM_BLOCK_BYTES];
    let (request_bytes, reply_bytes) = (u64::from(handshake.request_bytes), u64::from(handshake.reply_bytes));
    let mut unanswered_bytes = 0;
    loop {
        match wire.receive(&mut block)? {
            0 => return Ok(()),
            received => unanswered_bytes += received as u64,
        }
        let mut due_bytes = unanswered_bytes / request_bytes * reply_bytes;
        unanswered_bytes %= request_bytes;
        while due_bytes > 0 {
            let part = replies.len().min(due_bytes as usize);
            wire.send_all(&replies[..part])?;
            due_bytes -= part as u64;
        }
    }
}

/// A connected socket, waited for by spinning or by sleeping.
#[derive(Debug)]
struct Wire {
    stream: TcpStream,
    polling: bool,
}

impl Wire {
    fn new(stream: TcpStream, polling: bool) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        // As pmof does: with BBR, some systems' default, a stream over loopback wavers tenfold. Where it is not allowed, both
        // do without.
        let _ = set_tcp_congestion(&stream, CONGESTION_CONTROL);
        stream.set_read_timeout(Some(STALL_LIMIT))?;
        stream.set_write_timeout(Some(STALL_LIMIT))?;
        Ok(Self { stream, polling })
    }

    /// Receives what there is, at least one byte; 0 is the end of the stream.
    fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        let flags = if self.polling { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
        let mut spins = Spins::default();
        loop {
            match recv(&self.stream, &mut *into, flags) {
                Ok((received, _)) => return Ok(received),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.refused(&mut spins)?,
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Fills `into`; false where the stream ends before its first byte.
    fn receive_whole(&self, into: &mut [u8]) -> io::Result<bool> {
        let mut filled = 0;
        while filled < into.len() {
            match self.receive(&mut into[filled..])? {
                0 if filled == 0 => return Ok(false),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                received => filled += received,
            }
        }
        Ok(true)
    }

    fn send_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        let flags = if self.polling { SendFlags::DONTWAIT | SendFlags::NOSIGNAL } else { SendFlags::NOSIGNAL };
        let mut spins = Spins::default();
        while !bytes.is_empty() {
            match send(&self.stream, bytes, flags) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.refused(&mut spins)?,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Receives what there is now, if anything.
    fn try_receive(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        match recv(&self.stream, into, RecvFlags::DONTWAIT) {
            Ok((received, _)) => Ok(Some(received)),
            Err(Errno::INTR | Errno::AGAIN) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Sends what fits now, if anything.
    fn try_send(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        match send(&self.stream, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) => Ok(Some(sent)),
            Err(Errno::INTR | Errno::AGAIN) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Waits once, after neither direction moved: spinning returns at once, sleeping when the socket can move again or `until` has come.
    fn pause(&self, spins: &mut Spins, wants_send: bool, until: Option<Instant>) -> io::Result<()> {
        if self.polling {
            return spins.check();
        }
        let interest = if wants_send { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let limit = until.map_or(STALL_LIMIT, |until| until.saturating_duration_since(Instant::now()));
        let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&self.stream, interest)], Some(&limit)) {
            Ok(0) if until.is_none() => Err(stalled()),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// A refused call is one spin where the side polls; where it sleeps, the socket's time limit has run out.
    fn refused(&self, spins: &mut Spins) -> io::Result<()> {
        if self.polling { spins.check() } else { Err(stalled()) }
    }
}

/// Bounds a spinning wait without looking at the clock each time.
#[derive(Debug, Default)]
struct Spins {
    count: u32,
    since: Option<Instant>,
}

impl Spins {
    fn check(&mut self) -> io::Result<()> {
        self.count += 1;
        if self.count < SPINS_PER_GLANCE {
            return Ok(());
        }
        self.count = 0;
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() < STALL_LIMIT { Ok(()) } else { Err(stalled()) }
    }
}

fn stalled() -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        format!("the other end moved nothing for {} s: see whether it still runs", STALL_LIMIT.as_secs()),
    )
}

#[cfg(test)]
mod tests;
