//! The files and devices of pmof's own pools, by the byte tables of docs/design.md: formats 1 and 2.

use std::fmt;

/// Bytes of the header, and of each page.
const PAGE_BYTES: usize = 4096;

const MAGIC: &[u8; 8] = b"PMOFPOOL";
const STATE_MAGIC: &[u8; 8] = b"PMOFSTAT";
const HEADER_CHECKSUM: usize = 4092;
const GENERATION: std::ops::Range<usize> = 88..96;
const SLOT_BYTES: usize = 2048;
const MARK: usize = 1592;
const SLOT_CHECKSUM: usize = 2044;

/// What the first page says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolFile {
    /// 1 or 2.
    pub major: u16,
    /// UUID of the pool.
    pub uuid: [u8; 16],
    /// Bytes of user data.
    pub data_bytes: u64,
    /// Where they begin.
    pub data_offset: u64,
    /// Which of the pool's replicas it is.
    pub index: u16,
    /// What the second page says; format 1 has none.
    pub state: Option<State>,
}

/// The state of a replica: its newest whole slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// The epoch of the last opening for writing.
    pub epoch: [u8; 16],
    /// The replicas in sync by that epoch: a bit for each index.
    pub members: u64,
    /// Which epoch that is, from 1: one more than that of its parent.
    pub opening: u64,
    /// This replica was told that the epoch is in force.
    pub is_confirmed: bool,
    /// Not closed in order.
    pub is_open: bool,
    /// What the writer raises on all replicas, each when all others have the one before.
    pub mark: u64,
}

impl fmt::Debug for State {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { epoch, opening, is_open, mark, .. } = self;
        let [first, ..] = epoch;
        write!(to, "opening {opening} (epoch {first:02x}.., mark {mark}), {}", if *is_open { "open" } else { "closed" })
    }
}

impl PoolFile {
    /// Reads header and state of a file or device; `None` where there is no pool: all zeros, or `PMOFMAKE`, which a device says
    /// while a pool is made or removed.
    pub fn read(bytes: &[u8]) -> Result<Option<Self>, String> {
        let head = bytes.get(..PAGE_BYTES).ok_or_else(|| format!("{} bytes are no pool", bytes.len()))?;
        if head.starts_with(b"PMOFMAKE") || head.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        if !head.starts_with(MAGIC) {
            return Err(format!("it begins with {:02x?}, which is no pool's", &head[..8]));
        }
        let mut covered = head[..HEADER_CHECKSUM].to_vec();
        covered[GENERATION].fill(0);
        if number(head, HEADER_CHECKSUM, 4) != u64::from(crc32c(&covered)) {
            return Err("the header's checksum is wrong".to_owned());
        }
        let major = number(head, 8, 2) as u16;
        let (data_bytes, data_offset) = (number(head, 64, 8), number(head, 72, 8));
        if !matches!((major, data_offset), (1, 4096) | (2, 8192) | (3, 65_536)) || data_bytes == 0 {
            return Err(format!("format {major} with {data_bytes} bytes of data at {data_offset}"));
        }
        let needed = data_offset.saturating_add(data_bytes.next_multiple_of(PAGE_BYTES as u64));
        if needed > bytes.len() as u64 {
            return Err(format!("it is {} bytes long, and its header says {needed}", bytes.len()));
        }
        let state = if major == 1 { None } else { Some(State::read(&bytes[PAGE_BYTES..2 * PAGE_BYTES])?) };
        let (uuid, index) = (uuid(head, 32), number(head, 98, 2) as u16);
        Ok(Some(Self { major, uuid, data_bytes, data_offset, index, state }))
    }

    /// The user's data.
    pub fn data<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        &bytes[self.data_offset as usize..][..self.data_bytes as usize]
    }
}

