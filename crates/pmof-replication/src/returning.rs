//! How a member that is out of use returns: it is connected to, judged, told of the epoch in force, admitted, copied to, and joins.
//!
//! Each step is a future over the trait [`Returns`], which waits for nothing but what the driver does. In a program the driver blocks its thread, so that each future
//! is ready at its first poll; in the simulation it waits for simulated targets.

use alloc::sync::Arc;

use pmof_control::{Claim, PoolInfo, PoolRefusal, PoolState, Reply, Request};
use pmof_terms::Durability;
use uuid::Uuid;

use crate::{
    asking::{Failure, Reason},
    catch_up::CatchUp,
    comparing::Contents as _,
    epochs::{self, Driver, Introduced, Introducing},
    lineage::Found,
    member_state::MemberState,
    opening::{Identity, OpenedReply},
    pages::PageMap,
};

mod backoff;
mod copy;
mod driver;
mod judge;
mod pace;
mod rules;
#[cfg(test)]
mod tests;
mod trust;
mod verify;

pub use backoff::{Backoff, Pauses};
pub use copy::Limits;
pub use driver::{Halt, Halted, Members, Progress, Rejection, Returns, Terms};
pub use judge::Holder;
pub use rules::{Rules, ShippedRules};
pub use trust::Trust;
pub use verify::verify;

use judge::{Verdict, judge};

/// A member that is connected again, or in sync again.
#[derive(Debug)]
pub struct Returned<M> {
    /// By its new connection, or the one that it kept.
    pub member: M,
    /// It is not known what it lacks.
    pub is_compared: bool,
    /// The pauses where it is lost again.
    pub backoff: Backoff,
}

/// A member that is connected, and whether it has to be compared as a whole.
struct Connected<M> {
    member: M,
    is_compared: bool,
}

/// Brings a member back, however long it takes. `None`: the pool is being closed, or the replica is given up.
pub async fn bring_back<D: Returns>(driver: &D) -> Option<Returned<D::Member>> {
    let (mut backoff, mut is_rejected, mut left) = (driver.backoff(), false, None);
    // One that is behind from the opening on needs no connection.
    let is_prompt = is_so(driver, MemberState::is_prompt).unwrap_or(false);
    if !is_prompt && !pause(driver, &backoff).await {
        return None;
    }
    loop {
        match try_to_bring_back(driver, &mut left).await {
            Ok(Connected { member, is_compared }) => {
                backoff.came_back(&driver.pauses(), driver.now());
                return Some(Returned { member, is_compared, backoff });
            }
            // One that is slow goes on when it keeps up, as any other.
            Err(halt) if !matches!(halt, Halt::Slow) && driver.gives_up_candidate() => return None,
            Err(Halt::Ended) => return None,
            Err(halt) => {
                backoff.halted(&driver.pauses(), &halt);
                if let Halt::Rejected(why) = halt {
                    driver.note_rejected(why, !core::mem::replace(&mut is_rejected, true));
                }
            }
        }
        if !pause(driver, &backoff).await {
            return None;
        }
    }
}

/// Whether the member is in such a state.
fn is_so<D: Returns>(driver: &D, is: impl Fn(MemberState) -> bool) -> Halted<bool, D> {
    Ok(is(driver.epochs()?.state(&driver.member()?)))
}

/// Pauses before the next try; shorter where the member is slow, and needed all the same. False: the pool is being closed.
async fn pause<D: Returns>(driver: &D, backoff: &Backoff) -> bool {
    let (until, look) = (driver.now() + backoff.pause(), driver.pauses().need_look);
    loop {
        let left = until.saturating_sub(driver.now());
        if !driver.pause(left.min(look)).await {
            return false;
        }
        let Ok(is_slow) = is_so(driver, MemberState::is_slow) else { return false };
        if left <= look || (is_slow && driver.is_needed()) {
            return true;
        }
    }
}

