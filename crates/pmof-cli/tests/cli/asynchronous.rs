//! `pmof pool add --async`, what `pmof pool status` says of such a member, `pmof pool promote`, and the points that it keeps.

use pmof::{Durability, Pool, PoolOptions};

use crate::support::{Target, command, directory, pmof, wait_until};

fn options(url: &str) -> PoolOptions {
    Pool::options().require(Durability::ProcessCrash).replica(url)
}

#[test]
fn a_member_is_added_shown_and_promoted() {
    let mut three: [Target; 3] = std::array::from_fn(|_| Target::start());
    let [here, far, spare] = std::array::from_fn(|at: usize| three[at].url("orders"));
    let pool = options(&here).create(1 << 20).unwrap();
    pool.persist(0, b"orders").unwrap();
    pool.close().unwrap();
    let said = pmof(["pool", "add", "--async", &here, &far]).done();
    assert_eq!(said, format!("added {far}\nthe pool has 1 member, 1 of them in sync\n"));
    let report = pmof(["pool", "status", "--json", &here]).json();
    assert_eq!((&report["made_count"], &report["quorum"]), (&1.into(), &1.into()), "{report}");
    let member = &report["members"][1];
    assert_eq!((&member["state"], &member["url"]), (&"async".into(), &far.as_str().into()), "{report}");
    assert_eq!(member["point"]["opening"], member["heard"]["opening"], "{report}");
    pmof(["pool", "promote", &far]).failed(&["nothing was promoted", &here, "--force"]);
    pmof(["pool", "promote", &here]).failed(&["is no asynchronous member"]);
    three[0].kill();
    let shown = pmof(["pool", "status", &far]);
    assert!(shown.code == Some(1) && shown.errors.contains("cannot be opened for writing"), "{shown:?}");
    assert!(shown.output.contains(" async    ") && shown.output.contains("at consistency point"), "{shown:?}");
    assert!(shown.errors.contains(&format!("`pmof pool promote {far}`")), "{shown:?}");
    let error = options(&far).open().unwrap_err();
    assert!(format!("{:#}", pmof::causes(&error)).contains("pmof pool promote"), "{error}");
    let promoted = pmof(["pool", "promote", &far]);
    let expected = ["is a pool of its own now", "it is at consistency point", "lost: 0 bytes, written in 0.0 s"];
    assert!(promoted.code == Some(0) && expected.iter().all(|part| promoted.output.contains(part)), "{promoted:?}");
    let untold = format!("pmof: warning: {here} was not told that it is no member any more: ");
    assert!(promoted.errors.starts_with(&untold) && promoted.errors.contains("pmof pool rm"), "{promoted:?}");
    let said = pmof(["pool", "status", &far]).done();
    assert!(said.contains("in sync    1 of 1, quorum 1\n") && said.contains("\nforced "), "{said}");
    let said = pmof(["pool", "clear", &far]).done();
    assert!(said.contains("with member 1, without 0"), "{said}");
    assert!(!pmof(["pool", "status", &far]).done().contains("forced"));
    pmof(["pool", "add", &far, &spare]).done();
    let mut bytes = [0; 6];
    options(&spare).open().unwrap().read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"orders");
}

/// Those that it followed lead to a promoted member, and say what they are.
#[test]
fn former_members_lead_to_the_promoted_one_and_are_another_history_where_they_went_on() {
    let mut two: [Target; 2] = std::array::from_fn(|_| Target::start());
    let [here, far] = std::array::from_fn(|at: usize| two[at].url("orders"));
    options(&here).create(1 << 20).unwrap().close().unwrap();
    pmof(["pool", "add", "--async", &here, &far]).done();
    let said = pmof(["pool", "promote", "--force", &far]).done();
    assert!(said.contains(&format!("{here} is no member any more, and leads here: `pmof pool rm {here}`")), "{said}");
    let said = pmof(["pool", "status", &here]).done();
    let foreign = |url: &str, said: &str| {
        let line = said.lines().find(|line| line.contains(&format!(" foreign  {url} "))).map(str::to_owned);
        line.unwrap_or_else(|| panic!("{said}"))
    };
    assert!(foreign(&here, &said).contains("a pool was made of an asynchronous member without it"), "{said}");
    assert!(said.contains(&format!("in sync  {far}")), "{said}");
    pmof(["pool", "rm", &here]).done();

    let (here, far) = (two[0].url("apart"), two[1].url("apart"));
    options(&here).create(1 << 20).unwrap().close().unwrap();
    pmof(["pool", "add", "--async", &here, &far]).done();
    two[0].kill();
    let report: serde_json::Value = serde_json::from_str(&pmof(["pool", "promote", "--json", &far]).output).unwrap();
    let former = &report["former"][0];
    assert_eq!((&former["url"], &former["told"]), (&here.as_str().into(), &false.into()), "{report}");
    options(&far).open().unwrap().close().unwrap();
    two[1].kill();
    two[0].restart();
    let here = two[0].url("apart");
    // As if nothing had been: it cannot reach the other one.
    options(&here).open().unwrap().close().unwrap();
    two[1].restart();
    let far = two[1].url("apart");
    let shown = pmof(["pool", "status", &here, &far]);
    shown.differs(&["there are two histories of the pool", &here, &far]);
    assert!(foreign(&here, &shown.output).contains(": it is another history of the same pool"), "{shown:?}");
    pmof(["pool", "rm", &here]).failed(&["nothing was removed"]);
    pmof(["pool", "rm", &here, &far]).failed(&["another history", "nothing was removed"]);
    pmof(["pool", "info", &here, &far]).differs(&[&here, "another history", "--min-replicas 1", "pmof pool rm"]);
    let place = tempfile::tempdir().unwrap();
    let copy = place.path().join("copy");
    pmof(["cp", "--min-replicas", "1", &here, copy.to_str().unwrap()]);
    assert!(copy.exists());
    pmof(["pool", "rm", "--force", &here]).done();
}

