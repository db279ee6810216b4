//! The filter: a program of classic BPF that the kernel runs at each system call of the thread.

use std::{
    io,
    os::fd::{FromRawFd as _, OwnedFd},
};

use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, c_long, sock_filter, sock_fprog};

/// The calls that are shown, by their numbers on this architecture.
pub(crate) const WATCHED: &[c_long] = &[
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_msync,
    libc::SYS_sync,
    libc::SYS_syncfs,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_link,
];

fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Has the kernel show the watched calls of this thread, and of all that it starts, on the descriptor that is returned.
pub(crate) fn install() -> io::Result<OwnedFd> {
    // The number of the call is the first field of `seccomp_data`.
    let mut program = vec![statement(BPF_LD | BPF_W | BPF_ABS, 0)];
    for number in WATCHED {
        program.push(sock_filter {
            code: (BPF_JMP | BPF_JEQ | BPF_K) as u16,
            jt: 0,
            jf: 1,
            k: number.unsigned_abs() as u32,
        });
        program.push(statement(BPF_RET | BPF_K, libc::SECCOMP_RET_USER_NOTIF));
    }
    program.push(statement(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW));
    let header = sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the call takes numbers only, and changes what this thread may gain by exec.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the header and the program that it points to live until the call returns, and the kernel copies them.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const header,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
