//! One connection: the TCP socket that makes the acquaintance, and the RDS socket that carries everything else.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};

use pmof_mem::forks::Uninherited;
use pmof_proto::{InputPlace, OutputView};
use pmof_rds::{RdsError, Socket};
use rustix::io::Errno;

use super::{
    greeting::{GREETING_BYTES, Greeting},
    lane::Lane,
    opening::as_io,
    stream::{DATAGRAM_BYTES, DATAGRAMS},
};
use crate::{
    DEFAULT_LOSS_TIMEOUT, SetupError, Transport,
    error::system,
    rendezvous::{self, Greetings, Heard},
    sleeping::Sleeping,
    wire::{CompletionChannel, DirectWay, Finished, Wire},
};

/// How many times the loss timeout what was sent may go without an answer: the kernel tells of no broken connection between the hosts, it makes
/// another one.
const STUCK_LOSSES: u32 = 2;

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own; every combination of them occurs")]
pub(super) struct RdsWire {
    greetings: Greetings<GREETING_BYTES>,
    sleeping: Arc<Sleeping>,
    /// From when this side's RDS socket is there.
    lane: Option<Lane>,
    /// Both sides know each other's RDS socket.
    is_standing: bool,
    /// The other side's TCP socket is closed: its process has gone, or closed the connection.
    is_gone: bool,
    /// Sleeps since something happened.
    naps: u32,
    loss_timeout: Duration,
    has_moved: bool,
    /// Since when something was seen to be under way without anything happening.
    awaited_since: Option<Duration>,
    is_stopped: bool,
}

impl RdsWire {
    /// Starts to connect; success or failure shows when the wire is driven.
    pub(super) fn connecting(
        to: SocketAddr,
        source: Option<IpAddr>,
        loss_timeout: Duration,
        trust_host: bool,
    ) -> io::Result<Self> {
        Ok(Self::new(Greetings::connecting(Transport::Rds, to, source, trust_host)?, loss_timeout)?)
    }

    /// Takes a connection over and greets. None if it is gone already, or came to an address that has no RDS.
    pub(super) fn accepted(socket: Uninherited) -> Result<Option<Self>, SetupError> {
        let greetings = Greetings::accepted(Transport::Rds, socket);
        let made = greetings.and_then(|greetings| Self::new(greetings, DEFAULT_LOSS_TIMEOUT));
        let mut wire = made.map_err(system("timerfd_create"))?;
        let Some(own) = wire.greetings.own_address() else { return Ok(None) };
        let bound = match Socket::bind(SocketAddr::new(own.ip(), 0)) {
            Ok(bound) => bound,
            Err(error @ RdsError::NoDevice { .. }) => {
                log::warn!(target: "pmof::connection", event = "refused"; "a connection was refused: {error}");
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let greeted = wire.open_lane(bound).and_then(|()| wire.greet());
        // What else can fail here is the connection.
        Ok(greeted.is_ok().then_some(wire))
    }

    fn new(greetings: Greetings<GREETING_BYTES>, loss_timeout: Duration) -> Result<Self, Errno> {
        let mut wire = Self {
            greetings,
            sleeping: Sleeping::new()?,
            lane: None,
            is_standing: false,
            is_gone: false,
            naps: 0,
            loss_timeout,
            has_moved: false,
            awaited_since: None,
            is_stopped: false,
        };
        wire.set_loss_timeout(loss_timeout);
        Ok(wire)
    }

    fn open_lane(&mut self, bound: Socket) -> io::Result<()> {
        self.sleeping.watch(bound.as_fd())?;
        self.lane = Some(Lane::new(Arc::new(bound)));
        Ok(())
    }

    /// Tells the other side of this one's RDS socket.
    fn greet(&self) -> io::Result<()> {
        let Some(lane) = &self.lane else { return Ok(()) };
        let at = lane.local_address();
        let greeting = Greeting { datagrams: DATAGRAMS, datagram_bytes: DATAGRAM_BYTES, at };
        self.greetings.greet(&greeting.encode())
    }

    /// Reads the other side's greeting; the side that connected answers it. True if anything moved.
    fn get_acquainted(&mut self) -> io::Result<bool> {
        let whole = match self.greetings.hear()? {
            Heard::Nothing => return Ok(false),
            Heard::Part => return Ok(true),
            Heard::All(whole) => whole,
        };
        let theirs = Greeting::decode(&whole).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "the other side does not greet as pmof over RDS does")
        })?;
        if self.greetings.is_initiator() {
            let own = self.greetings.own_address().ok_or(Errno::NOTCONN)?;
            let bound = Socket::bind(SocketAddr::new(own.ip(), 0)).map_err(as_io)?;
            self.open_lane(bound)?;
            self.greet()?;
        }
        if let Some(lane) = &mut self.lane {
            lane.stream.set_room(theirs.datagrams, theirs.datagram_bytes);
            lane.set_peer(theirs.at);
        }
        self.is_standing = true;
        Ok(true)
    }

    /// Whether the other side's process is there.
    fn look_at_socket(&mut self) -> io::Result<()> {
        self.is_gone = self.is_gone || !self.greetings.is_other_there()?;
        Ok(())
    }

    /// Takes in what happened. True if anything moved.
    fn take_in(&mut self) -> io::Result<bool> {
        if self.is_stopped {
            return Ok(false);
        }
        let has_greeted = !self.is_standing && self.get_acquainted()?;
        if !self.is_standing {
            return Ok(has_greeted);
        }
        // Before the datagrams: what the other side said last came before it closed its socket.
        self.look_at_socket()?;
        let Some(lane) = &mut self.lane else { return Ok(has_greeted) };
        if let Some(why) = &lane.broken {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, why.clone()));
        }
        let moved = has_greeted | lane.poll()?;
        self.has_moved |= moved;
        if moved {
            self.naps = 0;
        }
        Ok(moved)
    }

    /// The kernel says nothing of a wire that is down: it tries again, for ever.
    fn check_stuck(&mut self, now: Duration) -> io::Result<()> {
        let is_idle = self.lane.as_ref().is_none_or(|lane| !lane.has_to_say());
        if std::mem::take(&mut self.has_moved) || is_idle {
            self.awaited_since = None;
            return Ok(());
        }
        let silent = now.saturating_sub(*self.awaited_since.get_or_insert(now));
        if silent < STUCK_LOSSES * self.loss_timeout {
            return Ok(());
        }
        let why = format!(
            "the other side has not answered over RDS for {silent:.1?}: the wire between the hosts is down, or the kernel does not \
             connect them again"
        );
        if let Some(lane) = &mut self.lane {
            lane.broken = Some(why.clone());
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, why))
    }

    fn lane(&mut self) -> Option<&mut Lane> {
        let is_standing = self.is_standing && !self.is_stopped;
        self.lane.as_mut().filter(|lane| is_standing && lane.broken.is_none())
    }

    /// What was queued is not lost where handing over fails: progress tells.
    fn try_hand_over(&mut self) {
        if let Some(lane) = self.lane() {
            let _ = lane.hand_over();
        }
    }
}

