//! How a queue pair is connected, and what the connection manager tells of it later.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use pmof_verbs::{CmEventKind, CmId, ConnectParameters, EventChannel, REJECT_NO_LISTENER, RemoteAddress};
use rustix::io::Errno;

use super::{opened::io_error, receive};
use crate::RingRefusal;

/// How often a request is sent again before the other side counts as gone. Seven would mean for ever.
const RETRIES: u8 = 6;

/// Times that a sender waits for a receive to be posted: for ever, since credit keeps that from lasting.
const RECEIVER_NOT_READY_RETRIES: u8 = 7;

/// Reads and atomic operations under way in each direction, as far as the devices go; more than none, or the queue pairs
/// would not be allowed to flush.
const READS_UNDER_WAY: u8 = 16;

/// Time for an address or a route to be found. The whole connection has a limit of its own.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

/// The time for an acknowledgement is 4.096 us times two to the power of this; bounds of what devices take.
const ACKNOWLEDGE_EXPONENTS: std::ops::RangeInclusive<u8> = 10..=21;

/// What goes along with a connection request and its acceptance: 16 bytes, over iWARP 24, and 40 where a ring takes the
/// messages (never over iWARP).
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 4 | `pmof` |
/// | 4 | 2 | version of the message stream over verbs, 1, little-endian |
/// | 6 | 2 | receives that the sender of this has posted, little-endian |
/// | 8 | 4 | bytes of each, little-endian |
/// | 12 | 4 | 1 where a ring is named, else zero; over iWARP the key of 8 bytes that the other side may read, little-endian |
/// | 16 | 8 | over iWARP only: their address, little-endian |
/// | 16 | 16 | with a ring; request: its key; acceptance: its identity |
/// | 32 | 8 | with a ring; request: zero; acceptance: number of the first record, little-endian |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    pub(super) receives: u16,
    pub(super) receive_bytes: u32,
    /// What the other side reads to learn that something has arrived, over iWARP only.
    pub(super) answer: Option<RemoteAddress>,
    pub(super) ring: Option<RingGreeting>,
}

/// The ring of the target that the messages of the initiator go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RingGreeting {
    /// Its key in a request, its identity in an acceptance.
    pub(super) name: [u8; 16],
    pub(super) first_sequence: u64,
}

/// Bytes of a greeting without and with a ring.
const GREETING_BYTES: usize = 16;
const RING_GREETING_BYTES: usize = 40;

const MAGIC: &[u8; 4] = b"pmof";
const VERSION: u16 = 1;

/// Fewest receives that make sense: one for messages, one for the word that there is room again.
const RECEIVES_MIN: u16 = 4;

/// Shortest receive that makes sense: a frame's header.
const RECEIVE_BYTES_MIN: u32 = pmof_proto::limits::HEADER_BYTES as u32;

impl Greeting {
    /// That of a connection with receives of its own, or shared ones.
    pub(super) fn own(answer: Option<RemoteAddress>) -> Self {
        Self { receives: receive::RECEIVES, receive_bytes: receive::RECEIVE_BYTES, answer, ring: None }
    }

    pub(super) fn encode(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(RING_GREETING_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.receives.to_le_bytes());
        bytes.extend(self.receive_bytes.to_le_bytes());
        let word = self.answer.map_or(u32::from(self.ring.is_some()), |answer| answer.rkey);
        bytes.extend(word.to_le_bytes());
        if let Some(answer) = self.answer {
            bytes.extend(answer.address.to_le_bytes());
        } else if let Some(ring) = self.ring {
            bytes.extend(ring.name);
            bytes.extend(ring.first_sequence.to_le_bytes());
        }
        bytes
    }

    /// What follows may be padding of the connection manager. `has_answer` over iWARP, which both sides know.
    pub(super) fn decode(bytes: &[u8], has_answer: bool) -> Option<Self> {
        let (fixed, rest) = bytes.split_first_chunk::<GREETING_BYTES>()?;
        let version = u16::from_le_bytes([fixed[4], fixed[5]]);
        let receives = u16::from_le_bytes([fixed[6], fixed[7]]);
        let receive_bytes = u32::from_le_bytes([fixed[8], fixed[9], fixed[10], fixed[11]]);
        let word = u32::from_le_bytes([fixed[12], fixed[13], fixed[14], fixed[15]]);
        let (answer, ring) = match word {
            rkey if has_answer => {
                (Some(RemoteAddress { address: u64::from_le_bytes(*rest.first_chunk()?), rkey }), None)
            }
            0 => (None, None),
            1 => (None, Some(RingGreeting::decode(rest.first_chunk()?))),
            _ => return None,
        };
        let is_ours = fixed[..4] == *MAGIC && version == VERSION;
        let is_sane = receives >= RECEIVES_MIN && receive_bytes >= RECEIVE_BYTES_MIN;
        (is_ours && is_sane).then_some(Self { receives, receive_bytes, answer, ring })
    }
}

