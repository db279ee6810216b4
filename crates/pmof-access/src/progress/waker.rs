//! What wakes a thread that sleeps on the sockets of its connections themselves.

use std::{
    ops::Deref,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use pmof_locks::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::poller::{Interest, timespec};

/// A socket to sleep on, kept open meanwhile, and what for.
pub(crate) type SleepSocket = (Arc<dyn AsFd + Send + Sync>, Interest);

/// Wakes whoever sleeps with it: now, or when it next sleeps.
#[derive(Debug)]
pub(crate) struct Waker(OwnedFd);

impl Waker {
    pub(crate) fn wake(&self) {
        // Full means that a wake-up waits already.
        let _ = rustix::io::write(&self.0, &[1, 0, 0, 0, 0, 0, 0, 0]);
    }

    /// Sleeps until a socket is ready or a wake-up comes, at most `timeout`.
    pub(crate) fn sleep(&self, sockets: &[SleepSocket], timeout: Duration) {
        if sleep_on(sockets, Some(self.0.as_fd()), timeout) {
            let _ = rustix::io::read(&self.0, &mut [0; 8]);
        }
    }
}

/// Sleeps until a socket is ready, at most `timeout`, where there is no waker.
pub(crate) fn sleep_without_waker(sockets: &[SleepSocket], timeout: Duration) {
    sleep_on(sockets, None, timeout);
}

/// True if `wake` is readable.
fn sleep_on(sockets: &[SleepSocket], wake: Option<BorrowedFd<'_>>, timeout: Duration) -> bool {
    let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(sockets.len() + 1);
    fds.extend(wake.map(|wake| PollFd::from_borrowed_fd(wake, PollFlags::IN)));
    fds.extend(sockets.iter().map(|(socket, interest)| {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, interest.input);
        flags.set(PollFlags::OUT, interest.output);
        PollFd::from_borrowed_fd(socket.as_fd(), flags)
    }));
    // A signal ends the sleep early, which every caller takes for nothing having happened yet.
    poll(&mut fds, Some(&timespec(timeout))).is_ok() && wake.is_some() && !fds[0].revents().is_empty()
}

/// Wakers of the threads that sleep: as many as sleep at once, whatever the connections.
#[derive(Debug, Default)]
pub(crate) struct Wakers(Mutex<Vec<Arc<Waker>>>);

/// One of a thread that sleeps; it goes back when this is dropped.
#[derive(Debug)]
pub(crate) struct TakenWaker<'w> {
    waker: Arc<Waker>,
    of: &'w Wakers,
}

impl Wakers {
    /// `None` where the process is out of descriptors.
    pub(crate) fn take(&self) -> Option<TakenWaker<'_>> {
        let rested = self.0.lock().pop();
        let waker = rested.or_else(|| {
            let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
            Some(Arc::new(Waker(fd)))
        })?;
        Some(TakenWaker { waker, of: self })
    }
}

impl Deref for TakenWaker<'_> {
    type Target = Arc<Waker>;

    fn deref(&self) -> &Arc<Waker> {
        &self.waker
    }
}

impl Drop for TakenWaker<'_> {
    fn drop(&mut self) {
        // A wake-up that is late ends somebody else's sleep early, who then looks and sleeps again.
        self.of.0.lock().push(Arc::clone(&self.waker));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_wake_up_ends_the_present_sleep_or_the_next() {
        let wakers = Wakers::default();
        let waker = wakers.take().unwrap();
        waker.wake();
        waker.sleep(&[], LONG);
        let other = Arc::clone(&waker);
        std::thread::scope(|scope| {
            scope.spawn(move || other.wake());
            waker.sleep(&[], LONG);
        });
        drop(waker);
        assert_eq!(wakers.0.lock().len(), 1, "it was given back");
    }

    #[test]
    fn a_socket_ends_a_sleep_for_what_it_is_watched_for() {
        let (one, other) = UnixStream::pair().unwrap();
        let socket: Arc<dyn AsFd + Send + Sync> = Arc::new(one);
        let wakers = Wakers::default();
        let waker = wakers.take().unwrap();
        let input = Interest { input: true, output: false };
        waker.sleep(&[(Arc::clone(&socket), Interest { input: true, output: true })], LONG);
        waker.sleep(&[(Arc::clone(&socket), input)], Duration::from_millis(1));
        drop(other);
        waker.sleep(&[(Arc::clone(&socket), input)], LONG);
        sleep_without_waker(&[(socket, input)], LONG);
    }
}
