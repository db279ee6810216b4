//! Servers of others, as child processes: found, started on the servers' CPU, waited for, and ended with this process.

use std::{
    fs::{self, File},
    io::{Read as _, Seek as _, SeekFrom},
    net::{SocketAddr, TcpListener},
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Error, Result, bail, ensure};
use clap::Args;
use pmof_console::{
    children::{exit_with_parent, this_program},
    interrupt::KilledOnSignal,
    limits::pin_to,
};

/// Longest start: etcd chooses a leader, which takes it a second.
const START_LIMIT: Duration = Duration::from_secs(20);

/// Between two looks whether a server is there.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// How often other ports are tried: somebody may take a free port before the server does.
const TRIES: usize = 3;

/// What is told of a server's last words.
const WORDS_BYTES: i64 = 400;

/// Where programs lie that are for administrators, who alone have it in their search path.
const MORE_PLACES: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];

/// Become a server of others: one CPU, and an end with the parent.
#[derive(Debug, Args)]
pub struct PeerServerArgs {
    /// CPU to run on
    #[arg(long)]
    cpu: usize,
    /// Process number of the parent, with which this process ends
    #[arg(long)]
    exit_with_parent: Option<u32>,
    /// The program and its arguments
    #[arg(required = true, last = true)]
    command: Vec<String>,
}

/// Runs `pmof bench-peer`: this process becomes the server, and keeps its CPU and its end.
pub fn run_peer_server(args: &PeerServerArgs) -> Result<()> {
    args.exit_with_parent.map_or(Ok(()), exit_with_parent)?;
    pin_to(args.cpu).context("pinning to the CPU given by --cpu")?;
    let (program, arguments) = args.command.split_first().context("there is no program to run")?;
    // Settings of others would be measured too.
    let kept = ["PATH", "LD_LIBRARY_PATH"].into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    let error = Command::new(program).args(arguments).env_clear().envs(kept).exec();
    Err(Error::new(error).context(format!("cannot run {program}")))
}

/// The program's file, if it is installed.
pub(super) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(MORE_PLACES.map(PathBuf::from));
    places.map(|place| place.join(program)).find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// What a program says of its version: the first word that begins with a digit.
pub(super) fn version(file: &Path) -> String {
    let output = Command::new(file).arg("--version").stdin(Stdio::null()).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let words = text.split_whitespace().map(|word| word.trim_start_matches("v=").trim_start_matches('v'));
    words.filter(|word| word.starts_with(|c: char| c.is_ascii_digit())).map(str::to_owned).next().unwrap_or_default()
}

/// A server that runs. Killed (SIGKILL) when dropped, by a signal that ends this process, and by the kernel when the thread that started it ends in any
/// other way.
#[derive(Debug)]
pub(in crate::bench) struct PeerServer {
    child: Child,
    _on_signal: KilledOnSignal,
    name: String,
    /// What it prints.
    log: PathBuf,
}

impl PeerServer {
    /// Starts a program on a CPU; `log` is made.
    pub(super) fn start(cpu: usize, program: &Path, arguments: &[String], log: PathBuf) -> Result<Self> {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let output = File::create(&log).with_context(|| format!("cannot make {}", log.display()))?;
        let errors = output.try_clone().context("cannot duplicate a descriptor")?;
        let child = this_program("bench-peer")?
            .args(["--cpu", &cpu.to_string(), "--"])
            .arg(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Self { _on_signal: KilledOnSignal::new(&child), child, name, log })
    }

    /// Waits until `connect` succeeds, as long as the server lives.
    pub(super) fn wait_for<T>(&mut self, mut connect: impl FnMut() -> Result<T>) -> Result<T> {
        let until = Instant::now() + START_LIMIT;
        loop {
            let error = match connect() {
                Ok(connected) => return Ok(connected),
                Err(error) => error,
            };
            if let Some(status) = self.child.try_wait().with_context(|| format!("asking for {}", self.name))? {
                bail!("{} ended with {status} when it was started: {}", self.name, self.last_words());
            }
            if Instant::now() >= until {
                let limit_s = START_LIMIT.as_secs();
                return Err(error.context(format!(
                    "{} was not there within {limit_s} s: {}",
                    self.name,
                    self.last_words()
                )));
            }
            sleep(LOOK_EVERY);
        }
    }

