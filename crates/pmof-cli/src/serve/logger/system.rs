//! The system log: the datagram socket on which `syslogd` and journald listen.

use std::{
    io,
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    process,
};

use anyhow::Context as _;
use log::Level;

/// Its path on Linux, the same as for the `syslog(3)` of C libraries.
pub(super) const SOCKET: &str = "/dev/log";

/// RFC 3164's facility of system daemons, shifted to its place in a priority.
const DAEMON: u8 = 3 << 3;

/// One datagram per message, in RFC 3164's local form: `<PRIORITY>NAME[PID]: TEXT`. The receiver adds the time.
#[derive(Debug)]
pub(super) struct SystemLog {
    name: &'static str,
    path: PathBuf,
    socket: UnixDatagram,
}

impl SystemLog {
    /// A logger for the command of this name; fails if nothing listens at `path`.
    pub(super) fn open(name: &'static str, path: &Path) -> anyhow::Result<Self> {
        let socket = UnixDatagram::unbound().context("cannot create a socket for the system log")?;
        // The sending socket stays unconnected: a connected one fails once the listener has been restarted.
        let probe = UnixDatagram::unbound().and_then(|probe| probe.connect(path));
        probe.with_context(|| format!("cannot reach the system log at {} (use-syslog)", path.display()))?;
        Ok(Self { name, path: path.to_owned(), socket })
    }

    pub(super) fn send(&self, level: Level, text: &str) -> io::Result<()> {
        let priority = DAEMON | severity(level);
        let message = format!("<{priority}>{}[{}]: {text}", self.name, process::id());
        self.socket.send_to(message.as_bytes(), &self.path).map(drop)
    }
}

/// RFC 3164's severity.
pub(super) fn severity(level: Level) -> u8 {
    match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use super::*;

    fn listener(path: &Path) -> UnixDatagram {
        let listener = UnixDatagram::bind(path).unwrap();
        listener.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        listener
    }

    fn next(listener: &UnixDatagram) -> String {
        let mut bytes = [0; 256];
        let len_bytes = listener.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..len_bytes].to_vec()).unwrap()
    }

    #[test]
    fn a_message_arrives_with_its_priority_also_at_a_restarted_listener() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let first = listener(&path);
        let log = SystemLog::open("rpmemd", &path).unwrap();
        log.send(Level::Error, "a pool is lost").unwrap();
        log.send(Level::Debug, "a detail").unwrap();
        let id = process::id();
        assert_eq!(next(&first), format!("<27>rpmemd[{id}]: a pool is lost"));
        assert_eq!(next(&first), format!("<31>rpmemd[{id}]: a detail"));

        drop(first);
        fs::remove_file(&path).unwrap();
        log.send(Level::Warn, "nobody listens").unwrap_err();
        let second = listener(&path);
        log.send(Level::Warn, "again").unwrap();
        assert_eq!(next(&second), format!("<28>rpmemd[{id}]: again"));
    }

    #[test]
    fn a_log_that_nobody_listens_at_is_an_error_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let error = SystemLog::open("rpmemd", &directory.path().join("log")).unwrap_err();
        assert!(format!("{error:#}").contains("use-syslog"), "{error:#}");
    }
}