/// `left`: what was missing when the last try was interrupted.
async fn try_to_bring_back<D: Returns>(driver: &D, left: &mut Option<PageMap>) -> Halted<Connected<D::Member>, D> {
    let began = driver.now();
    let Connected { member, is_compared } = returning(driver, left).await?;
    let state = driver.epochs()?.state(&member);
    if !driver.rules().is_copied_to(state) {
        // It knows of the epoch in force by now, and is sent nothing else.
        let pool = driver.pool()?;
        driver.admit(hold(driver, &pool).await?, &member, None);
        driver.note(&member, Progress::WitnessBack);
        return Ok(Connected { member, is_compared: true });
    }
    let catch_up = admit(driver, &member, is_compared, left).await?;
    driver.note(&member, Progress::CatchingUp { missing_bytes: catch_up.missing_bytes() });
    match catch_up_with(driver, &member, &catch_up, is_compared).await {
        Ok(copied_bytes) => {
            driver.with_trust(|trust| trust.note_in_sync(is_compared));
            let took = driver.now().saturating_sub(began);
            driver.note(&member, Progress::InSync { copied_bytes, took, is_verified: is_compared });
            Ok(Connected { member, is_compared })
        }
        Err(halt) => {
            // The writers go on without it.
            driver.interrupt(&member, matches!(halt, Halt::Slow));
            if is_compared {
                let found = catch_up.interrupted(&[]);
                let missing = PageMap::new(found.size_bytes());
                missing.add(found);
                *left = Some(missing);
            }
            Err(halt)
        }
    }
}

/// Copies until the member joins. Returns the bytes copied.
async fn catch_up_with<D: Returns>(
    driver: &D,
    member: &D::Member,
    catch_up: &CatchUp,
    is_compared: bool,
) -> Halted<u64, D> {
    let mut copied_bytes = 0;
    loop {
        copied_bytes += copy::copy(driver, member, catch_up, is_compared).await?;
        if driver.is_candidate() {
            wait_as_candidate(driver, member).await?;
            continue;
        }
        if let Some(bytes) = copy::join(driver, member, catch_up).await? {
            return Ok(copied_bytes + bytes);
        }
    }
}

/// Waits a little before it is checked again whether a candidate has become a member. One that is lost meanwhile may have become one just before, and is then brought back as any other.
async fn wait_as_candidate<D: Returns>(driver: &D, member: &D::Member) -> Halted<(), D> {
    if !driver.pause(driver.pauses().candidate_look).await {
        return Err(Halt::Ended);
    }
    if driver.epochs()?.state(member).is_connected() { Ok(()) } else { Err(Halt::Later) }
}

/// Holds the pool to admit the member, unless that has been removed meanwhile, as a candidate is that is given up.
async fn hold<'h, D: Returns>(driver: &D, pool: &'h D::Pool) -> Halted<D::Held<'h>, D> {
    let held = driver.hold_all(pool).await?;
    let is_removed = held.state(&held.members()[driver.position()]).is_removed();
    if is_removed { Err(Halt::Ended) } else { Ok(held) }
}

/// Has the member be sent what is written from now on.
async fn admit<D: Returns>(
    driver: &D,
    member: &D::Member,
    is_compared: bool,
    left: &mut Option<PageMap>,
) -> Halted<Arc<CatchUp>, D> {
    let (pool, size_bytes) = (driver.pool()?, driver.terms()?.identity.size_bytes);
    let held = hold(driver, &pool).await?;
    let missing = match left.take() {
        None if is_compared => PageMap::full(size_bytes),
        left => {
            let missing = left.unwrap_or_else(|| PageMap::new(size_bytes));
            driver.add_written(&held, &missing);
            missing
        }
    };
    let catch_up = Arc::new(CatchUp::new(missing));
    driver.admit(held, member, Some(&catch_up));
    Ok(catch_up)
}

/// The member that is to catch up: connected already when the pool was opened, or now.
async fn returning<D: Returns>(driver: &D, left: &mut Option<PageMap>) -> Halted<Connected<D::Member>, D> {
    let (members, lost) = (driver.epochs()?, driver.member()?);
    let state = members.state(&lost);
    if state.is_slow() {
        return no_longer_slow(driver, lost, left.is_some()).await;
    }
    if state.is_connected() {
        return Ok(Connected { member: lost, is_compared: true });
    }
    driver.let_go(lost).await?;
    let lost = driver.member()?;
    if members.state(&lost).is_removed() {
        return Err(Halt::Ended);
    }
    let site = driver.connect(&lost).await.ok_or(Halt::Later)?;
    let told = OpenedReply::of(ask_for(driver, &site, &lost).await?).map_err(unfit)?;
    let identity = driver.terms()?.identity;
    told.check(&mut Some(identity)).map_err(unfit)?;
    let OpenedReply { identity: Identity { size_bytes, .. }, index, replica_uuid, state, descriptor, enclosed } = told;
    let reached = driver.reach(&site, &descriptor, size_bytes)?;
    let (may_return, is_witness) = members.lock().await.with(|epochs| {
        let membership = &epochs.membership;
        (membership.may_return(index, replica_uuid), membership.is_witness(index, replica_uuid))
    });
    if !may_return {
        return Err(Halt::Rejected(Rejection::NotAMember { index }));
    }
    identity.check_size(size_bytes, is_witness).map_err(rejected)?;
    let has_data = driver.rules().has_data(is_witness);
    let member = driver.adopt(&lost, (site, reached), enclosed.domain, !has_data).await.ok_or(Halt::Later)?;
    let introduced = introduce_returned(driver, &member, (index, replica_uuid, &state), left).await;
    if introduced.is_err() {
        driver.give_up(&member);
    }
    Ok(Connected { is_compared: introduced?, member })
}