/// What only the writer knows is shown while it has the pool open.
#[test]
fn the_state_of_a_pool_has_its_writers_word() {
    let mut two: [Target; 2] = std::array::from_fn(|_| Target::start());
    let [here, far] = std::array::from_fn(|at: usize| two[at].url("orders"));
    let pool = options(&here).asynchronous(&far).create(1 << 20).unwrap();
    let shown = |part: &str| {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        loop {
            let said = pmof(["pool", "status", &here]);
            if said.output.contains(part) {
                return said.output;
            }
            assert!(std::time::Instant::now() < until, "{said:?}");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    };
    let said = shown(", follows and lags 0 bytes and 0.0 s: at consistency point");
    assert!(!said.contains("lagged"), "one lag in a line, by the writer's word: {said}");
    // By their numbers, whichever is named first.
    let urls = |first: &str, second: &str| {
        let report = pmof(["pool", "status", "--json", first, second]).json();
        report["members"].as_array().unwrap().iter().map(|member| member["url"].to_string()).collect::<Vec<_>>()
    };
    assert_eq!(urls(&here, &far), urls(&far, &here));
    pool.persist(0, b"more").unwrap();
    let said = shown(" follows asynchronously");
    assert!(said.lines().any(|line| line.starts_with("event      20") && line.contains(&far)), "{said}");
    let report = pmof(["pool", "status", "--json", &here]).json();
    assert_eq!(report["members"][0]["progress"]["standing"], "in_sync", "{report}");
    assert!(report["events"][0]["unix_ms"].as_u64() > Some(1 << 40), "{report}");
    two[1].kill();
    shown(", lost by its writer's word: ");
    pool.close().unwrap();
    let report = pmof(["pool", "status", "--json", &here]).json();
    assert!(report["events"].is_null() && report["members"][0]["progress"].is_null(), "{report}");
}

/// Waits until the asynchronous member follows, and names a point for each of three days, whose name the pool holds then.
fn name_three_days(pool: &Pool) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !matches!(pool.status().unwrap().asynchronous[0].state, pmof::AsynchronousState::Following) {
        assert!(std::time::Instant::now() < until, "{:?}", pool.status());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    for day in ["one", "two", "three"] {
        pool.persist(0, day.as_bytes()).unwrap();
        pool.consistency_point(day).unwrap();
    }
}

#[test]
fn points_are_kept_listed_copied_and_gone_back_to() {
    let three: [Target; 2] = std::array::from_fn(|_| Target::start());
    let [here, far] = std::array::from_fn(|at: usize| three[at].url("orders"));
    options(&here).create(1 << 20).unwrap().close().unwrap();
    let said = pmof(["pool", "add", "--keep-points", "2", &here, &far]);
    assert!(said.code == Some(2) && said.errors.contains("--async"), "{said:?}");
    pmof(["pool", "add", "--async", "--keep-points", "2", &here, &far]).done();
    let pool = options(&here).open().unwrap();
    name_three_days(&pool);
    pmof(["pool", "rollback", &far, "two"]).failed(&["nothing was rolled back", "has the pool open for writing"]);
    pool.close().unwrap();
    drop(pool);
    let report = pmof(["pool", "points", "--json", &here]).json();
    let points = report["members"][0]["points"].as_array().unwrap();
    assert_eq!((points.len(), &points[1]["name"]), (2, &"three".into()), "{report}");
    let said = pmof(["pool", "points", &far]).done();
    assert!(
        said.starts_with(&format!("{far}: 2 kept\n")) && said.contains("UTC") && said.contains("\"three\""),
        "{said}"
    );
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("copy");
    assert_eq!(points[0]["name"], "two", "{report}");
    let name = "two".to_owned();
    pmof(["cp", "--at-point", &name, &here, copy.to_str().unwrap()]).done();
    assert_eq!(std::fs::read(&copy).unwrap()[..name.len()], *name.as_bytes());
    pmof(["cp", "--at-point", "never", &here, copy.to_str().unwrap(), "--force"])
        .failed(&["never", "pmof pool points"]);
    pmof(["pool", "rollback", &far, "never"]).failed(&["nothing was rolled back", "does not keep"]);
    pmof(["pool", "rollback", &here, "three"]).failed(&["is no asynchronous member"]);
    let rolled = pmof(["pool", "rollback", &far, &name]);
    assert!(
        rolled.code == Some(0) && rolled.errors.contains("warning") && rolled.output.contains("put back"),
        "{rolled:?}"
    );
    let said = pmof(["pool", "points", &far]).done();
    assert!(said.starts_with(&format!("{far}: 2 kept\n")) && said.contains("\"three\""), "{said}");
    pmof(["pool", "promote", "--force", &far]).done();
    let mut bytes = vec![0; name.len()];
    options(&far).open().unwrap().read(0, &mut bytes).unwrap();
    assert_eq!(bytes, name.as_bytes());
}

/// What is gone of an asynchronous member is made by nobody but who adds it anew.
#[test]
fn an_asynchronous_member_whose_files_are_gone_is_made_anew_as_is_advised() {
    let two: [Target; 2] = std::array::from_fn(|_| Target::start());
    let [here, far] = std::array::from_fn(|at: usize| two[at].url("orders"));
    options(&here).create(1 << 20).unwrap().close().unwrap();
    pmof(["pool", "add", "--async", &here, &far]).done();
    for gone in [&["orders.changes"][..], &["orders", "orders.changes"], &["orders"]] {
        for file in gone {
            std::fs::remove_file(two[1].file(file)).unwrap();
        }
        let said = pmof(["pool", "add", "--async", &here, &far]);
        said.failed(&["is an asynchronous member already, and of no use", "to make it anew there: "]);
        for command in said.errors.split('`').skip(1).step_by(2) {
            pmof(command.strip_prefix("pmof ").unwrap().split(' ')).done();
        }
        let report = pmof(["pool", "status", "--json", &here]).json();
        assert!(report["members"][1]["point"].is_object(), "{report}");
    }
}

/// As many points as are asked for, of a pool that has fewer bytes than they take.
#[test]
fn a_small_pool_keeps_its_points() {
    let two: [Target; 2] = std::array::from_fn(|_| Target::start());
    let [here, far] = std::array::from_fn(|at: usize| two[at].url("orders"));
    options(&here).create(20).unwrap().close().unwrap();
    pmof(["pool", "add", "--async", "--keep-points", "2", &here, &far]).done();
    let pool = options(&here).open().unwrap();
    name_three_days(&pool);
    pool.persist(0, b"behind").unwrap();
    pool.close().unwrap();
    let said = pmof(["pool", "points", &here]).done();
    assert!(said.contains(": 2 kept\n") && said.contains("\"two\"") && said.contains("\"three\""), "{said}");
}

/// The area beside the data is what stands in the way.
#[test]
fn what_has_the_name_of_a_staging_area_is_named() {
    let [here, far] = std::array::from_fn(|_| Target::start());
    let (url, area) = (here.url("p1"), far.url("p1.changes"));
    options(&url).create(1 << 20).unwrap().close().unwrap();
    options(&area).create(1 << 20).unwrap().close().unwrap();
    let said = pmof(["pool", "add", "--async", &url, &far.url("p1")]);
    said.failed(&["no member was added", &format!("`pmof pool rm {area}` removes it")]);
    assert_eq!(far.files(), ["p1.changes"]);
}

/// The data lies at a consistency point between two openings, which is nothing that its writer's death left.
#[test]
fn a_member_whose_writer_closed_in_order_follows() {
    let two: [Target; 2] = std::array::from_fn(|_| Target::start());
    let [here, far] = std::array::from_fn(|at: usize| two[at].url("orders"));
    options(&here).create(1 << 20).unwrap().close().unwrap();
    pmof(["pool", "add", "--async", &here, &far]).done();
    let health = || {
        let report = pmof(["pool", "ls", "-l", "--json", &two[1].address]).json();
        ["orders", "orders.changes"].map(|name| {
            let pools = report["pools"].as_array().unwrap();
            let pool = pools.iter().find(|pool| pool["name"] == name).unwrap_or_else(|| panic!("{report}"));
            pool["health"].as_str().unwrap().to_owned()
        })
    };
    assert_eq!(health(), ["follows", "closed"]);
    let place = directory();
    let mut write = command(["soak", "write", "--durability", "process-crash", "--seed", "1", "--pool", &here]);
    let mut writer = write.arg("--ledger").arg(place.path().join("ledger")).spawn().unwrap();
    // A writer that dies before it has sent anything leaves both as they were.
    let is_followed =
        || pmof(["pool", "status", "--json", &here]).json().to_string().contains(r#""standing":"following""#);
    wait_until("it is written", || health() == ["open", "open"] && is_followed());
    writer.kill().unwrap();
    writer.wait().unwrap();
    wait_until("it has no writer", || !health().contains(&"open".to_owned()));
    assert_eq!(health(), ["not_closed", "not_closed"]);
}
