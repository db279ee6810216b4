//! Why bytes are not a control message.

use super::{
    limits::{FRAME_BYTES, MAX_MESSAGE_BYTES},
    version::{ControlVersion, MessageHead, SpokenVersions, remedy},
};
use crate::NameError;

/// Why bytes are not a control message, or a message cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// Too short or too long for any message.
    #[error("a control message cannot have {len_bytes} bytes: {FRAME_BYTES} to {MAX_MESSAGE_BYTES} are allowed")]
    BadLength {
        /// Bytes there are.
        len_bytes: usize,
    },
    /// The length that the message states is not the one it has.
    #[error("the control message states a body of {stated_bytes} bytes and has {found_bytes}")]
    LengthMismatch {
        /// What it states.
        stated_bytes: u32,
        /// What it has.
        found_bytes: usize,
    },
    /// The bytes changed on the way.
    #[error("the control message is damaged: checksum {computed:#010x}, stored {stored:#010x}")]
    BadChecksum {
        /// The checksum in the message.
        stored: u32,
        /// The checksum of its bytes.
        computed: u32,
    },
    /// The other side speaks a version that this program does not.
    #[error(
        "control message {request_id} has version {found}, and this program speaks {ours}; {remedy}",
        ours = SpokenVersions::OURS,
        remedy = remedy(*.found)
    )]
    UnsupportedVersion {
        /// Its number.
        request_id: u32,
        /// Its version.
        found: u16,
    },
    /// The target announces versions of which this program speaks none.
    #[error(
        "the target speaks version {target} of the control messages, and this program speaks {ours}; {remedy}",
        ours = SpokenVersions::OURS,
        remedy = remedy(.target.newest)
    )]
    NoCommonVersion {
        /// Those of the target.
        target: SpokenVersions,
    },
    /// What a target announces when it accepts a connection is malformed.
    #[error("the target's announcement of its versions is malformed: {what}; is it a target of pmof?")]
    BadAnnouncement {
        /// The rule that it breaks.
        what: &'static str,
    },
    /// A message has another version than those before it on its connection.
    #[error("control message {request_id} has version {found}, and those before it on this connection have {settled}")]
    VersionChanged {
        /// Its number.
        request_id: u32,
        /// The connection's version.
        settled: ControlVersion,
        /// Its version.
        found: ControlVersion,
    },
    /// The version that the other side speaks has no form for this. Nothing was sent.
    #[error(
        "the other side speaks version {version} of the control messages, which cannot carry {what}; upgrade it to a \
         release that speaks version {needed}"
    )]
    Inexpressible {
        /// What cannot be said.
        what: &'static str,
        /// The version of the connection.
        version: ControlVersion,
        /// The first version that can say it.
        needed: ControlVersion,
    },
    /// No message that may come this way has this kind.
    #[error("control message {} has the unknown kind {kind}; is it of a newer release of pmof?", .head.request_id)]
    UnknownKind {
        /// Its version and number.
        head: MessageHead,
        /// Its kind.
        kind: u16,
    },
    /// The body has a field that this program does not know, and that must not be ignored.
    #[error(
        "control message {} of kind {kind} has field {field}, which this program does not know and must not ignore; \
         upgrade this side",
        .head.request_id
    )]
    UnknownField {
        /// Its version and number.
        head: MessageHead,
        /// Its kind.
        kind: u16,
        /// The number of the field.
        field: u16,
    },
    /// The body does not have the form of its kind.
    #[error("control message {} of kind {kind} is malformed: {what}", .head.request_id)]
    Malformed {
        /// Its version and number.
        head: MessageHead,
        /// Its kind.
        kind: u16,
        /// The rule that it breaks.
        what: &'static str,
    },
    /// The body holds a name that no pool can have.
    #[error("control message {} names a pool wrongly", .head.request_id)]
    BadName {
        /// Its version and number.
        head: MessageHead,
        /// The rule that the name breaks.
        source: NameError,
    },
    /// A value does not fit into a message.
    #[error("a {what} of {len_bytes} bytes does not fit into a control message: at most {limit_bytes}")]
    Unencodable {
        /// What is too long.
        what: &'static str,
        /// Bytes it has.
        len_bytes: usize,
        /// Bytes allowed.
        limit_bytes: usize,
    },
}

impl ControlError {
    /// The head of the refusal with which such a request can still be answered, where the message was whole.
    pub fn head(&self) -> Option<MessageHead> {
        match self {
            // A version that both know does not exist; each takes the version of any message from the same bytes.
            Self::UnsupportedVersion { request_id, .. } => Some(MessageHead::newest(*request_id)),
            Self::VersionChanged { request_id, settled, .. } => {
                Some(MessageHead { version: *settled, request_id: *request_id })
            }
            Self::UnknownKind { head, .. }
            | Self::UnknownField { head, .. }
            | Self::Malformed { head, .. }
            | Self::BadName { head, .. } => Some(*head),
            Self::BadLength { .. }
            | Self::LengthMismatch { .. }
            | Self::BadChecksum { .. }
            | Self::NoCommonVersion { .. }
            | Self::BadAnnouncement { .. }
            | Self::Inexpressible { .. }
            | Self::Unencodable { .. } => None,
        }
    }
}
