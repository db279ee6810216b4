use std::{fs, path::Path, time::Instant};

use pmof_control::{OpenFor, Request, SetName};
use pmof_pool_set::Attributes;
use pmof_replication::member_state::Link;
use pmof_target::{Service, ServiceOptions};

use super::*;
use crate::{ReplicaPlace, TargetOptions, TargetUrl, set_replica::SetReplica, site::Site};

/// A target with one set, and the file of its part.
fn target(root: &Path) -> (Service, TargetUrl, SetName) {
    fs::write(root.join("x.set"), format!("PMEMPOOLSET\n2M {}\n", root.join("part").display())).unwrap();
    let address = "tcp://127.0.0.1:0".parse().unwrap();
    let service = Service::start(root, &[address], ServiceOptions::default()).unwrap();
    let url = service.addresses()[0].clone().into();
    (service, url, SetName::new("x.set").unwrap())
}

fn attributes() -> Attributes {
    Attributes { signature: *b"TESTPOOL", incompat: 2, uuid: [1; 16], ..Default::default() }
}

/// What its flush names is all that a device makes durable.
#[test]
fn all_that_was_written_is_remembered_and_not_only_the_last_range() {
    for atomicity in [Atomicity::Words, Atomicity::Relaxed] {
        let mut written = Written::default();
        assert!(written.is_empty());
        for (offset, len_bytes) in [(500_000, 100), (4096, 8), (900_000, 70_000), (600_000, 1)] {
            written.add(atomicity, (offset, offset + len_bytes));
        }
        let all = Some((4096, 970_000));
        let expected = match atomicity {
            Atomicity::Words => Written { words: all, relaxed: None },
            Atomicity::Relaxed => Written { words: None, relaxed: all },
        };
        assert_eq!(written, expected);
    }
}

#[test]
fn a_flush_for_two_names_what_either_has_written() {
    let of = |relaxed, words| Flush::of(Written { relaxed, words });
    let both = of(Some((8, 16)), None).with(of(Some((64, 72)), Some((0, 8))));
    assert_eq!(both, of(Some((8, 72)), Some((0, 8))));
    assert_eq!(both.with(Flush::Everything), Flush::Everything);
    assert_eq!(Flush::Everything.with(both), Flush::Everything);
}

#[test]
fn what_went_by_each_way_has_a_flush() {
    let root = tempfile::tempdir().unwrap();
    let (_service, url, set) = target(root.path());
    let options = TargetOptions::default();
    let replica = SetReplica { index: None, target: &url, set: &set, options: &options };
    let member = replica.create(1 << 20, Some(&attributes())).unwrap();
    let mut written = Written::default();
    for (atomicity, offset) in [(Atomicity::Words, 8192), (Atomicity::Relaxed, 700_000)] {
        let source = Source::Bytes(&[1; 8]);
        member.write(&Write { offset, len_bytes: 8, source, atomicity, is_held: true });
        written.add(atomicity, (offset, offset + 8));
    }
    let mut flushing = member.start_flush(Flush::Written(written), FlushLevel::OfPool);
    assert!(flushing.tickets.iter().all(Option::is_some), "{flushing:?}");
    assert!(member.finish_flush(&mut flushing).is_some() && flushing.tickets.iter().all(Option::is_none));
    let mut all = member.start_flush(Flush::Everything, FlushLevel::Strongest);
    assert!(member.finish_flush(&mut all).is_some());
}

#[test]
fn an_initiator_that_vanishes_before_it_keeps_the_pool_leaves_nothing() {
    let root = tempfile::tempdir().unwrap();
    let (_service, url, set) = target(root.path());
    let options = TargetOptions::default();
    let replica = SetReplica { index: None, target: &url, set: &set, options: &options };
    let member = replica.create_unkept(4096, Some(&attributes())).unwrap();
    let source = Source::Bytes(b"not kept");
    member.write(&Write { offset: 4096, len_bytes: 8, source, atomicity: Atomicity::Words, is_held: false });
    assert!(root.path().join("part").exists());
    drop(member);
    let begun = Instant::now();
    while root.path().join("part").exists() {
        assert!(begun.elapsed().as_secs() < 60, "the part is still there");
        std::thread::sleep(Duration::from_millis(1));
    }
    // And the next one can make it.
    replica.create(4096, Some(&attributes())).unwrap().close().unwrap();
    assert!(root.path().join("part").exists());
    replica.open(0, OpenFor::Write).unwrap();
}

