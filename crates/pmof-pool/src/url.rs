//! Where a replica lives: `tcp://HOST[:PORT]/POOL`, `verbs://HOST[:PORT]/POOL[?source=IP]`, `shm:///SOCKET?pool=POOL`,
//! `ssh://[USER@]HOST[:PORT]/POOL` or `file:///DIRECTORY/POOL`.

use std::{
    fmt,
    net::IpAddr,
    path::{Path, PathBuf},
    str::FromStr,
};

use pmof_access::{Address, AddressError, LocalEnd, Transport, TransportDescriptor};
use pmof_bootstrap::{SshHost, SshHostError};
use pmof_control::{NameError, PoolName};

/// Before the pool's name where the address is a path.
const POOL_PARAMETER: &str = "?pool=";

/// Before the local address to come from.
const SOURCE_PARAMETER: &str = "?source=";

/// The scheme of targets that ssh starts.
const SSH_SCHEME: &str = "ssh://";

/// What the schemes of libfabric's providers begin with.
const FABRIC_SCHEME: &str = "fabric+";

/// The scheme of directories of this machine, and how a pool there is written.
const FILE_SCHEME: &str = "file://";
const FILE_FORM: &str = "file:///DIRECTORY/POOL";

/// Where a target is found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TargetUrl {
    /// It runs, and listens there.
    Address(Address),
    /// ssh starts it.
    Ssh(SshHost),
    /// None: this process itself has the files of a directory of its machine, by its absolute path.
    Directory(PathBuf),
}

impl From<Address> for TargetUrl {
    fn from(address: Address) -> Self {
        Self::Address(address)
    }
}

impl FromStr for TargetUrl {
    type Err = PoolUrlError;

    fn from_str(text: &str) -> Result<Self, PoolUrlError> {
        if let Some(directory) = text.strip_prefix(FILE_SCHEME) {
            return directory_of(directory)
                .map(Self::Directory)
                .ok_or_else(|| PoolUrlError::NotAbsolute { text: text.to_owned() });
        }
        Ok(match text.strip_prefix(SSH_SCHEME) {
            Some(host) => Self::Ssh(host.parse()?),
            None => match text.parse() {
                Err(AddressError::NoScheme { text }) => return Err(PoolUrlError::NoTarget { text }),
                Err(error @ AddressError::BadHostPort { .. }) => {
                    return Err(text.parse::<PoolUrl>().map_or_else(
                        |_| error.into(),
                        |PoolUrl { target, name, .. }| PoolUrlError::OfPool { text: text.to_owned(), target, name },
                    ));
                }
                address => Self::Address(address?),
            },
        })
    }
}

impl fmt::Display for TargetUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Ssh(host) => write!(f, "{SSH_SCHEME}{host}"),
            Self::Directory(directory) => write!(f, "{FILE_SCHEME}{}", directory.display()),
        }
    }
}

/// A target's address and the name of a pool there.
///
/// As text `tcp://HOST[:PORT]/POOL`, `verbs://HOST[:PORT]/POOL` (then `?source=IP` where routing does not decide which local
/// device to use, as over libfabric; a name with a `?` cannot be written there), `shm:///PATH/OF/SOCKET?pool=POOL`,
/// `ssh://[USER@]HOST[:PORT]/POOL`, or `file:///DIRECTORY/POOL` for a file of this machine, or a devdax device (`file:///dev/dax0.0`), which this process
/// has itself. Nothing is escaped.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PoolUrl {
    /// The target.
    pub target: TargetUrl,
    /// The pool.
    pub name: PoolName,
    /// The local address to come from; verbs only.
    pub source: Option<IpAddr>,
}

/// Why a text is no pool URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolUrlError {
    /// A pool's address, where that of a target is to be.
    #[error("{text:?} names the pool {name}: write the address of its target, {target}")]
    OfPool {
        /// What was given.
        text: String,
        /// The pool's target.
        target: TargetUrl,
        /// The pool.
        name: PoolName,
    },
    /// The part before the pool's name.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The part before the pool's name, for ssh.
    #[error(transparent)]
    Ssh(#[from] SshHostError),
    /// It begins with no scheme, or with none that there is.
    #[error(
        "{text:?} is no pool URL: write tcp://HOST[:PORT]/POOL, verbs://HOST[:PORT]/POOL, fabric+PROVIDER://HOST[:PORT]/POOL, rds://HOST[:PORT]/POOL, shm:///PATH/OF/SOCKET?pool=POOL, ssh://[USER@]HOST[:PORT]/POOL or file:///DIRECTORY/POOL"
    )]
    UnknownScheme {
        /// What was given.
        text: String,
    },
    /// The same where a target, or a directory in the place of one, is to be named.
    #[error(
        "{text:?} is no address: write tcp://HOST[:PORT], verbs://HOST[:PORT], fabric+PROVIDER://HOST[:PORT], rds://HOST[:PORT], shm:///PATH/OF/SOCKET, ssh://[USER@]HOST[:PORT] or file:///DIRECTORY"
    )]
    NoTarget {
        /// What was given.
        text: String,
    },
    /// The path of a directory or file is not absolute.
    #[error("{text:?} has no absolute path: write {FILE_FORM}")]
    NotAbsolute {
        /// What was given.
        text: String,
    },
    /// There is no pool's name.
    #[error("{text:?} names no pool: write {form}")]
    NoName {
        /// What was given.
        text: String,
        /// How to write a pool of this transport.
        form: String,
    },
    /// The pool's name.
    #[error("the pool's name in {text:?} is not allowed")]
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
        form: String,
    },
}

