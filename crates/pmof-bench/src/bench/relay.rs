//! A relay that gives loopback TCP the latency of a network: each byte leaves a fixed time after it came.
//!
//! One thread serves all connections of all routes, so that three of them still leave a CPU to what is measured. It
//! sleeps in `ppoll` until 50 us before the next byte is due and spins from there.
//!
//! Bytes and the end of each direction are delayed; connecting is not, and a reset ends both directions at once.

use std::{
    io::{self, ErrorKind},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    num::NonZeroU64,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
    thread::set_current_timer_slack,
};

use line::DelayLine;

mod line;

/// The relay spins when something is due within this time: about how late a sleeping thread may wake up.
const SPIN_WINDOW: Duration = Duration::from_micros(50);

/// Bytes under way in one direction, after which the relay stops reading: 16 GB/s for 1 ms of delay, which is more than
/// loopback moves, and little enough to keep the bounds of memory for the most connections.
pub(super) const LINE_LIMIT_BYTES: usize = 16 << 20;

/// Bytes read at once: small enough that one connection's bulk holds up the others' messages for 10 us or so.
const READ_BYTES: usize = 64 << 10;

/// Connections at a time; further ones wait in the listener's backlog. A benchmark has one to eight.
const CONNECTION_LIMIT: usize = 64;

/// How long a target may take to accept; all connections wait meanwhile, and a target is on this machine.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// Takes connections from each listener on to its address; every byte takes `delay` longer, in both directions.
///
/// Returns only when the relay cannot go on at all; a failed connection closes and ends no other.
pub(crate) fn relay_all(routes: Vec<(TcpListener, SocketAddr)>, delay: Duration) -> io::Result<()> {
    for (listener, _) in &routes {
        listener.set_nonblocking(true)?;
    }
    // By default the kernel may end a sleep 50 us late to save energy.
    set_current_timer_slack(NonZeroU64::new(1))?;
    let mut relay = Relay { routes, delay, connections: Vec::new(), scratch: vec![0; READ_BYTES] };
    loop {
        relay.turn()?;
    }
}

#[derive(Debug)]
struct Relay {
    routes: Vec<(TcpListener, SocketAddr)>,
    delay: Duration,
    connections: Vec<Connection>,
    scratch: Vec<u8>,
}

/// What one entry of the poll list stands for.
#[derive(Clone, Copy, Debug)]
enum Source {
    Route(usize),
    /// Connection and end.
    End(usize, usize),
}

impl Relay {
    /// Waits for something to do and does it.
    fn turn(&mut self) -> io::Result<()> {
        let events = self.wait()?;
        // What is there now came before the wait ended, whenever it is read.
        let now = Instant::now();
        for (source, flags) in &events {
            if let Source::End(index, end) = *source {
                self.connections[index].unblock(end, *flags);
            }
        }
        // Only then, so that no line keeps ready bytes that its receiving end could take: nothing would ever wake it.
        let mut failed: Vec<bool> = self.connections.iter_mut().map(|known| known.deliver(now).is_err()).collect();
        for (source, flags) in events {
            match source {
                Source::Route(index) => self.accept(index)?,
                Source::End(index, end) => {
                    failed[index] |= self.connections[index].take_in(end, flags, now, &mut self.scratch).is_err();
                }
            }
        }
        let mut failed = failed.into_iter();
        // Connections accepted in this turn come after those that `failed` knows.
        self.connections.retain(|connection| !failed.next().unwrap_or(false) && !connection.is_over());
        Ok(())
    }

