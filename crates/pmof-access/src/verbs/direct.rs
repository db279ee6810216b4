//! One-sided operations through the device.

use pmof_mem::{Durability, Evidence, Mechanism, Promise};
use pmof_proto::{Access, DirectAccess, OperationKind, PostError, RdmaFeatures};
use pmof_verbs::{Operation as WorkOperation, Placement, PostFailure, RemoteAddress};

use super::{
    inbound_evidence,
    send::{Bytes, Flight, ResultPlace},
    wire::VerbsWire,
};
use crate::{
    Method, RemoteRegion,
    direct::{Direct, DirectOutcome},
    method::RING_METHOD,
    request::{Data, Registered, Request},
    wire::Numbered,
};

/// Work requests kept free for messages, credit and probes.
pub(super) const SERVICE_REQUESTS: usize = 40;

/// Bytes that a read after writes brings back: what pushes them out of the target's device is the read, not its length.
const READ_BACK_BYTES: u64 = 8;

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

impl Direct for VerbsWire {
    fn reaches(&self, region: &RemoteRegion, kind: OperationKind, offset: u64) -> bool {
        let Some(reach) = Reach::of(region) else { return false };
        // The target's CPU says no in words where a device would break the connection without any.
        let is_aligned = || reach.address.wrapping_add(offset).is_multiple_of(8);
        match kind {
            OperationKind::Write | OperationKind::Read => true,
            OperationKind::AtomicWrite => {
                self.has_atomic_write() && reach.features.contains(RdmaFeatures::ATOMIC_WRITE) && is_aligned()
            }
            OperationKind::CompareAndSwap | OperationKind::FetchAndAdd => self.has_atomics() && is_aligned(),
            _ => false,
        }
    }

    fn offers(&self, method: Method, region: &RemoteRegion, level: Durability) -> Result<Promise, &'static str> {
        let no_promise = "the region's medium cannot give this durability";
        let promise = region.promise(level).ok_or(no_promise)?;
        let Some(reach) = Reach::of(region) else { return Err("the target's device cannot reach the region") };
        match method {
            Method::ReadAfterSend if self.appends_to(region) => offers_read_back(region, reach, level, promise),
            Method::ReadAfterSend => Err("the region is no ring that this connection appends to"),
            _ if self.appends_to(region) => Err(RING_METHOD),
            Method::NativeFlush => self.offers_native(reach, level).map(|()| promise),
            Method::ReadAfterWrite => offers_read_back(region, reach, level, promise),
            _ => Err("the memory belongs to another host"),
        }
    }

    fn append_max_bytes(&self) -> Option<u64> {
        self.record_max_bytes()
    }

    fn appends_to(&self, region: &RemoteRegion) -> bool {
        self.is_remote_ring(region.key().0)
    }

    fn has_slot(&self) -> bool {
        self.has_free_slot()
    }

    fn has_room(&self, len_bytes: u64) -> bool {
        self.queues().is_some_and(|queues| queues.send.has_room(len_bytes, SERVICE_REQUESTS))
    }

    fn post(&mut self, ticket: u64, request: &Request<'_>) -> Result<(), PostError> {
        if let Request::Append { data } = request {
            return self.append(ticket, data);
        }
        let (Some((region, offset)), Some(queues)) = (request.range(), self.queues_mut()) else {
            return Err(gone("the device's queues are gone"));
        };
        let Some(reach) = Reach::of(region) else { return Err(gone("the target's device cannot reach the region")) };
        let (at, len_bytes) = (reach.at(offset), request.len_bytes());
        let send = &mut queues.send;
        let flight = |result| Flight::Direct { ticket, offset, len_bytes, result };
        match request {
            Request::Write { data, .. } => {
                let staged = match data {
                    Data::Borrowed(bytes) => send.stage(bytes)?,
                    Data::Owned(bytes) => send.stage(bytes)?,
                    Data::Slice(slice) => send.stage_slice(slice)?,
                };
                send.push_write(at, flight(ResultPlace::None), staged);
            }
            Request::Read { into, .. } => {
                let (staged, result) = send.stage_read(into)?;
                match staged.bytes {
                    Bytes::Registered(into) => send.push_read(at, into, flight(result), staged),
                    // A read of nothing still keeps its place among the others.
                    _ => send.push_write(at, flight(result), staged),
                }
            }
            Request::AtomicWrite { value, .. } => {
                let operation = WorkOperation::AtomicWrite { to: at, value: value.to_le_bytes() };
                send.push_bare(operation, flight(ResultPlace::None));
            }
            Request::CompareAndSwap { expected, new, .. } => {
                let (into, result) = send.stage_number()?;
                let operation = WorkOperation::CompareAndSwap { at, expected: *expected, new: *new, into };
                send.push_bare(operation, flight(result));
            }
            Request::FetchAndAdd { addend, .. } => {
                let (into, result) = send.stage_number()?;
                send.push_bare(WorkOperation::FetchAndAdd { at, addend: *addend, into }, flight(result));
            }
            Request::Flush { .. } | Request::Send { .. } | Request::Append { .. } => {
                return Err(gone("such operations go another way"));
            }
        }
        Ok(())
    }

    fn flush(
        &mut self,
        ticket: u64,
        region: &RemoteRegion,
        ranges: &[(u64, u64)],
        level: Durability,
        method: Method,
    ) -> Result<(), PostError> {
        let is_software = self.is_software();
        let (Some(reach), Some(queues)) = (Reach::of(region), self.queues_mut()) else {
            return Err(gone("the device's queues are gone"));
        };
        if matches!(method, Method::ReadAfterWrite | Method::ReadAfterSend) {
            let Some(&(offset, len_bytes)) = ranges.last() else { return Ok(()) };
            let (into, _) = queues.send.stage_number()?;
            let from = reach.at(offset.min(region.len_bytes() - READ_BACK_BYTES));
            queues.send.push_read_back(from, into, Flight::plain(ticket, offset, len_bytes));
            return Ok(());
        }
        native_flushes(ticket, ranges, |offset, len_bytes, flight| {
            queues.send.push_bare(native_flush(reach.at(offset), len_bytes, level, is_software), flight);
        });
        Ok(())
    }

    fn poll(&mut self) -> Option<(u64, DirectOutcome)> {
        self.next_finished()
    }

    fn is_idle(&self) -> bool {
        self.queues().is_none_or(|queues| queues.send.is_idle() || self.has_broken())
    }

    fn is_broken(&self) -> bool {
        self.has_broken() && self.queues().is_some()
    }

    fn stop(&mut self) {
        self.stop_queues();
    }
}

