//! Rows on device-DAX: one 4-KiB page each, in the order of [`ROWS`], so that the host finds them in the image too.

use std::{fs::OpenOptions, io::Write as _, os::unix::fs::OpenOptionsExt, path::Path};

use anyhow::{Context as _, Result};
use rustix::mm::{MapFlags, ProtFlags};

use crate::{
    NEW, OLD, VALUE_BYTES,
    cpu::{self, PAGE, Place},
    row,
};

/// Device-DAX maps whole units of its alignment.
const MAPPED: usize = 2 << 20;

/// What is done to the row's page, which holds zeros.
type Act = fn(Place);

const ROWS: &[(&str, Act)] = &[
    ("plain_store", |at| cpu::store(at, &NEW)),
    ("store_clwb_sfence", |at| {
        cpu::store(at, &NEW);
        cpu::clwb(at);
        cpu::sfence();
    }),
    ("store_clflushopt_sfence", |at| {
        cpu::store(at, &NEW);
        cpu::clflushopt(at);
        cpu::sfence();
    }),
    ("store_clflush", |at| {
        cpu::store(at, &NEW);
        cpu::clflush(at);
    }),
    ("movnti_sfence", |at| {
        cpu::movnti(at, &NEW);
        cpu::sfence();
    }),
    ("movntdq_sfence", |at| {
        cpu::movntdq(at, &NEW);
        cpu::sfence();
    }),
    ("vmovntdq_sfence", |at| {
        cpu::vmovntdq(at, &NEW);
        cpu::sfence();
    }),
    ("rep_movsb", |at| cpu::rep_movsb(at, &NEW)),
    ("rep_movsb_clwb_sfence", |at| {
        cpu::rep_movsb(at, &NEW);
        cpu::clwb(at);
        cpu::sfence();
    }),
    ("old_under_new", |at| {
        cpu::store(at, &OLD);
        cpu::clwb(at);
        cpu::sfence();
        cpu::store(at, &NEW);
    }),
    // The value lies across two lines, of which only the first is written back: see `report`.
    ("across_lines", |at| {
        cpu::store(at.plus(32), &NEW);
        cpu::clwb(at.plus(32));
        cpu::sfence();
    }),
    ("clwb_last_byte", |at| {
        cpu::store(at, &NEW);
        cpu::clwb(at.plus(VALUE_BYTES - 1));
        cpu::sfence();
    }),
    ("clwb_indexed", |at| {
        cpu::store(at, &NEW);
        cpu::clwb_indexed(at);
        cpu::sfence();
    }),
    ("clwb_segment", |at| {
        cpu::store(at, &NEW);
        cpu::clwb_segment(at);
        cpu::sfence();
    }),
    ("clwb_short", |at| {
        cpu::store(at, &NEW);
        cpu::clwb_short(at);
        cpu::sfence();
    }),
    ("locked_after_clwb", |at| {
        cpu::store(at, &NEW);
        cpu::clwb(at);
        std::sync::atomic::AtomicU64::new(0).fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }),
    ("kernel_store", kernel_store),
    ("kernel_store_clwb_sfence", |at| {
        kernel_store(at);
        cpu::clwb(at);
        cpu::sfence();
    }),
    ("clwb_by_other_mapping", |_| {}),
];

/// The page of the step, behind those of the rows.
const STEP_PAGE: usize = 64;

/// Does all rows.
pub(crate) fn write(device: &Path) -> Result<()> {
    let memory = map(device)?;
    let other = map(device)?;
    for (index, (name, act)) in ROWS.iter().enumerate() {
        let at = memory.page(index);
        act(at);
        if *name == "clwb_by_other_mapping" {
            // The page was never stored to by the mapping that writes it back, only read.
            let there = other.page(index);
            cpu::store(at, &NEW);
            there.read(1);
            cpu::clwb(there);
            cpu::sfence();
        }
    }
    Ok(())
}

/// Says what is in each row's page.
pub(crate) fn report(device: &Path) -> Result<()> {
    let memory = map(device)?;
    for (index, (name, _)) in ROWS.iter().enumerate() {
        if *name == "across_lines" {
            row("across_lines_first", &memory.page(index).plus(32).read(32));
            row("across_lines_second", &memory.page(index).plus(64).read(32));
        } else {
            row(name, &memory.page(index).read(VALUE_BYTES));
        }
    }
    row("step", &memory.page(STEP_PAGE).read(8));
    Ok(())
}

/// One store with its write-back and its fence, between marks.
pub(crate) fn step(device: &Path, locked: bool) -> Result<()> {
    let act = if locked { cpu::step_locked } else { cpu::step };
    act(map_step(device)?, u64::from_le_bytes([NEW[0]; 8]));
    Ok(())
}

/// Counts: each number to the port first, then to the device.
#[expect(clippy::cast_ptr_alignment, reason = "`of` has checked the alignment")]
pub(crate) fn tell(device: &Path, port: &Path) -> Result<()> {
    let at = map_step(device)?.of(8, 8).cast::<u64>();
    let mut port = OpenOptions::new().write(true).open(port).context("opening the port")?;
    instruction_counter::mark!(1);
    for number in 1_u64.. {
        port.write_all(format!("{number}\n").as_bytes()).context("writing to the port")?;
        // SAFETY: `of` has checked that eight aligned bytes are on the page, which `Place` says is mapped for writing.
        unsafe { at.write_volatile(number) };
    }
    Ok(())
}

/// The page of [`step`] and [`tell`].
fn map_step(device: &Path) -> Result<Place> {
    let at = map(device)?.page(STEP_PAGE);
    // Maps the page before the mark, so that nothing of the kernel comes in between.
    at.read(1);
    Ok(at)
}

/// A mapping of [`MAPPED`] bytes, for reading and writing, which is never unmapped and which no reference points into.
struct Mapping(*mut u8);

impl Mapping {
    fn page(&self, index: usize) -> Place {
        assert!((index + 1) * PAGE <= MAPPED, "page {index} is not mapped");
        // SAFETY: the page is within the mapping, which is as `Mapping` says and begins at a page.
        unsafe { Place::page(self.0.add(index * PAGE)) }
    }
}

/// Maps the beginning of the device, below 4 GiB for the row that needs it. Never unmapped: the process ends by power cut.
fn map(device: &Path) -> Result<Mapping> {
    let flags = i32::try_from(rustix::fs::OFlags::CLOEXEC.bits())?;
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(device);
    let file = file.with_context(|| format!("opening {}", device.display()))?;
    // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
    let start = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            MAPPED,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED | MapFlags::from_bits_retain(MAP_32BIT),
            &file,
            0,
        )
    };
    Ok(Mapping(start.with_context(|| format!("mapping {}", device.display()))?.cast()))
}

/// Of mmap(2), for x86-64 only; rustix has no name for it.
const MAP_32BIT: u32 = 0x40;

/// Has the kernel copy the value: read(2) from a pipe into the mapping.
fn kernel_store(at: Place) {
    let (from, to) = rustix::pipe::pipe().expect("a process has room for a pipe");
    assert_eq!(rustix::io::write(&to, &NEW).expect("a pipe holds 64 bytes"), VALUE_BYTES);
    // SAFETY: `of` has checked that the bytes are on the page, which `Place` says is mapped for writing and has no other reference into it; this one
    // ends with the call below.
    let target = unsafe { std::slice::from_raw_parts_mut(at.of(VALUE_BYTES, 1), VALUE_BYTES) };
    assert_eq!(rustix::io::read(&from, target).expect("the pipe holds 64 bytes"), VALUE_BYTES);
}
