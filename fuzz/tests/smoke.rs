//! All targets, on their seeds and on mutations of them.

use std::{collections::BTreeSet, fs, path::Path};

use pmof_fuzz::TARGETS;
use proptest::{collection::vec, prelude::*, test_runner::TestRunner};

/// For each target.
const MUTATIONS: u32 = 2000;

fn corpus() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let mut files: Vec<_> =
        fs::read_dir(corpus().join(target)).expect(target).map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|file| fs::read(file).unwrap()).collect()
}

/// One change of some bytes.
#[derive(Clone, Debug)]
enum Edit {
    Set(prop::sample::Index, u8),
    Insert(prop::sample::Index, Vec<u8>),
    Remove(prop::sample::Index, u8),
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let place = any::<prop::sample::Index>;
    let edit = prop_oneof![
        4 => (place(), any::<u8>()).prop_map(|(at, byte)| Edit::Set(at, byte)),
        1 => (place(), vec(any::<u8>(), 1..12)).prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        1 => (place(), 1..40_u8).prop_map(|(at, count)| Edit::Remove(at, count)),
    ];
    vec(edit, 0..6)
}

fn apply(bytes: &mut Vec<u8>, edit: &Edit) {
    let at = |index: &prop::sample::Index| index.index(bytes.len() + 1);
    match edit {
        Edit::Set(index, byte) => {
            let at = at(index);
            bytes.get_mut(at).into_iter().for_each(|at| *at = *byte);
        }
        Edit::Insert(index, more) => {
            let at = at(index);
            bytes.splice(at..at, more.iter().copied());
        }
        Edit::Remove(index, count) => {
            let at = at(index);
            bytes.drain(at..bytes.len().min(at + usize::from(*count)));
        }
    }
}

#[test]
fn every_target_has_seeds_and_every_seed_a_target() {
    let named: BTreeSet<_> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    let directories: BTreeSet<_> =
        fs::read_dir(corpus()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(named, directories);
    assert!(TARGETS.iter().all(|target| !seeds(target.name).is_empty()));
}

/// The target on all seeds and on mutations of them; what made it panic, if anything did.
fn search(target: fn(&[u8]), seeds: Vec<Vec<u8>>) -> Result<(), String> {
    for seed in &seeds {
        target(seed);
    }
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(MUTATIONS) };
    let outcome = TestRunner::new(config).run(&(prop::sample::select(seeds), edits()), |(mut bytes, edits)| {
        for edit in &edits {
            apply(&mut bytes, edit);
        }
        target(&bytes);
        Ok(())
    });
    outcome.map_err(|error| error.to_string())
}

#[test]
fn seeds_and_their_mutations_do_no_harm() {
    for target in TARGETS {
        search(target.run, seeds(target.name)).unwrap_or_else(|error| panic!("{}: {error}", target.name));
    }
}

/// The control: a parser that takes a length from its input on trust.
#[test]
fn a_parser_that_panics_is_found() {
    let trusting = |bytes: &[u8]| {
        if let Some((len_bytes, rest)) = bytes.split_first() {
            let _ = &rest[..usize::from(*len_bytes)];
        }
    };
    search(trusting, vec![b"\x03abc".to_vec()]).unwrap_err();
}

/// Else all that the target of rings sees is refused at once.
#[test]
fn a_seed_of_rings_is_one() {
    let memory = pmof_mem::Memory::anonymous(4096 + 32 * 8192).unwrap();
    let seed = fs::read(corpus().join("ring/two")).unwrap();
    pmof_mem::Medium::store(&memory, 0, &seed).unwrap();
    let memory: std::sync::Arc<dyn pmof_mem::Medium> = std::sync::Arc::new(memory);
    let records = pmof_access::read_ring(&memory, 0, 4096 + 32 * 8192).unwrap().records;
    assert_eq!(records.iter().map(|record| &record.bytes[..]).collect::<Vec<_>>(), [&b"first"[..], b"second"]);
}
