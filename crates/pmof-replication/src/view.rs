//! What the members of an open pool are told of epochs and marks, and who is in sync: decided without input or output.

use alloc::{boxed::Box, vec, vec::Vec};

use pmof_control::{ANCESTORS_MAX, Epoch, PoolState, Reply, Request};
use uuid::Uuid;

use crate::{
    keeper::{EpochRecord, KeeperError, Kept, KeptBy},
    lineage::{Base, quorum},
};

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

/// The members of a pool by their positions: bit *n* for the *n*-th.
pub type Positions = u64;

/// The positions one by one.
pub fn bits(positions: Positions) -> impl Iterator<Item = usize> + Clone {
    (0..Positions::BITS as usize).filter(move |position| positions & (1 << position) != 0)
}

/// Which members must know of an epoch, and how many of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Where members lie, or may: more than there are, where it is not known who lies where.
    members: Positions,
    /// How many members there are.
    count: usize,
    /// So many of them must know.
    quorum: usize,
    keeper: KeptBy,
}

impl Rule {
    /// The rule of a pool of so many members.
    pub fn of(count: usize) -> Self {
        Self { members: Positions::MAX, count, quorum: quorum(count), keeper: KeptBy::Members }
    }

    /// The same where this keeper decides: with one outside of the members any of them are enough.
    #[must_use]
    pub fn kept_by(self, keeper: KeptBy) -> Self {
        Self { keeper, ..self }.of_count(self.count)
    }

    fn of_count(self, count: usize) -> Self {
        let quorum = if self.keeper == KeptBy::Members { quorum(count) } else { 0 };
        Self { count, quorum, ..self }
    }

    /// The same where fewer are enough, as whoever opens it has decided.
    #[must_use]
    pub fn at_most(self, quorum: usize) -> Self {
        Self { quorum: self.quorum.min(quorum), ..self }
    }

    /// The same where the member at a position is none, or is one.
    #[must_use]
    pub fn without(self, position: usize) -> Self {
        Self { members: self.members & !(1 << position), ..self }
    }

    fn with(self, position: usize) -> Self {
        Self { members: self.members | 1 << position, ..self }
    }

    /// Whether enough of the connected members know.
    pub fn is_met(&self, connected: Positions) -> bool {
        (connected & self.members).count_ones() as usize >= self.quorum
    }

    /// Whether any two sets of so many meet, or need not, as another keeper decides.
    fn is_majority(&self) -> bool {
        2 * self.quorum > self.count || self.keeper != KeptBy::Members
    }
}

/// The epoch of an open pool and the mark in it, as its writer knows them.
#[derive(Clone, Debug)]
pub struct View {
    /// Members that must know of an epoch.
    rule: Rule,
    /// Those besides, while a change of the members is under way that an epoch may have made already: as many members as there are after it, or were before.
    other: Option<Other>,
    /// Which replica of the pool each member is, where that is known.
    indexes: Vec<Option<u16>>,
    /// What the next epoch descends from: the one in force, and its ancestors.
    base: Base,
    /// The highest mark of a member in use.
    mark: u64,
    /// The members of the epoch in force.
    in_force: Positions,
    /// The same while a quorum knows that epoch durably, else none: it may be in force for some members, and nothing is acknowledged under it.
    current: Positions,
    /// The same, also while an epoch is announced in which others take part, too: should one of those be lost, then what the others acknowledged without it would be
    /// none of that epoch's, which goes on to be confirmed.
    durable: Positions,
    /// Members that have been equal since the pool was opened; none while the opening makes them so.
    equal: Positions,
    /// Members that the opening relies on until its epoch is in force, where a quorum is no majority: another opening may have taken one of
    /// them over, and go on alone with it as this one with the others. They are those in sync, and those that may have confirmed an epoch
    /// which was announced, and have not as they were found.
    needed: Positions,
    /// Where each member was when it was left behind, of those that were in sync before.
    left_at: Vec<Option<Left>>,
    /// The mark that each member has confirmed while it was behind.
    marked: Vec<u64>,
    /// Members that had the mark when the pool was opened, as long as it is not raised.
    found_marked: Positions,
    /// Epochs that another writer has announced to members which come back, and the epochs that those descend from.
    overruled: Vec<(Epoch, Uuid)>,
    /// Epochs that this writer has announced, in force or not.
    own: Vec<Uuid>,
    /// The last of them, if it is not in force.
    announced: Option<Announced>,
    /// The same, while it is not known whether the keeper has put it in force.
    unsure: Option<Announced>,
    /// Another writer's epoch that the keeper has put in force.
    overruled_by: Option<Uuid>,
}

