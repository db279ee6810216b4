//! The work requests of an extended queue pair: `ibv_wr_*` of `infiniband/verbs.h`.
//!
//! A batch is [`ibv_wr_start`], then any number of requests, then [`ibv_wr_complete`], which rings the doorbell once.
//! A request is: `wr_id` and `wr_flags` of the [`ibv_qp_ex`] set, one builder ([`ibv_wr_rdma_write`]), and the setter of
//! its data ([`ibv_wr_set_sge`]) where the builder has any. [`ibv_wr_flush`] and the atomic write carry their own.
//!
//! Every call jumps through a pointer of the queue pair without a check: the creator of the queue pair calls
//! [`available_send_ops`] once, and calls only what that reported.

use std::ffi::{c_int, c_void};

use crate::{
    __be32, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_ATOMIC_WRITE,
    IBV_QP_EX_WITH_FLUSH, IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
    IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM, ibv_data_buf, ibv_qp_ex, ibv_sge,
};

/// The provider lacks an operation without which no work request can be posted the extended way.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the RDMA provider's queue pair has no operation {op}: update ibverbs-providers, or use another device")]
#[non_exhaustive]
pub struct MissingSendOp {
    /// The field of `ibv_qp_ex` that is null.
    pub op: &'static str,
}

/// Which builders of work requests `qp` has, of those in `accepted`: a set of [`ibv_qp_create_send_ops_flags`](crate::ibv_qp_create_send_ops_flags).
///
/// `accepted` is the `send_ops_flags` with which the queue pair was made. Only pointers that these flags name are
/// read, because `ibv_qp_ex` has grown: in rdma-core 43 and before it ends before `wr_atomic_write`, in 44 before
/// `wr_flush`, and the provider's own fields follow without a gap (`struct verbs_qp` of `libibverbs/driver.h`). There
/// the place of `wr_flush` holds a small number that is not null. A provider of that age does not know the flag
/// either, and refuses the queue pair with `EOPNOTSUPP`; so the flags that it accepted say what may be read.
///
/// Fails where one of the operations that every request needs is missing: start, complete, abort and the four setters
/// of data.
///
/// # Safety
///
/// `qp` is alive and was made with `send_ops_flags` equal to `accepted`.
pub unsafe fn available_send_ops(qp: *const ibv_qp_ex, accepted: u64) -> Result<u64, MissingSendOp> {
    macro_rules! need {
        ($($op:ident)*) => {$(
            if (*qp).$op.is_none() {
                return Err(MissingSendOp { op: stringify!($op) });
            }
        )*};
    }
    macro_rules! collect {
        ($($flag:ident $op:ident)*) => {
            0 $(| if accepted & u64::from($flag) != 0 && (*qp).$op.is_some() { u64::from($flag) } else { 0 })*
        };
    }
    // SAFETY: `qp` is alive; what comes before `wr_atomic_write` is in every version, and the provider that accepted the flag has what
    // comes after.
    unsafe {
        need!(wr_start wr_complete wr_abort wr_set_sge wr_set_sge_list wr_set_inline_data wr_set_inline_data_list);
        Ok(collect!(
            IBV_QP_EX_WITH_RDMA_WRITE wr_rdma_write
            IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM wr_rdma_write_imm
            IBV_QP_EX_WITH_SEND wr_send
            IBV_QP_EX_WITH_SEND_WITH_IMM wr_send_imm
            IBV_QP_EX_WITH_RDMA_READ wr_rdma_read
            IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP wr_atomic_cmp_swp
            IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD wr_atomic_fetch_add
            IBV_QP_EX_WITH_FLUSH wr_flush
            IBV_QP_EX_WITH_ATOMIC_WRITE wr_atomic_write
        ))
    }
}

/// Calls an operation of the queue pair.
macro_rules! call {
    ($qp:ident, $op:ident $(, $argument:expr)*) => {
        // SAFETY: `qp` is alive; `available_send_ops` found the pointer, which providers do not clear.
        unsafe {
            debug_assert!((*$qp).$op.is_some(), concat!(stringify!($op), " is not an operation of this queue pair"));
            (*$qp).$op.unwrap_unchecked()($qp $(, $argument)*)
        }
    };
}

/// Begins a batch of work requests. Some providers take a lock here that [`ibv_wr_complete`] and [`ibv_wr_abort`]
/// release: all calls of a batch come from one thread.
///
/// # Safety
///
/// `qp` is alive and [`available_send_ops`] was asked; no batch is begun on it.
#[inline]
pub unsafe fn ibv_wr_start(qp: *mut ibv_qp_ex) {
    call!(qp, wr_start);
}

/// Posts the batch, all of it or nothing. 0, else an `errno` value: `ENOMEM` where the send queue is full.
///
/// # Safety
///
/// A batch is begun on `qp`. The memory that its requests name stays registered and is not written until their
/// completion, unless sent inline.
#[inline]
pub unsafe fn ibv_wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    call!(qp, wr_complete)
}

/// Drops the batch.
///
/// # Safety
///
/// A batch is begun on `qp`.
#[inline]
pub unsafe fn ibv_wr_abort(qp: *mut ibv_qp_ex) {
    call!(qp, wr_abort);
}

/// An RDMA READ from `remote_address` into the data set next.
///
/// # Safety
///
/// A batch is begun on `qp`, and [`IBV_QP_EX_WITH_RDMA_READ`] is available.
#[inline]
pub unsafe fn ibv_wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote_address: u64) {
    call!(qp, wr_rdma_read, rkey, remote_address);
}

/// An RDMA WRITE to `remote_address` of the data set next.
///
/// # Safety
///
/// A batch is begun on `qp`, and [`IBV_QP_EX_WITH_RDMA_WRITE`] is available.
#[inline]
pub unsafe fn ibv_wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_address: u64) {
    call!(qp, wr_rdma_write, rkey, remote_address);
}

