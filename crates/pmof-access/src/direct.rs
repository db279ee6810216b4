//! The seam of one-sided transports: operations at the other side's memory that this side's device, or CPU, carries out.

use pmof_mem::{Durability, Promise};
use pmof_proto::{OperationError, OperationKind, PostError, Ticket};

use crate::{Method, RemoteRegion, request::Request};

/// What a finished direct operation leaves.
#[derive(Debug)]
pub(crate) enum DirectOutcome {
    /// It took effect.
    Done,
    /// An atomic operation took effect; the number that was there before.
    Previous(u64),
    /// It failed. Nothing posted after it takes effect, and the transport carries nothing more.
    Failed(OperationError),
}

/// How a direct operation is handed over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posting {
    pub(crate) ticket: Ticket,
    /// Its completion is to be heard of by itself, not only with that of something posted later.
    pub(crate) is_signalled: bool,
    /// Nothing is posted with it: a device gets it at once, where nothing else is to be handed over before.
    pub(crate) is_alone: bool,
}

/// Where a transport tells the outcomes of direct operations, in their order.
pub(crate) trait Finished {
    /// The operation came out so; every direct one before it took effect.
    fn finished(&mut self, ticket: Ticket, outcome: DirectOutcome);
}

/// The part of a wire that reaches the other side's memory by itself.
///
/// Operations take effect in the order posted, and in order with the bytes sent on the same wire.
pub(crate) trait Direct {
    /// Whether this kind of operation on `len_bytes` bytes at `offset` of the region goes this way.
    fn reaches(&self, region: &RemoteRegion, kind: OperationKind, offset: u64) -> bool;

    /// The promise that stands behind a flush to `level` by this method, or why there is none.
    fn offers(&self, method: Method, region: &RemoteRegion, level: Durability) -> Result<Promise, &'static str>;

    /// False while it is not known yet whether and how the region is reached; asking has it found out.
    fn is_settled(&self, _region: &RemoteRegion) -> bool {
        true
    }

    /// Longest record that the connection appends, in bytes; `None` where it appends to no ring.
    fn append_max_bytes(&self) -> Option<u64> {
        None
    }

    /// Whether this is the ring that the connection appends to.
    fn appends_to(&self, _region: &RemoteRegion) -> bool {
        false
    }

    /// Whether the ring has a free slot for one more record.
    fn has_slot(&self) -> bool {
        false
    }

    /// Whether one more operation with so many bytes of its caller can be taken now.
    fn has_room(&self, len_bytes: u64) -> bool;

    /// Takes an operation that is no flush, an append only while there is [a slot](Self::has_slot). It goes out with the next
    /// [`Wire::submit`](crate::wire::Wire::submit), or has its outcome already. On an error nothing was taken.
    fn post(&mut self, posting: Posting, request: &Request<'_>) -> Result<Option<DirectOutcome>, PostError>;

    /// Takes a flush of these ranges (offset and bytes) by a method that [`offers`](Self::offers) agreed to: at
    /// least one range; with [`Method::LocalWriteBack`] those alone that this side did not write back itself, maybe none.
    fn flush(
        &mut self,
        posting: Posting,
        region: &RemoteRegion,
        ranges: &[(u64, u64)],
        level: Durability,
        method: Method,
    ) -> Result<Option<DirectOutcome>, PostError>;

    /// True if nothing posted is under way.
    fn is_idle(&self) -> bool;

    /// True if what is under way will not come to anything, and was not stopped yet.
    fn is_broken(&self) -> bool {
        false
    }

    /// Ends all that is under way: on return nothing touches this side's memory any more.
    fn stop(&mut self);
}
