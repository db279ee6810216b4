//! What a receipt says of the pool: which of the places that were named or found are members, and whether these are all.

use std::sync::Arc;

use super::Open;
use crate::{Receipt, ReplicaPlace, ReplicaReceipt, member::Member};

impl Open {
    /// The receipt of a persist that these replicas have; and whether some place lacks it that is not known to be no member's.
    pub(super) fn receipt_of(&self, replicas: Vec<ReplicaReceipt>) -> (Receipt, bool) {
        let made_count = self.member_count();
        let has_it = |place: &Arc<ReplicaPlace>| replicas.iter().any(|receipt| Arc::ptr_eq(&receipt.replica, place));
        let lacking = || {
            let places = self.members.iter().enumerate().filter(|(_, member)| member.state().is_data_member());
            places.filter(|(_, member)| !has_it(&member.standing().place))
        };
        let lacking: Vec<_> = if replicas.len() < self.places().count() { lacking().collect() } else { Vec::new() };
        let lacks_any = !lacking.is_empty();
        let (mut missing, mut unknown): (Vec<_>, Vec<_>) =
            lacking.into_iter().partition(|(position, member)| self.is_known_member(*position, &***member, made_count));
        // Of those that have not said who they are so many may be members as there are others.
        let others = made_count.saturating_sub(replicas.len() + missing.len()).min(unknown.len());
        missing.extend(unknown.drain(..others));
        missing.sort_unstable_by_key(|(position, _)| *position);
        let surplus: Vec<_> = unknown.iter().map(|(position, _)| *position).collect();
        let not_members = self.not_members(&surplus);
        let place = |member: &dyn Member| Arc::clone(&member.standing().place);
        let missing: Vec<_> = missing.into_iter().map(|(_, member)| place(&**member)).collect();
        let replica_count = replicas.len() + missing.len();
        let forgone_count = self.epochs.as_ref().map_or(0, |epochs| epochs.forgone_count());
        let durability = self.facts.durability;
        let receipt = Receipt { durability, replicas, missing, replica_count, made_count, forgone_count, not_members };
        (receipt, lacks_any)
    }

    fn is_known_member(&self, position: usize, member: &dyn Member, made_count: usize) -> bool {
        // Where there are no more places than members, all are.
        let epochs = self.epochs.as_ref().filter(|_| self.places().count() > made_count);
        epochs.is_none_or(|epochs| epochs.is_of_member(position, member.standing().place.url()))
    }

    /// The replicas that the program named and that are not members.
    fn not_members(&self, surplus: &[usize]) -> Vec<Arc<ReplicaPlace>> {
        let named = self.members.iter().take(self.facts.named_count).enumerate();
        let is_none = |(position, member): &(usize, &Arc<dyn Member>)| {
            let has_said_so = member.standing().failure().is_some_and(|why| why.is_of_no_member());
            has_said_so || surplus.contains(position)
        };
        named.filter(is_none).map(|(_, member)| Arc::clone(&member.standing().place)).collect()
    }
}
