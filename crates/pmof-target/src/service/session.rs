//! One connection of a target: its requests, and the pool that it has open.

use std::{
    ops::{ControlFlow, Range},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use pmof_access::{
    AcceptOptions, Access, Completion, ConnectError, Connection, OperationKind, Outcome, Peer, PeerProcess, PostError,
    Region, RegisterError, Ticket, Transport,
};
use pmof_control::{
    DATA_RANGES_MAX, FailureDomain, InitiatorProcess, MAX_MESSAGE_BYTES, OpenFor, Reply, Request, ServiceCode,
    SettledVersion, SpokenVersions, TargetStatus,
};
use pmof_mem::{HandOut, causes};
use pmof_pool_set::Attributes;
use uuid::Uuid;

use super::{
    authentication::{Authentication, Authenticator},
    health::Scrubs,
    identity::Identity,
    leases::{Held, Lease, Leases},
    takeover::{Terms, was_taken_over},
    working,
};
use crate::{
    OpenPool, PoolStore, StoreError,
    events::{self, Act, Client, Refusals},
    refused::Refused,
    requests::{self, Digesting, Served, not_open},
    sets::{OpenSet, SetRemoval, SetStore, SetStoreError},
    store::OpenTerms,
};

/// The code of a refusal for a file that lost its name ([`StoreError::Replaced`]).
const FILE_LOST: u16 = 15;

#[derive(Debug)]
pub(super) struct Session {
    /// Through which the connection came, and with which the pool's memory is registered.
    peer: Peer,
    connection: Arc<Connection>,
    /// The process at the other end, where that can be known.
    process: Option<PeerProcess>,
    /// The same for people, with what it says of itself.
    initiator: Option<InitiatorProcess>,
    /// Where the next request arrives.
    request: Region,
    version: SettledVersion,
    open: Option<Open>,
    /// A set whose parts are about to go.
    removal: Option<SetRemoval>,
    authentication: Authentication,
    since: Instant,
    refusals: Refusals,
    /// The answer that the initiator has yet to take. The next request is awaited after it, so that one who takes no answers
    /// has one made, not many.
    answering: Option<Ticket>,
    digested: Option<Digested>,
}

/// The outcome of a digest, and how long it took.
#[derive(Debug)]
pub(super) struct Digested {
    pub(super) reply: Result<Reply, Refused>,
    pub(super) took: Duration,
}

/// Why a new connection was not taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum TakeError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Register(#[from] RegisterError),
    #[error(transparent)]
    Ended(#[from] PostError),
}

/// What a connection has open. Registrations come before the set, so that no peer can reach the memory when its lock is
/// released.
#[derive(Debug)]
enum Open {
    Pool(Arc<Lease>),
    Set { regions: (Region, Option<Region>), set: Box<OpenSet> },
}

impl Open {
    /// The name of the pool, or of the pool set.
    fn name(&self) -> String {
        match self {
            Self::Pool(lease) => lease.name.to_string(),
            Self::Set { set, .. } => set.name().to_string(),
        }
    }

    /// The memory that offsets are counted in.
    fn bytes(&self) -> Option<Served> {
        match self {
            Self::Pool(lease) => lease.lock().as_ref().map(|held| Served::of_pool(&held.pool)),
            Self::Set { set, .. } => {
                let (memory, size_bytes) = (set.memory()?, set.len_bytes());
                Some(Served { memory, begin: 0, size_bytes, is_writable: set.access == OpenFor::Write })
            }
        }
    }
}

/// What a target keeps.
#[derive(Debug)]
pub(super) struct Stores {
    pub(super) pools: PoolStore,
    pub(super) sets: SetStore,
    pub(super) leases: Leases,
    /// The time since the machine was started, where that is known.
    pub(super) boot: Option<Uuid>,
    /// What fails together with this target.
    pub(super) domain: Option<FailureDomain>,
}

/// The target that a session belongs to.
pub(super) trait Host {
    fn stores(&self) -> &Stores;

    fn authenticator(&self) -> &Authenticator;

    /// Nothing is opened any more.
    fn is_draining(&self) -> bool;

    fn status(&self) -> Result<TargetStatus, Refused>;

    /// The file of a pool that is open was found to be gone.
    /// Whether the operator declares that what a device of this transport writes is durable by itself.
    fn is_appliance(&self, transport: Option<Transport>) -> bool;

    fn count_lost_file(&self);

    /// When a pool was scrubbed, as its writer tells.
    fn scrubs(&self) -> &Scrubs;

    /// A request was answered; `refused` is the code of one that was refused.
    fn count(&self, request: &'static str, took: Duration, refused: Option<u16>);
}

impl Session {
    /// Awaits the first request. Fails on a connection that ended already: nothing would ever be heard of it again.
    pub(super) fn start(
        peer: &Peer,
        connection: Connection,
        authentication: Authentication,
    ) -> Result<Self, TakeError> {
        let request = peer.allocate(MAX_MESSAGE_BYTES as u64, Access::empty())?;
        let since = Instant::now();
        let process = connection.peer_process();
        let session = Self {
            peer: peer.clone(),
            initiator: initiator(&connection, process.as_ref()),
            process,
            connection: Arc::new(connection),
            request,
            version: SettledVersion::default(),
            open: None,
            removal: None,
            authentication,
            since,
            refusals: Refusals::default(),
            answering: None,
            digested: None,
        };
        session.post_receive()?;
        Ok(session)
    }

    /// Whether it may ask, or has time still to show that it may.
    pub(super) fn is_in_time(&self, limit: Duration) -> bool {
        self.identity().is_some() || self.since.elapsed() < limit
    }

    /// Who it is; `None` until it has shown that it may ask.
    pub(super) fn identity(&self) -> Option<Identity> {
        match self.authentication {
            Authentication::Authenticated(identity) => Some(identity),
            Authentication::Unauthenticated | Authentication::Challenged(_) => None,
        }
    }

    /// Who has its pool open, for others that find it in use.
    pub(super) fn holder(&self) -> String {
        self.identity().unwrap_or(Identity::Anonymous).at(self.connection.peer_address(), self.initiator.as_ref())
    }

    /// Whose request it is, for the log.
    pub(super) fn client(&self) -> Client {
        Client::of(&self.connection, self.process.as_ref(), self.holder())
    }

    fn lease(&self) -> Option<&Arc<Lease>> {
        match &self.open {
            Some(Open::Pool(lease)) => Some(lease),
            Some(Open::Set { .. }) | None => None,
        }
    }

    /// Whether it has a pool open.
    pub(super) fn has_open(&self) -> bool {
        match &self.open {
            Some(Open::Pool(lease)) => lease.lock().is_some(),
            Some(Open::Set { .. }) => true,
            None => false,
        }
    }

    /// Whether its end leaves a pool that was not closed: it has one open for writing.
    pub(super) fn leaves_open(&self) -> bool {
        let access = match &self.open {
            Some(Open::Pool(lease)) => lease.access,
            Some(Open::Set { set, .. }) => set.access,
            None => return false,
        };
        access == OpenFor::Write && self.has_open()
    }

    /// Whether its pool is given up since the file is gone: its writer is not lost.
    pub(super) fn has_lost_file(&self, host: &impl Host) -> bool {
        if let Some(Open::Pool(lease)) = &self.open {
            let held = lease.lock();
            let is_gone = held.as_ref().is_some_and(|held| {
                matches!(host.stores().pools.check_named(&held.pool), Err(StoreError::Replaced { .. }))
            });
            drop(held);
            if is_gone {
                note_lost_file(host, lease);
            }
            return lease.has_lost_file.load(Ordering::Relaxed);
        }
        false
    }

    /// Ends the connection and tells the initiator that the target stops.
    pub(super) fn stop(&self) {
        self.connection.stop();
    }

    /// When it began.
    pub(super) fn since(&self) -> Instant {
        self.since
    }

    /// What is to be digested before this outcome can be [taken in](Self::handle), if it asks for a digest that is not refused.
    pub(super) fn digest(&self, host: &impl Host, done: &Completion) -> Option<Digesting> {
        let Ok(Outcome::Received { len_bytes, .. }) = &done.outcome else { return None };
        if done.kind != OperationKind::Receive || self.identity().is_none() || host.is_draining() {
            return None;
        }
        let mut message = vec![0; *len_bytes as usize];
        self.request.read(0, &mut message).ok()?;
        let Ok((_, Request::Digest { offset, len_bytes, block_bytes })) = self.version.decode(&message) else {
            return None;
        };
        self.bytes().ok()?.digest(offset, len_bytes, block_bytes).ok()
    }

    /// The outcome of what [`digest`](Self::digest) gave, which took so long.
    pub(super) fn note_digested(&mut self, digested: Digested) {
        self.digested = Some(digested);
    }

    /// The connection, to see whether it is there still.
    pub(super) fn connection(&self) -> Arc<Connection> {
        Arc::clone(&self.connection)
    }

    /// Takes an outcome of this connection in. `Break`: the connection is over.
    pub(super) fn handle(&mut self, host: &impl Host, done: &Completion) -> ControlFlow<()> {
        let Ok(outcome) = &done.outcome else { return ControlFlow::Break(()) };
        if self.answering.is_some_and(|ticket| ticket == done.ticket) {
            self.answering = None;
            return if self.post_receive().is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
        }
        if done.kind != OperationKind::Receive {
            return ControlFlow::Continue(());
        }
        let Outcome::Received { len_bytes, .. } = outcome else { return ControlFlow::Continue(()) };
        let mut message = vec![0; *len_bytes as usize];
        if self.request.read(0, &mut message).is_err() {
            return ControlFlow::Break(());
        }
        let request = self.version.decode(&message);
        let head = self.version.settle(&request);
        let reply = match request {
            Ok((_, request)) if self.is_told_of(&request) => {
                let (connection, message) = (Arc::clone(&self.connection), Reply::Working.encode(head));
                // An initiator that is gone is found when it is answered.
                let tell = || drop(message.as_ref().map(|message| connection.send(message)));
                working::tell_while(&tell, working::INTERVAL, || self.answer(host, request))
            }
            Ok((_, request)) => self.answer(host, request),
            Err(error) => Reply::Refused { code: ServiceCode::BadMessage as u16, text: causes(&error).to_string() },
        };
        let sent = reply.encode(head).map(|bytes| self.connection.send(&bytes));
        match sent {
            Ok(Ok(ticket)) => {
                self.answering = Some(ticket);
                ControlFlow::Continue(())
            }
            _ => ControlFlow::Break(()),
        }
    }

    /// Whether its initiator is told that the request is being worked on.
    fn is_told_of(&self, request: &Request) -> bool {
        self.identity().is_some() && working::is_long(request, matches!(self.open, Some(Open::Set { .. })))
    }

    fn post_receive(&self) -> Result<Ticket, PostError> {
        self.connection.receive(self.request.slice(..)?, 0)
    }

    fn answer(&mut self, host: &impl Host, request: Request) -> Reply {
        let (act, start) = (Act::of(&request, self.open.as_ref().map(Open::name)), Instant::now());
        let digested = self.digested.take();
        // An orderly close has none any more when it fails.
        let lease = self.lease().map(Arc::clone);
        let before = digested.as_ref().map_or(Duration::ZERO, |digested| digested.took);
        let answered = match self.identity() {
            Some(_) if host.is_draining() && opens(&request) => Err(stopping()),
            Some(_) => match (digested, &request) {
                (Some(digested), Request::Digest { .. }) => digested.reply,
                _ => self.carry_out(host, request),
            },
            None => host.authenticator().answer(&mut self.authentication, &request),
        };
        host.count(act.request(), before + start.elapsed(), answered.as_ref().err().map(|refused| refused.code));
        // Of one that takes a pool over it is another's, which is noted there.
        if let Some(lease) = lease.filter(|_| answered.as_ref().is_err_and(|refused| refused.code == FILE_LOST)) {
            note_lost_file(host, &lease);
        }
        self.refusals.tell(&self.client(), act, answered.as_ref().map(drop));
        answered.unwrap_or_else(|refusal| Reply::Refused { code: refusal.code, text: refusal.text })
    }

    fn carry_out(&mut self, host: &impl Host, request: Request) -> Result<Reply, Refused> {
        let stores = host.stores();
        let Stores { pools, sets, .. } = stores;
        match request {
            Request::Create { name, new, publish_on_close } => {
                self.open(stores, |holder| requests::create(pools, &name, (&new, publish_on_close), holder))
            }
            Request::Open { name, access, require, may_be_older } => {
                let terms = OpenTerms { access, require, may_be_older };
                let end_readers = || stores.leases.end_readers(&name);
                self.open(stores, |holder| pools.open_pool_before(&name, terms, holder, &end_readers))
            }
            Request::TakeOver { name, require, silent_ms, claim } => {
                let silence = Duration::from_millis(silent_ms);
                self.take_over(host, &name, Terms { require, silence, claim })
            }
            Request::Close { in_order } => self.close(stores, in_order),
            Request::Begin { .. }
            | Request::Confirm { .. }
            | Request::Mark { .. }
            | Request::RaiseIntent { .. }
            | Request::ClearIntent { .. }
            | Request::Intent { .. }
            | Request::Roster { .. }
            | Request::SetRoster { .. }
            | Request::Pages(_) => self.on_pool(|pool| requests::about_state(pools, pool, request)),
            Request::Remove { .. }
            | Request::Discard { .. }
            | Request::Info { .. }
            | Request::Infos { .. }
            | Request::List { .. } => requests::about_store(pools, request),
            Request::Challenge { .. } | Request::Prove { .. } => {
                Err(Refused::new(ServiceCode::BadMessage, "this target asks for no proof"))
            }
            Request::Status => host.status().map(|status| Reply::Status(Box::new(status))),
            Request::CreateSet { name, size_bytes, attributes, require } => {
                let attributes = attributes.map(|bytes| Attributes::from_bytes(&bytes));
                let replaced = self.removal.take_if(|removal| removal.is_replacement_of(&name));
                self.open_set(host, || {
                    replaced.map(SetRemoval::clear_out).transpose()?;
                    sets.create(&name, size_bytes, attributes.as_ref(), require)
                })
            }
            Request::OpenSet { name, size_bytes, access, require } => {
                self.open_set(host, || sets.open_set(&name, size_bytes, access, require))
            }
            Request::OpenBehind { name } => self.open_set(host, || sets.open_behind(&name)),
            Request::SetFiles { name, first } => Ok(sets.files(&name, first, stores.boot)?),
            Request::KeepSet => {
                self.set()?.keep()?;
                Ok(Reply::SetKept)
            }
            Request::SetAttributes { attributes } => {
                self.set()?.set_attributes(&Attributes::from_bytes(&attributes))?;
                Ok(Reply::AttributesSet)
            }
            Request::RemoveSet { name, force, set_file } => {
                pools.check_attached()?;
                let removal = match self.removal.take() {
                    Some(prepared) if prepared.is_for(&name, force, set_file) => prepared,
                    _ => sets.prepare_removal(&name, force, set_file, None)?,
                };
                removal.carry_out(sets)?;
                Ok(Reply::Removed)
            }
            Request::PrepareRemoval { name, force, set_file, member } => {
                // The locks of one that was prepared before go first.
                self.removal = None;
                self.removal = Some(sets.prepare_removal(&name, force, set_file, member.as_ref())?);
                Ok(Reply::Removable)
            }
            Request::PrepareReplacement { name, member } => {
                self.removal = None;
                self.removal = Some(sets.prepare_replacement(&name, &member)?);
                Ok(Reply::Removable)
            }
            Request::Digest { offset, len_bytes, block_bytes } => {
                self.bytes()?.digest(offset, len_bytes, block_bytes)?.finish()
            }
            Request::Data { offset } => self.bytes()?.data(offset),
            Request::Headerless { offset } => self.headerless(offset),
            Request::Boot => requests::about_boot(stores.boot),
            Request::Domain => Ok(Reply::Domain(stores.domain.clone())),
            Request::TellStatus { status } => {
                let Some(Open::Pool(lease)) = &self.open else { return Err(not_open()) };
                host.scrubs().note(&lease.name, status.scrubbed_unix_ms);
                *lease.told.lock() = Some(status);
                Ok(Reply::StatusTold)
            }
            Request::WriterStatus { name } => {
                let told = stores.leases.writer_of(&name).and_then(|lease| lease.told.lock().clone());
                Ok(Reply::WriterStatus(told))
            }
        }
    }

    fn close(&mut self, stores: &Stores, in_order: bool) -> Result<Reply, Refused> {
        match self.open.take() {
            Some(Open::Pool(lease)) => {
                let Some(Held { region, pool }) = lease.lock().take() else { return Err(was_taken_over()) };
                drop(region);
                // Who closes a pool stores nothing behind that, mapped or not.
                pool.end_writers();
                if in_order {
                    requests::close(&stores.pools, pool, self.holder())?;
                }
            }
            Some(Open::Set { regions, set }) => {
                drop(regions);
                let memory = set.memory();
                set.close()?;
                // Who closes a pool stores nothing behind that, mapped or not.
                if let Some(memory) = memory {
                    memory.take_back();
                }
            }
            None => {}
        }
        Ok(Reply::Closed)
    }

    /// Does something with the pool that is open, which nobody takes over meanwhile.
    fn on_pool(&self, act: impl FnOnce(&mut OpenPool) -> Result<Reply, Refused>) -> Result<Reply, Refused> {
        let lease = self.lease().ok_or_else(not_open)?;
        let mut held = lease.lock();
        let Held { pool, .. } = held.as_mut().ok_or_else(was_taken_over)?;
        act(pool)
    }

    fn bytes(&self) -> Result<Served, Refused> {
        self.open.as_ref().and_then(Open::bytes).ok_or_else(not_open)
    }

    fn set(&mut self) -> Result<&mut OpenSet, Refused> {
        match &mut self.open {
            Some(Open::Set { set, .. }) => Ok(set),
            _ => Err(Refused::new(ServiceCode::NotOpen, "this connection has no pool set open")),
        }
    }

    pub(super) fn check_none_open(&self) -> Result<(), Refused> {
        let Some(name) = self.open.as_ref().map(Open::name) else { return Ok(()) };
        let text = format!("this connection has pool {name} open; close it first");
        Err(Refused::new(ServiceCode::AlreadyOpen, text))
    }

    pub(super) fn open(
        &mut self,
        stores: &Stores,
        open: impl FnOnce(String) -> Result<OpenPool, StoreError>,
    ) -> Result<Reply, Refused> {
        self.check_none_open()?;
        stores.leases.release_stranded();
        let pool = open(self.holder())?;
        self.grant(stores, pool)
    }

    /// Lets the initiator use a pool.
    pub(super) fn grant(&mut self, stores: &Stores, pool: OpenPool) -> Result<Reply, Refused> {
        let access = rights(pool.access());
        if pool.access() == OpenFor::Write
            && pool.header().layout.digests().is_some()
            && !InitiatorProcess::raises_pages(self.connection.private_data())
        {
            return Err(StoreError::DigestsNotMinded { name: pool.name().clone() }.into());
        }
        let region = self.peer.register_for(
            &self.connection,
            pool.served_medium(),
            pool.data_offset(),
            pool.data_len_bytes(),
            access,
        )?;
        let reply = pool.told(region.descriptor().to_vec(), stores.domain.clone());
        let lease = Lease::new(&self.connection, self.holder(), region, pool);
        stores.leases.add(&lease);
        self.open = Some(Open::Pool(lease));
        Ok(reply)
    }

    /// The header may be read; only the target itself writes it.
    fn open_set(
        &mut self,
        host: &impl Host,
        open: impl FnOnce() -> Result<OpenSet, SetStoreError>,
    ) -> Result<Reply, Refused> {
        self.check_none_open()?;
        host.stores().pools.check_attached()?;
        let set = open()?;
        let (header_bytes, len_bytes) = (set.header_bytes(), set.len_bytes());
        let memory = set.memory().ok_or_else(not_open)?;
        let is_appliance = host.is_appliance(self.peer.transport());
        events::persistency_policy(&set.name().to_string(), is_appliance, &memory);
        // Its parts have names in sets and programs that map them, so they cannot move: they stay in use as long as a process has them mapped.
        memory.hand_out(HandOut::Locked);
        let register = |offset, len_bytes, access| {
            self.peer.register_for(&self.connection, Arc::clone(&memory) as _, offset, len_bytes, access)
        };
        let data = register(header_bytes, len_bytes - header_bytes, rights(set.access))?;
        let header = set.has_header.then(|| register(0, header_bytes, Access::READ)).transpose()?;
        let reply = Reply::SetOpened {
            size_bytes: len_bytes,
            attributes: set.attributes().as_ref().map(Attributes::to_bytes),
            descriptor: data.descriptor().to_vec(),
            header_descriptor: header.as_ref().map_or_else(Vec::new, |header| header.descriptor().to_vec()),
        };
        self.open = Some(Open::Set { regions: (data, header), set: Box::new(set) });
        Ok(reply)
    }

    fn headerless(&mut self, offset: u64) -> Result<Reply, Refused> {
        let set = self.set()?;
        Ok(headerless_page(set.headerless_ranges(), offset, set.len_bytes()))
    }
}

/// How a connection is accepted: its initiator learns which versions of the control messages it can choose from.
pub(super) fn accept_options(loss_timeout: Duration) -> AcceptOptions {
    AcceptOptions::default().loss_timeout(loss_timeout).private_data(SpokenVersions::OURS.encode())
}

/// That the file of a pool, which is open for writing, is gone: its writer is not lost when its connection ends.
pub(super) fn note_lost_file(host: &impl Host, lease: &Lease) {
    if !lease.has_lost_file.swap(true, Ordering::Relaxed) {
        events::file_lost(&lease.client(), lease.name.as_str());
        host.count_lost_file();
    }
}

/// Which process the initiator is: by the kernel's word where it has one, and else by its own.
fn initiator(connection: &Connection, process: Option<&PeerProcess>) -> Option<InitiatorProcess> {
    let told = InitiatorProcess::decode(connection.private_data());
    let Some(process) = process else { return told };
    let program = told.map_or_else(String::new, |told| told.program);
    Some(InitiatorProcess { process_id: process.id(), user_id: process.user_id(), program })
}

/// What would have the initiator stay.
fn opens(request: &Request) -> bool {
    use Request::{Create, CreateSet, Open, OpenBehind, OpenSet, TakeOver};
    matches!(
        request,
        Create { .. } | Open { .. } | TakeOver { .. } | CreateSet { .. } | OpenSet { .. } | OpenBehind { .. }
    )
}

fn stopping() -> Refused {
    Refused::new(ServiceCode::Stopping, "this target was told to stop; connect again when it is back")
}

impl Drop for Session {
    fn drop(&mut self) {
        self.refusals.end(&self.client());
        if let Some(open) = self.open.as_ref().filter(|_| self.leaves_open()) {
            let has_lost_file = matches!(open, Open::Pool(lease) if lease.has_lost_file.load(Ordering::Relaxed));
            if !has_lost_file {
                events::left_open(&self.client(), &open.name());
            }
        }
    }
}

/// Those of `ranges` that begin at `offset` or later, as many as one answer holds, and how far it goes.
fn headerless_page(mut ranges: Vec<Range<u64>>, offset: u64, len_bytes: u64) -> Reply {
    ranges.retain(|range| range.start >= offset);
    let end = ranges.get(DATA_RANGES_MAX).map_or(len_bytes, |next| next.start);
    ranges.truncate(DATA_RANGES_MAX);
    Reply::Headerless { ranges, end }
}

fn rights(access: OpenFor) -> Access {
    match access {
        OpenFor::Read => Access::READ,
        OpenFor::Write => Access::all(),
    }
}

#[cfg(test)]
mod tests {
    use pmof_control::MessageHead;

    use super::*;

    #[test]
    fn parts_without_a_header_are_told_page_by_page() {
        let parts: Vec<_> = (1..2 * DATA_RANGES_MAX as u64 + 3).map(|at| at * 8..(at + 1) * 8).collect();
        let len_bytes = parts.last().unwrap().end;
        let (mut told, mut at, mut pages) = (Vec::new(), 0, 0);
        while at < len_bytes {
            let Reply::Headerless { ranges, end } = headerless_page(parts.clone(), at, len_bytes) else { panic!() };
            assert!(Reply::Headerless { ranges: ranges.clone(), end }.encode(MessageHead::newest(1)).is_ok());
            told.extend(ranges);
            (at, pages) = (end, pages + 1);
        }
        assert_eq!((told, pages), (parts, 3));
    }
}
