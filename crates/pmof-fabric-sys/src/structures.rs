//! The structures of `rdma/fabric.h`, `fi_domain.h`, `fi_eq.h`, `fi_endpoint.h` and `fi_rma.h`, with the names of the headers.
//!
//! Of a structure that the library allocates the headers may have more fields at the end than there are here.
#![allow(missing_docs, reason = "documented by the manual pages of libfabric")]
#![allow(non_camel_case_types, reason = "the names of the headers")]

use core::ffi::{c_char, c_int, c_void};

use libc::iovec;

use crate::operations::{
    fi_ops, fi_ops_av, fi_ops_cm, fi_ops_cq, fi_ops_domain, fi_ops_ep, fi_ops_eq, fi_ops_fabric, fi_ops_mr, fi_ops_msg,
    fi_ops_rma,
};

/// An address that an address vector has given a number.
pub type fi_addr_t = u64;

/// What the layout test compares with a C compiler's view of the headers.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Structure {
    pub name: &'static str,
    pub size_bytes: usize,
    pub alignment_bytes: usize,
    /// Name, type and offset in bytes of each.
    pub fields: &'static [(&'static str, &'static str, usize)],
}

/// Defines structures, and lists their layouts for the test.
macro_rules! structures {
    ($list:ident: $(pub struct $name:ident { $(pub $field:ident: $type:ty,)* })*) => {
        $(
            #[repr(C)]
            #[derive(Clone, Copy, Debug)]
            pub struct $name { $(pub $field: $type,)* }
        )*

        #[doc(hidden)]
        pub const $list: &[$crate::structures::Structure] = &[$($crate::structures::Structure {
            name: stringify!($name),
            size_bytes: size_of::<$name>(),
            alignment_bytes: align_of::<$name>(),
            fields: &[$((stringify!($field), stringify!($type), core::mem::offset_of!($name, $field)),)*],
        },)*];
    };
}
pub(crate) use structures;

