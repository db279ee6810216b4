//! Targets with their media: what they are asked, and what they keep.

use std::rc::Rc;

use pmof_control::{Claim, PoolRefusal, PoolState, Reply, Request, Roster};
use uuid::Uuid;

use super::{
    areas::Areas,
    faults::Fault,
    names::{ReplicaId, fresh},
    plan::{Control, PAGES, WORDS},
    state_page::{Progress, StatePage},
    truth::{Page, Pages, is_rotten},
    versions::Version,
    world::World,
};

#[derive(Clone, Debug)]
pub(super) enum Message {
    /// Opens the replica; `takes_over`: whoever else has it open is fenced first, and so is one that has begun the epoch which is claimed, or
    /// has named it.
    Open {
        takes_over: bool,
        claim: Claim,
    },
    /// Makes an empty replica and opens it.
    Create {
        index: u16,
        count: u16,
        is_witness: bool,
    },
    /// What lies there, whoever has it open.
    Info,
    /// Removes this replica, if nobody has it open.
    Remove(ReplicaId),
    /// A request, as it is sent.
    Encoded(Vec<u8>),
    Write {
        page: usize,
        words: Page,
    },
    Flush,
    Read,
}

#[derive(Clone, Debug)]
pub(super) enum Answer {
    Opened(Box<Replica>),
    Busy,
    NotFound,
    AlreadyThere,
    Info {
        replica: Box<Replica>,
        is_open: bool,
    },
    Removed,
    /// A reply, as it is sent.
    Encoded(Vec<u8>),
    Flushed,
    Pages(Pages),
    Refused,
    /// A reply, as it is sent: it is of another version, or the replica is.
    OtherVersion(Version, Vec<u8>),
}

/// What a replica says of itself.
#[derive(Clone, Debug)]
pub(super) struct Replica {
    pub(super) index: u16,
    pub(super) uuid: Uuid,
    pub(super) state: PoolState,
}

/// A target with its replica, if it has one: what is durable, what the page cache shows, and who has it open.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fault that may have met it")]
pub(super) struct Target {
    /// There is a replica.
    pub(super) is_there: bool,
    pub(super) index: u16,
    pub(super) replica_uuid: Uuid,
    pub(super) roster: Option<Rc<Roster>>,
    /// It has no data.
    pub(super) is_witness: bool,
    /// What an asynchronous member has.
    pub(super) areas: Option<Box<Areas>>,
    /// Of its program, or of what lies there.
    pub(super) version: Version,
    /// How often its machine was started anew.
    pub(super) boots: u64,
    pub(super) state: PoolState,
    /// What the file has of that.
    pub(super) page: StatePage,
    pub(super) durable: Pages,
    pub(super) cache: Pages,
    /// The connection that has it open.
    pub(super) open_by: Option<usize>,
    has_begun: bool,
    /// The epoch by which whoever has it open took it over.
    named_epoch: Option<Uuid>,
    pub(super) is_up: bool,
    pub(super) copies: Vec<(StatePage, PoolState, Pages)>,
    /// The next flush fails; the next state is not written, or written and refused.
    pub(super) fails_flush: bool,
    pub(super) fails_state: bool,
    /// What is read next cannot be.
    pub(super) fails_read: bool,
    /// Its process is stopped, and the step at which it last went on.
    pub(super) is_paused: bool,
    pub(super) resumed_at: u64,
    /// A flush failed: all that follow do, until the replica is opened anew.
    is_poisoned: bool,
    /// What is flushed finds no room, or not for all.
    pub(super) is_full: bool,
    /// It was put back to an older copy, and does not know yet that it is behind.
    pub(super) restored: Option<Restored>,
    /// How often it was put back.
    pub(super) restored_times: u64,
}

/// What was put back to an older copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Restored {
    /// A replica in sync by this epoch.
    InSync { epoch: Uuid },
    /// One that was behind already, or has been when the copy was made.
    Voter,
}

impl Target {
    /// Of a pool that was made, or an empty machine.
    pub(super) fn new(index: u16, state: PoolState, is_there: bool) -> Self {
        Self {
            is_there,
            index,
            replica_uuid: fresh(),
            roster: None,
            is_witness: false,
            areas: None,
            version: Version::Here,
            boots: 0,
            page: StatePage::made(&state),
            state,
            durable: [[0; WORDS]; PAGES],
            cache: [[0; WORDS]; PAGES],
            open_by: None,
            has_begun: false,
            named_epoch: None,
            is_up: true,
            copies: Vec::new(),
            fails_flush: false,
            fails_state: false,
            fails_read: false,
            is_paused: false,
            resumed_at: 0,
            is_poisoned: false,
            is_full: false,
            restored: None,
            restored_times: 0,
        }
    }

