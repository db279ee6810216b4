use core::{
    cell::{Cell, RefCell},
    future::poll_fn,
    task::Poll,
};
use std::vec;

use super::*;

/// An in-memory keeper, and what goes wrong with it next.
#[derive(Debug)]
pub(crate) struct InMemory {
    register: RefCell<Register>,
    fault: Cell<Option<Fault>>,
}

/// What goes wrong with the next change that a keeper is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is not reached.
    Unreachable,
    /// It makes the change, and its reply is lost.
    ReplyLost,
    /// The request is lost, and the writer cannot know.
    RequestLost,
}

impl InMemory {
    pub(crate) fn new(in_force: EpochRecord) -> Self {
        Self { register: RefCell::new(Register::new(in_force)), fault: Cell::new(None) }
    }

    /// The next change fails so.
    pub(crate) fn fail(&self, fault: Fault) {
        self.fault.set(Some(fault));
    }

    pub(crate) fn kept(&self) -> Kept {
        self.register.borrow().kept().clone()
    }

    /// What another writer does.
    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut Register) -> T) -> T {
        change(&mut self.register.borrow_mut())
    }

    fn change(&self, change: impl FnOnce(&mut Register) -> Result<(), KeeperError>) -> Result<(), KeeperError> {
        match self.fault.take() {
            None => self.with(change),
            Some(Fault::Unreachable) => Err(KeeperError::Unreachable),
            Some(Fault::ReplyLost) => {
                _ = self.with(change);
                Err(KeeperError::Unknown)
            }
            Some(Fault::RequestLost) => Err(KeeperError::Unknown),
        }
    }
}

impl Keeper for &InMemory {
    async fn begin(&self, announced: &EpochRecord) -> Result<(), KeeperError> {
        self.change(|register| register.begin(announced))
    }

    async fn confirm(&self, announced: &EpochRecord) -> Result<(), KeeperError> {
        self.change(|register| register.confirm(announced))
    }

    async fn read(&self) -> Result<Kept, KeeperError> {
        Ok(self.kept())
    }

    async fn watch(&self, known: Uuid) -> Result<Kept, KeeperError> {
        poll_fn(|_| match self.kept() {
            kept if kept.in_force.epoch.id != known => Poll::Ready(Ok(kept)),
            _ => Poll::Pending,
        })
        .await
    }
}

/// Either of the keepers, as a driver of tests has it.
pub(crate) enum Either<M, O> {
    Members(M),
    Outside(O),
}

impl<M: Keeper, O: Keeper> Keeper for Either<M, O> {
    async fn begin(&self, announced: &EpochRecord) -> Result<(), KeeperError> {
        match self {
            Self::Members(members) => members.begin(announced).await,
            Self::Outside(outside) => outside.begin(announced).await,
        }
    }

    async fn confirm(&self, announced: &EpochRecord) -> Result<(), KeeperError> {
        match self {
            Self::Members(members) => members.confirm(announced).await,
            Self::Outside(outside) => outside.confirm(announced).await,
        }
    }

    async fn read(&self) -> Result<Kept, KeeperError> {
        match self {
            Self::Members(members) => members.read().await,
            Self::Outside(outside) => outside.read().await,
        }
    }

    async fn watch(&self, known: Uuid) -> Result<Kept, KeeperError> {
        match self {
            Self::Members(members) => members.watch(known).await,
            Self::Outside(outside) => outside.watch(known).await,
        }
    }
}

fn epoch(id: u128, members: u64) -> Epoch {
    Epoch { id: Uuid::from_u128(id), members }
}

fn first() -> EpochRecord {
    EpochRecord { epoch: epoch(1, 0b11), opening: 1, ancestors: vec![] }
}

fn behind(parent: &EpochRecord, id: u128, members: u64) -> EpochRecord {
    let ancestors = core::iter::once(parent.epoch).chain(parent.ancestors.iter().copied()).collect();
    EpochRecord { epoch: epoch(id, members), opening: parent.opening + 1, ancestors }
}

fn overruled(by: u128) -> Result<(), KeeperError> {
    Err(KeeperError::Overruled { by: Uuid::from_u128(by) })
}

fn displaced(by: Option<u128>) -> Result<(), KeeperError> {
    Err(KeeperError::Displaced { by: by.map(Uuid::from_u128) })
}

#[test]
fn announced_is_not_in_force() {
    let mut register = Register::new(first());
    let next = behind(&first(), 2, 0b01);
    assert_eq!(register.begin(&next), Ok(()));
    assert_eq!(register.kept(), &Kept { in_force: first(), announced: Some(next.clone()) });
    assert_eq!(register.confirm(&next), Ok(()));
    assert_eq!(register.kept(), &Kept { in_force: next.clone(), announced: None });
    assert_eq!(register.confirm(&next), Ok(()), "a reply was lost");
}

#[test]
fn one_epoch_follows_another() {
    let mut register = Register::new(first());
    let (one, other) = (behind(&first(), 2, 0b01), behind(&first(), 3, 0b10));
    assert_eq!(register.begin(&one), Ok(()));
    assert_eq!(register.begin(&other), Ok(()));
    assert_eq!(register.confirm(&one), displaced(Some(3)));
    assert_eq!(register.confirm(&other), Ok(()));
    assert_eq!(register.confirm(&one), overruled(3));
    assert_eq!(register.begin(&behind(&first(), 4, 0b01)), overruled(3));
    assert_eq!(register.begin(&behind(&other, 4, 0b01)), Ok(()));
}

#[test]
fn what_was_not_announced_is_not_confirmed() {
    let mut register = Register::new(first());
    let next = behind(&first(), 2, 0b01);
    assert_eq!(register.confirm(&next), displaced(None));
    assert_eq!(register.kept().in_force, first());
}

#[test]
fn given_up_epochs_were_not_in_force() {
    let next = EpochRecord { ancestors: vec![epoch(1, 0b11), epoch(7, 0)], ..behind(&first(), 2, 1) };
    assert_eq!(next.line().collect::<Vec<_>>(), [Uuid::from_u128(2), Uuid::from_u128(1)]);
}

#[test]
fn errors_say_what_to_do() {
    let texts = [
        KeeperError::TooFew,
        KeeperError::Unreachable,
        KeeperError::Unknown,
        KeeperError::Overruled { by: Uuid::nil() },
        KeeperError::Displaced { by: None },
        KeeperError::Displaced { by: Some(Uuid::nil()) },
        KeeperError::PutBack { known: Uuid::nil() },
    ]
    .map(|why| std::format!("{why}"));
    assert!(texts.iter().enumerate().all(|(at, text)| !text.is_empty() && !texts[..at].contains(text)), "{texts:?}");
}
