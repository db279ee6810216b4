//! The words of the command line for transports, methods of flush and levels of durability.

use std::{error::Error, io, ops::RangeInclusive, str::FromStr, time::Duration};

use clap::{
    ValueEnum,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
use pmof::{Durability, Method, PoolOptions, causes};
use pmof_access::{LocalEnd, Transport, TransportDescriptor};
use pmof_pool_set::bytes_of_size;

/// A value parser that says all of why an argument is refused: clap prints only the outermost error.
///
/// # Errors
/// The error of `T`, with its causes.
pub fn parsed<T: FromStr<Err: Into<Box<dyn Error + Send + Sync>>>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| causes(&*error.into()).to_string())
}

/// A value parser for times: a number and a unit; seconds without one.
///
/// # Errors
/// What a time looks like.
pub fn time(text: &str) -> Result<Duration, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
    let (number, unit) = text.split_at(digits);
    let unit_s = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" | "" => 1.0,
        "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(NO_TIME.to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| NO_TIME.to_owned())?;
    Duration::try_from_secs_f64(number * unit_s).map_err(|_| "the time is too long".to_owned())
}

/// What [`time`] reads.
const NO_TIME: &str = "a time is a number and us, ms, s, min or h, such as 10s";

/// A value parser for times of a range, in whole microseconds.
pub fn microseconds(range: RangeInclusive<Duration>) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync {
    move |text| Ok(u64::try_from(time_in(text, &range)?.as_micros()).unwrap_or(u64::MAX))
}

/// A value parser for times of a range, in whole milliseconds.
pub fn milliseconds(range: RangeInclusive<Duration>) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync {
    move |text| Ok(u64::try_from(time_in(text, &range)?.as_millis()).unwrap_or(u64::MAX))
}

/// A value parser for times of a range.
pub fn times(range: RangeInclusive<Duration>) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync {
    move |text| time_in(text, &range)
}

fn time_in(text: &str, range: &RangeInclusive<Duration>) -> Result<Duration, String> {
    let time = time(text)?;
    match range {
        _ if range.contains(&time) => Ok(time),
        _ if *range.end() == Duration::MAX => Err(format!("{:?} is the least", range.start())),
        _ => Err(format!("{:?} to {:?} are possible", range.start(), range.end())),
    }
}

/// A value parser for sizes: a whole number of bytes, or of K, M, G or T of them (1024).
///
/// # Errors
/// What a size looks like.
pub fn size(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = text.split_at(digits);
    let upper = suffix.to_ascii_uppercase();
    // `64m` and `64mib` are what pmof prints as `64M` and `64.0 MiB`. Case distinguishes the suffixes of powers of 1000.
    let suffix = match (upper.strip_suffix("IB"), upper.len()) {
        (Some(letter), _) => format!("{letter}iB"),
        (None, 1) => upper,
        _ => suffix.to_owned(),
    };
    bytes_of_size(&format!("{number}{suffix}"))
        .map_err(|why| format!("{why}: a size is a whole number and nothing, K, M, G or T, such as 64M"))
}

/// A value parser for sizes of a range, in bytes.
pub fn sizes<T: TryFrom<u64>>(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync {
    move |text| {
        let bytes = size(text)?;
        let fits = if range.contains(&bytes) { T::try_from(bytes).ok() } else { None };
        fits.ok_or_else(|| format!("{} to {} bytes are possible", range.start(), range.end()))
    }
}

/// A value parser for transports: the schemes of their addresses.
pub fn transports() -> impl TypedValueParser<Value = Transport> {
    let value = |transport: Transport| {
        let TransportDescriptor { scheme, summary, .. } = *transport.descriptor();
        PossibleValue::new(scheme).help(summary)
    };
    let unknown = || io::Error::from(io::ErrorKind::InvalidInput);
    let offered = Transport::ALL.into_iter().filter(|transport| transport.descriptor().is_offered);
    PossibleValuesParser::new(offered.map(value))
        .try_map(move |scheme| Transport::of_scheme(&scheme).ok_or_else(unknown))
}

/// The URL of a pool of a target at this address.
pub fn pool_url(transport: Transport, address: &str, name: &str) -> String {
    match transport.descriptor().local_end {
        LocalEnd::Path => format!("{address}?pool={name}"),
        _ => format!("{address}/{name}"),
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
        for (text, us) in [
            ("0s", 0),
            ("0", 0),
            ("10s", 10_000_000),
            ("0.25", 250_000),
            ("500ms", 500_000),
            ("0.1ms", 100),
            ("7us", 7),
            ("2min", 120_000_000),
            ("1h", 3_600_000_000),
        ] {
            assert_eq!(time(text), Ok(Duration::from_micros(us)), "{text}");
        }
        for text in
            ["", "s", ".", "1..5", "-1s", "1d", "1 s", "NaN", "99999999999999999999s", "18446744073709551615min"]
        {
            assert!(time(text).is_err(), "{text}");
        }
        let within = microseconds(Duration::from_millis(1)..=Duration::from_secs(1));
        assert_eq!((within("1ms"), within("1")), (Ok(1000), Ok(1_000_000)));
        assert_eq!(within("1.1s"), Err("1ms to 1s are possible".to_owned()));
    }

    #[test]
    fn sizes_have_suffixes() {
        assert_eq!((size("0"), size("64K"), size("1G")), (Ok(0), Ok(64 << 10), Ok(1 << 30)));
        assert_eq!((size("4k"), size("1g"), size("7b")), (Ok(4096), Ok(1 << 30), Ok(7)));
        // As sizes are printed everywhere.
        for text in ["1MiB", "1mib", "1MIB", "1024KiB", "1048576B"] {
            assert_eq!(size(text), Ok(1 << 20), "{text}");
        }
        assert_eq!((size("1MB"), size("1kB")), (Ok(1_000_000), Ok(1000)));
        for text in ["", "-1", "1.5G", "1kb", "K", "8388608T"] {
            assert!(size(text).is_err(), "{text}");
        }
        let small = sizes::<u16>(1..=1 << 20);
        assert_eq!(small("4K"), Ok(4096));
        for text in ["0", "64K", "2M"] {
            assert_eq!(small(text), Err("1 to 1048576 bytes are possible".to_owned()), "{text}");
        }
    }
}
