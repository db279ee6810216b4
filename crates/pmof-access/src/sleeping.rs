//! What sleepers of a connection over libfabric or RDS wake by: that there is something to poll for, or that it is time to try again.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, epoll, poll},
    io::Errno,
    time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime},
};

/// How long a sleeper may sleep where nothing wakes it (some providers wake nobody, and an RDS receiver that is congested shows on no descriptor): at first, and at most where nothing happens.
const NAP_MIN: Duration = Duration::from_micros(50);
const NAP_MAX: Duration = Duration::from_millis(1);

/// The descriptor that those who drive a connection sleep on. It is there before the endpoint or RDS socket.
#[derive(Debug)]
pub(crate) struct Sleeping {
    epoll: OwnedFd,
    timer: OwnedFd,
    has_queue: AtomicBool,
    /// Sleepers wake after a nap.
    has_nap: AtomicBool,
}

impl Sleeping {
    pub(crate) fn new() -> Result<Arc<Self>, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Arc::new(Self { epoll, timer, has_queue: AtomicBool::new(false), has_nap: AtomicBool::new(false) }))
    }

    /// Watches the descriptor of a completion queue or RDS socket too.
    pub(crate) fn watch(&self, queue: BorrowedFd<'_>) -> Result<(), Errno> {
        epoll::add(&self.epoll, queue, epoll::EventData::new_u64(1), epoll::EventFlags::IN)?;
        self.has_queue.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether whoever sleeps now is woken at once.
    #[cfg(feature = "fabric")]
    pub(crate) fn is_ready(&self) -> bool {
        poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&Timespec::default())).is_ok_and(|count| count > 0)
    }

    /// Leaves the descriptor of a completion queue out again.
    #[cfg(feature = "fabric")]
    pub(crate) fn unwatch(&self, queue: BorrowedFd<'_>) {
        // One that is closed is out of it already.
        let _ = epoll::delete(&self.epoll, queue);
        self.has_queue.store(false, Ordering::Relaxed);
    }

    /// Whether a provider wakes sleepers.
    #[cfg(feature = "fabric")]
    pub(crate) fn has_queue(&self) -> bool {
        self.has_queue.load(Ordering::Relaxed)
    }

    /// Wakes those after a nap who went to sleep for no other end of it.
    pub(crate) fn wake_too(&self, naps: u32) {
        if !self.has_nap.load(Ordering::Relaxed) {
            self.wake_after(Some(naps));
        }
    }

    /// Wakes sleepers after a nap, which is longer the more naps there were since something happened. `None`: never.
    pub(crate) fn wake_after(&self, naps: Option<u32>) {
        self.has_nap.store(naps.is_some(), Ordering::Relaxed);
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
