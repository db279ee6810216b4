//! Sets that a pool was transformed from, and transforms that were ended.

use pmof_mem::causes;

use super::*;

fn sync_from(set: &PoolSet, from: Option<usize>, dry_run: bool) -> Result<SyncReport, SyncError> {
    sync(set, &SyncOptions { dry_run, from, declaration: None }, &mut NoRemotes, &mut |_| {})
}

fn is_sound(set: &PoolSet) -> bool {
    checked(set).is_sound()
}

/// The old set names a replica that the new one has too: made whole, it would be a second set with that replica.
#[test]
fn a_set_that_the_pool_was_transformed_from_is_not_synced() {
    for options in [SetOptions::default(), SINGLE] {
        let (directory, old) = filled(options, &[0, 1]);
        let new = set(directory.path(), options, &[0, 2]);
        turned(&old, &new, false).unwrap();
        let before = contents(directory.path());
        for dry_run in [true, false] {
            let failed = sync_from(&old, None, dry_run).unwrap_err();
            assert!(matches!(&failed, SyncError::Transformed { index: 0, beside: 1 }), "{failed}");
        }
        let refusal = checked(&old).sync_refusal.unwrap();
        assert!(refusal.contains("name the pool set file that the pool was transformed to"), "{refusal}");
        assert!(contents(directory.path()) == before);
        assert_sound(&new);
        // A lost replica of the new one comes back.
        fs::remove_file(directory.path().join("r2p0")).unwrap();
        synced(&new);
        assert_sound(&new);
        // With --from there is one sound set, not two.
        sync_from(&old, Some(0), false).unwrap();
        assert!(is_sound(&old) && !is_sound(&new));
        assert!(matches!(sync_from(&new, None, false), Err(SyncError::Transformed { .. })));
    }
}

/// Nothing is missing, and the replicas are linked to one more.
#[test]
fn a_set_that_others_were_added_to_is_not_synced() {
    let (directory, old) = filled(SetOptions::default(), &[0, 1]);
    let new = set(directory.path(), SetOptions::default(), &[0, 1, 2]);
    turned(&old, &new, false).unwrap();
    assert!(matches!(sync_from(&old, None, false), Err(SyncError::Transformed { .. })));
    assert!(!is_sound(&old) && checked(&old).sync_refusal.is_some());
    assert_sound(&new);
    turned(&new, &old, false).unwrap();
    assert_sound(&old);
    // And back to one that was.
    fs::remove_file(directory.path().join("r1p1")).unwrap();
    synced(&old);
    assert_sound(&old);
}

/// At each step, and again: what it has made is gone on with, and the same command finishes it.
#[test]
fn a_transform_that_was_ended_is_finished_by_the_same_command() {
    for options in [SetOptions::default(), SINGLE] {
        let (mut ends, mut is_done) = (0, false);
        while !is_done {
            let (directory, old) = filled(options, &[0, 1]);
            let new = set(directory.path(), options, &[0, 2]);
            let mut steps = 0;
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let mut count = |step| {
                    if matches!(step, Step::Done(_)) {
                        steps += 1;
                        // What a signal would do; few of them, which take long.
                        assert!(steps <= ends * 40, "ended here");
                    }
                };
                transform(&old, &new, &TransformOptions::default(), &mut NoRemotes, &mut count).unwrap();
            }));
            is_done = ended.is_ok();
            if !is_done {
                ends += 1;
                assert_eq!(turned(&old, &new, false).unwrap().added, [1], "{ends}");
            }
            assert_sound(&new);
            assert!(!directory.path().join("r1p0").exists());
        }
        assert!(ends > 0);
    }
}

