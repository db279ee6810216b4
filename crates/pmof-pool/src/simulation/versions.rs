//! Targets whose program is another version, or whose file a program of another version has written: they answer what the messages and the
//! headers that are shipped make of that.

use pmof_control::{
    ControlError, ControlVersion, HEADER_BYTES, Header, HeaderError, MessageHead, OpenFor, PoolFormat, PoolName,
    PoolRefusal, Reply, Request, ServiceCode, SpokenVersions, USER_FLAGS_BYTES,
};
use pmof_mem::Durability;
use pmof_target::StoreError;
use uuid::Uuid;

use super::{areas::SIZE_BYTES, random::Random};
use crate::ReplicaError;

/// Number of each request: an initiator has one in flight.
pub(super) const REQUEST_ID: u32 = 1;

/// What is another version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Here,
    /// The target's program speaks this version of the control messages, and the one before it.
    Messages(u16),
    /// The replica's file has this major version.
    Format(u16),
    /// The replica's file needs features that are not known.
    Features(u64),
}

const MAJOR_AT: usize = 8;
const FEATURES_AT: usize = 16;
const DATA_OFFSET_AT: usize = 72;

impl Version {
    pub(super) fn other(random: &mut Random) -> Self {
        match random.below(6) {
            0 => Self::Messages(ControlVersion::NEWEST.number() + 1 + random.below(2) as u16),
            1 => Self::Messages(ControlVersion::NEWEST.number() - 1 - random.below(2) as u16),
            2 => Self::Format(2),
            3 => Self::Features(1 << random.below(64)),
            _ => Self::Format(5 + random.below(3) as u16),
        }
    }

    /// Of the file, which goes with it.
    pub(super) fn is_of_file(self) -> bool {
        matches!(self, Self::Format(_) | Self::Features(_))
    }

    /// The same where there is no such file.
    pub(super) fn without_file(self) -> Self {
        if self.is_of_file() { Self::Here } else { self }
    }
}

/// A message with another version, and its checksum.
fn of_version(mut message: Vec<u8>, version: u16) -> Vec<u8> {
    message[..2].copy_from_slice(&version.to_le_bytes());
    let framed = message.len() - 4;
    let checksum = crc32c::crc32c(&message[..framed]);
    message[framed..].copy_from_slice(&checksum.to_le_bytes());
    message
}

