//! Bytes as words of the same length.

/// The whole words of `N` bytes, in order.
pub(crate) fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.chunks_exact(N).map(|bytes| {
        let mut word = [0; N];
        word.copy_from_slice(bytes);
        word
    })
}
