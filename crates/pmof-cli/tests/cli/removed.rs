//! `pmof pool rm` of several pools, of former members, and of what belongs to an asynchronous member.

use std::{fs::File, os::unix::fs::FileExt};

use pmof::{Durability, Pool, PoolOptions};

use crate::support::{Said, Target, pmof};

fn options(urls: &[String]) -> PoolOptions {
    urls.iter().fold(Pool::options(), PoolOptions::replica).require(Durability::ProcessCrash)
}

fn made(targets: &[Target], name: &str) -> Vec<String> {
    let urls: Vec<_> = targets.iter().map(|target| target.url(name)).collect();
    options(&urls).create(1 << 20).unwrap().close().unwrap();
    urls
}

fn rm(urls: &[&String], options: &[&str]) -> Said {
    let urls: Vec<_> = urls.iter().map(|url| url.as_str()).collect();
    pmof([&["pool", "rm"][..], &urls, options].concat())
}

#[test]
fn former_members_are_removed_without_the_pool_that_was_promoted() {
    let (three, far): ([Target; 3], _) = (std::array::from_fn(|_| Target::start()), Target::start());
    let (urls, promoted) = (made(&three, "z1"), far.url("z1"));
    pmof(["pool", "add", "--async", &urls[0], &promoted]).done();
    let former: Vec<_> = urls.iter().collect();
    // Not yet.
    rm(&former, &[]).failed(&["nothing was removed", "name all of them", &promoted]);
    pmof(["pool", "promote", "--force", &promoted]).done();
    let all: Vec<_> = urls.iter().chain([&promoted]).collect();
    let advice = format!("`pmof pool rm {}`", urls.join(" "));
    for dry_run in [&["--dry-run"][..], &[]] {
        rm(&all, dry_run).failed(&["nothing was removed", &advice, &format!("`pmof pool rm {promoted}`")]);
    }
    let rotated: Vec<_> = all[3..].iter().chain(&all[..3]).copied().collect();
    rm(&rotated, &[]).failed(&["nothing was removed", &advice]);
    rm(&former[..1], &[]).done();
    assert!(three[0].files().is_empty());
    let removed = rm(&former[1..], &[]).done();
    assert_eq!(removed, format!("removed {}\nremoved {}\n", urls[1], urls[2]));
    pmof(["pool", "check", &promoted]).done();
    // Until somebody says that it is known, the others may have gone on as well.
    rm(&[&promoted], &[]).failed(&["may be one of two histories", "pmof pool clear", "nothing was removed"]);
    pmof(["pool", "clear", &promoted]).done();
    rm(&[&promoted], &[]).done();
}

#[test]
fn what_an_asynchronous_member_needs_is_not_removed_alone() {
    let [here, far] = std::array::from_fn(|_| Target::start());
    let (url, member) = (here.url("nn"), far.url("nn"));
    options(std::slice::from_ref(&url)).create(1 << 20).unwrap().close().unwrap();
    pmof(["pool", "add", "--async", "--keep-points", "2", &url, &member]).done();
    let (staging, points) = (far.url("nn.changes"), far.url("nn.points"));
    assert_eq!(far.files(), ["nn", "nn.changes", "nn.points"]);
    for area in [&staging, &points] {
        for dry_run in [&["--dry-run"][..], &[]] {
            rm(&[area], dry_run).failed(&[
                "nothing was removed",
                &format!("of {member}, an asynchronous member"),
                "--force",
            ]);
        }
    }
    rm(&[&staging, &points, &url], &[]).failed(&["nothing was removed"]);
    assert_eq!(far.files(), ["nn", "nn.changes", "nn.points"]);
    pmof(["pool", "remove", &url, &member]).done();
    rm(&[&points], &[]).done();
    rm(&[&member, &staging], &[]).done();
    assert!(far.files().is_empty());
    // With the whole pool; and by force alone.
    pmof(["pool", "add", "--async", &url, &member]).done();
    rm(&[&staging], &["--force"]).done();
    pmof(["pool", "remove", &url, &member]).done();
    rm(&[&member], &[]).done();
    pmof(["pool", "add", "--async", &url, &member]).done();
    rm(&[&url, &member, &staging], &[]).done();
    assert!(far.files().is_empty() && here.files().is_empty());
}

