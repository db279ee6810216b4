//! `pmof pool add`, `remove` and `replace`.

use pmof::{Durability, Pool, PoolOptions};

use crate::support::{Said, Target, directory, pmof, serve_with};

fn options<'u>(urls: impl IntoIterator<Item = &'u String>) -> PoolOptions {
    urls.into_iter().fold(Pool::options().require(Durability::ProcessCrash), PoolOptions::replica)
}

/// A pool on the first `count` of four targets that holds `here`.
fn made(count: usize) -> ([Target; 4], Vec<String>) {
    let four: [Target; 4] = std::array::from_fn(|_| Target::start());
    let urls: Vec<_> = four.iter().map(|target| target.url("orders")).collect();
    let pool = options(&urls[..count]).create(1 << 20).unwrap();
    pool.persist(0, b"here").unwrap();
    pool.close().unwrap();
    (four, urls)
}

#[test]
fn a_lost_replica_is_replaced_and_the_command_can_be_given_again() {
    let (mut four, urls) = made(3);
    four[1].kill();
    let said = pmof(["pool", "status", &urls[0]]).done();
    assert!(said.contains("`pmof pool replace MEMBER 1 NEW`"), "{said}");
    let said = pmof(["pool", "replace", &urls[0], "1", &urls[3]]).done();
    let expected = [
        &*format!("added {}\n", urls[3]),
        "removed 1, which is out of reach: what it has stays there\n",
        "the pool has 3 members, 3 of them in sync\n",
    ];
    assert_eq!(said, expected.concat());
    let said = pmof(["pool", "status", &urls[3]]).done();
    assert!(said.contains("in sync    3 of 3, quorum 2\n") && !said.contains(&urls[1]), "{said}");
    let again = pmof(["pool", "replace", &urls[0], &urls[1], &urls[3], "--json"]);
    assert!(again.errors.contains("is none: nothing was replaced"), "{again:?}");
    let again: serde_json::Value = serde_json::from_str(&again.output).unwrap();
    assert_eq!((&again["made_count"], &again["in_sync_count"]), (&3.into(), &3.into()));
    assert!(again["added"].is_null() && again["removed"].is_null(), "{again}");

    four[1].restart();
    let report = pmof(["pool", "status", &urls[0], &four[1].url("orders"), "--json"]).json();
    assert_eq!(report["members"][3]["state"], "foreign", "{report}");
    pmof(["pool", "rm", &four[1].url("orders")]).done();
    four[0].kill();
    let pool = options([&urls[3]]).open().unwrap();
    let mut bytes = [0; 4];
    pool.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"here");
}

#[test]
fn members_come_and_go() {
    let (_four, urls) = made(1);
    let report = pmof(["pool", "add", &urls[0], &urls[1], "--json"]).json();
    assert_eq!((&report["added"], &report["made_count"]), (&urls[1].as_str().into(), &2.into()), "{report}");
    let said = pmof(["pool", "add", &urls[1], &urls[2]]).done();
    assert!(said.ends_with("the pool has 3 members, 3 of them in sync\n"), "{said}");
    let said = pmof(["pool", "remove", &urls[1], &urls[0]]).done();
    assert_eq!(
        said,
        format!("removed {}, whose bytes stay there\nthe pool has 2 members, 2 of them in sync\n", urls[0])
    );
    let report = pmof(["pool", "remove", &urls[1], "2", "--json"]).json();
    assert_eq!((&report["removed"], &report["made_count"]), (&"2".into(), &1.into()), "{report}");
    pmof(["pool", "remove", &urls[1], "1"]).failed(&["the only member that is in sync", "add another"]);
}

