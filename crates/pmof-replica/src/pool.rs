//! A pool kept on N targets: written to all in parallel, durable on all with one flush each.

use std::{net::IpAddr, sync::Arc, time::Duration};

use pmof_access::{
    Address, Capabilities, ConnectOptions, DEFAULT_CONNECT_TIMEOUT, DEFAULT_LOSS_TIMEOUT, Durability, Method,
    QueueOptions, RemoteRegion, Settings, Waiting, limits,
};
use uuid::Uuid;

use crate::{
    NewPool, OpenFor, PersistFailure, PoolError, PoolInfo, PoolUrl, Receipt, ReplicaError, SshOptions, TargetUrl,
    USER_FLAGS_BYTES,
    control::{Reply, Request},
    peers::Peers,
    replica::{PendingReply, Replica, TargetConnection},
    ssh::{SshSession, Started},
};

/// Bytes of one write on the wire; longer ones are split, so that several replicas are fed in turn.
const WRITE_PIECE_BYTES: usize = 1 << 20;

/// How a pool is reached and what it must give.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    replicas: Vec<String>,
    require: Option<Durability>,
    method: Option<Method>,
    source: Option<IpAddr>,
    waiting: Waiting,
    connect_timeout: Duration,
    loss_timeout: Duration,
    payload_checksums: bool,
    user_flags: [u8; USER_FLAGS_BYTES],
    publish_on_close: bool,
    ssh: SshOptions,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            replicas: Vec::new(),
            require: None,
            method: None,
            source: None,
            waiting: QueueOptions::default().waiting,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            loss_timeout: DEFAULT_LOSS_TIMEOUT,
            payload_checksums: false,
            user_flags: [0; USER_FLAGS_BYTES],
            publish_on_close: false,
            ssh: SshOptions::from_env(),
        }
    }
}

impl PoolOptions {
    /// Adds a replica, as [`PoolUrl`] describes; they may differ in transport. Several replicas may lie on one target under different names.
    #[must_use]
    pub fn replica(mut self, url: impl Into<String>) -> Self {
        self.replicas.push(url.into());
        self
    }

    /// The failure that persisted bytes must survive, on every replica. There is no default.
    #[must_use]
    pub fn require(mut self, durability: Durability) -> Self {
        self.require = Some(durability);
        self
    }

    /// The only method of flush to use, for tests and operators; else each replica uses the cheapest that reaches the level
    /// required. Where a replica cannot reach it by this method, the pool does not open for writing.
    #[must_use]
    pub fn method(mut self, method: Method) -> Self {
        self.method = Some(method);
        self
    }

    /// The local address to come from for `verbs://` replicas whose URL names none, where routing does not decide it.
    #[must_use]
    pub fn source(mut self, source: IpAddr) -> Self {
        self.source = Some(source);
        self
    }

    /// How targets of `ssh://` replicas are started; [`SshOptions::from_env`] unless told otherwise.
    #[must_use]
    pub fn ssh(mut self, options: SshOptions) -> Self {
        self.ssh = options;
        self
    }

    /// How to wait for replicas; adaptive unless told otherwise.
    #[must_use]
    pub fn waiting(mut self, waiting: Waiting) -> Self {
        self.waiting = waiting;
        self
    }

    /// Time for each connection to stand; 5 seconds unless told otherwise.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Time without an answer that is due, after which a replica counts as dead; 10 seconds unless told otherwise.
    #[must_use]
    pub fn loss_timeout(mut self, timeout: Duration) -> Self {
        self.loss_timeout = timeout;
        self
    }

    /// Has every payload carry a CRC32C, which the other side checks; off unless told otherwise, since TCP has a checksum
    /// of its own.
    #[must_use]
    pub fn payload_checksums(mut self, on: bool) -> Self {
        self.payload_checksums = on;
        self
    }

