//! The log.

use std::{
    ffi::{CStr, CString, c_int},
    io::Write as _,
    panic::Location,
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicI32, AtomicPtr, Ordering},
    },
};

use libc::c_char;

use crate::environment::variable;

/// The level of a message, as librpma numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(i32)]
pub(crate) enum Level {
    Error = 1,
    Warning = 2,
    Notice = 3,
    Info = 4,
    Debug = 5,
}

pub(crate) const LEVEL_DISABLED: c_int = -1;
const LEVEL_WARNING: c_int = 2;
pub(crate) const LEVEL_DEBUG: c_int = 5;

/// What a message must reach to go to the log function (by default syslog), and to standard error.
pub(crate) static THRESHOLDS: [AtomicI32; 2] = [AtomicI32::new(LEVEL_WARNING), AtomicI32::new(LEVEL_DISABLED)];

/// The application's log function, or null for syslog and standard error.
pub(crate) static FUNCTION: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// librpma's `rpma_log_function`: level, file, line, function, format, what the format asks for.
type LogFunction = unsafe extern "C" fn(c_int, *const c_char, c_int, *const c_char, *const c_char, ...);

/// `PMOF_LOG`: the level from which on messages go to standard error, whatever the thresholds say.
fn forced_level() -> Option<c_int> {
    static LEVEL: OnceLock<Option<c_int>> = OnceLock::new();
    *LEVEL.get_or_init(|| match variable("PMOF_LOG")?.as_str() {
        "error" => Some(1),
        "warning" | "warn" => Some(LEVEL_WARNING),
        "notice" => Some(3),
        "debug" => Some(LEVEL_DEBUG),
        _ => Some(4),
    })
}

/// Whether a message of this level is logged; checked before the message is formatted.
pub(crate) fn is_logged(level: Level) -> bool {
    let level = level as c_int;
    THRESHOLDS.iter().any(|threshold| level <= threshold.load(Ordering::Relaxed))
        || forced_level().is_some_and(|forced| level <= forced)
}

/// Logs a message about what `function` did.
#[cold]
#[track_caller]
pub(crate) fn log(level: Level, function: &CStr, message: &str) {
    let number = level as c_int;
    let [main, auxiliary] = [0, 1].map(|index| number <= THRESHOLDS[index].load(Ordering::Relaxed));
    // Arguments of the application may contain any bytes.
    let text = CString::new(message.replace('\0', "?")).unwrap_or_default();
    let own = FUNCTION.load(Ordering::Acquire);
    if main && !own.is_null() {
        // SAFETY: only `rpma_log_set_function` stores here, which takes a function of this type.
        let own: LogFunction = unsafe { std::mem::transmute(own) };
        let place = Location::caller();
        let (file, line) =
            (CString::new(place.file()).unwrap_or_default(), c_int::try_from(place.line()).unwrap_or(c_int::MAX));
        // SAFETY: the format asks for one string; all strings live during the call.
        unsafe { own(number, file.as_ptr(), line, function.as_ptr(), c"%s".as_ptr(), text.as_ptr()) };
    } else if main {
        let priority = libc::LOG_LOCAL7 | (number + libc::LOG_CRIT).min(libc::LOG_DEBUG);
        // SAFETY: the format asks for two strings, which live during the call.
        unsafe { libc::syslog(priority, c"rpma: %s: %s".as_ptr(), function.as_ptr(), text.as_ptr()) };
    }
    if (auxiliary && own.is_null()) || forced_level().is_some_and(|forced| number <= forced) {
        let name = match level {
            Level::Error => "error",
            Level::Warning => "warning",
            Level::Notice => "notice",
            Level::Info => "info",
            Level::Debug => "debug",
        };
        let function = function.to_string_lossy();
        // A closed standard error is ignored.
        // One write, since processes share it.
        let _ = std::io::stderr().write_all(format!("pmof librpma {name}: {function}: {message}\n").as_bytes());
    }
}

/// Forwards log records of pmof's crates.
#[derive(Debug)]
struct Logger;

fn level_of(level: log::Level) -> Level {
    match level {
        log::Level::Error => Level::Error,
        log::Level::Warn => Level::Warning,
        log::Level::Info => Level::Info,
        log::Level::Debug | log::Level::Trace => Level::Debug,
    }
}

impl log::Log for Logger {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        is_logged(level_of(metadata.level()))
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            let target = CString::new(record.target()).unwrap_or_default();
            log(level_of(record.level()), &target, &record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// Installs the logger for pmof's crates.
pub(crate) fn listen() {
    // A program written in Rust may have installed another one before.
    let _ = log::set_logger(&Logger);
    listen_to_what_is_logged();
}

/// Formats a message only if it is logged.
pub(crate) fn listen_to_what_is_logged() {
    let filters = [log::LevelFilter::Debug, log::LevelFilter::Info, log::LevelFilter::Warn, log::LevelFilter::Error];
    let levels = [Level::Debug, Level::Info, Level::Warning, Level::Error];
    let most = levels.into_iter().zip(filters).find(|(level, _)| is_logged(*level));
    log::set_max_level(most.map_or(log::LevelFilter::Off, |(_, filter)| filter));
}
