use std::{
    io::Write,
    os::{fd::AsFd, unix::net::UnixStream},
};

use super::{FailNth, FaultPoint, SkipFence, SkipWriteBack};
use crate::{Medium, MemError, Memory, ShadowMedium};

fn is_eio(outcome: Result<(), MemError>) -> bool {
    matches!(outcome, Err(MemError::Io { source, .. }) if source.raw_os_error() == Some(libc::EIO))
}

type Step = fn(&FailNth<Memory>) -> Result<(), MemError>;

fn memory() -> Memory {
    Memory::anonymous(4096).unwrap()
}

#[test]
fn the_nth_store_fails_and_stores_nothing() {
    let medium = FailNth::new(memory(), FaultPoint::Store, 2);
    medium.store(0, &[1]).unwrap();
    medium.write_back(0, 1).unwrap();
    assert!(is_eio(medium.store(0, &[2])) && medium.has_failed());
    let mut byte = [0];
    medium.read(0, &mut byte).unwrap();
    assert_eq!(byte, [1]);
    medium.store(0, &[3]).unwrap();
    medium.fence().unwrap();
}

#[test]
fn a_failed_flush_poisons_the_later_ones() {
    for point in [FaultPoint::WriteBack, FaultPoint::Fence] {
        let medium = FailNth::new(memory(), point, 1);
        let first = if point == FaultPoint::Fence { medium.fence() } else { medium.write_back(0, 1) };
        assert!(is_eio(first));
        assert!(matches!(medium.write_back(0, 1), Err(MemError::Poisoned { .. })));
        assert!(matches!(medium.fence(), Err(MemError::Poisoned { .. })));
        medium.store(0, &[1]).unwrap();
    }
}

#[test]
fn any_counts_every_kind_of_step_and_zero_counts_none() {
    let steps: [Step; 6] = [
        |medium| medium.store(0, &[1]),
        |medium| medium.atomic_store(0, 1),
        |medium| medium.compare_and_swap(0, 1, 2).map(drop),
        |medium| medium.fetch_and_add(0, 1).map(drop),
        |medium| medium.write_back(0, 8),
        |medium| medium.fence(),
    ];
    for nth in 0..=7 {
        let medium = FailNth::new(memory(), FaultPoint::Any, nth);
        let first_failure = steps.iter().position(|step| step(&medium).is_err());
        let expected = (1..=6).contains(&nth).then(|| nth as usize - 1);
        assert_eq!((first_failure, medium.has_failed()), (expected, expected.is_some()));
    }
}

#[test]
fn a_failed_receive_takes_nothing_from_the_socket() {
    let medium = FailNth::new(memory(), FaultPoint::Store, 1);
    let (mut near, far) = UnixStream::pair().unwrap();
    near.write_all(b"abc").unwrap();
    let error = medium.receive(far.as_fd(), 0, 3, &mut []).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    assert_eq!(medium.receive(far.as_fd(), 0, 3, &mut []).unwrap(), 3);
}

#[test]
fn all_are_shared_among_threads() {
    fn shared<M: Medium + 'static>() {}
    shared::<SkipFence<Memory>>();
    shared::<SkipWriteBack<std::sync::Arc<ShadowMedium>>>();
    shared::<FailNth<std::sync::Arc<dyn Medium>>>();
}
