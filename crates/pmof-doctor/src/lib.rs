//! The judgement of a whole machine: which memories it has, which failures they survive over which transport, on what
//! evidence, and what would improve them.
//!
//! [`examine`] reads only sysfs and procfs: it opens no file for writing and accesses no device. `pmof-mem` judges what a medium
//! keeps; it judges receipts too, so the two cannot differ. The caller provides the capabilities of RDMA devices through
//! [`RdmaCapabilities`], and what libfabric and RDS say.
//!
//! No answer that is missing, unreadable or unknown ever counts as proof.
#![forbid(unsafe_code)]

mod advice;
mod fabric;
mod flush_times;
mod machine;
mod memory;
mod pmem;
mod rdma;
mod rds;
mod read;
mod report;
mod text;

pub use advice::Finding;
pub use fabric::{FabricProvider, Libfabric};
pub use flush_times::{FlushCall, FlushCell, FlushTimes};
pub use machine::{Cpu, HugePages, Limit, Limits, NumaNode, PowerSupply, SwapArea, cpu_write_back};
pub use memory::{FlushMethod, Memory, Route, Transport};
pub use pmem::{CxlMemdev, DaxDevice, Namespace, Region};
pub use rdma::{
    Capabilities, CapabilitiesUnknown, DeviceCapabilities, NotAsked, RdmaCapabilities, RdmaDevice, RdmaPort,
};
pub use rds::{Rds, RdsAddress};
pub use report::{Platform, Report, examine};
