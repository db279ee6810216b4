//! What members hold.

use super::*;
use crate::comparing::Contents;

/// What the members hold: the last one nothing of what the others do, until it is copied to.
pub(super) struct Holdings {
    pub(super) pool: Rc<Pool>,
    pub(super) members: Vec<Member>,
}

impl Holdings {
    fn position(&self, of: &Member) -> usize {
        self.members.iter().position(|member| Rc::ptr_eq(member, of)).unwrap()
    }
}

impl Contents for Holdings {
    type Member = Member;
    type Digest = Vec<bool>;
    type Failure = ();
    type Rules = comparing::ShippedRules;

    fn rules(&self) -> &comparing::ShippedRules {
        &comparing::ShippedRules
    }

    fn members(&self) -> &[Member] {
        &self.members
    }

    fn state(&self, member: &Member) -> MemberState {
        member.get()
    }

    fn is_same(&self, one: &Member, other: &Member) -> bool {
        Rc::ptr_eq(one, other)
    }

    async fn digests(
        &self,
        of: &[Member],
        range: &Range<u64>,
        block_bytes: u64,
    ) -> Result<comparing::Compared<Vec<bool>>, ()> {
        let returning = &self.members[POSITION];
        if block_bytes > PAGE_BYTES {
            self.pool.outcome("compare", returning).map_err(drop)?;
        }
        let is_unlike = |member: &Member, page: u64| {
            let is_rotten = self.pool.rotten.borrow().contains(&(self.position(member), page as usize));
            is_rotten || (Rc::ptr_eq(member, returning) && !member.get().is_in_sync())
        };
        let block = |member: &Member, start: u64| {
            let pages = start / PAGE_BYTES..range.end.min(start + block_bytes).div_ceil(PAGE_BYTES);
            pages.map(|page| is_unlike(member, page)).collect()
        };
        let blocks = || range.clone().step_by(block_bytes as usize);
        let digests = of.iter().map(|member| Some(blocks().map(|start| block(member, start)).collect()));
        Ok(comparing::Compared::new(range.clone(), block_bytes, digests.collect()))
    }

    async fn copy(&self, _: &Member, _: &[Range<u64>], to: &Member) -> bool {
        self.pool.outcome("copy", to).is_ok()
    }

    async fn repair(&self, _: &Member, range: &Range<u64>, to: &[Member]) -> Result<bool, ()> {
        let is_repaired = |position, page| {
            let is_to = to.iter().any(|member| self.position(member) == position);
            is_to && range.contains(&(page as u64 * PAGE_BYTES))
        };
        self.pool.rotten.borrow_mut().retain(|(position, page)| !is_repaired(*position, *page));
        Ok(true)
    }

    async fn data_ranges(&self, _: &Member) -> Option<Vec<Range<u64>>> {
        Some(std::iter::once(0..SIZE_BYTES).collect())
    }

    async fn flush(&self, _: &Member) -> Result<(), ()> {
        Ok(())
    }
}
