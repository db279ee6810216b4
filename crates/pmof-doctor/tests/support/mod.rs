//! What the tests of platforms stand on.

pub(crate) mod fixture;
pub(crate) mod oracle;
