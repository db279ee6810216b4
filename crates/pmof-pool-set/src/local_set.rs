//! The local replicas of a pool set.

use pmof_mem::{Declaration, System};

use crate::{
    Attributes, Feature, Features, LocalReplica, Misfit, NewPool, OpenFor, PoolSet, PoolSetError, ReplicaSpec,
    first_misfit,
    header::Arch,
    new_uuid,
    replica::{NewParts, Rooms},
    uuid_text,
};

#[cfg(test)]
mod tests;

/// How to create a pool.
#[derive(Clone, Debug)]
pub struct NewSet {
    /// Its kind and parameters.
    pub pool: NewPool,
    /// Its features; `SINGLEHDR` is added if the set has the option.
    pub features: Features,
    /// What the operator vouches for.
    pub declaration: Option<Declaration>,
}

/// The local replicas of a pool set, open, and the places of the remote ones.
#[derive(Debug)]
pub struct LocalSet {
    replicas: Vec<Option<LocalReplica>>,
}

impl NewSet {
    /// A pool for `pool`, with the features that new pools have.
    pub fn new(pool: NewPool) -> Self {
        Self { pool, features: Features::of_new_pools(), declaration: None }
    }

    /// The attributes for the first part of each replica, remote ones included: one set, linked in a ring.
    ///
    /// Errors: `Unsupported` if a pool of this kind cannot be created from the set.
    pub fn plan(&self, set: &PoolSet) -> Result<Vec<Attributes>, PoolSetError> {
        self.pool.check()?;
        let kind = self.pool.kind();
        let (why, mend) = if set.options.no_headers {
            ("a set with the option NOHDRS is for a target, whose client knows its contents", "remove the option")
        } else if set.replicas.len() > 1 && !kind.can_be_replicated() {
            ("only object pools can have replicas", "remove the replicas from the pool set file")
        } else if !matches!(set.replicas.first(), Some(ReplicaSpec::Local(_))) {
            ("the first replica must be local", "name its parts below `PMEMPOOLSET`")
        } else {
            return Ok(self.ring(set));
        };
        Err(PoolSetError::Unsupported { why, mend })
    }

    fn ring(&self, set: &PoolSet) -> Vec<Attributes> {
        let features = if set.options.single_header {
            self.features.with(Feature::SingleHeader)
        } else {
            self.features.without(Feature::SingleHeader)
        };
        let poolset_uuid = new_uuid();
        let count = set.replicas.len();
        let uuids: Vec<_> = (0..count).map(|_| new_uuid()).collect();
        let attributes = |index: usize| Attributes {
            signature: self.pool.kind().signature(),
            major: self.pool.kind().major(),
            compat: features.compat,
            incompat: features.incompat,
            ro_compat: features.ro_compat,
            poolset_uuid,
            uuid: uuids[index],
            next_uuid: uuids[(index + 1) % count],
            prev_uuid: uuids[(index + count - 1) % count],
            user_flags: Arch::of_this_machine().to_bytes(),
        };
        (0..count).map(attributes).collect()
    }
}

impl LocalSet {
    /// Makes all local replicas, with what a new pool holds, as `plan` (of [`NewSet::plan`]) has them. The pool is as long
    /// as its shortest local replica. Existing blank parts are used, as by [`LocalReplica::create`]; the contents of devices are zeroed. On an error no
    /// file is left behind.
    ///
    /// The remote replicas must be created with the same plan; they need no contents but those written through the pool.
    ///
    /// Errors: as for [`LocalReplica::create`]; `PoolTooSmall`.
    pub fn create(set: &PoolSet, new: &NewSet, plan: &[Attributes]) -> Result<Self, PoolSetError> {
        Self::check_new(set, new)?;
        let system = System::real();
        let mut made = Vec::with_capacity(set.replicas.len());
        for (spec, attributes) in set.replicas.iter().zip(plan) {
            let parts = match spec {
                ReplicaSpec::Local(parts) => {
                    Some(NewParts::create(&system, parts, set.options, Some(attributes), new.declaration)?)
                }
                ReplicaSpec::Remote(_) => None,
            };
            made.push(parts);
        }
        let len_bytes = made.iter().flatten().map(NewParts::len_bytes).min().unwrap_or(0);
        let mut written = made.iter().flatten().map(|parts| {
            parts.mark()?;
            parts.clear()?;
            new.pool.write(&parts.memory, len_bytes)
        });
        if let Some(error) = written.find_map(Result::err) {
            // Files that existed before are zeroed again. The original failure is the one to report.
            made.iter().flatten().for_each(|parts| drop(parts.take_back()));
            return Err(error);
        }
        // The contents are durable before the headers are written. Each replica is kept once its headers are written, so a
        // failure must remove the earlier ones too.
        let mut replicas: Vec<Option<LocalReplica>> = Vec::with_capacity(made.len());
        let mut made = made.into_iter().zip(plan);
        while let Some((parts, attributes)) = made.next() {
            match parts.map(|parts| parts.finish(&system, Some(attributes))).transpose() {
                Ok(replica) => replicas.push(replica),
                Err(error) => {
                    // The original failure is the one to report.
                    let _ = Self { replicas }.discard();
                    made.filter_map(|(parts, _)| parts).for_each(|parts| drop(parts.take_back()));
                    return Err(error);
                }
            }
        }
        Ok(Self { replicas })
    }

