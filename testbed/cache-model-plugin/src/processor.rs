//! Registers and address translation of the processor on whose thread a callback runs.

use std::{
    ops::Range,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use cache_model::{Address, PageTables, Segment, translate};
use qemu_plugin::{Register, read_memory, registers};

const GENERAL: [&str; 16] =
    ["rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"];

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

/// Where the kernel maps all physical memory, in one piece: the places that Linux has for it with five levels of page tables and with four
/// (`Documentation/arch/x86/x86_64/mm.rst`), not randomised (`nokaslr`). Neither place holds anything else.
const DIRECT_MAPS: [Range<u64>; 2] =
    [0xff11_0000_0000_0000..0xff91_0000_0000_0000, 0xffff_8880_0000_0000..0xffff_c880_0000_0000];

/// The one that this kernel has. Page tables are read through it.
#[derive(Debug, Default)]
pub(crate) struct DirectMap {
    /// The virtual address of physical address 0; 0 until it is known.
    known: AtomicU64,
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

    /// Learns from the address of a store of the kernel which of the two it is.
    pub(crate) fn witness(&self, address: u64) {
        if let Some(map) = DIRECT_MAPS.iter().find(|map| map.contains(&address)) {
            self.known.store(map.start, Ordering::Relaxed);
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
        // The map maps its own page tables: where it does not, the kernel has it elsewhere.
        let page = root & 0x000f_ffff_ffff_f000;
        let is_there = translate(tables, map.wrapping_add(page), read) == Some(page);
        Err(if is_there { NoPhysical::NotMapped } else { NoPhysical::Unknown })
    }
}
