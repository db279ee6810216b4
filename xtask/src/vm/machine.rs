//! Describing a virtual machine, before it is started.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};

use super::{
    arguments,
    running::{Running, Sink},
    testbed::{Guest, Media, RunDirectory, Testbed},
};

/// Who executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accelerator {
    /// QEMU's translator (TCG): works everywhere, and is what plugins and the instruction clock need.
    Emulated,
    /// The host's processor. See [`super::kvm`] for whether it works.
    Kvm,
}

/// What the guest's firmware says of what reaches the NVDIMMs at a power failure (`-M nvdimm-persistence`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Persistence {
    /// Nothing is said.
    None,
    /// What the memory controller has accepted: caches must be written back.
    #[default]
    MemCtrl,
    /// Caches too (eADR).
    Cpu,
}

/// What a machine does once it is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Runs the command.
    Run,
    /// Gives a prompt on the terminal of xtask.
    Shell,
    /// Makes name spaces and file systems on empty images.
    Prepare,
}

/// Where the content of a disk lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DiskSource {
    /// A file, written through the host's page cache.
    File(PathBuf),
    /// An NBD server on a Unix socket (absolute path, at most 107 bytes), without a cache in between.
    Nbd(PathBuf),
}

/// Where a virtio-serial port leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PortTarget {
    /// Bytes that the guest writes are appended to the file before its write returns.
    File(PathBuf),
    /// QEMU connects to this Unix socket (at most 107 bytes), where somebody must listen.
    Socket(PathBuf),
}

/// One end of the link between two machines. The listening machine must be started first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// Machine 0; the socket is made at this path.
    Listen(PathBuf),
    /// Machine 1.
    Connect(PathBuf),
}

impl Link {
    /// The machine's number, `PMOF_VM`.
    pub(crate) fn number(&self) -> u8 {
        match self {
            Self::Listen(_) => 0,
            Self::Connect(_) => 1,
        }
    }
}

/// A machine to be started, any number of times.
///
/// By default: emulated, two processors, 2 GiB, fresh copies of the prepared images that vanish after the run.
#[derive(Clone, Debug)]
pub(crate) struct Machine<'a> {
    testbed: &'a Testbed,
    pub(super) mode: Mode,
    pub(super) accelerator: Accelerator,
    pub(super) cpu: Option<String>,
    pub(super) processors: u32,
    pub(super) memory_mib: u32,
    pub(super) icount: bool,
    pub(super) plugins: Vec<OsString>,
    pub(super) persistence: Persistence,
    pub(super) cxl: bool,
    pub(super) file_disk: Option<DiskSource>,
    pub(super) disks: Vec<(String, DiskSource)>,
    pub(super) ports: Vec<(String, PortTarget)>,
    pub(super) link: Option<Link>,
    pub(super) shared: Option<PathBuf>,
    pub(super) kernel_arguments: Vec<String>,
    media: Option<Media>,
    brought: Vec<PathBuf>,
    environment: Vec<(String, String)>,
    command: String,
    sink: Sink,
}

/// The files of one started machine.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) directory: RunDirectory,
    pub(super) guest: Guest,
    pub(super) media: Media,
    /// The newer QEMU, where the machine needs it.
    pub(super) qemu10: Option<PathBuf>,
}

impl Files {
    pub(super) fn share(&self) -> PathBuf {
        self.directory.path().join("share")
    }
}

impl<'a> Machine<'a> {
    pub(crate) fn new(testbed: &'a Testbed) -> Self {
        Self {
            testbed,
            mode: Mode::Run,
            accelerator: Accelerator::Emulated,
            cpu: None,
            processors: 2,
            memory_mib: 2048,
            icount: false,
            plugins: Vec::new(),
            persistence: Persistence::default(),
            cxl: false,
            file_disk: None,
            disks: Vec::new(),
            ports: Vec::new(),
            link: None,
            shared: None,
            kernel_arguments: Vec::new(),
            media: None,
            brought: Vec::new(),
            environment: Vec::new(),
            command: "true".to_owned(),
            sink: Sink::Kept,
        }
    }

    /// What the guest runs, by bash, in `/host`: a script, not a program with arguments.
    pub(crate) fn command(self, script: impl Into<String>) -> Self {
        Self { command: script.into(), ..self }
    }

