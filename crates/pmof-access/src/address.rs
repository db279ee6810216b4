//! Addresses of the access layer: `tcp://HOST:PORT`.

use std::{fmt, str::FromStr};

use crate::AddressError;

/// How two peers reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transport {
    /// A TCP connection; the target's CPU serves it.
    Tcp,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Tcp => "tcp",
        })
    }
}

/// A transport, a host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// The transport.
    pub transport: Transport,
    /// Host name or numeric address, IPv6 without brackets.
    pub host: String,
    /// TCP port; 0 picks a free one when listening.
    pub port: u16,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| AddressError::NoScheme { text: text.to_owned() })?;
        let transport = match scheme {
            "tcp" => Transport::Tcp,
            _ => return Err(AddressError::UnknownTransport { scheme: scheme.to_owned() }),
        };
        let bad = || AddressError::BadHostPort { text: text.to_owned() };
        let (host, port) = rest.rsplit_once(':').ok_or_else(bad)?;
        let host = match host.strip_prefix('[') {
            Some(host) => host.strip_suffix(']').ok_or_else(bad)?,
            None if host.contains(':') => return Err(bad()),
            None => host,
        };
        let numeric = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        if host.is_empty() || host.contains('/') || !numeric {
            return Err(bad());
        }
        Ok(Self { transport, host: host.to_owned(), port: port.parse().map_err(|_| bad())? })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { transport, host, port } = self;
        if host.contains(':') {
            write!(f, "{transport}://[{host}]:{port}")
        } else {
            write!(f, "{transport}://{host}:{port}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        for text in ["tcp://127.0.0.1:7204", "tcp://localhost:0", "tcp://[::1]:65535"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn wrong_addresses_say_which_rule() {
        let parse = |text: &str| text.parse::<Address>().unwrap_err();
        assert!(matches!(parse("127.0.0.1:1"), AddressError::NoScheme { .. }));
        assert!(matches!(parse("verbs://a:1"), AddressError::UnknownTransport { .. }));
        for text in [
            "tcp://a",
            "tcp://:1",
            "tcp://a:",
            "tcp://a:65536",
            "tcp://a:+1",
            "tcp://::1:1",
            "tcp://[::1:1",
            "tcp://a/b:1",
        ] {
            assert!(matches!(parse(text), AddressError::BadHostPort { .. }), "{text}");
        }
    }
}