structures! { STRUCTURES:
    pub struct fid {
        pub fclass: usize,
        pub context: *mut c_void,
        pub ops: *mut fi_ops,
    }
    pub struct fi_tx_attr {
        pub caps: u64,
        pub mode: u64,
        pub op_flags: u64,
        pub msg_order: u64,
        pub comp_order: u64,
        pub inject_size: usize,
        pub size: usize,
        pub iov_limit: usize,
        pub rma_iov_limit: usize,
        pub tclass: u32,
    }
    pub struct fi_rx_attr {
        pub caps: u64,
        pub mode: u64,
        pub op_flags: u64,
        pub msg_order: u64,
        pub comp_order: u64,
        pub total_buffered_recv: usize,
        pub size: usize,
        pub iov_limit: usize,
    }
    pub struct fi_ep_attr {
        pub type_: u32,
        pub protocol: u32,
        pub protocol_version: u32,
        pub max_msg_size: usize,
        pub msg_prefix_size: usize,
        pub max_order_raw_size: usize,
        pub max_order_war_size: usize,
        pub max_order_waw_size: usize,
        pub mem_tag_format: u64,
        pub tx_ctx_cnt: usize,
        pub rx_ctx_cnt: usize,
        pub auth_key_size: usize,
        pub auth_key: *mut u8,
    }
    pub struct fi_domain_attr {
        pub domain: *mut fid_domain,
        pub name: *mut c_char,
        pub threading: u32,
        pub control_progress: u32,
        pub data_progress: u32,
        pub resource_mgmt: u32,
        pub av_type: u32,
        pub mr_mode: c_int,
        pub mr_key_size: usize,
        pub cq_data_size: usize,
        pub cq_cnt: usize,
        pub ep_cnt: usize,
        pub tx_ctx_cnt: usize,
        pub rx_ctx_cnt: usize,
        pub max_ep_tx_ctx: usize,
        pub max_ep_rx_ctx: usize,
        pub max_ep_stx_ctx: usize,
        pub max_ep_srx_ctx: usize,
        pub cntr_cnt: usize,
        pub mr_iov_limit: usize,
        pub caps: u64,
        pub mode: u64,
        pub auth_key: *mut u8,
        pub auth_key_size: usize,
        pub max_err_data: usize,
        pub mr_cnt: usize,
        pub tclass: u32,
    }
    pub struct fi_fabric_attr {
        pub fabric: *mut fid_fabric,
        pub name: *mut c_char,
        pub prov_name: *mut c_char,
        pub prov_version: u32,
        pub api_version: u32,
    }
    pub struct fi_info {
        pub next: *mut fi_info,
        pub caps: u64,
        pub mode: u64,
        pub addr_format: u32,
        pub src_addrlen: usize,
        pub dest_addrlen: usize,
        pub src_addr: *mut c_void,
        pub dest_addr: *mut c_void,
        pub handle: *mut fid,
        pub tx_attr: *mut fi_tx_attr,
        pub rx_attr: *mut fi_rx_attr,
        pub ep_attr: *mut fi_ep_attr,
        pub domain_attr: *mut fi_domain_attr,
        pub fabric_attr: *mut fi_fabric_attr,
        pub nic: *mut c_void,
    }
    pub struct fid_fabric {
        pub fid: fid,
        pub ops: *mut fi_ops_fabric,
        pub api_version: u32,
    }
    pub struct fid_domain {
        pub fid: fid,
        pub ops: *mut fi_ops_domain,
        pub mr: *mut fi_ops_mr,
    }
    pub struct fid_mr {
        pub fid: fid,
        pub mem_desc: *mut c_void,
        pub key: u64,
    }
    pub struct fid_av {
        pub fid: fid,
        pub ops: *mut fi_ops_av,
    }
    pub struct fid_cq {
        pub fid: fid,
        pub ops: *mut fi_ops_cq,
    }
    pub struct fid_eq {
        pub fid: fid,
        pub ops: *mut fi_ops_eq,
    }
    pub struct fid_pep {
        pub fid: fid,
        pub ops: *mut fi_ops_ep,
        pub cm: *mut fi_ops_cm,
    }
    pub struct fid_ep {
        pub fid: fid,
        pub ops: *mut fi_ops_ep,
        pub cm: *mut fi_ops_cm,
        pub msg: *mut fi_ops_msg,
        pub rma: *mut fi_ops_rma,
        pub tagged: *mut c_void,
        pub atomic: *mut c_void,
        pub collective: *mut c_void,
    }
    pub struct fi_av_attr {
        pub type_: u32,
        pub rx_ctx_bits: c_int,
        pub count: usize,
        pub ep_per_node: usize,
        pub name: *const c_char,
        pub map_addr: *mut c_void,
        pub flags: u64,
    }
    pub struct fi_eq_attr {
        pub size: usize,
        pub flags: u64,
        pub wait_obj: u32,
        pub signaling_vector: c_int,
        pub wait_set: *mut c_void,
    }
    pub struct fi_eq_err_entry {
        pub fid: *mut fid,
        pub context: *mut c_void,
        pub data: u64,
        pub err: c_int,
        pub prov_errno: c_int,
        pub err_data: *mut c_void,
        pub err_data_size: usize,
    }
    pub struct fi_eq_cm_entry {
        pub fid: *mut fid,
        pub info: *mut fi_info,
    }
    pub struct fi_cq_attr {
        pub size: usize,
        pub flags: u64,
        pub format: u32,
        pub wait_obj: u32,
        pub signaling_vector: c_int,
        pub wait_cond: u32,
        pub wait_set: *mut c_void,
    }
    pub struct fi_cq_data_entry {
        pub op_context: *mut c_void,
        pub flags: u64,
        pub len: usize,
        pub buf: *mut c_void,
        pub data: u64,
    }
    pub struct fi_cq_err_entry {
        pub op_context: *mut c_void,
        pub flags: u64,
        pub len: usize,
        pub buf: *mut c_void,
        pub data: u64,
        pub tag: u64,
        pub olen: usize,
        pub err: c_int,
        pub prov_errno: c_int,
        pub err_data: *mut c_void,
        pub err_data_size: usize,
    }
    pub struct fi_context2 {
        pub internal: [*mut c_void; 8],
    }
    pub struct fi_rma_iov {
        pub addr: u64,
        pub len: usize,
        pub key: u64,
    }
    pub struct fi_msg {
        pub msg_iov: *const iovec,
        pub desc: *mut *mut c_void,
        pub iov_count: usize,
        pub addr: fi_addr_t,
        pub context: *mut c_void,
        pub data: u64,
    }
    pub struct fi_msg_rma {
        pub msg_iov: *const iovec,
        pub desc: *mut *mut c_void,
        pub iov_count: usize,
        pub addr: fi_addr_t,
        pub rma_iov: *const fi_rma_iov,
        pub rma_iov_count: usize,
        pub context: *mut c_void,
        pub data: u64,
    }
}
