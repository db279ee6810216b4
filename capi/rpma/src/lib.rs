//! The C interface of librpma 1.3: 84 functions, each a few lines. Over TCP and shm it uses `pmof-access`, over RDMA it uses
//! `pmof-verbs` directly, with the original's wire protocol.
//!
//! `cargo xtask capi` links this crate into `librpma.so.0`, which programs written for librpma load in place of the original.
//! `docs/librpma.md` lists the differences. No function panics across the boundary or aborts: detectable misuse
//! returns an error code and a line in the log.

mod argument;
mod call;
mod cm;
mod configuration;
mod connection;
mod context;
mod contexts;
mod endpoint;
mod environment;
mod error;
mod given;
mod handle;
mod limits;
mod log;
mod log_functions;
mod long;
mod memory;
mod on;
mod operations;
mod private_data;
mod queue;
mod settings;
mod shared;
mod shown;
mod verbs;

pub use argument::{Object, Out, Slot, Text};
pub use cm::*;
pub use configuration::*;
pub use connection::*;
pub use context::*;
pub use error::{rpma_err_2str, rpma_utils_conn_event_2str};
pub use handle::Handle;
pub use log_functions::{rpma_log_get_threshold, rpma_log_set_function, rpma_log_set_threshold};
pub use memory::*;
pub use operations::*;
pub use private_data::PrivateData;
pub use queue::*;
pub use shared::*;
