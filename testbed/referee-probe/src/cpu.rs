//! The instructions under test, on places in mappings.

use std::arch::asm;

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;

/// A byte of a page that is mapped for reading and writing as long as the process runs, and that no reference points into.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    page: *mut u8,
    offset: usize,
}

impl Place {
    /// The beginning of a page.
    ///
    /// # Safety
    ///
    /// [`PAGE`] bytes at `page`, which is aligned to as many, are mapped for reading and writing, shared with other mappings of the same bytes at
    /// most, stay so until the process ends, and no reference points into them.
    pub(crate) unsafe fn page(page: *mut u8) -> Self {
        Self { page, offset: 0 }
    }

    /// So many bytes behind it.
    pub(crate) fn plus(self, bytes: usize) -> Self {
        let offset = self.offset + bytes;
        assert!(offset < PAGE, "byte {offset} is not on the page");
        Self { offset, ..self }
    }

    pub(crate) fn pointer(self) -> *mut u8 {
        self.page.wrapping_add(self.offset)
    }

    /// Where so many bytes of the page begin, aligned to `align`.
    pub(crate) fn of(self, bytes: usize, align: usize) -> *mut u8 {
        assert!(
            self.offset + bytes <= PAGE && self.offset % align == 0,
            "{bytes} bytes at {} of the page",
            self.offset
        );
        self.pointer()
    }

    /// Reads so many bytes, in a form that the compiler keeps.
    pub(crate) fn read(self, bytes: usize) -> Vec<u8> {
        let from = self.of(bytes, 1);
        // SAFETY: `of` has checked that the bytes are on the page, which `Place` says is mapped.
        (0..bytes).map(|index| unsafe { from.add(index).read_volatile() }).collect()
    }
}

/// A plain store of the whole value, in a form that the compiler keeps.
pub(crate) fn store(to: Place, value: &[u8]) {
    let to = to.of(value.len(), 1);
    for (index, byte) in value.iter().enumerate() {
        // SAFETY: `of` has checked that the value fits on the page, which `Place` says is mapped for writing; the index is below its length.
        unsafe { to.add(index).write_volatile(*byte) };
    }
}

