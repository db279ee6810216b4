//! Connections: events, queues, private data, and their end.

use std::{
    ffi::c_int,
    io::ErrorKind,
    ptr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering},
    },
    time::Duration,
};

use pmof_access::{ConnectError, Connection, ConnectionError, ConnectionEvent};
use pmof_mem::causes;

use crate::{
    argument::{Object, Out, Slot},
    call::call,
    configuration::PeerCfg,
    context::PeerShared,
    error::{Code, Failure},
    handle::{Deletion, Handle, kind},
    log::{Level, log},
    long,
    on::On,
    private_data::{ANSWER_BYTES, PrivateData, as_carried},
    queue::{Channel, Cq, TURN, queue_pair_number},
    shown::Showing,
    verbs,
};

pub(crate) const EVENT_UNDEFINED: c_int = -1;
pub(crate) const EVENT_ESTABLISHED: c_int = 0;
pub(crate) const EVENT_CLOSED: c_int = 1;
pub(crate) const EVENT_LOST: c_int = 2;
pub(crate) const EVENT_REJECTED: c_int = 3;
pub(crate) const EVENT_UNREACHABLE: c_int = 4;

/// `rpma_conn`.
#[derive(Debug)]
pub struct Conn {
    pub(crate) on: On<AccessConn, verbs::Conn>,
    cq: AtomicPtr<Handle<Cq>>,
    own_rcq: AtomicPtr<Handle<Cq>>,
    /// That of the shared receives, which owns it.
    shared_rcq: AtomicPtr<Handle<Cq>>,
}
kind!(Conn, 11, "rpma_conn", Conn::end_waits);

/// One on a connection of pmof.
#[derive(Debug)]
pub(crate) struct AccessConn {
    /// The descriptor of events.
    shown: Showing,
    connection: Arc<Connection>,
    pub(crate) peer: Arc<PeerShared>,
    /// The other side's: that of a request, or, once an event has told of it, that of an answer.
    private_data: OnceLock<Vec<u8>>,
    channel: Option<Arc<Channel>>,
    /// The application claims that writes of the other side's device reach its persistent memory.
    pub(crate) claims_direct_write: AtomicBool,
    /// The last event reported, if no other can follow; otherwise undefined.
    end: AtomicI32,
}

impl Conn {
    /// `shared_rcq`: that of the shared receives, or null.
    pub(crate) fn new(
        on: On<AccessConn, verbs::Conn>,
        cq: Cq,
        own_rcq: Option<Cq>,
        shared_rcq: *mut Handle<Cq>,
    ) -> Self {
        Self {
            on,
            cq: AtomicPtr::new(Handle::create(cq)),
            own_rcq: AtomicPtr::new(own_rcq.map_or(ptr::null_mut(), Handle::create)),
            shared_rcq: AtomicPtr::new(shared_rcq),
        }
    }

    fn delete_queues(&self) {
        for queue in [&self.cq, &self.own_rcq] {
            let mut queue = queue.swap(ptr::null_mut(), Ordering::Relaxed);
            // SAFETY: the handle is the connection's own, and nobody else has taken it.
            let _ = unsafe { Handle::delete(&raw mut queue) };
        }
    }

    fn end_waits(&self) {
        if let On::Access(AccessConn { connection, .. }) = &self.on {
            connection.queue().interrupt();
        }
    }

    fn cq(&self) -> *mut Handle<Cq> {
        self.cq.load(Ordering::Relaxed)
    }

    /// The queue of receives; null where there is none but that of operations.
    fn rcq(&self) -> *mut Handle<Cq> {
        let own = self.own_rcq.load(Ordering::Relaxed);
        if own.is_null() { self.shared_rcq.load(Ordering::Relaxed) } else { own }
    }
}