    pub(super) fn replica(&self) -> Replica {
        let Self { index, replica_uuid, ref state, .. } = *self;
        Replica { index, uuid: replica_uuid, state: state.clone() }
    }

    /// As `OpenPool::is_epoch_of_writer`.
    fn is_epoch_of_writer(&self, epoch: Uuid, control: Option<Control>) -> bool {
        let has_begun = self.has_begun || control == Some(Control::FoundEpochNames);
        self.named_epoch == Some(epoch) || (has_begun && self.state.epoch.id == epoch)
    }

    /// What it answers where it, or what lies there, is of another version.
    fn refusal(&self, message: &Message) -> Option<Vec<u8>> {
        let is_refused = match message {
            Message::Open { .. } | Message::Info | Message::Encoded(_) => self.is_there || !self.version.is_of_file(),
            Message::Create { .. } | Message::Remove(_) => !self.version.is_of_file(),
            _ => false,
        };
        let is_other = self.version != Version::Here;
        if is_refused && is_other { self.version.refusal((self.replica_uuid, self.index)) } else { None }
    }

    fn opened_by(&mut self, connection: usize, named_epoch: Option<Uuid>) -> Answer {
        (self.open_by, self.named_epoch) = (Some(connection), named_epoch);
        (self.has_begun, self.is_poisoned) = (false, false);
        Answer::Opened(Box::new(self.replica()))
    }
}

impl World {
    /// What lies there is taken for what it is not.
    fn misread_version(&mut self, number: usize) {
        let target = &mut self.targets[number];
        if self.control == Some(Control::VersionNotChecked) && target.version.is_of_file() {
            // The data begins elsewhere.
            target.durable.rotate_left(1);
            target.cache.rotate_left(1);
            target.version = Version::Here;
        }
    }

    pub(super) fn open(&mut self, connection: usize, takes_over: bool, claim: Claim) -> Answer {
        let number = self.connections[connection].target;
        let (writer, is_left) = (self.connections[connection].writer, !self.connections[connection].is_open_here);
        let (may_judge, control) = (self.may_judge(writer, number), self.control);
        if self.targets[number].version.is_served() {
            self.count(Fault::VersionServed);
        }
        let target = &mut self.targets[number];
        if !target.is_there {
            return Answer::NotFound;
        }
        let holder = target.open_by;
        let is_claimed = claim.epoch().is_some_and(|epoch| target.is_epoch_of_writer(epoch, control));
        if (holder.is_some() && !takes_over && !is_claimed) || !may_judge {
            if is_left || holder.is_some_and(|by| !self.connections[by].is_open_here) {
                self.count(Fault::LateNotice);
            }
            return Answer::Busy;
        }
        if let Some(holder) = holder {
            self.count(match claim {
                _ if takes_over => Fault::TakenOver,
                Claim::Superseded(_) => Fault::SupersededEnded,
                Claim::Own(_) | Claim::None => Fault::TakenFromOwnConnection,
            });
            let held_by = self.connections[holder].writer;
            let may_be = matches!(claim, Claim::Superseded(_)) && !self.truth.is_newest_of(held_by);
            if self.connections[holder].is_open_here && !takes_over && held_by != writer && !may_be {
                self.truth.violate(|| format!("w{writer} takes t{number} from its successor"));
            }
            if self.control != Some(Control::NotFenced) {
                self.end_there(holder);
            }
        }
        self.read_state_to_write(number);
        let target = &mut self.targets[number];
        if target.state.is_open {
            target.durable = target.cache;
        }
        target.opened_by(connection, claim.own())
    }

    fn create(&mut self, connection: usize, (index, count): (u16, u16), is_witness: bool) -> Answer {
        let number = self.connections[connection].target;
        let target = &mut self.targets[number];
        if target.is_there {
            return Answer::AlreadyThere;
        }
        *target =
            Target { is_witness, boots: target.boots, ..Target::new(index, PoolState::new(fresh(), count), true) };
        let answer = target.opened_by(connection, None);
        target.has_begun = true;
        answer
    }

