//! Every example as two processes, over every transport: over verbs where the environment names the two ends of a wire
//! (`PMOF_WIRE_A`, `PMOF_WIRE_B`), as the test bed's machine does, else over tcp and shm. The test bed also names directories
//! and a device for the persistent ones.

mod killed;
mod pools;
mod support;
mod wrong;

use std::{env, fs, path::Path};

use pmof::access::{Address, ConnectOptions, Medium, Memory, Peer, QueueOptions};
use support::{DATA_OFFSET, EXAMPLES, LONG, POOL_EXAMPLES, Way, both, on_persistent_memory, program, wait, ways};

#[test]
fn connection() {
    for way in ways() {
        let target = way.serve("connection", &[]);
        target.run(&[]).failed(1, &["refused: say who you are"]);
        let said = target.run(&["Ada"]).done();
        assert_eq!(said, "Good day, Ada!\nthe connection is established: true\n");
        assert_eq!(target.done(), "refused a request without a name\nAda is here\nAda has gone\n");
    }
}

#[test]
fn read_to_volatile() {
    for way in ways() {
        let (_, said) = both(&way, "read_to_volatile", &[], &[]);
        assert!(said.contains("read 53 bytes") && said.contains("while you read this."), "{said}");
        assert!(said.contains("a write is refused"), "{said}");
    }
}

#[test]
fn read_to_persistent() {
    on_persistent_memory(|way, file| {
        let (_, said) = both(way, "read_to_persistent", &[], &[file]);
        assert!(said.contains("power-failure") && said.contains("probed"), "{said}");
        let mut found = [0; 14];
        Memory::open(Path::new(file), None).unwrap().read(DATA_OFFSET, &mut found).unwrap();
        assert_eq!(&found, b"Worth keeping.");
    });
    for way in ways() {
        let (_, said) = both(&way, "read_to_persistent", &[], &[]);
        assert_eq!(said, "14 bytes in anonymous memory: visible (store, probed)\n");
    }
}

#[test]
fn write_to_persistent() {
    on_persistent_memory(|way, file| {
        let (there, said) = both(way, "write_to_persistent", &[file], &[]);
        assert_eq!(there, "there is now: written from afar\n");
        // The machines that run this have no caches that survive loss of power.
        assert!(said.contains("visible, and no more") && said.contains("after a flush: power-failure"), "{said}");
    });
}

#[test]
fn flush() {
    on_persistent_memory(|way, file| {
        let (_, said) = both(way, "flush", &[file], &["power-failure"]);
        assert!(said.ends_with("100 writes, one flush: power-failure\n"), "{said}");
        let native = way.serve[0] == "--trust-network" && file.starts_with("/dev/");
        assert_eq!(said.contains("power-failure: native-flush (cache-line write-back, probed)"), native, "{said}");
    });
    for way in ways() {
        let target = way.serve("flush", &[]);
        target.run(&["power-failure"]).failed(1, &["anonymous memory", "cannot give power-failure"]);
        drop(target);
        let (_, said) = both(&way, "flush", &[], &[]);
        assert!(said.ends_with("100 writes, one flush: visible\n"), "{said}");
        way.serve("flush", &[]).run(&["forever"]).failed(2, &["forever", "usage: flush serve"]);
    }
}

#[test]
fn many_connections() {
    for way in ways() {
        let target = way.serve("many_connections", &["2"]);
        // Two that stay, and for whom nothing is left.
        let address: Address = target.address.parse().unwrap();
        let source = env::var("PMOF_WIRE_A").ok().and_then(|address| address.parse().ok());
        let peer = Peer::towards(&address, source).unwrap();
        let queue = peer.completion_queue(QueueOptions::default()).unwrap();
        let options = ConnectOptions::default().source(source);
        let stay = [(); 2].map(|()| peer.connect(&address, &queue, &options).unwrap());
        target.run(&["late"]).failed(1, &["as many connections as it may have"]);
        let [first, second] = stay;
        assert!(first.close(LONG));
        // Now there is room for one.
        let answers = target.run(&["Ada"]).done();
        assert_eq!(answers, "answered with 3 bytes\n".repeat(3));
        drop(second);
        let there = target.done();
        assert_eq!(there.matches("says: Ada").count(), 3, "{there}");
        assert!(there.starts_with("full: refused one more\n") && there.ends_with("served 2\n"), "{there}");
    }
}

#[test]
fn append_log() {
    let lines = |word: &str| (1..=10).map(|number| format!("{word} {number}\n")).collect::<Vec<_>>().concat();
    on_persistent_memory(|way, file| {
        let memory = || Memory::open(Path::new(file), None).unwrap();
        if Path::new(file).exists() {
            // The device may hold what another example wrote.
            memory().store(DATA_OFFSET, &[0; 8]).unwrap();
        }
        let (there, said) = both(way, "append_log", &[file], &["one"]);
        assert_eq!(said, "appended 10 entries: power-failure\n");
        assert_eq!(there, format!("0 entries were there\n{}", lines("one")));
        let (there, _) = both(way, "append_log", &[file], &["two"]);
        let entries = [lines("one"), lines("two")].concat();
        assert_eq!(there, format!("10 entries were there\n{entries}"));
        let (mut tail, mut bytes) = ([0; 8], vec![0; entries.len()]);
        memory().read(DATA_OFFSET, &mut tail).unwrap();
        memory().read(DATA_OFFSET + 64, &mut bytes).unwrap();
        assert_eq!(u64::from_le_bytes(tail), entries.len() as u64);
        assert_eq!(bytes, entries.as_bytes());

        // A tail that points nowhere is seen before anybody follows it.
        memory().store(DATA_OFFSET, &u64::MAX.to_le_bytes()).unwrap();
        let damaged = program("append_log").arg("serve").args(&way.serve).arg(file).spawn().unwrap();
        wait(damaged).failed(1, &["the log is damaged"]);
    });
}

