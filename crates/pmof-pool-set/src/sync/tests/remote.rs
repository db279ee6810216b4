//! Replicas on other machines: when they are linked, and what an end in the middle leaves.

use std::{cell::RefCell, ops::Range, rc::Rc, sync::Arc};

use super::*;
use crate::{
    AccessError, Attributes, Contents, ContentsState, NewReplica, PartFile, PendingDigests, PoolKind, Reached,
    RemoteReplicas, Removal, ReplicaAccess, ReplicaState, check_named_whole, has_contents_behind, memory_state,
    open_contents_behind,
};
use pmof_mem::{Memory, causes};

/// Blocks of a pool of objects up to the head of its heap: the descriptor, the lanes, the head.
const WRITES_OF_A_BEGINNING: usize = 50;

/// What was done to the replica elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Done {
    Created { is_unfinished: bool },
    Written(Range<u64>),
    Persisted(Range<u64>),
    Linked,
    Closed,
}

type Log = Rc<RefCell<Vec<Done>>>;

/// Another machine with one replica; it writes down what it is asked to do, and loses the way there after some writes.
struct Elsewhere {
    parts: Vec<PartSpec>,
    options: SetOptions,
    log: Log,
    reads_left: usize,
    writes_left: usize,
}

impl Elsewhere {
    fn new(directory: &Path) -> Self {
        let parts = vec![PartSpec::new(directory.join("remote"), 10 * MIB)];
        Self::of(parts, SetOptions::default())
    }

    fn of(parts: Vec<PartSpec>, options: SetOptions) -> Self {
        Self { parts, options, log: Log::default(), reads_left: usize::MAX, writes_left: usize::MAX }
    }

    fn watched(&self, inner: LocalReplica) -> Box<dyn ReplicaAccess> {
        let (reads_left, writes_left) = (self.reads_left, self.writes_left);
        Box::new(Watched { inner, log: Rc::clone(&self.log), reads_left, writes_left })
    }

    fn contents(&self) -> ContentsState {
        let replica = LocalReplica::open_for_client(&self.parts, self.options, OpenFor::Read, None).unwrap();
        memory_state(Some(PoolKind::Obj), &replica.memory()).unwrap()
    }

    fn attributes(&self) -> Attributes {
        let replica = LocalReplica::open_for_client(&self.parts, self.options, OpenFor::Read, None).unwrap();
        replica.attributes().unwrap()
    }
}

impl RemoteReplicas for Elsewhere {
    fn open_behind(&mut self, _remote: &RemoteSpec) -> Result<Option<Box<dyn ReplicaAccess>>, AccessError> {
        let behind = open_contents_behind(&self.parts, self.options, None)?;
        Ok(behind.map(|memory| Box::new(Behind { memory }) as Box<dyn ReplicaAccess>))
    }

    fn files(&mut self, _remote: &RemoteSpec) -> Result<Vec<PartFile>, AccessError> {
        Ok(PartFile::of_parts(&self.parts, None))
    }

    fn open(&mut self, _remote: &RemoteSpec, _len_bytes: u64, access: OpenFor) -> Result<Reached, AccessError> {
        Ok(match LocalReplica::open_for_client(&self.parts, self.options, access, None) {
            Ok(replica) => Reached::Whole(self.watched(replica)),
            Err(error) if has_contents_behind(&self.parts, self.options)? => Reached::HeadersDamaged(error.to_string()),
            Err(error) => Reached::Damaged(error.to_string()),
        })
    }

    fn create(
        &mut self,
        _remote: &RemoteSpec,
        _len_bytes: u64,
        attributes: &Attributes,
    ) -> Result<Box<dyn ReplicaAccess>, AccessError> {
        self.log.borrow_mut().push(Done::Created { is_unfinished: attributes.is_unfinished() });
        let new = NewReplica { attributes: Some(*attributes), options: self.options, declaration: None };
        Ok(self.watched(LocalReplica::create(&self.parts, &new)?))
    }

    fn check_removable(&mut self, _remote: &RemoteSpec, member: &[u8; 16]) -> Result<(), AccessError> {
        Removal::prepare_member(&self.parts, self.options, member)?;
        Ok(())
    }

    fn remove(&mut self, _remote: &RemoteSpec, member: &[u8; 16]) -> Result<(), AccessError> {
        Ok(Removal::prepare_member(&self.parts, self.options, member)?.carry_out()?)
    }
}

struct Watched {
    inner: LocalReplica,
    log: Log,
    reads_left: usize,
    writes_left: usize,
}

impl Contents for Watched {
    fn data_ranges(&mut self, range: Range<u64>) -> Result<Vec<Range<u64>>, AccessError> {
        self.inner.contents().data_ranges(range)
    }

