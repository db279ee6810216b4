use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
};

use tempfile::tempdir;

use super::{SetAtError, set_at};
use crate::{LocalSet, NewPool, NewSet, PartSize, PartSpec, PoolSet, ReplicaSpec, SetOptions};

const MIB: u64 = 1 << 20;

#[test]
fn a_path_means_a_set_by_its_file_or_by_its_only_part() {
    let directory = tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let make = |names: &[&str]| {
        let parts = names.iter().map(|name| PartSpec::new(path(name), 10 * MIB)).collect();
        let set =
            PoolSet { path: path("set"), replicas: vec![ReplicaSpec::Local(parts)], options: SetOptions::default() };
        let new = NewSet::new(NewPool::Obj { layout: String::new() });
        LocalSet::create(&set, &new, &new.plan(&set).unwrap()).unwrap().close().unwrap();
        set
    };
    let two = make(&["one", "other"]);
    make(&["only"]);
    fs::write(path("set"), two.to_bytes()).unwrap();
    fs::write(path("text"), "no pool").unwrap();
    fs::write(path("native"), [b"PMOFPOOL".as_slice(), &[0; 8192]].concat()).unwrap();
    fs::write(path("zeros"), vec![0; 10 << 20]).unwrap();

    assert_eq!(set_at(&path("set")).unwrap().replicas.len(), 1);
    let only = set_at(&path("only")).unwrap();
    let [part] = only.replicas[0].local().unwrap() else { panic!("{only}") };
    assert_eq!((&part.path, part.size), (&path("only"), PartSize::Bytes(10 * MIB)));

    let refused = |name: &str| set_at(&path(name)).unwrap_err();
    assert!(matches!(refused("one"), SetAtError::OneOfSeveral { .. }));
    assert!(matches!(refused("away"), SetAtError::Unreadable { .. }));
    assert!(matches!(refused("native"), SetAtError::Native { .. }));
    let of_url = set_at("tcp://127.0.0.1:7204/orders".as_ref()).unwrap_err();
    assert!(of_url.to_string().contains("pmof pool info"), "{of_url}");
    assert!(matches!(refused("zeros"), SetAtError::NotAPool { .. }));
    assert!(matches!(refused("text"), SetAtError::Part(_)), "{}", refused("text"));

    // A header that nothing can be read of, and behind it what tells of a pool.
    let only = File::options().write(true).open(path("only")).unwrap();
    only.write_all_at(&[0; 4096], 0).unwrap();
    let found = refused("only");
    assert!(matches!(&found, SetAtError::Damaged { found, .. } if found.contains("intact")), "{found}");
}
