//! Which operations a lane makes, and where.

use fastrand::Rng;

/// Reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
}

/// What is done, and in which order of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Bytes of each read and write.
    pub(super) size_bytes: u64,
    /// The range that operations lie in; at least one of them fits.
    pub(super) start: u64,
    pub(super) len_bytes: u64,
    pub(super) random: bool,
    /// Reads in a hundred operations.
    pub(super) read_percent: u8,
    /// Writes that share one flush; 0 where writes are flushed together at the end of a turn.
    pub(super) batch: u32,
}

impl Shape {
    /// Bytes that one operation moves: a read, a write, or all writes of a batch.
    pub(super) fn operation_bytes(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Read => self.size_bytes,
            Kind::Write => self.size_bytes * u64::from(self.batch.max(1)),
        }
    }
}

/// An operation to be posted in a slot, of which an engine has as many as it keeps operations in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Post {
    pub(super) slot: usize,
    pub(super) kind: Kind,
    /// Where it reads, or where each write of the batch goes; never empty.
    pub(super) places: Vec<u64>,
}

impl Post {
    /// An empty one to be filled by a [`Pattern`].
    pub(super) fn in_slot(slot: usize) -> Self {
        Self { slot, kind: Kind::Write, places: Vec::new() }
    }

    /// From the first byte that it touches to the last.
    pub(super) fn range(&self, size_bytes: u64) -> std::ops::Range<u64> {
        let first = self.places.iter().min().copied().unwrap_or(0);
        let last = self.places.iter().max().copied().unwrap_or(0);
        first..last + size_bytes
    }
}

/// Gives one operation after the other, the same ones for the same seed.
#[derive(Debug)]
pub(super) struct Pattern {
    shape: Shape,
    next: u64,
    random: Rng,
}

impl Pattern {
    pub(super) fn new(shape: Shape, seed: u64) -> Self {
        Self { shape, next: 0, random: Rng::with_seed(seed) }
    }

    pub(super) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Fills in the next operation, but for its slot.
    pub(super) fn fill(&mut self, post: &mut Post) {
        post.kind = match self.shape.read_percent {
            0 => Kind::Write,
            100 => Kind::Read,
            percent if self.random.u8(..100) < percent => Kind::Read,
            _ => Kind::Write,
        };
        let count = if post.kind == Kind::Read { 1 } else { self.shape.batch.max(1) };
        post.places.clear();
        for _ in 0..count {
            let place = self.place();
            post.places.push(place);
        }
    }

    fn place(&mut self) -> u64 {
        let Shape { size_bytes, start, len_bytes, random, .. } = self.shape;
        let blocks = (len_bytes / size_bytes).max(1);
        let block = if random {
            self.random.u64(..blocks)
        } else {
            let block = self.next;
            self.next = if block + 1 < blocks { block + 1 } else { 0 };
            block
        };
        start + block * size_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape =
        Shape { size_bytes: 512, start: 4096, len_bytes: 2000, random: false, read_percent: 0, batch: 1 };

    fn posts(shape: Shape, seed: u64, count: usize) -> Vec<Post> {
        let mut pattern = Pattern::new(shape, seed);
        let mut next = || {
            let mut post = Post::in_slot(0);
            pattern.fill(&mut post);
            post
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn sequential_places_go_round_in_whole_blocks() {
        let places: Vec<u64> = posts(SHAPE, 1, 5).iter().map(|post| post.places[0]).collect();
        assert_eq!(places, [4096, 4608, 5120, 4096, 4608]);
        let one = Shape { len_bytes: 100, ..SHAPE };
        assert!(posts(one, 1, 3).iter().all(|post| post.places == [4096]), "a range shorter than a block has one");
    }

    #[test]
    fn random_places_reach_every_block_and_repeat_with_their_seed() {
        let shape = Shape { random: true, len_bytes: 4096, ..SHAPE };
        let made = posts(shape, 7, 200);
        let mut seen: Vec<u64> = made.iter().map(|post| post.places[0]).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, (0..8).map(|block| 4096 + block * 512).collect::<Vec<_>>());
        assert_eq!(made, posts(shape, 7, 200));
        assert_ne!(made, posts(shape, 8, 200));
    }

    #[test]
    fn a_mix_has_its_share_of_reads_and_whole_batches_of_writes() {
        let made = posts(Shape { read_percent: 70, batch: 3, ..SHAPE }, 3, 1000);
        let reads = made.iter().filter(|post| post.kind == Kind::Read).count();
        assert!((650..750).contains(&reads), "{reads} reads of 1000");
        for post in &made {
            assert_eq!(post.places.len(), if post.kind == Kind::Read { 1 } else { 3 });
        }
        assert!(posts(Shape { read_percent: 100, ..SHAPE }, 3, 50).iter().all(|post| post.kind == Kind::Read));
    }

    #[test]
    fn the_range_of_a_batch_covers_all_its_places() {
        let post = Post { slot: 0, kind: Kind::Write, places: vec![2048, 512, 1024] };
        assert_eq!(post.range(512), 512..2560);
    }
}
