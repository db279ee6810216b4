//! The processor's time stamp counter.

/// The value of the counter if reading it is cheap, otherwise `None`. It advances by 0.5 to 6 per nanosecond,
/// and may differ between processors of a machine: a hint that time has passed, not a clock.
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
