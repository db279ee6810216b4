//! The log: `PMOF_LOG` (error, warn, info, debug) or librpmem's `RPMEM_LOG_LEVEL` (1 to 4) says how much,
//! `RPMEM_LOG_FILE` a file instead of standard error. Without them nothing is logged.

use std::{
    env,
    fs::File,
    io::{self, Write as _},
    sync::Once,
};

use log::{Level, LevelFilter, Log, Metadata, Record};
use pmof_mem::open_to_append;

/// Logs a failed call. One that opens, makes or removes a pool is an error: libpmemobj and libpmempool tell their users only that it failed.
#[cold]
pub(crate) fn failed(function: &str, why: &str) {
    let is_for_the_operator = matches!(function, "rpmem_create" | "rpmem_open" | "rpmem_remove");
    let level = if is_for_the_operator { Level::Error } else { Level::Warn };
    log::log!(target: "librpmem", level, "{function}: {why}");
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

#[cfg(test)]
mod tests {
    use std::{env, ffi::c_uint, fs, process::Command, ptr};

    use crate::{rpmem_create, rpmem_open, rpmem_remove};

    const CALLS: &str = "log::tests::calls_that_fail";

    /// What another process runs: the log is of a process, and is set by its environment.
    #[test]
    #[ignore = "run by another test, with an environment of its own"]
    fn calls_that_fail() {
        let (len_bytes, mut lanes): (usize, c_uint) = (4 << 20, 1);
        let memory = pmof_mem::Memory::anonymous(len_bytes as u64).unwrap();
        let address = ptr::with_exposed_provenance_mut(memory.address() as usize);
        let (target, set) = (c"nowhere.invalid".as_ptr(), c"set".as_ptr());
        // SAFETY: strings that end in a NUL, memory that stays mapped, and a number of lanes.
        unsafe {
            assert!(rpmem_create(target, set, address, len_bytes, &raw mut lanes, ptr::null()).is_null());
            assert!(rpmem_open(target, set, address, len_bytes, &raw mut lanes, ptr::null_mut()).is_null());
            assert_eq!(rpmem_remove(target, set, 0), -1);
        }
    }

    #[test]
    fn memory_that_is_missing_is_named() {
        let mut lanes: c_uint = 1;
        let (target, set) = (c"nowhere.invalid".as_ptr(), c"set".as_ptr());
        // SAFETY: strings that end in a NUL, a number of lanes, and a null pointer, which is refused.
        let pool = unsafe { rpmem_create(target, set, ptr::null_mut(), 32 << 20, &raw mut lanes, ptr::null()) };
        assert!(pool.is_null());
        // SAFETY: a string of this thread, which ends in a NUL.
        let message = unsafe { std::ffi::CStr::from_ptr(crate::rpmem_errormsg()) }.to_str().unwrap();
        assert!(message.contains("pool_addr is NULL"), "{message}");
    }

    /// libpmemobj says only that a remote replica could not be opened; with the lowest level of its own variable the reason is in the log.
    #[test]
    fn openings_and_creations_that_fail_are_errors() {
        // Logins that fail, and commands that are not there or no target.
        for (ssh, command, why) in [
            ("/nonexistent/ssh", "rpmemd", "/nonexistent/ssh"),
            ("/bin/false", "rpmemd", "ssh"),
            ("/bin/echo", "rpmemd", "ssh"),
        ] {
            let log = env::temp_dir().join(format!("librpmem-log-{}", std::process::id()));
            let _ = fs::remove_file(&log);
            let mut child = Command::new(env::current_exe().unwrap());
            child.args(["--exact", CALLS, "--ignored"]).env_remove("PMOF_LOG");
            child.env("RPMEM_LOG_LEVEL", "1").env("RPMEM_LOG_FILE", &log);
            child.env("RPMEM_SSH", ssh).env("RPMEM_CMD", command);
            let said = child.output().unwrap();
            assert!(said.status.success(), "{said:?}");
            let text = fs::read_to_string(&log).unwrap_or_default();
            for function in ["rpmem_create", "rpmem_open", "rpmem_remove"] {
                let line = text.lines().find(|line| line.contains(&format!("error: {function}: ")));
                assert!(line.is_some_and(|line| line.contains(why)), "{ssh}, {function}: {text}");
            }
            fs::remove_file(&log).unwrap();
        }
    }
}
