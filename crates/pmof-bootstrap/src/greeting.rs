//! The handshake of the two ends of an ssh session on standard input and output, before the data path is established.
//!
//! All numbers are little-endian. The initiator begins, without waiting, with a *hello* of 36 bytes:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `PMOFHELO` |
//! | 8 | 2 | version: 1 |
//! | 10 | 2 | transports that the initiator has: bit 0 tcp, bit 1 verbs; bits 2 to 5 the provider of libfabric that it asks for, 0 none, 1 tcp, 2 net, 3 udp, 4 verbs, 5 efa, 6 psm3, 7 tcp-msg, 8 verbs-msg; bit 6: it asks for RDS; others are ignored |
//! | 12 | 4 | reserved, zero |
//! | 16 | 16 | nonce, random |
//! | 32 | 4 | CRC32C of all before |
//!
//! The target answers with one *greeting*. Anything that a login prints before is skipped: the initiator looks for the
//! first 24 bytes.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `PMOFREDY` |
//! | 8 | 16 | the hello's nonce |
//! | 24 | 2 | version: 1 |
//! | 26 | 2 | status: 0 ready, 1 another version, else failed: 2, or 3 by the configuration, 4 for something that is not there, 5 for lack of permission |
//! | 28 | 4 | length of the body, n, at most 4096 |
//! | 32 | n | body: when ready the secret `[16]` and the addresses, best first, one a line; else a text for people |
//! | 32 + n | 4 | CRC32C of all before |
//!
//! The places of the first 28 bytes are the same in every version. After that the initiator sends nothing; the end of its
//! stream is the end of the session.

use std::io;

use pmof_access::{Address, FabricProvider, Transport};

use crate::{SECRET_BYTES, Secret};

/// Version of hello and greeting.
pub const STDIO_VERSION: u16 = 1;
/// Bytes of a hello.
pub const HELLO_BYTES: usize = 36;

const HELLO_MAGIC: &[u8; 8] = b"PMOFHELO";
const GREETING_MAGIC: &[u8; 8] = b"PMOFREDY";
const NONCE_BYTES: usize = 16;
const MARK_BYTES: usize = 24;
const HEAD_BYTES: usize = 32;
const CHECKSUM_BYTES: usize = 4;
/// A few addresses, or a few lines of text.
const BODY_MAX_BYTES: usize = 4096;
/// The maximum that a login may print before the greeting.
pub(crate) const BANNER_MAX_BYTES: usize = 64 << 10;

/// Providers of libfabric by their number in a hello, from 1 on.
const PROVIDERS: [FabricProvider; 8] = [
    FabricProvider::Tcp,
    FabricProvider::Net,
    FabricProvider::Udp,
    FabricProvider::Verbs,
    FabricProvider::Efa,
    FabricProvider::Psm3,
    FabricProvider::TcpConnected,
    FabricProvider::VerbsConnected,
];
const PROVIDER_SHIFT: u32 = 2;
const PROVIDER_MASK: usize = 0xF;
const RDS_BIT: u32 = 6;

/// The first message of the initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Whether it has RDMA devices that it may use.
    pub has_verbs: bool,
    /// The provider of libfabric that it wants to use, and has.
    pub fabric: Option<FabricProvider>,
    /// Whether it wants to use RDS, and has it.
    pub rds: bool,
    /// Identifies the answer to this hello.
    pub nonce: [u8; NONCE_BYTES],
}

impl Hello {
    /// The transports that the initiator can use; what it asks for comes first.
    pub fn transports(&self) -> impl Iterator<Item = Transport> {
        let fabric = self.fabric.map(Transport::Fabric);
        let [rds, verbs] = [(self.rds, Transport::Rds), (self.has_verbs, Transport::Verbs)]
            .map(|(has, transport)| has.then_some(transport));
        [fabric, rds, verbs, Some(Transport::Tcp)].into_iter().flatten()
    }
}

