//! Clients against the servers of Debian's packages, and against servers that answer what none should.
#![expect(clippy::big_endian_bytes, reason = "NBD is big-endian on the wire")]

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener},
    process::{Child, Command, Stdio},
    thread,
};

use super::*;
use pmof_access::Transport;

/// A server that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts an installed program, or says that the test cannot run.
fn start(program: &str, arguments: &[&str]) -> Option<Running> {
    let Some(file) = find(program) else {
        skip_report::skipped!("no {program} here: cargo xtask peers");
        return None;
    };
    let output = [Stdio::null(), Stdio::null(), Stdio::null()];
    let [input, output, errors] = output;
    let child = Command::new(file).args(arguments).stdin(input).stdout(output).stderr(errors).spawn().unwrap();
    Some(Running(child))
}

/// Tries until the server is there.
fn connected<T>(mut connect: impl FnMut() -> Result<T>) -> T {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        match connect() {
            Ok(client) => return client,
            Err(error) => assert!(Instant::now() < until, "{error:#}"),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn free() -> SocketAddr {
    let [address] = free_addresses::<1>().unwrap();
    address
}

#[test]
fn every_peer_has_the_name_of_the_command_line() {
    assert_eq!(PEER_NAMES.len(), Peer::value_variants().len());
    for peer in Peer::value_variants() {
        assert_eq!(peer.to_possible_value().unwrap().get_name(), peer.name());
        assert_eq!(peer.promised().is_some(), *peer != Peer::Pmof3, "{peer:?}");
    }
    let over = |transport| ReachArgs {
        transport,
        address: None,
        source: None,
        method: None,
        trust: pmof_console::trust::TrustArgs::default(),
    };
    let tcp = over(Transport::Tcp);
    assert!(Peer::RedisWait.reason_to_skip(Medium::File, &tcp).unwrap().contains("memory"));
    assert!(Peer::Librpma.reason_to_skip(Medium::Tmpfs, &tcp).unwrap().contains("RDMA"));
    assert!(Peer::Librpma.reason_to_skip(Medium::File, &over(Transport::Verbs)).unwrap().contains("page cache"));
    assert_eq!(Peer::File.reason_to_skip(Medium::File, &tcp), None);
}

/// Over TCP and a Unix socket, flushed and with forced unit access: the bytes are in the file.
#[test]
fn nbd_servers_have_the_bytes_in_their_file() {
    let place = tempfile::tempdir().unwrap();
    let (device, socket) = (place.path().join("device"), place.path().join("socket"));
    fs::write(&device, vec![0; 1 << 20]).unwrap();
    for (program, is_unix, sync) in [
        ("nbdkit", false, NbdSync::Flush),
        ("nbdkit", true, NbdSync::Fua),
        ("qemu-nbd", false, NbdSync::Fua),
        ("qemu-nbd", true, NbdSync::Flush),
    ] {
        let (address, path) = (free(), socket.display().to_string());
        let (ip, port) = (address.ip().to_string(), address.port().to_string());
        let listen = match (program, is_unix) {
            ("nbdkit", true) => vec!["--unix", &path],
            ("nbdkit", false) => vec!["--ipaddr", &ip, "--port", &port],
            (_, true) => vec!["--socket", &path],
            (_, false) => vec!["--bind", &ip, "--port", &port],
        };
        let arguments = if program == "nbdkit" { nbdkit(&listen, &device) } else { qemu_nbd(&listen, &device) };
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let _ = fs::remove_file(&socket);
        let Some(_server) = start(program, &arguments) else { return };
        let stream = || if is_unix { PeerStream::unix(&socket, SPIN) } else { PeerStream::tcp(address, SPIN) };
        let mut client = connected(|| NbdClient::connect(stream()?, sync, 300, 1 << 20));
        fs::OpenOptions::new().write(true).open(&device).unwrap().write_all(&vec![0; 1 << 20]).unwrap();
        client.put(700).unwrap();
        client.put(4096).unwrap();
        let bytes = fs::read(&device).unwrap();
        let places: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] == 7).collect();
        let expected: Vec<usize> = (700..1000).chain(4096..4396).collect();
        assert_eq!(places, expected, "{program} {is_unix} {sync:?}");
        let error = client.put(1 << 20).unwrap_err();
        assert!(format!("{error:#}").contains("refused the request with error"), "{error:#}");
        // qemu-nbd serves one client at a time.
        drop(client);
        let error = NbdClient::connect(stream().unwrap(), sync, 300, 2 << 20);
        assert!(error.unwrap_err().to_string().contains("serve a larger file"));
    }
}

const SPIN: Duration = Duration::from_micros(50);

