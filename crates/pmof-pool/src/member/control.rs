//! What a replica is asked besides its bytes: one question at a time.

use std::{ops::Range, sync::Arc, time::Duration};

use pmof_control::{DIGESTED_MAX_BYTES, DIGESTS_MAX, PagesReply, PagesRequest, PoolRefusal, Reply, Request};
use pmof_locks::{Mutex, MutexGuard};
use pmof_pool_set::Digest;
use uuid::Uuid;

use super::Standing;
use crate::{
    ReplicaError,
    site::{Asked, Site},
};

/// Who has taken a pool over, where no target says.
pub(crate) const UNKNOWN_SUCCESSOR: &str = "another initiator";

/// A replica that answers questions, and whether it is in use.
#[derive(Debug)]
pub(crate) struct Control {
    pub(super) standing: Standing,
    site: Site,
    is_written: bool,
    /// One question at a time, and the one before that nobody waited for.
    asking: Mutex<Option<Owed>>,
}

/// A question whose answer nobody waited for.
#[derive(Debug)]
struct Owed {
    asked: Asked,
    /// Whatever the answer is, it changes nothing.
    is_forgotten: bool,
}

/// A question that was asked, and the right to ask the next one.
pub(crate) struct Asking<'m> {
    asked: Option<Asked>,
    owed: MutexGuard<'m, Option<Owed>>,
}

/// There is no answer yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Late;

impl Asking<'_> {
    /// Nobody waits for the answer any more: whoever asks next does.
    pub(crate) fn abandon(self) {
        self.leave(false);
    }

    /// The same of a question that the replica may as well refuse.
    pub(crate) fn forget(self) {
        self.leave(true);
    }

    fn leave(mut self, is_forgotten: bool) {
        *self.owed = self.asked.take().map(|asked| Owed { asked, is_forgotten });
    }
}

impl Control {
    pub(crate) fn new(standing: Standing, site: Site, is_written: bool) -> Self {
        Self { standing, site, is_written, asking: Mutex::default() }
    }