impl State {
    fn read(page: &[u8]) -> Result<Self, String> {
        let whole = |slot: &&[u8]| {
            slot.starts_with(STATE_MAGIC) && number(slot, SLOT_CHECKSUM, 4) == u64::from(crc32c(&slot[..SLOT_CHECKSUM]))
        };
        let slots = page.chunks_exact(SLOT_BYTES);
        let newest = slots.filter(whole).max_by_key(|slot| number(slot, 8, 8));
        let slot = newest.ok_or("neither slot of the state page is whole")?;
        // A slot that a crash left torn was being written: the state before it counts, and the pool as open.
        let is_torn = page.chunks_exact(SLOT_BYTES).any(|slot| slot.iter().any(|byte| *byte != 0) && !whole(&slot));
        let epoch = uuid(slot, 16);
        let is_open = slot[48] & 1 != 0 || is_torn;
        let (members, opening, is_confirmed) = (number(slot, 32, 8), number(slot, 40, 8), slot[48] & 2 != 0);
        Ok(Self { epoch, members, opening, is_confirmed, is_open, mark: number(slot, MARK, 8) })
    }
}

/// Whether the writer that raises marks on all replicas can have left these.
pub fn marks_agree(marks: &[u64]) -> bool {
    let (least, most) = (marks.iter().min(), marks.iter().max());
    least.zip(most).is_none_or(|(least, most)| most - least <= 1)
}

/// Which of these replicas of a pool have what was acknowledged: those in sync by the newest epoch that one of them knows to be in force. The others
/// lag.
pub fn in_sync(replicas: &[&PoolFile]) -> Vec<bool> {
    let states = replicas.iter().filter_map(|replica| replica.state);
    let newest = states.filter(|state| state.is_confirmed).max_by_key(|state| state.opening);
    let members = newest.map_or(0, |state| state.members);
    replicas.iter().map(|replica| members.checked_shr(replica.index.into()).is_some_and(|bits| bits & 1 == 1)).collect()
}

/// A little-endian number.
pub(crate) fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..at + len].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Sixteen bytes from a place that has them.
pub(crate) fn uuid(bytes: &[u8], at: usize) -> [u8; 16] {
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&bytes[at..at + 16]);
    uuid
}

