//! Memory of this side's own operations.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    ffi::c_void,
    fmt,
    ptr::{self, NonNull},
    sync::Arc,
};

use pmof_fabric_sys as sys;

use crate::{Domain, FabricError, MrMode, domain::Opened};

/// Cache lines.
const ALIGNMENT: usize = 64;

/// Bytes that an operation of this side sends from or receives into. While one is under way, its endpoint owns them.
pub struct Buffer {
    bytes: NonNull<u8>,
    len: usize,
    /// Where the provider asks for that.
    region: Option<NonNull<sys::fid_mr>>,
    /// Keeps the domain open for the region.
    _domain: Arc<Opened>,
}

// SAFETY: this is the only handle of its memory.
unsafe impl Send for Buffer {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Zeroed bytes, at least 1.
    pub fn new(domain: &Domain, len_bytes: usize) -> Result<Self, FabricError> {
        let failed = |status: i32| {
            let provider = domain.info().provider();
            FabricError::call(domain.0.library(), "fi_mr_reg", provider, status.into())
        };
        let layout = layout(len_bytes.max(1)).ok_or_else(|| failed(libc::ENOMEM))?;
        // SAFETY: the layout has a size of at least 1.
        let bytes = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(|| failed(libc::ENOMEM))?;
        let mut buffer = Self { bytes, len: layout.size(), region: None, _domain: Arc::clone(&domain.0) };
        if domain.info().mr_mode().contains(MrMode::LOCAL) {
            let access = sys::FI_SEND | sys::FI_RECV | sys::FI_READ | sys::FI_WRITE;
            // SAFETY: the bytes are there until the drop, which closes the region before, and no peer has rights to them.
            let region = unsafe { domain.0.register((bytes.as_ptr().cast(), buffer.len), access, 0) };
            buffer.region = Some(region.map_err(failed)?);
        }
        Ok(buffer)
    }

    /// The length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: they are initialized; nobody else uses them while there is this reference: an endpoint that does owns the buffer.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr(), self.len) }
    }

    /// The bytes, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: they are initialized; nobody else uses them while there is this reference: an endpoint that does owns the buffer.
        unsafe { std::slice::from_raw_parts_mut(self.bytes.as_ptr(), self.len) }
    }

    pub(crate) fn start(&self) -> *mut c_void {
        self.bytes.as_ptr().cast()
    }

    /// What an operation names beside the address.
    pub(crate) fn descriptor(&self) -> *mut c_void {
        // SAFETY: the region is open.
        self.region.map_or(ptr::null_mut(), |region| unsafe { (*region.as_ptr()).mem_desc })
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(region) = self.region {
            // SAFETY: the region is open, and this is its only handle.
            if unsafe { sys::fi_close(&raw mut (*region.as_ptr()).fid) } != 0 {
                // The provider may still use the bytes: they stay.
                return;
            }
        }
        if let Some(layout) = layout(self.len) {
            // SAFETY: the bytes were allocated with this layout, and nothing refers to them any more.
            unsafe { dealloc(self.bytes.as_ptr(), layout) };
        }
    }
}

fn layout(len: usize) -> Option<Layout> {
    Layout::from_size_align(len, ALIGNMENT).ok()
}
