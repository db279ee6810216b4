//! `pmof pool export` and `pmof pool import`.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    os::unix::{fs::FileExt, process::ExitStatusExt as _},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Instant,
};

use pmof::{Durability, Pool, PoolOptions};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::support::{Said, Target, command, directory, file_with, files, pattern, pmof, serve_with, text, wait_until};

const FLAGS: [u8; 16] = *b"made for a test!";
const MIB: usize = 1 << 20;

fn options(url: &str) -> PoolOptions {
    Pool::options().require(Durability::ProcessCrash).replica(url)
}

/// A closed pool with these bytes from its beginning, and zeroes behind them.
fn pool_of(url: &str, size_bytes: usize, bytes: &[u8]) {
    let pool = options(url).user_flags(FLAGS).create(size_bytes as u64).unwrap();
    for (at, piece) in bytes.chunks(MIB).enumerate() {
        pool.persist((at * MIB) as u64, piece).unwrap();
    }
    pool.close().unwrap();
}

fn change(url: &str, offset: u64, bytes: &[u8]) {
    let pool = options(url).open().unwrap();
    pool.persist(offset, bytes).unwrap();
    pool.close().unwrap();
}

fn contents(url: &str) -> Vec<u8> {
    let pool = options(url).open_read_only().unwrap();
    let mut bytes = vec![0; pool.len_bytes() as usize];
    pool.read(0, &mut bytes).unwrap();
    bytes
}

/// What a new name gets of exports, and that a failure leaves nothing.
#[track_caller]
fn refused(target: &Target, arguments: &[&str], words: &[&str]) {
    import_nothing(target, arguments).failed(words);
}

/// The same of an export that is damaged.
#[track_caller]
fn damaged(target: &Target, arguments: &[&str], words: &[&str]) {
    let said = import_nothing(target, arguments);
    assert_eq!(said.output, "", "{said:?}");
    said.differs(words);
}

fn import_nothing(target: &Target, arguments: &[&str]) -> Said {
    let before = target.files();
    let url = target.url("refused");
    let said = pmof(["pool", "import"].iter().chain(arguments).copied().chain([url.as_str()]));
    wait_until("gone", || target.files() == before);
    said
}

#[test]
fn a_pool_comes_back_with_its_identity_on_as_many_replicas_as_are_named() {
    let (a, b, place) = (Target::start(), Target::start(), directory());
    let (bytes, size_bytes) = (pattern(3 * MIB + 77), 40 * MIB + 5);
    pool_of(&a.url("orders"), size_bytes, &bytes);
    let export = place.path().join("orders.export");
    let said = pmof(["pool", "export", &a.url("orders"), text(&export), "--json"]).json();
    assert_eq!((&said["moment"], &said["len_bytes"]), (&"closed".into(), &size_bytes.into()), "{said}");
    assert!(fs::metadata(&export).unwrap().len() < 4 * MIB as u64, "zeroes are stored");
    assert_eq!(fs::metadata(&export).unwrap().len(), said["export_bytes"]);
    let checked = pmof(["pool", "import", "--dry-run", text(&export)]).done();
    assert!(checked.starts_with("sound: ") && checked.contains(said["export"].as_str().unwrap()), "{checked}");
    let (first, second) = (a.url("restored"), b.url("restored"));
    let imported = pmof(["pool", "import", text(&export), &first, &second]).done();
    assert!(imported.contains("verified") && imported.contains("power-failure on 2/2"), "{imported}");
    let info = |url: &str| pmof(["pool", "info", url, "--json"]).json()["pools"][0].clone();
    let (old, new) = (info(&a.url("orders")), info(&second));
    for what in ["pool_uuid", "len_bytes", "user_flags"] {
        assert_eq!(old[what], new[what], "{what}");
    }
    assert_ne!(old["replica_uuid"], new["replica_uuid"]);
    assert_ne!(old["epoch"], new["epoch"]);
    assert_eq!(&new["replica_count"], 2);
    for url in [&first, &second] {
        let found = contents(url);
        assert!(found[..bytes.len()] == bytes && found[bytes.len()..].iter().all(|byte| *byte == 0));
    }
    // A name that is taken stays.
    pmof(["pool", "import", text(&export), &first]).failed(&["exists", "pmof pool rm"]);
    change(&first, 0, b"newer");
    refused(&a, &[text(&export), &first], &["exists"]);
    assert_eq!(&contents(&first)[..5], b"newer");
    pmof(["pool", "import", "--force", text(&export), &first, &second]).done();
    assert!(contents(&first)[..bytes.len()] == bytes);
    pmof(["pool", "export", &first, text(&export)]).failed(&["exists", "--force"]);
    pmof(["pool", "export", "--force", &first, text(&export)]).done();
}