/// What the target answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// The target runs.
    Ready {
        /// The secret that the data connection proves.
        secret: Secret,
        /// Where the target listens, the best first.
        addresses: Vec<Address>,
    },
    /// The hello was of another version.
    OtherVersion {
        /// The target's.
        version: u16,
    },
    /// The target did not start.
    Failed {
        /// The reason, for programs.
        why: StartFailure,
        /// The reason, for people.
        text: String,
    },
}

/// Why a target did not start, for programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StartFailure {
    /// Its configuration or its command line is wrong.
    Configuration,
    /// A file or directory that it needs does not exist.
    NotFound,
    /// It may not use a file or directory that it needs.
    NotPermitted,
    /// Anything else.
    #[default]
    Other,
}

impl StartFailure {
    /// Classifies a system error.
    pub fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::NotFound,
            io::ErrorKind::PermissionDenied => Self::NotPermitted,
            _ => Self::Other,
        }
    }

    fn status(self) -> u16 {
        match self {
            Self::Other => 2,
            Self::Configuration => 3,
            Self::NotFound => 4,
            Self::NotPermitted => 5,
        }
    }

    /// Unknown codes of newer targets become [`Other`](Self::Other).
    fn from_status(status: u16) -> Self {
        match status {
            3 => Self::Configuration,
            4 => Self::NotFound,
            5 => Self::NotPermitted,
            _ => Self::Other,
        }
    }
}

/// Why a hello was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// Something else was sent.
    #[error(
        "standard input does not begin as an initiator of pmof does: `--stdio` is for ssh:// URLs, which start this command themselves"
    )]
    NotAHello,
    /// Another version.
    #[error(
        "the initiator speaks version {version} of the session, this target {STDIO_VERSION}; install the same release on both"
    )]
    OtherVersion {
        /// The initiator's.
        version: u16,
        /// By which it knows the answer to be its own.
        nonce: [u8; NONCE_BYTES],
    },
}

/// Why bytes are not a greeting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GreetingError {
    #[error("more than {BANNER_MAX_BYTES} bytes came before the greeting of a target, beginning with {beginning:?}")]
    TooMuchBefore { beginning: String },
    #[error("the greeting is damaged: {what}")]
    Damaged { what: &'static str },
}

