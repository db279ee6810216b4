//! The disk: an image file and, above it, the sectors that are not flushed.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::Path,
};

/// Bytes that a disk writes as one.
pub const SECTOR_BYTES: usize = 512;

const SECTOR: u64 = SECTOR_BYTES as u64;

/// Which of the sectors that were not flushed survive a power cut: a disk may write any of them at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// None.
    None,
    /// All.
    All,
    /// Each by a coin, thrown from this seed.
    Random(u64),
}

/// What a power cut did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Sectors that were not flushed.
    pub unflushed: u64,
    /// Of them, those that survived.
    pub survived: u64,
}

/// The request before which the disk's power goes, counted from when this is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutBefore {
    /// The n-th flush, from 1.
    Flush(u64),
    /// The n-th write, from 1.
    Write(u64),
}

/// An image file with a volatile cache. Offsets and lengths are bytes, of any alignment.
#[derive(Debug)]
pub struct Disk {
    image: File,
    length: u64,
    unflushed: BTreeMap<u64, [u8; SECTOR_BYTES]>,
    cut_before: Option<CutBefore>,
    is_off: bool,
}

impl Disk {
    /// The image as a disk of its length, rounded down to whole sectors.
    pub fn open(image: &Path) -> io::Result<Disk> {
        let image = OpenOptions::new().read(true).write(true).open(image)?;
        let length = image.metadata()?.len() / SECTOR * SECTOR;
        Ok(Disk { image, length, unflushed: BTreeMap::new(), cut_before: None, is_off: false })
    }

    /// Its length.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Whether the range lies on the disk.
    pub fn contains(&self, at: u64, length: u64) -> bool {
        at.checked_add(length).is_some_and(|end| end <= self.length)
    }

    /// Fills `bytes` with what was written last.
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.check(at, bytes.len())?;
        self.image.read_exact_at(bytes, at)?;
        let end = at + bytes.len() as u64;
        for (sector, content) in self.unflushed.range(at / SECTOR..end.div_ceil(SECTOR)) {
            let (start, stop) = (at.max(sector * SECTOR), end.min((sector + 1) * SECTOR));
            let from = &content[(start - sector * SECTOR) as usize..(stop - sector * SECTOR) as usize];
            bytes[(start - at) as usize..(stop - at) as usize].copy_from_slice(from);
        }
        Ok(())
    }

    /// Has the power go before that request: it and all that follow fail, until [`cut`](Self::cut).
    pub fn cut_before(&mut self, request: CutBefore) {
        self.cut_before = Some(request);
    }

    /// Whether the power has gone by itself.
    pub fn is_off(&self) -> bool {
        self.is_off
    }

    /// Writes into the cache.
    pub fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.check(at, bytes.len())?;
        self.count(CutBefore::Write)?;
        let mut written = 0;
        while written < bytes.len() {
            let position = at + written as u64;
            let (sector, skip) = (position / SECTOR, (position % SECTOR) as usize);
            let count = (SECTOR_BYTES - skip).min(bytes.len() - written);
            let mut content = [0; SECTOR_BYTES];
            if count < SECTOR_BYTES {
                self.read(sector * SECTOR, &mut content)?;
            }
            content[skip..skip + count].copy_from_slice(&bytes[written..written + count]);
            self.unflushed.insert(sector, content);
            written += count;
        }
        Ok(())
    }

    /// Makes all writes durable.
    pub fn flush(&mut self) -> io::Result<()> {
        self.count(CutBefore::Flush)?;
        self.persist(0, u64::MAX)
    }

    /// Makes the sectors of a range durable, and no others.
    pub fn flush_range(&mut self, at: u64, length: u64) -> io::Result<()> {
        self.count(CutBefore::Flush)?;
        self.persist(at / SECTOR, at.saturating_add(length).div_ceil(SECTOR))
    }

    /// Loses power: the cache is empty afterwards.
    pub fn cut(&mut self, choice: Choice) -> io::Result<Cut> {
        (self.cut_before, self.is_off) = (None, false);
        let mut cut = Cut { unflushed: self.unflushed.len() as u64, survived: 0 };
        let mut coins = Coins(if let Choice::Random(seed) = choice { seed } else { 0 });
        for (sector, content) in std::mem::take(&mut self.unflushed) {
            let survives = match choice {
                Choice::None => false,
                Choice::All => true,
                Choice::Random(_) => coins.throw(),
            };
            if survives {
                self.image.write_all_at(&content, sector * SECTOR)?;
                cut.survived += 1;
            }
        }
        Ok(cut)
    }

    fn count(&mut self, request: fn(u64) -> CutBefore) -> io::Result<()> {
        match &mut self.cut_before {
            Some(CutBefore::Flush(left)) if request(0) == CutBefore::Flush(0) => *left = left.saturating_sub(1),
            Some(CutBefore::Write(left)) if request(0) == CutBefore::Write(0) => *left = left.saturating_sub(1),
            _ => {}
        }
        self.is_off |= matches!(self.cut_before, Some(CutBefore::Flush(0) | CutBefore::Write(0)));
        if self.is_off { Err(io::Error::other("the disk has no power")) } else { Ok(()) }
    }

    fn persist(&mut self, first: u64, end: u64) -> io::Result<()> {
        // An entry leaves the cache only when it is in the image: an error loses nothing.
        while let Some((&sector, content)) = self.unflushed.range(first..end).next() {
            self.image.write_all_at(content, sector * SECTOR)?;
            self.unflushed.remove(&sector);
        }
        Ok(())
    }

    fn check(&self, at: u64, length: usize) -> io::Result<()> {
        if self.contains(at, length as u64) {
            return Ok(());
        }
        let text = format!("{length} bytes at {at} of a disk of {} bytes", self.length);
        Err(io::Error::new(io::ErrorKind::InvalidInput, text))
    }
}

