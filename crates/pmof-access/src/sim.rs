//! A network inside one process with a virtual clock and faults on demand: the same connections, repeatable.
//!
//! Nothing happens by itself. A wait on any queue or listener of the network drives all of them and, when nothing moves,
//! sets the clock to the next moment at which something is due.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt, io,
    os::fd::BorrowedFd,
    sync::{Arc, Weak},
    time::Duration,
};

use pmof_locks::{Mutex, MutexGuard};
use pmof_proto::{InputPlace, OutputView};

use crate::{
    clock::{Driven, VirtualTime},
    wire::Wire,
};

mod opening;

pub(crate) use opening::Sim;

/// Bytes on their way per direction: like a socket buffer, so that output has to wait sometimes.
const WINDOW_BYTES: usize = 256 << 10;

/// What goes wrong on one direction of the connections made from now on. Positions count the bytes of the direction.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Time on the way.
    pub delay: Duration,
    /// At most so many bytes arrive at once; 0: no limit.
    pub chunk_bytes: usize,
    /// The connection breaks for both sides after so many bytes.
    pub cut_after_bytes: Option<u64>,
    /// Nothing arrives after so many bytes, and nobody is told.
    pub silent_after_bytes: Option<u64>,
    /// The byte at this position is changed by exclusive or with the mask.
    pub corrupt: Option<(u64, u8)>,
}

/// The network.
#[derive(Default)]
pub struct SimNetwork {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    now: Duration,
    drivers: Vec<Weak<dyn Driven>>,
    listeners: BTreeMap<u16, VecDeque<SimWire>>,
    last_port: u16,
    /// From initiator to target, and back.
    faults: [Faults; 2],
    cables: Vec<Weak<Mutex<Cable>>>,
}

impl fmt::Debug for SimNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimNetwork").field("now", &self.now()).finish_non_exhaustive()
    }
}

impl SimNetwork {
    /// A network without faults, at time 0.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Time since the network was made.
    pub fn now(&self) -> Duration {
        self.lock().now
    }

    /// Sets what goes wrong on connections made from now on.
    pub fn set_faults(&self, to_target: Faults, to_initiator: Faults) {
        self.lock().faults = [to_target, to_initiator];
    }

    /// Breaks every connection there is, without a word to either side's application.
    pub fn cut_all(&self) {
        for cable in self.cables() {
            cable.lock().broken = true;
        }
    }

    /// Opens a port; 0 picks one.
    pub(crate) fn listen(&self, port: u16) -> io::Result<u16> {
        let mut state = self.lock();
        let port = if port == 0 { state.last_port + 1 } else { port };
        if state.listeners.contains_key(&port) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        state.last_port = state.last_port.max(port);
        state.listeners.insert(port, VecDeque::new());
        Ok(port)
    }

    pub(crate) fn close_port(&self, port: u16) {
        self.lock().listeners.remove(&port);
    }

    pub(crate) fn accept(&self, port: u16) -> Option<SimWire> {
        self.lock().listeners.get_mut(&port)?.pop_front()
    }

    pub(crate) fn connect(self: &Arc<Self>, port: u16) -> io::Result<SimWire> {
        let mut state = self.lock();
        let faults = state.faults;
        let pipe = |faults| Pipe { faults, ..Pipe::default() };
        let cable = Arc::new(Mutex::new(Cable { pipes: faults.map(pipe), broken: false }));
        let waiting = state.listeners.get_mut(&port).ok_or(io::ErrorKind::ConnectionRefused)?;
        waiting.push_back(SimWire { network: Arc::clone(self), cable: Arc::clone(&cable), side: 1 });
        state.cables.push(Arc::downgrade(&cable));
        Ok(SimWire { network: Arc::clone(self), cable, side: 0 })
    }

