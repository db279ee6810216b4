//! Opening a pool: asking all targets at once, and judging by their answers which replicas belong together.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use pmof_access::{Durability, Medium, Memory, RemoteRegion};
use pmof_control::{OpenFor, PoolRefusal, PoolState, Reply, Request, USER_FLAGS_BYTES};
use uuid::Uuid;

use super::{Facts, LeftOut, Open, Pool, epochs::Epochs, options::millis};
use crate::{
    PoolError, PoolUrl, ReplicaError, ReplicaPlace,
    lineage::{Agreement, Apart, Base, Found, agree},
    member::{Member, RemoteMember, Standing, Writing},
    target::{PendingReply, TargetConnection},
};

/// What becomes of a pool that was made here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum New {
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

/// Connections to the targets of a pool that is being made or opened.
#[derive(Debug)]
pub(super) struct Opening {
    targets: Vec<(Arc<PoolUrl>, TargetConnection)>,
    left_out: LeftOut,
    require: Durability,
    min_replicas: Option<usize>,
    has_mirror: bool,
}

/// A replica that its target has opened.
#[derive(Debug)]
struct Opened {
    url: Arc<PoolUrl>,
    target: TargetConnection,
    index: u16,
    state: PoolState,
    remote: RemoteRegion,
    /// `None` where it is open for reading only.
    writing: Option<Writing>,
}

/// A replica that was asked for in vain, and its connection where there still is one.
struct Failed {
    url: Arc<PoolUrl>,
    target: TargetConnection,
    /// The target has it open.
    is_open: bool,
    error: ReplicaError,
}

impl Opening {
    pub(super) fn new(require: Durability, min_replicas: Option<usize>, has_mirror: bool) -> Self {
        Self { targets: Vec::new(), left_out: Vec::new(), require, min_replicas, has_mirror }
    }

    pub(super) fn require(&self) -> Durability {
        self.require
    }

    pub(super) fn replica_count(&self) -> u16 {
        self.targets.len() as u16
    }

    pub(super) fn reached(&mut self, url: Arc<PoolUrl>, target: TargetConnection) {
        self.targets.push((url, target));
    }

    /// Goes on without a replica, where the caller allows that and its loss may be why.
    pub(super) fn leave_out(&mut self, url: &Arc<PoolUrl>, error: ReplicaError) -> Result<(), PoolError> {
        if self.min_replicas.is_none() || !may_be_lost(&error) {
            return Err(failed(url, error));
        }
        self.left_out.push((place(url), Arc::new(error)));
        Ok(())
    }

    /// Makes the pool on all targets, or on none.
    pub(super) fn create(mut self, new: New, question: impl Fn(&PoolUrl, u16) -> Request) -> Result<Pool, PoolError> {
        // Of several programs that make the same pool at once, one gets that replica, and the others make none.
        let first = (0..self.targets.len()).min_by_key(|index| self.targets[*index].0.to_string());
        let (opened, failed, identity) = self.ask(OpenFor::Write, first, question);
        let Some(first) = failed.iter().position(|_| true) else {
            return self.made(opened, identity, new);
        };
        for Opened { url, target, .. } in &opened {
            undo_creation(url, target, new);
        }
        for Failed { url, target, .. } in failed.iter().filter(|failed| failed.is_open) {
            undo_creation(url, target, new);
        }
        let Failed { url, error, .. } = failed.into_iter().nth(first).ok_or(PoolError::NoReplicas)?;
        Err(self::failed(&url, error))
    }

    fn made(mut self, opened: Vec<Opened>, identity: Option<Identity>, new: New) -> Result<Pool, PoolError> {
        let identity = identity.ok_or(PoolError::NoReplicas)?;
        let state = opened.first().map(|opened| opened.state.clone()).ok_or(PoolError::NoReplicas)?;
        let base = Base::after(state.epoch, state.opening, &state.ancestors);
        let mut pool = self.pool(opened, identity, base, 0, OpenFor::Write)?;
        pool.is_unpublished = new == New::Unpublished;
        Ok(pool.into_pool(None))
    }

