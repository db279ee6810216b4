//! Readiness of many sockets at once: epoll, and a timer to wake a parked thread.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use rustix::{
    buffer::spare_capacity,
    event::{PollFd, PollFlags, Timespec, epoll, poll},
    io::Errno,
    time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime},
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
    /// A timer: it expires at once where a sleeper is to wake. Not watched by the epoll: that one is readable for sockets
    /// alone, which is what applications wait for.
    wake: OwnedFd,
    /// What the sleeper has set it to, by the sleeper's clock in ns; `UNSET` when it may be set to anything.
    alarm_ns: AtomicU64,
}

const UNSET: u64 = u64::MAX;

impl Poller {
    pub(crate) fn new() -> Result<Self, SetupError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll_create1"))?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let wake = timerfd_create(TimerfdClockId::Monotonic, flags).map_err(system("timerfd_create"))?;
        Ok(Self { epoll, wake, alarm_ns: AtomicU64::new(UNSET) })
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
        self.sleep_on(self.epoll.as_fd(), Some(timeout));
    }

    /// Sleeps until this descriptor is readable, a wake-up comes or the [alarm](Self::set_alarm) goes off. For one thread at
    /// a time.
    pub(crate) fn sleep_till_alarm(&self, fd: BorrowedFd<'_>) {
        self.sleep_on(fd, None);
    }

    fn sleep_on(&self, fd: BorrowedFd<'_>, timeout: Option<Duration>) {
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN), PollFd::new(&self.wake, PollFlags::IN)];
        // A signal ends the sleep early, which every caller takes for nothing having happened yet.
        let Ok(_) = poll(&mut fds, timeout.map(timespec).as_ref()) else { return };
        if !fds[1].revents().is_empty() {
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
            self.alarm_ns.store(UNSET, Ordering::Relaxed);
        }
    }

    /// Has a sleep end at a time. By the thread that is about to sleep, before others know of it: a wake-up that came
    /// before is forgotten. One timer for many short sleeps costs less than a time limit for each. False if there is none to be
    /// had.
    pub(crate) fn set_alarm(&self, now: Duration, at: Duration) -> bool {
        if self.has_alarm(at) {
            return true;
        }
        let is_set = self.expire_in(at.saturating_sub(now)).is_ok();
        self.alarm_ns.store(if is_set { alarm_ns(at) } else { UNSET }, Ordering::Relaxed);
        is_set
    }

    /// True if the [alarm](Self::set_alarm) is set for this time, and no sleep has seen it go off.
    pub(crate) fn has_alarm(&self, at: Duration) -> bool {
        self.alarm_ns.load(Ordering::Relaxed) == alarm_ns(at)
    }

    /// Ends the present or next sleep.
    pub(crate) fn wake(&self) {
        // There is nothing that it could fail for.
        let _ = self.expire_in(Duration::ZERO);
    }

    fn expire_in(&self, time: Duration) -> Result<(), Errno> {
        // Zero would stop it.
        let it_value = timespec(time.max(Duration::from_nanos(1)));
        let it_interval = timespec(Duration::ZERO);
        timerfd_settime(&self.wake, TimerfdTimerFlags::empty(), &Itimerspec { it_interval, it_value }).map(drop)
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

fn alarm_ns(at: Duration) -> u64 {
    u64::try_from(at.as_nanos()).unwrap_or(UNSET - 1)
}

pub(super) fn timespec(duration: Duration) -> Timespec {
    let tv_sec = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec, tv_nsec: i64::from(duration.subsec_nanos()) }
}