#[test]
fn redis_has_the_value_under_its_key_and_so_have_its_replicas() {
    let place = tempfile::tempdir().unwrap();
    let [first, second] = free_addresses::<2>().unwrap();
    let directory = place.path().display().to_string();
    let (ip, port, other) = (first.ip().to_string(), first.port().to_string(), second.port().to_string());
    let common = ["--bind", &ip, "--dir", &directory, "--save", "", "--repl-diskless-sync-delay", "0", "--port"];
    let Some(_server) = start("redis-server", &[&common[..], &[&port]].concat()) else { return };
    let mut client = connected(|| RedisClient::connect(PeerStream::tcp(first, SPIN)?, 300, 0));
    let Some(_replica) = start("redis-server", &[&common[..], &[&other, "--replicaof", &ip, &port]].concat()) else {
        return;
    };
    let mut waiting = connected(|| RedisClient::connect(PeerStream::tcp(first, SPIN)?, 300, 1));
    client.put(4096).unwrap();
    waiting.put(8192).unwrap();
    for (key, address) in [("pmof:00004096", first), ("pmof:00008192", second)] {
        let mut stream = PeerStream::tcp(address, SPIN).unwrap();
        stream.send_all(format!("GET {key}\r\n").as_bytes()).unwrap();
        assert_eq!(stream.receive_line().unwrap(), "$300");
        let mut value = [0; 300];
        stream.receive(&mut value).unwrap();
        assert_eq!(value, [7; 300]);
    }
    let mut stream = PeerStream::tcp(first, SPIN).unwrap();
    stream.send_all(b"CONFIG SET maxmemory 1\r\n").unwrap();
    assert_eq!(stream.receive_line().unwrap(), "+OK");
    let error = client.put(0).unwrap_err();
    assert!(error.to_string().contains("OOM"), "{error}");
}

/// Also a value beyond the windows of HTTP/2.
#[test]
fn etcd_has_the_value_under_its_key() {
    let place = tempfile::tempdir().unwrap();
    let [client, peer] = free_addresses::<2>().unwrap();
    let arguments = etcd([client, peer], &place.path().join("data").display().to_string());
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let Some(_server) = start("etcd", &arguments) else { return };
    let http = || Http2::new(PeerStream::tcp(client, SPIN)?, &client.to_string());
    let mut small = connected(|| EtcdClient::connect(http()?, 300));
    small.put(4096).unwrap();
    let mut large = EtcdClient::connect(http().unwrap(), 200_000).unwrap();
    (0..20).for_each(|place| large.put(place).unwrap());
    let answer = http().unwrap().call("/etcdserverpb.KV/Range", b"\0\0\0\0\x0f\x0a\x0dpmof:00004096").unwrap();
    assert!(answer.windows(300).any(|bytes| bytes == [7; 300]), "{} bytes", answer.len());
    // Beyond what etcd takes.
    let error = EtcdClient::connect(http().unwrap(), 3 << 20).unwrap_err();
    assert!(format!("{error:#}").contains("etcd refused the put"), "{error:#}");
}

/// Serves one connection by a script: what is sent first, then after each so many bytes received, what follows.
fn scripted(steps: Vec<(usize, Vec<u8>)>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        for (awaited_bytes, answer) in steps {
            let mut bytes = vec![0; awaited_bytes];
            if stream.read_exact(&mut bytes).is_err() || stream.write_all(&answer).is_err() {
                return;
            }
        }
        // Closed with bytes unread, a connection is reset, and the answer may be lost.
        let _ = stream.shutdown(Shutdown::Write).and_then(|()| stream.read_to_end(&mut Vec::new()));
    });
    address
}

fn nbd_hello(flags: u16) -> Vec<u8> {
    [&b"NBDMAGICIHAVEOPT"[..], &flags.to_be_bytes()].concat()
}

