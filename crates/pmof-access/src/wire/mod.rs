//! What carries the bytes of a connection.

use std::{
    fmt, io,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};

use pmof_proto::{InputPlace, OutputView};

use crate::{
    direct::{Direct, Finished},
    ring::RingState,
};

pub(crate) mod tcp;

/// A descriptor to sleep on.
pub(crate) type Announcer = Arc<dyn AsFd + Send + Sync>;

/// An ordered stream of bytes to the other side, and for some a direct way to its memory. No call waits: where nothing can
/// move it says `WouldBlock`.
pub(crate) trait Wire: Send + fmt::Debug {
    /// What the log calls it.
    fn name(&self) -> &'static str;

    /// The number of its connection, by which regions are bound to it. Called once, before anything else.
    fn set_number(&mut self, _number: u64) {}

    /// Moves bytes that came into their place. 0 is the end of the stream.
    fn receive(&mut self, place: InputPlace<'_>) -> io::Result<usize>;

    /// False if [`receive`](Self::receive) would say `WouldBlock`, as far as that is known without a system call.
    fn may_have_input(&self) -> bool {
        true
    }

    /// Sends the view, then `borrowed`; a view with a body comes without borrowed bytes. Returns how many bytes went.
    fn send(&mut self, view: &OutputView<'_>, borrowed: &[u8]) -> io::Result<usize>;

    /// From `gather(true)` to `gather(false)`, bytes that fill no packet may wait for those of the next send.
    fn gather(&mut self, _on: bool) {}

    /// Has whatever watches the other side give up after this time, if anything does.
    fn set_loss_timeout(&mut self, loss_timeout: Duration);

    /// Tells the other side that nothing more will be sent.
    fn shutdown_output(&mut self);

    /// What to watch for readiness, if the kernel knows this wire: one or two descriptors. Room to send shows on the first.
    fn as_fds(&self) -> [Option<BorrowedFd<'_>>; 2];

    /// Takes in what the device finished: outcomes of direct operations go to `finished`. True if anything moved.
    fn progress(&mut self, _finished: &mut dyn Finished) -> io::Result<bool> {
        Ok(false)
    }

    /// Hands over to the device what was queued since the last call.
    fn submit(&mut self) {}

    /// Makes sure that the descriptors become readable with the next thing that happens. What happened before shows
    /// nowhere: it is looked for after this.
    fn announce(&mut self) {}

    /// Of a device: the descriptor that [`announce`](Self::announce) has tell of finished operations, which the holder keeps open.
    fn announcer(&self) -> Option<Announcer> {
        None
    }

    /// True if the device refused what it was handed, which the next [`progress`](Self::progress) tells.
    fn has_failed(&self) -> bool {
        false
    }

    /// Does what is due by time. Returns when to do it again, and whether anything moved.
    fn tick(&mut self, _now: Duration, _finished: &mut dyn Finished) -> io::Result<(Option<Duration>, bool)> {
        Ok((None, false))
    }

    /// True while there is nobody at the other end yet, nor anybody who heard of this one.
    fn is_connecting(&self) -> bool {
        false
    }

    /// True where a socket carries the bytes and this side's CPU carries out the direct operations when they are posted;
    /// else a wire with a direct way is a device, which tells of room to send as of input.
    fn is_local(&self) -> bool {
        false
    }

    /// The ring of this side that the other one appends to, if it does.
    fn ring(&self) -> Option<&Arc<RingState>> {
        None
    }

    /// The direct way to the other side's memory, if there is one.
    fn direct(&mut self) -> Option<&mut dyn Direct> {
        None
    }
}
