//! `pmof serve` under systemd: what it tells its manager, and the unit that packages install.

use std::{
    io::{BufRead, BufReader},
    os::unix::net::UnixDatagram,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use skip_report::skipped;

use crate::support::{LONG, command, directory, text};

/// What the manager is told next, but that the target is alive.
fn told(manager: &UnixDatagram) -> String {
    let mut bytes = [0; 256];
    loop {
        let len_bytes = manager.recv(&mut bytes).expect("it is told in time");
        let text = String::from_utf8(bytes[..len_bytes].to_vec()).unwrap();
        if text.trim() != "WATCHDOG=1" {
            return text;
        }
    }
}

#[test]
fn the_manager_is_told_of_start_reload_stop_and_life() {
    let (place, root) = (directory(), directory());
    let socket = place.path().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(LONG)).unwrap();
    let mut serve = command(["serve", "--listen", "tcp://127.0.0.1:0", "--root", text(root.path())]);
    serve.env("NOTIFY_SOCKET", &socket).env("WATCHDOG_USEC", "100000");
    let mut child = serve.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("ready tcp://127.0.0.1:"), "{line}");
    assert_eq!(told(&manager).trim(), "READY=1");
    let mut bytes = [0; 64];
    let len_bytes = manager.recv(&mut bytes).unwrap();
    assert_eq!(&bytes[..len_bytes], b"WATCHDOG=1\n");

    kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
    let reloading = told(&manager);
    assert!(reloading.contains("RELOADING=1") && reloading.contains("MONOTONIC_USEC="), "{reloading}");
    assert_eq!(told(&manager).trim(), "READY=1");

    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(told(&manager).trim(), "STOPPING=1");
    assert!(child.wait().unwrap().success());
    // It is not alive any more, and says so no more.
    manager.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    while let Ok(len_bytes) = manager.recv(&mut bytes) {
        assert_eq!(&bytes[..len_bytes], b"WATCHDOG=1\n");
    }
}

#[test]
fn the_unit_leaves_little_open() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd/pmof.service");
    let Ok(said) = Command::new("systemd-analyze").args(["security", "--offline=yes", "--no-pager"]).arg(unit).output()
    else {
        return skipped!("no systemd-analyze here (Debian package systemd)");
    };
    let said = String::from_utf8(said.stdout).unwrap();
    let level = said.split("exposure level for pmof.service: ").nth(1).and_then(|rest| rest.split(' ').next());
    let level: f64 = level.and_then(|level| level.parse().ok()).unwrap_or_else(|| panic!("{said}"));
    assert!(level < 3.0, "{said}");
}
