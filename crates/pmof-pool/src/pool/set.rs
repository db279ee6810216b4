//! The pool of a pool set: its replicas, local and remote, made or opened together.

use std::{ops::Range, sync::Arc};

use pmof_access::{Durability, Medium, Memory};
use pmof_control::{OpenFor, USER_FLAGS_BYTES};
use pmof_mem::Declaration;
use pmof_pool_set::{
    Attributes, CheckReport, Comparison, Contents, ContentsState, EMPTY, FeatureChange, FeatureError, FeatureOptions,
    Features, HEADER_LEN_BYTES, LocalReplica, LocalSet, LostPart, NewSet, PoolKind, PoolSet, RemoteSpec, ReplicaSpec,
    Step, SyncError, SyncOptions, SyncReport, TransformOptions, TransformReport, change_feature, check, features,
    first_misfit, headerless_parts, memory_state, new_uuid, opening_count, state_of, sync, transform,
};
use uuid::Uuid;

use super::{
    Open, Pool,
    compare::{Comparable, Differing, contents, not_compared},
    format::{self, Format, Replicas, Terms, Upkeep},
    opened::Identity,
};
use crate::{
    PoolError, RemoteRemoval, ReplicaError, ReplicaPlace, SetInfo, SshReplicas, TargetOptions,
    member::{LocalMember, Member, RemoteMember, Standing, replica_error},
    remote_place,
    set_replica::SetReplica,
};

/// How the pool of a pool set is reached. The pool's [mirror](Pool::mirror) is its first replica, which is on this machine: the program
/// reads and writes it, and persists ranges of it.
#[derive(Clone, Debug)]
pub struct SetOptions {
    set: PoolSet,
    target: TargetOptions,
    declaration: Option<Declaration>,
    differing: Differing,
}

impl SetOptions {
    pub(super) fn new(set: PoolSet) -> Self {
        Self { set, target: TargetOptions::default(), declaration: None, differing: Differing::default() }
    }

    /// How targets are reached, and the level that persisted bytes must reach, on every replica.
    #[must_use]
    pub fn target(mut self, options: TargetOptions) -> Self {
        self.target = options;
        self
    }

    /// What the operator vouches for of the replicas on this machine.
    #[must_use]
    pub fn declaration(mut self, declaration: Option<Declaration>) -> Self {
        self.declaration = declaration;
        self
    }

    /// What is done at opening with replicas that differ from the first one; refused unless told otherwise, since the format cannot
    /// tell which one is newer.
    #[must_use]
    pub fn differing(mut self, differing: Differing) -> Self {
        self.differing = differing;
        self
    }

    /// Makes the pool on all replicas of the set, all in parallel, and opens it. On an error nothing is left, as far as it can be
    /// reached.
    ///
    /// # Errors
    /// [`PoolError::Set`], [`PoolError::Replica`].
    pub fn create(&self, new: &NewSet) -> Result<Pool, PoolError> {
        format::create(self, new)
    }

    /// What [`create`](Self::create) looks at before it makes anything, here and on the hosts of remote replicas: nothing is made.
    ///
    /// # Errors
    /// [`PoolError::Set`], [`PoolError::Replica`].
    pub fn check_new(&self, new: &NewSet) -> Result<(), PoolError> {
        new.plan(&self.set)?;
        LocalSet::check_new(&self.set, new)?;
        self.check_files()?;
        // Of no pool that there is: so the target refuses whatever is there.
        let nobody = new_uuid();
        let free = self.each_remote(|replica| {
            RemoteRemoval::prepare_replacement(replica.target, replica.set, &nobody, replica.options).map(drop)
        });
        free.into_iter().try_for_each(|found| found.map(drop))
    }

    /// Opens all replicas, the remote ones in parallel, and checks that they are of one pool and hold the same.
    ///
    /// # Errors
    /// [`PoolError::Set`], [`PoolError::Replica`], [`PoolError::NoLocalReplica`].
    pub fn open(&self) -> Result<Pool, PoolError> {
        format::open(self, ())
    }

    /// Reads every replica of the set in full and compares it with the first sound one, as [`check`] does; targets are started on the
    /// other machines, and compute digests there. Nothing is changed. `progress` is told how far it is.
    ///
    /// # Errors
    /// [`SyncError`], where no replica could be looked at; hosts that are away are in the report.
    pub fn check(&self, progress: &mut dyn FnMut(Step)) -> Result<CheckReport, SyncError> {
        check(&self.set, self.declaration, &mut SshReplicas::new(&self.target), progress)
    }

