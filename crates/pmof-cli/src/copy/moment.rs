//! Which moment of a pool a download reads, and which of its replicas must agree.

use std::fmt;

use pmof::{ConsistencyPoint, Pool, PoolError, PoolOptions, ReplicaError, causes};
use pmof_console::output::with_mend;

use super::{error::CopyError, replicas_in_use};
use crate::{pool::utc::utc, quiet::Quiet};

/// A pool that is open for reading.
#[derive(Debug)]
pub(super) struct PoolSource {
    pool: Pool,
    kind: SourceKind,
}

#[derive(Debug)]
enum SourceKind {
    /// A consistency point, and who writes the pool if that is why it was chosen.
    Point { writer: Option<String> },
    /// It is closed: all replicas in sync have the same bytes, unless a program opens it meanwhile.
    Closed(Quiet),
    /// A program has it open for writing. Replicas differ in what is not acknowledged yet.
    Written(Quiet),
    /// No member says whether a program writes it, and why. By number of replicas it is read all the same.
    Unknown { why: String, replica: usize },
    /// Its writer died. Replicas may differ in what was not acknowledged, so that one of them is read.
    NotClosed { quiet: Quiet, replica: usize },
}

/// The moment of a pool that a copy has.
#[derive(Debug)]
pub(super) enum Moment {
    /// As its writer closed it.
    Closed,
    /// As one replica has it after its writer died.
    NotClosed,
    /// At a consistency point. `writer` has the pool open for writing, where the point was chosen because of that.
    Point { point: ConsistencyPoint, writer: Option<String> },
    /// None: why it may have been written while it was read.
    Written(String),
}

impl Moment {
    /// As in JSON.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::NotClosed => "not_closed",
            Self::Point { .. } => "point",
            Self::Written(_) => "written",
        }
    }

    pub(super) fn point(&self) -> Option<&ConsistencyPoint> {
        if let Self::Point { point, .. } = self { Some(point) } else { None }
    }

    /// What standard error says of it.
    pub(super) fn warning(&self) -> Option<String> {
        match self {
            Self::Written(why) => Some(format!(
                "warning: {why}: the copy is no moment of the pool, and may be of no use; `pmof pool export` has one when the pool is closed, and both have one when an asynchronous member keeps \
                 points (`pmof pool add --async --keep-points N`)"
            )),
            Self::Point { point, writer: Some(writer) } => {
                Some(format!("{writer} has the pool open for writing: it is copied as it was at {}", named(point)))
            }
            _ => None,
        }
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => Ok(()),
            Self::NotClosed => f.write_str(", as one replica has it: its writer died and did not close it"),
            Self::Point { point, .. } => write!(f, ", as it was at {}", named(point)),
            Self::Written(_) => f.write_str(" while it was written"),
        }
    }
}

fn named(point: &ConsistencyPoint) -> String {
    let name = if point.name.is_empty() { String::new() } else { format!(", {:?}", point.name) };
    format!("consistency point {}{name}, of {}", point.number, utc(point.unix_ms / 1000))
}

/// Whether a read failed since the point is not kept any more.
fn is_of_lost_point(error: &anyhow::Error) -> bool {
    let why = error.downcast_ref::<PoolError>().and_then(PoolError::replica_error);
    matches!(why, Some(ReplicaError::NoSuchPoint { .. }))
}

impl PoolSource {
    /// Opens a point that is named.
    pub(super) fn at_point(options: &PoolOptions, point: &str) -> anyhow::Result<Self> {
        let pool = options.open_at_point(point).map_err(with_mend)?;
        Ok(Self { pool, kind: SourceKind::Point { writer: None } })
    }

