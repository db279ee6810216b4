//! Who may connect to a target within one machine.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command, time::Instant};

use crate::support::{Said, directory, file_with, pmof, serve_with, text};

/// The user `nobody` of every Linux.
const NOBODY: &str = "65534";

/// `pmof` as a user that owns nothing. The program is copied to where that user reaches it.
fn as_nobody(program: &Path, arguments: &[&str]) -> Said {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]).arg(program).args(arguments);
    Said::new(Instant::now(), command.current_dir("/").output().unwrap())
}

/// A copy of the program under a directory that everybody may read.
fn program_for_all() -> (tempfile::TempDir, std::path::PathBuf) {
    let place = directory();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = place.path().join("pmof");
    fs::copy(env!("CARGO_BIN_EXE_pmof"), &program).unwrap();
    (place, program)
}

#[test]
fn another_user_of_the_machine_is_kept_out_over_tcp() {
    if !rustix::process::geteuid().is_root() {
        skip_report::skipped!("only root can be another user");
        return;
    }
    let (place, program) = program_for_all();
    let root = directory();
    let source = file_with(&place, "source", b"of root");
    let (mut target, address) = serve_with(root.path(), &[]);
    let url = format!("{address}/pool");
    pmof(["cp", text(&source), &url]).done();
    for arguments in [&["pool", "rm", "--force", &url][..], &["pool", "info", &url], &["status", &address]] {
        as_nobody(&program, arguments).failed(&["only its own user and root", "--trust-host"]);
    }
    pmof(["pool", "rm", &url]).done();
    target.kill().unwrap();
    target.wait().unwrap();

    let (mut target, address) = serve_with(root.path(), &["--trust-host"]);
    let url = format!("{address}/pool");
    pmof(["cp", text(&source), &url]).done();
    as_nobody(&program, &["pool", "rm", &url]).done();
    target.kill().unwrap();
    target.wait().unwrap();
}