impl AccessConn {
    pub(crate) fn new(
        connection: Arc<Connection>,
        peer: Arc<PeerShared>,
        channel: Option<Arc<Channel>>,
        private_data: Vec<u8>,
    ) -> Self {
        Self {
            private_data: if private_data.is_empty() { OnceLock::new() } else { private_data.into() },
            shown: Showing::new(&peer.beacons),
            connection,
            peer,
            channel,
            claims_direct_write: AtomicBool::new(false),
            end: AtomicI32::new(EVENT_UNDEFINED),
        }
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    fn channel(&self) -> Result<&Arc<Channel>, Failure> {
        self.channel.as_ref().ok_or_else(|| Code::NotSharedChannel.into())
    }

    /// Whether the next outcome of the shared channel is that of a receive.
    fn wait_for_outcome(&self, deletion: Deletion<'_>) -> Result<bool, Failure> {
        let channel = self.channel()?;
        let blocks = channel.blocks();
        // Only after the last outcome: the program reuses its memory then.
        let has_ended = || self.connection.is_drained();
        loop {
            if let Some(found) = channel.wait(if blocks { TURN } else { Duration::ZERO }, has_ended) {
                return Ok(found);
            }
            deletion.check()?;
            if !blocks || has_ended() {
                return Err(Code::NoCompletion.into());
            }
        }
    }

    fn events_descriptor(&self) -> Result<c_int, Failure> {
        self.shown.give(|flag| self.connection.show_events_on(flag))
    }

    fn next_event(&self, deletion: Deletion<'_>) -> Result<c_int, Failure> {
        let blocks = self.shown.blocks();
        loop {
            if let Some(event) = self.connection.next_event(if blocks { TURN } else { Duration::ZERO }) {
                let number = number_of(&self.connection, &event);
                if number == EVENT_ESTABLISHED {
                    self.private_data.get_or_init(|| as_carried(self.connection.private_data(), ANSWER_BYTES));
                } else {
                    self.end.store(number, Ordering::Relaxed);
                }
                return Ok(number);
            }
            deletion.check()?;
            let end = self.end.load(Ordering::Relaxed);
            if !blocks {
                return Err(Code::NoEvent.into());
            }
            // No other event can follow: every later call reports it again.
            if end != EVENT_UNDEFINED {
                return Ok(end);
            }
        }
    }
}

impl Drop for AccessConn {
    fn drop(&mut self) {
        long::forget(self.connection.id().number());
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        self.delete_queues();
    }
}

/// The event of a connection that was not established.
fn event_of_failure(error: &ConnectError) -> c_int {
    log(Level::Notice, c"rpma_conn_req_connect", &causes(&error).to_string());
    match error {
        ConnectError::Unreachable { kind: ErrorKind::ConnectionRefused | ErrorKind::NotFound, .. }
        | ConnectError::Refused { .. } => EVENT_REJECTED,
        ConnectError::Unreachable { .. } | ConnectError::TimedOut { .. } => EVENT_UNREACHABLE,
        _ => EVENT_LOST,
    }
}

fn number_of(connection: &Connection, event: &ConnectionEvent) -> c_int {
    match event {
        ConnectionEvent::Established => EVENT_ESTABLISHED,
        ConnectionEvent::Closed => EVENT_CLOSED,
        ConnectionEvent::Lost(why) => {
            if let Some(error) = connection.connect_error() {
                return event_of_failure(&error);
            }
            log(Level::Notice, c"rpma_conn_next_event", &causes(&why).to_string());
            // When a process ends the kernel disconnects its queue pairs in order.
            let is_of_process = matches!(why, ConnectionError::Lost { .. })
                && matches!(
                    connection.wire_error_kind(),
                    None | Some(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
                );
            if is_of_process { EVENT_CLOSED } else { EVENT_LOST }
        }
        _ => EVENT_UNDEFINED,
    }
}

/// Returns a descriptor that is readable while there are events. Setting it not to block has the next function not block.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_conn_get_event_fd(conn: Object<Conn>, fd: Out<c_int>) -> c_int {
    call(c"rpma_conn_get_event_fd", || {
        let conn = conn.get()?;
        fd.need("fd")?;
        let number = match &conn.on {
            On::Access(conn) => conn.events_descriptor()?,
            On::Verbs(conn) => conn.events_descriptor(),
        };
        fd.put(number);
        Ok(())
    })
}

/// Takes the next event; waits for it, unless the descriptor was set not to block. The end of a connection is reported again to
/// every later wait.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_conn_next_event(conn: Object<Conn>, event: Out<c_int>) -> c_int {
    call(c"rpma_conn_next_event", || {
        let conn = conn.get()?;
        event.need("event")?;
        let next = match &conn.on {
            On::Access(on) => on.next_event(conn.deletion()),
            On::Verbs(on) => on.next_event(conn.deletion()),
        }?;
        event.put(next);
        Ok(())
    })
}

