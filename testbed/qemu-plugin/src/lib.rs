//! QEMU's plugin interface, version 4 (QEMU 9.2 to 10.0), as far as the plugins of the test bed need it.
//!
//! A plugin names its entry with [`plugin!`]. QEMU calls it once, and then the callbacks that it registered, on the thread
//! of the virtual processor concerned. Callbacks must not panic: that ends the machine.

mod sys;

use std::{
    cell::RefCell,
    collections::HashMap,
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    marker::PhantomData,
    ptr::NonNull,
};

pub use sys::Info;

/// The version of the interface that plugins are built for.
pub const VERSION: c_int = 4;

/// Longest x86 instruction, bytes.
pub const INSTRUCTION_BYTES: usize = 15;

/// Called when an instruction or block is about to be executed: the processor, and the number that was registered.
pub type OnExecute = extern "C" fn(processor: c_uint, data: usize);

/// Called when a store is done: the processor, the store, its virtual address, and the number that was registered.
pub type OnStore = extern "C" fn(processor: c_uint, store: Store, address: u64, data: usize);

/// Makes the library a plugin whose entry is a `fn(Plugin, &[String]) -> Result<(), String>`: the arguments are the
/// options `key=value`; an error is printed by QEMU, which then ends.
#[macro_export]
macro_rules! plugin {
    ($entry:path) => {
        /// What QEMU looks up to learn for which interface the plugin was built.
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals)]
        pub static qemu_plugin_version: ::std::ffi::c_int = $crate::VERSION;

        /// What QEMU calls when it has loaded the plugin.
        ///
        /// # Safety
        ///
        /// Only QEMU calls it, with what its plugin interface says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn qemu_plugin_install(
            id: u64,
            info: *const $crate::Info,
            count: ::std::ffi::c_int,
            arguments: *const *const ::std::ffi::c_char,
        ) -> ::std::ffi::c_int {
            // SAFETY: the arguments are QEMU's, unchanged.
            unsafe { $crate::install(id, info, count, arguments, $entry) }
        }
    };
}

/// Checks the machine and calls a plugin's entry; for [`plugin!`]. Returns 0, or -1 for QEMU to end.
///
/// # Safety
///
/// The arguments must be those of QEMU's call of `qemu_plugin_install`.
pub unsafe fn install(
    id: u64,
    info: *const Info,
    count: c_int,
    arguments: *const *const c_char,
    entry: fn(Plugin, &[String]) -> Result<(), String>,
) -> c_int {
    // SAFETY: QEMU passes a valid description; the caller keeps this.
    let info = unsafe { &*info };
    // SAFETY: its target name is a C string.
    let target = unsafe { CStr::from_ptr(info.target_name) };
    let outcome = if target != c"x86_64" || !info.system_emulation {
        Err(format!("the plugin follows whole x86_64 machines, this is {}", target.to_string_lossy()))
    } else if !(info.version_least..=info.version_current).contains(&VERSION) {
        Err(format!("QEMU offers plugin interface {}, the plugin needs {VERSION}", info.version_current))
    } else {
        let text = |index| {
            // SAFETY: QEMU passes `count` C strings; the caller keeps this.
            unsafe { CStr::from_ptr(*arguments.add(index)) }.to_string_lossy().into_owned()
        };
        entry(Plugin(id), &(0..usize::try_from(count).unwrap_or(0)).map(text).collect::<Vec<_>>())
    };
    match outcome {
        Ok(()) => 0,
        Err(reason) => {
            // QEMU says only that the plugin failed; the reason has no other way out.
            eprintln!("qemu plugin: {reason}");
            -1
        }
    }
}

/// The plugin, to register callbacks for the whole machine.
#[derive(Clone, Copy, Debug)]
pub struct Plugin(u64);

impl Plugin {
    /// Calls back when a virtual processor has started, on its thread.
    pub fn on_processor(self, callback: extern "C" fn(u64, c_uint)) {
        // SAFETY: the id is QEMU's; the callback has the type that QEMU declares.
        unsafe { sys::qemu_plugin_register_vcpu_init_cb(self.0, callback) }
    }

    /// Calls back when a block of instructions is translated, which is the time to register callbacks for them.
    pub fn on_translate(self, callback: extern "C" fn(u64, Block<'_>)) {
        // SAFETY: the id is QEMU's, and `Block` is a transparent pointer to what QEMU passes.
        unsafe { sys::qemu_plugin_register_vcpu_tb_trans_cb(self.0, callback) }
    }
}

/// A block that is being translated; valid during the callback that was given it.
#[derive(Debug)]
#[repr(transparent)]
pub struct Block<'a>(NonNull<sys::Tb>, PhantomData<&'a ()>);

impl<'a> Block<'a> {
    /// Its instructions.
    pub fn instructions(&self) -> impl ExactSizeIterator<Item = Instruction<'a>> + use<'a> {
        let block = self.0;
        // SAFETY: the block is valid: its lifetime is that of the callback.
        let count = unsafe { sys::qemu_plugin_tb_n_insns(block.as_ptr()) };
        (0..count).map(move |index| {
            // SAFETY: the block is valid for the callback's lifetime, and the index is below its count.
            Instruction(unsafe { sys::qemu_plugin_tb_get_insn(block.as_ptr(), index) }, PhantomData)
        })
    }

