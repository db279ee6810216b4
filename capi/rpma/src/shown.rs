//! Descriptors that show the application whether something is ready, over TCP and shm.

use std::{
    collections::BTreeMap,
    ffi::c_int,
    os::fd::{AsRawFd as _, FromRawFd as _, IntoRawFd as _, OwnedFd, RawFd},
    sync::{Arc, Weak},
};

use pmof_access::ReadyFlag;
use pmof_locks::Mutex;
use pmof_mem::forks::Kept;
use rustix::event::{EventfdFlags, eventfd};

use crate::{
    error::Failure,
    handle::{forks, is_non_blocking},
    log::{Level, log},
};

/// Descriptors that one beacon serves. An epoll instance of the application's takes no more than 500 that lead to one
/// (`path_limits` in the kernel's `fs/eventpoll.c`).
const SERVED_MAX: usize = 128;

/// The last owner of each number, and its fork count.
pub(crate) static GIVEN: Kept<BTreeMap<RawFd, (u32, Weak<Shown>)>> = Kept::new(BTreeMap::new());

/// The beacons of a peer.
#[derive(Debug, Default)]
pub(crate) struct Beacons(Mutex<Vec<Weak<Beacon>>>);

/// A descriptor that is always readable. Never read.
#[derive(Debug)]
struct Beacon(OwnedFd);

impl Beacons {
    /// One with a free place.
    fn find(&self) -> Result<Arc<Beacon>, Failure> {
        let mut all = self.0.lock();
        all.retain(|beacon| beacon.strong_count() > 0);
        if let Some(free) = all.iter().filter(|beacon| beacon.strong_count() < SERVED_MAX).find_map(Weak::upgrade) {
            return Ok(free);
        }
        let made = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let made = Arc::new(Beacon(made.map_err(|errno| no_descriptor(&errno.into()))?));
        all.push(Arc::downgrade(&made));
        Ok(made)
    }
}

/// A descriptor of the application's, without a second number that is the library's: an epoll instance that shows a beacon, or does not. All
/// that is ever done to its number is to change what it shows of the beacon, which the kernel refuses for anything else. So an application
/// that closes it, and opens something else that takes the number, finds there what it has put there.
#[derive(Debug)]
pub(crate) struct Shown {
    beacons: Arc<Beacons>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Once it was asked for, until the end. None where the number is another one's now.
    given: Option<Number>,
    /// What the application was given, even where the number is another one's now.
    number: Option<RawFd>,
    is_set: bool,
}

#[derive(Debug)]
struct Number {
    number: RawFd,
    beacon: Arc<Beacon>,
}

impl Number {
    /// False where the number is not of the descriptor any more.
    fn change(&self, how: c_int, is_set: bool) -> bool {
        let events = if is_set { libc::EPOLLIN.unsigned_abs() } else { 0 };
        let mut event = libc::epoll_event { events, u64: 0 };
        // SAFETY: the event is valid during the call, which takes numbers otherwise.
        unsafe { libc::epoll_ctl(self.number, how, self.beacon.0.as_raw_fd(), &raw mut event) == 0 }
    }

    fn show(&self, is_set: bool) -> bool {
        let is_own = self.change(libc::EPOLL_CTL_MOD, is_set);
        if is_own && !is_set {
            // Else the kernel keeps it among those that may be ready, and does not report the next event to an edge-triggered waiter.
            let mut event = libc::epoll_event { events: 0, u64: 0 };
            // SAFETY: the place is valid for one event.
            unsafe { libc::epoll_wait(self.number, &raw mut event, 1, 0) };
        }
        is_own
    }
}

impl Shown {
    fn change(&self, is_set: bool) {
        let mut state = self.state.lock();
        if state.is_set != is_set {
            state.is_set = is_set;
            if state.given.as_ref().is_some_and(|given| !given.show(is_set)) {
                state.given = None;
            }
        }
    }

    /// Gives it; true for the first time.
    fn give(self: &Arc<Self>) -> Result<(c_int, bool), Failure> {
        if let Some(number) = self.state.lock().number {
            return Ok((number, false));
        }
        let beacon = self.beacons.find()?;
        let mut all = GIVEN.lock();
        // SAFETY: the call takes a number only.
        let number = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if number < 0 {
            return Err(no_descriptor(&std::io::Error::last_os_error()));
        }
        // SAFETY: made just now, and nobody else's.
        let made = unsafe { OwnedFd::from_raw_fd(number) };
        // The previous owner of the number must be forgotten before the beacon exists.
        let before = all.insert(number, (forks(), Arc::downgrade(self)));
        let before = before.filter(|(forked, _)| *forked == forks()).and_then(|(_, before)| before.upgrade());
        before.inspect(|before| before.state.lock().given = None);
        let mut state = self.state.lock();
        if let Some(number) = state.number {
            // Another thread was faster.
            all.remove(&made.as_raw_fd());
            return Ok((number, false));
        }
        let given = Number { number, beacon };
        if !given.change(libc::EPOLL_CTL_ADD, state.is_set) {
            return Err(no_descriptor(&std::io::Error::last_os_error()));
        }
        let _ = made.into_raw_fd();
        (state.given, state.number) = (Some(given), Some(number));
        Ok((number, true))
    }

    /// Whether waits block: until the application has the descriptor and sets it to non-blocking, or closes it, since its flags are known only
    /// while it is open.
    fn blocks(&self) -> bool {
        let mut state = self.state.lock();
        let Some(number) = state.number else { return true };
        let is_set = state.is_set;
        // Before it is asked whether the number is of the descriptor still, not after.
        let is_blocking = !is_non_blocking(number);
        if state.given.as_ref().is_some_and(|given| !given.change(libc::EPOLL_CTL_MOD, is_set)) {
            state.given = None;
        }
        is_blocking && state.given.is_some()
    }

