//! The words of the command line for transports, methods of flush and levels of durability.

use std::{error::Error, str::FromStr, time::Duration};

use clap::ValueEnum;
use pmof::{
    Durability, Method, PoolOptions,
    access::{FabricProvider, Transport},
    causes,
};

/// A value parser that says all of why an argument is refused: clap prints only the outermost error.
///
/// # Errors
/// The error of `T`, with its causes.
pub fn parsed<T: FromStr<Err: Into<Box<dyn Error + Send + Sync>>>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| causes(&*error.into()).to_string())
}

/// A value parser for times: a whole number and a unit; seconds without one.
///
/// # Errors
/// What a time looks like.
pub fn time(text: &str) -> Result<Duration, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let unit_ms = match unit {
        "ms" => 1,
        "s" | "" => 1000,
        "min" => 60_000,
        _ => return Err("a time is a whole number and ms, s or min, such as 10s".to_owned()),
    };
    let number: u64 = number.parse().map_err(|error| causes(&error).to_string())?;
    number.checked_mul(unit_ms).map(Duration::from_millis).ok_or_else(|| "the time is too long".to_owned())
}

/// What carries the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TransportName {
    /// A TCP connection
    Tcp,
    /// Memory shared by processes of this machine
    Shm,
    /// RDMA
    Verbs,
    /// The first provider that libfabric offers
    Fabric,
    /// libfabric's provider tcp
    #[value(name = "fabric+tcp")]
    FabricTcp,
    /// libfabric's provider net, which became tcp in libfabric 1.18
    #[value(name = "fabric+net")]
    FabricNet,
    /// libfabric's provider verbs
    #[value(name = "fabric+verbs")]
    FabricVerbs,
}

impl TransportName {
    /// The transport of this name.
    pub fn transport(self) -> Transport {
        match self {
            Self::Tcp => Transport::Tcp,
            Self::Shm => Transport::Shm,
            Self::Verbs => Transport::Verbs,
            Self::Fabric => Transport::Fabric(FabricProvider::Any),
            Self::FabricTcp => Transport::Fabric(FabricProvider::Tcp),
            Self::FabricNet => Transport::Fabric(FabricProvider::Net),
            Self::FabricVerbs => Transport::Fabric(FabricProvider::Verbs),
        }
    }

    /// Its name, which is the scheme of its addresses.
    pub fn name(self) -> &'static str {
        self.transport().scheme()
    }
}

/// Methods of flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MethodName {
    /// The FLUSH operation of the devices at both ends
    NativeFlush,
    /// This side's CPU writes back shared memory
    LocalWriteBack,
    /// A read pushes the writes out of the target's device; durable only where inbound writes reach its persistence domain
    ReadAfterWrite,
    /// A message has the target's CPU flush
    SendAfterWrite,
}

impl MethodName {
    /// The method of this name.
    pub fn method(self) -> Method {
        match self {
            Self::NativeFlush => Method::NativeFlush,
            Self::LocalWriteBack => Method::LocalWriteBack,
            Self::ReadAfterWrite => Method::ReadAfterWrite,
            Self::SendAfterWrite => Method::SendAfterWrite,
        }
    }

    /// Options with the method, where one was asked for.
    pub fn force(name: Option<Self>, options: PoolOptions) -> PoolOptions {
        match name {
            None => options,
            Some(name) => options.method(name.method()),
        }
    }
}

/// Levels of durability.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Level {
    /// Others read the new bytes; no failure is survived
    Visible,
    /// The bytes survive the death of the target process
    ProcessCrash,
    /// The bytes survive loss of power
    PowerFailure,
}

impl Level {
    /// The level of this name.
    pub fn durability(self) -> Durability {
        match self {
            Self::Visible => Durability::Visible,
            Self::ProcessCrash => Durability::ProcessCrash,
            Self::PowerFailure => Durability::PowerFailure,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, ms) in [("0s", 0), ("0", 0), ("10s", 10_000), ("10", 10_000), ("500ms", 500), ("2min", 120_000)] {
            assert_eq!(time(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "-1s", "1.5s", "1h", "1 s", "99999999999999999999s", "18446744073709551615min"] {
            assert!(time(text).is_err(), "{text}");
        }
    }
}
