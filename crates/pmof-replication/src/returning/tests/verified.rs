//! What caught up by the map is compared.

use super::*;

/// The steps of a comparison behind a catch-up, and whether the member differed.
fn verified(pool: &Rc<Pool>, rotten: &[(usize, usize)]) -> (bool, Vec<String>) {
    let member = bring_back(pool).unwrap().member;
    pool.steps();
    *pool.rotten.borrow_mut() = rotten.to_vec();
    let differs = done(verify(&Bringing(Rc::clone(pool)), &member));
    (differs, pool.steps())
}

#[test]
fn what_caught_up_by_the_map_is_compared() {
    let pool = Rc::new(pool());
    assert_eq!(verified(&pool, &[]), (false, vec!["compare".into(), "64 pages verified".into()]));
    assert!(pool.state_of(POSITION).is_in_sync());
}

#[test]
fn a_member_that_differs_is_compared_as_a_whole() {
    let pool = Rc::new(pool());
    let (differs, steps) = verified(&pool, &[(POSITION, 5)]);
    // Three looks without a hold, and one with it; then an epoch leaves it behind.
    let first = ["compare", "compare", "compare", "hold", "compare", "differs in 20480..24576"];
    assert_eq!(steps[..6], first);
    assert_eq!(steps[6..], ["interrupted, slow: false", "all 11: Begin", "all 11: Confirm"]);
    assert!(differs && !pool.trust.borrow().of_durable().in_sync);
}

#[test]
fn a_source_that_has_rotted_is_repaired() {
    let pool = Rc::new(pool());
    let (differs, steps) = verified(&pool, &[(0, 5)]);
    assert_eq!(steps[3..], ["hold", "compare", "1 repaired in 20480..24576", "64 pages verified"]);
    assert!(!differs && pool.state_of(POSITION).is_in_sync() && pool.rotten.borrow().is_empty());
}

#[test]
fn a_comparison_that_was_interrupted_goes_on_unless_the_replica_was_put_back() {
    for (is_put_back, missing) in [(false, 49), (true, 64)] {
        let pool = Rc::new(pool());
        // It is not known what it lacks.
        pool.trust.borrow_mut().note_difference();
        let mut behind = pool.epochs.borrow().view.line()[0];
        behind.members = 0b011;
        let state = left_at_first().begun(2, behind, 2, &[Epoch { id: FIRST, members: 0b111 }]);
        let mut state = state.confirmed(2, OWN).unwrap();
        // The mark that it confirmed while it caught up.
        done(epochs::raise_mark(&Locked(&pool)));
        state.mark = u64::from(!is_put_back);
        *pool.opened.borrow_mut() = [Ok(opened(left_at_first())), Ok(opened(state))].into();
        // By the third window the first one is flushed, and the second one is not.
        *pool.lost.borrow_mut() = vec!["not this compare", "not this compare", "compare"];
        bring_back(&pool).unwrap();
        let steps = pool.steps();
        let admitted: Vec<_> = steps.iter().filter(|step| step.starts_with("admit")).collect();
        assert_eq!(*admitted[0], "admit, pages missing: Some(64)");
        assert_eq!(*admitted[1], format!("admit, pages missing: Some({missing})"), "{steps:?}");
    }
}
