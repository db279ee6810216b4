//! The calls that the headers define inline: jumps through the tables of an object.

use std::{
    ffi::{c_char, c_int, c_void},
    mem::offset_of,
    ptr,
};

use crate::{
    constants::{FI_ADDR_UNSPEC, FI_ENABLE, FI_ENOSYS, FI_GETWAIT},
    operations::{
        fi_ops, fi_ops_av, fi_ops_cm, fi_ops_cq, fi_ops_domain, fi_ops_eq, fi_ops_fabric, fi_ops_mr, fi_ops_msg,
        fi_ops_rma,
    },
    structures::{
        fi_addr_t, fi_av_attr, fi_cq_attr, fi_cq_data_entry, fi_cq_err_entry, fi_eq_attr, fi_eq_cm_entry,
        fi_eq_err_entry, fi_info, fi_msg, fi_msg_rma, fid, fid_av, fid_cq, fid_domain, fid_ep, fid_eq, fid_fabric,
        fid_mr, fid_pep,
    },
};

/// Calls an operation of a table, or yields `-FI_ENOSYS` where the table is null, too short for it, or has none.
macro_rules! call {
    ($table:expr, $of:ident.$operation:ident, $($argument:expr),* $(,)?) => {{
        let table: *mut $of = $table;
        // The size counts the bytes of the table that the provider filled in, and comes first in every one.
        if table.is_null() || (*table).size <= offset_of!($of, $operation) {
            (-FI_ENOSYS).into_result()
        } else if let Some(operation) = (*table).$operation {
            operation($($argument),*)
        } else {
            (-FI_ENOSYS).into_result()
        }
    }};
}

/// An error as a call of either width returns it.
trait IntoResult<T> {
    fn into_result(self) -> T;
}

impl IntoResult<c_int> for c_int {
    fn into_result(self) -> c_int {
        self
    }
}

impl IntoResult<isize> for c_int {
    fn into_result(self) -> isize {
        self as isize
    }
}

/// Closes an object.
///
/// # Safety
///
/// `fid` is the descriptor of an open object, which nothing uses from now on, whether the call fails or not.
pub unsafe fn fi_close(fid: *mut fid) -> c_int {
    // SAFETY: the object is open, so it points to its operations.
    unsafe { call!((*fid).ops, fi_ops.close, fid) }
}

/// Binds an endpoint to an address vector or a completion queue, or a memory region to an endpoint.
///
/// # Safety
///
/// Both are open; `to` stays open for as long as `fid`.
pub unsafe fn fi_bind(fid: *mut fid, to: *mut fid, flags: u64) -> c_int {
    // SAFETY: the object is open, so it points to its operations.
    unsafe { call!((*fid).ops, fi_ops.bind, fid, to, flags) }
}

/// Enables an endpoint, or a memory region that is bound to one.
///
/// # Safety
///
/// `fid` is open.
pub unsafe fn fi_enable(fid: *mut fid) -> c_int {
    // SAFETY: the object is open, so it points to its operations; FI_ENABLE takes no argument.
    unsafe { call!((*fid).ops, fi_ops.control, fid, FI_ENABLE, ptr::null_mut()) }
}

/// The file descriptor that a completion queue was opened with, by `FI_GETWAIT`.
///
/// # Safety
///
/// `cq` is open, with `FI_WAIT_FD`.
pub unsafe fn fi_getwait(cq: *mut fid_cq, fd: &mut c_int) -> c_int {
    // SAFETY: the queue is open, so it points to its operations; for FI_WAIT_FD the argument is an int.
    unsafe { call!((*cq).fid.ops, fi_ops.control, &raw mut (*cq).fid, FI_GETWAIT, ptr::from_mut(fd).cast()) }
}

/// Whether a caller may sleep on the file descriptors of these objects: 0, else `-FI_EAGAIN`.
///
/// # Safety
///
/// `fabric` is open, and so are all `fids`, which belong to it.
pub unsafe fn fi_trywait(fabric: *mut fid_fabric, fids: &mut [*mut fid]) -> c_int {
    let count = c_int::try_from(fids.len()).unwrap_or(c_int::MAX);
    // SAFETY: the fabric is open, so it points to its operations; the array has so many entries.
    unsafe { call!((*fabric).ops, fi_ops_fabric.trywait, fabric, fids.as_mut_ptr(), count) }
}

/// Opens a domain.
///
/// # Safety
///
/// `fabric` is open and stays so for as long as the domain; `info` is one of this fabric.
pub unsafe fn fi_domain(fabric: *mut fid_fabric, info: *mut fi_info, domain: &mut *mut fid_domain) -> c_int {
    // SAFETY: the fabric is open, so it points to its operations.
    unsafe { call!((*fabric).ops, fi_ops_fabric.domain, fabric, info, domain, ptr::null_mut()) }
}

