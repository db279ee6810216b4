//! A replica on a target.

use std::{ops::Range, sync::Arc, time::Duration};

use pmof_access::{
    Connection, Durability, Mechanism, Medium, Method, Outcome, PostError, Region, RemoteRegion, Signal, Traffic,
};
use pmof_control::{Reply, Request};
use pmof_locks::Mutex;
use pmof_pool_set::{Attributes, Contents, HEADER_LEN_BYTES};

use super::{
    Atomicity, Control, Extent, Flush, FlushLevel, Flushing, Member, MemberContents, Source, Standing, Write, Written,
    control::are_in_order, verified::VerifiedPages,
};
use crate::{ReplicaError, ReplicaReceipt, site::Site, target::TargetConnection};

/// Bytes of one write that a crash tears between its aligned 8 bytes only, at most: the target gathers it before it stores it.
const GATHERED_BYTES: u64 = 4096;

/// Bytes of one write of which a crash may leave any: enough to fill system calls, little enough to keep others going.
pub(crate) const RELAXED_BYTES: u64 = 1 << 20;

/// How a replica that is open for writing is flushed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writing {
    /// That of writes that go direct, as it was agreed at opening: whether threads share flushes. A receipt says how each flush went.
    pub(crate) method: Method,
    /// The level that flushes must reach, and the strongest that this way of flushing gives.
    pub(crate) level: Durability,
    pub(crate) strongest: Durability,
}

impl Writing {
    /// To this level and no stronger one.
    ///
    /// # Errors
    /// `NotDurable`, where the replica cannot give the level.
    pub(crate) fn to(level: Durability, target: &TargetConnection, data: &RemoteRegion) -> Result<Self, ReplicaError> {
        if data.promise(level).is_none() {
            let (strongest, medium) = (data.strongest(), data.kind().to_string());
            return Err(ReplicaError::NotDurable { wanted: level, strongest, medium });
        }
        Ok(Self { method: target.flush_method(data, level)?, level, strongest: level })
    }
}

/// The memory of a replica on its target.
#[derive(Clone, Copy, Debug)]
struct Regions {
    /// The pool behind its header.
    data: RemoteRegion,
    header: Option<RemoteRegion>,
}

/// A replica on a target, over a connection of its own.
#[derive(Debug)]
pub(crate) struct RemoteMember {
    pub(crate) control: Control,
    target: Arc<TargetConnection>,
    regions: Regions,
    writing: Option<Writing>,
    /// The pool's mirror, registered for this connection.
    mirror: Option<Region>,
    /// Pages that may be read, where this side reads them past the target's CPU and the replica keeps digests.
    verified: Option<VerifiedPages>,
    /// Where reads arrive; each read has one to itself.
    scratch: Mutex<Vec<Region>>,
}

impl RemoteMember {
    /// `header`: the pages before `data`, where the format has them there; `writing`: where it is open for writing.
    pub(crate) fn new(
        standing: Standing,
        target: Arc<TargetConnection>,
        data: RemoteRegion,
        header: Option<RemoteRegion>,
        writing: Option<Writing>,
    ) -> Self {
        let regions = Regions { data, header };
        let control = Control::new(standing, Site::Target(Arc::clone(&target)), writing.is_some());
        let is_read_direct = control.keeps_digests() && data.is_direct();
        let verified = is_read_direct.then(|| VerifiedPages::new(data.len_bytes()));
        Self { control, target, regions, writing, mirror: None, verified, scratch: Mutex::default() }
    }

    /// What its connection has moved.
    pub(crate) fn traffic(&self) -> Traffic {
        self.target.traffic()
    }

    /// Has writes go out of `mirror` from where they lie.
    pub(crate) fn use_mirror(&mut self, mirror: Arc<dyn Medium>) -> Result<(), ReplicaError> {
        let len_bytes = mirror.len_bytes();
        self.mirror = Some(self.target.register(mirror, len_bytes)?);
        Ok(())
    }

