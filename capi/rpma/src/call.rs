//! The wrapper of every function of the interface.

use std::{
    any::Any,
    ffi::{CStr, c_int},
    panic::{AssertUnwindSafe, catch_unwind},
};

use crate::{
    error::{Code, Failure},
    log::log,
};

/// Runs the body of a function of the interface and returns its code; errors are logged. A panic, which is a
/// defect of pmof, is caught here.
#[inline]
pub(crate) fn call(name: &'static CStr, body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    call_for(name, || body().map(|()| 0))
}

/// The same for a function that has a failure code as common as success.
#[inline]
pub(crate) fn call_for(name: &'static CStr, body: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(code)) => code,
        Ok(Err(failure)) => failed(name, &failure),
        Err(panic) => panicked(name, panic.as_ref()),
    }
}

#[cold]
fn panicked(name: &'static CStr, panic: &(dyn Any + Send)) -> c_int {
    failed(name, &Failure::new(Code::Unknown, panic_text(panic)))
}

#[cold]
fn failed(name: &'static CStr, failure: &Failure) -> c_int {
    if !failure.why().is_empty() {
        log(failure.level(), name, failure.why());
    }
    failure.code() as c_int
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("a defect of pmof, please report it: {}", text.unwrap_or("no message"))
}

/// Fails where a pointer that the function needs is null.
pub(crate) fn need<T>(pointer: *const T, name: &'static str) -> Result<(), Failure> {
    if pointer.is_null() { Err(Failure::invalid(format!("{name} is NULL"))) } else { Ok(()) }
}
