use std::{fs, io::Read as _, io::Write as _, thread};

use super::*;
use crate::bench::{floor::file::FILE_BYTES, processes::measure_round_trips};

/// A server whose thread ends with the test process.
fn start_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || serve_floor(&listener, FILE_BYTES));
    addr
}

/// A directory of its own for each test; removed when dropped.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pmof-floor-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn ack_answers_each_request_polling_and_blocking() {
    let addr = start_server();
    for polling in [false, true] {
        for (request_bytes, reply_bytes) in [(1, 1), (512, 64), (100_000, 9), (MESSAGE_LIMIT_BYTES, 1)] {
            let mut client = FloorClient::connect(addr, &FloorMode::Ack, request_bytes, reply_bytes, polling).unwrap();
            for _ in 0..5 {
                assert!(client.round_trip().unwrap() > Duration::ZERO);
            }
        }
    }
}

#[test]
fn a_reply_comes_only_after_the_whole_request() {
    let addr = start_server();
    let mut raw = TcpStream::connect(addr).unwrap();
    raw.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let handshake = Handshake { mode: FloorMode::Ack, request_bytes: 10, reply_bytes: 3, polling: false };
    raw.write_all(&handshake.encode().unwrap()).unwrap();
    raw.read_exact(&mut [0; 4]).unwrap();
    raw.write_all(&[0; 9]).unwrap();
    assert_eq!(raw.read(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    raw.write_all(&[0; 1]).unwrap();
    raw.read_exact(&mut [0; 3]).unwrap();
    assert_eq!(raw.read(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn stream_moves_all_requests_at_any_depth() {
    let addr = start_server();
    for mode in [FloorMode::Ack, FloorMode::Stream] {
        for polling in [false, true] {
            for (request_bytes, reply_bytes, depth, total) in
                [(65_536, 64, 16, 64), (1, 1, 1, 20), (7, 300_000, 3, 10), (1_000_000, 1, 4, 9)]
            {
                let mut client = FloorClient::connect(addr, &mode, request_bytes, reply_bytes, polling).unwrap();
                assert!(client.stream(depth, total).unwrap() > Duration::ZERO);
                // Nothing is left over: the next reply belongs to the next request.
                client.round_trip().unwrap();
            }
        }
    }
}

#[test]
fn a_stream_that_cannot_be_is_refused() {
    let mut client = FloorClient::connect(start_server(), &FloorMode::Stream, 512, 64, false).unwrap();
    assert_eq!(client.stream(0, 1).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    assert_eq!(client.stream(1, u64::MAX).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    assert!(client.stream(1, 0).unwrap() < STALL_LIMIT);
    client.round_trip().unwrap();
}

#[test]
fn file_sync_writes_a_file_of_its_own_and_removes_it() {
    let addr = start_server();
    let directory = Directory::new("sync");
    let path = directory.0.join("floor");
    let mode = FloorMode::FileSync(path.clone());
    // Enough requests to come round to the start of the file.
    let request_bytes = MESSAGE_LIMIT_BYTES;
    let mut client = FloorClient::connect(addr, &mode, request_bytes, 16, true).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), FILE_BYTES);
    for _ in 0..=FILE_BYTES / u64::from(request_bytes) {
        client.round_trip().unwrap();
    }
    assert_eq!(fs::metadata(&path).unwrap().len(), FILE_BYTES);
    drop(client);
    // The connection's own thread removes the file, as soon as it sees the end.
    let end = Instant::now() + STALL_LIMIT;
    while path.exists() && Instant::now() < end {
        thread::sleep(Duration::from_millis(1));
    }
    assert!(!path.exists());
}

#[test]
fn a_rotating_write_lands_where_the_last_one_ended() {
    let directory = Directory::new("rotate");
    let path = directory.0.join("floor");
    let mut file = FloorFile::create(&path, FILE_BYTES).unwrap();
    let part = FILE_BYTES as usize / 4;
    for value in 1..=5 {
        file.write_durably(&vec![value; part - 1]).unwrap();
    }
    let bytes = fs::read(&path).unwrap();
    // Four parts fit, each one byte short; the fifth starts again.
    assert_eq!([bytes[0], bytes[part - 2]], [5, 5]);
    assert_eq!([bytes[part - 1], bytes[2 * part - 2], bytes[FILE_BYTES as usize - 5]], [2, 3, 4]);
    assert_eq!(bytes[FILE_BYTES as usize - 4..], [0; 4]);
    drop(file);
    assert!(!path.exists());
}

#[test]
fn an_existing_file_is_refused_and_kept() {
    let addr = start_server();
    let directory = Directory::new("keep");
    let path = directory.0.join("precious");
    fs::write(&path, "precious").unwrap();
    let error = FloorClient::connect(addr, &FloorMode::FileSync(path.clone()), 512, 64, false).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&path).unwrap(), b"precious");
}

#[test]
fn a_bad_handshake_is_refused_and_the_next_client_is_served() {
    let addr = start_server();
    let good = Handshake { mode: FloorMode::Ack, request_bytes: 8, reply_bytes: 8, polling: false };
    let with_field = |at: usize, value: u32| {
        let mut bytes = good.encode().unwrap();
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        bytes
    };
    let too_long = MESSAGE_LIMIT_BYTES + 1;
    let mut no_path = with_field(0, 3);
    no_path.extend(0_u16.to_le_bytes());
    let mut long_path = with_field(0, 3);
    long_path.extend((PATH_LIMIT_BYTES + 1).to_le_bytes());
    for bad in [with_field(0, 0), with_field(0, 4), with_field(4, 0), with_field(8, too_long), no_path, long_path] {
        let mut raw = TcpStream::connect(addr).unwrap();
        raw.write_all(&bad).unwrap();
        let mut answer = Vec::new();
        raw.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, Errno::INVAL.raw_os_error().to_le_bytes());
    }
    let mut raw = TcpStream::connect(addr).unwrap();
    raw.write_all(&with_field(12, 2)).unwrap();
    let mut answer = Vec::new();
    raw.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, Errno::INVAL.raw_os_error().to_le_bytes());
    // The control: what was bent above is taken when it is straight.
    FloorClient::connect(addr, &good.mode, 8, 8, false).unwrap().round_trip().unwrap();
}

#[test]
fn a_server_that_dies_is_an_error_not_a_wait() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; HANDSHAKE_BYTES]).unwrap();
        stream.write_all(&[0; 4]).unwrap();
        stream.read_exact(&mut [0; 512]).unwrap();
    });
    let mut client = FloorClient::connect(addr, &FloorMode::Ack, 512, 64, true).unwrap();
    let error = client.round_trip().unwrap_err();
    assert!(matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset), "{error}");
    server.join().unwrap();
}

#[test]
fn measured_round_trips_are_all_counted() {
    let mut client = FloorClient::connect(start_server(), &FloorMode::Ack, 512, 64, false).unwrap();
    let summary = measure_round_trips(&mut client, 100).unwrap();
    assert_eq!(summary.samples, 100);
    assert!(summary.p50_us > 0.0 && summary.p50_us <= summary.max_us);
}
