//! Sysfs trees for tests: the directories and links that the kernel makes, in a temporary directory.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

pub(crate) struct Tree {
    directory: tempfile::TempDir,
}

impl Tree {
    pub(crate) fn new() -> Self {
        let tree = Self { directory: tempfile::tempdir().unwrap() };
        for path in ["dev/block", "dev/char", "bus/nd/devices"] {
            fs::create_dir_all(tree.root().join(path)).unwrap();
        }
        tree
    }

    pub(crate) fn root(&self) -> &Path {
        self.directory.path()
    }

    /// A writable nd region on one sound module of an NFIT bus, unless `driver` is `virtio_pmem`; `domain` as the attribute
    /// reads, `None` where the file is missing.
    pub(crate) fn region(&self, number: u32, domain: Option<&str>, driver: &str) -> PathBuf {
        let bus = self.root().join(format!("devices/bus{number}"));
        let region = bus.join(format!("ndbus{number}/region{number}"));
        fs::create_dir_all(&region).unwrap();
        if let Some(domain) = domain {
            fs::write(region.join("persistence_domain"), format!("{domain}\n")).unwrap();
        }
        let module = region.with_file_name(format!("nmem{number}"));
        fs::create_dir_all(module.join("nfit")).unwrap();
        for (path, text) in [
            (region.with_file_name("provider"), "ACPI.NFIT\n".to_owned()),
            (region.join("read_only"), "0\n".to_owned()),
            (region.join("uevent"), "DEVTYPE=nd_pmem\nMODALIAS=nd:t2\n".to_owned()),
            (region.join("mappings"), "1\n".to_owned()),
            (region.join("mapping0"), format!("nmem{number},0,4096,0\n")),
            (module.join("nfit/flags"), "\n".to_owned()),
        ] {
            fs::write(path, text).unwrap();
        }
        symlink(format!("/drivers/{driver}"), bus.join("driver")).unwrap();
        symlink(&region, self.root().join(format!("bus/nd/devices/region{number}"))).unwrap();
        region
    }

    /// A block device with a cache that can be flushed, in `parent`, known as `number`.
    pub(crate) fn block(&self, parent: &Path, name: &str, number: &str) -> PathBuf {
        let disk = parent.join("block").join(name);
        fs::create_dir_all(disk.join("queue")).unwrap();
        fs::write(disk.join("queue/write_cache"), "write back\n").unwrap();
        fs::write(disk.join("dev"), format!("{number}\n")).unwrap();
        symlink(&disk, self.root().join("dev/block").join(number)).unwrap();
        fs::create_dir_all(self.root().join("block")).unwrap();
        symlink(&disk, self.root().join("block").join(name)).unwrap();
        disk
    }

    /// A devdax device in `parent`, known as `number`.
    pub(crate) fn devdax(&self, parent: &Path, number: &str, len_bytes: u64) -> PathBuf {
        let device = parent.join("dax0.0/dax/dax0.0");
        fs::create_dir_all(&device).unwrap();
        fs::write(device.join("size"), format!("{len_bytes}\n")).unwrap();
        symlink("/bus/dax", device.join("subsystem")).unwrap();
        symlink(&device, self.root().join("dev/char").join(number)).unwrap();
        device
    }

    /// Lays `upper` over `lower`, as device-mapper does.
    pub(crate) fn stack(upper: &Path, lower: &Path) {
        fs::create_dir_all(upper.join("slaves")).unwrap();
        symlink(lower, upper.join("slaves").join(lower.file_name().unwrap())).unwrap();
    }
}
