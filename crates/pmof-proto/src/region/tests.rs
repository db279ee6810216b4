use pmof_mem::{MemError, Memory, ShadowMedium};
use proptest::prelude::*;

use super::*;

fn descriptor() -> Descriptor {
    let medium = ShadowMedium::new(4096, MediumKind::FsDax).unwrap();
    RegisteredRegion::new(RegionKey([9; 16]), Arc::new(medium), 64, 1000, Access::READ | Access::FLUSH_VISIBLE)
        .descriptor()
}

/// The encoded descriptor with a change and a checksum that is right again.
fn sealed(change: impl FnOnce(&mut [u8; DESCRIPTOR_BYTES])) -> [u8; DESCRIPTOR_BYTES] {
    let mut bytes = descriptor().encode();
    change(&mut bytes);
    let crc = crc32c::crc32c(&bytes[..DESCRIPTOR_CRC_AT]);
    bytes[DESCRIPTOR_CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

#[test]
fn a_descriptor_says_what_the_region_is() {
    let descriptor = descriptor();
    assert_eq!((descriptor.len_bytes, descriptor.kind), (1000, MediumKind::FsDax));
    assert_eq!(descriptor.strongest(), Durability::PowerFailure);
    let promise = descriptor.promise(Durability::PowerFailure).unwrap();
    assert_eq!(promise.mechanism, Mechanism::CacheLineWriteBack);
    assert_eq!(Descriptor::decode(&descriptor.encode()), Ok(descriptor));
    assert_eq!(Descriptor::decode(&sealed(|_| {})), Ok(descriptor), "the helper of the other tests seals well");

    let memory = Memory::anonymous(4096).unwrap();
    let region = RegisteredRegion::new(RegionKey([9; 16]), Arc::new(memory), 0, 4096, Access::all());
    assert_eq!(region.descriptor().strongest(), Durability::Visible);
    assert_eq!(region.descriptor().promise(Durability::ProcessCrash), None);
    assert!(!format!("{region:?} {descriptor:?}").contains("9, 9"), "keys are secrets");
}

#[test]
fn every_way_to_reach_a_region_survives_the_wire() {
    let features = RdmaFeatures::all();
    for direct in [
        DirectAccess::None,
        DirectAccess::Mapped,
        DirectAccess::Rdma { address: u64::MAX - 1000, remote_key: u32::MAX, features },
        DirectAccess::Rdma { address: 0, remote_key: 0, features: RdmaFeatures::empty() },
    ] {
        let described = Descriptor { direct, ..descriptor() };
        assert_eq!(Descriptor::decode(&described.encode()), Ok(described));
    }
}

#[test]
fn every_changed_bit_of_a_descriptor_is_seen() {
    for bit in 0..DESCRIPTOR_BYTES * 8 {
        let mut bytes = descriptor().encode();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(Descriptor::decode(&bytes), Err(DescriptorError::Checksum), "bit {bit}");
    }
}

#[test]
fn descriptors_that_no_writer_makes_are_refused() {
    let field = |field| Err(DescriptorError::Field { field });
    assert_eq!(Descriptor::decode(&sealed(|bytes| bytes[0] = 2)), Err(DescriptorError::Version { found: 2 }));
    assert_eq!(Descriptor::decode(&sealed(|bytes| bytes[1] = 0)), field("medium kind"));
    assert_eq!(Descriptor::decode(&sealed(|bytes| bytes[1] = 7)), field("medium kind"));
    assert_eq!(Descriptor::decode(&sealed(|bytes| bytes[3] = 1)), field("access"));
    for promise in [0x01, 0x10, 0x15, 0x31, 0xFF] {
        assert_eq!(Descriptor::decode(&sealed(|bytes| bytes[5] = promise)), field("promise"), "{promise:#x}");
    }
    for reserved in [7, 34, 35, 48, 51] {
        let found = Descriptor::decode(&sealed(|bytes| bytes[reserved] = 1));
        assert_eq!(found, field("a reserved byte is not zero"));
    }
    // A way that is none, one that has what only RDMA has, a feature that is none, addresses that wrap around.
    let wrong: [&[(usize, u8)]; 6] = [
        &[(32, 3)],
        &[(33, 1)],
        &[(36, 1)],
        &[(32, 2), (40, 1)],
        &[(32, 1), (33, 16)],
        &[(32, 1), (46, 255), (47, 255), (45, 255), (44, 255), (43, 255), (42, 255), (41, 255)],
    ];
    for changes in wrong {
        let found = Descriptor::decode(&sealed(|bytes| changes.iter().for_each(|(at, byte)| bytes[*at] = *byte)));
        assert_eq!(found, field("direct access"), "{changes:?}");
    }
    for len_bytes in [0, DESCRIPTOR_BYTES - 1, DESCRIPTOR_BYTES + 1] {
        let found = Descriptor::decode(&[0; 100][..len_bytes]);
        assert_eq!(found, Err(DescriptorError::Length { len_bytes }));
    }
}

#[test]
fn the_table_forgets_what_is_removed_or_replaced() {
    let table = RegionTable::default();
    let region = |len_bytes| {
        let memory = Memory::anonymous(4096).unwrap();
        Arc::new(RegisteredRegion::new(RegionKey([1; 16]), Arc::new(memory), 0, len_bytes, Access::all()))
    };
    let (first, second) = (region(1), region(2));
    let key = first.key();
    assert!(table.find(key).is_none());
    table.insert(Arc::clone(&first));
    assert_eq!(table.find(key).unwrap().len_bytes(), 1);
    table.insert(Arc::clone(&second));
    assert_eq!(table.find(key).unwrap().len_bytes(), 2);
    assert!(first.is_revoked() && !second.is_revoked());
    table.remove(key);
    table.remove(key);
    assert!(table.find(key).is_none() && second.is_revoked());
}

#[test]
fn a_region_lies_inside_its_memory() {
    for (offset, len_bytes) in [(0, 4097), (4096, 1), (u64::MAX, 1), (1, u64::MAX)] {
        let made = std::panic::catch_unwind(|| {
            let memory = Memory::anonymous(4096)?;
            let region = RegisteredRegion::new(RegionKey([1; 16]), Arc::new(memory), offset, len_bytes, Access::all());
            Ok::<_, MemError>(region.len_bytes())
        });
        assert!(made.is_err(), "{len_bytes} bytes at {offset}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_descriptor_or_an_error(start: [u8; 32], bytes: [u8; 24], is_sealed: bool) {
        let mut all = [&start[..], &bytes[..]].concat();
        if is_sealed {
            all = sealed(|to| {
                to.copy_from_slice(&all);
                // What random bytes would hardly ever hit.
                (to[0], to[1], to[3], to[7]) = (1, to[1] % 8, 0, 0);
                to[32..52].fill(0);
            })
            .to_vec();
        }
        if let Ok(descriptor) = Descriptor::decode(&all) {
            prop_assert_eq!(&descriptor.encode()[..], &all[..]);
        }
    }
}
