//! Files that have the identity of a pool's member and are none: copies, and another history of the pool.

use std::fs;

use pmof::{Durability, Pool, PoolOptions};

use crate::support::{Said, Target, pmof};

fn options<'u>(urls: impl IntoIterator<Item = &'u String>) -> PoolOptions {
    urls.into_iter().fold(Pool::options().require(Durability::ProcessCrash), PoolOptions::replica)
}

fn made(targets: &[Target], name: &str) -> Vec<String> {
    let urls: Vec<_> = targets.iter().map(|target| target.url(name)).collect();
    let pool = options(&urls).create(1 << 20).unwrap();
    pool.persist(0, b"both").unwrap();
    pool.close().unwrap();
    urls
}

fn rm(urls: &[&str], options: &[&str]) -> Said {
    pmof([&["pool", "rm"][..], urls, options].concat())
}

#[test]
fn a_copy_of_a_member_is_told_from_the_member() {
    let (two, other): ([Target; 2], _) = (std::array::from_fn(|_| Target::start()), Target::start());
    let urls = made(&two, "s");
    fs::copy(two[1].file("s"), other.file("s")).unwrap();
    let copy = other.url("s");
    let told = format!("it is a copy of replica 1, which is at {}", urls[1]);
    for named in [vec![&copy], vec![&urls[0], &copy], vec![&copy, &urls[1]]] {
        let said = pmof(["pool", "status"].into_iter().chain(named.iter().map(|url| url.as_str()))).done();
        assert!(said.contains(&format!("? foreign  {copy}")) && said.contains(&told), "{said}");
        assert!(said.contains(&format!("member     1 in sync  {}", urls[1])), "{said}");
        assert!(said.contains("in sync    2 of 2"), "{said}");
    }
    for dry_run in [&["--dry-run"][..], &[]] {
        rm(&[&urls[0], &copy], dry_run).failed(&["nothing was removed"]);
        rm(&[&copy], dry_run).failed(&[&told, "`pmof pool rm --force`", "nothing was removed"]);
        rm(&[&urls[0], &urls[1], &copy], dry_run).failed(&[&told, "nothing was removed"]);
    }
    rm(&[&copy], &["--force"]).done();
    assert!(other.files().is_empty());
    pmof(["pool", "check", &urls[0]]).done();
}

/// Two names of one address are one member.
#[test]
fn a_member_by_another_name_is_no_copy() {
    let two: [Target; 2] = std::array::from_fn(|_| Target::start());
    let urls = made(&two, "s");
    let by_name = urls[1].replace("127.0.0.1", "localhost");
    let said = pmof(["pool", "status", &by_name]).done();
    assert!(said.contains(&format!("1 in sync  {by_name}")) && !said.contains("copy"), "{said}");
    rm(&[&urls[0], &by_name], &[]).done();
    assert!(two.iter().all(|target| target.files().is_empty()));
}

#[test]
fn two_halves_that_were_forced_apart_are_two_histories() {
    let mut two: [Target; 2] = std::array::from_fn(|_| Target::start());
    made(&two, "y");
    let write = |url: &String, bytes: &[u8]| {
        let pool = options([url]).open().unwrap();
        pool.persist(0, bytes).unwrap();
        pool.close().unwrap();
    };
    for (on, off, index) in [(0, 1, "1"), (1, 0, "0")] {
        two[off].kill();
        let url = two[on].url("y");
        let said = pmof(["pool", "remove", &url, index, "--force"]);
        assert_eq!(said.code, Some(0), "{said:?}");
        write(&url, index.as_bytes());
        two[off].restart();
    }
    let [a, b] = [0, 1].map(|at: usize| two[at].url("y"));
    for [one, other] in [[&a, &b], [&b, &a]] {
        let said = pmof(["pool", "status", one, other]);
        said.differs(&["there are two histories of the pool", &a, &b, "before you remove either"]);
        assert!(said.output.contains("another history of the same pool"), "{said:?}");
        assert!(!said.output.contains("remove what is left there"), "{said:?}");
    }
    for named in [&[&*a][..], &[&b], &[&a, &b], &[&b, &a]] {
        for dry_run in [&["--dry-run"][..], &[]] {
            rm(named, dry_run).failed(&["nothing was removed", "--force", "histor"]);
        }
    }
    assert!(two.iter().all(|target| target.files() == ["y"]));
    // Whoever knows of it decides.
    pmof(["pool", "clear", &a]).done();
    rm(&[&b], &["--force"]).done();
    rm(&[&a], &[]).done();
}
