//! Every platform under `tests/platforms`, as it is and damaged in every place, against golden verdicts and an independent
//! oracle of the rules. `PMOF_WRITE_VERDICTS=1` writes the golden files anew.

mod support;

use std::{collections::BTreeMap, fs, net::Ipv4Addr};

use pmof_doctor::{FabricProvider, FlushMethod, Libfabric, Rds, RdsAddress, Report};
use pmof_mem::{Durability, MediumKind, System, probe, probe_dax_devices, probe_mounts};
use proptest::{prelude::*, sample::Index};
use support::{
    fixture::{Entry, Fixture, all},
    oracle::violations,
};

/// What a file may hold after something went wrong.
const GARBAGE: [&str; 3] = ["", "\u{1}\u{7f}garbage\n", "99999999999999999999999999999999\n"];

/// Facts whose absence no reader can notice, since their place is empty on sound machines too: a second device below a
/// stack, a second member of a btrfs, a file system mounted over another, a device's model. By platform and path.
const UNNOTICED: [(&str, &str); 6] = [
    ("md-raid1-and-zram", "sys/devices/virtual/block/md0/slaves/zram0"),
    // A table is as long as it is, and a level of md is a word.
    ("md-raid5-degraded", "md/degraded"),
    ("dm-on-disk-and-zram", "sys/devices/virtual/block/dm-0/slaves/zram0"),
    ("dm-on-two-regions", "sys/devices/virtual/block/dm-0/slaves/"),
    ("btrfs-disk-and-zram", "sys/fs/btrfs/0123/devices/zram0/dev"),
    ("disk-scsi-debug", "device/model"),
];

