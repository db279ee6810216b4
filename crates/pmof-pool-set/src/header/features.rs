//! The features that a program must know to open a pool.

use std::fmt;

/// Where they lie in the header: three numbers of 4 bytes.
pub(super) const OFFSET: usize = 12;

/// A feature that a pool can have, with the name that PMDK's tools use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Feature {
    /// `SINGLEHDR` (incompatible, bit 0): only the first part of each replica has a header.
    SingleHeader,
    /// `CKSUM_2K` (incompatible, bit 1): the checksum covers the first 2048 bytes of the header only.
    Checksum2k,
    /// `SHUTDOWN_STATE` (incompatible, bit 2): the header says whether the pool was closed.
    ShutdownState,
    /// `CHECK_BAD_BLOCKS` (compatible, bit 0): a pool with bad blocks is not opened.
    CheckBadBlocks,
}

impl Feature {
    /// Every feature.
    pub const ALL: [Self; 4] = [Self::SingleHeader, Self::Checksum2k, Self::ShutdownState, Self::CheckBadBlocks];

    /// The name, as PMDK has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::SingleHeader => "SINGLEHDR",
            Self::Checksum2k => "CKSUM_2K",
            Self::ShutdownState => "SHUTDOWN_STATE",
            Self::CheckBadBlocks => "CHECK_BAD_BLOCKS",
        }
    }

    /// The feature of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|feature| feature.name() == name)
    }

    fn bits(self) -> Features {
        let (compat, incompat) = match self {
            Self::SingleHeader => (0, 1),
            Self::Checksum2k => (0, 2),
            Self::ShutdownState => (0, 4),
            Self::CheckBadBlocks => (1, 0),
        };
        Features { compat, incompat, ro_compat: 0 }
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The features of a pool, bit by bit; [`Feature`] has those that are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Features {
    /// A program that does not know them may ignore them.
    pub compat: u32,
    /// A program that does not know them must not open the pool.
    pub incompat: u32,
    /// A program that does not know them must not change the pool.
    pub ro_compat: u32,
}

impl Features {
    /// Those of new pools, as of PMDK as distributions build it (with ndctl): all but `SINGLEHDR`.
    pub fn of_new_pools() -> Self {
        [Feature::Checksum2k, Feature::ShutdownState, Feature::CheckBadBlocks]
            .into_iter()
            .fold(Self::default(), Self::with)
    }

    /// Whether the feature is there.
    pub fn has(self, feature: Feature) -> bool {
        let bits = feature.bits();
        self.compat & bits.compat != 0 || self.incompat & bits.incompat != 0
    }

    /// These, and `feature`.
    #[must_use]
    pub fn with(self, feature: Feature) -> Self {
        let bits = feature.bits();
        Self { compat: self.compat | bits.compat, incompat: self.incompat | bits.incompat, ..self }
    }

    /// These without `feature`.
    #[must_use]
    pub fn without(self, feature: Feature) -> Self {
        let bits = feature.bits();
        Self { compat: self.compat & !bits.compat, incompat: self.incompat & !bits.incompat, ..self }
    }

    /// Those that [`Feature`] does not have.
    #[must_use]
    pub fn unknown(self) -> Self {
        Feature::ALL.into_iter().fold(self, Self::without)
    }

    /// Those that [`Feature`] has, in its order.
    pub fn known(self) -> impl Iterator<Item = Feature> {
        Feature::ALL.into_iter().filter(move |feature| self.has(*feature))
    }

    pub(super) fn to_bytes(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        let words = [self.compat, self.incompat, self.ro_compat];
        for (slot, word) in bytes.chunks_exact_mut(4).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(super) fn from_bytes(bytes: [u8; 12]) -> Self {
        let word = |offset| u32::from_le_bytes(super::array(&bytes, offset));
        Self { compat: word(0), incompat: word(4), ro_compat: word(8) }
    }
}
