//! One-sided operations through the device.

use pmof_mem::{Durability, Evidence, Mechanism, Promise, causes};
use pmof_proto::{Access, DirectAccess, LocalSlice, OperationKind, PostError, RdmaFeatures, Ticket};
use pmof_verbs::{Operation as WorkOperation, Placement, RemoteAddress};

use super::{opened::inbound_evidence, send::Plain, wire::VerbsWire};
use crate::{
    Method, RemoteRegion,
    method::RING_METHOD,
    request::{Data, Request, Verb},
    wire::{Posted, Posting, Submission},
};

/// Work requests kept free for messages, credit and probes.
pub(super) const SERVICE_REQUESTS: usize = 40;

/// Bytes that a read after writes brings back: what pushes them out of the target's device is the read, not its length.
const READ_BACK_BYTES: u64 = 8;

const QUEUES_GONE: &str = "the device's queues are gone";

/// How a region is reached through the device.
#[derive(Clone, Copy, Debug)]
struct Reach {
    address: u64,
    remote_key: u32,
    features: RdmaFeatures,
}

impl Reach {
    fn of(region: &RemoteRegion) -> Option<Self> {
        match region.direct() {
            DirectAccess::Rdma { address, remote_key, features } => Some(Self { address, remote_key, features }),
            _ => None,
        }
    }

    fn at(&self, offset: u64) -> RemoteAddress {
        RemoteAddress { address: self.address.wrapping_add(offset), rkey: self.remote_key }
    }
}

/// The direct part of [`Wire`](crate::wire::Wire).
impl VerbsWire {
    pub(super) fn reaches_directly(&self, region: &RemoteRegion, kind: OperationKind, offset: u64) -> bool {
        let Some(reach) = Reach::of(region) else { return false };
        // The target's CPU says no in words where a device would break the connection without any.
        let is_aligned = || reach.address.wrapping_add(offset) % 8 == 0;
        match kind {
            OperationKind::Write | OperationKind::Read => true,
            OperationKind::AtomicWrite => {
                self.has_atomic_write() && reach.features.contains(RdmaFeatures::ATOMIC_WRITE) && is_aligned()
            }
            OperationKind::CompareAndSwap | OperationKind::FetchAndAdd => self.has_atomics() && is_aligned(),
            _ => false,
        }
    }

