//! Lists of replicas and of bytes in the texts of errors.

use std::{error::Error, ops::Range, sync::Arc};

use pmof_mem::causes;

use crate::ReplicaPlace;

pub(super) fn listed<E: Error>(replicas: &[(Arc<ReplicaPlace>, Arc<E>)]) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for (index, (replica, why)) in replicas.iter().enumerate() {
        let separator = if index == 0 { "" } else { ";" };
        // Writing to a string cannot fail.
        let _ = write!(text, "{separator} {replica}: {}", causes(why));
    }
    text
}

/// What failed, of one replica or of several.
pub(super) fn failed<E: Error + 'static>(
    replica: &ReplicaPlace,
    why: &Arc<E>,
    others: &[(Arc<ReplicaPlace>, Arc<E>)],
) -> String {
    match others {
        [] => format!("{replica:#} failed: {}", causes(why)),
        others => format!("{} failed: {replica}: {};{}", 1 + others.len(), causes(why), listed(others)),
    }
}

pub(super) fn domains(replicas: &[(Arc<ReplicaPlace>, Option<String>)]) -> String {
    let domain = |(replica, domain): &(Arc<ReplicaPlace>, Option<String>)| {
        format!("{replica} in {}", domain.as_deref().unwrap_or("an unknown one"))
    };
    replicas.iter().map(domain).collect::<Vec<_>>().join(", ")
}

/// Ranges of bytes, for people: the first few of them.
pub(super) fn ranges_text(ranges: &[Range<u64>]) -> String {
    const SHOWN: usize = 4;
    let shown: Vec<_> = ranges.iter().take(SHOWN).map(|range| format!("{} to {}", range.start, range.end)).collect();
    let more = if ranges.len() > SHOWN { format!(" and {} more ranges", ranges.len() - SHOWN) } else { String::new() };
    format!("bytes {}{more}", shown.join(", "))
}