impl Version {
    /// The header of a replica's file.
    fn header(self, replica_uuid: Uuid, index: u16) -> [u8; HEADER_BYTES] {
        let header = Header {
            format: PoolFormat::Three,
            layout: pmof_control::FileLayout::default(),
            compatible_features: 0,
            pool_uuid: Uuid::from_u128(1),
            replica_uuid,
            size_bytes: SIZE_BYTES,
            created_at_unix_s: 0,
            replica_count: index + 1,
            replica_index: index,
            user_flags: [0; USER_FLAGS_BYTES],
        };
        let mut bytes = header.encode();
        match self {
            Version::Format(major) => {
                bytes[MAJOR_AT..MAJOR_AT + 2].copy_from_slice(&major.to_le_bytes());
                if major == 2 {
                    bytes[DATA_OFFSET_AT..DATA_OFFSET_AT + 8].copy_from_slice(&8192_u64.to_le_bytes());
                }
            }
            Version::Features(features) => bytes[FEATURES_AT..FEATURES_AT + 8].copy_from_slice(&features.to_le_bytes()),
            Version::Here | Version::Messages(_) => {}
        }
        let at = bytes.len() - 4;
        let checksum = crc32c::crc32c(&bytes[..at]);
        bytes[at..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// As `PoolStore::open_pool`.
    fn check_format(self, name: &PoolName, (replica_uuid, index): (Uuid, u16)) -> Result<(), StoreError> {
        let header = Header::decode(&self.header(replica_uuid, index));
        let header = header.map_err(|source| StoreError::Header { name: name.clone(), source })?;
        match header.format {
            format if format.is_writable() => Ok(()),
            format => Err(StoreError::OldFormat { name: name.clone(), found: format.major() }),
        }
    }

    /// What its target announces when it accepts a connection: programs from before version 5 announce nothing.
    fn announcement(self) -> Vec<u8> {
        match self {
            Self::Messages(version) if version < ControlVersion::Five.number() => vec![],
            Self::Messages(version) => SpokenVersions { oldest: version - 1, newest: version }.encode(),
            Self::Here | Self::Format(_) | Self::Features(_) => SpokenVersions::OURS.encode(),
        }
    }

    /// The version of the messages to it.
    pub(super) fn agreed(self) -> Result<ControlVersion, ControlError> {
        SpokenVersions::decode(&self.announcement())?.common()
    }

    /// Whether its program speaks this version of the messages.
    pub(super) fn speaks(self, version: ControlVersion) -> bool {
        match self {
            // Each program from before version 5 speaks one.
            Self::Messages(newest) if newest < ControlVersion::Five.number() => version.number() == newest,
            Self::Messages(newest) => (newest - 1..=newest).contains(&version.number()),
            Self::Here | Self::Format(_) | Self::Features(_) => true,
        }
    }

    /// Whether it is another program, which speaks the version of the messages to it.
    pub(super) fn is_served(self) -> bool {
        matches!(self, Self::Messages(_)) && self.agreed().is_ok_and(|agreed| self.speaks(agreed))
    }

    /// What it answers to an opening, if it does not open: the bytes of its reply, as `Session::handle` of targets makes them, or of its announcement where
    /// that names no version that is known here.
    pub(super) fn refusal(self, replica: (Uuid, u16)) -> Option<Vec<u8>> {
        let Ok(agreed) = self.agreed() else { return Some(self.announcement()) };
        let head = MessageHead { version: agreed, request_id: REQUEST_ID };
        let name: PoolName = "p".parse().ok()?;
        let open = Request::Open {
            name: name.clone(),
            access: OpenFor::Write,
            require: Durability::ProcessCrash,
            may_be_older: false,
        };
        let (code, text, version) = match self {
            Self::Messages(_) if self.is_served() => return None,
            Self::Messages(version) => {
                // To the target its own version is right, and this one is another.
                let error = Request::decode(&of_version(open.encode(head).ok()?, version)).err()?;
                (ServiceCode::BadMessage as u16, error.to_string(), version)
            }
            Self::Here | Self::Format(_) | Self::Features(_) => {
                let error = self.check_format(&name, replica).err()?;
                (error.code(), pmof_mem::causes(&error).to_string(), agreed.number())
            }
        };
        Some(of_version(Reply::Refused { code, text }.encode(head).ok()?, version))
    }
}

/// What a writer makes of such an error: whether it goes on without the member, as an opening does.
///
/// # Errors
/// It does not name this version.
pub(super) fn is_left_out(version: Version, error: &ReplicaError) -> Result<bool, String> {
    let is_told = match (error, version) {
        (ReplicaError::Control(ControlError::UnsupportedVersion { found, .. }), Version::Messages(version)) => {
            *found == version
        }
        (ReplicaError::Control(ControlError::NoCommonVersion { target }), Version::Messages(version)) => {
            target.newest == version
        }
        (ReplicaError::Refused { refusal: PoolRefusal::OldFormat, .. }, Version::Format(2)) => true,
        (ReplicaError::Refused { refusal: PoolRefusal::NotAUsablePool, text }, Version::Format(major)) => {
            text.contains(&HeaderError::NewerVersion { found: major, found_minor: 0 }.to_string())
        }
        (ReplicaError::Refused { refusal: PoolRefusal::NotAUsablePool, text }, Version::Features(flags)) => {
            text.contains(&HeaderError::UnknownFeature { flags }.to_string())
        }
        _ => false,
    };
    if is_told { Ok(error.may_be_lost()) } else { Err(format!("of {version:?} the writer is told {error}")) }
}
