//! Which names a pool may have.

use alloc::{borrow::ToOwned as _, string::String};
use core::{borrow::Borrow, fmt, str::FromStr};

#[cfg(test)]
mod tests;

/// Longest name in bytes: what Linux file systems allow for one directory entry (`NAME_MAX`, limits.h).
pub const MAX_NAME_BYTES: usize = 255;

/// The name of a pool: one plain entry of the store's root directory.
///
/// 1 to [`MAX_NAME_BYTES`] bytes of UTF-8 without `/`, NUL and control characters, and not beginning with a dot. So no
/// name leads out of the root, and none can be one of the store's own working files, which all begin with a dot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolName(String);

impl PoolName {
    /// Checks `name` against every rule.
    pub fn new(name: impl Into<String>) -> Result<Self, NameError> {
        let name = name.into();
        check(&name)?;
        Ok(Self(name))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Longest name of a pool set in bytes: what a control message has room for, and more than people write.
pub const MAX_SET_NAME_BYTES: usize = 1024;

/// The name of a pool set: a relative path below the target's root directory.
///
/// At most [`MAX_SET_NAME_BYTES`], each component as [`PoolName`] has it: so no absolute path, no `..`, nothing hidden.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetName(String);

impl SetName {
    /// Checks `name` against every rule.
    pub fn new(name: impl Into<String>) -> Result<Self, NameError> {
        let name = name.into();
        if name.len() > MAX_SET_NAME_BYTES {
            return Err(NameError::SetTooLong { len_bytes: name.len() });
        }
        if name.starts_with('/') {
            return Err(NameError::Absolute { name });
        }
        if name.split('/').any(|part| part == "..") {
            return Err(NameError::ParentDirectory { name });
        }
        name.split('/').try_for_each(check)?;
        Ok(Self(name))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SetName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::new(text)
    }
}

impl fmt::Display for SetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Why a text cannot name a pool. Each says the rule that it breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// No bytes at all.
    #[error("a pool name needs at least 1 byte")]
    Empty,
    /// More than [`MAX_NAME_BYTES`].
    #[error("the pool name has {len_bytes} bytes; {MAX_NAME_BYTES} are allowed")]
    TooLong {
        /// Bytes it has.
        len_bytes: usize,
    },
    /// `/` or NUL, which no directory entry can hold, or another control character.
    #[error("the pool name holds {character:?} at byte {at}; '/', NUL and control characters are not allowed")]
    ForbiddenCharacter {
        /// The first such character.
        character: char,
        /// Its place in bytes.
        at: usize,
    },
    /// `.`, `..` and the store's own working files begin like this.
    #[error("the pool name {name:?} begins with a dot; such names are kept for the store itself")]
    LeadingDot {
        /// The name.
        name: String,
    },
    /// More than [`MAX_SET_NAME_BYTES`].
    #[error("the name of the pool set has {len_bytes} bytes; {MAX_SET_NAME_BYTES} are allowed")]
    SetTooLong {
        /// Bytes it has.
        len_bytes: usize,
    },
    /// A set's name that does not begin below the root directory.
    #[error("the pool set {name:?} is an absolute path; name it relative to the target's root directory")]
    Absolute {
        /// The name.
        name: String,
    },
    /// A set's name that may lead out of the root directory.
    #[error(
        "the pool set {name:?} goes up by \"..\", which may lead outside of the target's root directory; name it relative to that, without \"..\""
    )]
    ParentDirectory {
        /// The name.
        name: String,
    },
    /// Not UTF-8.
    #[error("the pool name is not UTF-8 from byte {at} on")]
    NotUtf8 {
        /// The first byte that is not.
        at: usize,
    },
}

impl TryFrom<&[u8]> for PoolName {
    type Error = NameError;

    fn try_from(bytes: &[u8]) -> Result<Self, NameError> {
        match core::str::from_utf8(bytes) {
            Ok(text) => Self::new(text),
            Err(error) => Err(NameError::NotUtf8 { at: error.valid_up_to() }),
        }
    }
}

impl FromStr for PoolName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::new(text)
    }
}

impl fmt::Display for PoolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl AsRef<str> for PoolName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for PoolName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

fn check(name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(NameError::TooLong { len_bytes: name.len() });
    }
    if let Some((at, character)) = name.char_indices().find(|(_, c)| *c == '/' || c.is_control()) {
        return Err(NameError::ForbiddenCharacter { character, at });
    }
    if name.starts_with('.') {
        return Err(NameError::LeadingDot { name: name.to_owned() });
    }
    Ok(())
}
