//! Memory of this side's own operations.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    ffi::c_void,
    fmt,
    ptr::{self, NonNull},
    sync::Arc,
};

use pmof_fabric_sys as sys;
use pmof_mem::{Medium, MediumKind};

use crate::{Domain, FabricError, MrMode, domain::Opened};

/// Cache lines.
const ALIGNMENT: usize = 64;

/// What an operation of this side sends from or receives into. While one is under way, its endpoint owns it.
#[derive(Debug)]
pub enum Bytes {
    /// Bytes of its own.
    Buffer(Buffer),
    /// Memory that has other users.
    Memory(MemoryPart),
}

impl Bytes {
    /// The length in bytes.
    pub fn len_bytes(&self) -> usize {
        match self {
            Self::Buffer(buffer) => buffer.len,
            Self::Memory(part) => part.len,
        }
    }

    /// The buffer, if it is one.
    pub fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::Buffer(buffer) => Some(buffer),
            Self::Memory(_) => None,
        }
    }

    pub(crate) fn start(&self) -> *mut c_void {
        match self {
            Self::Buffer(buffer) => buffer.bytes.as_ptr().cast(),
            Self::Memory(part) => ptr::with_exposed_provenance_mut(part.address as usize),
        }
    }

    /// What an operation names beside the address.
    pub(crate) fn descriptor(&self) -> *mut c_void {
        match self {
            Self::Buffer(Buffer { region: Some(region), .. }) => {
                // SAFETY: the buffer keeps the region open.
                unsafe { (*region.as_ptr()).mem_desc }
            }
            Self::Buffer(_) | Self::Memory(_) => ptr::null_mut(),
        }
    }
}

impl From<Buffer> for Bytes {
    fn from(buffer: Buffer) -> Self {
        Self::Buffer(buffer)
    }
}

impl From<MemoryPart> for Bytes {
    fn from(part: MemoryPart) -> Self {
        Self::Memory(part)
    }
}

/// A part of a medium, which an operation uses where it is. What others change there meanwhile may be moved or not.
#[derive(Debug)]
pub struct MemoryPart {
    address: u64,
    len: usize,
    /// Keeps it mapped.
    _memory: Arc<dyn Medium>,
}

impl MemoryPart {
    /// `len_bytes` of a medium from `offset` on. `None` where a [`Buffer`] has to do: the provider wants all memory registered, or this is
    /// not anonymous memory of this process, whose pages are always there, or its owner may take it back.
    ///
    /// # Panics
    /// Where the range is not inside the medium.
    pub fn new(domain: &Domain, memory: Arc<dyn Medium>, (offset, len_bytes): (u64, u64)) -> Option<Self> {
        let is_lent = memory.lent().is_some();
        let mapped = memory.memory().filter(|mapped| mapped.kind() == MediumKind::Anonymous && mapped.is_writable())?;
        if is_lent || domain.info().mr_mode().contains(MrMode::LOCAL) {
            return None;
        }
        let end = offset.checked_add(len_bytes);
        assert!(end.is_some_and(|end| end <= mapped.len_bytes()), "a part lies inside its medium");
        Some(Self { address: mapped.address() + offset, len: len_bytes as usize, _memory: memory })
    }
}

/// Bytes of an operation's own.
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
