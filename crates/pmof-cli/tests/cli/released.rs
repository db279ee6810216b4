//! `pmof pool release`.

use pmof::{AsynchronousState, Durability, Pool, PoolOptions};
use serde_json::Value;

use crate::support::{Target, pmof, wait_until};

#[test]
fn a_pool_is_taken_from_its_writer_and_free_for_the_next() {
    let target = Target::start();
    let url = target.url("orders");
    let options = Pool::options().replica(&url).require(Durability::ProcessCrash);
    let writer = options.create(1 << 20).unwrap();
    writer.persist(0, b"kept").unwrap();

    pmof(["pool", "release", &url]).failed(&["cannot release", "is open for writing by", "after 10000 ms"]);
    writer.persist(0, b"more").unwrap();
    let said = pmof(["pool", "release", &url, "--silent-for", "0s"]).done();
    assert!(said.starts_with(&format!("released {url}, which the initiator at 127.0.0.1")), "{said}");
    assert!(writer.persist(0, b"late").unwrap_err().is_fenced());

    let next = options.open().unwrap();
    assert!(!next.was_closed());
    let mut bytes = [0; 4];
    next.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"more");
    next.close().unwrap();
    assert_eq!(pmof(["pool", "release", &url]).done(), format!("nobody has {url} open for writing\n"));
    assert!(options.open().unwrap().was_closed());
}

#[test]
fn what_has_no_name_here_is_released_with_the_replicas() {
    let four: [Target; 4] = std::array::from_fn(|_| Target::start());
    let urls = four.each_ref().map(|target| target.url("orders"));
    let options = || urls[..2].iter().fold(Pool::options().require(Durability::ProcessCrash), PoolOptions::replica);
    let writer = options().create(1 << 20).unwrap();
    writer.add_witness(&urls[2]).unwrap();
    writer.add_asynchronous(&urls[3]).unwrap();
    let is_following = |pool: &Pool| {
        pool.status().unwrap().asynchronous.iter().all(|member| matches!(member.state, AsynchronousState::Following))
    };
    wait_until("it follows", || is_following(&writer));
    let said = pmof(["pool", "release", &urls[0], &urls[1], "--silent-for", "0s", "--json"]).json();
    let released: Vec<_> = said["released"].as_array().unwrap().iter().map(|one| one["url"].clone()).collect();
    for url in &urls[..4] {
        assert!(released.contains(&url.as_str().into()), "{said}");
    }
    options().open().unwrap().close().unwrap();
    // Of a pool that is not to be released as a whole the others stay as they are.
    let writer = options().open().unwrap();
    let said = pmof(["pool", "release", &urls[0], "--silent-for", "0s", "--json"]).json();
    assert_eq!(said["released"].as_array().unwrap().len(), 1, "{said}");
    drop(writer);
}

#[test]
fn all_that_can_be_is_released_and_the_rest_is_reported() {
    let target = Target::start();
    let (url, missing) = (target.url("orders"), target.url("missing"));
    Pool::options().replica(&url).require(Durability::ProcessCrash).create(1 << 20).unwrap().close().unwrap();
    let said = pmof(["pool", "release", "--json", &missing, &url]);
    assert_eq!(said.code, Some(1));
    assert!(said.errors.contains("there is no pool missing"), "{}", said.errors);
    let report: Value = serde_json::from_str(&said.output).unwrap();
    assert_eq!(report["failed"][0], missing);
    assert_eq!(report["released"][0]["url"], url);
    assert_eq!(report["released"][0]["was_open_by"], Value::Null);

    pmof(["pool", "release", &url, &url]).failed(&["is named twice", "nothing was released"]);
    pmof(["pool", "release"]).wrong_use(&["URL"]);
    pmof(["pool", "release", "nonsense"]).wrong_use(&["nonsense"]);
    pmof(["pool", "release", &url, "--silent-for", "soon"]).wrong_use(&["--silent-for", "such as 10s"]);
}
