//! Targets that grant less than was asked for, or than they promised: what they say is checked, and no receipt repeats it.

use std::{
    collections::HashSet,
    fs,
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use pmof_access::{Access, Durability, Evidence, PostError};
use pmof_control::{OpenFor, Reply, Request, SetName};
use pmof_locks::Mutex;
use pmof_pool::{
    Atomicity, PoolError, RemoteSetOptions, ReplicaError, ReplicaPlace, ReplicaState, TargetOptions, TargetUrl,
};
use pmof_proto::{
    Descriptor,
    frame::{Frame, Opcode},
    limits::HEADER_BYTES,
};
use uuid::Uuid;

use crate::support::{LONG, Target, of_replica, options};

/// How a target's words are twisted on their way.
#[derive(Clone, Copy)]
struct Lies {
    of_flushes: fn(&mut Frame),
    of_service: fn(&mut Reply),
}

const HONEST: Lies = Lies { of_flushes: |_| {}, of_service: |_| {} };

/// A proxy between initiators and a target; gives its address.
fn proxy_before(target: &Target, lies: Lies) -> String {
    let there = target.address().to_string().trim_start_matches("tcp://").to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = format!("tcp://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for near in listener.incoming() {
            let (near, far) = (near.unwrap(), TcpStream::connect(&there).unwrap());
            near.set_nodelay(true).unwrap();
            far.set_nodelay(true).unwrap();
            let flushes = Arc::new(Mutex::new(HashSet::new()));
            let (asked, answered) = (Arc::clone(&flushes), flushes);
            let (from, to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            std::thread::spawn(move || {
                pass(from, to, |frame, _| {
                    if frame.opcode == Opcode::Flush {
                        asked.lock().insert(frame.sequence);
                    }
                });
            });
            std::thread::spawn(move || pass(far, near, |frame, payload| twist(lies, &answered, frame, payload)));
        }
    });
    here
}

fn twist(lies: Lies, flushes: &Mutex<HashSet<u64>>, frame: &mut Frame, payload: &mut Vec<u8>) {
    if frame.opcode == Opcode::Reply && flushes.lock().remove(&frame.sequence) {
        (lies.of_flushes)(frame);
    }
    if frame.opcode == Opcode::Send {
        let (head, mut reply) = Reply::decode(payload).unwrap();
        (lies.of_service)(&mut reply);
        *payload = reply.encode(head).unwrap();
        frame.length = payload.len() as u64;
    }
}