/// Epochs of one opening that are remembered, 1 MiB of them. After more a successor is known only by what it takes away.
const OWN_MAX: usize = 1 << 16;

/// The rule of a pool's members as they are not now.
#[derive(Clone, Copy, Debug)]
enum Other {
    /// As they will be.
    Next(Rule),
    /// As they were.
    Before(Rule),
}

/// Where a member was when it was left behind.
#[derive(Clone, Copy, Debug)]
struct Left {
    /// The epoch that it was a member of.
    epoch: Uuid,
    /// The mark that it may have had.
    mark: u64,
}

/// A change of the epoch that is under way.
#[derive(Clone, Copy, Debug, Default)]
pub enum Change {
    /// None.
    #[default]
    Idle,
    /// The epoch that is announced next has this name, and no other.
    Named(Uuid),
    /// Its writer tells the members of it.
    Announced(Announced),
    /// Its writer tells them that all know of it.
    Confirmed(Announced),
}

/// An epoch that all connected members were told of.
#[derive(Clone, Copy, Debug)]
pub struct Announced {
    epoch: Epoch,
    opening: u64,
    /// Members that were told.
    connected: Positions,
    /// Members in sync, which the epoch is of.
    in_use: Positions,
}

/// What is to be done next for a change of the epoch.
#[derive(Debug)]
pub enum Step {
    /// All connected members are asked this, those that catch up too: they are no members of the epoch, and are told of it all the same.
    TellAll(Box<(Request, Reply)>),
    /// False: too few members were left to know of it.
    Done(bool),
}

/// What a member that has come back is told.
#[derive(Debug)]
pub enum Introduction {
    /// It is a member of the epoch in force, since too few were left to go on without it, or knows of another writer's: there is to be a new
    /// one.
    ByChange,
    /// The epoch in force.
    Tell(Vec<(Request, Reply)>),
}

impl View {
    /// `in_use`: members that are in sync.
    pub fn new(rule: Rule, indexes: Vec<Option<u16>>, base: Base, mark: u64, in_use: Positions) -> Self {
        let (left_at, marked) = (vec![None; indexes.len()], vec![0; indexes.len()]);
        let is_announced = |index: &Option<u16>| {
            index.is_some_and(|index| base.announced.iter().any(|epoch| epoch.members == 0 || epoch.has(index)))
        };
        let announced = indexes.iter().enumerate().filter(|(_, index)| is_announced(index));
        let relied_on = announced.fold(in_use, |all, (position, _)| all | 1 << position);
        let needed = if rule.is_majority() { 0 } else { relied_on };
        let (in_force, current, durable) = (in_use, in_use, in_use);
        let (equal, other, overruled, own) = (0, None, Vec::new(), Vec::new());
        Self {
            rule,
            other,
            indexes,
            base,
            mark,
            in_force,
            current,
            durable,
            equal,
            needed,
            left_at,
            marked,
            found_marked: 0,
            overruled,
            own,
            announced: None,
            unsure: None,
            overruled_by: None,
        }
    }

    /// One more place, of a member that may come.
    pub fn add_place(&mut self, index: u16) {
        self.rule = self.rule.without(self.indexes.len());
        self.indexes.push(Some(index));
        self.left_at.push(None);
        self.marked.push(0);
    }

    /// The place of one that has never been a member, and is gone, for another that may come.
    pub fn reuse_place(&mut self, position: usize, index: u16) {
        self.rule = self.rule.without(position);
        self.indexes[position] = Some(index);
        (self.left_at[position], self.marked[position]) = (None, 0);
    }

    /// Where the replica of this index lies, if that is known.
    pub fn position(&self, index: u16) -> Option<usize> {
        self.indexes.iter().position(|known| *known == Some(index))
    }