/// An RDMA WRITE that also takes a receive of the peer and hands it `immediate`, 4 bytes in network order.
///
/// # Safety
///
/// A batch is begun on `qp`, and [`IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM`] is available.
#[inline]
pub unsafe fn ibv_wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, remote_address: u64, immediate: __be32) {
    call!(qp, wr_rdma_write_imm, rkey, remote_address, immediate);
}

/// A SEND of the data set next.
///
/// # Safety
///
/// A batch is begun on `qp`, and [`IBV_QP_EX_WITH_SEND`] is available.
#[inline]
pub unsafe fn ibv_wr_send(qp: *mut ibv_qp_ex) {
    call!(qp, wr_send);
}

/// A SEND that also hands the peer `immediate`, 4 bytes in network order.
///
/// # Safety
///
/// A batch is begun on `qp`, and [`IBV_QP_EX_WITH_SEND_WITH_IMM`] is available.
#[inline]
pub unsafe fn ibv_wr_send_imm(qp: *mut ibv_qp_ex, immediate: __be32) {
    call!(qp, wr_send_imm, immediate);
}

/// Swaps the 8 aligned bytes at `remote_address` where they equal `compare`; what was there goes to the data set next.
///
/// # Safety
///
/// A batch is begun on `qp`, and [`IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP`] is available.
#[inline]
pub unsafe fn ibv_wr_atomic_cmp_swp(qp: *mut ibv_qp_ex, rkey: u32, remote_address: u64, compare: u64, swap: u64) {
    call!(qp, wr_atomic_cmp_swp, rkey, remote_address, compare, swap);
}

/// Adds to the 8 aligned bytes at `remote_address`; what was there goes to the data set next.
///
/// # Safety
///
/// A batch is begun on `qp`, and [`IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD`] is available.
#[inline]
pub unsafe fn ibv_wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, remote_address: u64, add: u64) {
    call!(qp, wr_atomic_fetch_add, rkey, remote_address, add);
}

/// Writes the 8 bytes at `data` to the aligned `remote_address`, at once for every reader. They are copied by this call.
///
/// # Safety
///
/// A batch is begun on `qp`, [`IBV_QP_EX_WITH_ATOMIC_WRITE`] is available, and 8 bytes can be read at `data`.
#[inline]
pub unsafe fn ibv_wr_atomic_write(qp: *mut ibv_qp_ex, rkey: u32, remote_address: u64, data: *const c_void) {
    call!(qp, wr_atomic_write, rkey, remote_address, data);
}

/// An RDMA FLUSH of the requests posted before it: `placement` is a set of [`ibv_placement_type`](crate::ibv_placement_type) ([`IBV_FLUSH_GLOBAL`](crate::IBV_FLUSH_GLOBAL):
/// visible, [`IBV_FLUSH_PERSISTENT`](crate::IBV_FLUSH_PERSISTENT): persistent), `selectivity` one [`ibv_selectivity_level`](crate::ibv_selectivity_level). With [`IBV_FLUSH_MR`](crate::IBV_FLUSH_MR) the
/// whole region is meant, and the address and length are 0.
///
/// # Safety
///
/// A batch is begun on `qp`, and [`IBV_QP_EX_WITH_FLUSH`] is available.
#[inline]
pub unsafe fn ibv_wr_flush(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_address: u64,
    len_bytes: usize,
    placement: u8,
    selectivity: u8,
) {
    call!(qp, wr_flush, rkey, remote_address, len_bytes, placement, selectivity);
}

/// The data of the request begun last: one range of a local region.
///
/// # Safety
///
/// A request that takes data was just begun on `qp`.
#[inline]
pub unsafe fn ibv_wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, address: u64, len_bytes: u32) {
    call!(qp, wr_set_sge, lkey, address, len_bytes);
}

/// The data of the request begun last: ranges of local regions, at most as many as the queue pair was made for.
///
/// Ranges of *one length* only, where the device may be soft-RoCE: its provider takes the first length for each of them
/// (seen with rdma-core 56.1; fixed by its pull request 1744 of 2026). Where the first is the longest the request fails,
/// where it is shorter than another the end of the data is not sent, without an error.
///
/// # Safety
///
/// A request that takes data was just begun on `qp`.
#[inline]
pub unsafe fn ibv_wr_set_sge_list(qp: *mut ibv_qp_ex, ranges: &[ibv_sge]) {
    call!(qp, wr_set_sge_list, ranges.len(), ranges.as_ptr());
}

/// The data of the request begun last, copied by this call: at most the `max_inline_data` of the queue pair.
///
/// `wr_flags` must have had [`IBV_SEND_INLINE`](crate::IBV_SEND_INLINE) when the request was begun. Other providers do
/// without; that of soft-RoCE copies the data and leaves the flag as it is, and the kernel then reads the copy as a list
/// of ranges, so that the request fails (seen with rdma-core 56.1 and Linux 6.12).
///
/// # Safety
///
/// A request that sends data was just begun on `qp`, and `len_bytes` can be read at `data`.
#[inline]
pub unsafe fn ibv_wr_set_inline_data(qp: *mut ibv_qp_ex, data: *const c_void, len_bytes: usize) {
    call!(qp, wr_set_inline_data, data.cast_mut(), len_bytes);
}

/// As [`ibv_wr_set_inline_data`], gathered from several places.
///
/// # Safety
///
/// A request that sends data was just begun on `qp`, and every buffer can be read.
#[inline]
pub unsafe fn ibv_wr_set_inline_data_list(qp: *mut ibv_qp_ex, buffers: &[ibv_data_buf]) {
    call!(qp, wr_set_inline_data_list, buffers.len(), buffers.as_ptr());
}
