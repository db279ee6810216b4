//! Whether anybody wrote a pool while it was read.

use pmof::{PoolError, PoolMembers, PoolOptions};
use pmof_console::output::with_mend;

/// What a pool's members say before it is read. Readers keep no writer away.
#[derive(Debug)]
pub(crate) struct Quiet {
    options: PoolOptions,
    before: PoolMembers,
}

/// Somebody may have written it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotQuiet {
    /// Somebody has it open.
    #[error("{writer} has the pool open for writing")]
    Written { writer: String },
    /// Somebody had.
    #[error("the pool was opened for writing while it was read")]
    WasWritten,
}

impl Quiet {
    /// Asks the members, before the first read.
    pub(crate) fn begin(options: &PoolOptions) -> Result<Self, PoolError> {
        Ok(Self { options: options.clone(), before: options.members()? })
    }

    /// The same before the pool is opened, so that a writer that comes later is noticed at the [end](Self::end). Where no member answers, an opening says why.
    pub(crate) fn before_opening(options: &PoolOptions) -> anyhow::Result<Self> {
        Self::begin(options).map_err(|error| with_mend(options.open_read_only().err().unwrap_or(error)))
    }

    /// Openings for writing so far.
    pub(crate) fn opening(&self) -> u64 {
        self.before.opening
    }

    /// Who had it open for writing before the first read.
    pub(crate) fn writer(&self) -> Option<&str> {
        self.before.writer.as_deref()
    }

    /// Asks the members again, behind the last read. A writer tells them before its first write.
    pub(crate) fn end(&self) -> Result<Result<(), NotQuiet>, PoolError> {
        let now = self.options.members()?;
        if let Some(writer) = self.before.writer.clone().or_else(|| now.writer.clone()) {
            return Ok(Err(NotQuiet::Written { writer }));
        }
        let of = |members: &PoolMembers| (members.pool_uuid, members.opening, members.epoch, members.mark);
        Ok(if of(&self.before) == of(&now) { Ok(()) } else { Err(NotQuiet::WasWritten) })
    }
}