    /// What a new pool is to say of its contents, such as their format; zeroes unless told otherwise. Kept with the pool,
    /// never looked at; [`Pool::user_flags`] and [`PoolInfo`] give it back.
    #[must_use]
    pub fn user_flags(mut self, flags: [u8; USER_FLAGS_BYTES]) -> Self {
        self.user_flags = flags;
        self
    }

    /// Has a new pool get its name only when it is [closed](Pool::close), on all replicas or, as far as they can be reached,
    /// on none. Before, nobody else sees it, and it is gone when this side or a target dies: what receipts say holds
    /// from the close on. Off unless told otherwise.
    #[must_use]
    pub fn publish_on_close(mut self, on: bool) -> Self {
        self.publish_on_close = on;
        self
    }

    /// Makes the pool of `size_bytes` zeroes on every replica and opens it for writing. If one replica refuses, the pool is
    /// removed again from those that had made it.
    pub fn create(&self, size_bytes: u64) -> Result<Pool, PoolError> {
        let pool_uuid = Uuid::new_v4();
        let opening = self.connect()?;
        let replica_count = opening.targets.len() as u16;
        let new = if self.publish_on_close { New::Unpublished } else { New::Published };
        opening.finish(Some(new), OpenFor::Write, |url, index, require| Request::Create {
            name: url.name.clone(),
            new: NewPool {
                pool_uuid,
                size_bytes,
                replica_index: index as u16,
                replica_count,
                require,
                user_flags: self.user_flags,
            },
            publish_on_close: self.publish_on_close,
        })
    }

    /// Opens the pool for writing: one initiator at a time.
    pub fn open(&self) -> Result<Pool, PoolError> {
        self.open_for(OpenFor::Write)
    }

    /// Opens the pool for reading; another may write meanwhile.
    pub fn open_read_only(&self) -> Result<Pool, PoolError> {
        self.open_for(OpenFor::Read)
    }

    /// Describes every replica, without opening it.
    pub fn info(&self) -> Result<Vec<PoolInfo>, PoolError> {
        self.ask_each(
            |url| Request::Info { name: url.name.clone() },
            |reply| match reply {
                Reply::Info(info) => Some(*info),
                _ => None,
            },
        )
    }

    /// Removes the pool from every replica, with all its bytes. Stops at the first replica that refuses.
    pub fn remove(&self) -> Result<(), PoolError> {
        self.ask_each(
            |url| Request::Remove { name: url.name.clone() },
            |reply| matches!(reply, Reply::Removed).then_some(()),
        )?;
        Ok(())
    }

    fn open_for(&self, access: OpenFor) -> Result<Pool, PoolError> {
        self.connect()?.finish(None, access, |url, _, require| Request::Open {
            name: url.name.clone(),
            access,
            require,
        })
    }

    fn ask_each<T>(
        &self,
        question: impl Fn(&PoolUrl) -> Request,
        understand: impl Fn(Reply) -> Option<T>,
    ) -> Result<Vec<T>, PoolError> {
        let urls = self.urls()?;
        let mut peers = self.peers();
        let mut answers = Vec::with_capacity(urls.len());
        for url in urls {
            let answer = self.reach(&mut peers, &url.target, url.source);
            let answer = answer.and_then(|target| target.ask(&question(&url)));
            let answer = answer.and_then(|reply| understand(reply).ok_or(ReplicaError::Unexpected));
            answers.push(answer.map_err(|error| replica_error(&url, error))?);
        }
        Ok(answers)
    }

    fn connect(&self) -> Result<Opening, PoolError> {
        let urls = self.urls()?;
        let require = self.require.ok_or(PoolError::NoDurability)?;
        let mut peers = self.peers();
        let mut targets = Vec::with_capacity(urls.len());
        for url in urls {
            let target = self.reach(&mut peers, &url.target, url.source);
            targets.push((Arc::clone(&url), target.map_err(|error| replica_error(&url, error))?));
        }
        Ok(Opening { targets, require })
    }

