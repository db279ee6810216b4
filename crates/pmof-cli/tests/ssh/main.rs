//! Pools on targets that ssh starts.

mod headerless;
mod one_file;
mod rpmemd;
mod sets;
mod support;
mod tools;
mod upkeep;

use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
    os::unix::fs::{PermissionsExt as _, chown},
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use pmof::{Durability, Pool};
use pmof_access::{FabricProvider, Peer, Transport};
use pmof_bootstrap::{SshOptions, SshSession};
use support::{PMOF, Sshd, Stage};

#[test]
fn a_file_goes_to_a_target_that_ssh_starts_and_comes_back() {
    let stage = Stage::local();
    let source = stage.directory.path().join("source");
    fs::write(&source, "kept".repeat(100_000)).unwrap();
    let (source, back) = (source.to_str().unwrap(), stage.directory.path().join("back"));
    let copied = stage.succeed(&["cp", source, "ssh://some-host/orders", "--durability", "process-crash"]);
    assert!(copied.contains("process-crash on 1/1: ssh://some-host/orders"), "{copied}");
    assert_eq!(stage.succeed(&["pool", "ls", "ssh://some-host"]), "orders\n");
    stage.succeed(&["cp", "ssh://some-host/orders", back.to_str().unwrap()]);
    assert_eq!(fs::read(source).unwrap(), fs::read(back).unwrap());
    stage.succeed(&["pool", "rm", "ssh://some-host/orders"]);
}

/// The provider of libfabric that the initiator asks for carries the data, where both sides have it.
#[test]
fn the_data_path_goes_over_libfabric_on_request() {
    let stage = Stage::local();
    let scheme_for = |provider| {
        let host = "some-host".parse().unwrap();
        let started = SshSession::start(&host, &stage.options().fabric(Some(provider))).unwrap();
        started.addresses.first().unwrap().transport.scheme()
    };
    // There is no such device here.
    assert_ne!(scheme_for(FabricProvider::Efa), "fabric+efa");
    if let Err(error) = Peer::open(Transport::Fabric(FabricProvider::Tcp)) {
        skip_report::skipped!("fabric+tcp: {error}");
        return;
    }
    assert_eq!(scheme_for(FabricProvider::Tcp), "fabric+tcp");
    let options = stage.options().fabric(Some(FabricProvider::Tcp));
    let pool = Pool::options().ssh(options).replica("ssh://some-host/orders").require(Durability::ProcessCrash);
    let pool = pool.create(1 << 20).unwrap();
    pool.persist(0, b"kept").unwrap();
    pool.close().unwrap();
    assert_eq!(stage.succeed(&["pool", "ls", "ssh://some-host"]), "orders\n");
}

/// RDS carries the data where the initiator asks for it and both sides have it; else it is as without.
#[test]
fn the_data_path_goes_over_rds_on_request() {
    let stage = Stage::local();
    let addresses = |options: SshOptions| {
        let started = SshSession::start(&"some-host".parse().unwrap(), &options.verbs(false)).unwrap();
        started.addresses.iter().map(|address| address.transport.scheme()).collect::<Vec<_>>()
    };
    assert_eq!(addresses(stage.options()), ["tcp"], "nobody asked");
    let options = stage.options().rds(true);
    if let Err(error) = Peer::open(Transport::Rds) {
        assert_eq!(addresses(options), ["tcp"]);
        skip_report::skipped!("rds: {error}");
        return;
    }
    assert_eq!(addresses(options.clone()), ["rds", "tcp"]);
    let on_ports = |ports: &str| {
        let command = format!("exec {PMOF} serve --stdio --root {} --data-ports {ports}", stage.root().display());
        addresses(options.clone().command(command))
    };
    assert_eq!(on_ports("17300-17399"), ["rds", "tcp"]);
    let pool = Pool::options().ssh(options.clone()).replica("ssh://some-host/orders").require(Durability::ProcessCrash);
    let pool = pool.create(1 << 20).unwrap();
    pool.persist(0, b"kept").unwrap();
    pool.close().unwrap();
    assert_eq!(stage.succeed(&["pool", "ls", "ssh://some-host"]), "orders\n");
    // An address without RDS.
    let command = format!("exec {PMOF} serve --stdio --root {} --data-address ::1", stage.root().display());
    assert_eq!(addresses(options.command(command)), ["tcp"]);
}