    /// Puts the replicas together.
    fn pool(
        &mut self,
        opened: Vec<Opened>,
        identity: Identity,
        base: Base,
        mark: u64,
        access: OpenFor,
    ) -> Result<Open, PoolError> {
        let Identity { uuid, size_bytes, user_flags, replica_count } = identity;
        let facts = Facts {
            uuid,
            user_flags,
            replica_count: opened.len(),
            durability: self.require,
            access,
            left_out: std::mem::take(&mut self.left_out),
            ..Facts::new(size_bytes, usize::from(replica_count))
        };
        let mirror = if self.has_mirror { Some(mirror(size_bytes)?) } else { None };
        let indexes = opened.iter().map(|opened| opened.index).collect();
        let mut members: Vec<Box<dyn Member>> = Vec::with_capacity(opened.len());
        for Opened { url, target, remote, writing, .. } in opened {
            let mut member = RemoteMember::new(Standing::new(place(&url)), target, remote, None, writing);
            if let Some(mirror) = &mirror {
                member.use_mirror(Arc::clone(mirror)).map_err(|error| failed(&url, error))?;
            }
            members.push(Box::new(member));
        }
        let mut pool = Open::new(facts, members, Some(Epochs::new(indexes, base, mark)));
        pool.mirror = mirror;
        Ok(pool)
    }

    /// Opens the replicas that belong together, or gives all of them back.
    pub(super) fn open(mut self, access: OpenFor, take_over: Option<Duration>) -> Result<Pool, PoolError> {
        let require = self.require;
        let (mut opened, failed, identity) = self.ask(access, None, |url, _| match (take_over, url.name.clone()) {
            (None, name) => Request::Open { name, access, require },
            (Some(silent_for), name) => Request::TakeOver { name, require, silent_ms: millis(silent_for), epoch: None },
        });
        let judged = self.judge(&mut opened, failed, identity, access);
        let (identity, agreement) = match judged {
            Ok(judged) => judged,
            Err(error) => {
                for Opened { target, .. } in &opened {
                    release(target);
                }
                return Err(error);
            }
        };
        let Agreement { base, is_clean, source, mark, .. } = agreement;
        let mut pool = self.pool(opened, identity, base, mark, access)?;
        pool.facts.first_read = source;
        pool.facts.was_closed = is_clean;
        if access == OpenFor::Write {
            pool.facts.copied_bytes = pool.begin(self.min_replicas, is_clean, source)?;
        }
        pool.fill_mirror()?;
        Ok(pool.into_pool(None))
    }

    /// Asks all targets at once, or the `first` before the others, which are asked only where it has opened.
    fn ask(
        &mut self,
        access: OpenFor,
        first: Option<usize>,
        question: impl Fn(&PoolUrl, u16) -> Request,
    ) -> (Vec<Opened>, Vec<Failed>, Option<Identity>) {
        let targets = std::mem::take(&mut self.targets);
        let began = Instant::now();
        let send = |index: usize| -> (Request, Result<PendingReply, ReplicaError>) {
            let (url, target) = &targets[index];
            let request = question(url, index as u16);
            let pending = target.send(&request);
            (request, pending)
        };
        let answer = |target: &TargetConnection, (request, pending): (Request, Result<PendingReply, ReplicaError>)| {
            pending.and_then(|pending| target.answer_when_free(&request, &pending, began))
        };
        let mut of_first = first.map(|index| answer(&targets[index].1, send(index)));
        let is_refused = matches!(&of_first, Some(reply) if !matches!(reply, Ok(Reply::Opened { .. })));
        let asks = |index: &usize| !is_refused && Some(*index) != first;
        let asked: Vec<_> = (0..targets.len()).map(|index| asks(&index).then(|| send(index))).collect();
        let (mut opened, mut failed, mut identity) = (Vec::with_capacity(targets.len()), Vec::new(), None);
        for (index, ((url, target), asked)) in targets.into_iter().zip(asked).enumerate() {
            let of_first = || of_first.take_if(|_| Some(index) == first);
            let Some(reply) = asked.map(|asked| answer(&target, asked)).or_else(of_first) else { continue };
            let is_open = matches!(reply, Ok(Reply::Opened { .. }));
            let checked = reply.and_then(|reply| check_opened(reply, &target, self.require, access, &mut identity));
            match checked {
                Ok(Checked { index, state, remote, writing }) => {
                    opened.push(Opened { url, target, index, state, remote, writing });
                }
                Err(error) => failed.push(Failed { url, target, is_open, error }),
            }
        }
        (opened, failed, identity)
    }

