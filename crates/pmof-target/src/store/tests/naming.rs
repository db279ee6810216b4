//! How a new pool gets its name, on file systems that refuse one way or another.

use rustix::io::Errno;
use syscall_recorder::{Call, Verdict, record};

use super::*;

/// Makes a pool where the first rename fails, and each link, with these errors. Gives the outcome and the names that are there then.
fn made_where(root: &Path, rename: Errno, link: Option<Errno>) -> Option<(Result<OpenPool, StoreError>, Vec<Call>)> {
    let store = store_at(root);
    let mut renames = 0;
    let judge = |call: &Call| match (call, link) {
        (Call::Rename(..), _) => {
            renames += 1;
            if renames == 1 { Verdict::Fail(rename.raw_os_error()) } else { Verdict::Pass }
        }
        (Call::Link(..), Some(link)) => Verdict::Fail(link.raw_os_error()),
        _ => Verdict::Pass,
    };
    match record(judge, || store.create(&name("pool"), &new_pool(SIZE_BYTES), "the test".to_owned())) {
        Ok(made) => Some(made),
        Err(why) => {
            skip_report::skipped!("{why}");
            None
        }
    }
}

#[test]
fn pools_get_names_where_renames_replace() {
    for rename in [Errno::INVAL, Errno::NOSYS, Errno::OPNOTSUPP] {
        for link in [None, Some(Errno::PERM), Some(Errno::OPNOTSUPP)] {
            let root = tempfile::tempdir().expect("a directory");
            let Some((made, calls)) = made_where(root.path(), rename, link) else { return };
            let pool = made.unwrap_or_else(|error| panic!("{rename}, {link:?}: {}", causes(&error)));
            drop(pool);
            assert_eq!(entries(root.path()), ["pool"], "{rename}, {link:?}");
            let is_naming = |call: &Call| matches!(call, Call::Rename(..) | Call::Link(..));
            let named = calls.iter().rposition(is_naming).expect("it was named");
            assert!(matches!(&calls[named + 1..], [Call::Fsync(_), ..]), "the name is durable: {calls:?}");
            open(&store_at(root.path()), "pool", OpenFor::Write).expect("it opens");
        }
    }
}

#[test]
fn no_way_to_a_name_replaces_a_file() {
    for link in [None, Some(Errno::PERM)] {
        let root = tempfile::tempdir().expect("a directory");
        let path = root.path().join("pool");
        let store = store_at(root.path());
        let mut renames = 0;
        // Somebody makes a file of that name just before.
        let judge = |call: &Call| match call {
            Call::Rename(..) => {
                renames += 1;
                assert_eq!(renames, 1, "nothing is renamed to it");
                fs::write(&path, "somebody's").expect("a file");
                Verdict::Fail(Errno::INVAL.raw_os_error())
            }
            Call::Link(..) if link.is_some() => Verdict::Fail(Errno::PERM.raw_os_error()),
            _ => Verdict::Pass,
        };
        let act = || store.create(&name("pool"), &new_pool(SIZE_BYTES), "the test".to_owned());
        let Ok((made, _)) = record(judge, act) else {
            skip_report::skipped!("the kernel shows no system calls to this process");
            return;
        };
        assert!(matches!(made, Err(StoreError::AlreadyExists { .. })), "{made:?}");
        assert_eq!(fs::read_to_string(&path).expect("it stays"), "somebody's");
        assert_eq!(entries(root.path()), ["pool"]);
    }
}

/// The server made the link, its answer was lost, and it was asked again.
#[test]
fn a_link_that_is_ours_is_no_other_pool() {
    for is_ours in [true, false] {
        let root = tempfile::tempdir().expect("a directory");
        let (path, store) = (root.path().join("pool"), store_at(root.path()));
        let judge = |call: &Call| match call {
            Call::Rename(..) => Verdict::Fail(Errno::INVAL.raw_os_error()),
            Call::Link(..) if is_ours => {
                let working =
                    entries(root.path()).into_iter().find(|entry| entry.starts_with(".pmof.")).expect("a file");
                fs::hard_link(root.path().join(working), &path).expect("linked");
                Verdict::Fail(Errno::EXIST.raw_os_error())
            }
            Call::Link(..) => {
                fs::write(&path, "somebody's").expect("a file");
                Verdict::Fail(Errno::EXIST.raw_os_error())
            }
            _ => Verdict::Pass,
        };
        let act = || store.create(&name("pool"), &new_pool(SIZE_BYTES), "the test".to_owned());
        let Ok((made, _)) = record(judge, act) else {
            skip_report::skipped!("the kernel shows no system calls to this process");
            return;
        };
        assert_eq!(made.is_ok(), is_ours, "{made:?}");
        assert_eq!(entries(root.path()), ["pool"]);
        if let Err(error) = made {
            assert!(matches!(error, StoreError::AlreadyExists { .. }), "{error:?}");
        }
    }
}