    /// Adds a number to the processor's counter at each execution of the block.
    pub fn add(&self, counter: Counter, value: u64) {
        // SAFETY: the block is valid, and counters live for ever.
        unsafe {
            sys::qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(
                self.0.as_ptr(),
                sys::INLINE_ADD_U64,
                counter.0,
                value,
            );
        }
    }

    /// Calls back at executions of the block at which the processor's counter is at least `least`.
    pub fn on_execute_from(&self, counter: Counter, least: u64, callback: OnExecute) {
        // SAFETY: the block is valid; the callback has the type that QEMU declares.
        unsafe {
            sys::qemu_plugin_register_vcpu_tb_exec_cond_cb(
                self.0.as_ptr(),
                callback,
                sys::CB_NO_REGS,
                sys::COND_GE,
                counter.0,
                least,
                0,
            );
        }
    }
}

/// An instruction of a block that is being translated.
#[derive(Debug)]
pub struct Instruction<'a>(*mut sys::Insn, PhantomData<&'a ()>);

impl Instruction<'_> {
    /// Its bytes, into `bytes`.
    pub fn bytes<'b>(&self, bytes: &'b mut [u8; INSTRUCTION_BYTES]) -> &'b [u8] {
        // SAFETY: the instruction is valid during the callback, and QEMU writes at most the given length.
        let length = unsafe { sys::qemu_plugin_insn_data(self.0, bytes.as_mut_ptr().cast(), bytes.len()) };
        &bytes[..length.min(INSTRUCTION_BYTES)]
    }

    /// Whether it lies in the upper half of the address space: the kernel's.
    pub fn is_kernel(&self) -> bool {
        // SAFETY: the instruction is valid during the callback.
        let address = unsafe { sys::qemu_plugin_insn_vaddr(self.0) };
        address >> 63 == 1
    }

    /// Calls back before each execution; the callback may read registers.
    pub fn on_execute(&self, callback: OnExecute, data: usize) {
        // SAFETY: the instruction is valid; the callback has the type that QEMU declares.
        unsafe { sys::qemu_plugin_register_vcpu_insn_exec_cb(self.0, callback, sys::CB_R_REGS, data) }
    }

    /// Calls back before executions at which the processor's counter is not 0.
    pub fn on_execute_unless_zero(&self, counter: Counter, callback: OnExecute, data: usize) {
        // SAFETY: the instruction is valid, counters live for ever, and the callback has the type that QEMU declares.
        unsafe {
            sys::qemu_plugin_register_vcpu_insn_exec_cond_cb(
                self.0,
                callback,
                sys::CB_NO_REGS,
                sys::COND_NE,
                counter.0,
                0,
                data,
            );
        }
    }

    /// Calls back after each store that the instruction does: a `rep` or a wide one does several.
    pub fn on_store(&self, callback: OnStore, data: usize) {
        // SAFETY: the instruction is valid; the callback has the type that QEMU declares.
        unsafe { sys::qemu_plugin_register_vcpu_mem_cb(self.0, callback, sys::CB_R_REGS, sys::MEM_W, data) }
    }

    /// Adds one to the processor's counter at each execution.
    pub fn count(&self, counter: Counter) {
        // SAFETY: the instruction is valid, and counters live for ever.
        unsafe {
            sys::qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(self.0, sys::INLINE_ADD_U64, counter.0, 1);
        }
    }
}

/// A store that was done; valid during the callback that was given it.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Store(u32);

impl Store {
    /// Its length, bytes.
    pub fn length(self) -> u64 {
        // SAFETY: QEMU reads a bit field of the number.
        1 << unsafe { sys::qemu_plugin_mem_size_shift(self.0) }
    }

    /// The physical address of its first byte; `None` for a device's register.
    pub fn physical(self, address: u64) -> Option<u64> {
        // SAFETY: called during the store's callback; QEMU answers from the processor's TLB, or with NULL.
        let handle = unsafe { sys::qemu_plugin_get_hwaddr(self.0, address) };
        // SAFETY: a handle that is not NULL is valid until the callback ends.
        (!handle.is_null() && !unsafe { sys::qemu_plugin_hwaddr_is_io(handle) }).then(|| {
            // SAFETY: the handle is not NULL, so it is valid until the callback ends.
            unsafe { sys::qemu_plugin_hwaddr_phys_addr(handle) }
        })
    }
}

/// A number for each processor, which translated code can change and test without a call. It is never freed.
#[derive(Clone, Copy, Debug)]
pub struct Counter(sys::Entry);

// SAFETY: QEMU gives each processor its own number and guards the table when it grows.
unsafe impl Send for Counter {}
// SAFETY: QEMU gives each processor its own number, and its functions may be called from any thread.
unsafe impl Sync for Counter {}