    /// Whether those that are open make the pool. Those that are left out are released.
    fn judge(
        &mut self,
        opened: &mut Vec<Opened>,
        failed: Vec<Failed>,
        identity: Option<Identity>,
        access: OpenFor,
    ) -> Result<(Identity, Agreement), PoolError> {
        for Failed { url, target, is_open, error } in failed {
            if is_open {
                release(&target);
            }
            self.leave_out(&url, error)?;
        }
        let made = identity.map_or(0, |identity| identity.replica_count);
        let identity = identity.ok_or_else(|| none_opened(&self.left_out))?;
        check_distinct(opened)?;
        // A reader may have come while marks were raised: unless it can do without a replica, they tell it only whom to read first.
        let heeds_marks = access == OpenFor::Write || self.min_replicas.is_some();
        let agreement = match agree_on(opened, made, heeds_marks) {
            Ok(agreement) => agreement,
            Err(apart) => self.leave_out_apart(opened, &apart, made, heeds_marks)?,
        };
        let needed = self.min_replicas.unwrap_or(usize::from(made)).max(1);
        if opened.len() < needed {
            let (opened, made, left_out) = (opened.len(), usize::from(made), self.left_out.clone());
            return Err(PoolError::Degraded { opened, made, needed, left_out });
        }
        Ok((identity, agreement))
    }

    /// Goes on without those that do not belong to the others, where the caller allows that and it is known who counts.
    fn leave_out_apart(
        &mut self,
        opened: &mut Vec<Opened>,
        apart: &[(usize, Apart)],
        made: u16,
        heeds_marks: bool,
    ) -> Result<Agreement, PoolError> {
        let can_do_without = |apart: &Apart| match apart {
            Apart::LeftBehind { .. } | Apart::RolledBack { .. } | Apart::Stale { .. } => true,
            Apart::Diverged { majority, .. } => *majority,
            Apart::WithoutMajority { .. } => false,
        };
        let is_allowed = self.min_replicas.is_some() && apart.iter().all(|(_, apart)| can_do_without(apart));
        let mut named: LeftOut = Vec::with_capacity(apart.len());
        for (position, apart) in apart.iter().rev() {
            let error = Arc::new(ReplicaError::of(*apart, made));
            named.push((place(&opened[*position].url), error));
            if is_allowed {
                release(&opened.remove(*position).target);
            }
        }
        named.reverse();
        if !is_allowed {
            return Err(PoolError::Apart { replicas: named });
        }
        self.left_out.append(&mut named);
        agree_on(opened, made, heeds_marks).or_else(|apart| self.leave_out_apart(opened, &apart, made, heeds_marks))
    }
}

impl Open {
    /// Begins the opening's epoch, then makes replicas equal that need not be so. Returns the bytes copied.
    fn begin(&self, min_replicas: Option<usize>, is_clean: bool, source: usize) -> Result<u64, PoolError> {
        let Some(epochs) = &self.epochs else { return Ok(0) };
        // An epoch of fewer than the caller allows would leave the others behind, for an opening that fails.
        epochs.begin(&self.members, min_replicas.unwrap_or(self.members.len()));
        if min_replicas.is_none_or(|least| self.members.len() - self.lost() < least) {
            self.check_none_lost()?;
        }
        if is_clean || self.members.len() == 1 {
            return Ok(0);
        }
        self.check_none_lost()?;
        self.equalize(source)
    }

    /// Reads all of the pool into its mirror.
    fn fill_mirror(&self) -> Result<(), PoolError> {
        let Some(mirror) = &self.mirror else { return Ok(()) };
        let size_bytes = self.facts.size_bytes;
        let mut chunk = vec![0; size_bytes.min(FILL_BYTES) as usize];
        let mut at = 0;
        while at < size_bytes {
            let part = (size_bytes - at).min(FILL_BYTES) as usize;
            self.read(at, &mut chunk[..part])?;
            mirror.store(at, &chunk[..part]).map_err(PoolError::Mirror)?;
            at += part as u64;
        }
        Ok(())
    }
}

fn mirror(size_bytes: u64) -> Result<Arc<dyn Medium>, PoolError> {
    Ok(Arc::new(Memory::anonymous(size_bytes).map_err(PoolError::Mirror)?))
}

