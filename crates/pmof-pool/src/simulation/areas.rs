//! The memory of an asynchronous member: its data, the staging area and the points area beside it, which a crash cuts at any byte.

use std::{cell::RefCell, ops::Range, rc::Rc};

use super::{
    plan::{PAGES, Plan, WORDS},
    random::Random,
    truth::Pages,
};
use crate::{
    follower::{Follower, FollowerBytes, FollowerMemory, Keep, points_area_bytes, staging_bytes},
    pages::PAGE_BYTES,
};

/// Bytes of the pool.
pub(super) const SIZE_BYTES: u64 = PAGES as u64 * PAGE_BYTES;

/// Bytes of a write.
pub(super) const WRITE_BYTES: u64 = WORDS as u64 * 8;

/// Bytes that a member may lag, at most.
const LAG_BYTES: u64 = 12 * WRITE_BYTES;

/// The same in a run: few where the member falls behind often.
pub(super) fn lag_bytes(plan: &Plan) -> u64 {
    if plan.is_far && !plan.waits_at_bound { 2 * WRITE_BYTES } else { LAG_BYTES }
}

/// Points that a member keeps.
pub(super) const KEPT_POINTS: u16 = 2;

/// Bytes on a medium behind a page cache.
#[derive(Clone, Debug)]
pub(super) struct Bytes {
    durable: Rc<Vec<u8>>,
    cache: Rc<Vec<u8>>,
    dirty: Vec<Range<usize>>,
}

impl Bytes {
    fn new(len_bytes: u64) -> Self {
        let bytes = Rc::new(vec![0; len_bytes as usize]);
        Self { durable: Rc::clone(&bytes), cache: bytes, dirty: Vec::new() }
    }

    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) {
        let range = at as usize..at as usize + bytes.len();
        Rc::make_mut(&mut self.cache)[range.clone()].copy_from_slice(bytes);
        self.dirty.push(range);
    }

    pub(super) fn flush(&mut self) {
        for range in self.dirty.drain(..) {
            Rc::make_mut(&mut self.durable)[range.clone()].copy_from_slice(&self.cache[range]);
        }
    }

    /// A loss of power: of what is not durable some words become so, and others are gone.
    fn lose(&mut self, random: &mut Random) {
        let dirty = std::mem::take(&mut self.dirty);
        if dirty.is_empty() {
            return;
        }
        let (cache, durable) = (Rc::make_mut(&mut self.cache), Rc::make_mut(&mut self.durable));
        for range in dirty {
            let mut at = range.start;
            while at < range.end {
                let end = (at / 8 * 8 + 8).min(range.end);
                let (from, to) = if random.once_in(2) { (&*cache, &mut *durable) } else { (&*durable, &mut *cache) };
                to[at..end].copy_from_slice(&from[at..end]);
                at = end;
            }
        }
        // What was written twice may have been kept by one and lost by the other.
        cache.copy_from_slice(durable);
    }

    pub(super) fn read(&self, at: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.cache[at as usize..at as usize + into.len()]);
    }
}

/// The three of them.
#[derive(Clone, Debug)]
pub(super) struct Areas {
    data: Bytes,
    staging: Bytes,
    points: Bytes,
    /// The mark in the state of the data's file, which is durable at once.
    mark: u64,
    /// So many things go well before the connection is cut, or the target stops.
    pub(super) cut_after: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Area {
    Data,
    Staging,
    Points,
}

impl Areas {
    pub(super) fn new() -> Self {
        Self {
            data: Bytes::new(SIZE_BYTES),
            staging: Bytes::new(staging_len_bytes()),
            points: Bytes::new(points_area_bytes(SIZE_BYTES)),
            mark: 0,
            cut_after: None,
        }
    }

    pub(super) fn get(&mut self, area: Area) -> &mut Bytes {
        match area {
            Area::Data => &mut self.data,
            Area::Staging => &mut self.staging,
            Area::Points => &mut self.points,
        }
    }

    pub(super) fn raised(&mut self, mark: Option<u64>) -> u64 {
        self.mark = self.mark.max(mark.unwrap_or(0));
        self.mark
    }

    pub(super) fn lose_power(&mut self, random: &mut Random) {
        for area in [Area::Data, Area::Staging, Area::Points] {
            self.get(area).lose(random);
        }
    }

    /// As they are after a loss of power now.
    pub(super) fn image(&self, random: &mut Random) -> Image {
        let mut areas = self.clone();
        areas.lose_power(random);
        areas.whole()
    }

