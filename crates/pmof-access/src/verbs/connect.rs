//! How a queue pair comes to stand, and what the connection manager tells of it later.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use pmof_verbs::{CmEventKind, CmId, ConnectParameters, EventChannel, REJECT_NO_LISTENER};

use super::{io_error, receive};

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

/// What goes along with a connection request and its acceptance, 16 bytes.
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 4 | `pmof` |
/// | 4 | 2 | version of the message stream over verbs, 1, little-endian |
/// | 6 | 2 | receives that the sender of this has posted, little-endian |
/// | 8 | 4 | bytes of each, little-endian |
/// | 12 | 4 | zero |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    pub(super) receives: u16,
    pub(super) receive_bytes: u32,
}

const MAGIC: &[u8; 4] = b"pmof";
const VERSION: u16 = 1;

/// Fewest receives that make sense: one for messages, one for the word that there is room again.
const RECEIVES_MIN: u16 = 4;

/// Shortest receive that makes sense: a frame's header.
const RECEIVE_BYTES_MIN: u32 = pmof_proto::limits::HEADER_BYTES as u32;

impl Greeting {
    pub(super) fn own() -> Self {
        Self { receives: receive::RECEIVES, receive_bytes: receive::RECEIVE_BYTES }
    }

    pub(super) fn encode(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.receives.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.receive_bytes.to_le_bytes());
        bytes
    }

    /// What follows the 16 bytes is padding of the connection manager.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; 16] = bytes.get(..16)?.try_into().ok()?;
        let version = u16::from_le_bytes([bytes[4], bytes[5]]);
        let receives = u16::from_le_bytes([bytes[6], bytes[7]]);
        let receive_bytes = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
        let is_ours = bytes[..4] == *MAGIC && version == VERSION && bytes[12..] == [0; 4];
        let is_sane = receives >= RECEIVES_MIN && receive_bytes >= RECEIVE_BYTES_MIN;
        (is_ours && is_sane).then_some(Self { receives, receive_bytes })
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
}

impl Manager {
    pub(super) fn start(target: SocketAddr, source: Option<IpAddr>, loss_timeout: Duration) -> io::Result<Self> {
        let channel = EventChannel::new().map_err(io_error)?;
        let id = CmId::new(&channel).map_err(io_error)?;
        id.resolve_address(source.map(|address| SocketAddr::new(address, 0)), target, RESOLVE_TIMEOUT)
            .map_err(io_error)?;
        Ok(Self { id, channel, stage: Stage::ResolvingAddress, loss_timeout })
    }

    /// Takes over the identifier of a connection request.
    pub(super) fn of_request(id: CmId, loss_timeout: Duration) -> io::Result<Self> {
        let channel = EventChannel::new().map_err(io_error)?;
        id.migrate(&channel).map_err(io_error)?;
        Ok(Self { id, channel, stage: Stage::Connecting, loss_timeout })
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
                Ok(Step::Standing(Greeting::decode(&private_data)))
            }
            CmEventKind::Disconnected | CmEventKind::TimewaitExit => {
                self.stage = Stage::Disconnected;
                Ok(Step::Disconnected)
            }
            CmEventKind::Rejected { status, .. } if status == REJECT_NO_LISTENER => {
                Err(io::Error::new(io::ErrorKind::ConnectionRefused, "nobody listens on that port there"))
            }
            CmEventKind::Rejected { status, .. } => {
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
        self.id.connect(&parameters(&Greeting::own().encode())).map_err(io_error)
    }

    /// Takes the request.
    pub(super) fn accept(&mut self) -> io::Result<()> {
        let _ = self.id.set_ack_timeout(acknowledge_exponent(self.loss_timeout));
        self.id.accept(&parameters(&Greeting::own().encode())).map_err(io_error)
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
        let own = Greeting::own();
        let mut padded = [0; 56];
        padded[..16].copy_from_slice(&own.encode());
        assert_eq!(Greeting::decode(&padded), Some(own));
        assert_eq!(Greeting::decode(&padded[..15]), None);
        for (at, byte) in [(0, b'x'), (4, 2), (7, 0xFF), (12, 1)] {
            let mut bytes = own.encode();
            bytes[at] = byte;
            assert_eq!(Greeting::decode(&bytes).is_some(), at == 7, "byte {at}");
        }
        assert_eq!(Greeting::decode(&Greeting { receives: 3, ..own }.encode()), None);
        assert_eq!(Greeting::decode(&Greeting { receive_bytes: 63, ..own }.encode()), None);
    }

    #[test]
    fn a_vanished_host_is_told_within_half_of_the_loss_timeout() {
        for (loss_timeout, expected) in [
            (Duration::from_secs(10), 17),
            (Duration::from_secs(1), 14),
            (Duration::from_millis(60), 10),
            (Duration::ZERO, 10),
            (Duration::from_hours(1), 21),
        ] {
            assert_eq!(acknowledge_exponent(loss_timeout), expected, "{loss_timeout:?}");
        }
    }
}
