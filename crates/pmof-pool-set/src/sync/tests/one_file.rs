//! One file under two names in a set: refused wherever a set is used, before anything is changed.

use std::os::unix::fs::symlink;

use super::*;
use pmof_mem::causes;

/// Leads a second name, in `directory`, to the file at `path`; the path of the second name, or of what leads there.
type Lead = fn(&Path, &Path) -> PathBuf;

const LEADS: [(&str, Lead); 5] = [
    ("hard link", |directory, path| {
        let other = directory.join("hard");
        fs::hard_link(path, &other).unwrap();
        other
    }),
    ("symbolic link", |directory, path| {
        let other = directory.join("soft");
        symlink(path, &other).unwrap();
        other
    }),
    ("link to its directory", |directory, path| {
        let other = directory.join("far");
        symlink(".", &other).unwrap();
        other.join(path.file_name().unwrap())
    }),
    ("up and down again", |directory, path| {
        fs::create_dir(directory.join("down")).unwrap();
        directory.join("down/..").join(path.file_name().unwrap())
    }),
    ("the same path", |directory, path| directory.join(".").join(path.file_name().unwrap())),
];

fn names(error: &dyn std::error::Error, first: &Path, other: &Path) -> bool {
    let text = causes(error).to_string();
    text.contains(&format!("{} and {} are one file", first.display(), other.display()))
}

fn one_part(path: &Path) -> ReplicaSpec {
    ReplicaSpec::Local(vec![PartSpec::new(path, 10 * MIB)])
}

/// Two replicas, the other one of which is the file of the first by another name.
fn twice(directory: &TempDir, lead: Lead) -> (PoolSet, PathBuf, PathBuf) {
    let first = directory.path().join("one");
    let other = lead(directory.path(), &first);
    let replicas = vec![one_part(&first), one_part(&other)];
    (PoolSet { path: directory.path().join("set"), replicas, options: SetOptions::default() }, first, other)
}

#[test]
fn no_set_with_one_file_twice_is_opened_checked_or_synced() {
    for (what, lead) in LEADS {
        let directory = tempdir_in(DISK).unwrap();
        let alone = PoolSet {
            path: directory.path().join("alone"),
            replicas: vec![one_part(&directory.path().join("one"))],
            options: SetOptions::default(),
        };
        let new = NewSet::new(NewPool::Obj { layout: "test".into() });
        LocalSet::create(&alone, &new, &new.plan(&alone).unwrap()).unwrap().close().unwrap();
        let (set, first, other) = twice(&directory, lead);
        let before = fs::read(&first).unwrap();
        for access in [OpenFor::Read, OpenFor::Write] {
            let error = LocalSet::open(&set, access, None).unwrap_err();
            assert!(names(&error, &first, &other), "{what}: {error}");
        }
        let error = check(&set, None, &mut NoRemotes, &mut |_| {}).unwrap_err();
        assert!(names(&error, &first, &other) && error.to_string().starts_with("replica 1 failed"), "{what}: {error}");
        for dry_run in [true, false] {
            let options = SyncOptions { dry_run, ..SyncOptions::default() };
            let error = sync(&set, &options, &mut NoRemotes, &mut |_| {}).unwrap_err();
            assert!(names(&error, &first, &other), "{what}: {error}");
            // To a set that names it twice, and to one that names it otherwise: nothing may say that it can be removed.
            let renamed = PoolSet { replicas: vec![alone.replicas[0].clone(), one_part(&other)], ..set.clone() };
            let moved = PoolSet { replicas: vec![one_part(&other)], ..set.clone() };
            let beside = directory.path().join("beside");
            let both = PoolSet { replicas: vec![alone.replicas[0].clone(), one_part(&beside)], ..set.clone() };
            let back = PoolSet { replicas: vec![one_part(&beside), one_part(&other)], ..set.clone() };
            let turn = |from: &PoolSet, to: &PoolSet| turned(from, to, dry_run).unwrap_err();
            let error = turn(&alone, &renamed);
            assert!(names(&error, &first, &other), "{what}: {error}");
            let error = turn(&set, &alone);
            assert!(names(&error, &first, &other), "{what}: {error}");
            // `/./` makes no other path: the sets name the same replicas.
            if what != "the same path" {
                assert!(matches!(turn(&alone, &moved), SyncError::Unsupported { .. }), "{what}");
                let error = turn(&both, &back);
                assert!(names(&error, &first, &other), "{what}: {error}");
            }
        }
        assert_eq!(fs::read(&first).unwrap(), before, "{what}");
    }
}

