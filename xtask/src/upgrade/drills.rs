//! What is done with a pool of both releases.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use super::processes::{Target, Writer, directory, done, json, wait_in_sync};

/// Bytes of the pools: what the writers take (crates/pmof-bench/src/soak/workload.rs).
const POOL_BYTES: usize = 1 << 20;

/// The newest version of the control messages that each release speaks.
const CONTROL_VERSIONS: [(Release, u64); 2] = [(Release::Former, 4), (Release::Here, 5)];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Release {
    Former,
    Here,
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Former => "former",
            Self::Here => "here",
        })
    }
}

pub(super) fn names(releases: &[Release]) -> String {
    releases.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Tcp,
    Shm,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Shm => "shm",
        })
    }
}

/// The command pmof of each release.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) former: PathBuf,
    pub(super) here: PathBuf,
}

impl Programs {
    fn of(&self, release: Release) -> &Path {
        match release {
            Release::Former => &self.former,
            Release::Here => &self.here,
        }
    }
}

/// Three targets, each at an address and with files that stay when it is started again.
struct Fleet<'p> {
    programs: &'p Programs,
    transport: Transport,
    /// Running processes, which end before their directory is removed.
    targets: Vec<Option<Target>>,
    urls: Vec<String>,
    directory: TempDir,
}

impl<'p> Fleet<'p> {
    fn start(programs: &'p Programs, transport: Transport, releases: [Release; 3]) -> Result<Self> {
        let directory = directory()?;
        let mut fleet = Self { programs, transport, targets: Vec::new(), urls: Vec::new(), directory };
        for (index, release) in releases.into_iter().enumerate() {
            fs::create_dir(fleet.root(index))?;
            let listen = match transport {
                Transport::Tcp => "tcp://127.0.0.1:0".to_owned(),
                Transport::Shm => format!("shm://{}", fleet.directory.path().join(format!("{index}.sock")).display()),
            };
            let target = Target::start(programs.of(release), &fleet.root(index), &listen)?;
            fleet.urls.push(match transport {
                Transport::Tcp => format!("{}/orders", target.address),
                Transport::Shm => format!("{}?pool=orders", target.address),
            });
            fleet.targets.push(Some(target));
            fleet.check_version(index, release)?;
        }
        Ok(fleet)
    }

    fn root(&self, index: usize) -> PathBuf {
        self.directory.path().join(index.to_string())
    }