    /// Opens the pool; with `may_be_point` at the newest point that is kept, if a program writes the pool.
    pub(super) fn open(options: &PoolOptions, may_be_point: bool) -> anyhow::Result<Self> {
        let quiet = match Quiet::begin(options) {
            Ok(quiet) => quiet,
            Err(error) => {
                // Where no member answers, an opening says why.
                let pool = options.open_read_only().map_err(with_mend)?;
                if may_be_point {
                    return Err(with_mend(error));
                }
                let replica = replicas_in_use(&pool).first().copied().unwrap_or(0);
                return Ok(Self { pool, kind: SourceKind::Unknown { why: causes(&error).to_string(), replica } });
            }
        };
        if let Some(writer) = quiet.writer().filter(|_| may_be_point) {
            // Where there is no point, or none that can be read, the pool is read as it is.
            if let Ok(pool) = options.open_at_newest_point() {
                return Ok(Self { pool, kind: SourceKind::Point { writer: Some(writer.to_owned()) } });
            }
        }
        let pool = options.open_read_only().map_err(with_mend)?;
        let kind = match (quiet.writer(), replicas_in_use(&pool).first()) {
            (Some(_), _) => SourceKind::Written(quiet),
            (None, _) if pool.was_closed() => SourceKind::Closed(quiet),
            // It was opened in between, or its writer died: the end tells.
            (None, first) => SourceKind::NotClosed { quiet, replica: first.copied().unwrap_or(0) },
        };
        Ok(Self { pool, kind })
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(super) fn is_at_point(&self) -> bool {
        matches!(self.kind, SourceKind::Point { .. })
    }

    /// Whether a read of an automatically chosen point failed because its writer keeps that point no more.
    pub(super) fn has_lost_its_point(&self, error: &anyhow::Error) -> bool {
        matches!(self.kind, SourceKind::Point { writer: Some(_) }) && is_of_lost_point(error)
    }

    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> anyhow::Result<()> {
        match self.kind {
            SourceKind::NotClosed { replica, .. } | SourceKind::Unknown { replica, .. } => {
                self.pool.read_replica(replica, offset, into)
            }
            _ => self.pool.read(offset, into),
        }
        .map_err(with_mend)
    }

    /// The replicas that must have what was read: all in sync of a pool that is closed and has several.
    pub(super) fn to_compare(&self) -> Vec<usize> {
        let all = if matches!(self.kind, SourceKind::Closed(_)) { replicas_in_use(&self.pool) } else { Vec::new() };
        // A single one was read for the copy itself.
        if all.len() > 1 { all } else { Vec::new() }
    }

    /// Fails with the difference that was found, unless a program opened the pool for writing meanwhile: then it is none.
    pub(super) fn check_difference(&self, difference: CopyError) -> anyhow::Result<()> {
        let SourceKind::Closed(quiet) = &self.kind else { return Ok(()) };
        match quiet.end() {
            Ok(Ok(())) => Err(difference.into()),
            Ok(Err(_)) => Ok(()),
            Err(source) => Err(CopyError::Unsure { source: Box::new(source) }.into()),
        }
    }

    /// Looks once more whether a program writes the pool.
    pub(super) fn moment(&self) -> Moment {
        let not_known = |why: &dyn fmt::Display| {
            Moment::Written(format!("whether the pool was written meanwhile is not known: {why}"))
        };
        let (quiet, unwritten) = match &self.kind {
            SourceKind::Unknown { why, .. } => return not_known(why),
            SourceKind::Point { writer } => {
                return Moment::Point { point: self.pool.point().cloned().unwrap_or_default(), writer: writer.clone() };
            }
            SourceKind::Closed(quiet) | SourceKind::Written(quiet) => (quiet, Moment::Closed),
            SourceKind::NotClosed { quiet, .. } => (quiet, Moment::NotClosed),
        };
        match quiet.end() {
            Ok(Ok(())) => unwritten,
            Ok(Err(written)) => Moment::Written(written.to_string()),
            Err(unknown) => not_known(&causes(&unknown)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pmof::{PoolUrl, ReplicaPlace};

    use super::*;

    /// A full disk, a replica that is lost and the like are no better the second time.
    #[test]
    fn only_a_lost_point_has_the_copy_repeated() {
        let url: PoolUrl = "tcp://127.0.0.1:1/orders".parse().unwrap();
        let of = |source| {
            let replica = Arc::new(ReplicaPlace::Pool(url.clone()));
            with_mend(PoolError::Replica { replica, source: Arc::new(source) })
        };
        assert!(is_of_lost_point(&of(ReplicaError::NoSuchPoint { point: "one".to_owned() })));
        for other in
            [of(ReplicaError::TimedOut { timeout_ms: 1 }), of(ReplicaError::PointsDamaged), anyhow::anyhow!("no")]
        {
            assert!(!is_of_lost_point(&other), "{other}");
        }
    }
}