    pub(super) fn handle(&mut self, index: usize, message: &Message) -> Option<Answer> {
        let number = self.connections[index].target;
        self.misread_version(number);
        if let Some(reply) = self.targets[number].refusal(message) {
            return Some(Answer::OtherVersion(self.targets[number].version, reply));
        }
        match message {
            Message::Open { takes_over, claim } => return Some(self.open(index, *takes_over, *claim)),
            Message::Encoded(request) => return Some(self.serve(index, request)),
            Message::Create { index: replica, count, is_witness } => {
                return Some(self.create(index, (*replica, *count), *is_witness));
            }
            _ => {}
        }
        let target = &mut self.targets[number];
        match message {
            Message::Info if target.is_there => {
                return Some(Answer::Info { replica: Box::new(target.replica()), is_open: target.open_by.is_some() });
            }
            Message::Remove(replica)
                if target.is_there
                    && target.replica_uuid == replica.0
                    && target.open_by.is_none_or(|by| by == index) =>
            {
                (target.is_there, target.open_by, target.version) = (false, None, Version::Here);
                return Some(Answer::Removed);
            }
            Message::Info | Message::Remove(_) => return Some(Answer::Refused),
            _ if target.open_by != Some(index) && self.control != Some(Control::NotFenced) => {
                return Some(Answer::Refused);
            }
            _ => {}
        }
        match message {
            Message::Open { .. }
            | Message::Create { .. }
            | Message::Info
            | Message::Remove(_)
            | Message::Encoded(_) => None,
            Message::Write { .. } if target.is_witness => None,
            Message::Write { page, words } => {
                target.cache[*page] = *words;
                if is_rotten(words) {
                    self.count(Fault::RotCopied);
                }
                None
            }
            Message::Flush if target.is_poisoned => Some(Answer::Refused),
            Message::Flush if std::mem::take(&mut target.fails_flush) => {
                target.is_poisoned = true;
                // The kernel forgets what it could not write.
                target.cache = target.durable;
                self.count(Fault::FlushFailed);
                Some(Answer::Refused)
            }
            Message::Flush if target.is_full && target.cache != target.durable => {
                target.is_poisoned = true;
                self.count(Fault::DiskFull);
                self.drop_unflushed(number);
                Some(Answer::Refused)
            }
            Message::Flush => {
                target.durable = target.cache;
                Some(Answer::Flushed)
            }
            Message::Read if std::mem::take(&mut target.fails_read) => {
                self.count(Fault::ReadFailed);
                Some(Answer::Refused)
            }
            Message::Read => Some(Answer::Pages(target.cache)),
        }
    }

    pub(super) fn keep(&mut self, number: usize, roster: &Rc<Roster>) -> Result<Reply, PoolRefusal> {
        if std::mem::take(&mut self.targets[number].fails_state) {
            let is_written = self.random.once_in(2);
            self.count(if is_written { Fault::RosterWrittenAndRefused } else { Fault::RosterNotWritten });
            if is_written {
                self.targets[number].roster = Some(Rc::clone(roster));
            }
            return Err(PoolRefusal::Failed);
        }
        self.targets[number].roster = Some(Rc::clone(roster));
        Ok(Reply::RosterSet)
    }

    /// The target's own change of its state, by the methods that it ships.
    pub(super) fn tell(&mut self, number: usize, request: &Request) -> Result<Reply, PoolRefusal> {
        let control = self.control;
        let target = &mut self.targets[number];
        let (state, reply) = match request {
            Request::Begin { opening, epoch, ancestors } => {
                (Some(target.state.begun(target.index, *epoch, *opening, ancestors)), Reply::Begun)
            }
            Request::Confirm { epoch } => match target.state.confirmed(target.index, *epoch) {
                Some(state) => (Some(state), Reply::Confirmed),
                None => return Err(PoolRefusal::Failed),
            },
            Request::Mark { mark } => (target.state.raised(*mark), Reply::Marked),
            Request::Close { in_order } => {
                target.open_by = None;
                let closes = *in_order && target.has_begun && target.state.is_open && !target.is_poisoned;
                (closes.then(|| target.state.closed()), Reply::Closed)
            }
            _ => return Err(PoolRefusal::Failed),
        };
        let Some(state) = state else {
            if matches!(request, Request::Close { .. }) {
                self.read_state(number);
            }
            return Ok(reply);
        };
        if matches!(request, Request::Close { .. }) {
            target.durable = target.cache;
        } else if std::mem::take(&mut target.fails_state) {
            let is_written = self.random.once_in(2);
            self.count(if is_written { Fault::StateWrittenAndRefused } else { Fault::StateNotWritten });
            self.fail_to_write_state(number, &state, is_written);
            return Err(PoolRefusal::Failed);
        }
        if matches!(request, Request::Begin { .. }) {
            target.has_begun = true;
        }
        if matches!(request, Request::Confirm { .. }) {
            target.restored = None;
        }
        target.page.write(&state, Progress::Both, control);
        target.state = state;
        Ok(reply)
    }
}
