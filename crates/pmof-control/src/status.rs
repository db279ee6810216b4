//! What a target says of itself.

use alloc::string::String;

use crate::SpokenVersions;

/// Longest version of a program in bytes.
pub const MAX_VERSION_BYTES: usize = 64;

/// Longest name of a root directory in bytes; a longer one is cut when encoded.
pub const MAX_ROOT_BYTES: usize = 2048;

/// The state of a target when it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetStatus {
    /// The version of its program.
    pub version: String,
    /// The newest version of the wire protocol that it speaks.
    pub protocol_version: u16,
    /// The versions of the control messages that it speaks.
    pub control_versions: SpokenVersions,
    /// The format of pools that it makes.
    pub pool_format: u16,
    /// It was told to stop.
    pub is_draining: bool,
    /// Pools can be made under its root.
    pub is_root_writable: bool,
    /// Its root is still what the root's path leads to.
    pub is_root_attached: bool,
    /// Milliseconds since it was started.
    pub uptime_ms: u64,
    /// Connections, that of whoever asks included.
    pub connections: u64,
    /// Connections that it takes.
    pub max_connections: u64,
    /// Bytes of memory that its connections take.
    pub memory_bytes: u64,
    /// Bytes that they may take.
    pub memory_budget_bytes: u64,
    /// Bytes that are free in the root's file system for the target's user.
    pub free_bytes: u64,
    /// Bytes of that file system.
    pub total_bytes: u64,
    /// Its root directory.
    pub root: String,
}
