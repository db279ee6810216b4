//! Whether a device-mapper device passes flushes on: judged by its table or, for users who may not read tables, by what
//! every user may read. Ordinary machines keep their root file system on LUKS or LVM, and only root may read tables.
//!
//! Every user may read the uuid that the device was created with (`dm/uuid`), the devices below it (`slaves/`), and what
//! udev found on those (`/run/udev/data`). That decides for devices of two tools; all others stay undecided.
//!
//! - **cryptsetup** (`lib/libdevmapper.c`, `dm_prepare_uuid`) creates `CRYPT-LUKS1-UUID-name` and `CRYPT-LUKS2-UUID-name`:
//!   dm-crypt with the key of the LUKS header that has this UUID. The one device below must begin with that header: a
//!   detached header may be lost with the key. Under dm-integrity and during reencryption the device below is one of
//!   cryptsetup's own (`CRYPT-SUBDEV-`, `CRYPT-TEMP-`), which has no header.
//! - **LVM** gives `LVM-` and 64 letters to a volume that programs see. Parts of volumes have a suffix (`-real`, `-cow`,
//!   `-tpool`, `-cdata` ...), except images of mirrors and RAID (lvm2, `lib/misc/lvm-string.c`, `build_dm_uuid`). Every
//!   type but linear and striped is mapped onto such parts, as are volumes that pvmove moves and the stand-ins of
//!   missing devices (`lib/activate/dev_manager.c`, `add_areas_line`). So a volume that uses physical volumes only,
//!   none of which is LVM's own device, has a table of `linear` and `striped`.

use std::path::{Path, PathBuf};

use crate::{
    System,
    answers::{CRYPT_WITH_HEADER, Unanswered},
    sysfs::{attribute, parse_number},
};

/// Device-mapper targets that pass a flush on to every device below and keep nothing back (drivers/md/dm-linear.c,
/// dm-stripe.c); of encryption, that whose key can be had again after a restart.
const SOUND_TARGETS: [&str; 3] = ["linear", "striped", CRYPT_WITH_HEADER];

/// The identities of the volume group and of the volume, without hyphens (lvm2, lib/uuid/uuid.h, `ID_LEN` twice).
const LVM_ID_LETTERS: usize = 64;
/// A UUID without hyphens.
const LUKS_UUID_DIGITS: usize = 32;

/// The evidence that a device-mapper device passes flushes on, or why this is not known.
pub(crate) fn passes_flushes(system: &System, disk: &Path, device: &str) -> Result<String, String> {
    let number = attribute(disk, "dev").and_then(|number| parse_number(&number));
    let number = number.ok_or_else(|| format!("{device} has no number"))?;
    let lower = Lower::of(disk).filter(|lower| !lower.is_empty());
    let lower = lower.ok_or_else(|| format!("{device} is on a device that cannot be found"))?;
    let names: Vec<_> = lower.iter().map(|lower| lower.name.clone()).collect();
    match system.answers.table(device, number, &names) {
        Ok(targets) => by_table(device, &targets),
        Err(Unanswered::Failed(why)) => Err(format!("what {device} is mapped by is not known: {why}")),
        Err(Unanswered::NotAllowed(why)) => by_uuid(system, disk, device, &lower)
            .map_err(|more| format!("what {device} is mapped by is not known: {why}; {more}")),
    }
}

fn by_table(device: &str, targets: &[String]) -> Result<String, String> {
    if targets.is_empty() {
        return Err(format!("{device} has an empty table"));
    }
    match targets.iter().find(|target| !SOUND_TARGETS.contains(&target.as_str())) {
        None => {
            let mut kinds = targets.to_vec();
            kinds.dedup();
            Ok(format!("device-mapper: {device} is mapped by {}", kinds.join(", ")))
        }
        Some(target) => {
            Err(format!("{device} is mapped by {target}, of which it is not known that all that was flushed is kept"))
        }
    }
}

/// A device below another one.
struct Lower {
    /// The kernel's name.
    name: String,
    directory: PathBuf,
    number: (u32, u32),
}

