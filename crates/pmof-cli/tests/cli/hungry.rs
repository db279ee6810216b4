//! Initiators that ask and never take the answers: what they make a target hold, and whether others notice.

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    process::Child,
    slice,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use pmof::{Durability, Pool};
use pmof_control::{MessageHead, OpenFor, PoolName, Reply, Request};
use pmof_proto::{
    Descriptor, RegionKey,
    frame::{Frame, Opcode},
    limits::HEADER_BYTES,
};

use crate::support::{LONG, serve_with};

const MIB: u64 = 1 << 20;

/// What the target may hold for its connections.
const BUDGET_BYTES: u64 = 64 * MIB;

/// Its other memory: the program itself, its threads, and the allocator's reserve.
const BASE_BYTES: u64 = 24 * MIB;

const POOL_BYTES: u64 = 64 << 10;
const DIGEST_BLOCK_BYTES: u64 = 512;

/// What a hungry initiator asks for.
#[derive(Clone, Copy, Debug)]
enum Diet {
    /// Pages, which the target copies.
    Pages,
    /// Nothing, which takes an answer too.
    Headers,
    /// What it changes afterwards, so that the target has to keep what was there.
    Images,
    /// Answers of the service.
    Messages,
}

/// An initiator made by hand.
pub(crate) struct Hungry {
    stream: TcpStream,
    sequence: u64,
    key: RegionKey,
    /// Answers of the service that it took.
    taken: u64,
    /// Bytes to be sent, and how many of them were.
    waiting: (Vec<u8>, usize),
}

impl Hungry {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        // From the protocol's tables: the longest send queue and inbox, so that nothing holds the target back.
        let mut hello = Frame::new(Opcode::Hello, 1 | 1 << 16);
        hello.flags = 2;
        hello.immediate = u32::from_le_bytes(*b"PMOF");
        hello.key[8..12].copy_from_slice(&65_536_u32.to_le_bytes());
        hello.key[12..].copy_from_slice(&4096_u32.to_le_bytes());
        hello.offset = 1 << 30;
        hello.operand = 1 << 14;
        stream.write_all(&hello.encode()).unwrap();
        let mut hungry = Self { stream, sequence: 0, key: RegionKey([0; 16]), taken: 0, waiting: (Vec::new(), 0) };
        let (welcome, _) = hungry.frame();
        assert_eq!((welcome.opcode, welcome.code), (Opcode::Welcome, 0));
        hungry
    }

    fn frame(&mut self) -> (Frame, Vec<u8>) {
        let mut header = [0; HEADER_BYTES];
        self.stream.read_exact(&mut header).unwrap();
        let frame = Frame::decode(&header).unwrap();
        let has_payload = matches!(frame.opcode, Opcode::Welcome | Opcode::Send | Opcode::ReadReply);
        let mut payload = vec![0; if has_payload { frame.length as usize } else { 0 }];
        self.stream.read_exact(&mut payload).unwrap();
        (frame, payload)
    }

    fn next(&mut self, opcode: Opcode) -> Frame {
        self.sequence += 1;
        Frame::new(opcode, self.sequence)
    }

    pub(crate) fn send(&mut self, request: &Request) {
        let message = request.encode(MessageHead::newest(1)).unwrap();
        let frame = Frame { length: message.len() as u64, ..self.next(Opcode::Send) };
        self.stream.write_all(&[&frame.encode()[..], &message].concat()).unwrap();
    }

    /// The service's next answer, and the number by which to say that it came.
    pub(crate) fn answer(&mut self) -> (u64, Reply) {
        loop {
            let (frame, payload) = self.frame();
            if frame.opcode == Opcode::Send {
                return (frame.sequence, Reply::decode(&payload).unwrap().1);
            }
        }
    }

    /// Says that the answer came, and that it had a receive.
    fn take(&mut self, sequence: u64) {
        self.taken += 1;
        let credit = Frame { operand: self.taken, ..Frame::new(Opcode::Credit, 0) };
        let reply = Frame::new(Opcode::Reply, sequence);
        self.stream.write_all(&[credit, reply].map(|frame| frame.encode()).concat()).unwrap();
    }

    fn open(&mut self, name: &str, access: OpenFor) {
        self.send(&Request::Open {
            name: PoolName::new(name).unwrap(),
            access,
            require: Durability::ProcessCrash,
            may_be_older: false,
        });
        let (sequence, reply) = self.answer();
        let Reply::Opened { descriptor, .. } = reply else { panic!("{reply:?}") };
        self.key = Descriptor::decode(&descriptor).unwrap().key;
        self.take(sequence);
    }

    /// Orders much more than a target may hold.
    fn order(&mut self, diet: Diet) {
        let mut bytes = Vec::new();
        let key = self.key.0;
        match diet {
            Diet::Pages | Diet::Headers => {
                let length = if matches!(diet, Diet::Pages) { 4096 } else { 0 };
                for _ in 0..1 << 14 {
                    bytes.extend(Frame { key, length, ..self.next(Opcode::Read) }.encode());
                }
            }
            Diet::Images => {
                for _ in 0..12 {
                    for _ in 0..16 {
                        bytes.extend(Frame { key, length: POOL_BYTES, ..self.next(Opcode::Read) }.encode());
                    }
                    bytes.extend(Frame { key, ..self.next(Opcode::AtomicWrite) }.encode());
                    bytes.extend(Frame { key, length: POOL_BYTES, ..self.next(Opcode::Write) }.encode());
                    bytes.resize(bytes.len() + POOL_BYTES as usize, 7);
                }
            }
            Diet::Messages => {
                let message = digest().encode(MessageHead::newest(1)).unwrap();
                for _ in 0..2 {
                    bytes.extend(Frame { length: message.len() as u64, ..self.next(Opcode::Send) }.encode());
                    bytes.extend(&message);
                }
            }
        }
        self.stream.set_nonblocking(true).unwrap();
        self.waiting = (bytes, 0);
    }

    /// Sends what the target takes. True if that was anything.
    fn insist(&mut self) -> bool {
        let (bytes, sent) = &mut self.waiting;
        match self.stream.write(&bytes[*sent..]) {
            Ok(count) => {
                *sent += count;
                count > 0
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            Err(error) => panic!("the target broke off: {error}"),
        }
    }
}