/// The new replica is whole and the others know nothing of it; or they do, and what goes is there, or half of it.
#[test]
fn a_transform_that_was_ended_after_it_made_a_replica_is_finished() {
    let (directory, old) = filled(SetOptions::default(), &[0, 1]);
    let new = set(directory.path(), SetOptions::default(), &[0, 2]);
    let part = |name: &str| directory.path().join(name);
    let before = ["r0p0", "r0p1", "r1p0", "r1p1"].map(|name| (name, fs::read(part(name)).unwrap()));
    turned(&old, &new, false).unwrap();
    for there in [&before[..], &before[2..], &before[3..]] {
        for (name, bytes) in there {
            fs::write(part(name), bytes).unwrap();
        }
        turned(&old, &new, true).unwrap();
        turned(&old, &new, false).unwrap();
        assert_sound(&new);
        assert!(!part("r1p0").exists() && !part("r1p1").exists());
    }
    // One that was made and is not what the others are was left behind: nothing is written over it.
    for (name, bytes) in &before {
        fs::write(part(name), bytes).unwrap();
    }
    poke(&part("r2p1"), 3 * MIB);
    let there = contents(directory.path());
    let failed = turned(&old, &new, false).unwrap_err();
    assert!(matches!(&failed, SyncError::MadeAlready { index: 1, .. }), "{failed}");
    let text = causes(&failed).to_string();
    assert!(text.contains("r2p0 is of this pool already, and differs") && !text.contains("remove it"), "{text}");
    assert!(contents(directory.path()) == there);
    // What is advised.
    sync_from(&new, Some(0), false).unwrap();
    assert_sound(&new);
}

/// Which of them goes would decide what the pool holds: sync brings them in order first, and asks where it must.
#[test]
fn replicas_that_differ_are_not_transformed() {
    type IsRight = fn(&SyncError) -> bool;
    let cases: [(&[&str], IsRight, &str); 3] = [
        (
            &["r1p0"],
            |error| matches!(error, SyncError::NotSound { index: 1, .. }),
            "differs from replica 0, first at offset ",
        ),
        (&["r1p0", "r2p0"], |error| matches!(error, SyncError::Outvoted { .. }), "`pmof pool sync --from`"),
        (&["r0p0"], |error| matches!(error, SyncError::Outvoted { .. }), "agree with each other"),
    ];
    for (poked, is_right, words) in cases {
        let (directory, three) = filled(SetOptions::default(), &[0, 1, 2]);
        for name in poked {
            poke(&directory.path().join(name), USED);
        }
        let before = contents(directory.path());
        for replicas in [&[0, 1][..], &[1], &[2, 0, 3], &[0]] {
            let to = set(directory.path(), SetOptions::default(), replicas);
            for dry_run in [true, false] {
                let failed = turned(&three, &to, dry_run).unwrap_err();
                assert!(is_right(&failed) && failed.to_string().contains(words), "{poked:?}: {failed}");
            }
        }
        assert!(contents(directory.path()) == before, "{poked:?}");
        // What is advised.
        sync_from(&three, Some(0), false).unwrap();
        let fewer = set(directory.path(), SetOptions::default(), &[0, 2]);
        turned(&three, &fewer, false).unwrap();
        assert!(is_sound(&fewer));
    }
}

/// One was used by itself in another set: none may go before somebody has said which is newer.
#[test]
fn replicas_that_were_used_apart_are_not_transformed() {
    let (directory, both) = filled(SetOptions::default(), &[0, 1]);
    let alone = set(directory.path(), SetOptions::default(), &[1]);
    linked(&alone, false);
    poke(&directory.path().join("r1p0"), USED);
    let before = contents(directory.path());
    for replicas in [&[0][..], &[1], &[0, 2]] {
        let failed = turned(&both, &set(directory.path(), SetOptions::default(), replicas), false).unwrap_err();
        assert!(matches!(&failed, SyncError::Apart { .. }), "{failed}");
    }
    assert!(contents(directory.path()) == before);
}

/// What a damaged header still says is heard: nobody is told to bring two pools in order.
#[test]
fn two_pools_are_not_transformed_where_a_header_is_damaged() {
    for (at, words) in [(None, "is of the pool"), (Some(200), "belongs to the pool set"), (Some(0), "belongs to")] {
        let (directory, one) = filled(SetOptions::default(), &[0]);
        let (other, _) = filled(SetOptions::default(), &[0]);
        let mixed = set(directory.path(), SetOptions::default(), &[0, 1]);
        for part in ["p0", "p1"] {
            let name = |replica: &str| format!("{replica}{part}");
            fs::copy(other.path().join(name("r0")), directory.path().join(name("r1"))).unwrap();
        }
        if let Some(offset) = at {
            poke(&directory.path().join("r1p0"), offset);
        }
        let before = contents(directory.path());
        for to in [&one, &set(directory.path(), SetOptions::default(), &[0, 2])] {
            let failed = turned(&mixed, to, false).unwrap_err();
            assert!(causes(&failed).to_string().contains(words), "{at:?}: {}", causes(&failed));
            assert!(!causes(&failed).to_string().contains("synchronize the set"), "{at:?}: {failed}");
        }
        assert!(contents(directory.path()) == before);
    }
}

