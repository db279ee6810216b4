//! What `vm run` and `vm shell` can be asked for.

use std::{
    fs,
    path::{Path, PathBuf, absolute},
};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};

use super::{
    kvm,
    machine::{Accelerator, DiskSource, Machine, Persistence, PortTarget},
    testbed::{Media, Testbed},
};
use crate::release;

/// What a machine is to be.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Whether the host's processor executes the guest
    #[arg(long, value_enum, default_value_t = UseKvm::Auto)]
    kvm: UseKvm,
    /// Processors; 1 with --icount
    #[arg(long, value_name = "N")]
    smp: Option<u32>,
    /// Memory in MiB, at most 2048
    #[arg(long, default_value_t = 2048, value_name = "MIB")]
    memory: u32,
    /// The benchmark clock: two nanoseconds an instruction, idle time skipped
    #[arg(long)]
    icount: bool,
    /// CXL persistent memory beside the NVDIMMs: `PMOF_CXL` names the device
    #[arg(long)]
    cxl: bool,
    /// What the firmware says of what reaches the NVDIMMs at a power failure
    #[arg(long, value_enum, default_value_t = Persistence::MemCtrl)]
    nvdimm_persistence: Persistence,
    /// QEMU's processor model and flags, as in max,-clwb
    #[arg(long, value_name = "MODEL")]
    cpu: Option<String>,
    /// A TCG plugin and its arguments, as in /path/plugin.so,key=value
    #[arg(long, value_name = "FILE,ARGUMENTS")]
    plugin: Vec<String>,
    /// A file to put into /host/bin, which is on the guest's search path. Always there: pmof, where it has been built
    #[arg(long, value_name = "FILE")]
    bring: Vec<PathBuf>,
    /// A directory with images to work on, which stay changed; where it does not exist, it gets fresh ones
    #[arg(long, value_name = "DIRECTORY")]
    media: Option<PathBuf>,
    /// Another source for the disk of `PMOF_FILE`, a file or nbd:SOCKET; it must begin as a fresh file.img
    #[arg(long, value_name = "SOURCE", value_parser = disk_source)]
    file_disk: Option<DiskSource>,
    /// One more disk, a file or nbd:SOCKET: `PMOF_DISK_NAME` names its device
    #[arg(long, value_name = "NAME=SOURCE", value_parser = named_disk)]
    disk: Vec<(String, DiskSource)>,
    /// One more port, to a file or to unix:SOCKET, where somebody must listen: `PMOF_PORT_NAME` names its device
    #[arg(long, value_name = "NAME=TARGET", value_parser = named_port)]
    port: Vec<(String, PortTarget)>,
    /// Build pmof (release) first
    #[arg(long)]
    build: bool,
}

/// Whether the host's processor executes the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum UseKvm {
    /// Where a guest has been seen to start on it, and no option needs emulation.
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

impl Options {
    /// The machine that the options describe.
    pub(super) fn machine<'a>(&self, testbed: &'a Testbed) -> Result<Machine<'a>> {
        let mut machine = Machine::new(testbed).memory_mib(self.memory).persistence(self.nvdimm_persistence);
        if self.icount {
            machine = machine.icount();
        }
        if self.cxl {
            machine = machine.cxl();
        }
        if let Some(processors) = self.smp {
            machine = machine.processors(processors);
        }
        if let Some(model) = &self.cpu {
            machine = machine.cpu(model);
        }
        for plugin in &self.plugin {
            machine = machine.plugin(plugin);
        }
        if let Some(directory) = &self.media {
            machine = machine.media(media(testbed, directory)?);
        }
        if let Some(source) = &self.file_disk {
            machine = machine.file_disk(source.clone());
        }
        for (name, source) in &self.disk {
            machine = machine.disk(name, source.clone());
        }
        for (name, target) in &self.port {
            machine = machine.port(name, target.clone());
        }
        let pmof = pmof(testbed, self.build)?;
        for file in self.bring.iter().chain(&pmof) {
            machine = machine.bring(file);
        }
        let may_use_kvm = !self.icount && self.plugin.is_empty() && self.cpu.is_none();
        let use_kvm = match self.kvm {
            UseKvm::On => true,
            UseKvm::Off => false,
            UseKvm::Auto => may_use_kvm && kvm::works(testbed)?,
        };
        Ok(machine.accelerator(if use_kvm { Accelerator::Kvm } else { Accelerator::Emulated }))
    }
}

/// Images in a directory: those that it has, or fresh copies.
fn media(testbed: &Testbed, directory: &Path) -> Result<Media> {
    let directory = absolute(directory).with_context(|| format!("finding {}", directory.display()))?;
    if directory.exists() {
        let media = Media::in_directory(&directory);
        for image in [&media.devdax, &media.fsdax, &media.file] {
            ensure!(image.exists(), "no {}: name a directory that does not exist for fresh images", image.display());
        }
        return Ok(media);
    }
    fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
    testbed.prepared_media()?.copy_to(&directory)
}

/// QEMU works in a directory of its own.
fn absolute_path(text: &str) -> Result<PathBuf> {
    absolute(text).with_context(|| format!("{text:?} is no path"))
}

fn disk_source(text: &str) -> Result<DiskSource> {
    match text.strip_prefix("nbd:") {
        Some(socket) => Ok(DiskSource::Nbd(absolute_path(socket)?)),
        None => Ok(DiskSource::File(absolute_path(text)?)),
    }
}

fn named_disk(text: &str) -> Result<(String, DiskSource)> {
    let (name, source) = text.split_once('=').context("not of the form NAME=SOURCE")?;
    Ok((name.to_owned(), disk_source(source)?))
}

fn named_port(text: &str) -> Result<(String, PortTarget)> {
    let (name, target) = text.split_once('=').context("not of the form NAME=TARGET")?;
    let target = match target.strip_prefix("unix:") {
        Some(socket) => PortTarget::Socket(absolute_path(socket)?),
        None => PortTarget::File(absolute_path(target)?),
    };
    Ok((name.to_owned(), target))
}

/// The release binary, where there is one.
pub(super) fn pmof(testbed: &Testbed, build: bool) -> Result<Option<PathBuf>> {
    if build {
        release::build(testbed.workspace())?;
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| testbed.workspace().join("target"), PathBuf::from);
    Ok(Some(target.join("release/pmof")).filter(|file| file.exists()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_and_ports_are_files_or_sockets() {
        assert_eq!(named_disk("a=/f=1").unwrap(), ("a".into(), DiskSource::File("/f=1".into())));
        assert_eq!(named_disk("a=nbd:/s").unwrap(), ("a".into(), DiskSource::Nbd("/s".into())));
        assert_eq!(named_port("p=/f").unwrap(), ("p".into(), PortTarget::File("/f".into())));
        assert_eq!(named_port("p=unix:/s").unwrap(), ("p".into(), PortTarget::Socket("/s".into())));
        let relative = named_disk("a=f").unwrap().1;
        assert!(matches!(relative, DiskSource::File(path) if path.is_absolute()));
        for wrong in ["", "name"] {
            assert!(named_disk(wrong).is_err() && named_port(wrong).is_err(), "{wrong:?}");
        }
    }
}
