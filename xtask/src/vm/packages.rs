//! Debian packages without installing them: apt with a state of its own resolves, fetches and verifies; dpkg-deb unpacks.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};

use super::tools::{self, KEYRING};

/// The Debian of the guest.
pub(crate) const GUEST_RELEASE: &str = "trixie";
/// A Debian whose programs run on hosts as old as itself and in the guest alike.
pub(crate) const HOST_RELEASE: &str = "bookworm";
const DEFAULT_MIRROR: &str = "http://deb.debian.org/debian";

/// A private apt: nothing of the host's packages is looked at, and no file outside its directory is written. Threads and
/// processes that share the directory take turns: apt replaces lists and archives while another reads them.
#[derive(Debug)]
pub(crate) struct Packages {
    directory: PathBuf,
    release: &'static str,
    updated: AtomicBool,
}

/// One package file in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    architecture: String,
}

impl Package {
    /// The name that apt gives the file.
    fn file_name(&self) -> String {
        format!("{}_{}_{}.deb", self.name, self.version.replace(':', "%3a"), self.architecture)
    }
}

impl Packages {
    /// An apt for one release of Debian, with its state in a directory of its own.
    pub(crate) fn new(directory: PathBuf, release: &'static str) -> Self {
        Self { directory, release, updated: AtomicBool::new(false) }
    }

    /// The packages of these names and all that they depend on, fetched into the cache.
    pub(crate) fn fetch(&self, names: &[&str]) -> Result<Vec<Package>> {
        let _turn = self.turn()?;
        self.update()?;
        let plan = tools::run(self.apt_get().args(["--simulate", "install"]).args(names))?;
        let packages = parse_plan(&plan);
        ensure!(!packages.is_empty(), "apt-get --simulate install {} named no package", names.join(" "));
        self.download(&packages)?;
        Ok(packages)
    }

    /// The packages of these names, without what they depend on.
    pub(crate) fn fetch_only(&self, names: &[&str]) -> Result<Vec<Package>> {
        let _turn = self.turn()?;
        self.update()?;
        let plan = tools::run(self.apt_get().args(["--simulate", "install"]).args(names))?;
        let mut packages = parse_plan(&plan);
        packages.retain(|package| names.contains(&package.name.as_str()));
        let absent = |name: &&&str| !packages.iter().any(|package| package.name == **name);
        if let Some(name) = names.iter().find(absent) {
            bail!("apt-get --simulate install did not name {name}");
        }
        self.download(&packages)?;
        Ok(packages)
    }

    /// One file of a source package of this exact version. apt checks it against the index that Debian signs.
    pub(crate) fn fetch_source(&self, name: &str, version: &str, file: &str) -> Result<PathBuf> {
        let _turn = self.turn()?;
        self.update()?;
        let archives = self.directory.join("archives");
        let sources = self.directory.join("etc/sources.list");
        let source = format!("deb-src [signed-by={KEYRING}] {} {} main\n", mirror(), self.release);
        let binary = fs::read_to_string(&sources).with_context(|| format!("reading {}", sources.display()))?;
        fs::write(&sources, binary + &source)?;
        tools::run(self.apt_get().arg("update")).with_context(|| format!("reading the sources of {}", self.release))?;
        let mut command = self.apt_get();
        command.current_dir(&archives).args(["source", "--download-only", &format!("{name}={version}")]);
        tools::run(&mut command)?;
        let path = archives.join(file);
        ensure!(path.is_file(), "the source package {name} {version} has no {file}");
        Ok(path)
    }

    /// Which package of that plan has a name that begins so: metapackages name the real one by their dependency.
    pub(crate) fn fetch_dependency(&self, metapackage: &str, begins: &str) -> Result<Package> {
        let _turn = self.turn()?;
        self.update()?;
        let plan = tools::run(self.apt_get().args(["--simulate", "install", metapackage]))?;
        let package = parse_plan(&plan)
            .into_iter()
            .find(|package| package.name.starts_with(begins))
            .with_context(|| format!("{metapackage} depends on no {begins}*"))?;
        self.download(std::slice::from_ref(&package))?;
        Ok(package)
    }

    /// Unpacks a package that [`Self::fetch`] has fetched; its scripts are not run.
    pub(crate) fn unpack(&self, package: &Package, into: &Path) -> Result<()> {
        let _turn = self.turn()?;
        let file = self.directory.join("archives").join(package.file_name());
        tools::run(tools::command("dpkg-deb").arg("--extract").args([&file, into])).map(drop)
    }

    /// Waits until no other uses the directory; it is the caller's until the value is dropped.
    fn turn(&self) -> Result<File> {
        fs::create_dir_all(&self.directory).with_context(|| format!("making {}", self.directory.display()))?;
        let path = self.directory.join("turn.lock");
        let lock = File::create(&path).with_context(|| format!("making {}", path.display()))?;
        flock(&lock, FlockOperation::LockExclusive).with_context(|| format!("locking {}", path.display()))?;
        Ok(lock)
    }

    /// Fetches the exact versions; what is in the cache with the right checksum is not fetched again.
    fn download(&self, packages: &[Package]) -> Result<()> {
        let exact = packages.iter().map(|package| format!("{}={}", package.name, package.version));
        let mut command = self.apt_get();
        command.current_dir(self.directory.join("archives")).arg("download").args(exact);
        tools::run(&mut command).map(drop)
    }

