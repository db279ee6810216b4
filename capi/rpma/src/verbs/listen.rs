//! Endpoints that listen.

use std::{ffi::c_int, net::SocketAddr, sync::Arc};

use pmof_locks::Mutex;
use pmof_verbs::{CmEventKind, CmId, EventChannel};

use super::{Blocking, ConnReq, LOOK_MS, Peer, Waited, request::Wants};
use crate::{
    error::{Code, Failure},
    handle::Deletion,
};

/// Requests that the kernel queues until they are taken; more are rejected.
const BACKLOG: c_int = 1024;

/// `rpma_ep`.
#[derive(Debug)]
pub(crate) struct Ep {
    peer: Arc<Peer>,
    channel: EventChannel,
    blocking: Blocking,
    /// Held by the thread that waits for a request.
    waiting: Mutex<()>,
    /// Listens as long as it is there.
    _listener: CmId,
}

impl Ep {
    pub(crate) fn listen(peer: &Arc<Peer>, address: SocketAddr) -> Result<Self, Failure> {
        let channel = EventChannel::new()?;
        let listener = CmId::new(&channel)?;
        // A server that was killed comes back on its port at once.
        listener.set_reuse_address(true)?;
        listener.bind(address)?;
        listener.listen(BACKLOG)?;
        Ok(Self {
            peer: Arc::clone(peer),
            channel,
            blocking: Blocking::default(),
            waiting: Mutex::new(()),
            _listener: listener,
        })
    }

    pub(crate) fn descriptor(&self) -> c_int {
        self.blocking.give(&self.channel)
    }

    /// The next request; waits for it, unless the descriptor was set not to block.
    pub(crate) fn next_request(&self, wants: &Wants, deletion: Deletion<'_>) -> Result<ConnReq, Failure> {
        let (request, private_data) = self.next_event(deletion)?;
        ConnReq::of_request(&self.peer, request, private_data, wants)
    }

    fn next_event(&self, deletion: Deletion<'_>) -> Result<(CmId, Vec<u8>), Failure> {
        let blocks = self.blocking.blocks(&self.channel);
        // A read of a descriptor that blocks would keep the channel's lock, which requests need too: only one thread polls, and none
        // reads without data.
        let _waiting = blocks.then(|| self.waiting.lock());
        loop {
            deletion.check()?;
            self.channel.check_descriptor()?;
            if !Blocking::is_readable(&self.channel) {
                if !blocks || Blocking::wait(&self.channel, LOOK_MS) == Waited::Interrupted {
                    return Err(Code::NoEvent.into());
                }
                continue;
            }
            match self.channel.next_event()?.map(|event| event.kind) {
                Some(CmEventKind::ConnectRequest { request, private_data, .. }) => {
                    return Ok((request, private_data));
                }
                // From a request that the application dropped.
                Some(_) => {}
                None if blocks => {}
                None => return Err(Code::NoEvent.into()),
            }
        }
    }
}
