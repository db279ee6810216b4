//! Files that have the names of a pool's parts and are somebody else's.

use std::fs;

use tempfile::TempDir;

use crate::support::{directory, file_with, files, pmof, text};

/// A pool of this name with this many replicas of one part each.
fn made(place: &TempDir, name: &str, replicas: usize) -> std::path::PathBuf {
    let parts: Vec<_> = (0..replicas).map(|replica| format!("9M {}/{name}{replica}\n", text(place.path()))).collect();
    let set = file_with(place, name, format!("PMEMPOOLSET\n{}", parts.join("REPLICA\n")).as_bytes());
    pmof(["pool", "create", text(&set)]).done();
    set
}

#[test]
fn sync_overwrites_nothing_that_is_not_the_pools() {
    let place = directory();
    let (set, _) = (made(&place, "own", 2), made(&place, "other", 1));
    let part = place.path().join("own1");
    let mut damaged = fs::read(place.path().join("other0")).unwrap();
    damaged[200] ^= 1;
    let cases = [
        (damaged, "looks like a damaged part of the pool set "),
        (vec![7; 9 << 20], "does not begin as a part of a pool does"),
        (b"dear all".to_vec(), "does not begin as a part of a pool does"),
    ];
    for (bytes, words) in cases {
        fs::write(&part, &bytes).unwrap();
        let told = [text(&part), words, "move it away, or remove it"];
        for options in [&[][..], &["--dry-run"], &["--from", "0"]] {
            pmof([&["pool", "sync", text(&set)], options].concat()).failed(&told);
        }
        let said = pmof(["pool", "check", text(&set)]);
        assert!(said.code == Some(3) && said.errors.contains("cannot repair it: "), "{said:?}");
        assert!(told.iter().all(|words| said.errors.contains(words)), "{said:?}");
        assert!(fs::read(&part).unwrap() == bytes);
    }
    fs::rename(&part, place.path().join("away")).unwrap();
    pmof(["pool", "sync", text(&set)]).done();
    pmof(["pool", "check", text(&set)]).done();
}

#[test]
fn rm_by_force_takes_what_is_the_pools_and_tells_the_rest() {
    let place = directory();
    let set = made(&place, "own", 4);
    let part = |number: usize| place.path().join(format!("own{number}"));
    fs::write(part(1), "dear all").unwrap();
    fs::remove_file(part(2)).unwrap();
    fs::write(part(3), "").unwrap();
    pmof(["pool", "rm", text(&set)]).failed(&["own1", "own2", "nothing was removed; `--force`"]);
    let left = format!("pmof: {} is not a part of a pool and is left in place: ", text(&part(1)));
    for (options, verb, was) in [(&["--dry-run"][..], "would remove", "is"), (&["--set-file"], "removed", "was")] {
        let said = pmof([&["pool", "rm", text(&set), "--force"], options].concat());
        assert!(said.code == Some(1) && said.errors.starts_with(&left), "{said:?}");
        for words in [
            format!("{verb} replica 0: {}\n", text(&part(0))),
            format!("{verb} replica 3: {}\n", text(&part(3))),
            format!("{} {was} not there\n", text(&part(2))),
        ] {
            assert!(said.output.contains(&words), "{words}: {said:?}");
        }
        assert!(!said.output.contains("replica 1") && !said.output.contains("replica 2"), "{said:?}");
        assert!(said.output.ends_with("there (it names what is left)\n"), "{said:?}");
    }
    assert_eq!(files(place.path()), ["own", "own1"]);
    assert_eq!(fs::read(part(1)).unwrap(), b"dear all");
    let report = pmof(["pool", "rm", text(&set), "--force", "--json"]);
    let told: serde_json::Value = serde_json::from_str(&report.output).unwrap();
    assert_eq!((&told["left"][0], &told["absent"][0]), (&text(&part(1)).into(), &text(&part(0)).into()));
    fs::remove_file(part(1)).unwrap();
    pmof(["pool", "rm", text(&set), "--force", "--set-file"]).done();
    assert_eq!(files(place.path()), [""; 0]);
}

