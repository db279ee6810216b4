//! What is asked of the device, and what is believed of it: without one.

use pmof_mem::MediumKind;
use pmof_proto::{Descriptor, RegionKey};

use super::*;

fn descriptor(mechanism: Mechanism, features: RdmaFeatures) -> Descriptor {
    let promise = Some(Promise { mechanism, evidence: Evidence::Probed });
    Descriptor {
        key: RegionKey([1; 16]),
        len_bytes: 4096,
        access: Access::all(),
        kind: MediumKind::DevDax,
        promises: [promise; 3],
        direct: DirectAccess::Rdma { address: 1 << 20, remote_key: 1, features },
    }
}

fn read_back(mechanism: Mechanism, features: RdmaFeatures, level: Durability) -> Option<Promise> {
    let region = RemoteRegion::of(descriptor(mechanism, features));
    offers_read_back(&region, Reach::of(&region)?, level, region.promise(level)?).ok()
}

#[test]
fn a_read_behind_writes_is_durable_only_where_caches_are_kept_or_it_was_declared() {
    let (none, declared) = (RdmaFeatures::empty(), RdmaFeatures::INBOUND_DECLARED);
    let power = Durability::PowerFailure;
    // Behind ADR, and behind the page cache: what arrives may lie in the CPU's caches.
    for mechanism in [Mechanism::CacheLineWriteBack, Mechanism::FileSync] {
        assert_eq!(read_back(mechanism, none, power), None, "{mechanism:?}");
        assert_eq!(read_back(mechanism, RdmaFeatures::all() - declared, power), None, "{mechanism:?}");
        let promise = read_back(mechanism, declared, power).unwrap();
        assert_eq!(promise, Promise { mechanism: Mechanism::Store, evidence: Evidence::Declared }, "{mechanism:?}");
    }
    for mechanism in [Mechanism::Store, Mechanism::Fence] {
        assert_eq!(read_back(mechanism, none, power), Some(Promise { mechanism, evidence: Evidence::Probed }));
    }
    assert!(read_back(Mechanism::CacheLineWriteBack, none, Durability::ProcessCrash).is_some());
}

#[test]
fn a_region_that_cannot_be_read_is_not_read_back() {
    let whole = descriptor(Mechanism::Fence, RdmaFeatures::empty());
    let blind = Descriptor { access: Access::WRITE | Access::FLUSH_PERSISTENT, ..whole };
    let short = Descriptor { len_bytes: READ_BACK_BYTES - 1, ..whole };
    for region in [blind, short].map(RemoteRegion::of) {
        let promise = region.promise(Durability::PowerFailure).unwrap();
        let reach = Reach::of(&region).unwrap();
        assert!(offers_read_back(&region, reach, Durability::PowerFailure, promise).is_err(), "{region:?}");
    }
}

#[test]
fn every_range_of_a_flush_is_posted_and_the_last_one_carries_the_outcome() {
    for count in 1..=8_u64 {
        let ranges: Vec<_> = (0..count).map(|index| (index * 1000, index + 1)).collect();
        let mut posted = Vec::new();
        native_flushes(Ticket(7), &ranges, |plain, is_last| {
            assert_eq!(plain.ticket, Ticket(7));
            posted.push((plain.offset, plain.len_bytes, is_last));
        });
        let expected: Vec<_> =
            ranges.iter().enumerate().map(|(index, (at, len))| (*at, *len, index as u64 + 1 == count)).collect();
        assert_eq!(posted, expected);
    }
}

#[test]
fn a_flush_to_persistence_asks_for_persistence_and_its_range() {
    let at = RemoteAddress { address: 1 << 20, rkey: 1 };
    let asked = |len_bytes, level, is_software| match native_flush(at, len_bytes, level, is_software) {
        WorkOperation::Flush { at: place, len_bytes, placement, whole_region } if place == at => {
            (placement, (!whole_region).then_some(len_bytes))
        }
        other => panic!("{other:?}"),
    };
    for is_software in [false, true] {
        let persistent = |len_bytes| asked(len_bytes, Durability::PowerFailure, is_software);
        assert_eq!(persistent(64), (Placement::Persistent, Some(64)));
        assert_eq!(persistent(u64::from(u32::MAX)), (Placement::Persistent, Some(u32::MAX)));
        // Else its length would be cut to 32 bits.
        assert_eq!(persistent(u64::from(u32::MAX) + 1), (Placement::Persistent, None));
        assert_eq!(asked(64, Durability::Visible, is_software).0, Placement::Global);
    }
}
