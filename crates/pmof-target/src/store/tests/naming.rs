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