    /// Makes all replicas of the set equal and whole again, as [`sync`] does, those on other machines too.
    ///
    /// # Errors
    /// [`SyncError`].
    pub fn sync(&self, how: &SyncOptions, progress: &mut dyn FnMut(Step)) -> Result<SyncReport, SyncError> {
        let how = (*how).declaration(how.declaration.or(self.declaration));
        sync(&self.set, &how, &mut SshReplicas::new(&self.target), progress)
    }

    /// Gives the pool of the set the replicas of `to`, as [`transform`] does, those on other machines too.
    ///
    /// # Errors
    /// [`SyncError`].
    pub fn transform(
        &self,
        to: &PoolSet,
        how: &TransformOptions,
        progress: &mut dyn FnMut(Step),
    ) -> Result<TransformReport, SyncError> {
        let how = how.clone().declaration(how.declaration.or(self.declaration));
        transform(&self.set, to, &how, &mut SshReplicas::new(&self.target), progress)
    }

    /// Describes the set's pool by its files and by what the headers of its parts say, which are not locked; hosts are asked for their
    /// replicas. What is wrong with any of them is part of the answer.
    pub fn info(&self) -> SetInfo {
        SetInfo::of(&self.set, &mut SshReplicas::new(&self.target))
    }

    /// The features that the headers of the set's pool name, as [`features`] tells them; targets are started on the other machines.
    ///
    /// # Errors
    /// [`FeatureError`].
    pub fn features(&self) -> Result<Features, FeatureError> {
        features(&self.set, self.declaration, &mut SshReplicas::new(&self.target))
    }

    /// Changes a feature of the set's pool, as [`change_feature`] does, on other machines too.
    ///
    /// # Errors
    /// [`FeatureError`].
    pub fn change_feature(&self, change: FeatureChange, how: &FeatureOptions) -> Result<Features, FeatureError> {
        let how = (*how).declaration(how.declaration.or(self.declaration));
        change_feature(&self.set, change, &how, &mut SshReplicas::new(&self.target))
    }

    /// Fails where two replicas have one file, here or on other machines.
    fn check_files(&self) -> Result<(), PoolError> {
        let files = self.each_remote(|replica| replica.files().map_err(|error| replica.failed(error)));
        let files = files.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(self.set.check_files_with(files)?)
    }

    fn open_remotes(&self, local: &LocalSet) -> Result<Vec<(usize, RemoteMember)>, PoolError> {
        self.check_durability(local)?;
        let size_bytes = local.len_bytes();
        let remotes = self.each_remote(|replica| {
            let opened = replica.open(size_bytes, OpenFor::Write);
            let (member, attributes) = opened.map_err(|error| replica.failed(error))?;
            let attributes =
                attributes.ok_or_else(|| replica.failed(ReplicaError::Differs { what: "use of headers" }))?;
            Ok((member, attributes))
        });
        let remotes = remotes.into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut ring: Vec<_> =
            local.replicas().iter().map(|replica| replica.as_ref().and_then(LocalReplica::attributes)).collect();
        for (index, (_, attributes)) in &remotes {
            ring[*index] = Some(*attributes);
        }
        if let Some((index, misfit)) = first_misfit(&ring) {
            let remote = remotes.iter().find(|(of, _)| *of == index).map(|(_, (member, _))| member);
            let here = || local.replicas().get(index).and_then(Option::as_ref).map(|here| local_place(index, here));
            let replica = remote.map(|member| Arc::clone(&member.standing().place)).or_else(here);
            let replica = replica.ok_or(PoolError::NoLocalReplica)?;
            return Err(PoolError::Replica {
                replica,
                source: Arc::new(ReplicaError::Differs { what: misfit.what() }),
            });
        }
        Ok(remotes.into_iter().map(|(index, (member, _))| (index, member)).collect())
    }

