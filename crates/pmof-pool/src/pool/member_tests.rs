//! What every member of a native pool does, wherever its replica lies: here, behind TCP, behind shared memory.

use std::sync::Arc;

use pmof_access::{Address, Durability, Medium, Memory, Method};
use pmof_control::{Epoch, NewPool, OpenFor, Reply, Request};
use pmof_target::{Service, ServiceOptions};
use uuid::Uuid;

use super::opened::{Checked, check_opened};
use crate::{
    PoolUrl, ReplicaError, ReplicaPlace,
    member::{Atomicity, Flush, FlushLevel, Member, Source, Standing, Write, Written},
    reach::Reach,
};

const SIZE_BYTES: u64 = 1 << 20;
const LEVEL: Durability = Durability::ProcessCrash;

/// A directory with a target, and a URL of each road to it.
struct Roads {
    root: tempfile::TempDir,
    service: Service,
}

impl Roads {
    fn start() -> Self {
        let root = tempfile::tempdir_in("/dev/shm").unwrap();
        let socket: Address = format!("shm://{}/.sock", root.path().display()).parse().unwrap();
        let listen = ["tcp://127.0.0.1:0".parse().unwrap(), socket];
        let service = Service::start(root.path(), &listen, ServiceOptions::default()).unwrap();
        Self { root, service }
    }

    fn urls(&self) -> [(PoolUrl, [Method; 2]); 3] {
        let [tcp, shm] = self.service.addresses() else { panic!("two addresses") };
        let (local, by_message) = (Method::LocalWriteBack, Method::SendAfterWrite);
        [
            (format!("file://{}/here", self.root.path().display()), [local, local]),
            (format!("{tcp}/tcp"), [by_message, by_message]),
            (format!("{shm}?pool=shm"), [local, by_message]),
        ]
        .map(|(url, methods)| (url.parse().unwrap(), methods))
    }
}

fn create(name: &PoolUrl) -> Request {
    let new = NewPool {
        pool_uuid: Uuid::from_bytes([1; 16]),
        size_bytes: SIZE_BYTES,
        epoch: Uuid::from_bytes([2; 16]),
        replica_index: 0,
        replica_count: 1,
        require: LEVEL,
        user_flags: [0; 16],
        protection: None,
    };
    Request::Create { name: name.name.clone(), new, publish_on_close: false }
}

fn open(name: &PoolUrl, access: OpenFor) -> Request {
    Request::Open { name: name.name.clone(), access, require: LEVEL, may_be_older: false }
}

fn member(url: &PoolUrl, request: &Request, is_behind: bool, mirror: Option<Arc<Memory>>) -> Arc<dyn Member> {
    let reach = Reach::default();
    let site = reach.site(&reach.peers(), url).unwrap();
    let reply = site.ask_when_free(request).unwrap();
    let access =
        if matches!(request, Request::Open { access: OpenFor::Read, .. }) { OpenFor::Read } else { OpenFor::Write };
    let Checked { reached, .. } = check_opened(reply, &site, LEVEL, access, &mut None).unwrap();
    let place = Arc::new(ReplicaPlace::Pool(url.clone()));
    let standing = if is_behind { Standing::behind(place) } else { Standing::new(place) };
    let mirror = mirror.map(|mirror| mirror as Arc<dyn Medium>);
    reached.member(standing, site, SIZE_BYTES, mirror.as_ref()).unwrap()
}

fn write(member: &dyn Member, offset: u64, source: Source<'_>, len_bytes: u64, atomicity: Atomicity) -> Written {
    member.write(&Write { offset, len_bytes, source, atomicity, is_held: true });
    let mut written = Written::default();
    written.add(atomicity, (offset, offset + len_bytes));
    written
}

fn bytes_at(member: &dyn Member, offset: u64, len_bytes: usize) -> Vec<u8> {
    let mut bytes = vec![0; len_bytes];
    member.read(offset, &mut bytes).unwrap();
    bytes
}

#[test]
fn what_is_written_is_read_and_flushed_and_the_receipt_says_how() {
    let roads = Roads::start();
    for (url, [relaxed, words]) in roads.urls() {
        let member = member(&url, &create(&url), false, None);
        assert!(bytes_at(&*member, 0, SIZE_BYTES as usize).iter().all(|byte| *byte == 0), "{url}");
        for (atomicity, method) in [(Atomicity::Relaxed, relaxed), (Atomicity::Words, words)] {
            let bytes = vec![atomicity as u8 + 1; 10_000];
            let written = write(&*member, 4093, Source::Bytes(&bytes), 10_000, atomicity);
            let mut flushing = member.start_flush(Flush::Written(written), FlushLevel::OfPool);
            let receipt = member.finish_flush(&mut flushing).unwrap();
            assert_eq!((receipt.method, receipt.durability, receipt.also), (method, LEVEL, None), "{url}");
            assert_eq!(*receipt.replica, ReplicaPlace::Pool(url.clone()));
            assert!(bytes_at(&*member, 4093, 10_000) == bytes, "{url}");
        }
        write(&*member, 8, Source::Atomic(0x0102), 8, Atomicity::Relaxed);
        assert!(member.flush_everything(FlushLevel::Strongest), "{url}");
        assert_eq!(bytes_at(&*member, 8, 8), 0x0102_u64.to_le_bytes(), "{url}");
        assert_eq!(member.strongest(), LEVEL);
        let end = SIZE_BYTES - 3;
        write(&*member, end, Source::Bytes(b"end"), 3, Atomicity::Relaxed);
        assert_eq!(bytes_at(&*member, end, 3), b"end", "{url}");
    }
}

