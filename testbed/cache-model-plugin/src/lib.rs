//! The plugin `cache-model`: follows the stores and write-backs of a machine and keeps, beside the image of each
//! persistent memory, the image of its medium. The crate `cache-model` has the rules and the options.
//!
//! Plain stores are not watched at all: they change the live image, and a write-back takes what is there. That is what
//! makes the model cheap. Watched are the few instructions that write back, go past the caches or fence, and all stores
//! only where an option needs them.

mod mapping;
mod medium;
mod processor;

use std::{
    ffi::c_uint,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use cache_model::{Address, CutAfter, Effect, Inbound, Locked, Memory, Model, Options, decode};
use pmof_locks::{Mutex, MutexGuard};
use qemu_plugin::{Block, Counter, INSTRUCTION_BYTES, Instruction, Plugin, Store};

use crate::{
    medium::Medium,
    processor::{DirectMap, NoPhysical},
};

const PAGE: u64 = 4096;

/// Set in the number of a write-back for one that needs no fence.
const NOW: usize = 1 << 63;

struct State {
    options: Options,
    model: Mutex<Model<Medium>>,
    direct_map: DirectMap,
    /// Not 0 where the processor holds something back: fences of others cost nothing.
    holding: Counter,
    /// Instructions that each processor has executed since the cut was armed.
    executed: Counter,
    armed: AtomicBool,
}

static STATE: OnceLock<State> = OnceLock::new();

qemu_plugin::plugin!(install);

fn install(plugin: Plugin, arguments: &[String]) -> Result<(), String> {
    let options =
        Options::parse(arguments.iter().map(String::as_str)).map_err(|error| format!("cache model: {error}"))?;
    let medium = Medium::open(&options)?;
    let state = State {
        armed: AtomicBool::new(options.arm.is_none()),
        options,
        model: Mutex::new(Model::new(medium)),
        direct_map: DirectMap::default(),
        holding: Counter::new(),
        executed: Counter::new(),
    };
    STATE.set(state).map_err(|_| "the cache model is loaded twice".to_owned())?;
    plugin.on_processor(processor_started);
    plugin.on_translate(translate);
    Ok(())
}

/// Ends the machine as a loss of power does: at once.
fn cut() {
    // SAFETY: getpid and kill have no conditions; the signal ends this process before kill returns.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

impl State {
    /// A poisoned lock is a panic in a callback, which has ended the process.
    fn model(&self) -> MutexGuard<'_, Model<Medium>> {
        self.model.lock()
    }

    /// The physical address of a store that was just done.
    ///
    /// QEMU is never asked about a store of the kernel's half: one to a device that has changed the memory map ends QEMU 10
    /// by an assertion (`iotlb_to_section`). Of that half only the direct map is taken for the modelled memory, as it is
    /// for all memory with page structures. Programs map no such device, and before the kernel there are none.
    fn physical_of_store(&self, store: Store, address: u64) -> Option<u64> {
        if !self.direct_map.is_known() {
            return None;
        }
        if address >> 63 == 1 { Some(self.direct_map.subtract(address)) } else { store.physical(address) }
    }

    /// The physical address, or a count of why there is none.
    fn physical(&self, model: &mut Model<Medium>, address: u64) -> Option<u64> {
        let counter = match self.direct_map.physical(address) {
            Ok(physical) => return Some(physical),
            Err(NoPhysical::NotMapped) => cache_model::Counter::NotMapped,
            Err(NoPhysical::Unknown) => cache_model::Counter::Untranslated,
        };
        model.memory_mut().count(counter);
        None
    }
}

fn line(physical: u64) -> u64 {
    physical & !(cache_model::LINE_BYTES - 1)
}

extern "C" fn processor_started(_: u64, _: c_uint) {
    if !processor::find_registers() {
        // Without registers no write-back can be followed: no verdict of this machine would be true.
        eprintln!("cache model: this QEMU does not show the registers rax to r15, fs_base, gs_base, cr3 and cr4");
        std::process::abort();
    }
}

extern "C" fn translate(_: u64, block: Block<'_>) {
    let Some(state) = STATE.get() else { return };
    if let Some(CutAfter::Instructions(count)) = state.options.cut_after {
        block.add(state.executed, block.instructions().len() as u64);
        block.on_execute_from(state.executed, count, executed_enough);
    }
    let watch_all = state.options.watches_all_stores();
    for instruction in block.instructions() {
        let effect = decode(instruction.bytes(&mut [0; INSTRUCTION_BYTES]));
        watch(state, &instruction, effect);
        let of_kernel =
            instruction.is_kernel() && (state.options.inbound == Inbound::Memory || !state.direct_map.is_known());
        if effect != Some(Effect::StorePastCache) && (watch_all || of_kernel) {
            instruction.on_store(stored, usize::from(instruction.is_kernel()));
        }
    }
}

fn watch(state: &State, instruction: &Instruction<'_>, effect: Option<Effect>) {
    match effect {
        Some(Effect::WriteBack(address)) => instruction.on_execute(write_back, address.pack() as usize),
        Some(Effect::WriteBackNow(address)) => instruction.on_execute(write_back, address.pack() as usize | NOW),
        Some(Effect::StorePastCache) => instruction.on_store(stored_past_cache, usize::from(instruction.is_kernel())),
        Some(Effect::Fence) => instruction.on_execute_unless_zero(state.holding, fence, 0),
        Some(Effect::Locked) if state.options.locked == Locked::Fence => {
            instruction.on_execute_unless_zero(state.holding, fence, 1);
        }
        Some(Effect::WriteBackAll) => instruction.on_execute(write_back_all, 0),
        Some(Effect::Mark(id)) => instruction.on_execute(mark, usize::from(id)),
        Some(Effect::Unsupported) => instruction.on_execute(unsupported, 0),
        Some(Effect::Locked) | None => {}
    }
}

extern "C" fn write_back(processor: c_uint, data: usize) {
    let Some(state) = STATE.get() else { return };
    let mut model = state.model();
    let Some(address) = processor::linear(Address::unpack(data as u64)) else { return };
    let Some(physical) = state.physical(&mut model, address) else { return };
    if data & NOW != 0 {
        model.write_back_now(physical);
    } else if model.write_back(processor as usize, physical) {
        state.holding.set(processor, 1);
    }
}

extern "C" fn stored_past_cache(processor: c_uint, store: Store, address: u64, kernel: usize) {
    let Some(state) = STATE.get() else { return };
    let mut model = state.model();
    if !state.direct_map.is_known() {
        model.memory_mut().count(cache_model::Counter::Untranslated);
    }
    for_each_piece(state, &mut model, store, address, |model, physical, length| {
        if kernel == 1 && state.options.inbound == Inbound::Memory {
            return model.store_to_medium(physical, length);
        }
        let held = model.store_past_cache(processor as usize, physical, length);
        if held {
            state.holding.set(processor, 1);
        }
        held
    });
}

extern "C" fn stored(_: c_uint, store: Store, address: u64, kernel: usize) {
    let Some(state) = STATE.get() else { return };
    if !state.direct_map.is_known() {
        if kernel == 1 {
            state.direct_map.witness(address);
        }
        return;
    }
    let inbound = kernel == 1 && state.options.inbound == Inbound::Memory;
    if !inbound && !state.options.watches_all_stores() {
        return;
    }
    let Some(physical) = state.physical_of_store(store, address) else { return };
    let mut model = state.model();
    // A store that crosses into the memory's first page from elsewhere does not happen: no mapping puts them together.
    if !model.memory().contains(line(physical)) {
        return;
    }
    for_each_piece(state, &mut model, store, address, |model, physical, length| {
        inbound && model.store_to_medium(physical, length)
    });
}

/// Calls back for each page that a store touches, with the physical address and length there; counts the store where it
/// touches the memory.
fn for_each_piece(
    state: &State,
    model: &mut Model<Medium>,
    store: Store,
    address: u64,
    mut each: impl FnMut(&mut Model<Medium>, u64, u64) -> bool,
) {
    let Some(physical) = state.physical_of_store(store, address) else { return };
    let length = store.length();
    let here = length.min(PAGE - address % PAGE);
    let mut touched = model.memory().contains(line(physical));
    each(model, physical, here);
    if here < length {
        if let Some(physical) = state.physical(model, address.wrapping_add(here)) {
            touched |= model.memory().contains(line(physical));
            each(model, physical, length - here);
        }
    }
    if touched {
        model.memory_mut().count(cache_model::Counter::Stores);
    }
}

extern "C" fn fence(processor: c_uint, locked: usize) {
    let Some(state) = STATE.get() else { return };
    let mut model = state.model();
    if model.holds_back(processor as usize) && locked == 1 {
        model.memory_mut().count(cache_model::Counter::LockedFences);
    }
    model.fence(processor as usize);
    state.holding.set(processor, 0);
}

extern "C" fn write_back_all(_: c_uint, _: usize) {
    let Some(state) = STATE.get() else { return };
    state.model().write_back_all();
}

extern "C" fn unsupported(_: c_uint, _: usize) {
    let Some(state) = STATE.get() else { return };
    state.model().memory_mut().count(cache_model::Counter::Unsupported);
}

extern "C" fn mark(processor: c_uint, id: usize) {
    let Some(state) = STATE.get() else { return };
    let mut model = state.model();
    model.memory_mut().count(cache_model::Counter::Marks);
    if state.options.arm.map(usize::from) == Some(id) && !state.armed.swap(true, Ordering::Relaxed) {
        model.memory_mut().arm(state.options.cut_after);
        state.executed.set(processor, 0);
    }
}

extern "C" fn executed_enough(processor: c_uint, _: usize) {
    let Some(state) = STATE.get() else { return };
    if state.armed.load(Ordering::Relaxed) {
        cut();
    }
    state.executed.set(processor, 0);
}