#[test]
fn what_cannot_be_is_refused() {
    let (four, urls) = made(2);
    let nobody = four[2].url("nobody");
    pmof(["pool", "add", &urls[0], &urls[1]]).failed(&["is a member of the pool already"]);
    pmof(["pool", "remove", &urls[0], &urls[2]]).failed(&["has no member", &urls[1]]);
    pmof(["pool", "remove", &urls[0], "9"]).failed(&["has no member 9"]);
    let said = pmof(["pool", "status", &urls[0]]).done();
    assert!(said.contains("none, closed in order"), "{said}");
    pmof(["pool", "replace", &urls[0], "9", &urls[2]]).failed(&["has no member 9"]);
    pmof(["pool", "replace", &urls[0], "0", &urls[1]]).failed(&["has been in sync", "takes nobody's place"]);
    assert!(four[2].files().is_empty());
    pmof(["pool", "add", &nobody, &urls[2]]).failed(&["cannot open the pool", "there is no pool nobody"]);
    options([&nobody]).create(4096).unwrap().close().unwrap();
    pmof(["pool", "add", &urls[0], &nobody]).failed(&["is of another pool", "choose another name"]);
    pmof(["pool", "add", &urls[0], "tcp://127.0.0.1:1/orders"]).failed(&["no member was added", "127.0.0.1:1"]);
    pmof(["pool", "add", &urls[0]]).wrong_use(&["NEW"]);
    pmof(["pool", "add", &urls[0], "nonsense"]).wrong_use(&["nonsense"]);
    pmof(["pool", "replace", &urls[0], "1"]).wrong_use(&["NEW"]);

    let writer = options(&urls[..2]).open().unwrap();
    pmof(["pool", "add", &urls[0], &urls[2]])
        .failed(&["cannot open the pool", "its writer changes the members itself"]);
    writer.close().unwrap();
    pmof(["pool", "remove", &urls[0], "1"]).done();
    // What is left there is not taken for room.
    pmof(["pool", "add", &urls[0], &urls[1]]).failed(&["is a replica of this pool, and no member", "pmof pool rm"]);
}

#[test]
fn rm_removes_a_member_only_by_force_or_with_all_others() {
    let (four, urls) = made(3);
    for dry_run in [&[][..], &["--dry-run"]] {
        let one = ["pool", "rm", &urls[1]].into_iter().chain(dry_run.iter().copied());
        pmof(one).failed(&["is member 1 of a pool that has others", "pmof pool remove", "--force"]);
        let two = ["pool", "rm", &urls[1], &urls[0]].into_iter().chain(dry_run.iter().copied());
        pmof(two).failed(&["nothing was removed"]);
    }
    let said = pmof(["pool", "info", &urls[1]]).done();
    assert!(said.contains("replica    number 1, made as one of 3, "), "{said}");
    // What is damaged may be a member, too.
    let file = std::fs::File::options().write(true).open(four[1].file("orders")).unwrap();
    file.set_len(file.metadata().unwrap().len() - 1).unwrap();
    pmof(["pool", "rm", &urls[1]]).failed(&["cannot remove", "--force"]);
    assert_eq!(four[1].files(), ["orders"]);
    pmof(["pool", "rm", "--force", &urls[1]]).done();
    pmof(["pool", "remove", &urls[0], "1"]).done();
    pmof(["pool", "rm", &urls[0], &urls[2]]).done();
}

#[test]
fn replicas_that_are_behind_catch_up_before_a_scrub() {
    let (mut four, urls) = made(3);
    four[2].kill();
    let pool = options(&urls[..3]).open().unwrap();
    pool.persist(0, &vec![7; 1 << 20]).unwrap();
    pool.close().unwrap();
    four[2].restart();
    let third = four[2].url("orders");
    let said = pmof(["pool", "scrub", &urls[0], &urls[1], &third]).done();
    assert_eq!(said, "1048576 bytes compared on 3 of 3 replicas\nall replicas are equal\n");
}

