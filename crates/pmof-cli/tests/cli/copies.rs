//! Copies that succeed come back as they went; copies that were damaged are told.

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
    path::Path,
    process::Command,
    time::Instant,
};

use pmof::{Durability, Pool};

use crate::support::{Said, Target, command, directory, file_with, files, pattern, pmof, text};

/// Copies `bytes` to a pool and back, and compares.
#[track_caller]
fn round_trip(target: &Target, name: &str, bytes: &[u8]) {
    let place = directory();
    let source = file_with(&place, "source", bytes);
    let back = place.path().join("back");
    let url = target.url(name);
    let said = pmof(["cp", text(&source), &url]).done();
    assert!(said.contains("verified") && said.contains("power-failure on 1/1: tcp://"), "{said}");
    assert!(pmof(["cp", &url, text(&back)]).done().contains("verified"));
    assert!(fs::read(&back).unwrap() == bytes, "{name}");
    assert_eq!(files(place.path()), ["back", "source"]);
}

#[test]
fn files_of_all_lengths_come_back() {
    let target = Target::start();
    let window = 4 << 20;
    for len_bytes in [0, 1, 4095, 4096, 4097, 3 << 20, window - 1, window, window + 1] {
        round_trip(&target, &format!("p{len_bytes}"), &pattern(len_bytes));
    }
    // An empty file needs a pool of one byte, and comes back empty all the same.
    let info = pmof(["pool", "info", &target.url("p0"), "--json"]).json();
    assert_eq!(info["pools"][0]["len_bytes"], 1);
    assert_eq!(info["pools"][0]["copied_file_len_bytes"], 0);
}

/// No target: the pool is a file of this machine, and one may serve it later.
#[test]
fn a_pool_in_a_file_of_this_machine_is_copied_and_described() {
    let (place, pools) = (directory(), directory());
    let (source, back) = (file_with(&place, "source", &pattern(3 << 20)), place.path().join("back"));
    let directory_url = format!("file://{}", text(pools.path()));
    let url = format!("{directory_url}/orders");
    let said = pmof(["cp", text(&source), &url, "--durability", "process-crash"]).done();
    assert!(
        said.contains("verified") && said.contains(&format!("process-crash on 1/1: {url} (local-write-back")),
        "{said}"
    );
    assert!(pmof(["cp", &url, text(&back)]).done().contains("verified"));
    assert!(fs::read(&back).unwrap() == fs::read(&source).unwrap());
    let info = pmof(["pool", "info", &url, "--json"]).json();
    assert_eq!((info["pools"][0]["url"].as_str(), info["pools"][0]["is_closed"].as_bool()), (Some(&*url), Some(true)));
    assert_eq!(pmof(["pool", "ls", &directory_url]).done().trim(), "orders");
    pmof(["pool", "rm", &url]).done();
    assert!(files(pools.path()).is_empty());
}

#[test]
fn zeroes_and_real_formats_come_back() {
    let target = Target::start();
    round_trip(&target, "zeroes", &vec![0; 5_000_000]);

    let place = directory();
    let archive = place.path().join("archive.tar");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let made = Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&sources).arg(".").status();
    let bytes = match made {
        Ok(status) if status.success() => fs::read(&archive).unwrap(),
        // Without tar, the sources behind each other.
        _ => files(&sources).iter().filter_map(|name| fs::read(sources.join(name)).ok()).flatten().collect(),
    };
    assert!(bytes.len() > 10_000);
    round_trip(&target, "archive", &bytes);

    // As SQLite lays a database out: a header, then pages of which some are empty.
    let mut database = b"SQLite format 3\0\x10\0\x01\x01\0\x40\x20\x20".to_vec();
    database.resize(4096 * 100, 0);
    for page in (0..100).step_by(3) {
        database[page * 4096 + 100..page * 4096 + 2100].copy_from_slice(&pattern(2000 + page)[..2000]);
    }
    round_trip(&target, "database", &database);
}

#[test]
fn sparse_files_stay_sparse() {
    let (target, place) = (Target::start(), directory());
    let (source, back) = (place.path().join("source"), place.path().join("back"));
    let file = File::create_new(&source).unwrap();
    file.set_len(300 << 20).unwrap();
    for (offset, len_bytes) in [(5000, 10), ((64 << 20) - 3, 2 << 20), ((299 << 20) + 17, 4096)] {
        file.write_all_at(&pattern(len_bytes), offset).unwrap();
    }
    let url = target.url("sparse");
    let report = pmof(["cp", text(&source), &url, "--json"]).json();
    assert_eq!(report["len_bytes"], 300 << 20);
    assert!(report["moved_bytes"].as_u64().unwrap() < 8 << 20, "{report}");
    pmof(["cp", &url, text(&back)]).done();
    assert!(fs::read(&source).unwrap() == fs::read(&back).unwrap());
    let metadata = fs::metadata(&back).unwrap();
    assert_eq!(metadata.len(), 300 << 20);
    assert!(metadata.blocks() * 512 < 8 << 20, "{} bytes on disk", metadata.blocks() * 512);
}

