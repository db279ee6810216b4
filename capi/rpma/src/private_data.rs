//! Private data of connection requests.

use std::{ffi::c_void, ptr};

use crate::error::Failure;

/// What the connection manager of RDMA carries in a request and in an answer: always all of it, with zeros behind what was given. Programs rely on
/// having bytes where none were given.
pub(crate) const REQUEST_BYTES: usize = 56;
pub(crate) const ANSWER_BYTES: usize = 196;

/// The bytes as a device would show them.
pub(crate) fn as_carried(given: &[u8], carried_bytes: usize) -> Vec<u8> {
    let mut bytes = given.to_vec();
    bytes.resize(bytes.len().max(carried_bytes), 0);
    bytes
}

/// librpma's `rpma_conn_private_data`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PrivateData {
    /// The bytes, or null.
    pub ptr: *mut c_void,
    /// How many.
    pub len: u8,
}

impl PrivateData {
    /// What the library has; the application does not change it.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let ptr = if bytes.is_empty() { ptr::null_mut() } else { bytes.as_ptr().cast_mut().cast() };
        Self { ptr, len: bytes.len().min(usize::from(u8::MAX)) as u8 }
    }

    /// What the application has.
    ///
    /// # Safety
    ///
    /// `data` is null or points to private data whose `ptr` is null or valid for reads of `len` bytes.
    pub(crate) unsafe fn read(data: *const Self) -> Result<Vec<u8>, Failure> {
        // SAFETY: null or valid for a read, by the contract of this function.
        let Some(data) = (unsafe { data.as_ref() }) else { return Ok(Vec::new()) };
        if data.ptr.is_null() || data.len == 0 {
            return Err(Failure::invalid("private data without bytes: pass NULL where there are none"));
        }
        // SAFETY: not null, so valid for reads of `len` bytes, by the contract of this function.
        Ok(unsafe { std::slice::from_raw_parts(data.ptr.cast::<u8>(), usize::from(data.len)) }.to_vec())
    }
}
