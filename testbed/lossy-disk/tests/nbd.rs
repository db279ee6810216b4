//! The server against a client of its own, byte by byte, and against QEMU's tools.

#![expect(clippy::big_endian_bytes, reason = "NBD is big-endian on the wire")]

use std::{
    fs::{self, File},
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    process::Command,
};

use lossy_disk::{Choice, Cut, Server, ServerError};

const LENGTH: u64 = 1 << 20;

struct Bench {
    directory: tempfile::TempDir,
    server: Server,
}

impl Bench {
    fn new(choice: Choice) -> Bench {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("image");
        File::create(&image).unwrap().set_len(LENGTH).unwrap();
        let server = Server::start(&image, &directory.path().join("socket"), choice).unwrap();
        Bench { directory, server }
    }

    fn image(&self) -> Vec<u8> {
        fs::read(self.directory.path().join("image")).unwrap()
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    fn raw(&self) -> UnixStream {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting, b"NBDMAGICIHAVEOPT\0\x03");
        stream
    }

    fn client(&self) -> Client {
        let mut stream = self.raw();
        stream.write_all(&3_u32.to_be_bytes()).unwrap();
        option(&mut stream, 7, b"\0\0\0\x04disk\0\x01\0\x03");
        let (kind, data) = option_reply(&mut stream, 7);
        assert_eq!(kind, 3);
        assert_eq!(data[..2], [0, 0]);
        assert_eq!(data[2..10], LENGTH.to_be_bytes());
        assert_eq!(option_reply(&mut stream, 7).0, 3);
        assert_eq!(option_reply(&mut stream, 7), (1, vec![]));
        Client { stream, cookie: 0 }
    }
}

