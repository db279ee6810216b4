//! Targets in this process, and the files of their pools.

use std::{
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use pmof::{Pool, PoolOptions};
use pmof_access::{Address, Durability, Waiting};
use pmof_target::{Service, ServiceOptions};

use super::cell::Way;

/// Replicas of a pool, at most.
const TARGETS: usize = 3;

/// All threads of all cases share the processors: none spins.
const WAITING: Waiting = Waiting::Adaptive { spin: Duration::ZERO };

/// A target has closed the pools of a writer that is gone within this time.
const CLOSE_LIMIT: Duration = Duration::from_secs(20);

/// Targets that listen on tcp and shm, each with a directory of its own.
#[derive(Debug)]
pub(super) struct Farm {
    targets: Vec<Target>,
}

#[derive(Debug)]
struct Target {
    root: PathBuf,
    service: Option<Service>,
    /// Of tcp and of shm.
    addresses: [Address; 2],
}

impl Farm {
    pub(super) fn start(directory: &Path, sockets: &Path) -> Result<Self> {
        let start = |index| {
            let root = directory.join(format!("target-{index}"));
            std::fs::create_dir_all(&root).context("cannot make a directory")?;
            let socket = sockets.join(format!("{index}.sock"));
            let listen = ["tcp://127.0.0.1:0".parse()?, format!("shm://{}", socket.display()).parse()?];
            let service = start_service(&root, &listen)?;
            let addresses = [service.addresses()[0].clone(), service.addresses()[1].clone()];
            Ok(Target { root, service: Some(service), addresses })
        };
        Ok(Self { targets: (0..TARGETS).map(start).collect::<Result<_>>()? })
    }

    /// Stops all targets.
    pub(super) fn stop(&mut self) {
        self.targets.iter_mut().for_each(|target| target.service = None);
    }

    /// Starts them again where they were.
    pub(super) fn restart(&mut self) -> Result<()> {
        for target in &mut self.targets {
            target.service = None;
            target.service = Some(start_service(&target.root, &target.addresses)?);
        }
        Ok(())
    }

    /// Waits until no target has a pool open.
    pub(super) fn wait_closed(&self) -> Result<()> {
        let until = Instant::now() + CLOSE_LIMIT;
        for service in self.targets.iter().filter_map(|target| target.service.as_ref()) {
            while !service.is_drained() {
                ensure!(Instant::now() < until, "a target still has a pool open whose writer is gone");
                sleep(Duration::from_micros(200));
            }
        }
        Ok(())
    }

    pub(super) fn file(&self, replica: usize, name: &str) -> PathBuf {
        self.targets[replica].root.join(name)
    }

    fn url(&self, way: Way, replica: usize, name: &str) -> String {
        let target = &self.targets[replica];
        match way {
            Way::Tcp => format!("{}/{name}", target.addresses[0]),
            Way::Shm => format!("{}?pool={name}", target.addresses[1]),
            Way::File => format!("file://{}/{name}", target.root.display()),
        }
    }

    /// Options of a pool on the first targets.
    pub(super) fn options(&self, way: Way, replicas: u8, name: &str) -> PoolOptions {
        let options = Pool::options().require(Durability::ProcessCrash).waiting(WAITING);
        (0..usize::from(replicas)).fold(options, |options, replica| options.replica(self.url(way, replica, name)))
    }

    /// Removes the files of a pool.
    pub(super) fn remove(&self, name: &str) {
        for target in &self.targets {
            // It may have fewer replicas than there are targets.
            let _ = std::fs::remove_file(target.root.join(name));
        }
    }
}

fn start_service(root: &Path, listen: &[Address]) -> Result<Service> {
    Service::start(root, listen, ServiceOptions::default().workers(1).waiting(WAITING)).context("cannot start a target")
}
