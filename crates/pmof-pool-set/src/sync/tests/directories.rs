//! Replicas in directories of which files are missing, or that have one more.

use pmof_mem::causes;

use super::*;

/// Two replicas of three directories each, with a file of 5 MiB in each.
fn made(directory: &Path) -> PoolSet {
    let mut set = set(directory, SINGLE, &[0, 1]);
    for (index, replica) in set.replicas.iter_mut().enumerate() {
        let ReplicaSpec::Local(parts) = replica else { panic!("{replica:?}") };
        parts.push(PartSpec::new(directory.join(format!("r{index}p2")), 5 * MIB));
        for part in parts {
            fs::create_dir(&part.path).unwrap();
        }
    }
    let new = NewSet::new(NewPool::Obj { layout: "test".into() });
    let made = LocalSet::create(&set, &new, &new.plan(&set).unwrap()).unwrap();
    for replica in made.replicas().iter().flatten() {
        let memory = replica.memory();
        for offset in (4 * MIB..14 * MIB).step_by(4096) {
            memory.store(offset, &(offset ^ 0x5555).to_le_bytes()).unwrap();
        }
        memory.write_back(4 * MIB, 10 * MIB).unwrap();
    }
    made.close().unwrap();
    set
}

fn file(directory: &Path, replica: usize, number: usize) -> PathBuf {
    directory.join(format!("r{replica}p{number}/{number:06}.pmem"))
}

/// Which are missing: at the beginning, in the middle, at the end, all.
#[test]
fn files_that_are_missing_are_made_where_the_set_reserves_them() {
    for missing in [&[0][..], &[1], &[2], &[0, 1], &[0, 2], &[1, 2], &[0, 1, 2]] {
        let directory = tempdir_in(DISK).unwrap();
        let set = made(directory.path());
        for number in missing {
            fs::remove_file(file(directory.path(), 1, *number)).unwrap();
        }
        assert!(!checked(&set).is_sound() && checked(&set).sync_refusal.is_none(), "{missing:?}");
        // Without force none is left behind.
        let specs = set.replicas[1].local().unwrap();
        let refused = crate::Removal::prepare(specs, SINGLE, false, None).unwrap_err();
        assert!(matches!(&refused, PoolSetError::Missing { .. }), "{missing:?}: {refused}");
        assert!(dry(&set).replicas[0].damage.is_some());
        assert!(synced(&set).replicas[0].damage.is_some());
        assert_sound(&set);
        for number in 0..3 {
            assert_eq!(fs::metadata(file(directory.path(), 1, number)).unwrap().len(), 5 * MIB, "{missing:?}");
        }
    }
}

/// Somebody else's file is what is named, whether something is missing or not, and not one of the pool's.
#[test]
fn a_foreign_file_is_what_is_named() {
    for (name, missing) in [("r1p0/000007.pmem", None), ("r1p2/000003.pmem", None), ("r1p0/000001.pmem", Some(1))] {
        let directory = tempdir_in(DISK).unwrap();
        let set = made(directory.path());
        if let Some(number) = missing {
            fs::remove_file(file(directory.path(), 1, number)).unwrap();
        }
        let foreign = directory.path().join(name);
        fs::write(&foreign, vec![7; 4 << 20]).unwrap();
        let before = |at: usize| fs::read(file(directory.path(), 1, at)).ok();
        let there = [0, 1, 2].map(before);
        for dry_run in [true, false] {
            let options = SyncOptions { dry_run, ..SyncOptions::default() };
            let done = sync(&set, &options, &mut NoRemotes, &mut |_| {});
            let text = match &done {
                Err(error) => causes(error).to_string(),
                // The file is behind the pool's end, where it harms nothing.
                Ok(_) => continue,
            };
            assert!(
                text.contains(name) && text.contains("move it away")
                    || text.contains(&format!("move {}", foreign.display())),
                "{text}"
            );
            assert!(!text.contains("remove it, or name another file"), "{text}");
        }
        assert_eq!([0, 1, 2].map(before), there, "{name}");
        assert_eq!(fs::read(&foreign).unwrap(), vec![7; 4 << 20]);
        // What is advised.
        fs::remove_file(&foreign).unwrap();
        synced(&set);
        assert_sound(&set);
    }
}
