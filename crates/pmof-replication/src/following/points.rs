//! Consistency points: moments of the pool at which its asynchronous members can be, made while they follow and when the pool is closed.

use alloc::{collections::VecDeque, vec::Vec};
use core::{ops::Deref, time::Duration};

use pmof_control::ConsistencyPoint;

use super::{
    outbox::{Boundary, Outbox},
    rules::Rules,
};
use crate::written::Written;

/// An asynchronous member of an open pool, as those see it that write and that make points.
pub trait Followed {
    /// Looks at what it has yet to be sent, or changes it. Never across a wait. Who waits for a change of it looks again then.
    fn with_outbox<T>(&self, look: impl FnOnce(&mut Outbox) -> T) -> T;

    /// It was lost, and is not being connected to for the first time.
    fn is_lost(&self) -> bool;

    /// It is open here, or about to be.
    fn is_open(&self) -> bool;
}

impl<P: Deref<Target: Followed>> Followed for P {
    fn with_outbox<T>(&self, look: impl FnOnce(&mut Outbox) -> T) -> T {
        (**self).with_outbox(look)
    }

    fn is_lost(&self) -> bool {
        (**self).is_lost()
    }

    fn is_open(&self) -> bool {
        (**self).is_open()
    }
}

/// An open pool whose asynchronous members are to be at points.
pub trait Points {
    /// One of those.
    type Followed: Followed;
    /// The rules.
    type Rules: Rules;
    /// Keeps others from making a point.
    type Pointing<'p>
    where
        Self: 'p;
    /// What says where the writes before a point are durable.
    type Receipt;
    /// Why they are not.
    type Error;

    /// The rules.
    fn rules(&self) -> Self::Rules;

    /// The asynchronous members.
    fn followed(&self) -> Vec<Self::Followed>;

    /// Waits until no one else makes a point, and keeps it so.
    fn lock(&self) -> impl Future<Output = Self::Pointing<'_>>;

    /// How far the pool is written now: a point without a name.
    fn far(&self) -> ConsistencyPoint;

    /// Makes what was written durable on the members in sync; everything where `written` is empty.
    ///
    /// # Errors
    /// It is not: too few members are left, or the pool is closed.
    fn persist(&self, written: Written) -> impl Future<Output = Result<Self::Receipt, Self::Error>>;

    /// A point was made, which the members are about to hear of.
    fn note_point(&self, _point: &ConsistencyPoint) {}

    /// A member is not known to be at these points when the pool is closed.
    fn note_unsent(&self, followed: &Self::Followed, points: VecDeque<ConsistencyPoint>);

    /// Has nothing be sent to the members from now on.
    fn stop(&self);

    /// How long a closing waits for the members at most, and how often it looks.
    fn closing_limits(&self) -> (Duration, Duration);

    /// Waits.
    fn sleep(&self, pause: Duration) -> impl Future<Output = ()>;

    /// The time since any fixed moment.
    fn now(&self) -> Duration;
}

/// Makes all that was written before durable on the members in sync, and has this moment be a point that asynchronous members can be at.
///
/// # Errors
/// Those of [`persist`](Points::persist). No point was made then.
pub async fn make_point<D: Points>(driver: &D, name: &str) -> Result<D::Receipt, D::Error> {
    let _pointing = driver.lock().await;
    let (followed, far) = (driver.followed(), driver.far());
    // Before the flush is posted: it covers what is before them, on all members that are in sync by then.
    let boundaries: Vec<_> = followed.iter().map(|followed| followed.with_outbox(|outbox| outbox.boundary())).collect();
    let written = written_before(&boundaries);
    let point = ConsistencyPoint { name: name.into(), ..far };
    let reach = |boundaries: Vec<Boundary>| {
        driver.note_point(&point);
        for (followed, boundary) in followed.iter().zip(boundaries) {
            followed.with_outbox(|outbox| outbox.reach(boundary, &point));
        }
    };
    if driver.rules().is_durable_before_sent() {
        let receipt = driver.persist(written).await?;
        reach(boundaries);
        return Ok(receipt);
    }
    reach(boundaries);
    driver.persist(written).await
}

/// What has to be durable for a point at all of these members; nothing in particular where one of them needs everything.
fn written_before(boundaries: &[Boundary]) -> Written {
    let unsettled: Option<Vec<Written>> =
        boundaries.iter().filter_map(Boundary::kept).map(|kept| kept.written).collect();
    unsettled.and_then(|all| all.into_iter().reduce(Written::with)).unwrap_or_default()
}

/// Has the members that are connected be at the end of what was written, and the ones that are being connected to at a point with a name that is the end, and ends: the pool is closed.
pub async fn finish<D: Points>(driver: &D) {
    let list = driver.followed();
    let (limit, look) = driver.closing_limits();
    // A part of it is for closing them.
    let (began, for_sending) = (driver.now(), limit / 8 * 7);
    // A point with a name waits for the member, which is being connected to or copied to.
    let awaits_name =
        |followed: &D::Followed| !followed.is_lost() && followed.with_outbox(|outbox| outbox.has_name_wait());
    let is_on = |followed: &D::Followed| {
        followed.with_outbox(|outbox| outbox.lag(driver.now()).is_some()) || awaits_name(followed)
    };
    if list.iter().any(is_on) && make_point(driver, "").await.is_ok() {
        let is_sent =
            |followed: &D::Followed| followed.with_outbox(|outbox| outbox.is_sent()) && !awaits_name(followed);
        wait(driver, began.saturating_add(for_sending), look, || list.iter().all(is_sent)).await;
    }
    driver.stop();
    for followed in &list {
        driver.note_unsent(followed, followed.with_outbox(Outbox::take_unsent));
    }
    // Their targets take it for a writer's death where this process ends before they are closed.
    let are_closed = || !list.iter().any(|followed| followed.is_open() && !followed.is_lost());
    wait(driver, began.saturating_add(limit), look, are_closed).await;
}

/// Waits for a condition until then.
async fn wait<D: Points>(driver: &D, until: Duration, look: Duration, condition: impl Fn() -> bool) {
    while !condition() && driver.now() < until {
        driver.sleep(look).await;
    }
}