impl Hello {
    /// Its bytes.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(HELLO_MAGIC);
        bytes[8..10].copy_from_slice(&STDIO_VERSION.to_le_bytes());
        let known = |wanted: FabricProvider| PROVIDERS.iter().zip(1..).find(|(provider, _)| **provider == wanted);
        let provider: u16 = self.fabric.and_then(known).map_or(0, |(_, number)| number);
        let transports =
            1 | u16::from(self.has_verbs) << 1 | provider << PROVIDER_SHIFT | u16::from(self.rds) << RDS_BIT;
        bytes[10..12].copy_from_slice(&transports.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.nonce);
        let checksum = crc32c::crc32c(&bytes[..32]);
        bytes[32..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Decodes a hello.
    pub fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Self, HelloError> {
        let (said, checksum) = bytes.split_at(32);
        if !said.starts_with(HELLO_MAGIC) || crc32c::crc32c(said).to_le_bytes() != checksum {
            return Err(HelloError::NotAHello);
        }
        let mut nonce = [0; NONCE_BYTES];
        nonce.copy_from_slice(&said[16..]);
        let version = u16::from_le_bytes([said[8], said[9]]);
        if version != STDIO_VERSION {
            return Err(HelloError::OtherVersion { version, nonce });
        }
        let provider = usize::from(said[10]) >> PROVIDER_SHIFT & PROVIDER_MASK;
        let fabric = provider.checked_sub(1).and_then(|index| PROVIDERS.get(index)).copied();
        Ok(Self { has_verbs: said[10] & 2 != 0, fabric, rds: said[10] & 1 << RDS_BIT != 0, nonce })
    }
}

impl Greeting {
    /// Encodes the answer to the hello with this nonce. A text that is too long is truncated.
    pub fn encode(&self, nonce: &[u8; NONCE_BYTES]) -> Vec<u8> {
        let (status, version, mut body) = match self {
            Self::Ready { secret, addresses } => {
                let lines: Vec<_> = addresses.iter().map(ToString::to_string).collect();
                (0_u16, STDIO_VERSION, [&secret.bytes()[..], lines.join("\n").as_bytes()].concat())
            }
            Self::OtherVersion { version } => (1, *version, Vec::new()),
            Self::Failed { why, text } => (why.status(), STDIO_VERSION, text.as_bytes().to_vec()),
        };
        body.truncate(BODY_MAX_BYTES);
        let mut bytes = Vec::with_capacity(HEAD_BYTES + body.len() + CHECKSUM_BYTES);
        bytes.extend_from_slice(GREETING_MAGIC);
        bytes.extend_from_slice(nonce);
        bytes.extend_from_slice(&version.to_le_bytes());
        bytes.extend_from_slice(&status.to_le_bytes());
        bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&body);
        let checksum = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// The greeting in the bytes received so far; `None` while it is incomplete.
    pub fn find(came: &[u8], nonce: &[u8; NONCE_BYTES]) -> Result<Option<Self>, GreetingError> {
        let mark = [&GREETING_MAGIC[..], nonce].concat();
        let Some(at) = came.windows(MARK_BYTES).position(|window| window == mark) else {
            if came.len() > BANNER_MAX_BYTES {
                return Err(GreetingError::TooMuchBefore { beginning: beginning(came) });
            }
            return Ok(None);
        };
        let Some((head, rest)) = came[at..].split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let version = u16::from_le_bytes([head[24], head[25]]);
        if version != STDIO_VERSION {
            return Ok(Some(Self::OtherVersion { version }));
        }
        let len_bytes = u32::from_le_bytes([head[28], head[29], head[30], head[31]]) as usize;
        if len_bytes > BODY_MAX_BYTES {
            return Err(GreetingError::Damaged { what: "it states a body that is too long" });
        }
        let Some((body, rest)) = rest.split_at_checked(len_bytes) else { return Ok(None) };
        let Some(checksum) = rest.first_chunk::<CHECKSUM_BYTES>() else { return Ok(None) };
        if crc32c::crc32c(&came[at..at + HEAD_BYTES + len_bytes]).to_le_bytes() != *checksum {
            return Err(GreetingError::Damaged { what: "its checksum is wrong" });
        }
        match u16::from_le_bytes([head[26], head[27]]) {
            0 => Self::ready(body).map(Some),
            1 => Ok(Some(Self::OtherVersion { version })),
            status => {
                let text = String::from_utf8_lossy(body).into_owned();
                Ok(Some(Self::Failed { why: StartFailure::from_status(status), text }))
            }
        }
    }

