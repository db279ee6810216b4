//! Control messages of `sendmsg` and `recvmsg`.

use std::mem::MaybeUninit;

/// Bytes of control messages that one call takes: statuses of 32 operations and a cookie.
const CONTROL_BYTES: usize = 2048;

/// Bytes of control messages, aligned as their heads are.
#[repr(C, align(8))]
pub(crate) struct Control {
    bytes: [u8; CONTROL_BYTES],
    len_bytes: usize,
}

const fn align(len: usize) -> usize {
    (len + size_of::<usize>() - 1) & !(size_of::<usize>() - 1)
}

const HEAD_BYTES: usize = align(size_of::<libc::cmsghdr>());

impl Control {
    pub(crate) fn empty() -> Self {
        Self { bytes: [0; CONTROL_BYTES], len_bytes: 0 }
    }

    /// One with a message.
    pub(crate) fn with(kind: i32, data: &[u8]) -> Self {
        let mut control = Self::empty();
        // SAFETY: of zeros it is a valid structure, whose padding is zero too.
        let mut head: libc::cmsghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        head.cmsg_len = (HEAD_BYTES + data.len()) as _;
        head.cmsg_level = crate::abi::SOL_RDS;
        head.cmsg_type = kind;
        control.bytes[..size_of::<libc::cmsghdr>()].copy_from_slice(bytes_of(&head));
        control.bytes[HEAD_BYTES..HEAD_BYTES + data.len()].copy_from_slice(data);
        control.len_bytes = align(HEAD_BYTES + data.len());
        control
    }

    /// What the kernel is to read.
    pub(crate) fn written(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len_bytes]
    }

    /// What the kernel may fill; [`set_len`](Self::set_len) is due behind it.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    pub(crate) fn set_len(&mut self, len_bytes: usize) {
        self.len_bytes = len_bytes.min(CONTROL_BYTES);
    }

    /// The messages of RDS: kind and data of each.
    pub(crate) fn messages(&self) -> impl Iterator<Item = (i32, &[u8])> {
        let mut left = &self.bytes[..self.len_bytes];
        std::iter::from_fn(move || {
            loop {
                let (level, kind, len) = head_of(left)?;
                let data = left.get(HEAD_BYTES..len)?;
                left = left.get(align(len)..).unwrap_or_default();
                if level == crate::abi::SOL_RDS {
                    return Some((kind, data));
                }
            }
        })
    }
}

/// Level, kind and length of the first message.
fn head_of(bytes: &[u8]) -> Option<(i32, i32, usize)> {
    let head = bytes.get(..size_of::<libc::cmsghdr>())?;
    // SAFETY: there are so many bytes, and any are a valid head.
    let head = unsafe { head.as_ptr().cast::<libc::cmsghdr>().read_unaligned() };
    #[allow(clippy::unnecessary_cast, reason = "its type depends on the C library")]
    let len = head.cmsg_len as usize;
    (len >= HEAD_BYTES).then_some((head.cmsg_level, head.cmsg_type, len))
}

/// The bytes of a structure of the kernel's.
pub(crate) fn bytes_of<T: Copy>(structure: &T) -> &[u8] {
    // SAFETY: the structures of this crate, and the head of a control message that was made of zeros, have no uninitialized padding. The
    // bytes are borrowed as long as the structure.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(structure).cast(), size_of::<T>()) }
}

/// A structure of plain numbers out of bytes, if there are enough.
pub(crate) fn structure_of<T: Copy + Default>(bytes: &[u8]) -> Option<T> {
    let bytes = bytes.get(..size_of::<T>())?;
    // SAFETY: there are so many bytes, and any are valid numbers.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{RDS_CMSG_RDMA_DEST, RDS_CMSG_RDMA_STATUS};

    #[test]
    fn messages_are_found_again() {
        let mut both = Control::with(RDS_CMSG_RDMA_DEST, &7_u64.to_ne_bytes_of());
        let first = both.written().len();
        let mut second = Control::with(RDS_CMSG_RDMA_STATUS, &[1, 2, 3]);
        let second = second.written().to_vec();
        both.space()[first..first + second.len()].copy_from_slice(&second);
        both.set_len(first + second.len());
        let found: Vec<_> = both.messages().collect();
        assert_eq!(found, [(RDS_CMSG_RDMA_DEST, &7_u64.to_ne_bytes_of()[..]), (RDS_CMSG_RDMA_STATUS, &[1, 2, 3][..])]);
        // Cut anywhere, nothing is made up.
        for len in 0..first {
            both.set_len(len);
            assert!(both.messages().all(|(_, data)| data.len() == 8), "{len}");
        }
    }

    trait NativeBytes {
        fn to_ne_bytes_of(&self) -> [u8; 8];
    }

    impl NativeBytes for u64 {
        fn to_ne_bytes_of(&self) -> [u8; 8] {
            bytes_of(self).try_into().unwrap()
        }
    }
}
