//! What a member is sent that is connected: first what it lacks, then what is written, up to each point.

use core::time::Duration;

use pmof_control::ConsistencyPoint;

use super::{
    driver::{Follows, Progress, Stop, Stopped},
    outbox::{Due, Entry, Outbox},
    points::Followed,
    replica::{Replica, commit},
};
use crate::{epochs::Driver, pages::PageMap, returning::Members};

/// What ended the sending.
enum Interrupted<F> {
    /// More was written meanwhile than is kept.
    Overtaken,
    Stopped(Stop<F>),
}

impl<F> From<Stop<F>> for Interrupted<F> {
    fn from(stop: Stop<F>) -> Self {
        Self::Stopped(stop)
    }
}

/// A member that is being sent something.
pub(super) struct Sending<'d, D: Follows> {
    pub(super) driver: &'d D,
    pub(super) replica: D::Replica,
    /// Pages of the writes that were taken for it and are not applied.
    pub(super) taken: PageMap,
    /// The point that it is being sent what leads to.
    next: Option<ConsistencyPoint>,
    /// When it was told last how far the writer is.
    heard_at: Option<Duration>,
    /// All that it lacks is known: it need not be compared.
    pub(super) is_known: bool,
    /// It was at a point of this writer since it was connected.
    pub(super) has_followed: bool,
}

impl<'d, D: Follows> Sending<'d, D> {
    pub(super) fn new(driver: &'d D, replica: D::Replica, is_known: bool) -> Self {
        let taken = PageMap::new(driver.terms().identity.size_bytes);
        Self { driver, replica, taken, next: None, heard_at: None, is_known, has_followed: false }
    }

    /// Copies to the member what is missing, then sends it what is written, again and again until it is lost. `missing` has then what it lacked of that.
    pub(super) async fn run(&mut self, missing: &PageMap) -> Stop<D::Failure> {
        loop {
            self.driver.note(Progress::Copying);
            let copied_bytes = match self.copy(missing).await {
                Ok(copied_bytes) => copied_bytes,
                Err(stop) => return stop,
            };
            (self.has_followed, self.is_known) = (true, true);
            missing.clear();
            self.note_gone();
            self.driver.note(Progress::Following { copied_bytes });
            match self.send().await {
                Interrupted::Stopped(stop) => return stop,
                Interrupted::Overtaken => missing.add(&self.taken),
            }
        }
    }

    /// The point that it is at, if what it lacks is known, and the next one, if that was being sent.
    pub(super) fn left_at(&self) -> (Option<ConsistencyPoint>, Option<ConsistencyPoint>) {
        (self.replica.point().cloned().filter(|_| self.is_known), self.next.clone())
    }

    pub(super) fn outbox<T>(&self, look: impl FnOnce(&mut Outbox) -> T) -> T {
        self.driver.followed().with_outbox(look)
    }

    fn note_gone(&self) {
        let gone = self.outbox(Outbox::take_gone);
        if !gone.is_empty() {
            self.driver.note(Progress::PointsGone(gone));
        }
    }

    /// Has the member be at the point that a change set leads to.
    pub(super) async fn commit(
        &mut self,
        set: <D::Replica as Replica>::ChangeSet,
        point: &ConsistencyPoint,
    ) -> Stopped<(), D> {
        if let Ok(epochs) = self.driver.epochs() {
            let mark = epochs.lock().await.with(|epochs| epochs.view.newest_mark());
            self.replica.date_copies(mark)?;
        }
        self.next = Some(self.replica.numbered(point));
        let committed = commit(self.driver.rules(), &mut self.replica, set, point);
        self.driver.note_kept_points(&mut self.replica);
        committed?;
        self.next = None;
        self.taken.clear();
        self.outbox(Outbox::applied);
        self.driver.note(Progress::Committed { point: self.replica.point() });
        Ok(())
    }

    /// The pool is closed, or too few of its members are left.
    pub(super) fn later(&self) -> Stop<D::Failure> {
        self.driver.epochs().map_or_else(|stop| stop, |_| Stop::Later)
    }

    /// Remembers the pages of writes that were taken for the member, which it lacks until they are applied.
    pub(super) fn note_taken(&self, entries: &[Entry]) {
        for entry in entries {
            self.taken.mark(entry.range());
        }
    }

    /// Sends what is written, up to each point.
    async fn send(&mut self) -> Interrupted<D::Failure> {
        loop {
            if let Err(interrupted) = self.send_next().await {
                return interrupted;
            }
        }
    }

    async fn send_next(&mut self) -> Result<(), Interrupted<D::Failure>> {
        self.note_gone();
        let limits = self.driver.limits();
        match self.driver.due(limits.heard_interval).await {
            Due::Ended => return Err(Stop::Ended.into()),
            Due::Copy => {
                let lag_bytes = self.outbox(|outbox| outbox.lag(self.driver.now())).map_or(0, |lag| lag.bytes);
                self.driver.note(Progress::FellBehind { lag_bytes });
                return Err(Interrupted::Overtaken);
            }
            Due::Point => {
                // Writers learn of a failure.
                if !self.driver.make_point().await && !self.driver.pause(limits.retry_pause).await {
                    return Err(Stop::Ended.into());
                }
            }
            Due::Send(entries, point) => {
                self.note_taken(&entries);
                let mut set = Default::default();
                if !self.replica.add_all(&mut set, &entries).map_err(Stop::from)? {
                    return Err(Interrupted::Overtaken);
                }
                drop(entries);
                self.commit(set, &point).await?;
            }
            // A lost member is noticed though nothing is written.
            Due::Nothing => self.driver.check_in_use(&self.replica).await.map_err(Stop::Lost)?,
        }
        Ok(self.hear()?)
    }

    /// Tells the member how far the writer is, now and then.
    pub(super) fn hear(&mut self) -> Stopped<(), D> {
        let (far, limits, now) = (self.driver.far(), self.driver.limits(), self.driver.now());
        let heard = self.replica.heard().filter(|heard| heard.opening == far.opening);
        let is_idle = heard.is_some_and(|heard| heard.written_bytes == far.written_bytes);
        let interval = if is_idle { limits.idle_interval } else { limits.heard_interval };
        if self.heard_at.is_none_or(|at| now.saturating_sub(at) >= interval) {
            self.replica.hear(&far)?;
            self.heard_at = Some(now);
            self.driver.note(Progress::Heard);
        }
        Ok(())
    }
}
