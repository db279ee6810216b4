//! Posting with `ibv_post_send`, for providers whose queue pairs have no extended calls (`ibv_wr_*`).

use std::{fmt, ptr};

use pmof_verbs_sys as sys;

use crate::{Operation, Payload, PostFailure, RemoteAddress, Sge, WorkRequest};

/// What a queue pair may be asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Sends and writes may carry a number.
    pub(crate) has_immediate: bool,
    /// Compare-and-swap and fetch-and-add.
    pub(crate) has_atomics: bool,
    /// The most inline bytes.
    pub(crate) inline_max_len: usize,
}

/// The requests of one batch as the list that `ibv_post_send` takes, each with at most one range. Kept from batch to
/// batch: it allocates only for a batch longer than all before it.
#[derive(Default)]
pub(crate) struct Chain {
    requests: Vec<sys::ibv_send_wr>,
    /// One for each request, used or not.
    entries: Vec<sys::ibv_sge>,
}

// SAFETY: the pointers in the list are written and used within one call of `post`, which has the chain to itself.
unsafe impl Send for Chain {}
// SAFETY: the only method by `&self` does not touch the pointers, which are used within one call of `post` alone.
unsafe impl Sync for Chain {}

impl Chain {
    /// Begins a batch.
    pub(crate) fn clear(&mut self) {
        self.requests.clear();
        self.entries.clear();
    }

    /// Adds a request. Its inline bytes are read when the chain is posted.
    pub(crate) fn add(&mut self, request: &WorkRequest<'_>, limits: Limits) -> Result<(), PostFailure> {
        let (request, entry) = translate(request, limits)?;
        self.requests.push(request);
        self.entries.push(entry);
        Ok(())
    }

    /// Posts the batch through `post`, which takes the first request and where to write the one that failed.
    pub(crate) fn post(
        &mut self,
        post: impl FnOnce(*mut sys::ibv_send_wr, *mut *mut sys::ibv_send_wr) -> i32,
    ) -> Result<(), PostFailure> {
        let len = self.requests.len();
        if len == 0 {
            return Ok(());
        }
        let (first, entries) = (self.requests.as_mut_ptr(), self.entries.as_mut_ptr());
        for index in 0..len {
            // SAFETY: both lists have `len` items; the successor of the last one is not formed.
            unsafe {
                let request = first.add(index);
                (*request).next = if index + 1 < len { first.add(index + 1) } else { ptr::null_mut() };
                (*request).sg_list = if (*request).num_sge == 0 { ptr::null_mut() } else { entries.add(index) };
            }
        }
        let mut bad = ptr::null_mut();
        match post(first, &raw mut bad) {
            0 => Ok(()),
            errno => Err(failure(first, bad, len, errno)),
        }
    }
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chain").field("room", &self.requests.capacity()).finish_non_exhaustive()
    }
}

#[cold]
fn failure(first: *const sys::ibv_send_wr, bad: *const sys::ibv_send_wr, len: usize, errno: i32) -> PostFailure {
    // Soft-iWARP's provider has the number negative, against the manual page.
    let errno = errno.abs();
    let distance = bad.addr().wrapping_sub(first.addr()) / size_of::<sys::ibv_send_wr>();
    match distance {
        0 => PostFailure::of(errno),
        // One that names no request of the list may have queued all of it: soft-iWARP's does, where the kernel did not take
        // the doorbell.
        _ => PostFailure::Partial { posted: distance.min(len), errno },
    }
}