    pub(crate) fn mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    pub(crate) fn accelerator(self, accelerator: Accelerator) -> Self {
        Self { accelerator, ..self }
    }

    /// QEMU's `-cpu`, as in `max,-clwb`.
    pub(crate) fn cpu(self, model: impl Into<String>) -> Self {
        Self { cpu: Some(model.into()), ..self }
    }

    pub(crate) fn processors(self, processors: u32) -> Self {
        Self { processors, ..self }
    }

    /// At most 2048: then the NVDIMMs lie at [`arguments::NVDIMM_ADDRESSES`].
    pub(crate) fn memory_mib(self, memory_mib: u32) -> Self {
        Self { memory_mib, ..self }
    }

    /// The benchmark clock: two nanoseconds an instruction, idle time skipped. Takes one processor.
    pub(crate) fn icount(self) -> Self {
        Self { icount: true, processors: 1, ..self }
    }

    /// One `-plugin`, as in `/path/plugin.so,key=value`; brings in the newer QEMU. Paths must be absolute.
    pub(crate) fn plugin(mut self, argument: impl Into<OsString>) -> Self {
        self.plugins.push(argument.into());
        self
    }

    pub(crate) fn persistence(self, persistence: Persistence) -> Self {
        Self { persistence, ..self }
    }

    /// 256 MiB of CXL persistent memory beside the NVDIMMs; brings in the newer QEMU.
    pub(crate) fn cxl(self) -> Self {
        Self { cxl: true, ..self }
    }

    /// Images to work on, which the run changes and leaves behind.
    pub(crate) fn media(self, media: Media) -> Self {
        Self { media: Some(media), ..self }
    }

    /// Another source for the disk of `PMOF_FILE`; its content must begin as [`Media::file`].
    pub(crate) fn file_disk(self, source: DiskSource) -> Self {
        Self { file_disk: Some(source), ..self }
    }

    /// One more disk; the guest finds its device in `PMOF_DISK_NAME`. The name: lowercase letters and digits, at most 20.
    pub(crate) fn disk(mut self, name: &str, source: DiskSource) -> Self {
        self.disks.push((name.to_owned(), source));
        self
    }

    /// One more virtio-serial port; the guest finds its device in `PMOF_PORT_NAME`. The name as for [`Self::disk`].
    pub(crate) fn port(mut self, name: &str, target: PortTarget) -> Self {
        self.ports.push((name.to_owned(), target));
        self
    }

    pub(crate) fn link(self, link: Link) -> Self {
        Self { link: Some(link), ..self }
    }

    /// A directory of the host that the guest sees as `/shared`.
    pub(crate) fn shared(self, directory: &Path) -> Self {
        Self { shared: Some(directory.to_owned()), ..self }
    }

    /// A file to copy to `/host/bin`, which is on the guest's search path.
    pub(crate) fn bring(mut self, file: &Path) -> Self {
        self.brought.push(file.to_owned());
        self
    }

    /// A variable of the command's environment.
    pub(crate) fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// An addition to the kernel's command line.
    pub(crate) fn kernel_argument(mut self, argument: &str) -> Self {
        self.kernel_arguments.push(argument.to_owned());
        self
    }

    /// Also shows the command's output as it comes.
    pub(crate) fn show_output(self, prefix: &'static str) -> Self {
        Self { sink: Sink::Shown(prefix), ..self }
    }

    pub(super) fn sink(&self) -> Sink {
        self.sink
    }

    pub(super) fn logs(&self) -> PathBuf {
        self.testbed.logs()
    }

    /// Whether the host's own QEMU does not do.
    pub(super) fn needs_qemu10(&self) -> bool {
        self.cxl || !self.plugins.is_empty()
    }