fn option(stream: &mut UnixStream, number: u32, data: &[u8]) {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(number.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    stream.write_all(&bytes).unwrap();
}

fn option_reply(stream: &mut UnixStream, number: u32) -> (u32, Vec<u8>) {
    let mut head = [0; 20];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(head[..8], 0x0003_e889_0455_65a9_u64.to_be_bytes());
    assert_eq!(head[8..12], number.to_be_bytes());
    let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
    let mut data = vec![0; word(16) as usize];
    stream.read_exact(&mut data).unwrap();
    (word(12), data)
}

/// Whether the server has closed the connection; it resets it where it has not read all.
fn is_gone(stream: &mut UnixStream) -> bool {
    match stream.read(&mut [0; 1]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

struct Client {
    stream: UnixStream,
    cookie: u64,
}

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const WRITE_ZEROES: u16 = 6;
const FUA: u16 = 1;

impl Client {
    fn send(&mut self, flags: u16, command: u16, at: u64, length: u32, data: &[u8]) {
        self.cookie += 1;
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(command.to_be_bytes());
        bytes.extend(self.cookie.to_be_bytes());
        bytes.extend(at.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes.extend(data);
        self.stream.write_all(&bytes).unwrap();
    }

    /// The error number and the data.
    fn call(&mut self, flags: u16, command: u16, at: u64, length: u32, data: &[u8]) -> (u32, Vec<u8>) {
        self.send(flags, command, at, length, data);
        let mut head = [0; 16];
        self.stream.read_exact(&mut head).unwrap();
        assert_eq!(head[..4], 0x6744_6698_u32.to_be_bytes());
        assert_eq!(head[8..], self.cookie.to_be_bytes());
        let error = u32::from_be_bytes(head[4..8].try_into().unwrap());
        let mut data = vec![0; if command == READ && error == 0 { length as usize } else { 0 }];
        self.stream.read_exact(&mut data).unwrap();
        (error, data)
    }

    fn write(&mut self, at: u64, data: &[u8]) -> u32 {
        self.call(0, WRITE, at, data.len() as u32, data).0
    }
}

#[test]
fn unflushed_writes_are_read_back_and_lost_when_the_client_is_gone() {
    let bench = Bench::new(Choice::None);
    let mut client = bench.client();
    assert_eq!(client.write(0, &[1; 512]), 0);
    assert_eq!(client.call(0, FLUSH, 0, 0, &[]).0, 0);
    assert_eq!(client.write(256, &[2; 1024]), 0);
    assert_eq!(client.call(FUA, WRITE, 8192, 512, &[3; 512]).0, 0);
    assert_eq!(client.call(0, READ, 0, 512, &[]).1, [[1; 256], [2; 256]].concat());
    drop(client);
    assert_eq!(bench.server.wait_for_cut().unwrap(), Some(Cut { unflushed: 3, survived: 0 }));
    let image = bench.image();
    assert_eq!(image[..1024], [[1; 512], [0; 512]].concat());
    assert_eq!(image[8192..8704], [3; 512]);
    assert_eq!(bench.server.wait_for_cut().unwrap(), None);
}

#[test]
fn a_polite_end_flushes_nothing_either() {
    let bench = Bench::new(Choice::None);
    let mut client = bench.client();
    client.write(0, &[1; 512]);
    client.send(0, DISCONNECT, 0, 0, &[]);
    assert!(is_gone(&mut client.stream));
    assert_eq!(bench.server.wait_for_cut().unwrap(), Some(Cut { unflushed: 1, survived: 0 }));
    assert!(bench.image().iter().all(|byte| *byte == 0));
}

#[test]
fn power_can_be_cut_under_a_client_and_comes_back() {
    let bench = Bench::new(Choice::All);
    let mut client = bench.client();
    client.write(0, &[1; 512]);
    assert_eq!(bench.server.cut_power().unwrap(), Some(Cut { unflushed: 1, survived: 1 }));
    assert!(is_gone(&mut client.stream));
    assert_eq!(bench.client().call(0, READ, 0, 512, &[]).1, [1; 512]);
}

#[test]
fn zeroes_and_trims() {
    let bench = Bench::new(Choice::None);
    let mut client = bench.client();
    client.write(0, &[1; 4096]);
    assert_eq!(client.call(FUA, WRITE_ZEROES, 512, 1024, &[]).0, 0);
    assert_eq!(client.call(0, TRIM, 2048, 1024, &[]).0, 0);
    assert_eq!(client.call(0, READ, 0, 2048, &[]).1, [[1; 512], [0; 512], [0; 512], [1; 512]].concat());
    assert_eq!(client.call(0, WRITE_ZEROES, 0, LENGTH as u32, &[]).0, 0);
    assert_eq!(client.call(0, READ, 0, 4096, &[]).1, [0; 4096]);
}

#[test]
fn requests_off_the_disk_get_errors_and_the_disk_goes_on() {
    let bench = Bench::new(Choice::None);
    let mut client = bench.client();
    assert_eq!(client.call(0, READ, LENGTH, 1, &[]).0, 22);
    assert_eq!(client.call(0, READ, u64::MAX, 2, &[]).0, 22);
    assert_eq!(client.write(LENGTH - 1, &[1; 2]), 28);
    assert_eq!(client.call(0, WRITE_ZEROES, LENGTH, u32::MAX, &[]).0, 28);
    assert_eq!(client.call(0, TRIM, u64::MAX, 1, &[]).0, 28);
    assert_eq!(client.call(0, 77, 0, 0, &[]).0, 22);
    assert_eq!(client.write(LENGTH - 1, &[1]), 0);
}

#[test]
fn broken_clients_lose_their_connection() {
    let bench = Bench::new(Choice::None);
    let mut client = bench.client();
    client.stream.write_all(&[0; 28]).unwrap();
    assert!(is_gone(&mut client.stream));
    let mut client = bench.client();
    client.send(0, WRITE, 0, (32 << 20) + 1, &[]);
    assert!(is_gone(&mut client.stream));
    let mut stream = bench.raw();
    stream.write_all(&0_u32.to_be_bytes()).unwrap();
    assert!(is_gone(&mut stream));
    let mut stream = bench.raw();
    stream.write_all(&3_u32.to_be_bytes()).unwrap();
    stream.write_all(b"IHAVEOPT\0\0\0\x07\x7f\xff\xff\xff").unwrap();
    assert!(is_gone(&mut stream));
}

#[test]
fn other_options_are_answered() {
    let bench = Bench::new(Choice::None);
    let mut stream = bench.raw();
    stream.write_all(&1_u32.to_be_bytes()).unwrap();
    option(&mut stream, 8, b"");
    assert_eq!(option_reply(&mut stream, 8).0, 1 << 31 | 1);
    option(&mut stream, 7, b"\0\0\0\xffx");
    assert_eq!(option_reply(&mut stream, 7).0, 1 << 31 | 3);
    option(&mut stream, 3, b"");
    assert_eq!(option_reply(&mut stream, 3), (2, vec![0; 4]));
    assert_eq!(option_reply(&mut stream, 3), (1, vec![]));
    // The old way in, with its 124 zeros for a client that has not waived them.
    option(&mut stream, 1, b"");
    let mut answer = [0xff; 134];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..8], LENGTH.to_be_bytes());
    assert!(answer[10..].iter().all(|byte| *byte == 0));
    assert_eq!(Client { stream, cookie: 0 }.call(0, READ, 0, 4, &[]).1, [0; 4]);
    let mut stream = bench.raw();
    stream.write_all(&3_u32.to_be_bytes()).unwrap();
    option(&mut stream, 2, b"");
    assert_eq!(option_reply(&mut stream, 2), (1, vec![]));
}

#[test]
fn what_cannot_be_served_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let (image, socket) = (directory.path().join("image"), directory.path().join("socket"));
    assert!(matches!(Server::start(&image, &socket, Choice::None), Err(ServerError::Image { .. })));
    File::create(&image).unwrap().set_len(LENGTH).unwrap();
    let server = Server::start(&image, &socket, Choice::None).unwrap();
    assert!(matches!(Server::start(&image, &socket, Choice::None), Err(ServerError::Listen { .. })));
    drop(server);
    assert!(!socket.exists());
}

/// Runs one of QEMU's tools on the disk; `None`, said on standard error, where it is not installed.
fn tool(name: &str, arguments: &[&str], bench: &Bench) -> Option<String> {
    let uri = format!("nbd+unix:///?socket={}", bench.socket().display());
    match Command::new(name).args(arguments).arg(uri).output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{name}: {text}{}", String::from_utf8_lossy(&output.stderr));
            Some(text)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            skip_report::skipped!("no {name} here: install the Debian package qemu-utils");
            None
        }
        Err(error) => panic!("{name}: {error}"),
    }
}

