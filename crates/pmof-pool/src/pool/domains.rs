//! Which failure domains the members of an open pool are in.

use std::sync::Arc;

use crate::{
    domain::numbered,
    member::{Member, Standing},
};

/// Gives each member the number of its failure domain, as all of them have it now. While nobody posts.
pub(super) fn number_domains(members: &[Arc<dyn Member>]) {
    let domains: Vec<_> = members.iter().map(|member| Standing::failure_domain(member.standing())).collect();
    for (member, domain) in members.iter().zip(numbered(&domains)) {
        member.standing().set_domain(domain);
    }
}