/// What check advises of a set that the pool was transformed from makes no second set with the same replica; the new set is named.
#[test]
fn a_transformed_pool_is_known_by_its_new_set() {
    let place = directory();
    let old = made(&place, "own", 2);
    let here = text(place.path());
    let new = file_with(&place, "new", format!("PMEMPOOLSET\n9M {here}/own0\nREPLICA\n9M {here}/next\n").as_bytes());
    let said = pmof(["pool", "transform", text(&old), text(&new)]).done();
    let told = format!("the pool now has the replicas of {}: ", text(&new));
    assert!(said.contains(&told) && said.contains("check and sync it by that file"), "{said}");
    let words = "the pool was transformed to another set";
    let said = pmof(["pool", "check", text(&old)]);
    assert!(
        said.code == Some(3) && said.errors.contains("cannot repair it: ") && said.errors.contains(words),
        "{said:?}"
    );
    pmof(["pool", "sync", text(&old)]).failed(&[words, "name the pool set file that the pool was transformed to"]);
    pmof(["pool", "sync", text(&old), "--dry-run"]).failed(&[words]);
    assert!(!place.path().join("own1").exists());
    pmof(["pool", "check", text(&new)]).done();
    // The same command again, with what a kill would have left.
    fs::copy(place.path().join("next"), place.path().join("own1")).unwrap();
    let said = pmof(["pool", "transform", text(&old), text(&new)]).done();
    assert!(said.contains("removed replica 1 of the old set") && !place.path().join("own1").exists(), "{said}");
    assert!(!said.contains("added"), "{said}");
    // And once more, with nothing left to do.
    for options in [&[][..], &["--dry-run"]] {
        let said = pmof([&["pool", "transform", text(&old), text(&new)], options].concat()).done();
        assert_eq!(said, format!("{} names the replicas that the pool has: nothing to do\n", text(&new)));
    }
}

/// By whatever name.
#[test]
fn a_set_is_removed_once() {
    let place = directory();
    let set = made(&place, "own", 1);
    let again = place.path().join("./own");
    for options in [&[][..], &["--dry-run"], &["--force"]] {
        let said = pmof([&["pool", "rm", text(&set), text(&again)], options].concat());
        said.failed(&["is named twice: name each pool once", "nothing was removed"]);
    }
    assert_eq!(files(place.path()), ["own", "own0"]);
}

#[test]
fn rm_takes_no_file_of_somebody_else_from_a_directory() {
    let place = directory();
    let here = text(place.path());
    for name in ["da", "db", "dc"] {
        fs::create_dir(place.path().join(name)).unwrap();
    }
    let lines = |other: &str| format!("PMEMPOOLSET\nOPTION SINGLEHDR\n16M {here}/da\nREPLICA\n16M {here}/{other}\n");
    let set = file_with(&place, "set", lines("db").as_bytes());
    let to = file_with(&place, "to", lines("dc").as_bytes());
    pmof(["pool", "create", text(&set)]).done();
    let foreign = place.path().join("db/000001.pmem");
    fs::write(&foreign, vec![7; 1 << 20]).unwrap();
    let told = [text(&foreign), "is not removed: ", "the pool has 16777216 bytes", "move it away"];
    pmof(["pool", "rm", text(&set)]).failed(&[&told[..], &["nothing was removed; `--force`"]].concat());
    pmof(["pool", "transform", text(&set), text(&to)]).failed(&told);
    pmof(["pool", "transform", text(&set), text(&to), "--dry-run"]).failed(&told);
    assert_eq!(files(&place.path().join("dc")), [""; 0]);
    // One that is too short to be mapped is named.
    fs::write(&foreign, "four").unwrap();
    for command in ["check", "sync"] {
        let said = pmof(["pool", command, text(&set)]);
        let all = said.output.clone() + &said.errors;
        assert!(said.code == Some(1) && all.contains(text(&foreign)), "{said:?}");
        assert!(all.contains("is shorter than any part of a pool; move it away"), "{said:?}");
    }
    // What failed left nothing open.
    let said = pmof(["pool", "info", text(&set)]).done();
    assert!(!said.contains("not closed"), "{said}");
    fs::write(&foreign, vec![7; 1 << 20]).unwrap();
    let said = pmof(["pool", "rm", text(&set), "--force"]);
    assert!(said.code == Some(1) && said.errors.contains("is not a part of a pool and is left in place: "), "{said:?}");
    assert_eq!(files(&place.path().join("db")), ["000001.pmem"]);
    assert_eq!(fs::read(&foreign).unwrap(), vec![7; 1 << 20]);
}

/// Its length is right, and the first part vouches for it: the other replica tells that it is not the pool's.
#[test]
fn rm_takes_no_file_of_somebody_else_for_a_part_without_header() {
    let place = directory();
    let here = text(place.path());
    let part = |name: &str| format!("9M {here}/{name}\n");
    let replica = |name: &str| part(&format!("{name}0")) + &part(&format!("{name}1"));
    let lines = format!("PMEMPOOLSET\nOPTION SINGLEHDR\n{}REPLICA\n{}", replica("a"), replica("b"));
    let set = file_with(&place, "set", lines.as_bytes());
    pmof(["pool", "create", text(&set)]).done();
    let foreign = place.path().join("b1");
    let bytes = b"dear all,\n".repeat((9 << 20) / 10 + 1);
    fs::write(&foreign, &bytes[..9 << 20]).unwrap();
    let told = [text(&foreign), "is not removed: a part of its number has no header", "nothing was removed; `--force`"];
    for dry_run in [&["--dry-run"][..], &[]] {
        pmof([&["pool", "rm", text(&set)][..], dry_run].concat()).failed(&told);
    }
    assert_eq!(files(place.path()), ["a0", "a1", "b0", "b1", "set"]);
    let said = pmof(["pool", "rm", text(&set), "--force"]);
    assert!(said.code == Some(1) && said.errors.contains("is not a part of a pool and is left in place: "), "{said:?}");
    assert_eq!(files(place.path()), ["b1", "set"]);
    assert!(fs::read(&foreign).unwrap() == bytes[..9 << 20]);
}

