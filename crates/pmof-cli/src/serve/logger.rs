//! The log of a target.

use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::Context;
use log::{Level, LevelFilter, Log, Metadata, Record};
use parking_lot::Mutex;
use pmof::mem::open_to_append;

use self::system::SystemLog;

mod system;

/// Log levels, by the names of rpmemd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogLevel {
    /// Failures in this process while it serves others
    Err,
    /// Also warnings
    Warn,
    /// Also connections that begin and end
    Notice,
    /// The same as notice
    Info,
    /// Everything
    Debug,
}

impl LogLevel {
    fn filter(self) -> LevelFilter {
        match self {
            Self::Err => LevelFilter::Error,
            Self::Warn => LevelFilter::Warn,
            Self::Notice | Self::Info => LevelFilter::Info,
            Self::Debug => LevelFilter::Trace,
        }
    }
}

/// Where the log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LogTo {
    Stderr,
    File(PathBuf),
    Syslog,
}

/// Sets this process's logger, once. `name` is the command's.
pub(crate) fn start(name: &'static str, level: LogLevel, to: &LogTo) -> anyhow::Result<()> {
    match to {
        LogTo::Syslog => {
            let logger = SystemLog::open(name, Path::new(system::SOCKET))?;
            // No other logger was set before.
            let _ = log::set_boxed_logger(Box::new(logger));
        }
        LogTo::File(path) => {
            let file = open_to_append(path, false);
            let file = file.with_context(|| format!("cannot open the log file {}", path.display()))?;
            let _ = log::set_boxed_logger(Box::new(Lines { name, file: Some(Mutex::new(file)) }));
        }
        LogTo::Stderr => {
            let _ = log::set_boxed_logger(Box::new(Lines { name, file: None }));
        }
    }
    log::set_max_level(level.filter());
    Ok(())
}

/// One line per message, to a file or to standard error.
struct Lines {
    name: &'static str,
    file: Option<Mutex<File>>,
}

impl Log for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let level = match record.level() {
            Level::Error => String::new(),
            level => format!("{}: ", level.as_str().to_lowercase()),
        };
        let line = format!("{}: {level}{}\n", self.name, record.args());
        // A log that cannot be written is no reason to stop serving.
        let _ = match &self.file {
            Some(file) => file.lock().write_all(line.as_bytes()),
            None => io::stderr().write_all(line.as_bytes()),
        };
    }

    fn flush(&self) {}
}
