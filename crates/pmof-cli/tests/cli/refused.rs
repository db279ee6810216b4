//! Bad input: the exit status, the words, and that nothing is left half-made.

use std::{
    fs::{self, File},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::net::UnixListener,
    path::Path,
    time::Instant,
};

use rustix::process::{Pid, Resource, Rlimit};

use crate::support::{
    LONG, Said, Target, change_header, command, directory, file_with, files, pattern, pmof, serve_with, text,
    wait_until,
};

#[test]
fn unknown_and_existing_pools() {
    let (target, place) = (Target::start(), directory());
    let (source, back) = (file_with(&place, "source", b"first"), place.path().join("back"));
    let (url, list) = (target.url("orders"), format!("`pmof pool ls {}`", target.address));
    pmof(["cp", &url, text(&back)]).failed(&["cannot copy", "there is no pool orders", &list]);
    pmof(["pool", "info", &url]).failed(&["there is no pool orders", &list]);
    pmof(["cp", text(&source), &url]).done();
    let other = file_with(&place, "other", b"second");
    pmof(["cp", text(&other), &url]).failed(&["orders exists", &format!("`pmof pool rm {url}`")]);
    pmof(["cp", &url, text(&back)]).done();
    assert_eq!(fs::read(&back).unwrap(), b"first");

    // Nothing is removed where one is not there, whichever of them.
    let missing = target.url("missing");
    for places in [[&missing, &url], [&url, &missing]] {
        let said = pmof(["pool", "rm", places[0], places[1]]);
        assert_eq!((said.code, &*said.output), (Some(1), ""));
        said.failed(&["there is no pool missing", "nothing was removed"]);
        assert!(!target.files().is_empty());
    }
    assert_eq!(pmof(["pool", "rm", &url]).done(), format!("removed {url}\n"));
    assert!(target.files().is_empty());
    assert_eq!(pmof(["pool", "ls", &target.address]).done(), "");
}

#[test]
fn roots() {
    let place = directory();
    let missing = place.path().join("missing");
    let file = file_with(&place, "file", b"");
    for root in [text(&missing), text(&file), ""] {
        let said = pmof(["serve", "--listen", "tcp://127.0.0.1:0", "--root", root]);
        if root.is_empty() {
            said.wrong_use(&["--root"]);
        } else {
            said.failed(&[root, "cannot be the root", "name an existing directory"]);
        }
    }
    pmof(["serve"]).wrong_use(&["--root"]);
    // Not even the superuser can make files here.
    let (mut child, address) = crate::support::serve(Path::new("/sys/kernel"));
    let source = file_with(&place, "source", b"x");
    let said = pmof(["cp", text(&source), &format!("{address}/orders")]);
    child.kill().unwrap();
    child.wait().unwrap();
    said.failed(&["no pool can be made in /sys/kernel", "make the directory writable"]);
}

#[test]
fn names_and_schemes() {
    let target = Target::start();
    let place = directory();
    let source = file_with(&place, "source", b"x");
    for (name, words) in [
        ("..", &["begins with a dot"][..]),
        (".hidden", &["begins with a dot"]),
        ("../../etc/passwd", &["'/'"]),
        ("a/b", &["'/'"]),
        ("", &["names no pool"]),
        ("a\nb", &["control characters"]),
        (&"n".repeat(10_000), &["10000 bytes", "255"]),
    ] {
        pmof(["cp", text(&source), &target.url(name)]).wrong_use(words);
        pmof(["pool", "info", &target.url(name)]).wrong_use(words);
    }
    for url in ["rdma://host:1/pool", "http://127.0.0.1/pool", "://x/pool"] {
        pmof(["cp", text(&source), url]).wrong_use(&["is no pool URL", "tcp://HOST[:PORT]/POOL", "ssh://"]);
        pmof(["pool", "rm", url]).wrong_use(&["is no pool URL", "tcp://HOST[:PORT]/POOL", "ssh://"]);
        pmof(["pool", "ls", url]).wrong_use(&["there is no transport", "tcp, shm, verbs, fabric"]);
        pmof(["serve", "--root", ".", "--listen", url])
            .wrong_use(&["there is no transport", "tcp, shm, verbs, fabric"]);
    }
    for url in ["tcp:///pool", "tcp://host:99999/pool", "tcp://:1/pool"] {
        pmof(["cp", text(&source), url]).wrong_use(&["HOST[:PORT]"]);
    }
    // The longest name that is allowed.
    pmof(["cp", text(&source), &target.url(&"n".repeat(255))]).done();
    assert_eq!(target.files(), ["n".repeat(255)]);
}

