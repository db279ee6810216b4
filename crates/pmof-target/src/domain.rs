//! The failure domain of this machine, where no other was declared.

use std::fs;

use pmof_control::{DomainName, FailureDomain};
use uuid::Uuid;

/// Says what the hashes are for, so that nobody can take them for other programs', nor get the machine's identity from them, which machine-id(5) asks to
/// keep.
const MACHINE_CONTEXT: &str = "pmof failure domain: machine";
const KERNEL_CONTEXT: &str = "pmof failure domain: kernel";

/// What this target says of its failure domain: what was declared, or this machine. `None`: neither is known.
pub(crate) fn failure_domain(declared: Option<DomainName>) -> Option<FailureDomain> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    of(declared, &read("/etc/machine-id"), &read("/proc/sys/kernel/random/boot_id"))
}

fn of(declared: Option<DomainName>, machine: &str, boot: &str) -> Option<FailureDomain> {
    let kernel = is_identity(boot).then(|| hash(KERNEL_CONTEXT, boot));
    let is_declared = declared.is_some();
    let named = |kind: &str, hash: [u8; 16]| format!("{kind}-{}", Uuid::from_bytes(hash).simple()).parse().ok();
    let name = declared.or_else(|| {
        let machine = is_identity(machine).then(|| hash(MACHINE_CONTEXT, machine));
        machine.and_then(|machine| named("machine", machine)).or_else(|| named("kernel", kernel?))
    });
    Some(FailureDomain { name: name?, is_declared, kernel })
}

/// 128 bits in hexadecimal, which are not all zero; a machine that was never set up has an empty file, or a word.
fn is_identity(text: &str) -> bool {
    let digits: Vec<char> = text.trim().chars().filter(|character| *character != '-').collect();
    digits.len() == 32 && digits.iter().all(char::is_ascii_hexdigit) && digits.iter().any(|digit| *digit != '0')
}

fn hash(context: &str, identity: &str) -> [u8; 16] {
    let hash = blake3::derive_key(context, identity.trim().as_bytes());
    let mut short = [0; 16];
    short.copy_from_slice(&hash[..16]);
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: &str = "0123456789abcdef0123456789abcdef\n";
    const BOOT: &str = "01234567-89ab-cdef-0123-456789abcdef\n";

    #[test]
    fn a_machine_is_named_without_its_identity() {
        let domain = of(None, MACHINE, BOOT).unwrap();
        assert!(domain.name.as_str().starts_with("machine-") && !domain.name.as_str().contains(MACHINE.trim()));
        assert!(!domain.is_declared && domain.kernel.is_some());
        assert_eq!(Some(domain), of(None, MACHINE, BOOT));
    }

    #[test]
    fn what_is_no_identity_is_none() {
        for machine in ["", "uninitialized\n", "00000000000000000000000000000000\n", "0123"] {
            let domain = of(None, machine, BOOT).unwrap();
            assert!(domain.name.as_str().starts_with("kernel-"), "{domain:?}");
            assert_eq!(of(None, machine, ""), None);
        }
    }

    #[test]
    fn a_declared_name_stands_for_the_machine() {
        let domain = of(Some("rack 7".parse().unwrap()), MACHINE, BOOT).unwrap();
        assert_eq!((domain.name.as_str(), domain.is_declared), ("rack 7", true));
    }
}
