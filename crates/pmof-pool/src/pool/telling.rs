//! What the writer of a pool knows of its members is told to their targets, for whoever asks these: `pmof pool status` in another process.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use pmof_control::{MAX_TOLD_EVENTS, MemberProgress, MemberStanding, Reply, Request, ToldEvent, WriterStatus};
use pmof_locks::{Mutex, MutexGuard};

use super::{AsynchronousState, AsynchronousStatus, Open, ReplicaState, Shared, SpareState, SpareStatus};
use crate::{
    ReplicaError,
    member::{Control, Member},
};

/// How long an answer is waited for, on which nothing depends.
const PATIENCE: Duration = Duration::from_millis(50);

/// What was told last, and when.
#[derive(Debug, Default)]
pub(super) struct Telling {
    last: Mutex<Option<(WriterStatus, Instant)>>,
    /// When a scrub of the whole pool ended last, in milliseconds since 1970.
    scrubbed_unix_ms: AtomicU64,
}

impl Shared {
    /// Tells the members in sync, if there is anything new. Whoever does it now does it for all.
    pub(super) fn tell_status(&self, open: &Open) {
        if let Some(told) = self.telling.last.try_lock() {
            self.tell(open, told);
        }
    }

    fn tell(&self, open: &Open, mut told: MutexGuard<'_, Option<(WriterStatus, Instant)>>) {
        let status = self.writer_status(open, told.as_ref());
        if told.as_ref().is_some_and(|(before, _)| is_same(before, &status)) {
            return;
        }
        let request = Request::TellStatus { status: status.clone() };
        let controls = open.in_use().filter_map(|member| member.control());
        // Those that are late are told with the others the next time.
        let late_count = controls.filter(|control| !tell(control, &request)).count();
        *told = Some((if late_count == 0 { status } else { WriterStatus::default() }, Instant::now()));
    }

    fn writer_status(&self, open: &Open, before: Option<&(WriterStatus, Instant)>) -> WriterStatus {
        let index = |position: usize| open.epochs.as_ref()?.lock().view().index(position);
        let of_member = |(position, member): (usize, &Arc<dyn Member>)| {
            let (standing, missing_bytes) = match open.state_of(position, &**member) {
                ReplicaState::InSync => (MemberStanding::InSync, 0),
                ReplicaState::CatchingUp { missing_bytes } => (MemberStanding::CatchingUp, missing_bytes),
                ReplicaState::Slow => (MemberStanding::Slow, 0),
                ReplicaState::Lost(_) => (MemberStanding::Lost, 0),
            };
            let is_member = !member.state().is_removed() && !member.state().is_candidate();
            index(position).filter(|_| is_member).map(|index| progress(index, standing, missing_bytes))
        };
        let mut members: Vec<_> = open.members.iter().enumerate().filter_map(of_member).collect();
        members.extend(self.followers.iter().flat_map(|followers| followers.status()).map(|status| following(&status)));
        let roster = open.epochs.as_ref().and_then(|epochs| epochs.roster());
        members.extend(self.spares(open, roster.as_ref()).iter().filter_map(spare));
        for member in &mut members {
            member.bytes_per_second = rate(member, before);
        }
        let now = since_1970();
        let told = self.events.last(MAX_TOLD_EVENTS).into_iter().map(|(event, ago)| {
            let unix_ms = now.saturating_sub(ago).as_millis().try_into().unwrap_or(u64::MAX);
            ToldEvent { unix_ms, text: event.to_string() }
        });
        let scrubbed_unix_ms = self.telling.scrubbed_unix_ms.load(Ordering::Relaxed);
        WriterStatus { members, events: told.collect(), scrubbed_unix_ms }
    }

    /// Tells the targets when a scrub of the whole pool ended, whether or not it found anything.
    pub(super) fn note_scrubbed(&self) {
        let unix_ms = since_1970().as_millis().try_into().unwrap_or(u64::MAX);
        self.telling.scrubbed_unix_ms.store(unix_ms, Ordering::Relaxed);
        if let Ok(open) = self.hold() {
            // Another thread may be sending the status from before the scrub. Wait for it: the pool may be closed next.
            self.tell(&open, self.telling.last.lock());
        }
    }
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn progress(index: u16, standing: MemberStanding, missing_bytes: u64) -> MemberProgress {
    MemberProgress { index, standing, missing_bytes, bytes_per_second: 0, lag_bytes: 0, lag_ms: 0 }
}

/// What a spare is doing; nothing where it does nothing.
fn spare(status: &SpareStatus) -> Option<MemberProgress> {
    match status.state {
        SpareState::Idle => None,
        SpareState::CopiedTo { missing_bytes } => {
            Some(progress(status.index, MemberStanding::CatchingUp, missing_bytes))
        }
        SpareState::NotTaken(_) => Some(progress(status.index, MemberStanding::Lost, 0)),
    }
}

fn following(status: &AsynchronousStatus) -> MemberProgress {
    let standing = match status.state {
        AsynchronousState::Following => MemberStanding::Following,
        AsynchronousState::Copying => MemberStanding::CatchingUp,
        _ => MemberStanding::Lost,
    };
    let lag_bytes = status.lag_bytes.unwrap_or_default();
    let lag_ms = status.lag.map_or(0, |lag| lag.as_millis().try_into().unwrap_or(u64::MAX));
    let missing_bytes = if standing == MemberStanding::CatchingUp { lag_bytes } else { 0 };
    MemberProgress { lag_bytes, lag_ms, ..progress(status.index, standing, missing_bytes) }
}

/// By how much fewer a member lacks than before, in a second.
fn rate(member: &MemberProgress, before: Option<&(WriterStatus, Instant)>) -> u64 {
    let Some((before, at)) = before else { return 0 };
    let is_same = |one: &&MemberProgress| one.index == member.index && one.standing == member.standing;
    let fewer =
        before.members.iter().find(is_same).map_or(0, |one| one.missing_bytes.saturating_sub(member.missing_bytes));
    let elapsed_ms = at.elapsed().as_millis().clamp(1, u128::from(u64::MAX)) as u64;
    fewer.saturating_mul(1000) / elapsed_ms
}

/// Whether there is nothing new, but for the clock.
fn is_same(before: &WriterStatus, now: &WriterStatus) -> bool {
    let texts = |status: &WriterStatus| status.events.iter().map(|event| event.text.clone()).collect::<Vec<_>>();
    (&before.members, before.scrubbed_unix_ms) == (&now.members, now.scrubbed_unix_ms) && texts(before) == texts(now)
}

/// One that is late is not waited for, and one that does not know the question is of an older release. False: it is late.
fn tell(control: &Control, request: &Request) -> bool {
    let Some(mut asking) = control.start_asking_within(request, PATIENCE) else { return false };
    match control.told_within(&mut asking, PATIENCE) {
        Some(Ok(Reply::StatusTold) | Err(ReplicaError::Refused { .. })) => {}
        Some(Ok(_)) => drop(control.fail(ReplicaError::Unexpected)),
        Some(Err(error)) => drop(control.fail(error)),
        None => asking.forget(),
    }
    true
}