/// A target that is killed before the pool is kept leaves no header of a pool, and the next creation takes what it left.
#[test]
fn a_target_that_dies_before_a_pool_is_kept_leaves_what_the_next_creation_takes() {
    let root = tempfile::tempdir().unwrap();
    let (service, url, set) = target(root.path());
    let options = TargetOptions::default();
    let replica = SetReplica { index: None, target: &url, set: &set, options: &options };
    let member = replica.create_unkept(4096, Some(&attributes())).unwrap();
    let source = Source::Bytes(b"not kept");
    member.write(&Write { offset: 4096, len_bytes: 8, source, atomicity: Atomicity::Words, is_held: false });
    // What is there now is what a kill leaves.
    let part = root.path().join("part");
    let left = fs::read(&part).unwrap();
    drop(member);
    drop(service);
    fs::write(&part, &left).unwrap();
    assert!(pmof_pool_set::part_header(&part).is_err(), "it does not pass for a pool");
    let (_service, url, set) = target(root.path());
    let replica = SetReplica { index: None, target: &url, set: &set, options: &options };
    assert!(replica.open(0, OpenFor::Write).is_err());
    replica.create(4096, Some(&attributes())).unwrap().close().unwrap();
    let (member, found) = replica.open(0, OpenFor::Write).unwrap();
    assert_eq!(found.unwrap().uuid, attributes().uuid);
    let mut bytes = [7; 8];
    member.read(4096, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 8], "what was written before is not of the new pool");
}

/// What is left of a replica is made anew in its files: whose they are stays.
#[test]
fn a_replica_that_is_replaced_keeps_the_owner_and_the_mode_of_its_files() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
    let root = tempfile::tempdir().unwrap();
    let (_service, url, set) = target(root.path());
    let path = |name: &str| root.path().join(name);
    let parts = ["part", "other"].map(|name| format!("2M {}\n", path(name).display())).concat();
    fs::write(path("x.set"), format!("PMEMPOOLSET\n{parts}")).unwrap();
    let options = TargetOptions::default();
    let replica = SetReplica { index: None, target: &url, set: &set, options: &options };
    let attributes = Attributes { poolset_uuid: [5; 16], ..attributes() };
    replica.create(4096, Some(&attributes)).unwrap().close().unwrap();
    fs::set_permissions(path("part"), fs::Permissions::from_mode(0o640)).unwrap();
    if rustix::process::geteuid().is_root() {
        chown(path("part"), Some(12_345), Some(12_345)).unwrap();
    }
    let before = fs::metadata(path("part")).unwrap();
    fs::OpenOptions::new().write(true).open(path("part")).unwrap().set_len(1 << 20).unwrap();
    let broken = fs::read(path("part")).unwrap();
    assert!(replica.replace(&[9; 16], 4096, &attributes).is_err(), "of another pool nothing is touched");
    assert!(fs::read(path("part")).unwrap() == broken);
    // One is missing.
    fs::remove_file(path("other")).unwrap();
    replica.replace(&[5; 16], 4096, &attributes).unwrap().close().unwrap();
    for name in ["part", "other"] {
        let after = fs::metadata(path(name)).unwrap();
        assert_eq!((after.mode(), after.uid(), after.gid()), (before.mode(), before.uid(), before.gid()), "{name}");
        assert_eq!(after.len(), 2 << 20);
    }
    assert_eq!(fs::metadata(path("part")).unwrap().ino(), before.ino());
    let (_, found) = replica.open(0, OpenFor::Write).unwrap();
    assert_eq!(found.unwrap().uuid, attributes.uuid);
}