    /// Makes all checks of [`create`](Self::create): existing files, lengths, free space, and whether a pool
    /// of this kind fits. Nothing is created or changed; existing parts are locked during the checks.
    ///
    /// Errors: as for [`create`](Self::create).
    pub fn check_new(set: &PoolSet, new: &NewSet) -> Result<(), PoolSetError> {
        set.check_files()?;
        let mut rooms = Rooms::default();
        for parts in set.replicas.iter().filter_map(ReplicaSpec::local) {
            let len_bytes = NewParts::check(parts, set.options, &mut rooms)?;
            let path = || parts.first().map(|part| part.path.clone()).unwrap_or_default();
            let least = new.pool.kind().len_bytes_min();
            if len_bytes < least {
                return Err(PoolSetError::PoolTooSmall { path: path(), len_bytes, least });
            }
            new.pool.check_room(len_bytes)?;
        }
        Ok(())
    }

    /// Opens all local replicas, and checks that they belong to one pool and are in order.
    ///
    /// Errors: as for [`LocalReplica::open`]; `OtherSet`, `WrongNeighbour` and `Differs` between replicas, `OtherMachine`,
    /// `OtherFormat`.
    pub fn open(set: &PoolSet, access: OpenFor, declaration: Option<Declaration>) -> Result<Self, PoolSetError> {
        set.check_files()?;
        let (mut replicas, mut failed) = (Vec::with_capacity(set.replicas.len()), None);
        for found in Self::examine(set, access, declaration) {
            match found.transpose() {
                Ok(replica) => replicas.push(replica),
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        }
        let opened = Self { replicas };
        let Err(error) = failed.map_or_else(|| opened.check(), Err) else { return Ok(opened) };
        // Nothing was written. The reason why the set is not opened is the failure to report.
        let _ = opened.close();
        Err(error)
    }

    /// Opens each local replica by itself, regardless of the others; `None` for remote ones.
    pub fn examine(
        set: &PoolSet,
        access: OpenFor,
        declaration: Option<Declaration>,
    ) -> Vec<Option<Result<LocalReplica, PoolSetError>>> {
        let open = |spec: &ReplicaSpec| Some(LocalReplica::open(spec.local()?, set.options, access, declaration));
        set.replicas.iter().map(open).collect()
    }

    /// The replicas in their order; `None` for remote ones.
    pub fn replicas(&self) -> &[Option<LocalReplica>] {
        &self.replicas
    }

    /// The length of the pool: of its shortest local replica.
    pub fn len_bytes(&self) -> u64 {
        self.replicas.iter().flatten().map(LocalReplica::len_bytes).min().unwrap_or(0)
    }

    /// Records durably in all replicas that the pool was closed. All are closed, even if one fails; returns the first
    /// failure.
    pub fn close(self) -> Result<(), PoolSetError> {
        self.replicas.into_iter().flatten().map(LocalReplica::close).fold(Ok(()), Result::and)
    }

    /// Undoes the creation of all replicas, see [`LocalReplica::discard`]; returns the first failure.
    pub fn discard(self) -> Result<(), PoolSetError> {
        self.replicas.into_iter().flatten().map(LocalReplica::discard).fold(Ok(()), Result::and)
    }

    fn check(&self) -> Result<(), PoolSetError> {
        self.replicas.iter().flatten().try_for_each(check_usable)?;
        let headers: Vec<_> =
            self.replicas.iter().map(|replica| replica.as_ref().and_then(LocalReplica::attributes)).collect();
        let Some((index, misfit)) = first_misfit(&headers) else { return Ok(()) };
        let path =
            |replica: Option<&LocalReplica>| replica.map(|replica| replica.first_path().into()).unwrap_or_default();
        let (first, path) = (path(self.replicas.iter().flatten().next()), path(self.replicas[index].as_ref()));
        Err(match misfit {
            Misfit::OtherSet { found, expected } => {
                PoolSetError::OtherSet { path, found: uuid_text(&found), expected: uuid_text(&expected) }
            }
            Misfit::Neighbour { side, found, expected } => {
                let neighbour = if side == "previous" { "previous replica" } else { "next replica" };
                let (found, expected) = (uuid_text(&found), uuid_text(&expected));
                PoolSetError::WrongNeighbour { path, neighbour, found, expected }
            }
            Misfit::OtherKind | Misfit::OtherFeatures | Misfit::OtherArchitecture => {
                PoolSetError::Differs { path, first, what: misfit.what() }
            }
        })
    }
}

/// Whether this machine and this release support the layout of a replica's contents.
fn check_usable(replica: &LocalReplica) -> Result<(), PoolSetError> {
    let Some(found) = replica.header(0) else { return Ok(()) };
    let path = || replica.first_path().to_path_buf();
    if found.arch != Arch::of_this_machine() {
        return Err(PoolSetError::OtherMachine { path: path(), machine: found.arch.machine });
    }
    if let Some(kind) = found.kind().filter(|kind| kind.major() != found.major) {
        let found = format!("a pool of version {}", found.major);
        let expected = format!("one of version {}, as PMDK 1.12 makes them", kind.major());
        return Err(PoolSetError::OtherFormat { path: path(), found, expected });
    }
    Ok(())
}
