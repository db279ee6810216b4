//! Reads exports, and checks every byte of them.

use std::io::{self, Read};

use pmof_pool_set::{DIGEST_BYTES, Digest};

use super::format::{BEGIN_BYTES, ExportHeader, FormatError, HEADER_BYTES, Kind, RECORD_BYTES, Record, digest_of, hex};

/// Digests of a record, at most, in bytes.
const DIGESTS_BYTES_MAX: u32 = 4 << 20;

/// What a pool holds by the exports that were read.
#[derive(Clone, Debug)]
pub(crate) struct Contents {
    pub(crate) header: ExportHeader,
    pub(crate) id: Digest,
    /// Of its chunks.
    pub(crate) digests: Vec<Digest>,
}

/// A piece of a pool.
#[derive(Debug)]
pub(crate) enum Piece {
    Data { offset: u64, bytes: Vec<u8> },
    Zeroes { offset: u64, len_bytes: u64 },
}

impl Piece {
    /// Where it ends.
    pub(crate) fn end(&self) -> u64 {
        match self {
            Self::Data { offset, bytes } => offset + bytes.len() as u64,
            Self::Zeroes { offset, len_bytes } => offset + len_bytes,
        }
    }
}

/// An export whose header was read.
#[derive(Debug)]
pub(crate) struct ExportReader<R> {
    input: Counted<R>,
    header: ExportHeader,
}

/// Knows where it is.
#[derive(Debug)]
struct Counted<R> {
    input: R,
    at: u64,
}

impl<R: Read> Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> Result<(), FormatError> {
        let mut rest = into;
        while !rest.is_empty() {
            match self.input.read(rest) {
                Ok(0) => return Err(FormatError::Cut { at: self.at }),
                Ok(count) => {
                    self.at += count as u64;
                    rest = &mut rest[count..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(FormatError::Read { at: self.at, source }),
            }
        }
        Ok(())
    }

    fn header(&mut self) -> Result<(ExportHeader, Kind), FormatError> {
        let mut bytes = [0; HEADER_BYTES];
        // What is shorter, or of another version, is told to be that and not to be cut.
        self.read(&mut bytes[..BEGIN_BYTES])?;
        ExportHeader::check_begin(&bytes)?;
        self.read(&mut bytes[BEGIN_BYTES..])?;
        ExportHeader::parse(&bytes)
    }

    fn record(&mut self) -> Result<Record, FormatError> {
        let (at, mut bytes) = (self.at, [0; RECORD_BYTES]);
        self.read(&mut bytes)?;
        Record::parse(&bytes).ok_or(FormatError::Record { at })
    }

    fn check_end(&mut self) -> Result<(), FormatError> {
        match self.input.read(&mut [0]) {
            Ok(0) => Ok(()),
            Ok(_) => Err(FormatError::Trailing { at: self.at }),
            Err(source) => Err(FormatError::Read { at: self.at, source }),
        }
    }

    /// Digests that follow, and the end. `first`: the record before them; `digests_at`: where it is.
    fn digests(
        &mut self,
        header: &ExportHeader,
        (mut record, digests_at): (Record, u64),
        mut each: impl FnMut(u64, &[u8]) -> Result<(), FormatError>,
    ) -> Result<Digest, FormatError> {
        let (mut known, chunks, mut at) = (0, header.chunks(), digests_at);
        loop {
            let wrong = FormatError::Record { at };
            match record {
                Record::Digests { first, len_bytes, digest } => {
                    let count = u64::from(len_bytes) / DIGEST_BYTES as u64;
                    let fits = first == known
                        && len_bytes as usize % DIGEST_BYTES == 0
                        && (1..=chunks - known).contains(&count);
                    if !fits || len_bytes > DIGESTS_BYTES_MAX {
                        return Err(wrong);
                    }
                    let mut bytes = vec![0; len_bytes as usize];
                    self.read(&mut bytes)?;
                    if digest_of(&bytes) != digest {
                        return Err(wrong);
                    }
                    for digest in bytes.chunks_exact(DIGEST_BYTES) {
                        each(known, digest)?;
                        known += 1;
                    }
                }
                Record::End { digests_at: told, id } if known == chunks && told == digests_at => return Ok(id),
                _ => return Err(wrong),
            }
            at = self.at;
            record = self.record()?;
        }
    }
}

impl<R: Read> Counted<R> {
    /// What the digests at the end say, which are those of the chunks that are known, and nothing follows. `first`: the record that begins them, and where it is.
    fn table(
        &mut self,
        header: ExportHeader,
        first: (Record, u64),
        known: &[Option<Digest>],
    ) -> Result<Contents, FormatError> {
        let mut digests = Vec::with_capacity(known.len());
        let id = self.digests(&header, first, |chunk, digest| {
            let (digest, offset) = (digest.try_into().unwrap_or_default(), chunk * u64::from(header.chunk_bytes));
            if known[chunk as usize].is_some_and(|known| known != digest) {
                return Err(FormatError::Missing { offset });
            }
            digests.push(digest);
            Ok(())
        })?;
        if id != header.id(&digests) {
            return Err(FormatError::Id);
        }
        self.check_end()?;
        Ok(Contents { header, id, digests })
    }
}

impl<R: Read> ExportReader<R> {
    pub(crate) fn open(input: R) -> Result<Self, FormatError> {
        let mut input = Counted { input, at: 0 };
        match input.header()? {
            (header, Kind::Export) => Ok(Self { input, header }),
            (_, Kind::Digests) => Err(FormatError::DigestsOnly),
        }
    }

