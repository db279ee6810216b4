//! Rosters, with the addresses of this crate.

use pmof_access::LocalEnd;
use pmof_control::{PoolName, Role, Roster, RosterMember};
use pmof_replication::place;

pub(crate) use pmof_replication::place::{Place, made, noted};

use crate::{PoolUrl, TargetUrl};

#[cfg(test)]
mod tests;

/// A member that was found.
pub(crate) type FoundMember = place::FoundMember<PoolUrl>;

impl Place for PoolUrl {
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn pool_name(&self) -> &PoolName {
        &self.name
    }

    fn may_be_followed(&self) -> bool {
        matches!(self.target, TargetUrl::Address(_))
    }

    fn is_local(&self) -> bool {
        match &self.target {
            TargetUrl::Address(address) => address.transport.descriptor().local_end == LocalEnd::Path,
            TargetUrl::Ssh(_) => false,
            TargetUrl::Directory(_) => true,
        }
    }

    fn starts_target(&self) -> bool {
        matches!(self.target, TargetUrl::Ssh(_))
    }
}

/// The member that is meant by its address or its number.
pub(crate) fn named<'r>(roster: &'r Roster, text: &str) -> Option<&'r RosterMember> {
    let (url, index) = (text.parse::<PoolUrl>().ok(), text.parse::<u16>().ok());
    let is_url = |member: &RosterMember| url.is_some() && member.url.parse::<PoolUrl>().ok() == url;
    // A spare that became a member may be both, for a moment.
    let (spares, others): (Vec<_>, Vec<_>) = roster.members.iter().partition(|member| member.role == Role::Spare);
    others.into_iter().chain(spares).find(|member| is_url(member) || Some(member.index) == index)
}