#[test]
fn of_two_members_one_that_is_lost_for_good_is_replaced_by_force() {
    let (mut four, urls) = made(2);
    four[1].kill();
    pmof(["pool", "replace", &urls[0], "1", &urls[2]]).failed(&["cannot open the pool"]);
    let said = pmof(["pool", "replace", &urls[0], "1", &urls[2], "--force"]);
    assert!(said.code == Some(0) && said.errors.contains("goes on alone, by force"), "{said:?}");
    assert!(said.output.ends_with("the pool has 2 members, 2 of them in sync\n"), "{said:?}");
    // That it was forced is shown until somebody knows.
    for url in [&urls[0], &urls[2]] {
        let said = pmof(["pool", "status", url]).done();
        assert!(
            said.contains("forced     opening 2 at 20")
                && said.contains(" with member 0, without 1: it lacks what only"),
            "{said}"
        );
    }
    let report = pmof(["pool", "status", &urls[0], "--json"]).json();
    assert_eq!((&report["forced"]["went_on"], &report["forced"]["left_out"]), (&[0].into(), &[1].into()), "{report}");
    let said = pmof(["pool", "clear", &urls[2]]).done();
    assert!(said.starts_with("known, and no longer shown: opening 2 at 20"), "{said}");
    assert_eq!(pmof(["pool", "clear", &urls[0]]).done(), "the pool was not forced\n");
    assert_eq!(pmof(["pool", "clear", &urls[0], "--json"]).json()["cleared"], serde_json::Value::Null);
    assert!(!pmof(["pool", "status", &urls[0]]).done().contains("forced"));
    four[1].restart();
    let late = four[1].url("orders");
    let report = pmof(["pool", "status", &urls[0], &late, "--json"]).json();
    assert_eq!(report["members"][2]["state"], "foreign", "{report}");
    // Of three, two of which are lost, nothing is forced.
    let (mut four, urls) = made(3);
    four[1].kill();
    four[2].kill();
    pmof(["pool", "remove", &urls[0], "1", "--force"])
        .failed(&["--force is for a pool of two members", "nothing was changed"]);
}

#[test]
fn nothing_is_forced_for_a_change_that_cannot_be_made() {
    let (mut four, urls) = made(2);
    let taken = four[2].url("taken");
    options([&taken]).create(4096).unwrap().close().unwrap();
    four[1].kill();
    let replace = |old: &str, new: &str| pmof(["pool", "replace", &urls[0], old, new, "--force"]);
    replace("1", "tcp://127.0.0.1:1/orders").failed(&["127.0.0.1:1", "nothing was changed"]);
    replace("1", &taken).failed(&["exists already", "nothing was changed"]);
    replace("1", &urls[0]).failed(&["nothing was changed"]);
    replace("7", &urls[2]).failed(&["has no member 7", "nothing was changed"]);
    for (old, why) in [("7", "has no member 7"), ("0", "the only member that is in sync")] {
        pmof(["pool", "remove", &urls[0], old, "--force"]).failed(&[why, "nothing was changed"]);
    }
    assert!(!pmof(["pool", "status", &urls[0]]).output.contains("forced"));
    // What only the other one has is not given up.
    pmof(["pool", "replace", &urls[0], "1", &urls[2]]).failed(&["cannot open the pool"]);
    assert_eq!(four[2].files(), ["taken"], "what was tried is taken away");
}