/// What is left of the old pool has the same identity, and other replicas.
#[test]
fn replicas_of_the_old_pool_and_of_the_new_one_are_not_mixed() {
    let (a, b, place) = (Target::start(), Target::start(), directory());
    let [old, new] = ["old", "new"].map(|name| [a.url(name), b.url(name)]);
    let both = |urls: &[String]| urls.iter().fold(Pool::options(), PoolOptions::replica).require(Durability::Visible);
    both(&old).create(MIB as u64).unwrap().close().unwrap();
    let export = place.path().join("export");
    pmof(["pool", "export", &old[0], text(&export)]).done();
    pmof(["pool", "import", text(&export), &new[0], &new[1]]).done();
    for named in [[&old[0], &new[1]], [&new[0], &old[1]], [&old[0], &new[0]]] {
        let named = named.map(Clone::clone);
        for pool in [both(&named).open(), both(&named).open_read_only()].into_iter().flatten() {
            let used = pool.replicas().into_iter().filter(|(_, why)| why.is_none());
            let used: Vec<_> = used.map(|(replica, _)| replica.to_string()).collect();
            let is_of = |name: &str| used.iter().all(|url| url.ends_with(name));
            assert!(is_of("/old") || is_of("/new"), "{named:?}: {used:?}");
            pool.close().unwrap();
        }
    }
}

/// Through pipes, as `ssh` has them.
fn piped(from: &[&str], to: &[&str]) -> (Said, Said) {
    let mut export = command(from).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut import = std::process::Command::new(env!("CARGO_BIN_EXE_pmof"));
    let import = import.args(to).stdin(export.stdout.take().unwrap()).output().unwrap();
    let export = export.wait_with_output().unwrap();
    (Said::new(Instant::now(), export), Said::new(Instant::now(), import))
}

#[test]
fn pipes_carry_exports() {
    let target = Target::start();
    let bytes = pattern(9 * MIB);
    pool_of(&target.url("orders"), bytes.len(), &bytes);
    let (from, to) = (target.url("orders"), target.url("restored"));
    let (export, import) = piped(&["pool", "export", &from, "-"], &["pool", "import", "-", &to]);
    assert!(export.code == Some(0) && export.errors.contains("exported the pool of 9.0 MiB"), "{export:?}");
    assert!(import.done().contains("imported"));
    assert!(contents(&to) == bytes);
    // Who reads it ends too early, has no room, or gets nothing.
    let mut export = command(["pool", "export", &from, "-"]);
    let mut export = export.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    export.stdout.take().unwrap().read_exact(&mut [0; 10]).unwrap();
    Said::new(Instant::now(), export.wait_with_output().unwrap()).failed(&["what reads standard output ended"]);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let export = command(["pool", "export", &from, "-"]).stdout(full).output().unwrap();
    Said::new(Instant::now(), export).failed(&["cannot export", "No space left"]);
    damaged(&target, &["-"], &["standard input is of no use", "cut short"]);
    pmof(["pool", "import", "--force", "-", &to]).wrong_use(&["--force reads the exports twice"]);
    pmof(["pool", "import", "-", "--base", "-", &to]).wrong_use(&["standard input is one export"]);
    pmof(["pool", "import", "-"]).wrong_use(&["URL"]);
}

