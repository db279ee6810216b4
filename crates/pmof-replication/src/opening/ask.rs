//! Connecting, and asking for replicas, also where other programs ask for them at the same time.

use alloc::{boxed::Box, rc::Rc, sync::Arc, vec, vec::Vec};
use core::time::Duration;

use pmof_control::{Claim, Enclosed, FailureDomain, OpenFor, PoolInfo, PoolName, Reply, Request, Roster};
use pmof_terms::Durability;
use uuid::Uuid;

use super::{
    Creation, FoundPool, Left, Outcome, Refusal, Terms, UnreadReplica,
    outcome::{Identity, OpenedReplica, OpenedReply},
    rules::Rules,
};
use crate::{
    asking::{
        Action, Cause, Exchange, Failure, Patience, Reason, Replied, SiteId, Task, at_each, done, failure_domain,
        kept_roster, reply, reply_when_free,
    },
    keeper::KeptBy,
    lineage::{Agreement, quorum, votes_needed},
    place::{FoundMember, Place, elsewhere},
    survey::{Surveyed, survey},
};

/// How long targets are awaited that release what was opened there.
pub(super) const RELEASE_WAIT: Duration = Duration::from_secs(1);

/// An opening that runs.
pub(super) struct Run<P, F, R> {
    pub(super) exchange: Rc<Exchange<P, F>>,
    pub(super) terms: Terms,
    pub(super) access: OpenFor,
    pub(super) rules: R,
    /// All addresses: the named ones, then members that rosters added.
    pub(super) places: Vec<Arc<P>>,
    pub(super) named_count: usize,
    /// Connected, and not asked yet; with their positions.
    pub(super) sites: Vec<(usize, SiteId)>,
    pub(super) left_out: Vec<(usize, Cause<F>)>,
    pub(super) unread: Vec<UnreadReplica>,
    pub(super) is_forced: bool,
    /// Some were opened whose state may be an older one.
    pub(super) has_older: bool,
    was_hasty: bool,
}

/// A replica that could not be opened.
#[derive(Debug)]
pub(super) struct Failed<F> {
    pub(super) position: usize,
    pub(super) site: SiteId,
    /// It is open there, and this replica.
    pub(super) open: Option<Uuid>,
    pub(super) cause: Cause<F>,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wish {
    Open,
    /// The same where the state may be an older one.
    OpenOlder,
    Create(Creation),
}

impl<P: Place, F: Failure, R: Rules> Run<P, F, R> {
    pub(super) fn new(
        exchange: Rc<Exchange<P, F>>,
        terms: Terms,
        access: OpenFor,
        places: Vec<Arc<P>>,
        rules: R,
    ) -> Self {
        Self {
            exchange,
            terms,
            access,
            rules,
            named_count: places.len(),
            places,
            sites: Vec::new(),
            left_out: Vec::new(),
            unread: Vec::new(),
            is_forced: false,
            has_older: false,
            was_hasty: false,
        }
    }

    pub(super) async fn open(mut self) -> Outcome<P, F, FoundPool> {
        let pool = self.find().await;
        self.ended(pool)
    }

    pub(super) fn ended<T>(self, pool: Result<T, Refusal<F>>) -> Outcome<P, F, T> {
        Outcome { places: self.places, left_out: self.left_out, was_hasty: self.was_hasty, pool }
    }

