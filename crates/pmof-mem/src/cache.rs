//! Write-back of CPU cache lines towards persistent memory, and the fence that completes it.
//!
//! Rules from the Intel SDM (CLWB, CLFLUSHOPT, CLFLUSH, SFENCE), the AMD APM, and the Arm ARM (DC CVAP, `FEAT_DPB`).

use std::{fmt, sync::OnceLock};

/// The instruction that writes a cache line back to memory, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheWriteBack {
    /// x86-64 `clwb`: writes back and may keep the line.
    Clwb,
    /// x86-64 `clflushopt`: writes back and evicts; unordered among lines.
    Clflushopt,
    /// x86-64 `clflush`: writes back and evicts; one line after the other.
    Clflush,
    /// `AArch64` `dc cvap`: cleans to the point of persistence.
    DcCvap,
}

impl CacheWriteBack {
    /// Every instruction, best first.
    pub const ALL: [Self; 4] = [Self::Clwb, Self::Clflushopt, Self::Clflush, Self::DcCvap];

    /// The best instruction that this CPU says it has. `None` on CPUs and architectures without one: there no promise
    /// that needs cache-line write-back may be made.
    pub fn detect() -> Option<Self> {
        // Asked once: in a virtual machine each cpuid leaves the guest.
        static DETECTED: OnceLock<Option<CacheWriteBack>> = OnceLock::new();
        *DETECTED.get_or_init(|| Self::ALL.into_iter().find(|instruction| instruction.is_supported()))
    }

    /// Whether this CPU says that it has the instruction.
    pub fn is_supported(self) -> bool {
        arch::is_supported(self)
    }
}

impl fmt::Display for CacheWriteBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Clwb => "clwb",
            Self::Clflushopt => "clflushopt",
            Self::Clflush => "clflush",
            Self::DcCvap => "dc cvap",
        })
    }
}

/// Bytes that one write-back instruction covers on this CPU.
pub fn line_bytes() -> usize {
    static LINE_BYTES: OnceLock<usize> = OnceLock::new();
    *LINE_BYTES.get_or_init(arch::line_bytes)
}

/// Writes back every cache line that holds a byte of `len_bytes` bytes at `start`. Complete only after
/// [`persist_fence`].
///
/// # Safety
///
/// The bytes must be mapped readable for the duration of the call, and `instruction.is_supported()`.
pub(crate) unsafe fn write_back_lines(instruction: CacheWriteBack, start: *const u8, len_bytes: usize) {
    let line = line_bytes();
    // A line never crosses a page, so the first line's start is mapped if its bytes are.
    let lead = start.addr() % line;
    let first = start.wrapping_sub(lead);
    let lines = (lead + len_bytes).div_ceil(line);
    if len_bytes == 0 {
        return;
    }
    for index in 0..lines {
        // SAFETY: each line holds a byte of the range, which is mapped for the call, and a line never crosses a page; this CPU has the
        // instruction.
        unsafe { arch::write_back_line(instruction, first.wrapping_add(index * line)) };
    }
}

/// Orders all earlier stores and line write-backs of this thread before all that follows; on return they were accepted
/// by the persistence domain.
pub(crate) fn persist_fence() {
    arch::persist_fence();
}

#[cfg(target_arch = "x86_64")]
pub(crate) use arch::cpuid;

#[cfg(target_arch = "x86_64")]
mod arch {
    use core::arch::{asm, x86_64};

    use super::CacheWriteBack;

    /// What the CPU says of itself in the first part of a leaf.
    #[allow(unused_unsafe, reason = "the call is unsafe before Rust 1.94")]
    pub(crate) fn cpuid(leaf: u32) -> x86_64::CpuidResult {
        // SAFETY: every x86-64 CPU has the instruction, which touches registers only.
        unsafe { x86_64::__cpuid_count(leaf, 0) }
    }

