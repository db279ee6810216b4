//! Pools of pool set files: made, described, checked, restored, changed, removed.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use pmof_pool_set::PoolHeader;
use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

use crate::support::{command, directory, file_with, files, pattern, pmof, text};

const MIB: u64 = 1 << 20;

/// A set of replicas with two parts each.
fn set(place: &TempDir, name: &str, replicas: &[usize]) -> PathBuf {
    let replica = |number: &usize| {
        let part = |part: usize| format!("5M {}/r{number}p{part}\n", text(place.path()));
        part(0) + &part(1)
    };
    let texts: Vec<_> = replicas.iter().map(replica).collect();
    file_with(place, name, format!("PMEMPOOLSET\nOPTION SINGLEHDR\n{}", texts.join("REPLICA\n")).as_bytes())
}

fn made(replicas: &[usize]) -> (TempDir, PathBuf) {
    let place = directory();
    let set = set(&place, "set", replicas);
    pmof(["pool", "create", text(&set), "--layout", "test"]).done();
    (place, set)
}

/// Changes one byte, whatever it is: that of a random identity may have any value.
fn poke(path: &Path, offset: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[!byte[0]], offset).unwrap();
}

#[test]
fn a_pool_is_made_described_and_removed() {
    let place = directory();
    let set = set(&place, "set", &[0, 1]);
    let dry = pmof(["pool", "create", text(&set), "--dry-run"]).done();
    assert!(dry.contains("would create replica 1: ") && dry.contains("r1p1 (5M)"), "{dry}");
    assert_eq!(files(place.path()), ["set"]);
    let report = pmof(["pool", "create", text(&set), "--json"]).json();
    assert_eq!((&report["kind"], report["replicas"].as_array().unwrap().len()), (&"obj".into(), 2));
    assert_eq!(files(place.path()), ["r0p0", "r0p1", "r1p0", "r1p1", "set"]);
    pmof(["pool", "create", text(&set)]).failed(&["r0p0", "exists"]);
    pmof(["pool", "create", text(&set), "--dry-run"]).failed(&["r0p0", "exists"]);

    let said = pmof(["pool", "info", text(&set)]).done();
    for words in
        ["obj, version 6", "SINGLEHDR, CKSUM_2K, SHUTDOWN_STATE, CHECK_BAD_BLOCKS", "replica 1", "r1p1, 5.0 MiB"]
    {
        assert!(said.contains(words), "{words}: {said}");
    }
    let report = pmof(["pool", "info", text(&set), "--json"]).json();
    let replicas = report["sets"][0]["replicas"].as_array().unwrap();
    let header = |index: usize| &replicas[index]["parts"][0]["header"];
    assert_eq!(header(0)["next_replica_uuid"], header(1)["uuid"]);
    assert_eq!(header(0)["open_for_writing"], false);
    assert!(replicas[0]["parts"][1]["header"].is_null());
    fs::remove_file(place.path().join("r1p0")).unwrap();
    let said = pmof(["pool", "info", text(&set)]);
    assert!(said.code == Some(3) && said.output.contains("is missing") && said.output.contains("r0p1"), "{said:?}");
    assert!(said.errors.contains("set is not sound: the part /") && said.errors.contains("is missing"), "{said:?}");

    for look in [&[][..], &["--dry-run"]] {
        let arguments = [&["pool", "rm", text(&set)][..], look].concat();
        pmof(arguments).failed(&["replica 1", "r1p0", "missing", "nothing was removed; `--force`"]);
    }
    assert_eq!(files(place.path()), ["r0p0", "r0p1", "r1p1", "set"], "all or nothing");
    let said = pmof(["pool", "rm", text(&set), "--force", "--dry-run"]).done();
    assert!(said.starts_with("would remove replica 0: /") && said.contains("set would still be there"), "{said}");
    let said = pmof(["pool", "rm", text(&set), "--force", "--set-file"]).done();
    assert!(said.contains("removed replica 1: /") && said.contains("removed the pool set file /"), "{said}");
    assert!(!said.contains("still"), "{said}");
    assert_eq!(files(place.path()), [""; 0]);
    pmof(["pool", "info", text(&set)]).failed(&["No such file", "name a pool set file"]);
    let (place, set) = made(&[0]);
    let said = pmof(["pool", "rm", text(&set)]).done();
    assert_eq!(files(place.path()), ["set"]);
    let left = format!("the pool set file {} is still there (`--set-file` removes it too)\n", text(&set));
    assert!(said.contains("r0p0, /") && said.ends_with(&left), "{said}");
    let other = file_with(&place, "letter", &vec![7; 100_000]);
    pmof(["pool", "info", text(&other)]).failed(&["neither a pool set file nor a part"]);
}

