//! Two endpoints of one process, over each provider that needs no device.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use pmof_fabric::{
    Buffer, Bytes, Completion, Domain, Endpoint, EndpointOptions, FabricError, MemoryPart, MemoryRegion, MrAccess,
    Operation, PostFailure, Query, RegisterError, RemoteAddress, list,
};
use pmof_mem::{Medium, Memory};

mod limits;

/// Longer than anything takes that works.
const LONG: Duration = Duration::from_secs(60);

const MEMORY_BYTES: u64 = 1 << 20;

/// One side: its domain, its endpoint, and the memory that the other side reaches.
struct Side {
    domain: Domain,
    endpoint: Endpoint,
    memory: Arc<dyn Medium>,
    region: MemoryRegion,
    done: Vec<Completion>,
}

impl Side {
    fn new(provider: &str, key: u64) -> Option<Self> {
        let query = Query { provider: Some(provider.to_owned()), ..Query::default() };
        let info = match list(&query) {
            Ok(infos) => infos.into_iter().next()?,
            Err(error) => {
                skip_report::skipped!("{provider}: {error}");
                return None;
            }
        };
        let domain = Domain::open(info).unwrap();
        let endpoint = Endpoint::open(&domain, domain.info(), EndpointOptions { operations: 32 }).unwrap();
        let memory: Arc<dyn Medium> = Arc::new(Memory::anonymous(MEMORY_BYTES).unwrap());
        let access = MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE;
        let region = domain.register(Arc::clone(&memory), (0, MEMORY_BYTES), access, key).unwrap();
        Some(Self { domain, endpoint, memory, region, done: Vec::new() })
    }

    fn at(&self, offset: u64) -> RemoteAddress {
        RemoteAddress { address: self.region.base() + offset, key: self.region.key() }
    }

    fn poll(&mut self) {
        let done = &mut self.done;
        self.endpoint.poll(|completion| done.push(completion)).unwrap();
    }

    fn buffer(&self, bytes: &[u8]) -> Buffer {
        let mut buffer = Buffer::new(&self.domain, bytes.len()).unwrap();
        buffer.bytes_mut().copy_from_slice(bytes);
        buffer
    }
}

/// Both sides, each of which knows the other.
fn pair(provider: &str) -> Option<(Side, Side)> {
    let (mut a, mut b) = (Side::new(provider, 0xA)?, Side::new(provider, 0xB)?);
    a.endpoint.set_peer(&b.endpoint.name().unwrap()).unwrap();
    b.endpoint.set_peer(&a.endpoint.name().unwrap()).unwrap();
    Some((a, b))
}

/// Posts at `a` as soon as there is room, and drives both.
fn post(a: &mut Side, b: &mut Side, operation: Operation, bytes: impl Into<Bytes>, id: u64) {
    let mut bytes = bytes.into();
    let start = Instant::now();
    let len = bytes.len_bytes();
    while let Err((back, failure)) = a.endpoint.post(operation, bytes, len, id) {
        assert_eq!(failure, PostFailure::Again);
        assert!(start.elapsed() < LONG, "no room in time");
        bytes = back;
        a.poll();
        b.poll();
    }
}

/// Drives both until each has so many completions, which it takes.
fn drive(a: &mut Side, b: &mut Side, counts: (usize, usize)) -> (Vec<Completion>, Vec<Completion>) {
    let start = Instant::now();
    while a.done.len() < counts.0 || b.done.len() < counts.1 {
        a.poll();
        b.poll();
        assert!(start.elapsed() < LONG, "{:?} {:?}", a.done, b.done);
    }
    (a.done.drain(..counts.0).collect(), b.done.drain(..counts.1).collect())
}