/// The request for `ibv_post_send`, not linked, and its range.
fn translate(request: &WorkRequest<'_>, limits: Limits) -> Result<(sys::ibv_send_wr, sys::ibv_sge), PostFailure> {
    let has = |has: bool, operation| if has { Ok(()) } else { Err(PostFailure::Unsupported { operation }) };
    let nothing = (sys::ibv_sge::default(), 0, 0);
    let of_range = |sge: &Sge| (sys::ibv_sge { addr: sge.address, length: sge.len_bytes, lkey: sge.lkey }, 1, 0);
    let of_payload = |payload: &Payload<'_>| match payload {
        Payload::Empty => Ok(nothing),
        Payload::Sge(sge) => Ok(of_range(sge)),
        Payload::Inline(bytes) if bytes.len() <= limits.inline_max_len => {
            let addr = bytes.as_ptr().expose_provenance() as u64;
            Ok((sys::ibv_sge { addr, length: bytes.len() as u32, lkey: 0 }, 1, sys::IBV_SEND_INLINE))
        }
        Payload::Inline(bytes) => Err(PostFailure::inline_too_long(bytes.len(), limits.inline_max_len)),
    };
    let mut out = sys::ibv_send_wr { wr_id: request.id, ..Default::default() };
    let (opcode, (entry, num_sge, flags)) = match &request.operation {
        Operation::Write { to, payload } => {
            out.wr.rdma = place(*to);
            (sys::IBV_WR_RDMA_WRITE, of_payload(payload)?)
        }
        Operation::WriteWithImmediate { to, payload, immediate } => {
            has(limits.has_immediate, "write with immediate")?;
            out.wr.rdma = place(*to);
            out.__bindgen_anon_1.imm_data = immediate.to_be();
            (sys::IBV_WR_RDMA_WRITE_WITH_IMM, of_payload(payload)?)
        }
        Operation::Read { from, into } => {
            out.wr.rdma = place(*from);
            (sys::IBV_WR_RDMA_READ, of_range(into))
        }
        Operation::Send { payload } => (sys::IBV_WR_SEND, of_payload(payload)?),
        Operation::SendWithImmediate { payload, immediate } => {
            has(limits.has_immediate, "send with immediate")?;
            out.__bindgen_anon_1.imm_data = immediate.to_be();
            (sys::IBV_WR_SEND_WITH_IMM, of_payload(payload)?)
        }
        Operation::CompareAndSwap { at, expected, new, into } => {
            has(limits.has_atomics, "compare-and-swap")?;
            out.wr.atomic = atomic(*at, *expected, *new);
            (sys::IBV_WR_ATOMIC_CMP_AND_SWP, of_range(into))
        }
        Operation::FetchAndAdd { at, addend, into } => {
            has(limits.has_atomics, "fetch-and-add")?;
            out.wr.atomic = atomic(*at, *addend, 0);
            (sys::IBV_WR_ATOMIC_FETCH_AND_ADD, of_range(into))
        }
        // `ibv_send_wr` has no place for what they need.
        Operation::AtomicWrite { .. } => return Err(PostFailure::Unsupported { operation: "atomic write" }),
        Operation::Flush { .. } => return Err(PostFailure::Unsupported { operation: "flush" }),
    };
    let fence = if request.fence { sys::IBV_SEND_FENCE } else { 0 };
    let signaled = if request.signaled { sys::IBV_SEND_SIGNALED } else { 0 };
    out.opcode = opcode;
    out.num_sge = num_sge;
    out.send_flags = flags | fence | signaled;
    Ok((out, entry))
}

fn place(of: RemoteAddress) -> sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
    sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: of.address, rkey: of.rkey }
}

