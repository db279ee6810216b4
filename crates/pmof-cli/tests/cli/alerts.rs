//! What metrics and the log say of pools that lack members and of roots that are taken away, and the alerts on it.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command},
};

use pmof::{Durability, Pool, PoolOptions};
use skip_report::skipped;

use crate::{
    logs::Logged,
    metrics::{measured, scrape},
    support::{command, directory, pmof, text, wait_until},
};

fn pool_of(targets: &[(Logged, String)]) -> PoolOptions {
    let options = Pool::options().require(Durability::ProcessCrash);
    targets.iter().fold(options, |options, (target, _)| options.replica(target.url("orders")))
}

fn value(at: &str, name: &str) -> i64 {
    *scrape(at).get(name).unwrap_or_else(|| panic!("{name} is not exported: {:?}", scrape(at)))
}

/// `increase` sees nothing of a series that begins with its first event.
#[test]
fn every_reason_is_exported_before_its_first_event() {
    let (_target, at) = measured(&[]);
    let now = scrape(&at);
    for name in [
        "pmof_operations_refused_total{reason=\"medium_failed\"}",
        "pmof_operations_refused_total{reason=\"no_memory\"}",
        "pmof_requests_refused_total{request=\"create\",reason=\"no_space\"}",
        "pmof_requests_refused_total{request=\"create\",reason=\"not_writable\"}",
        "pmof_requests_refused_total{request=\"writer_status\",reason=\"failed\"}",
        "pmof_connections_refused_total{reason=\"memory_budget\"}",
        "pmof_pool_files_lost_total",
        "pmof_pools_left_open_total",
        "pmof_medium_wait_failures_total",
    ] {
        assert_eq!(now.get(name), Some(&0), "{name}");
    }
}

#[test]
fn a_deleted_file_is_a_degraded_pool_and_no_lost_writer() {
    let targets = [measured(&[]), measured(&[]), measured(&[])];
    let pool = pool_of(&targets).create(1 << 20).unwrap();
    let [(_, first), _, (third, third_at)] = &targets;
    let of = |name: &str| value(first, &format!("{name}{{pool=\"orders\"}}"));
    assert_eq!(
        (of("pmof_pool_members"), of("pmof_pool_members_in_sync"), value(first, "pmof_pools_degraded")),
        (3, 3, 0)
    );
    fs::remove_file(third.root.path().join("orders")).unwrap();
    wait_until("degraded", || {
        pool.persist(0, b"kept").unwrap();
        value(first, "pmof_pools_degraded") == 1
    });
    assert_eq!((of("pmof_pool_members_missing"), of("pmof_pool_members_in_sync")), (1, 2));
    assert_eq!((of("pmof_pool_unprotected"), value(first, "pmof_pools_unprotected")), (0, 0));
    wait_until("the connection has ended", || value(third_at, "pmof_connections") == 0);
    assert_eq!(value(third_at, "pmof_pool_files_lost_total"), 1);
    assert_eq!(value(third_at, "pmof_pools_left_open_total"), 0, "its writer lives");
    third.line(&[" error pool_file_lost: the file of pool orders, which the initiator at 127.0.0.1", "pool=orders"]);
    assert!(!third.text().contains("pool_left_open"), "{}", third.text());
    pool.close().unwrap();
    // For a pool that is not open, the target reads it from the file.
    assert_eq!((value(first, "pmof_pools_degraded"), of("pmof_pool_members_missing")), (1, 1));
}

