//! The two implementations of an object of the interface.

use crate::error::Failure;

/// An object on pmof's own connections, or directly on an RDMA device.
#[derive(Debug)]
pub(crate) enum On<A, V> {
    /// Over TCP and shm; over verbs where both ends ask for it.
    Access(A),
    /// Over verbs, as librpma.
    Verbs(V),
}

impl<A, V> On<A, V> {
    /// That on pmof's own connections.
    #[inline]
    pub(crate) fn access(&self) -> Result<&A, Failure> {
        match self {
            Self::Access(object) => Ok(object),
            Self::Verbs(_) => Err(mixed()),
        }
    }

    /// That on an RDMA device.
    #[inline]
    pub(crate) fn verbs(&self) -> Result<&V, Failure> {
        match self {
            Self::Verbs(object) => Ok(object),
            Self::Access(_) => Err(mixed()),
        }
    }
}

#[cold]
fn mixed() -> Failure {
    Failure::invalid("objects of peers on different transports cannot be combined")
}