    /// The replicas as a pool uses them, and what it gives.
    fn members(
        &self,
        local: &LocalSet,
        remotes: Vec<(usize, RemoteMember)>,
    ) -> Result<(Vec<Arc<dyn Member>>, Terms), PoolError> {
        let first = local.replicas().first().and_then(Option::as_ref).ok_or(PoolError::NoLocalReplica)?;
        let mirror = first.memory();
        let mut remotes = remotes.into_iter().peekable();
        let (mut members, mut least): (Vec<Arc<dyn Member>>, _) = (Vec::with_capacity(self.set.replicas.len()), None);
        for (index, replica) in local.replicas().iter().enumerate() {
            let member: Arc<dyn Member> = if let Some(replica) = replica {
                let memory = replica.memory();
                let strongest = strongest(&memory);
                let level = self.target.require.unwrap_or(strongest);
                let copied_from = (index > 0).then(|| Arc::clone(&mirror) as Arc<dyn Medium>);
                Arc::new(LocalMember::of_set(
                    Standing::new(local_place(index, replica)),
                    memory,
                    (level, strongest),
                    copied_from,
                ))
            } else {
                let Some((_, mut member)) = remotes.next_if(|(of, _)| *of == index) else { continue };
                let used = member.use_mirror(Arc::clone(&mirror) as _);
                used.map_err(|error| replica_error(&member, Arc::new(error)))?;
                Arc::new(member)
            };
            least = Some(least.map_or(member.strongest(), |least: Durability| least.min(member.strongest())));
            members.push(member);
        }
        let durability = self.target.require.or(least).unwrap_or(Durability::Visible);
        Ok((members, Terms::whole(durability, OpenFor::Write, Some(mirror as _))))
    }

    /// Does something with the place of each remote replica, all at once: most of it is waiting for ssh.
    fn each_remote<T: Send>(
        &self,
        act: impl Fn(&SetReplica<'_>) -> Result<T, PoolError> + Sync,
    ) -> Vec<Result<(usize, T), PoolError>> {
        let one = |index: usize, spec: &RemoteSpec| {
            let (target, name) = remote_place(spec).map_err(|source| PoolError::Place { index, source })?;
            let replica = SetReplica { index: Some(index), target: &target, set: &name, options: &self.target };
            Ok((index, act(&replica)?))
        };
        std::thread::scope(|scope| {
            let remotes = self.set.replicas.iter().enumerate().filter_map(|(index, spec)| match spec {
                ReplicaSpec::Remote(spec) => Some((index, spec)),
                ReplicaSpec::Local(_) => None,
            });
            let threads: Vec<_> = remotes
                .map(|(index, spec)| {
                    let one = &one;
                    scope.spawn(move || one(index, spec))
                })
                .collect();
            threads.into_iter().map(join).collect()
        })
    }

    /// Whether all local replicas give what is required; the remote ones are asked when they are opened.
    fn check_durability(&self, local: &LocalSet) -> Result<(), PoolError> {
        let Some(level) = self.target.require else { return Ok(()) };
        for (index, replica) in local.replicas().iter().enumerate() {
            let Some(replica) = replica else { continue };
            let memory = replica.memory();
            if memory.promise(level).is_none() {
                let source = Arc::new(ReplicaError::Memory(memory.not_durable(level)));
                return Err(PoolError::Replica { replica: local_place(index, replica), source });
            }
        }
        Ok(())
    }

    /// Removes what was made of a set: its local replicas, and the remote ones at these places. The failure that led here is the one to report.
    fn undo(&self, local: LocalSet, made: &[usize]) {
        let _ = local.discard();
        for index in made {
            if let Some(ReplicaSpec::Remote(spec)) = self.set.replicas.get(*index) {
                if let Ok((target, name)) = remote_place(spec) {
                    let replica =
                        SetReplica { index: Some(*index), target: &target, set: &name, options: &self.target };
                    let _ = replica.remove(true, false);
                }
            }
        }
    }
}

/// PMDK's format, whose headers know what belongs together, and not who has what. A new pool's first replica is the source of the others:
/// remote parts are zero, or what was there before; a new pool is neither.
impl<'s> Format for &'s SetOptions {
    type New = &'s NewSet;
    type Existing = ();
    type Replicas = PmdkReplicas<'s>;

