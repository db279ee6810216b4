//! The map of write intent: raised before writes, cleared behind them, and all that an opening after a writer's death compares.

use std::{
    fs::OpenOptions,
    net::{TcpListener, TcpStream},
    os::unix::fs::FileExt,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use pmof_control::{DATA_OFFSET, INTENT_OFFSET, IntentLayout, Reply, Request};
use pmof_locks::Mutex;
use pmof_pool::{Pool, PoolOptions};
use pmof_proto::frame::Opcode;
use pmof_target::ServiceOptions;

use crate::{lying::pass, support::*};

const MIB: u64 = 1 << 20;
/// Three words of extents.
const POOL_BYTES: u64 = 80 * MIB;

fn on_tmpfs<const N: usize>() -> [Target; N] {
    std::array::from_fn(|_| Target::on_tmpfs(ServiceOptions::default()))
}

fn of<const N: usize>(targets: &[Target; N]) -> PoolOptions {
    options(targets.each_ref().map(|target| target.url("orders")))
}

/// The raised extents, as the file has them; `None` where nobody keeps the map.
fn raised(target: &Target) -> Option<Vec<u64>> {
    let file = OpenOptions::new().read(true).open(target.root.path().join("orders")).unwrap();
    let word = |index: usize| {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, INTENT_OFFSET + 8 * index as u64).unwrap();
        u64::from_le_bytes(word)
    };
    let words: Vec<_> = (0..IntentLayout::new(POOL_BYTES).word_count()).map(word).collect();
    if words.contains(&0) {
        return None;
    }
    let bits = words.into_iter().enumerate().map(|(index, word)| IntentLayout::decode(index, word));
    let bits =
        bits.enumerate().flat_map(|(index, bits)| (0..32).map(move |bit| (index as u64 * 32 + bit, bits >> bit & 1)));
    Some(bits.filter(|(_, bit)| *bit == 1).map(|(extent, _)| extent).collect())
}

/// Changes a byte behind the back of everybody, as a write does that reached one replica and not the others.
fn flip(target: &Target, offset: u64) {
    let file = OpenOptions::new().read(true).write(true).open(target.root.path().join("orders")).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, DATA_OFFSET + offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], DATA_OFFSET + offset).unwrap();
}

/// What an older copy of a replica holds: everything before the data, and one block of that.
struct OlderCopy {
    head: Vec<u8>,
    block: Vec<u8>,
    offset: u64,
}

const BLOCK_BYTES: usize = 64 << 10;

impl OlderCopy {
    fn of(target: &Target, offset: u64) -> Self {
        let file = OpenOptions::new().read(true).open(target.root.path().join("orders")).unwrap();
        let (mut head, mut block) = (vec![0; DATA_OFFSET as usize], vec![0; BLOCK_BYTES]);
        file.read_exact_at(&mut head, 0).unwrap();
        file.read_exact_at(&mut block, DATA_OFFSET + offset).unwrap();
        Self { head, block, offset }
    }

    fn put_back(self, target: &mut Target) {
        target.stop();
        let file = OpenOptions::new().write(true).open(target.root.path().join("orders")).unwrap();
        file.write_all_at(&self.head, 0).unwrap();
        file.write_all_at(&self.block, DATA_OFFSET + self.offset).unwrap();
        target.restart();
    }
}

/// A pool that was written, whose second replica was copied, and that was written again at 40 MiB under the same mark.
fn written_behind_a_copy(targets: &[Target; 2]) -> (Pool, OlderCopy) {
    let marks = || of(targets).info().unwrap().into_iter().map(|info| info.state.mark).collect::<Vec<_>>();
    loop {
        let pool = of(targets).create(POOL_BYTES).unwrap();
        pool.persist(3 * MIB, b"before the copy").unwrap();
        let (before, copy) = (marks(), OlderCopy::of(&targets[1], 40 * MIB));
        pool.persist(40 * MIB, b"behind the copy").unwrap();
        if marks() == before {
            return (pool, copy);
        }
        // A second has passed, so that the mark tells the copy from the replica.
        pool.close().unwrap();
        of(targets).remove().unwrap();
    }
}

#[track_caller]
fn assert_both_hold(pool: &Pool, offset: u64, expected: &[u8]) {
    for replica in 0..2 {
        let mut found = vec![0; expected.len()];
        pool.read_replica(replica, offset, &mut found).unwrap();
        assert_eq!(found, expected, "replica {replica}");
    }
}

/// A pool whose writer died after it wrote to these extents.
fn left<const N: usize>(targets: &[Target; N], extents: &[u64]) {
    let pool = of(targets).create(POOL_BYTES).unwrap();
    for extent in extents {
        pool.persist(extent * MIB + 5, b"written").unwrap();
    }
    drop(pool);
}

