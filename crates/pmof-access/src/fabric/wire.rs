//! One connection: the socket that makes the acquaintance, and the endpoint that carries everything else.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};

use pmof_fabric::RemoteAddress;
use pmof_mem::{Durability, Promise, causes, forks::Uninherited};
use pmof_proto::{DirectAccess, InputPlace, OperationKind, OutputView, PostError};
use rustix::io::Errno;

use super::{
    greeting::{GREETING_BYTES, Greeting},
    lane::{IN_PLACE_MIN_BYTES, Lane},
    meeting::Meeting,
    opened::{Opened, SharedEndpoint},
    stream::{RECEIVE_BYTES, RECEIVES},
};
use crate::{
    DEFAULT_LOSS_TIMEOUT, Method, RemoteRegion, SetupError, Transport,
    error::system,
    rendezvous::{self, Greetings, Heard},
    request::{Data, Request, Verb},
    sleeping::Sleeping,
    spoken::{self, OtherTransport},
    wire::{CompletionChannel, DirectWay, Finished, Posted, Posting, Submission, Wire},
};

/// How many times the loss timeout a provider may work on what was posted without completing anything.
const STUCK_LOSSES: u32 = 2;

/// After so many false alarms in a row the provider's descriptor is not watched any more.
const FALSE_ALARMS_MAX: u32 = 64;

/// After so many turns in which something happened, with nobody who was going to sleep, the provider's descriptor is not watched until
/// somebody is: an epoll instance within another costs a wake-up of the outer one for each packet.
const AWAKE_TURNS_MAX: u32 = 64;

/// How often the provider is asked whether one may sleep, while it has something to be polled for each time.
const SLEEP_TRIES: u32 = 4;

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own; every combination of them occurs")]
pub(super) struct FabricWire {
    pub(super) opened: Arc<Opened>,
    pub(super) greetings: Greetings<GREETING_BYTES>,
    sleeping: Arc<Sleeping>,
    pub(super) meeting: Meeting,
    /// The same, where the endpoints have still to be connected.
    pub(super) theirs: Option<Greeting>,
    /// Of the connection.
    number: u64,
    /// From when this side's endpoint is there.
    pub(super) lane: Option<Lane>,
    /// Both sides know each other's endpoint.
    pub(super) is_standing: bool,
    /// The other side's socket is closed: its process has gone, or closed the connection.
    pub(super) is_gone: bool,
    /// Something may have come over the socket.
    looks_at_socket: bool,
    /// Sleepers can be woken by the provider's descriptor.
    is_watchable: bool,
    /// Turns in which something happened since somebody was going to sleep.
    awake_turns: u32,
    /// Sleeps since something happened.
    naps: u32,
    /// Sleeps since then for which the descriptor was readable although there was nothing to poll for.
    false_alarms: u32,
    loss_timeout: Duration,
    has_moved: bool,
    /// Since when something was seen to be under way without anything happening.
    awaited_since: Option<Duration>,
    is_stopped: bool,
}

impl FabricWire {
    /// Starts to connect; success or failure shows when the wire is driven.
    pub(super) fn connecting(
        opened: &Arc<Opened>,
        to: SocketAddr,
        loss_timeout: Duration,
        trust_host: bool,
    ) -> io::Result<Self> {
        let greetings = Greetings::connecting(Transport::Fabric(opened.provider), to, None, trust_host)?;
        Ok(Self::new(opened, greetings, loss_timeout)?)
    }

    /// Takes a connection over and greets. None if it is gone already.
    pub(super) fn accepted(opened: &Arc<Opened>, socket: Uninherited) -> Result<Option<Self>, SetupError> {
        let greetings = Greetings::accepted(Transport::Fabric(opened.provider), socket);
        let made = greetings.and_then(|greetings| Self::new(opened, greetings, DEFAULT_LOSS_TIMEOUT));
        let mut wire = made.map_err(system("timerfd_create"))?;
        let Some(own) = wire.greetings.own_address() else { return Ok(None) };
        let greeted = if opened.is_connected() {
            let passive = opened.passive(own.ip())?;
            let name = passive.name()?;
            wire.meeting = Meeting::Request(passive);
            wire.greet(name)
        } else {
            let endpoint = opened.endpoint(own.ip())?;
            wire.open_lane(endpoint).and_then(|()| wire.greet_by_name())
        };
        // What else can fail here is the connection.
        Ok(greeted.is_ok().then_some(wire))
    }