    /// A member is to come, to this position, or to go: from now on an epoch needs enough members both as they are and as they will be.
    pub fn plan(&mut self, position: Option<usize>, is_added: bool) {
        let count = if is_added { self.rule.count + 1 } else { self.rule.count.saturating_sub(1) };
        let next = self.rule.of_count(count);
        let next = position.map_or(next, |at| if is_added { next.with(at) } else { next.without(at) });
        self.other = Some(Other::Next(next));
    }

    /// An epoch that was found made a change, of which enough others may not know: `rule` was in force before it.
    pub fn found_changed(&mut self, rule: Rule) {
        self.other = Some(Other::Before(rule));
    }

    /// The change of the members holds, as enough of those before and after it know: the members after it are the members.
    pub fn adopt(&mut self) {
        if let Some(Other::Next(next)) = self.other.take() {
            self.rule = next;
        }
    }

    /// Nobody is at this position any more.
    pub fn remove_place(&mut self, position: usize) {
        self.indexes[position] = None;
        self.rule = self.rule.without(position);
    }

    /// The change will not be made: its epoch was confirmed by nobody.
    pub fn give_up_plan(&mut self) {
        self.other = None;
    }

    /// Members that there are, and how many must know of an epoch.
    pub fn counts(&self) -> (usize, usize) {
        (self.rule.count, self.rule.quorum)
    }

    /// Whether the members decide which epoch is in force.
    pub fn is_kept_by_members(&self) -> bool {
        self.rule.keeper == KeptBy::Members
    }

    /// Whether an epoch is among those that led to the one in force, or is it.
    pub fn has_begun(&self, epoch: Uuid) -> bool {
        self.base.ancestors.iter().any(|known| known.id == epoch && known.members != 0)
    }

    /// The next step of a change to an epoch of the members in sync. First all are told, then all are told that all were: until then nothing
    /// was written under the epoch, and a replica that was not reached lacks nothing. `connected`, `in_use`: as it is now; `fresh`: the name of an epoch that begins.
    pub fn step(&mut self, change: &mut Change, connected: Positions, in_use: Positions, fresh: Uuid) -> Step {
        let mut named = None;
        match core::mem::take(change) {
            Change::Named(id) => named = Some(id),
            Change::Announced(announced) if connected == announced.connected => {
                if announced.in_use & !self.safe() != 0 {
                    self.current = 0;
                }
                *change = Change::Confirmed(announced);
                let confirm = Request::Confirm { epoch: announced.epoch.id };
                return Step::TellAll(Box::new((confirm, Reply::Confirmed)));
            }
            Change::Confirmed(announced) => {
                self.put_in_force(announced);
                if connected == announced.connected {
                    (self.current, self.durable, self.needed) = (announced.in_use, announced.in_use, 0);
                    // Those that know of this epoch are enough for the others never to be in force, which the next one says.
                    if !self.name_overruled() {
                        return Step::Done(true);
                    }
                }
            }
            Change::Idle | Change::Announced(_) => {}
        }
        if !self.may_go_on_with(connected, in_use) {
            self.current = self.safe();
            return Step::Done(false);
        }
        self.current = if in_use & !self.safe() == 0 { self.safe() } else { 0 };
        let indexes = self.indexes.iter().enumerate().filter(|(position, _)| in_use & (1 << position) != 0);
        let epoch = Epoch::new(named.unwrap_or(fresh), indexes.filter_map(|(_, index)| *index));
        if self.own.len() < OWN_MAX {
            self.own.push(epoch.id);
        }
        let opening = self.base.opening.saturating_add(1);
        let ancestors = self.base.ancestors.clone();
        let announced = Announced { epoch, opening, connected, in_use };
        (*change, self.announced) = (Change::Announced(announced), Some(announced));
        Step::TellAll(Box::new((Request::Begin { opening, epoch, ancestors }, Reply::Begun)))
    }

    /// The epoch of a change is in force, whether all that are to know have heard of it or not.
    fn put_in_force(&mut self, announced: Announced) {
        self.note_left(self.equal & !announced.in_use);
        if self.equal != 0 {
            self.equal = announced.in_use;
        }
        self.base = Base::after(announced.epoch, announced.opening, &self.base.ancestors);
        (self.in_force, self.current, self.durable) = (announced.in_use, 0, 0);
        (self.announced, self.unsure) = (None, None);
    }

