//! What targets answer.

use alloc::{borrow::ToOwned as _, boxed::Box, string::String, vec::Vec};
use core::ops::Range;

use uuid::Uuid;

use super::{
    enclosed::Enclosed,
    error::ControlError,
    fields::cut,
    limits::{
        ATTRIBUTES_BYTES, DIGEST_BYTES, FILE_IDENTITY_BYTES, MAX_BODY_BYTES, MAX_DESCRIPTOR_BYTES, MAX_PATH_BYTES,
        MAX_REFUSAL_BYTES, NONCE_BYTES, PROOF_BYTES,
    },
    pages::PagesReply,
    roster_part::RosterPart,
    version::MessageHead,
    wire::{self, Body, Fault, Frame, Parsed},
};
use crate::{FailureDomain, PoolInfo, PoolName, PoolState, TargetStatus, USER_FLAGS_BYTES, WriterStatus};

/// A file that a part of a pool set is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetFile {
    /// What tells it from every other file, also from those of other machines.
    pub identity: [u8; FILE_IDENTITY_BYTES],
    /// Its path there, for people.
    pub path: String,
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
        /// What no longer needs to be asked for.
        enclosed: Box<Enclosed>,
    },
    /// The pool is closed.
    Closed,
    /// The pool is gone.
    Removed,
    /// How the target is.
    Status(Box<TargetStatus>),
    /// What there is to know of a pool.
    Info(Box<PoolInfo>),
    /// What there is to know of the first of the pools that were asked for, in their order: of each its description, or the code and the text with
    /// which that is refused. At least one; as many as fit, see [`Reply::infos_page`].
    Infos(Vec<Result<PoolInfo, (u16, String)>>),
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
    /// The files of a pool set's parts, in the order of the set.
    SetFiles {
        /// As many as fit, see [`Reply::files_page`].
        files: Vec<SetFile>,
        /// Whether there are files after these.
        more: bool,
    },
    /// The set's parts can be deleted, and are locked until then.
    Removable,
    /// The attributes are in the headers.
    AttributesSet,
    /// Digests of the blocks, in order.
    Digests {
        /// At most [`DIGESTS_MAX`](crate::DIGESTS_MAX).
        digests: Vec<[u8; DIGEST_BYTES]>,
    },
    /// Where there is data, in order; all else up to `end` is zero, durably.
    Data {
        /// At most [`DATA_RANGES_MAX`](crate::DATA_RANGES_MAX), none of them empty.
        ranges: Vec<Range<u64>>,
        /// How far the answer goes: to the end of the pool, or to the next range, which there was no room for.
        end: u64,
    },
    /// Where parts without a header are, in order.
    Headerless {
        /// At most [`DATA_RANGES_MAX`](crate::DATA_RANGES_MAX), one of each part.
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
        /// From there on, as many as there are, at most [`INTENT_MESSAGE_WORDS_MAX`](crate::INTENT_MESSAGE_WORDS_MAX). Of a map that nobody keeps all bits are set.
        words: Vec<u32>,
    },
    /// A part of the roster.
    Roster(RosterPart),
    /// The part was taken, and with the last one the roster was replaced.
    RosterSet,
    /// To a request about pages.
    Pages(PagesReply),
    /// What fails together with the target; `None` where it does not know that.
    Domain(Option<FailureDomain>),
    /// To `TellStatus`: it was taken note of.
    StatusTold,
    /// To `WriterStatus`. `None`: nobody has it open for writing here, or its writer has told nothing.
    WriterStatus(Option<WriterStatus>),
    /// The request is being worked on: the initiator waits on. Said at once to each request about a pool set that can take long, and again
    /// and again until the answer.
    Working,
    /// The request was not carried out.
    Refused {
        /// Why, for programs: the code of the target's `StoreError`, or one of its service.
        code: u16,
        /// Why and what to do, for people; cut to [`MAX_REFUSAL_BYTES`] when encoded.
        text: String,
    },
}
impl Reply {
    /// A page of the names that `names` begins with, as many as one message holds. `names` are in order and come after
    /// the request's `after`.
    pub fn list_page(names: impl IntoIterator<Item = PoolName>) -> Self {
        let mut room = MAX_BODY_BYTES - 3;
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

    /// A page of the files that `files` begins with, as many as one message holds. One fits always.
    pub fn files_page(files: &[SetFile]) -> Self {
        let mut room = MAX_BODY_BYTES - 3;
        let fits = |file: &&SetFile| match room.checked_sub(FILE_IDENTITY_BYTES + 2 + path_text(file).len()) {
            Some(left) => {
                room = left;
                true
            }
            None => false,
        };
        let page: Vec<_> = files.iter().take_while(fits).cloned().collect();
        Self::SetFiles { more: page.len() < files.len(), files: page }
    }

    /// The descriptions that `infos` begins with, as many as one message holds. One fits always; `infos` is asked for no more than one that does not.
    pub fn infos_page(infos: impl IntoIterator<Item = Result<PoolInfo, (u16, String)>>) -> Self {
        let mut room = MAX_BODY_BYTES - 1;
        let mut page = Vec::new();
        for info in infos {
            let mut frame = Frame::new(0, MessageHead::newest(0));
            frame.described(info.as_ref());
            let Some(left) = room.checked_sub(frame.body_bytes()) else { break };
            room = left;
            page.push(info);
            if page.len() == usize::from(u8::MAX) {
                break;
            }
        }
        Self::Infos(page)
    }

    /// The message that carries this reply, in the version and with the number of the request's head. Fails where a descriptor or a list of
    /// names is longer than allowed.
    pub fn encode(&self, head: MessageHead) -> Result<Vec<u8>, ControlError> {
        let mut frame = Frame::new(self.kind(), head);
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
                enclosed,
            } => {
                frame.bytes(&[pool_uuid.into_bytes(), replica_uuid.into_bytes()].concat());
                frame.number_u64(*size_bytes);
                frame.number_u16(*replica_count);
                frame.number_u16(*replica_index);
                frame.bytes(user_flags);
                frame.state(state);
                frame.descriptor(descriptor)?;
                frame.enclosed(enclosed);
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
            | Self::IntentChanged
            | Self::RosterSet
            | Self::StatusTold
            | Self::Working => {}
            Self::Intent { first, words } => frame.intent(*first, words),
            Self::Pages(pages) => pages.encode(&mut frame),
            Self::Roster(part) => frame.roster_part(part),
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
            Self::SetFiles { files, more } => {
                frame.byte(u8::from(*more));
                // A count that wraps belongs to a list far too long to be sealed.
                frame.number_u16(files.len() as u16);
                for file in files {
                    frame.bytes(&file.identity);
                    frame.text(path_text(file));
                }
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
            Self::Infos(infos) => {
                // A count that wraps belongs to a list far too long to be sealed.
                frame.byte(infos.len() as u8);
                for info in infos {
                    frame.described(info.as_ref());
                }
            }
            Self::Domain(domain) => frame.domain(domain.as_ref()),
            Self::Status(status) => frame.status(status),
            Self::WriterStatus(status) => {
                frame.byte(u8::from(status.is_some()));
                if let Some(status) = status {
                    frame.writer_status(status);
                }
            }
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

    /// The reply that `message` carries, its version and the number of its request. Any bytes give a value or an error.
    pub fn decode(message: &[u8]) -> Result<(MessageHead, Self), ControlError> {
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
            Self::Roster(_) => 0x9b,
            Self::RosterSet => 0x9c,
            Self::Pages(pages) => pages.kind(),
            Self::Domain(_) => 0xa0,
            Self::Status(_) => 0xa1,
            Self::StatusTold => 0xa3,
            Self::WriterStatus(_) => 0xa4,
            Self::Infos(_) => 0xa5,
            Self::SetFiles { .. } => 0xa6,
            Self::Working => 0xa7,
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
                let enclosed = Box::new(body.enclosed(size_bytes)?);
                Self::Opened {
                    pool_uuid,
                    replica_uuid,
                    size_bytes,
                    replica_count,
                    replica_index,
                    user_flags,
                    state,
                    descriptor,
                    enclosed,
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
            0x9b => Self::Roster(body.roster_part()?),
            0x9c => Self::RosterSet,
            0xa0 => Self::Domain(body.domain()?),
            0xa1 => Self::Status(Box::new(body.status()?)),
            0xa3 => Self::StatusTold,
            0xa4 => Self::WriterStatus(if body.flag()? { Some(body.writer_status()?) } else { None }),
            0xa5 => {
                let count = body.byte()?;
                Self::Infos((0..count).map(|_| body.described()).collect::<Parsed<_>>()?)
            }
            0xa6 => {
                let (more, count) = (body.flag()?, body.number_u16()?);
                Self::SetFiles { files: (0..count).map(|_| body.part_file()).collect::<Parsed<_>>()?, more }
            }
            0xa7 => Self::Working,
            0xff => Self::Refused { code: body.number_u16()?, text: body.text(MAX_REFUSAL_BYTES)?.to_owned() },
            _ if !body.version().has_fields() => return Err(Fault::UnknownKind),
            _ => Self::Pages(PagesReply::parse(kind, body)?),
        })
    }
}

/// The path of a file, for people.
fn path_text(file: &SetFile) -> &str {
    cut(&file.path, MAX_PATH_BYTES)
}