impl Counter {
    /// A new one, 0 for each processor.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "each is registered with QEMU for ever")]
    pub fn new() -> Counter {
        // SAFETY: QEMU allocates eight bytes a processor.
        Counter(sys::Entry { score: unsafe { sys::qemu_plugin_scoreboard_new(8) }, offset: 0 })
    }

    /// Sets the number of a processor.
    pub fn set(self, processor: c_uint, value: u64) {
        // SAFETY: the table lives for ever; the processor is one of QEMU's.
        unsafe { sys::qemu_plugin_u64_set(self.0, processor, value) }
    }

    /// The number of a processor.
    pub fn get(self, processor: c_uint) -> u64 {
        // SAFETY: the table lives for ever; the processor is one of QEMU's.
        unsafe { sys::qemu_plugin_u64_get(self.0, processor) }
    }

    /// The sum of all processors.
    pub fn sum(self) -> u64 {
        // SAFETY: the table lives for ever.
        unsafe { sys::qemu_plugin_u64_sum(self.0) }
    }
}

/// A register of the processors.
#[derive(Clone, Copy, Debug)]
pub struct Register(*mut c_void);

// SAFETY: QEMU's handle is a number in a pointer, the same for all processors of one model.
unsafe impl Send for Register {}
// SAFETY: the handle is a number in a pointer, never dereferenced here.
unsafe impl Sync for Register {}

impl Register {
    /// Reads it on the processor whose callback this is: one of [`Instruction::on_execute`] or
    /// [`Instruction::on_store`]. `None` where QEMU cannot, or the register is longer than eight bytes.
    pub fn read(self) -> Option<u64> {
        with_bytes(|array| {
            // SAFETY: the handle is QEMU's, the array is ours and empty.
            let length = unsafe { sys::qemu_plugin_read_register(self.0, array) };
            // SAFETY: QEMU appended `length` bytes.
            let bytes = unsafe { filled(array, usize::try_from(length).ok()?) }?;
            let mut value = [0; 8];
            value.get_mut(..bytes.len())?.copy_from_slice(bytes);
            Some(u64::from_le_bytes(value))
        })
    }
}

/// All registers by name; to be called in the callback of [`Plugin::on_processor`].
pub fn registers() -> HashMap<String, Register> {
    // SAFETY: QEMU returns a list that is ours to free, or NULL.
    let array = unsafe { sys::qemu_plugin_get_registers() };
    if array.is_null() {
        return HashMap::new();
    }
    // SAFETY: it holds `length` descriptors.
    let (data, length) = unsafe { ((*array).data.cast::<sys::RegisterDescriptor>(), (*array).length as usize) };
    let named = (0..length)
        .map(|index| {
            // SAFETY: the index is below the length; names are C strings that live for ever.
            let (name, handle) = unsafe {
                let descriptor = &*data.add(index);
                (CStr::from_ptr(descriptor.name), descriptor.handle)
            };
            (name.to_string_lossy().into_owned(), Register(handle))
        })
        .collect();
    // SAFETY: the list is ours, and nothing points into it any more.
    unsafe { sys::g_array_free(array, 1) };
    named
}

/// Reads eight bytes of the memory of the processor whose callback this is, by its page tables and without regard to
/// rights. `None` where no page is present.
pub fn read_memory(address: u64) -> Option<u64> {
    with_bytes(|array| {
        // SAFETY: the array is ours; QEMU makes it as long as needed.
        let read = unsafe { sys::qemu_plugin_read_memory_vaddr(address, array, 8) };
        if !read {
            return None;
        }
        // SAFETY: QEMU filled eight bytes.
        let bytes = unsafe { filled(array, 8) }?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    })
}

/// The bytes of an array.
///
/// # Safety
///
/// The array must be valid for `'a`, and QEMU must have filled `length` bytes of it.
unsafe fn filled<'a>(array: *mut sys::ByteArray, length: usize) -> Option<&'a [u8]> {
    // SAFETY: the array is valid for `'a`, as this function asks of its caller, and holds at least `length` bytes, which is checked first.
    unsafe { ((*array).length as usize >= length).then(|| std::slice::from_raw_parts((*array).data, length)) }
}

/// A byte array of `GLib`, freed with its thread.
struct Bytes(*mut sys::ByteArray);

impl Drop for Bytes {
    fn drop(&mut self) {
        // SAFETY: the array was made by GLib and is used by this thread only.
        unsafe { sys::g_byte_array_free(self.0, 1) };
    }
}

/// Lends the thread's array, emptied.
fn with_bytes<T>(work: impl FnOnce(*mut sys::ByteArray) -> T) -> T {
    thread_local! {
        // SAFETY: GLib's constructor has no conditions.
        static BYTES: RefCell<Bytes> = RefCell::new(Bytes(unsafe { sys::g_byte_array_new() }));
    }
    BYTES.with_borrow_mut(|bytes| {
        // SAFETY: the array is valid and this thread's.
        unsafe { sys::g_byte_array_set_size(bytes.0, 0) };
        work(bytes.0)
    })
}