fn messages_and_memory(provider: &str) {
    let Some((mut a, mut b)) = pair(provider) else { return };
    let room = Buffer::new(&b.domain, 8192).unwrap();
    post(&mut b, &mut a, Operation::Receive, room, 1);

    // Two writes to the same place and a message behind them: they stay in order.
    let (first, second) = (a.buffer(&vec![1; 70_000]), a.buffer(&[2; 4096]));
    let to = Operation::Write(b.at(8));
    post(&mut a, &mut b, to, first, 10);
    post(&mut a, &mut b, to, second, 11);
    let said = a.buffer(b"behind");
    post(&mut a, &mut b, Operation::Send, said, 12);
    let mut seen = vec![0; 70_000];
    let (_, mut received) = drive(&mut a, &mut b, (0, 1));
    b.memory.read(8, &mut seen).unwrap();
    assert!(seen[..4096] == [2; 4096] && seen[4096..].iter().all(|byte| *byte == 1), "writes come before what follows");
    let received = received.remove(0);
    assert_eq!((received.id, received.operation, received.result), (1, Operation::Receive, Ok(6)));
    assert_eq!(&received.bytes.into_buffer().unwrap().bytes()[..6], b"behind");
    let (mut done, _) = drive(&mut a, &mut b, (3, 0));
    done.sort_by_key(|completion| completion.id);
    assert!(done.iter().map(|completion| completion.id).eq(10..13), "{done:?}");
    assert!(done.iter().all(|completion| completion.result.is_ok()), "{done:?}");

    let into = Buffer::new(&a.domain, 100).unwrap();
    let from = Operation::Read(b.at(4096));
    post(&mut a, &mut b, from, into, 13);
    let (mut done, _) = drive(&mut a, &mut b, (1, 0));
    let read = done.remove(0);
    assert!(read.result.is_ok());
    let read = read.bytes.into_buffer().unwrap();
    assert!(read.bytes()[..8] == [2; 8] && read.bytes()[8..] == [1; 92]);

    // The same from and into memory, where it is.
    let own: Arc<dyn Medium> = Arc::new(Memory::anonymous(8192).unwrap());
    let part = |offset, len| MemoryPart::new(&a.domain, Arc::clone(&own), (offset, len));
    let (Some(from), Some(into)) = (part(0, 4096), part(4096, 4096)) else { return };
    own.store(0, &[9; 4096]).unwrap();
    let (to, back) = (b.at(0), b.at(1));
    post(&mut a, &mut b, Operation::Write(to), from, 14);
    drive(&mut a, &mut b, (1, 0));
    post(&mut a, &mut b, Operation::Read(back), into, 15);
    let (done, _) = drive(&mut a, &mut b, (1, 0));
    assert!(done[0].result.is_ok(), "{done:?}");
    let mut seen = vec![0; 4096];
    own.read(4096, &mut seen).unwrap();
    assert!(seen[..4095].iter().all(|byte| *byte == 9), "{seen:?}");
}

/// What a peer has no right to is not written, and whoever tried is not told that it was.
fn a_wrong_key_writes_nothing(provider: &str) {
    let is_written = |side: &Side| {
        let mut seen = vec![0; MEMORY_BYTES as usize];
        side.memory.read(0, &mut seen).unwrap();
        seen.iter().any(|byte| *byte != 0)
    };
    for kind in ["beyond the region", "wrong key", "the control"] {
        let Some((mut a, mut b)) = pair(provider) else { return };
        let to = match kind {
            "beyond the region" => b.at(MEMORY_BYTES - 8),
            "wrong key" => RemoteAddress { key: 0x1234_5678, ..b.at(0) },
            _ => b.at(0),
        };
        let bytes = a.buffer(&[7; 64]);
        post(&mut a, &mut b, Operation::Write(to), bytes, 1);
        if kind == "the control" {
            let (done, _) = drive(&mut a, &mut b, (1, 0));
            assert!(done[0].result.is_ok() && is_written(&b), "{provider} {done:?}");
        } else {
            let (done, _) = drive(&mut a, &mut b, (1, 0));
            assert!(done[0].result.is_err() && !is_written(&b), "{provider} {kind}: {done:?}");
        }
    }
}

fn a_key_is_used_once(provider: &str) {
    let Some(side) = Side::new(provider, 0xA) else { return };
    let again = side.domain.register(Arc::clone(&side.memory), (0, 4096), MrAccess::REMOTE_READ, 0xA);
    assert!(matches!(again, Err(RegisterError::KeyInUse { key: 0xA })), "{provider}: {again:?}");
    let Side { domain, memory, region, .. } = side;
    drop(region);
    domain.register(memory, (0, 4096), MrAccess::REMOTE_READ, 0xA).unwrap();
}

/// What is under way when an endpoint goes is given up, without harm.
fn an_endpoint_goes_with_work_under_way(provider: &str) {
    let Some((mut a, mut b)) = pair(provider) else { return };
    let room = Buffer::new(&a.domain, 8192).unwrap();
    post(&mut a, &mut b, Operation::Receive, room, 1);
    let bytes = a.buffer(&vec![1; 300_000]);
    let to = Operation::Write(b.at(0));
    post(&mut a, &mut b, to, bytes, 2);
    drop(b);
    drop(a);
}

macro_rules! over {
    ($($module:ident: $provider:literal),+) => {
        $(mod $module {
            #[test]
            fn messages_and_memory() {
                super::messages_and_memory($provider);
            }

            #[test]
            fn a_wrong_key_writes_nothing() {
                super::a_wrong_key_writes_nothing($provider);
            }

            #[test]
            fn a_key_is_used_once() {
                super::a_key_is_used_once($provider);
            }

            #[test]
            fn an_endpoint_goes_with_work_under_way() {
                super::an_endpoint_goes_with_work_under_way($provider);
            }
        })+
    };
}

over! { tcp: "tcp", net: "net" }

#[test]
fn a_provider_that_there_is_not_is_named() {
    let query = |name: &str| Query { provider: Some(name.to_owned()), ..Query::default() };
    match list(&query("nowhere")) {
        Err(FabricError::Library(error)) => skip_report::skipped!("{error}"),
        error => assert!(error.unwrap_err().to_string().contains("has no nowhere with"), "it is named"),
    }
    for name in ["sockets", "shm", "shm;ofi_rxm"] {
        let refused = list(&query(name));
        assert!(matches!(refused, Err(FabricError::Unsupported { .. } | FabricError::Library(_))), "{refused:?}");
    }
}