/// A question with a long answer.
fn digest() -> Request {
    Request::Digest { offset: 0, len_bytes: 127 * DIGEST_BLOCK_BYTES, block_bytes: DIGEST_BLOCK_BYTES }
}

/// Memory of the process that is not backed by a file, in bytes.
fn anonymous_bytes(child: &Child) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

struct Target {
    root: tempfile::TempDir,
    child: Child,
    address: String,
}

impl Target {
    fn start() -> Self {
        let root = tempfile::tempdir_in("/dev/shm").unwrap();
        let (child, address) = serve_with(root.path(), &["--memory-budget", &BUDGET_BYTES.to_string()]);
        Self { root, child, address }
    }

    fn pool(&self, name: &str) -> Pool {
        let options = Pool::options().require(Durability::ProcessCrash);
        options.replica(format!("{}/{name}", self.address)).create(POOL_BYTES).unwrap()
    }

    fn socket_address(&self) -> SocketAddr {
        self.address.strip_prefix("tcp://").unwrap().parse().unwrap()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Persists until told to stop: how often, and the longest time that one took, in microseconds.
fn persist_until(stop: &AtomicBool, done: &AtomicU64, pool: &Pool) -> Duration {
    let mut longest = Duration::ZERO;
    while !stop.load(Ordering::SeqCst) {
        let begun = Instant::now();
        pool.persist(0, &[done.load(Ordering::SeqCst) as u8; 512]).unwrap();
        longest = longest.max(begun.elapsed());
        done.fetch_add(1, Ordering::SeqCst);
    }
    longest
}

/// Has all of them insist until the target takes no more from any, and gives the most memory that it held.
fn starve(target: &Target, hungry: &mut [Hungry]) -> u64 {
    let (mut most, mut moved_at) = (0, Instant::now());
    while moved_at.elapsed() < Duration::from_millis(1500) {
        for initiator in &mut *hungry {
            if initiator.insist() {
                moved_at = Instant::now();
            }
        }
        most = most.max(anonymous_bytes(&target.child));
        std::thread::sleep(Duration::from_millis(1));
    }
    most
}

#[test]
fn hundreds_that_take_no_answers_stay_within_the_budget_and_slow_nobody_down() {
    let target = Target::start();
    target.pool("menu").close().unwrap();
    let diets = [Diet::Pages, Diet::Pages, Diet::Headers, Diet::Images, Diet::Messages];
    let diets = || diets.into_iter().cycle().take(200).enumerate();
    let own = |index: usize| format!("own{index}");
    // Pools take a while to make, and a target waits only so long for its answers to be taken.
    for (index, _) in diets().filter(|(_, diet)| matches!(diet, Diet::Images)) {
        target.pool(&own(index)).close().unwrap();
    }
    let mut hungry: Vec<_> = diets().map(|_| Hungry::connect(target.socket_address())).collect();
    for (initiator, (index, diet)) in hungry.iter_mut().zip(diets()) {
        match diet {
            Diet::Images => initiator.open(&own(index), OpenFor::Write),
            _ => initiator.open("menu", OpenFor::Read),
        }
    }
    for (initiator, (_, diet)) in hungry.iter_mut().zip(diets()) {
        initiator.order(diet);
    }
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let pool = target.pool("honest");
    let (most, longest) = std::thread::scope(|scope| {
        let honest = scope.spawn(|| persist_until(&stop, &done, &pool));
        let most = starve(&target, &mut hungry);
        // And while they all go on waiting.
        let before = done.load(Ordering::SeqCst);
        let begun = Instant::now();
        while done.load(Ordering::SeqCst) < before + 100 {
            assert!(begun.elapsed() < LONG, "persists of others go on");
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::SeqCst);
        (most, honest.join().unwrap())
    });
    println!("at most {} MiB, {} persists, the longest {longest:?}", most / MIB, done.load(Ordering::SeqCst));
    assert!(most <= BUDGET_BYTES + BASE_BYTES, "{} MiB are held", most / MIB);
    assert!(longest < LONG / 3, "a persist took {longest:?}");

    // One that comes now is served, and one that takes its answers at last gets all of them. It comes now as well: after its loss timeout
    // a target gives up one that takes nothing, and on a busy machine the others have waited for longer.
    target.pool("late").close().unwrap();
    let mut late = Hungry::connect(target.socket_address());
    late.open("menu", OpenFor::Read);
    late.order(Diet::Pages);
    starve(&target, slice::from_mut(&mut late));
    late.stream.set_nonblocking(false).unwrap();
    let mut writer = late.stream.try_clone().unwrap();
    let (rest, sent) = std::mem::take(&mut late.waiting);
    let sender = std::thread::spawn(move || writer.write_all(&rest[sent..]));
    for _ in 0..1 << 14 {
        while late.frame().0.opcode != Opcode::ReadReply {}
    }
    sender.join().unwrap().unwrap();
    drop(hungry);
    target.pool("last").close().unwrap();
    assert!(target.root.path().join("last").exists());
}

#[test]
fn the_next_request_is_read_when_the_answer_before_was_taken() {
    let target = Target::start();
    target.pool("menu").close().unwrap();
    let mut hungry = Hungry::connect(target.socket_address());
    hungry.open("menu", OpenFor::Read);
    hungry.send(&digest());
    let (sequence, reply) = hungry.answer();
    assert!(matches!(reply, Reply::Digests { .. }), "{reply:?}");
    hungry.send(&digest());
    hungry.stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut byte = [0; 1];
    let heard = loop {
        // Credit for the first question may still come; an answer may not.
        match hungry.stream.peek(&mut byte) {
            Ok(1) if byte[0] == Opcode::Send as u8 => break true,
            Ok(1) => drop(hungry.frame()),
            _ => break false,
        }
    };
    assert!(!heard, "an answer was made although the one before was not taken");
    hungry.stream.set_read_timeout(Some(LONG)).unwrap();
    hungry.take(sequence);
    assert!(matches!(hungry.answer().1, Reply::Digests { .. }));
}
