//! Who may connect to a target within one machine.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::{PermissionsExt as _, chown},
    path::Path,
    process::{Child, Command, Stdio},
    time::Instant,
};

use crate::support::{Said, directory, file_with, pmof, serve_with, text};

/// The user `nobody` of every Linux.
const NOBODY: &str = "65534";

/// `pmof` as a user that owns nothing. The program is copied to where that user reaches it.
fn as_nobody(program: &Path, arguments: &[&str]) -> Said {
    Said::new(Instant::now(), nobody(program, arguments).output().unwrap())
}

fn nobody(program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]).arg(program).args(arguments);
    command.current_dir("/").stdin(Stdio::null());
    command
}

/// A target of that user, and where it listens; `None` where it cannot.
fn target_of_nobody(program: &Path, root: &Path, listen: &str) -> Option<(Child, String)> {
    let mut serve = nobody(program, &["serve", "--trust-host", "--listen", listen, "--root", text(root)]);
    let mut child = serve.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let Some(address) = line.strip_prefix("ready ") else {
        child.wait().unwrap();
        return None;
    };
    Some((child, address.trim_end().to_owned()))
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

/// Any user may listen on a port that is free, on the default one too while its target is down.
#[test]
fn a_target_of_another_user_is_not_trusted() {
    if !rustix::process::geteuid().is_root() {
        skip_report::skipped!("only root can be another user");
        return;
    }
    let (place, program) = program_for_all();
    let source = file_with(&place, "source", b"of root");
    let root = place.path().join("root");
    fs::create_dir(&root).unwrap();
    chown(&root, Some(65534), Some(65534)).unwrap();
    for listen in ["tcp://127.0.0.1:0", "tcp://[::1]:0", "fabric+tcp://127.0.0.1:0", "rds://127.0.0.1:0"] {
        let Some((mut target, address)) = target_of_nobody(&program, &root, listen) else {
            skip_report::skipped!("{listen} cannot be listened on");
            continue;
        };
        let mapped = address.replace("//127.0.0.1:", "//[::ffff:127.0.0.1]:");
        for address in [&address, &mapped] {
            let url = format!("{address}/pool");
            for arguments in [&["cp", text(&source), &url][..], &["pool", "info", &url], &["status", address]] {
                pmof(arguments).failed(&["user nobody (65534)", "neither this user nor root", "--trust-host"]);
            }
        }
        assert_eq!(
            fs::read_dir(&root).unwrap().filter(|entry| is_pool(entry.as_ref().unwrap())).count(),
            0,
            "{listen}"
        );
        let url = format!("{address}/pool");
        pmof(["cp", "--trust-host", "--durability", "process-crash", text(&source), &url]).done();
        pmof(["pool", "--trust-host", "rm", &url]).done();
        target.kill().unwrap();
        target.wait().unwrap();
    }
}

/// Not what a target keeps for itself.
fn is_pool(entry: &fs::DirEntry) -> bool {
    !entry.file_name().to_string_lossy().starts_with('.')
}

/// It is the same connection, whichever way its addresses are written.
#[test]
fn mapped_addresses_lead_to_the_users_own_target() {
    let root = directory();
    let source = file_with(&root, "source", b"mapped");
    let pools = directory();
    let (mut target, address) = serve_with(pools.path(), &[]);
    let mapped = address.replace("//127.0.0.1:", "//[::ffff:127.0.0.1]:");
    pmof(["cp", text(&source), &format!("{mapped}/pool")]).done();
    pmof(["pool", "rm", &format!("{address}/pool")]).done();
    target.kill().unwrap();
    target.wait().unwrap();
    let (mut target, address) = serve_with(pools.path(), &["--listen", "tcp://[::ffff:127.0.0.1]:0"]);
    pmof(["status", &address]).done();
    target.kill().unwrap();
    target.wait().unwrap();
}