/// What is done is not done again, nor said to be.
#[test]
fn a_transform_that_is_done_does_nothing() {
    let (directory, old) = filled(SetOptions::default(), &[0, 1]);
    let set = |replicas: &[usize]| set(directory.path(), SetOptions::default(), replicas);
    let (new, more) = (set(&[0, 2]), set(&[0, 2, 3]));
    for (from, to, added, removed) in [(&old, &new, vec![1], vec![1]), (&new, &more, vec![2], vec![])] {
        let told = turned(from, to, true).unwrap();
        assert_eq!(told, TransformReport { added, removed, left: vec![] });
        assert_eq!(turned(from, to, false).unwrap(), told);
        let before = contents(directory.path());
        for dry_run in [true, false] {
            assert_eq!(turned(from, to, dry_run).unwrap(), TransformReport::default());
        }
        assert!(contents(directory.path()) == before);
    }
    assert_sound(&more);
}

/// Named again with another length, in another place, or with other parts: it would be both kept and made anew.
#[test]
fn a_part_of_the_old_set_is_not_added() {
    let (directory, old) = filled(SetOptions::default(), &[0, 1]);
    let with = |change: fn(&mut Vec<PartSpec>)| {
        let mut to = old.clone();
        let ReplicaSpec::Local(parts) = &mut to.replicas[1] else { panic!("{to}") };
        change(parts);
        to
    };
    let cases = [
        (with(|parts| parts[1].size = crate::PartSize::Bytes(6 * MIB)), "with another size (6M, and 5M there)"),
        (with(|parts| parts.swap(0, 1)), "with other parts beside it, or in another order"),
        (with(|parts| drop(parts.pop())), "with other parts beside it, or in another order"),
    ];
    let before = contents(directory.path());
    for (to, words) in cases {
        let failed = turned(&old, &to, false).unwrap_err();
        assert!(matches!(&failed, SyncError::Reused { index: 1, of: 1, .. }), "{failed}");
        assert!(failed.to_string().contains(words), "{failed}");
    }
    assert!(contents(directory.path()) == before);
}

/// A dry run tells who has the parts, as the run does.
#[test]
fn a_dry_run_sees_readers() {
    let (directory, both) = filled(SetOptions::default(), &[0, 1]);
    let parts = both.replicas[1].local().unwrap();
    let reader = LocalReplica::open(parts, both.options, OpenFor::Read, None).unwrap();
    for dry_run in [true, false] {
        let to = set(directory.path(), SetOptions::default(), &[0, 1, 2]);
        for refused in [sync_from(&both, None, dry_run).map(drop), turned(&both, &to, dry_run).map(drop)] {
            let text = causes(&refused.unwrap_err()).to_string();
            assert!(text.starts_with("replica 1 failed: ") && text.contains("is in use"), "{dry_run}: {text}");
        }
    }
    reader.close().unwrap();
    sync_from(&both, None, true).unwrap();
}