impl FromStr for PoolUrl {
    type Err = PoolUrlError;

    fn from_str(text: &str) -> Result<Self, PoolUrlError> {
        let no_name = |form: String| PoolUrlError::NoName { text: text.to_owned(), form };
        let wrong_name = |source| PoolUrlError::Name { text: text.to_owned(), source };
        if let Some(rest) = text.strip_prefix(SSH_SCHEME) {
            let (host, name) = rest.split_once('/').unwrap_or((rest, ""));
            let target = TargetUrl::Ssh(host.parse()?);
            if name.is_empty() {
                return Err(no_name("ssh://[USER@]HOST[:PORT]/POOL".to_owned()));
            }
            return Ok(Self { target, name: PoolName::new(name).map_err(wrong_name)?, source: None });
        }
        if let Some(path) = text.strip_prefix(FILE_SCHEME) {
            let parted = path.rsplit_once('/').and_then(|(directory, name)| {
                let directory = directory_of(&format!("{directory}/"))?;
                Some((directory, name))
            });
            let (directory, name) = parted.ok_or_else(|| PoolUrlError::NotAbsolute { text: text.to_owned() })?;
            if name.is_empty() {
                return Err(no_name(FILE_FORM.to_owned()));
            }
            let name = PoolName::new(name).map_err(wrong_name)?;
            return Ok(Self { target: TargetUrl::Directory(directory), name, source: None });
        }
        let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
        let after_scheme = scheme.len() + 3;
        let Some(transport) = Transport::of_scheme(scheme) else {
            if scheme.starts_with(FABRIC_SCHEME) {
                // The providers that there are.
                return Err(AddressError::UnknownTransport { scheme: scheme.to_owned() }.into());
            }
            return Err(PoolUrlError::UnknownScheme { text: text.to_owned() });
        };
        let form = || form_of(transport);
        let separator = separator_of(transport);
        let takes_source = transport.descriptor().local_end.takes_source();
        let Some((address, rest)) = text[after_scheme..].split_once(separator) else {
            text.parse::<Address>()?;
            return Err(no_name(form()));
        };
        let address = text[..after_scheme + address.len()].parse()?;
        let (name, source) = match rest.split_once('?') {
            Some((name, parameter)) if takes_source => {
                let source = parameter.strip_prefix(&SOURCE_PARAMETER[1..]).and_then(|source| source.parse().ok());
                let wrong =
                    || PoolUrlError::Parameter { text: text.to_owned(), parameter: parameter.to_owned(), form: form() };
                (name, Some(source.ok_or_else(wrong)?))
            }
            // A name may hold a `?`, and none looks like what another transport's address has there.
            Some((_, parameter))
                if rest.contains(SOURCE_PARAMETER)
                    || (separator != POOL_PARAMETER && rest.contains(POOL_PARAMETER)) =>
            {
                let (text, parameter) = (text.to_owned(), parameter.to_owned());
                return Err(PoolUrlError::Parameter { text, parameter, form: form() });
            }
            _ => (rest, None),
        };
        if name.is_empty() {
            return Err(no_name(form()));
        }
        Ok(Self { target: TargetUrl::Address(address), name: PoolName::new(name).map_err(wrong_name)?, source })
    }
}

impl fmt::Display for PoolUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let TargetUrl::Directory(directory) = &self.target {
            return write!(f, "{FILE_SCHEME}{}", directory.join(self.name.as_str()).display());
        }
        let separator = match &self.target {
            TargetUrl::Address(address) => separator_of(address.transport),
            TargetUrl::Ssh(_) | TargetUrl::Directory(_) => "/",
        };
        write!(f, "{}{separator}{}", self.target, self.name)?;
        match self.source {
            Some(source) => write!(f, "{SOURCE_PARAMETER}{source}"),
            None => Ok(()),
        }
    }
}

/// An absolute directory, without what does not matter at its end.
fn directory_of(text: &str) -> Option<PathBuf> {
    let path = Path::new(text);
    path.is_absolute().then(|| path.components().collect())
}

/// What lies between the address of a target and the name of a pool.
fn separator_of(transport: Transport) -> &'static str {
    if transport.descriptor().local_end == LocalEnd::Path { POOL_PARAMETER } else { "/" }
}

