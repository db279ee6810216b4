//! Targets with their media: what they are asked, and what they keep.

use std::{rc::Rc, time::Duration};

use pmof_access::Durability;
use pmof_control::{Claim, MeantReplica, NewPool, OpenFor, PoolState, Reply, Request, Roster, WITNESS_BYTES};
use pmof_target::{
    StoreError,
    engine::{Failure, Fencing, Holder, OpenReplica, Opening, Verdict, judge, run},
};
use uuid::Uuid;

use super::{
    areas::Areas,
    faults::Fault,
    media::{Media, OnHolder, OnMedia, TargetRules, pool_name},
    names::fresh,
    plan::{Control, PAGES, WORDS},
    truth::{Page, Pages, is_rotten},
    versions::Version,
    world::World,
};

#[derive(Clone, Debug)]
pub(super) enum Message {
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
    /// A reply, as it is sent.
    Encoded(Vec<u8>),
    Flushed,
    Pages(Pages),
    Refused,
    /// A reply, as it is sent: it is of another version, or the replica is.
    OtherVersion(Version, Vec<u8>),
}

/// A target with its replica, if it has one: what is durable, what the page cache shows, and who has it open.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fault that may have met it")]
pub(super) struct Target {
    /// There is a replica.
    pub(super) is_there: bool,
    pub(super) index: u16,
    pub(super) replica_uuid: Uuid,
    /// Replicas of the pool when it was made.
    pub(super) count: u16,
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
    /// What its file has, of which the state and the roster are read.
    pub(super) media: Media,
    pub(super) durable: Pages,
    pub(super) cache: Pages,
    /// Who has it open.
    pub(super) open: Option<Held>,
    pub(super) is_up: bool,
    pub(super) copies: Vec<(Media, PoolState, Pages)>,
    /// The next flush fails; the next state is not written, or written and refused.
    pub(super) fails_flush: bool,
    pub(super) fails_state: bool,
    /// What is read next cannot be.
    pub(super) fails_read: bool,
    /// Its process is stopped, and the step at which it last went on.
    pub(super) is_paused: bool,
    pub(super) resumed_at: u64,
    /// Its disk is slow: a flush takes so many steps, and so does a change of the state.
    pub(super) disk_steps: u64,
    /// A flush failed: all that follow do, until the replica is opened anew.
    pub(super) is_poisoned: bool,
    /// What is flushed finds no room, or not for all.
    pub(super) is_full: bool,
    /// It was put back to an older copy, and does not know yet that it is behind.
    pub(super) restored: Option<Restored>,
    /// How often it was put back.
    pub(super) restored_times: u64,
}

