//! A consistency point, as JSON has it everywhere.

use pmof::ConsistencyPoint;
use serde::Serialize;

#[derive(Clone, Debug, Serialize)]
pub(crate) struct PointReport {
    pub(crate) number: u64,
    /// Empty where it has none.
    pub(crate) name: String,
    /// When its writer made it, by that one's clock.
    pub(crate) unix_ms: u64,
    pub(crate) opening: u64,
    /// Bytes that the writer had written in that opening.
    pub(crate) written_bytes: u64,
}

impl From<&ConsistencyPoint> for PointReport {
    fn from(point: &ConsistencyPoint) -> Self {
        let ConsistencyPoint { number, opening, written_bytes, unix_ms, ref name } = *point;
        Self { number, name: name.clone(), unix_ms, opening, written_bytes }
    }
}