#[test]
fn a_damaged_header_of_a_single_file_is_reported_with_what_is_intact() {
    let place = directory();
    for (kind, name) in [("obj", "objects"), ("log", "journal")] {
        let part = place.path().join(name);
        let set = file_with(&place, "set", format!("PMEMPOOLSET\n9M {}\n", text(&part)).as_bytes());
        pmof(["pool", "create", text(&set), "--kind", kind]).done();
        poke(&part, 30);
        for command in ["info", "check", "dump", "feature"] {
            pmof(["pool", command, text(&part)]).failed(&[kind, "header is damaged", "checksum", "is intact"]);
        }
    }
    // Not even its name is left.
    let part = place.path().join("objects");
    let file = File::options().write(true).open(&part).unwrap();
    file.write_all_at(&[0; 4096], 0).unwrap();
    pmof(["pool", "info", text(&part)]).failed(&["obj", "header is damaged", "all zeros", "is intact"]);
    file.write_all_at(&[9; 100], 4096).unwrap();
    pmof(["pool", "info", text(&part)]).failed(&["neither a pool set file nor a part"]);
    poke(&place.path().join("journal"), 4097);
    pmof(["pool", "info", text(&place.path().join("journal"))]).failed(&["log", "does not take up the pool"]);
}

#[test]
fn one_file_under_two_names_is_reported_by_info_too() {
    let (place, set) = made(&[0]);
    std::os::unix::fs::symlink(place.path(), place.path().join("again")).unwrap();
    let here = text(place.path());
    let other =
        format!("PMEMPOOLSET\n5M {here}/r0p0\n5M {here}/r0p1\nREPLICA\n5M {here}/again/r0p0\n5M {here}/again/r0p1\n");
    fs::write(&set, other).unwrap();
    let said = pmof(["pool", "info", text(&set)]);
    assert!(said.code == Some(3) && said.errors.contains("are one file"), "{said:?}");
    assert!(said.output.contains("are one file"), "{said:?}");
}

/// What a kill leaves of a creation before its parts have any bytes.
#[test]
fn an_empty_part_is_reported_as_what_it_is() {
    let place = directory();
    let set = set(&place, "set", &[0]);
    file_with(&place, "r0p1", b"");
    pmof(["pool", "create", text(&set)]).failed(&[
        "r0p1 has 0 bytes",
        "the program that created it was killed",
        "remove it",
    ]);
}

/// As a target makes it for a client of librpmem that then never writes.
#[test]
fn a_pool_that_was_never_written_is_reported_as_such() {
    let (place, set) = made(&[0, 1]);
    let zeros = vec![0; 5 << 20];
    for part in ["r0p0", "r0p1", "r1p0", "r1p1"] {
        let start = if part.ends_with("p0") { 4096 } else { 0 };
        let file = File::options().write(true).open(place.path().join(part)).unwrap();
        file.write_all_at(&zeros[start..], start as u64).unwrap();
    }
    let said = pmof(["pool", "check", text(&set)]).done();
    assert!(said.contains("all 2 replicas are empty: created and never written"), "{said}");
    let report = pmof(["pool", "check", text(&set), "--json"]).json();
    assert_eq!((&report["is_sound"], &report["replicas"][1]["state"]), (&true.into(), &"empty".into()));
    let told = pmof(["pool", "info", text(&set)]).done();
    assert!(told.contains("  contents   replica 0 was created and never written\n"), "{told}");
    assert_eq!(pmof(["pool", "info", text(&set), "--json"]).json()["sets"][0]["replicas"][1]["contents"], "empty");
    // A file of zeros is not a pool.
    let blank = file_with(&place, "blank", &vec![0; 8 << 20]);
    pmof(["pool", "info", text(&blank)]).failed(&["neither a pool set file nor a part"]);
}