    fn create(self, new: &'s NewSet) -> Result<PmdkReplicas<'s>, PoolError> {
        let plan = new.plan(&self.set)?;
        self.check_files()?;
        let local = LocalSet::create(&self.set, new, &plan)?;
        let size_bytes = local.len_bytes();
        if let Err(error) = self.check_durability(&local) {
            self.undo(local, &[]);
            return Err(error);
        }
        let made = self.each_remote(|replica| {
            let made = replica.create(size_bytes, replica.index.and_then(|index| plan.get(index)));
            made.map_err(|error| replica.failed(error))
        });
        let (made, failed): (Vec<_>, Vec<_>) = made.into_iter().partition(Result::is_ok);
        let made: Vec<_> = made.into_iter().flatten().collect();
        let places: Vec<_> = made.iter().map(|(index, _)| *index).collect();
        if let Some(error) = failed.into_iter().find_map(Result::err) {
            drop(made);
            self.undo(local, &places);
            return Err(error);
        }
        PmdkReplicas::of_set(self, local, made, Some(places))
    }

    fn open(self, (): ()) -> Result<PmdkReplicas<'s>, PoolError> {
        let local = LocalSet::open(&self.set, OpenFor::Write, self.declaration)?;
        match self.open_remotes(&local) {
            Ok(remotes) => PmdkReplicas::of_set(self, local, remotes, None),
            Err(error) => {
                // Closed as they were; why the pool is not opened is the failure to report.
                let _ = local.close();
                Err(error)
            }
        }
    }
}

/// The replicas of a pool in PMDK's format.
pub(super) struct PmdkReplicas<'s> {
    pub(super) attributes: Option<Attributes>,
    pub(super) size_bytes: u64,
    pub(super) header_bytes: u64,
    pub(super) replica_count: u16,
    pub(super) members: Vec<Arc<dyn Member>>,
    pub(super) terms: Terms,
    /// The set that names them; `None` of a target's set, which has one replica.
    pub(super) set: Option<OfSet<'s>>,
}

/// A pool set, with its replicas on this machine.
pub(super) struct OfSet<'s> {
    options: &'s SetOptions,
    local: LocalSet,
    /// Of a new pool: the places where remote replicas were made.
    made: Option<Vec<usize>>,
}

impl OfSet<'_> {
    /// The failure that led here is the one to report.
    fn abandon(self) {
        match self.made {
            Some(places) => self.options.undo(self.local, &places),
            // Closed as they were.
            None => drop(self.local.close()),
        }
    }
}

impl<'s> PmdkReplicas<'s> {
    fn of_set(
        options: &'s SetOptions,
        local: LocalSet,
        remotes: Vec<(usize, RemoteMember)>,
        made: Option<Vec<usize>>,
    ) -> Result<Self, PoolError> {
        let set = OfSet { options, local, made };
        let (members, terms) = match options.members(&set.local, remotes) {
            Ok(found) => found,
            Err(error) => {
                set.abandon();
                return Err(error);
            }
        };
        let first = set.local.replicas().first().and_then(Option::as_ref);
        Ok(Self {
            attributes: first.and_then(LocalReplica::attributes),
            size_bytes: set.local.len_bytes(),
            header_bytes: HEADER_LEN_BYTES as u64,
            replica_count: members.len() as u16,
            members,
            terms,
            set: Some(set),
        })
    }
}

impl Replicas for PmdkReplicas<'_> {
    fn members(&mut self) -> Result<(Vec<Arc<dyn Member>>, Terms), PoolError> {
        Ok((std::mem::take(&mut self.members), self.terms.clone()))
    }

    fn identity(&self) -> Identity {
        let uuid = Uuid::from_bytes(self.attributes.map(|attributes| attributes.poolset_uuid).unwrap_or_default());
        let Self { size_bytes, replica_count, .. } = *self;
        Identity { uuid, size_bytes, user_flags: [0; USER_FLAGS_BYTES], replica_count }
    }

    fn data_range(&self) -> Range<u64> {
        self.header_bytes..self.size_bytes
    }

    fn attributes(&self) -> Option<Attributes> {
        self.attributes
    }

    /// All replicas are compared with the first: in all that none of them may have for itself ([`Comparison`]).
    fn comparable(&self, open: &Open) -> Result<Option<Comparable>, PoolError> {
        let (members, size_bytes) = (&open.members, self.size_bytes);
        let (Some(of), Some(first)) = (&self.set, members.first().and_then(|first| first.memory())) else {
            return Ok(None);
        };
        let kind = self.attributes.and_then(|attributes| PoolKind::of_signature(&attributes.signature));
        // A new pool's first replica is the source.
        let differing = if of.made.is_some() { Differing::Copy } else { of.options.differing };
        if differing == Differing::Copy && of.made.is_none() {
            check_source(members, first, kind, size_bytes)?;
            check_headerless(&of.options.set, members, size_bytes)?;
            if kind == Some(PoolKind::Obj) {
                check_openings(members)?;
            }
        }
        let comparison = match differing {
            Differing::Copy => Comparison::of_kind(kind, size_bytes),
            // Where no heap is found all counts: the program may keep its bytes as it likes.
            Differing::Refuse => Comparison::of_pool(kind, &**first, size_bytes)?,
        };
        Ok(Some(Comparable { comparison, source: 0, differing }))
    }

    /// The headers do not say who has what: a replica that is lost stays away.
    fn finish(self, open: &mut Open) -> Result<Upkeep, PoolError> {
        *open.local.lock() = self.set.map(|set| set.local);
        Ok(Upkeep::Nothing)
    }

    fn abandon(self) {
        if let Some(set) = self.set {
            set.abandon();
        }
    }
}