    /// Members of which all must have what is acknowledged while no other epoch is in force; none while there are no such.
    fn safe(&self) -> Positions {
        let unsure = self.unsure.map_or(0, |unsure| unsure.in_use);
        if self.durable == 0 { 0 } else { self.durable | unsure }
    }

    /// What the keeper is asked about a change: the epoch that it announces or confirms.
    pub fn record(&self, change: &Change) -> Option<EpochRecord> {
        let (Change::Announced(announced) | Change::Confirmed(announced)) = change else { return None };
        let Announced { epoch, opening, .. } = *announced;
        Some(EpochRecord { epoch, opening, ancestors: self.base.ancestors.clone() })
    }

    /// The keeper has announced an epoch behind the one in force: one before it cannot come in force.
    pub fn note_kept(&mut self) {
        self.unsure = None;
    }

    /// The keeper has not done what it was asked for a change. Whether the change is to go on at once, from its first step.
    pub fn refused(&mut self, change: &mut Change, why: &KeeperError) -> bool {
        let mut goes_on = matches!(why, KeeperError::Displaced { .. });
        match (why, core::mem::take(change)) {
            (KeeperError::Overruled { by }, _) => {
                let own = self.unsure.filter(|unsure| unsure.epoch.id == *by);
                goes_on = own.is_some();
                match own {
                    Some(own) => self.put_in_force(own),
                    None => self.note_overruled(*by),
                }
            }
            (KeeperError::Unknown, Change::Confirmed(announced)) => self.unsure = Some(announced),
            _ => {}
        }
        self.current = self.safe();
        goes_on
    }

    /// Another writer's epoch is in force: nothing is acknowledged to this writer from now on.
    fn note_overruled(&mut self, by: Uuid) {
        self.overruled_by = Some(by);
        (self.unsure, self.current, self.durable) = (None, 0, 0);
    }

    /// What a keeper was found to have. Returns the epoch by which another writer has overruled this one, if it has.
    pub fn note_in_force(&mut self, kept: &Kept) -> Option<Uuid> {
        let id = kept.in_force.epoch.id;
        let is_unsure = self.unsure.is_some_and(|unsure| unsure.epoch.id == id);
        if Some(id) != self.epoch() && !is_unsure && !self.own.contains(&id) {
            self.note_overruled(id);
        }
        self.overruled_by
    }

    /// The epoch of another writer that has overruled this one.
    pub fn overruled_by(&self) -> Option<Uuid> {
        self.overruled_by
    }

    /// Whether it is not known if the keeper has put this epoch in force.
    pub fn is_unsure(&self, epoch: Uuid) -> bool {
        self.unsure.is_some_and(|unsure| unsure.epoch.id == epoch)
    }

    /// The epoch in force and the one that is announced, as this writer knows them. `None`: there is no epoch.
    pub fn kept(&self) -> Option<Kept> {
        let (epoch, ancestors) = self.base.ancestors.split_first()?;
        let in_force = EpochRecord { epoch: *epoch, opening: self.base.opening, ancestors: ancestors.to_vec() };
        let announced = self.announced.and_then(|announced| self.record(&Change::Announced(announced)));
        Some(Kept { in_force, announced })
    }

    /// The first step of a change to an epoch in which a member takes part that is about to join, and is not in sync yet: until the next one everything is acknowledged
    /// under the epoch before.
    pub fn announce(&mut self, change: &mut Change, connected: Positions, in_use: Positions, fresh: Uuid) -> Step {
        let current = self.current;
        let step = self.step(change, connected, in_use, fresh);
        self.current = current;
        step
    }

    /// Whether so many members can know of an epoch.
    pub fn is_quorum(&self, connected: Positions) -> bool {
        self.rules().all(|rule| rule.is_met(connected))
    }

    /// Whether each opening from now on finds a member that keeps what these keep, while those in use are the ones in sync.
    pub fn is_found(&self, keeping: Positions, in_use: Positions) -> bool {
        if self.may_open_alone() { self.is_settled(in_use) && in_use & !keeping == 0 } else { self.is_quorum(keeping) }
    }

