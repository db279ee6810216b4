//! Failure domains: what fails together with a target.

use alloc::{borrow::ToOwned as _, string::String};
use core::{fmt, str::FromStr};

/// Longest name of a failure domain, in bytes.
pub const MAX_DOMAIN_NAME_BYTES: usize = 64;

/// The name of a failure domain: 1 to 64 bytes without control characters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DomainName(String);

/// What is no name of a failure domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a failure domain's name has 1 to {MAX_DOMAIN_NAME_BYTES} bytes and no control characters")]
pub struct DomainNameError;

impl DomainName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for DomainName {
    type Err = DomainNameError;

    fn from_str(text: &str) -> Result<Self, DomainNameError> {
        let is_name = (1..=MAX_DOMAIN_NAME_BYTES).contains(&text.len()) && !text.chars().any(char::is_control);
        if is_name { Ok(Self(text.to_owned())) } else { Err(DomainNameError) }
    }
}

impl fmt::Display for DomainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a target says of its failure domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureDomain {
    /// A name that its operator declared, or that stands for its machine.
    pub name: DomainName,
    /// It was declared.
    pub is_declared: bool,
    /// The kernel that the target runs on, under a name that it has until it is booted again; the same in all containers. `None`: it is unknown.
    pub kernel: Option<[u8; 16]>,
}

impl FailureDomain {
    /// Whether both may fail together: they have one name, or run on one kernel, and no operator has declared them to be apart.
    pub fn is_shared(&self, other: &Self) -> bool {
        let is_one_kernel = self.kernel.is_some() && self.kernel == other.kernel;
        let are_declared = self.is_declared && other.is_declared;
        self.name == other.name || (is_one_kernel && !are_declared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain(name: &str, is_declared: bool, kernel: u8) -> FailureDomain {
        FailureDomain { name: name.parse().unwrap(), is_declared, kernel: (kernel != 0).then_some([kernel; 16]) }
    }

    #[test]
    fn what_may_fail_together_is_one_domain() {
        let [one, other] = [domain("one", false, 1), domain("other", false, 2)];
        assert!(one.is_shared(&one) && !one.is_shared(&other));
        // Containers of one machine have names of their own, and one kernel.
        assert!(one.is_shared(&domain("container", false, 1)));
        // Machines made from one image have one name until somebody changes that.
        assert!(one.is_shared(&domain("one", false, 3)));
        // An operator's word is believed of both, not of one.
        let [here, there] = [domain("here", true, 1), domain("there", true, 1)];
        assert!(!here.is_shared(&there) && here.is_shared(&one));
        assert!(here.is_shared(&domain("here", true, 2)));
        // A kernel that is unknown is no other's.
        assert!(!domain("one", false, 0).is_shared(&domain("other", false, 0)));
    }

    #[test]
    fn names_are_short_and_printable() {
        for name in ["", "a\nb", &"x".repeat(MAX_DOMAIN_NAME_BYTES + 1)] {
            assert_eq!(name.parse::<DomainName>(), Err(DomainNameError), "{name:?}");
        }
        assert_eq!("rack 7".parse::<DomainName>().unwrap().as_str(), "rack 7");
    }
}
