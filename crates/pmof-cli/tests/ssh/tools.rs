//! `pmof pool` on pool sets with replicas on other machines, through a command in ssh's place.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::PathBuf,
    process::Output,
};

use rustix::fs::{FlockOperation, flock};

use crate::support::Stage;

const MIB: u64 = 1 << 20;

/// A set of one local replica and two remote ones, made.
struct Fixture {
    stage: Stage,
}

impl Fixture {
    fn new() -> Self {
        let fixture = Self { stage: Stage::local() };
        for name in ["a", "b"] {
            let text = format!("PMEMPOOLSET\n12M {}\n", fixture.path(name).display());
            fs::write(fixture.stage.root().join(format!("{name}.set")), text).unwrap();
        }
        fixture.write("set", "REPLICA host-a a.set\nREPLICA host-b b.set\n");
        fixture.run(&["create", "set"]);
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.stage.directory.path().join(name)
    }

    fn write(&self, name: &str, more: &str) {
        let text = format!("PMEMPOOLSET\n9M {}\n2M {}\n{more}", self.path("one").display(), self.path("two").display());
        fs::write(self.path(name), text).unwrap();
    }

    /// Runs `pmof pool`; names of set files stand for their paths.
    fn pool(&self, arguments: &[&str]) -> Output {
        let is_set = |argument: &str| ["set", "fewer"].contains(&argument);
        let path = |argument: &str| self.path(argument).display().to_string();
        let whole = |argument: &&str| if is_set(argument) { path(argument) } else { (*argument).to_owned() };
        let arguments: Vec<_> = arguments.iter().map(whole).collect();
        let all: Vec<_> = ["pool"].into_iter().chain(arguments.iter().map(String::as_str)).collect();
        self.stage.pmof(&all)
    }