#[test]
fn no_set_with_one_file_twice_is_made() {
    for (what, lead) in LEADS {
        for is_there in [true, false] {
            let directory = tempdir_in(DISK).unwrap();
            let first = directory.path().join("one");
            let is_link = what == "hard link" || what == "symbolic link";
            if is_there || is_link {
                fs::write(&first, vec![0; 10 << 20]).unwrap();
            }
            let (set, first, other) = twice(&directory, lead);
            let new = NewSet::new(NewPool::Obj { layout: "test".into() });
            let error = LocalSet::create(&set, &new, &new.plan(&set).unwrap()).unwrap_err();
            assert!(names(&error, &first, &other), "{what}: {error}");
            assert_eq!(first.exists(), is_there || is_link, "{what}");
            // In one replica, as a target's clients have it.
            let parts = [&first, &other].map(|path| PartSpec::new(path, 10 * MIB));
            let attributes = Some(new.plan(&set).unwrap()[0]);
            let made = LocalReplica::create(&parts, &crate::NewReplica { attributes, ..crate::NewReplica::default() });
            assert!(names(&made.unwrap_err(), &first, &other), "{what}");
            let opened = LocalReplica::open_for_client(&parts, SetOptions::default(), OpenFor::Read, None);
            assert!(names(&opened.unwrap_err(), &first, &other), "{what}");
            let removal = crate::Removal::prepare(&parts, SetOptions::default(), true, None);
            assert!(names(&removal.unwrap_err(), &first, &other), "{what}");
            assert_eq!(first.exists(), is_there || is_link, "{what}");
        }
    }
}

/// Two names of a directory, and two files in directories.
#[test]
fn directories_and_what_lies_in_them_are_looked_at_too() {
    let directory = tempdir_in(DISK).unwrap();
    let [one, two] = ["one", "two"].map(|name| directory.path().join(name));
    fs::create_dir(&one).unwrap();
    symlink("one", &two).unwrap();
    let set =
        PoolSet { path: directory.path().join("set"), replicas: vec![one_part(&one), one_part(&two)], options: SINGLE };
    assert!(names(&set.check_files().unwrap_err(), &one, &two));
    fs::remove_file(&two).unwrap();
    fs::create_dir(&two).unwrap();
    set.check_files().unwrap();
    let files = [one.join("000000.pmem"), two.join("000001.pmem")];
    fs::write(&files[0], "").unwrap();
    fs::write(&files[1], "").unwrap();
    set.check_files().unwrap();
    fs::remove_file(&files[1]).unwrap();
    fs::hard_link(&files[0], &files[1]).unwrap();
    assert!(names(&set.check_files().unwrap_err(), &files[0], &files[1]));
}

/// A copy has what its original has, its name in the pool included.
#[test]
fn a_copy_of_a_replica_is_no_other_replica() {
    let (directory, set) = filled(SINGLE, &[0, 1, 2]);
    let path = |name: &str| directory.path().join(name);
    for part in [0, 1] {
        fs::copy(path(&format!("r0p{part}")), path(&format!("r2p{part}"))).unwrap();
    }
    let before = contents(directory.path());
    for (dry_run, from) in [(true, None), (false, None), (false, Some(0))] {
        let options = SyncOptions { dry_run, from, ..SyncOptions::default() };
        let error = sync(&set, &options, &mut NoRemotes, &mut |_| {}).unwrap_err();
        assert!(matches!(error, SyncError::SameReplica { index: 2, other: 0, .. }), "{error}");
    }
    let report = check(&set, None, &mut NoRemotes, &mut |_| {}).unwrap();
    assert!(
        !report.is_sound() && report.sync_refusal.as_ref().unwrap().contains("replicas 0 and 2 are one"),
        "{report:?}"
    );
    assert!(contents(directory.path()) == before);
    // As the error says.
    for part in [0, 1] {
        fs::rename(path(&format!("r2p{part}")), path(&format!("away{part}"))).unwrap();
    }
    assert!(sync(&set, &SyncOptions::default(), &mut NoRemotes, &mut |_| {}).unwrap().replicas[1].damage.is_some());
    assert_sound(&set);
}