    pub(crate) fn header(&self) -> &ExportHeader {
        &self.header
    }

    /// Reads it to its end, and gives each piece of the pool to `take` when it is known to be sound: the pool is what the export has
    /// only when this returns without an error. `before`: what the pool holds by the export that was read before.
    pub(crate) fn read_all(
        self,
        before: Option<Contents>,
        take: impl FnMut(Piece) -> anyhow::Result<()>,
    ) -> anyhow::Result<Contents> {
        let known = begin(&self.header, before)?;
        self.read(known, take)
    }

    /// The same. `known`: of each chunk what the pool holds before, where that is known.
    fn read(
        mut self,
        mut known: Vec<Option<Digest>>,
        mut take: impl FnMut(Piece) -> anyhow::Result<()>,
    ) -> anyhow::Result<Contents> {
        let header = self.header.clone();
        let mut next = 0;
        loop {
            let at = self.input.at;
            let (record, wrong) = (self.input.record()?, FormatError::Record { at });
            match record {
                Record::Data { offset, len_bytes, digest } => {
                    if !fits(&header, next, offset) || u64::from(len_bytes) != header.chunk_len(offset) {
                        return Err(wrong.into());
                    }
                    let mut bytes = vec![0; len_bytes as usize];
                    self.input.read(&mut bytes)?;
                    if digest_of(&bytes) != digest {
                        return Err(FormatError::Chunk { offset }.into());
                    }
                    known[index(&header, offset)] = Some(digest);
                    next = offset + u64::from(len_bytes);
                    take(Piece::Data { offset, bytes })?;
                }
                Record::Zeroes { offset, len_bytes } => {
                    let end = offset.checked_add(len_bytes).filter(|end| *end <= header.size_bytes && len_bytes > 0);
                    let end = end.filter(|end| fits(&header, next, offset) && is_edge(&header, *end));
                    next = end.ok_or(wrong)?;
                    set_zero(&header, &mut known, offset, next);
                    take(Piece::Zeroes { offset, len_bytes })?;
                }
                record => {
                    return Ok(self.input.table(header, (record, at), &known)?);
                }
            }
        }
    }
}

/// What an export, or the file of its digests, says that its pool held. All of it is read and checked: what is based on an export that is damaged is of no use.
pub(crate) fn digests_of_export(input: impl Read) -> anyhow::Result<Contents> {
    let mut input = Counted { input, at: 0 };
    let (header, kind) = input.header()?;
    let unknown = vec_of(&header, None)?;
    match kind {
        Kind::Export => ExportReader { input, header }.read(unknown, |_| Ok(())),
        Kind::Digests => {
            let at = input.at;
            let first = input.record()?;
            Ok(input.table(header, (first, at), &unknown)?)
        }
    }
}

/// A place for each chunk.
fn vec_of(header: &ExportHeader, each: Option<Digest>) -> Result<Vec<Option<Digest>>, FormatError> {
    let (mut places, chunks) = (Vec::new(), usize::try_from(header.chunks()).unwrap_or(usize::MAX));
    let memory = |_| FormatError::Memory { size_bytes: header.size_bytes };
    places.try_reserve_exact(chunks).map_err(memory)?;
    places.resize(chunks, each);
    Ok(places)
}

/// What the pool holds before an export is read.
fn begin(header: &ExportHeader, before: Option<Contents>) -> Result<Vec<Option<Digest>>, FormatError> {
    match (header.base, before) {
        (None, None) => {
            let mut known = vec_of(header, None)?;
            set_zero(header, &mut known, 0, header.size_bytes);
            Ok(known)
        }
        (Some(base), None) => Err(FormatError::NoBase { base: hex(&base) }),
        (None, Some(_)) => Err(FormatError::NoIncrement),
        (Some(base), Some(before)) => {
            before.header.check_same_pool(header)?;
            if base != before.id {
                return Err(FormatError::WrongBase { base: hex(&base), found: hex(&before.id) });
            }
            Ok(before.digests.into_iter().map(Some).collect())
        }
    }
}

/// Whether a chunk that begins at `offset` may come next.
fn fits(header: &ExportHeader, next: u64, offset: u64) -> bool {
    (next..header.size_bytes).contains(&offset) && offset % u64::from(header.chunk_bytes) == 0
}

/// Whether a chunk ends there.
fn is_edge(header: &ExportHeader, end: u64) -> bool {
    end == header.size_bytes || end % u64::from(header.chunk_bytes) == 0
}

fn index(header: &ExportHeader, offset: u64) -> usize {
    (offset / u64::from(header.chunk_bytes)) as usize
}

fn set_zero(header: &ExportHeader, known: &mut [Option<Digest>], begin: u64, end: u64) {
    let (first, behind) = (index(header, begin), end.div_ceil(header.chunk_bytes.into()) as usize);
    let zeroes = vec![0; header.chunk_bytes as usize];
    known[first..behind].fill(Some(digest_of(&zeroes)));
    let last_len = header.size_bytes % u64::from(header.chunk_bytes);
    if end == header.size_bytes && last_len > 0 {
        known[behind - 1] = Some(digest_of(&zeroes[..last_len as usize]));
    }
}
