//! Why bytes are not a control message.

use super::limits::{CONTROL_VERSION, FRAME_BYTES, MAX_MESSAGE_BYTES};
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
    /// The other side speaks another version.
    #[error(
        "control message {request_id} has version {found}, and this program speaks {CONTROL_VERSION}; use the same \
         release of pmof on both sides"
    )]
    UnsupportedVersion {
        /// Its number.
        request_id: u32,
        /// Its version.
        found: u16,
    },
    /// No message that may come this way has this kind.
    #[error("control message {request_id} has the unknown kind {kind}; use the same release of pmof on both sides")]
    UnknownKind {
        /// Its number.
        request_id: u32,
        /// Its kind.
        kind: u16,
    },
    /// The body does not have the form of its kind.
    #[error("control message {request_id} of kind {kind} is malformed: {what}")]
    Malformed {
        /// Its number.
        request_id: u32,
        /// Its kind.
        kind: u16,
        /// The rule that it breaks.
        what: &'static str,
    },
    /// The body holds a name that no pool can have.
    #[error("control message {request_id} names a pool wrongly")]
    BadName {
        /// Its number.
        request_id: u32,
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
    /// The number of the request that can still be answered with a refusal, where the message was whole.
    pub fn request_id(&self) -> Option<u32> {
        match self {
            Self::UnsupportedVersion { request_id, .. }
            | Self::UnknownKind { request_id, .. }
            | Self::Malformed { request_id, .. }
            | Self::BadName { request_id, .. } => Some(*request_id),
            _ => None,
        }
    }
}
