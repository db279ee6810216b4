//! libibverbs and librdmacm for pmof: loaded when first asked for, never linked, so that a machine without RDMA runs
//! everything else.
//!
//! - [`Verbs::load`] finds the libraries and yields a table of their functions, one field a symbol, under the symbol's
//!   own name. What a call does, takes and returns is in rdma-core's manual pages (`man 3 ibv_create_cq`,
//!   `man 3 rdma_connect`), whose names are kept here. Every field is an `unsafe fn`: the pages are its contract.
//! - The calls that `infiniband/verbs.h` defines inline, as jumps through tables of the provider, are re-made in Rust:
//!   [`ibv_post_recv`], [`ibv_poll_cq`] and the other free functions, and those methods of [`Verbs`] that fall back on a
//!   function of the library ([`Verbs::create_qp_ex`], [`Verbs::query_device_ex`]...). They report as the C calls do.
//! - [`DeviceList`] and [`DeviceError`] say in words when there is no device, or not the one asked for.
//!
//! Supported are rdma-core 28 and later, on 64-bit Linux. Calls that came later are `Option` fields, or an operation
//! that the provider refuses: native flush came with version 45, atomic write with 44, see [`available_send_ops`].
//!
//! The structures are checked in, made by bindgen from the headers of rdma-core 56 (`regenerate.sh`); the test `layout`
//! compares every size, offset and constant with a C compiler's view of the headers at hand. A structure that the
//! *library* allocates may be shorter where the library is older. Those that have grown since version 28 are
//! [`ibv_qp_ex`] (see [`available_send_ops`]), [`verbs_context`] (its `sz` tells; the inline calls look) and
//! [`rdma_cm_event`], whose last field is there from version 31 on only.

mod bindings;
mod context;
mod device;
mod library;
mod table;
mod work_request;

pub use bindings::types::*;
pub use context::*;
pub use device::{Device, DeviceError, DeviceList};
pub use library::{LoadError, MINIMUM_VERSION};
pub use table::Verbs;
pub use work_request::*;
