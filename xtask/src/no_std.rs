//! Crates that decide need no operating system: neither they nor anything that they depend on uses std.

use std::{fs, path::Path, process::Command};

/// Those of them.
const CRATES: [&str; 3] = ["pmof-terms", "pmof-control", "pmof-replication"];

/// What such a crate may depend on: looked through once, and `no_std` with the features that it is used with.
const KNOWN: [&str; 9] = [
    "crc",
    "crc-catalog",
    "linux-raw-sys",
    "once_cell",
    "thiserror",
    "twox-hash",
    "uuid",
    "zerocopy",
    "zerocopy-derive",
];

/// What is wrong with the tree of a crate's dependencies and their features, as `cargo tree` prints it.
fn wrong_in(tree: &str) -> Vec<&str> {
    let is_wrong = |line: &&str| {
        if let Some((_, feature)) = line.split_once(" feature ") {
            return feature.trim_matches('"') == "std";
        }
        let name = line.split(' ').next().unwrap_or_default();
        !CRATES.contains(&name) && !KNOWN.contains(&name)
    };
    tree.lines().filter(is_wrong).collect()
}

#[test]
fn crates_that_decide_need_no_operating_system() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for name in CRATES {
        let lib = fs::read_to_string(root.join("crates").join(name).join("src/lib.rs")).unwrap();
        assert!(lib.contains("#![no_std]") || lib.contains("#![cfg_attr(not(test), no_std)]"), "{name} uses std");
        let edges = ["--edges", "normal,no-proc-macro,features", "--prefix", "none"];
        let tree = Command::new("cargo").args(["tree", "--package", name]).args(edges).current_dir(root).output();
        let tree = tree.unwrap();
        assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
        let tree = String::from_utf8(tree.stdout).unwrap();
        assert!(tree.contains(name) && wrong_in(&tree).is_empty(), "{name}: {:?}", wrong_in(&tree));
    }
    let others = "uuid v1.26.0\nuuid feature \"std\"\nlibc v0.2.1\npmof-terms v0.1.0 (somewhere)\n";
    assert_eq!(wrong_in(others), ["uuid feature \"std\"", "libc v0.2.1"]);
}

/// A target decides in `engine` of pmof-target, whose other modules use the operating system.
#[test]
fn a_targets_engine_needs_no_operating_system() {
    const FOREIGN: [&str; 9] = ["fs", "io", "net", "thread", "sync", "env", "process", "pmof_mem", "pmof_access"];
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("crates/pmof-target/src");
    let mut files = vec![source.join("engine.rs")];
    files.extend(fs::read_dir(source.join("engine")).unwrap().map(|entry| entry.unwrap().path()));
    assert!(files.len() > 4, "{files:?}");
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for foreign in FOREIGN {
            let uses = [format!("std::{foreign}"), format!("use {foreign}"), format!("    {foreign}::")];
            assert!(!uses.iter().any(|used| text.contains(used)), "{} uses {foreign}", file.display());
        }
        assert!(!text.contains("Instant") && !text.contains("HashMap") && !text.contains("random()"), "{file:?}");
    }
}