    fn ready(body: &[u8]) -> Result<Self, GreetingError> {
        let damaged = |what| GreetingError::Damaged { what };
        let (secret, lines) = body.split_first_chunk::<SECRET_BYTES>().ok_or_else(|| damaged("it holds no secret"))?;
        let lines = std::str::from_utf8(lines).map_err(|_| damaged("its addresses are not UTF-8"))?;
        // Addresses of transports that this side does not know are skipped.
        let addresses: Vec<Address> = lines.lines().filter_map(|line| line.parse().ok()).collect();
        if addresses.is_empty() {
            return Err(damaged("it offers no address that this version understands"));
        }
        Ok(Self::Ready { secret: Secret::from_bytes(*secret), addresses })
    }
}

/// What a login printed, for people.
pub(crate) fn beginning(came: &[u8]) -> String {
    String::from_utf8_lossy(&came[..came.len().min(200)]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCE: [u8; NONCE_BYTES] = *b"0123456789abcdef";

    fn ready() -> Greeting {
        let addresses = ["verbs://10.0.0.2:4000", "tcp://[fd00::2]:4001"].map(|text| text.parse().unwrap()).to_vec();
        Greeting::Ready { secret: Secret::from_bytes([9; SECRET_BYTES]), addresses }
    }

    #[test]
    fn a_hello_comes_back_and_no_flipped_byte_does() {
        for fabric in PROVIDERS.map(Some).into_iter().chain([None]) {
            for rds in [false, true] {
                let hello = Hello { has_verbs: false, fabric, rds, nonce: NONCE };
                assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
            }
        }
        // What has no number is not asked for.
        let hello = Hello { has_verbs: true, fabric: Some(FabricProvider::Sockets), rds: false, nonce: NONCE };
        let bytes = hello.encode();
        let hello = Hello { fabric: None, ..hello };
        assert_eq!(Hello::decode(&bytes), Ok(hello));
        assert_eq!(bytes[10..12], [3, 0]);
        for at in 0..HELLO_BYTES {
            let mut wrong = bytes;
            wrong[at] ^= 0x40;
            assert_eq!(Hello::decode(&wrong), Err(HelloError::NotAHello), "byte {at}");
        }
    }

    #[test]
    fn a_hello_of_another_version_is_known_as_such() {
        let mut bytes = Hello { has_verbs: false, fabric: None, rds: false, nonce: NONCE }.encode();
        bytes[8] = 2;
        let checksum = crc32c::crc32c(&bytes[..32]);
        bytes[32..].copy_from_slice(&checksum.to_le_bytes());
        assert_eq!(Hello::decode(&bytes), Err(HelloError::OtherVersion { version: 2, nonce: NONCE }));
    }

    #[test]
    fn a_greeting_is_found_behind_a_banner_and_only_when_whole() {
        let failed = |why| Greeting::Failed { why, text: "no root".to_owned() };
        let reasons =
            [StartFailure::Other, StartFailure::Configuration, StartFailure::NotFound, StartFailure::NotPermitted];
        for greeting in [ready()].into_iter().chain(reasons.map(failed)) {
            let banner = b"Welcome! PMOFREDY is not yet here\n".to_vec();
            let bytes = [banner, greeting.encode(&NONCE)].concat();
            for len in 0..bytes.len() {
                assert_eq!(Greeting::find(&bytes[..len], &NONCE), Ok(None), "{len} bytes");
            }
            assert_eq!(Greeting::find(&bytes, &NONCE), Ok(Some(greeting)));
        }
    }

    #[test]
    fn a_greeting_with_a_flipped_byte_is_never_taken() {
        let bytes = ready().encode(&NONCE);
        for at in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 0x04;
            let found = Greeting::find(&wrong, &NONCE);
            let is_refused = !matches!(found, Ok(Some(Greeting::Ready { .. } | Greeting::Failed { .. })));
            assert!(is_refused, "byte {at}: {found:?}");
        }
    }

    #[test]
    fn what_answers_another_hello_is_not_ours() {
        assert_eq!(Greeting::find(&ready().encode(&[0; NONCE_BYTES]), &NONCE), Ok(None));
    }

    #[test]
    fn a_banner_without_an_end_is_refused() {
        let came = vec![b'x'; BANNER_MAX_BYTES + 1];
        let error = Greeting::find(&came, &NONCE).unwrap_err();
        assert!(
            matches!(&error, GreetingError::TooMuchBefore { beginning } if beginning.starts_with("xxx")),
            "{error}"
        );
    }

    #[test]
    fn addresses_of_unknown_transports_are_passed_over() {
        let encoded = |lines: &str| {
            let mut body = vec![1; SECRET_BYTES];
            body.extend_from_slice(lines.as_bytes());
            Greeting::ready(&body)
        };
        let Ok(Greeting::Ready { addresses, .. }) = encoded("quic://a:1\ntcp://a:2\n") else { panic!("refused") };
        assert_eq!(addresses, ["tcp://a:2".parse().unwrap()]);
        assert!(encoded("quic://a:1\n").is_err());
    }
}