#[test]
fn a_majority_of_the_replicas_is_copied_and_compared() {
    let ([a, b, c], place) = (std::array::from_fn(|_| Target::start()), directory());
    let bytes = pattern(100_000);
    let source = file_with(&place, "source", &bytes);
    let [first, second, third] = [&a, &b, &c].map(|target| target.url("copy"));
    pmof(["cp", text(&source), &first, "--replica", &second, "--replica", &third]).done();
    drop(c);
    let back = place.path().join("back");
    let said = pmof(["cp", &first, text(&back), "--replica", &second, "--replica", &third]);
    let words = "read from 2 of the 3 replicas of the pool; left out: ";
    assert!(said.code == Some(0) && said.errors.contains(words) && said.errors.contains(&third), "{said:?}");
    assert!(fs::read(&back).unwrap() == bytes);
}

#[test]
fn replicas_are_all_written_verified_and_compared() {
    let (a, b, place) = (Target::start(), Target::start(), directory());
    let bytes = pattern(9_000_000);
    let source = file_with(&place, "source", &bytes);
    let (first, second) = (a.url("copy"), b.url("copy"));
    let report = pmof(["cp", text(&source), &first, "--replica", &second, "--json"]).json();
    assert_eq!((&report["durability"], &report["verified"]), (&"power-failure".into(), &true.into()));
    assert_eq!(report["receipt"]["replicas"].as_array().unwrap().len(), 2);
    assert_eq!(report["receipt"]["replicas"][1]["url"], second.as_str());
    assert_eq!(report["receipt"]["replicas"][1]["method"], "send-after-write");
    assert_eq!(report["receipt"]["replicas"][1]["evidence"], "probed");
    for (index, url) in [&first, &second].into_iter().enumerate() {
        let back = place.path().join(format!("back{index}"));
        let said = pmof(["cp", url, text(&back)]);
        assert!(said.code == Some(0) && !said.errors.contains("left out"), "the other one is found by it: {said:?}");
        assert!(fs::read(&back).unwrap() == bytes);
        let json = pmof(["cp", url, text(&back), "--force", "--min-replicas", "1", "--json"]);
        let warned = "{\"schema_version\":1,\"warning\":\"read from 1 of the 2 replicas of the pool";
        assert!(json.errors.starts_with(warned), "{json:?}");
        let said = pmof(["cp", url, text(&back), "--force", "--min-replicas", "1"]);
        let words = "read from 1 of the 2 replicas of the pool; these are not a majority";
        assert!(said.code == Some(0) && said.errors.contains(words), "{said:?}");
        assert!(fs::read(&back).unwrap() == bytes);
    }
    pmof(["cp", text(&source), &a.url("new"), "--min-replicas", "1"])
        .wrong_use(&["--min-replicas is for existing pools"]);
    assert!(pmof(["cp", &first, text(&place.path().join("both")), "--replica", &second]).done().contains("verified"));

    // One flipped bit in the second replica: told where, and no file is made.
    let damaged = File::options().write(true).open(b.file("copy")).unwrap();
    damaged.write_all_at(&[bytes[8_500_000] ^ 1], pmof_control::DATA_OFFSET + 8_500_000).unwrap();
    let torn = place.path().join("torn");
    pmof(["cp", &first, text(&torn), "--replica", &second])
        .differs(&["replicas differ, at byte 8500000 first", "nothing says which"]);
    assert!(!torn.exists());
    pmof(["cp", &first, text(&torn), "--replica", &second, "--no-verify"]).done();
    // Read from one of them alone: the nearest, which is either on a busy machine.
    let mut other = bytes.clone();
    other[8_500_000] ^= 1;
    assert!([&bytes, &other].contains(&&fs::read(&torn).unwrap()), "of one replica");
    // While a program has them open, replicas may differ without any damage: none are compared.
    let both = Pool::options().require(Durability::ProcessCrash).replica(&first).replica(&second);
    let writer = both.open().unwrap();
    let said = pmof(["cp", &first, text(&place.path().join("open")), "--replica", &second]);
    assert!(said.code == Some(0) && said.errors.contains("no moment of the pool"), "{said:?}");
    assert!(said.output.contains("read back, no replicas compared"), "{said:?}");
    writer.close().unwrap();
}

/// Standard output that is full takes no receipt, and the pool is there: scripts that repeat the copy would meet it.
#[test]
fn a_copy_whose_receipt_is_lost_is_made() {
    let (target, place) = (Target::start(), directory());
    let source = file_with(&place, "source", b"kept");
    for (name, json) in [("text", None), ("json", Some("--json"))] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let url = target.url(name);
        let arguments = ["cp", text(&source), &url].into_iter().chain(json);
        let output = command(arguments).stdout(full).output().unwrap();
        let said = Said::new(Instant::now(), output);
        let words = ["all was done", "standard output took no more", "do not repeat"];
        assert!(said.code == Some(4) && words.iter().all(|word| said.errors.contains(word)), "{said:?}");
        pmof(["pool", "info", &url]).done();
    }
}