    fn new(opened: &Arc<Opened>, greetings: Greetings<GREETING_BYTES>, loss_timeout: Duration) -> Result<Self, Errno> {
        let mut wire = Self {
            opened: Arc::clone(opened),
            greetings,
            sleeping: Sleeping::new()?,
            meeting: Meeting::Greetings,
            theirs: None,
            number: 0,
            lane: None,
            is_standing: false,
            is_gone: false,
            looks_at_socket: true,
            is_watchable: false,
            awake_turns: 0,
            naps: 0,
            false_alarms: 0,
            loss_timeout,
            has_moved: false,
            awaited_since: None,
            is_stopped: false,
        };
        wire.set_loss_timeout(loss_timeout);
        Ok(wire)
    }

    pub(super) fn open_lane(&mut self, endpoint: SharedEndpoint) -> io::Result<()> {
        self.is_watchable = self.opened.may_watch();
        self.opened.belongs_to(&endpoint, self.number);
        self.lane = Some(Lane::new(&self.opened, endpoint)?);
        Ok(())
    }

    /// Tells the other side of this one's endpoint.
    pub(super) fn greet(&self, name: Vec<u8>) -> io::Result<()> {
        let provider = self.opened.spoken_name();
        let greeting = Greeting { receives: RECEIVES, receive_bytes: RECEIVE_BYTES, provider, name };
        self.greetings.greet(&greeting.encode()?)
    }

    /// Reads the other side's greeting; the side that connected answers it. True if anything moved.
    fn get_acquainted(&mut self) -> io::Result<bool> {
        if self.is_meeting() {
            self.is_standing = self.go_on_meeting()?;
            return Ok(self.is_standing);
        }
        let whole = match self.greetings.hear()? {
            Heard::Nothing => return Ok(false),
            Heard::Part => return Ok(true),
            Heard::All(whole) => whole,
        };
        let theirs = Greeting::decode(&whole)
            .ok_or_else(|| invalid("the other side does not greet as pmof over libfabric does".to_owned()))?;
        let ours = self.opened.spoken_name();
        if theirs.provider != ours {
            let other = |spoken: &str| spoken::provider(spoken).map(Transport::Fabric);
            if let (Some(theirs), Some(ours)) = (other(&theirs.provider), other(&ours)) {
                if theirs != ours {
                    return Err(OtherTransport { theirs, ours, is_initiator: self.greetings.is_initiator() }.into());
                }
            }
            let what = format!(
                "the other side's provider is {}, this side's is {ours}: name one by fabric+PROVIDER",
                theirs.provider.escape_debug()
            );
            return Err(invalid(what));
        }
        self.is_standing = self.meet(theirs)?;
        Ok(true)
    }

    /// Whether the other side's process is there.
    pub(super) fn look_at_socket(&mut self) -> io::Result<()> {
        self.looks_at_socket = false;
        self.is_gone = self.is_gone || !self.greetings.is_other_there()?;
        Ok(())
    }

    /// Takes in what happened, without telling outcomes. True if anything moved.
    fn take_in(&mut self) -> io::Result<bool> {
        if self.is_stopped {
            return Ok(false);
        }
        let has_greeted = !self.is_standing && self.get_acquainted()?;
        if self.looks_at_socket && self.is_standing {
            // What the other side said last came before its socket was closed.
            self.look_at_socket()?;
        }
        let is_standing = self.is_standing;
        let lane = self.lane.as_mut().filter(|lane| is_standing && lane.broken.is_none());
        let moved = has_greeted | lane.map_or(Ok(false), Lane::poll)?;
        self.has_moved |= moved;
        if moved {
            self.naps = 0;
            self.false_alarms = 0;
            self.awake_turns += 1;
            if self.awake_turns >= AWAKE_TURNS_MAX {
                self.watch_no_more();
            }
        }
        Ok(moved)
    }

