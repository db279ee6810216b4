//! Writes an export.

use std::io::{self, Write};

use pmof_pool_set::Digest;

use super::format::{ExportHeader, HEADER_BYTES, Kind, RECORD_BYTES, Record, digest_of};

/// Digests of a record: as many bytes as a chunk.
const DIGESTS_PER_RECORD: usize = 4096;

/// An export that is being written. Without its [end](Self::finish) it is none.
#[derive(Debug)]
pub(crate) struct ExportWriter<W> {
    output: W,
    header: ExportHeader,
    /// What the base has.
    base: Option<Vec<Digest>>,
    digests: Vec<Digest>,
    /// The digest of a whole chunk of zeroes.
    of_zeroes: Digest,
    zeroes: Vec<u8>,
    /// Chunks that became zeroes, and are not written yet.
    cleared: Option<(u64, u64)>,
    written_bytes: u64,
    stored_bytes: u64,
}

/// An export that is whole.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) header: ExportHeader,
    pub(crate) id: Digest,
    pub(crate) digests: Vec<Digest>,
    /// Bytes of the pool that it has.
    pub(crate) stored_bytes: u64,
    /// Bytes of the stream.
    pub(crate) stream_bytes: u64,
}

impl<W: Write> ExportWriter<W> {
    /// Begins an export; `base` are the digests of the one that it is an increment of.
    pub(crate) fn new(mut output: W, header: ExportHeader, base: Option<Vec<Digest>>) -> io::Result<Self> {
        output.write_all(&header.to_bytes(Kind::Export))?;
        let zeroes = vec![0; header.chunk_bytes as usize];
        Ok(Self {
            output,
            header,
            base,
            digests: Vec::new(),
            of_zeroes: digest_of(&zeroes),
            zeroes,
            cleared: None,
            written_bytes: HEADER_BYTES as u64,
            stored_bytes: 0,
        })
    }

    /// The next bytes of the pool: whole chunks, but at its end.
    pub(crate) fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        bytes.chunks(self.header.chunk_bytes as usize).try_for_each(|chunk| self.add_chunk(chunk))
    }

    fn add_chunk(&mut self, chunk: &[u8]) -> io::Result<()> {
        let (index, is_zero) = (self.digests.len(), *chunk == self.zeroes[..chunk.len()]);
        let offset = index as u64 * u64::from(self.header.chunk_bytes);
        let digest = if is_zero && chunk.len() == self.zeroes.len() { self.of_zeroes } else { digest_of(chunk) };
        self.digests.push(digest);
        let is_known = match &self.base {
            // A full export begins with zeroes.
            None => is_zero,
            Some(base) => base.get(index) == Some(&digest),
        };
        match (is_known, is_zero) {
            (true, _) => Ok(()),
            (false, true) => {
                let len_bytes = chunk.len() as u64;
                match &mut self.cleared {
                    Some((begin, cleared)) if *begin + *cleared == offset => *cleared += len_bytes,
                    _ => {
                        self.write_cleared()?;
                        self.cleared = Some((offset, len_bytes));
                    }
                }
                Ok(())
            }
            (false, false) => {
                self.write_cleared()?;
                self.stored_bytes += chunk.len() as u64;
                self.write(Record::Data { offset, len_bytes: chunk.len() as u32, digest }, chunk)
            }
        }
    }

    fn write_cleared(&mut self) -> io::Result<()> {
        match self.cleared.take() {
            Some((offset, len_bytes)) => self.write(Record::Zeroes { offset, len_bytes }, &[]),
            None => Ok(()),
        }
    }

    fn write(&mut self, record: Record, payload: &[u8]) -> io::Result<()> {
        self.written_bytes += (RECORD_BYTES + payload.len()) as u64;
        self.output.write_all(&record.to_bytes())?;
        self.output.write_all(payload)
    }

    /// Ends the export, behind the last byte of the pool.
    pub(crate) fn finish(mut self) -> io::Result<(W, Written)> {
        self.write_cleared()?;
        let (id, digests) = (self.header.id(&self.digests), std::mem::take(&mut self.digests));
        self.write_end(&digests, id)?;
        self.output.flush()?;
        let Self { output, header, stored_bytes, written_bytes, .. } = self;
        Ok((output, Written { header, id, digests, stored_bytes, stream_bytes: written_bytes }))
    }

    fn write_end(&mut self, digests: &[Digest], id: Digest) -> io::Result<()> {
        let digests_at = self.written_bytes;
        for (index, digests) in digests.chunks(DIGESTS_PER_RECORD).enumerate() {
            let (first, payload) = ((index * DIGESTS_PER_RECORD) as u64, digests.as_flattened());
            let record = Record::Digests { first, len_bytes: payload.len() as u32, digest: digest_of(payload) };
            self.write(record, payload)?;
        }
        self.write(Record::End { digests_at, id }, &[])
    }
}

impl Written {
    /// Writes only the digests, which a later increment can be made by.
    pub(crate) fn write_digests<D: Write>(&self, mut output: D) -> io::Result<()> {
        output.write_all(&self.header.to_bytes(Kind::Digests))?;
        let mut writer = ExportWriter {
            output,
            header: self.header.clone(),
            base: None,
            digests: Vec::new(),
            of_zeroes: Digest::default(),
            zeroes: Vec::new(),
            cleared: None,
            written_bytes: HEADER_BYTES as u64,
            stored_bytes: 0,
        };
        writer.write_end(&self.digests, self.id)?;
        writer.output.flush()
    }
}
