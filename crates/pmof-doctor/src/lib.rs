//! The judgement of a whole machine: which memories it has, which failures they survive over which transport, on what
//! evidence, and what would improve them.
//!
//! [`examine`] reads sysfs and procfs and nothing else: no file is opened for writing, no device is touched. What a medium
//! keeps is judged by `pmof-mem`, which judges receipts too, so the two cannot differ. What an RDMA device can do is asked
//! of [`RdmaCapabilities`], which the caller provides.
//!
//! No answer that is missing, unreadable or unknown ever counts as proof.
#![forbid(unsafe_code)]

mod advice;
mod machine;
mod memory;
mod pmem;
mod rdma;
mod read;
mod report;
mod text;

pub use advice::Finding;
pub use machine::{Cpu, HugePages, Limit, Limits, NumaNode, PowerSupply, SwapArea, cpu_write_back};
pub use memory::{FlushMethod, Memory, Route, Transport};
pub use pmem::{CxlMemdev, DaxDevice, Namespace, Region};
pub use rdma::{
    Capabilities, CapabilitiesUnknown, DeviceCapabilities, NotAsked, RdmaCapabilities, RdmaDevice, RdmaPort,
};
pub use report::{Platform, Report, examine};