    fn urls(&self) -> Result<Vec<Arc<PoolUrl>>, PoolError> {
        let mut urls: Vec<Arc<PoolUrl>> = Vec::with_capacity(self.replicas.len());
        for text in &self.replicas {
            let url = Arc::new(text.parse()?);
            if urls.contains(&url) || urls.len() >= usize::from(u16::MAX) {
                return Err(PoolError::Twice { replica: url });
            }
            urls.push(url);
        }
        if urls.is_empty() { Err(PoolError::NoReplicas) } else { Ok(urls) }
    }

    pub(crate) fn peers(&self) -> Peers {
        Peers::new(QueueOptions { waiting: self.waiting, ..Default::default() })
    }

    /// A connection to a target, which ssh starts if it is to.
    pub(crate) fn reach(
        &self,
        peers: &mut Peers,
        target: &TargetUrl,
        source: Option<IpAddr>,
    ) -> Result<TargetConnection, ReplicaError> {
        let host = match target {
            TargetUrl::Address(address) => return self.connect_to(peers, address, source),
            TargetUrl::Ssh(host) => host,
        };
        let Started { session, addresses, secret } = SshSession::start(host, &self.ssh).map_err(Box::new)?;
        let mut tried = Vec::with_capacity(addresses.len());
        for address in &addresses {
            let proven = self.connect_to(peers, address, source).and_then(|connection| {
                connection.prove(&secret)?;
                Ok(connection)
            });
            match proven {
                Ok(connection) => return Ok(connection.with_session(session)),
                // Another way leads to the same target.
                Err(error @ (ReplicaError::Refused { .. } | ReplicaError::Impostor)) => return Err(error),
                Err(error) => tried.push(format!("{address}: {error}")),
            }
        }
        Err(ReplicaError::NoDataPath { why: tried.join("; ") })
    }

    fn connect_to(
        &self,
        peers: &mut Peers,
        address: &Address,
        source: Option<IpAddr>,
    ) -> Result<TargetConnection, ReplicaError> {
        let source = source.or(self.source);
        let (peer, queue) = peers.towards(address, source)?;
        let mut settings = Settings { send_queue: limits::SEND_QUEUE_LIMIT, ..Default::default() };
        settings.capabilities.set(Capabilities::PAYLOAD_CRC, self.payload_checksums);
        let options = ConnectOptions {
            timeout: self.connect_timeout,
            loss_timeout: self.loss_timeout,
            settings,
            method: self.method,
            source,
            ..Default::default()
        };
        // Twice the time after which the connection itself ends, so that its reason is the one reported.
        TargetConnection::open(&peer, &queue, address, &options, self.loss_timeout * 2)
    }
}

/// Connections to every target of a pool that is being opened.
struct Opening {
    targets: Vec<(Arc<PoolUrl>, TargetConnection)>,
    require: Durability,
}

impl Opening {
    /// Asks all targets at once, and makes the pool of their answers.
    fn finish(
        self,
        new: Option<New>,
        access: OpenFor,
        question: impl Fn(&PoolUrl, usize, Durability) -> Request,
    ) -> Result<Pool, PoolError> {
        let Self { targets, require } = self;
        let asked: Vec<Result<PendingReply, ReplicaError>> = targets
            .iter()
            .enumerate()
            .map(|(index, (url, target))| target.send(&question(url, index, require)))
            .collect();
        let mut replicas = Vec::with_capacity(targets.len());
        let mut generations = Vec::with_capacity(targets.len());
        let mut unfit = Vec::new();
        let mut identity = None;
        let mut failed = None;
        for ((url, target), asked) in targets.into_iter().zip(asked) {
            let reply = asked.and_then(|pending| target.answer(&pending));
            let is_open = matches!(reply, Ok(Reply::Opened { .. }));
            match reply.and_then(|reply| check_opened(reply, &target, require, access, &mut identity)) {
                Ok((remote, method, generation)) => {
                    generations.push(generation);
                    replicas.push(Replica::new(url, target, remote, method));
                }
                Err(error) => {
                    failed.get_or_insert_with(|| replica_error(&url, error));
                    if is_open {
                        unfit.push((url, target));
                    }
                }
            }
        }
        let newest = generations.iter().copied().max().unwrap_or(0);
        for (replica, generation) in replicas.iter().zip(generations) {
            if generation < newest {
                let error = ReplicaError::LeftBehind { generation, newest };
                failed.get_or_insert_with(|| replica_error(&replica.url, error));
            }
        }
        if let Some(error) = failed {
            for (url, target) in replicas.into_iter().map(Replica::into_target).chain(unfit) {
                give_back(&url, &target, new);
            }
            return Err(error);
        }
        let identity = identity.ok_or(PoolError::NoReplicas)?;
        let is_part = replicas.len() < usize::from(identity.replica_count);
        let mut pool = Pool { replicas, identity, generation: newest, left_behind: 0, require, access, new };
        if is_part && access == OpenFor::Write && new.is_none() {
            // The replicas that were not named will lack what is written now.
            pool.raise_generation();
            pool.check_none_lost()?;
        }
        Ok(pool)
    }
}