    /// It succeeds: what it prints.
    fn run(&self, arguments: &[&str]) -> String {
        let output = self.pool(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// It fails: what it prints, and its words.
    fn fail(&self, arguments: &[&str]) -> [String; 2] {
        let output = self.pool(arguments);
        let is_told = matches!(output.status.code(), Some(1 | 3));
        assert!(is_told, "{arguments:?}: {:?}: {}", output.status, String::from_utf8_lossy(&output.stdout));
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap())
    }

    /// Hosts whose name has this in it cannot be reached from now on.
    fn away(&self, host: &str) {
        let gone = format!("case \"$*\" in *{host}*) echo 'No route to host' >&2; exit 255;; esac");
        fs::write(self.path("ssh"), format!("#!/bin/sh\n{gone}\nfor command; do :; done\nexec sh -c \"$command\"\n"))
            .unwrap();
    }

    fn poke(&self, name: &str, offset: u64) {
        File::options().write(true).open(self.path(name)).unwrap().write_all_at(&[0xee], offset).unwrap();
    }
}

/// librpmem's tools open the pool, say that it is synchronized, and later restore the wrong byte.
#[test]
fn a_flipped_byte_of_a_remote_replica_is_found_and_made_good() {
    let fixture = Fixture::new();
    assert!(fixture.run(&["check", "set"]).contains("3 replicas are equal"));
    fixture.poke("b", 8 * MIB + 5);
    let [printed, _] = fixture.fail(&["check", "set", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(report["replicas"][2]["mismatches"][0]["offset"], 8 * MIB + 5);
    assert_eq!((&report["replicas"][1]["mismatch_count"], &report["is_sound"]), (&0.into(), &false.into()));
    let [dry, _] = fixture.fail(&["sync", "set", "--dry-run"]);
    assert!(dry.contains("replica 2: would be made equal to replica 0, 64.0 KiB"), "{dry}");
    assert!(fixture.fail(&["check", "set"])[1].contains("not sound"));
    let done = fixture.run(&["sync", "set"]);
    assert!(done.contains("replica 1: unchanged\nreplica 2: made equal to replica 0"), "{done}");
    fixture.run(&["check", "set"]);
    assert_eq!(fs::read(fixture.path("a")).unwrap()[4096..], fs::read(fixture.path("b")).unwrap()[4096..]);
}

/// A target makes replicas of zeros for clients of librpmem. One that was never written is no source, wherever it is.
#[test]
fn a_replica_that_was_never_written_is_reported_and_is_no_source() {
    let fixture = Fixture::new();
    let zero = |name: &str, from: u64, to: u64| {
        let file = File::options().write(true).open(fixture.path(name)).unwrap();
        file.write_all_at(&vec![0; (to - from) as usize], from).unwrap();
    };
    zero("a", 4096, 12 * MIB);
    let [printed, _] = fixture.fail(&["check", "set", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((&report["replicas"][1]["state"], &report["replicas"][2]["state"]), (&"empty".into(), &"equal".into()));
    let [said, advice] = fixture.fail(&["check", "set"]);
    assert!(said.contains("replica 1: it is empty: it was created and never written\n"), "{said}");
    assert!(advice.contains("`pmof pool sync` repairs it"), "{advice}");
    let told = fixture.run(&["info", "set"]);
    assert!(told.contains("contents   replica 1 was created and never written\n"), "{told}");
    assert!(fixture.fail(&["sync", "set", "--from", "1"])[1].contains("but another one holds data"));
    let done = fixture.run(&["sync", "set"]);
    assert!(done.contains("replica 1: restored from replica 0, "), "{done}");
    // The first one, and one that is damaged by itself.
    zero("one", 4096, 9 * MIB);
    zero("two", 4096, 2 * MIB);
    zero("b", 0x30_2000, 0x30_2400);
    let told = fixture.pool(&["info", "set"]);
    assert_eq!(told.status.code(), Some(3));
    assert!(
        String::from_utf8_lossy(&told.stderr).contains("replica 2 is not sound: its heap's head is zero"),
        "{told:?}"
    );
    let done = fixture.run(&["sync", "set"]);
    assert!(done.contains("replica 0: restored from replica 1, ") && done.contains("replica 2: restored"), "{done}");
    fixture.run(&["check", "set"]);
}

#[test]
fn a_lost_replica_comes_back_from_the_others_wherever_it_was() {
    let fixture = Fixture::new();
    // Beyond what a new pool has: in all of them, through the tool itself.
    fixture.poke("one", 7 * MIB);
    fixture.run(&["sync", "set", "--from", "0"]);
    fs::remove_file(fixture.path("a")).unwrap();
    let [said, _] = fixture.fail(&["check", "set"]);
    assert!(said.contains("replica 1: on host-a: the part ") && said.contains("a is missing\n"), "{said}");
    assert!(fixture.run(&["sync", "set"]).contains("replica 1: restored from replica 0"));
    fixture.run(&["check", "set"]);
    for name in ["one", "two"] {
        fs::remove_file(fixture.path(name)).unwrap();
    }
    assert!(fixture.run(&["sync", "set"]).contains("replica 0: restored from replica 1"));
    fixture.run(&["check", "set"]);
    assert_eq!(fs::read(fixture.path("one")).unwrap()[7 * MIB as usize], 0xee);
}

#[test]
fn remote_replicas_are_added_removed_and_get_features() {
    let fixture = Fixture::new();
    fixture.write("fewer", "REPLICA host-b b.set\n");
    assert!(fixture.run(&["transform", "set", "fewer"]).contains("removed replica 1 of the old set: a.set on host-a"));
    assert!(!fixture.path("a").exists() && fixture.path("b").exists());
    fixture.run(&["check", "fewer"]);
    assert!(fixture.run(&["transform", "fewer", "set"]).contains("added replica 1: a.set on host-a"));
    fixture.run(&["check", "set"]);
    let features = fixture.run(&["feature", "set", "--disable", "CHECK_BAD_BLOCKS"]);
    assert_eq!(features, "CKSUM_2K\nSHUTDOWN_STATE\n");
    fixture.run(&["check", "set"]);
    fixture.run(&["rm", "set"]);
    assert!(["one", "two", "a", "b"].iter().all(|name| !fixture.path(name).exists()));
}

#[test]
fn a_lost_host_is_left_out_and_what_it_holds_is_refused_later() {
    let fixture = Fixture::new();
    fixture.write("fewer", "REPLICA host-a a.set\n");
    fixture.away("host-b");
    let [_, error] = fixture.fail(&["transform", "set", "fewer"]);
    assert!(error.contains("replica 2, which is to be removed, cannot be reached; "), "{error}");
    assert!(error.contains("No route to host") && error.contains("`--lost host-b`"), "{error}");
    let said = fixture.run(&["transform", "set", "fewer", "--lost", "host-b", "--dry-run"]);
    assert!(said.starts_with("would leave replica 2 of the old set: b.set on host-b; its files stay"), "{said}");
    let report = fixture.run(&["transform", "set", "fewer", "--lost", "host-b", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!([&report["added"], &report["removed"], &report["left"]].map(ToString::to_string), ["[]", "[]", "[2]"]);
    fixture.run(&["check", "fewer"]);
    fixture.away("nobody");
    assert!(fixture.path("b").exists());
    // The pool is used without it.
    for name in ["one", "a"] {
        fixture.poke(name, 8 << 20);
    }
    let [_, error] = fixture.fail(&["transform", "fewer", "set"]);
    assert!(error.contains("b.set on host-b is of this pool already") && error.contains("it is stale"), "{error}");
    assert!(fixture.fail(&["check", "set"])[1].contains("not sound"));
    // A host that answers, and refuses, is not lost.
    fixture.write("old", "REPLICA host-a a.set\n");
    fixture.write("fewer", "");
    let held = File::open(fixture.path("a")).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    let old = fixture.path("old").display().to_string();
    let [_, error] = fixture.fail(&["transform", &old, "fewer"]);
    assert!(error.contains("in use") && !error.contains("--lost"), "{error}");
}

/// Of what is broken on another machine the same is told as of what is broken here, and where it is.
#[test]
fn damage_is_reported_in_the_same_words_here_and_on_another_host() {
    let fixture = Fixture::new();
    let digits = |text: &str| text.chars().filter(|character| !character.is_ascii_hexdigit()).collect::<String>();
    for (offset, words) in [
        (30, "its checksum is 0x"),
        (3000, "byte 3000 must be zero"),
        (4200, "the checksum of its descriptor is wrong"),
    ] {
        let told = [("one", 0, ""), ("a", 1, if offset < 4096 { "on host-a: " } else { "a.set on host-a: " })].map(
            |(name, index, host)| {
                let whole = fs::read(fixture.path(name)).unwrap();
                fixture.poke(name, offset);
                let [printed, _] = fixture.fail(&["check", "set", "--json"]);
                let report: serde_json::Value = serde_json::from_str(&printed).unwrap();
                let problem = report["replicas"][index]["problems"][0].as_str().unwrap().to_owned();
                assert!(fixture.fail(&["check", "set"])[0].contains(&problem));
                fs::write(fixture.path(name), whole).unwrap();
                assert!(problem.contains(words) && problem.starts_with(host), "{problem}");
                // What is in the parts lies behind the header, which is told of either.
                assert_eq!(
                    problem.contains("(behind it: obj; the beginning of its contents is intact)"),
                    offset < 4096
                );
                problem
            },
        );
        if offset < 4096 {
            let [here, there] = &told;
            let there = there.trim_start_matches("on host-a: ");
            let [here, there] = [(here, "one"), (&there.to_owned(), "a")]
                .map(|(text, name)| digits(&text.replace(fixture.path(name).to_str().unwrap(), "PART")));
            assert_eq!(here, there);
        } else {
            assert_eq!(told[1], "a.set on host-a: the checksum of its descriptor is wrong");
        }
    }
    fixture.run(&["check", "set"]);
}

#[test]
fn a_host_that_cannot_be_reached_is_reported_and_nothing_is_made_anew() {
    let fixture = Fixture::new();
    fixture.away("host");
    let [said, error] = fixture.fail(&["check", "set"]);
    assert!(said.contains("replica 1: not checked: ") && said.contains("No route to host"), "{said}");
    assert!(error.contains("replica 1 (a.set on host-a), replica 2 (b.set on host-b)"), "{error}");
    let [_, error] = fixture.fail(&["sync", "set"]);
    assert!(error.contains("replica 1") && error.contains("No route to host"), "{error}");
}

/// The states of the others are told all the same.
#[test]
fn with_a_host_away_the_other_replicas_are_checked_and_described() {
    let fixture = Fixture::new();
    fixture.away("host-b");
    let [said, error] = fixture.fail(&["check", "set"]);
    assert!(
        said.contains("replica 0: sound by itself\nreplica 1: equal to replica 0\nreplica 2: not checked: "),
        "{said}"
    );
    assert!(error.contains("set: not checked: replica 2 (b.set on host-b); the rest is sound"), "{error}");
    let json = |arguments: &[&str]| {
        let [printed, _] = fixture.fail(arguments);
        serde_json::from_str::<serde_json::Value>(&printed).unwrap()
    };
    let report = json(&["check", "set", "--json"]);
    let states = [0, 1, 2].map(|index| report["replicas"][index]["state"].as_str().unwrap());
    assert_eq!((states, &report["is_sound"]), (["sound", "equal", "not_checked"], &false.into()));
    let last = &report["replicas"][2];
    assert!(last["node"] == "host-b" && last["reason"].as_str().unwrap().contains("No route to host"), "{last}");
    assert!(report["sync_refusal"].as_str().unwrap().contains("replica 2"), "{report}");
    fixture.poke("a", 8 * MIB + 5);
    let [said, error] = fixture.fail(&["check", "set"]);
    assert!(
        said.contains("replica 1: contents differ at offset") && error.contains("the rest is not sound"),
        "{error}"
    );

    let [said, error] = fixture.fail(&["info", "set"]);
    assert!(said.contains("kind       obj") && said.contains("replica 1  a.set on host-a, 12.0 MiB"), "{said}");
    assert!(said.contains("replica 2  b.set on host-b\n             not reached: "), "{said}");
    assert!(error.contains("replica 2, b.set on host-b, was not reached: ") && error.contains("No route"), "{error}");
    let report = json(&["info", "set", "--json"]);
    let remote = |index: usize| &report["sets"][0]["replicas"][index]["remote"];
    assert_eq!([1, 2].map(|index| remote(index)["state"].as_str().unwrap()), ["sound", "not_reached"]);

    // It is back; one of the others is in use, which is no defect, and one is broken.
    fixture.away("nobody");
    assert!(!fixture.run(&["info", "set"]).contains("not reached"));
    let held = File::open(fixture.path("a")).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    assert!(fixture.run(&["info", "set"]).contains("is in use"));
    drop(held);
    fixture.poke("b", 30);
    let [said, error] = fixture.fail(&["info", "set"]);
    assert!(said.contains("on host-b: the header of ") && error.contains("replica 2, b.set on host-b, is not sound"));
}

/// Parts and hosts are looked at first, and held until all of them can go.
#[test]
fn all_replicas_are_removed_or_none_is() {
    let fixture = Fixture::new();
    let nothing_goes = |arguments: &[&str], words: &[&str]| {
        for arguments in [arguments.to_vec(), [arguments, &["--dry-run"]].concat()] {
            let [_, error] = fixture.fail(&arguments);
            assert!(words.iter().all(|word| error.contains(word)), "{arguments:?}: {error}");
            assert!(error.contains("nothing was removed"), "{arguments:?}: {error}");
            assert!(["one", "two", "a"].iter().all(|name| fixture.path(name).exists()), "{arguments:?}");
        }
    };
    fs::rename(fixture.path("b"), fixture.path("away")).unwrap();
    nothing_goes(&["rm", "set"], &["replica 2", "missing", "--force"]);
    fixture.run(&["rm", "set", "--force", "--dry-run"]);
    fs::rename(fixture.path("away"), fixture.path("b")).unwrap();

    let held = File::open(fixture.path("b")).unwrap();
    flock(&held, FlockOperation::LockShared).unwrap();
    nothing_goes(&["rm", "set"], &["replica 2", "in use"]);
    nothing_goes(&["rm", "set", "--force"], &["replica 2", "in use"]);
    drop(held);

    fixture.away("host-b");
    nothing_goes(&["rm", "set"], &["replica 2", "No route to host"]);
    nothing_goes(&["rm", "set", "--force"], &["replica 2", "No route to host", "out of the pool set file"]);
    fixture.away("nobody");

    // What is wrong with each is told.
    fs::remove_file(fixture.path("a")).unwrap();
    fs::remove_file(fixture.path("two")).unwrap();
    let [_, error] = fixture.fail(&["rm", "set"]);
    assert!(error.contains("replica 0: ") && error.contains("replica 1: "), "{error}");
    assert!(fixture.path("b").exists() && fixture.path("one").exists());
    fixture.run(&["rm", "set", "--force"]);
    assert!(["one", "b"].iter().all(|name| !fixture.path(name).exists()));
}

/// What is here goes last: a host whose connection is lost between the look and the removal leaves it.
#[test]
fn nothing_here_is_removed_when_a_host_is_lost_meanwhile() {
    let fixture = Fixture::new();
    let ssh = fs::read_to_string(fixture.path("ssh")).unwrap();
    // The first host's target dies when the last one is looked at.
    let dies = "case \"$*\" in *host-a*) echo $$ >\"$0.a\";; *host-b*) kill -9 \"$(cat \"$0.a\")\";; esac\n";
    fs::write(fixture.path("ssh"), ssh.replacen('\n', &format!("\n{dies}"), 1)).unwrap();
    let [_, error] = fixture.fail(&["rm", "set"]);
    assert!(error.contains("replica 1") && !error.contains("after these were removed"), "{error}");
    assert!(["one", "two", "a", "b"].iter().all(|name| fixture.path(name).exists()), "{error}");
}
