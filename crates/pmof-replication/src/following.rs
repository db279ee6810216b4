//! How an asynchronous member is followed up: it is connected to, judged, told of the epoch in force, compared or copied to, and then sent what is written, up to each
//! consistency point, until it is lost.
//!
//! Each step is a future over the trait [`Follows`], which waits for nothing but what the driver does. In a program the driver blocks its thread, so that each future
//! is ready at its first poll; in the simulation it waits for simulated targets.

use core::time::Duration;

use crate::pages::PageMap;

mod attach;
mod copy;
mod driver;
mod known;
mod outbox;
mod points;
mod replica;
mod rules;
mod send;
#[cfg(test)]
mod tests;

pub use attach::tell_epoch;
pub use driver::{Follows, Limits, Progress, Stop, Stopped, Terms};
pub use known::{Known, LeftAt};
pub use outbox::{
    AtLagBound, Boundary, Due, Entry, HasRoom, KeptTo, Lag, LagBound, Outbox, WriteCount, Writing, is_same,
};
pub use points::{Followed, Points, finish, make_point};
pub use replica::{Replica, commit};
pub use rules::{Rules, ShippedRules};

use attach::Attached;
use send::Sending;

/// How the tries to follow a member up have gone.
struct Tries {
    /// Before the next one.
    pause: Duration,
    /// The program knows that the member is lost.
    is_noted: bool,
}

impl Tries {
    /// The member is not followed up from now on. `has_followed`: it was at a point of this writer since it was connected.
    fn ended<D: Follows>(&mut self, driver: &D, stop: &Stop<D::Failure>, has_followed: bool) {
        if has_followed {
            *self = Self { pause: driver.limits().first_pause, is_noted: false };
        }
        if let Stop::Lost(why) | Stop::Rejected(why) = stop {
            driver.note_lost(why, !core::mem::replace(&mut self.is_noted, true));
        }
    }

    /// The pause before the next try.
    fn next_pause<F>(&mut self, limits: &Limits, stop: &Stop<F>) -> Duration {
        if matches!(stop, Stop::Rejected(_)) {
            self.pause = limits.rejected_pause;
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(limits.longest_pause.max(pause));
        pause
    }
}

/// Follows a member up until the pool is closed, or it is no longer a member.
pub async fn follow_up<D: Follows>(driver: &D) {
    let mut tries = Tries { pause: driver.limits().first_pause, is_noted: false };
    loop {
        let stop = follow(driver, &mut tries).await;
        driver.note_closed();
        let pause = tries.next_pause(&driver.limits(), &stop);
        if matches!(stop, Stop::Ended) || !driver.pause(pause).await || !driver.is_member() {
            return;
        }
    }
}

/// Follows a member up until it is lost.
async fn follow<D: Follows>(driver: &D, tries: &mut Tries) -> Stop<D::Failure> {
    let Attached { replica, boot } = match attach::attach(driver).await {
        Ok(attached) => attached,
        // What it lacks is remembered still, if it was.
        Err(stop) => {
            tries.ended(driver, &stop, false);
            return stop;
        }
    };
    let (followed, size_bytes) = (driver.followed(), driver.terms().identity.size_bytes);
    let left_at = driver.with_known(|known| known.left_at.take());
    let is_known = driver.rules().is_left_at(left_at.as_ref(), replica.point(), boot);
    driver.note(Progress::Connected { point: replica.point(), is_known });
    followed.with_outbox(|outbox| outbox.stop_at_names(replica.keeps_points(), replica.point()));
    // It is not known what was written since it was here last, unless it is where it was.
    let missing = if is_known { PageMap::new(size_bytes) } else { PageMap::full(size_bytes) };
    let mut sending = Sending::new(driver, replica, is_known);
    let stop = sending.run(&missing).await;
    // Before writers are let go, and before the member is closed, which waits for one that hangs.
    tries.ended(driver, &stop, sending.has_followed);
    let (point, next) = sending.left_at();
    missing.add(&sending.taken);
    followed.with_outbox(|outbox| outbox.switch_off(point.is_some().then_some(&missing)));
    driver.with_known(|known| known.left_at = point.map(|point| LeftAt { point, next, boot }));
    stop
}
