//! How a pool is reached: the replicas, the durability, the ways of waiting.

use std::{net::IpAddr, path::Path, sync::Arc, time::Duration};

use pmof_access::{Durability, Method, Waiting};
use pmof_bootstrap::SshOptions;
use pmof_control::{
    KEPT_POINTS_MAX, MeantReplica, OpenFor, PoolInfo, PoolRefusal, Protection, REPLICAS_MAX, Reply, Request,
    USER_FLAGS_BYTES,
};
use pmof_mem::Declaration;
use pmof_replication::{
    asking::{Asking, Cause},
    following::LagBound,
    survey::{infos, release, remove_unfinished},
};
use uuid::Uuid;

use super::{
    Pool,
    acknowledge::Acknowledge,
    asking::ask,
    follow::open_reading,
    followers::KeepPoints,
    format,
    members::{PoolMembers, look},
    opened::place,
    opening::{Haste, New, NewNative, Opening, Wanted, failed, in_haste, millis},
};
use crate::{AtLagBound, PoolError, PoolUrl, ReplicaError, error::told, reach::Reach};

mod waiting;

/// How often a pool that may have to be made is looked for, and the longest pause behind the first attempt; later ones are longer.
const MAKE_ATTEMPTS: u32 = 10;
const MAKE_PAUSE: Duration = Duration::from_millis(50);

/// Bytes that an asynchronous member may lag, and how often a point is made by itself, unless told otherwise.
const LAG_BYTES: u64 = 64 << 20;
const POINT_INTERVAL: Duration = Duration::from_secs(1);

/// How long a member is lost before a spare takes its place, unless told otherwise.
const SPARE_AFTER: Duration = Duration::from_secs(600);

/// What replicas are reached for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Create,
    Open,
}

/// How a pool is reached and what it must give.
#[derive(Clone, Debug, Default)]
pub struct PoolOptions {
    replicas: Vec<String>,
    require: Option<Durability>,
    user_flags: [u8; USER_FLAGS_BYTES],
    uuid: Option<Uuid>,
    publish_on_close: bool,
    keeps_digests: bool,
    max_size_bytes: u64,
    min_replicas: Option<usize>,
    has_mirror: bool,
    take_over: Option<Duration>,
    acknowledge: Acknowledge,
    slow_after: Option<Duration>,
    catch_up_limit: Option<u64>,
    asynchronous: Vec<String>,
    witnesses: Vec<String>,
    spares: Vec<String>,
    spare_after: Option<Duration>,
    scrub_every: Option<Duration>,
    lag: LagOptions,
    keep: KeepPoints,
    pub(crate) reach: Reach,
}

/// How far asynchronous members may lag.
#[derive(Clone, Copy, Debug)]
struct LagOptions(LagBound);

impl Default for LagOptions {
    fn default() -> Self {
        let (age, then) = (Duration::MAX, AtLagBound::default());
        Self(LagBound { bytes: LAG_BYTES, age, then, interval: Some(POINT_INTERVAL) })
    }
}

impl PoolOptions {
    /// Adds a replica, as [`PoolUrl`] describes; they may differ in transport. Several replicas may lie on one target under different names.
    ///
    /// To open a pool not all of them need be named: its members know where the others were found last. Addresses that are named come before those, and are
    /// noted for later openings. Two things are not found: replicas of `ssh://` and `file://`, and any at all with [`min_replicas`](Self::min_replicas).
    #[must_use]
    pub fn replica(mut self, url: impl Into<String>) -> Self {
        self.replicas.push(url.into());
        self
    }

    /// Adds a replica in a file of this machine, or on a devdax device: the short form of `file://` and the absolute path, which must be UTF-8. This
    /// process keeps it as a target does, in the same format, and a target may serve it at another time.
    #[must_use]
    pub fn replica_file(self, path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        self.replica(format!("file://{}", absolute.display()))
    }

    /// What the operator vouches for of the memory of replicas on this machine, where that cannot be asked.
    #[must_use]
    pub fn declaration(mut self, declaration: Option<Declaration>) -> Self {
        self.reach.declaration = declaration;
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
        self.reach.method = Some(method);
        self
    }

    /// The local address to come from for `verbs://` replicas whose URL names none, where routing does not decide it.
    #[must_use]
    pub fn source(mut self, source: IpAddr) -> Self {
        self.reach.source = Some(source);
        self
    }