    fn start_digests(&mut self, range: Range<u64>, block_bytes: u64) -> PendingDigests<'_> {
        self.inner.contents().start_digests(range, block_bytes)
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), AccessError> {
        self.reads_left = self.reads_left.checked_sub(1).ok_or("the way there is lost")?;
        self.inner.contents().read(offset, into)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), AccessError> {
        self.writes_left = self.writes_left.checked_sub(1).ok_or("the way there is lost")?;
        self.log.borrow_mut().push(Done::Written(offset..offset + bytes.len() as u64));
        self.inner.contents().write(offset, bytes)
    }

    fn persist(&mut self, range: Range<u64>) -> Result<(), AccessError> {
        self.log.borrow_mut().push(Done::Persisted(range.clone()));
        self.inner.contents().persist(range)
    }

    fn headerless_ranges(&mut self) -> Result<Vec<Range<u64>>, AccessError> {
        Ok(self.inner.headerless_ranges())
    }
}

impl ReplicaAccess for Watched {
    fn name(&self) -> String {
        "elsewhere".to_owned()
    }

    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }

    fn attributes(&mut self) -> Result<Attributes, AccessError> {
        ReplicaAccess::attributes(&mut self.inner)
    }

    fn set_attributes(&mut self, attributes: &Attributes) -> Result<(), AccessError> {
        self.log.borrow_mut().push(Done::Linked);
        ReplicaAccess::set_attributes(&mut self.inner, attributes)
    }

    fn contents(&mut self) -> &mut dyn Contents {
        self
    }

    fn locate(&self, offset: u64) -> Option<(usize, u64)> {
        self.inner.locate(offset)
    }

    fn close(self: Box<Self>) -> Result<(), AccessError> {
        self.log.borrow_mut().push(Done::Closed);
        Ok(self.inner.close()?)
    }
}

/// What lies behind damaged headers there.
struct Behind {
    memory: Arc<Memory>,
}

impl ReplicaAccess for Behind {
    fn name(&self) -> String {
        "elsewhere".to_owned()
    }

    fn contents(&mut self) -> &mut dyn Contents {
        &mut self.memory
    }

    fn len_bytes(&self) -> u64 {
        self.memory.len_bytes()
    }

    fn attributes(&mut self) -> Result<Attributes, AccessError> {
        Err("its headers are damaged".into())
    }

    fn set_attributes(&mut self, _attributes: &Attributes) -> Result<(), AccessError> {
        Err("its headers are damaged".into())
    }

    fn locate(&self, _offset: u64) -> Option<(usize, u64)> {
        None
    }

    fn close(self: Box<Self>) -> Result<(), AccessError> {
        Ok(())
    }
}

/// A pool with this many local replicas, and one remote replica that is to be created.
fn with_remote(local: &[usize]) -> (TempDir, PoolSet, Elsewhere) {
    let (directory, mut set) = filled(SetOptions::default(), local);
    set.replicas.push(ReplicaSpec::Remote(RemoteSpec { node: "far".into(), set: "away".into(), line: 0 }));
    let elsewhere = Elsewhere::new(directory.path());
    (directory, set, elsewhere)
}

fn sync_with(set: &PoolSet, elsewhere: &mut Elsewhere) -> Result<SyncReport, SyncError> {
    sync(set, &SyncOptions::default(), elsewhere, &mut |_| {})
}

/// Everything that was written is persisted by what follows it, and all of that comes before the one link.
fn assert_linked_when_complete(log: &[Done]) {
    let linked: Vec<_> = (0..log.len()).filter(|at| log[*at] == Done::Linked).collect();
    let [linked] = linked[..] else { panic!("linked once: {log:?}") };
    for (at, done) in log.iter().enumerate() {
        match done {
            Done::Written(range) => {
                let is_durable = log[at..linked.max(at)].iter().any(|later| {
                    matches!(later, Done::Persisted(durable) if durable.start <= range.start && range.end <= durable.end)
                });
                assert!(at < linked && is_durable, "{range:?} is not durable before the link");
            }
            Done::Persisted(range) => assert!(at < linked, "{range:?} is made durable after the link"),
            Done::Created { is_unfinished } => assert!(is_unfinished, "it passes for whole before it holds anything"),
            Done::Linked | Done::Closed => {}
        }
    }
    assert_eq!(log.last(), Some(&Done::Closed));
}