/// What becomes of a pool that was made here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum New {
    /// It has its name.
    Published,
    /// It gets its name when it is closed.
    Unpublished,
}

/// What all replicas of a pool have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    uuid: Uuid,
    size_bytes: u64,
    user_flags: [u8; USER_FLAGS_BYTES],
    /// Replicas that it was made with.
    replica_count: u16,
}

/// Checks that a target's answer is what was asked for, and the same pool as at the targets before it. Gives its memory,
/// how it is flushed if it is to be written, and its generation.
fn check_opened(
    reply: Reply,
    target: &TargetConnection,
    wanted: Durability,
    access: OpenFor,
    identity: &mut Option<Identity>,
) -> Result<(RemoteRegion, Option<Method>, u32), ReplicaError> {
    let Reply::Opened { pool_uuid, size_bytes, generation, replica_count, user_flags, descriptor, .. } = reply else {
        return Err(ReplicaError::Unexpected);
    };
    let remote = RemoteRegion::from_descriptor(&descriptor)?;
    let found = Identity { uuid: pool_uuid, size_bytes, user_flags, replica_count };
    let first = *identity.get_or_insert(found);
    if first != found {
        return Err(ReplicaError::Mismatch {
            uuid: first.uuid,
            found_uuid: found.uuid,
            size_bytes: first.size_bytes,
            found_bytes: found.size_bytes,
        });
    }
    if remote.len_bytes() != size_bytes {
        return Err(ReplicaError::Unexpected);
    }
    target.prepare(&remote)?;
    if access == OpenFor::Read {
        return Ok((remote, None, generation));
    }
    if remote.promise(wanted).is_none() {
        let (strongest, medium) = (remote.strongest(), remote.kind().to_string());
        return Err(ReplicaError::NotDurable { wanted, strongest, medium });
    }
    let method = target.flush_method(&remote, wanted)?;
    Ok((remote, Some(method), generation))
}

/// Closes a replica that was opened in vain, before the caller may try again, and removes it if it was made in vain.
fn give_back(url: &PoolUrl, target: &TargetConnection, new: Option<New>) {
    if new == Some(New::Unpublished) {
        // It goes with the connection.
        return;
    }
    // What cannot be undone stays with the target; the caller reports the first failure.
    let _ = target.ask(&Request::Close);
    if new == Some(New::Published) {
        let _ = target.ask(&Request::Remove { name: url.name.clone() });
    }
}

/// A pool kept on one or more targets. Closing it (or dropping it) lets others open it for writing.
#[derive(Debug)]
pub struct Pool {
    replicas: Vec<Replica>,
    identity: Identity,
    /// The generation of the replicas in use.
    generation: u32,
    /// Replicas that failed and whose generation is below that.
    left_behind: usize,
    require: Durability,
    access: OpenFor,
    new: Option<New>,
}

impl Pool {
    /// How to reach a pool.
    pub fn options() -> PoolOptions {
        PoolOptions::default()
    }