    /// Waits for its end; fails where that is not 0, or does not come.
    pub(super) fn wait(&mut self, limit: Duration) -> Result<()> {
        let until = Instant::now() + limit;
        loop {
            match self.child.try_wait().with_context(|| format!("waiting for {}", self.name))? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("{} ended with {status}: {}", self.name, self.last_words()),
                None => {}
            }
            ensure!(
                Instant::now() < until,
                "{} did not end within {} s: {}",
                self.name,
                limit.as_secs(),
                self.last_words()
            );
            sleep(LOOK_EVERY);
        }
    }

    /// nbdkit replaces the signal that it gets from the kernel when the thread that started it ends: SIGTERM instead of SIGKILL.
    pub(in crate::bench) fn ends_by_sigterm(&self) -> bool {
        self.name == "nbdkit"
    }

    pub(super) fn is_alive(&mut self) -> Result<bool> {
        Ok(self.child.try_wait().with_context(|| format!("asking for {}", self.name))?.is_none())
    }

    pub(in crate::bench) fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// The end of what it printed, on one line.
    pub(super) fn last_words(&self) -> String {
        let mut text = Vec::new();
        let read = File::open(&self.log).and_then(|mut file| {
            let from = file.metadata()?.len().saturating_sub(WORDS_BYTES.unsigned_abs());
            file.seek(SeekFrom::Start(from))?;
            file.read_to_end(&mut text)
        });
        let text = String::from_utf8_lossy(&text);
        let words: Vec<&str> = text.split_whitespace().collect();
        if read.is_err() || words.is_empty() { "it said nothing".to_owned() } else { words.join(" ") }
    }
}

impl Drop for PeerServer {
    fn drop(&mut self) {
        // It may be dead already; there is nobody to tell.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Addresses of loopback whose ports nobody has now.
pub(super) fn free_addresses<const COUNT: usize>() -> Result<[SocketAddr; COUNT]> {
    let listen = || TcpListener::bind("127.0.0.1:0").and_then(|listener| Ok((listener.local_addr()?, listener)));
    // All are held until the last is found, so that they differ.
    let mut held = Vec::with_capacity(COUNT);
    for _ in 0..COUNT {
        held.push(listen().context("asking for a free port")?);
    }
    let addresses: Vec<SocketAddr> = held.iter().map(|(address, _)| *address).collect();
    addresses.try_into().map_err(|_| Error::msg("a port is missing"))
}

/// Starts what needs free ports, with others where somebody took them first.
pub(super) fn with_free_ports<T, const COUNT: usize>(
    mut ports: impl FnMut() -> Result<[SocketAddr; COUNT]>,
    mut start: impl FnMut([SocketAddr; COUNT]) -> Result<T>,
) -> Result<T> {
    let mut tries = 1;
    loop {
        match start(ports()?) {
            Err(_) if tries < TRIES => tries += 1,
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_and_say_their_version() {
        assert!(find("sh").is_some());
        assert_eq!(find("no-such-program-at-all"), None);
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("tool");
        fs::write(&file, "#!/bin/sh\necho 'tool v1.2.3 (tool-1.2.3-4)'\n").unwrap();
        assert!(!is_program(&file));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(is_program(&file));
        assert_eq!(version(&file), "1.2.3");
        assert_eq!(version(Path::new("/no/such/file")), "");
    }

    #[test]
    fn free_ports_differ() {
        let [one, two, three] = free_addresses::<3>().unwrap();
        assert!(one != two && two != three && one != three);
    }

    /// Somebody takes the first port between the choice and the start.
    #[test]
    fn a_port_that_was_taken_is_replaced_and_one_that_stays_taken_is_an_error() {
        let held = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = held.local_addr().unwrap();
        let mut free = vec![free_addresses::<1>().unwrap(), [taken]];
        let listen = |[address]: [SocketAddr; 1]| Ok(TcpListener::bind(address)?);
        let got = with_free_ports(|| Ok(free.pop().unwrap()), listen).unwrap();
        assert_ne!(got.local_addr().unwrap(), taken);
        let mut tries = 0;
        let failed = with_free_ports(
            || {
                tries += 1;
                Ok([taken])
            },
            listen,
        );
        assert!(failed.is_err() && tries == TRIES);
    }
}
