//! Memory that a device reads or writes while an operation is under way.

use std::{collections::HashMap, ptr::NonNull};

/// Bytes that belong to the kernel until they are taken back.
struct Lent {
    bytes: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: the bytes have one owner, this; nobody else but the kernel has the pointer.
unsafe impl Send for Lent {}

impl Lent {
    fn new(bytes: Box<[u8]>) -> Self {
        let len_bytes = bytes.len();
        // A box is not null.
        let bytes = NonNull::from(Box::leak(bytes)).cast();
        Self { bytes, len_bytes }
    }

    /// # Safety
    /// The kernel has nothing to do with the bytes any more.
    unsafe fn take_back(self) -> Box<[u8]> {
        let bytes = NonNull::slice_from_raw_parts(self.bytes, self.len_bytes);
        // SAFETY: they came out of a box of that length, and are taken back once: this is consumed.
        unsafe { Box::from_raw(bytes.as_ptr()) }
    }
}

/// The buffers of the operations under way, by token. What is dropped with buffers in it leaks them: the kernel may still use them.
#[derive(Default)]
pub(crate) struct Buffers(HashMap<u64, Lent>);

impl Buffers {
    /// Lends the bytes, and says where they are. A token must not be in use.
    pub(crate) fn lend(&mut self, token: u64, bytes: Box<[u8]>) -> u64 {
        let lent = Lent::new(bytes);
        let address = lent.bytes.as_ptr().expose_provenance() as u64;
        let before = self.0.insert(token, lent);
        assert!(before.is_none(), "two operations have the token {token}");
        address
    }

    /// # Safety
    /// The operation is over, or the kernel has not taken it.
    pub(crate) unsafe fn take_back(&mut self, token: u64) -> Option<Box<[u8]>> {
        // SAFETY: by the contract of this function.
        self.0.remove(&token).map(|lent| unsafe { lent.take_back() })
    }

    /// # Safety
    /// All operations are over.
    pub(crate) unsafe fn free(&mut self) {
        for (_, lent) in self.0.drain() {
            // SAFETY: by the contract of this function.
            drop(unsafe { lent.take_back() });
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_as_they_were_lent() {
        let mut buffers = Buffers::default();
        buffers.lend(1, vec![7; 16].into());
        buffers.lend(2, vec![8; 32].into());
        // SAFETY: no kernel was told of them.
        unsafe {
            assert_eq!(buffers.take_back(1).as_deref(), Some(&[7; 16][..]));
            assert_eq!(buffers.take_back(1), None);
            assert!(!buffers.is_empty());
            buffers.free();
        }
        assert!(buffers.is_empty());
    }

    #[test]
    #[should_panic(expected = "two operations have the token 1")]
    fn a_token_is_of_one_operation() {
        let mut buffers = Buffers::default();
        buffers.lend(1, Box::new([0; 16]));
        buffers.lend(1, Box::new([0; 16]));
    }
}
