//! The functions by which programs configure the log.

use std::{
    ffi::c_int,
    sync::atomic::{AtomicI32, Ordering},
};

use crate::{
    argument::Out,
    call::call,
    error::Failure,
    log::{FUNCTION, LEVEL_DEBUG, LEVEL_DISABLED, THRESHOLDS, listen_to_what_is_logged},
};

fn threshold(number: c_int) -> Result<&'static AtomicI32, Failure> {
    let threshold = usize::try_from(number).ok().and_then(|number| THRESHOLDS.get(number));
    threshold.ok_or_else(|| Failure::invalid("the threshold is neither RPMA_LOG_THRESHOLD nor RPMA_LOG_THRESHOLD_AUX"))
}

/// Sets from which level on messages go to the log function (threshold 0) or to standard error (1).
#[unsafe(no_mangle)]
pub extern "C" fn rpma_log_set_threshold(threshold_number: c_int, level: c_int) -> c_int {
    call(c"rpma_log_set_threshold", || {
        let threshold = threshold(threshold_number)?;
        if !(LEVEL_DISABLED..=LEVEL_DEBUG).contains(&level) {
            return Err(Failure::invalid(format!("there is no log level {level}")));
        }
        threshold.store(level, Ordering::Relaxed);
        listen_to_what_is_logged();
        Ok(())
    })
}

/// Returns the current level.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_log_get_threshold(threshold_number: c_int, level: Out<c_int>) -> c_int {
    call(c"rpma_log_get_threshold", || {
        let threshold = threshold(threshold_number)?;
        level.need("level")?;
        level.put(threshold.load(Ordering::Relaxed));
        Ok(())
    })
}

/// Sets the function that messages go to; null: syslog and standard error.
///
/// # Safety
///
/// `function` is null or an `rpma_log_function` that may be called from any thread until another one is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpma_log_set_function(function: *mut ()) -> c_int {
    call(c"rpma_log_set_function", || {
        FUNCTION.store(function, Ordering::Release);
        Ok(())
    })
}
