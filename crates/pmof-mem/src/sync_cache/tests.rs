use tempfile::{TempDir, tempdir_in};

use super::*;

const DISK: &str = env!("CARGO_MANIFEST_DIR");
const LIMIT: Option<Duration> = Some(Duration::from_millis(600));

fn identity() -> Identity {
    Identity { file_system: "ext4".into(), device: 2049, line: "ext4 /dev/sda1 8:1 Linux 6.12.1 rw".into() }
}

fn measurement() -> SyncMeasurement {
    let sizes = SyncChoice::SIZES_BYTES.into_iter().flat_map(|size| SyncChoice::CLIENTS.map(|count| (size, count)));
    let cells = sizes.enumerate().map(|(index, (size_bytes, client_count))| SyncCell {
        size_bytes,
        client_count,
        round_count: 9,
        times: vec![
            SyncTime {
                contender: SyncContender::Fence(SyncMethod::Fdatasync),
                median_ns: 100,
                to_fdatasync_permille: 1000,
            },
            SyncTime {
                contender: SyncContender::Fence(SyncMethod::Msync),
                median_ns: 90 + index as u64,
                to_fdatasync_permille: 900,
            },
        ],
        chosen: if index % 2 == 0 { SyncMethod::Msync } else { SyncMethod::Fdatasync },
    });
    SyncMeasurement { file_system: "ext4".into(), device: 2049, cells: cells.collect() }
}

fn kept() -> (TempDir, SyncCache) {
    let directory = tempdir_in(DISK).unwrap();
    let cache = SyncCache::new(directory.path().join("cache/pmof"));
    cache.keep(&identity(), &measurement()).unwrap();
    (directory, cache)
}

#[test]
fn what_is_kept_is_found_again() {
    let (_directory, cache) = kept();
    assert_eq!(cache.load(&identity()), Some(measurement()));
    let later = SyncMeasurement { cells: measurement().cells, ..measurement() };
    cache.keep(&identity(), &later).unwrap();
    assert_eq!(fs::read_dir(&cache.directory).unwrap().count(), 1, "it is replaced, and nothing else is left");
}

#[test]
fn a_damaged_cache_counts_as_missing() {
    let (_directory, cache) = kept();
    let path = cache.path_of(&identity());
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x04;
        fs::write(&path, &damaged).unwrap();
        assert_eq!(cache.load(&identity()), None, "byte {at}");
        fs::write(&path, &whole[..at]).unwrap();
        assert_eq!(cache.load(&identity()), None, "cut at {at}");
    }
    fs::write(&path, vec![0xff; 1 << 20]).unwrap();
    assert_eq!(cache.load(&identity()), None, "it is no text");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(cache.load(&identity()), None, "it is a directory");
}

#[test]
fn a_cache_of_another_place_counts_as_missing() {
    let (_directory, cache) = kept();
    let other = Identity { line: identity().line.replace("6.12.1", "6.12.2"), ..identity() };
    // As if both had the same checksum, and so the same name.
    fs::copy(cache.path_of(&identity()), cache.path_of(&other)).unwrap();
    assert_eq!(cache.load(&other), None);
}

#[test]
fn a_cache_with_other_cells_counts_as_missing() {
    for change in [
        |cells: &mut Vec<SyncCell>| drop(cells.pop()),
        |cells: &mut Vec<SyncCell>| cells.swap(0, 1),
        |cells: &mut Vec<SyncCell>| cells[3].size_bytes = 1024,
    ] {
        let mut changed = measurement();
        change(&mut changed.cells);
        assert_eq!(parse(&text_of(&identity(), &changed), &identity()), None);
    }
}

#[test]
fn a_file_system_is_measured_once() {
    let directory = tempdir_in(DISK).unwrap();
    let cache = SyncCache::new(directory.path().join("cache"));
    let unknown = cache.choose(directory.path(), None);
    assert!(matches!(unknown, SyncSource::Usual { .. }), "{unknown:?}");
    let first = match cache.choose(directory.path(), LIMIT) {
        SyncSource::Measured(measurement) => measurement,
        other => return skip_report::skipped!("nothing can be measured here: {other:?}"),
    };
    let SyncSource::Cached(second) = cache.choose(directory.path(), LIMIT) else { panic!("it is known") };
    assert_eq!(first.choice(), second.choice());
    let SyncSource::Cached(_) = cache.choose(directory.path(), None) else { panic!("it is known") };
    // Damaged, it is measured again.
    let path = cache.path_of(&Identity::of(directory.path()).unwrap());
    fs::write(&path, "pmof sync times 1\n").unwrap();
    assert!(matches!(cache.choose(directory.path(), LIMIT), SyncSource::Measured(_)));
    assert!(matches!(cache.choose(directory.path(), LIMIT), SyncSource::Cached(_)));
}

#[test]
fn one_process_measures_at_a_time() {
    let directory = tempdir_in(DISK).unwrap();
    let identity = Identity::of(directory.path()).unwrap();
    if !SyncMethod::Msync.is_usable(MediumKind::PageCache, &identity.file_system) {
        return skip_report::skipped!("on {} there is one method only", identity.file_system);
    }
    let cache = SyncCache::new(directory.path().join("cache"));
    let _other = cache.lock(&identity).unwrap().unwrap();
    let SyncSource::Usual { why } = cache.choose(directory.path(), LIMIT) else { panic!("another one measures") };
    assert_eq!(why, "another process is measuring");
}

#[test]
fn without_a_cache_nothing_is_measured() {
    let directory = tempdir_in(DISK).unwrap();
    fs::write(directory.path().join("file"), "").unwrap();
    let cache = SyncCache::new(directory.path().join("file/below"));
    let source = cache.choose(directory.path(), LIMIT);
    assert!(matches!(source, SyncSource::Usual { .. }), "{source:?}");
    cache.remember(directory.path(), &measurement()).unwrap_err();
}

#[test]
fn memory_has_the_usual_method() {
    let directory = tempdir_in("/dev/shm").unwrap();
    let source = SyncCache::new(directory.path().join("cache")).choose(directory.path(), LIMIT);
    assert!(matches!(source, SyncSource::Usual { .. }), "{source:?}");
    assert_eq!(source.choice(), SyncChoice::default());
}
