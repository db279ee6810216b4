//! What the tests of platforms share.

pub(crate) mod fixture;
pub(crate) mod oracle;
