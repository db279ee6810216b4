//! One system call between a socket and memory in several parts.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
};

/// The most parts of one call: head, memory, tail.
const PARTS_MAX: usize = 3;

/// Memory that the kernel reads or writes: start and length in bytes.
pub(crate) type Part = (*mut u8, usize);

/// Receives into `parts` in order, without waiting; empty parts are skipped.
///
/// Refuses an empty whole: its 0 bytes would read as the end of the stream.
///
/// # Safety
///
/// Each part must be valid for writes during the call, and nothing may hold a reference to its bytes.
pub(crate) unsafe fn receive(fd: BorrowedFd<'_>, parts: [Part; 2]) -> io::Result<usize> {
    let (mut vectors, count) = vectors(&parts);
    if count == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "there is no room to receive into"));
    }
    let mut message = message(&mut vectors, count);
    loop {
        // SAFETY: the message names `count` vectors that outlive the call; their memory is valid for writes, and no reference to it exists.
        let received = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        if let Some(outcome) = outcome(received) {
            return outcome;
        }
    }
}

/// Sends `parts` in order, without waiting and without `SIGPIPE`; empty parts are skipped.
///
/// # Safety
///
/// Each part must be valid for reads during the call.
pub(crate) unsafe fn send(fd: BorrowedFd<'_>, parts: [Part; 3]) -> io::Result<usize> {
    let (mut vectors, count) = vectors(&parts);
    if count == 0 {
        return Ok(0);
    }
    let message = message(&mut vectors, count);
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    loop {
        // SAFETY: the message names `count` vectors that outlive the call; their memory is valid for reads.
        let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, flags) };
        if let Some(outcome) = outcome(sent) {
            return outcome;
        }
    }
}

/// The non-empty parts, first; and how many they are.
fn vectors(parts: &[Part]) -> ([libc::iovec; PARTS_MAX], usize) {
    let mut vectors = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; PARTS_MAX];
    let mut count = 0;
    for (start, len_bytes) in parts.iter().filter(|part| part.1 > 0) {
        vectors[count] = libc::iovec { iov_base: start.cast(), iov_len: *len_bytes };
        count += 1;
    }
    (vectors, count)
}

fn message(vectors: &mut [libc::iovec; PARTS_MAX], count: usize) -> libc::msghdr {
    // SAFETY: a msghdr of zeros is valid: no name, no vectors, no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    // musl has an int here, glibc a size_t.
    message.msg_iovlen = count as _;
    message
}

/// `None`: a signal came first, call again.
fn outcome(answer: isize) -> Option<io::Result<usize>> {
    match usize::try_from(answer) {
        Ok(count) => Some(Ok(count)),
        Err(_) => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => None,
            error => Some(Err(error)),
        },
    }
}
