//! How what a member lacks is copied to it, and how it joins when little is missing.

use core::{ops::Range, time::Duration};

use pmof_control::{Reply, Request};

use super::{
    driver::{Halt, Halted, Members, Returns},
    pace::Pace,
};
use crate::{
    catch_up::{CatchUp, Limit},
    comparing::{self, Scrubbed},
    epochs::{self, Driver, Epochs, Joining},
    member_state::{Link, MemberState},
};

/// How much is copied, compared and flushed at once.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes that are copied in a second, at most.
    pub bytes_per_second: Option<u64>,
    /// What is copied at once.
    pub copied: Limit,
    /// What is compared at once, where it is not known what differs.
    pub compared: Limit,
    /// Bytes compared between two flushes of the member: what comes after the last of them is compared again if it is lost.
    pub flushed_bytes: u64,
    /// Bytes copied between two flushes of the member. A flush is given the loss timeout: after more than a disk takes in that time, the member
    /// would be lost again and again.
    pub sync_bytes: u64,
    /// Bytes that may be missing when the pool is held for the last of them: little more than one window brings.
    pub last_bytes: u64,
    /// How much longer than another member's an answer may take; `None`: all are awaited.
    pub slow_after: Option<Duration>,
}

impl Limits {
    /// Of a pool whose writers wait for every member in sync.
    pub const SHIPPED: Self = Self {
        bytes_per_second: None,
        copied: Limit { ranges: 256, bytes: 4 << 20 },
        compared: Limit { ranges: 64, bytes: 16 << 20 },
        flushed_bytes: 256 << 20,
        sync_bytes: 4 << 20,
        last_bytes: 256 << 10,
        slow_after: None,
    };

    /// Of one whose writers wait so much longer for a slow member at most.
    pub fn prompt(slow_after: Duration) -> Self {
        Self { last_bytes: 64 << 10, slow_after: Some(slow_after), ..Self::SHIPPED }
    }
}

/// Flushes that a member has to answer as promptly as the others before it catches up, and again before it joins.
const PROBES: usize = 8;

/// Copies what is missing, once through the pool, and flushes it; [`join`] flushes the last of it. Returns the bytes copied.
pub(super) async fn copy<D: Returns>(
    driver: &D,
    member: &D::Member,
    catch_up: &CatchUp,
    is_compared: bool,
) -> Halted<u64, D> {
    let limits = driver.limits()?;
    let (mut from, mut flushed, mut copied_bytes, mut synced_bytes) = (0, 0, 0, 0);
    let limit = if is_compared { limits.compared } else { limits.copied };
    let mut pace = Pace::new(limits.bytes_per_second, catch_up, driver.now());
    // Of what was copied last, while more is copied: one at a time.
    let mut flushing = None;
    mark_behind(driver, member).await?;
    while let Some(window) = catch_up.open_window(from, pace.window(limit)) {
        let copied = copy_window(driver, None, (member, &window), is_compared).await;
        catch_up.close_window(&window);
        from = window.last().map_or(u64::MAX, |last| last.end);
        match copied {
            Ok(bytes) => copied_bytes += bytes,
            Err(halt) => {
                catch_up.interrupted(&window);
                return Err(halt);
            }
        }
        if copied_bytes - synced_bytes >= limits.sync_bytes || (is_compared && from - flushed >= limits.flushed_bytes) {
            (flushed, synced_bytes) = (from, copied_bytes);
            if finish_flush(driver, catch_up, &mut flushing).await? {
                mark_behind(driver, member).await?;
            }
            catch_up.begin_flush();
            flushing = Some(driver.start_flush(member));
        }
        let pause = pace.pause(copied_bytes, driver.now());
        if driver.is_stopping() || !pause.is_zero() && !driver.pause(pause).await {
            return Err(Halt::Ended);
        }
        pace.go_on(driver.now());
    }
    finish_flush(driver, catch_up, &mut flushing).await?;
    Ok(copied_bytes)
}

/// Copies a window, or what the member lacks of it where that is not known.
async fn copy_window<D: Returns>(
    driver: &D,
    held: Option<&D::Held<'_>>,
    (member, window): (&D::Member, &[Range<u64>]),
    is_compared: bool,
) -> Halted<u64, D> {
    let copied = match held {
        Some(held) => comparing::copy_window(&**held, member, window, is_compared).await,
        None => comparing::copy_window(&*contents(driver)?, member, window, is_compared).await,
    };
    copied.ok_or(Halt::Later)
}

/// What the members hold now.
pub(super) fn contents<D: Returns>(driver: &D) -> Halted<<D::Pool as Scrubbed>::Open, D> {
    driver.pool()?.contents().map_err(|_| Halt::Ended)
}

/// Whether a member answers as promptly as the others, or is needed as it is. Returns how long its answers may take while nothing is posted: `None` where they are awaited in
/// any case.
pub(super) async fn keeps_up<D: Returns>(driver: &D, member: &D::Member) -> Halted<Option<Duration>, D> {
    let Some(slow_after) = driver.limits()?.slow_after else { return Ok(None) };
    // Whatever it owes comes first.
    if !driver.finish_flush(driver.start_flush(member)).await {
        return Err(Halt::Slow);
    }
    let mut limit = slow_after;
    for _ in 0..PROBES {
        if driver.is_needed() {
            return Ok(None);
        }
        limit = limit.max(probe(driver, member, slow_after).await?);
    }
    Ok(Some(limit))
}

/// How long a flush may take: so much longer than the same of a member in sync.
async fn probe<D: Returns>(driver: &D, member: &D::Member, slow_after: Duration) -> Halted<Duration, D> {
    let began = driver.now();
    let of_reference = driver.reference()?.map(|reference| driver.start_flush(&reference));
    let flushing = driver.start_flush(member);
    if let Some(of_reference) = of_reference {
        driver.finish_flush(of_reference).await;
    }
    let allowed = driver.now().saturating_sub(began) + slow_after;
    let is_prompt = driver.finish_flush_within(flushing, slow_after).await;
    if is_prompt { Ok(allowed) } else { Err(Halt::Slow) }
}