    fn end(&self) {
        let mut all = GIVEN.lock();
        let mut state = self.state.lock();
        let Some(number) = state.number.take() else { return };
        let is_set = state.is_set;
        if state.given.take().is_some_and(|given| given.show(is_set)) {
            all.remove(&number);
            // SAFETY: the number is of the descriptor that `give` made, which nobody else closes.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
            return;
        }
        drop((state, all));
        let why = format!(
            "descriptor {number} was closed by the application: the number's new file is not touched, but descriptors that the \
             library gives out must be closed by the library"
        );
        log(Level::Warning, c"rpma_conn_delete", &why);
    }
}

impl ReadyFlag for Shown {
    fn set(&self) {
        self.change(true);
    }

    fn clear(&self) {
        self.change(false);
    }
}

/// A descriptor of an object; it goes with this.
#[derive(Debug)]
pub(crate) struct Showing(Arc<Shown>);

impl Showing {
    pub(crate) fn new(beacons: &Arc<Beacons>) -> Self {
        Self(Arc::new(Shown { beacons: Arc::clone(beacons), state: Mutex::default() }))
    }

    /// The application's number, which blocks until the application sets it not to; `begin` has it set and cleared from the first time on.
    pub(crate) fn give(&self, begin: impl FnOnce(Arc<dyn ReadyFlag>)) -> Result<c_int, Failure> {
        let (number, is_first) = self.0.give()?;
        if is_first {
            begin(Arc::<Shown>::clone(&self.0));
        }
        Ok(number)
    }

    /// Whether waits block.
    pub(crate) fn blocks(&self) -> bool {
        self.0.blocks()
    }
}

impl Drop for Showing {
    fn drop(&mut self) {
        self.0.end();
    }
}

fn no_descriptor(error: &std::io::Error) -> Failure {
    Failure::provider(format!("no descriptor for events: {error}; see ulimit -n"))
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd as _, BorrowedFd};

    use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

    use super::*;

    const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

    fn given() -> (Showing, c_int) {
        let showing = Showing::new(&Arc::default());
        let number = showing.give(|flag| flag.clear()).unwrap();
        (showing, number)
    }

    fn is_readable(number: c_int) -> bool {
        // SAFETY: the number is open while it is looked at.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&NOW)).unwrap() > 0
    }

    #[test]
    fn it_is_readable_while_it_is_set() {
        let showing = Showing::new(&Arc::default());
        showing.0.set();
        let number = showing.give(|_| {}).unwrap();
        assert!(is_readable(number), "what was set before it was asked for");
        assert_eq!(showing.give(|_| panic!("not for the first time")).unwrap(), number);
        for _ in 0..3 {
            showing.0.clear();
            assert!(!is_readable(number));
            showing.0.set();
            assert!(is_readable(number));
        }
    }

    #[test]
    fn every_time_it_is_set_makes_an_edge() {
        let (showing, number) = given();
        let waiting = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        // SAFETY: the number is open as long as `showing` is there.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        epoll::add(&waiting, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN | epoll::EventFlags::ET).unwrap();
        let mut events = Vec::with_capacity(4);
        for round in 0..3 {
            showing.0.set();
            let found = epoll::wait(&waiting, rustix::buffer::spare_capacity(&mut events), Some(&NOW)).unwrap();
            assert_eq!(found, 1, "round {round}");
            events.clear();
            showing.0.clear();
        }
    }

    #[test]
    fn it_is_closed_with_its_object_and_blocks_as_the_application_wants() {
        let (showing, number) = given();
        assert!(showing.blocks());
        // SAFETY: the call takes numbers only.
        unsafe { libc::fcntl(number, libc::F_SETFL, libc::O_NONBLOCK) };
        assert!(!showing.blocks());
        drop(showing);
        let file = pmof_mem::forks::file_of_number(number);
        assert!(
            file.is_none() || !is_readable(number),
            "it is closed, and what another test opened since is not ready"
        );
    }

    #[test]
    fn a_number_that_something_else_has_stays_as_it_is() {
        let (showing, number) = given();
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        // SAFETY: the number is closed and taken again in one step, and owned from then on.
        let taken = unsafe {
            assert_eq!(libc::dup3(reader.as_raw_fd(), number, libc::O_CLOEXEC), number);
            OwnedFd::from_raw_fd(number)
        };
        showing.0.set();
        showing.0.clear();
        assert!(!showing.blocks(), "nothing tells how it was set");
        drop(showing);
        let file = pmof_mem::forks::file_of_number(taken.as_fd().as_raw_fd());
        assert_eq!(file, pmof_mem::forks::file_of_number(reader.as_raw_fd()), "it is open still");
    }

    #[test]
    fn a_number_that_another_one_has_been_given_is_that_ones() {
        let beacons = Arc::default();
        let (one, other) = (Showing::new(&beacons), Showing::new(&beacons));
        let number = one.give(|_| {}).unwrap();
        // The number is the lowest free one for a moment, unless another test opens something.
        // SAFETY: the number is the application's to close, whatever it is told.
        unsafe { libc::close(number) };
        if other.give(|_| {}).unwrap() != number {
            return;
        }
        one.0.set();
        assert!(!is_readable(number), "it is not set");
        drop(one);
        other.0.set();
        assert!(is_readable(number), "it is there still");
    }
}
