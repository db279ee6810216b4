//! The limit of file sizes (`ulimit -f`), beyond which the kernel kills processes that do not handle `SIGXFSZ`.

use rustix::process::{Resource, getrlimit};

/// Lets writes and allocations beyond the limit of file sizes fail with `EFBIG` ([`MemError::TooLong`](crate::MemError::TooLong)) instead of
/// killing this process. Programs that serve others call it once at startup. An existing handler of the program stays.
///
/// Programs that this one starts ignore the signal too.
pub fn survive_file_size_limit() {
    // SAFETY: a valid action of this kind is all that the call writes to, and it outlives the call; a null pointer as the new
    // action leaves the old one.
    let is_default = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGXFSZ, std::ptr::null(), &raw mut action) == 0 && action.sa_sigaction == libc::SIG_DFL
    };
    if is_default {
        // SAFETY: an ignored signal runs no code of ours; no other thread relies on its default, which ends the process.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    }
}

/// The limit that a file of this many bytes exceeds, if any.
pub(crate) fn file_size_limit_below(len_bytes: u64) -> Option<u64> {
    getrlimit(Resource::Fsize).current.filter(|limit| *limit < len_bytes)
}
