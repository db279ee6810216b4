//! What is typed wrongly, and what is not there.

use std::{fs, net::TcpListener};

use crate::support::{EXAMPLES, directories, program, wait};

#[test]
fn wrong_arguments_show_the_right_ones() {
    for (name, _) in EXAMPLES {
        for (arguments, words) in [
            (&[][..], "an address is missing"),
            (&["serve"], "an address is missing"),
            (&["127.0.0.1:7204"], "is no address"),
            (&["serve", "rdma://a:1"], "no transport"),
            (&["shm://s"], "absolute path"),
            (&["serve", "--trust-network"], "an address is missing"),
            (&["--source", "here", "tcp://a:1"], "IP address"),
            (&["serve", "tcp://127.0.0.1:0", "a", "b"], "one word too many"),
        ] {
            let said = wait(program(name).args(arguments).spawn().unwrap());
            said.failed(2, &[words, &format!("usage: {name} serve [--trust-network] URL")]);
            assert_eq!(said.output, "", "{arguments:?}");
        }
    }
}

#[test]
fn words_that_are_no_numbers_are_wrong_arguments() {
    for (name, arguments) in [
        ("many_connections", &["serve", "tcp://127.0.0.1:0", "some"]),
        ("shared_receives", &["serve", "tcp://127.0.0.1:0", "-1"]),
    ] {
        wait(program(name).args(arguments).spawn().unwrap()).failed(2, &[arguments[2], "usage: "]);
    }
    wait(program("messages").args(["tcp://127.0.0.1:1", "1e3"]).spawn().unwrap()).failed(2, &["1e3", "usage: "]);
    wait(program("append_log").arg("tcp://127.0.0.1:1").spawn().unwrap()).failed(2, &["a word", "usage: "]);
}

#[test]
fn where_nobody_listens_it_is_said() {
    // A port that was free just now.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for (name, words) in EXAMPLES {
        for address in [format!("tcp://127.0.0.1:{port}"), "shm:///nowhere/at/all.sock".to_owned()] {
            let said = wait(program(name).arg(&address).args(words).spawn().unwrap());
            said.failed(1, &["cannot reach", "is the target running there?"]);
        }
    }
}

#[test]
fn a_bad_place_to_listen_is_said() {
    for (address, words) in [
        ("tcp://192.0.2.1:0", "connections are not authenticated"),
        ("shm:///nowhere/at/all.sock", "cannot listen"),
        ("tcp://no-such-host.invalid:0", "no-such-host.invalid"),
    ] {
        wait(program("connection").args(["serve", address]).spawn().unwrap()).failed(1, &[words]);
    }
}

#[test]
fn a_bad_file_is_refused_and_left_alone() {
    let directory = directories().remove(0);
    let path = |name: &str| directory.path().join(name);
    fs::write(path("short"), [0; 100]).unwrap();
    fs::write(path("empty"), []).unwrap();
    let foreign = [b"dear diary".to_vec(), vec![b'x'; 2 << 20]].concat();
    fs::write(path("foreign"), &foreign).unwrap();
    for name in ["write_to_persistent", "flush", "append_log", "gpspm_flush"] {
        for (file, words) in [
            ("no/such", "No such file"),
            (".", "cannot be mapped"),
            ("empty", "cannot be mapped"),
            ("short", "no file of an example"),
            ("foreign", "no file of an example"),
        ] {
            let mut command = program(name);
            command.args(["serve", "tcp://127.0.0.1:0"]).arg(path(file));
            let said = wait(command.spawn().unwrap());
            said.failed(1, &[words, directory.path().to_str().unwrap()]);
            assert_eq!(said.output, "", "{file}: it does not listen first");
        }
    }
    assert!(fs::read(path("foreign")).unwrap() == foreign);
    assert_eq!(fs::read(path("short")).unwrap(), [0; 100]);
}
