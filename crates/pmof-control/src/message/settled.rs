//! The version of the requests of one connection.

use super::{
    error::ControlError,
    request::Request,
    version::{ControlVersion, MessageHead},
};

/// The version of the requests on one connection, at its target: that of the first whole message of a version that this program speaks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SettledVersion(Option<ControlVersion>);

impl SettledVersion {
    /// The request that `message` carries.
    ///
    /// # Errors
    /// As [`Request::decode`], and [`ControlError::VersionChanged`].
    pub fn decode(self, message: &[u8]) -> Result<(MessageHead, Request), ControlError> {
        let (head, request) = Request::decode(message)?;
        self.0.map_or(Ok(()), |settled| head.check_version(settled))?;
        Ok((head, request))
    }

    /// Settles the version by what [`decode`](Self::decode) gave, where it is not settled yet. Returns the head of the reply, be it a refusal.
    pub fn settle(&mut self, decoded: &Result<(MessageHead, Request), ControlError>) -> MessageHead {
        let (head, is_spoken) = match decoded {
            Ok((head, _)) => (Some(*head), true),
            Err(error) => (error.head(), !matches!(error, ControlError::UnsupportedVersion { .. })),
        };
        if let (None, Some(head), true) = (self.0, head, is_spoken) {
            self.0 = Some(head.version);
        }
        // What is answered to a damaged message has no number of its own.
        let head = head.unwrap_or(MessageHead::newest(0));
        MessageHead { version: self.0.unwrap_or(head.version), ..head }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_version(version: ControlVersion, request_id: u32) -> Vec<u8> {
        Request::Boot.encode(MessageHead { version, request_id }).expect("every version carries it")
    }

    fn with_version(mut message: Vec<u8>, version: u16) -> Vec<u8> {
        message[..2].copy_from_slice(&version.to_le_bytes());
        let end = message.len() - 4;
        let checksum = crc32c::crc32c(&message[..end]);
        message[end..].copy_from_slice(&checksum.to_le_bytes());
        message
    }

    /// What the target of a connection answers to these messages: the versions of its replies, and why each was refused.
    fn answers(messages: &[Vec<u8>]) -> Vec<(u16, Option<ControlError>)> {
        let mut settled = SettledVersion::default();
        let answer = |message: &Vec<u8>| {
            let decoded = settled.decode(message);
            let head = settled.settle(&decoded);
            assert!(head.request_id == 9 || decoded == Err(ControlError::BadLength { len_bytes: 0 }), "{head:?}");
            (head.version.number(), decoded.err())
        };
        messages.iter().map(answer).collect()
    }

    #[test]
    fn the_version_of_a_connection_does_not_change() {
        use ControlVersion::{Five, Four};
        for (settled, other) in [(Four, Five), (Five, Four)] {
            let changed = Some(ControlError::VersionChanged { request_id: 9, settled, found: other });
            let messages = [in_version(settled, 9), in_version(other, 9), in_version(settled, 9)];
            let number = settled.number();
            assert_eq!(answers(&messages), [(number, None), (number, changed), (number, None)]);
        }
    }

    #[test]
    fn a_refusal_has_the_version_of_the_request() {
        use ControlVersion::{Five, Four};
        let malformed = with_version(Request::Close { in_order: true }.encode(MessageHead::newest(9)).unwrap(), 4);
        let malformed = [&malformed[..12], b"\x02", &malformed[13..]].concat();
        let refused = answers(&[with_version(malformed, 4), in_version(Five, 9), in_version(Four, 9)]);
        assert!(matches!(refused[0], (4, Some(ControlError::Malformed { .. }))), "{refused:?}");
        assert!(matches!(refused[1], (4, Some(ControlError::VersionChanged { .. }))), "{refused:?}");
        assert_eq!(refused[2], (4, None));
    }

    #[test]
    fn a_version_that_is_not_spoken_settles_nothing() {
        for found in [3, 6] {
            let unknown = with_version(in_version(ControlVersion::Five, 9), found);
            let unsupported = Some(ControlError::UnsupportedVersion { request_id: 9, found });
            let damaged = Some(ControlError::BadLength { len_bytes: 0 });
            let messages = [unknown.clone(), vec![], in_version(ControlVersion::Four, 9), unknown];
            let expected = [(5, unsupported.clone()), (5, damaged), (4, None), (4, unsupported)];
            assert_eq!(answers(&messages), expected);
        }
    }
}