#[test]
fn a_remote_replica_is_linked_when_it_holds_all() {
    let (_directory, set, mut elsewhere) = with_remote(&[0]);
    let report = sync_with(&set, &mut elsewhere).unwrap();
    assert!(report.replicas[0].damage.is_some() && report.replicas[0].copied.blocks > 0);
    let log = elsewhere.log.take();
    assert!(matches!(log[0], Done::Created { .. }), "{log:?}");
    assert_linked_when_complete(&log);
    assert_ne!(elsewhere.attributes().next_uuid, elsewhere.attributes().uuid);
    assert!(check(&set, None, &mut elsewhere, &mut |_| {}).unwrap().is_sound());
}

/// What is there is another pool's, or nobody's pool: nothing is removed, and nothing made.
#[test]
fn somebody_elses_file_elsewhere_is_never_overwritten() {
    let (_directory, set, mut elsewhere) = with_remote(&[0]);
    let path = elsewhere.parts[0].path.clone();
    let (other, _) = filled(SetOptions::default(), &[0]);
    let lay: [fn(&Path, &Path); 3] = [
        |path, foreign| {
            fs::copy(foreign, path).unwrap();
            poke(path, 200);
        },
        |path, _| fs::write(path, "dear all").unwrap(),
        |path, _| fs::write(path, vec![7; 10 << 20]).unwrap(),
    ];
    for lay in lay {
        lay(&path, &other.path().join("r0p0"));
        let before = fs::read(&path).unwrap();
        for dry_run in [true, false] {
            let options = SyncOptions { dry_run, ..SyncOptions::default() };
            let failed = sync(&set, &options, &mut elsewhere, &mut |_| {}).unwrap_err();
            assert!(
                causes(&failed).to_string().contains("replica 1 failed: ")
                    && causes(&failed).to_string().contains("is not overwritten")
            );
        }
        let report = check(&set, None, &mut elsewhere, &mut |_| {}).unwrap();
        assert!(report.sync_refusal.is_some_and(|refusal| refusal.contains("is not overwritten")));
        assert!(fs::read(&path).unwrap() == before && elsewhere.log.take().is_empty());
    }
    // What is advised.
    fs::remove_file(&path).unwrap();
    sync_with(&set, &mut elsewhere).unwrap();
    assert!(check(&set, None, &mut elsewhere, &mut |_| {}).unwrap().is_sound());
}

/// What lies behind damaged headers may be the newer; where it is not, they are made anew.
#[test]
fn a_byte_of_a_header_elsewhere_does_not_decide_which_contents_win() {
    let (_directory, set, mut elsewhere) = with_remote(&[0, 1]);
    sync_with(&set, &mut elsewhere).unwrap();
    let path = elsewhere.parts[0].path.clone();
    for offset in [6 * MIB, 200] {
        poke(&path, offset);
    }
    elsewhere.log.take();
    let before = fs::read(&path).unwrap();
    for dry_run in [true, false] {
        let options = SyncOptions { dry_run, ..SyncOptions::default() };
        let refused = sync(&set, &options, &mut elsewhere, &mut |_| {}).unwrap_err();
        assert!(
            matches!(&refused, SyncError::Kept { index: 2, source_index: 0, offset } if *offset == 6 * MIB),
            "{refused}"
        );
    }
    let report = check(&set, None, &mut elsewhere, &mut |_| {}).unwrap();
    assert!(report.sync_refusal.is_some_and(|refusal| refusal.contains("--from 0")));
    assert!(fs::read(&path).unwrap() == before && elsewhere.log.take().is_empty());
    let from = SyncOptions { from: Some(0), ..SyncOptions::default() };
    sync(&set, &from, &mut elsewhere, &mut |_| {}).unwrap();
    assert!(check(&set, None, &mut elsewhere, &mut |_| {}).unwrap().is_sound());
    // Equal behind damaged headers, or damaged there too: nobody is asked.
    for offsets in [&[200][..], &[4], &[200, 4200]] {
        for offset in offsets {
            poke(&path, *offset);
        }
        let report = check(&set, None, &mut elsewhere, &mut |_| {}).unwrap();
        assert!(!report.is_sound() && report.sync_refusal.is_none(), "{report:?}");
        assert!(sync_with(&set, &mut elsewhere).unwrap().replicas[1].damage.is_some());
        assert!(check(&set, None, &mut elsewhere, &mut |_| {}).unwrap().is_sound());
    }
    // Nothing is behind these.
    fs::write(&path, vec![0; 10 << 20]).unwrap();
    poke(&path, 200);
    let failed = sync_with(&set, &mut elsewhere).unwrap_err();
    assert!(matches!(failed, SyncError::Replica { index: 2, .. }), "{failed}");
}