    /// Size in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.identity.size_bytes
    }

    /// The pool's identity, the same on every replica.
    pub fn uuid(&self) -> Uuid {
        self.identity.uuid
    }

    /// What the pool's maker says of its contents; see [`PoolOptions::user_flags`].
    pub fn user_flags(&self) -> [u8; USER_FLAGS_BYTES] {
        self.identity.user_flags
    }

    /// The failure that persisted bytes survive.
    pub fn durability(&self) -> Durability {
        self.require
    }

    /// Replicas that the pool has.
    pub fn replica_count(&self) -> usize {
        self.replicas.len()
    }

    /// Starts a batch of writes that one flush per replica makes durable.
    pub fn batch(&mut self) -> Batch<'_> {
        Batch { pool: self }
    }

    /// Writes one range and makes it durable on all replicas: the short form of a batch of one write.
    pub fn persist(&mut self, offset: u64, bytes: &[u8]) -> Result<Receipt, PoolError> {
        let mut batch = self.batch();
        batch.write(offset, bytes)?;
        batch.persist()
    }

    /// Copies bytes at `offset` out, from the first replica that is alive. Writes posted before are seen.
    pub fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), PoolError> {
        self.check(offset, into.len() as u64)?;
        if into.is_empty() {
            return Ok(());
        }
        let mut last = PoolError::NoReplicas;
        for replica in &mut self.replicas {
            match replica.read(offset, into) {
                Ok(()) => return Ok(()),
                Err(source) => last = PoolError::NoneLeft { replica: Arc::clone(&replica.url), source },
            }
        }
        Err(last)
    }

    /// Reads from one replica, the `index`-th of the options, and from no other.
    pub fn read_replica(&mut self, index: usize, offset: u64, into: &mut [u8]) -> Result<(), PoolError> {
        self.check(offset, into.len() as u64)?;
        let replica_count = self.replicas.len();
        let Some(replica) = self.replicas.get_mut(index) else {
            return Err(PoolError::NoSuchReplica { index, replica_count });
        };
        let url = Arc::clone(&replica.url);
        replica.read(offset, into).map_err(|source| PoolError::Replica { replica: url, source })
    }

    /// Closes the pool on every replica, and says which could not be told.
    ///
    /// A pool made with [`PoolOptions::publish_on_close`] gets its name now. If a replica refuses or is dead, the pool is
    /// removed again from the others.
    pub fn close(self) -> Result<(), PoolError> {
        let mut failed = None;
        let mut closed = Vec::with_capacity(self.replicas.len());
        for replica in self.replicas {
            // A pool that one replica lacks is not published on the next.
            if failed.is_some() && self.new == Some(New::Unpublished) {
                break;
            }
            let url = Arc::clone(&replica.url);
            match replica.close() {
                Ok(target) => closed.push((url, target)),
                Err(error) => {
                    failed.get_or_insert_with(|| replica_error(&url, error));
                }
            }
        }
        let Some(error) = failed else { return Ok(()) };
        if self.new == Some(New::Unpublished) {
            for (url, target) in closed {
                // What cannot be undone stays with the target; the first failure is reported.
                let _ = target.ask(&Request::Remove { name: url.name.clone() });
            }
        }
        Err(error)
    }

    fn check(&self, offset: u64, len_bytes: u64) -> Result<(), PoolError> {
        let inside = offset.checked_add(len_bytes).is_some_and(|end| end <= self.len_bytes());
        let size_bytes = self.len_bytes();
        if inside { Ok(()) } else { Err(PoolError::OutOfBounds { offset, len_bytes, size_bytes }) }
    }

    fn check_write(&self, offset: u64, len_bytes: u64) -> Result<(), PoolError> {
        if self.access == OpenFor::Read {
            return Err(PoolError::ReadOnly);
        }
        self.check(offset, len_bytes)
    }

    /// Has the replicas in use know that those which failed since the last time are left behind.
    fn leave_lost_behind(&mut self) {
        while self.lost() > self.left_behind {
            self.raise_generation();
        }
    }

    /// Raises the generation on all replicas in use, in parallel. One that does not take it is lost.
    fn raise_generation(&mut self) {
        self.left_behind = self.lost();
        self.generation = self.generation.saturating_add(1);
        let pending: Vec<_> = self.replicas.iter_mut().map(|replica| replica.start_raise(self.generation)).collect();
        for (replica, pending) in self.replicas.iter_mut().zip(pending) {
            if let Some(pending) = pending {
                replica.finish_raise(&pending);
            }
        }
    }

    fn check_none_lost(&self) -> Result<(), PoolError> {
        let lost = self.replicas.iter().find_map(|replica| Some((replica, replica.failure()?)));
        match lost {
            Some((replica, why)) => {
                Err(PoolError::Replica { replica: Arc::clone(&replica.url), source: Arc::clone(why) })
            }
            None => Ok(()),
        }
    }

    fn lost(&self) -> usize {
        self.replicas.iter().filter(|replica| replica.failure().is_some()).count()
    }

    fn flush_all(&mut self) -> Result<Receipt, PoolError> {
        if self.access == OpenFor::Read {
            return Err(PoolError::ReadOnly);
        }
        for replica in &mut self.replicas {
            replica.start_flush(self.require);
        }
        let mut receipts: Vec<_> = self.replicas.iter_mut().filter_map(Replica::finish_flush).collect();
        // Before anyone hears of writes that a lost replica lacks, it must be known by its header to lack them.
        self.leave_lost_behind();
        let mut failed = Vec::new();
        for replica in &self.replicas {
            if let Some(why) = replica.failure() {
                receipts.retain(|receipt| receipt.replica != replica.url);
                failed.push((Arc::clone(&replica.url), Arc::clone(why)));
            }
        }
        let receipt = Receipt { durability: self.require, replicas: receipts, replica_count: self.replicas.len() };
        if receipt.replicas.len() == receipt.replica_count {
            return Ok(receipt);
        }
        Err(PoolError::Persist(Box::new(PersistFailure { receipt, failed })))
    }
}