/// Waits for the flush that is in flight. False: there was none.
async fn finish_flush<D: Returns>(
    driver: &D,
    catch_up: &CatchUp,
    flushing: &mut Option<D::Flushing>,
) -> Halted<bool, D> {
    let Some(flushing) = flushing.take() else { return Ok(false) };
    if !driver.finish_flush(flushing).await {
        return Err(Halt::Later);
    }
    catch_up.note_flushed();
    Ok(true)
}

/// Tells the mark to a member that knows that it is behind: it then tells an older copy of another, and of itself, from the replica. Nothing is asked of one that
/// has become too slow meanwhile.
async fn mark_behind<D: Returns>(driver: &D, member: &D::Member) -> Halted<(), D> {
    let epochs = driver.epochs()?;
    if epochs.state(member).is_slow() {
        return Err(Halt::Slow);
    }
    let mark = epochs.lock().await.with(|epochs| mark_for(epochs, driver.position()));
    epochs.ask_for(member, &mark, &Reply::Marked, None).await?;
    Ok(())
}

/// The mark, which a member that is behind is about to be told. It counts as told from here on: if the reply is lost, an older copy of the member has an older one than
/// it may have had.
fn mark_for(epochs: &mut Epochs, position: usize) -> Request {
    let mark = epochs.view.mark();
    epochs.view.note_marked(position, &mark);
    mark
}

/// Has the member count as in sync, if little is missing: `None` where it is too much. Returns the bytes copied.
pub(super) async fn join<D: Returns>(driver: &D, member: &D::Member, catch_up: &CatchUp) -> Halted<Option<u64>, D> {
    // All that can be is done before the writers have to wait: most of the flush, the mark, and the first half of the new epoch.
    catch_up.begin_flush();
    let flushing = driver.start_flush(member);
    if !driver.finish_flush(flushing).await {
        return Err(Halt::Later);
    }
    catch_up.note_flushed();
    let limits = driver.limits()?;
    if catch_up.missing_bytes() > limits.last_bytes {
        return Ok(None);
    }
    let epochs = driver.epochs()?;
    let mark = epochs.lock().await.with(|epochs| mark_for(epochs, driver.position()));
    // Told before the writers have to wait, it need not be written to its disk meanwhile.
    epochs.ask_for(member, &mark, &Reply::Marked, None).await?;
    let limit = keeps_up(driver, member).await?;
    let joining = announce_with(&*epochs, driver.position(), member, limit).await?;
    let pool = driver.pool()?;
    let held = driver.hold_all(&pool).await?;
    if catch_up.missing_bytes() > limits.last_bytes {
        return Ok(None);
    }
    let mut copied_bytes = 0;
    while let Some(window) = catch_up.open_window(0, limits.copied) {
        let copied = copy_window(driver, Some(&held), (member, &window), false).await;
        catch_up.close_window(&window);
        copied_bytes += copied?;
    }
    let is_flushed = driver.flush_last(&held, member, limit).await.ok_or(Halt::Slow)?;
    if !is_flushed {
        return Err(Halt::Later);
    }
    // Before it is a member: its map lacks nothing that the others' have.
    driver.give_intent(&held, member, limit).await?;
    confirm(driver, &*epochs, member, (&joining, limit)).await?;
    driver.note_joined(held);
    Ok(Some(copied_bytes))
}

/// Tells all of an epoch in which the member takes part, and the member the mark. Until the epoch is [confirmed](confirm), everything is acknowledged under
/// the epoch before, as if this had not been.
async fn announce_with<M: Members>(
    members: &M,
    position: usize,
    member: &M::Member,
    limit: Option<Duration>,
) -> Result<Joining, Halt<M::Failure>> {
    let locked = members.lock().await;
    if locked.with(|epochs| epochs.has_ended) {
        return Err(Halt::Ended);
    }
    let mark = locked.with(|epochs| mark_for(epochs, position));
    // Before it is a member: one with an older mark would pass for an older copy.
    members.ask_for(member, &mark, &Reply::Marked, limit).await?;
    epochs::announce_with(&locked, position, mark).await.ok_or(Halt::Later)
}

/// Confirms the epoch that was announced, while nothing is posted; where another was announced since, or a member was lost or returned, begins a new one. From then
/// on the member counts.
async fn confirm<D: Returns>(
    driver: &D,
    members: &D::Epochs,
    member: &D::Member,
    (joining, limit): (&Joining, Option<Duration>),
) -> Halted<(), D> {
    let locked = members.lock().await;
    if locked.with(|epochs| epochs.has_ended) {
        return Err(Halt::Ended);
    }
    let mark = locked.with(|epochs| mark_for(epochs, driver.position()));
    if joining.lacks(&mark) {
        members.ask_for(member, &mark, &Reply::Marked, limit).await?;
    }
    let caught_up = driver.note_caught_up(member);
    if caught_up.is_behind() {
        return Err(not_joined(caught_up));
    }
    if !epochs::join(&locked, joining).await {
        return Err(Halt::Later);
    }
    let joined = members.state(member);
    if joined.is_in_sync() { Ok(()) } else { Err(not_joined(joined)) }
}

/// Why a member in this state is not in sync, though it had caught up.
fn not_joined<F>(state: MemberState) -> Halt<F> {
    assert!(!state.is_in_sync() && state != MemberState::Behind(Link::Connected), "it has caught up and is {state:?}");
    if state.is_slow() { Halt::Slow } else { Halt::Later }
}
