//! For tests: which write-back and fence instructions the CPU really carries out, found by single steps (the trap flag, Intel
//! SDM volume 3, "Debug Exceptions").

use std::{
    arch::asm,
    cell::UnsafeCell,
    io,
    sync::atomic::{AtomicUsize, Ordering},
};

use pmof_locks::Mutex;

/// An instruction that was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// `clwb`, `clflushopt` or `clflush` of the line that holds this address.
    WriteBack(u64),
    /// `sfence` or `mfence`.
    Fence,
    /// A non-temporal store (`movnti`) to this address, which only a fence orders.
    Streamed,
}

/// Steps that are kept; more than any test takes.
const STEPS_MAX: usize = 4096;

/// Enough to tell the instructions below: two prefixes, two bytes of opcode, one of operands.
const DECODED_BYTES: usize = 5;

struct Recorded {
    steps: UnsafeCell<[Option<Step>; STEPS_MAX]>,
    count: AtomicUsize,
}

// SAFETY: only the thread under the trap flag writes, of which `ONE` allows one at a time, and it reads when it is done.
unsafe impl Sync for Recorded {}

static RECORDED: Recorded = Recorded { steps: UnsafeCell::new([None; STEPS_MAX]), count: AtomicUsize::new(0) };
static ONE: Mutex<()> = Mutex::new(());

/// Runs `act` step by step and gives its write-backs, fences and streaming stores in the order in which the CPU came to them.
pub(crate) fn steps(act: impl FnOnce()) -> Vec<Step> {
    let _one = ONE.lock();
    RECORDED.count.store(0, Ordering::SeqCst);
    let before = handle_traps(on_trap as *const () as usize, libc::SA_SIGINFO);
    // SAFETY: sets the trap flag of this thread, whose signal is handled now; the stack is as before.
    unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
    act();
    // SAFETY: clears it again.
    unsafe { asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq") };
    handle_traps(before.sa_sigaction, before.sa_flags);
    let count = RECORDED.count.load(Ordering::SeqCst);
    assert!(count < STEPS_MAX, "too many steps for the record");
    // SAFETY: no step is taken any more, and no other thread has the lock.
    let steps = unsafe { &*RECORDED.steps.get() };
    steps[..count].iter().copied().flatten().collect()
}

fn handle_traps(handler: usize, flags: i32) -> libc::sigaction {
    // SAFETY: the structure is made of numbers, for all of which zero is valid.
    let (mut new, mut before): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    new.sa_sigaction = handler;
    new.sa_flags = flags;
    // SAFETY: the handler is one that there was, or ours, which only reads code and writes to a static of its own.
    let code = unsafe { libc::sigaction(libc::SIGTRAP, &raw const new, &raw mut before) };
    assert_eq!(code, 0, "{}", io::Error::last_os_error());
    before
}

/// Comes before each instruction; the trap flag is off in here and on again afterwards.
extern "C" fn on_trap(_signal: i32, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives the context of the interrupted thread to a handler with SA_SIGINFO.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let at = bits(registers[libc::REG_RIP as usize]);
    let mut code = [0; DECODED_BYTES];
    // Never beyond the page of the instruction: what follows need not be mapped.
    let readable = DECODED_BYTES.min(4096 - at as usize % 4096);
    for (index, into) in code[..readable].iter_mut().enumerate() {
        // SAFETY: the CPU is about to carry out what lies at `at`, so its page is mapped, and these bytes are of that page.
        *into = unsafe { std::ptr::with_exposed_provenance::<u8>(at as usize + index).read_volatile() };
    }
    if let Some(step) = decode(code, registers) {
        let index = RECORDED.count.load(Ordering::Relaxed);
        if index < STEPS_MAX {
            // SAFETY: inside the array, which only this thread touches now.
            unsafe { (*RECORDED.steps.get())[index] = Some(step) };
            RECORDED.count.store(index + 1, Ordering::Relaxed);
        }
    }
}

/// The instruction, if it is one of those (Intel SDM volume 2).
fn decode(code: [u8; DECODED_BYTES], registers: &[libc::greg_t; 23]) -> Option<Step> {
    let mut rest = &code[..];
    let mut has_66 = false;
    if rest[0] == 0x66 {
        (has_66, rest) = (true, &rest[1..]);
    }
    let mut extension = 0;
    if rest[0] & 0xF0 == 0x40 {
        (extension, rest) = (rest[0], &rest[1..]);
    }
    if rest[0] != 0x0F {
        return None;
    }
    let modrm = rest[2];
    let (mode, middle, register) = (modrm >> 6, modrm >> 3 & 7, modrm & 7 | (extension & 1) << 3);
    match (rest[1], mode, middle) {
        (0xAE, 3, 6 | 7) if !has_66 => Some(Step::Fence),
        // 66 0F AE /6 clwb, 66 0F AE /7 clflushopt, 0F AE /7 clflush; 0F AE /6 is another one. Mode 1 is with a displacement,
        // as r13 and rbp need, which is 0 here.
        (0xAE, 0 | 1, 7) => Some(Step::WriteBack(value(registers, register))),
        (0xAE, 0 | 1, 6) if has_66 => Some(Step::WriteBack(value(registers, register))),
        (0xC3, 0..=2, _) => Some(Step::Streamed),
        _ => None,
    }
}

/// What a register holds, by its number in instructions.
fn value(registers: &[libc::greg_t; 23], register: u8) -> u64 {
    use libc::{
        REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RAX, REG_RBP, REG_RBX, REG_RCX,
        REG_RDI, REG_RDX, REG_RSI, REG_RSP,
    };
    const NUMBERED: [i32; 16] = [
        REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI, REG_R8, REG_R9, REG_R10, REG_R11,
        REG_R12, REG_R13, REG_R14, REG_R15,
    ];
    bits(registers[NUMBERED[usize::from(register)].unsigned_abs() as usize])
}

fn bits(register: libc::greg_t) -> u64 {
    u64::from_le_bytes(register.to_le_bytes())
}
