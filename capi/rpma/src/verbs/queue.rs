//! Completion queues and their channels.

use std::{ffi::c_int, sync::Arc};

use pmof_verbs::{CompletionChannel, CompletionQueue, WorkCompletion};

use super::{Blocking, LOOK_MS, Peer, Waited};
use crate::{
    error::{Code, Failure},
    handle::Deletion,
};

/// A completion channel, of one queue or of two.
#[derive(Debug)]
pub(crate) struct Channel {
    channel: Arc<CompletionChannel>,
    blocking: Blocking,
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
        Ok(Arc::new(Self { channel: CompletionChannel::new(peer.device())?, blocking: Blocking::default() }))
    }

    pub(crate) fn descriptor(&self) -> c_int {
        self.blocking.give(&self.channel)
    }

    /// Waits for an event and tells which of the queues it is of; the queue is armed again.
    pub(crate) fn wait<'a>(&self, queues: &[&'a Cq], deletion: Deletion<'_>) -> Result<&'a Cq, Failure> {
        let blocks = self.blocking.blocks(&self.channel);
        loop {
            if blocks && Blocking::wait(&self.channel, LOOK_MS) == Waited::Interrupted {
                return Err(Code::NoCompletion.into());
            }
            deletion.check()?;
            if blocks && !Blocking::is_readable(&self.channel) {
                continue;
            }
            match self.channel.take_event()? {
                Some(key) => {
                    // Those of others were on their way when their queue was deleted.
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
    /// A queue of so many completions, which tells its channel of the first.
    pub(super) fn create(peer: &Peer, size: u32, shared: Option<&Arc<Channel>>) -> Result<Self, Failure> {
        let channel = shared.map_or_else(|| Channel::open(peer), |channel| Ok(Arc::clone(channel)))?;
        let queue = CompletionQueue::on_channel(&channel.channel, size.clamp(1, i32::MAX.cast_unsigned()))?;
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
    pub(crate) fn descriptor(&self) -> c_int {
        self.channel.descriptor()
    }

    pub(crate) fn wait(&self, deletion: Deletion<'_>) -> Result<(), Failure> {
        if self.is_shared {
            return Err(Code::SharedChannel.into());
        }
        self.channel.wait(&[self], deletion).map(drop)
    }

    /// Takes completions that are there; how many.
    #[inline]
    pub(crate) fn poll(&self, into: &mut [WorkCompletion]) -> Result<usize, Failure> {
        Ok(self.queue.poll(into)?)
    }
}