    /// Fetches the index and writes the configuration, once for this value.
    fn update(&self) -> Result<()> {
        if self.updated.load(Ordering::Relaxed) {
            return Ok(());
        }
        for part in ["lists/partial", "archives/partial", "etc/preferences.d"] {
            let path = self.directory.join(part);
            fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
        }
        let (mirror, release) = (mirror(), self.release);
        let source = format!("deb [signed-by={KEYRING}] {mirror} {release} main\n");
        fs::write(self.directory.join("status"), "")?;
        fs::write(self.directory.join("etc/sources.list"), source)?;
        // How the host reaches the network is its own affair; all else of its configuration stays out.
        let network = tools::run(tools::command("apt-config").args(["dump", "Acquire::http", "Acquire::https"]))?;
        fs::write(self.directory.join("apt.conf"), configuration(&self.directory, &network))?;
        tools::run(self.apt_get().arg("update")).with_context(|| format!("reading the index of {mirror} {release}"))?;
        self.updated.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn apt_get(&self) -> Command {
        let mut command = tools::command("apt-get");
        command.env("APT_CONFIG", self.directory.join("apt.conf")).env("LC_ALL", "C").args(["--quiet=2", "--yes"]);
        command
    }
}

fn configuration(directory: &Path, network: &str) -> String {
    let directory = directory.display();
    format!(
        "{network}\
         Dir::Etc \"{directory}/etc\";\n\
         Dir::Etc::main \"/dev/null\";\n\
         Dir::Etc::parts \"/dev/null\";\n\
         Dir::State \"{directory}\";\n\
         Dir::State::lists \"{directory}/lists\";\n\
         Dir::State::status \"{directory}/status\";\n\
         Dir::Cache \"{directory}\";\n\
         Dir::Cache::archives \"{directory}/archives\";\n\
         APT::Architecture \"amd64\";\n\
         #clear APT::Architectures;\n\
         APT::Architectures:: \"amd64\";\n\
         APT::Install-Recommends \"false\";\n\
         APT::Sandbox::User \"root\";\n\
         Acquire::Languages \"none\";\n\
         Acquire::Retries \"3\";\n"
    )
}

/// Reads lines `Inst NAME (VERSION ORIGIN [ARCHITECTURE])`.
fn parse_plan(plan: &str) -> Vec<Package> {
    let parse = |line: &str| {
        let (name, rest) = line.strip_prefix("Inst ")?.split_once(" (")?;
        let (inside, _) = rest.split_once(')')?;
        let (version, rest) = inside.split_once(' ')?;
        let (_, architecture) = rest.rsplit_once('[')?;
        let architecture = architecture.trim_end_matches(']');
        Some(Package { name: name.into(), version: version.into(), architecture: architecture.into() })
    };
    plan.lines().filter_map(parse).collect()
}

fn mirror() -> String {
    mirror_of_host().unwrap_or_else(|| DEFAULT_MIRROR.to_owned())
}

/// The first Debian mirror that the host's apt is set up with.
fn mirror_of_host() -> Option<String> {
    let parts = fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<_> = parts.collect();
    files.sort();
    files.insert(0, "/etc/apt/sources.list".into());
    files.iter().filter_map(|file| fs::read_to_string(file).ok()).find_map(|text| mirror_in(&text))
}

/// Both forms of source lists: `deb [options] URI suite ...` and `URIs: URI ...`.
fn mirror_in(sources: &str) -> Option<String> {
    let lines = sources.lines().map(str::trim).filter(|line| line.starts_with("deb ") || line.starts_with("URIs:"));
    let is_mirror = |word: &&str| word.contains("://") && word.trim_end_matches('/').ends_with("/debian");
    lines.flat_map(str::split_whitespace).find(is_mirror).map(|word| word.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_of_one_directory_take_turns() {
        let directory = std::env::temp_dir().join(format!("pmof-packages-{}", std::process::id()));
        let packages = [(); 2].map(|()| Packages::new(directory.clone(), GUEST_RELEASE));
        let turn = packages[0].turn().unwrap();
        let other = File::open(directory.join("turn.lock")).unwrap();
        assert!(flock(&other, FlockOperation::NonBlockingLockExclusive).is_err());
        drop(turn);
        drop(packages[1].turn().unwrap());
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_plan_gives_the_files_of_the_cache() {
        let plan = "NOTE: simulation\nInst libacl1 (2.3.2-2+b1 Debian:13.7/stable [amd64])\n\
                    Inst libattr1 (1:2.5.2-3 Debian:13.7/stable [amd64]) [libc6:amd64 ]\n\
                    Conf libacl1 (2.3.2-2+b1 Debian:13.7/stable [amd64])\n";
        let names: Vec<_> = parse_plan(plan).iter().map(Package::file_name).collect();
        assert_eq!(names, ["libacl1_2.3.2-2+b1_amd64.deb", "libattr1_1%3a2.5.2-3_amd64.deb"]);
    }

    #[test]
    fn the_mirror_is_the_archive_and_not_its_sisters() {
        let modern =
            "Types: deb\nURIs: http://security.test/debian-security\n\nTypes: deb\nURIs: http://a.test/debian/\n";
        assert_eq!(mirror_in(modern).as_deref(), Some("http://a.test/debian"));
        let classic =
            "# deb http://old.test/debian bookworm main\ndeb [arch=amd64] https://b.test/debian bookworm main\n";
        assert_eq!(mirror_in(classic).as_deref(), Some("https://b.test/debian"));
        assert_eq!(mirror_in("deb http://archive.test/ubuntu noble main\n"), None);
    }

    #[test]
    fn the_configuration_keeps_the_hosts_proxy_and_drops_its_hooks() {
        let text = configuration(Path::new("/d"), "Acquire::http::Proxy \"http://p.test\";\n");
        assert!(text.starts_with("Acquire::http::Proxy \"http://p.test\";\nDir::Etc \"/d/etc\";\n"), "{text}");
        assert!(text.contains("Dir::Etc::parts \"/dev/null\";"), "{text}");
    }
}
