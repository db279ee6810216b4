//! The messages by which an initiator asks a target for pools, one message of an access connection each.
//!
//! The target answers every request with one reply that carries the request's number. All numbers are little-endian.
//! A message of any version:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 2 | version of the body: 3 |
//! | 2 | 2 | kind, see below |
//! | 4 | 4 | request number, chosen by the initiator and repeated in the reply |
//! | 8 | 4 | length of the body in bytes, n |
//! | 12 | n | body |
//! | 12 + n | 4 | CRC32C of bytes 0..12 + n |
//!
//! A *text* is a `u16` length and that many bytes of UTF-8; a *name* is a text that keeps the rules of [`PoolName`]. A
//! *level* is one byte, [`Durability`]'s number. An *access* is one byte: 1 read, 2 write. Bodies, without gaps:
//!
//! | kind | message | body |
//! |---|---|---|
//! | 1 | `Create` | level `u8`, publish on close `u8` (0 or 1), replica index `u16`, replica count `u16`, size `u64`, pool UUID `[16]`, first epoch `[16]`, user flags `[16]`, name |
//! | 2 | `Open` | level `u8`, access `u8`, name |
//! | 3 | `Close` | in order `u8` (0 or 1) |
//! | 4 | `Remove` | name |
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
//! | 19 | `PrepareRemoval` | force `u8` (0 or 1), set file too `u8` (0 or 1), UUID of the pool set `[16]` or zeros, set |
//! | 20 | `PrepareReplacement` | UUID of the pool set `[16]`, set |
//! | 21 | `TakeOver` | level `u8`, epoch known `u8` (0 or 1), milliseconds of silence `u64`, epoch's name `[16]` or zeros, name |
//! | 22 | `Headerless` | offset `u64` |
//! | 23 | `Boot` | - |
//! | 24 | `RaiseIntent` | words |
//! | 25 | `ClearIntent` | level `u8`, words |
//! | 26 | `Intent` | first word `u16` |
//! | 0x81 | `Opened` | pool UUID `[16]`, replica UUID `[16]`, size `u64`, replica count `u16`, replica index `u16`, user flags `[16]`, state, `u16` length and descriptor |
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
//! | 0xff | `Refused` | code `u16`, text |
//!
//! A *promise* is two bytes, [`Mechanism`]'s and [`Evidence`]'s numbers, both 0 where the medium cannot give the level;
//! they stand in the order of [`Durability::ALL`]. A *set* is a text that keeps the rules of [`SetName`]; *attributes* are those of
//! librpmem's `rpmem_pool_attr`, zero where there is no header. The *holder* is one byte (0 or 1) and, after a 1, a text. An *epoch* is its name `[16]` and its
//! members `u64`; *ancestors* are one byte, their number, and that many epochs; a *state* is an opening `u64`, a byte of flags (bit 0 open,
//! bit 1 confirmed, bit 2 behind), a mark `u64`, an epoch and ancestors. *Words* of the [map of write intent](crate::IntentLayout) are the index of the first `u16`, their
//! number `u16`, and the low half `u32` of each.

use std::ops::Range;

use pmof_mem::Durability;
use pmof_pool::DIGEST_BYTES;
use uuid::Uuid;

use crate::{Epoch, NewPool, OpenFor, PoolInfo, PoolName, PoolState, SetName, USER_FLAGS_BYTES};
pub use error::ControlError;
use fields::cut;
pub use limits::{
    ATTRIBUTES_BYTES, CONTROL_VERSION, MAX_DESCRIPTOR_BYTES, MAX_HOLDER_BYTES, MAX_MESSAGE_BYTES, MAX_REFUSAL_BYTES,
    NONCE_BYTES, PROOF_BYTES,
};
use wire::{Body, Fault, Frame, Parsed};

mod error;
mod fields;
mod limits;
#[cfg(test)]
mod tests;
mod wire;

