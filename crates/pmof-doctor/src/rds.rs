//! RDS: what the kernel has, by way of the caller.

use std::net::Ipv4Addr;

use serde::Serialize;

/// What is known of RDS on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Rds {
    /// This program does not ask.
    #[default]
    NotAsked,
    /// It cannot be used.
    Unusable {
        /// Why, and what to do.
        #[serde(rename = "reason")]
        why: String,
    },
    /// The kernel has it.
    Found {
        /// The modules that are loaded.
        modules: Vec<String>,
        /// Addresses of this machine that it can be used at, but those of the loopback.
        addresses: Vec<RdsAddress>,
    },
}

/// An address of RDS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RdsAddress {
    /// The address.
    pub address: Ipv4Addr,
    /// An RDMA device carries it; else something that other machines may not have.
    pub is_rdma: bool,
}

impl RdsAddress {
    /// What it is good for, in a few words.
    pub(crate) fn verdict(&self) -> &'static str {
        if self.is_rdma {
            "rds://, messages over an RDMA device, flushed by the target's CPU (send-after-write)"
        } else {
            "rds://, but no RDMA device carries it: use tcp://"
        }
    }
}
