//! What a target tells the program's logger, one event each: the key `event` is its name, and the keys `connection`, `peer`, `pool` and
//! `reason` are the same in all of them. docs/operating.md has the list.

use std::{fmt, path::Path};

use log::Level;
use pmof_access::{Address, Connection, PeerProcess, Transport};
use pmof_control::{OpenFor, PagesRequest, PoolRefusal, Request};
use pmof_mem::{Durability, Mechanism, Medium as _, Memory};

use crate::refused::Refused;

const SERVICE: &str = "pmof::service";
const CONNECTION: &str = "pmof::connection";
const POOL: &str = "pmof::pool";

pub(crate) fn listening(address: &Address, root: &Path) {
    log::info!(target: SERVICE, event = "listening", address:%, root:% = root.display(); "listening on {address} for the pools in {}", root.display());
}

pub(crate) fn stopped(root: &Path) {
    log::info!(target: SERVICE, event = "stopped", root:% = root.display(); "all connections have ended, and all pools are closed");
}

pub(crate) fn root_attached(root: &Path) {
    log::info!(target: SERVICE, event = "root_attached", root:% = root.display(); "{} is the directory again that this target opened", root.display());
}

pub(crate) fn root_detached(root: &Path, reason: &dyn fmt::Display) {
    log::error!(target: SERVICE, event = "root_detached", root:% = root.display(), reason:%; "no pool is opened, made or removed: {reason}");
}

pub(crate) fn root_writable(root: &Path) {
    log::info!(target: SERVICE, event = "root_writable", root:% = root.display(); "pools can be made in {} again", root.display());
}

pub(crate) fn root_not_writable(root: &Path) {
    log::warn!(target: SERVICE, event = "root_not_writable", root:% = root.display(); "no pool can be made in {}: it is mounted read-only, or this user may not write there", root.display());
}

/// How a pool set that is open is made durable, in the words of librpmem's daemon, which programs and tests look for in its log.
pub(crate) fn persistency_policy(set: &str, is_appliance: bool, memory: &Memory) {
    let method =
        if is_appliance { "Appliance Persistency Method" } else { "General Purpose Server Persistency Method" };
    let flush = match memory.promise(Durability::PowerFailure).map(|promise| promise.mechanism) {
        _ if is_appliance => "none",
        None | Some(Mechanism::FileSync) => "pmem_msync",
        Some(_) => "pmem_persist",
    };
    let event = "persistency_policy";
    for line in [
        "persistency policy:".to_owned(),
        format!("    persist method: {method}"),
        format!("    persist flush: {flush}"),
    ] {
        log::info!(target: POOL, event, pool = set; "{line}");
    }
}

/// A pool that is open has no file of its name any more.
pub(crate) fn file_lost(client: &Client, pool: &str) {
    let (connection, peer, holder) = client.keys();
    log::error!(target: POOL, event = "pool_file_lost", connection, peer, pool; "the file of pool {pool}, which {holder} has open, was removed or replaced by another process");
}

/// `open_count` connections have a pool open.
pub(crate) fn draining(root: &Path, open_count: usize) {
    log::info!(target: SERVICE, event = "draining", root:% = root.display(), open_count; "told to stop: no new connections; connections with an open pool: {open_count}");
}

/// Not a single connection can be accepted for now.
pub(crate) fn cannot_accept(reason: &dyn fmt::Display) {
    log::warn!(target: CONNECTION, event = "accept_failed", reason:%; "no new connections for now: {reason}; raise the limit of open files (ulimit -n)");
}

pub(crate) fn connection_refused(transport: Option<Transport>, reason: &str) {
    let transport = transport.map_or("another transport", Transport::scheme);
    log::warn!(target: CONNECTION, event = "connection_refused", transport, reason; "a connection over {transport} was refused: {reason}");
}

/// The names of all requests, as the log and metrics have them.
pub(crate) const REQUESTS: [&str; 35] = [
    "begin",
    "boot",
    "challenge",
    "clear_intent",
    "close",
    "confirm",
    "create",
    "create_set",
    "data",
    "digest",
    "discard",
    "domain",
    "headerless",
    "info",
    "infos",
    "intent",
    "keep_set",
    "list",
    "mark",
    "open",
    "open_set",
    "other",
    "prepare_removal",
    "prepare_replacement",
    "prove",
    "raise_intent",
    "remove",
    "remove_set",
    "roster",
    "set_attributes",
    "set_roster",
    "status",
    "take_over",
    "tell_status",
    "writer_status",
];

