//! What an export reads: one moment of a pool, whoever writes the pool meanwhile.

use pmof::{Pool, PoolOptions};
use pmof_console::output::with_mend;

use super::format::Moment;
use crate::quiet::Quiet;

/// A pool at one moment.
#[derive(Debug)]
pub(crate) struct Source {
    pool: Pool,
    pub(crate) moment: Moment,
    pub(crate) opening: u64,
    /// The one replica that is read, where they may differ.
    replica: Option<usize>,
    /// What the members said before, where nothing but their word says that nobody writes it.
    quiet: Option<Quiet>,
}

/// Why there is no moment of a pool to export.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum SourceError {
    /// It is being written, and nobody keeps a point of it.
    #[error(
        "{writer} has the pool open for writing, so that only a consistency point that an asynchronous member keeps can be exported, and there is none: {why}; or \
         export the pool when its writer has closed it"
    )]
    Written { writer: String, why: String },
    /// Somebody opened it meanwhile.
    #[error(
        "the pool was opened for writing while it was exported, so that what was read is no moment of it; nothing of it is left: export it again, at a consistency point \
         (--at-point) if it is written often"
    )]
    Changed,
}

impl Source {
    /// Finds the moment: a point that is named; else what the pool is, if nobody writes it; else the newest point that is kept.
    pub(crate) fn open(options: &PoolOptions, point: Option<&str>) -> anyhow::Result<Self> {
        if let Some(point) = point {
            return Ok(Self::at_point(options.open_at_point(point).map_err(with_mend)?));
        }
        // Before the pool is opened: whom a writer left behind since is not read.
        let quiet = match Quiet::begin(options) {
            Ok(quiet) => quiet,
            // Where no member answers, an opening says why.
            Err(error) => return Err(with_mend(options.open_read_only().err().unwrap_or(error))),
        };
        if let Some(writer) = quiet.writer() {
            let pool = options.open_at_newest_point().map_err(|error| {
                let why = pmof::causes(&error).to_string();
                SourceError::Written { writer: writer.to_owned(), why }
            })?;
            return Ok(Self::at_point(pool));
        }
        let pool = options.open_read_only().map_err(with_mend)?;
        let moment = if pool.was_closed() { Moment::Closed } else { Moment::NotClosed };
        // What a dead writer left may differ between replicas in what was not acknowledged: each is a moment of its own.
        let replica = (moment == Moment::NotClosed)
            .then(|| pool.replicas().iter().position(|(_, why)| why.is_none()).unwrap_or(0));
        Ok(Self { pool, moment, opening: quiet.opening(), replica, quiet: Some(quiet) })
    }

    fn at_point(pool: Pool) -> Self {
        let point = pool.point().cloned().unwrap_or_default();
        let (moment, opening) = (Moment::Point(point.clone()), point.opening);
        Self { pool, moment, opening, replica: None, quiet: None }
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> anyhow::Result<()> {
        let read = match self.replica {
            None => self.pool.read(offset, into),
            Some(index) => self.pool.read_replica(index, offset, into),
        };
        read.map_err(with_mend)
    }

    /// Whether all that was read was of that moment.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let Some(quiet) = &self.quiet else { return Ok(()) };
        quiet.end().map_err(with_mend)?.map_err(|_| SourceError::Changed.into())
    }
}
