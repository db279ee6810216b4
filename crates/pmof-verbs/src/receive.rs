//! Receives, and queues of them that several queue pairs share.

use std::{
    fmt,
    mem::MaybeUninit,
    ptr::{self, NonNull},
    sync::Arc,
};

use pmof_verbs_sys as sys;

use crate::{Device, ProtectionDomain, ReceiveFailure, Sge, VerbsError};

/// How many receives go to the provider in one call; a longer list takes several.
const CHAIN: usize = 32;

/// A place for one message of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receive {
    /// Comes back as the completion's `wr_id`.
    pub id: u64,
    /// Where the message goes. One of no bytes takes empty messages and immediate numbers.
    pub into: Sge,
}

/// Posts receives in chains through `post`, which takes the first of a chain and where to write the one that failed.
#[inline]
pub(crate) fn post_chained(
    receives: &[Receive],
    mut post: impl FnMut(*mut sys::ibv_recv_wr, *mut *mut sys::ibv_recv_wr) -> i32,
) -> Result<(), ReceiveFailure> {
    let mut entries = [const { MaybeUninit::<sys::ibv_sge>::uninit() }; CHAIN];
    let mut requests = [const { MaybeUninit::<sys::ibv_recv_wr>::uninit() }; CHAIN];
    for (chunk, part) in receives.chunks(CHAIN).enumerate() {
        let entry = entries.as_mut_ptr().cast::<sys::ibv_sge>();
        let request = requests.as_mut_ptr().cast::<sys::ibv_recv_wr>();
        for (index, receive) in part.iter().enumerate() {
            let Sge { address, len_bytes, lkey } = receive.into;
            let is_last = index + 1 == part.len();
            // SAFETY: `part` has at most CHAIN items, the arrays have CHAIN places.
            unsafe {
                let (entry, request) = (entry.add(index), request.add(index));
                entry.write(sys::ibv_sge { addr: address, length: len_bytes, lkey });
                request.write(sys::ibv_recv_wr {
                    wr_id: receive.id,
                    next: if is_last { ptr::null_mut() } else { request.add(1) },
                    sg_list: entry,
                    num_sge: i32::from(len_bytes != 0),
                });
            }
        }
        let mut bad = ptr::null_mut();
        let errno = post(request, &raw mut bad);
        if errno != 0 {
            return Err(failure(chunk * CHAIN, request, bad, part.len(), errno));
        }
    }
    Ok(())
}

#[cold]
fn failure(
    before: usize,
    first: *const sys::ibv_recv_wr,
    bad: *const sys::ibv_recv_wr,
    len: usize,
    errno: i32,
) -> ReceiveFailure {
    // A provider that names no request has posted none of the chain.
    let distance = bad.addr().wrapping_sub(first.addr()) / size_of::<sys::ibv_recv_wr>();
    ReceiveFailure { posted: before + if distance < len { distance } else { 0 }, errno }
}

/// A queue of receives that several queue pairs take from. Clones are the same queue.
#[derive(Clone)]
pub struct SharedReceiveQueue(Arc<Queue>);

struct Queue {
    raw: NonNull<sys::ibv_srq>,
    entries: u32,
    domain: ProtectionDomain,
}

// SAFETY: libibverbs allows calls on one shared receive queue from several threads at once.
unsafe impl Send for Queue {}
// SAFETY: libibverbs allows calls on one shared receive queue from several threads at once.
unsafe impl Sync for Queue {}

impl SharedReceiveQueue {
    /// A queue of at least `entries` receives (1 to the device's `max_shared_receives`) of at most `max_sge` ranges.
    pub fn new(domain: &ProtectionDomain, entries: u32, max_sge: u32) -> Result<Self, VerbsError> {
        let most = domain.device().capabilities().max_shared_receives;
        if !(1..=most).contains(&entries) {
            let (what, value) = ("the number of shared receives", u64::from(entries));
            return Err(VerbsError::OutOfRange { what, value, least: 1, most: u64::from(most) });
        }
        let mut attributes = sys::ibv_srq_init_attr {
            srq_context: ptr::null_mut(),
            attr: sys::ibv_srq_attr { max_wr: entries, max_sge, srq_limit: 0 },
        };
        // SAFETY: the domain is alive; the attributes can be written.
        let raw = unsafe { (domain.device().verbs().ibv_create_srq)(domain.raw(), &raw mut attributes) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::last("ibv_create_srq", domain.device().name()))?;
        let entries = attributes.attr.max_wr;
        Ok(Self(Arc::new(Queue { raw, entries, domain: domain.clone() })))
    }

    /// Posts receives, in order. Any thread may.
    #[inline]
    pub fn post_receives(&self, receives: &[Receive]) -> Result<(), ReceiveFailure> {
        // SAFETY: the queue is alive; the chain and its lists can be read during the call. Memory that is registered in
        // the domain is a medium's, which outlives its registration.
        post_chained(receives, |first, bad| unsafe { sys::ibv_post_srq_recv(self.raw(), first, bad) })
    }

    /// How many receives fit.
    pub fn entries(&self) -> u32 {
        self.0.entries
    }

    /// The domain.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.0.domain
    }

    pub(crate) fn device(&self) -> &Device {
        self.0.domain.device()
    }

    #[inline]
    pub(crate) fn raw(&self) -> *mut sys::ibv_srq {
        self.0.raw.as_ptr()
    }
}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueue")
            .field("device", self.device())
            .field("entries", &self.entries())
            .finish_non_exhaustive()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: this was the last handle; queue pairs on the queue keep one.
        unsafe { (self.domain.device().verbs().ibv_destroy_srq)(self.raw.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receives(count: u64) -> Vec<Receive> {
        (0..count).map(|id| Receive { id, into: Sge { address: 4096 + id, len_bytes: id as u32, lkey: 7 } }).collect()
    }

    #[test]
    fn a_long_list_is_posted_in_chains_in_order() {
        let mut ids = Vec::new();
        let mut calls = 0;
        let result = post_chained(&receives(70), |mut at, _| {
            calls += 1;
            while !at.is_null() {
                // SAFETY: the chain is valid during the call.
                let (request, entry) = unsafe { (*at, *(*at).sg_list) };
                assert_eq!(request.num_sge, i32::from(request.wr_id != 0));
                assert_eq!((entry.addr, u64::from(entry.length), entry.lkey), (4096 + request.wr_id, request.wr_id, 7));
                ids.push(request.wr_id);
                at = request.next;
            }
            0
        });
        assert_eq!(result, Ok(()));
        assert_eq!((calls, ids), (3, (0..70).collect()));
    }

    #[test]
    fn a_failure_says_how_many_were_posted() {
        for (fail_at, expected) in [(0, 0), (5, 5), (32, 32), (69, 69)] {
            let result = post_chained(&receives(70), |mut at, bad| {
                while !at.is_null() {
                    // SAFETY: the chain is valid during the call, and so is where to write the failed one.
                    unsafe {
                        if (*at).wr_id == fail_at {
                            *bad = at;
                            return libc::ENOMEM;
                        }
                        at = (*at).next;
                    }
                }
                0
            });
            assert_eq!(result, Err(ReceiveFailure { posted: expected, errno: libc::ENOMEM }));
        }
        let silent = post_chained(&receives(2), |_, _| libc::EINVAL);
        assert_eq!(silent, Err(ReceiveFailure { posted: 0, errno: libc::EINVAL }));
    }

    #[test]
    fn nothing_is_posted_without_a_call() {
        assert_eq!(post_chained(&[], |_, _| unreachable!("there is nothing to post")), Ok(()));
    }
}