#[test]
fn a_set_without_one_of_the_replicas_here_is_not_all_of_a_pool_elsewhere() {
    let (_directory, set, mut elsewhere) = with_remote(&[0, 1]);
    sync_with(&set, &mut elsewhere).unwrap();
    check_named_whole(&set, &mut elsewhere).unwrap();
    let mut some = set;
    some.replicas.remove(1);
    let refused = check_named_whole(&some, &mut elsewhere).unwrap_err();
    assert!(matches!(refused, PoolSetError::NotAll { .. }), "{refused}");
    // Without an answer from there nothing tells.
    check_named_whole(&some, &mut NoRemotes).unwrap();
}

/// Also where it is the one that is copied from, and another one that is being made.
#[test]
fn the_replica_that_fails_is_named() {
    let (directory, set, mut elsewhere) = with_remote(&[0]);
    sync_with(&set, &mut elsewhere).unwrap();
    // Four reads tell that it is sound, one what the length of the pool must be.
    elsewhere.reads_left = 5;
    let is_remote = |failed: &SyncError| matches!(failed, SyncError::Replica { index: 1, .. });
    fs::remove_file(directory.path().join("r0p1")).unwrap();
    let failed = sync_with(&set, &mut elsewhere).unwrap_err();
    assert!(is_remote(&failed) && causes(&failed).to_string().contains("lost"), "{failed}");
    elsewhere.reads_left = usize::MAX;
    assert_eq!(sync_with(&set, &mut elsewhere).unwrap().source, 1);
    // The other way round.
    (elsewhere.reads_left, elsewhere.writes_left) = (usize::MAX, 0);
    poke(&directory.path().join("r0p0"), 7 * MIB / 2);
    let failed = sync_with(&set, &mut elsewhere).unwrap_err();
    assert!(is_remote(&failed), "{failed}");
}

#[test]
fn a_remote_replica_whose_making_was_ended_is_unfinished_until_it_is_done() {
    let (_directory, set, mut elsewhere) = with_remote(&[0, 1]);
    for writes in [0, 1, 7] {
        elsewhere.writes_left = writes;
        let outcome = sync_with(&set, &mut elsewhere);
        assert!(matches!(outcome, Err(SyncError::Replica { index: 2, .. })), "{outcome:?}");
        let found = elsewhere.attributes();
        assert!(found.is_unfinished(), "after {writes} writes");
        assert!(!elsewhere.log.take().contains(&Done::Linked));
        let problems = check(&set, None, &mut elsewhere, &mut |_| {}).unwrap().replicas.remove(2).problems;
        assert_eq!(problems, [crate::error::UNFINISHED]);
    }
    elsewhere.writes_left = usize::MAX;
    sync_with(&set, &mut elsewhere).unwrap();
    // It is there by now, with a part of the bytes, and is linked when it has the rest.
    assert_linked_when_complete(&elsewhere.log.take());
    assert!(check(&set, None, &mut elsewhere, &mut |_| {}).unwrap().is_sound());
}

fn states(report: &crate::CheckReport) -> Vec<ReplicaState> {
    (0..report.replicas.len()).map(|index| report.state(index)).collect()
}

#[test]
fn a_host_that_is_away_is_reported_and_the_others_are_checked() {
    use ReplicaState::{Differs, Equal, Sound, Unchecked, Unsound};
    let (directory, set, mut elsewhere) = with_remote(&[0, 1, 2]);
    sync_with(&set, &mut elsewhere).unwrap();
    let report = checked(&set);
    assert_eq!(states(&report), [Sound, Equal, Equal, Unchecked]);
    assert!(!report.is_sound() && report.is_sound_so_far());
    assert!(matches!(report.unchecked().collect::<Vec<_>>()[..], [(3, why)] if why.contains("far")), "{report:?}");
    assert!(report.sync_refusal.unwrap().starts_with("replica 3 could not be checked"));
    poke(&directory.path().join("r1p1"), MIB);
    fs::remove_file(directory.path().join("r0p1")).unwrap();
    let report = checked(&set);
    assert_eq!(states(&report), [Unsound, Sound, Differs, Unchecked]);
    assert!(!report.is_sound_so_far() && report.replicas[2].mismatch_count == 1);
    // As one that somebody has open.
    let held = fs::File::open(directory.path().join("r2p0")).unwrap();
    held.lock().unwrap();
    let report = check(&set, None, &mut elsewhere, &mut |_| {}).unwrap();
    assert_eq!(states(&report), [Unsound, Sound, Unchecked, Differs]);
    assert!(report.replicas[2].unchecked.as_ref().unwrap().contains("in use"));
    // Nothing could be looked at.
    let far = PoolSet { replicas: vec![set.replicas[3].clone()], ..set };
    assert!(matches!(check(&far, None, &mut NoRemotes, &mut |_| {}), Err(SyncError::Replica { index: 0, .. })));
}

