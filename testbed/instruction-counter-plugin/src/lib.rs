//! The plugin `instruction-counter`: counts the instructions that user programs and the kernel execute, and writes the
//! counts into its log at each mark. Option: `log=FILE`. The crate `instruction-counter` makes the marks and reads the
//! log.

use std::{ffi::c_uint, fs::File, io::Write, sync::OnceLock};

use instruction_counter::{Mark, mark_id};
use pmof_locks::Mutex;
use qemu_plugin::{Block, Counter, INSTRUCTION_BYTES, Plugin};

struct State {
    user: Counter,
    kernel: Counter,
    log: Mutex<File>,
}

static STATE: OnceLock<State> = OnceLock::new();

qemu_plugin::plugin!(install);

fn install(plugin: Plugin, arguments: &[String]) -> Result<(), String> {
    let [argument] = arguments else { return Err("the instruction counter takes one option, log=FILE".to_owned()) };
    let path = argument.strip_prefix("log=").ok_or_else(|| format!("{argument}: the only option is log=FILE"))?;
    let log = File::create(path).map_err(|error| format!("creating the log {path}: {error}"))?;
    let state = State { user: Counter::new(), kernel: Counter::new(), log: Mutex::new(log) };
    STATE.set(state).map_err(|_| "the instruction counter is loaded twice".to_owned())?;
    plugin.on_translate(translate);
    Ok(())
}

extern "C" fn translate(_: u64, block: Block<'_>) {
    let Some(state) = STATE.get() else { return };
    for instruction in block.instructions() {
        instruction.count(if instruction.is_kernel() { state.kernel } else { state.user });
        if let Some(id) = mark_id(instruction.bytes(&mut [0; INSTRUCTION_BYTES])) {
            instruction.on_execute(mark, usize::from(id));
        }
    }
}

extern "C" fn mark(processor: c_uint, id: usize) {
    let Some(state) = STATE.get() else { return };
    let mark = Mark { id: id as u8, processor, user: state.user.sum(), kernel: state.kernel.sum() };
    let mut log = state.log.lock();
    // One write a line, so that a killed machine leaves whole lines; a full disk shows as missing marks.
    let _ = log.write_all(format!("{}\n", mark.to_line()).as_bytes());
}
