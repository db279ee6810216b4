//! The messages by which an initiator asks a target for pools, one message of an access connection each.
//!
//! The target answers every request with one reply that carries the request's number. All numbers are little-endian.
//! A message of any version:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 2 | [version](ControlVersion) of the body |
//! | 2 | 2 | kind, see below |
//! | 4 | 4 | request number, chosen by the initiator and repeated in the reply |
//! | 8 | 4 | length of the body in bytes, n |
//! | 12 | n | body |
//! | 12 + n | 4 | CRC32C of bytes 0..12 + n |
//!
//! From version 5 on a body ends with optional fields, in ascending order of their numbers: a `u16` tag (bits 0 to 14 the number, bit 15: a reader that does not
//! know the field must refuse the message; else it ignores the field), a length `u16` and that many bytes.
//!
//! A *text* is a `u16` length and that many bytes of UTF-8; a *name* is a text that keeps the rules of [`PoolName`](crate::PoolName). A
//! *level* is one byte, [`Durability`](pmof_terms::Durability)'s number. An *access* is one byte: 1 read, 2 write. Bodies, without gaps:
//!
//! | kind | message | body |
//! |---|---|---|
//! | 1 | `Create` | level `u8`, publish on close `u8` (0 or 1), replica index `u16`, replica count `u16`, size `u64`, pool UUID `[16]`, first epoch `[16]`, user flags `[16]`, name; field 1 bytes that there is room for page digests of `u64` |
//! | 2 | `Open` | level `u8`, access `u8`, name |
//! | 3 | `Close` | in order `u8` (0 or 1) |
//! | 4 | `Remove` | name; field 1 replica UUID `[16]`, field 2 its epoch `[16]`, both with bit 15. Version 4: replica UUID and epoch, or zeros, name |
//! | 5 | `Info` | name |
//! | 6 | `List` | a text: a name, or nothing for the first page |
//! | 7 | `Begin` | opening `u64`, epoch, ancestors |
//! | 8 | `Challenge` | initiator's nonce `[32]` |
//! | 9 | `Prove` | initiator's proof `[32]` |
//! | 10 | `CreateSet` | level `u8`, header `u8` (0 or 1), size `u64`, attributes `[104]`, set |
//! | 11 | `OpenSet` | level `u8`, access `u8`, size `u64`, set |
//! | 12 | `KeepSet` | - |
//! | 13 | `SetAttributes` | attributes `[104]` |
//! | 14 | `RemoveSet` | force `u8` (0 or 1), set file too `u8` (0 or 1), set |
//! | 15 | `Digest` | offset `u64`, length `u64`, block size `u64` |
//! | 16 | `Confirm` | epoch's name `[16]` |
//! | 17 | `Mark` | mark `u64` |
//! | 18 | `Data` | offset `u64` |
//! | 19 | `PrepareRemoval` | force `u8` (0 or 1), set file too `u8` (0 or 1), set; field 1 UUID of the pool set `[16]`, with bit 15. Version 4: UUID or zeros in front of the set |
//! | 20 | `PrepareReplacement` | UUID of the pool set `[16]`, set |
//! | 21 | `TakeOver` | level `u8`, epoch named `u8` (0 none, 1 own, 2 superseded), milliseconds of silence `u64`, epoch's name `[16]` or zeros, name |
//! | 22 | `Headerless` | offset `u64` |
//! | 23 | `Boot` | - |
//! | 24 | `RaiseIntent` | words |
//! | 25 | `ClearIntent` | level `u8`, words |
//! | 26 | `Intent` | first word `u16` |
//! | 27 | `Roster` | offset `u16` |
//! | 28 | `SetRoster` | offset `u16`, part |
//! | 32 | `Domain` | - |
//! | 33 | `Status` | - |
//! | 34 | `Discard` | name |
//! | 35 | `TellStatus` | writer's status |
//! | 36 | `WriterStatus` | name |
//! | 37 | `Infos` | count `u16`, that many names |
//! | 38 | `SetFiles` | first `u64`, set |
//! | 39 | `OpenBehind` | set |
//! | 0x81 | `Opened` | pool UUID `[16]`, replica UUID `[16]`, size `u64`, replica count `u16`, replica index `u16`, user flags `[16]`, state, `u16` length and descriptor; field 1 a roster as it is kept, field 2 the body of `Domain`, field 3 words of the map of write intent, the runs that are not zero |
//! | 0x82 | `Closed` | - |
//! | 0x83 | `Removed` | - |
//! | 0x84 | `Info` | format `u16`, features `u64`, pool UUID `[16]`, replica UUID `[16]`, size `u64`, created `u64`, state, replica count `u16`, replica index `u16`, user flags `[16]`, file length `u64`, medium `u8`, 3 promises, holder, name |
//! | 0x85 | `List` | more `u8` (0 or 1), count `u16`, that many names |
//! | 0x86 | `Begun` | - |
//! | 0x88 | `Challenged` | target's nonce `[32]`, target's proof `[32]` |
//! | 0x89 | `Admitted` | - |
//! | 0x8a | `SetOpened` | size `u64`, header `u8` (0 or 1), attributes `[104]`, `u16` length and descriptor, `u16` length and the header's descriptor |
//! | 0x8c | `SetKept` | - |
//! | 0x8d | `AttributesSet` | - |
//! | 0x8f | `Digests` | count `u16`, that many BLAKE3 digests `[32]` |
//! | 0x90 | `Confirmed` | - |
//! | 0x91 | `Marked` | - |
//! | 0x92 | `Data` | end `u64`, count `u16`, that many ranges, each begin `u64` and end `u64` |
//! | 0x93 | `Removable` | - |
//! | 0x94 | `Headerless` | as `Data` |
//! | 0x95 | `Boot` | boot `[16]` |
//! | 0x98 | `IntentChanged` | - |
//! | 0x9a | `Intent` | words |
//! | 0x9b | `Roster` | part |
//! | 0x9c | `RosterSet` | - |
//! | 0xa0 | `Domain` | known `u8` (0 or 1), and after a 1: declared `u8` (0 or 1), kernel known `u8` (0 or 1), kernel `[16]` or zeros, a text: the failure domain's name |
//! | 0xa1 | `Status` | protocol version `u16`, pool format `u16`, draining `u8` (0 or 1), uptime in milliseconds, connections, limit of connections, memory in use, memory budget, free bytes and bytes of the root's file system, each `u64`, version and root, each a text; field 1 oldest and newest version of the control messages, each `u16` |
//! | 0xa3 | `StatusTold` | - |
//! | 0xa4 | `WriterStatus` | known `u8` (0 or 1), and after a 1: writer's status |
//! | 0xa5 | `Infos` | count `u8`, that many descriptions, each after a 1 as in `Info`, after a 0 as in `Refused` |
//! | 0xa6 | `SetFiles` | more `u8` (0 or 1), count `u16`, that many files, each an identity `[32]` and a text: its path there |
//! | 0xa7 | `Working` | - |
//! | 0xff | `Refused` | code `u16`, text |
//!
//! A *promise* is two bytes, [`Mechanism`](pmof_terms::Mechanism)'s and [`Evidence`](pmof_terms::Evidence)'s numbers, both 0 where the medium cannot give the level;
//! they are in the order of [`Durability::ALL`](pmof_terms::Durability::ALL). A *set* is a text that keeps the rules of [`SetName`](crate::SetName); *attributes* are those of
//! librpmem's `rpmem_pool_attr`, zero where there is no header. The *holder* is one byte (0 or 1) and, after a 1, a text. An *epoch* is its name `[16]` and its
//! members `u64`; *ancestors* are one byte, their number, and that many epochs; a *state* is an opening `u64`, a byte of flags (bit 0 open,
//! bit 1 confirmed, bit 2 behind), a mark `u64`, an epoch and ancestors. *Words* of the [map of write intent](crate::IntentLayout) are the index of the first `u16`, their
//! number `u16`, and the low half `u32` of each. A *part* of a [roster](crate::Roster) is
//! the length of the whole `u16`, a length `u16`, and that many bytes. A *writer's status* is a `u8`, at most 64, and that many members, each an index `u16`, a
//! [standing](crate::MemberStanding) `u8`, and as `u64` bytes that it lacks, bytes copied a second, bytes of lag and milliseconds of lag; then a `u8`, at most 16, and that many events,
//! each milliseconds since 1970 `u64` and a text of at most 200 bytes. An *identity* of a file is that of `SetFile`.