    async fn find(&mut self) -> Result<FoundPool, Refusal<F>> {
        self.connect_named().await?;
        self.check_take_over().await?;
        let mut identity = None;
        let sites = core::mem::take(&mut self.sites);
        let enough = self.enough_named();
        let (mut opened, mut failed) = self.ask(sites, Wish::Open, None, enough, &mut identity).await;
        self.open_older(&mut opened, &mut failed, &mut identity).await;
        let (uuid, mut followed) = (identity.map_or(Uuid::nil(), |identity| identity.uuid), None);
        let mut heard = self.hear_all(&opened, uuid).await;
        // A member that a roster added may keep a newer roster.
        while let Some(roster) = self.newer_roster(&opened, &heard, followed.as_ref()) {
            let here = self.found(&opened);
            let is_member =
                |found: &&FoundMember<P>| roster.counted().any(|member| member.is(found.index, found.replica_uuid));
            let count = roster.counted().count() + here.iter().filter(|found| !is_member(found)).count();
            let others = elsewhere(&roster, &here, &self.places);
            let (others, failed_others) = self.open_others(others, (count, here.len()), &mut identity).await;
            opened.extend(others);
            failed.extend(failed_others);
            heard.extend(self.hear_spares(&roster, &opened, uuid).await);
            heard.extend(self.hear_promoted(&roster, uuid).await);
            followed = Some(roster);
        }
        if self.access == OpenFor::Write {
            self.check_held(&mut opened, &mut failed).await;
        }
        let found = self.decide(&mut opened, failed, identity, &heard).await;
        if found.is_err() {
            self.release(opened.iter().map(|opened| opened.site)).await;
        }
        let (identity, electorate, agreement) = found?;
        let Agreement { base, is_clean, source, mark, .. } = agreement;
        let (source, left) = (opened[source].position, left(&opened, is_clean));
        let (unread, is_forced) = (core::mem::take(&mut self.unread), self.is_forced);
        Ok(FoundPool { identity, electorate, opened, unread, base, mark, source, left, is_forced })
    }

    /// How long answers are awaited once `enough` have come, at addresses like these.
    pub(super) fn patience(&self, enough: usize, places: &[Arc<P>]) -> Patience {
        if self.terms.is_patient {
            return Patience::ENDLESS;
        }
        Patience::once(enough, places.iter().any(|place| place.starts_target()))
    }

    /// How many of the named replicas are enough to open the pool and to confirm an epoch. The pool may have more members than were named.
    fn enough_named(&self) -> usize {
        let named = self.named_count;
        let votes = votes_needed(named.max(1)).max(quorum(named)).min(named.saturating_sub(1)).max(1);
        votes.max(self.terms.least_replicas)
    }

    /// Notes whether one was not awaited.
    pub(super) fn note_silence<T>(&mut self, answer: &Result<T, Cause<F>>) {
        self.was_hasty |= answer.as_ref().is_err_and(Cause::is_silence) && !self.terms.is_patient;
    }

    /// Connects to addresses side by side. What failed is dropped.
    pub(super) async fn connect(&mut self, places: &[Arc<P>], patience: Patience) -> Vec<Result<SiteId, Cause<F>>> {
        let answers = at_each(&self.exchange, places, patience, async |_, _| Ok(())).await;
        let connected = answers.into_iter().map(|answer| {
            self.note_silence(&answer);
            answer.map(|(site, ())| site)
        });
        connected.collect()
    }

    /// Connects to the named addresses, and leaves out replicas that may be lost.
    async fn connect_named(&mut self) -> Result<(), Refusal<F>> {
        let places = self.places.clone();
        let patience = self.patience(self.enough_named(), &places);
        for (position, site) in self.connect(&places, patience).await.into_iter().enumerate() {
            match site {
                Ok(site) => self.sites.push((position, site)),
                Err(cause) => self.leave_out(position, cause)?,
            }
        }
        Ok(())
    }

    /// Goes on without a replica whose loss may be why.
    pub(super) fn leave_out(&mut self, position: usize, cause: Cause<F>) -> Result<(), Refusal<F>> {
        if !cause.may_be_lost() {
            return Err(Refusal::Replica { position, cause });
        }
        self.left_out.push((position, cause));
        Ok(())
    }

