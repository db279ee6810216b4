//! What regenerate.sh made of rdma-core's headers. Names and order are those of the headers.
#![allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    unreachable_pub,
    unused_qualifications,
    clippy::pedantic,
    clippy::undocumented_unsafe_blocks,
    clippy::unnecessary_operation,
    clippy::identity_op,
    reason = "generated, and documented by the manual pages of rdma-core"
)]

pub mod functions;
pub mod types;
