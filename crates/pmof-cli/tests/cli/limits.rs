//! The limit of file sizes (`ulimit -f`), which ends processes that do not mind it.

use std::{fs, process::Stdio};

use crate::support::{Said, command, directory, file_with, files, pmof, text, wait_until};

const MIB: usize = 1 << 20;

/// Runs `pmof` with a limit of file sizes, in MiB.
fn limited(mib: usize, arguments: &[&str]) -> std::process::Command {
    let mut shell = std::process::Command::new("bash");
    // In units of KiB.
    let script = format!("ulimit -f {} && exec \"$0\" \"$@\"", mib << 10);
    shell.args(["-c", &script, env!("CARGO_BIN_EXE_pmof")]).args(arguments).stdin(Stdio::null());
    shell
}

fn run(mib: usize, arguments: &[&str]) -> Said {
    Said::new(std::time::Instant::now(), limited(mib, arguments).output().unwrap())
}

const WORDS: [&str; 3] = ["files of 4194304 bytes at most", "ulimit -f", "ask for less"];

#[test]
fn a_target_refuses_what_is_beyond_its_limit_and_goes_on() {
    let place = directory();
    let address = place.path().join("address");
    let root = place.path().join("pools");
    fs::create_dir(&root).unwrap();
    let output = fs::File::create(&address).unwrap();
    let arguments = ["serve", "--listen", "tcp://127.0.0.1:0", "--root", text(&root)];
    let mut target = limited(4, &arguments).stdout(output).spawn().unwrap();
    let ready = || fs::read_to_string(&address).unwrap().strip_prefix("ready ").map(|url| url.trim_end().to_owned());
    wait_until("ready", || ready().is_some_and(|url| !url.is_empty()));
    let url = format!("{}/large", ready().unwrap());
    let source = file_with(&place, "source", &vec![7; 5 * MIB]);
    let said = pmof(["cp", text(&source), &url]);
    said.failed(&[WORDS[0], WORDS[1], WORDS[2], "/pools/large would have "]);
    assert_eq!(files(&root), [""; 0], "nothing of it is left");
    let small = file_with(&place, "small", &vec![7; MIB]);
    pmof(["cp", text(&small), &format!("{}/small", ready().unwrap())]).done();
    assert_eq!(target.try_wait().unwrap(), None, "it serves on");
    target.kill().unwrap();
    target.wait().unwrap();
}

#[test]
fn commands_say_what_the_limit_is() {
    let place = directory();
    let set = file_with(&place, "set", format!("PMEMPOOLSET\n9M {}\n", text(&place.path().join("part"))).as_bytes());
    run(4, &["pool", "create", text(&set)]).failed(&WORDS);
    assert_eq!(files(place.path()), ["set"]);

    let root = directory();
    let (mut target, address) = crate::support::serve(root.path());
    let url = format!("{address}/pool");
    let source = file_with(&place, "source", &vec![7; 5 * MIB]);
    pmof(["cp", text(&source), &url]).done();
    run(4, &["cp", &url, text(&place.path().join("copy"))]).failed(&WORDS);
    assert_eq!(files(place.path()), ["set", "source"]);
    target.kill().unwrap();
    target.wait().unwrap();
    assert!(command(["--version"]).status().unwrap().success());
}

/// A replica that cannot be made anew, or added, is told before anything is removed or relinked; a dry run says so too.
#[test]
fn what_cannot_be_restored_stays_as_it_is() {
    let place = directory();
    let here = text(place.path());
    let set = |name: &str, parts: &[&str]| {
        let lines: Vec<_> = parts.iter().map(|part| format!("9M {here}/{part}\n")).collect();
        file_with(&place, name, format!("PMEMPOOLSET\n{}", lines.join("REPLICA\n")).as_bytes())
    };
    let own = set("own", &["a", "b", "c"]);
    pmof(["pool", "create", text(&own)]).done();
    let adding = set("adding", &["a", "b", "c", "d"]);
    let nowhere = set("nowhere", &["a", "c", "nowhere/d", "b"]);
    let huge = file_with(
        &place,
        "huge",
        format!("PMEMPOOLSET\n9M {here}/a\nREPLICA\n9M {here}/c\nREPLICA\n9000T {here}/d\n").as_bytes(),
    );
    let read = || ["a", "b", "c"].map(|part| fs::read(place.path().join(part)).unwrap());
    let before = read();
    for dry in [&[][..], &["--dry-run"]] {
        run(4, &[&["pool", "transform", text(&own), text(&adding)], dry].concat()).failed(&WORDS[..2]);
        pmof([&["pool", "transform", text(&own), text(&nowhere)], dry].concat()).failed(&["nowhere", "must exist"]);
        pmof([&["pool", "transform", text(&own), text(&huge)], dry].concat()).failed(&["d"]);
        assert!(read() == before, "{dry:?}");
        pmof(["pool", "check", text(&own)]).done();
    }
    // In the last replica, so that the one before it would be looked at first.
    let part = place.path().join("c");
    for len_bytes in [MIB as u64, 100] {
        fs::File::options().write(true).open(&part).unwrap().set_len(len_bytes).unwrap();
        let before = read();
        for dry in [&[][..], &["--dry-run"]] {
            run(4, &[&["pool", "sync", text(&own)], dry].concat()).failed(&WORDS[..2]);
            assert!(read() == before, "{len_bytes} {dry:?}");
        }
    }
    pmof(["pool", "sync", text(&own)]).done();
    pmof(["pool", "check", text(&own)]).done();
}