/// Passes frames on until one side ends.
pub(crate) fn pass(mut from: TcpStream, mut to: TcpStream, mut change: impl FnMut(&mut Frame, &mut Vec<u8>)) {
    let mut header = [0; HEADER_BYTES];
    while from.read_exact(&mut header).is_ok() {
        let mut frame = Frame::decode(&header).unwrap();
        let has_payload =
            matches!(frame.opcode, Opcode::Hello | Opcode::Welcome | Opcode::Write | Opcode::Send | Opcode::ReadReply);
        let mut payload = vec![0; if has_payload { frame.length as usize } else { 0 }];
        if from.read_exact(&mut payload).is_err() {
            break;
        }
        change(&mut frame, &mut payload);
        if to.write_all(&[&frame.encode()[..], &payload].concat()).is_err() {
            break;
        }
    }
    // Either may have gone already.
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

fn lower_level(frame: &mut Frame) {
    frame.immediate = frame.immediate & !0xFF | Durability::Visible as u32;
}

fn weaker_evidence(frame: &mut Frame) {
    frame.immediate = frame.immediate & !0xFF_0000 | (Evidence::Declared as u32) << 16;
}

fn nothing_at_all(frame: &mut Frame) {
    frame.immediate = 0;
}

const FLUSH_LIES: [fn(&mut Frame); 3] = [lower_level, weaker_evidence, nothing_at_all];

/// Changes the descriptor that an opening is answered with.
fn change_descriptor(reply: &mut Reply, change: impl FnOnce(&mut Descriptor)) {
    if let Reply::Opened { descriptor, .. } | Reply::SetOpened { descriptor, .. } = reply {
        let mut changed = Descriptor::decode(descriptor).unwrap();
        change(&mut changed);
        *descriptor = changed.encode().to_vec();
    }
}

fn promise_less(reply: &mut Reply) {
    change_descriptor(reply, |descriptor| descriptor.promises[1..].fill(None));
}

fn grant_less(reply: &mut Reply) {
    change_descriptor(reply, |descriptor| descriptor.access -= Access::WRITE | Access::FLUSH_PERSISTENT);
}

fn shorter_region(reply: &mut Reply) {
    change_descriptor(reply, |descriptor| descriptor.len_bytes -= 8);
}

fn other_size(reply: &mut Reply) {
    if let Reply::Opened { size_bytes, .. } | Reply::SetOpened { size_bytes, .. } = reply {
        *size_bytes += 4096;
    }
}

fn other_kind(reply: &mut Reply) {
    if let Reply::Opened { .. } | Reply::SetOpened { .. } = reply {
        *reply = Reply::Closed;
    }
}

fn other_pool(reply: &mut Reply) {
    if let Reply::Opened { pool_uuid, .. } = reply {
        *pool_uuid = Uuid::from_u128(77);
    }
}

/// Opens a pool and persists once.
fn use_pool(urls: &[String]) -> Result<(), PoolError> {
    let pool = options(urls.to_vec()).open()?;
    let receipt = pool.persist(0, b"acknowledged")?;
    assert!(receipt.replicas.iter().all(|replica| replica.promise.evidence == Evidence::Probed), "{receipt}");
    pool.check_replicas()?;
    pool.close()
}

#[test]
fn a_flush_that_is_answered_with_less_is_no_persist() {
    let (target, honest) = (Target::start(), Target::start());
    let make = |name: &str| options([target.url(name), honest.url(name)]).create(4096).unwrap().close().unwrap();
    for (index, of_flushes) in FLUSH_LIES.into_iter().enumerate() {
        // The honest one goes on where the other is given up, so each lie has its own pool.
        let name = format!("orders{index}");
        make(&name);
        let lying = format!("{}/{name}", proxy_before(&target, Lies { of_flushes, ..HONEST }));
        let error = use_pool(&[lying, honest.url(&name)]).unwrap_err();
        let text = format!("{error:?}");
        assert!(text.contains("a flush reply names another durability"), "{text}");
    }
    // The proxy is not what is noticed.
    make("fresh");
    use_pool(&[format!("{}/fresh", proxy_before(&target, HONEST)), honest.url("fresh")]).unwrap();
}

#[test]
fn an_opening_that_is_answered_with_less_fails() {
    let (target, honest) = (Target::start(), Target::start());
    options([target.url("orders"), honest.url("orders")]).create(4096).unwrap().close().unwrap();
    let with = |of_service| {
        let lying = format!("{}/orders", proxy_before(&target, Lies { of_service, ..HONEST }));
        use_pool(&[honest.url("orders"), lying]).unwrap_err()
    };
    assert!(matches!(of_replica(&with(promise_less)).1, ReplicaError::NotDurable { .. }));
    assert!(matches!(of_replica(&with(other_size)).1, ReplicaError::Mismatch { .. }));
    assert!(matches!(of_replica(&with(other_pool)).1, ReplicaError::Mismatch { .. }));
    assert!(matches!(of_replica(&with(shorter_region)).1, ReplicaError::Unexpected));
    assert!(matches!(of_replica(&with(other_kind)).1, ReplicaError::Unexpected));
    let error = with(grant_less);
    assert!(matches!(error.replica_error(), Some(ReplicaError::Post(PostError::NoRight { .. }))), "{error:?}");
}

/// A proxy that cuts the connection when the target is to be told a mark, while it may.
fn cut_at_the_mark(target: &Target, may_cut: &Arc<AtomicBool>) -> String {
    let there = target.address().to_string().trim_start_matches("tcp://").to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = format!("tcp://{}/orders", listener.local_addr().unwrap());
    let may_cut = Arc::clone(may_cut);
    std::thread::spawn(move || {
        let (near, far) = (listener.accept().unwrap().0, TcpStream::connect(&there).unwrap());
        let (from, to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
        let ends = [near.try_clone().unwrap(), far.try_clone().unwrap()];
        std::thread::spawn(move || pass(far, near, |_, _| {}));
        pass(from, to, |frame, payload| {
            let is_mark =
                frame.opcode == Opcode::Send && matches!(Request::decode(payload), Ok((_, Request::Mark { .. })));
            if is_mark && may_cut.load(Ordering::SeqCst) {
                for end in &ends {
                    // The other side may have closed it.
                    let _ = end.shutdown(Shutdown::Both);
                }
            }
        });
    });
    here
}

/// A replica that has flushed, and is lost before the persist is acknowledged.
#[test]
fn a_replica_lost_behind_its_flush_is_in_no_receipt() {
    let three: [Target; 3] = std::array::from_fn(|_| Target::start());
    let may_cut = Arc::new(AtomicBool::new(false));
    let cut = cut_at_the_mark(&three[2], &may_cut);
    let pool = options([three[0].url("orders"), three[1].url("orders"), cut.clone()]).create(4096).unwrap();
    assert!(!pool.persist(0, b"of three").unwrap().is_degraded());
    may_cut.store(true, Ordering::SeqCst);
    let until = Instant::now() + LONG;
    let receipt = loop {
        let receipt = pool.persist(0, b"of two").unwrap();
        // The mark rises once a second, in a persist: it is the only one that can lose the replica.
        if !matches!(pool.status().unwrap().replicas[2].state, ReplicaState::InSync) {
            break receipt;
        }
        assert!(Instant::now() < until, "{receipt}");
        std::thread::sleep(Duration::from_millis(5));
    };
    let named = |replica: &ReplicaPlace| replica.to_string() == cut;
    assert!(!receipt.replicas.iter().any(|receipt| named(&receipt.replica)), "{receipt}");
    assert!(receipt.is_degraded() && receipt.missing.iter().any(|replica| named(replica)), "{receipt}");
}

/// A target that takes its part in an epoch, and is lost before it says so.
fn takes_no_epoch(reply: &mut Reply) {
    if matches!(reply, Reply::Begun) {
        *reply = Reply::Closed;
    }
}

#[test]
fn a_replica_lost_at_its_epoch_counts_for_what_may_be_lost() {
    let three: [Target; 3] = std::array::from_fn(|_| Target::start());
    let urls: Vec<_> = three.iter().map(|target| target.url("orders")).collect();
    options(urls.clone()).create(4096).unwrap().close().unwrap();
    let lost =
        |index: usize| format!("{}/orders", proxy_before(&three[index], Lies { of_service: takes_no_epoch, ..HONEST }));
    let openings = || options(urls.clone()).info().unwrap().iter().map(|info| info.state.opening).collect::<Vec<_>>();

    // One of three may be lost; the others get an epoch without it, which is the opening's only one.
    let pool = options([urls[0].clone(), urls[1].clone(), lost(2)]).open().unwrap();
    assert_eq!(openings(), [2, 2, 2]);
    drop(pool);
    options(urls[..2].to_vec()).min_replicas(2).open().unwrap().close().unwrap();
    fs::remove_file(three[2].root.path().join("orders")).unwrap();
    options(urls[..2].to_vec()).min_replicas(2).remove().unwrap();

    // Of two losses the opening fails; nobody has an epoch that the others lack.
    options(urls.clone()).create(4096).unwrap().close().unwrap();
    let error = options([urls[0].clone(), lost(1), lost(2)]).open().unwrap_err();
    assert!(matches!(of_replica(&error).1, ReplicaError::Unexpected), "{error}");
    options(urls.clone()).open().unwrap().close().unwrap();
}

#[test]
fn the_pool_of_a_set_is_checked_in_the_same_way() {
    let target = Target::start();
    let part = target.root.path().join("part");
    fs::write(target.root.path().join("x.set"), format!("PMEMPOOLSET\n2M {}\n", part.display())).unwrap();
    let set = SetName::new("x.set").unwrap();
    let options = TargetOptions::default().require(Some(Durability::ProcessCrash));
    let honest: TargetUrl = target.address().into();
    let remote = |url| RemoteSetOptions::new(url, set.clone()).target(options.clone());
    remote(honest).create(4096, Some(&pmof_pool_set::Attributes::default())).unwrap().close().unwrap();
    let use_set = |lies, size_bytes| {
        let url: TargetUrl = proxy_before(&target, lies).parse().unwrap();
        let pool = remote(url).open(size_bytes, OpenFor::Write)?;
        let mut lane = pool.lane();
        lane.set_atomicity(Atomicity::Words);
        lane.write(4096, b"acknowledged")?;
        lane.persist()?;
        pool.close()
    };
    use_set(HONEST, 2 << 20).unwrap();
    for of_flushes in FLUSH_LIES {
        let text = format!("{:?}", use_set(Lies { of_flushes, ..HONEST }, 0).unwrap_err());
        assert!(text.contains("a flush reply names another durability"), "{text}");
    }
    let with = |of_service, size_bytes| use_set(Lies { of_service, ..HONEST }, size_bytes).unwrap_err();
    let is_unexpected = |of_service| matches!(with(of_service, 0).replica_error(), Some(ReplicaError::Unexpected));
    assert!(is_unexpected(other_size) && is_unexpected(shorter_region) && is_unexpected(other_kind));
    assert!(matches!(with(promise_less, 0).replica_error(), Some(ReplicaError::NotDurable { .. })));
    let much_smaller = |reply: &mut Reply| {
        if let Reply::SetOpened { size_bytes, .. } = reply {
            *size_bytes -= 1 << 20;
        }
        change_descriptor(reply, |descriptor| descriptor.len_bytes -= 1 << 20);
    };
    assert!(matches!(with(much_smaller, 2 << 20).replica_error(), Some(ReplicaError::Unexpected)));
    let error = with(grant_less, 0);
    assert!(matches!(error.replica_error(), Some(ReplicaError::Post(PostError::NoRight { .. }))), "{error:?}");
}
