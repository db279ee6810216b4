//! Numbers as the interface in C declares them.

use std::ffi::c_int;

/// The library declares its enumerations and masks as `int`, and bindgen makes their constants unsigned.
pub(crate) fn int(value: u32) -> c_int {
    c_int::from_le_bytes(value.to_le_bytes())
}