    fn file(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    fn address(&self, index: usize) -> Result<String> {
        let target = self.targets[index].as_ref();
        Ok(target.with_context(|| format!("target {index} does not run"))?.address.clone())
    }

    /// That the target is of this release.
    fn check_version(&self, index: usize, release: Release) -> Result<()> {
        let status = json(self.programs.of(Release::Here), &["status", "--json", &self.address(index)?])?;
        let spoken = CONTROL_VERSIONS.iter().find(|(of, _)| *of == release).map(|(_, version)| *version);
        let found = status["newest_control_version"].as_u64();
        ensure!(found == spoken, "target {index} of release {release} speaks version {found:?}, not {spoken:?}");
        Ok(())
    }

    fn kill(&mut self, index: usize) -> Result<String> {
        let target = self.targets[index].take().with_context(|| format!("target {index} does not run"))?;
        let address = target.address.clone();
        target.kill()?;
        Ok(address)
    }

    /// Kills a target and starts one of this release in its place.
    fn replace(&mut self, index: usize, release: Release) -> Result<()> {
        let listen = self.kill(index)?;
        self.restart(index, release, &listen)
    }

    fn restart(&mut self, index: usize, release: Release, listen: &str) -> Result<()> {
        self.targets[index] = Some(Target::start(self.programs.of(release), &self.root(index), listen)?);
        self.check_version(index, release)
    }

    /// Copies a file to the new pool, and back.
    fn create(&self, program: &Path) -> Result<()> {
        let (original, copy) = (self.file("original"), self.file("copy"));
        let bytes: Vec<u8> = (0..POOL_BYTES).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect();
        fs::write(&original, &bytes)?;
        let [first, second, third] = &self.urls[..] else { anyhow::bail!("there are not three replicas") };
        done(program, &["cp", &original, first, "--replica", second, "--replica", third])?;
        self.copy_back(program, &copy)?;
        ensure!(fs::read(&copy)? == bytes, "what came back is not what was copied");
        Ok(())
    }

    fn copy_back(&self, program: &Path, to: &str) -> Result<()> {
        let [first, second, third] = &self.urls[..] else { anyhow::bail!("there are not three replicas") };
        done(program, &["cp", "--force", first, to, "--replica", second, "--replica", third]).map(drop)
    }

    /// What does not write.
    fn look(&self, program: &Path) -> Result<()> {
        for index in 0..3 {
            done(program, &["status", &self.address(index)?])?;
            let listed = done(program, &["pool", "ls", "-l", &self.address(index)?])?;
            ensure!(listed.contains("orders"), "target {index} does not list the pool: {listed}");
        }
        self.with_urls(program, &["pool", "info"])?;
        wait_in_sync(program, &self.urls, 0).map(drop)
    }

    fn with_urls(&self, program: &Path, arguments: &[&str]) -> Result<String> {
        let urls = self.urls.iter().map(String::as_str);
        done(program, &arguments.iter().copied().chain(urls).collect::<Vec<_>>())
    }

    /// All replicas have the same bytes, by the word of both releases.
    fn compare(&self) -> Result<()> {
        let mut contents = Vec::new();
        for release in [Release::Former, Release::Here] {
            let copy = self.file(&format!("by-{release}"));
            self.with_urls(self.programs.of(release), &["pool", "scrub"])?;
            self.copy_back(self.programs.of(release), &copy)?;
            contents.push(fs::read(&copy)?);
        }
        ensure!(contents[0] == contents[1], "the releases read different bytes over {}", self.transport);
        ensure!(contents[0] != fs::read(self.file("original"))?, "nothing that was acknowledged is there");
        Ok(())
    }

    /// Changes the members and removes the pool.
    fn end(&self, program: &Path) -> Result<()> {
        let [first, .., last] = &self.urls[..] else { anyhow::bail!("there are not three replicas") };
        done(program, &["pool", "remove", first, last])?;
        done(program, &["pool", "rm", last])?;
        done(program, &["pool", "add", first, last])?;
        wait_in_sync(program, &self.urls, 0)?;
        self.with_urls(program, &["pool", "rm"])?;
        for index in 0..3 {
            let listed = done(program, &["pool", "ls", &self.address(index)?])?;
            ensure!(!listed.contains("orders"), "target {index} lists a pool that was removed: {listed}");
        }
        Ok(())
    }
}

/// A pool is made, written, loses a target, gets it back, is closed, opened, scrubbed, looked at, changed and removed by an initiator of one release.
pub(super) fn use_mixed(
    programs: &Programs,
    transport: Transport,
    initiator: Release,
    targets: [Release; 3],
) -> Result<()> {
    let program = programs.of(initiator);
    let mut fleet = Fleet::start(programs, transport, targets)?;
    fleet.create(program)?;
    fleet.look(program)?;
    let mut writer = Writer::start(program, &fleet.urls, 0)?;
    let before = wait_in_sync(program, &fleet.urls, 0)?;
    let listen = fleet.kill(0)?;
    writer.go_on()?;
    fleet.restart(0, targets[0], &listen)?;
    wait_in_sync(program, &fleet.urls, before)?;
    writer.go_on()?;
    writer.kill()?;
    fleet.compare()?;
    fleet.look(program)?;
    fleet.end(program)
}

/// The targets of a pool are upgraded one after the other under a writer, then the writer is, and then all of them go back to the former release.
pub(super) fn roll(programs: &Programs, transport: Transport) -> Result<()> {
    let mut fleet = Fleet::start(programs, transport, [Release::Former; 3])?;
    fleet.create(programs.of(Release::Former))?;
    let mut writer = Writer::start(programs.of(Release::Former), &fleet.urls, 0)?;
    for (round, release) in [(1, Release::Here), (2, Release::Former)] {
        for index in 0..3 {
            let before = wait_in_sync(programs.of(release), &fleet.urls, 0)?;
            fleet.replace(index, release)?;
            wait_in_sync(programs.of(release), &fleet.urls, before)?;
            writer.go_on()?;
        }
        writer.kill()?;
        writer = Writer::start(programs.of(release), &fleet.urls, round)?;
    }
    writer.kill()?;
    fleet.compare()?;
    fleet.end(programs.of(Release::Here))
}