/// Digests in one message, at most: as many as fit.
pub const DIGESTS_MAX: usize = (wire::MAX_BODY_BYTES - 2) / DIGEST_BYTES;
/// Bytes that one request for digests covers, at most: some ten milliseconds' work, for which the target's thread serves nobody
/// else.
pub const DIGESTED_MAX_BYTES: u64 = 32 << 20;
/// Ranges of data in one message, at most: as many as fit.
pub const DATA_RANGES_MAX: usize = (wire::MAX_BODY_BYTES - 10) / 16;
/// Words of the map of write intent in one message, at most: as many as fit.
pub const INTENT_MESSAGE_WORDS_MAX: usize = (wire::MAX_BODY_BYTES - 5) / size_of::<u32>();
/// What to limit a look for names by, to fill a page and know of more: one more than the shortest names that fit.
pub const LIST_LIMIT: usize = (wire::MAX_BODY_BYTES - 3) / 3 + 1;

/// What an initiator asks of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Make a pool and open it for writing.
    Create {
        /// Its name.
        name: PoolName,
        /// What it is to be.
        new: NewPool,
        /// The pool gets its name when it is closed; before, nobody else sees it, and it is gone with the connection.
        publish_on_close: bool,
    },
    /// Open a pool.
    Open {
        /// Its name.
        name: PoolName,
        /// For reading, or for writing too.
        access: OpenFor,
        /// The level that the target must be able to give.
        require: Durability,
    },
    /// Open a pool for writing as `Open` does, and where another has it open so, take it away from that one first. It is refused with
    /// [`PoolRefusal::Busy`](crate::PoolRefusal::Busy) unless the other one's connection has been silent so long, or the epoch is named; and with
    /// [`PoolRefusal::NotFenceable`](crate::PoolRefusal::NotFenceable) where the memory cannot be taken away from it.
    TakeOver {
        /// The pool's name.
        name: PoolName,
        /// The level that the target must be able to give.
        require: Durability,
        /// Milliseconds for which nothing came from the other one, at least; 0 takes the pool over at once.
        silent_ms: u64,
        /// The pool's epoch, which its writer and targets alone know: whoever names it is that writer, come back over another connection.
        epoch: Option<Uuid>,
    },
    /// Close the pool that this connection has open, and publish it where that was put off.
    Close {
        /// All that was written is there and flushed on every replica in use, so the pool is closed in order. Else it stays as it is, and
        /// one that was not published is gone.
        in_order: bool,
    },
    /// Delete a pool and its bytes.
    Remove {
        /// Its name.
        name: PoolName,
    },
    /// Describe a pool.
    Info {
        /// Its name.
        name: PoolName,
    },
    /// Announce an epoch to the pool that this connection has open for writing, durably.
    Begin {
        /// The number of the opening.
        opening: u64,
        /// The epoch.
        epoch: Epoch,
        /// Those before, the latest first; at most [`ANCESTORS_MAX`](crate::ANCESTORS_MAX).
        ancestors: Vec<Epoch>,
    },
    /// Say, durably, that all members of the epoch announced last have it.
    Confirm {
        /// Its name.
        epoch: Uuid,
    },
    /// Raise the mark of the pool that this connection has open for writing, durably.
    Mark {
        /// The new mark. A lower one than the replica has changes nothing.
        mark: u64,
    },
    /// Name the pools there are, in order, a page at a time.
    List {
        /// The last name of the page before; `None` for the first page.
        after: Option<PoolName>,
    },
    /// Begin to prove the session's secret, where the target asks for one.
    Challenge {
        /// The initiator's random bytes.
        nonce: [u8; NONCE_BYTES],
    },
    /// Prove it.
    Prove {
        /// The initiator's proof.
        proof: [u8; PROOF_BYTES],
    },
    /// Make the pool of a pool set, whose file is there, and open it for writing. Gone with the connection unless
    /// [kept](Self::KeepSet).
    CreateSet {
        /// The set.
        name: SetName,
        /// Bytes that the pool needs, at least.
        size_bytes: u64,
        /// What the header is to say; `None` for a pool without one.
        attributes: Option<[u8; ATTRIBUTES_BYTES]>,
        /// The level that its parts must be able to give.
        require: Durability,
    },
    /// Open the pool of a pool set.
    OpenSet {
        /// The set.
        name: SetName,
        /// Bytes that the pool needs, at least; 0 for any.
        size_bytes: u64,
        /// For reading, or for writing too.
        access: OpenFor,
        /// The level that its parts must be able to give.
        require: Durability,
    },
    /// Keep the pool that `CreateSet` made on this connection.
    KeepSet,
    /// Change the attributes in the headers of the pool that is open.
    SetAttributes {
        /// The new ones.
        attributes: [u8; ATTRIBUTES_BYTES],
    },
    /// Delete the parts of a pool set.
    RemoveSet {
        /// The set.
        name: SetName,
        /// Also where parts are missing or damaged.
        force: bool,
        /// Delete the set's file too.
        set_file: bool,
    },
    /// See whether the parts of a pool set can be deleted, and keep others from them until this connection asks for that, or
    /// ends.
    PrepareRemoval {
        /// The set.
        name: SetName,
        /// Also where parts are missing or damaged.
        force: bool,
        /// The set's file is to go too.
        set_file: bool,
        /// UUID of the pool's set at its initiator, where that knows it: parts of another pool are refused, by force too.
        member: Option<[u8; 16]>,
    },
    /// See whether what is there of a pool set's parts can be deleted to make a pool of `member` there: nothing is, or what is left of such
    /// a pool. Others are kept from it until this connection asks for the removal, by force, or ends.
    PrepareReplacement {
        /// The set.
        name: SetName,
        /// UUID of the pool's set at its initiator.
        member: [u8; 16],
    },
    /// Compute digests of blocks of the pool that is open.
    Digest {
        /// First byte.
        offset: u64,
        /// Bytes in all, at most [`DIGESTED_MAX_BYTES`].
        len_bytes: u64,
        /// Bytes of each block; the last may be shorter.
        block_bytes: u64,
    },
    /// Name the ranges of the pool that is open that may hold other bytes than zeros.
    Data {
        /// From here on.
        offset: u64,
    },
    /// Set bits of the map of write intent of the pool that this connection has open for writing, durably. Others stay.
    RaiseIntent {
        /// The first word of the map.
        first: u16,
        /// From there on: the bits to be set. At most [`INTENT_MESSAGE_WORDS_MAX`].
        words: Vec<u32>,
    },
    /// Clear bits of that map: all that was written there is durable on all replicas in sync.
    ClearIntent {
        /// How durable it is. The target keeps the bits where its medium can do better: what is less durable than that may be lost.
        level: Durability,
        /// The first word of the map.
        first: u16,
        /// From there on: the bits that stay. At most [`INTENT_MESSAGE_WORDS_MAX`].
        words: Vec<u32>,
    },
    /// Tell the map of write intent of the pool that is open.
    Intent {
        /// From this word on.
        first: u16,
    },
    /// Name what each part without a header has of the pool set that is open, but for the first part, and devices: anybody's file fits there.
    Headerless {
        /// Of parts that begin here or later.
        offset: u64,
    },
    /// Name the time since the target's machine was started.
    Boot,
}

