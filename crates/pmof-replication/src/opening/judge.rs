//! Whether the replicas that are open make the pool, and which of them have to catch up.

use alloc::{boxed::Box, vec::Vec};

use pmof_control::OpenFor;

use super::{
    Refusal, Rules,
    ask::{Failed, Run},
    heard::Heard,
    outcome::{Identity, OpenedReplica, UnreadReplica},
};
use crate::{
    asking::{Action, Answer, Cause, Failure},
    domain::{distinct, numbered},
    electorate::{Electorate, Word},
    keeper::{KeeperError, Kept, KeptBy},
    lineage::{Agreement, Apart, Found, check_kept, votes_needed},
    place::Place,
};

impl<P: Place, F: Failure, R: Rules> Run<P, F, R> {
    /// Decides on all that was found. On a failure some of `opened` are left to be released.
    pub(super) async fn decide(
        &mut self,
        opened: &mut Vec<OpenedReplica>,
        mut failed: Vec<Failed<F>>,
        identity: Option<Identity>,
        heard: &[Heard],
    ) -> Result<(Identity, Electorate, Agreement), Refusal<F>> {
        let made = identity.map_or(0, |identity| identity.replica_count);
        let kept = self.read_keeper().await?;
        let mut words = words(opened);
        words.extend(heard.iter().filter_map(|heard| heard.word(opened)));
        let electorate = self.rules.electorate(&words, made, kept.as_deref());
        let identity = identity.map(|identity| Identity { replica_count: electorate.count(), ..identity });
        self.leave_out_non_members(opened, &electorate).await;
        self.leave_out_copies(opened, &electorate).await;
        if let Some(identity) = &identity {
            failed.append(&mut Self::find_witnesses(opened, &electorate, identity));
        }
        self.release(failed.iter().filter(|failed| failed.open.is_some()).map(|failed| failed.site)).await;
        let alone = self.asynchronous_alone(opened, &failed).or_else(|| self.witnesses_alone(opened, &failed));
        if let Some(alone) = alone {
            return Err(alone);
        }
        let (identity, agreement) = self.judge(opened, failed, identity, (&electorate, kept.as_deref())).await?;
        if self.access == OpenFor::Write {
            self.check_acknowledge(electorate.data_count())?;
            self.check_domains(opened)?;
        }
        Ok((identity, electorate, agreement))
    }

    /// What a keeper outside of the members has. The replicas are open, so that a writer before can change it behind this only without them; then this opening's own epoch is refused.
    async fn read_keeper(&self) -> Result<Option<Box<Kept>>, Refusal<F>> {
        if self.terms.keeper == KeptBy::Members {
            return Ok(None);
        }
        match self.exchange.ask(Action::ReadKeeper).await {
            Ok(Answer::Kept(kept)) => kept.map(Some).map_err(Refusal::Keeper),
            _ => Err(Refusal::Keeper(KeeperError::Unreachable)),
        }
    }

    /// Whether a persist of a pool with so many replicas can ever be acknowledged.
    pub(super) fn check_acknowledge(&self, made: usize) -> Result<(), Refusal<F>> {
        let wanted = self.terms.least_replicas;
        if wanted <= made { Ok(()) } else { Err(Refusal::NeverAcknowledged { wanted, made }) }
    }

    /// Whether the replicas that are open are in as many failure domains as a persist is to be in.
    pub(super) fn check_domains(&self, opened: &[OpenedReplica]) -> Result<(), Refusal<F>> {
        let opened: Vec<_> = opened.iter().filter(|opened| !opened.is_witness).collect();
        let domains: Vec<_> = opened.iter().map(|opened| opened.domain.as_ref()).collect();
        let (wanted, found) = (self.terms.least_domains, distinct(numbered(&domains)));
        if wanted <= found.max(1) {
            return Ok(());
        }
        let replicas = opened.iter().map(|opened| (opened.position, opened.domain.clone())).collect();
        Err(Refusal::TooFewDomains { wanted, found, replicas })
    }

    /// Judges whether the open replicas make the pool, and which of them have to catch up. Releases the others.
    async fn judge(
        &mut self,
        opened: &mut Vec<OpenedReplica>,
        failed: Vec<Failed<F>>,
        identity: Option<Identity>,
        (electorate, kept): (&Electorate, Option<&Kept>),
    ) -> Result<(Identity, Agreement), Refusal<F>> {
        for Failed { position, cause, .. } in failed {
            self.leave_out(position, cause)?;
        }
        let left_out: Vec<_> = self.told_left_out().collect();
        let identity = identity.ok_or_else(|| match (&left_out[..], self.terms.min_replicas) {
            // All failed, and the first is the one that the program expects to hear of.
            ([(position, cause), ..], None) => Refusal::Replica { position: *position, cause: cause.clone() },
            _ => Refusal::none_opened(left_out.clone()),
        })?;
        let made = identity.replica_count;
        if opened.is_empty() {
            return Err(Refusal::none_opened(left_out));
        }
        if let Some((position, other, index)) = one_twice(opened.iter().map(|opened| (opened.position, opened.index))) {
            return Err(Refusal::SameReplica { position, other, index });
        }
        let found: Vec<_> = opened.iter().map(|opened| Found { index: opened.index, state: &opened.state }).collect();
        kept.map_or(Ok(()), |kept| check_kept(kept, &found)).map_err(Refusal::Keeper)?;
        let agreed = self.rules.agree(&found, made, kept);
        let mut agreement = agreed.map_err(|apart| refused_apart(opened, &apart, made))?;
        if self.access == OpenFor::Write {
            self.rules.put_behind(&mut agreement, &found);
        }
        let is_enough = self.rules.is_enough(electorate, &agreement, &found, kept);
        if let Err(refusal) = self.check_enough(&found, &agreement, electorate, is_enough) {
            let others = [&agreement.behind[..], &agreement.foreign, &agreement.stale].concat();
            return Err(if others.is_empty() { refusal } else { refused_apart(opened, &others, made) });
        }
        let source = opened[agreement.source].position;
        self.sort_out(opened, &agreement, made).await;
        // With as many as an opening needs, and fewer than are to know of an epoch, the others may be opened in the same way.
        let is_quorum = kept.is_some() || electorate.is_quorum(opened.iter().map(|opened| opened.index));
        self.is_forced = self.terms.min_replicas.is_some() && !(is_enough && is_quorum && !self.has_older);
        agreement.source = opened.iter().position(|opened| opened.position == source).unwrap_or(0);
        Ok((identity, agreement))
    }

