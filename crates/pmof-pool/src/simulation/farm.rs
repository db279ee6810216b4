//! Many runs.

use std::{collections::BTreeMap, env, ops::Range, time::Instant};

use super::{
    Outcome,
    faults::Fault,
    plan::{CONTROLS, Control, Plan},
    run,
};

/// Steps behind the last fault that a report shows.
const FAULTLESS_SHOWN: u64 = 300;

/// The shortest time for which things must go wrong so that the seed still fails, and what happened in it.
fn shrink(seed: u64, control: Option<Control>, chaos_steps: u64) -> Outcome {
    let fails = |limit: &u64| run(seed, control, Some(*limit), false).violation.is_some();
    let shortest = (0..=chaos_steps).find(fails).unwrap_or(chaos_steps);
    run(seed, control, Some(shortest), true)
}

fn report(seed: u64, chaos_steps: u64) -> String {
    let Outcome { violation, chaos_steps, trace, .. } = shrink(seed, None, chaos_steps);
    let violation = violation.unwrap_or_default();
    let is_of_faults = |line: &String| {
        line.split_whitespace().next().and_then(|step| step.parse().ok()) <= Some(chaos_steps + FAULTLESS_SHOWN)
    };
    let trace: Vec<_> = trace.into_iter().take_while(is_of_faults).collect();
    format!("seed {seed}: {violation}\nfaults for {chaos_steps} steps are enough:\n{}", trace.join("\n"))
}

#[test]
fn nothing_is_lost() {
    let mut readers = 0;
    for seed in 0..300 {
        let outcome = run(seed, None, None, false);
        assert!(outcome.violation.is_none(), "{}", report(seed, outcome.chaos_steps));
        readers += outcome.readers;
    }
    assert!(readers > 1000, "{readers}");
}

#[test]
fn one_seed_is_one_run() {
    for seed in 0..100 {
        let [first, second] = [(); 2].map(|()| run(seed, None, None, true));
        assert!(!first.trace.is_empty(), "seed {seed}");
        let apart = first.trace.iter().zip(&second.trace).position(|(one, other)| one != other);
        let shown = |outcome: &Outcome| apart.map(|at| outcome.trace[at.saturating_sub(20)..=at].join("\n"));
        assert!(apart.is_none(), "seed {seed}:\n{:?}\nand\n{:?}", shown(&first), shown(&second));
        assert_eq!((first.acknowledged, first.faults), (second.acknowledged, second.faults), "seed {seed}");
        assert_eq!(first.trace.len(), second.trace.len(), "seed {seed}");
    }
}

#[test]
fn each_broken_rule_is_noticed() {
    let mut unnoticed = Vec::new();
    for control in CONTROLS {
        let outcome = |seed| Some((seed, run(seed, Some(control), None, false).violation?));
        match (0..).filter(|seed| control.may_show(&Plan::of(*seed))).take(1000).find_map(outcome) {
            Some((seed, violation)) => {
                println!("{control:?}: noticed by seed {seed}: {}", violation.lines().next().unwrap_or_default());
            }
            None => unnoticed.push(control),
        }
    }
    assert!(unnoticed.is_empty(), "{unnoticed:?}: not noticed within 1,000 seeds");
}

/// Prints how many seeds notice a broken rule, of the seeds that may show it.
fn count_noticed(control: Control, seeds: Range<u64>) {
    let shown: Vec<_> = seeds.filter(|seed| control.may_show(&Plan::of(*seed))).collect();
    let is_noticed = |seed: &u64| run(*seed, Some(control), None, false).violation.is_some();
    let noticed: Vec<_> = shown.iter().copied().filter(is_noticed).collect();
    println!("{control:?}: noticed by {} of {} seeds, the first {:?}", noticed.len(), shown.len(), noticed.first());
}

/// `cargo xtask simulate`.
#[test]
#[ignore = "a farm of runs, of a length that is asked for"]
fn farm() {
    let number =
        |name: &str, otherwise: u64| env::var(name).map_or(otherwise, |text| text.parse().expect("a number of seeds"));
    let (first, count) = (number("PMOF_FIRST_SEED", 0), number("PMOF_SEEDS", 1000));
    if let Ok(name) = env::var("PMOF_CONTROL") {
        let control = CONTROLS.into_iter().find(|control| format!("{control:?}") == name);
        return count_noticed(control.expect("the name of a control"), first..first + count);
    }
    let began = Instant::now();
    let (mut faults, mut acknowledged, mut readers, mut violations) = (BTreeMap::<Fault, u64>::new(), 0, 0, Vec::new());
    for seed in first..first + count {
        let outcome = run(seed, None, None, false);
        acknowledged += outcome.acknowledged;
        readers += outcome.readers;
        outcome.faults.into_iter().for_each(|(fault, times)| *faults.entry(fault).or_default() += times);
        if let Some(violation) = outcome.violation {
            println!("seed {seed}: {violation}");
            violations.push((seed, outcome.chaos_steps));
        }
    }
    let rate = count as f64 / began.elapsed().as_secs_f64();
    println!(
        "{count} seeds from {first}: {rate:.0} a second, {acknowledged} persists acknowledged, {readers} replicas read"
    );
    for (fault, times) in &faults {
        println!("  {fault:?} {times}");
    }
    let rarest = faults.values().min().copied().unwrap_or(0);
    println!("{} kinds of fault, each {rarest} times or more", faults.len());
    if let Some((seed, chaos_steps)) = violations.first() {
        println!("{}", report(*seed, *chaos_steps));
    }
    assert!(violations.is_empty(), "{} seeds failed", violations.len());
}
