//! Asking the replicas of a pool: the named ones, and further ones that their rosters name.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::time::Duration;

use pmof_control::{FailureDomain, PoolInfo, PoolName, Reply, Request, Role, Roster, WriterStatus};

use super::{Surveyed, Unsurveyed, judge::judge};
use crate::{
    asking::{
        Action, Cause, Exchange, Failure, Looked, Patience, Reason, SiteId, Task, at_each, failure_domain,
        limits::LOOK_TIME, look, promoted, reply, reply_when_free,
    },
    opening::Rules,
    place::{FoundMember, Place, elsewhere, lacks, spares_elsewhere},
    roster::newest,
};

/// What one address has.
pub(super) struct Answer<P, F> {
    pub(super) place: Arc<P>,
    /// The member that was looked for there.
    pub(super) wanted: Option<FoundMember<P>>,
    /// A roster has a spare there: it counts only if that has become a member.
    may_be_none: bool,
    /// Where the member lies of whose file this is a copy.
    pub(super) copy_of: Option<Arc<P>>,
    pub(super) told: Result<(SiteId, Told), Cause<F>>,
}

/// What a target tells of a replica.
pub(super) struct Told {
    pub(super) info: Box<PoolInfo>,
    pub(super) roster: Option<Roster>,
    pub(super) domain: Option<FailureDomain>,
}

/// Why what answered is no member of the pool.
#[derive(Clone)]
pub(super) enum Foreign<P> {
    Reason(Reason),
    Copy { index: u16, home: Arc<P> },
}

impl<P, F> Answer<P, F> {
    pub(super) fn info(&self) -> Option<&PoolInfo> {
        self.told.as_ref().ok().map(|(_, told)| &*told.info)
    }

    pub(super) fn site(&self) -> Option<SiteId> {
        self.told.as_ref().ok().map(|(site, _)| *site)
    }

    pub(super) fn found(&self) -> Option<FoundMember<P>> {
        let header = &self.info()?.header;
        let (index, replica_uuid) = (header.replica_index, header.replica_uuid);
        Some(FoundMember { index, replica_uuid, url: Arc::clone(&self.place) })
    }

    pub(super) fn roster(&self) -> Option<&Roster> {
        self.told.as_ref().ok()?.1.roster.as_ref()
    }

    /// Why what answered is no member of the pool that `first` is of.
    pub(super) fn why_foreign(&self, first: &PoolInfo) -> Option<Foreign<P>> {
        let (header, first) = (&self.info()?.header, &first.header);
        if header.pool_uuid != first.pool_uuid {
            return Some(Foreign::Reason(Reason::Mismatch {
                uuid: first.pool_uuid,
                found_uuid: header.pool_uuid,
                size_bytes: first.size_bytes,
                found_bytes: header.size_bytes,
            }));
        }
        let found = header.replica_index;
        if let Some(home) = &self.copy_of {
            return Some(Foreign::Copy { index: found, home: Arc::clone(home) });
        }
        let wanted = self.wanted.as_ref()?;
        let is_member =
            wanted.index == found && (wanted.replica_uuid.is_nil() || wanted.replica_uuid == header.replica_uuid);
        (!is_member).then_some(Foreign::Reason(Reason::NotTheMember { index: wanted.index, found }))
    }
}

/// What says which pool it is.
pub(super) fn first<P, F>(answers: &[Answer<P, F>]) -> Option<&PoolInfo> {
    answers.iter().find_map(Answer::info)
}

/// A look at a pool that runs.
pub(crate) struct Run<'r, P, F, R> {
    pub(super) exchange: &'r Exchange<P, F>,
    rules: &'r R,
    is_patient: bool,
    began: Duration,
    pub(super) answers: Vec<Answer<P, F>>,
}

impl<'r, P: Place, F: Failure, R: Rules> Run<'r, P, F, R> {
    pub(crate) fn new(exchange: &'r Exchange<P, F>, rules: &'r R, is_patient: bool) -> Self {
        Self { exchange, rules, is_patient, began: exchange.now(), answers: Vec::new() }
    }

    pub(crate) async fn survey(mut self, named: Vec<Arc<P>>) -> Result<Surveyed<P, F>, Unsurveyed<P, F>> {
        let followed = self.find(named).await;
        let is_member = |found: &FoundMember<P>, roster: &Roster| {
            let mut members = roster.members.iter().filter(|member| member.role != Role::Spare);
            members.any(|member| member.is(found.index, found.replica_uuid))
        };
        let sites: Vec<_> = self.answers.iter().filter_map(Answer::site).collect();
        self.answers.retain(|answer| {
            let found = answer.found().zip(followed.as_ref());
            !answer.may_be_none || found.is_some_and(|(found, roster)| is_member(&found, roster))
        });
        let mut judged = judge(core::mem::take(&mut self.answers), self.rules);
        if let Ok((surveyed, open)) = &mut judged {
            surveyed.writer_status = self.writer_status(open).await;
        }
        for site in sites {
            self.exchange.tell(Action::Drop { site });
        }
        judged.map(|(surveyed, _)| surveyed)
    }