/// Fails where a part without a header would be copied though it was lost, or copied or overwritten though it may be another's file.
fn check_headerless(set: &PoolSet, members: &[Arc<dyn Member>], size_bytes: u64) -> Result<(), PoolError> {
    let contents = members.iter().map(|member| contents(&**member));
    let mut contents = contents.collect::<Result<Vec<_>, _>>()?;
    let held = contents.iter_mut().map(|held| Some((&mut **held as &mut dyn Contents, size_bytes)));
    let parts = headerless_parts(set, &mut held.collect::<Vec<_>>());
    let parts = parts.map_err(|(index, source)| not_compared(&*members[index], source))?;
    if let Some(LostPart { reason, .. }) = parts.lost.into_iter().find(|part| part.index == 0) {
        return Err(PoolError::LostPart { reason });
    }
    if let Some((index, range)) = parts.elsewhere.into_iter().next() {
        return Err(PoolError::UnlikeElsewhere { index, range });
    }
    match parts.unlike.into_iter().next() {
        Some((index, path)) => Err(PoolError::UnlikePart { index, path }),
        None => Ok(()),
    }
}

fn strongest(memory: &Memory) -> Durability {
    Durability::ALL.into_iter().rfind(|level| memory.promise(*level).is_some()).unwrap_or(Durability::Visible)
}

fn local_place(index: usize, replica: &LocalReplica) -> Arc<ReplicaPlace> {
    Arc::new(ReplicaPlace::Local { index, path: replica.first_path().to_path_buf() })
}

/// Fails where libpmemobj opened another replica of a pool of objects after it opened the first one last.
fn check_openings(members: &[Arc<dyn Member>]) -> Result<(), PoolError> {
    let mut first = None;
    for member in members {
        let newer_count =
            opening_count(&mut *contents(&**member)?).map_err(|source| not_compared(&**member, source))?;
        let count = *first.get_or_insert(newer_count);
        if newer_count > count {
            let newer = Arc::clone(&member.standing().place);
            return Err(PoolError::OldSource { count, newer, newer_count });
        }
    }
    Ok(())
}

/// Fails where the first replica is empty or damaged, and another one is not.
fn check_source(
    members: &[Arc<dyn Member>],
    first: &Arc<Memory>,
    kind: Option<PoolKind>,
    size_bytes: u64,
) -> Result<(), PoolError> {
    let state = memory_state(kind, first).map_err(|source| not_compared(&*members[0], source))?;
    let reason = match state {
        ContentsState::Sound => return Ok(()),
        ContentsState::Empty => EMPTY,
        ContentsState::Damaged(reason) => reason,
    };
    for member in &members[1..] {
        let found = match member.memory() {
            Some(memory) => memory_state(kind, memory),
            None => state_of(kind, &mut *contents(&**member)?, size_bytes),
        };
        let has_more = match found.map_err(|source| not_compared(&**member, source))? {
            ContentsState::Sound => true,
            // A program may keep its bytes as it likes, the same way in all replicas.
            ContentsState::Damaged(_) => state == ContentsState::Empty,
            ContentsState::Empty => false,
        };
        if has_more {
            return Err(PoolError::BadSource { reason, sound: Arc::clone(&member.standing().place) });
        }
    }
    Ok(())
}

fn join<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