    pub(super) fn promise_of(
        &self,
        method: Method,
        region: &RemoteRegion,
        level: Durability,
    ) -> Result<Promise, &'static str> {
        let no_promise = "the region's medium cannot give this durability";
        let promise = region.promise(level).ok_or(no_promise)?;
        let Some(reach) = Reach::of(region) else { return Err("the target's device cannot reach the region") };
        match method {
            Method::ReadAfterSend if self.is_remote_ring(region.key().0) => {
                offers_read_back(region, reach, level, promise)
            }
            Method::ReadAfterSend => Err("the region is no ring that this connection appends to"),
            _ if self.is_remote_ring(region.key().0) => Err(RING_METHOD),
            Method::NativeFlush => self.offers_native(reach, level).map(|()| promise),
            Method::ReadAfterWrite => offers_read_back(region, reach, level, promise),
            _ => Err("the memory belongs to another host"),
        }
    }

    #[inline]
    pub(super) fn post_write(
        &mut self,
        posting: &Posting,
        region: &RemoteRegion,
        offset: u64,
        request: &Request<'_>,
    ) -> Result<Posted, PostError> {
        let Some(reach) = Reach::of(region) else { return Ok(Posted::ByMessage) };
        let len_bytes = request.len_bytes;
        if !self.has_room_for(len_bytes) {
            return Ok(Posted::NoRoom);
        }
        let Some(mut sender) = self.sender(posting.submission) else { return Err(gone(QUEUES_GONE)) };
        let plain = Plain { ticket: posting.ticket, offset, len_bytes };
        sender.write(reach.at(offset), request.data, plain, posting.is_signalled)?;
        self.note_handed_over();
        Ok(Posted::Taken)
    }

    /// A write that goes into the device's ring behind others: inline, or from registered memory.
    #[inline]
    pub(super) fn append_write(&mut self, region: &RemoteRegion, plain: Plain, data: &Data<'_>) -> bool {
        let (Some(reach), Some((send, queue_pair))) = (Reach::of(region), self.open_ring()) else { return false };
        let to = reach.at(plain.offset);
        let appended = match *data {
            Data::Bytes(bytes) => send.append_bytes(queue_pair, to, bytes, plain),
            _ => send.append_registered(queue_pair, to, *data, plain),
        };
        match appended {
            Ok(is_taken) => is_taken,
            Err(failure) => {
                self.could_not_post(&failure);
                true
            }
        }
    }

    #[inline(never)]
    pub(super) fn post_other(&mut self, posting: &Posting, request: &Request<'_>) -> Result<Posted, PostError> {
        if let Verb::Append = request.verb {
            return self.append(posting.ticket, request.data);
        }
        let Some((region, offset)) = request.place else { return Ok(Posted::ByMessage) };
        let Some(reach) = Reach::of(region).filter(|_| self.reaches_directly(region, request.kind(), offset)) else {
            return Ok(Posted::ByMessage);
        };
        if !self.has_room_for(request.data_bytes()) {
            return Ok(Posted::NoRoom);
        }
        let Some(mut sender) = self.sender(posting.submission) else { return Err(gone(QUEUES_GONE)) };
        let at = reach.at(offset);
        let plain = Plain { ticket: posting.ticket, offset, len_bytes: request.len_bytes };
        match (request.verb, request.data) {
            (Verb::Read, Data::Slice(into)) => sender.read(at, into, plain, posting.is_signalled)?,
            (Verb::AtomicWrite { value }, _) => {
                sender.bare(WorkOperation::AtomicWrite { to: at, value: value.to_le_bytes() }, plain);
            }
            (Verb::CompareAndSwap { expected, new }, _) => {
                sender.atomic(plain, |into| WorkOperation::CompareAndSwap { at, expected, new, into })?;
            }
            (Verb::FetchAndAdd { addend }, _) => {
                sender.atomic(plain, |into| WorkOperation::FetchAndAdd { at, addend, into })?;
            }
            _ => return Ok(Posted::ByMessage),
        }
        self.note_handed_over();
        Ok(Posted::Taken)
    }

    #[inline]
    pub(super) fn post_flush(
        &mut self,
        posting: &Posting,
        region: &RemoteRegion,
        ranges: &[(u64, u64)],
        level: Durability,
        method: Method,
    ) -> Result<Posted, PostError> {
        let is_software = self.is_software();
        // What is queued comes after what is in the ring.
        let submission = if ranges.len() == 1 { posting.submission } else { Submission::Later };
        let (Some(reach), Some(mut sender)) = (Reach::of(region), self.sender(submission)) else {
            return Err(gone(QUEUES_GONE));
        };
        let ticket = posting.ticket;
        if matches!(method, Method::ReadAfterWrite | Method::ReadAfterSend) {
            let Some(&(offset, len_bytes)) = ranges.last() else { return Ok(Posted::Taken) };
            let (into, _) = sender.send.staging.stage_number()?;
            let from = reach.at(offset.min(region.len_bytes() - READ_BACK_BYTES));
            sender.send.push_read_back(from, into, Plain { ticket, offset, len_bytes }.into());
            return Ok(Posted::Taken);
        }
        native_flushes(ticket, ranges, |plain, is_last| {
            let operation = native_flush(reach.at(plain.offset), plain.len_bytes, level, is_software);
            if is_last { sender.bare(operation, plain) } else { sender.flush_part(operation, plain) }
        });
        self.note_handed_over();
        Ok(Posted::Taken)
    }

    #[inline]
    pub(super) fn has_room_for(&self, len_bytes: u64) -> bool {
        self.queues().is_some_and(|queues| queues.send.has_room(len_bytes, SERVICE_REQUESTS))
    }

    pub(super) fn has_nothing_under_way(&self) -> bool {
        self.queues().is_none_or(|queues| queues.send.is_idle() || self.has_broken())
    }

    pub(super) fn has_broken_queues(&self) -> bool {
        self.has_broken() && self.queues().is_some()
    }

    fn append(&mut self, ticket: Ticket, data: Data<'_>) -> Result<Posted, PostError> {
        let len_bytes = data.len_bytes();
        if !self.has_room_for(len_bytes) {
            return Ok(Posted::NoRoom);
        }
        if !self.has_free_slot() {
            return Ok(Posted::NoSlot);
        }
        let flight = Plain { ticket, offset: 0, len_bytes }.into();
        let fill = |into: &mut [u8]| match data {
            Data::None => Ok(()),
            Data::Bytes(bytes) => {
                into.copy_from_slice(bytes);
                Ok(())
            }
            Data::Slice(slice) => read_local(&slice.local, into),
            Data::Part(part) => read_local(&part.local(), into),
        };
        self.push_record(len_bytes, fill, flight)?;
        Ok(Posted::Taken)
    }

    fn offers_native(&self, reach: Reach, level: Durability) -> Result<(), &'static str> {
        if !self.has_flush() {
            return Err("this side's device has no FLUSH, or the peer was told not to use it");
        }
        let needed = match level {
            Durability::PowerFailure => RdmaFeatures::FLUSH_PERSISTENT,
            _ => RdmaFeatures::FLUSH_VISIBLE,
        };
        let missing = "the target's device does not flush this region: it has no FLUSH, was told not to use it, or the \
                       kernel does not know the memory as persistent";
        if reach.features.contains(needed) { Ok(()) } else { Err(missing) }
    }
}

