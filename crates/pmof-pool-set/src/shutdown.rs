//! The rules of the shutdown state: what it says of modules that lost writes while the pool was open.

use std::os::fd::AsFd as _;

use pmof_mem::{System, modules_below};

use crate::{
    ShutdownState,
    header::{Checksummed, checksum},
    part::Part,
};

/// The state of modules as they are now, of a pool that is open or not.
pub(crate) fn of_modules(system: &System, parts: &[Part], is_dirty: bool) -> ShutdownState {
    let (mut unsafe_shutdowns, mut identities) = (0_u64, 0_u64);
    for part in parts {
        let modules = modules_below(system, part.file.as_fd());
        unsafe_shutdowns = unsafe_shutdowns.wrapping_add(modules.unsafe_shutdowns);
        identities = identities.wrapping_add(identity(&modules.identities));
    }
    ShutdownState::new(unsafe_shutdowns, identities, is_dirty)
}

/// Whether the bytes of a pool with this state can be trusted, now that its modules are in that state. An open pool whose
/// modules have lost writes since cannot; nor one that lies on other modules now, since nobody knows what those have lost.
///
/// A state that is not intact was being written when its program died, which is no loss of power.
pub(crate) fn is_trusted(stored: &ShutdownState, now: &ShutdownState) -> bool {
    let is_same = stored.unsafe_shutdowns == now.unsafe_shutdowns && stored.modules == now.modules;
    !stored.is_intact() || !stored.is_dirty() || is_same
}

/// The checksum of identities as PMDK makes it: one behind the other, and zeros to a multiple of 4, at least one.
fn identity(identities: &[String]) -> u64 {
    let mut bytes = identities.concat().into_bytes();
    bytes.push(0);
    bytes.resize(bytes.len() + 4 - bytes.len() % 4, 0);
    let end = bytes.len();
    // No field of the bytes is the checksum's own.
    checksum(&bytes, &Checksummed { field: end, end })
}

#[cfg(test)]
mod tests {
    use super::{identity, is_trusted};
    use crate::ShutdownState;

    #[test]
    fn no_modules_have_the_identity_zero() {
        assert_eq!(identity(&[]), 0);
        assert_ne!(identity(&["8089".into()]), 0);
        // One word of text, then one of zeros: low is the word, high is low once for each word.
        let word = u64::from(u32::from_le_bytes(*b"8089"));
        assert_eq!(identity(&["8089".into()]), ((2 * word) & 0xffff_ffff) << 32 | word);
        assert_eq!(identity(&["80".into(), "89".into()]), identity(&["8089".into()]));
    }

    #[test]
    fn only_a_dirty_pool_whose_modules_changed_is_not_trusted() {
        let now = ShutdownState::new(5, 77, false);
        for (stored, expected) in [
            (ShutdownState::new(5, 77, false), true),
            (ShutdownState::new(5, 77, true), true),
            (ShutdownState::new(4, 77, false), true),
            (ShutdownState::new(4, 77, true), false),
            (ShutdownState::new(5, 78, true), false),
            (ShutdownState::default(), true),
        ] {
            assert_eq!(is_trusted(&stored, &now), expected, "{stored:?}");
            let mut torn = stored.to_bytes();
            torn[0] ^= 1;
            assert!(is_trusted(&ShutdownState::from_bytes(torn), &now));
        }
    }
}