/// What a target answers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// The pool is open.
    Opened {
        /// The pool, the same on every replica.
        pool_uuid: Uuid,
        /// This replica.
        replica_uuid: Uuid,
        /// Bytes of user data.
        size_bytes: u64,
        /// Replicas that the pool was made with.
        replica_count: u16,
        /// Which of them this one is.
        replica_index: u16,
        /// What the pool's maker says of its contents.
        user_flags: [u8; USER_FLAGS_BYTES],
        /// Which opening wrote it last, and whether that ended in order.
        state: PoolState,
        /// What the initiator needs to address the user data; at most [`MAX_DESCRIPTOR_BYTES`].
        descriptor: Vec<u8>,
    },
    /// The pool is closed.
    Closed,
    /// The pool is gone.
    Removed,
    /// What there is to know of a pool.
    Info(Box<PoolInfo>),
    /// One page of names, in order.
    List {
        /// The names; as many as fit, see [`Reply::list_page`].
        names: Vec<PoolName>,
        /// Whether there are names after these.
        more: bool,
    },
    /// The epoch was announced.
    Begun,
    /// The epoch was confirmed.
    Confirmed,
    /// The mark was raised.
    Marked,
    /// The target has shown that it knows the secret.
    Challenged {
        /// The target's random bytes.
        nonce: [u8; NONCE_BYTES],
        /// Its proof.
        proof: [u8; PROOF_BYTES],
    },
    /// The connection may ask for pools.
    Admitted,
    /// The pool of a set is open.
    SetOpened {
        /// Bytes of the pool, its header included.
        size_bytes: u64,
        /// What its header says, if it has one.
        attributes: Option<[u8; ATTRIBUTES_BYTES]>,
        /// What the initiator needs to address the pool behind its header.
        descriptor: Vec<u8>,
        /// What it needs to read the header; empty where there is none.
        header_descriptor: Vec<u8>,
    },
    /// The new pool stays.
    SetKept,
    /// The set's parts can be deleted, and are locked until then.
    Removable,
    /// The attributes are in the headers.
    AttributesSet,
    /// Digests of the blocks, in order.
    Digests {
        /// At most [`DIGESTS_MAX`].
        digests: Vec<[u8; DIGEST_BYTES]>,
    },
    /// Where there is data, in order; all else up to `end` is zero, durably.
    Data {
        /// At most [`DATA_RANGES_MAX`], none of them empty.
        ranges: Vec<Range<u64>>,
        /// How far the answer goes: to the end of the pool, or to the next range, which there was no room for.
        end: u64,
    },
    /// Where parts without a header are, in order.
    Headerless {
        /// At most [`DATA_RANGES_MAX`], one of each part.
        ranges: Vec<Range<u64>>,
        /// How far the answer goes: to the end of the pool, or to the next range, which there was no room for.
        end: u64,
    },
    /// The time since the target's machine was started.
    Boot {
        /// Another one after each start, as `/proc/sys/kernel/random/boot_id` has it.
        boot: Uuid,
    },
    /// The bits are set, or were cleared or kept.
    IntentChanged,
    /// The map of write intent.
    Intent {
        /// The first word.
        first: u16,
        /// From there on, as many as there are, at most [`INTENT_MESSAGE_WORDS_MAX`]. Of a map that nobody keeps all bits are set.
        words: Vec<u32>,
    },
    /// The request was not carried out.
    Refused {
        /// Why, for programs: the code of the target's `StoreError`, or one of its service.
        code: u16,
        /// Why and what to do, for people; cut to [`MAX_REFUSAL_BYTES`] when encoded.
        text: String,
    },
}

