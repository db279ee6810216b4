//! The local openings that a pool's connections go through: one a transport and device, with one queue for all.

use std::{net::IpAddr, sync::Arc};

use pmof_access::{Address, CompletionQueue, ConnectError, Peer, QueueOptions};
use pmof_locks::Mutex;

use crate::ReplicaError;

/// Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Peers {
    options: QueueOptions,
    opened: Arc<Mutex<Opened>>,
}

#[derive(Debug, Default)]
struct Opened {
    queue: Option<CompletionQueue>,
    peers: Vec<(Peer, Option<IpAddr>)>,
}

impl Peers {
    pub(crate) fn new(options: QueueOptions) -> Self {
        Self { options, opened: Arc::default() }
    }

    /// The peer that leads to a target, and the queue of all.
    pub(crate) fn towards(
        &self,
        address: &Address,
        source: Option<IpAddr>,
    ) -> Result<(Peer, CompletionQueue), ReplicaError> {
        let mut opened = self.opened.lock();
        let peer = opened.peer(address, source)?;
        let queue = if let Some(queue) = &opened.queue {
            queue.clone()
        } else {
            let made = peer.completion_queue(self.options).map_err(ConnectError::from)?;
            opened.queue.insert(made).clone()
        };
        Ok((peer, queue))
    }
}

impl Opened {
    fn peer(&mut self, address: &Address, source: Option<IpAddr>) -> Result<Peer, ReplicaError> {
        let transport = address.transport;
        if !transport.descriptor().local_end.takes_source() {
            if let Some((peer, _)) = self.peers.iter().find(|(peer, _)| peer.transport() == Some(transport)) {
                return Ok(peer.clone());
            }
        }
        let peer = Peer::towards(address, source)?;
        let same = |(other, from): &&(Peer, Option<IpAddr>)| {
            let of = |peer: &Peer| (peer.transport(), peer.device_name().map(ToOwned::to_owned), peer.local_address());
            of(other) == of(&peer) && *from == source
        };
        if let Some((known, _)) = self.peers.iter().find(same) {
            return Ok(known.clone());
        }
        self.peers.push((peer.clone(), source));
        Ok(peer)
    }
}
