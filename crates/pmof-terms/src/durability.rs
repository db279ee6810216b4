//! The terms of the durability contract: what was reached, how, and on what evidence.

use core::fmt;

/// The failure that written bytes survive, weakest first.
///
/// There is no default: every flush names its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Durability {
    /// Other initiators and programs on the target read the new bytes; they survive no failure.
    Visible = 1,
    /// The bytes survive the death of the target process.
    ProcessCrash = 2,
    /// The bytes reached the medium's persistence domain and survive loss of power.
    PowerFailure = 3,
}

impl Durability {
    /// Every level, weakest first.
    pub const ALL: [Self; 3] = [Self::Visible, Self::ProcessCrash, Self::PowerFailure];

    /// The level with this wire number, if there is one.
    pub fn from_wire(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|level| *level as u8 == number)
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Visible => "visible",
            Self::ProcessCrash => "process-crash",
            Self::PowerFailure => "power-failure",
        })
    }
}

/// Why a durability level is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Evidence {
    /// The kernel or the CPU was asked and its answer implies the level.
    Probed = 1,
    /// An operator said so; nothing on the machine confirms it.
    Declared = 2,
}

impl Evidence {
    /// The evidence with this wire number, if there is one.
    pub fn from_wire(number: u8) -> Option<Self> {
        [Self::Probed, Self::Declared].into_iter().find(|evidence| *evidence as u8 == number)
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Probed => "probed",
            Self::Declared => "declared",
        })
    }
}

/// What the owner of the memory must do to bring stored bytes to a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Mechanism {
    /// The store itself is enough.
    Store = 1,
    /// A store fence: the CPU caches belong to the persistence domain (eADR).
    Fence = 2,
    /// Cache-line write-back, then a fence.
    CacheLineWriteBack = 3,
    /// The kernel writes the file's dirty pages to its device and flushes the device (msync / fdatasync).
    FileSync = 4,
}

impl Mechanism {
    /// The mechanism with this wire number, if there is one.
    pub fn from_wire(number: u8) -> Option<Self> {
        [Self::Store, Self::Fence, Self::CacheLineWriteBack, Self::FileSync]
            .into_iter()
            .find(|mechanism| *mechanism as u8 == number)
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Store => "store",
            Self::Fence => "fence",
            Self::CacheLineWriteBack => "cache-line write-back",
            Self::FileSync => "file sync",
        })
    }
}

/// How a medium provides a durability level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Promise {
    /// What must be done after a store.
    pub mechanism: Mechanism,
    /// The evidence that this is enough.
    pub evidence: Evidence,
}

impl Promise {
    /// Whether this promise relies on CPU caches that belong to the persistence domain (eADR; the nd region reports
    /// `cpu_cache`), so that a write is durable as soon as it is visible to the CPU.
    ///
    /// Only a promise of [`Durability::PowerFailure`] can say so; [`evidence`](Self::evidence) tells who vouches for it.
    pub fn cpu_caches_persist(self) -> bool {
        self.mechanism == Mechanism::Fence
    }
}

/// A declaration of the operator that nothing on the machine confirms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Declaration {
    /// The memory of this host survives loss of power (battery, or a UPS with an orderly save). This helps media that
    /// outlive their process, but not anonymous memory, which is lost with it.
    BatteryBacked,
    /// The memory of this host survives loss of power, but its CPU caches do not (ADR): NVDIMMs that the
    /// kernel treats as ordinary memory. Otherwise as above, with cache lines written back on such media.
    MemoryKept,
}
