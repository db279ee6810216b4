//! The epochs and the members of an open pool: every step that its writer takes to change them.
//!
//! The steps are futures that wait for nothing but what a [`Driver`] tells the members. In a program the driver blocks its thread, so that each future is ready at its first
//! poll; in the simulation it waits for simulated members.

use alloc::vec::Vec;

use pmof_control::{PoolState, Reply, Request, Role, Roster, RosterMember, RosterPart};
use uuid::Uuid;

use crate::{
    keeper::{Keeper, KeeperError},
    member_state::MemberState,
    membership::{Changed, Membership, Plan, Planned},
    roster::with_uncounted,
    view::{Change, Introduction, Positions, Step, View},
};

mod member_quorum;
#[cfg(test)]
mod tests;

pub use member_quorum::MemberQuorum;

/// How often a change of the members is tried that losses and returns disturb.
const ATTEMPTS: usize = 3;

/// How often an epoch is announced that another writer's announcements displace: two writers of which each has members that the other lacks must not wait for each other.
const ANNOUNCEMENTS: usize = 3;

/// What a writer knows of the epochs and the members.
#[derive(Debug)]
pub struct Epochs {
    /// The epoch in force, and the mark.
    pub view: View,
    /// What the members keep of each other.
    pub membership: Membership,
    /// The pool is being closed: what a persist wrote that is acknowledged from now on is on replicas that are closed in order, or that have failed.
    pub has_ended: bool,
    /// Epochs that were announced, and members that were introduced: each undoes an announcement before it.
    changes: u64,
}

/// What the steps need of the members, and of the process. The caller keeps others from changing epochs while a step runs.
pub trait Driver {
    /// What decides which epoch is in force.
    type Keeper<'k>: Keeper
    where
        Self: 'k;

    /// The pool's keeper of epochs. It is asked while no one else changes epochs.
    fn keeper(&self) -> Self::Keeper<'_>;

    /// Looks at the epochs, or changes them. Never across a wait.
    fn with<T>(&self, look: impl FnOnce(&mut Epochs) -> T) -> T;

    /// The positions of the members in such states.
    fn positions(&self, is: impl Fn(MemberState) -> bool) -> Positions;

    /// Sends one request to each of these members and waits for the replies. A member that replies anything but `expected` is lost, a slow one may be left behind. Returns the members
    /// that replied as expected.
    fn tell(&self, asked: Positions, request: &Request, expected: &Reply) -> impl Future<Output = Positions>;

    /// A name for an epoch, which nothing has yet.
    fn fresh_name(&self) -> Uuid;

    /// The members of the epoch that a quorum knows durably have changed, or may have.
    fn note_current(&self, current: Positions);

    /// The keeper has refused what it was asked for. After [`KeeperError::Overruled`] this writer can change nothing: the pool is another writer's.
    fn note_refused(&self, _why: &KeeperError) {}
}

/// An epoch that was announced for a member to join by.
#[derive(Debug)]
pub struct Joining {
    change: Change,
    /// [`Epochs::changes`] since then.
    changes: u64,
    /// What the member was told.
    mark: Request,
}

/// The next step of an introduction.
#[derive(Debug)]
pub enum Introducing {
    /// The member is to keep this roster first: what it says of epochs counts for the members that the roster names.
    Give(Roster),
    /// It is to be told this.
    Tell(Vec<(Request, Reply)>),
    /// It has its place now.
    Placed {
        /// An epoch is to [begin](begin()), which counts it.
        needs_change: bool,
    },
    /// It gets no place.
    Refused,
}

/// What a member was told and given of an introduction.
#[derive(Debug, Default)]
pub struct Introduced {
    told: Option<Uuid>,
    given: Option<Roster>,
    /// It has its place, and hears of epochs as they come.
    is_placed: bool,
}

impl Epochs {
    /// Of a pool that was opened or made.
    pub fn new(view: View, membership: Membership) -> Self {
        Self { view, membership, has_ended: false, changes: 0 }
    }

    /// A member was introduced, or lost its place: an announcement before that is void.
    pub fn note_change(&mut self) {
        self.changes += 1;
    }

    /// Whether a persist that has reached members may be acknowledged. `lacks_any`: a member with data lacks it. `is_acknowledged`: the outcome of [`acknowledge`]; where all members
    /// have the bytes no epoch is needed, unless it is not known who the members are: one that a change may not have removed lacks the bytes, and has no place here.
    pub fn is_enough(&self, lacks_any: bool, is_acknowledged: bool) -> bool {
        is_acknowledged || (!lacks_any && !self.membership.has_change())
    }

