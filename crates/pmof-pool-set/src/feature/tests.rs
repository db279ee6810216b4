use std::{fs, path::Path};

use tempfile::{TempDir, tempdir};

use super::{FeatureChange, FeatureError, FeatureOptions, change_feature, features};
use crate::{
    AccessError, Attributes, Contents, Feature, Features, LocalReplica, LocalSet, NewPool, NewSet, NoRemotes, OpenFor,
    PartFile, PartSpec, PoolSet, Reached, RemoteReplicas, RemoteSpec, ReplicaAccess, ReplicaSpec, SetOptions,
    part_header,
};

const MIB: u64 = 1 << 20;
const DRY: FeatureOptions = FeatureOptions { declaration: None, dry_run: true };
const OTHERWISE: FeatureOptions = FeatureOptions { declaration: None, dry_run: false };

fn parts(directory: &Path, replica: usize) -> Vec<PartSpec> {
    (0..2).map(|part| PartSpec::new(directory.join(format!("r{replica}p{part}")), 5 * MIB)).collect()
}

/// A pool of two replicas on this machine, of two parts each.
fn pool() -> (TempDir, PoolSet) {
    let directory = tempdir().unwrap();
    let replicas = (0..2).map(|replica| ReplicaSpec::Local(parts(directory.path(), replica))).collect();
    let set = PoolSet { path: directory.path().join("set"), replicas, options: SetOptions::default() };
    let new = NewSet::new(NewPool::Obj { layout: "test".into() });
    LocalSet::create(&set, &new, &new.plan(&set).unwrap()).unwrap().close().unwrap();
    (directory, set)
}

fn of_headers(directory: &Path) -> Vec<Features> {
    let all = (0..2).flat_map(|replica| parts(directory, replica));
    all.map(|part| part_header(&part.path).unwrap().features).collect()
}

/// Only one replica gets these features.
fn set_features(parts: &[PartSpec], features: Features) {
    let replica = LocalReplica::open(parts, SetOptions::default(), OpenFor::Write, None).unwrap();
    let mut attributes = replica.attributes().unwrap();
    (attributes.compat, attributes.incompat) = (features.compat, features.incompat);
    replica.set_attributes(&attributes).unwrap();
    replica.close().unwrap();
}

#[test]
fn every_header_gets_a_change_and_loses_it_again() {
    let (directory, set) = pool();
    let (all, less) = (Features::of_new_pools(), Features::of_new_pools().without(Feature::CheckBadBlocks));
    let (off, on) = (FeatureChange::Disable(Feature::CheckBadBlocks), FeatureChange::Enable(Feature::CheckBadBlocks));
    assert_eq!(change_feature(&set, off, &DRY, &mut NoRemotes).unwrap(), less);
    assert_eq!(of_headers(directory.path()), [all; 4], "a dry run changes nothing");
    for (change, expected) in [(off, less), (off, less), (on, all)] {
        assert_eq!(change_feature(&set, change, &OTHERWISE, &mut NoRemotes).unwrap(), expected);
        assert_eq!(of_headers(directory.path()), [expected; 4]);
        assert_eq!(features(&set, None, &mut NoRemotes).unwrap(), expected);
    }
    LocalSet::open(&set, OpenFor::Write, None).unwrap().close().unwrap();
}

#[test]
fn what_one_replica_cannot_have_none_gets() {
    let (directory, set) = pool();
    let second = Features::default().with(Feature::CheckBadBlocks);
    let first = second.with(Feature::Checksum2k);
    set_features(&parts(directory.path(), 0), first);
    set_features(&parts(directory.path(), 1), second);
    let enabled = |feature| change_feature(&set, FeatureChange::Enable(feature), &OTHERWISE, &mut NoRemotes);
    assert!(matches!(enabled(Feature::ShutdownState), Err(FeatureError::NeedsChecksum2k)));
    assert!(matches!(enabled(Feature::SingleHeader), Err(FeatureError::OfTheSet)));
    assert_eq!(of_headers(directory.path()), [first, first, second, second]);
    // And then they have the same.
    enabled(Feature::Checksum2k).unwrap();
    enabled(Feature::ShutdownState).unwrap();
    assert_eq!(of_headers(directory.path()), [Features::of_new_pools(); 4]);
}

