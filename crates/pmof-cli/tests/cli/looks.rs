//! Commands that only look: pools, the doctor, completions, manual pages.

use std::{fs, process::Stdio};

use pmof::{Durability, Pool};

use crate::support::{Target, command, directory, file_with, files, pmof, text};

#[test]
fn pools_are_described() {
    let (target, place) = (Target::start(), directory());
    let source = file_with(&place, "source", &[7; 5000]);
    let url = target.url("orders");
    pmof(["cp", text(&source), &url]).done();
    let theirs = target.url("theirs");
    let options = Pool::options().replica(&theirs).require(Durability::Visible).user_flags([0xab; 16]);
    let writer = options.create(1 << 20).unwrap();

    let report = pmof(["pool", "info", &url, &theirs, "--json"]).json();
    let [copy, other] = &report["pools"].as_array().unwrap()[..] else { panic!("{report}") };
    assert_eq!((&copy["url"], &copy["len_bytes"]), (&url.as_str().into(), &5000.into()));
    assert_eq!((&copy["copied_file_len_bytes"], &copy["open_by"]), (&5000.into(), &serde_json::Value::Null));
    assert_eq!(copy["file_len_bytes"], pmof_control::DATA_OFFSET + 8192);
    assert_eq!((&copy["pool_format"], &copy["opening"], &copy["is_closed"]), (&3.into(), &1.into(), &true.into()));
    assert_eq!(other["is_closed"], false);
    let levels = copy["levels"].as_array().unwrap();
    assert_eq!(levels.len(), 3);
    assert_eq!((&levels[2]["durability"], &levels[2]["mechanism"]), (&"power-failure".into(), &"file sync".into()));
    assert_eq!(other["pool_uuid"], writer.uuid().to_string());
    assert_eq!(other["user_flags"], "ab".repeat(16));
    assert!(other["open_by"].as_str().unwrap().contains("127.0.0.1:"), "{other}");

    let said = pmof(["pool", "info", &url, &theirs]).done();
    for words in [
        "a file of 4.9 KiB (5000 bytes), by pmof cp",
        "user flags abab",
        "power-failure yes",
        "127.0.0.1:",
        "closed in order",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert_eq!(pmof(["pool", "ls", &target.address]).done(), "orders\ntheirs\n");
    let list = pmof(["pool", "ls", &target.address, "--json"]).json();
    assert_eq!((&list["target"], &list["pools"][1]), (&target.address.as_str().into(), &"theirs".into()));
    let removed = pmof(["pool", "rm", &url, "--json"]).json();
    assert_eq!((&removed["removed"][0], removed["failed"].as_array().unwrap().len()), (&url.as_str().into(), 0));
    pmof(["pool", "rm", &theirs]).failed(&["open for writing by", "127.0.0.1:"]);
    writer.close().unwrap();
    assert_eq!(pmof(["pool", "rm", &theirs]).done(), format!("removed {theirs}\n"));
}

#[test]
fn the_doctor_promises_what_was_probed() {
    let place = directory();
    let disk = pmof_mem::probe(place.path()).unwrap();
    let path = text(place.path());
    let report = pmof(["doctor", path, "--json"]).json();
    let memories = report["memories"].as_array().unwrap();
    let named =
        |name: &str| memories.iter().find(|memory| memory["name"] == name).unwrap_or_else(|| panic!("{report}"));
    let there = named(path);
    assert_eq!(
        (&there["medium"], &there["durability"]),
        (&disk.kind.to_string().into(), &disk.strongest.to_string().into())
    );
    assert_eq!(there["evidence_found"].as_array().unwrap().len(), disk.evidence.len());
    assert_eq!(there["routes"][0]["durability"], disk.strongest.to_string());
    let memory = named("process memory");
    assert_eq!((&memory["medium"], &memory["durability"]), (&"anonymous memory".into(), &"visible".into()));
    assert!(report["limits"]["open_files"]["hard"].as_u64().is_some_and(|limit| limit > 0), "{report}");

    let said = pmof(["doctor"]).done();
    for words in
        ["CPU", "Persistent memory", "RDMA devices", "survive loss of power", "tcp     ", "process memory", "Limits"]
    {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(files(place.path()).is_empty(), "probing leaves nothing");
    let said = pmof(["doctor", "/no/such/place", path]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.errors.contains("/no/such/place") && said.output.contains(path), "{said:?}");
}

#[test]
fn the_doctor_names_a_place_once() {
    let place = directory();
    fs::create_dir(place.path().join("inner")).unwrap();
    std::os::unix::fs::symlink(place.path().join("inner"), place.path().join("link")).unwrap();
    let path = text(place.path());
    let names = |paths: &[&str]| -> Vec<String> {
        let report = pmof([&["doctor", "--json"], paths].concat()).json();
        let memories = report["memories"].as_array().unwrap();
        memories.iter().map(|memory| memory["name"].as_str().unwrap().to_owned()).collect()
    };
    let again = format!("{path}/inner/..");
    let found = names(&[path, path, &again, &format!("{path}/")]);
    assert_eq!(found.iter().filter(|name| name.starts_with(path)).collect::<Vec<_>>(), [path], "{found:?}");
    // A place where something is mounted: the mount and the path are one.
    let found = names(&["/dev/shm", "/dev/shm/."]);
    assert_eq!(found.iter().filter(|name| name.starts_with("/dev/shm")).count(), 1, "{found:?}");
}

#[test]
fn completions_and_pages_tell_of_all_commands_but_the_hidden() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = pmof(["completions", shell]).done();
        assert!(script.contains("doctor") && script.contains("no-verify"), "{shell}");
        assert!(!script.contains("bench-floor"), "{shell}");
    }
    pmof(["completions", "dos"]).wrong_use(&["dos", "bash"]);

    let pages = pmof(["man"]).done();
    let place = directory();
    let into = place.path().join("man1");
    assert_eq!(pmof(["man", "--dir", text(&into)]).done(), "");
    let names = files(&into);
    for name in ["pmof.1", "pmof-cp.1", "pmof-serve.1", "pmof-pool.1", "pmof-pool-info.1", "pmof-doctor.1"] {
        assert!(names.contains(&name.to_owned()), "{names:?}");
        assert!(pages.contains(&fs::read_to_string(into.join(name)).unwrap()), "{name}");
    }
    assert!(!names.iter().any(|name| name.contains("relay") || name.contains("help")), "{names:?}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let mut child = command(["man"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &*output.stderr), (Some(0), &b""[..]));
}

#[test]
fn the_bare_command_helps_and_knows_its_version() {
    pmof([""; 0]).wrong_use(&["Usage: pmof <COMMAND>", "serve", "doctor"]);
    assert_eq!(pmof(["--version"]).done(), format!("pmof {}\n", env!("CARGO_PKG_VERSION")));
    let help = pmof(["--help"]).done();
    assert!(help.contains("cp ") && !help.contains("bench-floor"), "{help}");
    pmof(["serve", "--root"]).wrong_use(&["--root"]);
    pmof(["fly"]).wrong_use(&["fly"]);
}