    /// Whether a member of the epoch in force may open the pool alone: with a keeper outside of the members, or where a quorum is no majority, as of two.
    pub fn may_open_alone(&self) -> bool {
        !self.is_kept_by_members() || !self.rules().all(|rule| rule.is_majority())
    }

    /// Whether an epoch of the members in sync may begin where those that are connected know of it.
    pub fn may_go_on_with(&self, connected: Positions, in_use: Positions) -> bool {
        in_use != 0 && self.are_enough(connected) && self.is_heard(in_use) && self.overruled_by.is_none()
    }

    /// Whether these are as many as are to know of an epoch, and all that this opening has to meet.
    pub fn are_enough(&self, connected: Positions) -> bool {
        self.is_quorum(connected) && self.needed & !connected == 0
    }

    /// Whether those who might open the pool without the members in sync hear of a new epoch. Where a quorum is no majority, all members of
    /// the epoch in force are enough for that, so that one of them has to be told.
    fn is_heard(&self, in_use: Positions) -> bool {
        self.rules().all(|rule| rule.is_majority()) || in_use & self.in_force != 0
    }

    fn rules(&self) -> impl Iterator<Item = Rule> {
        let other = self.other.map(|other| match other {
            Other::Next(rule) | Other::Before(rule) => rule,
        });
        core::iter::once(self.rule).chain(other)
    }

    /// Puts epochs of others that will never be in force among the ancestors, behind their parents. False: there are none.
    fn name_overruled(&mut self) -> bool {
        let ancestors = &mut self.base.ancestors;
        let before = ancestors.len();
        for (epoch, parent) in core::mem::take(&mut self.overruled) {
            let is_new = ancestors.iter().all(|known| known.id != epoch.id);
            let parent = ancestors.iter().position(|known| known.id == parent).filter(|_| is_new);
            if let Some(parent) = parent {
                ancestors.insert(parent + 1, Epoch { members: 0, ..epoch });
            }
        }
        let has_named = ancestors.len() > before;
        ancestors.truncate(ANCESTORS_MAX);
        has_named
    }

    /// The pool was made by this writer, with the epoch in force.
    pub fn note_made(&mut self) {
        self.own.extend(self.epoch());
    }

    /// Whether the replica was told of an epoch by another writer that came after this one: it descends from an epoch of this one. A writer that
    /// died before has never heard of those.
    pub fn is_superseded_by(&self, state: &PoolState) -> bool {
        let is_own = |id: Uuid| self.own.contains(&id);
        let is_known = |id: Uuid| is_own(id) || self.base.ancestors.iter().any(|known| known.id == id);
        self.own.len() < OWN_MAX && !is_known(state.epoch.id) && state.ancestors.iter().any(|epoch| is_own(epoch.id))
    }

    /// Whether an epoch of this writer is in force: a quorum was told of it, so that no writer before it acknowledges anything any more.
    pub fn has_superseded(&self) -> bool {
        self.epoch().is_some_and(|epoch| self.own.contains(&epoch))
    }

    /// What a member of this index has to be told before it catches up. `state`: what it was found in, unless it stayed connected. `None`:
    /// there is no epoch.
    pub fn introduction(&mut self, index: u16, state: Option<&PoolState>) -> Option<Introduction> {
        let (epoch, ancestors) = self.base.ancestors.split_first()?;
        // Another writer was beginning an epoch while this one was away. It may be confirmed on a replica that is not here, and must not be
        // forgotten by one that knows that it was only announced.
        let is_known = |id: Uuid| self.base.ancestors.iter().any(|known| known.id == id);
        let announced = state.filter(|state| !state.is_confirmed && !is_known(state.epoch.id));
        let overruled = announced.and_then(|state| Some((state.epoch, state.ancestors.first()?.id)));
        if let Some((epoch, parent)) = overruled {
            self.overruled.retain(|(known, _)| known.id != epoch.id);
            self.overruled.push((epoch, parent));
        }
        if epoch.has(index) || overruled.is_some() {
            return Some(Introduction::ByChange);
        }
        let begin = Request::Begin { opening: self.base.opening, epoch: *epoch, ancestors: ancestors.to_vec() };
        let confirm = Request::Confirm { epoch: epoch.id };
        Some(Introduction::Tell(vec![(begin, Reply::Begun), (confirm, Reply::Confirmed)]))
    }