impl RingGreeting {
    fn decode(bytes: &[u8; RING_GREETING_BYTES - GREETING_BYTES]) -> Self {
        let mut name = [0; 16];
        name.copy_from_slice(&bytes[..16]);
        let mut first_sequence = [0; 8];
        first_sequence.copy_from_slice(&bytes[16..]);
        Self { name, first_sequence: u64::from_le_bytes(first_sequence) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    ResolvingAddress,
    ResolvingRoute,
    /// Asked for or answered; the other side is to confirm.
    Connecting,
    Standing,
    /// The other side is gone or has closed.
    Disconnected,
}

/// What a look at the connection manager's events brought.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Nothing,
    /// The device is known: make the queue pair, then call [`Manager::connect`].
    MakeQueuePair,
    /// The other side took the request, with this greeting.
    Standing(Option<Greeting>),
    /// The other side is gone or has closed.
    Disconnected,
}

/// One connection's identifier at the connection manager.
#[derive(Debug)]
pub(super) struct Manager {
    /// Dropped before its channel.
    id: CmId,
    channel: EventChannel,
    stage: Stage,
    loss_timeout: Duration,
    /// What this side says of itself.
    greeting: Greeting,
    is_initiator: bool,
}

impl Manager {
    pub(super) fn start(
        target: SocketAddr,
        source: Option<IpAddr>,
        loss_timeout: Duration,
        greeting: Greeting,
    ) -> io::Result<Self> {
        let channel = EventChannel::new().map_err(io_error)?;
        let id = CmId::new(&channel).map_err(io_error)?;
        id.resolve_address(source.map(|address| SocketAddr::new(address, 0)), target, RESOLVE_TIMEOUT)
            .map_err(io_error)?;
        Ok(Self { id, channel, stage: Stage::ResolvingAddress, loss_timeout, greeting, is_initiator: true })
    }

    /// Takes over the identifier of a connection request.
    pub(super) fn of_request(id: CmId, loss_timeout: Duration, greeting: Greeting) -> io::Result<Self> {
        let channel = EventChannel::new().map_err(io_error)?;
        id.migrate(&channel).map_err(io_error)?;
        Ok(Self { id, channel, stage: Stage::Connecting, loss_timeout, greeting, is_initiator: false })
    }

    pub(super) fn id(&mut self) -> &mut CmId {
        &mut self.id
    }

    pub(super) fn channel(&self) -> &EventChannel {
        &self.channel
    }

    pub(super) fn is_standing(&self) -> bool {
        self.stage == Stage::Standing
    }

    pub(super) fn is_disconnected(&self) -> bool {
        self.stage == Stage::Disconnected
    }

    pub(super) fn is_connecting(&self) -> bool {
        !self.is_standing() && !self.is_disconnected()
    }

    /// Handles the next event, if there is one.
    pub(super) fn step(&mut self) -> io::Result<Step> {
        let Some(event) = self.channel.next_event().map_err(io_error)? else { return Ok(Step::Nothing) };
        match event.kind {
            CmEventKind::AddressResolved => {
                self.stage = Stage::ResolvingRoute;
                // Where the kernel does not know the option, the device's own time holds, which is longer.
                let _ = self.id.set_ack_timeout(acknowledge_exponent(self.loss_timeout));
                self.id.resolve_route(RESOLVE_TIMEOUT).map_err(io_error)?;
                Ok(Step::Nothing)
            }
            CmEventKind::RouteResolved => {
                self.stage = Stage::Connecting;
                Ok(Step::MakeQueuePair)
            }
            CmEventKind::Established { private_data, .. } => {
                self.stage = Stage::Standing;
                let greeting = Greeting::decode(&private_data, self.greeting.answer.is_some());
                if greeting.is_none() && self.is_initiator {
                    let what = "what answers on that port does not speak this version of pmof over RDMA";
                    return Err(io::Error::new(io::ErrorKind::ConnectionRefused, what));
                }
                Ok(Step::Standing(greeting))
            }
            CmEventKind::Disconnected | CmEventKind::TimewaitExit => {
                self.stage = Stage::Disconnected;
                Ok(Step::Disconnected)
            }
            // Over iWARP it is TCP that says so.
            CmEventKind::Rejected { status, .. }
                if status == REJECT_NO_LISTENER || status == -Errno::CONNREFUSED.raw_os_error() =>
            {
                Err(io::Error::new(io::ErrorKind::ConnectionRefused, "nobody listens on that port there"))
            }
            CmEventKind::Rejected { status, private_data } => {
                if let Some(refusal) = RingRefusal::decode(&private_data) {
                    return Err(io::Error::new(io::ErrorKind::ConnectionRefused, refusal));
                }
                let why = format!("the target's connection manager rejected the request (status {status})");
                Err(io::Error::new(io::ErrorKind::ConnectionRefused, why))
            }
            CmEventKind::AddressError { status } => {
                let why = format!("no host answers at that address on the RDMA network (status {status})");
                Err(io::Error::new(io::ErrorKind::HostUnreachable, why))
            }
            CmEventKind::RouteError { status } => {
                let why = format!("the RDMA network has no route there (status {status})");
                Err(io::Error::new(io::ErrorKind::NetworkUnreachable, why))
            }
            CmEventKind::Unreachable { status } | CmEventKind::ConnectError { status } => {
                let why = format!("the host does not answer over RDMA (status {status}); has it a device there?");
                Err(io::Error::new(io::ErrorKind::HostUnreachable, why))
            }
            CmEventKind::DeviceRemoval => Err(io::Error::other("this side's RDMA device was removed")),
            _ => Ok(Step::Nothing),
        }
    }

