use std::{fs, os::fd::AsFd, os::unix::fs::symlink, path::Path};

use super::{Facts, Judgement, MapSync, Power, System, judge_devdax, judge_file, judge_mount};
use crate::{
    CacheWriteBack, Durability, Evidence, Mechanism, MediumKind, Promise,
    answers::Answers,
    mounts::{FileSystemClass, Mount, OVERLAY_MAGIC},
    sysfs::fixture::Tree,
};

const EXT4_MAGIC: u64 = 0xef53;
const XFS_MAGIC: u64 = 0x5846_5342;
const JFS_MAGIC: u64 = 0x3153_464a;
const NFS_MAGIC: u64 = 0x6969;
const TMPFS_MAGIC: u64 = 0x0102_1994;

fn judge_facts(system: &System, facts: &Facts, map_sync: bool) -> Judgement {
    super::judge_facts(system, facts, MapSync::Asked(map_sync))
}

/// A machine whose file systems have their journals inside, and whose devices answered what the tree's `answers` has.
fn system(tree: &Tree) -> System {
    let root = tree.root();
    fs::create_dir_all(root.join("fs/jbd2")).unwrap();
    for entry in fs::read_dir(root.join("dev/block")).unwrap() {
        let disk = fs::read_link(entry.unwrap().path()).unwrap();
        let name = disk.file_name().unwrap().to_str().unwrap().to_owned();
        fs::create_dir_all(root.join(format!("fs/jbd2/{name}-8"))).unwrap();
    }
    System::copied(root.into(), root.into(), Some(CacheWriteBack::Clwb)).with_answers(root.join("answers"))
}

fn mount(file_system: &str, device: (u32, u32), options: &str) -> Mount {
    Mount {
        id: "1".into(),
        device,
        root: "/".into(),
        point: "/mnt".into(),
        file_system: file_system.into(),
        source: "/dev/nothing".into(),
        options: options.split(',').map(str::to_owned).collect(),
    }
}