    /// Before any writer is fenced: where fewer are connected than an opening needs of as many as the pool was made with, others must be enough.
    async fn check_take_over(&mut self) -> Result<(), Refusal<F>> {
        let is_counted = self.terms.min_replicas.is_none() && self.terms.keeper == KeptBy::Members;
        if self.terms.take_over.is_none() || !is_counted {
            return Ok(());
        }
        let infos = self.ask_infos(&self.sites).await;
        let made: Vec<_> = infos.into_iter().flatten().map(|info| usize::from(info.header.replica_count)).collect();
        if made.iter().all(|count| made.len() >= votes_needed(*count)) {
            return Ok(());
        }
        let surveyed = survey(&self.exchange, &self.rules, self.places.clone(), true).await;
        // Where it fails the opening fails for the same reason, and says it better.
        let Some((place, cause)) = surveyed.ok().and_then(Surveyed::missing) else { return Ok(()) };
        let position = self.places.iter().position(|known| *known == place).unwrap_or_else(|| {
            self.places.push(place);
            self.places.len() - 1
        });
        Err(Refusal::Replica { position, cause })
    }

    fn request(&self, wish: Wish, position: usize) -> Request {
        let (name, require) = (self.places[position].pool_name().clone(), self.terms.require);
        match wish {
            Wish::Create(creation) => creation.request(name, position as u16, self.places.len() as u16, require),
            Wish::Open => request(name, (self.access, require), self.terms.take_over),
            Wish::OpenOlder => Request::Open { name, access: self.access, require, may_be_older: true },
        }
    }

    /// Asks all of these targets at once, or the `first` before the others, which are asked only where it has opened.
    pub(super) async fn ask(
        &mut self,
        sites: Vec<(usize, SiteId)>,
        wish: Wish,
        first: Option<usize>,
        enough: usize,
        identity: &mut Option<Identity>,
    ) -> (Vec<OpenedReplica>, Vec<Failed<F>>) {
        // What changes something there is awaited. Carried out late, a takeover would fence a later writer, a creation would leave a replica of a pool that was not made,
        // and an opening for writing would make the replica busy for the next attempt.
        let changes = self.access == OpenFor::Write;
        let patience = if changes { Patience::ENDLESS } else { self.patience(enough, &[]) };
        let replies = match first {
            Some(first) => self.ask_first(&sites, wish, first).await,
            None => self.ask_all(&sites, wish, patience).await,
        };
        let (mut opened, mut failed) = (Vec::with_capacity(sites.len()), Vec::new());
        for ((position, site), answer) in sites.into_iter().zip(replies) {
            let Some(answer) = answer else { continue };
            let open = opened_uuid(&answer);
            match answer.and_then(|reply| Ok(checked(reply, (position, site), identity)?)) {
                Ok(found) => opened.push(found),
                Err(cause) => failed.push(Failed { position, site, open, cause }),
            }
        }
        let patience = if changes { Patience::ENDLESS } else { self.patience(enough, &[]) };
        let opened = self.look_into(opened, patience, &mut failed).await;
        (opened, failed)
    }

    /// Has the memory of open replicas mapped, and asks for their rosters and failure domains, where these were not told with the replica.
    async fn look_into(
        &mut self,
        opened: Vec<(OpenedReplica, Enclosed)>,
        patience: Patience,
        failed: &mut Vec<Failed<F>>,
    ) -> Vec<OpenedReplica> {
        let (exchange, access) = (Rc::clone(&self.exchange), self.access);
        let (opened, enclosed): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
        let tasks = opened.iter().zip(enclosed).map(|(replica, enclosed)| -> Task<'_, _> {
            let OpenedReplica { site, size_bytes, .. } = *replica;
            Box::pin(looked_into(&exchange, site, (access, size_bytes), enclosed))
        });
        let answers = exchange.answers(tasks.collect(), patience, Result::is_ok).await;
        let mut here = Vec::with_capacity(opened.len());
        for (replica, answer) in opened.into_iter().zip(answers) {
            self.note_silence(&answer);
            match answer {
                Ok(Looked { roster, domain, intent }) => {
                    here.push(OpenedReplica { roster, domain, intent, ..replica });
                }
                Err(cause) => {
                    let OpenedReplica { position, site, replica_uuid, .. } = replica;
                    if cause.is_silence() {
                        self.exchange.tell(Action::Drop { site });
                    }
                    let open = (!cause.is_silence()).then_some(replica_uuid);
                    failed.push(Failed { position, site, open, cause });
                }
            }
        }
        failed.sort_by_key(|failed| failed.position);
        here
    }