#[test]
fn what_a_login_prints_is_passed_over() {
    let stage =
        Stage::new("echo \"Welcome!  Last login: never\"; printf '\\000\\377'; echo oops >&2; exec sh -c \"$command\"");
    assert_eq!(stage.succeed(&["pool", "ls", "ssh://h"]), "");
}

#[test]
fn ssh_gets_host_user_and_port_apart_from_its_options() {
    let stage = Stage::new("printf '%s|' \"$@\" >&2; exit 9");
    let error = stage.fail(&["pool", "ls", "ssh://me@[fd00::1]:2222"]);
    for part in ["-T|-oBatchMode=yes|-oIgnoreUnknown=*|", "|-p|2222|-l|me|--|fd00::1|exec "] {
        assert!(error.contains(part), "{error}");
    }
    let output = stage.pmof(&["pool", "ls", "ssh://-oProxyCommand=touch"]);
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn what_goes_wrong_with_ssh_is_reported() {
    for (script, words) in [
        (
            "echo 'Permission denied (publickey,password).' >&2; exit 255",
            &["could not log in", "Permission denied"][..],
        ),
        ("echo 'sh: 1: pmof: not found' >&2; exit 127", &["install pmof there", "PMOF_SSH_COMMAND"]),
        ("echo half; exit 3", &["status 3", "half"]),
        ("kill -9 $$", &["cut off"]),
        (
            "head -c 36 >/dev/null; head -c 100000 /dev/zero | tr '\\0' 'x'; sleep 60",
            &["not a target's greeting", "xxxx"],
        ),
    ] {
        let error = Stage::new(script).fail(&["pool", "ls", "ssh://h"]);
        assert!(words.iter().all(|word| error.contains(word)), "{script}: {error}");
    }
}

#[test]
fn a_command_that_is_not_there_is_named() {
    let output =
        Command::new(PMOF).args(["pool", "ls", "ssh://h"]).env("PMOF_SSH", "/nonexistent/ssh").output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("/nonexistent/ssh") && error.contains("install the OpenSSH client"), "{error}");
}

#[test]
fn a_target_that_cannot_start_says_why() {
    let stage = Stage::local();
    fs::remove_dir(stage.root()).unwrap();
    let error = stage.fail(&["pool", "ls", "ssh://h"]);
    assert!(error.contains("the target did not start") && error.contains("root"), "{error}");
}

#[test]
fn a_target_that_dies_half_way_leaves_a_data_path_that_cannot_be_reached() {
    // Its greeting is held back until it is dead; ssh goes on.
    let script = "exec 3<&0; \
        (sh -c \"$command\" <&3 & echo $! >\"$0.pid\"; wait) 2>/dev/null | (sleep 1; cat; sleep 30) & \
        sleep 0.5; kill -9 $(cat \"$0.pid\"); wait";
    let begun = Instant::now();
    let error = Stage::new(script).fail(&["pool", "ls", "ssh://h"]);
    assert!(
        error.contains("ssh works") && error.contains("tcp://127.0.0.1:") && error.contains("data-address"),
        "{error}"
    );
    assert!(begun.elapsed() < Duration::from_secs(20));
}

