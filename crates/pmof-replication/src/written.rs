//! What was written to a pool and is not known to be durable.

/// What a crash may leave of a write that was not acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Atomicity {
    /// Aligned words of 8 bytes are old or new, however long the write is.
    Words,
    /// The same of writes of at most 4096 bytes; any bytes of longer ones. Takes less of the target's CPU, and none over RDMA.
    #[default]
    Relaxed,
}

/// A range of a pool: its first byte, and the one behind its last.
pub type Extent = (u64, u64);

/// The least extent that has both in it.
pub fn hull((first, last): Extent, (begin, end): Extent) -> Extent {
    (first.min(begin), last.max(end))
}

/// What a lane has written and not flushed, by the two ways that writes take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// By [`Atomicity::Relaxed`] writes.
    pub relaxed: Option<Extent>,
    /// By [`Atomicity::Words`] writes.
    pub words: Option<Extent>,
}

impl Written {
    /// Adds a write.
    #[inline]
    pub fn add(&mut self, atomicity: Atomicity, (begin, end): Extent) {
        let written = match atomicity {
            Atomicity::Words => &mut self.words,
            Atomicity::Relaxed => &mut self.relaxed,
        };
        *written = Some(written.map_or((begin, end), |before| hull(before, (begin, end))));
    }

    /// The same with what another lane has written.
    #[must_use]
    pub fn with(mut self, other: Self) -> Self {
        other.relaxed.inspect(|extent| self.add(Atomicity::Relaxed, *extent));
        other.words.inspect(|extent| self.add(Atomicity::Words, *extent));
        self
    }

    /// Nothing was written.
    #[inline]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