/// Opens an address vector.
///
/// # Safety
///
/// `domain` is open and stays so for as long as the vector.
pub unsafe fn fi_av_open(domain: *mut fid_domain, attr: &mut fi_av_attr, av: &mut *mut fid_av) -> c_int {
    // SAFETY: the domain is open, so it points to its operations.
    unsafe { call!((*domain).ops, fi_ops_domain.av_open, domain, attr, av, ptr::null_mut()) }
}

/// Opens a completion queue.
///
/// # Safety
///
/// `domain` is open and stays so for as long as the queue.
pub unsafe fn fi_cq_open(domain: *mut fid_domain, attr: &mut fi_cq_attr, cq: &mut *mut fid_cq) -> c_int {
    // SAFETY: the domain is open, so it points to its operations.
    unsafe { call!((*domain).ops, fi_ops_domain.cq_open, domain, attr, cq, ptr::null_mut()) }
}

/// Opens an endpoint.
///
/// # Safety
///
/// `domain` is open and stays so for as long as the endpoint; `info` is one of this domain.
pub unsafe fn fi_endpoint(domain: *mut fid_domain, info: *mut fi_info, ep: &mut *mut fid_ep) -> c_int {
    // SAFETY: the domain is open, so it points to its operations.
    unsafe { call!((*domain).ops, fi_ops_domain.endpoint, domain, info, ep, ptr::null_mut()) }
}

/// Registers memory.
///
/// # Safety
///
/// `domain` is open and stays so for as long as the region. The `len` bytes at `buf` stay mapped, writable where `access` has
/// the peer or this side write, until the region is closed and no endpoint is left that had a part of a write to it under way.
pub unsafe fn fi_mr_reg(
    domain: *mut fid_domain,
    (buf, len): (*const c_void, usize),
    access: u64,
    requested_key: u64,
    mr: &mut *mut fid_mr,
) -> c_int {
    // SAFETY: the domain is open, so it points to its operations.
    unsafe {
        let fid = &raw mut (*domain).fid;
        call!((*domain).mr, fi_ops_mr.reg, fid, buf, len, access, 0, requested_key, 0, mr, ptr::null_mut())
    }
}

/// Gives one address a number. The number of addresses that were inserted, else a negative errno.
///
/// # Safety
///
/// `av` is open; `addr` is an address in the format of its domain.
pub unsafe fn fi_av_insert(av: *mut fid_av, addr: *const c_void, number: &mut fi_addr_t) -> c_int {
    // SAFETY: the vector is open, so it points to its operations.
    unsafe { call!((*av).ops, fi_ops_av.insert, av, addr, 1, number, 0, ptr::null_mut()) }
}

/// Takes completions. How many, else a negative errno: `-FI_EAGAIN` where there are none, `-FI_EAVAIL` where an error waits.
///
/// # Safety
///
/// `cq` is open, with `FI_CQ_FORMAT_DATA`.
pub unsafe fn fi_cq_read(cq: *mut fid_cq, entries: &mut [fi_cq_data_entry]) -> isize {
    // SAFETY: the queue is open, so it points to its operations; its entries are of this format, and there is room for so many.
    unsafe { call!((*cq).ops, fi_ops_cq.read, cq, entries.as_mut_ptr().cast(), entries.len()) }
}

/// Room for an entry of an error as later versions of the library may write it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ErrorEntry {
    /// What every version writes.
    pub entry: fi_cq_err_entry,
    reserve: [u64; 8],
}

impl Default for ErrorEntry {
    fn default() -> Self {
        let null = ptr::null_mut();
        Self {
            entry: fi_cq_err_entry {
                op_context: null,
                flags: 0,
                len: 0,
                buf: null,
                data: 0,
                tag: 0,
                olen: 0,
                err: 0,
                prov_errno: 0,
                err_data: null,
                err_data_size: 0,
            },
            reserve: [0; 8],
        }
    }
}

/// Takes the error that waits. 1, else a negative errno.
///
/// # Safety
///
/// `cq` is open. `err_data` of the entry is null, or `err_data_size` bytes may be written there.
pub unsafe fn fi_cq_readerr(cq: *mut fid_cq, entry: &mut ErrorEntry) -> isize {
    // SAFETY: the queue is open, so it points to its operations; the entry is followed by room for what later versions append.
    unsafe { call!((*cq).ops, fi_ops_cq.readerr, cq, ptr::from_mut(entry).cast(), 0) }
}

