//! The processor's own count of time.

/// How far the processor has counted, where reading that costs next to nothing; else `None`. It counts 0.5 to 6 in a nanosecond,
/// and another processor of the machine may be at another number: a hint that time has passed, not a clock.
#[inline]
pub fn cycles() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the instruction reads a counter and changes nothing.
        Some(unsafe { std::arch::x86_64::_rdtsc() })
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        None
    }
}
