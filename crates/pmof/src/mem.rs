//! Memory that is mapped from files, devices or nothing, and what a flush of it can promise.
//!
//! [`Memory`] is a range that connections may serve; a [`Medium`] flushes it; [`probe()`] says what the stack below a path keeps, and why.

#[doc(inline)]
pub use pmof_mem::{
    BadBlocks, Causes, Declaration, Durability, Evidence, ExistingFile, FilePart, HandOut, HeldAddresses,
    LEN_BYTES_MAX, Lent, Mechanism, Medium, MediumKind, MediumProbe, MemError, Memory, NdBus, NewFile,
    PersistenceDomain, Promise, RegionPower, RegionProbe, Settled, ShadowMedium, SyncChoice, SyncMethod, UntornWrites,
    causes, open_to_append, open_to_read, probe,
};
