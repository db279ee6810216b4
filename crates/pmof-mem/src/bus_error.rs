//! Pages that cannot be loaded: the file became shorter, or its device cannot read a sector.
//!
//! The kernel answers an access to such a page with `SIGBUS`, which would kill the process and everything that it serves. So a
//! handler looks the address up among the mappings of this crate. It marks that mapping as failed and replaces all of it with zeroed
//! memory (a devdax mapping cannot be split), so that the instruction can continue; the code that made the access then sees
//! the mark and returns an error. The mark is set before the zeros appear and checked after every access, so that no zero
//! is mistaken for a byte of the medium. A system call gets `EFAULT` from such a page; the handler waits for calls in
//! flight that could send the zeros.
//!
//! The handler is installed once, with the first mapping, and forwards other signals to the previous handler or to the
//! kernel's default action. A handler that the program installs later replaces it; such a page then kills the process as it would without one.
//! `process_vm_readv` and `pread` return errors where a load faults, but cost a system call for each access.

use std::{
    ffi::{c_int, c_void},
    mem,
    ptr::{self, NonNull},
    sync::{
        Once, OnceLock,
        atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence},
    },
    time::{Duration, Instant},
};

use crate::forks::{Holdable, Kept};

/// How long the handler waits for system calls of other threads on the mapping. They do not block, so they end unless their
/// thread is gone, as in a child after fork.
const CALLS_WAIT: Duration = Duration::from_secs(1);

/// The watched mappings, newest first. Entries are never freed, only reused, so that the handler may walk the list at any time.
static ENTRIES: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());

/// Entries that watch nothing.
static FREE: Kept<Vec<&'static Entry>> = Kept::new(Vec::new());

/// The lock that must be held across forks.
pub(crate) fn kept() -> &'static dyn Holdable {
    &FREE
}

/// The previous action for `SIGBUS`.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

#[derive(Debug)]
struct Entry {
    /// Odd while the range is being changed. The handler then skips it: no thread accesses the range yet.
    version: AtomicUsize,
    start: AtomicUsize,
    len_bytes: AtomicUsize,
    has_failed: AtomicBool,
    /// System calls in flight that read or write the memory.
    calls: AtomicUsize,
    next: AtomicPtr<Entry>,
}

/// A watched mapping. It must be dropped before the range is unmapped.
#[derive(Debug)]
pub(crate) struct Watch(&'static Entry);

/// A system call in flight on watched memory; it ends on drop.
#[derive(Debug)]
pub(crate) struct Call<'w>(&'w Watch);

impl Watch {
    /// # Safety
    ///
    /// The range is a whole mapping that the caller owns, nothing else maps over it, and it stays mapped as long as the value lives. All
    /// access to it is atomic or by system calls, so that it may be replaced at any time.
    pub(crate) unsafe fn new(start: NonNull<u8>, len_bytes: usize) -> Self {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(install);
        let free = FREE.lock().pop();
        let entry = free.unwrap_or_else(Entry::new);
        entry.has_failed.store(false, Ordering::SeqCst);
        entry.set(start.as_ptr().expose_provenance(), len_bytes);
        Self(entry)
    }

    /// Whether a page of the memory could not be loaded: what was read before this call may then be zeros.
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        // The earlier reads complete before the mark is checked.
        fence(Ordering::Acquire);
        self.0.has_failed.load(Ordering::Relaxed)
    }

    /// The kernel could not load a page.
    pub(crate) fn mark_failed(&self) {
        self.0.has_failed.store(true, Ordering::SeqCst);
    }

    /// Begins a non-blocking system call on the memory; `None` if the memory has failed.
    pub(crate) fn begin_call(&self) -> Option<Call<'_>> {
        self.0.calls.fetch_add(1, Ordering::SeqCst);
        let call = Call(self);
        // Either this sees the mark, or the handler, which sets it first, sees the call.
        if self.0.has_failed.load(Ordering::SeqCst) { None } else { Some(call) }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.0.calls.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.set(0, 0);
        FREE.lock().push(self.0);
    }
}