/// The provider's words for an error, as far as they fit into `buf`. Null where it has none.
///
/// # Safety
///
/// `cq` is open, and `err_data` is what the error's entry has.
pub unsafe fn fi_cq_strerror(
    cq: *mut fid_cq,
    prov_errno: c_int,
    err_data: *const c_void,
    buf: &mut [c_char],
) -> *const c_char {
    // SAFETY: the queue is open, so it points to its operations.
    unsafe {
        let table = (*cq).ops;
        if table.is_null() || (*table).size <= offset_of!(fi_ops_cq, strerror) {
            return ptr::null();
        }
        (*table)
            .strerror
            .map_or(ptr::null(), |strerror| strerror(cq, prov_errno, err_data, buf.as_mut_ptr(), buf.len()))
    }
}

/// The endpoint's own address, at most `len` bytes, which becomes the number that there are.
///
/// # Safety
///
/// `ep` is open and enabled; `len` bytes may be written to `addr`.
pub unsafe fn fi_getname(ep: *mut fid_ep, addr: *mut c_void, len: &mut usize) -> c_int {
    // SAFETY: the endpoint is open, so it points to its operations.
    unsafe { call!((*ep).cm, fi_ops_cm.getname, &raw mut (*ep).fid, addr, len) }
}

/// Posts a receive.
///
/// # Safety
///
/// `ep` is open and enabled. The `len` bytes at `buf` may be written, and nothing else uses them, until the receive completes or
/// the endpoint is closed; so long `context` is a `fi_context2` that nobody else uses.
pub unsafe fn fi_recv(
    ep: *mut fid_ep,
    (buf, len): (*mut c_void, usize),
    desc: *mut c_void,
    context: *mut c_void,
) -> isize {
    // SAFETY: the endpoint is open, so it points to its operations.
    unsafe { call!((*ep).msg, fi_ops_msg.recv, ep, buf, len, desc, FI_ADDR_UNSPEC, context) }
}

/// Sends a message.
///
/// # Safety
///
/// `ep` is open and enabled. What `msg` names is readable and does not change until the send completes or the endpoint is closed
/// (with `FI_INJECT`: until the call returns); so long its context is a `fi_context2` that nobody else uses.
pub unsafe fn fi_sendmsg(ep: *mut fid_ep, msg: &fi_msg, flags: u64) -> isize {
    // SAFETY: the endpoint is open, so it points to its operations.
    unsafe { call!((*ep).msg, fi_ops_msg.sendmsg, ep, msg, flags) }
}

/// Writes to a peer's memory.
///
/// # Safety
///
/// As of [`fi_sendmsg`].
pub unsafe fn fi_writemsg(ep: *mut fid_ep, msg: &fi_msg_rma, flags: u64) -> isize {
    // SAFETY: the endpoint is open, so it points to its operations.
    unsafe { call!((*ep).rma, fi_ops_rma.writemsg, ep, msg, flags) }
}

/// Reads a peer's memory.
///
/// # Safety
///
/// `ep` is open and enabled. What `msg` names may be written, and nothing else uses it, until the read completes or the endpoint
/// is closed; so long its context is a `fi_context2` that nobody else uses.
pub unsafe fn fi_readmsg(ep: *mut fid_ep, msg: &fi_msg_rma, flags: u64) -> isize {
    // SAFETY: the endpoint is open, so it points to its operations.
    unsafe { call!((*ep).rma, fi_ops_rma.readmsg, ep, msg, flags) }
}

/// Opens an event queue.
///
/// # Safety
///
/// `fabric` is open and stays so for as long as the queue.
pub unsafe fn fi_eq_open(fabric: *mut fid_fabric, attr: &mut fi_eq_attr, eq: &mut *mut fid_eq) -> c_int {
    // SAFETY: the fabric is open, so it points to its operations.
    unsafe { call!((*fabric).ops, fi_ops_fabric.eq_open, fabric, attr, eq, ptr::null_mut()) }
}

/// Opens a passive endpoint, which takes connections.
///
/// # Safety
///
/// `fabric` is open and stays so for as long as the endpoint; `info` is one of this fabric.
pub unsafe fn fi_passive_ep(fabric: *mut fid_fabric, info: *mut fi_info, pep: &mut *mut fid_pep) -> c_int {
    // SAFETY: the fabric is open, so it points to its operations.
    unsafe { call!((*fabric).ops, fi_ops_fabric.passive_ep, fabric, info, pep, ptr::null_mut()) }
}

