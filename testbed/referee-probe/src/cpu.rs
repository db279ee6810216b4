//! The instructions under test. Pointers are into mappings that the caller holds; none of these reads through them but
//! the stores' own targets.

use std::arch::asm;

/// A plain store of the whole value, in a form that the compiler keeps.
pub(crate) fn store(to: *mut u8, value: &[u8]) {
    for (index, byte) in value.iter().enumerate() {
        // SAFETY: `to` points to a mapping of at least `value.len()` bytes, which every probe holds until it ends; the index is below that.
        unsafe { to.add(index).write_volatile(*byte) };
    }
}

/// One instruction on a memory operand at a pointer.
macro_rules! flush {
    ($(#[$about:meta])* $name:ident, $text:literal) => {
        $(#[$about])*
        pub(crate) fn $name(at: *mut u8) {
            // SAFETY: the instruction changes no memory and no register; the caller maps the line at `at`.
            unsafe { asm!($text, at = in(reg) at, options(nostack, preserves_flags)) };
        }
    };
}

flush!(clwb, "clwb [{at}]");
flush!(clflushopt, "clflushopt [{at}]");
flush!(clflush, "clflush [{at}]");

/// `clwb` with base, index, scale and displacement.
pub(crate) fn clwb_indexed(at: *mut u8) {
    // SAFETY: base + 4 * 0x40 + 0x1000 is `at`; a write-back changes no byte, and the caller maps the line.
    unsafe {
        asm!("clwb [{base} + r12 * 4 + 0x1000]", base = in(reg) at.wrapping_sub(0x1000 + 4 * 0x40), in("r12") 0x40_u64,
             options(nostack, preserves_flags));
    }
}

/// `clwb` in the segment `fs`, at whose base the C library keeps that base.
pub(crate) fn clwb_segment(at: *mut u8) {
    // SAFETY: base of the segment plus offset is `at`; a write-back changes no byte, and the caller maps the line.
    unsafe {
        asm!("mov {base}, fs:[0]", "sub {at}, {base}", "clwb fs:[{at}]", base = out(reg) _, at = inout(reg) at => _,
             options(nostack));
    }
}

/// `clwb` with 32-bit addressing; the pointer must be below 4 GiB.
pub(crate) fn clwb_short(at: *mut u8) {
    // SAFETY: a write-back changes no byte, and the caller maps the line, below 4 GiB.
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
pub(crate) fn movnti(to: *mut u8, value: &[u8; 64]) {
    for (index, word) in value.chunks_exact(8).enumerate() {
        let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
        // SAFETY: the caller maps the line at `to`, which is aligned to 64.
        unsafe {
            asm!("movnti [{to}], {word}", to = in(reg) to.add(8 * index), word = in(reg) word,
                 options(nostack, preserves_flags));
        }
    }
}

/// The value by `movntdq`, sixteen bytes at a time.
pub(crate) fn movntdq(to: *mut u8, value: &[u8; 64]) {
    for index in (0..64).step_by(16) {
        // SAFETY: the caller maps the line at `to`, which is aligned to 64; the value is 64 bytes long.
        unsafe {
            asm!("movdqu xmm0, [{from}]", "movntdq [{to}], xmm0", to = in(reg) to.add(index),
                 from = in(reg) value.as_ptr().add(index), out("xmm0") _, options(nostack, preserves_flags));
        }
    }
}

/// The value by `vmovntdq`, 32 bytes at a time. QEMU's processor `max` has AVX.
pub(crate) fn vmovntdq(to: *mut u8, value: &[u8; 64]) {
    assert!(is_x86_feature_detected!("avx"), "the guest's processor has no AVX: start it with -cpu max");
    for index in (0..64).step_by(32) {
        // SAFETY: the caller maps the line at `to`, which is aligned to 64; the value is 64 bytes long; the processor has AVX.
        unsafe {
            asm!("vmovdqu ymm0, [{from}]", "vmovntdq [{to}], ymm0", to = in(reg) to.add(index),
                 from = in(reg) value.as_ptr().add(index), out("ymm0") _, options(nostack, preserves_flags));
        }
    }
}

/// The value by `rep movsb`.
pub(crate) fn rep_movsb(to: *mut u8, value: &[u8; 64]) {
    // SAFETY: the caller maps the line at `to`; both are 64 bytes long; the direction flag is clear by the ABI.
    unsafe {
        asm!("rep movsb", inout("rcx") 64_u64 => _, inout("rdi") to => _, inout("rsi") value.as_ptr() => _,
             options(nostack, preserves_flags));
    }
}

/// A store, its write-back and its fence between the marks 1 and 2, with nothing in between that the caller can move.
pub(crate) fn step(to: *mut u8, value: u64) {
    instruction_counter::mark!(1);
    // SAFETY: the caller maps the line at `to`.
    unsafe {
        asm!("mov [{to}], {value}", "clwb [{to}]", "sfence", to = in(reg) to, value = in(reg) value,
             options(nostack, preserves_flags));
    }
    instruction_counter::mark!(2);
}

/// The same with a locked instruction on memory of its own as the fence.
pub(crate) fn step_locked(to: *mut u8, value: u64) {
    let mut own = 0_u64;
    instruction_counter::mark!(1);
    // SAFETY: the caller maps the line at `to`; `own` is this function's.
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
