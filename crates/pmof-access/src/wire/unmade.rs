//! The wire of a connection to an address that cannot be reached.

use std::{io, os::fd::BorrowedFd, time::Duration};

use pmof_proto::{InputPlace, OutputView};

use super::Wire;

/// Carries nothing: its connection ends before anything is sent.
#[derive(Debug)]
pub(crate) struct UnmadeWire {
    /// What the log calls the transport.
    pub(crate) name: &'static str,
}

impl Wire for UnmadeWire {
    fn name(&self) -> &'static str {
        self.name
    }

    fn receive(&mut self, _: InputPlace<'_>) -> io::Result<usize> {
        Ok(0)
    }

    fn send(&mut self, _: &OutputView<'_>, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::NotConnected.into())
    }

    fn set_loss_timeout(&mut self, _: Duration) {}

    fn shutdown_output(&mut self) {}

    fn as_fds(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [None, None]
    }

    fn is_connecting(&self) -> bool {
        true
    }
}
