//! Probes what this machine can promise: by asking the kernel and the CPU, never by guessing.

use std::{
    fmt, io,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};

use crate::{
    CacheWriteBack, Durability, Evidence, Mechanism, MediumKind, MemError, Promise, RegionProbe, System, UntornWrites,
    file::{io_error, map_error, named_file, suitable, unnamed_file},
    judge::{Judgement, judge_devdax, judge_file, magic_of},
    line_bytes,
    mapping::Mapping,
    memory::refuses_map_sync,
    mounts::OVERLAY_MAGIC,
};

/// Enough to ask for a mapping; any page size divides it or rounds it up.
const PROBE_BYTES: usize = 4096;

/// What memory at a path can promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediumProbe {
    /// The path that was probed.
    pub path: PathBuf,
    /// What the bytes would lie on.
    pub kind: MediumKind,
    /// The kernel's name of the file system; `none` for devices.
    pub file_system: String,
    /// The strongest level that is provided without a declaration.
    pub strongest: Durability,
    /// How that level is provided.
    pub promise: Promise,
    /// How [`Durability::PowerFailure`] is provided if an operator declares the host battery-backed; `None` if it is not
    /// even then.
    pub declared: Option<Promise>,
    /// The nd regions that the bytes would lie in.
    pub regions: Vec<RegionProbe>,
    /// What was asked and what the kernel answered, one sentence each.
    pub evidence: Vec<String>,
    /// What keeps the medium from [`Durability::PowerFailure`] and what would provide it; `None` if nothing does.
    pub mend: Option<String>,
    /// Which direct writes to its files a power cut leaves whole, by what the kernel says of an open file. Stores to memory that is mapped are
    /// no such writes: they stay whole by 8 aligned bytes.
    pub untorn: Option<UntornWrites>,
}

/// Probes a regular file, a directory (by a nameless file, on overlayfs one with a name, that is gone afterwards), or a
/// devdax device.
///
/// Errors: `Unsuitable` for anything else; `Io`, as where the directory cannot be written.
pub fn probe(path: &Path) -> Result<MediumProbe, MemError> {
    probe_with(&System::real(), path)
}

/// What the CPU can do for persistent memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuProbe {
    /// Vendor and model as the CPU states them; the architecture where it does not.
    pub model: String,
    /// The CPU has `clwb`.
    pub has_clwb: bool,
    /// The CPU has `clflushopt`.
    pub has_clflushopt: bool,
    /// The instruction that pmof uses; without one, DAX media in need of it give no `PowerFailure`.
    pub write_back: Option<CacheWriteBack>,
    /// Bytes of one cache line.
    pub line_bytes: usize,
}

/// Asks the CPU that this thread runs on.
pub fn probe_cpu() -> CpuProbe {
    CpuProbe {
        model: cpu_model(),
        has_clwb: CacheWriteBack::Clwb.is_supported(),
        has_clflushopt: CacheWriteBack::Clflushopt.is_supported(),
        write_back: CacheWriteBack::detect(),
        line_bytes: line_bytes(),
    }
}

impl MediumProbe {
    pub(crate) fn of(path: PathBuf, judgement: Judgement) -> Self {
        let strongest =
            Durability::ALL.into_iter().rev().find_map(|level| Some((level, judgement.promise(level, false)?)));
        // Every medium is visible.
        let visible = Promise { mechanism: Mechanism::Store, evidence: Evidence::Probed };
        let (strongest, promise) = strongest.unwrap_or((Durability::Visible, visible));
        let declared = judgement.promise(Durability::PowerFailure, true);
        let mend = judgement.mend();
        let Judgement { kind, file_system, evidence, regions, .. } = judgement;
        let untorn = None;
        Self { path, kind, file_system, strongest, promise, declared, regions, evidence, mend, untorn }
    }
}

impl fmt::Display for MediumProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Promise { mechanism, evidence } = self.promise;
        write!(
            f,
            "{}: {} ({}): {} by {mechanism}, {evidence}",
            self.path.display(),
            self.kind,
            self.file_system,
            self.strongest
        )
    }
}

fn probe_with(system: &System, path: &Path) -> Result<MediumProbe, MemError> {
    let stat = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|errno| io_error("stat", path, "name a file, a directory or a devdax device", errno))?;
    let (judgement, untorn) = if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        probe_directory(system, path)?
    } else if let Some(directory) = suitable(system, path, &stat)? {
        (judge_devdax(system, &directory), None)
    } else {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file =
            rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|errno| io_error("open", path, "", errno))?;
        probe_file(system, path, file.as_fd())?
    };
    Ok(MediumProbe { untorn, ..MediumProbe::of(path.into(), judgement) })
}

fn probe_directory(system: &System, path: &Path) -> Result<(Judgement, Option<UntornWrites>), MemError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory =
        rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|errno| io_error("open", path, "", errno))?;
    let magic = magic_of(directory.as_fd()).map_err(|source| io_error("statfs", path, "", source))?;
    if magic == OVERLAY_MAGIC {
        // Which file of the upper file system it is, is found by its name.
        let (file, _removed_at_the_end) = named_file(path, PROBE_BYTES as u64)?;
        return probe_file(system, path, file.as_fd());
    }
    probe_file(system, path, unnamed_file(path, PROBE_BYTES as u64)?.as_fd())
}

fn probe_file(
    system: &System,
    path: &Path,
    file: BorrowedFd<'_>,
) -> Result<(Judgement, Option<UntornWrites>), MemError> {
    // Mapped and never touched: an empty or sparse file is as good for asking.
    let failed = |source: io::Error| map_error(path, source);
    let map_sync = match Mapping::of_file(file, PROBE_BYTES, false, true) {
        Ok(_) => true,
        Err(error) if refuses_map_sync(&error) => {
            Mapping::of_file(file, PROBE_BYTES, false, false).map_err(failed)?;
            false
        }
        Err(error) => return Err(failed(error)),
    };
    let judgement = judge_file(system, path, file, map_sync).map_err(|source| io_error("statfs", path, "", source))?;
    Ok((judgement, UntornWrites::of(file)))
}

#[cfg(target_arch = "x86_64")]
fn cpu_model() -> String {
    use core::arch::x86_64::CpuidResult;

    use crate::cache::cpuid;
    /// The first of the three leaves that spell the brand; the same leaf tells how far the extended ones go.
    const BRAND_LEAF: u32 = 0x8000_0002;
    fn text(registers: &[u32]) -> String {
        let bytes: Vec<u8> = registers.iter().flat_map(|register| register.to_le_bytes()).collect();
        String::from_utf8_lossy(&bytes).trim_matches(['\0', ' ']).to_owned()
    }
    let vendor = cpuid(0);
    let vendor = text(&[vendor.ebx, vendor.edx, vendor.ecx]);
    if cpuid(0x8000_0000).eax < BRAND_LEAF + 2 {
        return vendor;
    }
    let brand: Vec<u32> = (BRAND_LEAF..BRAND_LEAF + 3)
        .map(cpuid)
        .flat_map(|CpuidResult { eax, ebx, ecx, edx }| [eax, ebx, ecx, edx])
        .collect();
    format!("{vendor} {}", text(&brand))
}

#[cfg(not(target_arch = "x86_64"))]
fn cpu_model() -> String {
    let architecture = std::env::consts::ARCH;
    match std::fs::read_to_string("/sys/devices/system/cpu/cpu0/regs/identification/midr_el1") {
        Ok(midr) => format!("{architecture}, MIDR {}", midr.trim()),
        Err(_) => architecture.into(),
    }
}

#[cfg(test)]
mod tests;
