use std::{io::Read as _, io::Write as _, thread};

use super::*;

const DELAY: Duration = Duration::from_micros(200);

/// A server that sends everything back, one connection per thread, until the test process ends.
fn start_echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            stream.set_nodelay(true).unwrap();
            thread::spawn(move || io::copy(&mut stream.try_clone().unwrap(), &mut stream));
        }
    });
    addr
}

/// Relays one new address to each of `targets`.
fn start_relay(targets: &[SocketAddr], delay: Duration) -> Vec<SocketAddr> {
    let routes: Vec<_> = targets.iter().map(|to| (TcpListener::bind("127.0.0.1:0").unwrap(), *to)).collect();
    let addrs = routes.iter().map(|(listener, _)| listener.local_addr().unwrap()).collect();
    thread::spawn(move || relay_all(routes, delay));
    addrs
}

fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

fn shortest_round_trip(stream: &mut TcpStream) -> Duration {
    let round_trip = |value: u8| {
        let (sent, mut back) = ([value; 512], [0; 512]);
        let start = Instant::now();
        stream.write_all(&sent).unwrap();
        stream.read_exact(&mut back).unwrap();
        assert_eq!(back, sent);
        start.elapsed()
    };
    (0..50).map(round_trip).min().unwrap()
}

#[test]
fn a_round_trip_takes_the_delay_twice() {
    let delayed = start_relay(&[start_echo()], DELAY);
    let shortest = shortest_round_trip(&mut connect(delayed[0]));
    assert!(shortest >= 2 * DELAY, "{shortest:?}");
    // The control: it is the delay that takes the time.
    let direct = start_relay(&[start_echo()], Duration::ZERO);
    let shortest = shortest_round_trip(&mut connect(direct[0]));
    assert!(shortest < 2 * DELAY, "{shortest:?}");
}

#[test]
fn a_mebibyte_comes_back_unchanged_and_then_the_end() {
    let addrs = start_relay(&[start_echo()], DELAY);
    let sent: Vec<u8> = (0..1_u32 << 20).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut stream = connect(addrs[0]);
    let mut writer = stream.try_clone().unwrap();
    let copy = sent.clone();
    let writer = thread::spawn(move || {
        writer.write_all(&copy).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut back = Vec::new();
    stream.read_to_end(&mut back).unwrap();
    writer.join().unwrap();
    assert!(back == sent, "{} bytes came back of {}", back.len(), sent.len());
}

#[test]
fn one_thread_serves_three_routes_at_once() {
    let echoes = [start_echo(), start_echo(), start_echo()];
    let clients: Vec<_> = start_relay(&echoes, DELAY)
        .into_iter()
        .map(|addr| thread::spawn(move || shortest_round_trip(&mut connect(addr))))
        .collect();
    for client in clients {
        assert!(client.join().unwrap() >= 2 * DELAY);
    }
}

#[test]
fn a_sender_is_held_up_by_a_receiver_that_does_not_read() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addrs = start_relay(&[listener.local_addr().unwrap()], DELAY);
    let mut sender = connect(addrs[0]);
    let (mut receiver, _) = listener.accept().unwrap();
    sender.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let block = vec![7; 1 << 20];
    let mut sent_bytes = 0;
    // Four lines' worth: more than one line and all sockets' buffers take.
    let limit_bytes = 4 * LINE_LIMIT_BYTES;
    while sent_bytes < limit_bytes {
        match sender.write(&block) {
            Ok(sent) => sent_bytes += sent,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                break;
            }
        }
    }
    assert!((LINE_LIMIT_BYTES..limit_bytes).contains(&sent_bytes), "{sent_bytes}");
    // Nothing was lost, and what was held up goes on.
    sender.shutdown(Shutdown::Write).unwrap();
    receiver.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert_eq!(io::copy(&mut receiver, &mut io::sink()).unwrap(), sent_bytes as u64);
}

#[test]
fn an_unreachable_target_closes_its_connection_and_no_other() {
    // One that no other test could take meanwhile.
    let closed = SocketAddr::from(([127, 0, 0, 1], 1));
    let addrs = start_relay(&[start_echo(), closed], DELAY);
    let mut good = connect(addrs[0]);
    assert!(shortest_round_trip(&mut good) >= 2 * DELAY);
    assert_eq!(connect(addrs[1]).read(&mut [0; 1]).unwrap(), 0);
    assert!(shortest_round_trip(&mut good) >= 2 * DELAY);
}

#[test]
fn a_line_gives_bytes_when_they_are_due_and_not_before() {
    let start = Instant::now();
    let at = |us: u64| start + Duration::from_micros(us);
    let mut line = DelayLine::new(DELAY);
    assert_eq!(line.next_due(), None);
    line.push(b"one", at(0));
    line.push(b"two", at(100));
    line.finish(at(150));
    assert_eq!(line.room_bytes(), 0);
    line.mature(at(199));
    assert_eq!((line.ready(), line.next_due()), (&b""[..], Some(at(200))));
    line.mature(at(200));
    assert_eq!((line.ready(), line.next_due()), (&b"one"[..], Some(at(300))));
    line.consume(2);
    line.mature(at(300));
    assert_eq!((line.ready(), line.next_due()), (&b"etwo"[..], Some(at(350))));
    line.consume(4);
    assert!(!line.is_finished(at(349)));
    assert!(line.is_finished(at(350)));
}

#[test]
fn a_line_takes_its_limit_and_no_more() {
    let mut line = DelayLine::new(Duration::ZERO);
    let now = Instant::now();
    line.push(&vec![1; LINE_LIMIT_BYTES], now);
    assert_eq!(line.room_bytes(), 0);
    line.mature(now);
    line.consume(10);
    assert_eq!(line.room_bytes(), 10);
    line.push(&[2; 10], now);
    line.mature(now);
    let mut total = 0;
    while !line.ready().is_empty() {
        let ready = line.ready().len();
        line.consume(ready);
        total += ready;
    }
    assert_eq!(total, LINE_LIMIT_BYTES);
}