impl Request {
    /// The message that carries this request. Fails only where a message would be longer than allowed, which no
    /// request of this version can be.
    pub fn encode(&self, request_id: u32) -> Result<Vec<u8>, ControlError> {
        let mut frame = Frame::new(self.kind(), request_id);
        match self {
            Self::Create { name, new, publish_on_close } => {
                frame.byte(new.require as u8);
                frame.byte(u8::from(*publish_on_close));
                frame.number_u16(new.replica_index);
                frame.number_u16(new.replica_count);
                frame.number_u64(new.size_bytes);
                frame.bytes(new.pool_uuid.as_bytes());
                frame.bytes(new.epoch.as_bytes());
                frame.bytes(&new.user_flags);
                frame.text(name.as_str());
            }
            Self::Open { name, access, require } => {
                frame.byte(*require as u8);
                frame.access(*access);
                frame.text(name.as_str());
            }
            Self::TakeOver { name, require, silent_ms, epoch } => {
                frame.byte(*require as u8);
                frame.byte(u8::from(epoch.is_some()));
                frame.number_u64(*silent_ms);
                frame.bytes(epoch.unwrap_or_default().as_bytes());
                frame.text(name.as_str());
            }
            Self::Close { in_order } => frame.byte(u8::from(*in_order)),
            Self::KeepSet | Self::Boot => {}
            Self::Remove { name } | Self::Info { name } => frame.text(name.as_str()),
            Self::Begin { opening, epoch, ancestors } => {
                frame.number_u64(*opening);
                frame.epoch(epoch);
                frame.ancestors(ancestors);
            }
            Self::Confirm { epoch } => frame.bytes(epoch.as_bytes()),
            Self::Mark { mark } => frame.number_u64(*mark),
            Self::List { after } => frame.text(after.as_ref().map_or("", PoolName::as_str)),
            Self::Challenge { nonce } => frame.bytes(nonce),
            Self::Prove { proof } => frame.bytes(proof),
            Self::CreateSet { name, size_bytes, attributes, require } => {
                frame.byte(*require as u8);
                frame.byte(u8::from(attributes.is_some()));
                frame.number_u64(*size_bytes);
                frame.bytes(&attributes.unwrap_or([0; ATTRIBUTES_BYTES]));
                frame.text(name.as_str());
            }
            Self::OpenSet { name, size_bytes, access, require } => {
                frame.byte(*require as u8);
                frame.access(*access);
                frame.number_u64(*size_bytes);
                frame.text(name.as_str());
            }
            Self::SetAttributes { attributes } => frame.bytes(attributes),
            Self::RemoveSet { name, force, set_file } => {
                frame.byte(u8::from(*force));
                frame.byte(u8::from(*set_file));
                frame.text(name.as_str());
            }
            Self::PrepareRemoval { name, force, set_file, member } => {
                frame.byte(u8::from(*force));
                frame.byte(u8::from(*set_file));
                frame.bytes(&member.unwrap_or_default());
                frame.text(name.as_str());
            }
            Self::PrepareReplacement { name, member } => {
                frame.bytes(member);
                frame.text(name.as_str());
            }
            Self::Digest { offset, len_bytes, block_bytes } => {
                for number in [*offset, *len_bytes, *block_bytes] {
                    frame.number_u64(number);
                }
            }
            Self::Data { offset } | Self::Headerless { offset } => frame.number_u64(*offset),
            Self::RaiseIntent { first, words } => frame.intent(*first, words),
            Self::ClearIntent { level, first, words } => {
                frame.byte(*level as u8);
                frame.intent(*first, words);
            }
            Self::Intent { first } => frame.number_u16(*first),
        }
        frame.seal()
    }

