//! The filter: a program of classic BPF that the kernel runs at each system call of the thread.

use std::{
    io,
    os::fd::{FromRawFd as _, OwnedFd},
};

use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W, c_long, sock_filter, sock_fprog};

use crate::Silence;

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

/// The calls that [`silence`] answers.
const SYNCS: [c_long; 4] = [libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_msync, libc::SYS_sync_file_range];
/// Where `seccomp_data` has the lower half of the first argument.
const FIRST_ARGUMENT_AT: u32 = 16;

/// Has the kernel answer 0 to the calls that flush files, of this thread and of all that it starts, without carrying them out.
pub(crate) fn silence(silence: Silence) -> io::Result<()> {
    let jump = |code: u32, k: u32, jt: u8, jf: u8| sock_filter { code: code as u16, jt, jf, k };
    let mut program = Vec::new();
    for number in SYNCS {
        program.push(statement(BPF_LD | BPF_W | BPF_ABS, 0));
        let is_cunning = silence == Silence::Valid;
        let behind = if is_cunning { 3 } else { 1 };
        program.push(jump(BPF_JMP | BPF_JEQ | BPF_K, number.unsigned_abs() as u32, 0, behind));
        if is_cunning {
            program.push(statement(BPF_LD | BPF_W | BPF_ABS, FIRST_ARGUMENT_AT));
            // No page begins there; no file has this descriptor.
            program.push(if number == libc::SYS_msync {
                jump(BPF_JMP | BPF_JSET | BPF_K, 0xfff, 1, 0)
            } else {
                jump(BPF_JMP | BPF_JEQ | BPF_K, u32::MAX, 1, 0)
            });
        }
        program.push(statement(BPF_RET | BPF_K, libc::SECCOMP_RET_ERRNO));
    }
    program.push(statement(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW));
    load(&mut program, 0).map(|_| ())
}

/// Has the kernel refuse netlink sockets, of this thread and of all that it starts.
pub(crate) fn refuse_netlink() -> io::Result<()> {
    let skip_unless = |k: u32, jf: u8| sock_filter { code: (BPF_JMP | BPF_JEQ | BPF_K) as u16, jt: 0, jf, k };
    let mut program = [
        statement(BPF_LD | BPF_W | BPF_ABS, 0),
        skip_unless(libc::SYS_socket.unsigned_abs() as u32, 3),
        statement(BPF_LD | BPF_W | BPF_ABS, FIRST_ARGUMENT_AT),
        skip_unless(libc::AF_NETLINK.unsigned_abs(), 1),
        statement(BPF_RET | BPF_K, libc::SECCOMP_RET_ERRNO | libc::EAFNOSUPPORT.unsigned_abs()),
        statement(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    load(&mut program, 0).map(|_| ())
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
    let fd = load(&mut program, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)?;
    // SAFETY: the kernel has just made this descriptor, and no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Loads a filter for this thread, and for all that it starts.
fn load(program: &mut [sock_filter], flags: libc::c_ulong) -> io::Result<c_long> {
    let header = sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the call takes numbers only, and changes what this thread may gain by exec.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the header and the program that it points to live until the call returns, and the kernel copies them.
    let outcome = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const header) };
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(outcome) }
}
