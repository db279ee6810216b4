use std::ops::Range;

use pmof_pool::{AccessError, Compared, Contents, Digest, PendingDigests};

use super::{Verdict, judge};

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

fn verdict(held: &[u8]) -> Verdict {
    let mut replicas: Vec<_> = held.iter().map(|byte| Replica(*byte)).collect();
    let mut contents: Vec<_> = replicas.iter_mut().map(|replica| replica as &mut dyn Contents).collect();
    judge(&Compared::of_range(&mut contents, &(0..4096), 4096), held.len(), 0)
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
