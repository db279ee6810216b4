//! The log: `PMOF_LOG` (error, warn, info, debug) or librpmem's `RPMEM_LOG_LEVEL` (1 to 4) says how much,
//! `RPMEM_LOG_FILE` a file instead of standard error. Without them nothing is logged.

use std::{
    env,
    fs::File,
    io::{self, Write as _},
    sync::Once,
};

use log::{LevelFilter, Log, Metadata, Record};
use pmof_mem::open_to_append;

/// Logs a failed call.
#[cold]
pub(crate) fn warn(message: &str) {
    log::warn!(target: "librpmem", "{message}");
}

struct FileLogger {
    file: Option<File>,
}

impl Log for FileLogger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let line = format!("pmof librpmem {}: {}\n", record.level().as_str().to_lowercase(), record.args());
        // A log that cannot be written is ignored.
        let _ = match &self.file {
            Some(file) => (&*file).write_all(line.as_bytes()),
            None => io::stderr().write_all(line.as_bytes()),
        };
    }

    fn flush(&self) {}
}

fn level() -> LevelFilter {
    let pmof = env::var("PMOF_LOG").ok();
    let librpmem = env::var("RPMEM_LOG_LEVEL").ok();
    match pmof.or(librpmem).as_deref() {
        None | Some("" | "0") => LevelFilter::Off,
        Some("error" | "1") => LevelFilter::Error,
        Some("warn" | "warning" | "2") => LevelFilter::Warn,
        Some("debug" | "4") => LevelFilter::Debug,
        Some(_) => LevelFilter::Info,
    }
}

/// Installs the logger for pmof's crates according to the environment.
pub(crate) fn start() {
    static START: Once = Once::new();
    START.call_once(|| {
        let path = env::var_os("RPMEM_LOG_FILE");
        let file = path.and_then(|path| open_to_append(path.as_ref(), false).ok());
        // A program written in Rust may have installed another logger before.
        if log::set_boxed_logger(Box::new(FileLogger { file })).is_ok() {
            log::set_max_level(level());
        }
    });
}