/// Writes that become durable together, with one flush per replica. Dropped without a persist, its writes are posted but
/// nothing is known of them.
#[derive(Debug)]
pub struct Batch<'p> {
    pool: &'p mut Pool,
}

impl Batch<'_> {
    /// Adds a write at `offset` (bytes). It is visible in the order written and not durable before
    /// [`persist`](Self::persist) says so; until then a crash may tear it: one of
    /// at most 4096 bytes at boundaries of 8 aligned bytes, a longer one at any byte.
    ///
    /// # Errors
    /// Only for a wrong range: what goes wrong with a replica is told by the persist.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), PoolError> {
        self.pool.check_write(offset, bytes.len() as u64)?;
        let mut at = offset;
        for piece in bytes.chunks(WRITE_PIECE_BYTES) {
            for replica in &mut self.pool.replicas {
                replica.write(at, piece);
            }
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Adds a write of 8 bytes (`value` as little-endian) at an offset divisible by 8, which a crash cannot tear.
    pub fn atomic_write(&mut self, offset: u64, value: u64) -> Result<(), PoolError> {
        self.pool.check_write(offset, 8)?;
        if !offset.is_multiple_of(8) {
            return Err(PoolError::Misaligned { offset });
        }
        for replica in &mut self.pool.replicas {
            replica.atomic_write(offset, value);
        }
        Ok(())
    }

    /// Makes all that was written before durable on every replica, in parallel.
    ///
    /// # Errors
    /// [`PoolError::Persist`] names the replicas that failed and holds the receipt of the others, which keep the data and
    /// go on being written.
    pub fn persist(self) -> Result<Receipt, PoolError> {
        self.pool.flush_all()
    }
}

fn replica_error(url: &Arc<PoolUrl>, error: ReplicaError) -> PoolError {
    PoolError::Replica { replica: Arc::clone(url), source: Arc::new(error) }
}