pub use claim::Claim;
pub use enclosed::Enclosed;
pub use error::ControlError;
pub use limits::{
    ATTRIBUTES_BYTES, DATA_RANGES_MAX, DIGEST_BYTES, DIGESTED_MAX_BYTES, DIGESTS_MAX, FILE_IDENTITY_BYTES,
    INTENT_MESSAGE_WORDS_MAX, MAX_DESCRIPTOR_BYTES, MAX_HOLDER_BYTES, MAX_MESSAGE_BYTES, MAX_PATH_BYTES,
    MAX_REFUSAL_BYTES, NONCE_BYTES, PROOF_BYTES, ROSTER_PART_BYTES,
};
pub use pages::{PAGE_RANGES_MAX, PagesReply, PagesRequest, REPAIRED_BYTES, VERIFIED_PAGES_MAX};
pub use reply::{Reply, SetFile};
pub use request::{MeantReplica, Request};
pub use roster_part::RosterPart;
pub use settled::SettledVersion;
pub use version::{ControlVersion, MessageHead, SpokenVersions};

mod claim;
mod enclosed;
mod error;
mod fields;
mod limits;
mod pages;
mod reply;
mod request;
mod roster_part;
mod settled;
#[cfg(test)]
mod tests;
mod version;
mod wire;