/// What does not fit the pool stays so; what is no right reply may be one the next time.
fn unfit<F>(why: Reason) -> Halt<F> {
    if matches!(why, Reason::Unexpected) { Halt::Later } else { rejected(why) }
}

fn rejected<F>(why: Reason) -> Halt<F> {
    Halt::Rejected(Rejection::Reason(why))
}

/// Judges a replica that was found, and has it know that it is behind. Returns whether it has to be compared as a whole.
async fn introduce_returned<D: Returns>(
    driver: &D,
    member: &D::Member,
    (index, replica_uuid, state): (u16, Uuid, &PoolState),
    left: &mut Option<PageMap>,
) -> Halted<bool, D> {
    let (members, position) = (driver.epochs()?, driver.position());
    let verdict = members.lock().await.with(|epochs| judge(epochs, position, &Found { index, state }));
    let is_own = match verdict {
        Verdict::Returns { is_own } => is_own,
        Verdict::Ended => return Err(Halt::Ended),
        Verdict::OtherReplica => return Err(rejected(Reason::Unexpected)),
        Verdict::Apart(apart) => return Err(rejected(Reason::Apart { apart, made: driver.terms()?.member_count })),
        Verdict::Successor => {
            driver.fence(None);
            return Err(Halt::Ended);
        }
    };
    let kept = if driver.terms()?.require == Durability::PowerFailure {
        driver.with_trust(|trust| trust.of_durable())
    } else {
        let boot = driver.boot(member).await;
        driver.with_trust(|trust| trust.of_boot(boot))
    };
    // An older copy that it was put back to may lack what was copied.
    let has_kept = kept.last && members.lock().await.with(|epochs| epochs.view.has_kept(position, state.mark));
    if !is_own || !state.is_behind || !has_kept {
        *left = None;
    }
    wait_for_place(driver, (index, replica_uuid, state), member).await?;
    // Of one that was in sync while the pool was open, all that was written since is known.
    let knows = members.lock().await.with(|epochs| epochs.view.knows_what_lacks(position, state.mark));
    Ok(!(is_own && kept.in_sync && knows))
}

/// Has a replica introduced that is to return. Where too few are connected for an epoch to begin it stays connected: else each of several that return at once would be gone before the next
/// one is there.
async fn wait_for_place<D: Returns>(
    driver: &D,
    (index, replica_uuid, state): (u16, Uuid, &PoolState),
    member: &D::Member,
) -> Halted<(), D> {
    let (members, mut so_far) = (driver.epochs()?, Introduced::default());
    loop {
        let introduced = (index, Some(replica_uuid), Some(state));
        match introduce(&*members, driver.position(), introduced, member, &mut so_far).await {
            Placing::Given => return Ok(()),
            Placing::Refused => return Err(Halt::Later),
            Placing::TooFew if !driver.pause(driver.pauses().quorum_look).await => return Err(Halt::Ended),
            Placing::TooFew => {}
        }
    }
}

/// Asks a target for the replica that is to return. This writer's own connection, of which the target has yet to notice that it has ended, is ended there;
/// so is a writer that this one has superseded, and that did not hear of it where its connections to the others were cut. From any other writer nothing is taken.
async fn ask_for<D: Returns>(driver: &D, site: &D::Site, lost: &D::Member) -> Halted<Reply, D> {
    let (members, position, require) = (driver.epochs()?, driver.position(), driver.terms()?.require);
    let request = |claim| Request::TakeOver { name: driver.name(), require, silent_ms: u64::MAX, claim };
    let own = members.lock().await.with(|epochs| epochs.view.epoch_of(position)).map_or(Claim::None, Claim::Own);
    let why = match driver.open(site, &request(own)).await {
        Ok(reply) => return Ok(reply),
        Err(why) => why,
    };
    let is_held = why.refusal() == Some(PoolRefusal::Busy);
    driver.note_failure(lost, why);
    if !is_held {
        return Err(Halt::Later);
    }
    let info = driver.ask(site, &Request::Info { name: driver.name() }).await;
    let Ok(Reply::Info(info)) = info else { return Err(Halt::Later) };
    let superseded = superseded_holder(driver, &info).await?;
    driver.ask(site, &request(superseded)).await.map_err(|_| Halt::Later)
}

