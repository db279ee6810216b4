//! One budget for the memory that many connections hold for their peers: what was asked for and is not taken yet.
//!
//! Each connection has an account. Opening it reserves bytes, out of which the connection always gets on, however short
//! the budget is. Of what is not reserved, half may be borrowed and the other half is for connections still to come. A
//! connection may borrow as much as it leaves free for others to borrow: the same threshold for all at any time, so that of `n`
//! that want all there is each gets an `n + 1`th, and the one that holds most waits first (dynamic thresholds; Choudhury and
//! Hahne, "Dynamic queue length thresholds for shared-memory packet switches", IEEE/ACM Transactions on Networking 6(2), 1998).
//! A connection that has to wait does so until its own answers have gone, so nobody has to be woken when others give back.

use std::sync::Arc;

use pmof_locks::{Mutex, MutexGuard};

/// Bytes of answers that every connection may hold, whatever the others hold: one of the longest that is copied, with all
/// that belongs to it. They are part of the reserve of its account.
pub const GUARANTEED_BYTES: u64 = 8 << 10;

/// What may be held for all connections together, in bytes.
#[derive(Debug)]
pub struct MemoryBudget {
    limit_bytes: u64,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    reserved_bytes: u64,
    borrowed_bytes: u64,
}

/// How much of a budget is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// What may be used.
    pub limit_bytes: u64,
    /// Reserved for the connections that there are, whether they use it or not.
    pub reserved_bytes: u64,
    /// Held beyond that.
    pub borrowed_bytes: u64,
}

impl MemoryBudget {
    /// A budget of so many bytes.
    pub fn new(limit_bytes: u64) -> Arc<Self> {
        Arc::new(Self { limit_bytes, state: Mutex::default() })
    }

    /// Opens the account of a connection that needs `reserve_bytes`, its [`GUARANTEED_BYTES`] among them. `None`: the budget has
    /// no room for one more connection.
    pub fn open(self: &Arc<Self>, reserve_bytes: u64) -> Option<MemoryAccount> {
        let mut state = self.lock();
        let used = state.reserved_bytes + state.borrowed_bytes;
        if used.saturating_add(reserve_bytes) > self.limit_bytes {
            return None;
        }
        state.reserved_bytes += reserve_bytes;
        Some(MemoryAccount { budget: Arc::clone(self), reserved_bytes: reserve_bytes, borrowed_bytes: 0 })
    }

    /// What is in use just now.
    pub fn in_use(&self) -> MemoryUse {
        let State { reserved_bytes, borrowed_bytes } = *self.lock();
        MemoryUse { limit_bytes: self.limit_bytes, reserved_bytes, borrowed_bytes }
    }

    /// What may be borrowed by all together.
    fn lendable_bytes(&self, state: &State) -> u64 {
        self.limit_bytes.saturating_sub(state.reserved_bytes) / 2
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// One connection's part of a [`MemoryBudget`]; gives everything back when dropped.
#[derive(Debug)]
pub struct MemoryAccount {
    budget: Arc<MemoryBudget>,
    reserved_bytes: u64,
    /// Held beyond the guarantee.
    borrowed_bytes: u64,
}

impl MemoryAccount {
    /// Asks to hold `held_bytes` in all; they are charged if the answer is yes.
    pub(crate) fn may_hold(&mut self, held_bytes: u64) -> bool {
        let wanted = held_bytes.saturating_sub(GUARANTEED_BYTES);
        let mut state = self.budget.lock();
        let by_others = state.borrowed_bytes - self.borrowed_bytes;
        let free = self.budget.lendable_bytes(&state).saturating_sub(by_others).saturating_sub(wanted);
        if wanted > self.borrowed_bytes && wanted > free {
            return false;
        }
        state.borrowed_bytes = state.borrowed_bytes - self.borrowed_bytes + wanted;
        drop(state);
        self.borrowed_bytes = wanted;
        true
    }

    /// Charges what is held, whatever that leaves.
    pub(crate) fn charge(&mut self, held_bytes: u64) {
        let held = held_bytes.saturating_sub(GUARANTEED_BYTES);
        if held != self.borrowed_bytes {
            let mut state = self.budget.lock();
            state.borrowed_bytes = state.borrowed_bytes - self.borrowed_bytes + held;
            drop(state);
            self.borrowed_bytes = held;
        }
    }

    /// True where so much is lent already that nobody is to keep what it does not use.
    pub(crate) fn is_scarce(&self) -> bool {
        let state = self.budget.lock();
        state.borrowed_bytes > self.budget.lendable_bytes(&state) / 4
    }
}

impl Drop for MemoryAccount {
    fn drop(&mut self) {
        let mut state = self.budget.lock();
        state.borrowed_bytes -= self.borrowed_bytes;
        state.reserved_bytes -= self.reserved_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESERVE: u64 = 2 * GUARANTEED_BYTES;

    #[test]
    fn each_of_n_gets_a_share_and_none_gets_all() {
        for hogs in 1..20_u64 {
            let budget = MemoryBudget::new(1 << 30);
            let mut accounts: Vec<_> = (0..hogs).map(|_| budget.open(RESERVE).unwrap()).collect();
            let mut held = vec![0; hogs as usize];
            let step = 4096;
            loop {
                let mut grew = false;
                for (account, held) in accounts.iter_mut().zip(&mut held) {
                    if account.may_hold(*held + step) {
                        *held += step;
                        grew = true;
                    }
                }
                if !grew {
                    break;
                }
            }
            let shared = ((1 << 30) - hogs * RESERVE) / 2;
            for held in &held {
                let share = shared / (hogs + 1);
                assert!(held.abs_diff(share) <= GUARANTEED_BYTES + 2 * step * hogs, "{hogs}: {held} of {share}");
            }
            // Whoever comes last finds half of what the others have, and there is room for many more.
            let mut late = budget.open(RESERVE).unwrap();
            assert!(late.may_hold(held[0] / 3), "{hogs}");
            let more: Vec<_> = (0..20_000).map(|_| budget.open(RESERVE).unwrap()).collect();
            let in_use = budget.in_use();
            assert!(in_use.reserved_bytes + in_use.borrowed_bytes <= in_use.limit_bytes);
            drop((accounts, late, more));
            let empty = MemoryUse { limit_bytes: 1 << 30, reserved_bytes: 0, borrowed_bytes: 0 };
            assert_eq!(budget.in_use(), empty);
        }
    }

    #[test]
    fn the_guarantee_holds_where_nothing_is_left() {
        let budget = MemoryBudget::new(2 * RESERVE);
        let mut accounts: Vec<_> = (0..2).map(|_| budget.open(RESERVE).unwrap()).collect();
        assert!(budget.open(RESERVE).is_none() && budget.open(u64::MAX).is_none());
        for account in &mut accounts {
            assert!(account.may_hold(GUARANTEED_BYTES) && !account.may_hold(GUARANTEED_BYTES + 1));
        }
        accounts.pop();
        assert!(budget.open(RESERVE).is_some());
    }

    #[test]
    fn what_is_held_already_is_never_taken_away() {
        let budget = MemoryBudget::new(RESERVE + 2000);
        let mut account = budget.open(RESERVE).unwrap();
        account.charge(GUARANTEED_BYTES + 5000);
        // Giving some back is always allowed, although what is left is more than there should be.
        assert!(account.may_hold(GUARANTEED_BYTES + 4000) && !account.may_hold(GUARANTEED_BYTES + 4001));
        assert!(account.is_scarce());
        account.charge(0);
        assert!(!account.is_scarce() && budget.in_use().borrowed_bytes == 0);
    }
}