/// Digests are of the pool's bytes, and of what was written to them last.
#[test]
fn digests_and_states_are_answered_alike() {
    let roads = Roads::start();
    for (url, _) in roads.urls() {
        let (member, block) = (member(&url, &create(&url), false, None), vec![7; 65_536]);
        let written = write(&*member, 65_536, Source::Bytes(&block), 65_536, Atomicity::Relaxed);
        let mut flushing = member.start_flush(Flush::Written(written), FlushLevel::OfPool);
        assert!(member.finish_flush(&mut flushing).is_some());
        let control = member.control().unwrap();
        let digests = control.start_digests(0..196_608, 65_536)().unwrap();
        let expected = [0, 7, 0].map(|byte| *blake3::hash(&vec![byte; 65_536]).as_bytes());
        assert_eq!(digests, expected, "{url}");
        let epoch = Epoch { id: Uuid::from_bytes([3; 16]), members: 1 };
        let told = [
            (Request::Begin { opening: 2, epoch, ancestors: vec![] }, Reply::Begun),
            (Request::Confirm { epoch: epoch.id }, Reply::Confirmed),
            (Request::Mark { mark: 9 }, Reply::Marked),
        ];
        for (request, expected) in &told {
            control.ask_for(request, expected).unwrap();
        }
        // A refusal to a question is no failure.
        let refused = control.ask(&Request::Confirm { epoch: Uuid::from_bytes([4; 16]) }).unwrap_err();
        assert!(matches!(*refused, ReplicaError::Refused { .. }) && member.state().is_in_sync(), "{url}");
        member.close().unwrap();
        drop(member);
        let again = self::member(&url, &open(&url, OpenFor::Read), false, None);
        assert!(bytes_at(&*again, 65_536, 65_536) == block, "{url}");
        let state = Reach::default()
            .site(&Reach::default().peers(), &url)
            .unwrap()
            .ask(&Request::Info { name: url.name.clone() });
        let Ok(Reply::Info(info)) = state else { panic!("{state:?}") };
        assert!(!info.state.is_open && info.state.epoch == epoch && info.state.mark == 9, "{url}: {info:?}");
    }
}

#[test]
fn one_that_is_behind_is_written_and_not_read_and_gives_no_receipt() {
    let roads = Roads::start();
    for (url, _) in roads.urls() {
        let member = member(&url, &create(&url), true, None);
        let written = write(&*member, 0, Source::Bytes(b"caught"), 6, Atomicity::Relaxed);
        assert!(matches!(*member.read(0, &mut [0; 6]).unwrap_err(), ReplicaError::Behind), "{url}");
        let mut flushing = member.start_flush(Flush::Written(written), FlushLevel::OfPool);
        assert!(
            member.is_flushed(&mut flushing, std::time::Duration::ZERO) && member.finish_flush(&mut flushing).is_none(),
            "{url}"
        );
        assert!(member.flush_everything(FlushLevel::OfPool), "{url}");
        member.standing().has_caught_up();
        assert_eq!(bytes_at(&*member, 0, 6), b"caught", "{url}");
    }
}

#[test]
fn one_that_has_failed_does_nothing_any_more() {
    let roads = Roads::start();
    for (url, _) in roads.urls() {
        let member = member(&url, &create(&url), false, None);
        let written = write(&*member, 0, Source::Bytes(b"before"), 6, Atomicity::Relaxed);
        member.control().unwrap().fence("another");
        let mut flushing = member.start_flush(Flush::Written(written), FlushLevel::OfPool);
        assert!(member.finish_flush(&mut flushing).is_none() && !member.flush_everything(FlushLevel::OfPool), "{url}");
        for why in [
            member.read(0, &mut [0; 6]).unwrap_err(),
            member.control().unwrap().ask(&Request::Mark { mark: 1 }).unwrap_err(),
            member.close().unwrap_err(),
        ] {
            assert!(matches!(&*why, ReplicaError::Fenced { successor } if successor == "another"), "{url}: {why}");
        }
    }
}

#[test]
fn ranges_of_a_mirror_go_to_the_same_place() {
    let roads = Roads::start();
    let mirror = Arc::new(Memory::anonymous(SIZE_BYTES).unwrap());
    mirror.store(200_000, &vec![5; 300_000]).unwrap();
    for (url, _) in roads.urls() {
        let member = member(&url, &create(&url), false, Some(Arc::clone(&mirror)));
        let written = write(&*member, 200_000, Source::Mirror, 300_000, Atomicity::Relaxed);
        let mut flushing = member.start_flush(Flush::Written(written), FlushLevel::OfPool);
        assert!(member.finish_flush(&mut flushing).is_some(), "{url}");
        let all = bytes_at(&*member, 0, SIZE_BYTES as usize);
        assert!(all.iter().enumerate().all(|(at, byte)| (*byte == 5) == (200_000..500_000).contains(&at)), "{url}");
    }
}

/// Who may open what is open: the same answers from every road, and the locks of one are those of the others.
#[test]
fn a_pool_is_written_over_one_road_at_a_time() {
    let roads = Roads::start();
    let [(here, _), (tcp, _), _] = roads.urls();
    let held = member(&here, &create(&here), false, None);
    let same_by_tcp = PoolUrl { name: here.name.clone(), ..tcp };
    let reach = Reach::default();
    for url in [&here, &same_by_tcp] {
        let site = reach.site(&reach.peers(), url).unwrap();
        let busy = site.ask(&open(url, OpenFor::Write)).unwrap_err();
        assert!(busy.is_busy(), "{url}: {busy}");
    }
    held.close().unwrap();
    drop(held);
    let held = member(&same_by_tcp, &open(&same_by_tcp, OpenFor::Write), false, None);
    let site = reach.site(&reach.peers(), &here).unwrap();
    assert!(site.ask(&open(&here, OpenFor::Write)).unwrap_err().is_busy());
    drop(held);
    assert!(roads.root.path().join("here").exists());
}
