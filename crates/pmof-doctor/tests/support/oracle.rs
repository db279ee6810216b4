//! The rules of what may be claimed, written a second time from the facts of the platforms' files, with no code of the
//! judgement. It lists violations; it does not say what is best.

use pmof_doctor::{FlushMethod, Memory, Report, Transport};
use pmof_mem::{Durability, Evidence, MediumKind};

use super::fixture::{Entry, Fixture};

/// Everything in `report` that claims more than the platform's files support.
pub(crate) fn violations(fixture: &Fixture, report: &Report) -> Vec<String> {
    let mut found = Vec::new();
    for memory in &report.memories {
        let mut object = |what: &str| found.push(format!("{}: {}: {what}", fixture.name, memory.name));
        if memory.evidence != Evidence::Probed {
            object("evidence that nothing on a machine can give");
        }
        if memory.durability == Durability::PowerFailure {
            if let Err(why) = survives_power(fixture, memory) {
                object(&format!("power-failure, but {why}"));
            }
        }
        if memory.kind == MediumKind::Anonymous && memory.durability != Durability::Visible {
            object("process memory that outlives its process");
        }
        for route in &memory.routes {
            if route.durability > Some(memory.durability) {
                object("a transport that gives more than the memory");
            }
            if route.durability.is_some() && !memory.is_writable {
                object("a route to what cannot be written");
            }
            for method in &route.methods {
                if let Err(why) = allows(fixture, memory, *method, route.device.as_deref()) {
                    object(&format!("{method}, but {why}"));
                }
            }
            if route.transport == Transport::Verbs && route.durability.is_some() {
                let device = route.device.as_deref().unwrap_or_default();
                if let Err(why) = registers(fixture, memory.kind, device) {
                    object(&format!("verbs, but {why}"));
                }
            }
        }
    }
    found
}

type Verdict = Result<(), &'static str>;

fn need(holds: bool, otherwise: &'static str) -> Verdict {
    if holds { Ok(()) } else { Err(otherwise) }
}

fn survives_power(fixture: &Fixture, memory: &Memory) -> Verdict {
    match memory.kind {
        MediumKind::Anonymous | MediumKind::Tmpfs => Err("it is memory"),
        MediumKind::DevDax => cpu_reaches(fixture, &[dax_region(fixture, memory)?]),
        MediumKind::FsDax => {
            let mount = Mount::of(fixture, memory)?;
            need(["ext4", "xfs"].contains(&mount.file_system), "only ext4 and xfs grant MAP_SYNC")?;
            need(mount.options.iter().any(|o| ["dax", "dax=always"].contains(o)), "it is not mounted with dax")?;
            flushes_its_words(fixture, &mount)?;
            let regions: Option<Vec<_>> = leaves(fixture, mount.number).iter().map(|leaf| region_of(leaf)).collect();
            cpu_reaches(fixture, &regions.ok_or("not all of it lies in nd regions")?)
        }
        MediumKind::PageCache | MediumKind::VirtioPmem => sync_keeps(fixture, &Mount::of(fixture, memory)?, 0),
    }
}

/// The region of a devdax device, by its link on the dax bus.
fn dax_region(fixture: &Fixture, memory: &Memory) -> Result<String, &'static str> {
    let name = memory.name.strip_prefix("/dev/").ok_or("it is no device")?;
    let directory = fixture.resolve(&format!("sys/bus/dax/devices/{name}")).ok_or("it is not on the dax bus")?;
    region_of(&directory).ok_or("it lies in no nd region")
}

/// `.../ndbusN/regionN` above a directory.
fn region_of(directory: &str) -> Option<String> {
    let parts: Vec<_> = directory.split('/').collect();
    let at = (1..parts.len()).find(|at| parts[*at].starts_with("region") && parts[at - 1].starts_with("ndbus"))?;
    Some(parts[..=at].join("/"))
}