/// Of what it holds nothing is told then; where the others were compared with it, they are compared with the next one.
#[test]
fn a_host_that_is_lost_during_the_check_is_reported_and_the_others_are_checked() {
    use ReplicaState::{Differs, Equal, Sound, Unchecked};
    let (directory, mut set, mut elsewhere) = with_remote(&[0, 1]);
    sync_with(&set, &mut elsewhere).unwrap();
    // Bytes are read where they differ.
    for offset in [5 * MIB, 6 * MIB] {
        poke(&elsewhere.parts[0].path, offset);
    }
    elsewhere.reads_left = 5;
    let report = check(&set, None, &mut elsewhere, &mut |_| {}).unwrap();
    assert_eq!(states(&report), [Sound, Equal, Unchecked]);
    assert!(report.replicas[2].mismatches.is_empty() && report.majority.is_none(), "{report:?}");
    set.replicas.rotate_right(1);
    poke(&directory.path().join("r1p1"), 4 * MIB);
    elsewhere.reads_left = 7;
    let report = check(&set, None, &mut elsewhere, &mut |_| {}).unwrap();
    assert_eq!((states(&report), report.compared_with), (vec![Unchecked, Sound, Differs], Some(1)));
    assert_eq!(report.replicas[2].mismatch_count, 1, "as against the other one that is left: {report:?}");
}

#[test]
fn a_lost_host_is_left_out_only_if_it_is_named() {
    let (directory, set, mut elsewhere) = with_remote(&[0, 1]);
    sync_with(&set, &mut elsewhere).unwrap();
    let there = fs::read(&elsewhere.parts[0].path).unwrap();
    let fewer = PoolSet { replicas: set.replicas[..2].to_vec(), ..set.clone() };
    let turn = |from: &PoolSet, to: &PoolSet, lost: &str, dry_run, remotes: &mut dyn RemoteReplicas| {
        let lost = lost.split_whitespace().map(str::to_owned).collect();
        transform(from, to, &TransformOptions { dry_run, lost, ..TransformOptions::default() }, remotes, &mut |_| {})
    };
    let before = contents(directory.path());
    let failed = turn(&set, &fewer, "", false, &mut NoRemotes).unwrap_err();
    assert!(matches!(failed, SyncError::HostAway { index: 2, .. }), "{failed}");
    assert!(failed.to_string().contains("`--lost far`"), "{failed}");
    let failed = turn(&set, &fewer, "far near", false, &mut NoRemotes).unwrap_err();
    assert!(matches!(&failed, SyncError::NothingLost { host } if host == "near"), "{failed}");
    let failed = turn(&set, &set, "far", false, &mut NoRemotes).unwrap_err();
    assert!(matches!(failed, SyncError::LostAndKept { index: 2, .. }), "{failed}");
    let left = TransformReport { left: vec![2], ..TransformReport::default() };
    assert_eq!(turn(&set, &fewer, "far", true, &mut NoRemotes).unwrap(), left);
    assert_eq!(contents(directory.path()), before);
    // Nobody asks for it, also where it could be reached.
    assert_eq!(turn(&set, &fewer, "far", false, &mut NoRemotes).unwrap(), left);
    assert_sound(&fewer);
    assert_eq!(fs::read(&elsewhere.parts[0].path).unwrap(), there);

    // The pool is used without it; then it comes back.
    for part in ["r0p1", "r1p1"] {
        poke(&directory.path().join(part), MIB);
    }
    let report = check(&set, None, &mut elsewhere, &mut |_| {}).unwrap();
    assert_eq!(report.apart.map(|apart| apart.replicas), Some(vec![2]));
    assert!(matches!(sync_with(&set, &mut elsewhere), Err(SyncError::Apart { .. })));
    for dry_run in [true, false] {
        let failed = turn(&fewer, &set, "", dry_run, &mut elsewhere).unwrap_err();
        assert!(matches!(failed, SyncError::MadeAlready { index: 2, .. }), "{failed}");
    }
    assert_eq!(fs::read(&elsewhere.parts[0].path).unwrap()[4096..], there[4096..]);
    let member = elsewhere.attributes().poolset_uuid;
    elsewhere.remove(set.replicas[2].remote().unwrap(), &member).unwrap();
    assert_eq!(turn(&fewer, &set, "", false, &mut elsewhere).unwrap().added, [2]);
    assert!(check(&set, None, &mut elsewhere, &mut |_| {}).unwrap().is_sound());
}

