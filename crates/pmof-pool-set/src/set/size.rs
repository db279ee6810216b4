//! Sizes as pool set files write them.

use super::SetProblem;

/// Letter of each suffix, and its power of 1024 or 1000.
const UNITS: [(char, u32); 5] = [('K', 1), ('M', 2), ('G', 3), ('T', 4), ('P', 5)];

/// Files are no longer than this, and mappings neither.
const SIZE_BYTES_MAX: u64 = i64::MAX as u64;

/// Bytes of a size, as pool set files write it, but that it may be zero: a plus sign if need be, digits, then nothing, `B`, `K` to `P` or `KiB` to
/// `PiB` (1024), or `kB` and `MB` to `PB` (1000).
///
/// # Errors
/// Why it is none; 2^63 bytes and more are none.
pub fn bytes_of_size(text: &str) -> Result<u64, &'static str> {
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    let digits = unsigned.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = unsigned.split_at(digits);
    if number.is_empty() {
        return Err("it does not begin with a digit");
    }
    let unit = unit(suffix).ok_or("its suffix is none of B, K to P, KiB to PiB, kB and MB to PB")?;
    let bytes = number.parse().ok().and_then(|number: u64| number.checked_mul(unit));
    bytes.filter(|bytes| *bytes <= SIZE_BYTES_MAX).ok_or("it is 2^63 bytes or more")
}

/// The size of a part.
pub(super) fn parse(text: &str) -> Result<u64, SetProblem> {
    let bytes = bytes_of_size(text).and_then(|bytes| if bytes == 0 { Err("it is zero") } else { Ok(bytes) });
    bytes.map_err(|why| SetProblem::BadSize { text: text.to_owned(), why })
}

fn unit(suffix: &str) -> Option<u64> {
    if matches!(suffix, "" | "B") {
        return Some(1);
    }
    UNITS.iter().find_map(|(letter, power)| {
        // Only the smallest decimal suffix is in lower case, as in SI.
        let decimal = if *letter == 'K' { 'k' } else { *letter };
        if suffix == format!("{letter}") || suffix == format!("{letter}iB") {
            Some(1024_u64.pow(*power))
        } else if suffix == format!("{decimal}B") {
            Some(1000_u64.pow(*power))
        } else {
            None
        }
    })
}

/// The shortest way to write a number of bytes with a suffix of 1024 or none.
pub(super) fn text(bytes: u64) -> String {
    let fits = |power: &u32| bytes > 0 && bytes % 1024_u64.pow(*power) == 0;
    match UNITS.iter().rev().find(|(_, power)| fits(power)) {
        Some((letter, power)) => format!("{}{letter}", bytes / 1024_u64.pow(*power)),
        None => bytes.to_string(),
    }
}
