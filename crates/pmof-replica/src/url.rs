//! Where a replica lives: `tcp://HOST:PORT/POOL`.

use std::{fmt, str::FromStr};

use pmof_access::{Address, AddressError};

use crate::{NameError, PoolName};

/// A target's address and the name of a pool there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PoolUrl {
    /// The target.
    pub address: Address,
    /// The pool.
    pub name: PoolName,
}

/// Why a text is no pool URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolUrlError {
    /// The part before the pool's name.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// There is no pool's name.
    #[error("{text:?} names no pool: write tcp://HOST:PORT/POOL")]
    NoName {
        /// What was given.
        text: String,
    },
    /// The pool's name.
    #[error("the pool's name in {text:?} is not allowed: {source}")]
    Name {
        /// What was given.
        text: String,
        /// The rule broken.
        source: NameError,
    },
}

impl FromStr for PoolUrl {
    type Err = PoolUrlError;

    fn from_str(text: &str) -> Result<Self, PoolUrlError> {
        let after_scheme = text.find("://").map_or(0, |at| at + 3);
        let Some(slash) = text[after_scheme..].find('/').map(|at| at + after_scheme) else {
            text.parse::<Address>()?;
            return Err(PoolUrlError::NoName { text: text.to_owned() });
        };
        let address = text[..slash].parse()?;
        let name = &text[slash + 1..];
        if name.is_empty() {
            return Err(PoolUrlError::NoName { text: text.to_owned() });
        }
        let name = PoolName::new(name).map_err(|source| PoolUrlError::Name { text: text.to_owned(), source })?;
        Ok(Self { address, name })
    }
}

impl fmt::Display for PoolUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_round_trip() {
        for text in ["tcp://127.0.0.1:7204/orders", "tcp://[::1]:1/a.b-c"] {
            assert_eq!(text.parse::<PoolUrl>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn wrong_urls_say_what_is_wrong() {
        let parse = |text: &str| text.parse::<PoolUrl>().unwrap_err();
        assert!(matches!(parse("tcp://a:1"), PoolUrlError::NoName { .. }));
        assert!(matches!(parse("tcp://a:1/"), PoolUrlError::NoName { .. }));
        assert!(matches!(parse("tcp://a:1/../x"), PoolUrlError::Name { .. }));
        assert!(matches!(parse("tcp://a:1/x/y"), PoolUrlError::Name { .. }));
        assert!(matches!(parse("a:1/x"), PoolUrlError::Address(_)));
        assert!(matches!(parse("ssh://a/x"), PoolUrlError::Address(_)));
    }
}
