//! Requests to connect, of both directions.

use std::{
    ffi::c_void,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use pmof_locks::Mutex;
use pmof_verbs::{
    CmEventKind, CmId, ConnectParameters, EventChannel, QueuePair, QueuePairOptions, RETRY_COUNT_MAX, Receive,
    SharedReceiveQueue,
};

use super::{Blocking, Channel, Conn, Cq, MrLocal, Peer, connection::Parts};
use crate::error::Failure;

/// Bytes that a request carries in itself: those of an atomic write.
const INLINE_BYTES: u32 = 8;

/// As many as the device has.
const DEPTH: u8 = u8::MAX;

/// A send waits for a receive forever.
const RNR_RETRIES: u8 = 7;

/// The configuration when the request was created.
#[derive(Debug)]
pub(crate) struct Wants {
    pub(crate) timeout: Duration,
    pub(crate) cq_size: u32,
    /// 0: receives complete where the rest does.
    pub(crate) rcq_size: u32,
    pub(crate) sq_size: u32,
    pub(crate) rq_size: u32,
    pub(crate) is_channel_shared: bool,
    /// A queue that connections share, and where its receives complete, if it decides that.
    pub(crate) shared: Option<(SharedReceiveQueue, Option<Cq>)>,
}

/// `rpma_conn_req`.
#[derive(Debug)]
pub(crate) struct ConnReq {
    peer: Arc<Peer>,
    id: CmId,
    /// The channel of the connection's events; one that was asked for has none of its own yet.
    events: Option<EventChannel>,
    queue_pair: Mutex<QueuePair>,
    channel: Option<Arc<Channel>>,
    cq: Cq,
    rcq: Option<Cq>,
    has_shared_receives: bool,
    private_data: Vec<u8>,
}

impl ConnReq {
    /// A request to a listener.
    pub(crate) fn to(peer: &Arc<Peer>, address: SocketAddr, wants: &Wants) -> Result<Self, Failure> {
        let events = EventChannel::new()?;
        let id = CmId::new(&events)?;
        id.resolve_address(None, address, wants.timeout)?;
        expect(&events, wants.timeout, &address, |event| matches!(event, CmEventKind::AddressResolved))?;
        id.resolve_route(wants.timeout)?;
        expect(&events, wants.timeout, &address, |event| matches!(event, CmEventKind::RouteResolved))?;
        Self::create(peer, id, Some(events), Vec::new(), wants)
    }

    /// The other side's.
    pub(super) fn of_request(
        peer: &Arc<Peer>,
        id: CmId,
        private_data: Vec<u8>,
        wants: &Wants,
    ) -> Result<Self, Failure> {
        Self::create(peer, id, None, private_data, wants)
    }

    fn create(
        peer: &Arc<Peer>,
        id: CmId,
        events: Option<EventChannel>,
        private_data: Vec<u8>,
        wants: &Wants,
    ) -> Result<Self, Failure> {
        let channel = wants.is_channel_shared.then(|| Channel::open(peer)).transpose()?;
        let cq = Cq::create(peer, wants.cq_size, channel.as_ref())?;
        let own_rcq = (wants.rcq_size > 0).then(|| Cq::create(peer, wants.rcq_size, channel.as_ref())).transpose()?;
        let shared_rcq = wants.shared.as_ref().and_then(|(_, rcq)| rcq.as_ref());
        let receive_cq = shared_rcq.or(own_rcq.as_ref()).unwrap_or(&cq).queue().clone();
        let has_native_flush = peer.has_native_flush();
        let options = QueuePairOptions {
            send_cq: cq.queue().clone(),
            receive_cq,
            srq: wants.shared.as_ref().map(|(receives, _)| receives.clone()),
            send_depth: wants.sq_size.max(1),
            receive_depth: wants.rq_size,
            inline_bytes: INLINE_BYTES,
            max_sge: 1,
            flush: has_native_flush,
            atomic_write: true,
            classic: false,
        };
        let queue_pair = id.create_queue_pair(&peer.domain, &options)?;
        let rcq = if shared_rcq.is_some() { None } else { own_rcq };
        Ok(Self {
            peer: Arc::clone(peer),
            id,
            events,
            queue_pair: Mutex::new(queue_pair),
            channel,
            cq,
            rcq,
            has_shared_receives: wants.shared.is_some(),
            private_data,
        })
    }

    pub(crate) fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Posts a receive before the first message can arrive.
    pub(crate) fn receive(
        &self,
        into: &MrLocal,
        offset: usize,
        len_bytes: usize,
        context: *const c_void,
    ) -> Result<(), Failure> {
        if self.has_shared_receives {
            return Err(Failure::invalid("the connection takes its receives from a shared queue: post it there"));
        }
        let into = into.sge(offset, len_bytes)?;
        let mut queue_pair = self.queue_pair.lock();
        Ok(queue_pair.post_receives(&[Receive { id: context.addr() as u64, into }])?)
    }

    /// Connects, or takes the request.
    pub(crate) fn connect(self, private_data: &[u8]) -> Result<Conn, Failure> {
        let parameters = ConnectParameters {
            private_data,
            responder_resources: DEPTH,
            initiator_depth: DEPTH,
            retry_count: RETRY_COUNT_MAX,
            rnr_retry_count: RNR_RETRIES,
        };
        let events = if let Some(events) = self.events {
            self.id.connect(&parameters)?;
            events
        } else {
            let events = EventChannel::new()?;
            self.id.migrate(&events)?;
            self.id.accept(&parameters)?;
            events
        };
        let queue_pair = self.queue_pair.into_inner();
        let parts = Parts {
            peer: self.peer,
            queue_pair,
            id: self.id,
            events,
            channel: self.channel,
            cq: self.cq,
            rcq: self.rcq,
            private_data: self.private_data,
        };
        Ok(Conn::new(parts))
    }

    /// Rejects the other side.
    pub(crate) fn reject(self) {
        if self.events.is_none() {
            // A client that is gone needs no notification.
            let _ = self.id.reject(&[]);
        }
    }
}

/// Waits for the event that a step of resolving ends with.
fn expect(
    events: &EventChannel,
    timeout: Duration,
    address: &SocketAddr,
    is_wanted: impl Fn(&CmEventKind) -> bool,
) -> Result<(), Failure> {
    // The kernel ends the step by an event of its own at the timeout.
    let deadline = Instant::now() + timeout + Duration::from_secs(1);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Failure::provider(format!("{address}: no route found within {timeout:?}")));
        }
        Blocking::wait(events, i32::try_from(left.as_millis()).unwrap_or(i32::MAX));
        match events.next_event()? {
            Some(event) if is_wanted(&event.kind) => return Ok(()),
            Some(event) => return Err(Failure::provider(format!("{address}: {:?}", event.kind))),
            None => {}
        }
    }
}
