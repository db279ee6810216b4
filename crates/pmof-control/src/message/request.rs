//! What initiators ask.

use alloc::vec::Vec;

use pmof_terms::Durability;
use uuid::Uuid;

use super::{
    claim::Claim,
    error::ControlError,
    limits::{ATTRIBUTES_BYTES, MAX_BODY_BYTES, NONCE_BYTES, PROOF_BYTES},
    pages::PagesRequest,
    roster_part::RosterPart,
    version::{ControlVersion, MessageHead},
    wire::{self, Body, Fault, FieldTag, Frame, Parsed},
};
use crate::{Epoch, NewPool, OpenFor, PoolName, SetName, WriterStatus};

/// The replica that a removal is meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeantReplica {
    /// Its identity.
    pub uuid: Uuid,
    /// The epoch that it was last seen at: where it is given, a replica that was opened for writing since is left alone.
    pub epoch: Option<Uuid>,
}

impl MeantReplica {
    /// The replica of this identity, at whatever epoch.
    pub fn at_any_epoch(uuid: Uuid) -> Self {
        Self { uuid, epoch: None }
    }
}

/// Optional fields of `Remove`.
const MEANT_REPLICA: FieldTag = FieldTag::required(1);
const MEANT_EPOCH: FieldTag = FieldTag::required(2);