/// Who asked for something.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) connection: u64,
    /// Its address, or its process; empty where neither is known.
    pub(crate) peer: String,
    /// In words.
    pub(crate) holder: String,
}

impl Client {
    /// At the other end of a connection, which is `holder` in words; `process`: where it is known.
    pub(crate) fn of(connection: &Connection, process: Option<&PeerProcess>, holder: String) -> Self {
        let peer = match (connection.peer_address(), process) {
            (Some(address), _) => address.to_string(),
            (None, Some(process)) => format!("process {} of user {}", process.id(), process.user_id()),
            (None, None) => String::new(),
        };
        Self { connection: connection.id().number(), peer, holder }
    }

    fn keys(&self) -> (u64, &str, &str) {
        (self.connection, &self.peer, &self.holder)
    }
}

/// What a request does, for the log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Act {
    /// The request.
    request: &'static str,
    /// The event of one that was carried out, and what then happened; `None` of those that change nothing.
    done: Option<(&'static str, &'static str)>,
    /// The pool, or the pool set.
    pool: Option<String>,
}

impl Act {
    /// `open` is what the connection has open.
    pub(crate) fn of(request: &Request, open: Option<String>) -> Self {
        let (created, opened, removed) =
            (("pool_created", "was created by"), ("pool_opened", "was opened by"), ("pool_removed", "was removed by"));
        let opened_for = |access: &OpenFor| match access {
            OpenFor::Read => ("pool_opened", "was opened for reading by"),
            OpenFor::Write => ("pool_opened", "was opened for writing by"),
        };
        let act = |request, done, name: &dyn fmt::Display| Self { request, done, pool: Some(name.to_string()) };
        match request {
            Request::Create { name, .. } => act("create", Some(created), name),
            Request::Open { name, access, .. } => act("open", Some(opened_for(access)), name),
            Request::TakeOver { name, .. } => act("take_over", Some(opened), name),
            Request::Remove { name, .. } => act("remove", Some(removed), name),
            Request::Discard { name } => act("discard", Some(removed), name),
            Request::Info { name } => act("info", None, name),
            Request::CreateSet { name, .. } => act("create_set", Some(created), name),
            Request::OpenSet { name, access, .. } => act("open_set", Some(opened_for(access)), name),
            Request::RemoveSet { name, .. } => act("remove_set", Some(removed), name),
            Request::PrepareRemoval { name, .. } => act("prepare_removal", None, name),
            Request::PrepareReplacement { name, .. } => act("prepare_replacement", None, name),
            Request::Close { .. } => {
                let done = open.is_some().then_some(("pool_closed", "was closed by"));
                Self { request: "close", done, pool: open }
            }
            other => Self { request: short(other), done: None, pool: open },
        }
    }

    pub(crate) fn request(&self) -> &'static str {
        self.request
    }

    /// Whether it was carried out.
    fn tell(&self, client: &Client, answer: Result<(), &Refused>) {
        let (connection, peer, holder) = client.keys();
        let pool = self.pool.as_deref().unwrap_or_default();
        match (answer, self.done) {
            (Ok(()), Some((event, what))) => {
                log::info!(target: POOL, event, connection, peer, pool; "pool {pool} {what} {holder}");
            }
            (Ok(()), None) => {
                let request = self.request;
                log::debug!(target: POOL, event = "request", connection, peer, pool, request; "{holder} asked: {request}");
            }
            (Err(refused), _) => {
                let (request, reason) = (self.request, refused.text.as_str());
                let level = level_of(refused.code);
                log::log!(target: POOL, level, event = "pool_refused", connection, peer, pool, request, reason; "{holder} was refused ({request}): {reason}");
            }
        }
    }
}

/// What a connection was refused last: while it asks for the same again and again, the log has it once, and then how often.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    last: Option<(Act, u16)>,
    again: u64,
}

impl Refusals {
    /// Whether a request was carried out.
    pub(crate) fn tell(&mut self, client: &Client, act: Act, answer: Result<(), &Refused>) {
        let refused = answer.err().map(|refused| refused.code);
        if refused.is_some() && self.last.as_ref().map(|(last, code)| (last, *code)) == refused.map(|code| (&act, code))
        {
            self.again += 1;
            return;
        }
        self.end(client);
        act.tell(client, answer);
        self.last = refused.map(|code| (act, code));
    }