impl Lower {
    /// The devices below `disk`, by name; `None` for one that cannot be found or has no number.
    fn of(disk: &Path) -> Option<Vec<Self>> {
        let entries = std::fs::read_dir(disk.join("slaves")).ok()?;
        let one = |entry: std::fs::DirEntry| {
            let directory = std::fs::canonicalize(entry.path()).ok()?;
            let number = parse_number(&attribute(&directory, "dev")?)?;
            Some(Self { name: entry.file_name().into_string().ok()?, directory, number })
        };
        let mut found = entries.map(|entry| one(entry.ok()?)).collect::<Option<Vec<_>>>()?;
        found.sort_by(|left, right| left.name.cmp(&right.name));
        Some(found)
    }
}

fn by_uuid(system: &System, disk: &Path, device: &str, lower: &[Lower]) -> Result<String, String> {
    let uuid = attribute(disk, "dm/uuid").ok_or("nor does it say its uuid (dm/uuid)")?;
    if let Some(id) = luks_id(&uuid) {
        let [lower] = lower else { return Err("its uuid is of LUKS, which has one device below it".into()) };
        if begins_with_luks(system, lower, id) {
            return Ok(format!("sysfs: {device} is LUKS by its uuid; udev: {} begins with its header", lower.name));
        }
        return Err(format!(
            "its uuid is of LUKS, and udev does not say that {} begins with the header of that uuid",
            lower.name
        ));
    }
    if is_volume(&uuid) {
        for lower in lower {
            if is_part_of_volume(lower) {
                return Err(format!(
                    "its uuid is of an LVM volume on {}, a part of a volume: it is neither linear nor striped",
                    lower.name
                ));
            }
            if udev_says(system, lower, "ID_FS_TYPE").as_deref() != Some("LVM2_member") {
                return Err(format!(
                    "its uuid is of an LVM volume, and udev does not say that {} is a physical volume",
                    lower.name
                ));
            }
        }
        return Ok(format!(
            "sysfs: {device} is an LVM volume by its uuid, on no parts of volumes; udev: on physical volumes"
        ));
    }
    Err("its uuid (dm/uuid) is not of LUKS or of an LVM volume".into())
}

/// The UUID, without hyphens, of the LUKS header that holds the key.
fn luks_id(uuid: &str) -> Option<&str> {
    let named = ["CRYPT-LUKS1-", "CRYPT-LUKS2-"].iter().find_map(|prefix| uuid.strip_prefix(prefix))?;
    let (id, name) = named.split_once('-')?;
    let is_id = id.len() == LUKS_UUID_DIGITS && id.bytes().all(|digit| digit.is_ascii_hexdigit());
    (is_id && !name.is_empty()).then_some(id)
}

fn begins_with_luks(system: &System, lower: &Lower, id: &str) -> bool {
    let found = udev_says(system, lower, "ID_FS_UUID").map(|text| text.replace('-', ""));
    udev_says(system, lower, "ID_FS_TYPE").as_deref() == Some("crypto_LUKS") && found.as_deref() == Some(id)
}

/// Whether the uuid is that of an LVM volume: one that programs see, or an image of a mirror.
fn is_volume(uuid: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"!#".contains(&byte);
    uuid.strip_prefix("LVM-").is_some_and(|id| id.len() == LVM_ID_LETTERS && id.bytes().all(is_letter))
}

/// Whether a device is one of LVM's, or a device-mapper device without a readable uuid.
fn is_part_of_volume(lower: &Lower) -> bool {
    let is_mapped = lower.directory.join("dm").exists();
    is_mapped && attribute(&lower.directory, "dm/uuid").is_none_or(|uuid| uuid.starts_with("LVM-"))
}

/// A property of the device in udev's database; `None` where udev says none, or two.
fn udev_says(system: &System, lower: &Lower, property: &str) -> Option<String> {
    // A line for each property: `E:NAME=VALUE` (systemd, src/libsystemd/sd-device/device-private.c, `device_update_db`).
    let text = system.answers.udev(lower.number)?;
    let mut found = text.lines().filter_map(|line| line.strip_prefix("E:")?.strip_prefix(property)?.strip_prefix('='));
    let value = found.next()?;
    found.next().is_none().then(|| value.to_owned())
}

#[cfg(test)]
mod tests;
