//! One connection of a target: its requests, and the pool that it has open.

use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

use pmof_access::{Access, Completion, Connection, OperationKind, Outcome, Peer, PostError, Region};

use super::{
    TakeError,
    gate::{Gate, Visitor},
};
use crate::{
    OpenFor, OpenPool, PoolStore,
    control::{LIST_LIMIT, MAX_MESSAGE_BYTES, Reply, Request},
    refusal::{Answer, ServiceCode},
};

#[derive(Debug)]
pub(super) struct Session {
    /// Through which the connection came, and with which the pool's memory is registered.
    peer: Peer,
    connection: Connection,
    /// Where the next request arrives.
    request: Region,
    /// The registration comes before the pool, so that no peer can reach the memory when the pool's lock is released.
    open: Option<(Region, OpenPool)>,
    holder: String,
    visitor: Visitor,
    since: Instant,
}

impl Session {
    /// Awaits the first request. Fails on a connection that ended already: nothing would ever be heard of it again.
    pub(super) fn start(peer: &Peer, connection: Connection, is_admitted: bool) -> Result<Self, TakeError> {
        let request = peer.allocate(MAX_MESSAGE_BYTES as u64, Access::empty())?;
        let holder = match connection.peer_address() {
            Some(address) => format!("the initiator at {address}"),
            None => "another initiator".to_owned(),
        };
        let visitor = if is_admitted { Visitor::Admitted } else { Visitor::Stranger };
        let since = Instant::now();
        let session = Self { peer: peer.clone(), connection, request, open: None, holder, visitor, since };
        session.post_receive()?;
        Ok(session)
    }

    /// Whether it may ask, or has time still to show that it may.
    pub(super) fn is_in_time(&self, limit: Duration) -> bool {
        matches!(self.visitor, Visitor::Admitted) || self.since.elapsed() < limit
    }

    /// Takes an outcome of this connection in. `Break`: the connection is over.
    pub(super) fn handle(&mut self, store: &PoolStore, gate: &Gate, done: &Completion) -> ControlFlow<()> {
        let Ok(outcome) = &done.outcome else { return ControlFlow::Break(()) };
        if done.kind != OperationKind::Receive {
            return ControlFlow::Continue(());
        }
        let Outcome::Received { len_bytes, .. } = outcome else { return ControlFlow::Continue(()) };
        let mut message = vec![0; *len_bytes as usize];
        if self.request.read(0, &mut message).is_err() {
            return ControlFlow::Break(());
        }
        let (request_id, reply) = match Request::decode(&message) {
            Ok((request_id, request)) => (request_id, self.answer(store, gate, request)),
            Err(error) => (error.request_id().unwrap_or(0), refused(ServiceCode::BadMessage, error.to_string())),
        };
        let sent = reply.encode(request_id).map(|bytes| self.connection.send(&bytes));
        match (sent, self.post_receive()) {
            (Ok(Ok(_)), Ok(_)) => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    }

    fn post_receive(&self) -> Result<pmof_access::Ticket, PostError> {
        self.connection.receive(self.request.slice(..)?, 0)
    }

    fn answer(&mut self, store: &PoolStore, gate: &Gate, request: Request) -> Reply {
        let answered = if matches!(self.visitor, Visitor::Admitted) {
            self.carry_out(store, request)
        } else {
            gate.answer(&mut self.visitor, &request)
        };
        answered.unwrap_or_else(|refusal| Reply::Refused { code: refusal.code, text: refusal.text })
    }

    fn carry_out(&mut self, store: &PoolStore, request: Request) -> Result<Reply, Answer> {
        match request {
            Request::Create { name, new, publish_on_close } => self.open(|holder| {
                if publish_on_close { store.create_unpublished(&name, &new) } else { store.create(&name, &new, holder) }
            }),
            Request::Open { name, access, require } => self.open(|holder| {
                let pool = store.open_pool(&name, access, holder)?;
                pool.require(require)?;
                Ok(pool)
            }),
            Request::Close => self.close(store),
            Request::Raise { generation } => self.raise(generation),
            Request::Remove { name } => store.remove(&name).map(|()| Reply::Removed).map_err(Into::into),
            Request::Info { name } => store.info(&name).map(|info| Reply::Info(Box::new(info))).map_err(Into::into),
            Request::List { after } => store.list(after.as_ref(), LIST_LIMIT).map(Reply::list_page).map_err(Into::into),
            Request::Challenge { .. } | Request::Prove { .. } => {
                let text = "this target asks for no proof".to_owned();
                Err(Answer { code: ServiceCode::BadMessage as u16, text })
            }
            _ => {
                let text = "this version keeps no pool sets".to_owned();
                Err(Answer { code: ServiceCode::BadMessage as u16, text })
            }
        }
    }

    fn close(&mut self, store: &PoolStore) -> Result<Reply, Answer> {
        if let Some((region, mut pool)) = self.open.take() {
            drop(region);
            store.publish(&mut pool, self.holder.clone())?;
        }
        Ok(Reply::Closed)
    }

    fn raise(&mut self, generation: u32) -> Result<Reply, Answer> {
        let Some((_, pool)) = &mut self.open else {
            let text = "this connection has no pool open".to_owned();
            return Err(Answer { code: ServiceCode::NotOpen as u16, text });
        };
        pool.raise_generation(generation)?;
        Ok(Reply::Raised)
    }

    fn open(&mut self, open: impl FnOnce(String) -> Result<OpenPool, crate::StoreError>) -> Result<Reply, Answer> {
        if let Some((_, pool)) = &self.open {
            let text = format!("this connection has pool {} open; close it first", pool.name());
            return Err(Answer { code: ServiceCode::AlreadyOpen as u16, text });
        }
        let pool = open(self.holder.clone())?;
        let access = match pool.access() {
            OpenFor::Read => Access::READ,
            OpenFor::Write => Access::all(),
        };
        let region = self
            .peer
            .register(pool.medium(), pool.data_offset(), pool.data_len_bytes(), access)
            .map_err(|error| Answer { code: ServiceCode::Register as u16, text: error.to_string() })?;
        let header = pool.header();
        let reply = Reply::Opened {
            pool_uuid: header.pool_uuid,
            replica_uuid: header.replica_uuid,
            size_bytes: header.size_bytes,
            generation: header.generation,
            replica_count: header.replica_count,
            user_flags: header.user_flags,
            descriptor: region.descriptor().to_vec(),
        };
        self.open = Some((region, pool));
        Ok(reply)
    }
}

impl From<crate::StoreError> for Answer {
    fn from(error: crate::StoreError) -> Self {
        Self { code: error.code(), text: error.to_string() }
    }
}

fn refused(code: ServiceCode, text: String) -> Reply {
    Reply::Refused { code: code as u16, text }
}