/// A block table of one arena, in a pool of blocks and without a pool.
#[test]
fn a_damaged_block_table_is_found() {
    let place = directory();
    let part = place.path().join("blocks");
    let set = file_with(&place, "set", format!("PMEMPOOLSET\n20M {}\n", text(&part)).as_bytes());
    pmof(["pool", "create", text(&set), "--kind", "blk"]).done();
    pmof(["pool", "check", text(&set)]).done();
    poke(&part, 8200);
    let said = pmof(["pool", "check", text(&set)]);
    assert!(said.code == Some(3) && said.output.contains("head of its block table"), "{said:?}");
    assert!(said.errors.contains("no other replica"), "{said:?}");

    let mut info = vec![0; 4096];
    info[..14].copy_from_slice(b"BTT_ARENA_INFO");
    let fields = [
        (56, 512_u64),
        (60, 10),
        (64, 512),
        (68, 11),
        (72, 1),
        (88, 4096),
        (96, 1 << 20),
        (104, 2 << 20),
        (112, (20 << 20) - 8192),
    ];
    for (at, number) in fields {
        info[at..at + 4].copy_from_slice(&(number as u32).to_le_bytes());
    }
    // Fletcher's, as PMDK has it.
    let words = info.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
    let (low, high) = words.fold((0_u32, 0_u32), |(low, high), word| {
        let low = low.wrapping_add(word);
        (low, high.wrapping_add(low))
    });
    info[4088..4092].copy_from_slice(&low.to_le_bytes());
    info[4092..].copy_from_slice(&high.to_le_bytes());
    let bare = file_with(&place, "bare", &vec![0; 20 << 20]);
    let file = File::options().write(true).open(&bare).unwrap();
    file.write_all_at(&info, 4096).unwrap();
    file.write_all_at(&info, (20 << 20) - 4096).unwrap();
    file.write_all_at([0, 10, 10, 1].map(u32::to_le_bytes).as_flattened(), 4096 + (2 << 20)).unwrap();
    let said = pmof(["pool", "check", text(&bare)]).done();
    assert!(said.contains("a block table (BTT) that is sound by itself"), "{said}");
    assert_eq!(pmof(["pool", "check", text(&bare), "--json"]).json()["is_sound"], true);
    pmof(["pool", "info", text(&bare)]).failed(&["block table (BTT) and not a pool", "pool check"]);
    poke(&bare, 4096 + (2 << 20) + 4);
    pmof(["pool", "check", text(&bare)]).differs(&["block table (BTT), is not sound", "write log"]);
}

#[test]
fn a_wrong_set_file_is_reported_with_its_line() {
    let place = directory();
    let set = file_with(&place, "set", b"PMEMPOOLSET\n20M relative\n");
    for command in ["create", "check", "sync", "info", "rm"] {
        pmof(["pool", command, text(&set)]).failed(&["set:2: ", "must be absolute"]);
    }
}

#[test]
fn a_flipped_byte_is_found_and_made_good() {
    let (place, set) = made(&[0, 1, 2]);
    let said = pmof(["pool", "check", text(&set)]).done();
    assert!(said.contains("3 replicas are equal"), "{said}");
    poke(&place.path().join("r2p1"), 3 * MIB);
    let said = pmof(["pool", "check", text(&set)]);
    assert_eq!(said.code, Some(3));
    let place_told = format!("replica 2: contents differ at offset {}, 1 byte, byte {} of part 1", 8 * MIB, 3 * MIB);
    assert!(said.output.contains(&place_told) && said.output.contains("r2p1)"), "{said:?}");
    assert!(said.errors.contains("is not sound"), "{said:?}");
    let said = pmof(["pool", "check", text(&set), "--json"]);
    let report: serde_json::Value = serde_json::from_str(&said.output).unwrap();
    let mismatch = &report["replicas"][2]["mismatches"][0];
    assert_eq!(
        (&report["is_sound"], &mismatch["part"], &mismatch["part_offset"]),
        (&false.into(), &1.into(), &(3 * MIB).into())
    );

    let dry = pmof(["pool", "sync", text(&set), "--dry-run", "--json"]);
    dry.differs(&["a sync would change replicas of"]);
    let dry: serde_json::Value = serde_json::from_str(&dry.output).unwrap();
    let done = pmof(["pool", "sync", text(&set), "--json"]).json();
    assert_eq!(dry["replicas"], done["replicas"], "a dry run is true");
    assert_eq!(done["replicas"][1]["copied_blocks"], 1);
    pmof(["pool", "check", text(&set)]).done();
    let said = pmof(["pool", "sync", text(&set)]).done();
    assert_eq!(said, "replica 1: unchanged\nreplica 2: unchanged\n");
    assert_eq!(pmof(["pool", "sync", text(&set), "--dry-run"]).done(), said);
}

