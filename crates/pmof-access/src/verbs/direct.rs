//! One-sided operations through the device.

use pmof_mem::{Durability, Evidence, Mechanism, Promise};
use pmof_proto::{Access, DirectAccess, LocalSlice, OperationKind, PostError, RdmaFeatures, Ticket};
use pmof_verbs::{Operation as WorkOperation, Placement, RemoteAddress};

use super::{
    inbound_evidence,
    send::{Flight, ResultPlace},
    wire::VerbsWire,
};
use crate::{
    Method, RemoteRegion,
    direct::{Direct, DirectOutcome, Posting},
    method::RING_METHOD,
    request::{Data, Request},
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

    fn post(&mut self, posting: Posting, request: &Request<'_>) -> Result<Option<DirectOutcome>, PostError> {
        if let Request::Append { data } = request {
            self.append(posting.ticket, data)?;
            return Ok(None);
        }
        let (Some((region, offset)), Some(mut sender)) = (request.range(), self.sender(posting.is_alone)) else {
            return Err(gone("the device's queues are gone"));
        };
        let Some(reach) = Reach::of(region) else { return Err(gone("the target's device cannot reach the region")) };
        let (at, len_bytes, ticket) = (reach.at(offset), request.len_bytes(), posting.ticket);
        let flight = |result| Flight::Direct { ticket, offset, len_bytes, result };
        match request {
            Request::Write { data, .. } => sender.write(at, data, flight(ResultPlace::None), posting.is_signalled)?,
            Request::Read { into, .. } => sender.read(at, into, flight)?,
            Request::AtomicWrite { value, .. } => {
                let operation = WorkOperation::AtomicWrite { to: at, value: value.to_le_bytes() };
                sender.bare(operation, flight(ResultPlace::None));
            }
            Request::CompareAndSwap { expected, new, .. } => {
                let (into, result) = sender.send.stage_number()?;
                let operation = WorkOperation::CompareAndSwap { at, expected: *expected, new: *new, into };
                sender.bare(operation, flight(result));
            }
            Request::FetchAndAdd { addend, .. } => {
                let (into, result) = sender.send.stage_number()?;
                sender.bare(WorkOperation::FetchAndAdd { at, addend: *addend, into }, flight(result));
            }
            Request::Flush { .. } | Request::Send { .. } | Request::Append { .. } => {
                return Err(gone("such operations go another way"));
            }
        }
        self.note_handed_over();
        Ok(None)
    }

    fn flush(
        &mut self,
        posting: Posting,
        region: &RemoteRegion,
        ranges: &[(u64, u64)],
        level: Durability,
        method: Method,
    ) -> Result<Option<DirectOutcome>, PostError> {
        let is_software = self.is_software();
        let is_alone = posting.is_alone && ranges.len() == 1;
        let (Some(reach), Some(mut sender)) = (Reach::of(region), self.sender(is_alone)) else {
            return Err(gone("the device's queues are gone"));
        };
        let ticket = posting.ticket;
        if matches!(method, Method::ReadAfterWrite | Method::ReadAfterSend) {
            let Some(&(offset, len_bytes)) = ranges.last() else { return Ok(None) };
            let (into, _) = sender.send.stage_number()?;
            let from = reach.at(offset.min(region.len_bytes() - READ_BACK_BYTES));
            sender.send.push_read_back(from, into, Flight::plain(ticket, offset, len_bytes));
            return Ok(None);
        }
        native_flushes(ticket, ranges, |offset, len_bytes, flight| {
            sender.bare(native_flush(reach.at(offset), len_bytes, level, is_software), flight);
        });
        self.note_handed_over();
        Ok(None)
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
    fn append(&mut self, ticket: Ticket, data: &Data<'_>) -> Result<(), PostError> {
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
            Data::Slice(slice) => read_local(&slice.local, into),
            Data::Part(part) => read_local(&part.local(), into),
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

fn read_local(local: &LocalSlice, into: &mut [u8]) -> Result<(), PostError> {
    local.memory.read(local.offset, into).map_err(|error| gone(&error.to_string()))
}

/// Has each range flushed, one after the other: the last flush carries the outcome of all.
#[inline]
fn native_flushes(ticket: Ticket, ranges: &[(u64, u64)], mut push: impl FnMut(u64, u64, Flight)) {
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