/// Bytes of connection data that an event has room for; providers cut what is longer.
pub const CONNECTION_DATA_BYTES: usize = 256;

/// Room for an event of a connection, with the data that comes with it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ConnectionEvent {
    /// The endpoint, and of a request what the endpoint is opened with, which the reader frees.
    pub entry: fi_eq_cm_entry,
    /// What the other side sent along.
    pub data: [u8; CONNECTION_DATA_BYTES],
}

impl Default for ConnectionEvent {
    fn default() -> Self {
        let entry = fi_eq_cm_entry { fid: ptr::null_mut(), info: ptr::null_mut() };
        Self { entry, data: [0; CONNECTION_DATA_BYTES] }
    }
}

/// Takes the next event, and has the provider work on connections. Its bytes, else a negative errno: `-FI_EAGAIN` where there is none,
/// `-FI_EAVAIL` where an error waits.
///
/// # Safety
///
/// `eq` is open.
pub unsafe fn fi_eq_read(eq: *mut fid_eq, number: &mut u32, event: &mut ConnectionEvent) -> isize {
    // SAFETY: the queue is open, so it points to its operations; there is room for so many bytes.
    unsafe {
        call!((*eq).ops, fi_ops_eq.read, eq, number, ptr::from_mut(event).cast(), size_of::<ConnectionEvent>(), 0)
    }
}

/// Room for the entry of an error as later versions of the library may write it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EventErrorEntry {
    /// What every version writes.
    pub entry: fi_eq_err_entry,
    reserve: [u64; 8],
}

impl Default for EventErrorEntry {
    fn default() -> Self {
        let null = ptr::null_mut();
        Self {
            entry: fi_eq_err_entry {
                fid: ptr::null_mut(),
                context: null,
                data: 0,
                err: 0,
                prov_errno: 0,
                err_data: null,
                err_data_size: 0,
            },
            reserve: [0; 8],
        }
    }
}

/// Takes the error that waits. Its bytes, else a negative errno.
///
/// # Safety
///
/// `eq` is open. `err_data` of the entry is null, or `err_data_size` bytes may be written there.
pub unsafe fn fi_eq_readerr(eq: *mut fid_eq, entry: &mut EventErrorEntry) -> isize {
    // SAFETY: the queue is open, so it points to its operations; the entry is followed by room for what later versions append.
    unsafe { call!((*eq).ops, fi_ops_eq.readerr, eq, ptr::from_mut(entry).cast(), 0) }
}

/// The address of a passive endpoint, at most `len` bytes, which becomes the number that there are.
///
/// # Safety
///
/// `pep` is open and listens; `len` bytes may be written to `addr`.
pub unsafe fn fi_pep_getname(pep: *mut fid_pep, addr: *mut c_void, len: &mut usize) -> c_int {
    // SAFETY: the endpoint is open, so it points to its operations.
    unsafe { call!((*pep).cm, fi_ops_cm.getname, &raw mut (*pep).fid, addr, len) }
}

/// Has a passive endpoint take connections.
///
/// # Safety
///
/// `pep` is open and bound to an event queue.
pub unsafe fn fi_listen(pep: *mut fid_pep) -> c_int {
    // SAFETY: the endpoint is open, so it points to its operations.
    unsafe { call!((*pep).cm, fi_ops_cm.listen, pep) }
}

/// Starts to connect.
///
/// # Safety
///
/// `ep` is open and bound to an event queue; `addr` is an address in the format of its domain.
pub unsafe fn fi_connect(ep: *mut fid_ep, addr: *const c_void, data: &[u8]) -> c_int {
    // SAFETY: the endpoint is open, so it points to its operations; the data is read during the call.
    unsafe { call!((*ep).cm, fi_ops_cm.connect, ep, addr, data.as_ptr().cast(), data.len()) }
}

/// Accepts the connection that the endpoint was opened for.
///
/// # Safety
///
/// `ep` is open, with the info of a request, and bound to an event queue.
pub unsafe fn fi_accept(ep: *mut fid_ep) -> c_int {
    // SAFETY: the endpoint is open, so it points to its operations; there is no data.
    unsafe { call!((*ep).cm, fi_ops_cm.accept, ep, ptr::null(), 0) }
}

/// Rejects a request.
///
/// # Safety
///
/// `pep` is open; `handle` is that of the info of one of its requests, for which no endpoint was opened.
pub unsafe fn fi_reject(pep: *mut fid_pep, handle: *mut fid) -> c_int {
    // SAFETY: the endpoint is open, so it points to its operations; there is no data.
    unsafe { call!((*pep).cm, fi_ops_cm.reject, pep, handle, ptr::null(), 0) }
}
