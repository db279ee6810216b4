//! Short runs.

use std::collections::BTreeSet;

use clap::Parser as _;

use super::{CELL_STEP, DamageArgs, cell::Cell, damage, expected::FaultKind, report::Report};

#[derive(clap::Parser)]
struct Call {
    #[command(flatten)]
    args: DamageArgs,
}

fn run(options: &[&str]) -> Report {
    let call = Call::parse_from([&["damage"], options].concat());
    damage(&call.args, true).expect("a run")
}

#[test]
fn a_short_run_finds_nothing() {
    let report = run(&["--cases", "60", "--seed", "38"]);
    assert_eq!((report.cases(), report.failed()), (60, 0), "{}", report.failures());
}

/// With verification off a run reads what the damage left.
#[test]
fn without_digests_wrong_bytes_are_found() {
    let report = run(&["--cases", "60", "--seed", "5", "--break-verification"]);
    assert!(report.kinds().contains(&FaultKind::WrongBytes), "{}", report.failures());
}

#[test]
fn a_case_is_the_same_when_it_is_repeated() {
    let shown =
        |case: &str| serde_json::to_value(run(&["--case", case, "--seed", "7"])).expect("JSON")["cells"].clone();
    for case in ["3", "71", "208"] {
        assert_eq!(shown(case), shown(case), "{case}");
    }
}

#[test]
fn a_step_through_the_cells_meets_each_once() {
    let cells = Cell::all();
    let count = cells.len() as u64;
    assert_eq!(cells.iter().collect::<BTreeSet<_>>().len(), cells.len());
    assert_eq!((0..count).map(|case| case * CELL_STEP % count).collect::<BTreeSet<_>>().len(), cells.len());
    assert_eq!(count, 4719, "docs/damage.md says how many there are");
}