#[test]
fn the_last_copy_of_a_pool_is_unprotected_until_another_is_back() {
    let targets = [measured(&[]), measured(&[]), measured(&[])];
    let two = &targets[..2];
    let pool = pool_of(two).create(1 << 20).unwrap();
    let (second, at) = (&targets[1].0, &targets[0].1);
    // A witness, so that one of two goes on, which keeps nothing and counts for nothing.
    pool.add_witness(&targets[2].0.url("orders")).unwrap();
    fs::remove_file(second.root.path().join("orders")).unwrap();
    wait_until("unprotected", || {
        pool.persist(0, b"kept").unwrap();
        value(at, "pmof_pools_unprotected") == 1
    });
    assert_eq!(value(at, "pmof_pool_unprotected{pool=\"orders\"}"), 1);
    assert_eq!(value(at, "pmof_pool_members{pool=\"orders\"}"), 2, "a witness is no member with the bytes");
    pool.replace("1", &second.url("again")).unwrap();
    wait_until("protected again", || {
        pool.persist(0, b"kept").unwrap();
        value(at, "pmof_pools_unprotected") == 0
    });
    assert_eq!(value(at, "pmof_pools_degraded"), 0);
    pool.close().unwrap();
    assert_eq!((value(at, "pmof_pools_unprotected"), value(at, "pmof_pools_degraded")), (0, 0));
}

#[test]
fn the_last_scrub_of_a_pool_is_told() {
    let targets = [measured(&[]), measured(&[])];
    pool_of(&targets).create(1 << 20).unwrap().close().unwrap();
    let name = "pmof_pool_last_scrub_timestamp_seconds{pool=\"orders\"}";
    assert_eq!(scrape(&targets[0].1).get(name), None);
    pmof(["pool", "scrub", &targets[0].0.url("orders")]);
    for (_, at) in &targets {
        assert!(value(at, name) > 1_700_000_000);
    }
}

/// The worst come first, and all count in the totals.
#[test]
fn pools_are_named_within_the_bound() {
    let targets = [measured(&["--metrics-pools", "2"]), measured(&["--metrics-pools", "0"])];
    for name in ["a", "b"] {
        targets[0].0.create(name).close().unwrap();
    }
    let pool = pool_of(&targets).create(1 << 20).unwrap();
    let named = |at: &str| -> BTreeSet<_> {
        let names =
            scrape(at).into_keys().filter_map(|name| name.strip_prefix("pmof_pool_members{").map(str::to_owned));
        names.collect()
    };
    let (first, second) = (&targets[0].1, &targets[1].1);
    assert_eq!(named(first), BTreeSet::from(["pool=\"a\"}".to_owned(), "pool=\"orders\"}".to_owned()]));
    assert_eq!(named(second), BTreeSet::new());
    assert_eq!(value(second, "pmof_pools{state=\"being_written\"}"), 1);
    pool.close().unwrap();
}

/// A process in mount and user namespaces of its own.
fn in_namespace(script: &str, place: &Path, options: &[&str]) -> Command {
    let mut shell = Command::new("unshare");
    shell.args(["--user", "--map-root-user", "--mount", "sh", "-c"]);
    shell.arg(format!("{script}\nexec \"$@\""));
    shell.args(["sh", env!("CARGO_BIN_EXE_pmof"), "serve", "--listen", "tcp://127.0.0.1:0", "--root"]);
    shell.arg(place).args(options);
    shell
}

fn can_mount() -> bool {
    let tried = in_namespace("mount -t tmpfs none /mnt && exit 0; exit 1", Path::new("/"), &[]).output();
    tried.is_ok_and(|said| said.status.success())
}

/// A target whose root is a mount of its own, with its log, its address and where its metrics are. Killed when dropped.
struct Mounted {
    child: Child,
    root: PathBuf,
    log: PathBuf,
    address: String,
    at: String,
    _place: tempfile::TempDir,
}

impl Mounted {
    fn start(script: &str) -> Self {
        let place = directory();
        let (root, log, ready) = (place.path().join("root"), place.path().join("log"), place.path().join("ready"));
        fs::create_dir(&root).unwrap();
        let script = script.replace("ROOT", text(&root));
        let mut serve = in_namespace(&script, &root, &["--metrics", "127.0.0.1:0", "--log-file", text(&log)]);
        let child = serve.stdout(fs::File::create(&ready).unwrap()).spawn().unwrap();
        let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        wait_until("ready", || read(&ready).ends_with('\n'));
        let address = read(&ready).trim_start_matches("ready ").trim_end().to_owned();
        let text = read(&log);
        let at =
            text.split("metrics are served at http://").nth(1).unwrap().split("/metrics").next().unwrap().to_owned();
        Self { child, root, log, address, at, _place: place }
    }