    /// The request that `message` carries, and its number. Any bytes give a value or an error.
    pub fn decode(message: &[u8]) -> Result<(u32, Self), ControlError> {
        wire::open(message, Self::parse)
    }

    fn kind(&self) -> u16 {
        match self {
            Self::Create { .. } => 1,
            Self::Open { .. } => 2,
            Self::Close { .. } => 3,
            Self::Remove { .. } => 4,
            Self::Info { .. } => 5,
            Self::List { .. } => 6,
            Self::Begin { .. } => 7,
            Self::Challenge { .. } => 8,
            Self::Prove { .. } => 9,
            Self::CreateSet { .. } => 10,
            Self::OpenSet { .. } => 11,
            Self::KeepSet => 12,
            Self::SetAttributes { .. } => 13,
            Self::RemoveSet { .. } => 14,
            Self::Digest { .. } => 15,
            Self::Confirm { .. } => 16,
            Self::Mark { .. } => 17,
            Self::Data { .. } => 18,
            Self::PrepareRemoval { .. } => 19,
            Self::PrepareReplacement { .. } => 20,
            Self::TakeOver { .. } => 21,
            Self::Headerless { .. } => 22,
            Self::Boot => 23,
            Self::RaiseIntent { .. } => 24,
            Self::ClearIntent { .. } => 25,
            Self::Intent { .. } => 26,
        }
    }

    fn parse(kind: u16, body: &mut Body<'_>) -> Parsed<Self> {
        Ok(match kind {
            1 => {
                let (require, publish_on_close) = (body.level()?, body.flag()?);
                let (replica_index, replica_count) = (body.number_u16()?, body.number_u16()?);
                let size_bytes = body.number_u64()?;
                let (pool_uuid, epoch, user_flags) = (body.uuid()?, body.uuid()?, body.array()?);
                let new = NewPool { pool_uuid, size_bytes, epoch, replica_index, replica_count, require, user_flags };
                Self::Create { name: body.name()?, new, publish_on_close }
            }
            2 => {
                let (require, access) = (body.level()?, body.access()?);
                Self::Open { name: body.name()?, access, require }
            }
            3 => Self::Close { in_order: body.flag()? },
            4 => Self::Remove { name: body.name()? },
            5 => Self::Info { name: body.name()? },
            6 => Self::List { after: body.optional_name()? },
            7 => {
                let opening = body.number_u64()?;
                Self::Begin { opening, epoch: body.epoch()?, ancestors: body.ancestors()? }
            }
            8 => Self::Challenge { nonce: body.array()? },
            9 => Self::Prove { proof: body.array()? },
            10 => {
                let (require, has_header) = (body.level()?, body.flag()?);
                let (size_bytes, attributes) = (body.number_u64()?, body.attributes(has_header)?);
                Self::CreateSet { name: body.set()?, size_bytes, attributes, require }
            }
            11 => {
                let (require, access, size_bytes) = (body.level()?, body.access()?, body.number_u64()?);
                Self::OpenSet { name: body.set()?, size_bytes, access, require }
            }
            12 => Self::KeepSet,
            13 => Self::SetAttributes { attributes: body.array()? },
            14 => {
                let (force, set_file) = (body.flag()?, body.flag()?);
                Self::RemoveSet { name: body.set()?, force, set_file }
            }
            15 => {
                let (offset, len_bytes, block_bytes) = (body.number_u64()?, body.number_u64()?, body.number_u64()?);
                Self::Digest { offset, len_bytes, block_bytes }
            }
            16 => Self::Confirm { epoch: body.uuid()? },
            17 => Self::Mark { mark: body.number_u64()? },
            18 => Self::Data { offset: body.number_u64()? },
            19 => {
                let (force, set_file) = (body.flag()?, body.flag()?);
                let member = Some(body.array()?).filter(|member| *member != [0; 16]);
                Self::PrepareRemoval { name: body.set()?, force, set_file, member }
            }
            20 => {
                let member = body.array()?;
                Self::PrepareReplacement { name: body.set()?, member }
            }
            21 => {
                let (require, has_epoch) = (body.level()?, body.flag()?);
                let (silent_ms, epoch) = (body.number_u64()?, body.optional_uuid(has_epoch)?);
                Self::TakeOver { name: body.name()?, require, silent_ms, epoch }
            }
            22 => Self::Headerless { offset: body.number_u64()? },
            23 => Self::Boot,
            24 => {
                let (first, words) = body.intent()?;
                Self::RaiseIntent { first, words }
            }
            25 => {
                let level = body.level()?;
                let (first, words) = body.intent()?;
                Self::ClearIntent { level, first, words }
            }
            26 => Self::Intent { first: body.number_u16()? },
            _ => return Err(Fault::UnknownKind),
        })
    }
}

