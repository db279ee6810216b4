//! The seam of transports: what carries the bytes of a connection, and reaches the other side's memory where it can.

use std::{
    fmt, io, mem,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};

use pmof_mem::{Durability, Promise};
use pmof_proto::{InputPlace, OperationError, OperationKind, OutputView, PostError, Ticket};

use crate::{
    Method, PeerProcess, RemoteRegion,
    request::{Data, Request},
    ring::RingState,
};

pub(crate) mod tcp;
pub(crate) mod unmade;

/// A descriptor to sleep on.
pub(crate) type CompletionChannel = Arc<dyn AsFd + Send + Sync>;

/// A socket, which whoever sleeps on it keeps open.
pub(crate) type Socket = Arc<dyn AsFd + Send + Sync>;

/// What a finished direct operation leaves.
#[derive(Debug)]
pub(crate) enum DirectOutcome {
    /// It took effect.
    Done,
    /// An atomic operation took effect; the number that was there before.
    Previous(u64),
    /// It failed. Nothing posted after it takes effect, and the transport carries nothing more.
    Failed(OperationError),
}

/// Where a transport tells the outcomes of direct operations, in their order.
pub(crate) trait Finished {
    /// The operation came out so; every direct one before it took effect.
    fn finished(&mut self, ticket: Ticket, outcome: DirectOutcome);
}

/// What carries out direct operations, if anything does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectWay {
    /// Every operation goes by message.
    None,
    /// This side's CPU, when they are posted; a socket carries the messages.
    Local,
    /// A device, which carries the messages too, and tells of room to send as of input.
    Device,
}

/// When the device is told of a direct operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Submission {
    /// At once, unless something else has to be submitted before it.
    Single,
    /// With the others of its batch, under the same lock of the connection, by [`Wire::submit`] or [`Wire::end_batch`].
    Batch,
    /// By the next [`Wire::submit`], perhaps of another thread.
    Later,
}

/// How a direct operation is handed over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posting {
    pub(crate) ticket: Ticket,
    /// Its completion is to be heard of by itself, not only with that of something posted later.
    pub(crate) is_signalled: bool,
    pub(crate) submission: Submission,
}

/// Writes of the present batch that go direct in a row, of which nobody is to hear unless they fail: what is asked for the first of them
/// holds for all, as long as nothing else is posted. They are counted when the run ends.
#[derive(Debug, Default)]
pub(crate) struct Run {
    /// How many more may join; 0 where there is no run.
    left: u32,
    /// The ticket of the next one; 0 where there is no run.
    next: u64,
    context: u64,
}

impl Run {
    /// One that so many writes may join, the first under the ticket `next`, all with this context.
    pub(crate) fn new(left: u32, next: u64, context: u64) -> Self {
        Self { left, next, context }
    }

    /// Whether one more write with this context may join.
    #[inline]
    pub(crate) fn takes(&self, context: u64) -> bool {
        self.left > 0 && self.context == context
    }

    /// The ticket of the next one.
    #[inline]
    pub(crate) fn next(&self) -> Ticket {
        Ticket(self.next)
    }

    /// It joined.
    #[inline]
    pub(crate) fn join(&mut self) -> Ticket {
        debug_assert!(self.left > 0, "a run takes no more writes than it was begun for");
        let ticket = self.next();
        self.left -= 1;
        self.next += 1;
        ticket
    }

    /// Ends it, if there is one: the ticket after its last one, and its context.
    #[inline]
    pub(crate) fn end(&mut self) -> Option<(Ticket, u64)> {
        let ended = (self.next(), self.context);
        (mem::take(&mut self.next) > 0).then(|| {
            self.left = 0;
            ended
        })
    }
}

/// What became of an operation that a transport was asked to carry out.
#[derive(Debug)]
pub(crate) enum Posted {
    /// It goes out with the next [`Wire::submit`], or has gone.
    Taken,
    /// It was carried out.
    Finished(DirectOutcome),
    /// This transport does not carry out such an operation there: it goes by message.
    ByMessage,
    /// This side has no room for it now.
    NoRoom,
    /// The other side has no place for it now: it waits.
    NoSlot,
}