    /// The same as it is.
    pub(super) fn whole(&self) -> Image {
        Image(Rc::new(RefCell::new(self.clone())))
    }

    /// Words of a page, as the data has them.
    pub(super) fn pages(&self) -> Pages {
        pages_of(|at, into| self.data.read(at, into))
    }
}

pub(super) fn staging_len_bytes() -> u64 {
    staging_bytes(SIZE_BYTES, LAG_BYTES * 4)
}

/// The pool's words, wherever they are read.
pub(super) fn pages_of(mut read: impl FnMut(u64, &mut [u8])) -> Pages {
    let mut pages: Pages = [[0; WORDS]; PAGES];
    for (page, words) in pages.iter_mut().enumerate() {
        let mut bytes = [0; WRITE_BYTES as usize];
        read(page as u64 * PAGE_BYTES, &mut bytes);
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        }
    }
    pages
}

/// The bytes of a write.
pub(super) fn bytes_of_words(words: &[u64; WORDS]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The memory of a member that nobody but the checker has.
#[derive(Clone, Debug)]
pub(super) struct Image(Rc<RefCell<Areas>>);

impl Image {
    pub(super) fn open(self) -> Follower<Self> {
        let keep = Keep { count: None, fresh: 1 };
        Follower::open(self, staging_len_bytes(), SIZE_BYTES, keep).unwrap_or_else(|never| match never {})
    }

    pub(super) fn pages(&self) -> Pages {
        self.0.borrow().pages()
    }
}

/// What happens to the areas.
pub(crate) trait Access {
    type Error;

    fn read(&self, area: Area, at: u64, into: &mut [u8]) -> Result<(), Self::Error>;
    fn write(&self, area: Area, at: u64, bytes: &[u8]) -> Result<(), Self::Error>;
    fn flush(&self, area: Area) -> Result<(), Self::Error>;
    fn mark(&self, raised: Option<u64>) -> Result<u64, Self::Error>;
}

impl Access for Image {
    type Error = std::convert::Infallible;

    fn read(&self, area: Area, at: u64, into: &mut [u8]) -> Result<(), Self::Error> {
        self.0.borrow_mut().get(area).read(at, into);
        Ok(())
    }

    fn write(&self, area: Area, at: u64, bytes: &[u8]) -> Result<(), Self::Error> {
        self.0.borrow_mut().get(area).write(at, bytes);
        Ok(())
    }

    fn flush(&self, area: Area) -> Result<(), Self::Error> {
        self.0.borrow_mut().get(area).flush();
        Ok(())
    }

    fn mark(&self, raised: Option<u64>) -> Result<u64, Self::Error> {
        Ok(self.0.borrow_mut().raised(raised))
    }
}

impl<A: Access> FollowerBytes for A {
    type Error = A::Error;

    fn read_data(&self, offset: u64, into: &mut [u8]) -> Result<(), Self::Error> {
        self.read(Area::Data, offset, into)
    }

    fn read_staging(&self, offset: u64, into: &mut [u8]) -> Result<(), Self::Error> {
        self.read(Area::Staging, offset, into)
    }

    fn data_mark(&self) -> Result<u64, Self::Error> {
        self.mark(None)
    }

    fn points_bytes(&self) -> Option<u64> {
        Some(points_area_bytes(SIZE_BYTES))
    }

    fn read_points(&self, offset: u64, into: &mut [u8]) -> Result<(), Self::Error> {
        self.read(Area::Points, offset, into)
    }
}

impl<A: Access> FollowerMemory for A {
    fn write_staging(&self, offset: u64, bytes: &[u8]) -> Result<(), Self::Error> {
        self.write(Area::Staging, offset, bytes)
    }

    fn set_staging(&self, offset: u64, number: u64) -> Result<(), Self::Error> {
        self.write(Area::Staging, offset, &number.to_le_bytes())
    }

    fn flush_staging(&self) -> Result<(), Self::Error> {
        self.flush(Area::Staging)
    }

    fn write_data(&self, offset: u64, bytes: &[u8]) -> Result<(), Self::Error> {
        self.write(Area::Data, offset, bytes)
    }

    fn flush_data(&self) -> Result<(), Self::Error> {
        self.flush(Area::Data)
    }

    fn mark_data(&self, mark: u64) -> Result<(), Self::Error> {
        self.mark(Some(mark)).map(drop)
    }

    fn write_points(&self, offset: u64, bytes: &[u8]) -> Result<(), Self::Error> {
        self.write(Area::Points, offset, bytes)
    }

    fn flush_points(&self) -> Result<(), Self::Error> {
        self.flush(Area::Points)
    }
}
