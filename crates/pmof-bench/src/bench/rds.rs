//! The floor of RDS: the same bytes in datagrams between two sockets, with nothing around them.
//!
//! What an operation moves goes in datagrams of up to 8 KiB, as pmof's does. A persist's last one asks for an answer, as does each write that is not
//! flushed; a read asks, and is answered with its bytes. The server's datagrams name no memory: what arrives is read, and that is all.
//!
//! A client's datagrams begin with 8 bytes:
//!
//! | bytes | what |
//! |---|---|
//! | 1 | 0 bytes, 1 the last bytes of an operation, 2 a new client, 3 a client that ends |
//! | 3 | zeros; of a new client, 1 in the first where the server is to spin |
//! | 4 | bytes of each answer, little-endian; of a new client |
//!
//! A new client is answered by the socket that serves it, one of its own. Answers to writes begin with how many operations they answer, 4 bytes,
//! little-endian; answers to reads are the bytes themselves, 0 for an operation without any.

use std::{
    collections::VecDeque,
    io,
    net::{IpAddr, SocketAddr, SocketAddrV4},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use pmof_console::output::say;
use pmof_rds::{Received, SendFailure, Socket};

use super::{
    engine::{
        Engine,
        polled::{Polled, STALL_LIMIT, sleep_on, wait},
    },
    pattern::{Kind, Post},
};

/// Bytes of the longest datagram, and of its front.
const DATAGRAM_BYTES: usize = 8 << 10;
const FRONT_BYTES: usize = 8;

/// Bytes of an answer to a write.
const ANSWER_BYTES: usize = 8;

/// Bytes of a read's request, its front included: as much as one of pmof.
const READ_REQUEST_BYTES: usize = 64;

/// Datagrams that the server takes before it answers.
const TAKEN: usize = 32;

/// How long a full socket is left alone where nothing tells that it has room: a congested receiver shows on no descriptor.
const FULL_NAP: Duration = Duration::from_micros(50);

/// What a datagram of the client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum What {
    Bytes = 0,
    Last = 1,
    Hello = 2,
    End = 3,
}

/// The front of a client's datagram.
fn front(what: What, polling: bool, answer_bytes: usize) -> [u8; FRONT_BYTES] {
    let [a, b, c, d] = (answer_bytes as u32).to_le_bytes();
    [what as u8, u8::from(polling), 0, 0, a, b, c, d]
}

/// A socket, and datagrams that it has not taken yet.
#[derive(Debug)]
struct End {
    socket: Socket,
    other: SocketAddrV4,
    waiting: VecDeque<Vec<u8>>,
    incoming: Box<[u8]>,
    polling: bool,
}

impl End {
    fn new(socket: Socket, other: SocketAddrV4, polling: bool) -> Self {
        Self { socket, other, waiting: VecDeque::new(), incoming: vec![0; DATAGRAM_BYTES].into(), polling }
    }

    fn push(&mut self, datagram: Vec<u8>) {
        self.waiting.push_back(datagram);
    }

    /// Hands over what waits, as far as there is room.
    fn hand_over(&mut self) -> Result<()> {
        while let Some(datagram) = self.waiting.front() {
            match self.socket.send(self.other, datagram) {
                Ok(()) => drop(self.waiting.pop_front()),
                Err(SendFailure::Again) => break,
                Err(failure) => return Err(failure.into()),
            }
        }
        Ok(())
    }

    /// The next datagram of the other end, if there is one.
    fn take(&mut self) -> Result<Option<&[u8]>> {
        while let Some(received) = receive(&self.socket, &mut self.incoming)? {
            if received.from == self.other {
                return Ok(Some(&self.incoming[..received.len_bytes]));
            }
        }
        Ok(None)
    }

    /// Sleeps until there may be a datagram, or room.
    fn sleep(&self, limit: Duration) -> Result<()> {
        if !self.polling {
            sleep_on(&self.socket, if self.waiting.is_empty() { limit } else { limit.min(FULL_NAP) })?;
        }
        Ok(())
    }
}

/// The next datagram, if there is one.
fn receive(socket: &Socket, into: &mut [u8]) -> Result<Option<Received>> {
    match socket.receive(into, &mut Vec::new()) {
        Ok(received) => Ok(received),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
        Err(error) => Err(error).context("receiving over RDS"),
    }
}