/// A target by hand: its answer to a hello of ours.
fn greet(hello: &[u8]) -> (Vec<u8>, bool) {
    let root = tempfile::tempdir().unwrap();
    let mut target = Command::new(PMOF)
        .args(["serve", "--stdio", "--root"])
        .arg(root.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    target.stdin.take().unwrap().write_all(hello).unwrap();
    let mut answer = Vec::new();
    target.stdout.take().unwrap().read_to_end(&mut answer).unwrap();
    (answer, target.wait().unwrap().success())
}

#[test]
fn a_target_ends_with_its_input_and_answers_nobody_unauthenticated() {
    let (answer, succeeded) = greet(b"GET / HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n");
    assert!(answer.is_empty() && !succeeded);
    assert_eq!(greet(b""), (Vec::new(), false));
}

#[test]
fn an_initiator_of_another_version_gets_an_error() {
    let mut hello = b"PMOFHELO\x07\0\x01\0\0\0\0\0".to_vec();
    hello.extend_from_slice(b"0123456789abcdef");
    hello.extend_from_slice(&crc32c::crc32c(&hello).to_le_bytes());
    let (answer, succeeded) = greet(&hello);
    assert!(answer.starts_with(b"PMOFREDY0123456789abcdef\x01\0\x01\0") && !succeeded, "{answer:?}");
}

#[test]
fn a_target_of_another_version_is_known_as_such() {
    let stage = Stage::new(
        "dd bs=1 count=36 2>/dev/null >\"$0.hello\"; printf PMOFREDY; tail -c 20 \"$0.hello\" | head -c 16; \
         printf '\\011\\000\\000\\000\\000\\000\\000\\000'; sleep 60",
    );
    let error = stage.fail(&["pool", "ls", "ssh://h"]);
    assert!(error.contains("version 9") && error.contains("same release"), "{error}");
}

#[test]
fn the_data_path_keeps_to_its_ports_and_says_when_there_is_none_left() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let ports = |last: u16| format!("exec sh -c \"$command --data-ports {port}-{last}\"");
    let error = Stage::new(&ports(port)).fail(&["pool", "ls", "ssh://h"]);
    assert!(error.contains("did not start") && error.contains(&port.to_string()), "{error}");
    // The next one is very likely free.
    let stage = Stage::new(&ports(port.saturating_add(20)));
    assert_eq!(stage.succeed(&["pool", "ls", "ssh://h"]), "");
}

