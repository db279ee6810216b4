use std::ops::Range;

use pmof_pool_set::{AccessError, Compared, Contents, Digest, PendingDigests};

use super::{Verdict, is_lacking, judge, most_hold};

/// A replica of one block.
struct Replica(u8);

impl Contents for Replica {
    fn data_ranges(&mut self, range: Range<u64>) -> Result<Vec<Range<u64>>, AccessError> {
        Ok(vec![range])
    }

    fn start_digests(&mut self, _: Range<u64>, _: u64) -> PendingDigests<'_> {
        let digest: Digest = [self.0; 32];
        Box::new(move || Ok(vec![digest]))
    }

    fn read(&mut self, _: u64, into: &mut [u8]) -> Result<(), AccessError> {
        into.fill(self.0);
        Ok(())
    }

    fn write(&mut self, _: u64, _: &[u8]) -> Result<(), AccessError> {
        Err("nothing is written".into())
    }

    fn persist(&mut self, _: Range<u64>) -> Result<(), AccessError> {
        Ok(())
    }
}

fn compared(held: &[u8]) -> Compared {
    let mut replicas: Vec<_> = held.iter().map(|byte| Replica(*byte)).collect();
    let mut contents: Vec<_> = replicas.iter_mut().map(|replica| replica as &mut dyn Contents).collect();
    Compared::of_range(&mut contents, &(0..4096), 4096)
}

fn verdict(held: &[u8]) -> Verdict {
    judge(&compared(held), 0)
}

fn repair(right: usize, wrong: &[usize]) -> Verdict {
    Verdict::Repair { right, wrong: wrong.to_vec() }
}

#[test]
fn what_most_hold_is_right_wherever_they_are() {
    assert_eq!(verdict(&[9, 1, 1]), repair(1, &[0]));
    assert_eq!(verdict(&[1, 9, 1]), repair(0, &[1]));
    assert_eq!(verdict(&[1, 1, 9]), repair(0, &[2]));
    assert_eq!(verdict(&[8, 1, 9, 1, 1]), repair(1, &[0, 2]));
}

#[test]
fn half_of_them_are_not_most() {
    assert_eq!(verdict(&[1, 9]), Verdict::Undecided);
    assert_eq!(verdict(&[1, 1, 9, 9]), Verdict::Undecided);
    assert_eq!(verdict(&[1, 1, 8, 9]), Verdict::Undecided);
    assert_eq!(verdict(&[7, 8, 9]), Verdict::Undecided);
}

#[test]
fn behind_a_death_all_become_what_most_hold_or_else_the_source() {
    let most = |held: &[u8], source| most_hold(&compared(held), source, 0);
    assert_eq!(most(&[9, 1, 1], 0), 1, "the source has rotted");
    assert_eq!(most(&[1, 9, 1], 0), 0);
    assert_eq!(most(&[1, 9], 1), 1, "of two nobody knows");
    assert_eq!(most(&[7, 8, 9], 2), 2);
}

#[test]
fn one_that_comes_back_keeps_what_another_holds_too() {
    // The source is the first, the one that comes back the second.
    let lacks = |held: &[u8]| is_lacking(&compared(held), (0, 1), 0);
    assert!(!lacks(&[9, 1, 1]), "the source has rotted");
    assert!(lacks(&[1, 9, 1]));
    assert!(lacks(&[1, 9]), "of two in sync there is one source");
    assert!(lacks(&[7, 8, 9]), "it may lack writes");
    assert!(lacks(&[1, 9, 9, 1]), "half of them are not more");
    assert!(!lacks(&[9, 1, 1, 1]));
    assert!(!lacks(&[1, 1, 9]));
}