fn attribute<'a>(fixture: &'a Fixture, directory: &str, name: &str) -> Option<&'a str> {
    fixture.text(&format!("{directory}/{name}")).map(|text| text.trim_end_matches('\n'))
}

fn provider<'a>(fixture: &'a Fixture, region: &str) -> Option<&'a str> {
    attribute(fixture, region, "../provider")
}

/// Stores that the CPU writes back are kept by all `regions`.
fn cpu_reaches(fixture: &Fixture, regions: &[String]) -> Verdict {
    need(!regions.is_empty(), "it lies nowhere")?;
    for region in regions {
        region_keeps(fixture, region)?;
        let is_eadr = attribute(fixture, region, "persistence_domain") == Some("cpu_cache")
            && provider(fixture, region) == Some("ACPI.NFIT");
        let cpu = fixture.text("proc/cpuinfo").unwrap_or_default();
        let flags = ["clwb", "clflushopt", "clflush", "dcpop"];
        let has = cpu.split_whitespace().any(|word| flags.contains(&word));
        need(is_eadr || has, "the CPU cannot write cache lines back")?;
    }
    Ok(())
}

fn region_keeps(fixture: &Fixture, region: &str) -> Verdict {
    let at = |name: &str| attribute(fixture, region, name);
    let is_cxl = provider(fixture, region) == Some("CXL");
    need(is_cxl || provider(fixture, region) == Some("ACPI.NFIT"), "the bus is of no persistent memory")?;
    need(matches!(at("persistence_domain"), Some("memory_controller" | "cpu_cache")), "the domain is not known")?;
    need(at("read_only") == Some("0"), "the region is read-only")?;
    need(at("uevent").is_some_and(|text| text.contains("DEVTYPE=nd_pmem")), "the region is not called persistent")?;
    let count: usize = at("mappings").and_then(|text| text.parse().ok()).ok_or("the modules are not known")?;
    need(count > 0, "there is no module")?;
    for index in 0..count {
        let module =
            at(&format!("mapping{index}")).and_then(|text| text.split(',').next()).ok_or("a module is missing")?;
        if is_cxl {
            let flush = at(&format!("../{module}/cxl/dirty_shutdown")).and_then(|text| text.parse::<u64>().ok());
            need(flush.is_some(), "global persistent flush is not proven")?;
        } else {
            let flags = at(&format!("../{module}/nfit/flags")).ok_or("a module does not say that it is armed")?;
            let harmless = |word: &str| word.starts_with("smart_");
            need(flags.split_whitespace().all(harmless), "a module says that it failed")?;
        }
    }
    Ok(())
}

struct Mount<'a> {
    file_system: &'a str,
    number: &'a str,
    options: Vec<&'a str>,
}