    /// Bytes, header included.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.header_bytes() + self.regions.data.len_bytes()
    }

    /// Bytes of the header, which writes must not touch; 0 where there is none.
    pub(crate) fn header_bytes(&self) -> u64 {
        if self.regions.header.is_some() { HEADER_LEN_BYTES as u64 } else { 0 }
    }

    /// What each part without a header has of the pool, in order. Targets of older releases refuse to tell.
    pub(crate) fn headerless_ranges(&self) -> Result<Vec<Range<u64>>, Arc<ReplicaError>> {
        let (mut all, mut at) = (Vec::new(), 0);
        while at < self.len_bytes() {
            match self.control.ask(&Request::Headerless { offset: at })? {
                Reply::Headerless { ranges, end }
                    if end > at && are_in_order(&ranges, at..end.min(self.len_bytes())) =>
                {
                    all.extend(ranges);
                    at = end;
                }
                _ => return Err(self.control.fail(ReplicaError::Unexpected)),
            }
        }
        Ok(all)
    }

    /// Replaces what the headers of the target's parts say, durably.
    pub(crate) fn set_attributes(&self, attributes: &Attributes) -> Result<(), Arc<ReplicaError>> {
        self.control.ask_for(&Request::SetAttributes { attributes: attributes.to_bytes() }, &Reply::AttributesSet)
    }

    /// Does a step that posts, on a replica in use.
    fn post<T>(&self, step: impl FnMut(&Connection) -> Result<T, PostError>) -> Option<T> {
        if !self.state().is_connected() {
            return None;
        }
        self.target.post(step).map_err(|error| self.control.fail(error)).ok()
    }

    /// `limit`: how long this waits for room, where that is not as long as a target may take. `Some(false)`: there was none.
    fn post_piece(&self, write: &Write<'_>, piece: &Range<u64>, limit: Option<Duration>) -> Option<bool> {
        let (region, at) = (&self.regions.data, piece.start - self.header_bytes());
        let step = |connection: &Connection| {
            // Behind others it need not go at once: what goes together costs fewer system calls.
            let is_held = write.is_held || connection.outstanding() > 0;
            let mut batch = connection.batch();
            // What the target gathers before it stores it is torn between words only.
            batch.signal(Signal::OnError).by_message(write.atomicity == Atomicity::Words);
            match (write.source, &self.mirror) {
                (Source::Bytes(bytes), _) => {
                    let (begin, end) = (piece.start - write.offset, piece.end - write.offset);
                    batch.write(region, at, &bytes[begin as usize..end as usize])?;
                }
                (Source::Atomic(value), _) => {
                    batch.atomic_write(region, at, value)?;
                }
                (Source::Mirror, Some(mirror)) => {
                    batch.write(region, at, mirror.slice(piece.clone())?)?;
                }
                // The pool has no mirror, and lets nobody write from it.
                (Source::Mirror, None) => {}
            }
            if is_held {
                // Until the flush, or until there is enough to send.
                batch.hold();
            } else {
                batch.submit();
            }
            Ok(())
        };
        match limit {
            None => self.post(step).map(|()| true),
            Some(_) if !self.state().is_connected() => None,
            Some(limit) => {
                let posted = self.target.post_within(limit, step).map_err(|error| self.control.fail(error)).ok()?;
                Some(posted.is_some())
            }
        }
    }

    /// False: there was no room.
    fn post_write(&self, write: &Write<'_>, limit: Option<Duration>) -> bool {
        let piece_bytes = match write.atomicity {
            Atomicity::Words => GATHERED_BYTES,
            Atomicity::Relaxed => RELAXED_BYTES,
        };
        let (mut at, end) = (write.offset, write.offset + write.len_bytes);
        while at < end {
            // Pieces end at multiples of their length, so that none cuts a word.
            let piece_end = (at / piece_bytes * piece_bytes + piece_bytes).min(end);
            match self.post_piece(write, &(at..piece_end), limit) {
                Some(true) => at = piece_end,
                Some(false) => return false,
                None => return true,
            }
        }
        true
    }

    fn post_flush(&self, flush: Flush, level: FlushLevel) -> Flushing {
        let Some(level) = self.level(level) else { return Flushing::default() };
        let data = &self.regions.data;
        let tickets = match flush {
            Flush::Everything => [self.post(|connection| connection.flush(data, .., level)), None],
            Flush::Written(Written { relaxed, words }) => {
                [(false, relaxed), (true, words)].map(|(is_by_message, extent)| {
                    let range = self.in_data(extent?);
                    self.post(|connection| {
                        connection.batch().by_message(is_by_message).flush(data, range.clone(), level)
                    })
                })
            }
        };
        Flushing { tickets, ..Flushing::default() }
    }

    fn level(&self, level: FlushLevel) -> Option<Durability> {
        self.writing.map(|writing| match level {
            FlushLevel::OfPool => writing.level,
            FlushLevel::Strongest => writing.strongest,
        })
    }

    /// A range of the pool as one of its data.
    fn in_data(&self, (begin, end): Extent) -> Range<u64> {
        let header_bytes = self.header_bytes();
        begin.saturating_sub(header_bytes)..end.saturating_sub(header_bytes)
    }

    /// Waits for the flushes under way, at most `limit` for each; `None`: as long as a target may take. Whether all are done.
    fn drain(&self, flushing: &mut Flushing, limit: Option<Duration>) -> bool {
        for (slot, reached) in flushing.tickets.iter_mut().zip(&mut flushing.reached) {
            let Some(ticket) = *slot else { continue };
            let outcome = match limit {
                None => Some(self.target.wait(ticket)),
                Some(limit) => self.target.wait_for(ticket, limit),
            };
            let Some(outcome) = outcome else { return false };
            *slot = None;
            match (outcome, self.writing) {
                (Ok(Outcome::Flushed(flushed)), Some(Writing { level, .. })) if flushed.durability >= level => {
                    *reached = Some(flushed);
                }
                (Ok(_), _) => {
                    self.control.fail(ReplicaError::Unexpected);
                }
                (Err(error), _) => {
                    self.control.fail(error);
                }
            }
        }
        true
    }

    fn read_region(&self, region: &RemoteRegion, offset: u64, into: &mut [u8]) -> Result<(), Arc<ReplicaError>> {
        let mut scratch = self.scratch.lock().pop();
        let done = self.target.read(region, offset, into, &mut scratch);
        self.scratch.lock().extend(scratch);
        done.map_err(|error| self.control.unread(error))
    }
}