/// Splitmix64 (Steele, Lea and Flood, 2014).
struct Coins(u64);

impl Coins {
    fn throw(&mut self) -> bool {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: u64 = 64 * SECTOR;

    fn disk() -> (tempfile::TempDir, Disk) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        File::create(&path).unwrap().set_len(LENGTH + 100).unwrap();
        let disk = Disk::open(&path).unwrap();
        assert_eq!(disk.length(), LENGTH);
        (directory, disk)
    }

    fn read(disk: &Disk, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0xff; length];
        disk.read(at, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn what_was_written_is_read_at_any_alignment() {
        let (_directory, mut disk) = disk();
        let mut expected = vec![0; LENGTH as usize];
        for (round, (at, length)) in
            [(0, 512), (500, 24), (1000, 3000), (511, 1), (32_000, 768)].into_iter().enumerate()
        {
            let bytes = vec![round as u8 + 1; length];
            disk.write(at, &bytes).unwrap();
            expected[at as usize..at as usize + length].copy_from_slice(&bytes);
            assert_eq!(read(&disk, 0, LENGTH as usize), expected);
            assert_eq!(read(&disk, 490, 1200), expected[490..1690]);
            if round == 2 {
                disk.flush().unwrap();
            }
        }
    }

    #[test]
    fn a_cut_loses_what_was_not_flushed() {
        let (_directory, mut disk) = disk();
        disk.write(0, &[1; 1024]).unwrap();
        disk.flush().unwrap();
        disk.write(512, &[2; 1024]).unwrap();
        assert_eq!(disk.cut(Choice::None).unwrap(), Cut { unflushed: 2, survived: 0 });
        assert_eq!(read(&disk, 0, 1536), [[1; 512], [1; 512], [0; 512]].concat());
        assert_eq!(disk.cut(Choice::None).unwrap(), Cut::default());
    }

    #[test]
    fn a_flush_of_a_range_is_of_that_range() {
        let (_directory, mut disk) = disk();
        disk.write(0, &[1; 2048]).unwrap();
        disk.flush_range(600, 1).unwrap();
        assert_eq!(disk.cut(Choice::None).unwrap().unflushed, 3);
        assert_eq!(read(&disk, 0, 1536), [[0; 512], [1; 512], [0; 512]].concat());
    }

    #[test]
    fn the_power_goes_before_the_request_that_was_named() {
        let (_directory, mut disk) = disk();
        disk.cut_before(CutBefore::Flush(2));
        for byte in [1, 2] {
            disk.write(0, &[byte; 512]).unwrap();
            assert_eq!(disk.flush().is_ok(), byte == 1);
        }
        assert!(disk.is_off() && disk.write(0, &[3; 512]).is_err());
        assert_eq!(disk.cut(Choice::None).unwrap().unflushed, 1);
        assert_eq!(read(&disk, 0, 512), [1; 512]);
        disk.cut_before(CutBefore::Write(1));
        disk.flush().unwrap();
        assert!(disk.write(0, &[4; 512]).is_err() && disk.flush().is_err());
        disk.cut(Choice::None).unwrap();
        disk.write(0, &[5; 512]).unwrap();
    }

    #[test]
    fn survivors_by_choice() {
        let cut = |choice| {
            let (_directory, mut disk) = disk();
            disk.write(0, &vec![1; LENGTH as usize]).unwrap();
            (disk.cut(choice).unwrap(), read(&disk, 0, LENGTH as usize))
        };
        assert_eq!(cut(Choice::All), (Cut { unflushed: 64, survived: 64 }, vec![1; LENGTH as usize]));
        let (outcome, bytes) = cut(Choice::Random(3));
        assert!((20..44).contains(&outcome.survived), "{outcome:?}");
        let whole = bytes.chunks(SECTOR_BYTES).filter(|sector| **sector == [1; SECTOR_BYTES]).count();
        assert_eq!(whole as u64, outcome.survived);
        assert_eq!(cut(Choice::Random(3)).1, bytes);
        assert_ne!(cut(Choice::Random(4)).1, bytes);
    }

    #[test]
    fn ranges_off_the_disk_are_refused() {
        let (_directory, mut disk) = disk();
        for (at, length) in [(LENGTH, 1), (LENGTH - 1, 2), (u64::MAX, 1), (u64::MAX - 3, 8)] {
            assert!(disk.read(at, &mut vec![0; length]).is_err());
            assert!(disk.write(at, &vec![0; length]).is_err());
        }
        assert!(disk.write(LENGTH, &[]).is_ok());
        assert_eq!(disk.cut(Choice::All).unwrap(), Cut::default());
    }
}