/// Serves each client on a thread of its own, until it ends. Says where it listens.
pub(super) fn serve(at: SocketAddr) -> Result<()> {
    let listener = Socket::bind(at)?;
    say!("ready tcp://{}", listener.local_address());
    let mut hello = [0; DATAGRAM_BYTES];
    loop {
        sleep_on(&listener, STALL_LIMIT)?;
        while let Some(Received { from, len_bytes, .. }) = receive(&listener, &mut hello)? {
            let Some((front, [])) = hello[..len_bytes].split_first_chunk::<FRONT_BYTES>() else { continue };
            let [2, polling, 0, 0, answer_bytes @ ..] = *front else { continue };
            let answer_bytes = u32::from_le_bytes(answer_bytes) as usize;
            let socket = Socket::bind(SocketAddr::new(at.ip(), 0))?;
            let end = End::new(socket, from, polling == 1);
            // The client learns of a failure by the silence; the next one is served.
            thread::Builder::new().spawn(move || serve_client(end, answer_bytes))?;
        }
    }
}

fn serve_client(mut end: End, answer_bytes: usize) -> Result<()> {
    end.push(vec![0; ANSWER_BYTES]);
    loop {
        end.hand_over()?;
        let (mut taken, mut due) = (0, 0_u32);
        while taken < TAKEN {
            let Some(datagram) = end.take()? else { break };
            taken += 1;
            match datagram.first() {
                Some(0) => {}
                Some(1) => due += 1,
                _ => return Ok(()),
            }
        }
        if answer_bytes > 0 {
            for _ in 0..due {
                pieces(answer_bytes).for_each(|len| end.push(vec![0; len]));
            }
        } else if due > 0 {
            let mut answer = vec![0; ANSWER_BYTES];
            answer[..4].copy_from_slice(&due.to_le_bytes());
            end.push(answer);
        }
        if taken == 0 {
            end.sleep(STALL_LIMIT)?;
        }
    }
}

/// The lengths of the datagrams that carry so many bytes.
fn pieces(len_bytes: usize) -> impl Iterator<Item = usize> {
    (0..len_bytes).step_by(DATAGRAM_BYTES).map(move |at| DATAGRAM_BYTES.min(len_bytes - at))
}

/// Writes of a thread, or reads.
#[derive(Debug)]
pub(super) struct RdsFloor {
    end: End,
    work: RdsWork,
    /// Slots that wait for their answer, in order.
    posted: VecDeque<usize>,
    /// Bytes of the first one's answer that came; of reads.
    arrived_bytes: usize,
    over: Vec<usize>,
}

/// What a floor does.
#[derive(Clone, Copy, Debug)]
pub(super) struct RdsWork {
    pub(super) kind: Kind,
    /// Bytes of an operation.
    pub(super) len_bytes: usize,
    pub(super) depth: usize,
    /// Spin on the sockets, at both ends.
    pub(super) polling: bool,
}

impl RdsFloor {
    pub(super) fn connect(to: SocketAddr, source: Option<IpAddr>, work: RdsWork) -> Result<Self> {
        let SocketAddr::V4(listener) = to else { bail!("the floor server listens at {to}: RDS has IPv4 alone") };
        let socket = Socket::bind(SocketAddr::new(source.unwrap_or(to.ip()), 0))?;
        let answer_bytes = if work.kind == Kind::Read { work.len_bytes } else { 0 };
        let mut end = End::new(socket, listener, work.polling);
        end.push(front(What::Hello, work.polling, answer_bytes).to_vec());
        let (start, mut answer) = (Instant::now(), [0; ANSWER_BYTES]);
        end.other = loop {
            end.hand_over()?;
            if let Some(received) = receive(&end.socket, &mut answer)? {
                break received.from;
            }
            ensure!(start.elapsed() < STALL_LIMIT, "the floor server does not answer; see above");
            sleep_on(&end.socket, FULL_NAP)?;
        };
        Ok(Self { end, work, posted: VecDeque::new(), arrived_bytes: 0, over: Vec::new() })
    }