/// Optional field of `PrepareRemoval`.
const MEANT_MEMBER: FieldTag = FieldTag::required(1);

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
        /// Also where it may hold an older state than it had ([`PoolRefusal::UncertainState`](crate::PoolRefusal::UncertainState)): for an operator who decides
        /// that this one counts.
        may_be_older: bool,
    },
    /// Open a pool for writing as `Open` does, and where another has it open so, take it away from that one first. It is refused with
    /// [`PoolRefusal::Busy`](crate::PoolRefusal::Busy) unless the other one's connection has been silent so long, or its epoch is named; and with
    /// [`PoolRefusal::NotFenceable`](crate::PoolRefusal::NotFenceable) where the memory cannot be taken away from it.
    TakeOver {
        /// The pool's name.
        name: PoolName,
        /// The level that the target must be able to give.
        require: Durability,
        /// Milliseconds for which nothing came from the other one, at least; 0 takes the pool over at once.
        silent_ms: u64,
        /// An epoch of the writer that has it open, if one is named.
        claim: Claim,
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
        /// What it has to be, where it matters: another writer may have made one anew there since, or written to it.
        meant: Option<MeantReplica>,
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
    /// Describe several pools.
    Infos {
        /// Their names; as many as fit, see [`Request::infos_page`].
        names: Vec<PoolName>,
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
    /// Open what lies behind the damaged headers of the pool of a pool set, for reading, so that it can be compared with another replica before it is made
    /// anew. It is refused where the headers are sound, or nothing lies behind them.
    OpenBehind {
        /// The set.
        name: SetName,
    },
    /// Name the files of the parts of a pool set, whether they exist yet or not. Nothing is opened.
    SetFiles {
        /// The set.
        name: SetName,
        /// From this file on, counted from 0.
        first: u64,
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
        /// Bytes in all, at most [`DIGESTED_MAX_BYTES`](crate::DIGESTED_MAX_BYTES).
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
        /// From there on: the bits to be set. At most [`INTENT_MESSAGE_WORDS_MAX`](crate::INTENT_MESSAGE_WORDS_MAX).
        words: Vec<u32>,
    },
    /// Clear bits of that map: all that was written there is durable on all replicas in sync.
    ClearIntent {
        /// How durable it is. The target keeps the bits where its medium can do better: what is less durable than that may be lost.
        level: Durability,
        /// The first word of the map.
        first: u16,
        /// From there on: the bits that stay. At most [`INTENT_MESSAGE_WORDS_MAX`](crate::INTENT_MESSAGE_WORDS_MAX).
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
    /// Say what fails together with the target.
    Domain,
    /// Say how the target is.
    Status,
    /// Take note of how the writer of the pool that this connection has open for writing sees its members, until it is told anew or the pool is closed.
    TellStatus {
        /// What it knows.
        status: WriterStatus,
    },
    /// Say what the writer of a pool told last.
    WriterStatus {
        /// The pool.
        name: PoolName,
    },
    /// Delete a pool and its bytes, whose header is damaged.
    Discard {
        /// The pool.
        name: PoolName,
    },
    /// Tell the roster of the pool that is open.
    Roster {
        /// From this byte of it on.
        offset: u16,
    },
    /// Replace the roster of the pool that this connection has open for writing, durably, once its last part has come. Parts come in order.
    SetRoster {
        /// Where this part begins.
        offset: u16,
        /// The part.
        part: RosterPart,
    },
    /// Something about the pages of the pool that this connection has open, which keeps digests of them.
    Pages(PagesRequest),
}

impl Request {
    /// Asks for the descriptions of the pools that `names` begins with, as many as one message holds.
    pub fn infos_page(names: &[PoolName]) -> Self {
        let mut room = MAX_BODY_BYTES - 2;
        let fits = |name: &&PoolName| match room.checked_sub(2 + name.as_str().len()) {
            Some(left) => {
                room = left;
                true
            }
            None => false,
        };
        Self::Infos { names: names.iter().take_while(fits).cloned().collect() }
    }

    /// The message that carries this request, in the version of `head`.
    ///
    /// # Errors
    /// [`ControlError::Inexpressible`] where that version cannot carry it: an older target is never sent less than what was asked.
    /// [`ControlError::Unencodable`] where it would be longer than allowed, as names that are too many for one page.
    pub fn encode(&self, head: MessageHead) -> Result<Vec<u8>, ControlError> {
        let mut frame = Frame::new(self.kind(), head);
        match self {
            Self::Create { name, new, publish_on_close } => frame.create(name, new, *publish_on_close),
            Self::Open { name, access, require, may_be_older } => {
                frame.byte(*require as u8);
                frame.access_to(*access, *may_be_older);
                frame.text(name.as_str());
            }
            Self::TakeOver { name, require, silent_ms, claim } => {
                frame.byte(*require as u8);
                let (kind, epoch) = match claim {
                    Claim::None => (0, Uuid::nil()),
                    Claim::Own(epoch) => (1, *epoch),
                    Claim::Superseded(epoch) => (2, *epoch),
                };
                frame.byte(kind);
                frame.number_u64(*silent_ms);
                frame.bytes(epoch.as_bytes());
                frame.text(name.as_str());
            }
            Self::Close { in_order } => frame.byte(u8::from(*in_order)),
            Self::KeepSet | Self::Boot | Self::Domain | Self::Status => {}
            Self::Remove { name, meant } => encode_removal(&mut frame, name, *meant)?,
            Self::Discard { name } | Self::Info { name } | Self::WriterStatus { name } => {
                frame.text(name.as_str());
            }
            Self::Infos { names } => {
                // A count that wraps belongs to a list far too long to be sealed.
                frame.number_u16(names.len() as u16);
                for name in names {
                    frame.text(name.as_str());
                }
            }
            Self::TellStatus { status } => frame.writer_status(status),
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
            Self::OpenBehind { name } => frame.text(name.as_str()),
            Self::SetFiles { name, first } => {
                frame.number_u64(*first);
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
                encode_meant_member(&mut frame, name, *member)?;
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
            Self::Pages(_) if !frame.version().has_fields() => {
                return Err(newer_needed(&frame, "a request about pages"));
            }
            Self::Pages(pages) => pages.encode(&mut frame),
            Self::ClearIntent { level, first, words } => {
                frame.byte(*level as u8);
                frame.intent(*first, words);
            }
            Self::Intent { first } => frame.number_u16(*first),
            Self::Roster { offset } => frame.number_u16(*offset),
            Self::SetRoster { offset, part } => {
                frame.number_u16(*offset);
                frame.roster_part(part);
            }
        }
        frame.seal()
    }

    /// The request that `message` carries, its version and its number. Any bytes give a value or an error.
    pub fn decode(message: &[u8]) -> Result<(MessageHead, Self), ControlError> {
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
            Self::Roster { .. } => 27,
            Self::SetRoster { .. } => 28,
            Self::Domain => 32,
            Self::Status => 33,
            Self::Discard { .. } => 34,
            Self::TellStatus { .. } => 35,
            Self::WriterStatus { .. } => 36,
            Self::Infos { .. } => 37,
            Self::SetFiles { .. } => 38,
            Self::OpenBehind { .. } => 39,
            Self::Pages(pages) => pages.kind(),
        }
    }

    fn parse(kind: u16, body: &mut Body<'_>) -> Parsed<Self> {
        Ok(match kind {
            1 => {
                let (name, new, publish_on_close) = body.create()?;
                Self::Create { name, new, publish_on_close }
            }
            2 => {
                let (require, (access, may_be_older)) = (body.level()?, body.access_to()?);
                Self::Open { name: body.name()?, access, require, may_be_older }
            }
            3 => Self::Close { in_order: body.flag()? },
            4 => {
                let (name, meant) = parse_removal(body)?;
                Self::Remove { name, meant }
            }
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
                let (name, member) = parse_meant_member(body)?;
                Self::PrepareRemoval { name, force, set_file, member }
            }
            20 => {
                let member = body.array()?;
                Self::PrepareReplacement { name: body.set()?, member }
            }
            21 => {
                let (require, kind, silent_ms) = (body.level()?, body.byte()?, body.number_u64()?);
                let claim = body.claim(kind)?;
                Self::TakeOver { name: body.name()?, require, silent_ms, claim }
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
            27 => Self::Roster { offset: body.number_u16()? },
            28 => Self::SetRoster { offset: body.number_u16()?, part: body.roster_part()? },
            32 => Self::Domain,
            33 => Self::Status,
            34 => Self::Discard { name: body.name()? },
            35 => Self::TellStatus { status: body.writer_status()? },
            36 => Self::WriterStatus { name: body.name()? },
            37 => {
                let count = body.number_u16()?;
                Self::Infos { names: (0..count).map(|_| body.name()).collect::<Parsed<_>>()? }
            }
            38 => {
                let first = body.number_u64()?;
                Self::SetFiles { name: body.set()?, first }
            }
            39 => Self::OpenBehind { name: body.set()? },
            _ if !body.version().has_fields() => return Err(Fault::UnknownKind),
            _ => Self::Pages(PagesRequest::parse(kind, body)?),
        })
    }
}

/// What `Remove` says. Version 4 has zeros where nothing is meant, so that it cannot mean a UUID of zeros.
fn encode_removal(frame: &mut Frame, name: &PoolName, meant: Option<MeantReplica>) -> Result<(), ControlError> {
    let (uuid, epoch) = (meant.map(|meant| meant.uuid), meant.and_then(|meant| meant.epoch));
    match frame.version() {
        ControlVersion::Four => {
            frame.bytes(&nonzero_or_none(frame, uuid, "a removal of the replica whose UUID is zero")?);
            frame.bytes(&nonzero_or_none(frame, epoch, "a removal at the epoch whose UUID is zero")?);
            frame.text(name.as_str());
        }
        ControlVersion::Five => {
            frame.text(name.as_str());
            for (tag, meant) in [(MEANT_REPLICA, uuid), (MEANT_EPOCH, epoch)] {
                if let Some(meant) = meant {
                    frame.field(tag, meant.as_bytes());
                }
            }
        }
    }
    Ok(())
}

fn parse_removal(body: &mut Body<'_>) -> Parsed<(PoolName, Option<MeantReplica>)> {
    let (name, uuid, epoch) = match body.version() {
        ControlVersion::Four => {
            let [uuid, epoch] = [body.array()?, body.array()?].map(none_if_zero);
            (body.name()?, uuid, epoch)
        }
        ControlVersion::Five => (body.name()?, body.field(MEANT_REPLICA)?, body.field(MEANT_EPOCH)?),
    };
    let epoch = epoch.map(Uuid::from_bytes);
    let meant = match uuid {
        Some(uuid) => Some(MeantReplica { uuid: Uuid::from_bytes(uuid), epoch }),
        None if epoch.is_some() => return Err(Fault::Malformed("a removal names an epoch and no replica")),
        None => None,
    };
    Ok((name, meant))
}

/// The end of `PrepareRemoval`. Version 4 has zeros where no member is meant.
fn encode_meant_member(frame: &mut Frame, name: &SetName, member: Option<[u8; 16]>) -> Result<(), ControlError> {
    match frame.version() {
        ControlVersion::Four => {
            let member = member.map(Uuid::from_bytes);
            frame.bytes(&nonzero_or_none(frame, member, "a removal of the pool set whose UUID is zero")?);
            frame.text(name.as_str());
        }
        ControlVersion::Five => {
            frame.text(name.as_str());
            if let Some(member) = member {
                frame.field(MEANT_MEMBER, &member);
            }
        }
    }
    Ok(())
}

fn parse_meant_member(body: &mut Body<'_>) -> Parsed<(SetName, Option<[u8; 16]>)> {
    match body.version() {
        ControlVersion::Four => {
            let member = none_if_zero(body.array()?);
            Ok((body.set()?, member))
        }
        ControlVersion::Five => Ok((body.set()?, body.field(MEANT_MEMBER)?)),
    }
}

/// In version 4: zeros for none. Fails for a UUID of zeros, which version 4 cannot tell from none.
fn nonzero_or_none(frame: &Frame, uuid: Option<Uuid>, what: &'static str) -> Result<[u8; 16], ControlError> {
    match uuid {
        Some(uuid) if uuid.is_nil() => Err(newer_needed(frame, what)),
        uuid => Ok(uuid.unwrap_or_default().into_bytes()),
    }
}

fn newer_needed(frame: &Frame, what: &'static str) -> ControlError {
    ControlError::Inexpressible { what, version: frame.version(), needed: ControlVersion::Five }
}

fn none_if_zero(uuid: [u8; 16]) -> Option<[u8; 16]> {
    Some(uuid).filter(|uuid| *uuid != [0; 16])
}
