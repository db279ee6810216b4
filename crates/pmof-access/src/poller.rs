//! Readiness of many sockets at once: epoll, and an eventfd to wake a parked thread.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::{
    buffer::spare_capacity,
    event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll},
    io::Errno,
};

use crate::{SetupError, error::system};

/// Events taken at once.
const EVENTS_AT_ONCE: usize = 256;

/// What a socket is watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interest {
    pub(crate) input: bool,
    pub(crate) output: bool,
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, self.input);
        flags.set(epoll::EventFlags::OUT, self.output);
        flags
    }
}

#[derive(Debug)]
pub(crate) struct Poller {
    epoll: OwnedFd,
    /// Not watched by the epoll: that one is readable for sockets alone, which is what applications wait for.
    wake: OwnedFd,
}

impl Poller {
    pub(crate) fn new() -> Result<Self, SetupError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll_create1"))?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(system("eventfd"))?;
        Ok(Self { epoll, wake })
    }

    pub(crate) fn add(&self, fd: BorrowedFd<'_>, id: u64, interest: Interest) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(id), interest.flags())
    }

    pub(crate) fn modify(&self, fd: BorrowedFd<'_>, id: u64, interest: Interest) -> Result<(), Errno> {
        epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(id), interest.flags())
    }

    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) {
        // It is there unless the process closed it behind our back; either way it is no longer watched.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Calls `each` with the number of every socket that is ready now.
    pub(crate) fn ready(&self, mut each: impl FnMut(u64)) {
        let mut events = Vec::with_capacity(EVENTS_AT_ONCE);
        // A failure is taken for nothing having happened yet.
        let Ok(_) = epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timespec(Duration::ZERO))) else {
            return;
        };
        for event in events {
            each(event.data.u64());
        }
    }

    /// Sleeps until a socket is ready or a wake-up comes, at most `timeout`. For one thread at a time.
    pub(crate) fn sleep(&self, timeout: Duration) {
        self.sleep_on(self.epoll.as_fd(), timeout);
    }

    /// The same, until this descriptor is readable or a wake-up comes.
    pub(crate) fn sleep_on(&self, fd: BorrowedFd<'_>, timeout: Duration) {
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN), PollFd::new(&self.wake, PollFlags::IN)];
        // A signal ends the sleep early, which every caller takes for nothing having happened yet.
        let Ok(_) = poll(&mut fds, Some(&timespec(timeout))) else { return };
        if !fds[1].revents().is_empty() {
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
    }

    /// Ends the present or next sleep.
    pub(crate) fn wake(&self) {
        // The counter can only be full if a wake-up is pending already. Any nonzero bytes are a nonzero count.
        let _ = rustix::io::write(&self.wake, &[1; 8]);
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

fn timespec(duration: Duration) -> Timespec {
    let tv_sec = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec, tv_nsec: i64::from(duration.subsec_nanos()) }
}