/// How a pool of the transport is written.
fn form_of(transport: Transport) -> String {
    let TransportDescriptor { scheme, local_end, .. } = transport.descriptor();
    match local_end {
        LocalEnd::Path => format!("{scheme}:///PATH/OF/SOCKET{POOL_PARAMETER}POOL"),
        end if end.takes_source() => {
            format!("{scheme}://HOST[:PORT]/POOL or {scheme}://HOST[:PORT]/POOL{SOURCE_PARAMETER}IP")
        }
        _ => format!("{scheme}://HOST[:PORT]/POOL"),
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
            "fabric+verbs-msg://10.0.0.2:7204/orders?source=10.0.0.1",
            "shm:///run/pmof.sock?pool=orders",
            "shm:///run/a b?c?pool=x?pool=y",
            "ssh://a/orders",
            "ssh://me@[fd00::1]:2222/orders",
            "file:///srv/pools/orders",
            "file:///dev/dax0.0",
            "file:///orders",
            "file:///srv/a b?c/what?",
        ] {
            assert_eq!(text.parse::<PoolUrl>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_directory_is_where_pools_of_this_machine_are() {
        for (text, expected) in
            [("file:///srv/pools", "/srv/pools"), ("file:///srv/pools/", "/srv/pools"), ("file:///", "/")]
        {
            assert_eq!(text.parse::<TargetUrl>().unwrap(), TargetUrl::Directory(expected.into()));
        }
        let url: PoolUrl = "file:///srv//pools/orders".parse().unwrap();
        assert_eq!(
            (url.target.to_string(), url.to_string().as_str()),
            ("file:///srv/pools".to_owned(), "file:///srv/pools/orders")
        );
        assert!(matches!("file://pools".parse::<TargetUrl>(), Err(PoolUrlError::NotAbsolute { .. })));
    }

    #[test]
    fn wrong_urls_say_what_is_wrong() {
        let parse = |text: &str| text.parse::<PoolUrl>().unwrap_err();
        for (text, form) in [
            ("tcp://a:1", "tcp://HOST[:PORT]/POOL"),
            ("tcp://a:1/", "tcp://HOST[:PORT]/POOL"),
            ("verbs://a:1", "verbs://HOST[:PORT]/POOL?source=IP"),
            ("verbs://a:1/?source=1.2.3.4", "verbs://HOST[:PORT]/POOL?source=IP"),
            ("shm:///run/a.sock", "shm:///PATH/OF/SOCKET?pool=POOL"),
            ("shm:///run/a.sock?pool=", "shm:///PATH/OF/SOCKET?pool=POOL"),
            ("ssh://a", "ssh://[USER@]HOST[:PORT]/POOL"),
            ("ssh://a/", "ssh://[USER@]HOST[:PORT]/POOL"),
        ] {
            let error = parse(text);
            assert!(matches!(error, PoolUrlError::NoName { .. }), "{text}");
            assert!(error.to_string().contains(form), "{error}");
        }
        for (text, form) in [("file:///srv/pools/", "file:///DIRECTORY/POOL"), ("file:///", "file:///DIRECTORY/POOL")] {
            assert!(parse(text).to_string().contains(form), "{text}");
        }
        for text in ["file://orders", "file://", "file://./orders"] {
            assert!(matches!(parse(text), PoolUrlError::NotAbsolute { .. }), "{text}");
        }
        for text in ["file:///srv/..", "file:///srv/.orders"] {
            assert!(matches!(parse(text), PoolUrlError::Name { .. }), "{text}");
        }
        for text in ["tcp://a:1/../x", "tcp://a:1/x/y", "shm:///run/a?pool=x/y", "verbs://a:1/.x"] {
            assert!(matches!(parse(text), PoolUrlError::Name { .. }), "{text}");
        }
        for text in ["verbs://a:1/x?source=", "verbs://a:1/x?source=host", "verbs://a:1/x?port=1", "verbs://a:1/x?"] {
            assert!(matches!(parse(text), PoolUrlError::Parameter { .. }), "{text}");
        }
        for text in ["tcp://a:1/x?pool=y", "tcp://a:1/x?source=1.2.3.4", "fabric+tcp://a:1/x?pool=y"] {
            let error = parse(text);
            assert!(matches!(error, PoolUrlError::Parameter { .. }), "{text}");
            assert!(error.to_string().contains("://HOST[:PORT]/POOL"), "{error}");
        }
        for text in ["ssh:///x", "ssh://-oProxyCommand=x/x"] {
            assert!(matches!(parse(text), PoolUrlError::Ssh(_)), "{text}");
        }
        for text in ["a:1/x", "", "http://a:1/x", "://a/x"] {
            let error = parse(text);
            assert!(matches!(error, PoolUrlError::UnknownScheme { .. }), "{text}");
            assert!(error.to_string().contains("ssh://"), "{error}");
        }
        for text in ["fabric+nosuch://a/x", "fabric+nosuch://a", "fabric+://a/x"] {
            let error = parse(text);
            assert!(matches!(error, PoolUrlError::Address(AddressError::UnknownTransport { .. })), "{text}");
        }
        for text in ["shm://run/a?pool=x", "shm://", "verbs://a:/x", "tcp://"] {
            assert!(matches!(parse(text), PoolUrlError::Address(_)), "{text}");
        }
    }
}