#[test]
fn a_set_that_names_some_of_the_replicas_changes_none() {
    let (directory, mut set) = pool();
    set.replicas.pop();
    let off = FeatureChange::Disable(Feature::CheckBadBlocks);
    for options in [DRY, OTHERWISE] {
        assert!(matches!(change_feature(&set, off, &options, &mut NoRemotes), Err(FeatureError::Set(_))));
    }
    assert_eq!(of_headers(directory.path()), [Features::of_new_pools(); 4]);
    assert_eq!(features(&set, None, &mut NoRemotes).unwrap(), Features::of_new_pools(), "it can be looked at");
}

/// The second replica as one of another machine, which takes as many changes of attributes.
struct Elsewhere {
    parts: Vec<PartSpec>,
    changes_left: usize,
}

struct There {
    inner: LocalReplica,
    changes_left: usize,
}

impl ReplicaAccess for There {
    fn name(&self) -> String {
        "there".to_owned()
    }

    fn contents(&mut self) -> &mut dyn Contents {
        self.inner.contents()
    }

    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }

    fn attributes(&mut self) -> Result<Attributes, AccessError> {
        ReplicaAccess::attributes(&mut self.inner)
    }

    fn set_attributes(&mut self, attributes: &Attributes) -> Result<(), AccessError> {
        self.changes_left = self.changes_left.checked_sub(1).ok_or("the way there is lost")?;
        ReplicaAccess::set_attributes(&mut self.inner, attributes)
    }

    fn locate(&self, offset: u64) -> Option<(usize, u64)> {
        self.inner.locate(offset)
    }

    fn close(self: Box<Self>) -> Result<(), AccessError> {
        Ok(self.inner.close()?)
    }
}

impl RemoteReplicas for Elsewhere {
    fn open_behind(&mut self, _remote: &RemoteSpec) -> Result<Option<Box<dyn ReplicaAccess>>, AccessError> {
        Ok(None)
    }

    fn files(&mut self, _remote: &RemoteSpec) -> Result<Vec<PartFile>, AccessError> {
        Ok(PartFile::of_parts(&self.parts, None))
    }

    fn open(&mut self, _remote: &RemoteSpec, _len_bytes: u64, access: OpenFor) -> Result<Reached, AccessError> {
        Ok(match LocalReplica::open(&self.parts, SetOptions::default(), access, None) {
            Ok(inner) => Reached::Whole(Box::new(There { inner, changes_left: self.changes_left })),
            Err(error) => Reached::Damaged(error.to_string()),
        })
    }

    fn create(&mut self, _: &RemoteSpec, _: u64, _: &Attributes) -> Result<Box<dyn ReplicaAccess>, AccessError> {
        Err("nothing is made".into())
    }

    fn check_removable(&mut self, _: &RemoteSpec, _: &[u8; 16]) -> Result<(), AccessError> {
        Err("nothing is removed".into())
    }

    fn remove(&mut self, _: &RemoteSpec, _: &[u8; 16]) -> Result<(), AccessError> {
        Err("nothing is removed".into())
    }
}

#[test]
fn a_change_that_failed_in_one_replica_is_finished_by_the_next_call() {
    let (directory, mut set) = pool();
    set.replicas[0] = ReplicaSpec::Remote(RemoteSpec { node: "far".into(), set: "away".into(), line: 0 });
    let mut elsewhere = Elsewhere { parts: parts(directory.path(), 0), changes_left: 0 };
    let (off, all) = (FeatureChange::Disable(Feature::CheckBadBlocks), Features::of_new_pools());
    let less = all.without(Feature::CheckBadBlocks);
    let error = change_feature(&set, off, &OTHERWISE, &mut elsewhere).unwrap_err();
    assert!(matches!(error, FeatureError::Replica { index: 0, .. }), "{error}");
    assert_eq!(of_headers(directory.path()), [all, all, less, less]);
    elsewhere.changes_left = 1;
    assert_eq!(change_feature(&set, off, &OTHERWISE, &mut elsewhere).unwrap(), less);
    assert_eq!(of_headers(directory.path()), [less; 4]);

    fs::remove_file(&elsewhere.parts[1].path).unwrap();
    let error = change_feature(&set, off, &OTHERWISE, &mut elsewhere).unwrap_err();
    assert!(matches!(error, FeatureError::NotSound { index: 0, .. }), "{error}");
}