fn agree_on(opened: &[Opened], made: u16, heeds_marks: bool) -> Result<Agreement, Vec<(usize, Apart)>> {
    let found: Vec<_> = opened.iter().map(|opened| Found { index: opened.index, state: &opened.state }).collect();
    let agreement = agree(&found, made)?;
    if !heeds_marks || agreement.stale.is_empty() { Ok(agreement) } else { Err(agreement.stale) }
}

/// A replica and a copy of it are one replica.
fn check_distinct(opened: &[Opened]) -> Result<(), PoolError> {
    for (position, Opened { url, index, .. }) in opened.iter().enumerate() {
        if let Some(other) = opened[..position].iter().find(|other| other.index == *index) {
            let (replica, other) = (place(url), place(&other.url));
            return Err(PoolError::SameReplica { replica, other, index: *index });
        }
    }
    Ok(())
}

/// What a target's answer says, where it fits.
struct Checked {
    index: u16,
    state: PoolState,
    remote: RemoteRegion,
    writing: Option<Writing>,
}

/// Checks that a target's answer is what was asked for, and the same pool as at the targets before it.
fn check_opened(
    reply: Reply,
    target: &TargetConnection,
    wanted: Durability,
    access: OpenFor,
    identity: &mut Option<Identity>,
) -> Result<Checked, ReplicaError> {
    let Reply::Opened { pool_uuid, size_bytes, replica_count, replica_index, user_flags, state, descriptor, .. } =
        reply
    else {
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
    if remote.len_bytes() != size_bytes || replica_index >= replica_count {
        return Err(ReplicaError::Unexpected);
    }
    target.prepare(&remote)?;
    let mut checked = Checked { index: replica_index, state, remote, writing: None };
    if access == OpenFor::Write {
        let mut writing = Writing::to(wanted, target, &remote)?;
        // The strongest level that this way of flushing can give: what a closed pool has in common must last.
        let stronger = Durability::ALL.into_iter().rev().filter(|level| *level > wanted);
        let mut reachable =
            stronger.filter(|level| remote.promise(*level).is_some() && target.flush_method(&remote, *level).is_ok());
        writing.strongest = reachable.next().unwrap_or(wanted);
        checked.writing = Some(writing);
    }
    Ok(checked)
}

/// Whether the replica may be lost for this reason, rather than in use or unfit.
fn may_be_lost(error: &ReplicaError) -> bool {
    use PoolRefusal::{Failed, HeadersDamaged, NotAUsablePool, NotFound};
    match error {
        ReplicaError::Refused { refusal, .. } => matches!(refusal, NotFound | NotAUsablePool | HeadersDamaged | Failed),
        error => error.is_lost(),
    }
}

/// Lets others open a replica that was opened in vain, before the caller may try again. It stays as it was found.
fn release(target: &TargetConnection) {
    // What cannot be undone ends with the connection; the caller reports the first failure.
    let _ = target.ask(&Request::Close { in_order: false });
}

/// Removes a replica that was made in vain.
fn undo_creation(url: &PoolUrl, target: &TargetConnection, new: New) {
    if new == New::Unpublished {
        // It goes with the connection.
        return;
    }
    release(target);
    let _ = target.ask(&Request::Remove { name: url.name.clone() });
}

/// Where no replica was opened. Of the only one that was named its failure is all there is to tell.
fn none_opened(left_out: &LeftOut) -> PoolError {
    match &left_out[..] {
        [] => PoolError::NoReplicas,
        [(replica, source)] => PoolError::Replica { replica: Arc::clone(replica), source: Arc::clone(source) },
        _ => PoolError::NoneOpened { replicas: left_out.clone() },
    }
}

/// Removes a replica again that was closed and has its name, while others have not.
pub(super) fn take_back(member: &dyn Member) {
    if let (Some(remote), ReplicaPlace::Pool(url)) = (member.remote(), &*member.standing().place) {
        // What cannot be undone stays with the target; the first failure is reported.
        let _ = remote.ask(&Request::Remove { name: url.name.clone() });
    }
}

fn place(url: &Arc<PoolUrl>) -> Arc<ReplicaPlace> {
    Arc::new(ReplicaPlace::Pool(PoolUrl::clone(url)))
}

pub(super) fn failed(url: &Arc<PoolUrl>, error: ReplicaError) -> PoolError {
    PoolError::Replica { replica: place(url), source: Arc::new(error) }
}

/// Bytes that the mirror is filled with at a time.
const FILL_BYTES: u64 = 4 << 20;
