//! Another's file in the place of a part without a header, on a target.

use std::{
    fs,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use pmof::{Differing, Pool, PoolError, SshOptions, TargetOptions};
use pmof_pool_set::{NewPool, NewSet, PoolSet};

use crate::support::{PMOF, Stage};

const PART_BYTES: u64 = 9 << 20;

/// One local and one remote replica of two parts each, of which only the first has a header.
struct Fixture {
    stage: Stage,
}

impl Fixture {
    /// With something all over these ranges of the pool, one of each part.
    fn new(first: std::ops::Range<u64>, second: std::ops::Range<u64>) -> Self {
        let fixture = Self { stage: Stage::local() };
        let replica = |name: &str| {
            let part = |number| fixture.path(&format!("{name}{number}"));
            format!("9M {}\n9M {}\n", part(0).display(), part(1).display())
        };
        let header = "PMEMPOOLSET\nOPTION SINGLEHDR\n";
        let (here, there) = (replica("here"), replica("there"));
        fs::write(fixture.path("local.set"), format!("{header}{here}REPLICA host-a a.set\n")).unwrap();
        fs::write(fixture.stage.root().join("a.set"), format!("{header}{there}")).unwrap();
        let pool = fixture.pool();
        let pool = pool.create(&NewSet::new(NewPool::Obj { layout: "test".to_owned() })).unwrap();
        let mut lane = pool.lane();
        for offset in first.step_by(4096).chain(second.step_by(4096)) {
            lane.write(offset, &page(offset, 5)).unwrap();
        }
        lane.persist().unwrap();
        drop(lane);
        pool.close().unwrap();
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.stage.directory.path().join(name)
    }

    fn set(&self) -> String {
        self.path("local.set").to_str().unwrap().to_owned()
    }

    fn pool(&self) -> pmof::SetOptions {
        let command = format!("exec {PMOF} serve --stdio --root {}", self.stage.root().display());
        let ssh = SshOptions::default().program(self.path("ssh")).command(command);
        let set = PoolSet::read(&self.path("local.set")).unwrap();
        Pool::from_set(set).target(TargetOptions::default().ssh(ssh)).differing(Differing::Copy)
    }

    fn parts(&self) -> [Vec<u8>; 4] {
        ["here0", "here1", "there0", "there1"].map(|name| fs::read(self.path(name)).unwrap())
    }

    /// Nothing that there is to do with the set changes anything, or takes the file away.
    fn assert_left_as_it_is(&self, what: &str) {
        let (set, before) = (&self.set(), self.parts());
        let told = "bytes 9437184 to 18874368 of the pool";
        for arguments in [
            &["pool", "sync", set, "--dry-run"][..],
            &["pool", "sync", set],
            &["pool", "sync", set, "--from", "0"],
            &["pool", "rm", set],
            &["pool", "rm", set, "--force"],
        ] {
            let said = self.stage.fail(arguments);
            assert!(said.contains(told), "{what}: {arguments:?}: {said}");
            assert!(self.parts() == before, "{what}: {arguments:?}");
        }
        let output = self.stage.pmof(&["pool", "check", set]);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success() && said.contains(told), "{what}: {said}");
        match self.pool().open() {
            Err(PoolError::UnlikeElsewhere { index: 1, range }) => assert_eq!(range, PART_BYTES..2 * PART_BYTES),
            Err(error) => panic!("{what}: {error}"),
            Ok(_) => panic!("{what}: it was copied"),
        }
        assert!(self.parts() == before, "{what}");
    }

    /// Sync makes the replica there what the one here is.
    fn assert_restored(&self) {
        self.stage.succeed(&["pool", "sync", &self.set()]);
        let [here0, here1, there0, there1] = self.parts();
        assert!(here0[4096..] == there0[4096..] && here1 == there1);
        self.stage.succeed(&["pool", "check", &self.set()]);
    }
}

/// What a pool has in a page: another pool has other bytes there.
fn page(offset: u64, seed: u64) -> [u8; 256] {
    let mut bytes = [0; 256];
    for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&((offset + at as u64 + 1).wrapping_mul(seed)).to_le_bytes());
    }
    bytes
}