    /// Sends the connection request.
    pub(super) fn connect(&mut self) -> io::Result<()> {
        self.id.connect(&parameters(&self.greeting.encode())).map_err(io_error)
    }

    /// Takes the request.
    pub(super) fn accept(&mut self) -> io::Result<()> {
        let _ = self.id.set_ack_timeout(acknowledge_exponent(self.loss_timeout));
        self.id.accept(&parameters(&self.greeting.encode())).map_err(io_error)
    }

    /// A message came, so the other side considers the connection as standing: the event that says so is on its way.
    pub(super) fn heard_from_peer(&mut self) {
        if self.stage == Stage::Connecting {
            self.stage = Stage::Standing;
        }
    }

    /// Closes towards the other side; it and this side are told of it by an event.
    pub(super) fn disconnect(&mut self) {
        if self.stage == Stage::Disconnected || self.id.disconnect().is_err() {
            self.stage = Stage::Disconnected;
        }
    }
}

fn parameters(private_data: &[u8]) -> ConnectParameters<'_> {
    ConnectParameters {
        private_data,
        responder_resources: READS_UNDER_WAY,
        initiator_depth: READS_UNDER_WAY,
        retry_count: RETRIES,
        rnr_retry_count: RECEIVER_NOT_READY_RETRIES,
    }
}

/// The longest time for one acknowledgement with which all retries together take half of the loss timeout.
fn acknowledge_exponent(loss_timeout: Duration) -> u8 {
    let each_ns = loss_timeout.as_nanos() / (2 * (u128::from(RETRIES) + 1));
    let steps = (each_ns / 4096).max(1);
    let exponent = steps.ilog2() as u8;
    exponent.clamp(*ACKNOWLEDGE_EXPONENTS.start(), *ACKNOWLEDGE_EXPONENTS.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_round_trip_and_others_are_refused() {
        let own = Greeting::own(None);
        let mut padded = [0; 56];
        padded[..16].copy_from_slice(&own.encode());
        assert_eq!(Greeting::decode(&padded, false), Some(own));
        assert_eq!(Greeting::decode(&padded[..15], false), None);
        for (at, byte) in [(0, b'x'), (4, 2), (7, 0xFF), (12, 1)] {
            let mut bytes = own.encode();
            bytes[at] = byte;
            assert_eq!(Greeting::decode(&bytes, false).is_some(), at == 7, "byte {at}");
        }
        assert_eq!(Greeting::decode(&Greeting { receives: 3, ..own }.encode(), false), None);
        assert_eq!(Greeting::decode(&Greeting { receive_bytes: 63, ..own }.encode(), false), None);
    }

    #[test]
    fn over_iwarp_a_greeting_says_where_to_read() {
        let own = Greeting::own(Some(RemoteAddress { address: 0x0102_0304_0506_0708, rkey: 0x0A0B_0C0D }));
        let bytes = own.encode();
        assert_eq!(bytes[12..], [0x0D, 0x0C, 0x0B, 0x0A, 8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(Greeting::decode(&bytes, true), Some(own));
        assert_eq!(Greeting::decode(&bytes[..23], true), None);
        // A peer over another network would not understand.
        assert_eq!(Greeting::decode(&bytes, false), None);
    }

    #[test]
    fn a_vanished_host_is_told_within_half_of_the_loss_timeout() {
        for (loss_timeout, expected) in [
            (Duration::from_secs(10), 17),
            (Duration::from_secs(1), 14),
            (Duration::from_millis(60), 10),
            (Duration::ZERO, 10),
            (Duration::from_secs(3600), 21),
        ] {
            assert_eq!(acknowledge_exponent(loss_timeout), expected, "{loss_timeout:?}");
        }
    }
}
