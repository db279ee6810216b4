//! Limits of messages and of what they are made of.

/// The version of the messages that this program speaks.
pub const CONTROL_VERSION: u16 = 3;
/// Longest message in bytes: one page, so that a receive buffer for any message is one page.
pub const MAX_MESSAGE_BYTES: usize = 4096;
/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 32;
/// Bytes of a proof: of a BLAKE3 digest.
pub const PROOF_BYTES: usize = 32;
/// Longest region descriptor in bytes: several times what any transport's descriptor needs.
pub const MAX_DESCRIPTOR_BYTES: usize = 256;
/// Bytes of a pool set's attributes, librpmem's `rpmem_pool_attr`.
pub const ATTRIBUTES_BYTES: usize = 104;
/// Longest text of a refusal in bytes: a few lines for a person; a longer one is cut when encoded.
pub const MAX_REFUSAL_BYTES: usize = 1024;
/// Longest description of a pool's holder in bytes: one line for a person; a longer one is cut when encoded.
pub const MAX_HOLDER_BYTES: usize = 255;