    /// Takes one answer in.
    fn answered(&mut self, answered: Option<[u8; 4]>, len_bytes: usize) -> Result<()> {
        let count = if self.work.kind == Kind::Read {
            self.arrived_bytes += len_bytes;
            usize::from(self.arrived_bytes >= self.work.len_bytes)
        } else {
            u32::from_le_bytes(answered.context("an answer of the floor server is too short")?) as usize
        };
        ensure!(count <= self.posted.len(), "the floor server answers what nobody asked");
        self.arrived_bytes = if count > 0 { 0 } else { self.arrived_bytes };
        self.over.extend(self.posted.drain(..count));
        Ok(())
    }
}

impl Polled for RdsFloor {
    fn poll(&mut self) -> Result<bool> {
        self.end.hand_over()?;
        while let Some(datagram) = self.end.take()? {
            let (answered, len_bytes) = (datagram.first_chunk().copied(), datagram.len());
            self.answered(answered, len_bytes)?;
        }
        Ok(!self.over.is_empty())
    }

    fn spins(&self) -> bool {
        self.end.polling
    }

    fn sleep(&mut self, limit: Duration) -> Result<()> {
        self.end.sleep(limit)
    }
}

impl Engine for RdsFloor {
    fn depth(&self) -> usize {
        self.work.depth
    }

    fn post(&mut self, posts: &[Post]) -> Result<()> {
        for post in posts {
            if self.work.kind == Kind::Read {
                let mut request = front(What::Last, false, 0).to_vec();
                request.resize(READ_REQUEST_BYTES, 0);
                self.end.push(request);
            } else {
                let mut left = self.work.len_bytes;
                while left > 0 {
                    let len = left.min(DATAGRAM_BYTES - FRONT_BYTES);
                    left -= len;
                    let mut datagram = vec![0; FRONT_BYTES + len];
                    let what = if left > 0 { What::Bytes } else { What::Last };
                    datagram[..FRONT_BYTES].copy_from_slice(&front(what, false, 0));
                    self.end.push(datagram);
                }
            }
            self.posted.push_back(post.slot);
        }
        self.end.hand_over()
    }

    fn collect(&mut self, until: Option<Instant>, done: &mut Vec<usize>) -> Result<()> {
        wait(self, until)?;
        done.append(&mut self.over);
        Ok(())
    }
}

impl Drop for RdsFloor {
    fn drop(&mut self) {
        // A server that is gone needs no word.
        let _ = self.end.socket.send(self.end.other, &front(What::End, false, 0));
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use pmof_rds::{RdsError, check_kernel};

    use super::*;

    /// A server's client, that a thread serves.
    fn floor(work: RdsWork) -> Option<RdsFloor> {
        if let Err(error @ RdsError::NoModule { .. }) = check_kernel() {
            skip_report::skipped!("{error}");
            return None;
        }
        let bind = || Socket::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let (here, there) = (bind(), bind());
        let (at, to) = (here.local_address(), there.local_address());
        let answer_bytes = if work.kind == Kind::Read { work.len_bytes } else { 0 };
        thread::spawn(move || serve_client(End::new(there, at, work.polling), answer_bytes));
        let mut end = End::new(here, to, work.polling);
        while end.take().unwrap().is_none() {}
        Some(RdsFloor { end, work, posted: VecDeque::new(), arrived_bytes: 0, over: Vec::new() })
    }

    #[test]
    fn operations_are_answered_in_order() {
        for (kind, len_bytes) in
            [(Kind::Write, 1), (Kind::Write, 8184), (Kind::Write, 8185), (Kind::Read, 8), (Kind::Read, 8193)]
        {
            for polling in [true, false] {
                let Some(mut floor) = floor(RdsWork { kind, len_bytes, depth: 4, polling }) else { return };
                let posts = [3, 1, 2, 0].map(Post::in_slot);
                let (start, mut done) = (Instant::now(), Vec::new());
                floor.post(&posts).unwrap();
                while done.len() < posts.len() {
                    floor.collect(None, &mut done).unwrap();
                }
                assert_eq!(done, [3, 1, 2, 0], "{kind:?} of {len_bytes} bytes");
                assert!(start.elapsed() < STALL_LIMIT);
            }
        }
    }

    #[test]
    fn bytes_are_cut_into_datagrams() {
        assert_eq!(pieces(1).collect::<Vec<_>>(), [1]);
        assert_eq!(pieces(8192).collect::<Vec<_>>(), [8192]);
        assert_eq!(pieces(16_385).collect::<Vec<_>>(), [8192, 8192, 1]);
    }
}
