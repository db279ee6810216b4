//! A host that ssh reaches: `[USER@]HOST[:PORT]`.

use std::{fmt, str::FromStr};

/// The destination, as on ssh's command line; the user's ssh configuration defines its meaning.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SshHost {
    /// The user there; without one ssh decides.
    pub user: Option<String>,
    /// Name or address (IPv6 without brackets), or an alias of the ssh configuration.
    pub host: String,
    /// Port of the ssh server; without one ssh decides.
    pub port: Option<u16>,
}

/// Why a text does not name a host for ssh.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} names no host for ssh: {why}; write [USER@]HOST or [USER@]HOST:PORT, an IPv6 address in brackets")]
pub struct SshHostError {
    /// What was given.
    pub text: String,
    /// The rule broken.
    pub why: &'static str,
}

impl FromStr for SshHost {
    type Err = SshHostError;

    fn from_str(text: &str) -> Result<Self, SshHostError> {
        let wrong = |why| SshHostError { text: text.to_owned(), why };
        let (user, place) = match text.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, text),
        };
        let (host, port) = match place.strip_prefix('[') {
            Some(rest) => {
                let (host, after) = rest.split_once(']').ok_or_else(|| wrong("the bracket is not closed"))?;
                let port = match after.strip_prefix(':') {
                    Some(port) => Some(port),
                    None if after.is_empty() => None,
                    None => return Err(wrong("something other than a port follows the bracket")),
                };
                (host, port)
            }
            None if place.matches(':').count() > 1 => return Err(wrong("an IPv6 address needs brackets")),
            None => match place.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (place, None),
            },
        };
        let port = match port {
            Some(port) => match port.parse() {
                Ok(port) if port != 0 => Some(port),
                _ => return Err(wrong("the port is not a number from 1 to 65535")),
            },
            None => None,
        };
        for part in user.into_iter().chain([host]) {
            if part.is_empty() {
                return Err(wrong("the user or the host is empty"));
            }
            // ssh would take it for an option, or a shell in its configuration for something else.
            if part.starts_with('-')
                || part.contains(|c: char| c.is_control() || c.is_whitespace() || "'\"`$\\;&<>|(){}".contains(c))
            {
                return Err(wrong("a user or host holds a character that no name has, or begins with '-'"));
            }
        }
        Ok(Self { user: user.map(str::to_owned), host: host.to_owned(), port })
    }
}

impl fmt::Display for SshHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{open}{}{close}", self.host)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_round_trip() {
        for text in ["a", "user@a.b", "user@a:22", "[fd00::1]", "u@[fd00::1]:2222", "alias_1", "user@domain@host"] {
            assert_eq!(text.parse::<SshHost>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn wrong_hosts_say_what_is_wrong() {
        for text in [
            "",
            "@a",
            "u@",
            "a:",
            "a:0",
            "a:x",
            "a:65536",
            "fd00::1",
            "[fd00::1",
            "[fd00::1]x",
            "-oProxyCommand=x",
            "u@-l",
            "-u@h",
            "a b",
            "a;b",
            "$(x)",
            "a\nb",
            "[]",
        ] {
            let error = text.parse::<SshHost>().unwrap_err();
            assert_eq!(error.text, text);
        }
    }
}
