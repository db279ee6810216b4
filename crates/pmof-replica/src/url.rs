//! Where a replica lives: `tcp://HOST:PORT/POOL`, `verbs://HOST:PORT/POOL[?source=IP]` or `shm:///SOCKET?pool=POOL`.

use std::{fmt, net::IpAddr, str::FromStr};

use pmof_access::{Address, AddressError, Transport};

use crate::{NameError, PoolName};

/// Before the pool's name where the address is a path.
const POOL_PARAMETER: &str = "?pool=";

/// Before the local address to come from.
const SOURCE_PARAMETER: &str = "?source=";

/// A target's address and the name of a pool there.
///
/// As text `tcp://HOST:PORT/POOL`, `verbs://HOST:PORT/POOL` (then `?source=IP` where routing does not decide which local
/// device to use; a name with a `?` cannot be written there), or `shm:///PATH/OF/SOCKET?pool=POOL`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PoolUrl {
    /// The target.
    pub address: Address,
    /// The pool.
    pub name: PoolName,
    /// The local address to come from; verbs only.
    pub source: Option<IpAddr>,
}

/// Why a text is no pool URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolUrlError {
    /// The part before the pool's name.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// There is no pool's name.
    #[error("{text:?} names no pool: write {form}")]
    NoName {
        /// What was given.
        text: String,
        /// How to write a pool of this transport.
        form: &'static str,
    },
    /// The pool's name.
    #[error("the pool's name in {text:?} is not allowed: {source}")]
    Name {
        /// What was given.
        text: String,
        /// The rule broken.
        source: NameError,
    },
    /// What follows the pool's name.
    #[error("{parameter:?} in {text:?} is not understood: write {form}")]
    Parameter {
        /// What was given.
        text: String,
        /// The part that is wrong.
        parameter: String,
        /// How to write a pool of this transport.
        form: &'static str,
    },
}

impl FromStr for PoolUrl {
    type Err = PoolUrlError;

    fn from_str(text: &str) -> Result<Self, PoolUrlError> {
        let no_name = |form| PoolUrlError::NoName { text: text.to_owned(), form };
        let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
        let transport = Transport::ALL.into_iter().find(|transport| transport.scheme() == scheme);
        let Some((transport, after_scheme)) = transport.map(|transport| (transport, scheme.len() + 3)) else {
            text.parse::<Address>()?;
            return Err(no_name(form_of(Transport::Tcp)));
        };
        let form = form_of(transport);
        let separator = if transport == Transport::Shm { POOL_PARAMETER } else { "/" };
        let Some((address, rest)) = text[after_scheme..].split_once(separator) else {
            text.parse::<Address>()?;
            return Err(no_name(form));
        };
        let address = text[..after_scheme + address.len()].parse()?;
        let (name, source) = match rest.split_once('?') {
            Some((name, parameter)) if transport == Transport::Verbs => {
                let source = parameter.strip_prefix(&SOURCE_PARAMETER[1..]).and_then(|source| source.parse().ok());
                let wrong = || PoolUrlError::Parameter { text: text.to_owned(), parameter: parameter.to_owned(), form };
                (name, Some(source.ok_or_else(wrong)?))
            }
            _ => (rest, None),
        };
        if name.is_empty() {
            return Err(no_name(form));
        }
        let name = PoolName::new(name).map_err(|source| PoolUrlError::Name { text: text.to_owned(), source })?;
        Ok(Self { address, name, source })
    }
}

impl fmt::Display for PoolUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.address.transport == Transport::Shm { POOL_PARAMETER } else { "/" };
        write!(f, "{}{separator}{}", self.address, self.name)?;
        match self.source {
            Some(source) => write!(f, "{SOURCE_PARAMETER}{source}"),
            None => Ok(()),
        }
    }
}

/// How a pool of the transport is written.
fn form_of(transport: Transport) -> &'static str {
    match transport {
        Transport::Verbs => "verbs://HOST:PORT/POOL or verbs://HOST:PORT/POOL?source=IP",
        Transport::Shm => "shm:///PATH/OF/SOCKET?pool=POOL",
        _ => "tcp://HOST:PORT/POOL",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_round_trip() {
        for text in [
            "tcp://127.0.0.1:7204/orders",
            "tcp://[::1]:1/a.b-c",
            "tcp://a:1/what?",
            "verbs://10.0.0.2:7204/orders",
            "verbs://10.0.0.2:7204/orders?source=10.0.0.1",
            "verbs://[fd00::2]:7204/orders?source=fd00::1",
            "shm:///run/pmof.sock?pool=orders",
            "shm:///run/a b?c?pool=x?pool=y",
        ] {
            assert_eq!(text.parse::<PoolUrl>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn wrong_urls_say_what_is_wrong() {
        let parse = |text: &str| text.parse::<PoolUrl>().unwrap_err();
        for (text, form) in [
            ("tcp://a:1", "tcp://HOST:PORT/POOL"),
            ("tcp://a:1/", "tcp://HOST:PORT/POOL"),
            ("verbs://a:1", "verbs://HOST:PORT/POOL?source=IP"),
            ("verbs://a:1/?source=1.2.3.4", "verbs://HOST:PORT/POOL?source=IP"),
            ("shm:///run/a.sock", "shm:///PATH/OF/SOCKET?pool=POOL"),
            ("shm:///run/a.sock?pool=", "shm:///PATH/OF/SOCKET?pool=POOL"),
        ] {
            let error = parse(text);
            assert!(matches!(error, PoolUrlError::NoName { .. }), "{text}");
            assert!(error.to_string().contains(form), "{error}");
        }
        for text in ["tcp://a:1/../x", "tcp://a:1/x/y", "shm:///run/a?pool=x/y", "verbs://a:1/.x"] {
            assert!(matches!(parse(text), PoolUrlError::Name { .. }), "{text}");
        }
        for text in ["verbs://a:1/x?source=", "verbs://a:1/x?source=host", "verbs://a:1/x?port=1", "verbs://a:1/x?"] {
            assert!(matches!(parse(text), PoolUrlError::Parameter { .. }), "{text}");
        }
        for text in ["a:1/x", "ssh://a/x", "shm://run/a?pool=x", "shm://", "verbs://a/x", "tcp://"] {
            assert!(matches!(parse(text), PoolUrlError::Address(_)), "{text}");
        }
    }
}
