use std::path::Path;

use proptest::prelude::*;

use super::{PartSize, PartSpec, PoolSet, RemoteSpec, ReplicaSpec, SetOptions, size};

fn parsed(text: &str) -> PoolSet {
    PoolSet::parse(Path::new("test.set"), text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn every_suffix_has_its_size() {
    for (text, bytes) in [
        ("1", 1),
        ("7B", 7),
        ("2K", 2 << 10),
        ("2M", 2 << 20),
        ("2G", 2 << 30),
        ("2T", 2 << 40),
        ("2P", 2 << 50),
        ("3KiB", 3 << 10),
        ("3MiB", 3 << 20),
        ("3GiB", 3 << 30),
        ("3TiB", 3 << 40),
        ("3PiB", 3 << 50),
        ("4kB", 4_000),
        ("4MB", 4_000_000),
        ("4GB", 4_000_000_000),
        ("4TB", 4_000_000_000_000),
        ("4PB", 4_000_000_000_000_000),
        ("9223372036854775807", i64::MAX as u64),
    ] {
        assert_eq!(size::parse(text), Ok(bytes), "{text}");
        assert_eq!(size::parse(&size::text(bytes)), Ok(bytes), "{text}");
    }
}

#[test]
fn a_set_with_everything_in_it() {
    let set = parsed(
        "PMEMPOOLSET\n# comment\n\n  \t\nOPTION SINGLEHDR\n100M /mnt/a#1\n\t20M\t /mnt/b  # the second\nREPLICA\nAUTO /dev/dax0.0\nREPLICA user@host.example dir/far.set\n",
    );
    assert!(set.options.single_header && !set.options.no_headers);
    let part = |path: &str, size, line| PartSpec { path: path.into(), size, line };
    assert_eq!(
        set.replicas,
        [
            ReplicaSpec::Local(vec![
                part("/mnt/a", PartSize::Bytes(100 << 20), 6),
                part("/mnt/b", PartSize::Bytes(20 << 20), 7)
            ]),
            ReplicaSpec::Local(vec![part("/dev/dax0.0", PartSize::Auto, 9)]),
            ReplicaSpec::Remote(RemoteSpec { node: "user@host.example".into(), set: "dir/far.set".into(), line: 10 }),
        ]
    );
}

fn without_lines(mut set: PoolSet) -> PoolSet {
    for replica in &mut set.replicas {
        match replica {
            ReplicaSpec::Local(parts) => parts.iter_mut().for_each(|part| part.line = 0),
            ReplicaSpec::Remote(remote) => remote.line = 0,
        }
    }
    set
}

fn any_replica(index: usize) -> impl Strategy<Value = ReplicaSpec> {
    let size = prop_oneof![(1..=i64::MAX as u64).prop_map(PartSize::Bytes), Just(PartSize::Auto)];
    let parts = prop::collection::vec(size, 1..4).prop_map(move |sizes| {
        let part = |(number, size)| PartSpec { path: format!("/mnt/r{index}/p{number}").into(), size, line: 0 };
        ReplicaSpec::Local(sizes.into_iter().enumerate().map(part).collect())
    });
    let remote = ("[a-z][a-z0-9.]{0,10}", "[a-z]{1,8}(/[a-z]{1,8})?")
        .prop_map(|(node, set)| ReplicaSpec::Remote(RemoteSpec { node, set: set.into(), line: 0 }));
    if index == 0 { parts.boxed() } else { prop_oneof![parts, remote].boxed() }
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        replicas in (1_usize..5).prop_flat_map(|count| (0..count).map(any_replica).collect::<Vec<_>>()),
        single_header: bool,
    ) {
        let set = PoolSet {
            path: "test.set".into(), replicas, options: SetOptions { single_header, no_headers: false },
        };
        let read = PoolSet::parse(&set.path, &set.to_bytes()).unwrap();
        prop_assert_eq!(without_lines(read), set.clone());
        prop_assert_eq!(set.to_string().into_bytes(), set.to_bytes());
    }

    #[test]
    fn no_bytes_make_the_parser_panic(bytes: Vec<u8>) {
        let _ = PoolSet::parse(Path::new("test.set"), &[b"PMEMPOOLSET\n".as_slice(), &bytes].concat());
        let _ = PoolSet::parse(Path::new("test.set"), &bytes);
    }
}
