//! Descriptors that programs can see, and close.

use std::os::fd::RawFd;

use pmof_mem::forks::file_of_number;

/// A descriptor's number, and what file it was of when it was opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor {
    pub(crate) number: RawFd,
    /// Device and inode.
    file: Option<(u64, u64)>,
}

impl Descriptor {
    pub(crate) fn of(number: RawFd) -> Self {
        Self { number, file: file_of_number(number) }
    }

    /// Whether the number is of that file still. Two descriptors of one device file are not told apart.
    pub(crate) fn is_own(&self) -> bool {
        self.file.is_some() && file_of_number(self.number) == self.file
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn a_number_that_something_else_has_is_not_the_same_descriptor() {
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        let (other, _other_writer) = rustix::pipe::pipe().unwrap();
        // A number of this test's own: other threads of the process may open files at any time.
        let number = reader.try_clone().unwrap();
        let descriptor = Descriptor::of(number.as_raw_fd());
        assert!(descriptor.is_own());
        // SAFETY: the number is taken in one step, and owned by `number` as before.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number.as_raw_fd()) }, number.as_raw_fd());
        assert!(!descriptor.is_own());
        // SAFETY: the number is taken in one step, and owned by `number` all the time.
        unsafe { libc::dup2(reader.as_raw_fd(), number.as_raw_fd()) };
        assert!(descriptor.is_own());
        assert!(!Descriptor::of(-1).is_own());
    }
}