    /// Whether those in sync have all that was ever acknowledged, and no others can go on without them.
    fn check_enough(
        &self,
        found: &[Found<'_>],
        agreement: &Agreement,
        electorate: &Electorate,
        is_enough: bool,
    ) -> Result<(), Refusal<F>> {
        let made = electorate.count();
        let in_sync = agreement.in_sync.len();
        let (is_enough, needed) = match self.terms.min_replicas {
            Some(least) => (in_sync >= least.max(1), least.max(1)),
            None => (is_enough, votes_needed(made.into())),
        };
        let made = usize::from(made);
        if is_enough {
            return Ok(());
        }
        if self.terms.min_replicas.is_none() && !electorate.is_certain(agreement, found) {
            return Err(Refusal::UncertainRoster);
        }
        let lost = self.left_out.iter().find(|(_, cause)| !cause.is_of_no_voter()).or(self.left_out.first());
        if let (None, Some((position, cause))) = (self.terms.min_replicas, lost) {
            let (here, position, cause) = (found.len(), *position, cause.clone());
            return Err(Refusal::TooFew { here, made, needed, position, cause });
        }
        Err(Refusal::Degraded { opened: in_sync, made, needed })
    }

    /// Marks replicas that have to catch up. Releases replicas that are no part of the pool, and those behind that a reader does not need.
    async fn sort_out(&mut self, opened: &mut Vec<OpenedReplica>, agreement: &Agreement, made: u16) {
        let behind = agreement.behind.iter().map(|(at, apart)| (*at, *apart, true));
        let foreign = agreement.foreign.iter().map(|(at, apart)| (*at, *apart, false));
        let mut others: Vec<_> = behind.chain(foreign).collect();
        others.sort_unstable_by_key(|(at, ..)| core::cmp::Reverse(*at));
        let mut released = Vec::new();
        let mut unread = Vec::new();
        for (at, apart, may_catch_up) in others {
            let why = opened[at].why_apart(apart, made);
            if may_catch_up && self.access == OpenFor::Write {
                opened[at].behind = Some(why);
                continue;
            }
            let OpenedReplica { position, site, state, .. } = opened.remove(at);
            released.push(site);
            unread.push(may_catch_up.then_some(UnreadReplica { position, site, state }));
            self.left_out.push((position, why.into()));
        }
        let answered = self.close_each(released.iter().copied()).await;
        for (unread, answered) in unread.into_iter().zip(answered) {
            match unread {
                Some(unread) if answered => self.unread.push(unread),
                // Its answer would be taken for that of the next question.
                Some(UnreadReplica { site, .. }) => self.exchange.tell(Action::Drop { site }),
                None => {}
            }
        }
        self.left_out.sort_by_key(|(position, _)| *position);
    }

    /// Replicas that are done without, for the program.
    pub(super) fn told_left_out(&self) -> impl Iterator<Item = (usize, Cause<F>)> {
        self.left_out.iter().filter(|(_, cause)| !cause.is_of_witness()).cloned()
    }
}

/// What the open replicas say of the pool's members.
fn words(opened: &[OpenedReplica]) -> Vec<Word<'_>> {
    let words = opened.iter().map(|opened| Word {
        found: Found { index: opened.index, state: &opened.state },
        replica_uuid: opened.replica_uuid,
        roster: opened.roster.as_ref(),
    });
    words.collect()
}

/// The first replica whose index another has, too: its position, the position of the other, and the index. A replica and a copy of it count as one.
pub(crate) fn one_twice(replicas: impl IntoIterator<Item = (usize, u16)>) -> Option<(usize, usize, u16)> {
    let mut seen: Vec<(usize, u16)> = Vec::new();
    for (position, index) in replicas {
        if let Some((other, _)) = seen.iter().find(|(_, known)| *known == index) {
            return Some((position, *other, index));
        }
        seen.push((position, index));
    }
    None
}

fn refused_apart<F>(opened: &[OpenedReplica], apart: &[(usize, Apart)], made: u16) -> Refusal<F> {
    let mut apart: Vec<_> = apart.to_vec();
    apart.sort_unstable_by_key(|(at, _)| *at);
    let named = |(at, apart): &(usize, Apart)| (opened[*at].position, opened[*at].why_apart(*apart, made));
    Refusal::Apart { replicas: apart.iter().map(named).collect() }
}

impl<F> Refusal<F> {
    /// No replica was opened. Of the only one that was named its failure is all there is to tell.
    pub(super) fn none_opened(mut replicas: Vec<(usize, Cause<F>)>) -> Self {
        match replicas.len() {
            0 => Self::NoReplicas,
            1 => {
                let (position, cause) = replicas.remove(0);
                Self::Replica { position, cause }
            }
            _ => Self::NoneOpened { replicas },
        }
    }
}
