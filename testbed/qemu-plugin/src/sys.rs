//! QEMU's `include/qemu/qemu-plugin.h` of version 10.0 (plugin interface 4), as far as it is used, and the four functions
//! of `GLib` that it needs. Handles are opaque; an argument that QEMU declares as `void *userdata` is an integer here, which
//! the System V ABI of x86-64 passes in the same register.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// What a translated block is to QEMU.
#[repr(C)]
pub(crate) struct Tb {
    opaque: [u8; 0],
}

/// What an instruction of a block is to QEMU.
#[repr(C)]
pub(crate) struct Insn {
    opaque: [u8; 0],
}

#[repr(C)]
pub(crate) struct HardwareAddress {
    opaque: [u8; 0],
}

#[repr(C)]
pub(crate) struct Scoreboard {
    opaque: [u8; 0],
}

/// `qemu_plugin_u64`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Entry {
    pub(crate) score: *mut Scoreboard,
    pub(crate) offset: usize,
}

/// `qemu_plugin_reg_descriptor`.
#[repr(C)]
pub(crate) struct RegisterDescriptor {
    pub(crate) handle: *mut c_void,
    pub(crate) name: *const c_char,
    pub(crate) feature: *const c_char,
}

/// The public part of `GLib`'s `GArray`.
#[repr(C)]
pub(crate) struct Array {
    pub(crate) data: *mut c_void,
    pub(crate) length: c_uint,
}

/// `GLib`'s `GByteArray`.
#[repr(C)]
pub(crate) struct ByteArray {
    pub(crate) data: *mut u8,
    pub(crate) length: c_uint,
}

/// `qemu_info_t`.
#[repr(C)]
pub struct Info {
    pub(crate) target_name: *const c_char,
    pub(crate) version_least: c_int,
    pub(crate) version_current: c_int,
    pub(crate) system_emulation: bool,
    pub(crate) processors: c_int,
    pub(crate) processors_most: c_int,
}

pub(crate) const CB_NO_REGS: c_int = 0;
pub(crate) const CB_R_REGS: c_int = 1;
pub(crate) const MEM_W: c_int = 2;
pub(crate) const INLINE_ADD_U64: c_int = 0;
pub(crate) const COND_NE: c_int = 3;
pub(crate) const COND_GE: c_int = 7;

unsafe extern "C" {
    pub(crate) fn qemu_plugin_register_vcpu_init_cb(id: u64, callback: extern "C" fn(u64, c_uint));
    pub(crate) fn qemu_plugin_register_vcpu_tb_trans_cb(id: u64, callback: extern "C" fn(u64, crate::Block<'_>));
    pub(crate) fn qemu_plugin_tb_n_insns(block: *const Tb) -> usize;
    pub(crate) fn qemu_plugin_tb_get_insn(block: *const Tb, index: usize) -> *mut Insn;
    pub(crate) fn qemu_plugin_insn_data(instruction: *const Insn, to: *mut c_void, length: usize) -> usize;
    pub(crate) fn qemu_plugin_insn_vaddr(instruction: *const Insn) -> u64;
    pub(crate) fn qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(
        block: *mut Tb,
        op: c_int,
        entry: Entry,
        value: u64,
    );
    pub(crate) fn qemu_plugin_register_vcpu_tb_exec_cond_cb(
        block: *mut Tb,
        callback: crate::OnExecute,
        flags: c_int,
        condition: c_int,
        entry: Entry,
        value: u64,
        data: usize,
    );
    pub(crate) fn qemu_plugin_register_vcpu_insn_exec_cb(
        instruction: *mut Insn,
        callback: crate::OnExecute,
        flags: c_int,
        data: usize,
    );
    pub(crate) fn qemu_plugin_register_vcpu_insn_exec_cond_cb(
        instruction: *mut Insn,
        callback: crate::OnExecute,
        flags: c_int,
        condition: c_int,
        entry: Entry,
        value: u64,
        data: usize,
    );
    pub(crate) fn qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(
        instruction: *mut Insn,
        op: c_int,
        entry: Entry,
        value: u64,
    );
    pub(crate) fn qemu_plugin_register_vcpu_mem_cb(
        instruction: *mut Insn,
        callback: crate::OnStore,
        flags: c_int,
        access: c_int,
        data: usize,
    );
    pub(crate) fn qemu_plugin_mem_size_shift(info: u32) -> c_uint;
    pub(crate) fn qemu_plugin_get_hwaddr(info: u32, address: u64) -> *mut HardwareAddress;
    pub(crate) fn qemu_plugin_hwaddr_is_io(address: *const HardwareAddress) -> bool;
    pub(crate) fn qemu_plugin_hwaddr_phys_addr(address: *const HardwareAddress) -> u64;
    pub(crate) fn qemu_plugin_get_registers() -> *mut Array;
    pub(crate) fn qemu_plugin_read_register(handle: *mut c_void, to: *mut ByteArray) -> c_int;
    pub(crate) fn qemu_plugin_read_memory_vaddr(address: u64, to: *mut ByteArray, length: usize) -> bool;
    pub(crate) fn qemu_plugin_scoreboard_new(size: usize) -> *mut Scoreboard;
    pub(crate) fn qemu_plugin_u64_set(entry: Entry, processor: c_uint, value: u64);
    pub(crate) fn qemu_plugin_u64_get(entry: Entry, processor: c_uint) -> u64;
    pub(crate) fn qemu_plugin_u64_sum(entry: Entry) -> u64;

    pub(crate) fn g_byte_array_new() -> *mut ByteArray;
    pub(crate) fn g_byte_array_set_size(array: *mut ByteArray, length: c_uint) -> *mut ByteArray;
    pub(crate) fn g_byte_array_free(array: *mut ByteArray, free_data: c_int) -> *mut u8;
    pub(crate) fn g_array_free(array: *mut Array, free_data: c_int) -> *mut c_char;
}