impl VerbsWire {
    /// The short cut for a write that needs neither staging nor a fence. False: nothing was taken.
    #[inline]
    pub(super) fn take_write(&mut self, number: Numbered, to: &RemoteRegion, offset: u64, data: &Data<'_>) -> bool {
        match (Reach::of(to), self.queues_mut()) {
            (Some(reach), Some(queues)) => {
                queues.send.write((reach.at(offset), offset), number, data, SERVICE_REQUESTS)
            }
            _ => false,
        }
    }

    /// The same, handed to the device at once. Nothing else is to be handed over.
    #[inline]
    pub(super) fn post_write(
        &mut self,
        number: Numbered,
        to: &RemoteRegion,
        offset: u64,
        from: Registered<'_>,
    ) -> bool {
        let Some(reach) = Reach::of(to) else { return false };
        let Some((send, queue_pair)) = self.free_queue(SERVICE_REQUESTS) else { return false };
        let Some(sge) = send.reach_registered(from) else { return false };
        let flight = Flight::plain(number.ticket, offset, from.len_bytes);
        let posted = send.post_write(queue_pair, (reach.at(offset), sge), flight, from.device, number.is_asked);
        self.note_posted(posted)
    }

    /// The same for a flush.
    #[inline]
    pub(super) fn post_flush(
        &mut self,
        ticket: u64,
        region: &RemoteRegion,
        (offset, len_bytes): (u64, u64),
        (level, method): (Durability, Method),
    ) -> bool {
        let Some(reach) = Reach::of(region).filter(|_| method == Method::NativeFlush) else { return false };
        let is_software = self.is_software();
        let Some((send, queue_pair)) = self.free_queue(SERVICE_REQUESTS) else { return false };
        let flush = native_flush(reach.at(offset), len_bytes, level, is_software);
        let posted = send.post_bare(queue_pair, flush, Flight::plain(ticket, offset, len_bytes));
        self.note_posted(posted)
    }

    /// What could not be posted was taken nevertheless: it fails.
    #[inline]
    fn note_posted(&mut self, posted: Result<(), PostFailure>) -> bool {
        if let Err(failure) = posted {
            self.could_not_post(&failure);
        }
        true
    }

    fn append(&mut self, ticket: u64, data: &Data<'_>) -> Result<(), PostError> {
        let len_bytes = data.len_bytes();
        let flight = Flight::Direct { ticket, offset: 0, len_bytes, result: ResultPlace::None };
        let fill = |into: &mut [u8]| match data {
            Data::Borrowed(bytes) => {
                into.copy_from_slice(bytes);
                Ok(())
            }
            Data::Owned(bytes) => {
                into.copy_from_slice(bytes);
                Ok(())
            }
            Data::Slice(slice) => {
                let local = &slice.local;
                local.memory.read(local.offset, into).map_err(|error| gone(&error.to_string()))
            }
        };
        self.push_record(len_bytes, fill, flight)
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

/// Has each range flushed, one after the other: the last flush carries the outcome of all.
fn native_flushes(ticket: u64, ranges: &[(u64, u64)], mut push: impl FnMut(u64, u64, Flight)) {
    let Some((&(offset, len_bytes), before)) = ranges.split_last() else { return };
    for &(offset, len_bytes) in before {
        push(offset, len_bytes, Flight::FlushPart { ticket, offset, len_bytes });
    }
    push(offset, len_bytes, Flight::plain(ticket, offset, len_bytes));
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