/// A replica that a connection has open.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) by: usize,
    pub(super) replica: OpenReplica<TargetRules>,
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
            count: state.epoch.members.count_ones() as u16,
            roster: None,
            is_witness: false,
            areas: None,
            version: Version::Here,
            boots: 0,
            media: Media::made(&state, None),
            state,
            durable: [[0; WORDS]; PAGES],
            cache: [[0; WORDS]; PAGES],
            open: None,
            is_up: true,
            copies: Vec::new(),
            fails_flush: false,
            fails_state: false,
            fails_read: false,
            is_paused: false,
            resumed_at: 0,
            disk_steps: 0,
            is_poisoned: false,
            is_full: false,
            restored: None,
            restored_times: 0,
        }
    }

    /// The connection that has it open.
    pub(super) fn open_by(&self) -> Option<usize> {
        self.open.as_ref().map(|held| held.by)
    }

    /// What it answers where it, or what lies there, is of another version.
    fn refusal(&self, message: &Message) -> Option<Vec<u8>> {
        let is_refused = matches!(message, Message::Encoded(_)) && (self.is_there || !self.version.is_of_file());
        let is_other = self.version != Version::Here;
        if is_refused && is_other { self.version.refusal((self.replica_uuid, self.index)) } else { None }
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

    /// Opens the replica for a connection, or takes it from a holder that was silent for so long, or is named.
    pub(super) fn take_over(&mut self, connection: usize, silence: Duration, claim: Claim) -> Result<(), StoreError> {
        let number = self.connections[connection].target;
        let writer = self.connections[connection].writer;
        if self.targets[number].version.is_served() {
            self.count(Fault::VersionServed);
        }
        self.check_there(number)?;
        let Some(held) = self.targets[number].open.clone().filter(|_| self.may_judge(writer, number)) else {
            return self.open(connection, claim.own());
        };
        let silent_for = Duration::ZERO;
        let holder = Holder { replica: Some(&held.replica), silent_for };
        if judge(&holder, silence, claim) != Verdict::Fenced {
            return Err(self.busy(connection));
        }
        let takes_over = silent_for >= silence;
        self.count(match claim {
            _ if takes_over => Fault::TakenOver,
            Claim::Superseded(_) => Fault::SupersededEnded,
            Claim::Own(_) | Claim::None => Fault::TakenFromOwnConnection,
        });
        let held_by = self.connections[held.by].writer;
        let may_be = matches!(claim, Claim::Superseded(_)) && !self.truth.is_newest_of(held_by);
        if self.connections[held.by].is_open_here && !takes_over && held_by != writer && !may_be {
            self.truth.violate(|| format!("w{writer} takes t{number} from its successor"));
        }
        self.targets[number].open = None;
        let fenced = run(Fencing::new(false), &mut OnHolder { world: self, number, holder: held.by });
        self.read_media(number);
        fenced.map_err(of_target)?;
        let replica = held.replica.handed_over().named_by(claim.own());
        self.targets[number].open = Some(Held { by: connection, replica });
        Ok(())
    }

    /// Opens the replica, which has no holder.
    pub(super) fn open(&mut self, connection: usize, named_epoch: Option<Uuid>) -> Result<(), StoreError> {
        let number = self.connections[connection].target;
        self.check_there(number)?;
        if self.targets[number].open.is_some() || !self.may_judge(self.connections[connection].writer, number) {
            return Err(self.busy(connection));
        }
        let replica = self.opened(number, OpenFor::Write)?.named_by(named_epoch);
        self.targets[number].open = Some(Held { by: connection, replica });
        Ok(())
    }

    /// The replica of a target as its engine opens it.
    pub(super) fn opened(&mut self, number: usize, access: OpenFor) -> Result<OpenReplica<TargetRules>, StoreError> {
        if access == OpenFor::Write {
            self.targets[number].is_poisoned = false;
        }
        let opening = Opening::new(access, false, TargetRules(self.control));
        let opened = run(opening, &mut OnMedia::new(self, number));
        self.read_media(number);
        opened.map_err(of_target)
    }

    fn busy(&mut self, connection: usize) -> StoreError {
        let holder = self.targets[self.connections[connection].target].open_by();
        let has_left = |connection: usize| !self.connections[connection].is_open_here;
        if has_left(connection) || holder.is_some_and(has_left) {
            self.count(Fault::LateNotice);
        }
        StoreError::Busy { name: pool_name(), holder: format!("{holder:?}") }
    }

    pub(super) fn check_there(&self, number: usize) -> Result<(), StoreError> {
        let not_found = || StoreError::NotFound { name: pool_name(), root: "/".into() };
        if self.targets[number].is_there { Ok(()) } else { Err(not_found()) }
    }

    /// Makes an empty replica, and opens it.
    pub(super) fn create(&mut self, connection: usize, new: &NewPool) -> Result<(), StoreError> {
        let target = &mut self.targets[self.connections[connection].target];
        if target.is_there {
            return Err(StoreError::AlreadyExists { name: pool_name(), root: "/".into() });
        }
        let (state, is_witness) = (PoolState::new(new.epoch, new.replica_count), new.size_bytes == WITNESS_BYTES);
        let (boots, version) = (target.boots, target.version.without_file());
        *target = Target { is_witness, version, boots, ..Target::new(new.replica_index, state, true) };
        let replica = OpenReplica::made(target.header(), target.state.clone(), TargetRules(self.control));
        target.open = Some(Held { by: connection, replica });
        Ok(())
    }

    /// Removes the replica that is meant, if no other connection has it open.
    pub(super) fn remove(&mut self, connection: usize, meant: Option<MeantReplica>) -> Result<(), StoreError> {
        let number = self.connections[connection].target;
        self.check_there(number)?;
        let target = &mut self.targets[number];
        let (found, name) = (target.replica_uuid, pool_name());
        if let Some(MeantReplica { uuid: meant, .. }) = meant.filter(|meant| meant.uuid != found) {
            return Err(StoreError::OtherReplica { name, found, meant });
        }
        if target.open_by().is_some_and(|by| by != connection) {
            return Err(self.busy(connection));
        }
        if meant.and_then(|meant| meant.epoch).is_some_and(|epoch| epoch != target.state.epoch.id) {
            return Err(StoreError::OpenedSince { name });
        }
        (target.is_there, target.open, target.version) = (false, None, target.version.without_file());
        Ok(())
    }

    /// Makes durable what the page cache has, if it can be.
    pub(super) fn flush(&mut self, number: usize) -> bool {
        let target = &mut self.targets[number];
        if target.is_poisoned {
            return false;
        }
        if std::mem::take(&mut target.fails_flush) {
            target.is_poisoned = true;
            // The kernel forgets what it could not write.
            target.cache = target.durable;
            self.count(Fault::FlushFailed);
            return false;
        }
        if target.is_full && target.cache != target.durable {
            target.is_poisoned = true;
            self.count(Fault::DiskFull);
            self.drop_unflushed(number);
            return false;
        }
        target.durable = target.cache;
        true
    }

    pub(super) fn handle(&mut self, index: usize, message: &Message) -> Option<Answer> {
        let number = self.connections[index].target;
        self.misread_version(number);
        if let Some(reply) = self.targets[number].refusal(message) {
            return Some(Answer::OtherVersion(self.targets[number].version, reply));
        }
        let target = &mut self.targets[number];
        let is_fenced = target.open_by() != Some(index) && self.control != Some(Control::NotFenced);
        match message {
            Message::Encoded(request) => Some(self.serve(index, request)),
            _ if is_fenced => Some(Answer::Refused),
            Message::Write { .. } if target.is_witness => None,
            Message::Write { page, words } => {
                target.cache[*page] = *words;
                if is_rotten(words) {
                    self.count(Fault::RotCopied);
                }
                None
            }
            Message::Flush => Some(if self.flush(number) { Answer::Flushed } else { Answer::Refused }),
            Message::Read if std::mem::take(&mut target.fails_read) => {
                self.count(Fault::ReadFailed);
                Some(Answer::Refused)
            }
            Message::Read => Some(Answer::Pages(target.cache)),
        }
    }

    /// Carries out what is asked of the replica that a writer has open, which a close lets go of.
    pub(super) fn serve_open(&mut self, number: usize, request: &Request) -> Option<Result<Reply, StoreError>> {
        let mut held = self.targets[number].open.take()?;
        let served = self.serve_replica(number, &mut held.replica, request);
        if !matches!(request, Request::Close { .. }) {
            self.targets[number].open = Some(held);
        }
        self.read_media(number);
        if matches!(served, Ok(Reply::Confirmed)) {
            self.targets[number].restored = None;
        }
        Some(served)
    }

    /// The same of a replica that is open for reading.
    pub(super) fn serve_reader(&mut self, connection: usize, request: &Request) -> Option<Result<Reply, StoreError>> {
        let mut replica = self.connections[connection].reading.take()?;
        let served = self.serve_replica(self.connections[connection].target, &mut replica, request);
        self.connections[connection].reading = Some(replica).filter(|_| !matches!(request, Request::Close { .. }));
        Some(served)
    }

    fn serve_replica(
        &mut self,
        number: usize,
        replica: &mut OpenReplica<TargetRules>,
        request: &Request,
    ) -> Result<Reply, StoreError> {
        let serving = replica.serve(request.clone(), Some(Durability::PowerFailure));
        run(serving, &mut OnMedia::new(self, number)).map_err(of_target)
    }
}

fn of_target(failure: Failure<StoreError>) -> StoreError {
    match failure {
        Failure::Refused(refusal) => StoreError::of_refusal(&pool_name(), refusal),
        Failure::Failed(error) => error,
    }
}