/// Files that were made beforehand, as for space in one piece, become parts, and a pool that is in use is not there to be made.
#[test]
fn blank_files_are_taken_and_features_that_nobody_knows_are_shown() {
    let place = directory();
    let set = set(&place, "set", &[0, 1]);
    fs::write(place.path().join("r0p0"), vec![0; 5 << 20]).unwrap();
    File::create(place.path().join("r1p0")).unwrap().set_len(5 * MIB).unwrap();
    // As an image of a disk begins.
    fs::write(place.path().join("r1p1"), [vec![0; 4 << 20], vec![0xab; 1 << 20]].concat()).unwrap();
    let told = ["r1p1 exists", "it has zeros for a header and holds something behind them, from byte 4194304 on"];
    pmof(["pool", "create", text(&set), "--dry-run"]).failed(&told);
    pmof(["pool", "create", text(&set)]).failed(&told);
    assert!(fs::read(place.path().join("r1p1")).unwrap().ends_with(&[0xab; 9]));
    fs::write(place.path().join("r1p1"), vec![0; 5 << 20]).unwrap();
    pmof(["pool", "create", text(&set), "--dry-run"]).done();
    pmof(["pool", "create", text(&set)]).done();
    pmof(["pool", "check", text(&set)]).done();
    let read = |name: &str| fs::read(place.path().join(name)).unwrap();
    assert!(read("r0p1") == read("r1p1"), "nothing is left of what was there");
    let held = File::open(place.path().join("r1p0")).unwrap();
    flock(&held, FlockOperation::LockShared).unwrap();
    pmof(["pool", "create", text(&set)]).failed(&["r0p0", "exists"]);
    pmof(["pool", "rm", text(&set)]).failed(&["r1p0", "in use", "nothing was removed"]);
    drop(held);

    let said = pmof(["pool", "info", text(&set)]).done();
    assert!(!said.contains("unknown"), "{said}");
    let part = File::options().read(true).write(true).open(place.path().join("r0p0")).unwrap();
    let mut header = [0; 4096];
    part.read_exact_at(&mut header, 0).unwrap();
    let mut header = PoolHeader::decode(&header).unwrap();
    (header.features.incompat, header.features.ro_compat) = (header.features.incompat | 1 << 30, 5);
    part.write_all_at(&header.encode(), 0).unwrap();
    let said = pmof(["pool", "info", text(&set)]).done();
    assert!(said.contains("CHECK_BAD_BLOCKS, incompat 0x40000000 (unknown), ro_compat 0x5 (unknown)"), "{said}");
    let report = pmof(["pool", "info", text(&set), "--json"]).json();
    let unknown = &report["sets"][0]["replicas"][0]["parts"][0]["header"]["unknown_features"];
    assert_eq!((&unknown["incompat"], &unknown["compat"]), (&(1 << 30).into(), &0.into()));
}

#[test]
fn bytes_that_differ_and_mean_nothing_are_reported() {
    let (place, set) = made(&[0, 1]);
    poke(&place.path().join("r1p0"), 7000);
    let said = pmof(["pool", "check", text(&set)]).done();
    assert!(said.contains("replica 1: 1 byte differs in the runtime state of a program"), "{said}");
    assert!(said.contains("2 replicas are equal in all that is in use"), "{said}");
    let report = pmof(["pool", "check", text(&set), "--json"]).json();
    let replica = &report["replicas"][1];
    assert_eq!((&replica["runtime_differing_bytes"], &replica["unused_differing_bytes"]), (&1.into(), &0.into()));
}

#[test]
fn a_majority_is_named_and_sync_asks() {
    let (place, set) = made(&[0, 1, 2]);
    poke(&place.path().join("r0p1"), 3 * MIB);
    let said = pmof(["pool", "check", text(&set)]);
    let told = format!(
        "replicas 1 and 2 agree with each other and differ from replica 0 in 1 place, the first at offset {}",
        8 * MIB
    );
    assert!(said.code == Some(3) && said.output.contains(&told) && said.errors.contains("--from 1"), "{said:?}");
    let report: serde_json::Value =
        serde_json::from_str(&pmof(["pool", "check", text(&set), "--json"]).output).unwrap();
    assert_eq!(report["majority"]["replicas"], serde_json::json!([1, 2]));
    pmof(["pool", "sync", text(&set)]).failed(&["replicas 1 and 2", "--from", "holds what most replicas hold"]);
    pmof(["pool", "sync", text(&set), "--from", "7"]).failed(&["no replica of that number"]);
    let said = pmof(["pool", "sync", text(&set), "--from", "1"]).done();
    assert!(said.contains("replica 0: made equal to replica 1") && said.contains("replica 2: unchanged"), "{said}");
    assert!(pmof(["pool", "check", text(&set)]).done().contains("3 replicas are equal, "));
    let mut byte = [1];
    File::open(place.path().join("r0p1")).unwrap().read_exact_at(&mut byte, 3 * MIB).unwrap();
    assert_eq!(byte, [0], "what was flipped is as it was");
    assert!(pmof(["pool", "transform", text(&set), text(&set)]).done().contains("nothing to do"));
}