    /// Asks the named ones, and others as long as there is a newer roster that adds some. Returns the last one.
    async fn find(&mut self, named: Vec<Arc<P>>) -> Option<Roster> {
        let enough = named.len().div_ceil(2);
        self.ask(named.into_iter().map(|place| (place, None)).collect(), enough).await;
        if let Some(roster) = self.roster() {
            self.find_copies(&roster).await;
        }
        let mut followed: Option<Roster> = None;
        // Members found this way may know of later ones.
        while let Some(roster) = self.roster().filter(|roster| Some(roster.age()) > followed.as_ref().map(Roster::age))
        {
            let others = elsewhere(&roster, &self.found(), &self.asked());
            self.ask(others.into_iter().map(|other| (Arc::clone(&other.url), Some(other))).collect(), 0).await;
            if lacks(&roster, &self.found()) {
                let (spares, first) = (spares_elsewhere(&roster, &self.asked()), self.answers.len());
                self.ask(spares.into_iter().map(|place| (place, None)).collect(), 0).await;
                self.answers[first..].iter_mut().for_each(|answer| answer.may_be_none = true);
            }
            self.ask_promoted(&roster).await;
            followed = Some(roster);
        }
        followed
    }

    /// The roster that counts among all that the members of the first pool keep.
    fn roster(&self) -> Option<Roster> {
        let first = first(&self.answers)?;
        let members = self.answers.iter().filter(|answer| answer.why_foreign(first).is_none());
        newest(members.filter_map(Answer::roster)).cloned()
    }

    fn found(&self) -> Vec<FoundMember<P>> {
        self.answers.iter().filter_map(Answer::found).collect()
    }

    fn asked(&self) -> Vec<Arc<P>> {
        self.answers.iter().map(|answer| Arc::clone(&answer.place)).collect()
    }

    /// Asks all of these at once, and does not await silent ones once `enough` have answered.
    pub(super) async fn ask(&mut self, wanted: Vec<(Arc<P>, Option<FoundMember<P>>)>, enough: usize) {
        let (exchange, (places, wanted)) = (self.exchange, wanted.into_iter().unzip::<_, _, Vec<_>, Vec<_>>());
        let patience = if self.is_patient {
            Patience::ENDLESS
        } else {
            let usual = Patience::once(enough, places.iter().any(|place| place.starts_target()));
            Patience { grace: usual.grace.max(LOOK_TIME.saturating_sub(exchange.since(self.began))), ..usual }
        };
        let look = async |site, place: &P| Ok(told(exchange, site, look(exchange, site, place).await?).await);
        let answers = at_each(exchange, &places, patience, look).await;
        for ((place, wanted), told) in places.into_iter().zip(wanted).zip(answers) {
            self.answers.push(Answer { place, wanted, may_be_none: false, copy_of: None, told });
        }
    }

    /// Asks those of which a pool was made.
    async fn ask_promoted(&mut self, roster: &Roster) {
        let Some(uuid) = first(&self.answers).map(|first| first.header.pool_uuid) else { return };
        for (place, site, looked) in promoted(self.exchange, (roster, uuid), &self.asked()).await {
            let told = Ok((site, told(self.exchange, site, looked).await));
            self.answers.push(Answer { place, wanted: None, may_be_none: false, copy_of: None, told });
        }
    }

    /// The view of the pool's writer, by the first member that has one, among its members that are `open`.
    async fn writer_status(&self, open: &[(SiteId, PoolName)]) -> Option<WriterStatus> {
        for (site, name) in open {
            let status = Request::WriterStatus { name: name.clone() };
            let task: Task<'_, _> = Box::pin(reply_when_free(self.exchange, *site, status));
            let answers = self.exchange.answers([task].into(), Patience::within(LOOK_TIME), Result::is_ok).await;
            if let Some(Ok(Reply::WriterStatus(Some(status)))) = answers.into_iter().next() {
                return Some(status);
            }
        }
        None
    }
}

/// Ends the look at a replica, which leaves it to others.
async fn told<P, F: Failure>(exchange: &Exchange<P, F>, site: SiteId, (info, mut beside): Looked) -> Told {
    // What cannot be closed ends with the connection.
    let _ = reply(exchange, site, Request::Close { in_order: false }).await;
    let domain = failure_domain(exchange, site, &mut beside).await;
    Told { info, roster: beside.roster, domain }
}