/// By which epoch the replica is taken from its holder, if this writer has superseded that one. A holder that has superseded this writer ends it.
async fn superseded_holder<D: Returns>(driver: &D, info: &PoolInfo) -> Halted<Claim, D> {
    let (members, pool_uuid) = (driver.epochs()?, driver.terms()?.identity.uuid);
    let (index, state) = (info.header.replica_index, &info.state);
    let holder = {
        let locked = members.lock().await;
        let is_of_pool = info.header.pool_uuid == pool_uuid;
        if !is_of_pool || !locked.with(|epochs| epochs.membership.may_return(index, info.header.replica_uuid)) {
            return Err(Halt::Later);
        }
        locked.with(|epochs| driver.rules().holder(epochs, &Found { index, state }))
    };
    match holder {
        Holder::Superseded => Ok(Claim::Superseded(state.epoch.id)),
        Holder::Unknown => Err(Halt::Later),
        Holder::Ended => Err(Halt::Ended),
        Holder::Successor => {
            driver.fence(info.open_by.as_deref());
            Err(Halt::Ended)
        }
    }
}

/// One that was left behind because it was slow, if it keeps up now. `is_compared`: it was to be compared before it was slow.
async fn no_longer_slow<D: Returns>(
    driver: &D,
    member: D::Member,
    is_compared: bool,
) -> Halted<Connected<D::Member>, D> {
    let (members, position) = (driver.epochs()?, driver.position());
    // What it lacks is known from the epoch on that it is left behind by.
    let is_settled = {
        let locked = members.lock().await;
        if locked.with(|epochs| epochs.has_ended) {
            return Err(Halt::Ended);
        }
        epochs::settle(&locked).await
    };
    if !is_settled {
        return Err(Halt::Slow);
    }
    if !members.state(&member).is_witness() {
        copy::keeps_up(driver, &member).await?;
    }
    let (index, is_known) = members
        .lock()
        .await
        .with(|epochs| (epochs.view.index(position), epochs.view.knows_what_lacks(position, u64::MAX)));
    let introduced = (index.ok_or(Halt::Later)?, None, None);
    match introduce(&*members, position, introduced, &member, &mut Introduced::default()).await {
        Placing::Given => {}
        Placing::TooFew | Placing::Refused => return Err(Halt::Later),
    }
    Ok(Connected { member, is_compared: is_compared || !is_known })
}

/// What came of an introduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placing {
    /// It has its place, and knows that it is behind.
    Given,
    /// It is connected, and told of epochs; with so few no epoch begins.
    TooFew,
    /// It did not take what it was told, or is no member, or the pool is being closed.
    Refused,
}

/// Has a member know durably that it is behind the epoch in force, and gives it its place.
///
/// `known`: the replica that it is, where it has to be a member now. `found`: its state, unless it stayed connected. `so_far`: what it was told before. The requests go to it without the
/// lock, so that a member that does not answer delays no other.
pub async fn introduce<M: Members>(
    members: &M,
    position: usize,
    (index, known, found): (u16, Option<Uuid>, Option<&PoolState>),
    member: &M::Member,
    so_far: &mut Introduced,
) -> Placing {
    loop {
        let next = {
            let locked = members.lock().await;
            if !members.state(member).is_connected() {
                return Placing::Refused;
            }
            let next = locked.with(|epochs| epochs.introduce(position, (index, known, found), so_far));
            if let Introducing::Placed { needs_change } = next {
                members.put(&locked, position, member);
                if !needs_change || epochs::begin(&locked).await {
                    return Placing::Given;
                }
                return if epochs::awaits_members(&locked) { Placing::TooFew } else { Placing::Refused };
            }
            next
        };
        match next {
            Introducing::Refused | Introducing::Placed { .. } => return Placing::Refused,
            Introducing::Give(roster) => {
                if !members.give_roster(member, &roster).await {
                    return Placing::Refused;
                }
            }
            Introducing::Tell(to_tell) => {
                for (request, expected) in &to_tell {
                    if members.ask_for(member, request, expected, None).await.is_err() {
                        return Placing::Refused;
                    }
                }
            }
        }
    }
}