#[test]
fn a_relative_root_stays_where_it_is() {
    // The directory is one of the whole process: the store is opened by a path relative to the one that it has, and moves on.
    let place = tempfile::tempdir().expect("a directory");
    let before = std::env::current_dir().expect("a directory");
    let up: PathBuf = before.components().skip(1).map(|_| "..").collect();
    let relative = up.join(place.path().strip_prefix("/").expect("an absolute path"));
    let store = store_at(&relative);
    std::env::set_current_dir("/dev").expect("another directory");
    let attached = store.check_attached();
    std::env::set_current_dir(before).expect("as it was");
    attached.expect("it is where it was");
}

/// A service that was started by root and has another effective user.
#[test]
fn the_effective_user_says_whether_a_root_is_writable() {
    let (root, store) = fresh();
    if !rustix::process::getuid().is_root() {
        skip_report::skipped!("only root can be another user");
        return;
    }
    fs::set_permissions(root.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("changed");
    assert!(store.is_root_writable());
    let is_writable = thread::scope(|scope| {
        let as_another = scope.spawn(|| {
            // Of this thread only, which ends.
            rustix::thread::set_thread_res_uid(None, rustix::fs::Uid::from_raw(65_534), None).expect("another user");
            store.is_root_writable()
        });
        as_another.join().expect("no panic")
    });
    assert!(!is_writable);
}

/// One that the target may not read may be a pool: it is listed, and a look at it says why.
#[test]
fn a_file_that_cannot_be_read_is_listed() {
    use std::os::unix::fs::PermissionsExt as _;

    let (root, store) = fresh();
    if !rustix::process::getuid().is_root() {
        skip_report::skipped!("only root can be another user");
        return;
    }
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).expect("changed");
    fs::create_dir(root.path().join("directory")).expect("made");
    for kept in ["secret", "directory"] {
        let path = root.path().join(kept);
        if kept == "secret" {
            fs::write(&path, b"x").expect("written");
        }
        fs::set_permissions(path, fs::Permissions::from_mode(0o000)).expect("changed");
    }
    let (names, why, surveyed) = thread::scope(|scope| {
        let as_another = scope.spawn(|| {
            // Of this thread only, which ends.
            rustix::thread::set_thread_res_uid(None, rustix::fs::Uid::from_raw(65_534), None).expect("another user");
            let mut surveyed = Vec::new();
            store.survey(|name, seen| surveyed.push((name.to_string(), seen.is_ok()))).expect("a survey");
            (store.list(None, 9).expect("a list"), store.info(&name("secret")), surveyed)
        });
        as_another.join().expect("no panic")
    });
    assert_eq!(names, [name("secret")]);
    assert!(matches!(&why, Err(StoreError::Io { call: "open", .. })), "{why:?}");
    assert_eq!(surveyed, [("secret".to_owned(), false)]);
    // The control: what can be read and is nothing of a pool's is in no list.
    assert!(store.list(None, 9).expect("a list").is_empty());
}

/// Renamed, it is served from where it is; removed, it has nothing to list.
#[test]
fn a_root_that_was_moved_away_is_listed_still() {
    let place = tempfile::tempdir().expect("a directory");
    let (root, away) = (place.path().join("root"), place.path().join("away"));
    fs::create_dir(&root).expect("made");
    let store = store_at(&root);
    drop(create(&store, "pool"));
    fs::rename(&root, &away).expect("moved");
    assert_eq!(store.list(None, 9).expect("a list"), [name("pool")]);
    assert!(matches!(store.check_attached(), Err(StoreError::Detached { .. })));
    fs::remove_dir_all(&away).expect("removed");
    let error = store.list(None, 9).expect_err("nothing is there");
    assert!(matches!(error, StoreError::Detached { .. }), "{error:?}");
}
