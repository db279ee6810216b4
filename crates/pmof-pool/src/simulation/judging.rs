//! The rules by which copies are judged, counted once more.

use std::ops::Range;

use pmof_replication::comparing::{Compared, Rules, Verdict};

use super::{plan::Control, tasks::Shared};

/// The rules, of which a control breaks one. What they decide is counted once more.
#[derive(Clone)]
pub(super) struct CheckedRules {
    pub(super) world: Shared,
}

impl Rules for CheckedRules {
    fn verdict<D: PartialEq>(&self, compared: &Compared<D>, block: usize) -> Verdict {
        let world = &mut *self.world.borrow_mut();
        let verdict = match compared.verdict(block) {
            Verdict::Repair { right, wrong } if world.control == Some(Control::RottenTaken) => {
                Verdict::Repair { right: wrong[0], wrong: vec![right] }
            }
            verdict => verdict,
        };
        let known: Vec<_> = compared.known().collect();
        let holders =
            |of: usize| known.iter().filter(move |one| compared.digest(**one, block) == compared.digest(of, block));
        let is_most = |of: &usize| 2 * holders(*of).count() > known.len();
        let is_right = match &verdict {
            Verdict::Repair { right, wrong } => is_most(right) && holders(*right).count() + wrong.len() == known.len(),
            Verdict::Undecided => !known.iter().any(is_most),
        };
        if !is_right {
            let holders: Vec<_> = known.iter().map(|of| holders(*of).count()).collect();
            let text = format!("block {block} is held by {holders:?} of {known:?}, and scrubbing decides {verdict:?}");
            world.truth.violate(|| text);
        }
        verdict
    }

    fn copied(&self, lacking: Vec<Range<u64>>) -> Vec<Range<u64>> {
        if self.world.borrow().control == Some(Control::ComparisonSkipped) { Vec::new() } else { lacking }
    }
}