/// A reply to `NBD_OPT_GO`.
fn nbd_reply(kind: u32, data: &[u8]) -> Vec<u8> {
    let head = 0x0003_e889_0455_65a9_u64.to_be_bytes();
    [&head[..], &7_u32.to_be_bytes(), &kind.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
}

fn nbd_export(size_bytes: u64, flags: u16) -> Vec<u8> {
    let info = [&0_u16.to_be_bytes()[..], &size_bytes.to_be_bytes(), &flags.to_be_bytes()].concat();
    [nbd_reply(3, &info), nbd_reply(1, &[])].concat()
}

#[test]
fn nbd_servers_that_do_not_fit_are_refused_by_what_they_lack() {
    let asks = 4 + 16 + 6;
    for (steps, words) in [
        (vec![(0, b"HTTP/1.1 400 Bad".to_vec())], "as no NBD server does"),
        (vec![(0, b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53".to_vec())], "old style"),
        (vec![(0, nbd_hello(0))], "fixed newstyle"),
        (vec![(0, nbd_hello(3)), (asks, nbd_reply(1 << 31 | 1, b"no such export"))], "no such export"),
        (vec![(0, nbd_hello(3)), (asks, nbd_reply(1, &[]))], "how large"),
        (vec![(0, nbd_hello(3)), (asks, nbd_export(1 << 20, 0b11))], "read-only"),
        (vec![(0, nbd_hello(3)), (asks, nbd_export(1 << 20, 0b1))], "cannot be flushed"),
        (vec![(0, nbd_hello(3)), (asks, nbd_export(100, 0b101))], "has 100 bytes"),
        (vec![(0, nbd_hello(3))], "closed the connection"),
    ] {
        let stream = PeerStream::tcp(scripted(steps), SPIN).unwrap();
        let error = NbdClient::connect(stream, NbdSync::Flush, 10, 1 << 20).unwrap_err();
        assert!(format!("{error:#}").contains(words), "{words}: {error:#}");
    }
    let steps = vec![(0, nbd_hello(3)), (asks, nbd_export(1 << 20, 0b101)), (28 + 10, vec![0; 16])];
    let stream = PeerStream::tcp(scripted(steps), SPIN).unwrap();
    let mut client = NbdClient::connect(stream, NbdSync::Flush, 10, 1 << 20).unwrap();
    assert!(format!("{:#}", client.put(0).unwrap_err()).contains("no simple reply"));
}

/// The second request of a put fails, where there is one.
#[test]
fn nbd_puts_end_behind_their_flush() {
    let asks = 4 + 16 + 6;
    let reply =
        |error: u32, cookie: u64| [&b"\x67\x44\x66\x98"[..], &error.to_be_bytes(), &cookie.to_be_bytes()].concat();
    for (sync, refused) in [(NbdSync::Flush, true), (NbdSync::Fua, false)] {
        let hello = vec![(0, nbd_hello(3)), (asks, nbd_export(1 << 20, 0b1101))];
        let steps = [hello, vec![(28 + 10, reply(0, 1)), (28, reply(5, 2))]].concat();
        let stream = PeerStream::tcp(scripted(steps), SPIN).unwrap();
        let mut client = NbdClient::connect(stream, sync, 10, 1 << 20).unwrap();
        let put = client.put(0).map_err(|error| format!("{error:#}"));
        assert_eq!(put.as_ref().is_err_and(|error| error.contains("the flush")), refused, "{sync:?}: {put:?}");
    }
}

#[test]
fn redis_that_refuses_or_lacks_replicas_is_an_error() {
    let set = |client_bytes| vec![(client_bytes, b"-ERR unknown command\r\n".to_vec())];
    let stream = PeerStream::tcp(scripted(set(1)), SPIN).unwrap();
    let error = RedisClient::connect(stream, 3, 0).unwrap_err();
    assert!(format!("{error:#}").contains("ERR unknown command"), "{error:#}");
    let stream = PeerStream::tcp(scripted(vec![(1, b"+OK\r\n:1\r\n".to_vec())]), SPIN).unwrap();
    let error = RedisClient::connect(stream, 3, 2).unwrap_err();
    assert!(format!("{error:#}").contains("only 1 of 2 replicas"), "{error:#}");
    let stream = PeerStream::tcp(scripted(vec![(1, vec![b'x'; 20_000])]), SPIN).unwrap();
    let error = RedisClient::connect(stream, 3, 0).unwrap_err();
    assert!(format!("{error:#}").contains("a line of more than"), "{error:#}");
}

/// An answer that ends without a message, a connection that is given up, and one that ends.
#[test]
fn etcd_that_refuses_or_ends_is_an_error() {
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let frame = |kind, flags, stream, payload: &[u8]| {
        [&[0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream], payload].concat()
    };
    for (answer, words) in [
        (frame(1, 5, 1, &[0x88]), "etcd refused the put"),
        (frame(3, 0, 1, &[0, 0, 0, 2]), "with error 2"),
        (frame(7, 0, 0, b"\0\0\0\0\0\0\0\0enough"), "enough"),
        (frame(0, 8, 1, &[0]), "pads"),
        (vec![1, 0, 0, 0, 0, 0, 0, 0, 1], "a frame of 65536 bytes"),
        (Vec::new(), "closed the connection"),
    ] {
        let stream = PeerStream::tcp(scripted(vec![(24, [&settings[..], &answer].concat())]), SPIN).unwrap();
        let error = EtcdClient::connect(Http2::new(stream, "here").unwrap(), 3).unwrap_err();
        assert!(format!("{error:#}").contains(words), "{words}: {error:#}");
    }
}
