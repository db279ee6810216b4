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
    // Root's own configuration is not that user's to read.
    command.env("HOME", "/nonexistent").env_remove("XDG_CONFIG_HOME").current_dir("/").stdin(Stdio::null());
    command
}

/// A process. Killed when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A target of that user, and where it listens; `None` where it cannot.
fn target_of_nobody(program: &Path, root: &Path, listen: &str) -> Option<(Killed, String)> {
    let mut serve = nobody(program, &["serve", "--trust-host", "--listen", listen, "--root", text(root)]);
    let mut child = Killed(serve.stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.strip_prefix("ready ")?;
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
        let Some((_target, address)) = target_of_nobody(&program, &root, listen) else {
            assert_ne!(listen, "tcp://127.0.0.1:0", "every machine has that");
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
        // The advised command repeats the option, and so it works.
        let again = pmof(["cp", "--trust-host", text(&source), &url]);
        // A pattern to a shell.
        let word = if url.contains('[') { format!("'{url}'") } else { url.clone() };
        again.failed(&[&format!("`pmof pool --trust-host rm {word}` removes it")]);
        pmof(["pool", "--trust-host", "rm", &url]).done();
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

/// Where the kernel does not tell whose a socket is, commands that start targets need the option for both ends.
#[test]
fn commands_with_targets_of_their_own_pass_the_option() {
    let place = directory();
    let dir = text(place.path());
    for arguments in [
        &["soak", "--kills", "2", "--seed", "3", "--dir", dir][..],
        &["soak", "takeover", "--count", "1", "--seed", "3", "--dir", dir],
        &[
            &["chaos", "--kills", "1", "--pauses", "0", "--cuts", "0", "--writers", "1", "--seed", "3"][..],
            // On a busy machine two of three may be silent for longer than usual.
            &["--loss-timeout", "5s", "--dir", dir],
        ]
        .concat(),
        &["demo", "--time", "1s", "--dir", dir],
        &["bench", "idle", "--connections", "2", "--duration", "1ms"],
        &["bench", "takeover", "--count", "1", "--dir", dir],
    ] {
        let ran = syscall_recorder::without_netlink(|| {
            let refused = pmof(arguments);
            assert!(refused.code == Some(1) && refused.errors.contains("--trust-host"), "{refused:?}");
            let trusted = pmof([arguments, &["--trust-host"]].concat());
            assert_eq!(trusted.code, Some(0), "{trusted:?}");
        });
        if let Err(error) = ran {
            skip_report::skipped!("{error}");
        }
    }
}
