//! What pools are opened for.

/// What a pool, or a replica of one, is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpenFor {
    /// Reading only: nothing is changed, and others may read too. The parts of a pool set must not be open for writing; a native pool can
    /// be read while another program writes it.
    Read,
    /// Reading and writing: no other program may have it open for writing.
    Write,
}
