//! Targets over libfabric's provider tcp.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    time::Instant,
};

use limited_fabric::{Limit, LimitedFabric};
use pmof::{Durability, Pool};

use crate::support::{LONG, Said, command, directory, file_with, pattern, pmof, text, wait_until};

/// A `pmof serve` over libfabric. Killed when dropped.
struct FabricTarget {
    child: Child,
    address: String,
}

impl FabricTarget {
    /// `None`, and skipped, where the library is not installed.
    fn start(root: &Path, listen: &str) -> Option<Self> {
        Self::start_with(root, listen, |_| {})
    }

    fn start_with(root: &Path, listen: &str, prepare: impl FnOnce(&mut Command)) -> Option<Self> {
        let mut serve = command(["serve", "--listen", listen, "--root"]);
        prepare(serve.arg(root).stdout(Stdio::piped()).stderr(Stdio::piped()));
        let mut child = serve.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let Some(address) = line.strip_prefix("ready ") else {
            let said = Said::new(Instant::now(), child.wait_with_output().unwrap());
            assert!(said.errors.contains("apt install libfabric1"), "{said:?}");
            skip_report::skipped!("no libfabric: {}", said.errors.trim_end());
            return None;
        };
        Some(Self { child, address: address.trim_end().to_owned() })
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for FabricTarget {
    fn drop(&mut self) {
        // Some tests have killed it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// While a client has one pool open, another pool that was closed, or whose writer was killed, is opened by others.
#[test]
fn pools_are_opened_again_while_others_are_in_use() {
    for provider in ["tcp", "net", "tcp-msg"] {
        let (root, place) = (directory(), directory());
        let Some(target) = FabricTarget::start(root.path(), &format!("fabric+{provider}://127.0.0.1:0")) else {
            return;
        };
        let ledger = |name: &str| place.path().join(name);
        let soak = |pool: &str, name: &str, more: &[&str]| {
            let (pool, ledger) = (format!("{}/{pool}", target.address), ledger(name));
            let words =
                ["soak", "write", "--pool", &pool, "--ledger", text(&ledger), "--seed", "5", "--durability", "visible"];
            let mut soak = command([&words[..], more].concat());
            soak.stdout(Stdio::null()).stderr(Stdio::piped());
            soak
        };
        let writes = |name: &'static str| {
            wait_until("writes", || {
                fs::read_to_string(ledger(name)).is_ok_and(|told| told.matches("ack ").count() > 20)
            });
        };
        let mut other = soak("other", "other", &["--create", "300000", "--time", "60s"]).spawn().unwrap();
        writes("other");

        let done = |mut soak: Command, what: &str| {
            let said = Said::new(Instant::now(), soak.output().unwrap());
            assert!(said.code == Some(0), "{provider}, {what}: {said:?}");
        };
        done(soak("one", "first", &["--create", "300000", "--time", "20ms"]), "created");
        done(soak("one", "closed", &["--time", "20ms"]), "opened behind a close");

        let mut killed = soak("one", "killed", &["--time", "60s"]).spawn().unwrap();
        writes("killed");
        killed.kill().unwrap();
        killed.wait().unwrap();
        done(soak("one", "last", &["--time", "20ms"]), "opened behind a kill");

        assert!(other.try_wait().unwrap().is_none(), "{provider}: it has to have been there");
        other.kill().unwrap();
        other.wait().unwrap();
    }
}

#[test]
fn a_pool_is_written_and_found_again_after_a_kill() {
    let (root, place) = (directory(), directory());
    let Some(mut target) = FabricTarget::start(root.path(), "fabric+tcp://127.0.0.1:0") else { return };
    let source = file_with(&place, "source", &pattern(3_000_001));
    let (copied, written) = (format!("{}/orders", target.address), format!("{}/ledger", target.address));
    let receipt = pmof(["cp", text(&source), &copied]).done();
    assert!(receipt.contains("power-failure on 1/1") && receipt.contains("send-after-write"), "{receipt}");

    // A writer is killed with its target: what was acknowledged is there.
    let ledger = place.path().join("ledger");
    let soak = ["soak", "write", "--pool", &written, "--create", "300000", "--durability", "power-failure"];
    let more = ["--ledger", text(&ledger), "--seed", "5", "--time", "60s"];
    let writer =
        command([&soak[..], &more[..]].concat()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("writes", || fs::read_to_string(&ledger).is_ok_and(|told| told.matches("ack ").count() > 20));
    target.kill();
    let start = Instant::now();
    let said = Said::new(start, writer.wait_with_output().unwrap());
    assert!(said.code != Some(0) && said.errors.contains(&written) && start.elapsed() < LONG, "{said:?}");

    let _again = FabricTarget::start(root.path(), &target.address).unwrap();
    let check = pmof(["soak", "check", "--pool", &written, "--ledger", text(&ledger), "--seed", "5"]).json();
    assert_eq!((&check["words_wrong"], &check["batches_lost"]), (&0.into(), &0.into()), "{check}");
    assert!(check["batches_acknowledged"].as_u64().unwrap() > 20, "{check}");
    let info = pmof(["pool", "info", &copied, "--json"]).done();
    assert!(info.contains("3000001"), "{info}");
    let back = place.path().join("back");
    pmof(["cp", &copied, text(&back)]).done();
    assert!(fs::read(&back).unwrap() == fs::read(&source).unwrap());
    assert_eq!(pmof(["pool", "ls", &target.address]).done(), "ledger\norders\n");
}

/// A pool of one target is the same over both transports; `fabric://` takes the library's choice at both ends.
#[test]
fn a_provider_of_the_librarys_choice_reaches_the_same_pools() {
    let (root, place) = (directory(), directory());
    let Some(target) = FabricTarget::start(root.path(), "fabric://127.0.0.1:0") else { return };
    let source = file_with(&place, "source", &pattern(100_000));
    pmof(["cp", text(&source), &format!("{}/orders", target.address)]).done();
    assert_eq!(pmof(["pool", "ls", &target.address]).done(), "orders\n");
}

#[test]
fn a_pool_is_released_beside_other_connections() {
    let (root, place) = (directory(), directory());
    let Some(target) = FabricTarget::start(root.path(), "fabric+tcp://127.0.0.1:0") else { return };
    let [url, other] = ["orders", "other"].map(|name| format!("{}/{name}", target.address));
    let options = |url| Pool::options().replica(url).require(Durability::ProcessCrash);
    let neighbour = options(&other).create(1 << 16).unwrap();

    let source = file_with(&place, "source", &pattern(1 << 16));
    pmof(["cp", text(&source), &url]).done();
    assert_eq!(pmof(["pool", "release", &url]).done(), format!("nobody has {url} open for writing\n"));
    let writer = options(&url).open().unwrap();
    let said = pmof(["pool", "release", &url]);
    assert!(!said.errors.contains("did not open it"), "{said:?}");
    said.failed(&["is open for writing by", "after 10000 ms"]);

    let said = pmof(["pool", "release", &url, "--silent-for", "0s"]).done();
    assert!(said.starts_with(&format!("released {url}, which the initiator at 127.0.0.1")), "{said}");
    writer.persist(0, b"late").unwrap_err();
    neighbour.persist(0, b"here").unwrap();
    options(&url).open().unwrap().close().unwrap();
    neighbour.close().unwrap();
}

#[test]
fn what_libfabric_cannot_do_is_said() {
    let (root, place) = (directory(), directory());
    let source = file_with(&place, "source", &pattern(100));
    pmof(["serve", "--root", ".", "--listen", "fabric+nowhere://127.0.0.1:0"])
        .wrong_use(&["there is no transport \"fabric+nowhere\"", "efa"]);
    let Some(target) = FabricTarget::start(root.path(), "fabric+tcp://127.0.0.1:0") else { return };
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("fabric+tcp://{}", taken.local_addr().unwrap());
    for (listen, words) in [
        ("fabric+cxi://127.0.0.1:0", &["has no cxi with", "RMA"][..]),
        ("fabric+sockets://127.0.0.1:0", &["sockets is not supported", "10 ms"]),
        ("fabric+shm://127.0.0.1:0", &["shm is not supported", "use shm://"]),
        ("fabric+tcp://no.such.host.invalid:0", &["no.such.host.invalid"]),
        ("fabric+tcp://192.0.2.1:0", &["192.0.2.1"]),
        (taken.as_str(), &["in use"]),
    ] {
        pmof(["serve", "--trust-network", "--root", text(root.path()), "--listen", listen]).failed(words);
    }
    for (url, words) in [
        ("fabric+tcp://no.such.host.invalid:1/x", &["no.such.host.invalid"][..]),
        ("fabric+tcp://127.0.0.1:1/x", &["cannot copy", "refused"]),
        ("fabric+tcp://[::1]:1/x", &["cannot copy", "refused"]),
        ("fabric+efa://127.0.0.1:1/x", &["has no efa with", "`pmof doctor` lists what it has"]),
        ("fabric+nosuch://127.0.0.1:1/x", &["there is no transport \"fabric+nosuch\"", "efa"]),
        ("fabric+net://127.0.0.1:99999/x", &["lacks a host, or its port", "write fabric+net://HOST[:PORT]"]),
        // A target of another provider, or of none.
        (&target.address.replace("fabric+tcp", "tcp"), &["HOST[:PORT]/POOL"]),
    ] {
        let said = pmof(["cp", text(&source), url]);
        let is_told = words.iter().all(|word| said.errors.contains(word));
        assert!(said.code != Some(0) && is_told && said.errors.lines().count() <= 8, "{url}: {said:?}");
    }
}

/// What a target that listens over another transport speaks is told at once, at both ends.
#[test]
fn an_address_of_another_transport_is_told_what_is_spoken() {
    let (root, logs) = (directory(), directory());
    let start = |listen: &str, log: &Path| {
        FabricTarget::start_with(root.path(), listen, |command| {
            command.args(["--log-file", text(log)]);
        })
    };
    let [log_of_net, log_of_tcp] = ["net", "tcp"].map(|name| logs.path().join(name));
    let Some(net) = start("fabric+net://127.0.0.1:0", &log_of_net) else { return };
    let tcp = start("tcp://127.0.0.1:0", &log_of_tcp).unwrap();
    // A target over RDS says this, before anybody else says something.
    let rds = TcpListener::bind("127.0.0.1:0").unwrap();
    let at_rds = rds.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut greeted = Vec::new();
        for stream in rds.incoming() {
            let mut stream = stream.unwrap();
            stream.write_all(b"pmoR\x01\0\x0c\0\0\x20\0\0\x7f\0\0\x01\x01\x02\0\0").unwrap();
            greeted.push(stream);
        }
    });
    let [at_net, at_tcp] = [&net, &tcp].map(|target| target.address.split_once("://").unwrap().1.to_owned());
    for (called, words) in [
        (format!("tcp://{at_net}"), format!("{at_net} speaks pmof over libfabric, not tcp: use fabric+net://{at_net}")),
        (
            format!("fabric+tcp://{at_net}"),
            format!("{at_net} speaks pmof over fabric+net, not fabric+tcp: use fabric+net://{at_net}"),
        ),
        (format!("fabric+net://{at_tcp}"), format!("{at_tcp} speaks pmof over tcp, not libfabric: use tcp://{at_tcp}")),
        (format!("tcp://{at_rds}"), format!("{at_rds} speaks pmof over RDS, not tcp: use rds://{at_rds}")),
        (format!("fabric+net://{at_rds}"), format!("{at_rds} speaks pmof over RDS, not libfabric: use rds://{at_rds}")),
    ] {
        let said = pmof(["pool", "ls", &called]);
        assert!(said.errors.contains(&words) && !said.errors.contains("running"), "{called}: {said:?}");
        assert!(said.code == Some(1), "{called}: {said:?}");
    }
    // It runs, and what is wrong is here.
    let said = pmof(["pool", "info", &format!("{}/x?source=192.0.2.1", net.address)]);
    assert!(!said.errors.contains("running"), "{said:?}");
    said.failed(&["no interface of this machine has the address"]);
    // An initiator over RDS begins so.
    for (at, answer) in [(&at_net, &b"pmoF"[..]), (&at_tcp, b"\xf1\0\0\0PMOF")] {
        let mut stream = TcpStream::connect(at.as_str()).unwrap();
        stream.write_all(b"pmoR").unwrap();
        let mut heard = vec![0; answer.len()];
        stream.read_exact(&mut heard).unwrap();
        assert_eq!(heard, answer);
        // It is dropped.
        stream.read_to_end(&mut heard).unwrap();
    }
    for (log, theirs, ours, scheme) in [
        (&log_of_net, "tcp", "libfabric", "fabric+net"),
        (&log_of_net, "RDS", "libfabric", "fabric+net"),
        (&log_of_tcp, "libfabric", "tcp", "tcp"),
        (&log_of_tcp, "RDS", "tcp", "tcp"),
    ] {
        let words = format!("was not made: it speaks pmof over {theirs}, not {ours}: it has to use {scheme}://");
        wait_until("it is in the log", || fs::read_to_string(log).unwrap().contains(&words));
    }
}

#[test]
fn the_memory_budget_says_what_a_connection_takes() {
    let (root, logs) = (directory(), directory());
    let log = logs.path().join("log");
    let target = FabricTarget::start_with(root.path(), "fabric+tcp://127.0.0.1:0", |command| {
        command.args(["--memory-budget", &(100_u64 << 20).to_string(), "--log-file", text(&log)]);
    });
    let Some(target) = target else { return };
    let url = format!("{}/orders", target.address);
    let pool = Pool::options().replica(&url).require(Durability::ProcessCrash).create(1 << 16).unwrap();
    let said = pmof(["pool", "info", &url]);
    assert!(!said.errors.contains("--max-connections"), "{said:?}");
    said.failed(&[
        "no memory for one more connection",
        "96 MiB over libfabric's datagram providers",
        "--memory-budget",
    ]);
    let words = "it takes 98304 KiB of --memory-budget, of which 98304 of 102400 KiB are in use";
    wait_until("it is in the log", || fs::read_to_string(&log).unwrap().contains(words));
    pool.close().unwrap();
}

/// What a device needs is no matter where there is none.
#[test]
fn a_device_that_is_missing_comes_before_its_settings() {
    let offers = pmof(["doctor"]).done();
    if offers.contains("verbs;ofi_rxm") || !offers.contains("fabric+tcp") {
        return skip_report::skipped!("there is a device, or no libfabric");
    }
    let said = pmof(["pool", "info", "fabric+verbs://127.0.0.1:1/x"]);
    assert!(!said.errors.contains("FI_OFI_RXM_USE_SRX"), "{said:?}");
    said.failed(&["has no verbs;ofi_rxm with"]);
}

/// Where the library cannot be loaded, what asks for it says how to get it, and all else works.
#[test]
fn a_library_that_cannot_be_loaded_harms_nothing_else() {
    let (root, library) = (directory(), directory());
    fs::write(library.path().join("libfabric.so.1"), "no library").unwrap();
    let pmof = |arguments: &[&str]| {
        let start = Instant::now();
        Said::new(start, command(arguments).env("LD_LIBRARY_PATH", library.path()).output().unwrap())
    };
    let words = ["cannot load libfabric.so.1", "apt install libfabric1"];
    pmof(&["serve", "--root", text(root.path()), "--listen", "fabric+tcp://127.0.0.1:0"]).failed(&words);
    pmof(&["pool", "info", "fabric+tcp://127.0.0.1:1/x"]).failed(&words);
    assert!(pmof(&["doctor"]).done().contains("\nlibfabric\n  cannot be used: cannot load libfabric.so.1"));
    let (source, url) = (file_with(&root, "source", b"kept"), format!("file://{}/pool", root.path().display()));
    pmof(&["cp", text(&source), &url]).done();
}

/// What a library of another version, or with poorer providers, cannot do is said, and costs nothing else.
#[test]
fn a_limited_library_is_refused_or_served_otherwise() {
    let limited = match LimitedFabric::build() {
        Ok(limited) => limited,
        Err(why) => return skip_report::skipped!("{why}"),
    };
    let root = directory();
    let listen = ["serve", "--root", text(root.path()), "--listen", "fabric+tcp://127.0.0.1:0"];
    let url = "fabric+tcp://127.0.0.1:1/x";
    for (limit, words) in [
        (
            Limit::Minor(10),
            &["libfabric.so.1 is version 1.10", "needs libfabric 1.17 or later", "apt install libfabric1"][..],
        ),
        (Limit::NoRma, &["'s tcp lacks RMA (FI_RMA)", "use another provider"]),
    ] {
        for arguments in [&listen[..], &["pool", "info", url]] {
            let start = Instant::now();
            Said::new(start, limited.limit(&mut command(arguments), limit).output().unwrap()).failed(words);
        }
    }

    // No region can be registered at either side: messages carry all bytes.
    let log = root.path().join("log");
    let target = FabricTarget::start_with(root.path(), listen[4], |command| {
        limited.limit(command, Limit::Regions(0)).args(["--log-level", "debug", "--log-file", text(&log)]);
    });
    let Some(target) = target else { return };
    let (bytes, url) = (pattern(3_000_001), format!("{}/orders", target.address));
    let (source, back) = (file_with(&root, "source", &bytes), root.path().join("back"));
    for (from, to) in [(text(&source), url.as_str()), (url.as_str(), text(&back))] {
        let start = Instant::now();
        let mut command = command(["cp", from, to]);
        Said::new(start, limited.limit(&mut command, Limit::Regions(0)).output().unwrap()).done();
    }
    assert!(fs::read(&back).unwrap() == bytes);
    let log = fs::read_to_string(&log).unwrap();
    assert!(log.contains("is served by this CPU: tcp") && log.contains("has no room to register"), "{log}");
}

#[test]
fn the_demo_and_chaos_run_over_libfabric() {
    let place = directory();
    let Some(target) = FabricTarget::start(place.path(), "fabric+tcp://127.0.0.1:0") else { return };
    drop(target);
    let demo = ["demo", "--transport", "fabric+tcp", "--time", "1s", "--json", "--dir", text(place.path())];
    let report = pmof(demo).json();
    assert_eq!(report["transport"], "fabric+tcp", "{report}");
    let chaos = ["chaos", "--transport", "fabric+tcp", "--kills", "2", "--pauses", "1", "--json"];
    // An endpoint takes a tenth of a second to open.
    let more = ["--loss-timeout", "3000ms", "--dir", text(place.path())];
    let report = pmof([&chaos[..], &more].concat()).json();
    assert_eq!(report["transport"], "fabric+tcp", "{report}");
    let wrong = pmof(["chaos", "--transport", "fabric+tcp", "--cuts", "1"]);
    assert!(wrong.code != Some(0) && wrong.errors.contains("--cuts"), "{wrong:?}");
}

#[test]
fn the_doctor_lists_providers() {
    let report = pmof(["doctor", "--json"]).json();
    if report["libfabric"]["unusable"].is_object() {
        let why = report["libfabric"]["unusable"]["reason"].as_str().unwrap();
        assert!(why.contains("apt install libfabric1"), "{why}");
        skip_report::skipped!("no libfabric: {why}");
        return;
    }
    let providers = report["libfabric"]["found"]["providers"].as_array().unwrap();
    let of = |scheme: &str| providers.iter().find(|provider| provider["scheme"] == scheme);
    for scheme in ["fabric+tcp", "fabric+tcp-msg"] {
        assert!(of(scheme).unwrap()["reason"].is_null(), "{report}");
    }
    if let Some(udp) = providers.iter().find(|provider| provider["name"] == "udp") {
        assert!(udp["reason"].as_str().unwrap().contains("it lacks"), "{report}");
    }
    if let Some(sockets) = of("fabric+sockets") {
        assert!(sockets["reason"].as_str().unwrap().contains("10 ms"), "{report}");
    }
    let text = pmof(["doctor"]).done();
    assert!(text.contains("fabric+tcp://, flushed by the target's CPU"), "{text}");
}

/// Who waits in polling finds the same calls on bare endpoints beside.
#[test]
fn latency_and_bandwidth_have_a_floor() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let Some(target) = FabricTarget::start(place.path(), "fabric+tcp://127.0.0.1:0") else { return };
    drop(target);
    let common = ["--count", "50", "--rounds", "2", "--json", "--dir", text(place.path())];
    for transport in ["fabric+tcp", "fabric+tcp-msg"] {
        for (what, size, ratio) in [
            ("latency", "64", "ratio_p50"),
            ("latency", "4096", "ratio_p50"),
            ("bandwidth", "65536", "ratio_bandwidth"),
        ] {
            let of = ["bench", what, "--transport", transport, "--size", size];
            let report = pmof([&of[..], &common[..]].concat()).json();
            assert!(report[ratio].as_f64().is_some_and(|number| number > 0.0), "{ratio} of {report}");
            assert_eq!(report["method"], "send-after-write", "{report}");
        }
        let of = ["bench", "latency", "--transport", transport, "--waiting", "adaptive"];
        let report = pmof([&of[..], &common[..]].concat()).json();
        assert!(report["ratio_p50"].is_null(), "{report}");
        assert!(report["no_floor"].as_str().is_some_and(|why| why.contains("spins")), "{report}");
    }
}