#[test]
fn qemu_img_sees_the_disk() {
    let bench = Bench::new(Choice::None);
    if let Some(text) = tool("qemu-img", &["info"], &bench) {
        assert!(text.contains("1 MiB (1048576 bytes)"), "{text}");
    }
}

#[test]
fn qemu_io_writes_and_flushes() {
    let bench = Bench::new(Choice::None);
    // `-t none` leaves flushing to the commands; closing flushes, so that the write that must be lost is cut before.
    let commands = ["-f", "raw", "-t", "none", "-c", "write -P 7 0 4096", "-c", "flush", "-c", "write -z 1024 1024"];
    let read = ["-c", "read -P 7 0 1024", "-c", "read -P 0 1024 1024", "-c", "flush"];
    let Some(text) = tool("qemu-io", &[&commands[..], &read].concat(), &bench) else { return };
    assert!(!text.contains("verification failed"), "{text}");
    assert_eq!(bench.image()[..3072], [[7; 1024], [0; 1024], [7; 1024]].concat());
    let commands = ["-f", "raw", "-t", "none", "-c", "write -P 9 8192 512", "-c", "abort"];
    let uri = format!("nbd+unix:///?socket={}", bench.socket().display());
    let output = Command::new("qemu-io").args(commands).arg(uri).output().unwrap();
    assert!(!output.status.success(), "qemu-io did not abort");
    assert!(
        bench.server.wait_for_cut().unwrap().is_some_and(|cut| cut.unflushed == 1),
        "the unflushed write was there"
    );
    assert_eq!(bench.image()[8192..8704], [0; 512]);
}