#[test]
fn a_log_fills_up() {
    let way = Way::tcp();
    way.serve("append_log", &[]).run(&[&"x".repeat(8000)]).failed(1, &["the log is full"]);
}

#[test]
fn logging() {
    for way in ways() {
        let target = way.serve("logging", &["info"]);
        let said = target.run(&["debug"]).done();
        let there = target.done();
        let has = |text: &str, words: &[&str]| {
            let is_there = text.lines().any(|line| words.iter().all(|word| line.contains(word)));
            assert!(is_there, "no line with {words:?}: {said} {there}");
        };
        has(&said, &["WARN pmof::connection", "was not made", "rejected"]);
        has(&said, &["INFO pmof::connection", "is established"]);
        has(&said, &["DEBUG pmof::flush", "flushes of anonymous memory to visible go by "]);
        if !said.contains("go by native-flush") {
            has(&said, &["DEBUG pmof::flush", "not by native-flush: "]);
        }
        assert_eq!(said.matches("go by").count(), 1, "it is told once: {said}");
        has(&there, &["WARN pmof::connection", "was not made", "rejected"]);
        has(&there, &["INFO pmof::connection", "is established"]);
        has(&there, &["WARN pmof::connection", "ended", "lost"]);
        way.serve("logging", &["error"]).run(&["loud"]).failed(2, &["loud", "usage: "]);
    }
}

#[test]
fn messages() {
    for way in ways() {
        let (there, said) = both(&way, "messages", &[], &["50"]);
        assert_eq!(there, "50 times ping\n");
        assert!(said.starts_with("50 times pong, "), "{said}");
    }
}

#[test]
fn shared_receives() {
    for way in ways() {
        let target = way.serve("shared_receives", &["2"]);
        for child in ["Ada", "Bob"].map(|word| target.start(&[word])) {
            assert_eq!(wait(child).done(), "sent 5 messages, and was thanked\n");
        }
        let there = target.done();
        for word in ["Ada", "Bob"] {
            // Those of one connection come in order, those of two in any.
            let of_it: Vec<_> = there.lines().filter(|line| line.contains(word)).collect();
            let (connection, _) = of_it[0].split_once(':').unwrap();
            let expected: Vec<_> = (1..=5).map(|number| format!("{connection}: {word} {number}")).collect();
            assert_eq!(of_it, expected, "{there}");
        }
    }
}

#[test]
fn gpspm_flush() {
    on_persistent_memory(|way, file| {
        let (there, said) = both(way, "gpspm_flush", &[file], &[]);
        assert_eq!(there, "wrote back bytes 0 to 23\n");
        assert_eq!(said, "23 bytes survive loss of power\n");
    });
    for way in ways() {
        let (_, said) = both(&way, "gpspm_flush", &[], &[]);
        assert!(said.starts_with("23 bytes survive no loss of power"), "{said}");
    }
}

#[test]
fn send_with_immediate() {
    for way in ways() {
        let (there, said) = both(&way, "send_with_immediate", &[], &[]);
        assert_eq!(there, "an order: two teas\nan order: one coffee\nthe end, in 0 bytes\n");
        assert_eq!(said, "sent two orders and the end\n");
    }
}

#[test]
fn write_with_immediate() {
    for way in ways() {
        let (there, said) = both(&way, "write_with_immediate", &[], &[]);
        assert_eq!(there, "slot 2: written to 2\nslot 1: written to 1\nslot 0: the last one\n");
        assert_eq!(said, "filled 3 slots\n");
    }
}

#[test]
fn separate_receive_queue() {
    for way in ways() {
        let (_, said) = both(&way, "separate_receive_queue", &[], &[]);
        assert_eq!(said, "sent 20 numbers, and what came back adds up to 190\n");
    }
}

#[test]
fn every_example_is_tested_listed_and_short() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let Ok(sources) = fs::read_dir(package.join("examples")) else {
        skip_report::skipped!("the sources are not on this machine");
        return;
    };
    let mut files: Vec<_> = sources.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect();
    files.sort();
    let names: Vec<_> = files.iter().map(|file| file.file_stem().unwrap().to_str().unwrap()).collect();
    let mut tested: Vec<_> = EXAMPLES.map(|(name, _)| name).into_iter().chain(POOL_EXAMPLES).collect();
    tested.sort_unstable();
    assert_eq!(names, tested);
    let pages =
        ["README.md", "docs/examples.md"].map(|page| fs::read_to_string(package.join("../..").join(page)).unwrap());
    for (file, name) in files.iter().zip(names) {
        let lines = fs::read_to_string(file).unwrap().lines().count();
        assert!(lines < 120, "{name} has {lines} lines");
        let is_listed = pages.iter().any(|page| page.contains(&format!("`{name}`")));
        assert!(is_listed, "neither README.md nor docs/examples.md lists {name}");
    }
}
