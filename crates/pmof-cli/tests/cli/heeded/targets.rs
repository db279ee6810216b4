//! What is advised of targets, exports, former formats and pool sets.

use std::{
    fs,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::{Child, Stdio},
};

use pmof::{Acknowledge, Pool, causes};
use pmof_control::DATA_OFFSET;
use pmof_pool_set::PoolSet;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{Four, SIZE_BYTES, advised, heed, options};
use crate::support::{
    Said, Target, change_header, command, directory, file_with, pattern, pmof, serve_with, text, wait_until,
};

/// Where data begins in format 2.
const FORMER_DATA_OFFSET: u64 = 8192;

/// A target with options. Killed when dropped.
struct Serving(Child, String);

impl Serving {
    fn start(root: &Path, options: &[&str]) -> Self {
        let (child, address) = serve_with(root, options);
        Self(child, address)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The option of `pmof serve` that a message advises.
#[track_caller]
fn option_of_serve(message: &str) -> String {
    let words = advised(message, "serve");
    assert_eq!(words.len(), 2, "{message}");
    words[1].clone()
}

#[test]
fn a_pool_whose_writer_hangs_is_released_as_is_advised() {
    let four = Four::with_pool_on(2);
    let (large, new) = (four.targets[0].url("large"), four.targets[2].url("large"));
    let other = four.targets[1].url("large");
    let size_bytes = 256 << 20;
    let pool = options([&large, &other]).create(size_bytes).unwrap();
    let bytes = pattern(1 << 20);
    for offset in (0..size_bytes).step_by(1 << 20) {
        pool.persist(offset, &bytes).unwrap();
    }
    pool.close().unwrap();
    let writer = command(["pool", "add", &large, &new]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut writer = Serving(writer, String::new());
    wait_until("it has the pool open", || {
        assert!(writer.0.try_wait().unwrap().is_none(), "it was too fast");
        pmof(["pool", "status", "--json", &large]).json()["open_by"].is_string()
    });
    kill_process(Pid::from_child(&writer.0), Signal::STOP).unwrap();
    let scrub = || pmof(["pool", "scrub", &large, &other]);
    let said = scrub();
    said.failed(&["is open for writing by", "if that program hangs"]);
    heed(&said.errors, "pool release", &[], &[&large, "--silent-for", "1s"]);
    drop(writer);
    scrub().done();
}

#[test]
fn limits_of_a_target_are_raised_as_is_advised() {
    let (root, place) = (directory(), directory());
    let source = file_with(&place, "source", &pattern(2 << 20));
    let copy = |target: &Serving| pmof(["cp", text(&source), &format!("{}/orders", target.1)]);
    let target = Serving::start(root.path(), &["--max-pool-size", "1M"]);
    let said = copy(&target);
    said.failed(&["1048576 are allowed"]);
    drop(target);
    let target = Serving::start(root.path(), &[&option_of_serve(&said.errors), "2M"]);
    copy(&target).done();
    drop(target);

    let given = ["serve", "--listen", "tcp://127.0.0.1:0", "--memory-budget", "1K", "--root"];
    let said = pmof(given.into_iter().chain([text(root.path())]));
    said.failed(&["a memory budget of 1024 bytes is too small"]);
    let least = said.errors.split("which takes ").nth(1).unwrap().split(':').next().unwrap();
    let target = Serving::start(root.path(), &[&option_of_serve(&said.errors), least]);
    assert_eq!(pmof(["pool", "ls", &target.1]).done(), "orders\n");
}

#[test]
fn targets_are_told_apart_as_is_advised() {
    let roots: [TempDir; 2] = std::array::from_fn(|_| directory());
    let create = |targets: &[Serving; 2]| {
        let urls = targets.each_ref().map(|target| format!("{}/orders", target.1));
        options(&urls).acknowledge(Acknowledge::Survive(1)).create(SIZE_BYTES)
    };
    let targets = roots.each_ref().map(|root| Serving::start(root.path(), &[]));
    let told = create(&targets).unwrap_err().to_string();
    drop(targets);
    let option = option_of_serve(&told);
    let targets = std::array::from_fn(|at| Serving::start(roots[at].path(), &[&option, ["one", "two"][at]]));
    create(&targets).unwrap().close().unwrap();
}

#[test]
fn a_pool_of_a_former_format_is_copied_as_is_advised() {
    let (target, place) = (Target::start(), directory());
    let [old, new] = ["old", "new"].map(|name| target.url(name));
    options([&old]).create(SIZE_BYTES).unwrap().close().unwrap();
    change_header(&target.file("old"), 8, &2_u16.to_le_bytes());
    change_header(&target.file("old"), 72, &FORMER_DATA_OFFSET.to_le_bytes());
    fs::File::options().write(true).open(target.file("old")).unwrap().set_len(FORMER_DATA_OFFSET + SIZE_BYTES).unwrap();
    let told = causes(&options([&old]).open().unwrap_err()).to_string();
    let file = place.path().join("file");
    heed(&told, "cp POOL FILE", &[("POOL", &old), ("FILE", text(&file))], &[]);
    let second = told.split("then pmof ").nth(1).unwrap().split(')').next().unwrap();
    let second = second.replace("FILE", text(&file)).replace("NEW", &new);
    assert_eq!(pmof(second.split(' ')).code, Some(0), "{told}");
    pmof(["pool", "rm", &old]).done();
    options([&new]).open().unwrap().close().unwrap();
}

#[test]
fn what_is_no_moment_of_a_pool_is_copied_as_is_advised() {
    let four = Four::with_pool_on(1);
    let [a, far] = [&*four.urls[0], &four.urls[3]];
    let [copy, export, digests] = ["copy", "export", "digests"].map(|name| four.place.path().join(name));
    let pool = four.open();
    let said = pmof(["cp", a, text(&copy)]);
    assert!(said.code == Some(0) && said.errors.contains("is no moment of the pool"), "{said:?}");
    pool.close().unwrap();
    heed(&said.errors, "pool export", &[], &[a, text(&export)]);
    heed(&said.errors, "pool add --async", &[("N", "2")], &[a, far]);
    let pool = four.open();
    wait_until("it follows", || {
        matches!(pool.status().unwrap().asynchronous[0].state, pmof::AsynchronousState::Following)
    });
    pool.consistency_point("one").unwrap();
    wait_until("it is kept", || pmof(["pool", "points", a]).output.contains("\"one\""));
    let again = pmof(["cp", "--force", a, text(&copy)]);
    assert!(again.code == Some(0) && again.errors.contains("it is copied as it was at"), "{again:?}");
    pmof(["pool", "export", "--force", a, text(&export)]).done();
    pool.close().unwrap();

    // Digests are made with an export, which is what is imported.
    pmof(["pool", "export", "--force", a, text(&export), "--digests", text(&digests)]).done();
    let restored = four.targets[1].url("restored");
    let said = pmof(["pool", "import", "--durability", "process-crash", text(&digests), &restored]);
    assert!(said.code != Some(0) && said.errors.contains("has only the digests of an export"), "{said:?}");
    fs::remove_file(&digests).unwrap();
    heed(&said.errors, "pool export", &[], &[text(&digests), "--force", a, text(&export)]);
    pmof(["pool", "import", "--durability", "process-crash", text(&export), &restored]).done();
}

/// A pool set of so many replicas in `place`.
fn set_of(place: &TempDir, replicas: usize) -> PathBuf {
    let parts: Vec<_> = (0..replicas).map(|at| format!("9M {}/r{at}\n", text(place.path()))).collect();
    file_with(place, "set", format!("PMEMPOOLSET\n{}", parts.join("REPLICA\n")).as_bytes())
}

#[test]
fn a_pool_set_is_brought_in_order_as_is_advised() {
    let place = directory();
    let set = set_of(&place, 2);
    let set_text = text(&set);
    pmof(["pool", "create", set_text, "--layout", "test"]).done();
    // What is set apart from the other, and what is gone.
    let damages: [fn(&Path); 2] = [
        |path| {
            let mut bytes = fs::read(path).unwrap();
            bytes[6 << 20] ^= 1;
            fs::write(path, bytes).unwrap();
        },
        |path| fs::remove_file(path).unwrap(),
    ];
    for damage in damages {
        damage(&place.path().join("r1"));
        let said = pmof(["pool", "check", set_text]);
        assert_eq!(said.code, Some(3), "{said:?}");
        heed(&said.errors, "pool sync", &[], &[set_text]);
        pmof(["pool", "check", set_text]).done();
    }

    let pool = Pool::from_set(PoolSet::read(&set).unwrap()).open().unwrap();
    let not_compared = pool.scrub(&mut |_| {}).unwrap_err().to_string();
    let not_added = pool.add("tcp://127.0.0.1:7204/r2").unwrap_err().to_string();
    pool.close().unwrap();
    drop(pool);
    heed(&not_compared, "pool check", &[], &[set_text]);
    set_of(&place, 3);
    heed(&not_added, "pool sync", &[], &[set_text]);
    assert!(pmof(["pool", "check", set_text]).done().contains("3 replicas are equal"));

    damages[0](&place.path().join("r1"));
    let open = || Pool::from_set(PoolSet::read(&set).unwrap()).open().and_then(|pool| pool.close());
    let told = causes(&open().unwrap_err()).to_string();
    assert_eq!(pmof(advised(&told, "pool check").iter().map(String::as_str).chain([set_text])).code, Some(3));
    heed(&told, "pool sync", &[], &[set_text]);
    open().unwrap();
}

#[test]
fn what_most_replicas_of_a_set_hold_is_copied_as_is_advised() {
    let place = directory();
    let set = set_of(&place, 3);
    let set = text(&set);
    pmof(["pool", "create", set, "--layout", "test"]).done();
    let first = place.path().join("r0");
    let sound = fs::read(&first).unwrap();
    let mut bytes = sound.clone();
    bytes[6 << 20] ^= 1;
    fs::write(&first, bytes).unwrap();
    let said = pmof(["pool", "check", set]);
    assert_eq!(said.code, Some(3), "{said:?}");
    heed(&said.errors, "pool sync --from", &[], &[set]);
    pmof(["pool", "check", set]).done();
    assert!(fs::read(&first).unwrap()[6 << 20] == sound[6 << 20]);
}

#[test]
fn points_are_kept_as_is_advised_where_none_are() {
    let four = Four::with_pool_on(1);
    let [a, far] = [&*four.urls[0], &four.urls[3]];
    let export = four.place.path().join("export");
    let pool = four.open();
    let said = pmof(["pool", "export", a, text(&export)]);
    said.failed(&["has the pool open for writing"]);
    pool.close().unwrap();
    heed(&said.errors, "pool add --async --keep-points", &[("N", "2")], &[a, far]);
    let pool = four.open();
    wait_until("it follows", || {
        matches!(pool.status().unwrap().asynchronous[0].state, pmof::AsynchronousState::Following)
    });
    pool.consistency_point("one").unwrap();
    wait_until("it is kept", || pmof(["pool", "points", a]).output.contains("\"one\""));
    pmof(["pool", "export", a, text(&export)]).done();
    pool.close().unwrap();
}

#[test]
fn a_rollback_that_was_interrupted_goes_on_as_is_advised() {
    let size_bytes = 32 << 20;
    let mut two: [Target; 2] = std::array::from_fn(|_| Target::start());
    let [a, far] = std::array::from_fn(|at: usize| two[at].url("large"));
    let write_all = |pool: &Pool, byte: u8| {
        let bytes = vec![byte; 1 << 20];
        for offset in (0..size_bytes).step_by(1 << 20) {
            pool.persist(offset, &bytes).unwrap();
        }
    };
    let follows = |pool: &Pool| {
        wait_until("it follows", || {
            matches!(pool.status().unwrap().asynchronous[0].state, pmof::AsynchronousState::Following)
        });
    };
    options([&a]).create(size_bytes).unwrap().close().unwrap();
    pmof(["pool", "add", "--async", "--keep-points", "2", &a, &far]).done();
    let pool = options([&a]).open().unwrap();
    follows(&pool);
    write_all(&pool, 1);
    pool.consistency_point("one").unwrap();
    wait_until("it is kept", || pmof(["pool", "points", &a]).output.contains("\"one\""));
    write_all(&pool, 2);
    pool.consistency_point("two").unwrap();
    pool.close().unwrap();
    drop(pool);

    let file = fs::File::open(two[1].file("large")).unwrap();
    let has_begun = || {
        [0, size_bytes - 1].into_iter().any(|offset| {
            let mut byte = [0];
            file.read_exact_at(&mut byte, DATA_OFFSET + offset).unwrap();
            byte == [1]
        })
    };
    assert!(!has_begun());
    let rollback = command(["pool", "rollback", &far, "one"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut rollback = rollback.unwrap();
    wait_until("it has begun", || has_begun() || rollback.try_wait().unwrap().is_some());
    two[1].kill();
    let said = Said::new(std::time::Instant::now(), rollback.wait_with_output().unwrap());
    said.failed(&["the rollback was interrupted"]);
    two[1].restart();
    let far = two[1].url("large");
    let shown = heed(&said.errors, "pool status", &[], &[&a, &far]).output;
    // It is there, or will be when it is opened next.
    assert!(shown.contains(" \"one\""), "{shown}");
    let again = pmof(["pool", "rollback", &far, "one"]);
    assert_eq!(again.code, Some(0), "{again:?}");
    pmof(["pool", "promote", "--force", &far]).done();
    let pool = options([&far]).open().unwrap();
    for offset in [0, size_bytes / 2, size_bytes - 1] {
        let mut byte = [0];
        pool.read(offset, &mut byte).unwrap();
        assert_eq!(byte, [1], "{offset}");
    }
}