    /// Starts the machine; builds first what the test bed lacks.
    pub(crate) fn start(self) -> Result<Running<'a>> {
        self.check()?;
        let files = self.files()?;
        Running::start(self, files)
    }

    /// What QEMU would refuse, or silently do otherwise.
    fn check(&self) -> Result<()> {
        let emulated = self.accelerator == Accelerator::Emulated;
        ensure!(emulated || !self.icount && self.plugins.is_empty(), "KVM has neither plugins nor the icount clock");
        ensure!(!self.icount || self.processors == 1, "the icount clock takes one processor: --smp 1");
        ensure!(self.memory_mib <= 2048, "a guest has at most 2048 MiB: its NVDIMMs lie at fixed addresses");
        for (name, _) in &self.disks {
            check_name(name)?;
        }
        for (name, _) in &self.ports {
            check_name(name)?;
        }
        if !self.brought.is_empty() {
            self.testbed.check_libc()?;
        }
        Ok(())
    }

    /// The run's directory with all that the machine finds there.
    fn files(&self) -> Result<Files> {
        let guest = self.testbed.guest()?;
        let prepared = if self.media.is_none() { Some(self.testbed.prepared_media()?) } else { None };
        let qemu10 = if self.needs_qemu10() { Some(self.testbed.qemu10()?) } else { None };
        let directory = self.testbed.run_directory()?;
        let media = match (&self.media, prepared) {
            (Some(media), _) => media.clone(),
            (None, Some(prepared)) => prepared.copy_to(directory.path())?,
            (None, None) => unreachable!("images are prepared where none are given"),
        };
        let files = Files { directory, guest, media, qemu10 };
        self.fill_share(&files.share())?;
        if self.cxl {
            for (name, bytes) in [(arguments::CXL_MEMORY, 256 << 20), (arguments::CXL_LABELS, 1 << 20)] {
                fs::File::create(files.directory.path().join(name))?.set_len(bytes)?;
            }
        }
        Ok(files)
    }

    fn fill_share(&self, share: &Path) -> Result<()> {
        let (scripts, programs) = (share.join("guest"), share.join("bin"));
        fs::create_dir_all(&scripts)?;
        fs::create_dir_all(&programs)?;
        for entry in fs::read_dir(self.testbed.recipe())? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                fs::copy(entry.path(), scripts.join(entry.file_name()))?;
            }
        }
        for file in &self.brought {
            let name = file.file_name().with_context(|| format!("{} is no file to bring", file.display()))?;
            fs::copy(file, programs.join(name)).with_context(|| format!("bringing {}", file.display()))?;
        }
        fs::write(share.join("settings"), self.settings())?;
        fs::write(share.join("command"), &self.command)?;
        Ok(())
    }

    fn settings(&self) -> String {
        let mode = match self.mode {
            Mode::Run => "run",
            Mode::Shell => "shell",
            Mode::Prepare => "prepare",
        };
        let mut settings = vec![("testbed_mode".to_owned(), mode.to_owned())];
        let mut set = |name: &str, value: String| settings.push((name.to_owned(), value));
        if self.cxl {
            set("testbed_cxl", "1".to_owned());
        }
        if self.shared.is_some() {
            set("testbed_shared", "1".to_owned());
        }
        if let Some(link) = &self.link {
            set("PMOF_VM", link.number().to_string());
        }
        let names = |list: &mut dyn Iterator<Item = &String>| list.cloned().collect::<Vec<_>>().join(" ");
        set("testbed_ports", names(&mut self.ports.iter().map(|(name, _)| name)));
        set("testbed_disks", names(&mut self.disks.iter().map(|(name, _)| name)));
        settings.extend(self.environment.iter().cloned());
        let lines: Vec<_> = settings.iter().map(|(name, value)| format!("{name}={}\n", quote(value))).collect();
        lines.concat()
    }
}

fn check_name(name: &str) -> Result<()> {
    let letters = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    ensure!(
        letters && (1..=20).contains(&name.len()) && !["root", "file", "output"].contains(&name),
        "{name:?} cannot name a port or disk: 1 to 20 lowercase letters and digits, not root, file or output"
    );
    Ok(())
}

/// One word for a shell.
pub(super) fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_the_shell() {
        for word in ["", "a b", "it's", "$HOME `x` \"y\" \\", "-n"] {
            let output =
                std::process::Command::new("sh").args(["-c", &format!("printf %s {}", quote(word))]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), word);
        }
    }

    #[test]
    fn names_of_ports_and_disks_are_checked() {
        assert!(check_name("ledger2").is_ok());
        for wrong in ["", "Ledger", "a-b", "output", "123456789012345678901"] {
            assert!(check_name(wrong).is_err(), "{wrong}");
        }
    }
}
