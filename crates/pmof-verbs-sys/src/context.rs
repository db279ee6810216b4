//! The inline calls of `infiniband/verbs.h` that go through the tables of a device context.
//!
//! They report as in C: a number is 0 or an `errno` value (`ibv_poll_cq`: a negative number), a pointer is null with
//! `errno` set. An operation that the provider does not have is `EOPNOTSUPP`.

use std::{
    ffi::{c_int, c_void},
    mem::{offset_of, size_of},
    ptr,
};

use libc::sockaddr;

use crate::{
    IBV_QP_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQT_BASIC, Verbs,
    ib_uverbs_advise_mr_advice, ibv_access_flags, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex,
    ibv_device_attr_ex, ibv_gid_entry, ibv_mr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_init_attr_ex, ibv_recv_wr,
    ibv_send_wr, ibv_sge, ibv_srq, ibv_srq_init_attr_ex, ibv_wc, rdma_cm_id, verbs_context,
};

/// The provider's extended operation `$op`, where the context has room for it and it is not null.
///
/// To be used in an unsafe block; `$context` points to a context that `ibv_open_device` made and that is open.
macro_rules! extended_op {
    ($context:expr, $op:ident) => {{
        let context: *const ibv_context = $context;
        // A context of the first ABI is not part of a `verbs_context`.
        if (*context).abi_compat.addr() == usize::MAX {
            let extended = context.byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>();
            // The structure grows at its front: `sz` counts from its end, and lies next to the context.
            if (*extended).sz < size_of::<verbs_context>() - offset_of!(verbs_context, $op) {
                None
            } else {
                (*extended).$op
            }
        } else {
            None
        }
    }};
}

impl Verbs {
    /// `ibv_query_port`: the attributes of a port; ports count from 1. 0, else an `errno` value.
    ///
    /// # Safety
    ///
    /// `context` is open, and `attributes` can be written.
    pub unsafe fn query_port(&self, context: *mut ibv_context, port: u8, attributes: *mut ibv_port_attr) -> c_int {
        // SAFETY: `context` is open; the length given is that of `attributes`, which can be written. The older call writes a structure
        // that is the start of `ibv_port_attr`, the rest of which is zeroed first.
        unsafe {
            if let Some(query_port) = extended_op!(context, query_port) {
                query_port(context, port, attributes, size_of::<ibv_port_attr>())
            } else {
                ptr::write_bytes(attributes, 0, 1);
                (self.ibv_query_port)(context, port, attributes.cast())
            }
        }
    }

    /// `ibv_query_device_ex`: the attributes of a device, zero where the provider does not know them. 0, else an
    /// `errno` value.
    ///
    /// What decides about native flush is in `device_cap_flags_ex`: [`IB_UVERBS_DEVICE_FLUSH_PERSISTENT`](crate::IB_UVERBS_DEVICE_FLUSH_PERSISTENT),
    /// [`IB_UVERBS_DEVICE_FLUSH_GLOBAL`](crate::IB_UVERBS_DEVICE_FLUSH_GLOBAL) and [`IB_UVERBS_DEVICE_ATOMIC_WRITE`](crate::IB_UVERBS_DEVICE_ATOMIC_WRITE).
    ///
    /// # Safety
    ///
    /// `context` is open, and `attributes` can be written.
    pub unsafe fn query_device_ex(&self, context: *mut ibv_context, attributes: *mut ibv_device_attr_ex) -> c_int {
        // SAFETY: `context` is open; the length given is that of `attributes`, which can be written, zeroed because a provider that knows
        // a shorter structure writes only that.
        unsafe {
            ptr::write_bytes(attributes, 0, 1);
            if let Some(query_device_ex) = extended_op!(context, query_device_ex) {
                let result = query_device_ex(context, ptr::null(), attributes, size_of::<ibv_device_attr_ex>());
                if result != libc::EOPNOTSUPP && result != libc::ENOSYS {
                    return result;
                }
                ptr::write_bytes(attributes, 0, 1);
            }
            (self.ibv_query_device)(context, &raw mut (*attributes).orig_attr)
        }
    }

    /// `ibv_query_gid_ex`: an entry of a port's table of GIDs, with its type and network interface. 0, else an `errno`
    /// value; `EOPNOTSUPP` where the library is older than version 32.
    ///
    /// # Safety
    ///
    /// `context` is open, and `entry` can be written.
    pub unsafe fn query_gid_ex(
        &self,
        context: *mut ibv_context,
        port: u32,
        index: u32,
        entry: *mut ibv_gid_entry,
    ) -> c_int {
        match self._ibv_query_gid_ex {
            // SAFETY: `context` is open; the length given is that of `entry`, which can be written.
            Some(query) => unsafe { query(context, port, index, entry, 0, size_of::<ibv_gid_entry>()) },
            None => libc::EOPNOTSUPP,
        }
    }