    /// Asks all at once. Where another program has one of them open, this releases the others, and asks [one after the other](Self::ask_in_turn). `None`: not asked.
    async fn ask_all(&mut self, sites: &[(usize, SiteId)], wish: Wish, patience: Patience) -> Vec<Option<Replied<F>>> {
        let exchange = Rc::clone(&self.exchange);
        let tasks = sites.iter().map(|(position, site)| -> Task<'_, _> {
            Box::pin(reply(&exchange, *site, self.request(wish, *position)))
        });
        let counts = |answer: &Replied<F>| is_opened(answer) || is_busy(answer);
        let answers = exchange.answers(tasks.collect(), patience, counts).await;
        for ((_, site), answer) in sites.iter().zip(&answers) {
            self.note_silence(answer);
            if answer.as_ref().is_err_and(Cause::is_silence) {
                exchange.tell(Action::Drop { site: *site });
            }
        }
        if !answers.iter().any(is_busy) {
            return answers.into_iter().map(Some).collect();
        }
        self.release(sites.iter().zip(&answers).filter(|(_, answer)| is_opened(answer)).map(|((_, site), _)| *site))
            .await;
        self.ask_in_turn(sites, wish, answers).await
    }

    /// Asks for one replica after the other, each for a second where another program has it, which may be gone or may be about to release it. All programs
    /// ask in the order of the replicas' indexes, so that no two of them wait for each other: of several that open a pool at once, the one that has
    /// the first replica gets the others too, however long their answers take.
    async fn ask_in_turn(
        &self,
        sites: &[(usize, SiteId)],
        wish: Wish,
        answers: Vec<Replied<F>>,
    ) -> Vec<Option<Replied<F>>> {
        let exchange = &*self.exchange;
        let may_be_had: Vec<_> = answers.iter().map(|answer| is_opened(answer) || is_busy(answer)).collect();
        let asked: Vec<_> = (0..sites.len()).filter(|at| may_be_had[*at]).collect();
        let infos = self.ask_infos(&asked.iter().map(|at| sites[*at]).collect::<Vec<_>>()).await;
        let index = |info: Option<Box<PoolInfo>>| info.map_or(u16::MAX, |info| info.header.replica_index);
        let mut order: Vec<_> = infos.into_iter().map(index).zip(asked).collect();
        order.sort_unstable();
        let mut answers: Vec<_> =
            answers.into_iter().zip(may_be_had).map(|(answer, may)| (!may).then_some(answer)).collect();
        for (_, at) in order {
            let (position, site) = sites[at];
            let answer = reply_when_free(exchange, site, self.request(wish, position)).await;
            if is_busy(answers[at].insert(answer)) {
                break;
            }
        }
        answers
    }

    /// What targets say of their replicas, in their order. All are awaited.
    async fn ask_infos(&self, sites: &[(usize, SiteId)]) -> Vec<Option<Box<PoolInfo>>> {
        let tasks = sites.iter().map(|(position, site)| -> Task<'_, _> {
            let name = self.places[*position].pool_name().clone();
            Box::pin(reply(&self.exchange, *site, Request::Info { name }))
        });
        let answers = self.exchange.answers(tasks.collect(), Patience::ENDLESS, Result::is_ok).await;
        let info = |answer| if let Ok(Reply::Info(info)) = answer { Some(info) } else { None };
        answers.into_iter().map(info).collect()
    }

    /// Asks one, and the others only after that one is opened: of several programs that make the same pool, only the one that gets it asks for the others. `None`: not asked.
    async fn ask_first(&self, sites: &[(usize, SiteId)], wish: Wish, first: usize) -> Vec<Option<Replied<F>>> {
        let exchange = &*self.exchange;
        let mut answers: Vec<Option<Replied<F>>> = sites.iter().map(|_| None).collect();
        let ask = |at: usize| {
            let (position, site) = sites[at];
            reply_when_free(exchange, site, self.request(wish, position))
        };
        let is_had = is_opened(answers[first].insert(ask(first).await));
        if is_had {
            let others: Vec<_> = (0..sites.len()).filter(|at| *at != first).collect();
            let tasks = others.iter().map(|at| -> Task<'_, _> { Box::pin(ask(*at)) }).collect();
            let replies = exchange.answers(tasks, Patience::ENDLESS, Result::is_ok).await;
            others.into_iter().zip(replies).for_each(|(at, answer)| answers[at] = Some(answer));
        }
        answers
    }

    /// Lets others open replicas that this opening does not use, before its caller may try again. They stay as they were found.
    pub(super) async fn release(&self, sites: impl Iterator<Item = SiteId>) {
        // What cannot be undone ends with the connection.
        self.close_each(sites).await;
    }

    /// The same. Returns for each whether its target has answered in time.
    pub(super) async fn close_each(&self, sites: impl Iterator<Item = SiteId>) -> Vec<bool> {
        let close = |site| (site, vec![Request::Close { in_order: false }]);
        self.ask_each(sites.map(close).collect(), Patience::within(RELEASE_WAIT)).await
    }

    /// Sends requests to several targets side by side, to each one after the other, and ignores what they say. Returns for each whether it has answered all.
    pub(super) async fn ask_each(&self, requests: Vec<(SiteId, Vec<Request>)>, patience: Patience) -> Vec<bool> {
        let exchange = &*self.exchange;
        let tasks = requests.into_iter().map(|(site, requests)| -> Task<'_, ()> {
            Box::pin(async move {
                for request in requests {
                    let _ = reply(exchange, site, request).await;
                }
            })
        });
        let answered = exchange.together(tasks.collect(), patience, |()| false).await;
        answered.into_iter().map(|answered| answered.is_some()).collect()
    }

    /// Opens replicas whose state may be an older one, where a number was asked for and there are too few without these.
    async fn open_older(
        &mut self,
        opened: &mut Vec<OpenedReplica>,
        failed: &mut Vec<Failed<F>>,
        identity: &mut Option<Identity>,
    ) {
        if self.terms.min_replicas.is_none_or(|least| opened.len() >= least) {
            return;
        }
        let is_uncertain = |failed: &Failed<F>| failed.cause.is_uncertain_state();
        let (uncertain, others): (Vec<_>, Vec<_>) = core::mem::take(failed).into_iter().partition(is_uncertain);
        let sites: Vec<_> = uncertain.into_iter().map(|failed| (failed.position, failed.site)).collect();
        let (older, still_failed) = self.ask(sites, Wish::OpenOlder, None, usize::MAX, identity).await;
        self.has_older = !older.is_empty();
        opened.extend(older);
        failed.extend(others.into_iter().chain(still_failed));
    }

    /// Which replicas were found where.
    pub(super) fn found(&self, opened: &[OpenedReplica]) -> Vec<FoundMember<P>> {
        found_at(&self.places, opened)
    }
}

