use std::{fs, os::fd::AsFd, path::PathBuf};

use super::{Facts, Judgement, Mount, OVERLAY_MAGIC, Power, System, judge_devdax, judge_facts, judge_file};
use crate::{CacheWriteBack, Durability, Evidence, Mechanism, MediumKind, Promise, sysfs::fixture::Tree};

const EXT4_MAGIC: u64 = 0xef53;
const NFS_MAGIC: u64 = 0x6969;
const TMPFS_MAGIC: u64 = 0x0102_1994;

fn system(tree: &Tree) -> System {
    System { sysfs_root: tree.root().into(), proc_root: "/proc".into(), cpu: Some(CacheWriteBack::Clwb) }
}

fn facts(magic: u64, (major, minor): (u32, u32), options: &str) -> Facts {
    let options = options.split(',').map(str::to_owned).collect();
    let mount = Mount { file_system: "name".into(), source: PathBuf::from("/dev/nothing"), options };
    Facts { magic, device: rustix::fs::makedev(major, minor), mount: Some(mount), has_extents: false }
}

fn power_promise(judgement: &Judgement, declared: bool) -> Option<(Mechanism, Evidence)> {
    judgement.promise(Durability::PowerFailure, declared).map(|promise| (promise.mechanism, promise.evidence))
}

/// Without declaration, with declaration.
fn both(judgement: &Judgement) -> [Option<(Mechanism, Evidence)>; 2] {
    [power_promise(judgement, false), power_promise(judgement, true)]
}

const fn probed(mechanism: Mechanism) -> [Option<(Mechanism, Evidence)>; 2] {
    [Some((mechanism, Evidence::Probed)); 2]
}

const fn declared(mechanism: Mechanism) -> [Option<(Mechanism, Evidence)>; 2] {
    [None, Some((mechanism, Evidence::Declared))]
}

#[test]
fn fsdax_follows_the_persistence_domain() {
    let expected = [
        (Some("memory_controller"), probed(Mechanism::CacheLineWriteBack)),
        (Some("cpu_cache"), probed(Mechanism::Fence)),
        (Some("unknown"), declared(Mechanism::CacheLineWriteBack)),
        (Some(""), declared(Mechanism::CacheLineWriteBack)),
        (None, declared(Mechanism::CacheLineWriteBack)),
    ];
    for (domain, promises) in expected {
        let tree = Tree::new();
        let region = tree.region(0, domain, "nd");
        tree.block(&region, "pmem0", "259:0");
        let judgement = judge_facts(&system(&tree), &facts(EXT4_MAGIC, (259, 0), "rw"), true);
        assert_eq!(judgement.kind, MediumKind::FsDax);
        assert_eq!(both(&judgement), promises, "{domain:?}");
        assert_eq!(judgement.mend().is_none(), promises[0].is_some());
        let device = tree.devdax(&region, "252:0", 4096);
        assert_eq!(both(&judge_devdax(&system(&tree), &device)), promises, "{domain:?}");
    }
}

#[test]
fn the_weakest_region_of_a_stack_decides() {
    for (second, promises) in
        [("memory_controller", probed(Mechanism::CacheLineWriteBack)), ("", declared(Mechanism::CacheLineWriteBack))]
    {
        let tree = Tree::new();
        let mapper = tree.block(&tree.root().join("devices"), "dm-0", "253:0");
        Tree::stack(&mapper, &tree.block(&tree.region(0, Some("cpu_cache"), "nd"), "pmem0", "259:0"));
        Tree::stack(&mapper, &tree.block(&tree.region(1, Some(second), "nd"), "pmem1", "259:1"));
        let judgement = judge_facts(&system(&tree), &facts(EXT4_MAGIC, (253, 0), "rw"), true);
        assert_eq!(both(&judgement), promises);
    }
}

#[test]
fn dax_outside_of_nd_regions_is_unknown() {
    let tree = Tree::new();
    tree.block(&tree.root().join("devices"), "sda", "8:0");
    let judgement = judge_facts(&system(&tree), &facts(EXT4_MAGIC, (8, 0), "rw"), true);
    assert_eq!(both(&judgement), declared(Mechanism::CacheLineWriteBack));
}

#[test]
fn a_cpu_without_write_back_is_refused_where_it_is_needed() {
    for (domain, promises) in [("memory_controller", [None, None]), ("cpu_cache", probed(Mechanism::Fence))] {
        let tree = Tree::new();
        tree.block(&tree.region(0, Some(domain), "nd"), "pmem0", "259:0");
        let bare = System { cpu: None, ..system(&tree) };
        assert_eq!(both(&judge_facts(&bare, &facts(EXT4_MAGIC, (259, 0), "rw"), true)), promises);
    }
}