/// The user is part of the node and not of the host's name.
#[test]
fn a_lost_host_is_named_with_or_without_its_user() {
    for lost in ["far", "user@far"] {
        let (_directory, mut set, mut elsewhere) = with_remote(&[0]);
        let ReplicaSpec::Remote(remote) = &mut set.replicas[1] else { panic!() };
        remote.node = "user@far".into();
        sync_with(&set, &mut elsewhere).unwrap();
        let alone = PoolSet { replicas: set.replicas[..1].to_vec(), ..set.clone() };
        let options = TransformOptions { lost: vec![lost.to_owned()], ..TransformOptions::default() };
        assert_eq!(transform(&set, &alone, &options, &mut NoRemotes, &mut |_| {}).unwrap().left, [1]);
        assert_sound(&alone);
    }
}

/// As one that is here: its contents must begin as they should, or nothing is copied from it.
#[test]
fn a_remote_replica_whose_contents_are_broken_is_no_source() {
    let (directory, set, mut elsewhere) = with_remote(&[0]);
    sync_with(&set, &mut elsewhere).unwrap();
    poke(&elsewhere.parts[0].path, 4200);
    let words = "elsewhere: the checksum of its descriptor is wrong";
    assert_eq!(check(&set, None, &mut elsewhere, &mut |_| {}).unwrap().replicas[1].problems, [words]);
    let away = directory.path().join("kept");
    fs::rename(directory.path().join("r0p0"), &away).unwrap();
    let report = check(&set, None, &mut elsewhere, &mut |_| {}).unwrap();
    assert!(report.sync_refusal.unwrap().contains(words));
    let failed = sync_with(&set, &mut elsewhere).unwrap_err();
    assert!(matches!(failed, SyncError::NoSource { .. }), "{failed}");
    assert!(!directory.path().join("r0p0").exists());
    fs::rename(&away, directory.path().join("r0p0")).unwrap();
    assert_eq!(sync_with(&set, &mut elsewhere).unwrap().replicas[0].damage.as_deref(), Some(words));
    assert!(check(&set, None, &mut elsewhere, &mut |_| {}).unwrap().is_sound());
}

/// It was whole before, and is neither what it was nor what it is to be.
#[test]
fn a_replica_whose_overwriting_was_ended_is_unfinished_until_it_is_done() {
    let (directory, set, mut elsewhere) = with_remote(&[0]);
    sync_with(&set, &mut elsewhere).unwrap();
    for offset in [MIB / 4, MIB / 2] {
        poke(&directory.path().join("r0p1"), offset);
    }
    for writes in [0, 1] {
        elsewhere.writes_left = writes;
        sync_with(&set, &mut elsewhere).unwrap_err();
        assert!(elsewhere.attributes().is_unfinished(), "after {writes} writes");
    }
    elsewhere.writes_left = usize::MAX;
    let report = sync_with(&set, &mut elsewhere).unwrap();
    assert_eq!(report.replicas[0].copied.blocks, 1);
    assert!(check(&set, None, &mut elsewhere, &mut |_| {}).unwrap().is_sound());
    // One that is equal is not touched.
    elsewhere.log.take();
    sync_with(&set, &mut elsewhere).unwrap();
    assert!(!elsewhere.log.take().contains(&Done::Linked));
}

/// It holds a part only, and so may others: they do not outvote the one that they are made from.
#[test]
fn a_replica_that_is_being_made_has_no_vote() {
    let (_directory, set, mut elsewhere) = with_remote(&[0, 1]);
    sync_with(&set, &mut elsewhere).unwrap();
    fs::remove_file(&elsewhere.parts[0].path).unwrap();
    elsewhere.writes_left = WRITES_OF_A_BEGINNING;
    sync_with(&set, &mut elsewhere).unwrap_err();
    elsewhere.writes_left = usize::MAX;
    assert_eq!(elsewhere.contents(), ContentsState::Sound, "nothing but its links tells");
    // What the half-made one lacks, the other local one has lost too.
    let [ReplicaSpec::Local(first), ReplicaSpec::Local(other), _] = &set.replicas[..] else { panic!() };
    let half = fs::read(&elsewhere.parts[0].path).unwrap();
    let file = fs::File::options().write(true).open(&other[0].path).unwrap();
    file.write_all_at(&half[4 * MIB as usize..][..4096], 4 * MIB).unwrap();
    assert_ne!(fs::read(&first[0].path).unwrap()[4 * MIB as usize..][..4096], half[4 * MIB as usize..][..4096]);
    assert_eq!(check(&set, None, &mut elsewhere, &mut |_| {}).unwrap().majority, None);
    sync_with(&set, &mut elsewhere).unwrap();
    assert!(check(&set, None, &mut elsewhere, &mut |_| {}).unwrap().is_sound());
}

