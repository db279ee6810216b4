//! Every field of every descriptor at its extremes, with checksums that fit: what is sound here can be opened by PMDK, and its check
//! finds nothing.

use pmof_pool_set::{ContentsState, PoolKind, memory_state};

use super::*;

/// Numbers at which arithmetic goes wrong, and such as other fields have.
const EXTREMES: [u64; 19] = [
    0,
    1,
    255,
    511,
    513,
    1024,
    4096,
    8191,
    8192,
    // The longest blocks that fit into 17 MiB.
    34_560,
    34_561,
    0x30_2000,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX - 4095,
    u64::MAX,
];

/// A number in a pool, and the sealed structures that have it: where they begin, and their lengths.
struct Field {
    name: &'static str,
    offset: usize,
    len_bytes: usize,
    sealed: Option<(usize, usize)>,
}

const fn field(name: &'static str, offset: usize, len_bytes: usize, sealed: Option<(usize, usize)>) -> Field {
    Field { name, offset, len_bytes, sealed }
}

const DESCRIPTOR: Option<(usize, usize)> = Some((4096, 2048));
const HEAD: Option<(usize, usize)> = Some((0x30_2000, 1024));
const INFO: Option<(usize, usize)> = Some((8192, 4096));

const OBJ: [Field; 12] = [
    field("lanes", 5120, 8, DESCRIPTOR),
    field("count of lanes", 5128, 8, DESCRIPTOR),
    field("heap", 5136, 8, DESCRIPTOR),
    field("root", 6144, 8, None),
    field("openings", 6152, 8, None),
    field("length of the root", 6160, 8, None),
    field("length of the heap", 6176, 8, None),
    field("signature of the heap", 0x30_2000, 8, HEAD),
    field("signature of the heap, second half", 0x30_2008, 8, HEAD),
    field("length of a chunk", 0x30_2028, 8, HEAD),
    field("first zone", 0x30_2400, 4, None),
    field("chunks of the first zone", 0x30_2404, 4, None),
];

const LOG: [Field; 3] = [field("start", 4096, 8, None), field("end", 4104, 8, None), field("next", 4112, 8, None)];

const BLK: [Field; 2] = [field("length of a block", 4096, 4, None), field("is zero", 4100, 4, None)];

const BTT: [Field; 13] = [
    field("length of a block", 4096, 4, None),
    field("flags", 8240, 4, INFO),
    field("length of a block by the table", 8248, 4, INFO),
    field("blocks", 8252, 4, INFO),
    field("length of a place", 8256, 4, INFO),
    field("places", 8260, 4, INFO),
    field("free", 8264, 4, INFO),
    field("next arena", 8272, 8, INFO),
    field("data", 8280, 8, INFO),
    field("map", 8288, 8, INFO),
    field("log", 8296, 8, INFO),
    field("copy", 8304, 8, INFO),
    field("checksum", 12_280, 8, None),
];

/// Fletcher's sum of words, its own field, the last 8 bytes, as zero.
fn seal(bytes: &mut [u8]) {
    let field = bytes.len() - 8;
    let (mut low, mut high) = (0_u32, 0_u32);
    for word in bytes[..field].chunks_exact(4).chain([&[0; 4][..]; 2]) {
        low = low.wrapping_add(u32::from_le_bytes(word.try_into().unwrap()));
        high = high.wrapping_add(low);
    }
    bytes[field..].copy_from_slice(&(u64::from(high) << 32 | u64::from(low)).to_le_bytes());
}

/// `whole` with another number, in the table's copy too.
fn changed(whole: &[u8], field: &Field, value: u64) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    let value = &value.to_le_bytes()[..field.len_bytes];
    bytes[field.offset..field.offset + field.len_bytes].copy_from_slice(value);
    if let Some((start, len_bytes)) = field.sealed {
        seal(&mut bytes[start..start + len_bytes]);
        if field.sealed == INFO {
            let copy = 8192 + u64::from_le_bytes(whole[8304..8312].try_into().unwrap()) as usize;
            bytes.copy_within(start..start + len_bytes, copy);
        }
    }
    bytes
}

/// What is sound here is so for PMDK. Says how many values were sound, and how many were not.
fn hold_against_pmdk(kind: PoolKind, whole: &[u8], path: &Path, fields: &[Field]) -> [usize; 2] {
    let mut counts = [0, 0];
    let len_bytes = whole.len() as u64;
    for field in fields {
        let mut own = [0; 8];
        own[..field.len_bytes].copy_from_slice(&whole[field.offset..field.offset + field.len_bytes]);
        let own = u64::from_le_bytes(own);
        let near = [own, own.wrapping_sub(1), own.wrapping_add(1), own.wrapping_sub(4096), own.wrapping_add(4096)];
        for value in EXTREMES.into_iter().chain(near).chain([len_bytes, len_bytes - 4096, len_bytes + 4096]) {
            let bytes = changed(whole, field, value);
            fs::write(path, &bytes).unwrap();
            let memory = Arc::new(Memory::open_read_only(path, None).unwrap());
            let is_sound = memory_state(Some(kind), &memory).unwrap() == ContentsState::Sound;
            counts[usize::from(!is_sound)] += 1;
            assert!(is_sound || bytes != whole, "{kind:?} as PMDK made it, {}", field.name);
            // Who asks PMDK about the others may see it die.
            if is_sound {
                let name = format!("{kind:?}, {}: {value:#x}", field.name);
                // Of pools of objects PMDK's check looks at headers only.
                if kind != PoolKind::Obj {
                    let (is_theirs, said) = pmdk(&[Path::new("check"), path, Path::new("")]);
                    assert!(is_theirs, "{name}, check: {said}");
                    fs::write(path, &bytes).unwrap();
                }
                let command = format!("open-{}", kind.name());
                let (is_open, said) = pmdk(&[Path::new(&command), path, Path::new("")]);
                assert!(is_open, "{name}, open: {said}");
            }
        }
    }
    counts
}

#[test]
fn what_is_sound_at_the_extremes_of_every_field_is_so_for_pmdk() {
    need_pmdk!();
    let directory = tempdir_in(PLACE).unwrap();
    let path = directory.path().join("changed");
    let made = |name: &str, pool: NewPool, mib: u64| {
        let file = directory.path().join(name);
        let set = PoolSet {
            path: directory.path().join("set"),
            replicas: vec![ReplicaSpec::Local(vec![PartSpec::new(&file, mib * MIB)])],
            options: SetOptions::default(),
        };
        create(&set, pool);
        file
    };
    let objects = made("objects", obj(), 9);
    agrees("obj-work", &objects, "test");
    let [sound, unsound] = hold_against_pmdk(PoolKind::Obj, &fs::read(&objects).unwrap(), &path, &OBJ);
    assert!(sound > 60 && unsound > 100, "{sound}, {unsound}");
    let journal = made("journal", NewPool::Log, 2);
    let [sound, unsound] = hold_against_pmdk(PoolKind::Log, &fs::read(&journal).unwrap(), &path, &LOG);
    assert!(sound > 3 && unsound > 50, "{sound}, {unsound}");
    let fresh = made("fresh", NewPool::Blk { block_len_bytes: 512 }, 17);
    let [sound, unsound] = hold_against_pmdk(PoolKind::Blk, &fs::read(&fresh).unwrap(), &path, &BLK);
    assert!(sound > 25 && unsound > 5, "{sound}, {unsound}");
    let written = fs::read(blocks(&directory)).unwrap();
    let [sound, unsound] = hold_against_pmdk(PoolKind::Blk, &written, &path, &BTT);
    assert!(sound > 30 && unsound > 150, "{sound}, {unsound}");
}
