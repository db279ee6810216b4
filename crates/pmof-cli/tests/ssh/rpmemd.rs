//! `rpmemd`: the options and configuration of librpmem's daemon.

use std::{
    fs,
    process::{Command, Output},
};

use pmof::{Pool, PoolError, ReplicaError, SshOptions, TargetOptions};
use pmof_bootstrap::{SshError, StartFailure};
use pmof_control::{OpenFor, SetName};
use pmof_pool::RemoteSetOptions;

use crate::support::Stage;

const RPMEMD: &str = env!("CARGO_BIN_EXE_rpmemd");

/// A home directory with a pool set below it.
fn stage() -> Stage {
    let stage = Stage::local();
    let text = format!("PMEMPOOLSET\n4M {}\n", stage.root().join("part").display());
    fs::write(stage.root().join("x.set"), text).unwrap();
    stage
}

fn remote(stage: &Stage, command: &str) -> RemoteSetOptions {
    let command = format!("HOME={} {RPMEMD} {command}", stage.root().display());
    let ssh = SshOptions::default().program(stage.directory.path().join("ssh")).command(command);
    let (url, set) = ("ssh://host".parse().unwrap(), SetName::new("x.set").unwrap());
    RemoteSetOptions::new(url, set).target(TargetOptions::default().ssh(ssh))
}

fn create(stage: &Stage, command: &str) -> Result<Pool, String> {
    try_create(stage, command).map_err(|error| pmof::causes(&error).to_string())
}

fn try_create(stage: &Stage, command: &str) -> Result<Pool, PoolError> {
    let attributes = pmof_pool_set::Attributes { incompat: 2, uuid: [1; 16], ..Default::default() };
    remote(stage, command).create(4 << 20, Some(&attributes))
}

fn rpmemd(stage: &Stage, arguments: &[&str]) -> Output {
    Command::new(RPMEMD).args(arguments).env("HOME", stage.root()).output().unwrap()
}

#[test]
fn without_configuration_the_home_directory_has_the_sets() {
    let stage = stage();
    create(&stage, "").unwrap().close().unwrap();
    assert!(stage.root().join("part").exists());
}

#[test]
fn the_users_file_and_options_are_read_and_options_win() {
    let stage = stage();
    fs::create_dir(stage.root().join("sets")).unwrap();
    fs::rename(stage.root().join("x.set"), stage.root().join("sets/x.set")).unwrap();
    let log = stage.directory.path().join("log");
    let text = format!(
        "# as for librpmem\nlog-file = {}\nuse-syslog = no\nlog-level = debug\npersist-apm = no\npersist-general = yes\n\
         poolset-dir = $HOME/sets\n",
        log.display()
    );
    fs::write(stage.root().join(".rpmemd.conf"), text).unwrap();
    create(&stage, "").unwrap().close().unwrap();
    let told = fs::read_to_string(&log).unwrap();
    assert!(told.contains(" info pool_created: pool x.set") && told.contains(" debug request: "), "{told}");
    let error = create(&stage, "--poolset-dir /nonexistent").unwrap_err();
    assert!(error.contains("/nonexistent"), "{error}");
}

/// Programs and PMDK's own tests look for these words in the log.
#[test]
fn the_log_has_the_words_of_librpmems_daemon() {
    let stage = stage();
    let log = stage.directory.path().join("log");
    create(&stage, &format!("--log-level notice --use-syslog no --log-file {}", log.display()))
        .unwrap()
        .close()
        .unwrap();
    let told = fs::read_to_string(&log).unwrap();
    let words = [
        concat!("rpmemd version ", env!("CARGO_PKG_VERSION")),
        "persistency policy:",
        "    persist method: General Purpose Server Persistency Method",
        "    persist flush: pmem_msync",
    ];
    let mut lines = told.lines();
    for words in words {
        assert!(lines.any(|line| line.contains(words)), "{words}: {told}");
    }
    // What is declared of RDMA devices does not hold over tcp.
    let open = format!("--persist-apm --log-level notice --use-syslog no --log-file {}", log.display());
    remote(&stage, &open).open(0, OpenFor::Write).unwrap().close().unwrap();
    let told = fs::read_to_string(&log).unwrap();
    assert!(told.contains("General Purpose") && !told.contains("Appliance"), "{told}");
}

#[test]
fn a_wrong_file_reaches_the_initiator_by_file_and_line() {
    let stage = stage();
    fs::write(stage.root().join(".rpmemd.conf"), "log-level = err\npersist-apm = perhaps\n").unwrap();
    let error = create(&stage, "").unwrap_err();
    assert!(error.contains(".rpmemd.conf:2") && error.contains("perhaps"), "{error}");
    let error = create(&stage, "--config /nonexistent.conf").unwrap_err();
    assert!(error.contains("/nonexistent.conf"), "{error}");
}

