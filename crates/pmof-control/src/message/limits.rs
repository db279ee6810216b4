//! Limits of messages and of what they are made of.

/// Longest message in bytes: one page, so that a receive buffer for any message is one page.
pub const MAX_MESSAGE_BYTES: usize = 4096;
/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 32;
/// Bytes of a digest: of BLAKE3.
pub const DIGEST_BYTES: usize = 32;
/// Bytes of the identity of a file: of a BLAKE3 digest.
pub const FILE_IDENTITY_BYTES: usize = 32;
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
/// Digests in one message, at most: as many as fit.
pub const DIGESTS_MAX: usize = (MAX_BODY_BYTES - 2) / DIGEST_BYTES;
/// Bytes that one request for digests covers, at most: some ten milliseconds' work, for which the target's thread serves nobody
/// else.
pub const DIGESTED_MAX_BYTES: u64 = 32 << 20;
/// Ranges of data in one message, at most: as many as fit.
pub const DATA_RANGES_MAX: usize = (MAX_BODY_BYTES - 10) / 16;
/// Words of the map of write intent in one message, at most: as many as fit.
pub const INTENT_MESSAGE_WORDS_MAX: usize = (MAX_BODY_BYTES - 5) / size_of::<u32>();
/// Bytes of a roster in one message, at most: as many as fit.
pub const ROSTER_PART_BYTES: usize = MAX_BODY_BYTES - 6;

/// Longest path of a part's file in bytes; a longer one is cut when encoded, since it is for people only.
pub const MAX_PATH_BYTES: usize = 1024;

/// What is before a body.
pub(super) const HEAD_BYTES: usize = 12;
/// What is behind it.
pub(super) const CHECKSUM_BYTES: usize = 4;
/// What a message without a body has.
pub(super) const FRAME_BYTES: usize = HEAD_BYTES + CHECKSUM_BYTES;
/// The longest body.
pub(super) const MAX_BODY_BYTES: usize = MAX_MESSAGE_BYTES - FRAME_BYTES;