#[test]
fn page_cache_is_as_good_as_its_device() {
    let tree = Tree::new();
    let devices = tree.root().join("devices");
    tree.block(&devices, "sda", "8:0");
    tree.block(&devices, "ram0", "1:0");
    tree.block(&devices, "loop0", "7:0");
    tree.block(&tree.region(0, Some("memory_controller"), "nd"), "pmem0", "259:0");
    tree.block(&tree.region(1, None, "nd"), "pmem1", "259:1");
    tree.block(&tree.region(2, None, "virtio_pmem"), "pmem2", "259:2");
    let (yes, no) = (probed(Mechanism::FileSync), declared(Mechanism::FileSync));
    let page_cache = MediumKind::PageCache;
    for (device, options, kind, promises) in [
        ((8, 0), "rw,relatime", page_cache, yes),
        ((8, 0), "rw,nobarrier", page_cache, no),
        ((8, 0), "rw,barrier=0", page_cache, no),
        ((1, 0), "rw", page_cache, no),
        ((7, 0), "rw", page_cache, no),
        ((259, 0), "rw", page_cache, yes),
        ((259, 1), "rw", page_cache, no),
        ((259, 2), "rw", MediumKind::VirtioPmem, yes),
        ((77, 7), "rw", page_cache, no),
        ((0, 44), "rw", page_cache, no),
    ] {
        let judgement = judge_facts(&system(&tree), &facts(EXT4_MAGIC, device, options), false);
        assert_eq!((judgement.kind, both(&judgement)), (kind, promises), "{device:?} {options}");
    }
    let unmounted = Facts { mount: None, ..facts(EXT4_MAGIC, (8, 0), "") };
    assert_eq!(both(&judge_facts(&system(&tree), &unmounted, false)), no);
}

#[test]
fn a_loop_device_is_as_good_as_its_file() {
    for (backing, reaches) in [("/dev/shm", false), ("/nowhere at all", false), (env!("CARGO_MANIFEST_DIR"), true)] {
        let tree = Tree::new();
        let disk = tree.block(&tree.root().join("devices"), "loop0", "7:0");
        fs::create_dir(disk.join("loop")).unwrap();
        fs::write(disk.join("loop/backing_file"), backing).unwrap();
        // The file below is a real one: let the fixture know its device as a disk.
        if let Ok(file) = fs::File::open(backing) {
            let device = rustix::fs::fstat(&file).unwrap().st_dev;
            let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
            tree.block(&tree.root().join("devices"), "sda", &number);
        }
        let judgement = judge_facts(&system(&tree), &facts(EXT4_MAGIC, (7, 0), "rw"), false);
        let expected = if reaches { probed(Mechanism::FileSync) } else { declared(Mechanism::FileSync) };
        assert_eq!(both(&judgement), expected, "{backing}: {:?}", judgement.evidence);
    }
}

#[test]
fn overlays_served_and_memory_file_systems() {
    let tree = Tree::new();
    let judge = |facts: &Facts| judge_facts(&system(&tree), facts, false);
    let overlay = |options, has_extents| Facts { has_extents, ..facts(OVERLAY_MAGIC, (0, 50), options) };
    assert_eq!(both(&judge(&overlay("rw", true))), probed(Mechanism::FileSync));
    assert_eq!(both(&judge(&overlay("rw", false))), declared(Mechanism::FileSync));
    assert_eq!(both(&judge(&overlay("rw,volatile", true))), declared(Mechanism::FileSync));
    let served = judge(&facts(NFS_MAGIC, (0, 51), "rw"));
    assert_eq!((served.kind, both(&served)), (MediumKind::PageCache, declared(Mechanism::FileSync)));
    assert!(served.mend().unwrap().contains("server"), "{:?}", served.mend());
    let memory = judge(&facts(TMPFS_MAGIC, (0, 52), "rw"));
    assert_eq!((memory.kind, both(&memory)), (MediumKind::Tmpfs, declared(Mechanism::Store)));
}

#[test]
fn lower_levels_and_anonymous_memory() {
    let anonymous = Judgement::anonymous();
    let store = Some(Promise { mechanism: Mechanism::Store, evidence: Evidence::Probed });
    assert_eq!(anonymous.promise(Durability::Visible, true), store);
    assert_eq!(anonymous.promise(Durability::ProcessCrash, true), None);
    assert_eq!(both(&anonymous), [None, None]);
    let tree = Tree::new();
    let memory = judge_facts(&system(&tree), &facts(TMPFS_MAGIC, (0, 52), "rw"), false);
    assert_eq!(memory.promise(Durability::ProcessCrash, false), store);
}

#[test]
fn a_mount_is_found_by_its_number() {
    let text = "22 27 0:21 / /proc rw,relatime - proc proc rw\n\
                27 1 254:0 / / rw,noatime shared:1 master:2 - ext4 /dev/vda rw,nobarrier\n";
    let mount = Mount::parse(text, "27").unwrap();
    assert_eq!((mount.file_system.as_str(), mount.source.to_str()), ("ext4", Some("/dev/vda")));
    assert_eq!(mount.options, ["rw", "noatime", "rw", "nobarrier"]);
    assert_eq!(Mount::parse(text, "2"), None);
    assert_eq!(Mount::parse("27 1 254:0\n", "27"), None);
}

#[test]
fn the_real_tmpfs_is_judged() {
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    let judgement = judge_file(&System::real(), file.as_fd(), false).unwrap();
    assert_eq!((judgement.kind, judgement.file_system.as_str()), (MediumKind::Tmpfs, "tmpfs"));
    assert!(matches!(judgement.power, Power::Undecided { mechanism: Mechanism::Store, .. }));
}
