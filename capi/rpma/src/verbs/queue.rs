//! Completion queues and their channels.

use std::{ffi::c_int, os::fd::AsFd as _, sync::Arc};

use pmof_locks::Mutex;
use pmof_verbs::{CompletionChannel, CompletionQueue, WorkCompletion};

use super::{Blocking, LOOK_MS, Peer, Waited};
use crate::{
    error::{Code, Failure},
    given::Given,
    handle::Deletion,
};

/// A completion channel, of one queue or of two.
#[derive(Debug)]
pub(crate) struct Channel {
    /// Of the channel's descriptor: libibverbs would take what it reads there for the address of a queue.
    given: Given,
    events: Arc<CompletionChannel>,
    /// Held by the thread that waits for an event.
    waiting: Mutex<()>,
}

/// `rpma_cq`.
#[derive(Debug)]
pub(crate) struct Cq {
    queue: CompletionQueue,
    channel: Arc<Channel>,
    /// The channel is that of another queue too.
    is_shared: bool,
}

impl Channel {
    pub(super) fn open(peer: &Peer) -> Result<Arc<Self>, Failure> {
        let events = CompletionChannel::new(peer.device())?;
        Ok(Arc::new(Self { given: Given::default(), events, waiting: Mutex::new(()) }))
    }

    pub(crate) fn descriptor(&self) -> Result<c_int, Failure> {
        self.given.give(self.events.as_fd())
    }

    /// Waits for an event and tells which of the queues it is of; the queue is armed again.
    pub(crate) fn wait<'a>(&self, queues: &[&'a Cq], deletion: Deletion<'_>) -> Result<&'a Cq, Failure> {
        let blocks = self.given.blocks();
        // A read of a descriptor that blocks would not end with the queue: only one thread polls, and none reads without data.
        let _waiting = blocks.then(|| self.waiting.lock());
        loop {
            deletion.check()?;
            if blocks && !Blocking::is_readable(&self.events) {
                if Blocking::wait(&self.events, LOOK_MS) == Waited::Interrupted {
                    return Err(Code::NoCompletion.into());
                }
                continue;
            }
            match self.events.take_event()? {
                Some(key) => {
                    // Events of others were in flight when their queue was deleted.
                    if let Some(queue) = queues.iter().find(|queue| queue.queue.key() == key) {
                        queue.queue.request_notify()?;
                        return Ok(queue);
                    }
                }
                None if blocks => {}
                None => return Err(Code::NoCompletion.into()),
            }
        }
    }
}

impl Cq {
    /// A queue of this many completions, which signals its channel at the first.
    pub(super) fn create(peer: &Peer, size: u32, shared: Option<&Arc<Channel>>) -> Result<Self, Failure> {
        let channel = shared.map_or_else(|| Channel::open(peer), |channel| Ok(Arc::clone(channel)))?;
        let queue = CompletionQueue::on_channel(&channel.events, size.clamp(1, i32::MAX.unsigned_abs()))?;
        queue.request_notify()?;
        Ok(Self { queue, channel, is_shared: shared.is_some() })
    }

    /// The same queue.
    pub(super) fn again(&self) -> Self {
        Self { queue: self.queue.clone(), channel: Arc::clone(&self.channel), is_shared: self.is_shared }
    }

    pub(super) fn queue(&self) -> &CompletionQueue {
        &self.queue
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.queue.key() == other.queue.key()
    }

    /// That of its channel.
    pub(crate) fn descriptor(&self) -> Result<c_int, Failure> {
        self.channel.descriptor()
    }

    pub(crate) fn wait(&self, deletion: Deletion<'_>) -> Result<(), Failure> {
        if self.is_shared {
            return Err(Code::SharedChannel.into());
        }
        self.channel.wait(&[self], deletion).map(drop)
    }

    /// Takes available completions; returns how many.
    #[inline]
    pub(crate) fn poll(&self, into: &mut [WorkCompletion]) -> Result<usize, Failure> {
        Ok(self.queue.poll(into)?)
    }
}