#[test]
fn an_opening_compares_what_a_dead_writer_had_in_flight() {
    let targets = on_tmpfs::<2>();
    left(&targets, &[3, 40, 79]);
    assert_eq!(targets.each_ref().map(raised), [Some(vec![3, 40, 79]), Some(vec![3, 40, 79])]);
    flip(&targets[1], 40 * MIB + 1000);
    // Nobody wrote there: it is the medium's, and no business of the opening.
    flip(&targets[1], 20 * MIB);
    let pool = of(&targets).open().unwrap();
    assert!(!pool.was_closed());
    assert_eq!((pool.compared_bytes(), pool.copied_bytes()), (3 * MIB, 64 << 10));
    let report = pool.scrub(&mut |_| {}).unwrap();
    assert!(report.undecided.iter().eq([&(20 * MIB..20 * MIB + 4096)]), "which a scrub finds");
    // They stay raised until they were seen to be durable.
    drop(pool);
    let pool = of(&targets).open().unwrap();
    assert_eq!((pool.compared_bytes(), pool.copied_bytes()), (3 * MIB, 0));
    pool.close().unwrap();
}

#[test]
fn a_pool_that_is_closed_has_an_empty_map() {
    let targets = on_tmpfs::<2>();
    let pool = of(&targets).create(POOL_BYTES).unwrap();
    pool.persist(POOL_BYTES - 1, b"x").unwrap();
    pool.close().unwrap();
    assert_eq!(targets.each_ref().map(raised), [Some(vec![]), Some(vec![])]);
    let pool = of(&targets).open().unwrap();
    assert!(pool.was_closed() && pool.compared_bytes() == 0);
    drop(pool);
    let pool = of(&targets).open().unwrap();
    assert!(!pool.was_closed() && pool.compared_bytes() == 0, "nothing was written");
    pool.close().unwrap();
}

#[test]
fn a_map_that_nobody_kept_or_that_is_damaged_is_not_believed() {
    let targets = on_tmpfs::<2>();
    left(&targets, &[3]);
    let spoil = |word: u64| {
        let file = OpenOptions::new().write(true).open(targets[0].root.path().join("orders")).unwrap();
        file.write_all_at(&word.to_le_bytes(), INTENT_OFFSET + 8).unwrap();
    };
    spoil(IntentLayout::encode(0, 0));
    flip(&targets[1], 50 * MIB);
    let pool = of(&targets).open().unwrap();
    assert_eq!((pool.compared_bytes(), pool.copied_bytes()), (33 * MIB, 64 << 10), "32 extents of one word");
    drop(pool);
    spoil(0);
    assert_eq!(of(&targets).open().unwrap().compared_bytes(), 33 * MIB);
}

/// An opening that dies while it copies leaves replicas that differ in what one map named alone.
#[test]
fn what_one_map_names_all_name_before_anything_is_copied() {
    let targets = on_tmpfs::<3>();
    left(&targets, &[3]);
    let file = OpenOptions::new().write(true).open(targets[2].root.path().join("orders")).unwrap();
    file.write_all_at(&IntentLayout::encode(0, 1 << 9).to_le_bytes(), INTENT_OFFSET).unwrap();
    let pool = of(&targets).open().unwrap();
    assert_eq!(pool.compared_bytes(), 2 * MIB);
    assert_eq!(targets.each_ref().map(raised), [(); 3].map(|()| Some(vec![3, 9])));
    pool.close().unwrap();
}

/// The map of the closed replica is empty, and the map of the copy knows nothing of what was written later.
#[test]
fn maps_of_an_older_copy_of_a_closed_pool_are_not_believed() {
    let mut targets = on_tmpfs::<2>();
    let (pool, copy) = written_behind_a_copy(&targets);
    pool.close().unwrap();
    copy.put_back(&mut targets[1]);
    assert_eq!(targets.each_ref().map(raised), [Some(vec![]), Some(vec![3])]);
    let pool = of(&targets).open().unwrap();
    assert_eq!((pool.was_closed(), pool.compared_bytes()), (false, POOL_BYTES));
    assert_both_hold(&pool, 40 * MIB, b"behind the copy");
    pool.close().unwrap();
}

/// Otherwise nothing would tell a copy that was made before: neither its mark nor any map.
#[test]
fn the_mark_rises_before_extents_are_cleared() {
    let mut targets = on_tmpfs::<2>();
    let (pool, copy) = written_behind_a_copy(&targets);
    let until = Instant::now() + 3 * LONG;
    while targets.each_ref().map(raised) != [Some(vec![]), Some(vec![])] {
        assert!(Instant::now() < until, "{:?} {:?}", raised(&targets[0]), raised(&targets[1]));
        thread::sleep(Duration::from_millis(50));
    }
    drop(pool);
    copy.put_back(&mut targets[1]);
    let pool = of(&targets).open().unwrap();
    wait_in_sync(&pool);
    assert_both_hold(&pool, 40 * MIB, b"behind the copy");
    pool.close().unwrap();
}