#[test]
fn a_witness_is_added_shown_replaced_and_removed() {
    let (mut four, urls) = made(2);
    let said = pmof(["pool", "add", "--witness", &urls[0], &urls[2]]);
    assert!(said.code == Some(0) && said.errors.contains("the witness is in the failure domain of tcp://"), "{said:?}");
    let summary = "the pool has 2 members, 2 of them in sync and a witness\n";
    assert_eq!(said.output, format!("added {}\n{summary}", urls[2]));
    let again = pmof(["pool", "add", "--witness", &urls[0], &urls[2], "--json"]);
    let again: serde_json::Value = serde_json::from_str(&again.output).unwrap();
    assert_eq!(
        (&again["made_count"], &again["witness_count"]),
        (&2.into(), &1.into()),
        "by itself it can be given again"
    );
    let said = pmof(["pool", "status", &urls[2]]).done();
    for line in ["in sync    2 of 2, and a witness, quorum 2\n", "survives   the loss of any one member\n"] {
        assert!(said.contains(line), "{said}");
    }
    assert!(said.contains(&format!("member     2 witness  {} in machine-", urls[2])), "{said}");
    pmof(["pool", "promote", &urls[2]]).failed(&["is a witness, which has none of the pool's bytes"]);
    pmof(["pool", "rm", &urls[2]]).failed(&["is member 2 of a pool that has others", "pmof pool remove"]);
    pmof(["pool", "add", "--witness", "--async", &urls[0], &urls[3]]).wrong_use(&["--async"]);

    // One that is lost is none that was added.
    let file = four[2].file("orders");
    std::fs::rename(&file, file.with_extension("away")).unwrap();
    pmof(["pool", "add", "--witness", &urls[0], &urls[2]]).failed(&["is a witness, and lost", "pmof pool remove"]);
    std::fs::rename(file.with_extension("away"), &file).unwrap();

    // Any one may be lost.
    four[0].kill();
    let said = pmof(["pool", "replace", &urls[2], "0", &urls[3]]).done();
    assert!(said.ends_with(summary), "{said}");
    four[2].kill();
    let report = pmof(["pool", "status", &urls[3], "--json"]).json();
    let witness = report["members"].as_array().unwrap().iter().find(|member| member["index"] == 2).unwrap();
    assert_eq!((&witness["state"], &witness["is_witness"]), (&"lost".into(), &true.into()), "{report}");
    let said = pmof(["pool", "status", &urls[3]]).done();
    assert!(said.contains(", a witness: ") && said.contains("`pmof pool replace MEMBER 2 NEW`"), "{said}");
    four[0].restart();
    pmof(["pool", "rm", "--force", &four[0].url("orders")]).done();
    let new = four[0].url("orders");
    let said = pmof(["pool", "replace", &urls[1], "2", &new]);
    assert!(said.code == Some(0) && said.errors.contains("the witness is in the failure domain of tcp://"), "{said:?}");
    assert!(said.output.ends_with(summary), "{said:?}");
    let said = pmof(["pool", "remove", &urls[1], &new]).done();
    assert!(said.ends_with("the pool has 2 members, 2 of them in sync\n"), "{said}");
}

#[test]
fn a_spare_is_added_shown_taken_and_removed() {
    let (mut four, urls) = made(2);
    for _ in 0..2 {
        let said = pmof(["pool", "add", "--spare", &urls[0], &urls[2]]).done();
        assert_eq!(
            said,
            format!("added {}\nthe pool has 2 members, 2 of them in sync\n", urls[2]),
            "it can be given again"
        );
    }
    assert!(four[2].files().is_empty());
    let said = pmof(["pool", "status", &urls[1]]).done();
    assert!(said.contains(&format!("member     2 spare    {}", urls[2])), "{said}");
    pmof(["pool", "add", "--spare", "--witness", &urls[0], &urls[3]]).wrong_use(&["--spare"]);
    pmof(["pool", "add", "--spare", &urls[0], "tcp://127.0.0.1:1/orders"]).failed(&["no member was added"]);
    pmof(["pool", "remove", &urls[0], &urls[2]]).done();
    assert!(!pmof(["pool", "status", &urls[0]]).done().contains("spare"));

    pmof(["pool", "add", "--spare", &urls[0], &urls[3]]).done();
    let pool = options(&urls[..2]).spare_after(std::time::Duration::ZERO).open().unwrap();
    four[0].kill();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while pool.status().unwrap().is_degraded() || !pool.status().unwrap().spares.is_empty() {
        pool.persist(0, b"more").unwrap();
        assert!(std::time::Instant::now() < until, "{:?}", pool.status());
    }
    pool.close().unwrap();
    let report = pmof(["pool", "status", &urls[3], "--json"]).json();
    assert_eq!((&report["in_sync_count"], &report["made_count"]), (&2.into(), &2.into()), "{report}");

    // The former member knows of a spare there, which has the pool now.
    four[1].kill();
    four[0].restart();
    let former = four[0].url("orders");
    let report: serde_json::Value = serde_json::from_str(&pmof(["pool", "status", &former, "--json"]).output).unwrap();
    let states: Vec<_> = report["members"].as_array().unwrap().iter().map(|member| &member["state"]).collect();
    assert_eq!(states, ["lost", "in_sync", "foreign"], "{report}");
    pmof(["pool", "remove", "--force", &former, "1"]).failed(&[
        "does not go on as the pool",
        &urls[3],
        "nothing was changed",
    ]);
    assert!(!pmof(["pool", "status", &urls[3]]).output.contains("forced"));
}

