//! The body of a change set, as it is staged, and of what it overwrites, as it is kept: writes in their order.

use pmof_control::{CHANGE_HEADER_BYTES, ChangeHeader};

/// Bytes of a body that are written, or read again, at a time.
pub(super) const PIECE_BYTES: usize = 1 << 20;

/// Goes through the writes of a body, long ones piece by piece: where each piece goes, where in the body it lies, and its bytes. False: they do not make up the body, or go beyond
/// the data.
pub(super) fn each_write<E>(
    (body_bytes, data_bytes): (u64, u64),
    read: &mut impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    mut each: impl FnMut(u64, u64, &[u8]) -> Result<(), E>,
) -> Result<bool, E> {
    let mut window = Window { bytes: Vec::new(), begin: 0, end: body_bytes };
    let mut at = 0;
    while at < body_bytes {
        let behind_header = at + CHANGE_HEADER_BYTES as u64;
        let Some(header) = window.get(at, CHANGE_HEADER_BYTES, read)?.and_then(|bytes| bytes.try_into().ok()) else {
            return Ok(false);
        };
        let ChangeHeader { offset, len_bytes } = ChangeHeader::parse(header);
        let is_in = |begin: u64, limit: u64| begin.checked_add(len_bytes).is_some_and(|end| end <= limit);
        if !is_in(offset, data_bytes) || !is_in(behind_header, body_bytes) {
            return Ok(false);
        }
        let mut done = 0;
        while done < len_bytes {
            let part = (len_bytes - done).min(PIECE_BYTES as u64);
            let Some(bytes) = window.get(behind_header + done, part as usize, read)? else { return Ok(false) };
            each(offset + done, behind_header + done, bytes)?;
            done += part;
        }
        at = behind_header + len_bytes;
    }
    Ok(true)
}

/// The checksum of a body.
pub(super) fn checksum<E>(body_bytes: u64, read: &mut impl FnMut(u64, &mut [u8]) -> Result<(), E>) -> Result<u32, E> {
    let (mut crc, mut at, mut piece) = (0, 0, vec![0; PIECE_BYTES.min(body_bytes as usize)]);
    while at < body_bytes {
        let part = (body_bytes - at).min(PIECE_BYTES as u64) as usize;
        read(at, &mut piece[..part])?;
        crc = crc32c::crc32c_append(crc, &piece[..part]);
        at += part as u64;
    }
    Ok(crc)
}

/// Reads a body that is in memory.
pub(super) fn in_memory<E>(body: &[u8]) -> impl FnMut(u64, &mut [u8]) -> Result<(), E> + use<'_, E> {
    |at, into| {
        into.copy_from_slice(&body[at as usize..at as usize + into.len()]);
        Ok(())
    }
}

/// The part of a body that was read last.
struct Window {
    bytes: Vec<u8>,
    begin: u64,
    end: u64,
}

impl Window {
    /// Bytes of the body, at most a piece. `None`: they lie beyond its end.
    fn get<E>(
        &mut self,
        at: u64,
        len_bytes: usize,
        read: &mut impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<Option<&[u8]>, E> {
        let behind = at + len_bytes as u64;
        if behind > self.end {
            return Ok(None);
        }
        if at < self.begin || behind > self.begin + self.bytes.len() as u64 {
            self.begin = at;
            self.bytes.resize((self.end - at).min(PIECE_BYTES as u64) as usize, 0);
            read(at, &mut self.bytes)?;
        }
        let first = (at - self.begin) as usize;
        Ok(self.bytes.get(first..first + len_bytes))
    }
}