    /// How targets of `ssh://` replicas are started; [`SshOptions::from_env`] unless told otherwise.
    #[must_use]
    pub fn ssh(mut self, options: SshOptions) -> Self {
        self.reach.ssh = options;
        self
    }

    /// How to wait for replicas; adaptive unless told otherwise.
    #[must_use]
    pub fn waiting(mut self, waiting: Waiting) -> Self {
        self.reach.waiting = waiting;
        self
    }

    /// The connect timeout of each connection; 5 seconds unless set.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.reach.connect_timeout = timeout;
        self
    }

    /// Take targets of any user of this machine on loopback addresses; otherwise those of this user and of root only
    /// ([`ConnectOptions::trust_host`](pmof_access::ConnectOptions::trust_host)).
    #[must_use]
    pub fn trust_host(mut self, trust_host: bool) -> Self {
        self.reach.trust_host = trust_host;
        self
    }

    /// Time without an answer that is due, after which a replica counts as dead; 10 seconds unless told otherwise. A question, such as the
    /// mark that a persist raises now and then, has twice as long. So a persist returns after three times this at the latest where
    /// replicas fall silent one after the other, however many: one while its flush is done, the others when they are told of it.
    #[must_use]
    pub fn loss_timeout(mut self, timeout: Duration) -> Self {
        self.reach.loss_timeout = timeout;
        self
    }

    /// Has every payload carry a CRC32C, which the other side checks; off unless told otherwise, since TCP has a checksum
    /// of its own.
    #[must_use]
    pub fn payload_checksums(mut self, on: bool) -> Self {
        self.reach.payload_checksums = on;
        self
    }

    /// What a new pool is to say of its contents, such as their format; zeroes unless told otherwise. Kept with the pool,
    /// never looked at; [`Pool::user_flags`] and [`PoolInfo`] give it back.
    #[must_use]
    pub fn user_flags(mut self, flags: [u8; USER_FLAGS_BYTES]) -> Self {
        self.user_flags = flags;
        self
    }

    /// The identity of a new pool; random unless told otherwise. For a pool that is restored from a backup: its replicas are new ones, under a new
    /// epoch, and are never mixed with those of the pool that it was.
    #[must_use]
    pub fn uuid(mut self, uuid: Uuid) -> Self {
        self.uuid = Some(uuid);
        self
    }

    /// Makes a pool whose replicas keep a digest of each page of 4096 bytes (file format 4), so that bytes that a medium has changed are never read, and
    /// repaired from a replica that has them. Of a page that was written the digest is back 8 to 16 seconds after the last write, and when the pool is closed; until then the page is not protected. A target
    /// that is too old for it makes its replica without digests. Off unless told otherwise.
    #[must_use]
    pub fn digests(mut self, on: bool) -> Self {
        self.keeps_digests = on;
        self
    }

    /// Size in bytes that a new pool with [digests](Self::digests) can grow to: room is reserved for the digests of so much, 8 bytes for each 4096. The size that it is made with unless told
    /// otherwise.
    #[must_use]
    pub fn max_size_bytes(mut self, max_size_bytes: u64) -> Self {
        self.max_size_bytes = max_size_bytes;
        self
    }

    /// Has a new pool get its name only when it is [closed](Pool::close), on all replicas or, as far as they can be reached,
    /// on none. Before, nobody else sees it, and it is gone when this side or a target dies: what receipts say holds
    /// from the close on. Replicas get the name one after the other, so a death of this side in the middle of the close leaves it on
    /// some of them. Off unless told otherwise.
    #[must_use]
    pub fn publish_on_close(mut self, on: bool) -> Self {
        self.publish_on_close = on;
        self
    }

    /// Replicas that an opening needs in sync, of those that are named. Without it, an opening needs a majority of those that the pool was made with, or, of
    /// two, the one that the last writer left in sync; where too few can be reached, it fails by the error of one that cannot ([`PoolError::Replica`]), or by
    /// [`PoolError::Degraded`]. [`Pool::left_out`] says which of those named are missing.
    ///
    /// It is 1 at least. Asking for more is always safe. **Fewer than a majority are not**: the ones that are not there may be opened by somebody else, and
    /// each side then acknowledges what the other lacks. Such replicas do not open together any more, and a minority's are the ones to give
    /// up. An opening for writing that finds fewer [marks the pool](super::PoolStatus::forced), and goes on with so many. One that finds a majority is as any other: when
    /// fewer than a majority are left later, nothing is acknowledged.
    ///
    /// Where too few others are there, a replica is opened too whose newest state may be damaged and the other one older
    /// ([`PoolRefusal::UncertainState`](pmof_control::PoolRefusal::UncertainState)); an opening for writing that takes one marks the pool.
    #[must_use]
    pub fn min_replicas(mut self, count: usize) -> Self {
        self.min_replicas = Some(count);
        self
    }

    /// Has [`open`](Self::open) and [`open_waiting`](Self::open_waiting) take the pool away from a writer that hangs: one of whom a target has heard nothing for
    /// so long, or more; [`Duration::ZERO`] takes it from any. From then on nothing that the former writer does reaches the pool, whatever it
    /// has in flight, and nothing that it was not told of before is acknowledged to it: its calls fail, and
    /// [`PoolError::is_fenced`] says why.
    ///
    /// **Silent is not dead.** Each message counts as a sign of life, and a writer that persists sends one every second or two, also where the rest of
    /// its work is done past the target's CPU (shm, verbs). One that has nothing to write sends none, and is taken for one that hangs. Choose several
    /// seconds, and this only where another one is to take the writer's place.
    ///
    /// Where the writer is a living process that has the memory mapped (shm), the target copies the pool to another file and cuts the old one to
    /// nothing, which takes the time and, for a moment, the space of a copy, and ends those who read the pool there. On a device no other file can be
    /// had: there the takeover is refused ([`PoolRefusal::NotFenceable`]) until that process ends. What another target on the same directory has open
    /// cannot be taken from it.
    ///
    /// **Fenced on one member is fenced.** The former writer acknowledges nothing any more from the first member on that is taken from it, whatever becomes of the
    /// opening. So where members are out of reach, those that answer are asked first whether they are enough for it; if they are not, it fails and nobody is
    /// fenced. One that fails later, since a member is lost in the middle of it, leaves the pool without a writer until it is opened again.
    #[must_use]
    pub fn take_over(mut self, silent_for: Duration) -> Self {
        self.take_over = Some(silent_for);
        self
    }

    /// Has the pool keep its bytes in memory of this program too, the [mirror](Pool::mirror): the program writes there, and persists ranges
    /// of it. An opening reads all of the pool. Off unless told otherwise.
    #[must_use]
    pub fn mirror(mut self, on: bool) -> Self {
        self.has_mirror = on;
        self
    }

    /// When a persist is acknowledged; [`Acknowledge::InSync`] unless told otherwise.
    #[must_use]
    pub fn acknowledge(mut self, acknowledge: Acknowledge) -> Self {
        self.acknowledge = acknowledge;
        self
    }

    /// How much longer a replica in sync may take over a flush than enough others; without this it is waited for until it is lost
    /// ([`loss_timeout`](Self::loss_timeout)). One that takes longer is left behind, as if it were lost, but stays connected; the persist is then acknowledged without it. Enough are
    /// those that [`acknowledge`](Self::acknowledge) asks for, of a majority that answers (of two replicas, one).
    ///
    /// Once a second or so a persist waits for answers that come from a disk, too (the mark that it raises): there, and for room in a replica's send queue, the
    /// limit is 50 ms, or this if it is longer.
    ///
    /// It catches up in the background when it answers as promptly as the others again. One that goes on being slow is tried with pauses that
    /// double, up to half a minute, and delays nobody meanwhile. Choose more than a flush takes in good times: a disk that stalls now and then is
    /// slow, too.
    #[must_use]
    pub fn slow_after(mut self, longer: Duration) -> Self {
        self.slow_after = Some(longer);
        self
    }

    /// Bytes a second that are copied to a replica that catches up, or to an asynchronous member, at most. New writes go to them besides. Without a limit
    /// a replica catches up as fast as it can while nobody writes the pool, and half of the time while somebody does; `u64::MAX` takes all of it.
    #[must_use]
    pub fn catch_up_limit(mut self, bytes_per_second: u64) -> Self {
        self.catch_up_limit = Some(bytes_per_second);
        self
    }

    /// Adds an asynchronous member to a pool that is [made](Self::create), as [`Pool::add_asynchronous`] does to one that there is.
    #[must_use]
    pub fn asynchronous(mut self, url: impl Into<String>) -> Self {
        self.asynchronous.push(url.into());
        self
    }

    /// Adds a [witness](Pool::add_witness) to a pool that is [made](Self::create). Of a pool that is opened it names the address of one, as
    /// [`replica`](Self::replica) does of a replica.
    #[must_use]
    pub fn witness(mut self, url: impl Into<String>) -> Self {
        self.witnesses.push(url.into());
        self
    }

    /// Adds a [spare](Pool::add_spare) to a pool that is [made](Self::create).
    #[must_use]
    pub fn spare(mut self, url: impl Into<String>) -> Self {
        self.spares.push(url.into());
        self
    }

    /// How long a member has been lost before a [spare](Pool::add_spare) takes its place: 10 minutes unless told otherwise, in which a machine is started again. It
    /// is the time that this opening has missed it, and begins anew when it was back. From then on the former member is none any more, whenever it comes back.
    #[must_use]
    pub fn spare_after(mut self, lost_for: Duration) -> Self {
        self.spare_after = Some(lost_for);
        self
    }

    /// Has the writer [scrub](Pool::scrub) the pool in the background: so long after it was opened, and after each scrub, at least a second. Off unless told otherwise. It takes a tenth of the time, in
    /// windows of 16 MiB, so that a pool of 1 TiB takes hours; [`Event::Scrubbed`](crate::Event::Scrubbed) tells what was found and repaired. An opening that
    /// ends sooner is never scrubbed.
    #[must_use]
    pub fn scrub_every(mut self, interval: Duration) -> Self {
        self.scrub_every = Some(interval);
        self
    }

    /// How far an asynchronous member may lag: bytes that were written and that it has yet to be sent, which are kept in memory, 64 MiB unless told otherwise; and the age of
    /// the oldest of them, without a bound unless told otherwise. `then`: what happens at the bytes; at the age those who write wait, or nothing happens.
    #[must_use]
    pub fn lag_bound(mut self, bytes: u64, age: Duration, then: AtLagBound) -> Self {
        self.lag = LagOptions(LagBound { bytes, age, then, ..self.lag.0 });
        self
    }

    /// How often the pool makes a [consistency point](Pool::consistency_point) by itself while it is written and has asynchronous members: every second unless told otherwise, and sooner where the bound of
    /// the lag is near. `None`: only the program makes points. Where so much is written without one that the bound is met, the member falls behind, whatever is to happen
    /// then: those who would wait for the point are those who make it.
    #[must_use]
    pub fn point_interval(mut self, interval: Option<Duration>) -> Self {
        self.lag.0.interval = interval;
        self
    }

    /// Has the asynchronous members keep so many of the [points with names](Pool::consistency_point), the newest, at most 64, to [read](Self::open_at_point) or to [go back
    /// to](Self::roll_back). They go on with that under writers that do not say; 0 ends it. A member that begins keeps the points that are made from then on. Before bytes are overwritten there, they are
    /// copied to [space](Self::points_space) beside the data, once for each page and point. More than 64 are an error of the opening ([`PoolError::TooManyPoints`]).
    #[must_use]
    pub fn keep_points(mut self, count: u16) -> Self {
        self.keep.count = Some(count);
        self
    }

    /// Bytes that a member which begins to keep points sets aside for what was overwritten since the oldest: as many as all of its pages take with their headers, about 1 % more than the pool has, and 1 MiB at least, unless told otherwise. They lie under the name of the
    /// pool and `.points`. Where they do not suffice the oldest points are dropped ([`Event::PointDropped`](crate::Event::PointDropped)); where the disk has no room for them, none is kept
    /// ([`Event::KeepsNoPoints`](crate::Event::KeepsNoPoints)).
    #[must_use]
    pub fn points_space(mut self, bytes: u64) -> Self {
        self.keep.space_bytes = Some(bytes);
        self
    }

    /// Makes the pool of `size_bytes` zeroes on every replica and opens it for writing. If one replica refuses, the pool is
    /// removed again from those that had made it: a pool is made with all of its replicas, whatever [`min_replicas`](Self::min_replicas) says.
    pub fn create(&self, size_bytes: u64) -> Result<Pool, PoolError> {
        let new = if self.publish_on_close { New::Unpublished } else { New::Published };
        let uuid = self.uuid.unwrap_or_else(Uuid::new_v4);
        let max_size_bytes = self.max_size_bytes.max(size_bytes);
        let protection =
            (self.keeps_digests || std::env::var_os("PMOF_TRY").is_some()).then_some(Protection { max_size_bytes });
        let new = NewNative { uuid, size_bytes, user_flags: self.user_flags, new, protection };
        let pool = format::create(self.opening(Purpose::Create, Haste::default())?, new)?;
        let mut made = self.replicas.clone();
        let mut extend = || {
            for url in &self.witnesses {
                pool.add_witness(url).map_err(|error| PoolError::Witness(Box::new(error)))?;
                made.push(url.clone());
            }
            let mut spares = self.spares.iter();
            spares.try_for_each(|url| pool.add_spare(url)).map_err(Box::new).map_err(PoolError::Spare)?;
            let mut asynchronous = self.asynchronous.iter();
            asynchronous
                .try_for_each(|url| pool.add_asynchronous(url))
                .map_err(Box::new)
                .map_err(PoolError::Asynchronous)
        };
        if let Err(error) = extend() {
            drop(pool);
            // The failure that led here is the one to report.
            let _ = Self { replicas: made, witnesses: Vec::new(), ..self.clone() }.remove();
            return Err(error);
        }
        Ok(pool)
    }

    /// Opens the pool for writing: one initiator at a time. Where another has it, this asks for a second, since that one may be gone and its
    /// target have yet to notice.
    ///
    /// Where the writer before did not close the pool, the replicas in sync may differ in what was not acknowledged. They are then made equal
    /// before this returns: what that writer may have had in flight, as the replicas' maps of write intent say, is compared by digests, and what
    /// differs is copied; [`Pool::compared_bytes`] and [`Pool::copied_bytes`] say how much. After a pool was closed in order, nothing is compared. Replicas that were left behind catch up after this returns; see [`Pool::events`].
    pub fn open(&self) -> Result<Pool, PoolError> {
        in_haste(|haste| format::open(self.opening(Purpose::Open, haste)?, OpenFor::Write))
    }

    /// Takes the pool away from its writer on every replica, as [`take_over`](Self::take_over) says, and leaves it to the next program that opens it: that opening
    /// compares the replicas, since the pool was not closed in order. A replica without a writer stays as it is. Returns for each replica which writer had it. All are asked at once; one that
    /// is silent when half of them have answered is not waited for, and nothing is taken there. A replica that refuses does not keep the others from being taken.
    ///
    /// # Errors
    /// Options that contradict each other. Of each replica: that it refuses, or does not answer; a writer loses the pool where one replica is taken from it.
    pub fn release(&self) -> Result<Vec<Result<Option<String>, PoolError>>, PoolError> {
        let silent_ms = millis(self.take_over.unwrap_or_default());
        let require = self.require.unwrap_or(Durability::Visible);
        self.ask_all(|urls| release(urls, require, silent_ms))
    }

    /// Opens the pool for writing, or makes it of `size_bytes` zeros where no replica has it. A pool that is there must have that size. Where some replicas have it and others do not, this is an opening: those that have it are opened if they are enough, and the
    /// others are [left out](Pool::left_out).
    ///
    /// # Errors
    /// Those of [`open`](Self::open) and [`create`](Self::create); [`PoolError::OtherSize`] of a pool that is there and has another size, and is closed again. Where too few have it, that of the opening: nothing is made then, unless all of those that have it
    /// were left by a program that died while it made the pool, before that was there: these are removed, and the pool is made. Of several programs that call this at once one makes the pool; the error of the others
    /// [is busy](PoolError::is_busy).
    pub fn open_or_create(&self, size_bytes: u64) -> Result<Pool, PoolError> {
        let is = |error: &PoolError, wanted| matches!(error.replica_error(), Some(ReplicaError::Refused { refusal, .. }) if *refusal == wanted);
        let mut attempt = 1;
        loop {
            let error = match self.open() {
                Err(absent) if is(&absent, PoolRefusal::NotFound) => match self.create(size_bytes) {
                    // Another replica has it, or another program makes it just now.
                    Err(error) if is(&error, PoolRefusal::AlreadyExists) => absent,
                    outcome => return outcome,
                },
                Ok(pool) if pool.len_bytes() != size_bytes => {
                    let other = PoolError::OtherSize { size_bytes: pool.len_bytes(), wanted_bytes: size_bytes };
                    // As it was found, or the failure that closes it is the lesser one.
                    let _ = pool.close();
                    return Err(other);
                }
                // Two programs make it just now, each on some of the replicas.
                Err(error) if matches!(error.replica_error(), Some(ReplicaError::Mismatch { .. })) => error,
                outcome => return outcome,
            };
            if attempt == MAKE_ATTEMPTS {
                return Err(error);
            }
            let removed = ask(&self.reach, self.urls()?, remove_unfinished);
            for url in &removed {
                log::info!("{url} was left by a program that died while it made the pool, and is removed");
            }
            if !removed.is_empty() {
                attempt += 1;
                continue;
            }
            // Programs that made it on some of the replicas give those back: by chance they come apart.
            std::thread::sleep(MAKE_PAUSE.mul_f64(f64::from(attempt) * chance()));
            attempt += 1;
        }
    }

    /// Opens the pool for reading; another may write meanwhile.
    ///
    /// **What is read** is of a member that was in sync at most a second before the read began: what was acknowledged before then is seen, and nothing of a
    /// replica that was removed, left behind or fenced off longer ago. A read asks for that at most once a second; where the members in sync have changed,
    /// the pool is opened anew on those that are, which takes the time of an opening, and [`Pool::replicas`] and the indexes of [`Pool::read_replica`] change. Where
    /// too few members answer to know who is in sync, the read fails as this call would, and a later one may succeed. Bytes of different reads need not be of one
    /// moment, and a write that is under way may be seen in part.
    ///
    /// Of several members that are as good, the nearest is read: one on this machine, else, of targets, one whose round trip is less than half of the first's and 1 ms shorter, as measured when the pool is opened, or
    /// opened anew. Where it fails, the others are read.
    ///
    /// None of this holds with [`min_replicas`](Self::min_replicas): these are then read as they are, whatever became of them. Nor does it of the [mirror](Pool::mirror),
    /// which has the bytes of the opening.
    pub fn open_read_only(&self) -> Result<Pool, PoolError> {
        in_haste(|haste| open_reading(|| format::open(self.opening(Purpose::Open, haste.clone())?, OpenFor::Read)))
    }

    /// Describes every replica, without opening it. All are asked at once, and waited for.
    pub fn info(&self) -> Result<Vec<PoolInfo>, PoolError> {
        self.ask_all(infos)?.into_iter().map(|answer| answer.map(|info| *info)).collect()
    }

    /// Tells which members the pool has and in which states they are: those that are named, and those that they name. It neither writes nor disturbs a writer.
    ///
    /// # Errors
    /// [`PoolError::NoneOpened`] where no member answers; [`PoolError::SameReplica`] where two of them are one replica. One that is lost, or that
    /// does not belong to the others, is no error but a [state](crate::MemberState).
    pub fn members(&self) -> Result<PoolMembers, PoolError> {
        look(&self.reach, &self.urls()?)
    }

    /// Removes the pool from every replica, with all its bytes. Stops at the first replica that refuses.
    pub fn remove(&self) -> Result<(), PoolError> {
        self.ask_each(|_, url| Request::Remove { name: url.name.clone(), meant: None }, &Reply::Removed)
    }

    /// The same, unless a writer has opened a replica since it was [described](Self::info) so: it may have made others members of the pool. `seen`: in the order of these options.
    ///
    /// # Errors
    /// [`PoolError::Replica`] of the first that was opened since, or is not the one described, or has no description; it and those behind it stay.
    pub fn remove_unchanged(&self, seen: &[PoolInfo]) -> Result<(), PoolError> {
        let question = |at: usize, url: &PoolUrl| {
            let as_seen =
                |info: &PoolInfo| MeantReplica { uuid: info.header.replica_uuid, epoch: Some(info.state.epoch.id) };
            // No replica has this name: one without a description stays.
            let none = MeantReplica::at_any_epoch(Uuid::nil());
            Request::Remove { name: url.name.clone(), meant: Some(seen.get(at).map_or(none, as_seen)) }
        };
        self.ask_each(question, &Reply::Removed)
    }

    /// The same also of replicas whose headers are damaged, so that it is not known whether they are of one pool. Files that do not begin as a pool
    /// does stay.
    pub fn discard(&self) -> Result<(), PoolError> {
        self.ask_each(|_, url| Request::Discard { name: url.name.clone() }, &Reply::Removed)
    }

    /// Asks one after the other, and stops at the first that refuses.
    fn ask_each(&self, question: impl Fn(usize, &PoolUrl) -> Request, expected: &Reply) -> Result<(), PoolError> {
        let peers = self.reach.peers();
        for (at, url) in self.urls()?.into_iter().enumerate() {
            let reply = self.reach.site(&peers, &url).and_then(|site| site.ask_when_free(&question(at, &url)));
            let is_done =
                reply.and_then(|reply| if reply == *expected { Ok(()) } else { Err(ReplicaError::Unexpected) });
            is_done.map_err(|error| failed(&url, error))?;
        }
        Ok(())
    }

    /// Asks all replicas at once.
    fn ask_all<T>(
        &self,
        asking: impl FnOnce(Vec<Arc<PoolUrl>>) -> Asking<PoolUrl, ReplicaError, Vec<Result<T, Cause<ReplicaError>>>>,
    ) -> Result<Vec<Result<T, PoolError>>, PoolError> {
        let urls = self.urls()?;
        let answers = urls.iter().zip(ask(&self.reach, urls.clone(), asking));
        let failed = |url, cause| PoolError::Replica { replica: place(url), source: told(cause) };
        Ok(answers.map(|(url, answer)| answer.map_err(|cause| failed(url, cause))).collect())
    }

    fn check(&self) -> Result<(), PoolError> {
        let zero = match (self.min_replicas, self.acknowledge) {
            (Some(0), _) => Some("min_replicas"),
            (_, Acknowledge::AtLeast(0)) => Some("acknowledge (AtLeast)"),
            _ => None,
        };
        if let Some(option) = zero {
            return Err(PoolError::Zero { option });
        }
        let wanted = self.keep.count.unwrap_or(0);
        if usize::from(wanted) > KEPT_POINTS_MAX {
            return Err(PoolError::TooManyPoints { wanted, limit: KEPT_POINTS_MAX });
        }
        Ok(())
    }

    fn opening(&self, purpose: Purpose, haste: Haste) -> Result<Opening, PoolError> {
        self.check()?;
        let is_new = purpose == Purpose::Create;
        let named = self.urls()?;
        let urls = if is_new { parsed(&self.replicas)? } else { named };
        let wanted = Wanted {
            require: self.durability()?,
            min_replicas: self.min_replicas.filter(|_| !is_new),
            take_over: self.take_over,
            has_mirror: self.has_mirror,
            acknowledge: self.acknowledge,
            slow_after: self.slow_after,
            bytes_per_second: self.catch_up_limit,
            spare_after: self.spare_after.unwrap_or(SPARE_AFTER),
            scrub_every: self.scrub_every,
            lag: self.lag.0,
            keep: self.keep,
            reach: self.reach.clone(),
            haste: Haste::default(),
        };
        Ok(Opening::new(wanted.with_haste(haste), urls))
    }

    pub(super) fn durability(&self) -> Result<Durability, PoolError> {
        self.require.ok_or(PoolError::NoDurability)
    }

    pub(super) fn take_over_after(&self) -> Option<Duration> {
        self.take_over
    }

    /// The replicas, and the witnesses that are named besides.
    pub(super) fn urls(&self) -> Result<Vec<Arc<PoolUrl>>, PoolError> {
        parsed(&[&self.replicas[..], &self.witnesses].concat())
    }
}

fn parsed(texts: &[String]) -> Result<Vec<Arc<PoolUrl>>, PoolError> {
    let mut urls: Vec<Arc<PoolUrl>> = Vec::with_capacity(texts.len());
    for text in texts {
        let url = Arc::new(text.parse()?);
        if urls.contains(&url) {
            return Err(PoolError::Twice { replica: url });
        }
        if urls.len() >= usize::from(REPLICAS_MAX) {
            return Err(PoolError::TooMany { named: texts.len() });
        }
        urls.push(url);
    }
    if urls.is_empty() { Err(PoolError::NoReplicas) } else { Ok(urls) }
}

/// Between 0 and 1, at random.
fn chance() -> f64 {
    f64::from(Uuid::new_v4().as_fields().0) / f64::from(u32::MAX)
}