    /// The next step of introducing a member: it learns durably that it is behind the epoch in force, and then gets its place. The caller sends the requests between two
    /// steps, without the lock, so that a member that does not answer delays no other.
    ///
    /// `known`: the replica that it is, where it has to be a member now. `found`: its state, unless it stayed connected.
    pub fn introduce(
        &mut self,
        position: usize,
        (index, known, found): (u16, Option<Uuid>, Option<&PoolState>),
        so_far: &mut Introduced,
    ) -> Introducing {
        // It may have been removed since it was looked up.
        if self.has_ended || !known.is_none_or(|uuid| self.membership.may_return(index, uuid)) {
            return Introducing::Refused;
        }
        if so_far.given.as_ref() != self.membership.roster() {
            so_far.given = self.membership.roster().cloned();
            if let Some(roster) = &so_far.given {
                return Introducing::Give(roster.clone());
            }
        }
        let is_told = so_far.told.is_some() && so_far.told == self.view.epoch();
        match self.view.introduction(index, found) {
            None => Introducing::Refused,
            Some(Introduction::Tell(to_tell)) if !is_told && !so_far.is_placed => {
                so_far.told = self.view.epoch();
                Introducing::Tell(to_tell)
            }
            introduction => {
                if !core::mem::replace(&mut so_far.is_placed, true) {
                    self.membership.note_kept(1 << position);
                    self.note_change();
                    self.view.identify(position, index);
                }
                Introducing::Placed { needs_change: matches!(introduction, Some(Introduction::ByChange)) }
            }
        }
    }

    /// How many members have the pool's data; during a change of the members, as before it. `witness_count`: of a pool whose targets keep no roster.
    pub fn data_count(&self, witness_count: usize) -> usize {
        let is_witness = |member: &&RosterMember| member.role == Role::Witness;
        let in_roster = |roster: &Roster| roster.settled(|_| false).members.iter().filter(is_witness).count();
        self.view.counts().0.saturating_sub(self.membership.roster().map_or(witness_count, in_roster))
    }
}

/// Members in sync, without the one that a pending change removes.
pub fn in_use(driver: &impl Driver) -> Positions {
    driver.positions(MemberState::is_in_sync) & !driver.with(|epochs| epochs.membership.leaving())
}

/// Members to which epochs are sent: all connected ones, or only the prompt ones where these are a quorum.
pub fn connected(driver: &impl Driver) -> Positions {
    let prompt = driver.positions(MemberState::is_prompt);
    if driver.with(|epochs| epochs.view.is_quorum(prompt)) {
        prompt
    } else {
        driver.positions(MemberState::is_connected)
    }
}

/// Members that keep the mark: members in use, and prompt witnesses, which expose an older copy of the only replica in sync.
fn marked(driver: &impl Driver) -> Positions {
    let in_use = in_use(driver);
    if in_use == 0 {
        return 0;
    }
    let witnesses = driver.positions(|state| state.is_witness() && state.is_well());
    in_use | witnesses & !driver.with(|epochs| epochs.membership.leaving())
}

/// Whether an epoch can begin as soon as more members are connected.
pub(crate) fn awaits_members(driver: &impl Driver) -> bool {
    let (connected, in_use) = (connected(driver), in_use(driver));
    driver.with(|epochs| in_use != 0 && !epochs.has_ended && !epochs.view.are_enough(connected))
}

/// Whether the pool may go on with the members that are connected.
fn may_go_on(driver: &impl Driver) -> bool {
    let (connected, in_use) = (connected(driver), in_use(driver));
    driver.with(|epochs| epochs.view.may_go_on_with(connected, in_use))
}

/// Sends the roster to connected members that lack it. Returns the members to which epochs are sent.
pub async fn inform(driver: &impl Driver) -> Positions {
    let connected_now = connected(driver);
    let lacking = driver.with(|epochs| epochs.membership.lacking(connected_now));
    let encoded = driver.with(|epochs| {
        let roster = epochs.membership.roster().filter(|_| lacking != 0);
        roster.and_then(|roster| roster.encode().ok())
    });
    let Some(encoded) = encoded else { return connected_now };
    let mut kept = lacking;
    for request in RosterPart::requests(&encoded) {
        kept = driver.tell(lacking & kept, &request, &Reply::RosterSet).await;
    }
    let connected = connected(driver);
    driver.with(|epochs| {
        epochs.membership.note_kept(kept);
        epochs.membership.informed(connected)
    })
}

/// Gives the members in use an epoch of their own, durably. One that does not take it is lost. False: too few were left.
pub async fn begin(driver: &impl Driver) -> bool {
    go_on(driver, Change::default()).await
}

