//! The peers of `pmof bench peers`: Debian's packages of them, and how they are started.

use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};

/// A program, Debian's package of it, and how it serves by hand what `pmof bench peers` measures.
struct Peer {
    program: &'static str,
    package: &'static str,
    by_hand: &'static str,
}

const PEERS: [Peer; 4] = [
    Peer {
        program: "nbdkit",
        package: "nbdkit",
        by_hand: "truncate -s 16M disk && nbdkit --foreground --ipaddr 127.0.0.1 --port 10809 file file=disk",
    },
    Peer {
        program: "qemu-nbd",
        package: "qemu-utils",
        by_hand: "truncate -s 16M disk && qemu-nbd --format raw --persistent --cache writeback --socket $PWD/nbd.sock disk",
    },
    Peer {
        program: "redis-server",
        package: "redis-server",
        by_hand: "redis-server --bind 127.0.0.1 --port 6379 --save '' --appendonly yes --appendfsync always",
    },
    Peer { program: "etcd", package: "etcd-server", by_hand: "etcd --data-dir data" },
];

/// Installs what is missing, and says how each is started.
pub(crate) fn run() -> Result<ExitCode> {
    let missing: Vec<&Peer> = PEERS.iter().filter(|peer| !is_there(peer.program)).collect();
    if !missing.is_empty() {
        install(&missing.iter().map(|peer| peer.package).collect::<Vec<_>>())?;
    }
    for Peer { program, package, by_hand } in PEERS {
        ensure!(is_there(program), "{program} is not on the search path, although {package} is installed");
        println!("{program} ({package}): `pmof bench peers` starts it; by hand: {by_hand}");
    }
    println!(
        "Debian starts redis-server and etcd as services too: `systemctl disable --now redis-server etcd` ends them."
    );
    Ok(ExitCode::SUCCESS)
}

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

fn install(packages: &[&str]) -> Result<()> {
    let what = format!("apt-get install --no-install-recommends {}", packages.join(" "));
    let as_root: &[&str] = if rustix::process::geteuid().is_root() { &[] } else { &["sudo", "-n"] };
    for words in [&["apt-get", "update", "-qq"][..], &["apt-get", "install", "-y", "-qq", "--no-install-recommends"]] {
        let words = [as_root, words, if words.contains(&"install") { packages } else { &[] }].concat();
        let (program, arguments) = words.split_first().context("there is no command")?;
        let status = Command::new(program).args(arguments).env("DEBIAN_FRONTEND", "noninteractive").status();
        let status = status.with_context(|| format!("cannot run {program}: as root of a Debian, run `{what}`"))?;
        ensure!(status.success(), "{} ended with {status}: as root, run `{what}`", words.join(" "));
    }
    Ok(())
}