#[test]
fn levels_are_given_or_refused() {
    let (target, place) = (Target::on_tmpfs(), directory());
    let source = file_with(&place, "source", b"in memory");
    let url = target.url("orders");
    let words = ["cannot copy", &url, "power-failure", "tmpfs", "--durability"];
    pmof(["cp", text(&source), &url]).failed(&words);
    assert!(target.files().is_empty());
    for level in ["process-crash", "visible"] {
        let url = target.url(level);
        let report = pmof(["cp", text(&source), &url, "--durability", level, "--json", "--busy-poll"]).json();
        let expected = if level == "visible" { "visible" } else { "process-crash" };
        assert_eq!(report["durability"], expected);
        assert_eq!(report["receipt"]["replicas"][0]["durability"], expected);
    }
    pmof(["cp", text(&source), &url, "--durability", "eternal"]).wrong_use(&["eternal", "power-failure"]);
}

#[test]
fn pools_of_other_programs_come_whole() {
    let (target, place) = (Target::start(), directory());
    let made = |name: &str, flags| {
        let options = Pool::options().replica(target.url(name)).require(Durability::ProcessCrash).user_flags(flags);
        let pool = options.create(10_000).unwrap();
        pool.persist(9_000, b"their data").unwrap();
        pool.close().unwrap();
    };
    made("theirs", *b"their own format");
    let back = place.path().join("back");
    pmof(["cp", &target.url("theirs"), text(&back)]).done();
    let bytes = fs::read(&back).unwrap();
    assert_eq!((bytes.len(), &bytes[9_000..9_010]), (10_000, &b"their data"[..]));

    // Says that it holds more than it has.
    made("liar", *b"PMOFCP\0\x01\x11\x27\0\0\0\0\0\0");
    let lie = place.path().join("lie");
    pmof(["cp", &target.url("liar"), text(&lie)]).failed(&["10001", "10000"]);
    assert_eq!(files(place.path()), ["back"]);
}

#[test]
fn an_existing_file_is_replaced_on_demand_only() {
    let (target, place) = (Target::start(), directory());
    let source = file_with(&place, "source", b"new");
    let old = file_with(&place, "old", b"old");
    let url = target.url("orders");
    pmof(["cp", text(&source), &url]).done();
    pmof(["cp", &url, text(&old)]).failed(&["old exists", "--force"]);
    fs::set_permissions(&old, fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(fs::read(&old).unwrap(), b"old");
    pmof(["cp", &url, text(&old), "--force"]).done();
    assert_eq!(fs::read(&old).unwrap(), b"new");
    assert_eq!(fs::metadata(&old).unwrap().permissions().mode() & 0o777, 0o640, "it is as it was");

    fs::create_dir(place.path().join("directory")).unwrap();
    std::os::unix::fs::symlink("source", place.path().join("link")).unwrap();
    for name in ["directory", "link"] {
        pmof(["cp", &url, text(&place.path().join(name)), "--force"]).failed(&[name, "not a regular file"]);
    }
    let part = place.path().join("part");
    let set = file_with(&place, "set", format!("PMEMPOOLSET\n9M {}\n", text(&part)).as_bytes());
    pmof(["pool", "create", text(&set)]).done();
    let before = fs::read(&part).unwrap();
    pmof(["cp", &url, text(&part), "--force"]).failed(&["a part of a pool set", "choose another name"]);
    assert!(fs::read(&part).unwrap() == before);
    let nowhere = place.path().join("missing/back");
    pmof(["cp", &url, text(&nowhere)]).failed(&["missing", "No such file"]);
    assert_eq!(files(place.path()), ["directory", "link", "old", "part", "set", "source"]);
}

/// Readers keep no writer away: whoever copies is told.
#[test]
fn a_copy_of_a_pool_that_is_being_written_says_so() {
    let (target, place) = (Target::start(), directory());
    let url = target.url("orders");
    let pool = Pool::options().require(Durability::ProcessCrash).replica(&url).create(1 << 20).unwrap();
    let copy = place.path().join("copy");
    let said = pmof(["cp", &url, text(&copy), "--json"]);
    let words = ["\"warning\":\"", "has the pool open for writing", "no moment of the pool", "pmof pool export"];
    assert!(said.code == Some(0) && words.iter().all(|word| said.errors.contains(word)), "{said:?}");
    let report: serde_json::Value = serde_json::from_str(&said.output).unwrap();
    assert!(report["written"].as_str().unwrap().contains("has the pool open for writing"), "{report}");
    pool.close().unwrap();
    let report = pmof(["cp", &url, text(&copy), "--json", "--force"]).json();
    assert!(report["written"].is_null(), "{report}");
}