/// What rotted on a member is not copied from it to a new one.
#[test]
fn members_are_compared_before_one_is_copied_from() {
    let (mut four, urls) = made(3);
    let flip = |target: &mut Target| {
        target.kill();
        let path = target.file("orders");
        let mut bytes = std::fs::read(&path).unwrap();
        let at = bytes.len() - 100;
        bytes[at] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        target.restart();
    };
    flip(&mut four[1]);
    let second = four[1].url("orders");
    let said = pmof(["pool", "replace", &second, "2", &urls[3]]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.errors.contains(&format!("of {second}, which differed from the others")), "{said:?}");
    pmof(["pool", "check", &urls[3]]).done();

    // Of two nobody knows.
    pmof(["pool", "remove", &urls[3], &urls[0]]).done();
    flip(&mut four[1]);
    let second = four[1].url("orders");
    pmof(["pool", "rm", &urls[0]]).done();
    let said = pmof(["pool", "add", &second, &urls[0]]);
    assert_eq!(said.code, Some(3), "{said:?}");
    assert!(said.errors.contains("nothing says which is right; nothing was changed"), "{said:?}");
    assert!(four[0].files().is_empty(), "{:?}", four[0].files());
    pmof(["pool", "remove", &second, &second]).done();
    pmof(["pool", "add", &urls[3], &urls[0]]).done();
    pmof(["pool", "check", &urls[3]]).done();
}

/// The commands that a message names, as they stand there.
fn commands(said: &str) -> Vec<Vec<String>> {
    let quoted = said.split('`').skip(1).step_by(2).filter_map(|quoted| quoted.strip_prefix("pmof "));
    quoted.map(|command| command.split(' ').map(str::to_owned).collect()).collect()
}

/// Carries out what a message advises, and has the pool have three members in sync.
#[track_caller]
fn carried_out(said: &Said, url: &str) {
    let advice = commands(&said.errors);
    assert!(!advice.is_empty(), "{said:?}");
    for command in advice {
        pmof(&command).done();
    }
    let said = pmof(["pool", "status", url]).done();
    assert!(said.contains("in sync    3 of 3"), "{said}");
}

#[test]
fn a_member_is_made_anew_where_it_was_as_is_advised() {
    let (four, urls) = made(3);
    let file = four[2].file("orders");
    let old = std::fs::read(&file).unwrap();
    for command in ["replace", "add"] {
        let again = |url: &String| match command {
            "replace" => pmof(["pool", "replace", &urls[0], "2", url]),
            _ => pmof(["pool", "add", &urls[0], url]),
        };
        // What is damaged there, and what is not there.
        let whole = std::fs::File::options().write(true).open(&file).unwrap();
        whole.set_len(old.len() as u64 - 1).unwrap();
        let said = again(&urls[2]);
        said.failed(&["to make it anew there: ", "pmof pool rm --force"]);
        carried_out_from(&said, &urls);
        std::fs::remove_file(&file).unwrap();
        let said = again(&urls[2]);
        said.failed(&["to make it anew there: "]);
        carried_out_from(&said, &urls);
    }
    // An older copy catches up, as its state says.
    options(&urls[..3]).open().unwrap().close().unwrap();
    let old = std::fs::read(&file).unwrap();
    let pool = options(&urls[..3]).open().unwrap();
    pool.persist(0, b"more").unwrap();
    pool.close().unwrap();
    drop(pool);
    std::fs::write(&file, &old).unwrap();
    let said = pmof(["pool", "status", &urls[0]]).done();
    assert!(said.contains("its file is an older copy") && said.contains("(pmof pool scrub)"), "{said}");
    let said = pmof(["pool", "scrub", &urls[0]]).done();
    assert_eq!(said, "1048576 bytes compared on 3 of 3 replicas\nall replicas are equal\n");
}