/// Asks a target to open a replica, or to take it from a writer that has been silent for so long.
fn request(name: PoolName, (access, require): (OpenFor, Durability), take_over: Option<Duration>) -> Request {
    match take_over {
        None => Request::Open { name, access, require, may_be_older: false },
        Some(silent_for) => {
            let silent_ms = silent_for.as_millis().try_into().unwrap_or(u64::MAX);
            Request::TakeOver { name, require, silent_ms, claim: Claim::None }
        }
    }
}

/// Opens one replica, whichever others its pool has.
pub(super) async fn open_one<P: Place, F: Failure>(
    exchange: &Exchange<P, F>,
    place: &Arc<P>,
    (access, require): (OpenFor, Durability),
    take_over: Option<Duration>,
) -> Result<(Identity, OpenedReplica), Cause<F>> {
    let (site, name, mut identity) = (exchange.fresh_site(), place.pool_name().clone(), None);
    done(exchange, Action::Connect { site, place: Arc::clone(place), limit: None }).await?;
    let reply = reply_when_free(exchange, site, request(name, (access, require), take_over)).await?;
    let (opened, enclosed) = checked(reply, (0, site), &mut identity)?;
    let Looked { roster, domain, intent } = looked_into(exchange, site, (access, opened.size_bytes), enclosed).await?;
    Ok((identity.ok_or(Reason::Unexpected)?, OpenedReplica { roster, domain, intent, ..opened }))
}

