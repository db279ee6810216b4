//! The versions of the control messages, and how the two ends of a connection agree on one.

use alloc::{vec, vec::Vec};
use core::fmt;

use super::error::ControlError;

/// A version of the control messages that this program speaks: the newest, and the one before it, so that targets and initiators can be
/// upgraded one after the other.
///
/// It is fixed for the life of a connection: the initiator chooses it from what the target [announces](SpokenVersions), and the target answers
/// each request in the request's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum ControlVersion {
    /// Bodies have no optional fields, and targets announce nothing.
    Four = 4,
    /// Each body ends with optional fields.
    Five = 5,
}

impl ControlVersion {
    /// The oldest that this program speaks.
    pub const OLDEST: Self = Self::Four;
    /// The newest that this program speaks.
    pub const NEWEST: Self = Self::Five;
    /// All that this program speaks, the oldest first.
    pub const ALL: [Self; 2] = [Self::Four, Self::Five];

    /// Its number in messages.
    pub const fn number(self) -> u16 {
        self as u16
    }

    /// The version of this number, if this program speaks it.
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.number() == number)
    }

    /// Whether bodies of this version end with optional fields.
    pub(super) fn has_fields(self) -> bool {
        self >= Self::Five
    }
}

impl fmt::Display for ControlVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number().fmt(f)
    }
}

/// What a message says of itself before its kind and body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageHead {
    /// The version that it is encoded in.
    pub version: ControlVersion,
    /// The request's number, which its reply repeats.
    pub request_id: u32,
}

impl MessageHead {
    /// Of a message in the newest version.
    pub fn newest(request_id: u32) -> Self {
        Self { version: ControlVersion::NEWEST, request_id }
    }

    /// Fails where the connection's messages have another version.
    ///
    /// # Errors
    /// [`ControlError::VersionChanged`].
    pub fn check_version(self, settled: ControlVersion) -> Result<(), ControlError> {
        if self.version == settled {
            return Ok(());
        }
        Err(ControlError::VersionChanged { request_id: self.request_id, settled, found: self.version })
    }
}

/// The versions of the control messages that a target speaks: the private data with which it accepts a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpokenVersions {
    /// The oldest.
    pub oldest: u16,
    /// The newest.
    pub newest: u16,
}

const ANNOUNCEMENT_BYTES: usize = 8;
const LAYOUT: u8 = 1;

impl SpokenVersions {
    /// Those of this program.
    pub const OURS: Self = Self { oldest: ControlVersion::OLDEST.number(), newest: ControlVersion::NEWEST.number() };

    /// Those of a target that announces none: version 4 was the last that had no announcement.
    pub const UNANNOUNCED: Self = Self { oldest: 4, newest: 4 };

    /// As private data of an accepted connection: layout (1), 3 zero bytes, oldest and newest version (`u16`, little endian).
    pub fn encode(self) -> Vec<u8> {
        let mut bytes = vec![LAYOUT, 0, 0, 0];
        bytes.extend(self.oldest.to_le_bytes());
        bytes.extend(self.newest.to_le_bytes());
        debug_assert_eq!(bytes.len(), ANNOUNCEMENT_BYTES);
        bytes
    }

    /// From the private data with which a target accepted. What a newer target says behind it is ignored.
    ///
    /// # Errors
    /// [`ControlError::BadAnnouncement`].
    pub fn decode(private_data: &[u8]) -> Result<Self, ControlError> {
        if private_data.is_empty() {
            return Ok(Self::UNANNOUNCED);
        }
        let bad = |what| ControlError::BadAnnouncement { what };
        let (announced, _) = private_data.split_first_chunk().ok_or_else(|| bad("it is cut short"))?;
        let [layout, _, _, _, oldest0, oldest1, newest0, newest1]: [u8; ANNOUNCEMENT_BYTES] = *announced;
        if layout != LAYOUT {
            return Err(bad("its layout is unknown"));
        }
        let [oldest, newest] = [[oldest0, oldest1], [newest0, newest1]].map(u16::from_le_bytes);
        if oldest > newest {
            return Err(bad("its oldest version is above its newest"));
        }
        Ok(Self { oldest, newest })
    }

    /// The newest version that the target and this program both speak.
    ///
    /// # Errors
    /// [`ControlError::NoCommonVersion`].
    pub fn common(self) -> Result<ControlVersion, ControlError> {
        let is_spoken = |version: &ControlVersion| (self.oldest..=self.newest).contains(&version.number());
        let common = ControlVersion::ALL.into_iter().rev().find(is_spoken);
        common.ok_or(ControlError::NoCommonVersion { target: self })
    }
}

impl fmt::Display for SpokenVersions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { oldest, newest } = self;
        if oldest == newest { write!(f, "{oldest}") } else { write!(f, "{oldest} to {newest}") }
    }
}

/// What to do where the other side speaks versions around `found`, none of which is spoken here.
pub(super) fn remedy(found: u16) -> &'static str {
    if found < SpokenVersions::OURS.oldest {
        "upgrade that side first, to a release between the two where they are more than one version apart"
    } else {
        "upgrade this side first, to a release between the two where they are more than one version apart"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announcement_is_read_as_written() {
        assert_eq!(SpokenVersions::OURS.encode(), b"\x01\0\0\0\x04\0\x05\0");
        for versions in [SpokenVersions::OURS, SpokenVersions { oldest: 258, newest: u16::MAX }] {
            assert_eq!(SpokenVersions::decode(&versions.encode()), Ok(versions));
            assert_eq!(SpokenVersions::decode(&[&versions.encode()[..], b"more"].concat()), Ok(versions));
        }
        assert_eq!(SpokenVersions::decode(b""), Ok(SpokenVersions { oldest: 4, newest: 4 }));
    }

    #[test]
    fn a_bad_announcement_is_an_error() {
        for (bytes, word) in [
            (&b"\x01"[..], "cut short"),
            (b"\x01\0\0\0\x04\0\x05", "cut short"),
            (b"\x02\0\0\0\x04\0\x05\0", "layout"),
            (b"\x01\0\0\0\x05\0\x04\0", "above"),
        ] {
            match SpokenVersions::decode(bytes) {
                Err(ControlError::BadAnnouncement { what }) => assert!(what.contains(word), "{what}"),
                other => panic!("{bytes:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn the_newest_common_version_is_chosen() {
        let common = |oldest, newest| SpokenVersions { oldest, newest }.common();
        assert_eq!(SpokenVersions::OURS.common(), Ok(ControlVersion::NEWEST));
        for (oldest, newest, chosen) in [(4, 4, 4), (3, 4, 4), (5, 6, 5), (4, 9, 5), (0, u16::MAX, 5)] {
            assert_eq!(common(oldest, newest).map(ControlVersion::number), Ok(chosen), "{oldest} to {newest}");
        }
        for (oldest, newest, side) in [(2, 3, "upgrade that side"), (6, 7, "upgrade this side")] {
            let target = SpokenVersions { oldest, newest };
            let error = common(oldest, newest).expect_err("they have none in common");
            assert_eq!(error, ControlError::NoCommonVersion { target });
            let text = error.to_string();
            assert!(text.contains(&format!("{oldest} to {newest}")) && text.contains("4 to 5"), "{text}");
            assert!(text.contains(side), "{text}");
        }
    }
}