/// What a target refuses that nobody waited for: it is still a member where the answer changes nothing, and is lost where it does.
#[test]
fn a_refusal_of_a_question_that_is_forgotten_is_none() {
    let root = tempfile::tempdir().unwrap();
    let is_lost = |is_forgotten: bool| {
        let place = Arc::new(ReplicaPlace::Pool("tcp://127.0.0.1:1/x".parse().unwrap()));
        let here = pmof_target::LocalTarget::open(root.path(), None, pmof_target::StoreOptions::default()).unwrap();
        let control = Control::new(Standing::new(place), Site::Here(Arc::new(here)), true);
        // There is no such pool.
        let asking = control.start_asking(&Request::Info { name: "x".parse().unwrap() });
        if is_forgotten {
            asking.forget();
        } else {
            asking.abandon();
        }
        drop(control.ask(&Request::Boot));
        control.check_in_use().is_err()
    };
    assert!(!is_lost(true) && is_lost(false));
}

fn standing() -> Standing {
    Standing::behind(Arc::new(ReplicaPlace::Pool("tcp://127.0.0.1:1/x".parse().unwrap())))
}

#[test]
fn what_failed_first_is_the_reason() {
    let lost = standing();
    assert!(lost.failure().is_none() && lost.failed_for().is_none() && lost.latest_failure().is_none());
    assert!(matches!(*lost.fail(ReplicaError::Unexpected), ReplicaError::Unexpected));
    assert!(matches!(*lost.fail(ReplicaError::NotAMember { index: 1 }), ReplicaError::Unexpected));
    assert_eq!(lost.state(), MemberState::Behind(Link::Lost));
    lost.still_fails(Arc::new(ReplicaError::Behind));
    assert!(matches!(**lost.failure().unwrap(), ReplicaError::Unexpected));
    assert!(matches!(*lost.latest_failure().unwrap(), ReplicaError::Behind));
    // What tells that it is no member has it not come back.
    for why in [ReplicaError::NotAMember { index: 1 }, ReplicaError::Asynchronous { index: 1 }] {
        let removed = standing();
        removed.fail(why);
        assert_eq!(removed.state(), MemberState::Removed);
    }
}

#[test]
fn a_new_connection_is_behind() {
    let lost = standing().of_witness(true);
    lost.fail(ReplicaError::Unexpected);
    assert_eq!(lost.state(), MemberState::Witness(Link::Lost));
    let back = lost.reconnected(false);
    assert_eq!((back.state(), back.failure().is_none()), (MemberState::Behind(Link::Connected), true));
    assert_eq!(lost.reconnected(true).state(), MemberState::Witness(Link::Connected));
    let again = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| back.reconnected(false).state()));
    assert!(again.is_err(), "it is connected");
}

/// A slow member is reported once, and again when it is slow once more; the program's closing hears of what it was not told.
#[test]
fn a_loss_is_reported_once() {
    let slow = standing();
    slow.leave_behind();
    assert!(slow.is_news_to_watcher() && !slow.is_news_to_watcher());
    slow.is_admitted();
    assert_eq!(slow.state(), MemberState::Behind(Link::Connected));
    slow.fail(ReplicaError::Unexpected);
    assert!(slow.is_news_to_watcher() && !slow.is_loss_reported());
    assert!(slow.report_failure().is_some() && slow.is_loss_reported());
    let absent = Standing::failed(Arc::clone(&slow.place), Arc::new(ReplicaError::Unexpected));
    assert!(absent.is_loss_reported() && absent.state() == MemberState::Lost);
}

/// Whoever sees that a member is lost sees why; and what copies to it, or leaves it behind, at the same time does not undo the loss.
#[test]
fn a_loss_that_meets_other_events() {
    for round in 0..3000 {
        let standing = standing();
        let ready = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            let at_once = |act: fn(&Standing)| {
                let (ready, standing) = (&ready, &standing);
                scope.spawn(move || {
                    ready.wait();
                    act(standing);
                });
            };
            at_once(|standing| drop(standing.fail(ReplicaError::Unexpected)));
            at_once(|standing| {
                standing.has_caught_up();
            });
            at_once(if round % 2 == 0 { Standing::leave_behind } else { |of| drop(of.fail(ReplicaError::Behind)) });
            at_once(|standing| {
                while standing.state().is_connected() {
                    std::thread::yield_now();
                }
                assert!(standing.failure().is_some() && standing.failed_for().is_some());
            });
        });
        assert!(standing.state().is_lost(), "{:?}", standing.state());
    }
}
