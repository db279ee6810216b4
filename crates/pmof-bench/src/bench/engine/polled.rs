//! How a floor waits that takes completions from a device's queue or a provider's, or datagrams.

use std::{
    os::fd::AsFd,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

/// An end that moves nothing for this long is given up.
pub(in crate::bench) const STALL_LIMIT: Duration = Duration::from_secs(30);

/// How often a spinning end looks at the clock, or at what tells of the other end.
pub(in crate::bench) const SPINS_PER_GLANCE: u32 = 1024;

/// A floor that polls for completions.
pub(in crate::bench) trait Polled {
    /// Takes completions. True where an operation is over.
    fn poll(&mut self) -> Result<bool>;

    /// Whether it polls without sleeping.
    fn spins(&self) -> bool {
        true
    }

    /// Sleeps until there may be a completion, at most for so long. Called only where it does not spin, or has a time limit.
    fn sleep(&mut self, _limit: Duration) -> Result<()> {
        Ok(())
    }
}

/// Polls until an operation is over, or `until` has come.
///
/// # Errors
/// Nothing is over for [`STALL_LIMIT`], where there is no `until`.
pub(in crate::bench) fn wait(floor: &mut impl Polled, until: Option<Instant>) -> Result<()> {
    let limit = until.unwrap_or_else(|| Instant::now() + STALL_LIMIT);
    let mut spins = 0_u32;
    while !floor.poll()? {
        spins = spins.wrapping_add(1);
        if floor.spins() && until.is_none() && spins % SPINS_PER_GLANCE != 0 {
            continue;
        }
        let left = limit.saturating_duration_since(Instant::now());
        if left.is_zero() {
            ensure!(until.is_some(), "the floor server moved nothing for {} s", STALL_LIMIT.as_secs());
            break;
        }
        floor.sleep(left)?;
    }
    Ok(())
}

/// Sleeps until the descriptor is readable, or for as long as that.
pub(in crate::bench) fn sleep_on(descriptor: impl AsFd, limit: Duration) -> Result<()> {
    let limit = Timespec::try_from(limit)?;
    match poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&limit)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has something over at its last poll.
    struct Fake {
        polls: u32,
        spins: bool,
        slept: Vec<Duration>,
    }

    impl Fake {
        fn new(polls: u32, spins: bool) -> Self {
            Self { polls, spins, slept: Vec::new() }
        }
    }

    impl Polled for Fake {
        fn poll(&mut self) -> Result<bool> {
            self.polls -= 1;
            Ok(self.polls == 0)
        }

        fn spins(&self) -> bool {
            self.spins
        }

        fn sleep(&mut self, limit: Duration) -> Result<()> {
            self.slept.push(limit);
            Ok(())
        }
    }

    #[test]
    fn a_floor_that_spins_seldom_looks_at_the_clock_and_one_that_sleeps_sleeps_each_time() {
        let mut spinning = Fake::new(3 * SPINS_PER_GLANCE, true);
        wait(&mut spinning, None).unwrap();
        assert_eq!((spinning.polls, spinning.slept.len()), (0, 2));
        let mut sleeping = Fake::new(5, false);
        wait(&mut sleeping, None).unwrap();
        assert_eq!((sleeping.polls, sleeping.slept.len()), (0, 4));
        assert!(sleeping.slept.iter().all(|limit| *limit <= STALL_LIMIT), "{:?}", sleeping.slept);
    }

    #[test]
    fn a_time_limit_ends_the_wait() {
        for spins in [true, false] {
            let mut floor = Fake::new(1000, spins);
            wait(&mut floor, Some(Instant::now())).unwrap();
            assert_eq!((floor.polls, floor.slept.len()), (999, 0), "polled once");
        }
    }
}
