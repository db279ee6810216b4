use std::fs;

use super::*;

const LENGTH: usize = 3 * CHUNK + 4096;
const MEMORY: u64 = 3 * CHUNK as u64;

struct Images {
    directory: tempfile::TempDir,
}

impl Images {
    /// A live image with the given stores over a medium of zeros.
    fn new(stores: &[(u64, &[u8])]) -> Images {
        let images = Images { directory: tempfile::tempdir().unwrap() };
        for path in [images.live(), images.medium()] {
            File::create(path).unwrap().set_len(LENGTH as u64).unwrap();
        }
        let live = OpenOptions::new().write(true).open(images.live()).unwrap();
        for (at, bytes) in stores {
            live.write_all_at(bytes, *at).unwrap();
        }
        images
    }

    fn live(&self) -> PathBuf {
        self.directory.path().join("live")
    }

    fn medium(&self) -> PathBuf {
        self.directory.path().join("medium")
    }

    fn cut(&self, choice: Choice, tear: Tear) -> (Outcome, Vec<u8>) {
        let outcome = survivors(&self.live(), &self.medium(), MEMORY, choice, tear).unwrap();
        (outcome, fs::read(self.medium()).unwrap())
    }
}

#[test]
fn none_and_all() {
    let stores: &[(u64, &[u8])] = &[(10, &[1; 4]), (CHUNK as u64 * 2 + 60, &[2; 8])];
    let images = Images::new(stores);
    let (outcome, medium) = images.cut(Choice::None, Tear::Lines);
    assert_eq!(outcome, Outcome { differing: 3, survived: 0 });
    assert!(medium.iter().all(|byte| *byte == 0));
    let (outcome, medium) = images.cut(Choice::All, Tear::Lines);
    assert_eq!(outcome, Outcome { differing: 3, survived: 3 });
    assert_eq!(medium, fs::read(images.live()).unwrap());
    assert_eq!(images.cut(Choice::All, Tear::Lines).0, Outcome::default());
}

#[test]
fn a_line_of_the_medium_that_the_live_image_no_longer_has() {
    let images = Images::new(&[]);
    let medium = OpenOptions::new().write(true).open(images.medium()).unwrap();
    medium.write_all_at(&[9; 64], CHUNK as u64).unwrap();
    assert_eq!(images.cut(Choice::None, Tear::Lines).1[CHUNK..CHUNK + 64], [9; 64]);
    assert_eq!(images.cut(Choice::All, Tear::Lines).1[CHUNK..CHUNK + 64], [0; 64]);
}

#[test]
fn coins_fall_by_line_and_by_seed() {
    let cut = |seed| Images::new(&[(0, &vec![7; 64 * 1000])]).cut(Choice::Random(seed), Tear::Lines);
    let (outcome, medium) = cut(1);
    assert_eq!(outcome.differing, 1000);
    assert!((400..600).contains(&outcome.survived), "{outcome:?}");
    for line in medium[..64_000].chunks(64) {
        assert!(line == [7; 64] || line == [0; 64]);
    }
    assert_eq!(cut(1).1, medium);
    assert_ne!(cut(2).1, medium);
}

#[test]
fn torn_lines_are_torn_at_eight_bytes() {
    let (outcome, medium) = Images::new(&[(0, &[7; 64 * 100])]).cut(Choice::Random(5), Tear::Words);
    let torn = medium[..6400].chunks(64).filter(|line| line.contains(&0) && line.contains(&7)).count();
    assert!(torn > 80 && outcome.survived > 80, "{torn} {outcome:?}");
    for word in medium[..6400].chunks(8) {
        assert!(word == [7; 8] || word == [0; 8]);
    }
}

#[test]
fn labels_survive_always() {
    let (outcome, medium) = Images::new(&[(MEMORY + 100, b"label")]).cut(Choice::None, Tear::Lines);
    assert_eq!(outcome, Outcome::default());
    assert_eq!(&medium[MEMORY as usize + 100..][..5], b"label");
}

#[test]
fn images_that_do_not_belong_together_are_refused() {
    let images = Images::new(&[]);
    File::create(images.medium()).unwrap().set_len(64).unwrap();
    let error = survivors(&images.live(), &images.medium(), 64, Choice::None, Tear::Lines).unwrap_err();
    assert!(matches!(error, SurvivorsError::Lengths { medium: 64, .. }), "{error}");
    let error = survivors(&images.live(), Path::new("/nowhere"), 64, Choice::None, Tear::Lines).unwrap_err();
    assert!(error.to_string().contains("opening /nowhere"), "{error}");
}
