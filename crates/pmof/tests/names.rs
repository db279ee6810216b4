//! The names of the facade, which programs depend on: a name that comes or goes does so on purpose.

use syn::{Item, UseTree, Visibility};

/// What `use pmof::NAME` finds, sorted.
const NAMES: [&str; 51] = [
    "Admission",
    "Atomicity",
    "Causes",
    "Declaration",
    "Differing",
    "Durability",
    "Evidence",
    "Identity",
    "Lane",
    "Mechanism",
    "MediumKind",
    "Method",
    "OpenFor",
    "Pending",
    "PersistFailure",
    "Pool",
    "PoolError",
    "PoolInfo",
    "PoolName",
    "PoolOptions",
    "PoolRefusal",
    "PoolUrl",
    "PoolUrlError",
    "Promise",
    "REPLICAS_MAX",
    "Receipt",
    "RemoteSetOptions",
    "ReplicaError",
    "ReplicaPlace",
    "ReplicaReceipt",
    "Service",
    "ServiceError",
    "ServiceOptions",
    "SetName",
    "SetOptions",
    "SshOptions",
    "StoreOptions",
    "TargetOptions",
    "TargetUrl",
    "USER_FLAGS_BYTES",
    "Waiting",
    "access",
    "bootstrap",
    "causes",
    "control",
    "guide",
    "list_pools",
    "mem",
    "pool_set",
    "replica",
    "target",
];

/// The names that a `pub use` brings.
fn names_of(tree: &UseTree, into: &mut Vec<String>) {
    match tree {
        UseTree::Path(path) => names_of(&path.tree, into),
        UseTree::Name(name) => into.push(name.ident.to_string()),
        UseTree::Rename(renamed) => into.push(renamed.rename.to_string()),
        UseTree::Group(group) => group.items.iter().for_each(|tree| names_of(tree, into)),
        UseTree::Glob(_) => into.push("*".to_owned()),
    }
}

#[test]
fn the_names_of_the_facade_are_these() {
    let mut found = Vec::new();
    for item in syn::parse_file(include_str!("../src/lib.rs")).unwrap().items {
        match item {
            Item::Use(uses) if matches!(uses.vis, Visibility::Public(_)) => names_of(&uses.tree, &mut found),
            Item::Mod(module) if matches!(module.vis, Visibility::Public(_)) => found.push(module.ident.to_string()),
            Item::Mod(_) | Item::Use(_) => {}
            _ => panic!("the facade only names things"),
        }
    }
    found.sort();
    assert_eq!(found, NAMES);
}