impl Reply {
    /// A page of the names that `names` begins with, as many as one message holds. `names` are in order and come after
    /// the request's `after`.
    pub fn list_page(names: impl IntoIterator<Item = PoolName>) -> Self {
        let mut room = wire::MAX_BODY_BYTES - 3;
        let mut page = Vec::new();
        for name in names {
            let Some(left) = room.checked_sub(2 + name.as_str().len()) else {
                return Self::List { names: page, more: true };
            };
            room = left;
            page.push(name);
        }
        Self::List { names: page, more: false }
    }

    /// The message that carries this reply. Fails where a descriptor or a list of names is longer than allowed.
    pub fn encode(&self, request_id: u32) -> Result<Vec<u8>, ControlError> {
        let mut frame = Frame::new(self.kind(), request_id);
        match self {
            Self::Opened {
                pool_uuid,
                replica_uuid,
                size_bytes,
                replica_count,
                replica_index,
                user_flags,
                state,
                descriptor,
            } => {
                frame.bytes(pool_uuid.as_bytes());
                frame.bytes(replica_uuid.as_bytes());
                frame.number_u64(*size_bytes);
                frame.number_u16(*replica_count);
                frame.number_u16(*replica_index);
                frame.bytes(user_flags);
                frame.state(state);
                frame.descriptor(descriptor)?;
            }
            Self::Closed
            | Self::Removed
            | Self::Begun
            | Self::Confirmed
            | Self::Marked
            | Self::Admitted
            | Self::SetKept
            | Self::Removable
            | Self::AttributesSet
            | Self::IntentChanged => {}
            Self::Intent { first, words } => frame.intent(*first, words),
            Self::Challenged { nonce, proof } => {
                frame.bytes(nonce);
                frame.bytes(proof);
            }
            Self::SetOpened { size_bytes, attributes, descriptor, header_descriptor } => {
                frame.number_u64(*size_bytes);
                frame.byte(u8::from(attributes.is_some()));
                frame.bytes(&attributes.unwrap_or([0; ATTRIBUTES_BYTES]));
                frame.descriptor(descriptor)?;
                frame.descriptor(header_descriptor)?;
            }
            Self::Digests { digests } => {
                // A count that wraps belongs to a list far too long to be sealed.
                frame.number_u16(digests.len() as u16);
                for digest in digests {
                    frame.bytes(digest);
                }
            }
            Self::Boot { boot } => frame.bytes(boot.as_bytes()),
            Self::Data { ranges, end } | Self::Headerless { ranges, end } => {
                frame.number_u64(*end);
                // A count that wraps belongs to a list far too long to be sealed.
                frame.number_u16(ranges.len() as u16);
                for range in ranges {
                    frame.number_u64(range.start);
                    frame.number_u64(range.end);
                }
            }
            Self::Info(info) => frame.info(info),
            Self::List { names, more } => {
                frame.byte(u8::from(*more));
                // A count that wraps belongs to a list far too long to be sealed.
                frame.number_u16(names.len() as u16);
                for name in names {
                    frame.text(name.as_str());
                }
            }
            Self::Refused { code, text } => {
                frame.number_u16(*code);
                frame.text(cut(text, MAX_REFUSAL_BYTES));
            }
        }
        frame.seal()
    }