#[track_caller]
fn carried_out_from(said: &Said, urls: &[String]) {
    carried_out(said, &urls[0]);
}

#[test]
fn an_older_copy_of_one_of_two_is_made_anew_as_is_advised() {
    let (four, urls) = made(2);
    let file = four[1].file("orders");
    let old = std::fs::read(&file).unwrap();
    options(&urls[..2]).open().unwrap().close().unwrap();
    std::fs::write(&file, &old).unwrap();
    let advice = ["pmof pool remove --force", "pmof pool rm", "pmof pool add"];
    pmof(["pool", "scrub", &urls[0]]).failed(&[&["its file is an older copy"][..], &advice].concat());
    let said = pmof(["pool", "remove", "--force", &urls[0], &urls[1]]);
    assert_eq!(said.code, Some(0), "{said:?}");
    pmof(["pool", "rm", &urls[1]]).done();
    let said = pmof(["pool", "add", &urls[0], &urls[1]]).done();
    assert!(said.ends_with("the pool has 2 members, 2 of them in sync\n"), "{said}");
}

#[test]
fn too_few_members_are_told_with_how_many_it_takes() {
    let (mut four, urls) = made(3);
    four[1].kill();
    four[2].kill();
    let words = ["1 of the pool's 3 members can be opened, and it takes 2", "min_replicas"];
    pmof(["pool", "scrub", &urls[0]]).failed(&words);
    pmof(["cp", &urls[0], "/dev/shm/never"]).failed(&[&words[..], &["--min-replicas"]].concat());
    let said = pmof(["pool", "status", &urls[0]]);
    let too_few =
        "1 of its 3 members is there, and it takes 2 to know that no other goes on without them; bring back 1 more";
    assert!(
        said.output.contains(&format!("survives   nothing: it cannot be opened for writing; {too_few}")),
        "{said:?}"
    );
    assert!(said.code == Some(1) && said.errors.contains(too_few), "{said:?}");
    let (mut four, urls) = made(2);
    four[1].kill();
    pmof(["pool", "scrub", &urls[0]]).failed(&["1 of the pool's 2 members", "it takes 2", "pmof pool replace --force"]);
    let said = pmof(["pool", "status", &urls[0]]);
    let words = ["it takes both to know that the other did not go on alone", "pmof pool replace MEMBER N NEW --force"];
    assert!(words.iter().all(|words| said.errors.contains(words)), "{said:?}");
}

#[test]
fn what_stays_of_a_member_that_is_removed_is_told() {
    let (mut four, urls) = made(2);
    let removed = |url: &String, what: &str| {
        let said = pmof(["pool", "remove", &urls[0], url]).done();
        assert!(said.starts_with(&format!("removed {url}, {what}\n")), "{said}");
    };
    pmof(["pool", "add", "--witness", &urls[0], &urls[2]]);
    removed(&urls[2], "a witness, whose file stays there");
    pmof(["pool", "rm", &urls[2]]).done();
    pmof(["pool", "add", "--spare", &urls[0], &urls[2]]).done();
    removed(&urls[2], "a spare, where nothing is");
    pmof(["pool", "add", "--async", &urls[0], &urls[2]]).done();
    removed(&urls[2], "whose bytes stay there, and its areas beside them (.changes, .points)");
    pmof(["pool", "rm", &urls[2]]).done();
    pmof(["pool", "add", &urls[0], &urls[3]]).done();
    std::fs::remove_file(four[3].file("orders")).unwrap();
    removed(&urls[3], "of which nothing is there");
    pmof(["pool", "add", &urls[0], &urls[3]]).done();
    four[3].kill();
    removed(&urls[3], "which is out of reach: what it has stays there");
    removed(&urls[1], "whose bytes stay there");
}

