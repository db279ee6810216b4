//! The log of a target: one line for each event, as text or as JSON.

use std::{
    fs::File,
    io::{self, Seek as _, Write},
    os::{fd::AsFd, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::Context;
use log::{LevelFilter, Log, Metadata, Record};
use pmof_locks::Mutex;
use pmof_mem::open_to_append;

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
    let lines: &'static Lines = Box::leak(Box::new(Lines { format, out: Mutex::new(Out::new(sink)) }));
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
    /// Whether the log ends with a part of a line, which the next one has to end.
    is_cut: bool,
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
    fn new(sink: Sink) -> Self {
        Self { sink, lost: 0, is_cut: false }
    }

    /// A log that cannot be written is no reason to stop serving. How many lines were lost is the first that is told afterwards.
    fn write(&mut self, line: &Line, format: LogFormat) {
        if self.lost > 0 && self.put(&Line::lost(line.time, self.lost), format) {
            self.lost = 0;
        }
        // After a line that tells of fewer than were lost none may come.
        if self.lost > 0 || !self.put(line, format) {
            self.lost += 1;
        }
    }

    /// Whether all of the line was written. What is written of a line that is not is taken back, or else ended before the next line.
    fn put(&mut self, line: &Line, format: LogFormat) -> bool {
        match self.sink.write(line, format, if self.is_cut { "\n" } else { "" }) {
            Ok(()) => self.is_cut = false,
            Err(Cut { written_bytes: 0 }) => return false,
            Err(Cut { .. }) => {
                self.is_cut = true;
                return false;
            }
        }
        true
    }
}

/// A write that failed, after so much of it was written as is still there.
#[derive(Debug)]
struct Cut {
    written_bytes: usize,
}

impl Sink {
    fn write(&mut self, line: &Line, format: LogFormat, before: &str) -> Result<(), Cut> {
        let text = match format {
            LogFormat::Text => line.text(),
            LogFormat::Json => line.json(),
        };
        let nothing = |_| Cut { written_bytes: 0 };
        match self {
            // The system log has times of its own.
            Self::System(system) if format == LogFormat::Text => {
                system.send(line.level, &line.without_time()).map_err(nothing)
            }
            Self::System(system) => system.send(line.level, &text).map_err(nothing),
            Self::File(_, file) => {
                let written = write_all(file, format!("{before}{text}\n").as_bytes());
                written.map_err(|cut| if take_back(file, &cut).is_ok() { Cut { written_bytes: 0 } } else { cut })
            }
            Self::Stderr { to_journal: true } => {
                let text = if format == LogFormat::Text { line.without_time() } else { text };
                let priority = system::severity(line.level);
                write_all(&mut io::stderr(), format!("{before}<{priority}>{text}\n").as_bytes())
            }
            Self::Stderr { to_journal: false } => write_all(&mut io::stderr(), format!("{before}{text}\n").as_bytes()),
        }
    }
}

/// As [`Write::write_all`], which does not tell how much was written.
fn write_all(out: &mut impl Write, bytes: &[u8]) -> Result<(), Cut> {
    let mut written_bytes = 0;
    while written_bytes < bytes.len() {
        match out.write(&bytes[written_bytes..]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(count) if count > 0 => written_bytes += count,
            _ => return Err(Cut { written_bytes }),
        }
    }
    Ok(())
}

/// Cuts the part of a line off, if nobody has appended to the file since: the position of a file that is appended to is behind what was written last.
fn take_back(file: &mut File, cut: &Cut) -> io::Result<()> {
    let (end, len_bytes) = (file.stream_position()?, file.metadata()?.len());
    match end.checked_sub(cut.written_bytes as u64) {
        Some(begin) if end == len_bytes => file.set_len(begin),
        _ => Err(io::ErrorKind::Unsupported.into()),
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
        let mut out = Out::new(full());
        for _ in 0..3 {
            out.write(&line("nobody reads this"), LogFormat::Text);
        }
        out.sink = Sink::File(path.clone(), open(&path).unwrap());
        out.write(&line("there is room"), LogFormat::Text);
        out.write(&line("and more"), LogFormat::Text);
        let text = std::fs::read_to_string(path).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[0].contains("log_lines_lost: 3 lines"), "{text}");
        assert!(lines[1].ends_with("there is room") && lines[2].ends_with("and more"), "{text}");
    }

    #[test]
    fn a_part_of_a_line_that_cannot_be_taken_back_is_ended_before_the_next() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        std::fs::write(&path, "{\"half\":").unwrap();
        let mut out = Out { sink: Sink::File(path.clone(), open(&path).unwrap()), lost: 2, is_cut: true };
        out.write(&line("whole"), LogFormat::Json);
        out.write(&line("again"), LogFormat::Json);
        let text = std::fs::read_to_string(path).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert!(lines.len() == 4 && lines[0] == "{\"half\":", "{text}");
        assert!(lines[1].contains("\"count\":2") && lines[2].contains("whole") && lines[3].contains("again"), "{text}");
        assert!(lines[1..].iter().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "{text}");
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