/// Which replicas were found at which of the places.
pub(super) fn found_at<P>(places: &[Arc<P>], opened: &[OpenedReplica]) -> Vec<FoundMember<P>> {
    let found = |opened: &OpenedReplica| {
        let OpenedReplica { position, index, replica_uuid, .. } = *opened;
        FoundMember { index, replica_uuid, url: Arc::clone(&places[position]) }
    };
    opened.iter().map(found).collect()
}

/// How those in sync were left. `is_clean`: all of them were closed in order.
fn left(opened: &[OpenedReplica], is_clean: bool) -> Left {
    let mut of =
        opened.iter().filter(|opened| opened.behind.is_none()).map(|opened| (opened.state.is_open, opened.state.mark));
    let first = of.next();
    match (is_clean, of.all(|next| Some(next) == first)) {
        (true, _) => Left::Closed,
        (false, true) => Left::Alike,
        (false, false) => Left::Unlike,
    }
}

/// What a reply says, where it fits.
fn checked(
    reply: Reply,
    (position, site): (usize, SiteId),
    identity: &mut Option<Identity>,
) -> Result<(OpenedReplica, Enclosed), Reason> {
    let told = OpenedReply::of(reply)?;
    told.check(identity)?;
    let OpenedReply { identity: Identity { size_bytes, .. }, index, replica_uuid, state, enclosed, .. } = told;
    let replica = OpenedReplica {
        position,
        site,
        index,
        replica_uuid,
        state,
        roster: None,
        size_bytes,
        behind: None,
        is_witness: false,
        domain: None,
        intent: None,
    };
    Ok((replica, enclosed))
}

/// What there is to know of an open replica beyond its state.
struct Looked {
    roster: Option<Roster>,
    domain: Option<FailureDomain>,
    intent: Option<Vec<u32>>,
}

/// Has the memory mapped, and asks for the roster, and of a pool that is opened for writing for the failure domain, where the reply did not tell.
async fn looked_into<P, F: Failure>(
    exchange: &Exchange<P, F>,
    site: SiteId,
    (access, size_bytes): (OpenFor, u64),
    mut beside: Enclosed,
) -> Result<Looked, Cause<F>> {
    done(exchange, Action::Map { site, access, size_bytes }).await?;
    let roster = kept_roster(exchange, site, &mut beside).await?;
    let domain = match access {
        OpenFor::Read => None,
        OpenFor::Write => failure_domain(exchange, site, &mut beside).await,
    };
    Ok(Looked { roster, domain, intent: beside.intent })
}

/// The replica that was opened there, or made.
fn opened_uuid<F>(reply: &Replied<F>) -> Option<Uuid> {
    match reply {
        Ok(Reply::Opened { replica_uuid, .. }) => Some(*replica_uuid),
        _ => None,
    }
}

fn is_opened<F>(reply: &Replied<F>) -> bool {
    opened_uuid(reply).is_some()
}

fn is_busy<F: Failure>(reply: &Replied<F>) -> bool {
    reply.as_ref().is_err_and(Cause::may_be_free_soon)
}
