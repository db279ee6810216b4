//! `pmof pool add --async`, what `pmof pool status` says of such a member, and `pmof pool promote`.

use pmof::{Durability, Pool, PoolOptions};

use crate::support::{Target, pmof};

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
    assert_eq!(said, format!("added {far}\nthe pool has 1 members, 1 of them in sync\n"));
    let report = pmof(["pool", "status", "--json", &here]).json();
    assert_eq!((&report["made"], &report["quorum"]), (&1.into(), &1.into()), "{report}");
    let member = &report["members"][1];
    assert_eq!((&member["state"], &member["url"]), (&"async".into(), &far.as_str().into()), "{report}");
    assert_eq!(member["point"]["opening"], member["heard"]["opening"], "{report}");
    pmof(["pool", "promote", &far]).failed(&["nothing was promoted", &here, "--force"]);
    pmof(["pool", "promote", &here]).failed(&["is no asynchronous member"]);
    three[0].kill();
    let shown = pmof(["pool", "status", &far]);
    assert!(shown.code == Some(1) && shown.errors.contains("cannot be opened for writing"), "{shown:?}");
    assert!(shown.output.contains(" async    ") && shown.output.contains("at consistency point"), "{shown:?}");
    let error = options(&far).open().unwrap_err();
    assert!(format!("{:#}", pmof::causes(&error)).contains("pmof pool promote"), "{error}");
    let said = pmof(["pool", "promote", &far]).done();
    let expected = ["is a pool of its own now", "it is at consistency point", "lost: 0 bytes, written in 0.0 s"];
    assert!(expected.iter().all(|part| said.contains(part)), "{said}");
    let said = pmof(["pool", "status", &far]).done();
    assert!(said.contains("in sync    1 of 1, quorum 1\n"), "{said}");
    pmof(["pool", "add", &far, &spare]).done();
    let mut bytes = [0; 6];
    options(&spare).open().unwrap().read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"orders");
}