    /// A provider either completes or fails what was posted. Some do neither where the other side refuses.
    fn check_stuck(&mut self, now: Duration) -> io::Result<()> {
        let is_idle = self.lane.as_ref().is_none_or(|lane| lane.items.is_empty());
        if std::mem::take(&mut self.has_moved) || is_idle {
            self.awaited_since = None;
            return Ok(());
        }
        let silent = now.saturating_sub(*self.awaited_since.get_or_insert(now));
        if silent < STUCK_LOSSES * self.loss_timeout {
            return Ok(());
        }
        let under_way = self.lane.as_ref().map_or(0, |lane| lane.items.len());
        let why = format!(
            "the provider {} completes nothing: {under_way} posted, silent for {silent:.1?}; a key or range that the other side \
             refuses can show so",
            self.opened.name()
        );
        if let Some(lane) = &mut self.lane {
            lane.broken = Some(why.clone());
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, why))
    }

    /// Has sleepers woken by the provider, where it can.
    fn watch(&mut self) {
        self.awake_turns = 0;
        if !self.is_watchable || self.sleeping.has_queue() {
            return;
        }
        let Some(lane) = &self.lane else { return };
        let endpoint = lane.endpoint().lock();
        // Where it cannot be, sleepers look from time to time.
        self.is_watchable = endpoint.descriptor().is_some_and(|descriptor| self.sleeping.watch(descriptor).is_ok());
    }

    /// Leaves the provider's descriptor out until somebody is going to sleep.
    fn watch_no_more(&mut self) {
        self.awake_turns = 0;
        if !self.sleeping.has_queue() {
            return;
        }
        if let Some(lane) = &self.lane {
            if let Some(descriptor) = lane.endpoint().lock().descriptor() {
                self.sleeping.unwatch(descriptor);
            }
        }
        // One that goes to sleep just now looks again.
        self.sleeping.wake_after(Some(0));
    }

    /// A provider may say that one may sleep while its descriptor stays readable (net of libfabric 1.17, once connected): sleepers would spin.
    /// Such a descriptor is watched no more.
    fn trusts_descriptor(&mut self) -> bool {
        if !self.sleeping.is_ready() {
            self.false_alarms = 0;
            return true;
        }
        self.false_alarms += 1;
        if self.false_alarms < FALSE_ALARMS_MAX {
            return true;
        }
        self.watch_no_more();
        self.is_watchable = false;
        false
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

pub(super) fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Where an operation on a region begins, where it goes direct.
fn place_of(region: &RemoteRegion, offset: u64) -> Option<RemoteAddress> {
    match region.direct() {
        DirectAccess::Rdma { address, remote_key, .. } => {
            Some(RemoteAddress { address: address.wrapping_add(offset), key: remote_key.into() })
        }
        _ => None,
    }
}

impl Wire for FabricWire {
    fn name(&self) -> &'static str {
        self.opened.provider.scheme()
    }

    fn set_number(&mut self, number: u64) {
        self.number = number;
        if let Some(lane) = &self.lane {
            self.opened.belongs_to(lane.endpoint(), number);
        }
    }

    fn receive(&mut self, place: InputPlace<'_>) -> io::Result<usize> {
        let is_gone = self.is_gone;
        let Some(lane) = self.lane.as_mut().filter(|_| self.is_standing) else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        if !lane.stream.is_empty() {
            return lane.stream.read(place);
        }
        // Who has said its end drops what comes, and may drive no more: what this side still has to say is not waited for.
        if is_gone || lane.stream.has_ended { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) }
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

    fn progress(&mut self, finished: &mut dyn Finished) -> io::Result<bool> {
        let mut moved = self.take_in()?;
        if let Some(lane) = self.lane() {
            moved |= lane.tell(finished)?;
        }
        if let Some(lane) = self.lane() {
            lane.hand_over()?;
        }
        Ok(moved)
    }

    fn submit(&mut self) {
        self.try_hand_over();
        // Those who sleep may know of nothing that waits.
        if self.lane().is_some_and(|lane| lane.items.has_waiting()) {
            self.sleeping.wake_too(self.naps);
        }
    }

    fn request_notification(&mut self) {
        self.looks_at_socket = true;
        if self.is_stopped {
            return;
        }
        self.watch();
        let has_waiting = self.lane.as_ref().is_some_and(|lane| lane.items.has_waiting());
        if self.sleeping.has_queue() && !has_waiting && !self.is_meeting() {
            for _ in 0..SLEEP_TRIES {
                let may_sleep = self.lane.as_ref().is_none_or(|lane| lane.endpoint().lock().may_sleep());
                if may_sleep {
                    self.sleeping.wake_after(None);
                    if self.trusts_descriptor() {
                        return;
                    }
                    break;
                }
                // What was taken in here shows nowhere else, and what fails fails in the next progress too.
                if self.take_in().unwrap_or(true) {
                    break;
                }
            }
        }
        // Before the other side has greeted, the socket tells.
        let naps = (self.lane.is_some() || self.is_meeting()).then_some(self.naps);
        self.naps += 1;
        self.sleeping.wake_after(naps);
    }

    fn tick(&mut self, now: Duration, finished: &mut dyn Finished) -> io::Result<(Option<Duration>, bool)> {
        self.looks_at_socket = true;
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

    fn post(&mut self, posting: &Posting, request: &Request<'_>) -> Result<Posted, PostError> {
        let Some((region, offset)) = request.place else { return Ok(Posted::ByMessage) };
        let Some(place) = place_of(region, offset) else {
            return Ok(Posted::ByMessage);
        };
        if !self.has_room(request.len_bytes) {
            return Ok(Posted::NoRoom);
        }
        let gone = || PostError::LocalMemory { why: "the endpoint is gone".to_owned() };
        let Some(lane) = self.lane() else { return Err(gone()) };
        let of = (posting.ticket, offset);
        match request.verb {
            Verb::Write { immediate: None } => {
                let from = if request.len_bytes < IN_PLACE_MIN_BYTES { None } else { request.data.local() };
                lane.write(of, place, request.len_bytes, from, |into| fill(into, request.data))?;
            }
            Verb::Read => match request.data.local() {
                Some(into) => lane.read(of, place, into)?,
                None => return Ok(Posted::ByMessage),
            },
            _ => return Ok(Posted::ByMessage),
        }
        if posting.submission == Submission::Single {
            self.try_hand_over();
        }
        Ok(Posted::Taken)
    }

    fn reaches(&self, region: &RemoteRegion, kind: OperationKind, _: u64) -> bool {
        matches!(kind, OperationKind::Write | OperationKind::Read) && place_of(region, 0).is_some()
    }

    fn has_room(&self, len_bytes: u64) -> bool {
        self.lane.as_ref().is_none_or(|lane| lane.has_room(len_bytes))
    }

    fn offers(&self, method: Method, _: &RemoteRegion, _: Durability) -> Result<Promise, &'static str> {
        Err(match method {
            Method::NativeFlush => {
                "libfabric has no flush, and what a provider does for FI_COMMIT_COMPLETE is not proven: verbs accepts it and \
                 does nothing"
            }
            Method::LocalWriteBack => "the memory is not mapped here",
            _ => "nothing attests that a read over libfabric pushes writes out of the target's caches",
        })
    }

    fn is_idle(&self) -> bool {
        self.lane.as_ref().is_none_or(|lane| lane.items.is_empty() || lane.broken.is_some())
    }

    fn is_broken(&self) -> bool {
        !self.is_stopped && self.lane.as_ref().is_some_and(|lane| lane.broken.is_some())
    }

    fn stop(&mut self) {
        self.is_stopped = true;
        if let Some(lane) = &mut self.lane {
            lane.stop();
        }
        self.greetings.stop();
    }
}

/// Copies the caller's bytes.
fn fill(into: &mut [u8], data: Data<'_>) -> Result<(), PostError> {
    match (data, data.local()) {
        (Data::Bytes(bytes), _) => into.copy_from_slice(bytes),
        (_, Some(local)) => local
            .memory
            .read(local.offset, into)
            .map_err(|error| PostError::LocalMemory { why: causes(&error).to_string() })?,
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
