//! Connections that close over a device that finishes nothing until it is stopped, and over a socket that takes nothing.

use std::{io, os::fd::BorrowedFd, sync::Arc, time::Duration};

use pmof_proto::{
    Access, ConnectionError, DirectAccess, Event, InputPlace, OutputView, PostError, RdmaFeatures, RegionKey,
    RegionTable, RegisteredRegion, Settings, Signal,
};

use super::LINGER;
use crate::{
    RemoteRegion,
    link::{Endpoint, Link},
    progress::Interest,
    request::{Data, Request, Verb},
    wire::{DirectWay, Posted, Posting, Submission, Wire},
};

#[derive(Debug)]
enum SlowWire {
    Device { is_busy: bool },
    Socket,
}

impl Wire for SlowWire {
    fn name(&self) -> &'static str {
        "a slow wire"
    }

    fn receive(&mut self, _place: InputPlace<'_>) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn send(&mut self, view: &OutputView<'_>, _borrowed: &[u8]) -> io::Result<usize> {
        match self {
            Self::Device { .. } => Ok(view.head.len()),
            Self::Socket => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn set_loss_timeout(&mut self, _loss_timeout: Duration) {}

    fn shutdown_output(&mut self) {}

    fn as_fds(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [None, None]
    }

    fn direct_way(&self) -> DirectWay {
        if matches!(self, Self::Device { .. }) { DirectWay::Device } else { DirectWay::None }
    }

    fn post(&mut self, _posting: &Posting, _request: &Request<'_>) -> Result<Posted, PostError> {
        *self = Self::Device { is_busy: true };
        Ok(Posted::Taken)
    }

    fn is_idle(&self) -> bool {
        !matches!(self, Self::Device { is_busy: true })
    }

    fn stop(&mut self) {
        if let Self::Device { is_busy } = self {
            *is_busy = false;
        }
    }
}

/// Hands what one end says to the other.
fn carry(from: &mut Endpoint, to: &mut Endpoint) {
    while let Some(view) = from.output_view() {
        let bytes = [view.head, view.tail].concat();
        let Some(InputPlace::Staging(buffer)) = to.input_place() else { panic!("a handshake is staged") };
        buffer[..bytes.len()].copy_from_slice(&bytes);
        to.input_arrived(bytes.len());
        from.output_sent(bytes.len());
    }
}

/// A standing connection.
fn link_over(wire: SlowWire) -> Arc<Link> {
    let mut here = Endpoint::initiator(Settings::default(), RegionTable::default().into(), b"");
    let mut there = Endpoint::target(Settings::default(), RegionTable::default().into());
    carry(&mut here, &mut there);
    there.accept(b"");
    carry(&mut there, &mut here);
    Link::new(1, here, Box::new(wire), Duration::from_secs(10), None)
}

#[test]
fn input_ends_a_sleep_while_the_last_words_wait() {
    let link = link_over(SlowWire::Socket);
    let mut core = link.lock();
    core.disconnect();
    core.drive(|| Duration::ZERO);
    assert!(core.endpoint.ended().is_some() && !core.endpoint.is_finished());
    assert_eq!(core.wanted_interest(), Interest { input: true, output: true });
}

#[test]
fn an_end_that_waits_for_a_device_is_reported_with_the_outcomes_in_time() {
    let memory = pmof_mem::Memory::anonymous(64).unwrap();
    let direct = DirectAccess::Rdma { address: 4096, remote_key: 7, features: RdmaFeatures::empty() };
    let region = RegisteredRegion::new(RegionKey([3; 16]), Arc::new(memory), 0, 64, Access::all());
    let region = RemoteRegion::of(region.with_direct(direct).descriptor());
    let link = link_over(SlowWire::Device { is_busy: false });
    let mut core = link.lock();
    let now = Duration::ZERO;
    core.drive(|| now);
    assert!(matches!(core.events.take(), Some(Event::Established { .. })));
    let (verb, place) = (Verb::Write { immediate: None }, Some((&region, 0)));
    let write = Request { verb, place, len_bytes: 1, data: Data::Bytes(b"x"), is_by_message: false };
    core.post(&write, Signal::Always, 0, Submission::Single).unwrap();
    core.disconnect();
    core.drive(|| now);
    assert_eq!(core.endpoint.ended(), Some(&ConnectionError::ClosedHere));
    assert!(core.events.take().is_none() && !core.is_drained(), "the device may still read the memory");
    let (next, _) = core.tick(now);
    assert_eq!(next, Some(now + LINGER));
    let (_, moved) = core.tick(now + LINGER);
    assert!(moved && core.next_completion().is_some() && core.is_drained());
    assert!(matches!(core.events.take(), Some(Event::Ended(ConnectionError::ClosedHere))));
}
