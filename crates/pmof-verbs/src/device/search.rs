//! Devices that are found by the network addresses they serve or lead to.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Device;
use crate::{CmEventKind, CmId, EventChannel, VerbsError};

impl Device {
    /// The device that carries a local address.
    pub fn by_local_address(address: IpAddr) -> Result<Self, VerbsError> {
        let id = CmId::new(&EventChannel::new()?)?;
        let no_device = |error| VerbsError::NoDeviceFor { address: address.to_string(), error };
        match id.bind(SocketAddr::new(address, 0)) {
            Ok(()) => match id.device() {
                Err(VerbsError::NotBound) => Err(no_device(io::ErrorKind::AddrNotAvailable.into())),
                found => found,
            },
            Err(VerbsError::Call { error, .. }) => Err(no_device(error)),
            Err(error) => Err(error),
        }
    }

    /// The device that leads to a remote address, coming from `source` where that is given. Waits at most `timeout`
    /// ([`RESOLVE_TIMEOUT`](crate::RESOLVE_TIMEOUT) is a good one).
    pub fn towards(to: SocketAddr, source: Option<IpAddr>, timeout: Duration) -> Result<Self, VerbsError> {
        let channel = EventChannel::new()?;
        let id = CmId::new(&channel)?;
        let no_device = |error| VerbsError::NoDeviceFor { address: to.to_string(), error };
        let source = source.map(|source| SocketAddr::new(source, 0));
        match id.resolve_address(source, to, timeout) {
            Ok(()) => {}
            Err(VerbsError::Call { error, .. }) => return Err(no_device(error)),
            Err(error) => return Err(error),
        }
        let deadline = Instant::now() + timeout + Duration::from_secs(1);
        loop {
            match channel.next_event()?.map(|event| event.kind) {
                Some(CmEventKind::AddressResolved) => return id.device(),
                Some(CmEventKind::AddressError { status }) => {
                    return Err(no_device(io::Error::from_raw_os_error(status.saturating_neg())));
                }
                Some(_) => {}
                None if Instant::now() >= deadline => return Err(no_device(io::ErrorKind::TimedOut.into())),
                None => wait_readable(&channel, deadline),
            }
        }
    }
}

/// Waits until an event is there or the deadline has passed; a signal may end it early.
fn wait_readable(channel: &EventChannel, deadline: Instant) {
    let left = deadline.saturating_duration_since(Instant::now());
    let left = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
    // What poll says is seen again by the caller's next look at the channel.
    let _ = poll(&mut [PollFd::new(channel, PollFlags::IN)], Some(&left));
}
