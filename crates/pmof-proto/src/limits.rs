//! Every bound of the protocol, each with its reason.

/// Bytes of every frame's header: one cache line, so that a header costs one line fill and one CRC of 7 ns.
pub const HEADER_BYTES: usize = 64;

/// Oldest protocol version spoken.
pub const VERSION_MIN: u16 = 1;

/// Newest protocol version spoken.
pub const VERSION_MAX: u16 = 1;

/// Private data of a connection request, in bytes: what `rdma_cm` carries over InfiniBand and `RoCE`, so that a program
/// runs unchanged on every transport.
pub const CONNECT_PRIVATE_MAX_BYTES: usize = 56;

/// Private data of an acceptance, in bytes: the limit of `rdma_cm`.
pub const ACCEPT_PRIVATE_MAX_BYTES: usize = 196;

/// Private data of a rejection, in bytes: the limit of `rdma_cm`.
pub const REJECT_PRIVATE_MAX_BYTES: usize = 148;

/// Payload of one operation, in bytes: half of what an RDMA message may hold, so that sums of two never overflow 31 bits.
pub const PAYLOAD_MAX_BYTES: u64 = 1 << 30;

/// A write of at most so many bytes is stored at once, when all of it has come: a target that dies meanwhile leaves each 8
/// aligned bytes old or new. A longer one goes directly from the socket to its region and may be torn at any byte.
pub const WHOLE_WRITE_MAX_BYTES: u64 = 4096;

/// Default for the longest message (send), in bytes.
pub const MESSAGE_DEFAULT_MAX_BYTES: u32 = 64 << 10;

/// Longest message that a configuration may allow, in bytes: a message may have to be buffered whole.
pub const MESSAGE_LIMIT_BYTES: u32 = 1 << 20;

/// Default for the messages kept for a receiver that has posted no receive.
pub const INBOX_DEFAULT_MESSAGES: u32 = 64;

/// Largest inbox that a configuration may ask for, in messages.
pub const INBOX_LIMIT_MESSAGES: u32 = 4096;

/// Default for the operations posted and not completed, per connection.
pub const SEND_QUEUE_DEFAULT: u32 = 1024;

/// Largest send queue that a configuration may ask for. It also bounds the replies that a target keeps for a peer that does
/// not read them: beyond the queue agreed on it takes in no more requests, which a peer within its queue never meets.
pub const SEND_QUEUE_LIMIT: u32 = 1 << 14;

/// Largest number of posted receives per connection.
pub const RECEIVE_QUEUE_LIMIT: usize = 1 << 16;

/// Bytes read at once where no payload is awaited: several small operations in one system call, and still cheap for
/// thousands of idle connections.
pub const STAGING_BYTES: usize = 16 << 10;

const _: () = assert!(WHOLE_WRITE_MAX_BYTES as usize + HEADER_BYTES <= STAGING_BYTES);

/// Bytes read beyond an awaited payload: the next header and a small payload. More would copy what could go directly.
pub const STAGING_TAIL_BYTES: usize = 4 << 10;

/// Bytes of posted payload copied and waiting for the socket, per connection, beyond which posting says `QueueFull`.
pub const OUTPUT_LIMIT_BYTES: usize = 64 << 20;

/// Capacity that an emptied output buffer may keep: idle connections give back what a burst took.
pub const OUTPUT_KEEP_BYTES: usize = 128 << 10;

/// Longest read reply copied when it is served, in bytes: a page goes out with its neighbours in one system call, which
/// is cheaper than a system call of its own.
pub const REPLY_COPY_MAX_BYTES: u64 = 4 << 10;

/// Bytes of read replies copied and waiting for the socket, per connection: the small ones, and those whose bytes a later
/// request of the same connection is about to change. Beyond it that request waits until the reply has gone.
pub const REPLY_COPY_LIMIT_BYTES: usize = 8 << 20;

/// Bytes of an atomic operation: what the hardware stores whole.
pub(crate) const ATOMIC_BYTES: u64 = 8;
