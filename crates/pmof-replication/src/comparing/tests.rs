use core::{
    pin::pin,
    task::{Context, Poll, Waker},
};
use std::{string::String, vec, vec::Vec};

use super::*;

/// Members that hold one block.
fn compared(held: &[u8]) -> Compared<u8> {
    Compared::new(0..PAGE_BYTES, PAGE_BYTES, held.iter().map(|byte| Some(vec![*byte])).collect())
}

fn verdict(held: &[u8]) -> Verdict {
    compared(held).verdict(0)
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
    let most = |held: &[u8], source| compared(held).most_hold(source, 0);
    assert_eq!(most(&[9, 1, 1], 0), 1, "the source has rotted");
    assert_eq!(most(&[1, 9, 1], 0), 0);
    assert_eq!(most(&[1, 9], 1), 1, "of two neither is right");
    assert_eq!(most(&[7, 8, 9], 2), 2);
}

#[test]
fn one_that_comes_back_keeps_what_another_holds_too() {
    // The source is the first, the one that comes back the second.
    let lacks = |held: &[u8]| compared(held).is_lacking((0, 1), 0);
    assert!(!lacks(&[9, 1, 1]), "the source has rotted");
    assert!(lacks(&[1, 9, 1]));
    assert!(lacks(&[1, 9]), "of two in sync there is one source");
    assert!(lacks(&[7, 8, 9]), "it may lack writes");
    assert!(lacks(&[1, 9, 9, 1]), "half of them are not more");
    assert!(!lacks(&[9, 1, 1, 1]));
    assert!(!lacks(&[1, 1, 9]));
}

#[test]
fn blocks_that_differ_are_found_and_joined() {
    let digests = vec![Some(vec![1, 2, 3, 4, 5]), None, Some(vec![1, 9, 9, 4, 9])];
    let compared = Compared::new(0..4 * PAGE_BYTES + 8, PAGE_BYTES, digests);
    assert!(compared.known().eq([0, 2]));
    assert!(compared.differing().eq([1, 2, 4]));
    let (neighbours, last) = (PAGE_BYTES..3 * PAGE_BYTES, 4 * PAGE_BYTES..4 * PAGE_BYTES + 8);
    assert_eq!(compared.ranges_where(|_| true), [neighbours, last.clone()]);
    assert_eq!(compared.ranges_where(|block| block == 4), [last]);
    assert!(compared.unlike(2, 1).eq([0]) && compared.unlike(1, 1).next().is_none(), "what one holds is not known");
}

/// An opening that compares one window of two members.
struct Opening {
    compared: Option<Compared<u8>>,
    steps: Vec<String>,
}

impl Equalizing for Opening {
    type Digest = u8;
    type Failure = ();

    fn source(&self) -> usize {
        1
    }

    fn has_epochs(&self) -> bool {
        true
    }

    async fn compare_next(&mut self) -> Result<Option<Compared<u8>>, ()> {
        Ok(self.compared.take())
    }

    async fn make_equal(&mut self, from: usize, block: &Range<u64>, to: &[usize]) -> Result<u64, ()> {
        self.steps.push(std::format!("{block:?} of {from} to {to:?}"));
        Ok(1)
    }

    async fn make_durable(&mut self) {
        self.steps.push("durable".into());
    }

    async fn note_equal(&mut self) -> Result<(), ()> {
        self.steps.push("mark".into());
        Ok(())
    }
}

#[test]
fn members_are_durable_before_their_marks_are_equal() {
    let mut opening = Opening { compared: Some(compared(&[1, 2])), steps: Vec::new() };
    let Poll::Ready(copied) = pin!(equalize(&mut opening)).poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("it waits for a driver that answers at once");
    };
    assert_eq!(copied, Ok(1));
    assert_eq!(opening.steps, ["0..4096 of 1 to [0]", "durable", "mark"]);
}
