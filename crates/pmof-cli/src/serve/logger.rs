//! The log of a target: one line for each event, as text or as JSON.

use std::{
    fs::File,
    io::{self, Write},
    os::{fd::AsFd, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::Context;
use log::{LevelFilter, Log, Metadata, Record};
use parking_lot::Mutex;
use pmof::mem::open_to_append;

use self::{line::Line, system::SystemLog};

mod line;
mod system;

/// Log levels. The names of rpmemd stand for them too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogLevel {
    /// What somebody has to mend: a full disk, a damaged pool, memory that failed
    #[value(alias = "err")]
    Error,
    /// Also lost connections, refused ones, and pools that were left open or taken over
    #[value(alias = "warning")]
    Warn,
    /// Also start and stop, connections, pools that are made, opened, closed and removed, and refused requests
    #[value(alias = "notice")]
    Info,
    /// Also each request, and how flushes are done
    Debug,
}

impl LogLevel {
    fn filter(self) -> LevelFilter {
        match self {
            Self::Error => LevelFilter::Error,
            Self::Warn => LevelFilter::Warn,
            Self::Info => LevelFilter::Info,
            Self::Debug => LevelFilter::Trace,
        }
    }
}

/// How lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// `TIME LEVEL EVENT: TEXT (KEY=VALUE ...)`
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

/// Where the log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LogTo {
    Stderr,
    File(PathBuf),
    Syslog,
}

/// The log that was started.
#[derive(Clone, Copy)]
pub(crate) struct Logger(&'static Lines);

/// Sets this process's logger, once. `name` is the command's, for the system log.
pub(crate) fn start(name: &'static str, level: LogLevel, format: LogFormat, to: &LogTo) -> anyhow::Result<Logger> {
    let sink = match to {
        LogTo::Syslog => Sink::System(SystemLog::open(name, Path::new(system::SOCKET))?),
        LogTo::File(path) => Sink::File(path.clone(), open(path)?),
        LogTo::Stderr => {
            let journal = std::env::var("JOURNAL_STREAM").ok();
            Sink::Stderr { to_journal: journal.is_some_and(|journal| is_journal(&journal, io::stderr())) }
        }
    };
    let lines: &'static Lines = Box::leak(Box::new(Lines { format, out: Mutex::new(Out { sink, lost: 0 }) }));
    // No other logger was set before.
    let _ = log::set_logger(lines);
    log::set_max_level(level.filter());
    Ok(Logger(lines))
}

impl Logger {
    /// Opens the log's file anew, after a program that rotates logs has renamed it. On failure the old one stays in use.
    pub(crate) fn reopen(self) -> anyhow::Result<()> {
        let mut out = self.0.out.lock();
        if let Sink::File(path, file) = &mut out.sink {
            *file = open(path)?;
        }
        Ok(())
    }

    /// Changes the lowest level.
    pub(crate) fn set_level(level: LogLevel) {
        log::set_max_level(level.filter());
    }
}

fn open(path: &Path) -> anyhow::Result<File> {
    open_to_append(path, false).with_context(|| format!("cannot open the log file {}", path.display()))
}

/// Whether a stream leads to journald, which then takes a priority in front of each line (sd-daemon(3)): `JOURNAL_STREAM` names the device
/// and the inode of that stream (systemd.exec(5)).
fn is_journal(journal: &str, stream: impl AsFd) -> bool {
    let metadata = stream.as_fd().try_clone_to_owned().and_then(|stream| File::from(stream).metadata());
    metadata.is_ok_and(|metadata| journal == format!("{}:{}", metadata.dev(), metadata.ino()))
}

struct Lines {
    format: LogFormat,
    out: Mutex<Out>,
}

struct Out {
    sink: Sink,
    /// Lines that could not be written since the last one that could.
    lost: u64,
}

enum Sink {
    Stderr { to_journal: bool },
    File(PathBuf, File),
    System(SystemLog),
}

impl Log for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            self.out.lock().write(&Line::new(SystemTime::now(), record), self.format);
        }
    }

    fn flush(&self) {}
}

impl Out {
    /// A log that cannot be written is no reason to stop serving. How many lines were lost is the first that is told afterwards.
    fn write(&mut self, line: &Line, format: LogFormat) {
        if self.lost > 0 {
            let lost = Line::lost(line.time, self.lost);
            // Of the last one a part may have been written.
            if self.sink.write(&lost, format, "\n").is_err() {
                self.lost += 1;
                return;
            }
            self.lost = 0;
        }
        if self.sink.write(line, format, "").is_err() {
            self.lost += 1;
        }
    }
}

impl Sink {
    fn write(&mut self, line: &Line, format: LogFormat, before: &str) -> io::Result<()> {
        let text = match format {
            LogFormat::Text => line.text(),
            LogFormat::Json => line.json(),
        };
        match self {
            // The system log has times of its own.
            Self::System(system) if format == LogFormat::Text => system.send(line.level, &line.without_time()),
            Self::System(system) => system.send(line.level, &text),
            Self::File(_, file) => file.write_all(format!("{before}{text}\n").as_bytes()),
            Self::Stderr { to_journal: true } => {
                let text = if format == LogFormat::Text { line.without_time() } else { text };
                io::stderr().write_all(format!("{before}<{}>{text}\n", system::severity(line.level)).as_bytes())
            }
            Self::Stderr { to_journal: false } => io::stderr().write_all(format!("{before}{text}\n").as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `/dev/full` answers every write with `ENOSPC`.
    fn full() -> Sink {
        Sink::File("log".into(), File::options().write(true).open("/dev/full").unwrap())
    }

    fn line(message: &str) -> Line {
        let record = Record::builder().level(log::Level::Warn).build();
        Line { message: message.to_owned(), ..Line::new(SystemTime::UNIX_EPOCH, &record) }
    }

    #[test]
    fn lines_that_a_full_disk_took_are_counted_when_there_is_room_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut out = Out { sink: full(), lost: 0 };
        for _ in 0..3 {
            out.write(&line("nobody reads this"), LogFormat::Text);
        }
        out.sink = Sink::File(path.clone(), open(&path).unwrap());
        out.write(&line("there is room"), LogFormat::Text);
        out.write(&line("and more"), LogFormat::Text);
        let text = std::fs::read_to_string(path).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert_eq!(lines[0], "");
        assert!(lines[1].contains("log_lines_lost: 3 lines"), "{text}");
        assert!(lines[2].ends_with("there is room") && lines[3].ends_with("and more"), "{text}");
    }

    #[test]
    fn standard_error_is_the_journal_only_where_the_variable_names_it() {
        let stream = tempfile::tempfile().unwrap();
        let metadata = stream.metadata().unwrap();
        assert!(is_journal(&format!("{}:{}", metadata.dev(), metadata.ino()), &stream));
        assert!(!is_journal(&format!("{}:{}", metadata.dev(), metadata.ino() + 1), &stream));
        assert!(!is_journal("", &stream));
    }
}