fn facts(magic: u64, device: (u32, u32), options: &str) -> Facts {
    let name = if magic == XFS_MAGIC { "xfs" } else { "name" };
    let (mount, class) = (Some(mount(name, device, options)), FileSystemClass::of_magic(magic));
    Facts { class, device, mount, known_by: "test".into(), upper: None, btrfs: None }
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
        fs::create_dir(mapper.join("dm")).unwrap();
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

/// A loop device over a path, the number and inode that it says its file has, and a table of mounts.
fn loop_over(tree: &Tree, path: &str, status: &str) -> System {
    let root = tree.root();
    let disk = tree.block(&root.join("devices"), "loop0", "7:0");
    fs::create_dir(disk.join("loop")).unwrap();
    fs::write(disk.join("loop/backing_file"), path).unwrap();
    tree.block(&root.join("devices"), "sda", "8:0");
    fs::create_dir(root.join("self")).unwrap();
    let mountinfo = "1 0 8:0 / / rw - ext4 /dev/sda rw\n2 1 0:50 / /dev/shm rw - tmpfs tmpfs rw\n";
    fs::write(root.join("self/mountinfo"), mountinfo).unwrap();
    fs::create_dir(root.join("answers")).unwrap();
    fs::write(root.join("answers/loop0"), status).unwrap();
    fs::write(root.join("answers/files"), "8:0 12 /srv/disk\n0:50 3 /dev/shm/disk\n").unwrap();
    system(tree)
}

#[test]
fn a_loop_device_is_as_good_as_its_file() {
    for (path, status, reaches) in [
        ("/srv/disk", "8:0 12\n", true),
        ("/dev/shm/disk", "0:50 3\n", false),
        ("/srv/disk (deleted)", "8:0 12\n", false),
        ("relative", "8:0 12\n", false),
        // The path leads elsewhere by now: another inode, or another file system.
        ("/srv/disk", "8:0 13\n", false),
        ("/srv/disk", "0:50 12\n", false),
        ("/srv/disk", "\n", false),
    ] {
        let tree = Tree::new();
        let system = loop_over(&tree, path, status);
        let judgement = judge_facts(&system, &facts(EXT4_MAGIC, (7, 0), "rw"), false);
        let expected = if reaches { probed(Mechanism::FileSync) } else { declared(Mechanism::FileSync) };
        assert_eq!(both(&judgement), expected, "{path} {status}: {:?}", judgement.evidence);
    }
}

#[test]
fn a_loop_device_over_a_file_on_itself_ends() {
    let tree = Tree::new();
    let system = loop_over(&tree, "/srv/disk", "7:0 12\n");
    fs::write(tree.root().join("self/mountinfo"), "1 0 7:0 / / rw - ext4 /dev/loop0 rw\n").unwrap();
    fs::write(tree.root().join("answers/files"), "7:0 12 /srv/disk\n").unwrap();
    let judgement = judge_facts(&system, &facts(EXT4_MAGIC, (7, 0), "rw"), false);
    assert_eq!(both(&judgement), declared(Mechanism::FileSync));
    assert!(judgement.mend().unwrap().contains("more than 4 loop devices"), "{:?}", judgement.mend());
}

#[test]
fn a_loop_device_that_nobody_asked_or_that_passes_no_flush_is_undecided() {
    let tree = Tree::new();
    let system = loop_over(&tree, "/srv/disk", "8:0 12\n");
    let judge = |system: &System| both(&judge_facts(system, &facts(EXT4_MAGIC, (7, 0), "rw"), false));
    assert_eq!(judge(&system), probed(Mechanism::FileSync));
    let silent = System { answers: Answers::None, ..system.clone() };
    assert_eq!(judge(&silent), declared(Mechanism::FileSync));
    fs::write(tree.root().join("devices/block/loop0/queue/write_cache"), "write through\n").unwrap();
    assert_eq!(judge(&system), declared(Mechanism::FileSync));
}

#[test]
fn the_journal_and_the_log_are_judged_too() {
    let tree = Tree::new();
    let (root, devices) = (tree.root(), tree.root().join("devices"));
    for (name, number) in [("sda", "8:0"), ("sdb", "8:16"), ("zram0", "252:0")] {
        let disk = tree.block(&devices, name, number);
        fs::write(disk.join("dev"), format!("{number}\n")).unwrap();
        fs::create_dir_all(root.join("class/block")).unwrap();
        symlink(&disk, root.join("class/block").join(name)).unwrap();
    }
    let system = system(&tree);
    let (yes, no) = (probed(Mechanism::FileSync), declared(Mechanism::FileSync));
    let judge = |magic, options: &str| both(&judge_facts(&system, &facts(magic, (8, 0), options), false));
    assert_eq!(judge(EXT4_MAGIC, "rw"), yes, "the journal is inside");
    fs::remove_dir(root.join("fs/jbd2/sda-8")).unwrap();
    assert_eq!(judge(EXT4_MAGIC, "rw"), no, "nobody says where the journal is");
    fs::create_dir(root.join("fs/jbd2/sdb")).unwrap();
    fs::create_dir_all(root.join("sys/kernel")).unwrap();
    for (release, expected) in [
        ("", no),
        ("6.12.107+deb13-amd64", no),
        ("5.18.0", no),
        ("6.9.1", no),
        ("six.18", no),
        ("6.18.44", yes),
        ("6.18-rc1", yes),
        ("7.0.0", yes),
    ] {
        fs::write(root.join("sys/kernel/osrelease"), format!("{release}\n")).unwrap();
        assert_eq!(judge(EXT4_MAGIC, "rw"), expected, "on another disk, Linux {release}");
    }
    fs::create_dir(root.join("fs/jbd2/zram0")).unwrap();
    assert_eq!(judge(EXT4_MAGIC, "rw"), no, "one journal is in memory, and nobody says whose");
    fs::create_dir_all(root.join("fs/ext4/sda")).unwrap();
    fs::write(root.join("fs/ext4/sda/journal_task"), "<none>\n").unwrap();
    assert_eq!(judge(EXT4_MAGIC, "rw"), yes, "there is none");
    fs::write(root.join("fs/ext4/sda/journal_task"), "123\n").unwrap();
    assert_eq!(judge(EXT4_MAGIC, "rw"), no);
    assert_eq!(judge(XFS_MAGIC, "rw"), yes);
    assert_eq!(judge(XFS_MAGIC, "rw,logdev=/dev/sdb"), yes);
    for options in
        ["rw,logdev=/dev/zram0", "rw,rtdev=/dev/zram0", "rw,logdev=/dev/sdb,rtdev=/dev/zram0", "rw,rtdev=/dev/x"]
    {
        assert_eq!(judge(XFS_MAGIC, options), no, "{options}");
    }
    assert_eq!(judge(JFS_MAGIC, "rw"), no, "JFS flushes nothing");
}

#[test]
fn dax_needs_a_journal_and_flushes_that_are_kept() {
    let tree = Tree::new();
    let disk = tree.block(&tree.region(0, Some("memory_controller"), "nd"), "pmem0", "259:0");
    let zram = tree.block(&tree.root().join("devices"), "zram0", "252:0");
    let system = system(&tree);
    let (yes, no) = (probed(Mechanism::CacheLineWriteBack), declared(Mechanism::CacheLineWriteBack));
    let judge = |options| both(&judge_facts(&system, &facts(EXT4_MAGIC, (259, 0), options), true));
    assert_eq!(judge("rw"), yes);
    assert_eq!(judge("rw,nobarrier"), no);
    fs::remove_dir(tree.root().join("fs/jbd2/pmem0-8")).unwrap();
    fs::write(zram.join("dev"), "252:0\n").unwrap();
    fs::create_dir_all(tree.root().join("class/block")).unwrap();
    symlink(&zram, tree.root().join("class/block/zram0")).unwrap();
    fs::create_dir(tree.root().join("fs/jbd2/zram0")).unwrap();
    assert_eq!(judge("rw"), no, "the journal is in memory");
    fs::create_dir(tree.root().join("fs/jbd2/pmem0-8")).unwrap();
    fs::write(disk.join("queue/write_cache"), "write through\n").unwrap();
    assert_eq!(judge("rw"), no, "the kernel does not flush the disk of the journal");
    let unknown = facts(JFS_MAGIC, (259, 0), "rw");
    assert_eq!(both(&judge_facts(&system, &unknown, true)), no);
}

#[test]
fn a_region_that_the_kernel_contradicts_gives_nothing_even_declared() {
    type Change = (&'static str, fn(&Path), [Option<(Mechanism, Evidence)>; 2]);
    let write = |path: std::path::PathBuf, text: &str| fs::write(path, text).unwrap();
    let nothing = [None, None];
    let lines = declared(Mechanism::CacheLineWriteBack);
    let changes: [Change; 12] = [
        ("read-only", |region| fs::write(region.join("read_only"), "1\n").unwrap(), nothing),
        ("volatile", |region| fs::write(region.join("uevent"), "DEVTYPE=nd_volatile\n").unwrap(), nothing),
        ("not armed", |region| fs::write(region.join("../nmem0/nfit/flags"), "not_armed \n").unwrap(), nothing),
        ("lost", |region| fs::write(region.join("../nmem0/nfit/flags"), "smart_notify save_fail\n").unwrap(), nothing),
        ("new flag", |region| fs::write(region.join("../nmem0/nfit/flags"), "on_fire\n").unwrap(), lines),
        ("no flags", |region| fs::remove_file(region.join("../nmem0/nfit/flags")).unwrap(), lines),
        ("no modules", |region| fs::write(region.join("mappings"), "0\n").unwrap(), lines),
        ("a module is not named", |region| fs::write(region.join("mappings"), "2\n").unwrap(), lines),
        ("no bus", |region| fs::remove_file(region.join("../provider")).unwrap(), lines),
        ("memmap=", |region| fs::write(region.join("../provider"), "e820\n").unwrap(), lines),
        (
            "the host's, by its provider",
            |region| fs::write(region.join("../provider"), "virtio-pmem\n").unwrap(),
            nothing,
        ),
        ("so, by another kernel", |region| fs::write(region.join("../provider"), "virtio_pmem\n").unwrap(), nothing),
    ];
    for (name, change, expected) in changes {
        let tree = Tree::new();
        let region = tree.region(0, Some("memory_controller"), "nd");
        let device = tree.devdax(&region, "252:0", 4096);
        // The control: unchanged, it is proven.
        assert_eq!(both(&judge_devdax(&system(&tree), &device)), probed(Mechanism::CacheLineWriteBack));
        change(&region);
        assert_eq!(both(&judge_devdax(&system(&tree), &device)), expected, "{name}");
    }
    let tree = Tree::new();
    let region = tree.region(0, Some("memory_controller"), "nd");
    let device = tree.devdax(&region, "252:0", 4096);
    write(region.join("../provider"), "CXL\n");
    assert_eq!(both(&judge_devdax(&system(&tree), &device)), lines, "global persistent flush is not proven");
    fs::create_dir(region.join("../nmem0/cxl")).unwrap();
    write(region.join("../nmem0/cxl/dirty_shutdown"), "0\n");
    assert_eq!(both(&judge_devdax(&system(&tree), &device)), probed(Mechanism::CacheLineWriteBack));
    let tree = Tree::new();
    let region = tree.region(0, None, "virtio_pmem");
    assert_eq!(both(&judge_devdax(&system(&tree), &tree.devdax(&region, "252:0", 4096))), nothing);
}

#[test]
fn a_mount_is_judged_as_its_files_are() {
    let tree = Tree::new();
    tree.block(&tree.region(0, Some("memory_controller"), "nd"), "pmem0", "259:0");
    tree.block(&tree.region(1, None, "virtio_pmem"), "pmem1", "259:1");
    for (file_system, device, options, kind) in [
        ("ext4", (259, 0), "rw,dax=always", MediumKind::FsDax),
        ("xfs", (259, 0), "rw,dax", MediumKind::FsDax),
        ("xfs", (259, 0), "rw,dax=never", MediumKind::PageCache),
        ("ext2", (259, 0), "rw,dax", MediumKind::PageCache),
        ("ext4", (259, 0), "rw", MediumKind::PageCache),
        ("ext4", (259, 1), "rw,dax=always", MediumKind::VirtioPmem),
    ] {
        let found = judge_mount(&system(&tree), &mount(file_system, device, options));
        assert_eq!(found.kind, kind, "{file_system} {options}");
        let asked = judge_facts(&system(&tree), &facts(EXT4_MAGIC, device, options), kind == MediumKind::FsDax);
        assert_eq!((both(&found), found.kind), (both(&asked), asked.kind), "{file_system} {options}");
    }
}

#[test]
fn overlays_served_and_memory_file_systems() {
    let tree = Tree::new();
    let devices = tree.root().join("devices");
    let mapper = tree.block(&devices, "dm-0", "253:0");
    fs::create_dir(mapper.join("dm")).unwrap();
    fs::write(mapper.join("dev"), "253:0\n").unwrap();
    Tree::stack(&mapper, &tree.block(&devices, "sda", "8:0"));
    fs::create_dir(tree.root().join("answers")).unwrap();
    fs::write(tree.root().join("answers/dm-0"), "linear\nlinear\n").unwrap();
    let system = system(&tree);
    let judge = |facts: &Facts| judge_facts(&system, facts, false);
    let upper = |options| Some(Ok(Box::new(facts(EXT4_MAGIC, (253, 0), options))));
    let overlay = |options, upper| Facts { upper, ..facts(OVERLAY_MAGIC, (0, 50), options) };
    let (yes, no) = (probed(Mechanism::FileSync), declared(Mechanism::FileSync));
    assert_eq!(both(&judge(&overlay("rw", upper("rw")))), yes);
    assert_eq!(both(&judge(&overlay("rw", upper("rw,nobarrier")))), no);
    assert_eq!(both(&judge(&overlay("rw,volatile", upper("rw")))), no);
    assert_eq!(both(&judge(&overlay("rw", Some(Err("not seen".into()))))), no);
    assert_eq!(both(&judge(&overlay("rw", None))), no);
    let in_memory = Some(Ok(Box::new(facts(TMPFS_MAGIC, (0, 51), "rw"))));
    assert_eq!(both(&judge(&overlay("rw", in_memory))), no);
    // Each disk below the upper file system counts, not only the first, which its journal's never is.
    let zram = tree.block(&devices, "zram0", "252:0");
    fs::create_dir_all(tree.root().join("class/block")).unwrap();
    symlink(&zram, tree.root().join("class/block/zram0")).unwrap();
    fs::remove_dir(tree.root().join("fs/jbd2/dm-0-8")).unwrap();
    fs::create_dir(tree.root().join("fs/jbd2/zram0")).unwrap();
    assert_eq!(both(&judge(&overlay("rw", upper("rw")))), no);
    fs::create_dir(tree.root().join("fs/jbd2/dm-0-8")).unwrap();
    Tree::stack(&mapper, &zram);
    assert_eq!(both(&judge(&overlay("rw", upper("rw")))), no);
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
fn the_real_tmpfs_is_judged() {
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    let judgement = judge_file(&System::real(), Path::new("/dev/shm/pmof"), file.as_fd(), false).unwrap();
    assert_eq!((judgement.kind, judgement.file_system.as_str()), (MediumKind::Tmpfs, "tmpfs"));
    assert!(matches!(judgement.power, Power::Undecided { mechanism: Mechanism::Store, .. }));
}