#[test]
fn wrong_use_of_cp() {
    let target = Target::start();
    let place = directory();
    let source = file_with(&place, "source", b"x");
    let (a, b) = (target.url("a"), target.url("b"));
    pmof(["cp", text(&source), "elsewhere"]).wrong_use(&["one of SRC and DST must be a file", "tcp://"]);
    pmof(["cp", &a, &b]).wrong_use(&["one of SRC and DST must be a file"]);
    pmof(["cp", text(&source)]).wrong_use(&["<DST>"]);
    pmof(["cp", text(&source), &a, "--force"]).wrong_use(&["--force is for files"]);
    pmof(["cp", &a, "back", "--durability", "visible"]).wrong_use(&["--durability is for new pools"]);
    pmof(["cp", text(&source), &a, "--replica", &a]).failed(&["named twice"]);
    assert!(target.files().is_empty());
}

#[test]
fn sources_that_are_no_regular_files() {
    let (target, place) = (Target::start(), directory());
    let fifo = place.path().join("fifo");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let socket = place.path().join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    let url = target.url("orders");
    for (path, word) in [
        (place.path(), "a directory"),
        (&fifo, "a pipe"),
        (&socket, "a socket"),
        (Path::new("/dev/zero"), "a device"),
        (&place.path().join("missing"), "No such file"),
    ] {
        pmof(["cp", text(path), &url]).failed(&[word]);
    }
    assert!(target.files().is_empty());
}

#[test]
fn files_that_are_no_usable_pools() {
    let (target, place) = (Target::start(), directory());
    let source = file_with(&place, "source", &pattern(100_000));
    let back = place.path().join("back");
    let letter = b"a letter to my aunt".repeat(1000);
    fs::write(target.file("letter"), &letter).unwrap();
    for name in ["newer", "feature", "torn", "short"] {
        pmof(["cp", text(&source), &target.url(name)]).done();
    }
    change_header(&target.file("newer"), 8, &[5, 0]);
    change_header(&target.file("feature"), 16, &[1]);
    let mut torn = fs::read(target.file("torn")).unwrap();
    torn[70] ^= 1;
    fs::write(target.file("torn"), &torn).unwrap();
    File::options().write(true).open(target.file("short")).unwrap().set_len(50_000).unwrap();

    for (name, words) in [
        ("letter", &["letter was not touched", "it is not a pool"][..]),
        ("newer", &["version 5.0", "use a newer pmof"]),
        ("feature", &["features 0x1", "use a newer pmof"]),
        ("torn", &["header is damaged", "restore it"]),
        ("short", &["has 50000 bytes", "restore it"]),
    ] {
        let url = target.url(name);
        pmof(["cp", &url, text(&back)]).failed(words);
        pmof(["pool", "info", &url]).failed(words);
        pmof(["cp", text(&source), &url]).failed(&["exists"]);
    }
    assert!(!back.exists());
    // What is no pool is not removed either; what is damaged is kept for the repair.
    for name in ["letter", "torn"] {
        let said = pmof(["pool", "rm", &target.url(name)]);
        assert_eq!(said.code, Some(1), "{said:?}");
    }
    assert!(fs::read(target.file("letter")).unwrap() == letter);
    assert!(fs::read(target.file("torn")).unwrap() == torn);
    assert_eq!(pmof(["pool", "ls", &target.address]).done(), "feature\nnewer\nshort\ntorn\n");
}

#[test]
fn full_disks_at_both_ends() {
    let (target, place) = (Target::start(), directory());
    // tmpfs allows files longer than any disk.
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let huge = memory.path().join("huge");
    for (len_bytes, words) in [
        (15_u64 << 40, &["no room", "free space there"][..]),
        (1 << 60, &["are allowed", "ask for less", "--max-pool-size"]),
    ] {
        File::create(&huge).unwrap().set_len(len_bytes).unwrap();
        let said = pmof(["cp", text(&huge), &target.url("huge")]);
        said.failed(words);
        assert!(target.files().is_empty());
    }
    let source = file_with(&place, "source", &pattern(3 << 20));
    let url = target.url("orders");
    pmof(["cp", text(&source), &url]).done();
    // Into a directory where no file can be made.
    pmof(["cp", &url, "/sys/kernel/back"]).failed(&["/sys/kernel", "open"]);
}

#[test]
fn addresses_to_listen_on() {
    let target = Target::start();
    let root = directory();
    let listen = |address: &str| pmof(["serve", "--root", text(root.path()), "--listen", address]);
    listen(&target.address).failed(&["cannot listen on", "in use", "a port that is free"]);
    for address in ["tcp://0.0.0.0:0", "tcp://[::]:0", "tcp://192.0.2.1:0"] {
        listen(address).failed(&["will not listen on", "not authenticated", "loopback"]);
    }
    listen("tcp://no-such-host.invalid:0").failed(&["cannot listen on", "no-such-host.invalid", "name an address"]);
}

