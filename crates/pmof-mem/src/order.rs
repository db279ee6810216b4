//! Annotations for race detectors.
//!
//! Valgrind's helgrind and drd know `pthread_mutex_lock` and its like, by name. Atomics and the locks that are made of them are
//! plain instructions to them, so that two threads seem to access the same memory without any order. Inside pmof a
//! suppression file covers this; but an application accesses its own memory with its own instructions, which no suppression may name. For that
//! memory these functions announce the order, as the macros `ANNOTATE_HAPPENS_BEFORE` and `ANNOTATE_HAPPENS_AFTER` of valgrind's headers
//! do: by instructions that do nothing where no valgrind runs. On processors other than x86-64 they are left out.

use std::cell::Cell;

thread_local! {
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
}

/// The place that all threads of pmof publish to.
static OWN: u8 = 0;

/// Marks the calling thread as one of pmof's own, which runs no application code.
pub fn mark_own_thread() {
    IS_OWN.set(true);
}

/// What this thread did so far happens before whatever a thread does after [`observe`] of the same place.
#[inline]
pub fn publish<T>(place: &T) {
    request(Request::HappensBefore, std::ptr::from_ref(place).addr());
}

/// What threads did before they [published](publish) the place happens before whatever this one does from now on.
#[inline]
pub fn observe<T>(place: &T) {
    request(Request::HappensAfter, std::ptr::from_ref(place).addr());
}

/// As [`publish`], to all who [observe what pmof's threads did](observe_own); no effect on a thread of the application, whose order with
/// other threads is what a race detector should check.
#[inline]
pub fn publish_own() {
    if IS_OWN.get() {
        publish(&OWN);
    }
}

/// As [`observe`], of all that pmof's own threads have published.
#[inline]
pub fn observe_own() {
    observe(&OWN);
}

/// The numbers of helgrind, which drd understands too (`valgrind/helgrind.h`, `valgrind/drd.h`).
#[derive(Clone, Copy)]
#[repr(usize)]
enum Request {
    HappensBefore = TOOL + 256 + 33,
    HappensAfter = TOOL + 256 + 34,
}

/// `VG_USERREQ_TOOL_BASE('H', 'G')`.
const TOOL: usize = (b'H' as usize) << 24 | (b'G' as usize) << 16;

/// `VALGRIND_DO_CLIENT_REQUEST` of `valgrind/valgrind.h`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn request(request: Request, place: usize) {
    let words = [request as usize, place, 0, 0, 0, 0];
    // SAFETY: on a processor the instructions turn a register by 128 bits in all and exchange another with itself, so they change
    // nothing but flags; valgrind knows the sequence, reads the words, which live until after it, and puts its answer into rdx.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            inout("rdx") 0_usize => _,
            in("rax") words.as_ptr(),
            options(nostack),
        );
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn request(_: Request, _: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_valgrinds_headers() {
        assert_eq!(Request::HappensBefore as usize, 0x4847_0121);
        assert_eq!(Request::HappensAfter as usize, 0x4847_0122);
    }

    #[test]
    fn without_an_instrument_nothing_happens() {
        let place = 7_u64;
        publish(&place);
        observe(&place);
        assert!(!IS_OWN.get());
        mark_own_thread();
        publish_own();
        observe_own();
        assert_eq!(place, 7);
        IS_OWN.set(false);
    }
}
