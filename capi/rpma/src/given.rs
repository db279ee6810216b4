//! Descriptors that are given to the application.

use std::{
    ffi::c_int,
    os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, IntoRawFd as _, OwnedFd, RawFd},
};

use pmof_locks::Mutex;
use pmof_mem::forks::file_of_number;

use crate::{
    error::Failure,
    handle::{is_non_blocking, set_blocking},
    log::{Level, log},
};

/// A second number of a descriptor of the library's, which the application is given; the library itself reads, writes and asks by the
/// first. An application that closes its number, and opens something else that takes it, finds there what it has put there: the library
/// never writes to that number, and closes it only while it is its own.
///
/// It must be dropped before the descriptor that it is of.
#[derive(Debug, Default)]
pub(crate) struct Given(Mutex<Option<Numbers>>);

#[derive(Clone, Copy, Debug)]
struct Numbers {
    own: RawFd,
    given: RawFd,
}

impl Given {
    fn numbers(&self) -> Option<Numbers> {
        *self.0.lock()
    }

    /// The application's number, which blocks until the application sets it not to.
    pub(crate) fn give(&self, own: BorrowedFd<'_>) -> Result<c_int, Failure> {
        let mut numbers = self.0.lock();
        if let Some(numbers) = *numbers {
            return Ok(numbers.given);
        }
        let no_number = |error| Failure::provider(format!("no number for the descriptor: {error}"));
        let given = own.try_clone_to_owned().map_err(no_number)?.into_raw_fd();
        set_blocking(given);
        *numbers = Some(Numbers { own: own.as_raw_fd(), given });
        Ok(given)
    }

    /// Whether waits block: always, until the application has the descriptor and sets it to non-blocking.
    pub(crate) fn blocks(&self) -> bool {
        // Both numbers have the same flags.
        !self.numbers().is_some_and(|numbers| is_non_blocking(numbers.own))
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        let Some(Numbers { own, given }) = self.numbers() else { return };
        if is_same(own, given) {
            // SAFETY: the number is of the descriptor that `give` made, which nobody else closes.
            drop(unsafe { OwnedFd::from_raw_fd(given) });
        } else {
            let why = format!(
                "descriptor {given} was closed by the application: the number's new file is not touched, but descriptors that \
                 the library gives out must be closed by the library"
            );
            log(Level::Warning, c"rpma_conn_delete", &why);
        }
    }
}

/// Whether two numbers are of one open file.
fn is_same(one: RawFd, other: RawFd) -> bool {
    const KCMP_FILE: c_int = 0;
    // SAFETY: the calls take numbers only.
    let compared = unsafe {
        let this = libc::getpid();
        libc::syscall(libc::SYS_kcmp, this, this, KCMP_FILE, one, other)
    };
    match compared {
        0 => true,
        // Where the kernel does not compare.
        -1 => file_of_number(one).is_some_and(|file| file_of_number(other) == Some(file)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn a_number_is_closed_while_it_is_the_librarys_own() {
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        let given = Given::default();
        assert!(given.blocks());
        let number = given.give(reader.as_fd()).unwrap();
        assert_eq!(given.give(reader.as_fd()).unwrap(), number, "there is one");
        assert_ne!(number, reader.as_raw_fd());
        assert!(is_same(number, reader.as_raw_fd()));
        drop(given);
        assert!(!is_same(number, reader.as_raw_fd()));
    }

    #[test]
    fn a_number_that_something_else_has_stays() {
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        let (other, _other_writer) = rustix::pipe::pipe().unwrap();
        let given = Given::default();
        let number = given.give(reader.as_fd()).unwrap();
        // SAFETY: the number is closed and taken again in one step, and owned from then on.
        let taken = unsafe {
            assert_eq!(libc::dup2(other.as_raw_fd(), number), number);
            OwnedFd::from_raw_fd(number)
        };
        drop(given);
        assert!(is_same(taken.as_raw_fd(), other.as_raw_fd()));
        assert!(file_of_number(taken.as_raw_fd()) == file_of_number(other.as_raw_fd()) && file_of_number(-1).is_none());
    }
}