    /// Nothing more is asked, or something else.
    pub(crate) fn end(&mut self, client: &Client) {
        let (Some((act, code)), again @ 1..) = (self.last.take(), std::mem::take(&mut self.again)) else { return };
        let (connection, peer, holder) = client.keys();
        let (pool, request) = (act.pool.as_deref().unwrap_or_default(), act.request);
        log::log!(target: POOL, level_of(code), event = "pool_refused_again", connection, peer, pool, request, again; "{holder} asked again and was refused as before ({request}): {again} times");
    }
}

/// Requests on what is open, and about nothing.
fn short(request: &Request) -> &'static str {
    match request {
        Request::Begin { .. } => "begin",
        Request::Confirm { .. } => "confirm",
        Request::Mark { .. } => "mark",
        Request::List { .. } => "list",
        Request::Infos { .. } => "infos",
        Request::Challenge { .. } => "challenge",
        Request::Prove { .. } => "prove",
        Request::SetFiles { .. } => "set_files",
        Request::OpenBehind { .. } => "open_behind",
        Request::KeepSet => "keep_set",
        Request::SetAttributes { .. } => "set_attributes",
        Request::Digest { .. } => "digest",
        Request::Data { .. } => "data",
        Request::Headerless { .. } => "headerless",
        Request::Boot => "boot",
        Request::RaiseIntent { .. } => "raise_intent",
        Request::ClearIntent { .. } => "clear_intent",
        Request::Intent { .. } => "intent",
        Request::Roster { .. } => "roster",
        Request::SetRoster { .. } => "set_roster",
        Request::Pages(pages) => match pages {
            PagesRequest::Raise { .. } => "raise_pages",
            PagesRequest::Digest { .. } => "digest_pages",
            PagesRequest::Protect { .. } => "protect_pages",
            PagesRequest::Unprotected { .. } => "unprotected_pages",
            PagesRequest::Verify { .. } => "verify_pages",
            PagesRequest::Repair { .. } => "repair_page",
        },
        Request::Domain => "domain",
        Request::Status => "status",
        Request::TellStatus { .. } => "tell_status",
        Request::WriterStatus { .. } => "writer_status",
        _ => "other",
    }
}

fn level_of(refused: u16) -> Level {
    if is_for_the_operator(refused) { Level::Error } else { Level::Info }
}

/// Refusals that no initiator can mend: the target's disk is full or failed, or what it keeps is damaged.
fn is_for_the_operator(code: u16) -> bool {
    matches!(
        PoolRefusal::from_code(code),
        PoolRefusal::NoSpace
            | PoolRefusal::NotWritable
            | PoolRefusal::NotAUsablePool
            | PoolRefusal::HeadersDamaged
            | PoolRefusal::UncertainState
            | PoolRefusal::BadSet
            | PoolRefusal::PartMissing
    ) || matches!(code, 2 | 15..=17 | 24 | 26 | 258 | 261 | 302)
}

/// A connection ended with a pool open for writing.
pub(crate) fn left_open(client: &Client, pool: &str) {
    let ((connection, peer, holder), reason) = (client.keys(), "its connection ended");
    log::warn!(target: POOL, event = "pool_left_open", connection, peer, pool, reason; "pool {pool} was not closed by {holder}: {reason}");
}

pub(crate) fn taken_over(client: &Client, pool: &str, from: &str) {
    let (connection, peer, holder) = client.keys();
    log::warn!(target: POOL, event = "writer_fenced", connection, peer, pool, from; "pool {pool}, which {from} had open, was taken over by {holder}");
}

pub(crate) fn not_taken_over(client: &Client, pool: &str, from: &str, reason: &dyn fmt::Display) {
    let (connection, peer, _) = client.keys();
    log::warn!(target: POOL, event = "fence_failed", connection, peer, pool, from, reason:%; "pool {pool} was not taken over from {from}: {reason}");
}

/// A pool moved away from the file that processes of a former target still have mapped.
pub(crate) fn orphan_left(pool: &str, holder: &str) {
    log::warn!(target: POOL, event = "writer_left_behind", pool, holder; "pool {pool} lies in another file from now on: {holder} still has the old one mapped for writing, which a target gave it that is gone");
}

pub(crate) fn orphan_not_left(pool: &str, holder: &str, reason: &dyn fmt::Display) {
    log::error!(target: POOL, event = "writer_not_left_behind", pool, holder, reason:%; "pool {pool} cannot be opened for writing while {holder} has its file mapped, and cannot move to another file: {reason}; end that process");
}

/// A request or a connection could not be carried out for a reason that only the log is told.
pub(crate) fn failed(event: &'static str, pool: &str, reason: &dyn fmt::Display) {
    log::error!(target: POOL, event, pool, reason:%; "{pool}: {reason}");
}