    /// `ibv_query_gid_table`: the entries in use of all ports' tables of GIDs. How many were written, else a negative
    /// `errno` value; `-EOPNOTSUPP` where the library is older than version 32.
    ///
    /// # Safety
    ///
    /// `context` is open.
    pub unsafe fn query_gid_table(&self, context: *mut ibv_context, entries: &mut [ibv_gid_entry]) -> isize {
        match self._ibv_query_gid_table {
            // SAFETY: `context` is open; the lengths given are those of the slice and of an entry.
            Some(query) => unsafe {
                query(context, entries.as_mut_ptr(), entries.len(), 0, size_of::<ibv_gid_entry>())
            },
            None => -(libc::EOPNOTSUPP as isize),
        }
    }

    /// `ibv_reg_mr`: registers memory under its own address; `access` is a set of [`ibv_access_flags`]. Null with
    /// `errno` set on failure.
    ///
    /// Flags that are optional ([`IBV_ACCESS_RELAXED_ORDERING`](crate::IBV_ACCESS_RELAXED_ORDERING)) are left out where the kernel does not know them.
    ///
    /// # Safety
    ///
    /// `pd` is alive. The memory is mapped, and stays so until `ibv_dereg_mr` has returned; the peers that are given the
    /// key may write it, so no reference to it may exist meanwhile.
    pub unsafe fn reg_mr(
        &self,
        pd: *mut ibv_pd,
        address: *mut c_void,
        len_bytes: usize,
        access: ibv_access_flags,
    ) -> *mut ibv_mr {
        // SAFETY: `pd` is alive; the memory stays mapped, without a reference to it, until it is deregistered.
        unsafe { (self.ibv_reg_mr_iova2)(pd, address, len_bytes, address.addr() as u64, access) }
    }

    /// `ibv_create_srq_ex`: a shared receive queue. Null with `errno` set on failure.
    ///
    /// # Safety
    ///
    /// `context` is open; the objects that `attributes` names are alive and belong to it.
    pub unsafe fn create_srq_ex(
        &self,
        context: *mut ibv_context,
        attributes: *mut ibv_srq_init_attr_ex,
    ) -> *mut ibv_srq {
        // SAFETY: `context` and what the attributes name are alive; `ibv_srq_init_attr` is the start of the extended structure.
        unsafe {
            let mask = (*attributes).comp_mask;
            let basic = mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || (*attributes).srq_type == IBV_SRQT_BASIC;
            if basic && mask & !IBV_SRQ_INIT_ATTR_TYPE == IBV_SRQ_INIT_ATTR_PD {
                return (self.ibv_create_srq)((*attributes).pd, attributes.cast());
            }
            match extended_op!(context, create_srq_ex) {
                Some(create) => create(context, attributes),
                None => null_not_supported(),
            }
        }
    }

    /// `ibv_create_qp_ex`: a queue pair. Null with `errno` set on failure; `EOPNOTSUPP` where the provider does not
    /// have a way of posting that `send_ops_flags` asks for.
    ///
    /// # Safety
    ///
    /// `context` is open; the objects that `attributes` names are alive and belong to it.
    pub unsafe fn create_qp_ex(&self, context: *mut ibv_context, attributes: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
        // SAFETY: `context` and what the attributes name are alive; `ibv_qp_init_attr` is the start of the extended structure.
        unsafe {
            if (*attributes).comp_mask == IBV_QP_INIT_ATTR_PD {
                return (self.ibv_create_qp)((*attributes).pd, attributes.cast());
            }
            match extended_op!(context, create_qp_ex) {
                Some(create) => create(context, attributes),
                None => null_not_supported(),
            }
        }
    }
}

/// `ibv_create_cq_ex`: a completion queue with extended polling. Null with `errno` set on failure.
///
/// # Safety
///
/// `context` is open; the objects that `attributes` names are alive and belong to it.
pub unsafe fn ibv_create_cq_ex(context: *mut ibv_context, attributes: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
    // SAFETY: `context` and what the attributes name are alive.
    unsafe {
        match extended_op!(context, create_cq_ex) {
            Some(create) => create(context, attributes),
            None => null_not_supported(),
        }
    }
}