async fn go_on(driver: &impl Driver, mut change: Change) -> bool {
    driver.with(Epochs::note_change);
    let mut displaced = 0;
    loop {
        let informed = inform(driver).await;
        let (in_use, name) = (in_use(driver), driver.fresh_name());
        let (step, current) = driver.with(|epochs| {
            let step = epochs.view.step(&mut change, informed, in_use, name);
            (step, epochs.view.current())
        });
        driver.note_current(current);
        match step {
            Step::TellAll(question) => match ask_keeper(driver, &change).await {
                Ok(()) => _ = driver.tell(informed, &question.0, &question.1).await,
                Err(why) => {
                    displaced += usize::from(matches!(why, KeeperError::Displaced { .. }));
                    if !refused(driver, &mut change, &why) || displaced == ANNOUNCEMENTS {
                        return false;
                    }
                }
            },
            Step::Done(is_done) => {
                if is_done {
                    settle_members(driver).await;
                }
                return is_done;
            }
        }
    }
}

/// Has the keeper decide on the next step of a change before the members hear of it. So a member that knows of an epoch knows that none announced before it can come in force, and
/// one that has confirmed an epoch knows that it is in force.
async fn ask_keeper(driver: &impl Driver, change: &Change) -> Result<(), KeeperError> {
    let Some(record) = driver.with(|epochs| epochs.view.record(change)) else { return Ok(()) };
    if matches!(change, Change::Confirmed(_)) {
        return driver.keeper().confirm(&record).await;
    }
    driver.keeper().begin(&record).await?;
    driver.with(|epochs| epochs.view.note_kept());
    Ok(())
}

/// Takes a change back that the keeper has refused. Whether it goes on at once.
fn refused(driver: &impl Driver, change: &mut Change, why: &KeeperError) -> bool {
    let (goes_on, current) = driver.with(|epochs| (epochs.view.refused(change, why), epochs.view.current()));
    driver.note_current(current);
    if !goes_on {
        driver.note_refused(why);
    }
    goes_on
}

/// A change of the members whose epoch is in force holds: has them keep it so.
async fn settle_members(driver: &impl Driver) {
    if driver.with(|epochs| epochs.membership.settle(&mut epochs.view)) {
        inform(driver).await;
    }
}

/// Has the members in use know what they must before a persist is acknowledged: that those which failed are left behind, and where it is due a new mark. Whether the persist may be
/// acknowledged: too few members may be left to know.
///
/// `is_due`: whether a mark is due, asked when the step before is done.
pub async fn acknowledge(driver: &impl Driver, is_due: impl Fn() -> bool, note_marked: impl FnOnce()) -> bool {
    if driver.with(|epochs| epochs.has_ended) {
        return is_current(driver);
    }
    // Before the mark is raised a quorum knows which members are left behind: the mark says how far they came.
    let in_use = in_use(driver);
    let is_settled = driver.with(|epochs| epochs.view.is_settled(in_use)) || begin(driver).await;
    if !is_settled || !is_due() {
        return is_settled;
    }
    raise_mark(driver).await;
    note_marked();
    is_current(driver) || begin(driver).await
}

/// Whether the members in use are those of an epoch that a quorum knows durably.
fn is_current(driver: &impl Driver) -> bool {
    in_use(driver) == driver.with(|epochs| epochs.view.current())
}

/// Whether the members in use have an epoch without the others, which they are given if they have not.
pub async fn settle(driver: &impl Driver) -> bool {
    is_current(driver) || begin(driver).await
}

/// Raises the mark on all members in use, durably: after the flush and before the persist is acknowledged, so that a copy
/// made before the mark was due lacks it. The target takes the occasion to see that the file still has its name.
pub async fn raise_mark(driver: &impl Driver) {
    let request = driver.with(|epochs| epochs.view.raise_mark());
    driver.tell(marked(driver), &request, &Reply::Marked).await;
}

/// Tells the mark as it is to the members in use that may lack it.
pub async fn tell_mark(driver: &impl Driver) {
    let (request, lacking) = driver.with(|epochs| (epochs.view.mark(), epochs.view.lacking_mark()));
    driver.tell(in_use(driver) & lacking, &request, &Reply::Marked).await;
}

/// Settles a change of the members whose outcome is unknown, by a new epoch. Returns whether none is left.
pub async fn settle_last(driver: &impl Driver) -> bool {
    let (has_change, has_ended) = driver.with(|epochs| (epochs.membership.has_change(), epochs.has_ended));
    !has_change || (!has_ended && begin(driver).await)
}

/// Notes durably that the asynchronous member or the spare of an index is there, or is none any more. It counts for nothing, so that no epoch comes of it.
pub async fn set_uncounted(driver: &impl Driver, index: u16, member: Option<RosterMember>) -> Changed {
    note(driver, |roster| with_uncounted(roster, index, member)).await
}

/// Notes durably that it is known that the pool was forced.
pub async fn clear_forced(driver: &impl Driver) -> Changed {
    note(driver, Roster::cleared).await
}