#[test]
fn nothing_is_removed_where_one_cannot_be() {
    let three: [Target; 3] = std::array::from_fn(|_| Target::start());
    let urls = made(&three, "fh");
    let all: Vec<_> = urls.iter().collect();
    let open = options(&urls).open().unwrap();
    rm(&all, &[]).failed(&["is open for writing by", "nothing was removed"]);
    open.close().unwrap();
    drop(open);
    let file = File::options().write(true).open(three[1].file("fh")).unwrap();
    file.write_all_at(&[0xff; 64], 100).unwrap();
    for dry_run in [&["--dry-run"][..], &[]] {
        rm(&all, dry_run).failed(&["header is damaged", "`--force`", &urls[1], "nothing was removed"]);
    }
    assert!(three.iter().all(|target| target.files() == ["fh"]));
    rm(&all[..1], &["--force"]).done();
    rm(&all, &[]).failed(&["there is no pool fh", "nothing was removed"]);
    let said = rm(&all, &["--force"]).done();
    assert_eq!(said, format!("{0} was gone already\nremoved {1}\nremoved {2}\n", urls[0], urls[1], urls[2]));
    assert!(three.iter().all(|target| target.files().is_empty()));
    let report = rm(&all, &["--force", "--json"]).json();
    assert_eq!((report["absent"].as_array().unwrap().len(), &report["removed"]), (3, &serde_json::json!([])));
}

/// A writer that closes the pool while its removal looks whether it is dead lives.
#[test]
fn a_pool_that_is_written_is_not_removed_when_its_writer_closes_it() {
    let target = Target::start();
    let urls = made(std::slice::from_ref(&target), "w");
    let open = options(&urls).open().unwrap();
    rm(&[&urls[0]], &[]).failed(&["is open for writing by", "nothing was removed"]);
    let closing = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        open.close().unwrap();
    });
    rm(&[&urls[0]], &["--force"]).failed(&["was open for writing by", "until just now", "nothing was removed"]);
    closing.join().unwrap();
    rm(&[&urls[0]], &[]).done();
    // One that is dead is nobody's writer.
    let urls = made(std::slice::from_ref(&target), "w");
    let open = options(&urls).open().unwrap();
    open.persist(0, b"x").unwrap();
    let dying = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        drop(open);
    });
    rm(&[&urls[0]], &[]).done();
    dying.join().unwrap();
}

/// Another pool's file lies where one of this pool was: what is advised names the pool that it is of.
#[test]
fn a_file_of_another_pool_is_told_when_it_is_removed_or_copied() {
    let mut two: [Target; 2] = std::array::from_fn(|_| Target::start());
    let (mine, others) = (made(&two, "mine"), made(&two, "others"));
    two[0].kill();
    std::fs::copy(two[0].file("others"), two[0].file("mine")).unwrap();
    two[0].restart();
    let swapped = two[0].url("mine");
    let uuid = |url: &String| {
        let report = pmof(["pool", "info", "--json", url]).json();
        report["pools"][0]["pool_uuid"].as_str().unwrap().to_owned()
    };
    let words = ["is member 0 of a pool that has others", &uuid(&others[1]), &others[1], "put there by mistake?"];
    rm(&[&swapped], &[]).failed(&words);
    let copy = tempfile::tempdir().unwrap();
    let said = pmof(["cp", "--json", &swapped, copy.path().join("copy").to_str().unwrap()]).json();
    assert_eq!(said["pool_uuid"], uuid(&others[1]).as_str(), "{said}");
    let said = pmof(["cp", &swapped, copy.path().join("again").to_str().unwrap()]).done();
    assert!(said.ends_with(&format!("read of pool {}\n", uuid(&others[1]))), "{said}");
    // Where the pool is named, too, it is refused.
    let said = pmof(["cp", &mine[1], "--replica", &swapped, copy.path().join("never").to_str().unwrap()]);
    said.failed(&[&uuid(&others[1]), &uuid(&mine[1]), "put back the right file"]);
}
