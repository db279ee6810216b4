//! What carries the bytes of a connection.

use std::{fmt, io, os::fd::BorrowedFd, time::Duration};

use pmof_proto::{InputPlace, OutputView};

pub(crate) mod tcp;

/// An ordered stream of bytes to the other side. No call waits: where nothing can move it says `WouldBlock`.
pub(crate) trait Wire: Send + fmt::Debug {
    /// Moves bytes that came into their place. 0 is the end of the stream.
    fn receive(&mut self, place: InputPlace<'_>) -> io::Result<usize>;

    /// Sends the view, then `borrowed`; a view with a body comes without borrowed bytes. Returns how many bytes went.
    fn send(&mut self, view: &OutputView<'_>, borrowed: &[u8]) -> io::Result<usize>;

    /// From `gather(true)` to `gather(false)`, bytes that fill no packet may wait for those of the next send.
    fn gather(&mut self, _on: bool) {}

    /// Has whatever watches the other side give up after this time, if anything does.
    fn set_loss_timeout(&mut self, loss_timeout: Duration);

    /// Tells the other side that nothing more will be sent.
    fn shutdown_output(&mut self);

    /// What to watch for readiness, if the kernel knows this wire.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;
}