/// What cannot be removed is known before anything is made.
#[test]
fn a_transform_does_not_begin_where_it_cannot_remove() {
    let (directory, old) = filled(SetOptions::default(), &[0]);
    let away = directory.path().join("away");
    fs::create_dir(&away).unwrap();
    let with = set(&away, SetOptions::default(), &[1]).replicas.remove(0);
    let both = PoolSet { replicas: [old.replicas.clone(), vec![with]].concat(), ..old.clone() };
    turned(&old, &both, false).unwrap();
    let to = set(directory.path(), SetOptions::default(), &[0, 2]);
    let marked = fs::File::open(&away).unwrap();
    let flags = rustix::fs::ioctl_getflags(&marked);
    let marks = |flags| rustix::fs::ioctl_setflags(&marked, flags);
    let Ok(before) = flags.and_then(|before| marks(before | rustix::fs::IFlags::APPEND).map(|()| before)) else {
        return skip_report::skipped!("a directory cannot be made append-only here");
    };
    let refused = [true, false].map(|dry_run| turned(&both, &to, dry_run));
    let removal = crate::Removal::prepare(both.replicas[1].local().unwrap(), both.options, true, None);
    fs::File::options().write(true).open(away.join("r1p0")).unwrap().set_len(MIB).unwrap();
    // Nothing is removed for this.
    let synced = sync_from(&both, None, false);
    marks(before).unwrap();
    for refused in refused {
        let text = causes(&refused.unwrap_err()).to_string();
        assert!(text.contains("away is append-only; take the attribute off"), "{text}");
    }
    assert!(matches!(removal, Err(PoolSetError::NotUnlinkable { .. })), "{removal:?}");
    assert!(synced.unwrap().replicas[0].damage.is_some());
    assert!(!directory.path().join("r2p0").exists());
    turned(&both, &to, false).unwrap();
    assert_sound(&to);
}

/// The state, and how to continue, are reported wherever it fails.
#[test]
fn a_transform_that_fails_says_what_was_done() {
    let (directory, old) = filled(SetOptions::default(), &[0, 1]);
    let to = set(directory.path(), SetOptions::default(), &[0, 2, 3]);
    let run = |during: &mut dyn FnMut()| {
        let mut step = |step| {
            if matches!(step, Step::Done(_)) {
                during();
            }
        };
        transform(&old, &to, &TransformOptions::default(), &mut NoRemotes, &mut step)
    };
    // Where the second of two is made, somebody else's file comes.
    let foreign = directory.path().join("r3p1");
    let failed = run(&mut || fs::write(&foreign, "dear all").unwrap()).unwrap_err();
    assert!(matches!(&failed, SyncError::Halfway { .. }), "{failed}");
    let text = causes(&failed).to_string();
    assert!(text.contains("r3p1 is not overwritten") && text.contains("run the same transform again"), "{text}");
    assert!(is_sound(&old));
    fs::remove_file(&foreign).unwrap();
    // Where the old one is removed, somebody reads it.
    let mut reader = None;
    let mut read = || {
        let open = || LocalReplica::open(old.replicas[1].local().unwrap(), old.options, OpenFor::Read, None);
        reader.get_or_insert_with(|| open().unwrap());
    };
    let failed = run(&mut read).unwrap_err();
    assert!(matches!(&failed, SyncError::NotRemoved { index: 1, .. }), "{failed}");
    let text = causes(&failed).to_string();
    assert!(text.contains("the pool has the replicas of the new set now") && text.contains("is in use"), "{text}");
    assert_sound(&to);
    drop(reader);
    assert_eq!(run(&mut || {}).unwrap().removed, [1]);
    assert!(!directory.path().join("r1p0").exists());
    assert_sound(&to);
}

/// libpmemlog and libpmemblk open no pool that has replicas.
#[test]
fn a_pool_of_a_log_or_of_blocks_gets_no_replicas() {
    for pool in [NewPool::Log, NewPool::Blk { block_len_bytes: 512 }] {
        let directory = tempdir_in(DISK).unwrap();
        let part = |name: &str| vec![PartSpec::new(directory.path().join(name), 20 * MIB)];
        let of = |names: &[&'static str]| PoolSet {
            path: directory.path().join("set"),
            replicas: names.iter().map(|name| ReplicaSpec::Local(part(name))).collect(),
            options: SetOptions::default(),
        };
        let (one, two) = (of(&["one"]), of(&["one", "two"]));
        let new = NewSet::new(pool);
        LocalSet::create(&one, &new, &new.plan(&one).unwrap()).unwrap().close().unwrap();
        let before = contents(directory.path());
        for dry_run in [true, false] {
            let options = SyncOptions { dry_run, from: Some(0), ..SyncOptions::default() };
            let refused = [
                turned(&one, &two, dry_run).unwrap_err(),
                sync(&two, &options, &mut NoRemotes, &mut |_| {}).unwrap_err(),
            ];
            for error in refused {
                assert!(error.to_string().contains("only object pools can have replicas"), "{error}");
            }
        }
        assert!(contents(directory.path()) == before);
    }
}