#[test]
fn targets_out_of_reach_are_given_up_in_time() {
    let place = directory();
    let source = file_with(&place, "source", b"x");
    // One that no other test could take meanwhile.
    let closed = SocketAddr::from(([127, 0, 0, 1], 1));
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for (address, words) in [
        (closed, &["cannot reach", "refused", "is the target running there?"][..]),
        (silent.local_addr().unwrap(), &["did not answer within", "is it a pmof target"]),
    ] {
        let url = format!("tcp://{address}/orders");
        let back = place.path().join("back");
        let calls = [
            vec!["cp", text(&source), &url],
            vec!["cp", &url, text(&back)],
            vec!["pool", "info", &url],
            vec!["pool", "rm", &url],
        ];
        // At once, since each waits as long as it may.
        let children: Vec<_> = calls
            .iter()
            .map(|call| {
                let mut call = command(call);
                call.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap()
            })
            .collect();
        let start = Instant::now();
        for child in children {
            let said = Said::new(start, child.wait_with_output().unwrap());
            said.failed(words);
        }
        assert_eq!(files(place.path()), ["source"]);
    }
}

#[test]
fn a_target_out_of_file_descriptors_serves_again_when_there_are_some() {
    let target = Target::on_tmpfs();
    let few = Rlimit { current: Some(48), maximum: Some(48) };
    rustix::process::prlimit(Some(Pid::from_child(target.child())), Resource::Nofile, few).unwrap();
    let address = target.address.trim_start_matches("tcp://");
    // They say nothing, and most of them wait to be taken.
    let silent: Vec<_> = (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
    let descriptors = format!("/proc/{}/fd", target.child().id());
    wait_until("it has none left", || fs::read_dir(&descriptors).unwrap().count() >= 40);
    drop(silent);
    let start = Instant::now();
    while pmof(["pool", "ls", &target.address]).code != Some(0) {
        assert!(start.elapsed() < LONG, "it serves nobody any more");
    }
}

#[test]
fn what_has_a_pools_name_is_reported_with_advice() {
    let (target, place) = (Target::start(), directory());
    let source = file_with(&place, "source", b"bytes");
    fs::write(target.file("letter"), "no pool").unwrap();
    pmof(["cp", text(&source), &target.url("pool")]).done();
    let said = pmof(["cp", text(&source), &target.url("letter")]);
    said.failed(&["letter exists already", "remove it by hand", "it is not a pool"]);
    assert!(!said.errors.contains("removes it"), "{said:?}");
    let url = target.url("pool");
    pmof(["cp", text(&source), &url]).failed(&[&format!("`pmof pool rm {url}` removes it with its bytes")]);
}

/// The kernel accepts connections for it, so that only time tells.
#[test]
fn a_target_that_is_stopped_is_given_up_after_the_connect_timeout() {
    let target = Target::start();
    let process = Pid::from_child(target.child());
    rustix::process::kill_process(process, rustix::process::Signal::STOP).unwrap();
    let calls: [&[&str]; 3] = [
        &["pool", "ls", &target.address, "--connect-timeout", "1"],
        &["pool", "--connect-timeout", "1", "info", &target.url("pool")],
        &["cp", &target.url("pool"), "/nowhere", "--connect-timeout", "1"],
    ];
    for call in calls {
        let said = pmof(call);
        said.failed(&["did not answer within", "not stopped", "--connect-timeout"]);
        assert!(said.elapsed.as_secs() >= 1, "{said:?}");
    }
    rustix::process::kill_process(process, rustix::process::Signal::CONT).unwrap();
    pmof(["pool", "ls", &target.address]).done();
    pmof(["pool", "ls", &target.address, "--connect-timeout", "0"]).wrong_use(&["--connect-timeout"]);
    pmof(["serve", "--root", "/", "--max-connections", "0"]).wrong_use(&["--max-connections", "at least 1"]);
}

#[test]
fn a_port_that_is_no_target_is_asked_about() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", other.local_addr().unwrap());
    let closing = std::thread::spawn(move || {
        let (mut stream, _) = other.accept().unwrap();
        std::io::Read::read(&mut stream, &mut [0; 4096]).unwrap();
    });
    let said = pmof(["status", "--trust-host", &address]);
    said.failed(&["is it a pmof target, and was it not killed?"]);
    assert!(!said.errors.contains("died"), "{said:?}");
    closing.join().unwrap();
}

/// A shell takes what it is given: no pattern, and no end of a command.
#[test]
fn commands_that_are_advised_are_quoted() {
    let (root, place) = (directory(), directory());
    let address = format!("shm://{}", text(&place.path().join("a socket")));
    let (mut target, _) = serve_with(root.path(), &["--listen", &address]);
    let source = file_with(&place, "source", b"advised");
    let url = format!("{address}?pool=m");
    pmof(["cp", text(&source), &url]).done();
    pmof(["cp", text(&source), &url]).failed(&[&format!("`pmof pool rm '{url}'` removes it")]);
    pmof(["pool", "info", &format!("{address}?pool=other")]).failed(&[&format!("`pmof pool ls '{address}'` lists")]);
    target.kill().unwrap();
    target.wait().unwrap();
}
