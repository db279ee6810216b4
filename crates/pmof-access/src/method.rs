//! Methods of remote flush.

pub use pmof_proto::Method;

/// Why no other method flushes a ring.
pub(crate) const RING_METHOD: &str =
    "the target's device puts records where this side does not know: only read-after-send flushes a ring";