/// Returns the private data that the other side's program sent. The bytes stay until the connection is deleted.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_conn_get_private_data(conn: Object<Conn>, data: Out<PrivateData>) -> c_int {
    call(c"rpma_conn_get_private_data", || {
        let conn = conn.get()?;
        data.need("pdata")?;
        let bytes = match &conn.on {
            On::Access(conn) => conn.private_data.get().map_or(&[][..], Vec::as_slice),
            On::Verbs(conn) => conn.private_data(),
        };
        data.put(PrivateData::of(bytes));
        Ok(())
    })
}

/// Applies the other side's claims about its platform.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_conn_apply_remote_peer_cfg(conn: Object<Conn>, cfg: Object<PeerCfg>) -> c_int {
    call(c"rpma_conn_apply_remote_peer_cfg", || {
        let (conn, cfg) = (conn.get()?, cfg.get()?);
        let claim = cfg.direct_write_to_pmem.load(Ordering::Relaxed);
        match &conn.on {
            On::Access(conn) => conn.claims_direct_write.store(claim, Ordering::Relaxed),
            On::Verbs(conn) => conn.apply_claim(claim),
        }
        Ok(())
    })
}

/// Returns the connection's number in completions.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_conn_get_qp_num(conn: Object<Conn>, number: Out<u32>) -> c_int {
    call(c"rpma_conn_get_qp_num", || {
        let conn = conn.get()?;
        number.need("qp_num")?;
        let own = match &conn.on {
            On::Access(conn) => queue_pair_number(conn.connection.id()),
            On::Verbs(conn) => conn.number(),
        };
        number.put(own);
        Ok(())
    })
}

/// Tells the queue of all outcomes, but for those of receives where these have their own.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_conn_get_cq(conn: Object<Conn>, cq: Out<*mut Handle<Cq>>) -> c_int {
    call(c"rpma_conn_get_cq", || {
        let conn = conn.get()?;
        cq.need("cq_ptr")?;
        cq.put(conn.cq());
        Ok(())
    })
}

/// Tells the queue of the outcomes of receives; null where they come with all others.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_conn_get_rcq(conn: Object<Conn>, rcq: Out<*mut Handle<Cq>>) -> c_int {
    call(c"rpma_conn_get_rcq", || {
        let conn = conn.get()?;
        rcq.need("rcq_ptr")?;
        rcq.put(conn.rcq());
        Ok(())
    })
}

/// Returns the descriptor of the completion channel that both queues share.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_conn_get_compl_fd(conn: Object<Conn>, fd: Out<c_int>) -> c_int {
    call(c"rpma_conn_get_compl_fd", || {
        let conn = conn.get()?;
        fd.need("fd")?;
        let number = match &conn.on {
            On::Access(conn) => conn.channel()?.descriptor()?,
            On::Verbs(conn) => conn.channel()?.descriptor()?,
        };
        fd.put(number);
        Ok(())
    })
}

/// Waits on the shared completion channel until one of its queues has an outcome, and tells which one.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_conn_wait(
    conn: Object<Conn>,
    flags: c_int,
    cq: Out<*mut Handle<Cq>>,
    is_rcq: Out<bool>,
) -> c_int {
    call(c"rpma_conn_wait", || {
        let conn = conn.get()?;
        cq.need("cq")?;
        if flags != 0 {
            log(Level::Notice, c"rpma_conn_wait", &format!("flags {flags:#x} mean nothing yet"));
        }
        let of_receives = match &conn.on {
            On::Access(on) => on.wait_for_outcome(conn.deletion()),
            On::Verbs(on) => on.wait_for_outcome(conn.deletion()),
        }?;
        let found = if of_receives { conn.rcq() } else { conn.cq() };
        cq.put(found);
        is_rcq.put(of_receives);
        Ok(())
    })
}

/// Closes in order; an event tells when that is done. One that has ended already is left as it is.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_conn_disconnect(conn: Object<Conn>) -> c_int {
    call(c"rpma_conn_disconnect", || {
        let conn = conn.get()?;
        match &conn.on {
            On::Access(conn) => {
                conn.connection.disconnect();
                Ok(())
            }
            On::Verbs(conn) => conn.disconnect(),
        }
    })
}

/// Deletes a connection with its queues; an established one is closed.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_conn_delete(conn: Slot<Conn>) -> c_int {
    call(c"rpma_conn_delete", || conn.delete())
}