    /// Leaf 7 EBX: the structured extended features.
    fn extended_features() -> u32 {
        if cpuid(0).eax < 7 { 0 } else { cpuid(7).ebx }
    }

    pub(super) fn is_supported(instruction: CacheWriteBack) -> bool {
        match instruction {
            CacheWriteBack::Clwb => extended_features() & (1 << 24) != 0,
            CacheWriteBack::Clflushopt => extended_features() & (1 << 23) != 0,
            CacheWriteBack::Clflush => cpuid(1).edx & (1 << 19) != 0,
            CacheWriteBack::DcCvap => false,
        }
    }

    pub(super) fn line_bytes() -> usize {
        // Leaf 1 EBX bits 15..8: the CLFLUSH line size in units of 8 bytes.
        let line = ((cpuid(1).ebx >> 8) & 0xff) as usize * 8;
        if line.is_power_of_two() { line } else { 64 }
    }

    /// # Safety
    /// `line` lies in mapped memory, and this CPU has the instruction.
    pub(super) unsafe fn write_back_line(instruction: CacheWriteBack, line: *const u8) {
        match instruction {
            // SAFETY: `line` is mapped and this CPU has the instruction, which changes no byte.
            CacheWriteBack::Clwb => unsafe {
                asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags));
            },
            // SAFETY: `line` is mapped and this CPU has the instruction, which changes no byte.
            CacheWriteBack::Clflushopt => unsafe {
                asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
            },
            // SAFETY: `line` is mapped; clflush is part of x86-64 and changes no byte (`DcCvap` is never supported here).
            CacheWriteBack::Clflush | CacheWriteBack::DcCvap => unsafe {
                asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags));
            },
        }
    }

    pub(super) fn persist_fence() {
        // SAFETY: a fence touches no memory of its own.
        unsafe { asm!("sfence", options(nostack, preserves_flags)) };
    }
}

#[cfg(target_arch = "aarch64")]
mod arch {
    use core::arch::asm;

    use super::CacheWriteBack;

    /// `HWCAP_DCPOP`: the kernel lets programs use `dc cvap`.
    const HWCAP_DCPOP: usize = 1 << 16;

    pub(super) fn is_supported(instruction: CacheWriteBack) -> bool {
        instruction == CacheWriteBack::DcCvap && rustix::param::linux_hwcap().0 & HWCAP_DCPOP != 0
    }

    pub(super) fn line_bytes() -> usize {
        let cache_type: u64;
        // SAFETY: CTR_EL0 is readable from user mode on Linux; the kernel emulates it where the CPU traps.
        unsafe { asm!("mrs {}, ctr_el0", out(reg) cache_type, options(nomem, nostack, preserves_flags)) };
        // DminLine, bits 19..16: log2 of the smallest data line in 4-byte words.
        4 << ((cache_type >> 16) & 0xf)
    }

    /// # Safety
    /// `line` lies in mapped memory, and this CPU has the instruction.
    pub(super) unsafe fn write_back_line(_instruction: CacheWriteBack, line: *const u8) {
        // SAFETY: `line` is mapped and this CPU has the instruction (S3_3_C7_C12_1 is `dc cvap`), which changes no byte.
        unsafe { asm!("sys #3, c7, c12, #1, {}", in(reg) line, options(nostack, preserves_flags)) };
    }

    pub(super) fn persist_fence() {
        // SAFETY: a barrier touches no memory of its own.
        unsafe { asm!("dsb sy", options(nostack, preserves_flags)) };
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod arch {
    use super::CacheWriteBack;

    pub(super) fn is_supported(_instruction: CacheWriteBack) -> bool {
        false
    }

    pub(super) fn line_bytes() -> usize {
        64
    }

    /// # Safety
    /// None here: it does nothing. The other architectures' callers keep the line mapped.
    pub(super) unsafe fn write_back_line(_instruction: CacheWriteBack, _line: *const u8) {}

    pub(super) fn persist_fence() {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) mod steps;
#[cfg(test)]
mod tests;
