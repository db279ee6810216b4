//! What tells that something came, or that it is time to try again.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use rustix::{
    event::{Timespec, epoll},
    io::Errno,
    time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime},
};

/// How long a sleeper may sleep while the socket takes no more: at first, and at most where nothing happens. A receiver that is congested shows on no
/// descriptor.
const NAP_MIN: Duration = Duration::from_micros(50);
const NAP_MAX: Duration = Duration::from_millis(1);

/// The descriptor that those who drive a connection sleep on. It is there before the RDS socket.
#[derive(Debug)]
pub(super) struct Sleeping {
    epoll: OwnedFd,
    timer: OwnedFd,
}

impl Sleeping {
    pub(super) fn new() -> Result<Arc<Self>, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Arc::new(Self { epoll, timer }))
    }

    /// Watches the RDS socket too.
    pub(super) fn watch(&self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        epoll::add(&self.epoll, socket, epoll::EventData::new_u64(1), epoll::EventFlags::IN)
    }

    /// Wakes sleepers after a nap, which is longer the more naps there were since something happened. `None`: never.
    pub(super) fn wake_after(&self, naps: Option<u32>) {
        // Empty unless it went off.
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        let nap = naps.map_or(Duration::ZERO, |naps| NAP_MAX.min(NAP_MIN * 2_u32.saturating_pow(naps.min(16))));
        let it_value = Timespec { tv_sec: 0, tv_nsec: nap.subsec_nanos().into() };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        // There is no way for it to fail: the timer is there, and the time is a time.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval, it_value });
    }
}

impl AsFd for Sleeping {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
