use std::{
    fs,
    os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use pmof_mem::{Medium as _, MediumKind, ShadowMedium, System};
use tempfile::{TempDir, tempdir_in};

use super::{LocalReplica, NewParts, NewReplica, OpenFor, Reader, Removal, Restoration, part_header, write_header};
use crate::{
    Arch, Attributes, Feature, Features, HEADER_LEN_BYTES, HeaderError, PartSize, PartSpec, PoolHeader, PoolKind,
    PoolSetError, SetOptions, ShutdownState, new_uuid, part::page_bytes,
};

mod foreign_files;
mod given;
mod removed;

const DISK: &str = env!("CARGO_MANIFEST_DIR");
const MIB: u64 = 1 << 20;
const SINGLE: SetOptions = SetOptions { single_header: true, no_headers: false };
const NONE: SetOptions = SetOptions { single_header: false, no_headers: true };
type IsRight = fn(&PoolSetError) -> bool;
type Change = fn(&Path);

const ALL: SetOptions = SetOptions { single_header: false, no_headers: false };

fn attributes(options: SetOptions) -> Option<Attributes> {
    let features = Features::of_new_pools();
    let features = if options.single_header { features.with(Feature::SingleHeader) } else { features };
    (!options.no_headers).then(|| Attributes {
        signature: PoolKind::Obj.signature(),
        major: 6,
        compat: features.compat,
        incompat: features.incompat,
        ro_compat: features.ro_compat,
        poolset_uuid: new_uuid(),
        uuid: new_uuid(),
        next_uuid: new_uuid(),
        prev_uuid: new_uuid(),
        user_flags: Arch::of_this_machine().to_bytes(),
    })
}

fn new(options: SetOptions) -> NewReplica {
    NewReplica { attributes: attributes(options), options, declaration: None }
}

/// Three parts, the last no whole number of pages.
fn specs(directory: &Path, name: &str) -> Vec<PartSpec> {
    let part = |(index, len_bytes)| PartSpec::new(directory.join(format!("{name}{index}")), len_bytes);
    [2 * MIB, 3 * MIB, 2 * MIB + 5000].into_iter().enumerate().map(part).collect()
}

fn open(specs: &[PartSpec], options: SetOptions) -> Result<LocalReplica, PoolSetError> {
    LocalReplica::open(specs, options, OpenFor::Write, None)
}

fn made(directory: &Path, name: &str, options: SetOptions) -> Vec<PartSpec> {
    let specs = specs(directory, name);
    LocalReplica::create(&specs, &new(options)).unwrap().close().unwrap();
    specs
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn flip(path: &Path, offset: u64) {
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
}

fn edit(path: &Path, change: impl FnOnce(&mut PoolHeader)) {
    let mut header = part_header(path).unwrap();
    change(&mut header);
    fs::File::options().write(true).open(path).unwrap().write_all_at(&header.encode(), 0).unwrap();
}

#[test]
fn what_is_written_is_there_again_in_every_part() {
    for (options, len_bytes) in
        [(ALL, 7 * MIB + 4096 - 2 * page_bytes()), (SINGLE, 7 * MIB + 4096), (NONE, 7 * MIB + 4096)]
    {
        let directory = tempdir_in(DISK).unwrap();
        let specs = specs(directory.path(), "part");
        let new = new(options);
        let replica = LocalReplica::create(&specs, &new).unwrap();
        assert_eq!(replica.len_bytes(), len_bytes);
        assert_eq!(replica.attributes(), new.attributes);
        assert_eq!(replica.parts().count(), 3);
        let memory = replica.memory();
        let start = if options.no_headers { 0 } else { HEADER_LEN_BYTES as u64 };
        for offset in (start..len_bytes - 64).step_by(50_000).chain([2 * MIB - 32, 5 * MIB - 4096 - 32, len_bytes - 64])
        {
            memory.store(offset, &[offset as u8 | 1; 64]).unwrap();
        }
        memory.write_back(start, len_bytes - start).unwrap();
        let before = memory.crc32c(start, len_bytes - start).unwrap();
        // A byte is in the file where it is said to be.
        let (part, at) = replica.locate(2 * MIB + 1).unwrap();
        assert_eq!((part, at), (1, if options == ALL { 1 + page_bytes() } else { 1 }));
        assert_eq!(replica.locate(len_bytes), None);
        let mut own = [0];
        memory.read(2 * MIB + 1, &mut own).unwrap();
        memory.store(2 * MIB + 1, &[0xee]).unwrap();
        let mut byte = [0];
        fs::File::open(&specs[part].path).unwrap().read_exact_at(&mut byte, at).unwrap();
        assert_eq!(byte, [0xee]);
        memory.store(2 * MIB + 1, &own).unwrap();
        drop(memory);
        replica.close().unwrap();
        let replica = open(&specs, options).unwrap();
        assert_eq!((replica.len_bytes(), replica.attributes()), (len_bytes, new.attributes));
        assert_eq!(replica.memory().crc32c(start, len_bytes - start).unwrap(), before);
        for spec in &specs {
            assert_eq!(fs::metadata(&spec.path).unwrap().mode() & 0o777, 0o600);
        }
    }
}

#[test]
fn headers_are_linked_in_a_ring() {
    let directory = tempdir_in(DISK).unwrap();
    let new = new(ALL);
    let wanted = new.attributes.unwrap();
    let replica = LocalReplica::create(&specs(directory.path(), "part"), &new).unwrap();
    let headers: Vec<_> = (0..3).map(|index| replica.header(index).unwrap()).collect();
    assert_eq!(replica.header(3), None);
    assert_eq!(headers[0].uuid, wanted.uuid);
    for (index, header) in headers.iter().enumerate() {
        assert_eq!(header.next_part_uuid, headers[(index + 1) % 3].uuid);
        assert_eq!(header.prev_part_uuid, headers[(index + 2) % 3].uuid);
        assert_eq!((header.next_replica_uuid, header.prev_replica_uuid), (wanted.next_uuid, wanted.prev_uuid));
        assert_eq!(header.poolset_uuid, wanted.poolset_uuid);
        assert!(header.created_at_unix_s > 1_700_000_000);
        let path = directory.path().join(format!("part{index}"));
        assert_eq!(part_header(&path).unwrap(), *header);
    }
    assert!(headers[0].shutdown_state.is_dirty() && headers[0].shutdown_state.is_intact());
    assert_eq!(headers[1].shutdown_state, ShutdownState::default());
}

#[test]
fn uuids_that_are_not_given_are_made_up() {
    let directory = tempdir_in(DISK).unwrap();
    let attributes = Attributes { signature: *b"ANY\0\0\0\0\0", ..Attributes::default() };
    let new = NewReplica { attributes: Some(attributes), ..NewReplica::default() };
    let replica = LocalReplica::create(&specs(directory.path(), "part"), &new).unwrap();
    let found = replica.attributes().unwrap();
    assert_ne!(found.uuid, [0; 16]);
    assert_ne!(found.poolset_uuid, [0; 16]);
    assert_eq!((found.next_uuid, found.prev_uuid), (found.uuid, found.uuid), "it is alone");
    assert_eq!(found.user_flags, Arch::of_this_machine().to_bytes());
    assert!(replica.header(0).unwrap().kind().is_none());
}

#[test]
fn other_attributes_are_taken_by_all_parts() {
    for options in [ALL, SINGLE] {
        let directory = tempdir_in(DISK).unwrap();
        let specs = made(directory.path(), "part", options);
        let replica = open(&specs, options).unwrap();
        let other = attributes(options).unwrap();
        replica.set_attributes(&other).unwrap();
        assert_eq!(replica.attributes(), Some(other));
        replica.close().unwrap();
        let replica = open(&specs, options).unwrap();
        assert_eq!(replica.attributes(), Some(other));
    }
    let directory = tempdir_in(DISK).unwrap();
    let specs = made(directory.path(), "part", NONE);
    let replica = open(&specs, NONE).unwrap();
    assert!(matches!(
        replica.set_attributes(&attributes(ALL).unwrap()),
        Err(PoolSetError::Unsupported { why, .. }) if why.contains("NOHDRS")
    ));
}

/// Whatever a crash leaves of a header that is being replaced: it is the old one, the new one, or known to be neither.
#[test]
fn a_crash_while_a_header_is_written_is_seen() {
    let header = |attributes: Attributes| {
        let mut header =
            PoolHeader::decode(&include_bytes!("../../tests/headers/pmdk-1.12.1-obj.bin")[..].try_into().unwrap())
                .unwrap();
        header.set_attributes(&attributes);
        header
    };
    let (old, new) = (header(attributes(ALL).unwrap()), header(attributes(SINGLE).unwrap()));
    for kind in [MediumKind::FsDax, MediumKind::PageCache] {
        let shadow = ShadowMedium::from_image(old.encode().to_vec(), kind).unwrap();
        shadow.store(0, &new.encode()).unwrap();
        let mut seen = [0; 3];
        for image in shadow.crash_images(2000) {
            match PoolHeader::decode(&image[..].try_into().unwrap()) {
                Ok(found) if found == old => seen[0] += 1,
                Ok(found) if found == new => seen[1] += 1,
                Ok(found) => panic!("{found:?}"),
                Err(HeaderError::BadChecksum { .. }) => seen[2] += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(seen[0] > 0 && seen[1] > 0 && seen[2] > 0, "{seen:?}");
        write_header(&shadow, &new.encode()).unwrap();
        for image in shadow.crash_images(10) {
            assert_eq!(image, new.encode(), "durable once written");
        }
    }
}

#[test]
fn nothing_half_made_is_left_behind() {
    let directory = tempdir_in(DISK).unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("there"), [1; 100]).unwrap();
    fs::create_dir(path("directory")).unwrap();
    symlink(path("elsewhere"), path("link")).unwrap();
    let before = names(directory.path());
    let first = PartSpec::new(path("first"), 2 * MIB);
    let auto = PartSpec { size: PartSize::Auto, ..PartSpec::new(path("auto"), 0) };
    let cases: [(PartSpec, IsRight); 8] = [
        (PartSpec::new(path("there"), 2 * MIB), |error| matches!(error, PoolSetError::WrongLength { .. })),
        (PartSpec::new(path("small"), 2 * MIB - 1), |error| matches!(error, PoolSetError::TooSmall { .. })),
        (PartSpec::new(path("large"), 1 << 46), |error| {
            matches!(error, PoolSetError::Mem(pmof_mem::MemError::NoSpace { .. }))
        }),
        (auto, |error| matches!(error, PoolSetError::WrongKind { .. })),
        (PartSpec::new(path("no/such"), 2 * MIB), |error| matches!(error, PoolSetError::Mem(_))),
        (PartSpec::new(path("directory"), 2 * MIB), |error| matches!(error, PoolSetError::WrongKind { .. })),
        (PartSpec::new(path("link"), 2 * MIB), |error| matches!(error, PoolSetError::Mem(_))),
        // The first part itself.
        (PartSpec::new(path("first"), 2 * MIB), |error| matches!(error, PoolSetError::SameFile { .. })),
    ];
    for (second, is_right) in cases {
        let error = LocalReplica::create(&[first.clone(), second.clone()], &new(ALL)).unwrap_err();
        assert!(is_right(&error), "{error:?}");
        // Of a directory that is not there, its own path.
        let named = match second.path {
            path_of if path_of == path("no/such") => path("no"),
            // That parts are files, once one is a directory, is wrong with the files.
            path_of if path_of == path("directory") => path("first"),
            path_of => path_of,
        };
        assert!(error.to_string().contains(&*named.to_string_lossy()), "{error}");
        assert_eq!(names(directory.path()), before, "{error}");
    }
    assert!(!path("elsewhere").exists());
    assert!(matches!(LocalReplica::create(&[], &new(ALL)), Err(PoolSetError::Mem(_))));
    for (attributes, options) in
        [(attributes(ALL), NONE), (None, ALL), (attributes(ALL), SINGLE), (attributes(SINGLE), ALL)]
    {
        let new = NewReplica { attributes, options, declaration: None };
        let error = LocalReplica::create(std::slice::from_ref(&first), &new).unwrap_err();
        assert!(matches!(error, PoolSetError::Unsupported { .. }), "{error:?}");
    }
    assert_eq!(names(directory.path()), before);
}

#[test]
fn one_writer_or_many_readers() {
    let directory = tempdir_in(DISK).unwrap();
    let specs = made(directory.path(), "part", ALL);
    let read = || LocalReplica::open(&specs, ALL, OpenFor::Read, None);
    let busy = |outcome: Result<LocalReplica, PoolSetError>| match outcome {
        Err(PoolSetError::Busy { path }) => assert_eq!(path, specs[0].path),
        other => panic!("{other:?}"),
    };
    let writer = open(&specs, ALL).unwrap();
    busy(open(&specs, ALL));
    busy(read());
    assert!(matches!(remove(&specs, true), Err(PoolSetError::Busy { .. })));
    let memory = writer.memory();
    writer.close().unwrap();
    busy(open(&specs, ALL));
    drop(memory);
    let readers = [read().unwrap(), read().unwrap()];
    busy(open(&specs, ALL));
    assert!(readers[0].memory().store(5000, &[1]).is_err());
    assert!(readers[0].set_attributes(&attributes(ALL).unwrap()).is_err());
    drop(readers);
    open(&specs, ALL).unwrap();
}

#[test]
fn parts_that_do_not_belong_are_distinguished() {
    let directory = tempdir_in(DISK).unwrap();
    let path = |name: &str| directory.path().join(name);
    let whole = made(directory.path(), "part", ALL);
    let other = made(directory.path(), "other", ALL);
    let check = |specs: &[PartSpec], options, expected: PathBuf, is_right: IsRight| {
        let error = open(specs, options).unwrap_err();
        assert!(is_right(&error), "{error:?}");
        let told = error.to_string();
        assert!(told.contains(&*expected.to_string_lossy()), "{told}");
        open(&whole, ALL).unwrap().close().unwrap();
        error
    };
    let with = |index: usize, spec: PartSpec| {
        let mut specs = whole.clone();
        specs[index] = spec;
        specs
    };
    // A part that is gone.
    let specs = with(1, PartSpec::new(path("gone"), 3 * MIB));
    assert!(check(&specs, ALL, path("gone"), |error| matches!(error, PoolSetError::Missing { .. })).is_damage());
    // Truncated, and grown.
    for len_bytes in [2 * MIB, 4 * MIB] {
        fs::copy(path("part1"), path("copy")).unwrap();
        fs::File::options().write(true).open(path("copy")).unwrap().set_len(len_bytes).unwrap();
        let specs = with(1, PartSpec::new(path("copy"), 3 * MIB));
        check(&specs, ALL, path("copy"), |error| {
            matches!(error, PoolSetError::WrongLength { .. } | PoolSetError::Mem(_))
        });
    }
    // Of another set.
    check(&with(1, other[1].clone()), ALL, path("other1"), |error| matches!(error, PoolSetError::OtherSet { .. }));
    // Swapped.
    fs::copy(path("part0"), path("zero")).unwrap();
    let equal: Vec<_> = (0..3).map(|index| PartSpec::new(path(&format!("equal{index}")), 2 * MIB)).collect();
    LocalReplica::create(&equal, &new(ALL)).unwrap().close().unwrap();
    let swapped = [equal[0].clone(), equal[2].clone(), equal[1].clone()];
    check(&swapped, ALL, path("equal0"), |error| matches!(error, PoolSetError::WrongNeighbour { .. }));
    // One too few, one too many.
    check(&equal[..2], ALL, path("equal0"), |error| matches!(error, PoolSetError::WrongNeighbour { .. }));
    let more = [equal.clone(), vec![other[2].clone()]].concat();
    check(&more, ALL, path("other2"), |error| matches!(error, PoolSetError::OtherSet { .. }));
    // The same UUIDs and another content of the header.
    for (what, change) in [
        (
            "features",
            (|header| header.features = header.features.without(Feature::CheckBadBlocks)) as fn(&mut PoolHeader),
        ),
        ("kind", |header| header.signature = *b"PMEMLOG\0"),
        ("version", |header| header.major += 1),
        ("architecture", |header| header.arch.machine ^= 1),
        ("neighbouring replica", |header| header.next_replica_uuid[0] ^= 1),
    ] {
        fs::copy(path("part1"), path("copy")).unwrap();
        edit(&path("copy"), change);
        let specs = with(1, PartSpec::new(path("copy"), 3 * MIB));
        let error = check(&specs, ALL, path("copy"), |error| matches!(error, PoolSetError::Differs { .. }));
        assert!(error.to_string().contains(what), "{error}");
    }
    // Options.
    check(&whole, SINGLE, path("part0"), |error| matches!(error, PoolSetError::WrongOptions { .. }));
    let single = made(directory.path(), "single", SINGLE);
    check(&single, ALL, path("single1"), |error| {
        matches!(error, PoolSetError::Header { problem: HeaderError::Blank, .. })
    });
    // AUTO is for devices.
    let auto = PartSpec { size: PartSize::Auto, ..whole[1].clone() };
    check(&with(1, auto), ALL, path("part1"), |error| matches!(error, PoolSetError::WrongKind { .. }));
}

#[test]
fn every_changed_byte_of_every_header_keeps_the_replica_closed() {
    let directory = tempdir_in("/dev/shm").unwrap();
    let specs = ["one", "two"].map(|name| PartSpec::new(directory.path().join(name), 2 * MIB));
    LocalReplica::create(&specs, &new(ALL)).unwrap().close().unwrap();
    for spec in &specs {
        // The shutdown state of the first part is made new if it was not whole, as PMDK does.
        for offset in (0..HEADER_LEN_BYTES as u64).filter(|offset| !(4024..4088).contains(offset)) {
            flip(&spec.path, offset);
            match open(&specs, ALL) {
                Err(PoolSetError::Header { path, .. }) => assert_eq!(path, spec.path, "byte {offset}"),
                other => panic!("byte {offset} of {}: {other:?}", spec.path.display()),
            }
            flip(&spec.path, offset);
        }
    }
    open(&specs, ALL).unwrap();
}

#[test]
fn unknown_features_are_refused_as_far_as_they_ask_for_it() {
    let directory = tempdir_in(DISK).unwrap();
    let specs = made(directory.path(), "part", SINGLE);
    let path = &specs[0].path;
    let read = || LocalReplica::open(&specs, SINGLE, OpenFor::Read, None);
    edit(path, |header| header.features.compat |= 1 << 20);
    open(&specs, SINGLE).unwrap().close().unwrap();
    edit(path, |header| header.features.ro_compat |= 1 << 7);
    assert!(
        matches!(open(&specs, SINGLE), Err(PoolSetError::UnknownFeatures { features, .. }) if features.ro_compat == 1 << 7)
    );
    read().unwrap();
    edit(path, |header| header.features.incompat |= 1 << 30);
    assert!(matches!(read(), Err(PoolSetError::UnknownFeatures { .. })));
}

/// As those of a target: its clients know what they mean.
#[test]
fn a_client_opens_whatever_attributes_it_made_the_pool_with() {
    for options in [ALL, SINGLE] {
        for (compat, incompat, ro_compat) in [(0, 1 << 30, 0), (0, 0, 1 << 7), (1 << 20, 0xffff_fff0, u32::MAX)] {
            let directory = tempdir_in(DISK).unwrap();
            let specs = specs(directory.path(), "part");
            let mut wanted = attributes(options).unwrap();
            (wanted.compat, wanted.incompat) = (wanted.compat | compat, wanted.incompat | incompat);
            wanted.ro_compat = ro_compat;
            let new = NewReplica { attributes: Some(wanted), options, declaration: None };
            LocalReplica::create(&specs, &new).unwrap().close().unwrap();
            assert!(matches!(open(&specs, options), Err(PoolSetError::UnknownFeatures { .. })));
            let for_client = |options, access| LocalReplica::open_for_client(&specs, options, access, None);
            for access in [OpenFor::Read, OpenFor::Write] {
                let replica = for_client(options, access).unwrap();
                assert_eq!(replica.attributes(), Some(wanted));
                replica.close().unwrap();
            }
            // Zeroes too, which say nothing of the parts that have headers.
            let replica = for_client(options, OpenFor::Write).unwrap();
            replica.set_attributes(&Attributes::default()).unwrap();
            replica.close().unwrap();
            let replica = for_client(options, OpenFor::Write).unwrap();
            assert_eq!(replica.attributes(), Some(Attributes::default()));
            replica.set_attributes(&wanted).unwrap();
            replica.close().unwrap();
            let told_apart = |error: PoolSetError, is_right: IsRight| assert!(is_right(&error), "{error:?}");
            if options == ALL {
                told_apart(for_client(SINGLE, OpenFor::Write).unwrap_err(), |error| {
                    matches!(error, PoolSetError::WrongOptions { .. })
                });
                edit(&specs[1].path, |header| header.features.compat ^= 1 << 3);
                told_apart(for_client(ALL, OpenFor::Write).unwrap_err(), |error| {
                    matches!(error, PoolSetError::Differs { .. })
                });
            } else {
                told_apart(for_client(ALL, OpenFor::Write).unwrap_err(), |error| {
                    matches!(error, PoolSetError::Header { .. })
                });
            }
        }
    }
}

#[test]
fn directories_hold_numbered_files() {
    let directory = tempdir_in(DISK).unwrap();
    let path = |name: &str| directory.path().join(name);
    for name in ["one", "two"] {
        fs::create_dir(path(name)).unwrap();
    }
    let specs = [PartSpec::new(path("one"), 2 * MIB), PartSpec::new(path("two"), 3 * MIB)];
    let refused = LocalReplica::create(&specs, &new(ALL)).unwrap_err();
    assert!(matches!(&refused, PoolSetError::WrongKind { mend, .. } if mend.contains("SINGLEHDR")), "{refused}");
    assert!(
        matches!(open(&specs, SINGLE), Err(PoolSetError::Missing { path: told }) if told == path("one/000000.pmem"))
    );
    let replica = LocalReplica::create(&specs, &new(SINGLE)).unwrap();
    assert_eq!(replica.len_bytes(), 5 * MIB);
    replica.memory().store(4 * MIB, b"far").unwrap();
    replica.close().unwrap();
    assert_eq!((names(&path("one")), names(&path("two"))), (vec!["000000.pmem".into()], vec!["000001.pmem".into()]));
    assert!(matches!(LocalReplica::create(&specs, &new(SINGLE)), Err(PoolSetError::Exists { .. })));
    fs::write(path("one/notes.txt"), "not a part").unwrap();
    let replica = open(&specs, SINGLE).unwrap();
    let mut bytes = [0; 3];
    replica.memory().read(4 * MIB, &mut bytes).unwrap();
    assert_eq!(&bytes, b"far");
    drop(replica);
    // A file in the other directory is as good: PMDK spreads them as it likes.
    fs::rename(path("two/000001.pmem"), path("one/000001.pmem")).unwrap();
    open(&specs, SINGLE).unwrap();
    fs::copy(path("one/000001.pmem"), path("two/1.pmem")).unwrap();
    assert!(matches!(open(&specs, SINGLE), Err(PoolSetError::WrongKind { .. })));
    fs::rename(path("two/1.pmem"), path("two/000003.pmem")).unwrap();
    assert!(
        matches!(open(&specs, SINGLE), Err(PoolSetError::Missing { path: told }) if told == path("one/000002.pmem"))
    );
    fs::remove_file(path("two/000003.pmem")).unwrap();
    let mixed = [specs[0].clone(), PartSpec::new(path("file"), 2 * MIB)];
    assert!(matches!(open(&mixed, SINGLE), Err(PoolSetError::WrongKind { path: told, .. }) if told == path("file")));
    Removal::prepare(&specs, SINGLE, false, None).unwrap().carry_out().unwrap();
    assert_eq!((names(&path("one")), names(&path("two"))), (vec!["notes.txt".to_owned()], vec![]));
}

fn remove(specs: &[PartSpec], force: bool) -> Result<(), PoolSetError> {
    Removal::prepare(specs, ALL, force, None)?.carry_out()
}

#[test]
fn removal_takes_all_parts_or_none() {
    let directory = tempdir_in(DISK).unwrap();
    let whole = made(directory.path(), "part", ALL);
    let mut wrong = whole.clone();
    wrong[2].size = PartSize::Bytes(12_345);
    assert!(matches!(remove(&wrong, false), Err(PoolSetError::WrongLength { .. })));
    let mut more = whole.clone();
    more.push(PartSpec::new(directory.path().join("gone"), MIB));
    assert!(matches!(remove(&more, false), Err(PoolSetError::Missing { .. })));
    assert_eq!(names(directory.path()).len(), 3);
    remove(&whole, false).unwrap();
    assert_eq!(names(directory.path()).len(), 0);
    assert!(matches!(remove(&whole, false), Err(PoolSetError::Missing { .. })));
    remove(&whole, true).unwrap();
    let whole = made(directory.path(), "part", NONE);
    fs::remove_file(&whole[0].path).unwrap();
    remove(&whole, true).unwrap();
    assert_eq!(names(directory.path()).len(), 0);
}

/// A copy of sysfs in which the disk that `directory` lies on is persistent memory.
fn persistent_memory(directory: &Path) -> TempDir {
    let tree = tempdir_in(DISK).unwrap();
    let bus = tree.path().join("devices/ndbus0");
    let disk = bus.join("region0/block/pmem0");
    for path in [&disk, &bus.join("nmem0/nfit"), &tree.path().join("dev/block")] {
        fs::create_dir_all(path).unwrap();
    }
    for (path, text) in [
        ("region0/mappings", "1\n"),
        ("region0/mapping0", "nmem0,0,4096,0\n"),
        ("nmem0/nfit/id", "8089-a2-1749-00000001\n"),
    ] {
        fs::write(bus.join(path), text).unwrap();
    }
    let device = fs::metadata(directory).unwrap().dev();
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    symlink(&disk, tree.path().join("dev/block").join(number)).unwrap();
    unsafe_shutdowns(&tree, 7);
    tree
}

/// New blocks are sound; the file that has them takes the place of the old one when it is whole.
#[test]
fn a_part_with_bad_blocks_is_replaced_by_a_file_of_the_same_mode() {
    let directory = tempdir_in(DISK).unwrap();
    let tree = persistent_memory(directory.path());
    let system = System::copied(tree.path().into(), "/proc".into(), None);
    let specs = made(directory.path(), "part", ALL);
    let attributes = open(&specs, ALL).unwrap().attributes().unwrap();
    fs::set_permissions(&specs[1].path, fs::Permissions::from_mode(0o640)).unwrap();
    let before = fs::metadata(&specs[1].path).unwrap();
    fs::write(tree.path().join("devices/ndbus0/region0/block/pmem0/badblocks"), "0 1000000000000\n").unwrap();
    let (links, least) = (&attributes, 4 * MIB);
    let restoration = Restoration { options: ALL, links, least, declaration: None, beside: &[] };
    let restored = NewParts::restore(&system, &specs, &restoration, &mut |_, _| false);
    let restored = match restored {
        Err(PoolSetError::Mem(error)) => {
            return skip_report::skipped!("the file system here names no extents ({error})");
        }
        restored => restored.unwrap(),
    };
    restored.finish(&System::real(), Some(&attributes)).unwrap().close().unwrap();
    let after = fs::metadata(&specs[1].path).unwrap();
    assert_ne!(after.ino(), before.ino());
    assert_eq!((after.mode(), after.len()), (before.mode(), before.len()));
    assert!(!directory.path().join("part1.pmof-new").exists());
    open(&specs, ALL).unwrap().close().unwrap();
}

fn unsafe_shutdowns(tree: &TempDir, count: u64) {
    fs::write(tree.path().join("devices/ndbus0/nmem0/nfit/dirty_shutdown"), format!("{count}\n")).unwrap();
}

#[test]
fn a_pool_that_was_open_when_its_modules_lost_writes_is_not_trusted() {
    let directory = tempdir_in(DISK).unwrap();
    let tree = persistent_memory(directory.path());
    let system = System::copied(tree.path().into(), "/proc".into(), None);
    let specs = specs(directory.path(), "part");
    let open_with = |access| LocalReplica::open_on(&system, &specs, ALL, access, None, Reader::Library);
    let state = || part_header(&specs[0].path).unwrap().shutdown_state;
    let replica = LocalReplica::create_on(&system, &specs, &new(ALL)).unwrap();
    assert!(state().is_dirty() && state().is_intact());
    assert_eq!(state().unsafe_shutdowns, 3 * 7, "once for each part");
    replica.close().unwrap();
    assert!(!state().is_dirty() && state().is_intact());
    // Closed: what the modules lost since does not matter.
    unsafe_shutdowns(&tree, 8);
    drop(open_with(OpenFor::Read).unwrap());
    assert!(!state().is_dirty() && state().unsafe_shutdowns == 21, "nothing is changed");
    // Its program died, the modules kept all.
    drop(open_with(OpenFor::Write).unwrap());
    assert!(state().is_dirty() && state().unsafe_shutdowns == 24);
    drop(open_with(OpenFor::Write).unwrap());
    // Its program died, and the modules lost writes.
    unsafe_shutdowns(&tree, 9);
    for access in [OpenFor::Read, OpenFor::Write] {
        let error = open_with(access).unwrap_err();
        assert!(matches!(&error, PoolSetError::UnsafeShutdown { path } if *path == specs[0].path) && error.is_damage());
    }
    // A pool that does not want to know.
    for spec in &specs {
        edit(&spec.path, |header| header.features = header.features.without(Feature::ShutdownState));
    }
    open_with(OpenFor::Write).unwrap();
}

#[test]
fn a_shutdown_state_that_is_not_whole_is_made_new() {
    let directory = tempdir_in(DISK).unwrap();
    let specs = made(directory.path(), "part", SINGLE);
    for offset in [4024, 4040, 4041, 4080] {
        flip(&specs[0].path, offset);
        assert!(!part_header(&specs[0].path).unwrap().shutdown_state.is_intact());
        open(&specs, SINGLE).unwrap().close().unwrap();
        assert_eq!(part_header(&specs[0].path).unwrap().shutdown_state, ShutdownState::default());
    }
}

#[test]
fn a_pool_with_bad_blocks_stays_closed() {
    let directory = tempdir_in(DISK).unwrap();
    let tree = persistent_memory(directory.path());
    let system = System::copied(tree.path().into(), "/proc".into(), None);
    let specs = made(directory.path(), "part", ALL);
    let open_with = || LocalReplica::open_on(&system, &specs, ALL, OpenFor::Write, None, Reader::Library);
    open_with().unwrap().close().unwrap();
    // Every block of the disk: that of the file is among them, wherever it lies.
    fs::write(tree.path().join("devices/ndbus0/region0/block/pmem0/badblocks"), "0 1000000000000\n").unwrap();
    match open_with() {
        Err(error @ PoolSetError::BadBlocks { .. }) => {
            assert!(error.is_damage() && error.to_string().contains("0.."), "{error}");
        }
        Err(PoolSetError::Mem(error)) => skip_report::skipped!("the file system here names no extents ({error})"),
        other => panic!("{other:?}"),
    }
}