/// Files of others, as long as a part.
fn others() -> [(&'static str, Vec<u8>); 3] {
    let text = b"dear all, ".iter().copied().cycle().take(PART_BYTES as usize).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let random = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    let random = random.take(PART_BYTES as usize / 8).flatten().collect();
    let mut other_pool = vec![0; PART_BYTES as usize];
    for offset in (0..PART_BYTES).step_by(4096) {
        other_pool[offset as usize..][..256].copy_from_slice(&page(offset, 0x1_0001));
    }
    [("text", text), ("random", random), ("another pool's part", other_pool)]
}

fn replace(path: &Path, bytes: &[u8]) {
    fs::remove_file(path).unwrap();
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_file_that_is_not_the_pools_is_left_where_nothing_is_in_use_in_its_part() {
    let fixture = Fixture::new(5 << 20..6 << 20, 0..0);
    for (what, bytes) in others() {
        replace(&fixture.path("there1"), &bytes);
        fixture.assert_left_as_it_is(what);
    }
    // As many zeros as there were.
    replace(&fixture.path("there1"), &vec![0; PART_BYTES as usize]);
    fixture.stage.succeed(&["pool", "check", &fixture.set()]);
    fixture.pool().open().unwrap().close().unwrap();
    fixture.stage.succeed(&["pool", "rm", &fixture.set()]);
    assert!(!fixture.path("there1").exists() && !fixture.path("here0").exists());
}

#[test]
fn a_part_that_is_the_pools_or_was_lost_is_restored() {
    let fixture = Fixture::new(5 << 20..6 << 20, 10 << 20..13 << 20);
    let there = fixture.path("there1");
    let old = fs::read(&there).unwrap();
    for (what, bytes) in others() {
        replace(&there, &bytes);
        fixture.assert_left_as_it_is(what);
    }
    fs::remove_file(&there).unwrap();
    fixture.assert_restored();
    // Some pages have changed since it was copied.
    let pool = fixture.pool().open().unwrap();
    for offset in (10 << 20..13 << 20).step_by(12 * 4096) {
        pool.persist(offset, &page(offset, 7)).unwrap();
    }
    pool.close().unwrap();
    replace(&there, &old);
    fixture.assert_restored();
    replace(&there, &old);
    let pool = fixture.pool().open().unwrap();
    assert!(pool.copied_bytes() > 0);
    pool.close().unwrap();
    let [_, here1, _, there1] = fixture.parts();
    assert!(here1 == there1);
    // Zeros beside data: nothing tells which is right, until one of the files is moved away.
    replace(&there, &vec![0; PART_BYTES as usize]);
    let before = fixture.parts();
    for arguments in [&["pool", "sync", &fixture.set()][..], &["pool", "sync", &fixture.set(), "--from", "1"]] {
        let said = fixture.stage.fail(arguments);
        assert!(said.contains("here1"), "{said}");
        assert!(fixture.parts() == before);
    }
    fs::remove_file(&there).unwrap();
    fixture.assert_restored();
}

/// Where one part is lost, another one of the same replica may still be somebody's file.
#[test]
fn a_replica_that_lost_a_part_is_not_made_anew_over_anothers_file() {
    let stage = Stage::local();
    let path = |name: &str| stage.directory.path().join(name);
    let replica = |name: &str| -> String {
        let part = |number| format!("9M {}\n", path(&format!("{name}{number}")).display());
        [0, 1, 2].map(part).concat()
    };
    let text =
        format!("PMEMPOOLSET\nOPTION SINGLEHDR\n{}REPLICA\n{}REPLICA\n{}", replica("a"), replica("b"), replica("c"));
    fs::write(path("set"), text).unwrap();
    let set = path("set").to_str().unwrap().to_owned();
    stage.succeed(&["pool", "create", &set, "--layout", "test"]);
    for name in ["a", "b", "c"] {
        for number in [1, 2] {
            let file = fs::File::options().write(true).open(path(&format!("{name}{number}"))).unwrap();
            for offset in (0..4 << 20).step_by(4096) {
                file.write_all_at(&page(offset, 5 + number), offset).unwrap();
            }
        }
    }
    stage.succeed(&["pool", "check", &set]);
    fs::write(path("c1"), vec![0; PART_BYTES as usize]).unwrap();
    let (_, letter) = others().into_iter().next().unwrap();
    fs::write(path("c2"), &letter).unwrap();
    let said = stage.fail(&["pool", "sync", &set]);
    assert!(said.contains("c2"), "{said}");
    assert!(fs::read(path("c2")).unwrap() == letter);
    fs::remove_file(path("c2")).unwrap();
    stage.succeed(&["pool", "sync", &set]);
    assert!(fs::read(path("c1")).unwrap() == fs::read(path("a1")).unwrap());
}

#[test]
fn what_nothing_tells_of_a_log_is_told() {
    let stage = Stage::local();
    let path = |name: &str| stage.directory.path().join(name);
    let text = format!("PMEMPOOLSET\nOPTION SINGLEHDR\n9M {}\n9M {}\n", path("one").display(), path("two").display());
    fs::write(path("set"), text).unwrap();
    let set = path("set").to_str().unwrap().to_owned();
    stage.succeed(&["pool", "create", &set, "--kind", "log"]);
    let (_, random) = others().into_iter().nth(1).unwrap();
    fs::write(path("two"), &random).unwrap();
    let said = stage.succeed(&["pool", "check", &set]);
    assert!(said.contains("not checked: whether ") && said.contains("/two is the pool's"), "{said}");
    assert!(said.contains("the rest of the replica is sound by itself"), "{said}");
}