#[test]
fn rm_takes_the_replicas_of_one_pool_only() {
    let place = directory();
    made(&place, "own", 1);
    made(&place, "other", 1);
    let here = text(place.path());
    let lines = format!("PMEMPOOLSET\n9M {here}/own0\nREPLICA\n9M {here}/other0\n");
    let mixed = file_with(&place, "mixed", lines.as_bytes());
    for options in [&[][..], &["--dry-run"], &["--force"], &["--force", "--set-file"]] {
        let said = pmof([&["pool", "rm", text(&mixed)], options].concat());
        said.failed(&[
            "replica 1: ",
            "other0 belongs to the pool set ",
            "parts of one pool only",
            "nothing was removed",
        ]);
    }
    assert_eq!(files(place.path()), ["mixed", "other", "other0", "own", "own0"]);
}

/// A set file that names some of a pool's replicas or parts: what is told of it is the same everywhere, and nothing is changed.
#[test]
fn some_of_a_pool_is_not_taken_for_all_of_it() {
    let place = directory();
    let all = made(&place, "own", 3);
    let path = |name: &str| text(&place.path().join(name)).to_owned();
    let some = file_with(&place, "some", format!("PMEMPOOLSET\n9M {}\n", path("own0")).as_bytes());
    let single = format!("PMEMPOOLSET\nOPTION SINGLEHDR\n9M {}\n9M {}\n", path("one0"), path("one1"));
    let single = file_with(&place, "single", single.as_bytes());
    pmof(["pool", "create", text(&single)]).done();
    let before = files(place.path());
    let disable = ["--disable", "CHECK_BAD_BLOCKS"];
    for name in [text(&some), &path("own0"), &path("one0")] {
        for dry_run in [&["--dry-run"][..], &[]] {
            pmof([&["pool", "rm", name], dry_run].concat()).failed(&["name the pool set file"]);
            pmof([&["pool", "feature", name][..], &disable, dry_run].concat()).failed(&["name the pool set file"]);
        }
        let said = pmof(["pool", "check", name]);
        assert!(matches!(said.code, Some(1 | 3)) && said.errors.contains("name the pool set file"), "{said:?}");
    }
    pmof(["pool", "sync", text(&some)]).failed(&["that the set does not name", "--from 0"]);
    let said = pmof(["pool", "info", text(&some)]);
    assert!(said.errors.contains("replica 0 does not fit: its previous replica should be"), "{said:?}");
    pmof(["pool", "rm", text(&some)]).failed(&["does not name all", "nothing was removed; `--force`"]);
    assert!(files(place.path()) == before);
    pmof(["pool", "info", text(&all)]).done();
    pmof(["pool", "check", text(&single)]).done();
    pmof(["pool", "feature", text(&single), "--disable", "CHECK_BAD_BLOCKS"]).done();
    for set in [&all, &single] {
        pmof(["pool", "rm", text(set)]).done();
    }
}

/// Two sets that share a part: neither goes, since the other would be half gone.
#[test]
fn sets_that_share_a_file_are_not_removed_together() {
    let place = directory();
    let own = made(&place, "own", 2);
    let shared = format!("PMEMPOOLSET\n9M {}\n", text(&place.path().join("own1")));
    let other = file_with(&place, "other", shared.as_bytes());
    let before = files(place.path());
    for force in [&[][..], &["--force"]] {
        let sets = [text(&own), text(&other)];
        pmof([&["pool", "rm"][..], &sets, force].concat()).failed(&["are one file", "nothing was removed"]);
    }
    assert!(files(place.path()) == before);
}

/// What is under the name that was asked for is whole; there is nothing where it failed.
#[test]
fn a_dump_is_whole_or_not_there() {
    let place = directory();
    let set = made(&place, "own", 1);
    let output = place.path().join("dump");
    let dump = |options: &[&str]| {
        pmof([&["pool", "dump", text(&set), "--binary", "--output", text(&output)], options].concat())
    };
    let before = files(place.path());
    dump(&["--offset", "9437000", "--len", "99999"]).failed(&["there are 184 bytes from offset 9437000 on", "--len"]);
    assert!(files(place.path()) == before);
    dump(&["--offset", "9437000", "--len", "184"]).done();
    assert_eq!(fs::metadata(&output).unwrap().len(), 184);
    dump(&["--offset", "0"]).failed(&["it exists", "name another file"]);
    assert_eq!(fs::metadata(&output).unwrap().len(), 184);
    let nowhere = place.path().join("none/dump");
    pmof(["pool", "dump", text(&set), "--output", text(&nowhere)]).failed(&["cannot create"]);
}
