//! The tables of operations that each object of libfabric points to, as far as they are used, with the names of the headers.
//!
//! A provider may have an older, shorter table: `size` says how many bytes of it there are.
#![allow(missing_docs, reason = "documented by the manual pages of libfabric")]
#![allow(non_camel_case_types, reason = "the names of the headers")]

use core::ffi::{c_char, c_int, c_void};

use crate::structures::{
    fi_addr_t, fi_av_attr, fi_cq_attr, fi_cq_err_entry, fi_eq_attr, fi_eq_err_entry, fi_info, fi_msg, fi_msg_rma, fid,
    fid_av, fid_cq, fid_domain, fid_ep, fid_eq, fid_fabric, fid_mr, fid_pep, structures,
};

/// An operation that is not used here.
pub type Unused = Option<unsafe extern "C" fn()>;

structures! { OPERATIONS:
    pub struct fi_ops {
        pub size: usize,
        pub close: Option<unsafe extern "C" fn(*mut fid) -> c_int>,
        pub bind: Option<unsafe extern "C" fn(*mut fid, *mut fid, u64) -> c_int>,
        pub control: Option<unsafe extern "C" fn(*mut fid, c_int, *mut c_void) -> c_int>,
        pub ops_open: Unused,
        pub tostr: Unused,
        pub ops_set: Unused,
    }
    pub struct fi_ops_fabric {
        pub size: usize,
        pub domain: Option<unsafe extern "C" fn(*mut fid_fabric, *mut fi_info, *mut *mut fid_domain, *mut c_void) -> c_int>,
        pub passive_ep: Option<unsafe extern "C" fn(*mut fid_fabric, *mut fi_info, *mut *mut fid_pep, *mut c_void) -> c_int>,
        pub eq_open: Option<unsafe extern "C" fn(*mut fid_fabric, *mut fi_eq_attr, *mut *mut fid_eq, *mut c_void) -> c_int>,
        pub wait_open: Unused,
        pub trywait: Option<unsafe extern "C" fn(*mut fid_fabric, *mut *mut fid, c_int) -> c_int>,
    }
    pub struct fi_ops_domain {
        pub size: usize,
        pub av_open: Option<unsafe extern "C" fn(*mut fid_domain, *mut fi_av_attr, *mut *mut fid_av, *mut c_void) -> c_int>,
        pub cq_open: Option<unsafe extern "C" fn(*mut fid_domain, *mut fi_cq_attr, *mut *mut fid_cq, *mut c_void) -> c_int>,
        pub endpoint: Option<unsafe extern "C" fn(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, *mut c_void) -> c_int>,
        pub scalable_ep: Unused,
        pub cntr_open: Unused,
        pub poll_open: Unused,
        pub stx_ctx: Unused,
        pub srx_ctx: Unused,
        pub query_atomic: Unused,
        pub query_collective: Unused,
    }
    pub struct fi_ops_mr {
        pub size: usize,
        pub reg: Option<
            unsafe extern "C" fn(
                *mut fid, *const c_void, usize, u64, u64, u64, u64, *mut *mut fid_mr, *mut c_void
            ) -> c_int,
        >,
        pub regv: Unused,
        pub regattr: Unused,
    }
    pub struct fi_ops_av {
        pub size: usize,
        pub insert: Option<
            unsafe extern "C" fn(*mut fid_av, *const c_void, usize, *mut fi_addr_t, u64, *mut c_void) -> c_int,
        >,
        pub insertsvc: Unused,
        pub insertsym: Unused,
        pub remove: Unused,
        pub lookup: Unused,
        pub straddr: Unused,
    }
    pub struct fi_ops_cq {
        pub size: usize,
        pub read: Option<unsafe extern "C" fn(*mut fid_cq, *mut c_void, usize) -> isize>,
        pub readfrom: Unused,
        pub readerr: Option<unsafe extern "C" fn(*mut fid_cq, *mut fi_cq_err_entry, u64) -> isize>,
        pub sread: Unused,
        pub sreadfrom: Unused,
        pub signal: Unused,
        pub strerror: Option<
            unsafe extern "C" fn(*mut fid_cq, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
        >,
    }
    pub struct fi_ops_eq {
        pub size: usize,
        pub read: Option<unsafe extern "C" fn(*mut fid_eq, *mut u32, *mut c_void, usize, u64) -> isize>,
        pub readerr: Option<unsafe extern "C" fn(*mut fid_eq, *mut fi_eq_err_entry, u64) -> isize>,
        pub write: Unused,
        pub sread: Unused,
        pub strerror: Unused,
    }
    pub struct fi_ops_ep {
        pub size: usize,
        pub cancel: Unused,
        pub getopt: Unused,
        pub setopt: Unused,
        pub tx_ctx: Unused,
        pub rx_ctx: Unused,
        pub rx_size_left: Unused,
        pub tx_size_left: Unused,
    }
    pub struct fi_ops_cm {
        pub size: usize,
        pub setname: Unused,
        pub getname: Option<unsafe extern "C" fn(*mut fid, *mut c_void, *mut usize) -> c_int>,
        pub getpeer: Unused,
        pub connect: Option<unsafe extern "C" fn(*mut fid_ep, *const c_void, *const c_void, usize) -> c_int>,
        pub listen: Option<unsafe extern "C" fn(*mut fid_pep) -> c_int>,
        pub accept: Option<unsafe extern "C" fn(*mut fid_ep, *const c_void, usize) -> c_int>,
        pub reject: Option<unsafe extern "C" fn(*mut fid_pep, *mut fid, *const c_void, usize) -> c_int>,
        pub shutdown: Unused,
        pub join: Unused,
    }
    pub struct fi_ops_msg {
        pub size: usize,
        pub recv: Option<
            unsafe extern "C" fn(*mut fid_ep, *mut c_void, usize, *mut c_void, fi_addr_t, *mut c_void) -> isize,
        >,
        pub recvv: Unused,
        pub recvmsg: Unused,
        pub send: Unused,
        pub sendv: Unused,
        pub sendmsg: Option<unsafe extern "C" fn(*mut fid_ep, *const fi_msg, u64) -> isize>,
        pub inject: Unused,
        pub senddata: Unused,
        pub injectdata: Unused,
    }
    pub struct fi_ops_rma {
        pub size: usize,
        pub read: Unused,
        pub readv: Unused,
        pub readmsg: Option<unsafe extern "C" fn(*mut fid_ep, *const fi_msg_rma, u64) -> isize>,
        pub write: Unused,
        pub writev: Unused,
        pub writemsg: Option<unsafe extern "C" fn(*mut fid_ep, *const fi_msg_rma, u64) -> isize>,
        pub inject: Unused,
        pub writedata: Unused,
        pub injectdata: Unused,
    }
}
