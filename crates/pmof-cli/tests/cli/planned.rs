//! What a creation refuses, a dry run of it refuses too, in the same words; and files of the wrong length.

use std::fs::{self, File};

use crate::support::{directory, file_with, files, pmof, text};

const MIB: u64 = 1 << 20;

#[test]
fn a_dry_run_refuses_what_a_creation_refuses() {
    let place = directory();
    let here = text(place.path()).to_owned();
    fs::create_dir(place.path().join("inside")).unwrap();
    fs::write(place.path().join("letter"), "dear all").unwrap();
    fs::write(place.path().join("taken"), vec![7; 9 << 20]).unwrap();
    File::create(place.path().join("longer")).unwrap().set_len(20 * MIB).unwrap();
    let before = [files(place.path()), vec!["set".to_owned()]].concat();
    let single = "OPTION SINGLEHDR\n";
    let cases: [(String, &[&str], &[&str]); 15] = [
        (format!("1M {here}/part\n"), &[], &["part would have 1048576 bytes, the minimum is 2097152"]),
        (format!("4M {here}/part\n"), &[], &["holds 4194304 bytes, and a pool of this kind needs 8388608"]),
        (format!("9M {here}/part\n"), &["--kind", "blk"], &["a pool of this kind needs"]),
        ("9M /dev/null\n".to_owned(), &[], &["/dev/null"]),
        (format!("9M {here}/inside\n"), &[], &["inside", "SINGLEHDR"]),
        (format!("9000T {here}/part\n"), &[], &["part"]),
        (format!("9M {here}/part\nREPLICA\n9000T {here}/other\n"), &[], &["other"]),
        (format!("9M {here}/nowhere/part\n"), &[], &["nowhere", "No such file or directory", "directory must exist"]),
        (format!("9M {here}/letter\n"), &[], &["letter has 8 bytes and should have 9437184"]),
        (format!("9M {here}/taken\n"), &[], &["taken exists"]),
        (format!("{single}9M {here}/part\n9M {here}/taken\n"), &[], &["taken exists"]),
        (format!("9M {here}/longer\n"), &[], &["longer has 20971520 bytes and should have 9437184", "another length"]),
        (format!("AUTO {here}/part\n"), &[], &["part", "AUTO"]),
        (format!("20M {here}/part\n"), &["--kind", "blk", "--block-size", "0"], &["blocks of no bytes"]),
        (format!("20M {here}/part\n"), &["--kind", "blk", "--block-size", "4000000000"], &["room for", "block size"]),
    ];
    for (lines, options, words) in cases {
        let set = file_with(&place, "set", format!("PMEMPOOLSET\n{lines}").as_bytes());
        let create = |dry: &[&str]| pmof([&["pool", "create", text(&set)], options, dry].concat());
        let (dry, wet) = (create(&["--dry-run"]), create(&[]));
        dry.failed(words);
        assert_eq!(dry.errors, wet.errors, "{lines}");
        let mut left = before.clone();
        left.sort();
        assert_eq!(files(place.path()), left, "{lines}");
    }
}

#[test]
fn an_option_that_the_kind_does_not_have_is_refused() {
    let place = directory();
    let set = file_with(&place, "set", format!("PMEMPOOLSET\n20M {}/part\n", text(place.path())).as_bytes());
    for (kind, option, value) in [
        ("log", "--layout", "x"),
        ("blk", "--layout", ""),
        ("log", "--block-size", "512"),
        ("obj", "--block-size", "1"),
    ] {
        for dry in [&["--dry-run"][..], &[]] {
            let said = pmof([&["pool", "create", text(&set), "--kind", kind, option, value], dry].concat());
            said.failed(&[&format!("`{option}` is for "), "leave it out"]);
        }
    }
    assert_eq!(files(place.path()), ["set"]);
    pmof(["pool", "create", text(&set), "--kind", "blk", "--block-size", "1024"]).done();
}

/// With both lengths, whatever else is wrong with it.
#[test]
fn a_part_of_another_length_is_reported_with_both() {
    let place = directory();
    let part = place.path().join("part");
    let set = file_with(&place, "set", format!("PMEMPOOLSET\n9M {}\n", text(&part)).as_bytes());
    pmof(["pool", "create", text(&set)]).done();
    for (len_bytes, words) in [(20 * MIB, "it was extended"), (8 * MIB, "it was truncated")] {
        File::options().write(true).open(&part).unwrap().set_len(len_bytes).unwrap();
        let told = [&*format!("part has {len_bytes} bytes and should have 9437184"), words];
        for (command, code) in [("check", 3), ("sync", 1)] {
            let said = pmof(["pool", command, text(&set)]);
            let all = said.output.clone() + &said.errors;
            assert!(said.code == Some(code) && told.iter().all(|words| all.contains(words)), "{command}: {said:?}");
            assert!(!all.contains("holes"), "{said:?}");
        }
    }
    let short = file_with(&place, "short", b"0123456789");
    for command in ["info", "check", "rm", "dump"] {
        pmof(["pool", command, text(&short)])
            .failed(&["short is too short to be a pool: it has 10 bytes, the minimum is 2097152"]);
    }
}
