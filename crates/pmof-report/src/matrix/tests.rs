use std::collections::HashSet;

use super::*;

fn plan(quick: bool) -> Plan {
    Plan {
        quick,
        transports: ["tcp", "shm", "verbs"].map(str::to_owned).into(),
        address: Some("10.0.0.2".parse().unwrap()),
        source: Some("10.0.0.1".parse().unwrap()),
        only: Vec::new(),
        seconds: extent(true).0,
        rounds: extent(true).1,
        initiator_cpu: None,
        target_cpu: Some(3),
    }
}

#[test]
fn each_cell_and_series_has_a_name_of_its_own() {
    for quick in [true, false] {
        let cells = plan(quick).cells();
        let names: HashSet<_> = cells.iter().map(|cell| cell.place.to_string()).collect();
        assert_eq!(names.len(), cells.len());
        for cell in &cells {
            assert!(chart(&cell.place.chart).unwrap().series(&cell.place.series).is_some(), "{}", cell.place);
        }
    }
    assert!(chart("no such chart").is_none());
}

/// What the issue of the report asks for is in the quick matrix too.
#[test]
fn the_quick_matrix_has_every_mode_medium_and_axis() {
    let cells = plan(true).cells();
    let has =
        |words: &[&str]| cells.iter().any(|cell| words.iter().all(|word| cell.arguments.iter().any(|a| a == word)));
    for mode in ["auto", "apm", "gpspm", "native", "visible"] {
        assert!(has(&["--mode", mode]), "{mode}");
    }
    for words in [["--medium", "file"], ["--rw", "read"], ["--rw", "rw"], ["--target-load", "99"], ["--replicas", "3"]]
    {
        assert!(has(&words), "{words:?}");
    }
    assert!(has(&["bandwidth", "--threads", "8"]) && has(&["bandwidth", "--depth", "64"]));
    assert!(!cells.iter().any(|cell| cell.arguments.contains(&"kept".to_owned())));
    assert!(plan(false).cells().iter().any(|cell| cell.arguments.contains(&"kept".to_owned())));
}

/// Two transports within six minutes, as long as nothing is slower than planned.
#[test]
fn a_quick_report_of_two_transports_is_planned_for_five_minutes() {
    let mut plan = plan(true);
    plan.transports.truncate(2);
    let planned: f64 = plan.cells().iter().map(|cell| cell.estimate_s).sum();
    assert!((60.0..300.0).contains(&planned), "{planned} s");
}

#[test]
fn addresses_go_where_they_belong() {
    let plan = plan(true);
    let of = |transport: &str| plan.trial(transport, "auto").join(" ");
    assert!(of("tcp").contains("--address 10.0.0.2") && !of("tcp").contains("--source"));
    assert!(!of("shm").contains("--address"));
    assert!(of("verbs").contains("--address 10.0.0.2 --source 10.0.0.1"));
    let cell = &plan.cells()[0];
    assert!(cell.arguments.join(" ").ends_with("--target-cpu 3 --rounds 7 --time 0.25"), "{cell:?}");
}

#[test]
fn only_what_is_asked_for_is_measured() {
    let only =
        |parts: &[&str]| Plan { only: parts.iter().map(|part| (*part).to_owned()).collect(), ..plan(true) }.cells();
    assert_eq!(only(&["latency-write/tcp/auto/512", "latency-read/shm/auto/6"]).len(), 3, "64 and 65536");
    assert!(only(&["no such"]).is_empty());
}

#[test]
fn a_plan_names_the_command_that_made_it_and_parts_of_names_that_are_nowhere() {
    let every = MEASURED.map(|transport| transport.scheme().to_owned()).to_vec();
    let plan =
        Plan { transports: every, only: Vec::new(), address: None, source: None, target_cpu: None, ..plan(true) };
    assert_eq!(plan.options(), " --quick");
    let only = vec!["latency-write/tcp/auto/512".to_owned(), "/4096".to_owned()];
    let some = Plan { transports: vec!["tcp".into()], seconds: 0.1, rounds: 2, only, ..plan };
    let options = " --quick --transports tcp --only latency-write/tcp/auto/512 --only /4096 --time 0.1s --rounds 2";
    assert_eq!(some.options(), options);
    some.check().unwrap();
    let only = vec!["/4096".to_owned(), "peers-tmpfs".to_owned()];
    let error = Plan { only, ..some }.check().unwrap_err().to_string();
    assert!(error.contains("peers-tmpfs") && error.contains("--list"), "{error}");
}