impl Member for RemoteMember {
    fn standing(&self) -> &Standing {
        &self.control.standing
    }

    fn write(&self, write: &Write<'_>) {
        self.post_write(write, None);
    }

    fn write_within(&self, write: &Write<'_>, limit: Duration) -> bool {
        self.post_write(write, Some(limit))
    }

    fn start_flush(&self, flush: Flush, level: FlushLevel) -> Flushing {
        // What one lacks that is behind, no flush makes durable; all of it is flushed when it has caught up.
        if self.state().is_in_sync() { self.post_flush(flush, level) } else { Flushing::default() }
    }

    fn start_persist(&self, range: &Range<u64>, level: FlushLevel) -> Flushing {
        let mut written = Written::default();
        // By message: the target's CPU writes back what others have stored, too.
        written.add(Atomicity::Words, (range.start, range.end));
        self.start_flush(Flush::Written(written), level)
    }

    fn is_flushed(&self, flushing: &mut Flushing, limit: Duration) -> bool {
        self.drain(flushing, Some(limit))
    }

    fn finish_flush(&self, flushing: &mut Flushing) -> Option<ReplicaReceipt> {
        // What is not waited for gives no receipt, whatever of it is done.
        if self.state().is_slow() {
            return None;
        }
        self.drain(flushing, None);
        let receipt =
            ReplicaReceipt::of(Arc::clone(&self.standing().place), flushing.reached, self.standing().domain());
        receipt.filter(|_| self.state().is_in_sync())
    }

    fn start_flush_everything(&self, level: FlushLevel) -> Flushing {
        self.post_flush(Flush::Everything, level)
    }

    fn has_flushed(&self, flushing: &mut Flushing, limit: Option<Duration>) -> bool {
        self.drain(flushing, limit) && self.state().is_connected() && flushing.reached[0].is_some()
    }

    fn shares_flushes(&self) -> bool {
        let Some(Writing { method, level, .. }) = self.writing else { return false };
        let promise = self.regions.data.promise(level);
        method == Method::SendAfterWrite || promise.is_some_and(|promise| promise.mechanism == Mechanism::FileSync)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Arc<ReplicaError>> {
        if !self.state().is_in_sync() {
            return Err(self.standing().why_not_read());
        }
        let header_bytes = self.header_bytes();
        let in_header = header_bytes.saturating_sub(offset).min(into.len() as u64) as usize;
        let (head, rest) = into.split_at_mut(in_header);
        if let (Some(header), false) = (&self.regions.header, head.is_empty()) {
            self.read_region(header, offset, head)?;
        }
        if rest.is_empty() {
            return Ok(());
        }
        let at = offset.max(header_bytes) - header_bytes;
        if let Some(verified) = &self.verified {
            verified.check(&self.control, &(at..at + rest.len() as u64))?;
        }
        self.read_region(&self.regions.data, at, rest)
    }

    fn read_ranges(&self, ranges: &[Range<u64>], arrived: &mut dyn FnMut(u64, &[u8])) -> Result<(), Arc<ReplicaError>> {
        self.control.check_in_use()?;
        for range in self.verified.iter().flat_map(|_| ranges) {
            self.verified.iter().try_for_each(|verified| verified.check(&self.control, range))?;
        }
        let mut scratch = self.scratch.lock().pop();
        let done = self.target.read_ranges(&self.regions.data, ranges, &mut scratch, arrived);
        self.scratch.lock().extend(scratch);
        done.map_err(|error| self.control.unread(error))
    }

    fn strongest(&self) -> Durability {
        self.writing.map_or(Durability::Visible, |writing| writing.strongest)
    }

    fn close(&self) -> Result<(), Arc<ReplicaError>> {
        self.control.ask_for(&Request::Close { in_order: true }, &Reply::Closed)
    }

    fn contents(&self) -> Option<Box<dyn Contents + '_>> {
        Some(Box::new(MemberContents::of_remote(self)))
    }

    fn control(&self) -> Option<&Control> {
        Some(&self.control)
    }

    fn remote(&self) -> Option<&RemoteMember> {
        Some(self)
    }
}

impl Drop for RemoteMember {
    fn drop(&mut self) {
        if let Some(mirror) = self.mirror.take() {
            mirror.deregister();
        }
    }
}
