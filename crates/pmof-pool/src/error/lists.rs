//! Lists of replicas in the texts of errors.

use std::{error::Error, sync::Arc};

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