impl Entry {
    fn new() -> &'static Self {
        let entry: &'static Self = Box::leak(Box::new(Self {
            version: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            len_bytes: AtomicUsize::new(0),
            has_failed: AtomicBool::new(false),
            calls: AtomicUsize::new(0),
            next: AtomicPtr::new(ptr::null_mut()),
        }));
        let mut newest = ENTRIES.load(Ordering::SeqCst);
        loop {
            entry.next.store(newest, Ordering::SeqCst);
            let own = ptr::from_ref(entry).cast_mut();
            match ENTRIES.compare_exchange(newest, own, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return entry,
                Err(newer) => newest = newer,
            }
        }
    }

    /// Only the owner of the entry calls this.
    fn set(&self, start: usize, len_bytes: usize) {
        self.version.fetch_add(1, Ordering::SeqCst);
        self.start.store(start, Ordering::SeqCst);
        self.len_bytes.store(len_bytes, Ordering::SeqCst);
        self.version.fetch_add(1, Ordering::SeqCst);
    }

    /// The range, if the address lies in it.
    fn range_with(&self, address: usize) -> Option<(usize, usize)> {
        let version = self.version.load(Ordering::SeqCst);
        let range = (self.start.load(Ordering::SeqCst), self.len_bytes.load(Ordering::SeqCst));
        let is_whole = version % 2 == 0 && self.version.load(Ordering::SeqCst) == version;
        (is_whole && address.wrapping_sub(range.0) < range.1).then_some(range)
    }
}

/// If that fails, for which sigaction(2) names no reason, such a page kills the process as before.
fn install() {
    // SAFETY: all zeros is a value of it.
    let (mut previous, mut own): (libc::sigaction, libc::sigaction) = unsafe { (mem::zeroed(), mem::zeroed()) };
    // SAFETY: the call only reads the action, into a value of the right type.
    if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut previous) } != 0 {
        return;
    }
    // There before the handler is.
    let _ = PREVIOUS.set(previous);
    own.sa_sigaction = on_bus_error as *const () as usize;
    own.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the handler has the type that SA_SIGINFO asks for, and calls only what a handler may.
    unsafe { libc::sigaction(libc::SIGBUS, &raw const own, ptr::null_mut()) };
}

/// Calls only what signal-safety(7) allows, and mmap and `sched_yield`, which are plain system calls.
extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives a valid siginfo with SA_SIGINFO; `si_addr` is there for SIGBUS of the kernel's own.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    // SAFETY: the address of this thread's errno, which the interrupted code may be about to read.
    let errno = unsafe { *libc::__errno_location() };
    let is_page = [libc::BUS_ADRERR, libc::BUS_OBJERR, libc::BUS_MCEERR_AR].contains(&code);
    let is_own = is_page && replace(address);
    // SAFETY: this thread's errno lives as long as the thread, and no signal's handler runs beside its thread.
    unsafe { *libc::__errno_location() = errno };
    if !is_own {
        pass_on(signal, info, context);
    }
}

/// Replaces the mapping that contains the address with zeros. False if it is not a mapping of this crate.
fn replace(address: usize) -> bool {
    let mut next = ENTRIES.load(Ordering::SeqCst);
    // SAFETY: entries are never freed.
    while let Some(entry) = unsafe { next.as_ref() } {
        if let Some((start, len_bytes)) = entry.range_with(address) {
            entry.has_failed.store(true, Ordering::SeqCst);
            let began = Instant::now();
            while entry.calls.load(Ordering::SeqCst) > 0 && began.elapsed() < CALLS_WAIT {
                // SAFETY: takes nothing and touches no memory.
                unsafe { libc::sched_yield() };
            }
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
            let place = ptr::with_exposed_provenance_mut(start);
            // SAFETY: the range is a whole mapping of this crate (`Watch::new`), which stays mapped while this thread touches it.
            let mapped = unsafe { libc::mmap(place, len_bytes, protection, flags, -1, 0) };
            return mapped != libc::MAP_FAILED;
        }
        next = entry.next.load(Ordering::SeqCst);
    }
    false
}

/// Forwards the signal as if this crate had no handler.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(previous) = PREVIOUS.get() else { return };
    let handler = previous.sa_sigaction;
    if handler == libc::SIG_IGN || handler == libc::SIG_DFL {
        // SAFETY: the kernel gives a valid siginfo.
        let was_sent = unsafe { (*info).si_code } <= 0;
        if was_sent && handler == libc::SIG_IGN {
            return;
        }
        // SAFETY: all zeros is the default action. Where the kernel sent the signal, the instruction is tried again and ends the process.
        unsafe {
            let default: libc::sigaction = mem::zeroed();
            libc::sigaction(signal, &raw const default, ptr::null_mut());
            if was_sent {
                libc::raise(signal);
            }
        }
    } else if previous.sa_flags & libc::SA_SIGINFO != 0 {
        // SAFETY: a handler that was installed with SA_SIGINFO has this type.
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = unsafe { mem::transmute(handler) };
        handler(signal, info, context);
    } else {
        // SAFETY: one that was installed without has this one.
        let handler: extern "C" fn(c_int) = unsafe { mem::transmute(handler) };
        handler(signal);
    }
}

#[cfg(test)]
mod tests;