#[test]
fn a_lost_part_comes_back() {
    let (place, set) = made(&[0, 1]);
    fs::remove_file(place.path().join("r0p1")).unwrap();
    let said = pmof(["pool", "check", text(&set)]);
    assert!(said.code == Some(3) && said.output.contains("replica 0: the part"), "{said:?}");
    let said = pmof(["pool", "sync", text(&set), "--dry-run"]);
    said.differs(&["a sync would change replicas of"]);
    assert!(said.output.contains("replica 0: would be restored from replica 1; the part "), "{said:?}");
    assert!(!place.path().join("r0p1").exists());
    let said = pmof(["pool", "sync", text(&set)]).done();
    assert!(said.contains("replica 0: restored from replica 1, ") && said.ends_with("r0p1 is missing\n"), "{said}");
    pmof(["pool", "check", text(&set)]).done();
    for name in ["r0p0", "r1p0"] {
        fs::remove_file(place.path().join(name)).unwrap();
    }
    pmof(["pool", "sync", text(&set)]).failed(&["no replica is sound", "r0p0", "r1p0"]);
    let said = pmof(["pool", "check", text(&set)]);
    assert!(said.errors.contains("`pmof pool sync` cannot repair it: no replica is sound"), "{said:?}");
}

/// Both names are told, and nothing says that one can be removed.
#[test]
fn one_file_under_two_names_is_refused() {
    let (place, one) = made(&[0]);
    let names = [0, 1].map(|part| (place.path().join(format!("r0p{part}")), place.path().join(format!("r1p{part}"))));
    for (name, other) in &names {
        fs::hard_link(name, other).unwrap();
    }
    let twice = set(&place, "twice", &[0, 1]);
    let told = format!("{} and {} are one file", text(&names[0].0), text(&names[0].1));
    for command in
        [&["check"][..], &["sync"], &["sync", "--dry-run"], &["create"], &["create", "--dry-run"], &["rm", "--force"]]
    {
        pmof([&["pool"], command, &[text(&twice)]].concat()).failed(&[&told]);
    }
    pmof(["pool", "transform", text(&one), text(&twice)]).failed(&["replica 1 failed: ", &told]);
    assert!(names.iter().all(|(name, other)| name.exists() && other.exists()));
    pmof(["pool", "check", text(&one)]).done();
}

#[test]
fn replicas_are_added_and_removed() {
    let (place, one) = made(&[0]);
    let two = set(&place, "two", &[0, 1]);
    assert!(pmof(["pool", "transform", text(&one), text(&two), "--dry-run"]).done().contains("would add replica 1"));
    assert!(!place.path().join("r1p0").exists());
    assert!(pmof(["pool", "transform", text(&one), text(&two)]).done().contains("added replica 1"));
    pmof(["pool", "check", text(&two)]).done();
    let report = pmof(["pool", "transform", text(&two), text(&one), "--json"]).json();
    assert_eq!((&report["added"], &report["removed"]), (&serde_json::json!([]), &serde_json::json!([1])));
    assert!(!place.path().join("r1p0").exists());
    pmof(["pool", "check", text(&one)]).done();
}

#[test]
fn features_are_shown_and_turned() {
    let (_place, set) = made(&[0, 1]);
    let all = "SINGLEHDR\nCKSUM_2K\nSHUTDOWN_STATE\nCHECK_BAD_BLOCKS\n";
    let set = text(&set);
    assert_eq!(pmof(["pool", "feature", set]).done(), all);
    pmof(["pool", "feature", set, "--disable", "CHECK_BAD_BLOCKS", "--dry-run"]).done();
    assert_eq!(pmof(["pool", "feature", set]).done(), all);
    for feature in ["CHECK_BAD_BLOCKS", "SHUTDOWN_STATE", "CKSUM_2K"] {
        pmof(["pool", "feature", set, "--disable", feature]).done();
        pmof(["pool", "check", set]).done();
    }
    assert_eq!(pmof(["pool", "feature", set, "--json"]).json()["features"], serde_json::json!(["SINGLEHDR"]));
    pmof(["pool", "feature", set, "--enable", "SHUTDOWN_STATE"]).failed(&["needs CKSUM_2K"]);
    pmof(["pool", "feature", set, "--disable", "SINGLEHDR"]).failed(&["option of the pool set file"]);
    pmof(["pool", "feature", set, "--enable", "SPEED"]).wrong_use(&["there are SINGLEHDR, CKSUM_2K"]);
    for feature in ["CKSUM_2K", "SHUTDOWN_STATE", "CHECK_BAD_BLOCKS"] {
        pmof(["pool", "feature", set, "--enable", feature]).done();
    }
    assert_eq!(pmof(["pool", "feature", set]).done(), all);
    pmof(["pool", "check", set]).done();
}

