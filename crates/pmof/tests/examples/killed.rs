//! Every example again, after SIGKILL ended it: what it said that it keeps is there, and it goes on.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::Child,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use pmof::{
    Durability, Pool, PoolOptions,
    access::{Address, Medium as _, Memory},
};

use crate::{
    pools::Two,
    support::{DATA_OFFSET, EXAMPLES, POOL_EXAMPLES, Said, directories, program, wait, ways},
};

/// Kills at different moments, the first before anything is done.
const KILLS: u64 = 6;

/// Ends a process by SIGKILL after this pause: what it printed.
fn kill_after(mut child: Child, pause: Duration) -> String {
    thread::sleep(pause);
    child.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// The same once it has printed a line.
fn kill_after_a_line(mut child: Child) -> String {
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut said = String::new();
    output.read_line(&mut said).unwrap();
    child.kill().unwrap();
    output.read_to_string(&mut said).unwrap();
    assert!(!said.is_empty(), "{:?}", wait(child));
    child.wait().unwrap();
    said
}

/// Runs a program of a pool. A target may still hold the pool for a process that was killed a moment ago.
fn run(two: &Two, name: &str, more: &[&str]) -> Said {
    loop {
        let said = wait(program(name).args(two.urls()).args(more).spawn().unwrap());
        if !said.errors.contains("open") || said.code == Some(0) {
            return said;
        }
        assert!(said.errors.contains("for writing"), "{said:?}");
        thread::yield_now();
    }
}

fn number_before(text: &str, end: char) -> u64 {
    let digits = text.split(end).next().unwrap_or_default();
    digits.rsplit(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("a number before {end:?} in {text:?}"))
}

#[test]
fn a_killed_counter_never_goes_back() {
    let two = Two::start();
    let mut last = 0;
    for at in 0..KILLS {
        let child = program("counter").args(two.urls()).spawn().unwrap();
        let said =
            if at % 3 == 0 { kill_after_a_line(child) } else { kill_after(child, Duration::from_millis(4 * at)) };
        for line in said.lines() {
            assert!(number_before(line, ':') > last, "{line} after {last}");
            last = number_before(line, ':');
        }
        let said = run(&two, "counter", &[]).done();
        assert!(number_before(&said, ':') > last, "{said} after {last}");
        last = number_before(&said, ':');
    }
}

#[test]
fn a_killed_log_keeps_its_lines() {
    let two = Two::start();
    let (mut acknowledged, mut tried) = (Vec::new(), Vec::new());
    for at in 0..KILLS {
        let lines: Vec<_> = (0..5).map(|line| format!("line {line} of run {at}")).collect();
        tried.extend(lines.clone());
        let child = program("log").args(two.urls()).args(&lines).spawn().unwrap();
        let said =
            if at % 3 == 0 { kill_after_a_line(child) } else { kill_after(child, Duration::from_millis(4 * at)) };
        acknowledged.extend(lines.into_iter().take(said.lines().filter(|line| line.contains(" on 2/2")).count()));
        let said = run(&two, "log", &[]).done();
        let kept: Vec<_> = said.lines().collect();
        let in_order: Vec<_> = tried.iter().map(String::as_str).filter(|line| kept.contains(line)).collect();
        assert_eq!(kept, in_order);
        for line in &acknowledged {
            assert!(kept.contains(&line.as_str()), "{line:?} was acknowledged, and there is only:\n{said}");
        }
    }
}

#[test]
fn a_killed_visit_leaves_a_set_that_opens() {
    let directory = tempfile::tempdir().unwrap();
    let [set, one, other] = ["visits.set", "one", "other"].map(|name| directory.path().join(name));
    fs::write(&set, format!("PMEMPOOLSET\n9M {}\nREPLICA\n9M {}\n", one.display(), other.display())).unwrap();
    let visit = || program("pool_set").arg(&set).spawn().unwrap();
    let mut last = 0;
    for _ in 0..KILLS {
        let said = kill_after_a_line(visit());
        for said in [said, wait(visit()).done()] {
            let number = number_before(said.strip_prefix("visit ").unwrap(), ':');
            assert!(number > last, "{said} after {last}");
            last = number;
        }
    }
}

#[test]
fn killed_programs_of_pools_run_again() {
    let two = Two::start();
    for name in ["awaited", "many_threads"] {
        // The pool is there: a maker that is killed in between leaves a pool on some replicas only, which an operator removes.
        run(&two, name, &[]).done();
        for at in 0..KILLS {
            kill_after(program(name).args(two.urls()).spawn().unwrap(), Duration::from_millis(4 * at));
        }
        let first = run(&two, name, &[]).done();
        // `awaited` and `many_threads` have pools of different sizes: of one that has another, nothing fits.
        assert!(first.contains(" on 2") && run(&two, name, &[]).code == Some(0), "{first}");
        two.urls().iter().cloned().fold(Pool::options(), PoolOptions::replica).remove().unwrap();
    }
}

/// Those that start targets of their own leave a directory of that run, and nothing that the next meets.
#[test]
fn killed_programs_with_targets_run_again() {
    for name in ["lost_replica", "take_over"] {
        kill_after_a_line(program(name).spawn().unwrap());
        assert!(wait(program(name).spawn().unwrap()).done().lines().count() >= 4, "{name}");
    }
}

/// A server, and its address.
fn server(two: &Two) -> (Child, String) {
    loop {
        let mut child = program("async_server").arg("127.0.0.1:0").args(two.urls()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while output.read_line(&mut line).unwrap() > 0 {
            if let Some(address) = line.trim_end().strip_prefix("ready ") {
                return (child, address.to_owned());
            }
            line.clear();
        }
        let said = wait(child);
        // The target may still hold the pool for the one that was killed.
        assert!(said.errors.contains("for writing"), "{said:?}");
    }
}

/// All bytes of the pool, as text.
fn contents(two: &Two) -> String {
    let options = Pool::options().require(Durability::Visible);
    let pool = two.urls().iter().cloned().fold(options, PoolOptions::replica).open_read_only().unwrap();
    let mut bytes = vec![0; pool.len_bytes() as usize];
    pool.read(0, &mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn a_killed_server_keeps_what_it_answered() {
    let two = Two::start();
    let mut kept = BTreeMap::new();
    for run in 0..4 {
        let (mut child, address) = server(&two);
        let answered = AtomicUsize::new(0);
        let answered = &answered;
        thread::scope(|scope| {
            let clients = (0..3).map(|client| {
                // Before the server is killed.
                let mut stream = TcpStream::connect(&address).unwrap();
                scope.spawn(move || {
                    let mut answers = Vec::new();
                    let mut lines = BufReader::new(stream.try_clone().unwrap());
                    for number in 0.. {
                        let line = format!("line {number} of client {client} in run {run}.");
                        let mut answer = String::new();
                        // Until the server is killed. An answer that is cut off is none.
                        let is_sent = stream.write_all(format!("{line}\n").as_bytes()).is_ok();
                        if !is_sent || lines.read_line(&mut answer).is_err() || !answer.ends_with('\n') {
                            break;
                        }
                        assert!(answer.contains(" on 2/2"), "{answer}");
                        answers.push((number_before(&answer, ' '), line));
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                    answers
                })
            });
            let clients: Vec<_> = clients.collect();
            // The first is killed at any time, the others in the middle of their work.
            while run > 0 && answered.load(Ordering::Relaxed) == 0 {
                thread::sleep(Duration::from_millis(1));
            }
            thread::sleep(Duration::from_millis(30 * run));
            child.kill().unwrap();
            child.wait().unwrap();
            for client in clients {
                for (slot, line) in client.join().unwrap() {
                    assert_eq!(kept.insert(slot, line), None, "slot {slot} was acknowledged before");
                }
            }
        });
        let contents = contents(&two);
        for line in kept.values() {
            assert!(contents.contains(line.as_str()), "{line:?} was acknowledged");
        }
    }
    assert!(!kept.is_empty());
    // Printed by the example itself, in their order.
    let said = wait(program("async_server").arg("-").args(two.urls()).spawn().unwrap()).done();
    let printed: BTreeMap<_, _> = said.lines().map(|line| line.split_once(": ").unwrap()).collect();
    for (slot, line) in &kept {
        assert_eq!(printed.get(slot.to_string().as_str()), Some(&line.as_str()));
    }
}

#[test]
fn a_server_that_is_full_says_so() {
    let two = Two::start();
    for is_again in [false, true] {
        let (mut child, address) = server(&two);
        let mut stream = TcpStream::connect(&address).unwrap();
        let mut answers = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
        let mut ask = |line: &str| {
            stream.write_all(format!("{line}\n").as_bytes()).unwrap();
            answers.next().unwrap()
        };
        if !is_again {
            assert!(ask(&"x".repeat(5000)).starts_with("not kept: a line has at most "));
            // An empty line is one, too.
            assert_eq!(ask(""), "0 on 2/2");
            for slot in 1..4096 {
                assert_eq!(ask("again"), format!("{slot} on 2/2"));
            }
        }
        for _ in 0..2 {
            assert_eq!(ask("one more"), "not kept: all 4096 places are taken");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let said = wait(program("async_server").arg("-").args(two.urls()).spawn().unwrap()).done();
    assert!(said.lines().count() == 4096 && said.starts_with("0: \n1: again\n"), "{said}");
}

/// What an initiator says that a target's persistent memory has, it has after SIGKILL: there the target keeps no word of it in its own memory.
#[test]
fn what_was_flushed_survives_a_killed_target() {
    let directory = directories().remove(0);
    for way in ways() {
        let file = directory.path().join("append_log.pmem");
        let file = file.to_str().unwrap();
        let _ = fs::remove_file(file);
        let mut expected = String::new();
        for word in ["one", "two", "three"] {
            let target = way.serve("append_log", &[file]);
            assert!(target.run(&[word]).code.is_some());
            // SIGKILL.
            drop(target);
            expected.extend((1..=10).map(|number| format!("{word} {number}\n")));
            let (memory, mut bytes) = (Memory::open(Path::new(file), None).unwrap(), vec![0; expected.len()]);
            memory.read(DATA_OFFSET + 64, &mut bytes).unwrap();
            assert_eq!(String::from_utf8(bytes).unwrap(), expected);
        }
        for (name, more) in [("flush", &["process-crash"][..]), ("gpspm_flush", &[]), ("write_to_persistent", &[])] {
            let file = directory.path().join(name);
            for _ in 0..2 {
                let target = way.serve(name, &[file.to_str().unwrap()]);
                target.run(more).done();
                drop(target);
                let (memory, mut bytes) = (Memory::open(&file, None).unwrap(), [0; 64]);
                memory.read(DATA_OFFSET, &mut bytes).unwrap();
                assert!(bytes.iter().any(|byte| *byte != 0), "{name}");
            }
        }
    }
}

/// A target that was killed leaves its address to the next, and its initiator does not hang.
#[test]
fn killed_targets_are_started_again() {
    for way in ways() {
        for (name, needed) in EXAMPLES {
            let target = way.serve(name, &[]);
            let address: Address = target.address.parse().unwrap();
            let initiator = target.start(needed);
            drop(target);
            // It had come to its end, or says that the target is gone.
            let said = wait(initiator);
            assert!(said.code == Some(0) || !said.errors.is_empty(), "{name}: {said:?}");
            let again = way.at(&address);
            drop(again.serve(name, &[]));
        }
    }
}

/// Each example is killed by a test of this file.
#[test]
fn every_example_is_killed() {
    let here = include_str!("killed.rs");
    for name in POOL_EXAMPLES {
        assert!(here.contains(&format!("\"{name}\"")), "{name}");
    }
}