#[test]
#[ignore = "needs sshd: the suite `ssh` of `cargo xtask test` runs it"]
fn real_sshd_carries_pools() {
    let sshd = Sshd::start();
    let source = sshd.directory().join("source");
    fs::write(&source, "kept".repeat(1000)).unwrap();
    let (pool, source) = (sshd.url("orders"), source.to_str().unwrap().to_owned());
    let output = sshd.pmof(&["cp", &source, &pool, "--durability", "process-crash"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = sshd.pmof(&["pool", "info", &pool]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("a file of 3.9 KiB"), "{output:?}");
}

/// From a pool on another machine to one there, through a file and through a pipe here.
fn export_and_import(url: impl Fn(&str) -> String, pmof: impl Fn(&[&str], Option<&[u8]>) -> Output, directory: &Path) {
    let succeed = |arguments: &[&str], input: Option<&[u8]>| {
        let output = pmof(arguments, input);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let [source, back, file] = ["source", "back", "export"].map(|name| directory.join(name).display().to_string());
    fs::write(&source, "kept".repeat(500_000)).unwrap();
    succeed(&["cp", &source, &url("orders"), "--durability", "process-crash"], None);
    succeed(&["pool", "export", &url("orders"), &file], None);
    succeed(&["pool", "import", "--durability", "process-crash", &file, &url("first")], None);
    let export = succeed(&["pool", "export", &url("orders"), "-"], None);
    succeed(&["pool", "import", "--durability", "process-crash", "-", &url("second")], Some(&export));
    for name in ["first", "second"] {
        succeed(&["cp", &url(name), &back, "--force"], None);
        assert!(fs::read(&source).unwrap() == fs::read(&back).unwrap(), "{name}");
    }
    let cut = pmof(&["pool", "import", "-", &url("third")], Some(&export[..export.len() / 2]));
    assert_eq!(cut.status.code(), Some(3), "{}", String::from_utf8_lossy(&cut.stderr));
    let list = url("");
    assert_eq!(succeed(&["pool", "ls", list.trim_end_matches('/')], None), b"first\norders\nsecond\n");
}

#[test]
fn exports_and_imports_go_through_ssh() {
    let stage = Stage::local();
    let url = |name: &str| format!("ssh://some-host/{name}");
    export_and_import(url, |arguments, input| stage.pmof_with(arguments, input), stage.directory.path());
}

#[test]
#[ignore = "needs sshd: the suite `ssh` of `cargo xtask test` runs it"]
fn real_sshd_carries_exports() {
    let sshd = Sshd::start();
    export_and_import(|name| sshd.url(name), |arguments, input| sshd.pmof_with(arguments, input), sshd.directory());
}

#[test]
#[ignore = "needs sshd: the suite `ssh` of `cargo xtask test` runs it"]
fn real_sshd_that_refuses_the_key_never_asks_for_a_password() {
    let sshd = Sshd::start();
    fs::write(sshd.directory().join("authorized_keys"), "").unwrap();
    let since = Instant::now();
    let output = sshd.pmof(&["pool", "ls", sshd.url("").trim_end_matches('/')]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("could not log in") && error.contains("Permission denied"), "{error}");
    assert!(since.elapsed() < Duration::from_secs(20));
}

#[test]
#[ignore = "needs sshd: the suite `ssh` of `cargo xtask test` runs it"]
fn a_shared_ssh_connection_serves_many_sessions() {
    let sshd = Sshd::start();
    let socket = sshd.directory().join("control");
    sshd.configure_client(&format!("  ControlMaster auto\n  ControlPath {}\n  ControlPersist 5\n", socket.display()));
    for _ in 0..3 {
        let output = sshd.pmof(&["pool", "ls", sshd.url("").trim_end_matches('/')]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Of a user's configuration, what keeps ssh from running a command with input and output is undone, as scp does.
#[test]
#[ignore = "needs sshd: the suite `ssh` of `cargo xtask test` runs it"]
fn a_configuration_for_other_uses_of_a_host_is_undone() {
    for line in [
        "RemoteCommand echo something else",
        "SessionType none",
        "StdinNull yes",
        "ForkAfterAuthentication yes",
        "RequestTTY force",
        "PermitLocalCommand yes\n  LocalCommand cat >&2",
    ] {
        let sshd = Sshd::start();
        sshd.configure_client(&format!("  {line}\n"));
        let output = sshd.pmof(&["pool", "ls", sshd.url("").trim_end_matches('/')]);
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// A client that does not know the options: the real one, to which they go by names that it does not know. A user's own `IgnoreUnknown` holds on.
#[test]
#[ignore = "needs sshd: the suite `ssh` of `cargo xtask test` runs it"]
fn an_ssh_that_is_older_than_an_option_starts_targets_too() {
    let sshd = Sshd::start();
    sshd.configure_client("  IgnoreUnknown UseKeychain\n  UseKeychain yes\n");
    let script = format!(
        "#!/bin/sh\nfor word; do\n  shift\n  case $word in\n    \
         -oRemoteCommand=*|-oSessionType=*|-oStdinNull=*|-oForkAfterAuthentication=*) word=-oLater${{word#-o}} ;;\n  esac\n  \
         set -- \"$@\" \"$word\"\ndone\nexec ssh -F {}/client_config \"$@\"\n",
        sshd.directory().display()
    );
    fs::write(sshd.directory().join("ssh"), script).unwrap();
    let output = sshd.pmof(&["pool", "ls", sshd.url("").trim_end_matches('/')]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A target that ssh starts proves itself by the secret: whose it is does not matter.
#[test]
fn a_target_that_ssh_starts_may_be_of_another_user() {
    if !rustix::process::geteuid().is_root() {
        skip_report::skipped!("only root can be another user");
        return;
    }
    let stage = Stage::new("exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -c \"$command\"");
    let place = stage.directory.path();
    fs::set_permissions(place, fs::Permissions::from_mode(0o755)).unwrap();
    let program = place.join("pmof");
    fs::copy(PMOF, &program).unwrap();
    chown(stage.root(), Some(65534), Some(65534)).unwrap();
    let command =
        format!("cd /; export HOME=/; exec {} serve --stdio --root {}", program.display(), stage.root().display());
    let options = stage.options().command(command);
    let pool = Pool::options().ssh(options).replica("ssh://some-host/orders").require(Durability::ProcessCrash);
    let pool = pool.create(1 << 20).unwrap();
    pool.persist(0, b"kept").unwrap();
    pool.close().unwrap();
}
