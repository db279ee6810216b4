use std::{fs, path::Path, time::Instant};

use pmof_control::{OpenFor, SetName};
use pmof_pool::Attributes;
use pmof_target::{Service, ServiceOptions};

use super::*;
use crate::{TargetOptions, TargetUrl, set_replica::SetReplica};

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
fn all_that_was_written_is_remembered_and_not_the_last_range_alone() {
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
        assert!(begun.elapsed().as_secs() < 10, "the part is still there");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    // And the next one can make it.
    replica.create(4096, Some(&attributes())).unwrap().close().unwrap();
    assert!(root.path().join("part").exists());
    replica.open(0, OpenFor::Write).unwrap();
}
