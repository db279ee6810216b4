//! What a case damages: a structure of the file, how much of it, on which replicas, when, and over which transport.

use std::fmt;

use serde::Serialize;

/// A structure of a pool's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Structure {
    /// One to three of the four copies.
    Header,
    AllHeaders,
    State,
    AllStates,
    Roster,
    AllRosters,
    /// The map of write intent, after a writer that died.
    Intent,
    /// Words of the page digests.
    Words,
    /// A page that is protected.
    Page,
    /// A page that was written and is not protected yet: nothing covers it.
    MovingPage,
}

impl Structure {
    const ALL: [Self; 10] = [
        Self::Header,
        Self::AllHeaders,
        Self::State,
        Self::AllStates,
        Self::Roster,
        Self::AllRosters,
        Self::Intent,
        Self::Words,
        Self::Page,
        Self::MovingPage,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Header => "header, 1 to 3 copies",
            Self::AllHeaders => "header, all copies",
            Self::State => "state, 1 to 3 copies",
            Self::AllStates => "state, all copies",
            Self::Roster => "roster, 1 to 3 copies",
            Self::AllRosters => "roster, all copies",
            Self::Intent => "map of write intent",
            Self::Words => "digest words",
            Self::Page => "protected page",
            Self::MovingPage => "page in motion",
        }
    }

    /// Whether the writer before the damage dies instead of closing the pool.
    pub(super) fn is_after_crash(self) -> bool {
        matches!(self, Self::Intent | Self::MovingPage)
    }

    pub(super) fn is_head(self) -> bool {
        !matches!(self, Self::Words | Self::Page | Self::MovingPage)
    }
}

/// How much is damaged: aligned to its size, as devices lose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Extent {
    Bit,
    Byte,
    Sector,
    Block,
    #[serde(rename = "64-kib")]
    Large,
}

impl Extent {
    const ALL: [Self; 5] = [Self::Bit, Self::Byte, Self::Sector, Self::Block, Self::Large];

    pub(super) fn len_bytes(self) -> u64 {
        match self {
            Self::Bit | Self::Byte => 1,
            Self::Sector => 512,
            Self::Block => 4096,
            Self::Large => 64 << 10,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bit => "bit",
            Self::Byte => "byte",
            Self::Sector => "512 bytes",
            Self::Block => "4 KiB",
            Self::Large => "64 KiB",
        }
    }
}

/// When the damage is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Moment {
    /// The targets are stopped.
    AtRest,
    /// The targets run, and the pool is closed.
    Closed,
    /// The pool is open, and was not read.
    Open,
    /// The pool is open, and all of it was read before.
    OpenAndRead,
}

impl Moment {
    const ALL: [Self; 4] = [Self::AtRest, Self::Closed, Self::Open, Self::OpenAndRead];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::AtRest => "targets stopped",
            Self::Closed => "pool closed",
            Self::Open => "open",
            Self::OpenAndRead => "open, read before",
        }
    }

    pub(super) fn is_open(self) -> bool {
        matches!(self, Self::Open | Self::OpenAndRead)
    }
}

/// How the pool reaches its replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Way {
    Tcp,
    Shm,
    File,
}

impl Way {
    const ALL: [Self; 3] = [Self::Tcp, Self::Shm, Self::File];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Shm => "shm",
            Self::File => "file",
        }
    }
}

/// How many replicas there are, and which of them are damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Spread {
    pub(super) replicas: u8,
    pub(super) damaged: u8,
    /// The same place on each that is damaged; otherwise a place of its own on each.
    pub(super) is_same: bool,
}

impl Spread {
    fn all() -> impl Iterator<Item = Self> {
        (1..=3_u8).flat_map(|replicas| (1..=replicas).map(move |damaged| (replicas, damaged))).flat_map(
            |(replicas, damaged)| {
                let same: &[bool] = if damaged == 1 { &[true] } else { &[false, true] };
                same.iter().map(move |is_same| Self { replicas, damaged, is_same: *is_same })
            },
        )
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.damaged, self.replicas)?;
        match (self.damaged, self.is_same) {
            (1, _) => Ok(()),
            (_, true) => write!(f, ", same place"),
            (_, false) => write!(f, ", own places"),
        }
    }
}

/// One combination of all these. Each has cases, and a control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Cell {
    pub(super) structure: Structure,
    pub(super) extent: Extent,
    pub(super) spread: Spread,
    pub(super) moment: Moment,
    pub(super) way: Way,
}

impl Cell {
    /// All cells that there are, in order.
    pub(super) fn all() -> Vec<Self> {
        let mut cells = Vec::new();
        for structure in Structure::ALL {
            for spread in Spread::all() {
                for extent in Extent::ALL {
                    for moment in Moment::ALL {
                        cells.extend(Way::ALL.map(|way| Self { structure, extent, spread, moment, way }));
                    }
                }
            }
        }
        cells.retain(|cell| cell.is_possible());
        cells
    }

    fn is_possible(self) -> bool {
        // No process has the file between the sessions of a program that opens it itself.
        let has_target = self.way != Way::File || self.moment != Moment::AtRest;
        // The map of these pools is one word, and all digest words lie in one block.
        let has_places = self.spread.is_same
            || match self.structure {
                Structure::Intent => false,
                Structure::Words => self.extent < Extent::Block,
                _ => true,
            };
        has_target && has_places
    }

    /// Reads of pages that were verified once are not verified again: over shm they pass the target.
    pub(super) fn is_past_verification(self) -> bool {
        self.way == Way::Shm && self.moment == Moment::OpenAndRead
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { structure, extent, spread, moment, way } = self;
        write!(f, "{} / {} / {spread} / {} / {}", structure.name(), extent.name(), moment.name(), way.name())
    }
}