#[test]
fn contents_are_dumped() {
    let place = directory();
    let part = place.path().join("part");
    let set = file_with(&place, "set", format!("PMEMPOOLSET\n3M {}\n", text(&part)).as_bytes());
    pmof(["pool", "create", text(&set), "--kind", "log"]).done();
    assert_eq!(pmof(["pool", "dump", text(&set)]).done(), "", "the log is empty");
    let file = File::options().write(true).open(&part).unwrap();
    file.write_all_at(b"an entry of the log", 8192).unwrap();
    file.write_all_at(&(8192_u64 + 19).to_le_bytes(), 4112).unwrap();
    assert_eq!(pmof(["pool", "dump", text(&set), "--binary"]).done(), "an entry of the log");
    let said = pmof(["pool", "dump", text(&part)]).done();
    let expected = "000000002000  61 6e 20 65 6e 74 72 79 20 6f 66 20 74 68 65 20  an entry of the \n000000002010  6c 6f 67                                         log\n";
    assert_eq!(said, expected);
    let said = pmof(["pool", "dump", text(&set), "--offset", "0", "--len", "7", "--binary"]).done();
    assert_eq!(said, "PMEMLOG");
    let output = place.path().join("out");
    pmof(["pool", "dump", text(&set), "--output", text(&output), "--binary"]).done();
    assert_eq!(fs::read(&output).unwrap(), b"an entry of the log");
    pmof(["pool", "dump", text(&set), "--output", text(&output)]).failed(&["cannot create"]);
    pmof(["pool", "dump", text(&set), "--offset", "999999999"]).failed(&["lies outside"]);
    let report = pmof(["pool", "info", text(&part), "--json"]).json();
    assert_eq!(report["sets"][0]["replicas"][0]["parts"][0]["header"]["kind"], "log");
    pmof(["pool", "check", text(&part)]).done();
    pmof(["pool", "rm", text(&part)]).done();
    assert!(!part.exists());
}

/// SIGKILL at many moments of a restoration: the replica is broken until it is whole, the source is never touched.
#[test]
fn a_killed_sync_leaves_nothing_that_passes_for_whole() {
    let place = directory();
    let part = |name: &str| format!("48M {}/{name}\n", text(place.path()));
    let contents = ["PMEMPOOLSET\n", &part("one"), "REPLICA\n", &part("two")].concat();
    let set = file_with(&place, "set", contents.as_bytes());
    pmof(["pool", "create", text(&set)]).done();
    let file = File::options().write(true).open(place.path().join("one")).unwrap();
    let bytes = pattern(40 << 20);
    file.write_all_at(&bytes, 6 << 20).unwrap();
    let (mut broken, mut whole) = (0, 0);
    for round in 0..12 {
        fs::remove_file(place.path().join("two")).unwrap();
        let mut sync = command(["pool", "sync", text(&set)]).stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(2 << (round % 10)));
        sync.kill().unwrap();
        sync.wait().unwrap();
        let checked = pmof(["pool", "check", text(&set)]);
        if checked.code == Some(0) {
            whole += 1;
        } else {
            broken += 1;
            assert!(
                checked.output.contains("replica 1: ") && !checked.output.contains("contents differ"),
                "{checked:?}"
            );
            pmof(["pool", "sync", text(&set)]).done();
            pmof(["pool", "check", text(&set)]).done();
        }
        let mut found = vec![0; bytes.len()];
        for name in ["one", "two"] {
            File::open(place.path().join(name)).unwrap().read_exact_at(&mut found, 6 << 20).unwrap();
            assert!(found == bytes, "{name} in round {round}");
        }
    }
    assert!(broken > 0, "none was killed in time: {whole}");
}