    /// Sends a question. A failure takes the replica out of use.
    pub(crate) fn start_asking(&self, request: &Request) -> Asking<'_> {
        self.ask_next(request, self.asking.lock())
    }

    /// The same, if the questions before are answered within this time: one that is being asked, and one that nobody waited for.
    pub(crate) fn start_asking_within(&self, request: &Request, limit: Duration) -> Option<Asking<'_>> {
        let mut owed = self.asking.try_lock_for(limit)?;
        if let Some(before) = owed.take() {
            let Some(answer) = self.site.answer_within(&before.asked, limit) else {
                *owed = Some(before);
                return None;
            };
            // A failure is found when the next one is asked.
            drop(self.take_answer(answer, before.is_forgotten));
        }
        Some(self.ask_next(request, owed))
    }

    fn ask_next<'m>(&'m self, request: &Request, mut owed: MutexGuard<'m, Option<Owed>>) -> Asking<'m> {
        let asked = match self.take_owed(&mut owed) {
            Err(_) => None,
            Ok(()) => self.site.send(request).map_err(|error| self.fail(error)).ok(),
        };
        Asking { asked, owed }
    }

    /// Waits for the answer that nobody has waited for.
    fn take_owed(&self, owed: &mut Option<Owed>) -> Result<(), Arc<ReplicaError>> {
        self.check_in_use()?;
        let Some(Owed { asked, is_forgotten }) = owed.take() else { return Ok(()) };
        self.take_answer(self.site.answer(asked), is_forgotten)
    }

    fn take_answer(&self, answer: Result<Reply, ReplicaError>, is_forgotten: bool) -> Result<(), Arc<ReplicaError>> {
        match answer {
            Ok(_) => Ok(()),
            Err(ReplicaError::Refused { .. }) if is_forgotten => Ok(()),
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Waits for the answer, for so long at most; on this machine the question is answered now. `None`: it is not yet there. An answer is given once,
    /// and a failure takes the replica out of use.
    pub(crate) fn answer_within(
        &self,
        asking: &mut Asking<'_>,
        limit: Duration,
    ) -> Option<Result<Reply, Arc<ReplicaError>>> {
        Some(self.told_within(asking, limit)?.map_err(|error| self.fail(error)))
    }

    /// The same, and what an error means is for whoever asks to say.
    pub(crate) fn told_within(&self, asking: &mut Asking<'_>, limit: Duration) -> Option<Result<Reply, ReplicaError>> {
        let Some(asked) = &asking.asked else { return Some(Err(ReplicaError::Unexpected)) };
        let answer = self.site.answer_within(asked, limit)?;
        asking.asked = None;
        Some(answer)
    }

    /// Waits for the answer. A failure takes the replica out of use, and so does a refusal.
    pub(crate) fn finish_asking(&self, asking: Asking<'_>) -> Option<Reply> {
        self.site.answer(asking.asked?).map_err(|error| self.fail(error)).ok()
    }

    /// Waits for the answer. A failure takes the replica out of use; a refusal does not.
    pub(crate) fn answer(&self, asking: Asking<'_>) -> Result<Reply, Arc<ReplicaError>> {
        let Some(asked) = asking.asked else {
            return Err(self.check_in_use().err().unwrap_or_else(|| self.fail(ReplicaError::Unexpected)));
        };
        self.site.answer(asked).map_err(|error| self.kept(error))
    }

    /// Asks. A refusal leaves the replica in use.
    pub(crate) fn ask(&self, request: &Request) -> Result<Reply, Arc<ReplicaError>> {
        let mut owed = self.asking.lock();
        self.take_owed(&mut owed)?;
        self.site.ask(request).map_err(|error| self.kept(error))
    }

    fn kept(&self, error: ReplicaError) -> Arc<ReplicaError> {
        match error {
            ReplicaError::Refused { .. } => Arc::new(error),
            error => self.fail(error),
        }
    }

    /// Asks for what is answered in one way only.
    pub(crate) fn ask_for(&self, request: &Request, expected: &Reply) -> Result<(), Arc<ReplicaError>> {
        let reply = self.ask(request)?;
        if reply == *expected { Ok(()) } else { Err(self.fail(ReplicaError::Unexpected)) }
    }

    /// Whether the replica keeps digests of its pages.
    pub(crate) fn keeps_digests(&self) -> bool {
        self.site.keeps_digests()
    }

    /// Asks about pages. A refusal leaves the replica in use.
    pub(crate) fn ask_pages(&self, request: PagesRequest) -> Result<PagesReply, Arc<ReplicaError>> {
        match self.ask(&Request::Pages(request))? {
            Reply::Pages(reply) => Ok(reply),
            _ => Err(self.fail(ReplicaError::Unexpected)),
        }
    }

    /// The time since its machine was started. `None`: it is not known.
    pub(crate) fn boot(&self) -> Option<Uuid> {
        match self.ask(&Request::Boot).ok()? {
            Reply::Boot { boot } => Some(boot),
            _ => None,
        }
    }

    /// The same, waited for so long at most where there is a limit.
    pub(crate) fn boot_within(&self, limit: Option<Duration>) -> Result<Option<Uuid>, Late> {
        let Some(limit) = limit else { return Ok(self.boot()) };
        let asking = self.start_asking_within(&Request::Boot, limit).ok_or(Late)?;
        let Some(asked) = &asking.asked else { return Ok(None) };
        match self.site.answer_within(asked, limit) {
            Some(Ok(Reply::Boot { boot })) => return Ok(Some(boot)),
            Some(Ok(_) | Err(ReplicaError::Refused { .. })) => {}
            Some(Err(error)) => drop(self.fail(error)),
            None => {
                asking.abandon();
                return Err(Late);
            }
        }
        Ok(None)
    }

    /// Asks for BLAKE3 digests of the blocks of `block_bytes` of a range, the last of which may be shorter; they are computed where the replica
    /// is. What is returned waits for them. A refusal leaves the replica in use.
    pub(crate) fn start_digests(
        &self,
        range: Range<u64>,
        block_bytes: u64,
    ) -> impl FnOnce() -> Result<Vec<Digest>, Arc<ReplicaError>> {
        let at_once = (DIGESTED_MAX_BYTES / block_bytes).min(DIGESTS_MAX as u64) * block_bytes;
        let part_at = move |at: u64| at_once.min(range.end.saturating_sub(at));
        let request = move |at: u64| Request::Digest { offset: at, len_bytes: part_at(at), block_bytes };
        let first = (part_at(range.start) > 0).then(|| self.start_asking(&request(range.start)));
        move || {
            let (mut digests, mut at, mut asking) = (Vec::new(), range.start, first);
            while at < range.end {
                let asked = asking.take().unwrap_or_else(|| self.start_asking(&request(at)));
                let expected = part_at(at).div_ceil(block_bytes) as usize;
                match self.answer(asked)? {
                    Reply::Digests { digests: part } if part.len() == expected => digests.extend(part),
                    _ => return Err(self.fail(ReplicaError::Unexpected)),
                }
                at += part_at(at);
            }
            Ok(digests)
        }
    }

    /// The ranges of `range` outside of which all bytes are zero, durably, in order and apart, as the file system where it is tells;
    /// all of it where that does not tell, or the target is of a release that is not asked.
    pub(crate) fn data_ranges(&self, range: Range<u64>) -> Result<Vec<Range<u64>>, Arc<ReplicaError>> {
        let mut all = Vec::new();
        let mut at = range.start;
        while at < range.end {
            match self.ask(&Request::Data { offset: at }) {
                Ok(Reply::Data { ranges, end }) if end > at && are_in(&ranges, at..end) => {
                    let inside = ranges.into_iter().map(|data| data.start..data.end.min(range.end));
                    all.extend(inside.filter(|data| !data.is_empty()));
                    at = end;
                }
                Ok(_) => return Err(self.fail(ReplicaError::Unexpected)),
                // It did not understand the question, or its memory does not tell.
                Err(error) if matches!(*error, ReplicaError::Refused { refusal: PoolRefusal::Failed, .. }) => {
                    all.push(at..range.end);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    /// Why it is out of use, if it is.
    pub(crate) fn check_in_use(&self) -> Result<(), Arc<ReplicaError>> {
        self.standing.failure().map_or(Ok(()), |failure| Err(Arc::clone(failure)))
    }

    /// Takes the replica out of use. What failed first stays the reason: of those who fail at once, one says why the connection ended, the
    /// others only hear that it did.
    pub(crate) fn fail(&self, mut error: ReplicaError) -> Arc<ReplicaError> {
        if self.standing.state().is_connected() && self.is_written && error.is_fenced() {
            error = ReplicaError::Fenced { successor: self.successor() };
        }
        let why = self.standing.fail(error);
        self.site.disconnect();
        why
    }

    /// What a read failed by. Bytes that are damaged leave the replica in use: all else of it can be read.
    pub(crate) fn unread(&self, error: ReplicaError) -> Arc<ReplicaError> {
        if matches!(error, ReplicaError::Damaged { .. }) { Arc::new(error) } else { self.fail(error) }
    }

    /// Takes the replica out of use if its target has gone: of one that nothing is asked of for a while nothing else tells.
    pub(crate) fn look(&self) {
        if let Some(why) = self.site.why_ended() {
            drop(self.fail(ReplicaError::Ended(why)));
        }
    }

    /// Takes the replica out of use for a reason that others have too.
    pub(crate) fn fail_for(&self, why: Arc<ReplicaError>) {
        self.standing.fail_for(why);
        self.site.disconnect();
    }

    /// Takes the replica out of use because the pool was taken over at another one.
    pub(crate) fn fence(&self, successor: &str) {
        self.standing.fail(ReplicaError::Fenced { successor: successor.to_owned() });
        self.site.disconnect();
    }

    /// Who has the pool now, as far as its target says soon.
    fn successor(&self) -> String {
        let holder = self.standing.place.url().and_then(|url| self.site.holder_of(&url.name));
        holder.unwrap_or_else(|| UNKNOWN_SUCCESSOR.to_owned())
    }
}

/// Whether ranges are in order, apart, and inside of another.
fn are_in(ranges: &[Range<u64>], whole: Range<u64>) -> bool {
    are_in_order(ranges, whole) && ranges.is_sorted_by(|one, next| one.end < next.start)
}

/// Whether ranges are in order and inside of another; one may begin where another ends.
pub(super) fn are_in_order(ranges: &[Range<u64>], whole: Range<u64>) -> bool {
    let is_ordered = ranges.is_sorted_by(|one, next| one.end <= next.start);
    is_ordered
        && ranges.iter().all(|range| whole.start <= range.start && range.start < range.end && range.end <= whole.end)
}
