//! The process at the other end of a connection.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{UCred, sockopt::socket_peercred},
    process::{PidfdFlags, pidfd_open},
};

/// The process that connected, on this machine. Of others, to which it may have handed on what it was given, nothing is known.
#[derive(Debug)]
pub struct PeerProcess {
    /// `None`: it had ended already.
    process: Option<OwnedFd>,
    id: u32,
    user_id: u32,
}

impl PeerProcess {
    /// The one that connected this Unix socket. `None` where it cannot be found: it is of another namespace of processes.
    ///
    /// Its number is its own as long as it lives. So a number that nobody has tells of its end, and one that is another's by now looks as if it
    /// lived.
    pub(super) fn of(socket: BorrowedFd<'_>) -> Option<Self> {
        // 0, which is no `Pid`, stands for one of another namespace (unix(7)).
        let UCred { pid, uid, .. } = socket_peercred(socket).ok()?;
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => Some(process),
            Err(Errno::SRCH) => None,
            Err(_) => return None,
        };
        Some(Self { process, id: pid.as_raw_nonzero().get().unsigned_abs(), user_id: uid.as_raw() })
    }

    /// Its number. Another process may have it once this one [has ended](Self::has_ended).
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The effective user as whom it connected.
    pub fn user_id(&self) -> u32 {
        self.user_id
    }

    /// Whether it has ended, so that nothing that it had mapped can change memory any more. False also where that is not known.
    pub fn has_ended(&self) -> bool {
        let Some(process) = &self.process else { return true };
        // Readable when its last thread has ended, which is after its memory was unmapped (pidfd_open(2)).
        poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}