fn read_local(local: &LocalSlice, into: &mut [u8]) -> Result<(), PostError> {
    local.memory.read(local.offset, into).map_err(|error| gone(&causes(&error).to_string()))
}

/// Has each range flushed, one after the other: the last flush carries the outcome of all.
#[inline]
fn native_flushes(ticket: Ticket, ranges: &[(u64, u64)], mut push: impl FnMut(Plain, bool)) {
    let Some((&(offset, len_bytes), before)) = ranges.split_last() else { return };
    for &(offset, len_bytes) in before {
        push(Plain { ticket, offset, len_bytes }, false);
    }
    push(Plain { ticket, offset, len_bytes }, true);
}

/// Flushes a range, or the whole region: also where the range is too long for a work request.
#[inline]
fn native_flush(at: RemoteAddress, len_bytes: u64, level: Durability, is_software: bool) -> WorkOperation<'static> {
    let placement = match level {
        Durability::PowerFailure => Placement::Persistent,
        _ => Placement::Global,
    };
    // Soft-RoCE forgets the address of a FLUSH that it has to send again, and its peer refuses that; a whole region has
    // none. The cost there is the same for what is only to be seen, not for what has to be written back.
    let whole_region = (is_software && placement == Placement::Global) || len_bytes > u64::from(u32::MAX);
    WorkOperation::Flush { at, len_bytes: len_bytes as u32, placement, whole_region }
}

fn gone(why: &str) -> PostError {
    PostError::LocalMemory { why: why.to_owned() }
}

fn offers_read_back(
    region: &RemoteRegion,
    reach: Reach,
    level: Durability,
    promise: Promise,
) -> Result<Promise, &'static str> {
    if !region.access().contains(Access::READ) {
        return Err("the region does not grant remote reads");
    }
    if region.len_bytes() < READ_BACK_BYTES {
        return Err("the region is shorter than the 8 bytes that are read");
    }
    // What the target's CPU sees is what the level asks for.
    if level != Durability::PowerFailure || matches!(promise.mechanism, Mechanism::Store | Mechanism::Fence) {
        return Ok(promise);
    }
    match inbound_evidence(reach.features) {
        Some(Evidence::Declared) => Ok(Promise { mechanism: Mechanism::Store, evidence: Evidence::Declared }),
        _ => Err(
            "nothing attests that inbound writes reach the target's persistence domain by themselves: its CPU caches \
                  do not belong to it (no eADR found), and over a software device a write is a copy made by the CPU, which \
                  stays in those caches",
        ),
    }
}

#[cfg(test)]
mod tests;