impl<'a> Mount<'a> {
    fn of(fixture: &'a Fixture, memory: &Memory) -> Result<Self, &'static str> {
        Self::at(fixture, &memory.name).ok_or("nothing is mounted there")
    }

    fn at(fixture: &'a Fixture, point: &str) -> Option<Self> {
        let table = fixture.text("proc/self/mountinfo")?;
        let line = table.lines().rev().find(|line| line.split(' ').nth(4) == Some(point))?;
        let words: Vec<_> = line.split(' ').collect();
        let dash = words.iter().position(|word| *word == "-")?;
        let options = words.get(5)?.split(',').chain(words.get(dash + 3).copied().unwrap_or_default().split(','));
        Some(Self { file_system: words.get(dash + 1)?, number: words[2], options: options.collect() })
    }
}

/// The lowest devices of `major:minor`; empty where nothing is known.
fn leaves(fixture: &Fixture, number: &str) -> Vec<String> {
    fn below(fixture: &Fixture, directory: String, into: &mut Vec<String>) {
        let prefix = format!("{directory}/slaves/");
        let slaves: Vec<_> = fixture.entries.keys().filter(|path| path.starts_with(&prefix)).cloned().collect();
        if slaves.is_empty() || into.len() > 64 {
            let is_partition = fixture.entries.contains_key(&format!("{directory}/partition"));
            let whole = directory.rsplit_once('/').filter(|_| is_partition).map(|(disk, _)| disk.to_owned());
            into.push(whole.unwrap_or(directory));
            return;
        }
        for slave in slaves {
            below(fixture, fixture.resolve(&slave).unwrap_or_default(), into);
        }
    }
    let link = format!("sys/dev/block/{number}");
    let mut into = Vec::new();
    if matches!(fixture.entries.get(&link), Some(Entry::Link(_))) {
        below(fixture, fixture.resolve(&link).unwrap_or_default(), &mut into);
    }
    into
}

/// The mount is of a file system that flushes, and what it writes to keep track of its files goes to disks that last.
fn flushes_its_words(fixture: &Fixture, mount: &Mount<'_>) -> Verdict {
    need(
        ["ext2", "ext3", "ext4", "xfs", "btrfs"].contains(&mount.file_system),
        "the file system is not one that flushes",
    )?;
    need(!mount.options.contains(&"nobarrier"), "the file system does not flush")?;
    need(!mount.options.iter().any(|option| option.starts_with("logdev=/dev/ram")), "the log lies in memory")?;
    if !["ext3", "ext4"].contains(&mount.file_system) {
        return Ok(());
    }
    let device = fixture.resolve(&format!("sys/dev/block/{}", mount.number)).unwrap_or_default();
    let name = device.rsplit('/').next().unwrap_or_default();
    let has_none =
        fixture.text(&format!("sys/fs/ext4/{name}/journal_task")).is_some_and(|text| text.trim() == "<none>");
    let journals = || fixture.entries.keys().filter_map(|path| path.strip_prefix("proc/fs/jbd2/")?.split('/').next());
    let is_own = |journal: &str| {
        journal
            .strip_prefix(name)
            .and_then(|rest| rest.strip_prefix('-'))
            .is_some_and(|inode| inode.parse::<u64>().is_ok())
    };
    need(has_none || journals().any(is_own), "its journal lies elsewhere, which no platform here has on a disk")
}

/// What fsync writes is kept.
fn sync_keeps(fixture: &Fixture, mount: &Mount<'_>, depth: usize) -> Verdict {
    flushes_its_words(fixture, mount)?;
    let mut numbers = vec![mount.number];
    if mount.file_system == "btrfs" {
        let members =
            fixture.entries.iter().filter(|(path, _)| path.starts_with("sys/fs/btrfs/") && path.ends_with("/dev"));
        numbers = members
            .filter_map(|(_, entry)| if let Entry::Text(text) = entry { Some(text.trim()) } else { None })
            .collect();
    }
    let devices: Vec<_> = numbers.iter().flat_map(|number| leaves(fixture, number)).collect();
    need(!devices.is_empty(), "no device is known")?;
    let tops = numbers.iter().filter_map(|number| fixture.resolve(&format!("sys/dev/block/{number}")));
    for device in tops.chain(devices.iter().cloned()) {
        layer_passes(fixture, &device)?;
    }
    devices.iter().try_for_each(|device| disk_keeps(fixture, device, depth))
}

/// The device's own queue lets flushes through, and what it is made by is known to pass them on.
fn layer_passes(fixture: &Fixture, device: &str) -> Verdict {
    let name = device.rsplit('/').next().unwrap_or_default();
    let stands_on = fixture.entries.keys().any(|path| path.starts_with(&format!("{device}/slaves/")));
    if stands_on || name.starts_with("loop") || region_of(device).is_some() {
        need(attribute(fixture, device, "queue/write_cache") == Some("write back"), "a layer takes no flush")?;
    }
    if !stands_on {
        return Ok(());
    }
    if name.starts_with("dm-") {
        let Some(table) = fixture.text(&format!("answers/{name}")) else { return named_by_its_maker(fixture, device) };
        let is_plain = |line: &str| ["linear", "striped", "crypt with a LUKS header"].contains(&line);
        return need(
            !table.trim().is_empty() && table.trim_end_matches('\n').lines().all(is_plain),
            "the table has more than that",
        );
    }
    let at = |name: &str| attribute(fixture, device, &format!("md/{name}")).unwrap_or_default();
    need(name.starts_with("md"), "the layer is not known")?;
    need(!["", "none"].contains(&at("metadata_version")), "nobody finds the array again")?;
    let is_mirror = ["raid0", "raid1", "raid10", "linear"].contains(&at("level"));
    let is_whole = ["raid4", "raid5", "raid6"].contains(&at("level")) && at("degraded") == "0";
    need(is_mirror || is_whole, "the array may lose what was flushed")
}

/// Where nobody could ask for the table of a device-mapper device: every device from there down is LUKS over its own header,
/// or a volume of LVM over physical volumes that are nothing of LVM's, by what udev saw.
fn named_by_its_maker(fixture: &Fixture, device: &str) -> Verdict {
    let uuid = attribute(fixture, device, "dm/uuid").ok_or("nobody asked for the table")?;
    let prefix = format!("{device}/slaves/");
    let below: Vec<_> = fixture.entries.keys().filter(|path| path.starts_with(&prefix)).collect();
    let parts: Vec<_> = uuid.split('-').collect();
    for path in &below {
        let lower = fixture.resolve(path).ok_or("a device below is lost")?;
        let number = attribute(fixture, &lower, "dev").ok_or("a device below has no number")?;
        let seen = fixture.text(&format!("answers/b{number}")).ok_or("udev saw nothing below")?;
        let has = |wanted: String| seen.lines().any(|line| line.replace('-', "") == wanted);
        match parts[..] {
            ["CRYPT", "LUKS1" | "LUKS2", id, _, ..] if below.len() == 1 => {
                need(id.len() == 32 && has(format!("E:ID_FS_UUID={id}")), "it is not the header of that name")?;
                need(has("E:ID_FS_TYPE=crypto_LUKS".into()), "there is no header below")?;
            }
            ["LVM", id] => {
                need(id.len() == 64, "it is a part of a volume")?;
                need(has("E:ID_FS_TYPE=LVM2_member".into()), "there is no physical volume below")?;
                let own = attribute(fixture, &lower, "dm/uuid").unwrap_or_default();
                need(!own.starts_with("LVM-"), "it is on a part of a volume")?;
            }
            _ => return Err("its maker is not known"),
        }
        if fixture.entries.keys().any(|path| path.starts_with(&format!("{lower}/slaves/"))) {
            layer_passes(fixture, &lower)?;
        }
    }
    need(!below.is_empty(), "there is nothing below it")
}

/// What is flushed to a lowest device is kept.
fn disk_keeps(fixture: &Fixture, device: &str, depth: usize) -> Verdict {
    let name = device.rsplit('/').next().unwrap_or_default();
    if let Some(region) = region_of(device) {
        let is_virtio = provider(fixture, &region) == Some("virtio-pmem")
            || device.split("/ndbus").next().is_some_and(|parent| {
                matches!(fixture.entries.get(&format!("{parent}/driver")), Some(Entry::Link(to)) if to.ends_with("virtio_pmem"))
            });
        if is_virtio {
            return need(attribute(fixture, &region, "read_only") == Some("0"), "the region is read-only");
        }
        return region_keeps(fixture, &region);
    }
    if name.starts_with("loop") {
        let file = attribute(fixture, device, "loop/backing_file").ok_or("the loop device has no file")?;
        need(depth < 4 && !file.ends_with("(deleted)"), "the file of the loop device is gone")?;
        let own = fixture.text(&format!("answers/{name}")).ok_or("nobody asked the loop device")?.trim();
        let known = fixture.text("answers/files").unwrap_or_default();
        need(known.lines().any(|line| line == format!("{own} {file}")), "the path is another file")?;
        let points = ["/dev/shm", "/"].into_iter().find(|point| file.starts_with(point)).ok_or("no such file")?;
        return sync_keeps(fixture, &Mount::at(fixture, points).ok_or("nothing is mounted there")?, depth + 1);
    }
    let known = ["sd", "vd", "nvme", "mmcblk", "xvd"];
    need(known.iter().any(|prefix| name.starts_with(prefix)), "the device keeps nothing by itself")?;
    let far = ["/virtual/block/", "/session", "/rport-", "/pseudo_", "/tcm_loop", "/nvme-fabrics/"];
    need(!far.iter().any(|part| device.contains(part)), "the disk is reached by a fabric, or is the kernel itself")?;
    let transport = attribute(fixture, device, "../transport");
    need(name.starts_with("nvme") == (transport == Some("pcie")), "nobody says how the disk is reached")?;
    let model = attribute(fixture, device, "device/model").unwrap_or_default();
    need(!model.starts_with("scsi_debug"), "the device is memory")?;
    match attribute(fixture, device, "queue/write_cache") {
        Some("write back") => Ok(()),
        Some("write through") => {
            let words = |path: &str| path.strip_prefix(device).is_some_and(|rest| rest.ends_with("cache_type"));
            let said = fixture.entries.iter().find(|(path, _)| words(path)).map(|(_, entry)| entry);
            need(
                matches!(said, Some(Entry::Text(text)) if text.trim() == "write through"),
                "its driver does not confirm that",
            )
        }
        _ => Err("the device does not say what it caches"),
    }
}

/// `method` may be named for this memory.
fn allows(fixture: &Fixture, memory: &Memory, method: FlushMethod, device: Option<&str>) -> Verdict {
    let region = |memory: &Memory| dax_region(fixture, memory);
    match method {
        FlushMethod::SendAfterWrite | FlushMethod::LocalFlush => Ok(()),
        FlushMethod::NativeFlush => {
            need(memory.kind == MediumKind::DevDax, "only devdax can be registered for it")?;
            let known = device.and_then(|device| fixture.known(device)).ok_or("the device is unknown")?;
            need(known.has_flush_persistent, "the device has none")?;
            let provider = provider(fixture, &region(memory)?);
            need(matches!(provider, Some("ACPI.NFIT" | "CXL")), "the pages are no persistent memory")?;
            let resources = fixture.text("proc/iomem").unwrap_or_default();
            need(
                resources.lines().any(|line| line.ends_with(": Persistent Memory")),
                "iomem has no persistent memory",
            )?;
            survives_power(fixture, memory)
        }
        FlushMethod::ReadAfterWrite => {
            let regions = if memory.kind == MediumKind::DevDax {
                vec![region(memory)?]
            } else {
                need(memory.kind == MediumKind::FsDax, "the bytes are flushed by the kernel")?;
                let mount = Mount::of(fixture, memory)?;
                leaves(fixture, mount.number).iter().filter_map(|leaf| region_of(leaf)).collect()
            };
            let is_eadr = |region: &String| {
                attribute(fixture, region, "persistence_domain") == Some("cpu_cache")
                    && provider(fixture, region) == Some("ACPI.NFIT")
            };
            need(!regions.is_empty() && regions.iter().all(is_eadr), "the caches lose their bytes without power")?;
            survives_power(fixture, memory)
        }
    }
}

/// The device can register such memory.
fn registers(fixture: &Fixture, kind: MediumKind, device: &str) -> Verdict {
    let known = fixture.known(device).ok_or("the device is unknown")?;
    let moves = matches!(kind, MediumKind::FsDax | MediumKind::PageCache | MediumKind::VirtioPmem);
    need(!moves || known.has_on_demand_paging, "its pages cannot be pinned")?;
    let directory = format!("sys/class/infiniband/{device}");
    let node_type = attribute(fixture, &directory, "node_type").unwrap_or_default();
    need(node_type.starts_with("1:") || node_type.starts_with("4:"), "the device has no reliable connections")?;
    let state = attribute(fixture, &directory, "ports/1/state").unwrap_or_default();
    need(state.starts_with("4:"), "the port is not active")
}