/// An ordered stream of bytes to the other side, and for some a direct way to its memory. No call waits: where nothing can
/// move it says `WouldBlock`.
///
/// Direct operations take effect in the order posted, and in order with the bytes sent on the same wire. A wire without a direct way
/// leaves the calls for them as they are.
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

    /// The process that connected, where the other side is one of this machine.
    fn peer_process(&self) -> Option<PeerProcess> {
        None
    }

    /// What to watch for readiness, if the kernel knows this wire: one or two descriptors. Room to send shows on the first.
    fn as_fds(&self) -> [Option<BorrowedFd<'_>>; 2];

    /// The same as sockets that a sleeper may hold on to. None of a device, whose queue has a poller.
    fn sockets(&self) -> [Option<Socket>; 2] {
        [None, None]
    }

    /// Takes in what the device finished: outcomes of direct operations go to `finished`. True if anything moved.
    fn progress(&mut self, _finished: &mut dyn Finished) -> io::Result<bool> {
        Ok(false)
    }

    /// Hands over to the device what was queued since the last call.
    fn submit(&mut self) {}

    /// No operation follows in the submission of a batch. What was posted so may wait, but for nothing else.
    fn end_batch(&mut self) {}

    /// Makes sure that the descriptors become readable with the next thing that happens. What happened before shows
    /// nowhere: it is looked for after this.
    fn request_notification(&mut self) {}

    /// Of a device: the descriptor that [`request_notification`](Self::request_notification) makes readable when operations finish, which the holder keeps open.
    fn completion_channel(&self) -> Option<CompletionChannel> {
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

    /// The ring of this side that the other one appends to, if it does.
    fn ring(&self) -> Option<&Arc<RingState>> {
        None
    }

    /// What carries out direct operations. It does not change.
    fn direct_way(&self) -> DirectWay {
        DirectWay::None
    }

    /// Takes an operation that is no flush. On an error nothing was taken.
    fn post(&mut self, _posting: &Posting, _request: &Request<'_>) -> Result<Posted, PostError> {
        Ok(Posted::ByMessage)
    }

    /// How many writes may now be posted by [`append`](Self::append), in one batch and one lock of the connection, with nothing between.
    fn window(&mut self) -> u32 {
        0
    }

    /// Has one more write [join](Run::join) a run that takes it, within the [window](Self::window), to an offset and with so many bytes,
    /// which are the data's. `None` where it is not one to be taken so, and then nothing was done.
    fn append(
        &mut self,
        _run: &mut Run,
        _region: &RemoteRegion,
        (_offset, _len_bytes): (u64, u64),
        _data: &Data<'_>,
    ) -> Option<Ticket> {
        None
    }

    /// Takes a flush of these ranges (offset and bytes) by a method that [`offers`](Self::offers) agreed to: at
    /// least one range; with [`Method::LocalWriteBack`] those alone that this side did not write back itself, maybe none.
    fn flush(
        &mut self,
        _posting: &Posting,
        _region: &RemoteRegion,
        _ranges: &[(u64, u64)],
        _level: Durability,
        _method: Method,
    ) -> Result<Posted, PostError> {
        Ok(Posted::ByMessage)
    }

    /// Whether this kind of operation at `offset` of the region goes direct.
    fn reaches(&self, _region: &RemoteRegion, _kind: OperationKind, _offset: u64) -> bool {
        false
    }

    /// Whether one more direct operation with so many bytes of its caller can be taken now.
    fn has_room(&self, _len_bytes: u64) -> bool {
        true
    }

    /// The promise behind a flush to `level` by this method, or why there is none.
    fn offers(&self, _method: Method, _region: &RemoteRegion, _level: Durability) -> Result<Promise, &'static str> {
        Err("the transport of this connection reaches no memory by itself")
    }

    /// False while it is not known yet whether and how the region is reached; asking has it found out.
    fn is_reach_known(&self, _region: &RemoteRegion) -> bool {
        true
    }

    /// Longest record that the connection appends, in bytes; `None` where it appends to no ring.
    fn append_max_bytes(&self) -> Option<u64> {
        None
    }

    /// Whether this is the ring that the connection appends to.
    fn appends_to(&self, _region: &RemoteRegion) -> bool {
        false
    }

    /// Whether the ring has a free slot for one more record.
    fn has_slot(&self) -> bool {
        false
    }

    /// True if no direct operation is under way.
    fn is_idle(&self) -> bool {
        true
    }

    /// True if what is under way will not come to anything, and was not stopped yet.
    fn is_broken(&self) -> bool {
        false
    }

    /// Ends all direct operations that are under way: on return nothing touches this side's memory any more.
    fn stop(&mut self) {}
}