    fn cables(&self) -> Vec<Arc<Mutex<Cable>>> {
        let mut state = self.lock();
        state.cables.retain(|cable| cable.strong_count() > 0);
        state.cables.iter().filter_map(Weak::upgrade).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl VirtualTime for SimNetwork {
    fn now(&self) -> Duration {
        self.lock().now
    }

    fn add_driver(&self, driver: Weak<dyn Driven>) {
        self.lock().drivers.push(driver);
    }

    fn advance(&self, until: Option<Duration>) {
        let drivers: Vec<_> = {
            let mut state = self.lock();
            state.drivers.retain(|driver| driver.strong_count() > 0);
            state.drivers.iter().filter_map(Weak::upgrade).collect()
        };
        let mut moved = false;
        for driver in &drivers {
            moved |= driver.drive();
        }
        if moved {
            return;
        }
        let now = self.now();
        let arrivals = self.cables().into_iter().filter_map(|cable| cable.lock().next_due(now));
        let mut ticks = Vec::new();
        for driver in &drivers {
            let (due, changed) = driver.tick_all();
            moved |= changed;
            ticks.extend(due);
        }
        if moved {
            return;
        }
        if let Some(next) = arrivals.chain(ticks).chain(until).filter(|due| *due > now).min() {
            self.lock().now = next;
        }
    }
}

/// Both directions of one connection.
#[derive(Debug)]
struct Cable {
    pipes: [Pipe; 2],
    broken: bool,
}

#[derive(Debug, Default)]
struct Pipe {
    faults: Faults,
    sent_bytes: u64,
    waiting_bytes: usize,
    /// When it arrives, the bytes, and how many of them were taken.
    waiting: VecDeque<(Duration, Vec<u8>, usize)>,
    closed: bool,
}

impl Cable {
    fn next_due(&self, now: Duration) -> Option<Duration> {
        self.pipes.iter().filter_map(|pipe| pipe.waiting.front()).map(|(due, ..)| *due).filter(|due| *due > now).min()
    }
}

#[derive(Debug)]
pub(crate) struct SimWire {
    network: Arc<SimNetwork>,
    cable: Arc<Mutex<Cable>>,
    /// 0: the initiator's end, 1: the target's.
    side: usize,
}

impl Wire for SimWire {
    fn name(&self) -> &'static str {
        "a simulated network"
    }

    fn receive(&mut self, place: InputPlace<'_>) -> io::Result<usize> {
        let now = self.network.now();
        let mut cable = self.cable.lock();
        let broken = cable.broken;
        let pipe = &mut cable.pipes[1 - self.side];
        let room = match &place {
            InputPlace::Staging(buffer) => buffer.len(),
            InputPlace::Memory { len_bytes, tail, .. } => *len_bytes as usize + tail.len(),
        };
        let limit = if pipe.faults.chunk_bytes == 0 { room } else { room.min(pipe.faults.chunk_bytes) };
        let bytes = pipe.take(now, limit);
        if bytes.is_empty() {
            return match (broken, pipe.closed && pipe.waiting.is_empty() && !pipe.is_silent()) {
                (true, _) => Err(io::ErrorKind::ConnectionReset.into()),
                (_, true) => Ok(0),
                _ => Err(io::ErrorKind::WouldBlock.into()),
            };
        }
        match place {
            InputPlace::Staging(buffer) => buffer[..bytes.len()].copy_from_slice(&bytes),
            InputPlace::Memory { memory, offset, len_bytes, tail } => {
                let (inside, beyond) = bytes.split_at(bytes.len().min(len_bytes as usize));
                memory.store(offset, inside).map_err(io::Error::other)?;
                tail[..beyond.len()].copy_from_slice(beyond);
            }
        }
        Ok(bytes.len())
    }

    fn send(&mut self, view: &OutputView<'_>, borrowed: &[u8]) -> io::Result<usize> {
        let now = self.network.now();
        let mut cable = self.cable.lock();
        if cable.broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let pipe = &mut cable.pipes[self.side];
        let room = WINDOW_BYTES - pipe.waiting_bytes;
        if room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut bytes = Vec::new();
        let take = |bytes: &mut Vec<u8>, part: &[u8]| {
            bytes.extend_from_slice(&part[..part.len().min(room - bytes.len())]);
        };
        take(&mut bytes, view.head);
        if let Some(body) = view.body {
            let start = bytes.len();
            bytes.resize(start + (body.len_bytes as usize).min(room - start), 0);
            body.memory.read(body.offset, &mut bytes[start..]).map_err(io::Error::other)?;
        }
        take(&mut bytes, view.tail);
        take(&mut bytes, borrowed);
        let count = bytes.len();
        if pipe.put(now, bytes) {
            cable.broken = true;
        }
        Ok(count)
    }

    fn set_loss_timeout(&mut self, _loss_timeout: Duration) {}

    fn shutdown_output(&mut self) {
        self.cable.lock().pipes[self.side].closed = true;
    }

    fn as_fds(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [None, None]
    }
}

impl Drop for SimWire {
    fn drop(&mut self) {
        self.shutdown_output();
    }
}

impl Pipe {
    /// True once bytes were lost without a word: the end of the stream is lost too.
    fn is_silent(&self) -> bool {
        self.faults.silent_after_bytes.is_some_and(|limit| self.sent_bytes >= limit)
    }

    /// Puts bytes on their way, with the direction's faults. True if the connection breaks now.
    fn put(&mut self, now: Duration, mut bytes: Vec<u8>) -> bool {
        let from = self.sent_bytes;
        self.sent_bytes += bytes.len() as u64;
        if let Some((at, mask)) = self.faults.corrupt {
            let index = at.checked_sub(from);
            if let Some(byte) = index.and_then(|index| bytes.get_mut(index as usize)) {
                *byte ^= mask;
            }
        }
        let limit = [self.faults.cut_after_bytes, self.faults.silent_after_bytes].into_iter().flatten().min();
        if let Some(limit) = limit {
            bytes.truncate(limit.saturating_sub(from).min(bytes.len() as u64) as usize);
        }
        if !bytes.is_empty() {
            self.waiting_bytes += bytes.len();
            self.waiting.push_back((now + self.faults.delay, bytes, 0));
        }
        self.faults.cut_after_bytes.is_some_and(|limit| self.sent_bytes >= limit)
    }

    fn take(&mut self, now: Duration, limit: usize) -> Vec<u8> {
        let mut taken = Vec::new();
        while taken.len() < limit {
            let Some((due, bytes, start)) = self.waiting.front_mut() else { break };
            if *due > now {
                break;
            }
            let rest = &bytes[*start..];
            let count = rest.len().min(limit - taken.len());
            taken.extend_from_slice(&rest[..count]);
            *start += count;
            if *start == bytes.len() {
                self.waiting.pop_front();
            }
        }
        self.waiting_bytes -= taken.len();
        taken
    }
}