    /// In the target's namespaces.
    fn run(&self, script: &str) {
        let id = self.child.id().to_string();
        let script = script.replace("ROOT", text(&self.root));
        let mut shell = Command::new("nsenter");
        shell.args(["--target", &id, "--user", "--mount", "--preserve-credentials", "sh", "-c", &script]);
        let said = shell.output().unwrap();
        assert!(said.status.success(), "{said:?}");
    }

    fn url(&self, name: &str) -> String {
        format!("{}/{name}", self.address)
    }

    fn create(&self, name: &str) -> Result<Pool, pmof::PoolError> {
        Pool::options().replica(self.url(name)).require(Durability::ProcessCrash).create(1 << 16)
    }

    fn wait_for(&self, event: &str) {
        wait_until(event, || fs::read_to_string(&self.log).unwrap().contains(event));
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn a_root_that_is_mounted_over_or_unmounted_takes_no_pools() {
    if !can_mount() {
        return skipped!("no user and mount namespaces here (unshare --user --mount)");
    }
    for (away, back) in [("mount -t tmpfs none ROOT", Some("umount ROOT")), ("umount --lazy ROOT", None)] {
        let target = Mounted::start("mount -t tmpfs none ROOT");
        let open = target.create("open").unwrap();
        target.create("closed").unwrap().close().unwrap();
        assert_eq!(value(&target.at, "pmof_root_attached"), 1);
        target.run(away);
        let said = target.create("lost").err().map(|error| pmof::causes(&error).to_string()).unwrap_or_default();
        assert!(said.contains("is no longer the directory that this target opened"), "{away}: {said}");
        let again = Pool::options().replica(target.url("closed")).require(Durability::ProcessCrash);
        assert!(again.open().is_err() && again.open_read_only().is_err(), "{away}");
        pmof(["pool", "rm", &target.url("closed")]).failed(&["is no longer the directory that this target opened"]);
        assert_eq!(value(&target.at, "pmof_root_attached"), 0);
        let status = pmof(["status", &target.address]).done();
        assert!(status.contains("which was unmounted, mounted over, renamed or removed"), "{status}");
        assert_eq!(pmof(["status", "--json", &target.address]).json()["is_root_attached"], false);
        target.wait_for(" error root_detached: ");
        // What is open is written where it was.
        open.persist(0, b"kept").unwrap();
        open.close().unwrap();
        let Some(back) = back else { continue };
        target.run(back);
        target.create("made").unwrap().close().unwrap();
        assert_eq!(value(&target.at, "pmof_root_attached"), 1);
        target.wait_for(" info root_attached: ");
        assert!(pmof(["pool", "ls", &target.address]).done().contains("made"));
    }
}

#[test]
fn a_root_that_is_another_directory_by_now_takes_no_pools() {
    let (target, at) = measured(&[]);
    let (root, moved) = (target.root.path().to_owned(), target.place.path().join("moved"));
    target.create("orders").close().unwrap();
    fs::rename(&root, &moved).unwrap();
    fs::create_dir(&root).unwrap();
    let options = Pool::options().replica(target.url("orders")).require(Durability::ProcessCrash);
    assert!(options.open().is_err());
    let mut source = command(["cp", "/dev/null"]);
    assert!(!source.arg(target.url("copied")).output().unwrap().status.success());
    assert_eq!(value(&at, "pmof_root_attached"), 0);
    assert!(!moved.join("copied").exists() && !root.join("copied").exists());
    fs::remove_dir(&root).unwrap();
    fs::rename(&moved, &root).unwrap();
    options.open().unwrap().close().unwrap();
}

#[test]
fn a_read_only_root_is_told_and_serves_readers() {
    if !can_mount() {
        return skipped!("no user and mount namespaces here (unshare --user --mount)");
    }
    let target = Mounted::start("mount -t tmpfs none ROOT");
    target.create("orders").unwrap().close().unwrap();
    assert_eq!(value(&target.at, "pmof_root_writable"), 1);
    target.run("mount -o remount,ro ROOT");
    assert_eq!(value(&target.at, "pmof_root_writable"), 0);
    target.wait_for(" warn root_not_writable: no pool can be made in ");
    assert!(target.create("more").is_err());
    assert_eq!(value(&target.at, "pmof_requests_refused_total{request=\"create\",reason=\"not_writable\"}"), 1);
    let status = pmof(["status", &target.address]).done();
    assert!(status.contains("where no pool can be made: it is read-only for the target"), "{status}");
    Pool::options().replica(target.url("orders")).require(Durability::ProcessCrash).open_read_only().unwrap();
    target.run("mount -o remount,rw ROOT");
    target.wait_for(" info root_writable: ");
    target.create("more").unwrap().close().unwrap();
}

/// Each alert is shown to fire and to clear.
#[test]
fn each_alert_fires_and_clears() {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/prometheus");
    let read = |file: &str| fs::read_to_string(packaging.join(file)).unwrap();
    let tests = ["pmof-alerts.test.yml", "pmof-alerts.months.test.yml"];
    let rules = read("pmof-alerts.yml");
    let alerts: Vec<_> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() >= 15, "{alerts:?}");
    let cases = tests.map(read).concat();
    for alert in alerts {
        assert!(cases.contains(&format!("alertname=\"{alert}\"")), "no test sees {alert} fire");
    }
    // Each ends with none that fires.
    for test in cases.split("  - name: ").skip(1) {
        let last = test.lines().rfind(|line| line.contains("exp_samples")).unwrap();
        assert_eq!(last.trim(), "exp_samples: []", "{test}");
    }
    for test in tests {
        match Command::new("promtool").args(["test", "rules", test]).current_dir(&packaging).output() {
            Ok(said) => assert!(said.status.success(), "{said:?}"),
            Err(_) => return skipped!("no promtool here (Debian package prometheus)"),
        }
    }
}

#[test]
fn a_root_that_is_moved_away_is_told_with_the_status() {
    let target = Logged::start(&[]);
    target.create("orders").close().unwrap();
    let (root, moved) = (target.root.path().to_owned(), target.place.path().join("moved"));
    fs::rename(&root, &moved).unwrap();
    target.line(&[" error root_detached: "]);
    let status = pmof(["status", &target.address]).done();
    let words = ["which was unmounted, mounted over, renamed or removed", "pools        1\n", "orders"];
    assert!(words.iter().all(|words| status.contains(words)), "{status}");
    // Removed, it has no pools that could be listed.
    fs::remove_dir_all(&moved).unwrap();
    let status = pmof(["status", &target.address]).done();
    let words = ["which was unmounted, mounted over, renamed or removed", "pools        not known: "];
    assert!(words.iter().all(|words| status.contains(words)), "{status}");
    let report = pmof(["status", "--json", &target.address]).json();
    assert_eq!((&report["is_root_attached"], &report["pools"]), (&false.into(), &serde_json::Value::Null));
    pmof(["pool", "ls", &target.address]).failed(&["cannot list the pools"]);
}

/// What is read-only while its path leads elsewhere is no news, and neither is the end of that: no pool can be made there.
#[test]
fn a_detached_root_is_not_called_writable() {
    if !can_mount() {
        return skipped!("no user and mount namespaces here (unshare --user --mount)");
    }
    let target = Mounted::start("mount -t tmpfs none ROOT && mount -o remount,ro ROOT");
    target.wait_for(" warn root_not_writable: ");
    target.run("mount -o remount,rw ROOT && mount -t tmpfs none ROOT");
    target.wait_for(" error root_detached: ");
    std::thread::sleep(std::time::Duration::from_millis(2500));
    let log = fs::read_to_string(&target.log).unwrap();
    assert!(!log.contains(" root_writable: "), "{log}");
    target.run("umount ROOT");
    target.wait_for(" info root_attached: ");
    target.wait_for(" info root_writable: ");
}