/// Those that were lost may have been sent more than the one that is left, and count at the next opening.
#[test]
fn a_close_keeps_the_map_while_a_loss_is_unknown() {
    for _ in 0..20 {
        let mut targets = on_tmpfs::<3>();
        let pool = of(&targets).create(POOL_BYTES).unwrap();
        pool.persist(3 * MIB, b"on all three").unwrap();
        targets[1..].iter_mut().for_each(Target::stop);
        let is_unknown = pool.persist(3 * MIB, b"on one").is_err();
        // Whether it was closed in order is the other tests' business.
        let _ = pool.close();
        // On a busy machine one may be connected to once more while its service ends, behind, and hear of an epoch without it.
        if is_unknown {
            assert_eq!(raised(&targets[0]), Some(vec![3]));
            return;
        }
    }
    panic!("both losses were known each time");
}

#[test]
fn extents_that_nobody_writes_any_more_are_cleared() {
    let targets = on_tmpfs::<2>();
    let pool = of(&targets).create(POOL_BYTES).unwrap();
    pool.persist(7 * MIB, b"once").unwrap();
    let until = Instant::now() + 3 * LONG;
    while raised(&targets[0]) != Some(vec![33]) || raised(&targets[1]) != Some(vec![33]) {
        assert!(Instant::now() < until, "{:?} {:?}", raised(&targets[0]), raised(&targets[1]));
        pool.persist(33 * MIB, b"again and again").unwrap();
        thread::sleep(Duration::from_millis(50));
    }
    // And raised again before the next write.
    pool.persist(7 * MIB, b"once more").unwrap();
    drop(pool);
    let pool = of(&targets).open().unwrap();
    assert_eq!(pool.compared_bytes(), 2 * MIB);
    pool.close().unwrap();
}

#[test]
fn a_replica_that_comes_back_keeps_the_map_of_the_others() {
    let mut targets = [(); 3].map(|()| Target::start_fixed());
    let pool = of(&targets).create(POOL_BYTES).unwrap();
    pool.persist(3 * MIB, b"before").unwrap();
    targets[2].stop();
    pool.persist(50 * MIB, b"without it").unwrap();
    assert_eq!(raised(&targets[2]), Some(vec![3]));
    targets[2].restart();
    wait_in_sync(&pool);
    pool.persist(60 * MIB, b"with it").unwrap();
    let map = raised(&targets[0]).unwrap();
    assert_eq!((map.as_slice(), raised(&targets[1])), (&[3, 50, 60][..], Some(map.clone())));
    let returned = raised(&targets[2]).unwrap();
    assert!(map.iter().all(|extent| returned.contains(extent)), "{returned:?}");
    pool.close().unwrap();
}

/// What has passed between a writer and its targets, in the order in which it passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passed {
    Asked,
    Answered,
    Written,
}

fn relay(target: &Target, passed: &Arc<Mutex<Vec<Passed>>>) -> String {
    let there = target.address().to_string().trim_start_matches("tcp://").to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = format!("tcp://{}/orders", listener.local_addr().unwrap());
    let passed = Arc::clone(passed);
    thread::spawn(move || {
        for near in listener.incoming() {
            let (near, far) = (near.unwrap(), TcpStream::connect(&there).unwrap());
            let (from, to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            let (asked, answered) = (Arc::clone(&passed), Arc::clone(&passed));
            thread::spawn(move || {
                pass(from, to, |frame, payload| match frame.opcode {
                    Opcode::Write => asked.lock().push(Passed::Written),
                    Opcode::Send if matches!(Request::decode(payload), Ok((_, Request::RaiseIntent { .. }))) => {
                        asked.lock().push(Passed::Asked);
                    }
                    _ => {}
                });
            });
            thread::spawn(move || {
                pass(far, near, |frame, payload| {
                    if frame.opcode == Opcode::Send && matches!(Reply::decode(payload), Ok((_, Reply::IntentChanged))) {
                        answered.lock().push(Passed::Answered);
                    }
                });
            });
        }
    });
    here
}

#[test]
fn no_byte_is_sent_before_all_replicas_have_raised_its_extent() {
    let targets = on_tmpfs::<2>();
    let passed = Arc::default();
    let urls = targets.each_ref().map(|target| relay(target, &passed));
    let pool = options(urls).create(POOL_BYTES).unwrap();
    let take = || std::mem::take(&mut *passed.lock());
    take();
    let written = |pool: &Pool, offset: u64| {
        pool.persist(offset, b"bytes").unwrap();
        take()
    };
    let first = written(&pool, 5 * MIB);
    assert_eq!(first.len(), 6, "{first:?}");
    let last_answer = first.iter().rposition(|passed| *passed == Passed::Answered);
    let first_write = first.iter().position(|passed| *passed == Passed::Written);
    assert!(last_answer < first_write && first[..2] != [Passed::Written; 2], "{first:?}");
    // Into an extent that is raised nothing but the bytes goes.
    assert_eq!(written(&pool, 5 * MIB + 100), [Passed::Written; 2]);
    pool.close().unwrap();
}
