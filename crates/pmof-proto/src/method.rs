//! Methods of remote flush.

use std::fmt;

/// How earlier writes of a connection reach the level that a flush asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Method {
    /// The FLUSH operation of the devices at both ends (IBTA memory placement extensions).
    NativeFlush,
    /// This side's own CPU stored the bytes into the shared memory, writes them back and fences.
    LocalWriteBack,
    /// A read follows the writes and pushes them out of the target's device (APM). Durable only where the target attests
    /// that inbound writes reach its persistence domain by themselves.
    ReadAfterWrite,
    /// A read follows the records that were appended to a ring and pushes them out of the target's device. Durable where a
    /// read after writes is. For rings only, which know no other method.
    ReadAfterSend,
    /// A message follows the writes; the target's CPU flushes and answers (GPSPM).
    SendAfterWrite,
}

impl Method {
    /// Every method, in the order in which they are tried: those that leave the target's CPU alone first.
    pub const ALL: [Self; 5] =
        [Self::NativeFlush, Self::LocalWriteBack, Self::ReadAfterWrite, Self::ReadAfterSend, Self::SendAfterWrite];

    /// The name that people and scripts read.
    pub fn name(self) -> &'static str {
        match self {
            Self::NativeFlush => "native-flush",
            Self::LocalWriteBack => "local-write-back",
            Self::ReadAfterWrite => "read-after-write",
            Self::ReadAfterSend => "read-after-send",
            Self::SendAfterWrite => "send-after-write",
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