    /// The reply that `message` carries, and the number of its request. Any bytes give a value or an error.
    pub fn decode(message: &[u8]) -> Result<(u32, Self), ControlError> {
        wire::open(message, Self::parse)
    }

    fn kind(&self) -> u16 {
        match self {
            Self::Opened { .. } => 0x81,
            Self::Closed => 0x82,
            Self::Removed => 0x83,
            Self::Info(_) => 0x84,
            Self::List { .. } => 0x85,
            Self::Begun => 0x86,
            Self::Challenged { .. } => 0x88,
            Self::Admitted => 0x89,
            Self::SetOpened { .. } => 0x8a,
            Self::SetKept => 0x8c,
            Self::AttributesSet => 0x8d,
            Self::Digests { .. } => 0x8f,
            Self::Confirmed => 0x90,
            Self::Marked => 0x91,
            Self::Data { .. } => 0x92,
            Self::Removable => 0x93,
            Self::Headerless { .. } => 0x94,
            Self::Boot { .. } => 0x95,
            Self::IntentChanged => 0x98,
            Self::Intent { .. } => 0x9a,
            Self::Refused { .. } => 0xff,
        }
    }

    fn parse(kind: u16, body: &mut Body<'_>) -> Parsed<Self> {
        Ok(match kind {
            0x81 => {
                let (pool_uuid, replica_uuid) = (body.uuid()?, body.uuid()?);
                let size_bytes = body.number_u64()?;
                let (replica_count, replica_index) = (body.number_u16()?, body.number_u16()?);
                let (user_flags, state) = (body.array()?, body.state()?);
                let descriptor = body.counted(MAX_DESCRIPTOR_BYTES)?.to_vec();
                Self::Opened {
                    pool_uuid,
                    replica_uuid,
                    size_bytes,
                    replica_count,
                    replica_index,
                    user_flags,
                    state,
                    descriptor,
                }
            }
            0x82 => Self::Closed,
            0x83 => Self::Removed,
            0x84 => Self::Info(Box::new(body.info()?)),
            0x85 => {
                let more = body.flag()?;
                let count = body.number_u16()?;
                let names = (0..count).map(|_| body.name()).collect::<Parsed<_>>()?;
                Self::List { names, more }
            }
            0x86 => Self::Begun,
            0x90 => Self::Confirmed,
            0x91 => Self::Marked,
            0x93 => Self::Removable,
            0x88 => Self::Challenged { nonce: body.array()?, proof: body.array()? },
            0x89 => Self::Admitted,
            0x8a => {
                let (size_bytes, has_header) = (body.number_u64()?, body.flag()?);
                let attributes = body.attributes(has_header)?;
                let descriptor = body.counted(MAX_DESCRIPTOR_BYTES)?.to_vec();
                let header_descriptor = body.counted(MAX_DESCRIPTOR_BYTES)?.to_vec();
                Self::SetOpened { size_bytes, attributes, descriptor, header_descriptor }
            }
            0x8c => Self::SetKept,
            0x8d => Self::AttributesSet,
            0x8f => {
                let count = body.number_u16()?;
                Self::Digests { digests: (0..count).map(|_| body.array()).collect::<Parsed<_>>()? }
            }
            0x92 => {
                let (end, ranges) = body.ranges()?;
                Self::Data { ranges, end }
            }
            0x94 => {
                let (end, ranges) = body.ranges()?;
                Self::Headerless { ranges, end }
            }
            0x95 => Self::Boot { boot: body.uuid()? },
            0x98 => Self::IntentChanged,
            0x9a => {
                let (first, words) = body.intent()?;
                Self::Intent { first, words }
            }
            0xff => Self::Refused { code: body.number_u16()?, text: body.text(MAX_REFUSAL_BYTES)?.to_owned() },
            _ => return Err(Fault::UnknownKind),
        })
    }
}