    /// Sleeps or spins once; returns the sources that are ready.
    fn wait(&self) -> io::Result<Vec<(Source, PollFlags)>> {
        let mut sources = Vec::new();
        let mut fds = Vec::new();
        if self.connections.len() < CONNECTION_LIMIT {
            for (index, (listener, _)) in self.routes.iter().enumerate() {
                sources.push(Source::Route(index));
                fds.push(PollFd::new(listener, PollFlags::IN));
            }
        }
        for (index, connection) in self.connections.iter().enumerate() {
            for end in 0..2 {
                let interest = connection.interest(end);
                // An end without interest is left out: poll reports a hang-up even to those who asked for nothing.
                if !interest.is_empty() {
                    sources.push(Source::End(index, end));
                    fds.push(PollFd::new(&connection.ends[end], interest));
                }
            }
        }
        match poll(&mut fds, self.time_to_sleep().as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let ready = sources.into_iter().zip(fds.iter().map(PollFd::revents));
        Ok(ready.filter(|(_, flags)| !flags.is_empty()).collect())
    }

    /// `None` where nothing is due before something comes.
    fn time_to_sleep(&self) -> Option<Timespec> {
        let due = self.connections.iter().filter_map(Connection::next_due).min()?;
        let time = due.saturating_duration_since(Instant::now()).saturating_sub(SPIN_WINDOW);
        Timespec::try_from(time).ok()
    }

    fn accept(&mut self, route: usize) -> io::Result<()> {
        let (listener, to) = &self.routes[route];
        let accepted = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error),
        };
        // A target that cannot be reached closes the connection that wanted it.
        self.connections.extend(Connection::open(accepted, *to, self.delay).ok());
        Ok(())
    }
}

#[derive(Debug)]
struct Connection {
    ends: [TcpStream; 2],
    /// Direction `i` goes from `ends[i]` to `ends[1 - i]`.
    directions: [Direction; 2],
}

#[derive(Debug)]
struct Direction {
    line: DelayLine,
    /// The receiving end took no more; until it can, nothing is due.
    blocked: bool,
    /// The end of the stream was passed on.
    over: bool,
}

impl Connection {
    fn open(accepted: TcpStream, to: SocketAddr, delay: Duration) -> io::Result<Self> {
        let connected = TcpStream::connect_timeout(&to, CONNECT_LIMIT)?;
        accepted.set_nodelay(true)?;
        connected.set_nodelay(true)?;
        let direction = || Direction { line: DelayLine::new(delay), blocked: false, over: false };
        Ok(Self { ends: [accepted, connected], directions: [direction(), direction()] })
    }

    fn is_over(&self) -> bool {
        self.directions.iter().all(|direction| direction.over)
    }

    fn interest(&self, end: usize) -> PollFlags {
        let mut interest = PollFlags::empty();
        if self.directions[end].line.room_bytes() > 0 {
            interest |= PollFlags::IN;
        }
        if self.directions[1 - end].blocked {
            interest |= PollFlags::OUT;
        }
        interest
    }

    fn next_due(&self) -> Option<Instant> {
        let waiting = self.directions.iter().filter(|direction| !direction.blocked && !direction.over);
        waiting.filter_map(|direction| direction.line.next_due()).min()
    }

    /// Sends what is due in both directions.
    fn deliver(&mut self, now: Instant) -> io::Result<()> {
        for (index, direction) in self.directions.iter_mut().enumerate() {
            direction.deliver(&self.ends[1 - index], now)?;
        }
        Ok(())
    }

    /// Lets the line towards `end` go on where `end` takes bytes again, or where sending will tell why it never will.
    fn unblock(&mut self, end: usize, flags: PollFlags) {
        if flags.intersects(PollFlags::OUT | PollFlags::ERR | PollFlags::HUP) {
            self.directions[1 - end].blocked = false;
        }
    }

    /// Takes what came at `end` into its line, as far as there is room.
    fn take_in(&mut self, end: usize, flags: PollFlags, now: Instant, scratch: &mut [u8]) -> io::Result<()> {
        let line = &mut self.directions[end].line;
        let room = line.room_bytes().min(scratch.len());
        if room == 0 || !flags.intersects(PollFlags::IN | PollFlags::ERR | PollFlags::HUP) {
            return Ok(());
        }
        match recv(&self.ends[end], &mut scratch[..room], RecvFlags::DONTWAIT) {
            Ok((0, _)) => line.finish(now),
            Ok((received, _)) => line.push(&scratch[..received], now),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(())
    }
}

impl Direction {
    fn deliver(&mut self, to: &TcpStream, now: Instant) -> io::Result<()> {
        if self.over || self.blocked {
            return Ok(());
        }
        self.line.mature(now);
        while !self.line.ready().is_empty() {
            match send(to, self.line.ready(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => self.line.consume(sent),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.blocked = true;
                    return Ok(());
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        if self.line.is_finished(now) {
            self.over = true;
            match to.shutdown(Shutdown::Write) {
                Err(error) if error.kind() != ErrorKind::NotConnected => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