/// CRC32C (RFC 3720, appendix B.4): polynomial 0x1EDC6F41, reflected.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ if crc & 1 == 0 { 0 } else { 0x82f6_3b78 })
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const DATA_OFFSET: usize = 64 << 10;

    /// A file of format 3 of a pool of zeros.
    pub(crate) fn file(data_bytes: u64, opening: u64, is_open: bool) -> Vec<u8> {
        let mut bytes = vec![0; DATA_OFFSET + data_bytes.next_multiple_of(4096) as usize];
        put(&mut bytes, 0, MAGIC);
        put(&mut bytes, 8, &3_u16.to_le_bytes());
        put(&mut bytes, 32, &[7; 16]);
        put(&mut bytes, 64, &data_bytes.to_le_bytes());
        put(&mut bytes, 72, &(DATA_OFFSET as u64).to_le_bytes());
        seal(&mut bytes);
        slot(&mut bytes, opening, opening, is_open);
        bytes
    }

    pub(crate) fn slot(bytes: &mut [u8], sequence: u64, opening: u64, is_open: bool) {
        let at = PAGE_BYTES + (sequence % 2) as usize * SLOT_BYTES;
        bytes[at..at + SLOT_BYTES].fill(0);
        put(bytes, at, STATE_MAGIC);
        put(bytes, at + 8, &sequence.to_le_bytes());
        put(bytes, at + 16, &[opening as u8; 16]);
        put(bytes, at + 40, &opening.to_le_bytes());
        bytes[at + 48] = u8::from(is_open) | 2;
        put(bytes, at + MARK, &(opening + 100).to_le_bytes());
        let sum = crc32c(&bytes[at..at + SLOT_CHECKSUM]);
        put(bytes, at + SLOT_CHECKSUM, &sum.to_le_bytes());
    }

    fn put(bytes: &mut [u8], at: usize, what: &[u8]) {
        bytes[at..at + what.len()].copy_from_slice(what);
    }

    fn seal(bytes: &mut [u8]) {
        let sum = crc32c(&bytes[..HEADER_CHECKSUM]);
        put(bytes, HEADER_CHECKSUM, &sum.to_le_bytes());
    }

    #[test]
    fn the_checksum_is_that_of_the_rfc() {
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    }

    #[test]
    fn both_formats_are_read() {
        let bytes = file(10_000, 3, true);
        let pool = PoolFile::read(&bytes).unwrap().unwrap();
        assert_eq!((pool.major, pool.data_offset, pool.data(&bytes).len()), (3, DATA_OFFSET as u64, 10_000));
        assert_eq!(
            pool.state,
            Some(State { epoch: [3; 16], members: 0, opening: 3, is_confirmed: true, is_open: true, mark: 103 })
        );

        let mut old = file(4096, 1, false);
        put(&mut old, 8, &1_u16.to_le_bytes());
        put(&mut old, 72, &4096_u64.to_le_bytes());
        seal(&mut old);
        put(&mut old, 88, &[1; 8]);
        let pool = PoolFile::read(&old[..8192]).unwrap().unwrap();
        assert_eq!((pool.major, pool.data_offset, pool.state), (1, 4096, None));
    }

    #[test]
    fn the_newest_whole_slot_counts() {
        let mut bytes = file(4096, 1, true);
        slot(&mut bytes, 2, 1, false);
        let state = |bytes: &[u8]| PoolFile::read(bytes).unwrap().unwrap().state.unwrap();
        assert!(!state(&bytes).is_open);
        bytes[PAGE_BYTES + 100] ^= 1;
        let torn = state(&bytes);
        assert!(torn.is_open && torn.opening == 1, "{torn:?}");
        bytes[PAGE_BYTES + SLOT_BYTES] ^= 1;
        assert!(PoolFile::read(&bytes).unwrap_err().contains("neither slot"));
    }

    #[test]
    fn marks_are_at_most_one_apart() {
        assert!(marks_agree(&[]) && marks_agree(&[4]) && marks_agree(&[4, 5, 5]) && marks_agree(&[5, 4]));
        assert!(!marks_agree(&[4, 6]) && !marks_agree(&[0, 1, 2]));
    }

    #[test]
    fn in_sync_is_who_the_newest_epoch_names_that_is_in_force() {
        let replica = |index, opening, members, is_confirmed| PoolFile {
            major: 3,
            uuid: [7; 16],
            data_bytes: 4096,
            data_offset: DATA_OFFSET as u64,
            index,
            state: Some(State { epoch: [0; 16], members, opening, is_confirmed, is_open: true, mark: 1 }),
        };
        let judged = |replicas: [PoolFile; 3]| in_sync(&replicas.each_ref());
        let all = [replica(0, 3, 0b111, true), replica(1, 3, 0b111, true), replica(2, 3, 0b111, true)];
        assert_eq!(judged(all), [true, true, true]);
        // The last one was lost, and knows of nothing; nobody has to have confirmed it but one.
        let lost = [replica(0, 4, 0b011, true), replica(1, 4, 0b011, false), replica(2, 3, 0b111, true)];
        assert_eq!(judged(lost), [true, true, false]);
        // Announced, and not in force.
        let announced = [replica(0, 4, 0b011, false), replica(1, 4, 0b011, false), replica(2, 3, 0b111, true)];
        assert_eq!(judged(announced), [true, true, true]);
        assert_eq!(in_sync(&[&replica(0, 4, 0b1, false)]), [false]);
        assert_eq!(in_sync(&[&replica(64, 4, u64::MAX, true)]), [false]);
    }

    #[test]
    fn a_header_that_is_not_whole_is_reported() {
        let whole = file(4096, 1, true);
        for at in [8, 40, 64, 72, 4092, 4095] {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            assert!(PoolFile::read(&bytes).is_err(), "{at}");
        }
        assert!(PoolFile::read(&whole[..whole.len() - 1]).is_err());
        assert_eq!(PoolFile::read(&[0; 4096]), Ok(None));
        let mut making = whole;
        making[..8].copy_from_slice(b"PMOFMAKE");
        assert_eq!(PoolFile::read(&making), Ok(None));
    }
}