/// One instruction on a memory operand at a pointer.
macro_rules! flush {
    ($(#[$about:meta])* $name:ident, $text:literal) => {
        $(#[$about])*
        pub(crate) fn $name(at: Place) {
            // SAFETY: `Place` says that the line is mapped; the instruction changes no memory and no register.
            unsafe { asm!($text, at = in(reg) at.pointer(), options(nostack, preserves_flags)) };
        }
    };
}

flush!(clwb, "clwb [{at}]");
flush!(clflushopt, "clflushopt [{at}]");
flush!(clflush, "clflush [{at}]");

/// `clwb` with base, index, scale and displacement.
pub(crate) fn clwb_indexed(at: Place) {
    // SAFETY: base + 4 * 0x40 + 0x1000 is `at`, which `Place` says is mapped; a write-back changes no byte.
    unsafe {
        asm!("clwb [{base} + r12 * 4 + 0x1000]", base = in(reg) at.pointer().wrapping_sub(0x1000 + 4 * 0x40), in("r12") 0x40_u64,
             options(nostack, preserves_flags));
    }
}

/// `clwb` in the segment `fs`, at whose base the C library keeps that base.
pub(crate) fn clwb_segment(at: Place) {
    // SAFETY: base of the segment plus offset is `at`, which `Place` says is mapped; a write-back changes no byte.
    unsafe {
        asm!("mov {base}, fs:[0]", "sub {at}, {base}", "clwb fs:[{at}]", base = out(reg) _, at = inout(reg) at.pointer() => _,
             options(nostack));
    }
}

/// `clwb` with 32-bit addressing, of a page below 4 GiB.
pub(crate) fn clwb_short(at: Place) {
    let at = u32::try_from(at.pointer().addr()).expect("the page is mapped below 4 GiB");
    // SAFETY: the address is that of a `Place` in full, which is mapped; a write-back changes no byte.
    unsafe { asm!("clwb [{at:e}]", at = in(reg) at, options(nostack, preserves_flags)) };
}

/// `clwb` of a line of this program, by an address relative to the instruction.
pub(crate) fn clwb_relative() {
    // SAFETY: a write-back changes no byte, and the line is this code's own.
    unsafe { asm!("clwb [rip]", options(nostack, preserves_flags)) };
}

/// Orders write-backs.
pub(crate) fn sfence() {
    // SAFETY: a fence changes nothing.
    unsafe { asm!("sfence", options(nostack, preserves_flags)) };
}

/// The value by `movnti`, eight bytes at a time.
pub(crate) fn movnti(to: Place, value: &[u8; 64]) {
    let to = to.of(value.len(), 8);
    for (index, word) in value.chunks_exact(8).enumerate() {
        let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
        // SAFETY: `of` has checked that 64 bytes at `to` are on the page, which `Place` says is mapped for writing; eight of eight times eight are
        // written.
        unsafe {
            asm!("movnti [{to}], {word}", to = in(reg) to.add(8 * index), word = in(reg) word,
                 options(nostack, preserves_flags));
        }
    }
}

/// The value by `movntdq`, sixteen bytes at a time.
pub(crate) fn movntdq(to: Place, value: &[u8; 64]) {
    let to = to.of(value.len(), 16);
    for index in (0..64).step_by(16) {
        // SAFETY: `of` has checked that 64 bytes at `to` are on the page, which `Place` says is mapped for writing, and are aligned to 16 as the
        // instruction asks; the value has as many; `index` and 16 more are within both.
        unsafe {
            asm!("movdqu xmm0, [{from}]", "movntdq [{to}], xmm0", to = in(reg) to.add(index),
                 from = in(reg) value.as_ptr().add(index), out("xmm0") _, options(nostack, preserves_flags));
        }
    }
}

/// The value by `vmovntdq`, 32 bytes at a time. QEMU's processor `max` has AVX.
pub(crate) fn vmovntdq(to: Place, value: &[u8; 64]) {
    let to = to.of(value.len(), 32);
    assert!(is_x86_feature_detected!("avx"), "the guest's processor has no AVX: start it with -cpu max");
    for index in (0..64).step_by(32) {
        // SAFETY: `of` has checked that 64 bytes at `to` are on the page, which `Place` says is mapped for writing, and are aligned to 32 as the
        // instruction asks; the value has as many; `index` and 32 more are within both; the assertion above has found AVX.
        unsafe {
            asm!("vmovdqu ymm0, [{from}]", "vmovntdq [{to}], ymm0", to = in(reg) to.add(index),
                 from = in(reg) value.as_ptr().add(index), out("ymm0") _, options(nostack, preserves_flags));
        }
    }
}

/// The value by `rep movsb`.
pub(crate) fn rep_movsb(to: Place, value: &[u8; 64]) {
    let to = to.of(value.len(), 1);
    // SAFETY: `of` has checked that 64 bytes at `to` are on the page, which `Place` says is mapped for writing; the value has as many; the ABI keeps
    // the direction flag clear.
    unsafe {
        asm!("rep movsb", inout("rcx") 64_u64 => _, inout("rdi") to => _, inout("rsi") value.as_ptr() => _,
             options(nostack, preserves_flags));
    }
}

/// A store, its write-back and its fence between the marks 1 and 2, with nothing in between that the caller can move.
pub(crate) fn step(to: Place, value: u64) {
    let to = to.of(8, 8);
    instruction_counter::mark!(1);
    // SAFETY: `of` has checked that eight bytes at `to` are on the page, which `Place` says is mapped for writing.
    unsafe {
        asm!("mov [{to}], {value}", "clwb [{to}]", "sfence", to = in(reg) to, value = in(reg) value,
             options(nostack, preserves_flags));
    }
    instruction_counter::mark!(2);
}

/// The same with a locked instruction on memory of its own as the fence.
pub(crate) fn step_locked(to: Place, value: u64) {
    let to = to.of(8, 8);
    let mut own = 0_u64;
    instruction_counter::mark!(1);
    // SAFETY: `of` has checked that eight bytes at `to` are on the page, which `Place` says is mapped for writing; `own` is this function's.
    unsafe {
        asm!("mov [{to}], {value}", "clwb [{to}]", "lock inc qword ptr [{own}]", to = in(reg) to,
             value = in(reg) value, own = in(reg) &raw mut own, options(nostack));
    }
    instruction_counter::mark!(2);
}

/// A thousand rounds of two instructions between the marks 1 and 2, then a system call before mark 3.
pub(crate) fn count() {
    instruction_counter::mark!(1);
    // SAFETY: only the named register and the flags change.
    unsafe { asm!("2:", "dec {left}", "jnz 2b", left = inout(reg) 1000_u64 => _, options(nostack, nomem)) };
    instruction_counter::mark!(2);
    std::thread::yield_now();
    instruction_counter::mark!(3);
}