/// It may be the only one that is left: it is no source then either, for nobody.
#[test]
fn a_replica_that_is_being_made_is_never_copied_from() {
    let (directory, set, mut elsewhere) = with_remote(&[0]);
    elsewhere.writes_left = WRITES_OF_A_BEGINNING;
    sync_with(&set, &mut elsewhere).unwrap_err();
    elsewhere.writes_left = usize::MAX;
    assert_eq!(elsewhere.contents(), ContentsState::Sound, "nothing but its links tells");
    let [local @ ReplicaSpec::Local(_), _] = &set.replicas[..] else { panic!() };
    let before = fs::read(&elsewhere.parts[0].path).unwrap();
    for name in ["r0p0", "r0p1"] {
        fs::remove_file(directory.path().join(name)).unwrap();
    }
    let report = check(&set, None, &mut elsewhere, &mut |_| {}).unwrap();
    assert!(report.sync_refusal.unwrap().contains("no replica is sound"), "{:?}", report.replicas);
    let failed = sync_with(&set, &mut elsewhere).unwrap_err();
    assert!(matches!(&failed, SyncError::NoSource { reasons } if reasons.len() == 2), "{failed}");
    let named = SyncOptions { from: Some(1), ..SyncOptions::default() };
    assert!(matches!(sync(&set, &named, &mut elsewhere, &mut |_| {}), Err(SyncError::NotASource { index: 1, .. })));
    assert!(!directory.path().join("r0p0").exists());
    // By itself on its machine, and as a set's first.
    let alone = PoolSet { replicas: vec![ReplicaSpec::Local(elsewhere.parts.clone())], ..set.clone() };
    let opened = LocalSet::open(&alone, OpenFor::Write, None);
    assert!(matches!(opened, Err(PoolSetError::Unfinished { .. })), "{opened:?}");
    assert!(!checked(&alone).is_sound() && checked(&alone).sync_refusal.is_some());
    let two = PoolSet { replicas: vec![alone.replicas[0].clone(), local.clone()], ..set };
    assert!(matches!(sync_with(&two, &mut elsewhere), Err(SyncError::NoSource { .. })));
    let after = fs::read(&elsewhere.parts[0].path).unwrap();
    assert_eq!(before[4096..], after[4096..]);
}

/// Made by its target and never written, or with nothing left of its beginning: neither is copied from.
#[test]
fn a_remote_replica_that_is_empty_or_zeroed_is_no_source() {
    let (directory, set, mut elsewhere) = with_remote(&[0]);
    sync_with(&set, &mut elsewhere).unwrap();
    let remote_first = PoolSet { replicas: set.replicas.iter().rev().cloned().collect(), ..set };
    let remote = elsewhere.parts[0].path.clone();
    for (range, state) in [
        (4096..10 * MIB, ReplicaState::Empty),
        (4096..6144, ReplicaState::Unsound),
        (0x30_2000..0x30_2400, ReplicaState::Unsound),
    ] {
        let file = fs::File::options().write(true).open(&remote).unwrap();
        file.write_all_at(&vec![0; (range.end - range.start) as usize], range.start).unwrap();
        let report = check(&remote_first, None, &mut elsewhere, &mut |_| {}).unwrap();
        assert_eq!(states(&report), [state, ReplicaState::Sound]);
        let done = sync_with(&remote_first, &mut elsewhere).unwrap();
        assert!(done.source == 1 && done.replicas[0].damage.is_some(), "{done:?}");
        assert!(check(&remote_first, None, &mut elsewhere, &mut |_| {}).unwrap().is_sound());
    }
    let mut word = [0; 8];
    fs::File::open(directory.path().join("r0p0")).unwrap().read_exact_at(&mut word, 4 * MIB).unwrap();
    assert_eq!(u64::from_le_bytes(word), (4 * MIB) ^ 0x5555);
}