#[test]
fn remove_takes_the_parts_and_if_asked_the_set() {
    let stage = stage();
    create(&stage, "").unwrap().close().unwrap();
    let open = remote(&stage, "").open(0, OpenFor::Write).unwrap();
    let refused = rpmemd(&stage, &["--remove", "x.set"]);
    assert_eq!(refused.status.code(), Some(16), "EBUSY");
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(error.contains("in use by process"), "{error}");
    open.close().unwrap();
    drop(open);

    assert!(rpmemd(&stage, &["--remove", "x.set"]).status.success());
    assert!(!stage.root().join("part").exists() && stage.root().join("x.set").exists());
    assert_eq!(rpmemd(&stage, &["-r", "x.set"]).status.code(), Some(2), "ENOENT: there are no parts");
    assert_eq!(rpmemd(&stage, &["-r", "y.set", "-f"]).status.code(), Some(2), "nor is there such a set");
    fs::write(stage.root().join("bad.set"), "PMEMPOOLSET\nnonsense\n").unwrap();
    assert_eq!(rpmemd(&stage, &["-r", "bad.set", "-f"]).status.code(), Some(22), "EINVAL");
    assert!(rpmemd(&stage, &["-r", "x.set", "-f", "-s"]).status.success());
    assert!(!stage.root().join("x.set").exists());
}

#[test]
fn wrong_use_is_reported() {
    let stage = stage();
    for wrong in
        [&["--force"][..], &["--remove", "../x.set"], &["--remove", "/x.set"], &["--persist-apm=perhaps"], &["--what"]]
    {
        assert_eq!(rpmemd(&stage, wrong).status.code(), Some(2), "{wrong:?}");
    }
}

/// What a program of librpmem gets as errno hangs on it.
#[test]
fn the_initiator_learns_why_the_target_does_not_start() {
    let stage = stage();
    let why = |command: &str| match try_create(&stage, command).unwrap_err().replica_error() {
        Some(ReplicaError::Ssh(error)) => match &**error {
            SshError::Target { why, text } => (*why, text.clone()),
            other => panic!("{command}: {other}"),
        },
        other => panic!("{command}: {other:?}"),
    };
    assert_eq!(why("--poolset-dir /nonexistent").0, StartFailure::NotFound);
    assert_eq!(why("--poolset-dir /dev/null").0, StartFailure::NotFound);
    // The last one counts, as with getopt.
    assert_eq!(
        why(&format!("--poolset-dir {} --poolset-dir /nonexistent", stage.root().display())).0,
        StartFailure::NotFound
    );
    assert_eq!(why("--config /nonexistent.conf").0, StartFailure::NotFound);
    assert_eq!(why("--log-file /nonexistent/log").0, StartFailure::NotFound);
    for line in ["no-such-key = 1", "log-level", "log-level = loud", "persist-apm = perhaps", "remove = x.set"] {
        fs::write(stage.root().join(".rpmemd.conf"), format!("{line}\n")).unwrap();
        let (why, text) = why("");
        assert_eq!(why, StartFailure::Configuration, "{line}");
        assert!(text.contains(".rpmemd.conf:1: "), "{line}: {text}");
    }
}

#[test]
fn it_ends_well_only_after_an_initiator_that_closed_its_pool() {
    let text = "sh -c \"$command\"; echo $? > \"$0.status\"";
    let stage = Stage::new(text);
    let set = format!("PMEMPOOLSET\n4M {}\n", stage.root().join("part").display());
    fs::write(stage.root().join("x.set"), set).unwrap();
    let status = || fs::read_to_string(stage.directory.path().join("ssh.status")).unwrap();
    create(&stage, "").unwrap().close().unwrap();
    assert_eq!(status(), "0\n");
    create(&stage, "").unwrap_err();
    assert_eq!(status(), "0\n", "it was refused, and has nothing open");
    let open = || remote(&stage, "").open(0, OpenFor::Write).unwrap();
    // As of one that was killed: its connection and ssh's input end.
    drop(open());
    assert_eq!(status(), "1\n");
    open().close().unwrap();
    assert_eq!(status(), "0\n");
    remote(&stage, "").remove(false, false).unwrap();
    assert_eq!(status(), "0\n");
}

#[test]
fn a_part_that_has_holes_is_removed_too() {
    let stage = stage();
    let part = stage.root().join("part");
    fs::File::create(&part).unwrap().set_len(4 << 20).unwrap();
    assert_eq!(rpmemd(&stage, &["-r", "x.set"]).status.code(), Some(22), "it is no pool");
    assert!(rpmemd(&stage, &["-r", "x.set", "--force"]).status.success() && !part.exists());
    fs::write(&part, "").unwrap();
    assert!(rpmemd(&stage, &["-r", "x.set", "--force"]).status.success() && !part.exists());
}