/// Through shared memory from one target, and into it at another.
#[test]
fn shared_memory_carries_exports_too() {
    let place = directory();
    let shared = |name: &str| {
        let root = place.path().join(name);
        fs::create_dir(&root).unwrap();
        let address = format!("shm://{}", text(&place.path().join(format!("{name}.socket"))));
        let (child, tcp) = serve_with(&root, &["--listen", &address]);
        (Killed(child), tcp, format!("{address}?pool="))
    };
    let [(_one, one_tcp, one), (_two, two_tcp, two)] = ["one", "two"].map(shared);
    let bytes = pattern(5 * MIB);
    pool_of(&format!("{one}orders"), bytes.len(), &bytes);
    let (export, import) = piped(
        &["pool", "export", &format!("{one}orders"), "-"],
        &["pool", "import", "-", &format!("{two}orders"), "--durability", "process-crash"],
    );
    assert!(export.code == Some(0), "{export:?}");
    assert!(import.done().contains("verified"));
    assert!(contents(&format!("{two_tcp}/orders")) == bytes && contents(&format!("{two}orders")) == bytes);
    // What was not imported leaves nothing here either.
    let cut = piped(
        &["pool", "export", &format!("{one_tcp}/nothing"), "-"],
        &["pool", "import", "-", &format!("{two}nothing")],
    );
    cut.1.differs(&["cut short"]);
    assert_eq!(files(&place.path().join("two")), ["orders"]);
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn increments_have_what_changed_and_need_what_they_are_based_on() {
    let (target, place) = (Target::start(), directory());
    let (orders, size_bytes) = (target.url("orders"), 8 * MIB);
    pool_of(&orders, size_bytes, &pattern(6 * MIB));
    let [full, first, second, other] = ["full", "first", "second", "other"].map(|name| place.path().join(name));
    let digests = place.path().join("digests");
    let [full, first, second, other, digests] = [&full, &first, &second, &other, &digests].map(|path| text(path));
    pmof(["pool", "export", &orders, full]).done();
    change(&orders, 5000, b"more");
    change(&orders, 2 * MIB as u64, &vec![0; MIB]);
    let said = pmof(["pool", "export", &orders, first, "--since", full, "--digests", digests, "--json"]).json();
    assert_eq!(said["stored_bytes"], 128 << 10, "{said}");
    let now = contents(&orders);
    change(&orders, 7 * MIB as u64, b"the last");
    // The digests do as well as the export that they are of.
    let said = pmof(["pool", "export", &orders, second, "--since", digests, "--json"]).json();
    assert_eq!(said["stored_bytes"], 128 << 10, "{said}");
    let last = contents(&orders);
    pmof(["pool", "import", first, "--base", full, &target.url("now")]).done();
    assert!(contents(&target.url("now")) == now);
    pmof(["pool", "import", second, "--base", full, "--base", first, &target.url("last")]).done();
    assert!(contents(&target.url("last")) == last);

    pool_of(&target.url("other"), size_bytes, b"another pool");
    pmof(["pool", "export", &target.url("other"), other]).done();
    refused(&target, &[first], &["first is of no use", "is an increment of export", "--base"]);
    refused(&target, &[second, "--base", full], &["second is of no use", "is an increment of export", "in the order"]);
    refused(&target, &[first, "--base", other], &["is of pool", "name exports of one pool"]);
    refused(&target, &[full, "--base", full], &["a full export", "leave --base out"]);
    refused(&target, &[digests], &["only the digests"]);
    let since = pmof(["pool", "export", &target.url("other"), text(&place.path().join("none")), "--since", full]);
    since.failed(&["full is of no use here", "name exports of one pool"]);
    assert!(!place.path().join("none").exists());
}

#[test]
fn what_is_no_whole_export_makes_no_pool() {
    let (target, place) = (Target::start(), directory());
    pool_of(&target.url("orders"), 3 * MIB, &pattern(MIB));
    let export = place.path().join("export");
    pmof(["pool", "export", &target.url("orders"), text(&export)]).done();
    let sound = fs::read(&export).unwrap();
    let with = |name: &str, bytes: &[u8]| file_with(&place, name, bytes);
    damaged(&target, &[text(&with("garbage", &pattern(9000)))], &["is no export of a pool"]);
    damaged(&target, &[text(&with("empty", b""))], &["cut short"]);
    refused(&target, &[text(&place.path().join("missing"))], &["cannot open", "missing"]);
    let flipped = |at: usize| {
        let mut bytes = sound.clone();
        bytes[at] ^= 4;
        with("flipped", &bytes)
    };
    refused(&target, &[text(&flipped(8))], &["format version 5", "reads version 1"]);
    damaged(&target, &[text(&flipped(100))], &["its header is damaged"]);
    // In the middle of the data, of the digests, and in the end.
    damaged(&target, &[text(&flipped(MIB / 2))], &["it is damaged", "the bytes at offset"]);
    damaged(&target, &[text(&flipped(sound.len() - 100))], &["it is damaged at byte"]);
    damaged(&target, &[text(&flipped(sound.len() - 10))], &["it is damaged at byte"]);
    for len in [10, 1000, 1024, MIB / 2, sound.len() - 64, sound.len() - 1] {
        damaged(&target, &[text(&with("cut", &sound[..len]))], &["cut short"]);
    }
    damaged(&target, &[text(&with("longer", &[&sound[..], b"x"].concat()))], &["something follows its end"]);
    // Nor is what there is removed for it.
    pmof(["pool", "import", "--force", text(&flipped(MIB / 2)), &target.url("orders")]).differs(&["it is damaged"]);
    assert!(contents(&target.url("orders"))[..MIB] == pattern(MIB));
    let writer = options(&target.url("orders")).open().unwrap();
    pmof(["pool", "import", "--force", text(&export), &target.url("orders")])
        .failed(&["for writing", "close it there"]);
    writer.close().unwrap();
    pmof(["pool", "import", "--dry-run", text(&flipped(MIB / 2))]).differs(&["cannot be imported", "it is damaged"]);
}

/// Records of 8 bytes, numbered from 1, one after the other.
fn records(bytes: &[u8]) -> u64 {
    let numbers: Vec<_> = bytes.chunks_exact(8).map(|record| u64::from_le_bytes(record.try_into().unwrap())).collect();
    let count = numbers.iter().take_while(|number| **number != 0).count();
    for (at, number) in numbers.iter().enumerate() {
        assert_eq!(*number, if at < count { at as u64 + 1 } else { 0 }, "record {at} of {count}");
    }
    count as u64
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_pool_that_is_being_written_is_exported_at_a_point() {
    let (two, place): ([Target; 2], _) = (std::array::from_fn(|_| Target::start()), directory());
    let [here, far] = std::array::from_fn(|at: usize| two[at].url("orders"));
    let size_bytes = 4 * MIB as u64;
    let pool = options(&here).create(size_bytes).unwrap();
    let export = place.path().join("export");
    let early = pmof(["pool", "export", &here, text(&export)]);
    early.failed(&["has the pool open for writing", "no asynchronous member", "--keep-points"]);
    assert_eq!(files(place.path()), [""; 0]);
    pool.close().unwrap();
    pmof(["pool", "add", "--async", "--keep-points", "20", &here, &far]).done();
    let pool = options(&here).open().unwrap();
    wait_until("following", || {
        matches!(pool.status().unwrap().asynchronous[0].state, pmof::AsynchronousState::Following)
    });
    pmof(["pool", "export", &here, text(&export)]).failed(&["has the pool open for writing", "--keep-points"]);
    // As many points as the member keeps: those that are read are not pushed out.
    let (is_enough, allowed) = (AtomicBool::new(false), AtomicUsize::new(0));
    let newest = || {
        let report = pmof(["pool", "points", "--json", &here]).json();
        report["members"][0]["points"].as_array().unwrap().last().map(|point| point["name"].to_string())
    };
    thread::scope(|scope| {
        // Also where this fails.
        let _guard = SetOnDrop(&is_enough);
        scope.spawn(|| {
            let mut named = 0;
            for number in 1..=size_bytes / 8 {
                pool.persist((number - 1) * 8, &number.to_le_bytes()).unwrap();
                if number % 50 == 0 && named < allowed.load(Ordering::Relaxed) {
                    pool.consistency_point(&format!("record {number}")).unwrap();
                    named += 1;
                }
                if is_enough.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let mut last = 0;
        for at in 0..5 {
            let before = newest();
            allowed.fetch_add(3, Ordering::Relaxed);
            wait_until("a later point", || newest() != before);
            let said = pmof(["pool", "export", "--force", "--json", &here, text(&export)]).json();
            let name = format!("restored{at}");
            pmof(["pool", "import", text(&export), &two[0].url(&name)]).done();
            let count = records(&contents(&two[0].url(&name)));
            assert_eq!(said["point"]["name"], format!("record {count}"), "{said}");
            assert!(count > last, "{count} after {last}");
            last = count;
        }
    });
    let report = pmof(["pool", "points", "--json", &far]).json();
    let name = report["members"][0]["points"][0]["name"].as_str().unwrap().to_owned();
    pmof(["pool", "export", "--force", "--at-point", &name, &here, text(&export)]).done();
    pmof(["pool", "import", text(&export), &two[1].url("at")]).done();
    assert_eq!(format!("record {}", records(&contents(&two[1].url("at")))), name);
    pmof(["pool", "export", "--force", "--at-point", "never", &here, text(&export)]).failed(&["never", "pool points"]);
    pool.close().unwrap();
    // Closed, it is exported as it is.
    assert_eq!(pmof(["pool", "export", "--force", "--json", &here, text(&export)]).json()["moment"], "closed");
}

/// Nothing keeps a writer from a pool that is read.
#[test]
fn a_pool_that_is_opened_for_writing_meanwhile_is_not_exported() {
    let (target, place) = (Target::start(), directory());
    let orders = target.url("orders");
    pool_of(&orders, 48 * MIB, &pattern(48 * MIB));
    // Longer than what is read ahead of a pipe that nobody reads.
    let mut export = command(["pool", "export", &orders, "-"]);
    let mut export = export.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut output, mut stream) = (export.stdout.take().unwrap(), vec![0; 5000]);
    output.read_exact(&mut stream).unwrap();
    change(&orders, 40 * MIB as u64, b"meanwhile");
    output.read_to_end(&mut stream).unwrap();
    let said = Said::new(Instant::now(), export.wait_with_output().unwrap());
    said.failed(&["was opened for writing while it was exported", "--at-point"]);
    damaged(&target, &[text(&file_with(&place, "stream", &stream))], &["cut short"]);
}

#[test]
fn what_a_dead_writer_left_is_exported_as_one_replica_has_it() {
    let (target, place) = (Target::start(), directory());
    let orders = target.url("orders");
    let pool = options(&orders).create(MIB as u64).unwrap();
    pool.persist(0, b"acknowledged").unwrap();
    drop(pool);
    let export = place.path().join("export");
    wait_until("left", || pmof(["pool", "info", "--json", &orders]).json()["pools"][0]["open_by"].is_null());
    let said = pmof(["pool", "export", &orders, text(&export), "--json"]).json();
    assert_eq!(said["moment"], "not_closed", "{said}");
    pmof(["pool", "import", text(&export), &target.url("restored")]).done();
    assert_eq!(&contents(&target.url("restored"))[..12], b"acknowledged");
}

/// Runs `pmof` with a limit of file sizes, in KiB.
fn limited(kib: usize, arguments: &[&str]) -> std::process::Command {
    let mut shell = std::process::Command::new("bash");
    let script = format!("ulimit -f {kib} && exec \"$0\" \"$@\"");
    shell.args(["-c", &script, env!("CARGO_BIN_EXE_pmof")]).args(arguments).stdin(Stdio::null());
    shell
}

#[test]
fn where_there_is_no_room_nothing_is_left() {
    let (target, place, small) = (Target::start(), directory(), directory());
    let export = place.path().join("export");
    pool_of(&target.url("orders"), 5 * MIB, &pattern(5 * MIB));
    let said = limited(4096, &["pool", "export", &target.url("orders"), text(&export)]).output().unwrap();
    Said::new(Instant::now(), said).failed(&["cannot export", "does not allow a file as long"]);
    assert_eq!(files(place.path()), [""; 0]);
    pmof(["pool", "export", &target.url("orders"), text(&export)]).done();
    let address = place.path().join("address");
    let mut serve = limited(4096, &["serve", "--listen", "tcp://127.0.0.1:0", "--root", text(small.path())]);
    let mut serve = serve.stdout(File::create(&address).unwrap()).stderr(Stdio::null()).spawn().unwrap();
    let ready = || fs::read_to_string(&address).unwrap().strip_prefix("ready ").map(|url| url.trim_end().to_owned());
    wait_until("ready", || ready().is_some_and(|url| !url.is_empty()));
    // On both or on none.
    let urls = [target.url("restored"), format!("{}/restored", ready().unwrap())];
    let said = pmof(["pool", "import", text(&export), &urls[0], &urls[1]]);
    said.failed(&["cannot import", "files of 4194304 bytes at most"]);
    assert_eq!(files(small.path()), [""; 0]);
    // Where there was room, what was made goes with its connection.
    wait_until("gone", || target.files() == ["orders"]);
    serve.kill().unwrap();
    serve.wait().unwrap();
}

fn start(arguments: &[&str]) -> Child {
    command(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// A large export, and the target whose pool it is of.
fn large() -> (Target, TempDir, PathBuf) {
    let (target, place) = (Target::start(), directory());
    pool_of(&target.url("orders"), 96 * MIB, &pattern(MIB).repeat(96));
    let export = place.path().join("export");
    pmof(["pool", "export", &target.url("orders"), text(&export)]).done();
    (target, place, export)
}

#[test]
fn an_export_that_is_ended_leaves_nothing() {
    let (target, place, _export) = large();
    let copy = place.path().join("copy");
    for signal in [Signal::INT, Signal::TERM] {
        let mut was_ended = false;
        // A machine may be quick enough to finish.
        for _ in 0..20 {
            let _ = fs::remove_file(&copy);
            let mut child = start(&["pool", "export", &target.url("orders"), text(&copy)]);
            let has_part = || files(place.path()).iter().any(|name| name.contains(".part"));
            wait_until("at work", || has_part() || child.try_wait().unwrap().is_some());
            let _ = kill_process(Pid::from_child(&child), signal);
            let ended = child.wait().unwrap();
            assert!(!has_part(), "{:?}", files(place.path()));
            was_ended = ended.signal() == Some(signal.as_raw()) && !copy.exists();
            if was_ended {
                break;
            }
        }
        assert!(was_ended, "never in the middle");
    }
}

#[test]
fn an_import_that_is_ended_leaves_no_pool() {
    let (mut target, _place, export) = large();
    let url = target.url("restored");
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let mut import = start(&["pool", "import", text(&export), &url]);
        wait_until("begun", || target.files().len() > 1);
        kill_process(Pid::from_child(&import), signal).unwrap();
        assert_eq!(import.wait().unwrap().signal(), Some(signal.as_raw()));
        wait_until("undone", || target.files() == ["orders"]);
    }
    let import = start(&["pool", "import", text(&export), &url]);
    wait_until("begun", || target.files().len() > 1);
    target.kill();
    Said::new(Instant::now(), import.wait_with_output().unwrap()).failed(&["cannot import"]);
    target.restart();
    assert_eq!(target.files(), ["orders"]);
}

/// The digests are compared with what the new pool holds, and not only with what was read.
#[test]
fn a_replica_that_is_damaged_before_the_look_is_found() {
    let (target, _place, export) = large();
    let import = start(&["pool", "import", text(&export), &target.url("restored")]);
    wait_until("begun", || target.files().len() > 1);
    let name = target.files().into_iter().find(|name| name != "orders").unwrap();
    let file = File::options().write(true).open(target.file(&name)).unwrap();
    let mut import = import;
    while import.try_wait().unwrap().is_none() {
        file.write_all_at(b"bit rot", pmof_control::DATA_OFFSET + 1000).unwrap();
    }
    let said = Said::new(Instant::now(), import.wait_with_output().unwrap());
    said.differs(&["replica 0", "differs from the export", "import again"]);
    wait_until("undone", || target.files() == ["orders"]);
}

/// A pool in a file of this machine, and over shared memory.
#[test]
fn pools_of_other_transports_are_exported() {
    let place = directory();
    let root = Path::new(place.path());
    let url = format!("file://{}/orders", text(root));
    pool_of(&url, MIB, b"orders");
    let mut export = command(["pool", "export", &url, "-"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut stream = Vec::new();
    export.stdout.take().unwrap().read_to_end(&mut stream).unwrap();
    assert!(export.wait().unwrap().success());
    let mut import = command(["pool", "import", "-", &format!("file://{}/restored", text(root))]);
    let mut import = import.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    import.stdin.take().unwrap().write_all(&stream).unwrap();
    assert!(import.wait().unwrap().success());
    assert_eq!(&contents(&format!("file://{}/restored", text(root)))[..6], b"orders");
}

#[test]
fn an_export_that_finds_no_room_says_what_to_do() {
    let target = Target::start();
    pool_of(&target.url("orders"), 3_000_000, b"orders");
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = command(["pool", "export", &target.url("orders"), "-"]).stdout(full).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), errors.lines().count()), (Some(1), 1), "{errors}");
    for words in [
        "to standard output: ",
        "there is no room for it: free space there, or write it elsewhere",
        "nothing of it is left",
    ] {
        assert!(errors.contains(words), "{errors}");
    }
}

/// As a copy is.
#[test]
fn an_export_of_fewer_replicas_than_there_are_is_warned_of() {
    let mut three: [Target; 3] = std::array::from_fn(|_| Target::start());
    let urls = [0, 1].map(|at: usize| three[at].url("ex"));
    let two = || options(&urls[0]).replica(&urls[1]);
    two().witness(three[2].url("ex")).create(MIB as u64).unwrap().close().unwrap();
    three[0].kill();
    change(&urls[1], 0, b"newer");
    three[0].restart();
    let (behind, place) = (three[0].url("ex"), tempfile::tempdir().unwrap());
    let export = |name: &str, more: &[&str]| {
        let file = place.path().join(name);
        pmof([&["pool", "export", "--min-replicas", "1", &behind, text(&file)], more].concat())
    };
    let said = export("one", &[]);
    assert_eq!(said.code, Some(0), "{said:?}");
    for words in ["warning: read from 1 of the 2 replicas of the pool", "the others may have newer data"] {
        assert!(said.errors.contains(words), "{words}: {said:?}");
    }
    assert!(!said.output.contains("as its writer closed it"), "{said:?}");
    let report: serde_json::Value = serde_json::from_str(&export("two", &["--json"]).output).unwrap();
    assert_eq!(
        (&report["degraded"]["opened_count"], &report["degraded"]["made_count"]),
        (&1.into(), &2.into()),
        "{report}"
    );
    // With all of them there is nothing to warn of.
    let whole = place.path().join("whole");
    let said = pmof(["pool", "export", &urls[1], text(&whole)]);
    assert!(said.code == Some(0), "{said:?}");
}