/// Where the parts of a replica elsewhere begin is not known here; what its heap has in use tells that one of them is another's file.
#[test]
fn a_file_in_the_place_of_a_part_elsewhere_is_neither_copied_nor_overwritten() {
    for is_lost_here in [false, true] {
        let (directory, mut set) = headerless::sparse(&[0, 1]);
        let path = |name: &str| directory.path().join(name);
        let parts = set.replicas[1].local().unwrap().to_vec();
        let mut elsewhere = Elsewhere::of(parts, SINGLE);
        set.replicas[1] = ReplicaSpec::Remote(RemoteSpec { node: "far".into(), set: "away".into(), line: 0 });
        assert!(check(&set, None, &mut elsewhere, &mut |_| {}).unwrap().is_sound());
        let letter: Vec<_> = b"dear all, ".iter().copied().cycle().take(5 << 20).collect();
        fs::write(path("r1p1"), &letter).unwrap();
        if is_lost_here {
            for name in ["r0p0", "r0p1"] {
                fs::rename(path(name), path(&format!("{name}.away"))).unwrap();
            }
        }
        let before = contents(directory.path());
        for dry_run in [true, false] {
            let options = SyncOptions { dry_run, ..SyncOptions::default() };
            let refused = sync(&set, &options, &mut elsewhere, &mut |_| {}).unwrap_err();
            match refused {
                SyncError::UnlikeElsewhere { index: 1, .. } if !is_lost_here => {}
                SyncError::NoSource { reasons } if is_lost_here => assert!(reasons[1].contains("not the pool's file")),
                other => panic!("{other}"),
            }
        }
        let report = check(&set, None, &mut elsewhere, &mut |_| {}).unwrap();
        assert!(!report.is_sound() && !report.replicas[1].problems.is_empty(), "{report:?}");
        assert!(report.sync_refusal.is_some());
        assert!(contents(directory.path()) == before);
        if !is_lost_here {
            // Zeros are nobody's.
            fs::write(path("r1p1"), vec![0; 5 << 20]).unwrap();
            assert!(sync_with(&set, &mut elsewhere).unwrap().replicas[0].damage.is_some());
            assert!(check(&set, None, &mut elsewhere, &mut |_| {}).unwrap().is_sound());
        }
    }
}

/// A file system that two machines share: each names its files in its own way.
struct SharedFiles(Elsewhere);

impl RemoteReplicas for SharedFiles {
    fn open_behind(&mut self, remote: &RemoteSpec) -> Result<Option<Box<dyn ReplicaAccess>>, AccessError> {
        self.0.open_behind(remote)
    }

    fn files(&mut self, _remote: &RemoteSpec) -> Result<Vec<PartFile>, AccessError> {
        Ok(PartFile::of_parts(&self.0.parts, Some(uuid::Uuid::new_v4())))
    }

    fn open(&mut self, remote: &RemoteSpec, len_bytes: u64, access: OpenFor) -> Result<Reached, AccessError> {
        self.0.open(remote, len_bytes, access)
    }

    fn create(
        &mut self,
        remote: &RemoteSpec,
        len_bytes: u64,
        attributes: &Attributes,
    ) -> Result<Box<dyn ReplicaAccess>, AccessError> {
        self.0.create(remote, len_bytes, attributes)
    }

    fn check_removable(&mut self, remote: &RemoteSpec, member: &[u8; 16]) -> Result<(), AccessError> {
        self.0.check_removable(remote, member)
    }

    fn remove(&mut self, remote: &RemoteSpec, member: &[u8; 16]) -> Result<(), AccessError> {
        self.0.remove(remote, member)
    }
}

#[test]
fn one_file_of_two_machines_is_no_two_replicas() {
    let (_directory, mut set, elsewhere) = with_remote(&[0]);
    let mut shared = SharedFiles(elsewhere);
    set.replicas.push(ReplicaSpec::Remote(RemoteSpec { node: "near".into(), set: "away".into(), line: 0 }));
    let is_told = |error: SyncError| matches!(error, SyncError::SameReplica { index: 2, other: 1, .. });
    // What tells is there once the first of them is made.
    assert!(is_told(sync(&set, &SyncOptions::default(), &mut shared, &mut |_| {}).unwrap_err()));
    let made = fs::read(&shared.0.parts[0].path).unwrap();
    for dry_run in [true, false] {
        let options = SyncOptions { dry_run, ..SyncOptions::default() };
        let error = sync(&set, &options, &mut shared, &mut |_| {}).unwrap_err();
        // Opened for writing, it is in use.
        assert!(if dry_run { is_told(error) } else { causes(&error).to_string().contains("in use") });
    }
    let report = check(&set, None, &mut shared, &mut |_| {}).unwrap();
    assert!(
        !report.is_sound() && report.sync_refusal.as_ref().unwrap().contains("replicas 1 and 2 are one"),
        "{report:?}"
    );
    assert!(fs::read(&shared.0.parts[0].path).unwrap() == made, "what was made stays as it is");
}

/// Sync waits for what is in use for a moment, and then overwrites it: it must have been compared.
#[test]
fn a_replica_in_use_is_not_taken_for_one_with_nothing_behind() {
    let (_directory, set) = filled(SetOptions::default(), &[0, 1]);
    let parts = set.replicas[0].local().unwrap();
    let open = LocalReplica::open(parts, set.options, OpenFor::Write, None).unwrap();
    let error = open_contents_behind(parts, set.options, None).unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(PoolSetError::Busy { .. })), "{error}");
    drop(open);
    assert!(open_contents_behind(parts, set.options, None).unwrap().is_none());
}