    /// Members that are in sync by an epoch which a quorum knows durably; none while there is no such epoch.
    pub fn current(&self) -> Positions {
        self.current
    }

    /// Whether the members in sync have an epoch of their own, which a quorum knows durably. Without any there is none, and no mark is raised:
    /// one that nobody in sync has would make older copies of all that were.
    pub fn is_settled(&self, in_use: Positions) -> bool {
        in_use != 0 && in_use == self.current
    }

    /// The epoch in force, of which only its writer and its members know.
    pub fn epoch(&self) -> Option<Uuid> {
        self.base.ancestors.first().map(|epoch| epoch.id)
    }

    /// The epoch that a member was in when it was lost, as far as its writer knows.
    pub fn epoch_of(&self, position: usize) -> Option<Uuid> {
        self.left_at.get(position).copied().flatten().map(|left| left.epoch).or_else(|| self.epoch())
    }

    /// Epochs that led to the one in force, itself first.
    pub fn line(&self) -> &[Epoch] {
        &self.base.ancestors
    }

    /// Openings and changes of members so far.
    pub fn opening(&self) -> u64 {
        self.base.opening
    }

    /// Raises the mark, for the members in sync to be told.
    pub fn raise_mark(&mut self) -> Request {
        self.found_marked = 0;
        self.mark = self.mark.saturating_add(1);
        self.mark()
    }

    /// These members were found with the mark, durably.
    pub fn note_found_marked(&mut self, marked: Positions) {
        self.found_marked = marked;
    }

    /// Members that may lack the mark: all that were not found with it.
    pub fn lacking_mark(&self) -> Positions {
        !self.found_marked
    }

    /// The mark that all members in sync were told, or are being told.
    pub fn newest_mark(&self) -> u64 {
        self.mark
    }

    /// The mark as it is, for the members in sync to be told.
    pub fn mark(&self) -> Request {
        Request::Mark { mark: self.mark }
    }

    /// Whether the opening has made the members in sync equal.
    pub fn has_made_equal(&self) -> bool {
        self.equal != 0
    }

    /// The opening has made the members in sync equal, or they are new.
    pub fn note_equal(&mut self, in_use: Positions) {
        (self.equal, self.needed) = (in_use, 0);
    }

    /// Whether all that a member lacks was written since it was lost: it was in sync while the pool was open, and its `mark` says
    /// that it lacks nothing older.
    pub fn knows_what_lacks(&self, position: usize, mark: u64) -> bool {
        let left_at = self.left_at.get(position).copied().flatten();
        left_at.is_some_and(|left_at| mark.saturating_add(1) >= left_at.mark)
    }

    /// The writer sends this mark to a member that knows that it is behind, or knows that it has it: what it was sent is gone if it comes back with an older one.
    pub fn note_marked(&mut self, position: usize, mark: &Request) {
        if let Request::Mark { mark } = mark {
            self.marked[position] = *mark;
        }
    }

    /// Whether a member that was behind and comes back with this mark has what was copied to it.
    pub fn has_kept(&self, position: usize, mark: u64) -> bool {
        self.marked.get(position).is_some_and(|marked| mark >= *marked)
    }

    /// The index in the pool of the member there; `None` of a former member.
    pub fn index(&self, position: usize) -> Option<u16> {
        self.indexes.get(position).copied().flatten()
    }

    /// Whether another member is this replica of the pool.
    pub fn has_other(&self, index: u16, position: usize) -> bool {
        self.indexes.iter().enumerate().any(|(other, known)| other != position && *known == Some(index))
    }

    /// The member at this position is this replica of the pool.
    pub fn identify(&mut self, position: usize, index: u16) {
        self.indexes[position] = Some(index);
    }

    fn note_left(&mut self, positions: Positions) {
        let Some(epoch) = self.epoch() else { return };
        for (position, left_at) in self.left_at.iter_mut().enumerate() {
            if positions & (1 << position) != 0 {
                *left_at = Some(Left { epoch, mark: self.mark });
            }
        }
    }
}
