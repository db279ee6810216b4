//! What becomes of a page that differs between replicas in sync: decided without input or output.

use pmof_pool::Compared;

#[cfg(test)]
mod tests;

/// What is done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The replicas of `wrong` are to hold what `right` and most others do.
    Repair { right: usize, wrong: Vec<usize> },
    /// No content is on more than half of the replicas: nothing says which is right, and all stay as they are.
    Undecided,
}

/// Judges a block of which replicas hold different bytes, and that nobody writes.
pub(crate) fn judge(compared: &Compared, replica_count: usize, block: usize) -> Verdict {
    let is_most = |replica: &usize| 2 * compared.unlike(*replica, block).count() < replica_count;
    match (0..replica_count).find(is_most) {
        Some(right) => Verdict::Repair { right, wrong: compared.unlike(right, block).collect() },
        None => Verdict::Undecided,
    }
}