fn atomic(at: RemoteAddress, compare_add: u64, swap: u64) -> sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
    sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 { remote_addr: at.address, compare_add, swap, rkey: at.rkey }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Placement;

    const LIMITS: Limits = Limits { has_immediate: true, has_atomics: true, inline_max_len: 8 };
    const AT: RemoteAddress = RemoteAddress { address: 0x1000, rkey: 7 };
    const SGE: Sge = Sge { address: 64, len_bytes: 8, lkey: 9 };

    fn request(id: u64, operation: Operation<'_>) -> WorkRequest<'_> {
        WorkRequest { id, signaled: id == 2, fence: id == 3, operation }
    }

    fn chain<'a>(requests: impl IntoIterator<Item = WorkRequest<'a>>) -> Chain {
        let mut chain = Chain::default();
        for request in requests {
            chain.add(&request, LIMITS).unwrap();
        }
        chain
    }

    #[test]
    fn a_batch_is_one_list_in_order() {
        let bytes = *b"inline";
        let mut chain = chain([
            request(1, Operation::Write { to: AT, payload: Payload::Sge(SGE) }),
            request(2, Operation::Write { to: AT, payload: Payload::Empty }),
            request(3, Operation::SendWithImmediate { payload: Payload::Inline(&bytes), immediate: 0x0102_0304 }),
            request(4, Operation::Send { payload: Payload::Empty }),
            request(5, Operation::Read { from: AT, into: SGE }),
            request(6, Operation::CompareAndSwap { at: AT, expected: 1, new: 2, into: SGE }),
            request(7, Operation::FetchAndAdd { at: AT, addend: 3, into: SGE }),
        ]);
        let mut seen = Vec::new();
        let posted = chain.post(|mut at, _| {
            while !at.is_null() {
                // SAFETY: the list is valid during the call, and so is the range of a request that has one.
                unsafe {
                    let entry = ((*at).num_sge == 1).then(|| ((*(*at).sg_list).length, (*(*at).sg_list).lkey));
                    seen.push(((*at).wr_id, (*at).opcode, (*at).send_flags, entry));
                    match (*at).opcode {
                        sys::IBV_WR_RDMA_WRITE | sys::IBV_WR_RDMA_READ => {
                            assert_eq!(((*at).wr.rdma.remote_addr, (*at).wr.rdma.rkey), (0x1000, 7));
                        }
                        sys::IBV_WR_SEND_WITH_IMM => {
                            assert_eq!((*at).__bindgen_anon_1.imm_data, 0x0102_0304_u32.to_be());
                            let address = (*(*at).sg_list).addr;
                            assert_eq!(address, bytes.as_ptr().addr() as u64);
                        }
                        sys::IBV_WR_ATOMIC_CMP_AND_SWP => {
                            let atomic = (*at).wr.atomic;
                            assert_eq!((atomic.compare_add, atomic.swap, atomic.rkey), (1, 2, 7));
                        }
                        _ => {}
                    }
                    at = (*at).next;
                }
            }
            0
        });
        assert_eq!(posted, Ok(()));
        let range = Some((8, 9));
        assert_eq!(
            seen,
            [
                (1, sys::IBV_WR_RDMA_WRITE, 0, range),
                (2, sys::IBV_WR_RDMA_WRITE, sys::IBV_SEND_SIGNALED, None),
                (3, sys::IBV_WR_SEND_WITH_IMM, sys::IBV_SEND_INLINE | sys::IBV_SEND_FENCE, Some((6, 0))),
                (4, sys::IBV_WR_SEND, 0, None),
                (5, sys::IBV_WR_RDMA_READ, 0, range),
                (6, sys::IBV_WR_ATOMIC_CMP_AND_SWP, 0, range),
                (7, sys::IBV_WR_ATOMIC_FETCH_AND_ADD, 0, range),
            ]
        );
    }

    #[test]
    fn a_failure_says_how_many_may_have_been_posted() {
        let of = |fail_at: u64, errno: i32| {
            let requests = (0..5).map(|id| request(id, Operation::Send { payload: Payload::Empty }));
            chain(requests)
                .post(|mut at, bad| {
                    while !at.is_null() {
                        // SAFETY: the list is valid during the call, and so is where to write the failed one.
                        unsafe {
                            if (*at).wr_id == fail_at {
                                *bad = at;
                                return errno;
                            }
                            at = (*at).next;
                        }
                    }
                    errno
                })
                .unwrap_err()
        };
        assert_eq!(of(0, libc::ENOMEM), PostFailure::QueueFull);
        assert_eq!(of(0, -libc::EINVAL), PostFailure::Provider { errno: libc::EINVAL });
        assert_eq!(of(3, -libc::ENOMEM), PostFailure::Partial { posted: 3, errno: libc::ENOMEM });
        // No request is named.
        assert_eq!(of(9, libc::ENOTCONN), PostFailure::Partial { posted: 5, errno: libc::ENOTCONN });
    }

    #[test]
    fn what_a_queue_pair_lacks_is_refused_by_name() {
        let none = Limits { has_immediate: false, has_atomics: false, inline_max_len: 8 };
        let refused = |operation| Chain::default().add(&request(1, operation), none).unwrap_err();
        let payload = Payload::Empty;
        for (operation, name) in [
            (Operation::SendWithImmediate { payload, immediate: 0 }, "send with immediate"),
            (Operation::WriteWithImmediate { to: AT, payload, immediate: 0 }, "write with immediate"),
            (Operation::CompareAndSwap { at: AT, expected: 0, new: 0, into: SGE }, "compare-and-swap"),
            (Operation::FetchAndAdd { at: AT, addend: 0, into: SGE }, "fetch-and-add"),
            (Operation::AtomicWrite { to: AT, value: [0; 8] }, "atomic write"),
            (Operation::Flush { at: AT, len_bytes: 0, placement: Placement::Global, whole_region: true }, "flush"),
        ] {
            assert_eq!(refused(operation), PostFailure::Unsupported { operation: name });
        }
        let long = Operation::Send { payload: Payload::Inline(&[0; 9]) };
        assert_eq!(refused(long), PostFailure::InlineTooLong { len_bytes: 9, max_bytes: 8 });
    }

    #[test]
    fn an_empty_batch_makes_no_call() {
        assert_eq!(Chain::default().post(|_, _| unreachable!("there is nothing to post")), Ok(()));
    }
}