/// Has all that are connected keep a roster of the same members that count, of which no epoch comes.
async fn note(driver: &impl Driver, noted: impl FnOnce(&Roster) -> Roster) -> Changed {
    if driver.with(|epochs| epochs.has_ended) {
        return Changed::Ended;
    }
    if !settle_last(driver).await {
        return Changed::Undecided;
    }
    // Where an opening may find one member of the epoch in force alone, all of these are to keep it.
    if driver.with(|epochs| epochs.view.may_open_alone()) && !settle(driver).await {
        return Changed::TooFew;
    }
    let roster = driver.with(|epochs| epochs.membership.roster().cloned().filter(|_| !epochs.has_ended));
    let Some(roster) = roster else { return Changed::Ended };
    if !may_go_on(driver) || !driver.with(|epochs| epochs.membership.replace(noted(&roster))) {
        return Changed::TooFew;
    }
    let (informed, in_use) = (inform(driver).await, in_use(driver));
    if driver.with(|epochs| epochs.view.is_found(informed, in_use)) { Changed::Done } else { Changed::Undecided }
}

/// Changes the members durably. What is posted meanwhile is acknowledged behind it.
pub async fn change(driver: &impl Driver, planned: &Planned) -> Changed {
    if driver.with(|epochs| epochs.has_ended) {
        return Changed::Ended;
    }
    if !settle_last(driver).await {
        return Changed::Undecided;
    }
    let mut changed = Changed::Disturbed;
    for _ in 0..ATTEMPTS {
        changed = try_to_change(driver, planned).await;
        if changed != Changed::Disturbed {
            break;
        }
    }
    changed
}

async fn try_to_change(driver: &impl Driver, planned: &Planned) -> Changed {
    let name = driver.fresh_name();
    let planned = driver
        .with(|epochs| if epochs.has_ended { None } else { epochs.membership.plan(&mut epochs.view, planned, name) });
    let Some((plan, next)) = planned else { return Changed::Ended };
    let changed = make(driver, next, &plan).await;
    if driver.with(|epochs| epochs.membership.take_back(&mut epochs.view, plan, changed)) {
        inform(driver).await;
    }
    changed
}

/// Makes a change that is planned. `next`: the roster with it, which all that know of its epoch keep.
async fn make(driver: &impl Driver, next: Roster, plan: &Plan) -> Changed {
    if !may_go_on(driver) || !driver.with(|epochs| epochs.membership.replace(next)) {
        return Changed::TooFew;
    }
    inform(driver).await;
    if !may_go_on(driver) {
        return Changed::TooFew;
    }
    let is_in_force = go_on(driver, Change::Named(plan.epoch)).await;
    driver.with(|epochs| Membership::outcome(&epochs.view, plan, is_in_force))
}

/// Tells all of an epoch in which a member takes part that is about to join, and that has confirmed `mark`. Until it has [joined](join),
/// everything is acknowledged under the epoch before, as if this had not been. `None`: too few were left, or the member is about to be removed, or was, and has its position still.
pub async fn announce_with(driver: &impl Driver, position: usize, mark: Request) -> Option<Joining> {
    // An epoch that counts it would come behind the one that removes it.
    if driver.with(|epochs| epochs.membership.leaving() & (1 << position) != 0) {
        return None;
    }
    let changes = driver.with(|epochs| {
        epochs.note_change();
        epochs.changes
    });
    let mut change = Change::default();
    let informed = inform(driver).await;
    let (in_use, name) = (in_use(driver) | 1 << position, driver.fresh_name());
    let Step::TellAll(question) = driver.with(|epochs| epochs.view.announce(&mut change, informed, in_use, name))
    else {
        return None;
    };
    if let Err(why) = ask_keeper(driver, &change).await {
        refused(driver, &mut change, &why);
        return None;
    }
    driver.tell(informed, &question.0, &question.1).await;
    Some(Joining { change, changes, mark })
}

impl Joining {
    /// Whether the member has yet to confirm the mark as it is now.
    pub fn lacks(&self, mark: &Request) -> bool {
        self.mark != *mark
    }
}

/// Confirms the epoch that was announced, while nothing is posted; where another was announced since, or a member was lost or came back, begins one
/// anew. The member has everything now, and counts from here on, if it is still in sync then. False: the keeper did not put an epoch in force that counts it.
pub async fn join(driver: &impl Driver, joining: &Joining) -> bool {
    let is_fresh = driver.with(|epochs| epochs.changes == joining.changes);
    let is_done = go_on(driver, if is_fresh { joining.change } else { Change::default() }).await;
    // Without a quorum nothing is acknowledged until there is one, and the member has all that was.
    is_done || driver.with(|epochs| epochs.view.is_kept_by_members())
}