/// `ibv_advise_mr`: advice on ranges of regions of `pd`, such as fetching on-demand pages; `flags` is a set of
/// [`ib_uverbs_advise_mr_flag`](crate::ib_uverbs_advise_mr_flag). 0, else an `errno` value.
///
/// # Safety
///
/// `pd` is alive.
pub unsafe fn ibv_advise_mr(
    pd: *mut ibv_pd,
    advice: ib_uverbs_advise_mr_advice,
    flags: u32,
    ranges: &mut [ibv_sge],
) -> c_int {
    let Ok(count) = u32::try_from(ranges.len()) else {
        return libc::EINVAL;
    };
    // SAFETY: `pd` is alive, and keeps its context open.
    unsafe {
        match extended_op!((*pd).context, advise_mr) {
            Some(advise_mr) => advise_mr(pd, advice, flags, ranges.as_mut_ptr(), count),
            None => libc::EOPNOTSUPP,
        }
    }
}

/// `ibv_post_send`: posts a list of work requests. 0, else an `errno` value with `*bad` the first that was not posted.
///
/// # Safety
///
/// `qp` is alive; the list and its gather lists can be read; the memory that they name stays registered and is not
/// written until the completion, unless sent inline; `bad` can be written.
#[inline]
pub unsafe fn ibv_post_send(qp: *mut ibv_qp, list: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: `qp` is alive, and keeps its context open; the list can be read, and what it names stays registered until the completion.
    unsafe {
        match (*(*qp).context).ops.post_send {
            Some(post) => post(qp, list, bad),
            None => libc::EOPNOTSUPP,
        }
    }
}

/// `ibv_post_recv`: posts a list of receives. 0, else an `errno` value with `*bad` the first that was not posted.
///
/// # Safety
///
/// `qp` is alive and has no shared receive queue; the list and its scatter lists can be read; the memory that they name
/// stays registered and is not touched until the completion; `bad` can be written.
#[inline]
pub unsafe fn ibv_post_recv(qp: *mut ibv_qp, list: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: `qp` is alive, and keeps its context open; the list can be read, and what it names stays registered until the completion.
    unsafe {
        match (*(*qp).context).ops.post_recv {
            Some(post) => post(qp, list, bad),
            None => libc::EOPNOTSUPP,
        }
    }
}

/// `ibv_post_srq_recv`: posts a list of receives to a shared queue. 0, else an `errno` value with `*bad` the first that
/// was not posted.
///
/// # Safety
///
/// As [`ibv_post_recv`], for `srq`.
#[inline]
pub unsafe fn ibv_post_srq_recv(srq: *mut ibv_srq, list: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: `srq` is alive, and keeps its context open; the list can be read, and what it names stays registered until the completion.
    unsafe {
        match (*(*srq).context).ops.post_srq_recv {
            Some(post) => post(srq, list, bad),
            None => libc::EOPNOTSUPP,
        }
    }
}

/// `ibv_poll_cq`: takes up to `count` completions; returns how many, or a negative number.
///
/// Of a completion whose status is not [`IBV_WC_SUCCESS`](crate::IBV_WC_SUCCESS) only `wr_id`, `status`, `qp_num` and `vendor_err` are valid.
///
/// # Safety
///
/// `cq` is alive, and `completions` has room for `count`.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, count: c_int, completions: *mut ibv_wc) -> c_int {
    // SAFETY: `cq` is alive, and keeps its context open; `completions` has room for `count`.
    unsafe {
        match (*(*cq).context).ops.poll_cq {
            Some(poll) => poll(cq, count, completions),
            None => -libc::EOPNOTSUPP,
        }
    }
}

/// `ibv_req_notify_cq`: asks for one event on the queue's channel at the next completion, or, where `solicited_only`
/// is not 0, at the next one that the sender asked to be announced or that failed. 0, else an `errno` value.
///
/// # Safety
///
/// `cq` is alive.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: `cq` is alive, and keeps its context open.
    unsafe {
        match (*(*cq).context).ops.req_notify_cq {
            Some(request) => request(cq, solicited_only),
            None => libc::EOPNOTSUPP,
        }
    }
}

/// `rdma_get_local_addr`: the address that the identifier is bound to, inside it.
///
/// # Safety
///
/// `id` is alive.
pub unsafe fn rdma_get_local_addr(id: *mut rdma_cm_id) -> *mut sockaddr {
    // SAFETY: `id` is alive; the address is part of it.
    unsafe { (&raw mut (*id).route.addr.__bindgen_anon_1).cast() }
}

/// `rdma_get_peer_addr`: the peer's address, inside the identifier.
///
/// # Safety
///
/// `id` is alive.
pub unsafe fn rdma_get_peer_addr(id: *mut rdma_cm_id) -> *mut sockaddr {
    // SAFETY: `id` is alive; the address is part of it.
    unsafe { (&raw mut (*id).route.addr.__bindgen_anon_2).cast() }
}

/// Null, with `errno` saying that the provider has no such operation.
fn null_not_supported<T>() -> *mut T {
    // SAFETY: the address of this thread's errno, always valid.
    unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
    ptr::null_mut()
}
