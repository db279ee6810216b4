//! How a pool that is open for reading follows its epochs: before a read it asks, at most once a second, whether those that it was opened by still say the
//! same, and opens the pool anew where they do not.
//!
//! Those that vote at an opening are enough to have met whoever is told of any later epoch. So while none of them says anything new, there is none.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use pmof_control::{OpenFor, PoolName, PoolState, Reply, Request};
use pmof_locks::Mutex;
use pmof_replication::asking::limits::{READ_ATTEMPTS, READ_PAUSE};
use uuid::Uuid;

use super::{
    BeforeRead, Open, Shared,
    format::{self, Upkeep},
    opened::place,
    opening::{Opening, Wanted, in_haste},
};
use crate::{PoolError, PoolUrl, ReplicaError, site::Site};

/// How long what was found counts: the bound that [`open_read_only`](crate::PoolOptions::open_read_only) names.
const TRUSTED_FOR: Duration = Duration::from_secs(1);

/// Opens a pool for reading. A writer that is opening it just now has told some replicas and not yet the others: then again.
pub(super) fn open_reading<T>(mut open: impl FnMut() -> Result<T, PoolError>) -> Result<T, PoolError> {
    let mut attempts = 1..=READ_ATTEMPTS;
    loop {
        match open() {
            Err(PoolError::Apart { .. }) if attempts.next().is_some() => thread::sleep(READ_PAUSE),
            outcome => return outcome,
        }
    }
}

/// What a replica says of the epoch that it is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Said {
    epoch: Uuid,
    is_confirmed: bool,
    is_behind: bool,
}

impl Said {
    pub(super) fn by(state: &PoolState) -> Self {
        Self { epoch: state.epoch.id, is_confirmed: state.is_confirmed, is_behind: state.is_behind }
    }

    fn is_said_in(self, reply: Option<Reply>) -> bool {
        matches!(reply, Some(Reply::Info(info)) if Self::by(&info.state) == self)
    }
}

/// A replica that is not read, since it is behind, and that may be told of the next epoch all the same.
#[derive(Debug)]
pub(super) struct Unread {
    pub(super) url: Arc<PoolUrl>,
    pub(super) site: Site,
    pub(super) said: Said,
}

/// What an opening has found.
#[derive(Debug)]
pub(super) struct Seen {
    /// Where the members are.
    pub(super) urls: Vec<Arc<PoolUrl>>,
    /// What those that are read have said, by their positions.
    pub(super) said: Vec<(usize, Said)>,
    pub(super) unread: Vec<Unread>,
    /// Before they were asked.
    pub(super) asked: Instant,
}

#[derive(Debug)]
pub(super) struct Follow {
    wanted: Wanted,
    began: Instant,
    /// When that was asked which counts, in nanoseconds since then.
    asked: AtomicU64,
    seen: Mutex<Seen>,
}

impl BeforeRead for Follow {
    fn into_seen(self: Box<Self>) -> Seen {
        self.seen.into_inner()
    }

    /// Those were in sync a second ago at most.
    fn check(&self, shared: &Shared) -> Result<(), PoolError> {
        if self.is_fresh() {
            return Ok(());
        }
        let mut seen = self.seen.lock();
        if self.is_fresh() {
            return Ok(());
        }
        let (asked, open) = (Instant::now(), shared.hold()?);
        if seen.is_unchanged(&open) {
            seen.asked = asked;
        } else {
            let (fresh, newer) = self.open_anew(&seen.urls, &open)?;
            let mut guard = shared.open.write();
            let old = guard.as_mut().ok_or(PoolError::Closed)?;
            (*old, *seen) = (Arc::new(fresh), newer);
        }
        self.asked.store(self.nanos(seen.asked), Ordering::Release);
        Ok(())
    }
}

impl Follow {
    pub(super) fn new(wanted: Wanted, seen: Seen) -> Self {
        // What is mapped or copied here is so once.
        let wanted = Wanted { has_mirror: false, ..wanted };
        Self { wanted, began: seen.asked, asked: AtomicU64::new(0), seen: Mutex::new(seen) }
    }

    fn is_fresh(&self) -> bool {
        let now = self.nanos(Instant::now());
        now.saturating_sub(self.asked.load(Ordering::Acquire)) < TRUSTED_FOR.as_nanos() as u64
    }

    fn nanos(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.began).as_nanos() as u64
    }

    fn open_anew(&self, urls: &[Arc<PoolUrl>], old: &Open) -> Result<(Open, Seen), PoolError> {
        let (mut fresh, upkeep) = in_haste(|haste| {
            open_reading(|| {
                let wanted = self.wanted.clone().with_haste(haste.clone());
                format::open_replicas(Opening::new(wanted, urls.to_vec()), OpenFor::Read)
            })
        })?;
        let (facts, found) = (&old.facts, &fresh.facts);
        if (facts.uuid, facts.size_bytes) != (found.uuid, found.size_bytes) {
            let (uuid, found_uuid, size_bytes, found_bytes) =
                (facts.uuid, found.uuid, facts.size_bytes, found.size_bytes);
            let source = ReplicaError::Mismatch { uuid, found_uuid, size_bytes, found_bytes };
            return Err(PoolError::Replica { replica: place(&urls[0]), source: Arc::new(source) });
        }
        fresh.mirror.clone_from(&old.mirror);
        match upkeep {
            Upkeep::Follow(follow) => Ok((fresh, follow.into_seen())),
            _ => Err(PoolError::NoReplicas),
        }
    }
}

impl Seen {
    /// Whether all of them answer, and nothing has changed. Asks all at once; one that does not answer is lost.
    fn is_unchanged(&self, open: &Open) -> bool {
        let info = |name: &PoolName| Request::Info { name: name.clone() };
        let asked_of_unread: Vec<_> =
            self.unread.iter().map(|unread| unread.site.send(&info(&unread.url.name))).collect();
        let members: Vec<_> = self.said.iter().map(|(position, _)| &open.members[*position]).collect();
        let asked: Vec<_> = { members.iter() }
            .map(|member| {
                let (control, place) = (member.control()?, &member.standing().place);
                Some((control, control.start_asking(&info(&place.url()?.name))))
            })
            .collect();
        let mut is_unchanged = true;
        for ((_, said), asked) in self.said.iter().zip(asked) {
            let reply = asked.and_then(|(control, asking)| control.finish_asking(asking));
            is_unchanged &= said.is_said_in(reply);
        }
        for (unread, asked) in self.unread.iter().zip(asked_of_unread) {
            let reply = asked.and_then(|asked| unread.site.answer(asked));
            is_unchanged &= unread.said.is_said_in(reply.ok());
        }
        is_unchanged
    }
}
