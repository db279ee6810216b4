//! librpma under fio's APM engines: a server and a client that fio starts for each turn, and what the client logged.
//!
//! The latency of an operation is the one in fio's log (`write_lat_log`): from the write's issue to the completion of the flush behind it.

use std::{
    fs,
    net::{IpAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use super::server::PeerServer;
use crate::bench::{
    runner::{Extent, Tally},
    stage::{POOL_BYTES, Stage},
};

/// Shortest turn: fio takes about as long to start.
const TURN_MIN: Duration = Duration::from_secs(1);

/// The first operations of a turn do not count: one in so many.
const WARM_UP: u64 = 10;

/// Between two starts of a client whose server does not listen yet; each tries ten times at once.
const START_AGAIN: Duration = Duration::from_millis(200);

/// How a client says that nobody listened.
const NOBODY_LISTENED: &str = "maximum number of retries";

/// What a pair may take beyond its turn.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server and a client, for one turn after the other.
#[derive(Debug)]
pub(in crate::bench) struct FioPair {
    program: PathBuf,
    directory: PathBuf,
    address: IpAddr,
    /// Of the client and of the server.
    cpus: [usize; 2],
    size_bytes: u64,
}

/// Whether this fio was built with the engines.
pub(super) fn has_engines(program: &Path) -> bool {
    let mut asked = Command::new(program);
    asked.arg("--enghelp=librpma_apm_client").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    asked.status().is_ok_and(|status| status.success())
}

impl FioPair {
    pub(super) fn new(program: &Path, stage: &Stage, size_bytes: u64) -> Result<Self> {
        let directory = stage.file("librpma");
        fs::create_dir(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let address = stage.address().context("librpma has no address: name one of an RDMA device with --address")?;
        let cpus = [stage.initiator_cpu(), stage.servers_cpu()];
        Ok(Self { program: program.to_owned(), directory, address, cpus, size_bytes })
    }

    /// Makes operations for so long, for a second at least where nobody counts them.
    pub(in crate::bench) fn turn(&mut self, extent: Extent) -> Result<Tally> {
        let port = TcpListener::bind((self.address, 0)).and_then(|listener| listener.local_addr());
        let port = port.context("asking for a free port")?.port();
        let [client_cpu, server_cpu] = self.cpus;
        let common = self.common(port);
        let server = format!(
            "[global]\nioengine=librpma_apm_server\n{common}[server]\nfilename=malloc\ncpus_allowed={server_cpu}\n"
        );
        let client = format!(
            "[global]\nioengine=librpma_apm_client\n{common}[client]\nrw=write\nbs={}\nsync=1\niodepth=1\n{}write_lat_log={}\n",
            self.size_bytes,
            length(extent, self.size_bytes),
            self.directory.join("client").display()
        );
        // Whoever turns is on the client's CPU already, and may start nothing anywhere else; fio goes where its job says.
        let mut server = self.start("server", &server, client_cpu)?;
        let until = Instant::now() + PATIENCE;
        loop {
            let ended = self.start("client", &client, client_cpu)?.wait(extent.time.min(PATIENCE) + PATIENCE);
            let Err(error) = ended else { break };
            let is_late = error.to_string().contains(NOBODY_LISTENED) && server.is_alive()?;
            ensure!(is_late && Instant::now() < until, "{error}; its server said: {}", server.last_words());
            sleep(START_AGAIN);
        }
        server.wait(PATIENCE)?;
        let log = self.directory.join("client_lat.1.log");
        let text = fs::read_to_string(&log).with_context(|| format!("fio wrote no {}", log.display()))?;
        tally(&text, self.size_bytes)
    }

    fn common(&self, port: u16) -> String {
        let Self { address, .. } = self;
        format!(
            "create_serialize=0\ncreate_on_open=1\nkb_base=1000\nthread\nclocksource=clock_gettime\nserverip={address}\nport={port}\nsize={POOL_BYTES}\n"
        )
    }

    fn start(&self, name: &str, job: &str, cpu: usize) -> Result<PeerServer> {
        let path = self.directory.join(format!("{name}.fio"));
        fs::write(&path, job).with_context(|| format!("cannot write {}", path.display()))?;
        let arguments = ["--eta=never".to_owned(), path.display().to_string()];
        PeerServer::start(cpu, &self.program, &arguments, self.directory.join(format!("{name}.txt")))
    }
}

/// How long a client works, in fio's words. It goes round in what it has.
fn length(extent: Extent, size_bytes: u64) -> String {
    if extent.operations == u64::MAX {
        return format!("time_based\nruntime={}ms\n", extent.time.max(TURN_MIN).as_millis());
    }
    let count = extent.operations + extent.operations.div_ceil(WARM_UP - 1);
    format!("number_ios={count}\nio_size={}\n", count * size_bytes)
}

/// Lines of `time, latency in ns, direction, bytes, ...`.
fn tally(log: &str, size_bytes: u64) -> Result<Tally> {
    let mut tally = Tally::default();
    let warm_up = log.lines().count().div_ceil(WARM_UP as usize);
    for line in log.lines().skip(warm_up) {
        let nanoseconds = line.split(',').nth(1).and_then(|word| word.trim().parse().ok());
        let latency = nanoseconds.map(Duration::from_nanos).with_context(|| format!("fio logged {line:?}"))?;
        tally.writes.record(latency);
        tally.bytes += size_bytes;
        tally.elapsed += latency;
    }
    ensure!(tally.operations() > 0, "fio logged {} operations, none of which counts", log.lines().count());
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_behind_its_warm_up() {
        let log = "0, 90000, 1, 64, 0, 0\n1, 2000, 1, 64, 0, 0\n1, 4000, 1, 64, 64, 0\n";
        let tally = tally(log, 64).unwrap();
        assert_eq!((tally.operations(), tally.bytes), (2, 128));
        assert_eq!(tally.elapsed, Duration::from_micros(6));
        for (log, word) in [("1, 2000, 1, 64\n", "none"), ("", "none"), ("a\nb\n", "logged")] {
            assert!(super::tally(log, 64).unwrap_err().to_string().contains(word));
        }
    }

    #[test]
    fn turns_are_counted_or_timed() {
        let [short, long] = [140, 1400].map(Duration::from_millis);
        assert_eq!(length(Extent { operations: 90, time: short }, 64), "number_ios=100\nio_size=6400\n");
        for (time, runtime) in [(short, 1000), (long, 1400)] {
            let expected = format!("time_based\nruntime={runtime}ms\n");
            assert_eq!(length(Extent { operations: u64::MAX, time }, 64), expected);
        }
    }

    #[test]
    fn a_program_without_the_engines_has_none() {
        assert!(!has_engines(Path::new("/bin/false")) && !has_engines(Path::new("/no/such/fio")));
    }
}
