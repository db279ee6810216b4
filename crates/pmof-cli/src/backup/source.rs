//! What an export reads: one moment of a pool, whoever writes the pool meanwhile.

use pmof::{Pool, PoolOptions};
use pmof_console::output::with_mend;

use super::format::Moment;
use crate::{quiet::Quiet, unequal::Unequal};

/// A pool at one moment.
#[derive(Debug)]
pub(crate) struct Source {
    pool: Pool,
    pub(crate) moment: Moment,
    pub(crate) opening: u64,
    /// The one replica that is read, where they may differ or are compared.
    replica: Option<usize>,
    /// The replicas that are compared, with the one that is read; empty where none is.
    compared: Vec<usize>,
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
    /// Replicas differed, and a moment later they did not.
    #[error(
        "replicas differed in the {len} bytes at offset {offset} and did not when they were read again; check the memory of this machine and of theirs, and export it again"
    )]
    Unsteady { offset: u64, len: usize },
}

impl Source {
    /// Finds the moment: a point that is named; else what the pool is, if nobody writes it; else the newest point that is kept.
    /// With `is_compared` all replicas in sync of a closed pool are read.
    pub(crate) fn open(options: &PoolOptions, point: Option<&str>, is_compared: bool) -> anyhow::Result<Self> {
        if let Some(point) = point {
            return Ok(Self::at_point(options.open_at_point(point).map_err(with_mend)?));
        }
        // Whom a writer left behind since is not read.
        let quiet = Quiet::before_opening(options)?;
        if let Some(writer) = quiet.writer() {
            let pool = options.open_at_newest_point().map_err(|error| {
                let why = pmof::causes(&error).to_string();
                SourceError::Written { writer: writer.to_owned(), why }
            })?;
            return Ok(Self::at_point(pool));
        }
        let pool = options.open_read_only().map_err(with_mend)?;
        let moment = if pool.was_closed() { Moment::Closed } else { Moment::NotClosed };
        let all = pool.replicas().into_iter().enumerate().filter(|(_, (_, why))| why.is_none());
        let in_use: Vec<_> = all.map(|(index, _)| index).collect();
        let is_compared = is_compared && moment == Moment::Closed && in_use.len() > 1;
        // What a dead writer left may differ between replicas in what was not acknowledged: each is a moment of its own.
        let replica = (is_compared || moment == Moment::NotClosed).then(|| in_use.first().copied().unwrap_or(0));
        let compared = if is_compared { in_use } else { Vec::new() };
        Ok(Self { pool, moment, opening: quiet.opening(), replica, compared, quiet: Some(quiet) })
    }

    fn at_point(pool: Pool) -> Self {
        let point = pool.point().cloned().unwrap_or_default();
        let (moment, opening) = (Moment::Point(point.clone()), point.opening);
        Self { pool, moment, opening, replica: None, compared: Vec::new(), quiet: None }
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Replicas that are read and compared; 0 where none is compared with another.
    pub(crate) fn compared_count(&self) -> usize {
        self.compared.len()
    }

    /// Reads what replicas agree on, where they are compared.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> anyhow::Result<()> {
        match self.replica {
            None => self.pool.read(offset, into).map_err(with_mend)?,
            Some(index) => self.pool.read_replica(index, offset, into).map_err(with_mend)?,
        }
        let mut other = vec![0; if self.compared.is_empty() { 0 } else { into.len() }];
        for index in self.compared.iter().filter(|index| Some(**index) != self.replica) {
            self.pool.read_replica(*index, offset, &mut other).map_err(with_mend)?;
            if other != into {
                return Err(self.unequal(offset, into.len()));
            }
        }
        Ok(())
    }

    fn unequal(&self, offset: u64, len: usize) -> anyhow::Error {
        // Whoever writes it meanwhile makes them differ for a moment.
        if let Err(written) = self.check() {
            return written;
        }
        match Unequal::find(&self.pool, &self.compared, offset, len) {
            Ok(Some(unequal)) => unequal.into(),
            Ok(None) => SourceError::Unsteady { offset, len }.into(),
            Err(error) => error,
        }
    }

    /// Whether all that was read was of that moment.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let Some(quiet) = &self.quiet else { return Ok(()) };
        quiet.end().map_err(with_mend)?.map_err(|_| SourceError::Changed.into())
    }
}