/// Members that fail together are told of, by whichever command one comes.
#[test]
fn a_member_in_the_failure_domain_of_another_is_warned_of() {
    let targets = ["one", "two", "one", "three", "two"].map(|domain| {
        let root = directory();
        let (child, address) = serve_with(root.path(), &["--failure-domain", domain]);
        (root, child, format!("{address}/orders"))
    });
    let urls = targets.each_ref().map(|(.., url)| url.clone());
    options(&urls[..1]).create(1 << 20).unwrap().close().unwrap();
    let warned = |said: &Said, new: &String, other: &String| {
        let warning = format!("pmof: warning: {new} is in the failure domain of {other}, ");
        assert!(said.code == Some(0) && said.errors.starts_with(&warning), "{said:?}");
    };
    warned(&pmof(["pool", "add", &urls[0], &urls[2]]), &urls[2], &urls[0]);
    pmof(["pool", "replace", &urls[0], &urls[2], &urls[1]]).done();
    pmof(["pool", "add", &urls[0], &urls[3]]).done();
    pmof(["pool", "rm", &urls[2]]).done();
    warned(&pmof(["pool", "replace", &urls[0], &urls[3], &urls[2]]), &urls[2], &urls[0]);
    // A witness too.
    let witness = |said: &Said| said.code == Some(0) && said.errors.contains("the witness is in the failure domain of");
    pmof(["pool", "rm", &urls[3]]).done();
    pmof(["pool", "add", "--witness", &urls[0], &urls[3]]).done();
    let said = pmof(["pool", "replace", &urls[0], &urls[3], &urls[4]]);
    assert!(witness(&said), "{said:?}");
    for (_, mut child, _) in targets {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// Of four, two are enough to read, and three have to know of an opening for writing.
#[test]
fn half_of_the_members_are_too_few_to_write() {
    let (mut four, urls) = made(3);
    pmof(["pool", "add", "--witness", &urls[0], &urls[3]]);
    four[1].kill();
    four[2].kill();
    let said = pmof(["pool", "status", &urls[0]]);
    let too_few =
        "2 of its 4 members are there, and an opening for writing takes 3, which have to know of it; bring back 1 more";
    assert!(said.code == Some(1) && said.errors.contains(too_few), "{said:?}");
    let said = pmof(["pool", "status", "--json", &urls[0]]);
    let report: serde_json::Value = serde_json::from_str(said.output.lines().next().unwrap()).unwrap();
    let numbers = ["needed", "here", "quorum", "losses_survived"].map(|name| report[name].as_u64());
    assert_eq!(numbers, [Some(3), Some(2), Some(3), None], "{report}");
}

#[test]
fn all_members_that_are_missing_are_named() {
    let mut three: [Target; 3] = std::array::from_fn(|_| Target::start());
    let urls: Vec<_> = three.iter().map(|target| target.url("orders")).collect();
    options(&urls).create(1 << 20).unwrap().close().unwrap();
    three[1].kill();
    three[2].kill();
    let words = ["1 of the pool's 3 members can be opened", "; 2 failed: ", &urls[1], &urls[2], "Connection refused"];
    pmof(["pool", "scrub", &urls[0]]).failed(&words);
    pmof(["cp", &urls[0], "/dev/shm/never"]).failed(&words);
}