impl Wire for RdsWire {
    fn name(&self) -> &'static str {
        "rds"
    }

    fn receive(&mut self, place: InputPlace<'_>) -> io::Result<usize> {
        let is_gone = self.is_gone;
        let Some(lane) = self.lane.as_mut().filter(|_| self.is_standing) else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        if !lane.stream.is_empty() {
            return lane.stream.read(place);
        }
        // What this side said last is still on its way.
        let has_to_say = lane.is_closing && lane.has_to_say();
        if is_gone || (lane.stream.has_ended && !has_to_say) { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    fn may_have_input(&self) -> bool {
        let Some(lane) = self.lane.as_ref().filter(|_| self.is_standing) else { return false };
        !lane.stream.is_empty() || lane.stream.has_ended || self.is_gone
    }

    fn send(&mut self, view: &OutputView<'_>, borrowed: &[u8]) -> io::Result<usize> {
        debug_assert!(borrowed.is_empty(), "a device's connection lends no bytes");
        match self.lane() {
            Some(lane) => lane.send(view),
            None => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn set_loss_timeout(&mut self, loss_timeout: Duration) {
        self.loss_timeout = loss_timeout;
        self.greetings.set_loss_timeout(loss_timeout);
    }

    fn shutdown_output(&mut self) {
        if let Some(lane) = self.lane() {
            lane.is_closing = true;
        }
        self.try_hand_over();
    }

    fn as_fds(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [Some(self.greetings.as_fd()), Some(self.sleeping.as_fd())]
    }

    fn completion_channel(&self) -> Option<CompletionChannel> {
        Some(Arc::clone(&self.sleeping) as CompletionChannel)
    }

    fn progress(&mut self, _: &mut dyn Finished) -> io::Result<bool> {
        let moved = self.take_in()?;
        if let Some(lane) = self.lane() {
            lane.hand_over()?;
        }
        Ok(moved)
    }

    fn submit(&mut self) {
        self.try_hand_over();
        // Those who sleep may know of nothing that waits.
        if self.lane().is_some_and(|lane| lane.has_waiting()) {
            self.sleeping.wake_too(self.naps);
        }
    }

    fn request_notification(&mut self) {
        // What was taken in since the last progress gave credit back that the other side may wait for.
        self.try_hand_over();
        let has_waiting = !self.is_stopped && self.lane.as_ref().is_some_and(Lane::has_waiting);
        self.sleeping.wake_after(has_waiting.then_some(self.naps));
        self.naps += 1;
    }

    fn tick(&mut self, now: Duration, finished: &mut dyn Finished) -> io::Result<(Option<Duration>, bool)> {
        if let Some(lane) = self.lane().filter(|lane| lane.stream.owes_answer()) {
            lane.answer();
        }
        let moved = self.progress(finished)?;
        self.check_stuck(now)?;
        Ok((Some(now + self.loss_timeout / rendezvous::KEEPALIVE_PROBES), moved))
    }

    fn is_connecting(&self) -> bool {
        self.greetings.is_initiator() && !self.is_standing
    }

    fn direct_way(&self) -> DirectWay {
        DirectWay::Device
    }

    fn is_broken(&self) -> bool {
        !self.is_stopped && self.lane.as_ref().is_some_and(|lane| lane.broken.is_some())
    }

    fn stop(&mut self) {
        self.is_stopped = true;
        if let Some(lane) = &mut self.lane {
            lane.broken.get_or_insert_with(|| "the connection was closed".to_owned());
        }
        self.greetings.stop();
    }
}
