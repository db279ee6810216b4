use tempfile::tempdir_in;

use super::*;

const DISK: &str = env!("CARGO_MANIFEST_DIR");
const FENCES: [SyncContender; 2] =
    [SyncContender::Fence(SyncMethod::Fdatasync), SyncContender::Fence(SyncMethod::Msync)];

fn chosen(rounds: &[[u64; 2]]) -> SyncMethod {
    cell(512, 1, &FENCES, &rounds.iter().map(|times| times.to_vec()).collect::<Vec<_>>()).chosen
}

#[test]
fn only_a_clear_gain_is_chosen() {
    let usual = SyncMethod::Fdatasync;
    assert_eq!(chosen(&[[1000, 980]; 9]), usual, "two in a hundred may be noise");
    assert_eq!(chosen(&[[1000, 960]; 9]), SyncMethod::Msync);
    assert_eq!(chosen(&[[1000, 1200]; 9]), usual);
    // A lower median, but the rounds disagree.
    let mut rounds = vec![[1000, 900]; 6];
    rounds.extend([[1000, 3000]; 3]);
    assert_eq!(chosen(&rounds), usual, "three of nine rounds say otherwise");
    // One round with a disturbance changes nothing.
    let mut rounds = vec![[1000, 800]; 8];
    rounds.push([1000, 9000]);
    assert_eq!(chosen(&rounds), SyncMethod::Msync);
    // In many rounds fewer have to agree.
    let mut rounds = vec![[1000, 900]; 61];
    rounds.extend([[1000, 1100]; 39]);
    assert_eq!(chosen(&rounds), SyncMethod::Msync);
    assert_eq!(chosen(&rounds[8..]), usual, "53 of 92");
}

#[test]
fn rounds_of_a_busy_disk_are_compared_each_with_itself() {
    // Each is slower than the one before, and msync faster in every one.
    let rounds: Vec<_> = (1..=9).map(|round| [round * 1000, round * 900]).collect();
    assert_eq!(chosen(&rounds), SyncMethod::Msync);
    let cell = cell(512, 1, &FENCES, &rounds.iter().map(|times| times.to_vec()).collect::<Vec<_>>());
    assert_eq!((cell.times[1].median_ns, cell.times[1].to_fdatasync_permille), (4500, 900));
}

#[test]
fn the_best_counts_calls_that_fences_cannot_use() {
    let contenders = [FENCES[0], FENCES[1], SyncContender::RwfDsync];
    let cell = cell(4096, 16, &contenders, &vec![vec![1100, 1040, 1000]; 9]);
    assert_eq!((cell.chosen, cell.best().map(|best| best.contender)), (SyncMethod::Msync, Some(contenders[2])));
    assert_eq!(cell.time(contenders[1]).map(|time| time.to_fdatasync_permille), Some(945));
}

#[test]
fn medians_are_of_the_middle() {
    assert_eq!((median(vec![9, 1, 5]), median(vec![9, 1, 5, 6]), median(Vec::new())), (5, 6, 0));
}

#[test]
fn a_directory_is_measured_within_its_limit() {
    let directory = tempdir_in(DISK).unwrap();
    let begun = Instant::now();
    let measured = match measure_sync(directory.path(), Duration::from_millis(600), true) {
        Err(MemError::Unsuitable { why, .. }) => return skip_report::skipped!("the sources lie on no disk: {why}"),
        measured => measured.unwrap(),
    };
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "it leaves no file");
    assert_eq!(measured.device, rustix::fs::stat(directory.path()).unwrap().st_dev);
    if measured.cells.is_empty() {
        assert_eq!(measured.choice(), SyncChoice::default().on_device(measured.device));
        return skip_report::skipped!("the disk is too slow to measure in 600 ms");
    }
    assert_eq!(measured.cells.len(), SyncChoice::SIZES_BYTES.len() * SyncChoice::CLIENTS.len());
    for cell in &measured.cells {
        assert!(cell.times.iter().all(|time| time.median_ns > 0), "{cell:?}");
        assert_eq!(cell.times[0].to_fdatasync_permille, 1000, "it is compared with itself");
    }
}

#[test]
fn memory_that_no_call_flushes_is_refused() {
    let directory = tempdir_in("/dev/shm").unwrap();
    let refused = measure_sync(directory.path(), Duration::from_millis(10), false);
    assert!(matches!(refused, Err(MemError::Unsuitable { .. })), "{refused:?}");
}

#[test]
fn the_choice_has_each_cell_in_its_place() {
    let of = |chosen| SyncCell { size_bytes: 0, client_count: 0, round_count: 3, times: Vec::new(), chosen };
    let (usual, other) = (of(SyncMethod::Fdatasync), of(SyncMethod::Msync));
    let cells = vec![usual.clone(), usual.clone(), usual.clone(), other.clone(), usual, other];
    let choice = SyncMeasurement { file_system: "ext4".into(), device: 3, cells }.choice();
    assert_eq!(choice.cell((1, 1)), SyncMethod::Msync);
    assert_eq!(choice.cell((2, 1)), SyncMethod::Msync);
    assert_eq!((choice.cell((0, 0)), choice.cell((2, 0))), (SyncMethod::Fdatasync, SyncMethod::Fdatasync));
}