#[test]
fn verdicts_are_those_on_file() {
    let write = std::env::var_os("PMOF_WRITE_VERDICTS").is_some();
    let fixtures = all();
    assert!(fixtures.len() >= 60, "{}", fixtures.len());
    let mut wrong = Vec::new();
    for fixture in fixtures {
        let (report, text) = fixture.examine();
        let path = fixture.directory.join("verdicts.txt");
        if write {
            fs::write(&path, &text).unwrap();
        } else if fs::read_to_string(&path).ok().as_deref() != Some(&text) {
            wrong.push(format!("{}:\n{text}", fixture.name));
        }
        // The JSON form has all of it.
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["memories"].as_array().unwrap().len(), report.memories.len());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn nothing_is_claimed_that_the_files_do_not_support() {
    let found: Vec<_> = all().iter().flat_map(|fixture| violations(fixture, &fixture.examine().0)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// The control: each claim that was not made is objected to once it is made.
#[test]
fn the_oracle_objects_to_every_claim_that_is_raised() {
    let mut raised = 0;
    for fixture in all() {
        let (report, _) = fixture.examine();
        for index in 0..report.memories.len() {
            let mut changed = report.clone();
            let memory = &mut changed.memories[index];
            // An overlay may be on a disk: that it is not known is seen by the judgement, not by the oracle.
            if memory.durability < Durability::PowerFailure {
                memory.durability = Durability::PowerFailure;
                raised += 1;
                assert!(!violations(fixture, &changed).is_empty(), "{}: {}", fixture.name, report.memories[index].name);
            }
            for method in [FlushMethod::NativeFlush, FlushMethod::ReadAfterWrite] {
                let mut changed = report.clone();
                let routes = &mut changed.memories[index].routes;
                if let Some(route) =
                    routes.iter_mut().find(|route| !route.methods.contains(&method) && route.device.is_some())
                    && route.durability.is_some()
                {
                    route.methods.push(method);
                    raised += 1;
                    let name = &report.memories[index].name;
                    assert!(!violations(fixture, &changed).is_empty(), "{}: {name}: {method}", fixture.name);
                }
            }
        }
    }
    assert!(raised > 60, "{raised}");
}

/// The doctor and the judgement of receipts are one.
#[test]
fn the_doctor_says_what_pmof_mem_says() {
    for fixture in all() {
        let (_directory, system) = fixture.system();
        let (report, _) = fixture.examine();
        let mut expected: BTreeMap<String, (MediumKind, Durability)> = BTreeMap::new();
        for mount in probe_mounts(&system).unwrap_or_default() {
            expected.insert(mount.mount_point.display().to_string(), (mount.medium.kind, mount.medium.strongest));
        }
        for medium in probe_dax_devices(&system).into_iter().filter_map(|device| device.medium) {
            expected.insert(medium.path.display().to_string(), (medium.kind, medium.strongest));
        }
        expected.insert("process memory".into(), (MediumKind::Anonymous, Durability::Visible));
        let said: BTreeMap<_, _> =
            report.memories.iter().map(|memory| (memory.name.clone(), (memory.kind, memory.durability))).collect();
        assert_eq!(said, expected, "{}", fixture.name);
    }
}

/// On this machine, what is foretold of a mount is never more than what an open file there is judged to be.
#[test]
fn open_files_keep_at_least_what_mounts_promise() {
    let mounts = probe_mounts(&System::real()).unwrap();
    let mut asked = 0;
    for mount in mounts.iter().filter(|mount| !mount.is_read_only) {
        let Ok(found) = probe(&mount.mount_point) else { continue };
        asked += 1;
        assert!(mount.medium.strongest <= found.strongest, "{mount:?} {found:?}");
        if mount.medium.file_system != "overlay" {
            assert_eq!((mount.medium.kind, mount.medium.strongest), (found.kind, found.strongest), "{mount:?}");
        }
    }
    assert!(asked > 0);
}

/// The claims of a report: each memory's durability, and each method of each route that reaches loss of power.
fn claims(report: &Report) -> BTreeMap<String, Durability> {
    let mut claims = BTreeMap::new();
    for memory in &report.memories {
        claims.insert(memory.name.clone(), memory.durability);
        for route in &memory.routes {
            for method in &route.methods {
                let name = format!("{} {} {:?} {method}", memory.name, route.transport, route.device);
                claims.insert(name, route.durability.unwrap_or(Durability::Visible));
            }
        }
    }
    claims
}

/// Claims of loss of power in `damaged` that `intact` does not make.
fn risen(intact: &Report, damaged: &Report) -> Vec<String> {
    let before = claims(intact);
    let is_new = |(name, level): &(String, Durability)| {
        *level == Durability::PowerFailure && before.get(name) != Some(&Durability::PowerFailure)
    };
    claims(damaged).into_iter().filter(is_new).map(|(name, _)| name).collect()
}

#[test]
fn a_missing_unreadable_or_garbled_file_never_raises_a_claim() {
    for fixture in all() {
        let (intact, _) = fixture.examine();
        let (directory, system) = fixture.system();
        for (path, entry) in &fixture.entries {
            if UNNOTICED.iter().any(|(name, part)| *name == fixture.name && path.contains(part)) {
                continue;
            }
            let place = directory.path().join(path);
            let mut changes = vec![None, Some(Entry::Unreadable)];
            if matches!(entry, Entry::Text(_)) {
                changes.extend(GARBAGE.map(|text| Some(Entry::Text(text.to_owned()))));
            }
            for change in changes {
                entry.remove(&place);
                if let Some(new) = &change {
                    new.make(&place);
                }
                let (report, _) = fixture.examine_in(&directory, system.clone());
                let risen = risen(&intact, &report);
                assert!(risen.is_empty(), "{}: {path} as {change:?} raises {risen:?}", fixture.name);
                if let Some(new) = &change {
                    new.remove(&place);
                }
                entry.make(&place);
            }
        }
    }
}

fn damaged() -> impl Strategy<Value = Fixture> {
    let damage = (any::<Index>(), 0..4_u8, "\\PC{0,40}", any::<Index>());
    (any::<Index>(), proptest::collection::vec(damage, 1..8)).prop_map(|(which, damages)| {
        let mut fixture = which.get(all()).clone();
        for (at, how, text, other) in damages {
            let paths: Vec<_> = fixture.entries.keys().cloned().collect();
            if paths.is_empty() {
                break;
            }
            let path = at.get(&paths).clone();
            match how {
                0 => drop(fixture.entries.remove(&path)),
                1 => drop(fixture.entries.insert(path, Entry::Unreadable)),
                2 => drop(fixture.entries.insert(path, Entry::Text(text))),
                // No kernel gives two devices one number, nor one device two; then there is no telling which of them is meant.
                _ if path.ends_with("/dev") || path.starts_with("sys/dev/") => {}
                _ => {
                    let entry = fixture.entries[other.get(&paths)].clone();
                    fixture.entries.insert(path, entry);
                }
            }
        }
        fixture
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Several damages at once, files exchanged for others among them: no panic, and still no unsupported claim.
    #[test]
    fn whatever_is_damaged_the_oracle_agrees(fixture in damaged()) {
        let (report, _) = fixture.examine();
        let found = violations(&fixture, &report);
        prop_assert!(found.is_empty(), "{:?}\n{:#?}", found, fixture.entries);
    }
}

#[test]
fn providers_of_libfabric_are_listed_with_what_they_promise() {
    let (mut report, without) = all()[0].examine();
    assert!(!without.contains("libfabric"), "nobody asked");
    let provider = |name: &str, scheme: Option<&str>, why_not: Option<&str>, claims_persistence| FabricProvider {
        name: name.to_owned(),
        scheme: scheme.map(ToOwned::to_owned),
        why_not: why_not.map(ToOwned::to_owned),
        claims_persistence,
    };
    let providers = vec![
        provider("tcp;ofi_rxm", Some("fabric+tcp"), None, false),
        provider("net", Some("fabric+net"), None, true),
        provider("other", None, None, false),
        provider("sockets", Some("fabric+sockets"), Some("a write takes 10 ms"), true),
    ];
    report.libfabric = Libfabric::Found { version: "1.17".to_owned(), providers };
    let expected = "\nlibfabric 1.17\n\
        \u{20} tcp;ofi_rxm  fabric+tcp://, flushed by the target's CPU (send-after-write)\n\
        \u{20} net          fabric+net://, flushed by the target's CPU (send-after-write); its FI_COMMIT_COMPLETE is not proven and not used\n\
        \u{20} other        fabric:// where it is the first, flushed by the target's CPU (send-after-write)\n\
        \u{20} sockets      not used: a write takes 10 ms\n";
    let text = report.to_string();
    assert!(text.contains(expected), "{text}");
    report.libfabric = Libfabric::Unusable { why: "cannot load it; apt install libfabric1".to_owned() };
    let text = report.to_string();
    assert!(text.contains("\nlibfabric\n  cannot be used: cannot load it; apt install libfabric1\n"), "{text}");
}

#[test]
fn addresses_of_rds_are_listed_with_what_carries_them() {
    let (mut report, without) = all()[0].examine();
    assert!(!without.contains("RDS"), "nobody asked");
    let address = |last, is_rdma| RdsAddress { address: Ipv4Addr::new(10, 0, 0, last), is_rdma };
    let modules = || vec!["rds".to_owned(), "rds_rdma".to_owned()];
    report.rds = Rds::Found { modules: modules(), addresses: vec![address(1, true), address(200, false)] };
    let text = report.to_string();
    let expected = "\nRDS (modules loaded: rds, rds_rdma)\n\
        \u{20} 10.0.0.1         rds://, messages over an RDMA device, flushed by the target's CPU (send-after-write)\n\
        \u{20} 10.0.0.200       rds://, but no RDMA device carries it: use tcp://\n";
    assert!(text.contains(expected), "{text}");
    report.rds = Rds::Found { modules: Vec::new(), addresses: Vec::new() };
    let text = report.to_string();
    assert!(
        text.contains("\nRDS (modules loaded: none)\n  no address of an RDMA device; is rds_rdma loaded?\n"),
        "{text}"
    );
    report.rds = Rds::Unusable { why: "modprobe -a rds rds_rdma".to_owned() };
    let text = report.to_string();
    assert!(text.contains("\nRDS\n  cannot be used: modprobe -a rds rds_rdma\n"), "{text}");
}
