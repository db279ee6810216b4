//! Registers and address translation of the processor on whose thread a callback runs.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};

use cache_model::{Address, PageTables, Segment, translate};
use qemu_plugin::{Register, read_memory, registers};

const GENERAL: [&str; 16] =
    ["rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"];

const GIBIBYTE: u64 = 1 << 30;

/// Where the kernel's image is mapped; the direct map lies below.
const KERNEL_IMAGE: u64 = 0xffff_ffff_8000_0000;

/// How many stores, each in another 2-MiB page than the one before, must agree on the direct map.
const WITNESSES: u64 = 16;

#[derive(Debug)]
struct Named {
    general: [Register; 16],
    fs_base: Register,
    gs_base: Register,
    cr3: Register,
    cr4: Register,
}

static NAMED: OnceLock<Named> = OnceLock::new();

/// Looks the registers up; to be called when a processor starts. Returns whether all are there.
pub(crate) fn find_registers() -> bool {
    if NAMED.get().is_some() {
        return true;
    }
    let all = registers();
    let find = |name: &str| all.get(name).copied();
    let named = || {
        let mut general = [find("rax")?; 16];
        for (register, name) in general.iter_mut().zip(GENERAL) {
            *register = find(name)?;
        }
        Some(Named {
            general,
            fs_base: find("fs_base")?,
            gs_base: find("gs_base")?,
            cr3: find("cr3")?,
            cr4: find("cr4")?,
        })
    };
    named().is_some_and(|named| NAMED.set(named).is_ok() || NAMED.get().is_some())
}

/// The linear address of an operand.
pub(crate) fn linear(address: Address) -> Option<u64> {
    let named = NAMED.get()?;
    let read = |register: Register| register.read().unwrap_or(0);
    Some(address.resolve(
        |number| read(named.general[usize::from(number)]),
        |segment| read(if segment == Segment::Fs { named.fs_base } else { named.gs_base }),
    ))
}

/// Where the kernel maps all physical memory, in one piece (Linux, `Documentation/arch/x86/x86_64/mm.rst`). Page tables
/// are read through it. It is found by its stores: their virtual and physical addresses differ by one multiple of 1 GiB
/// (the step of its randomisation).
#[derive(Debug, Default)]
pub(crate) struct DirectMap {
    /// The virtual address of physical address 0; 0 until it is known.
    known: AtomicU64,
    candidate: AtomicU64,
    witnesses: AtomicU64,
    last_page: AtomicU64,
}

/// Why an address has no physical one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPhysical {
    /// No present page.
    NotMapped,
    /// The direct map is not known yet.
    Unknown,
}

impl DirectMap {
    pub(crate) fn is_known(&self) -> bool {
        self.known.load(Ordering::Relaxed) != 0
    }

    /// Whether a store to this address can tell where the map is.
    pub(crate) fn may_witness(address: u64) -> bool {
        (1 << 63..KERNEL_IMAGE).contains(&address)
    }

    /// Learns from a store of the kernel. Lost updates between processors only make it later.
    pub(crate) fn witness(&self, address: u64, physical: u64) {
        let offset = address.wrapping_sub(physical);
        if self.is_known()
            || address >> 63 == 0
            || offset >= KERNEL_IMAGE
            || !offset.is_multiple_of(GIBIBYTE)
            || offset >> 63 == 0
        {
            return;
        }
        if self.candidate.swap(offset, Ordering::Relaxed) != offset {
            self.witnesses.store(0, Ordering::Relaxed);
        }
        if self.last_page.swap(physical >> 21, Ordering::Relaxed) == physical >> 21 {
            return;
        }
        if self.witnesses.fetch_add(1, Ordering::Relaxed) + 1 >= WITNESSES {
            self.known.store(offset, Ordering::Relaxed);
        }
    }

    /// The physical address that an address of the kernel's half would have if it is one of the map's: outside of all
    /// memory where it is not.
    pub(crate) fn subtract(&self, address: u64) -> u64 {
        address.wrapping_sub(self.known.load(Ordering::Relaxed))
    }

    /// The physical address of a virtual one.
    pub(crate) fn physical(&self, address: u64) -> Result<u64, NoPhysical> {
        let (Some(named), true) = (NAMED.get(), self.is_known()) else { return Err(NoPhysical::Unknown) };
        let (Some(root), Some(control)) = (named.cr3.read(), named.cr4.read()) else { return Err(NoPhysical::Unknown) };
        let tables = PageTables { root, control };
        let map = self.known.load(Ordering::Relaxed);
        let read = |physical: u64| read_memory(map.wrapping_add(physical));
        if let Some(physical) = translate(tables, address, read) {
            return Ok(physical);
        }
        // The map maps its own page tables: where it does not, it was learnt wrong.
        let page = root & 0x000f_ffff_ffff_f000;
        if translate(tables, map.wrapping_add(page), read) == Some(page) {
            return Err(NoPhysical::NotMapped);
        }
        self.witnesses.store(0, Ordering::Relaxed);
        self.known.store(0, Ordering::Relaxed);
        Err(NoPhysical::Unknown)
    }
}
